"""Time short blocks of calls against short blocks of a base, in turn.

A call over a socket is at the mercy of two processes and of whoever else wants their cores, and the mercy changes
within milliseconds. So each block of calls is timed between two blocks of the base, a round compares the fastest block
of each, since what others take of the machine only ever adds, and what is reported is the median over many rounds, with
its quartiles. The clock is the wall's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

from benchmarks.timing import Effort, Spread, names_in_rounds

Block = Callable[[], Awaitable[tuple[float, float]]]
"""Make a few calls, and return the seconds that one of them took: on the clock, and of this thread's processor time."""
BLOCKS = 12
PAUSE = 0.005
"""Seconds between two calls that are made far apart."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What one subject took: how many times the base, and seconds a call of both, one number a round.

    Attributes:
        processor: as `ratio`, of the processor time of this thread alone. On a busy machine it says more of work that
            is never interrupted by a wait.
    """

    ratio: Spread
    seconds: Spread
    base: Spread
    processor: Spread


def one_by_one(
    function: Callable[[Any], Awaitable[object]], arguments: Callable[[int], Sequence[object]], calls: int = 5
) -> Block:
    """A block of `await function(argument)`, one after the other."""

    async def block() -> tuple[float, float]:
        batch = arguments(calls)
        start, spent = perf_counter(), thread_time()
        for argument in batch:
            await function(argument)
        return (perf_counter() - start) / calls, (thread_time() - spent) / calls

    return block


def far_apart(
    function: Callable[[Any], Awaitable[object]], arguments: Callable[[int], Sequence[object]], calls: int = 5
) -> Block:
    """A block of `await function(argument)`, with nothing else in flight: each some time after the one before.

    All that a call makes this thread do counts, also after it has returned; a pause alone does not. Of both the least
    counts: the mean of so few calls may be less than that of the pauses, where something else used the machine.
    """

    async def block() -> tuple[float, float]:
        taken, spent, idle = [], [], []
        for argument in arguments(calls):
            start, began = perf_counter(), thread_time()
            await function(argument)
            taken.append(perf_counter() - start)
            await asyncio.sleep(PAUSE)
            ended = thread_time()
            await asyncio.sleep(PAUSE)
            spent.append(ended - began)
            idle.append(thread_time() - ended)
        return sum(taken) / calls, min(spent) - min(idle)

    return block


def at_once(
    function: Callable[[Any], Awaitable[object]], arguments: Callable[[int], Sequence[object]], callers: int
) -> Block:
    """A block of so many callers at a time, each of whom waits for its own."""

    async def block() -> tuple[float, float]:
        batch = arguments(callers)
        start, spent = perf_counter(), thread_time()
        await asyncio.gather(*(function(argument) for argument in batch))
        return (perf_counter() - start) / callers, (thread_time() - spent) / callers

    return block


async def paired(subjects: Mapping[str, tuple[Block, Block]], effort: Effort, *, title: str) -> dict[str, Pair]:
    """Time every subject against its base once a round.

    Args:
        subjects: by name, each with its base.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in subjects}
    for name in names_in_rounds(subjects, effort.rounds, title=title):
        subject, base = subjects[name]
        mine, theirs = [], []
        for _ in range(BLOCKS):
            theirs.append(await base())
            mine.append(await subject())
        (wall, cpu), (base_wall, base_cpu) = (map(min, zip(*of, strict=True)) for of in (mine, theirs))
        found[name].append((wall, base_wall, cpu / base_cpu))
    return {
        name: Pair(
            Spread.of([mine / theirs for mine, theirs, _ in rounds]),
            Spread.of([mine for mine, _, _ in rounds]),
            Spread.of([theirs for _, theirs, _ in rounds]),
            Spread.of([processor for _, _, processor in rounds]),
        )
        for name, rounds in found.items()
    }
