"""Times several callables in one noisy process.

Compared is `await f(argument)` in a loop of one coroutine, as in an agent's own code, with the same loop over the bare
tool. The step of that loop (about 10 ns) is on both sides and is left in. Four measures keep a busy machine out of the
result: the clock is the thread's processor time; every round times every subject once, briefly and in a new order; a
subject is compared with the base *of its own round*, because another process on the same core slows both; and the
result is the median over many rounds, with its quartiles.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import thread_time
from typing import Any

Sample = Callable[[int], Awaitable[float]]
"""Makes `n` calls and returns the seconds that they took together. Its preparations are not timed."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def scaled(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds per call of one subject, one number a round."""

    seconds: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)

    def over(self, base: Figure) -> Spread:
        """Multiples of the base, each round against the base of the same round."""
        return Spread.of([mine / theirs for mine, theirs in zip(self.seconds, base.seconds, strict=True)])

    def above(self, base: Figure) -> Spread:
        """Seconds over the base, each round against the base of the same round."""
        return Spread.of([mine - theirs for mine, theirs in zip(self.seconds, base.seconds, strict=True)])


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: rounds, the seconds of one subject in each, and entries where a row fills a cache."""

    rounds: int = 75
    seconds: float = 0.004
    entries: int = 1_000_000


COLLECT_EVERY = 8

QUICK = Effort(rounds=21, seconds=0.002, entries=100_000)


Clock = Callable[[], float]


def calling(function: Callable[..., Awaitable[object]], argument: object, *, clock: Clock = thread_time) -> Sample:
    """A sample of `await function(argument)`, always the same call.

    Each sample gets a code object of its own: CPython specialises a call site for the function that it sees there. A
    loop shared by all subjects would be specialised for none.
    """

    async def run(n: int, function: Any = function, argument: Any = argument) -> float:
        start = clock()
        for _ in range(n):
            await function(argument)
        return clock() - start

    return with_code_of_its_own(run)


def hitting(tool: Callable[..., Awaitable[object]], argument: object) -> Sample:
    """A sample of hits: the entry is stored before the clock starts."""
    sample = calling(tool, argument)

    async def run(n: int) -> float:
        await tool(argument)
        return await sample(n)

    return run


def calling_each(function: Callable[..., Awaitable[object]], arguments: Callable[[int], Sequence[object]]) -> Sample:
    """A sample of `await function(argument)` over `arguments(n)`, which are made before the clock starts."""

    async def run(n: int, function: Any = function, arguments: Any = arguments) -> float:
        batch = arguments(n)
        start = thread_time()
        for argument in batch:
            await function(argument)
        return thread_time() - start

    return with_code_of_its_own(run)


def with_code_of_its_own(run: Any) -> Sample:
    """The same with a code object of its own: see `calling`."""
    copy = types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, run.__defaults__, run.__closure__)
    sample: Sample = copy
    return sample


async def measure(subjects: Mapping[str, Sample], effort: Effort, *, title: str) -> dict[str, Figure]:
    """Time every subject once a round, and return its figure.

    First the number of calls is determined for each subject, so that a sample takes about `effort.seconds`.
    """
    with gc_off():
        counts = {name: await _calibrated(sample, effort.seconds) for name, sample in subjects.items()}
        seconds: dict[str, list[float]] = {name: [] for name in subjects}
        for name in names_in_rounds(subjects, effort.rounds, title=title):
            seconds[name].append(await subjects[name](counts[name]) / counts[name])
    return {name: Figure(tuple(values)) for name, values in seconds.items()}


def names_in_rounds(names: Iterable[str], rounds: int, *, title: str) -> Iterator[str]:
    """Every name once a round, in an order that changes with the round.

    Garbage is collected between rounds and never while the clock runs.
    """
    order = list(names)
    shuffle = random.Random(7).shuffle  # the same orders in every run of the benchmark
    with gc_off():
        for round_ in range(rounds):
            progress(title, round_, rounds)
            shuffle(order)
            if round_ % COLLECT_EVERY == 0:
                gc.collect()
            yield from order
    progress(title, rounds, rounds)


async def _calibrated(sample: Sample, seconds: float) -> int:
    count = 1
    while (taken := await sample(count)) < seconds / 4:
        count *= 2 if taken > seconds / 40 else 8
    return max(1, int(count * seconds / taken))


@contextmanager
def gc_off() -> Iterator[None]:
    """Collect garbage, then keep the collector off inside the block: a collection takes longer than a sample."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def progress(title: str, done: int = 0, total: int = 0) -> None:
    """Show progress on stderr: one line that is overwritten on a terminal, one line for each title elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{title} {done}/{total}" if done < total else "\r\x1b[2K")
        sys.stderr.flush()
    elif done == 0:
        sys.stderr.write(f"{title}\n")
