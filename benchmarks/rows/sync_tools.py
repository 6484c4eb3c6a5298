"""Rows of synchronous tools, over the asynchronous ones of the same run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, thread_time

from agent_cache import AgentCache
from benchmarks.rows.calls import FILL
from benchmarks.table import Row
from benchmarks.timing import (
    Effort,
    Sample,
    Spread,
    calling_each,
    gc_off,
    hitting,
    measure,
    progress,
    with_code_of_its_own,
)
from benchmarks.workload import CARD, TTL, USER, new_ids, scalar_tool

PlainTool = Callable[[str], str]

THREADS = 64
SLOW = 0.005
"""Seconds that the tool of the stampede takes: more than it takes to wake all threads."""


def plain_tool() -> PlainTool:
    """Takes a string and returns a constant string, as `scalar_tool`."""

    def get_card(user_id: str) -> str:
        return CARD

    return get_card


async def rows(effort: Effort) -> list[Row]:
    """A hit and a miss over those of an `async def`, and 64 threads on one cold key."""
    return [*await _calls(effort), *_stampede(effort)]


async def _calls(effort: Effort) -> list[Row]:
    plain, tool = (
        AgentCache("card", ttl=TTL, name="plain card")(plain_tool()),
        AgentCache("card", ttl=TTL)(scalar_tool()),
    )
    tagged = AgentCache("card:{user_id}", ttl=TTL, name="plain tagged card")(plain_tool())
    tagged_async = AgentCache("card:{user_id}", ttl=TTL)(scalar_tool())
    missing, missing_async = _calling_each(tagged, new_ids("s")), calling_each(tagged_async, new_ids("a"))
    await missing(FILL)
    await missing_async(FILL)
    plain(USER)
    figures = await measure(
        {
            "bare": _calling(plain_tool()),
            "hit": _calling(plain),
            "async hit": hitting(tool, USER),
            "bare miss": _calling_each(plain_tool(), new_ids("b")),
            "bare async miss": calling_each(scalar_tool(), new_ids("c")),
            "miss": missing,
            "async miss": missing_async,
        },
        effort,
        title="synchronous tools",
    )
    hit, asynchronous = figures["hit"], figures["async hit"]
    nanoseconds = f"hit {hit.spread.median * 1e9:.0f} ns, of an async def {asynchronous.spread.median * 1e9:.0f} ns"
    miss = figures["miss"].above(figures["bare miss"]).scaled(1e6)
    others = figures["async miss"].above(figures["bare async miss"]).scaled(1e6)
    return [
        Row("sync", "a hit over the hit of an async def", hit.over(asynchronous), "x", 0.8, nanoseconds),
        Row(
            "sync",
            "a miss over the miss of an async def",
            Spread(miss.median / others.median, miss.low / others.median, miss.high / others.median),
            "x",
            1.1,
            f"entity tag, both over the bare tool: {miss.median:.2f} us and {others.median:.2f} us",
        ),
    ]


def _calling(function: PlainTool) -> Sample:
    async def run(n: int, function: PlainTool = function, argument: str = USER) -> float:
        start = thread_time()
        for _ in range(n):
            function(argument)
        return thread_time() - start

    return with_code_of_its_own(run)


def _calling_each(function: PlainTool, arguments: Callable[[int], Sequence[str]]) -> Sample:
    async def run(n: int, function: PlainTool = function) -> float:
        batch = arguments(n)
        start = thread_time()
        for argument in batch:
            function(argument)
        return thread_time() - start

    return with_code_of_its_own(run)


def _stampede(effort: Effort) -> list[Row]:
    """Wall time of 64 threads that ask for one cold key at once, over one call of the tool."""
    runs: list[str] = []
    pause = threading.Event()

    @AgentCache("card", ttl=TTL, name="stampede card")
    def get_card(user_id: str) -> str:
        runs.append(user_id)
        pause.wait(SLOW)
        return CARD

    rounds = max(5, effort.rounds // 8)
    seconds: list[float] = []
    with ThreadPoolExecutor(THREADS) as pool, gc_off():
        ids = new_ids("cold")(rounds)
        for round_, user_id in enumerate(ids):
            progress(f"{THREADS} threads on one cold key", round_, rounds)
            start = perf_counter()
            list(pool.map(get_card, [user_id] * THREADS))
            seconds.append(perf_counter() - start)
    if len(runs) != rounds:
        message = f"{THREADS} threads on {rounds} cold keys ran the tool {len(runs)} times"
        raise AssertionError(message)
    over = Spread.of([1e3 * (each - SLOW) for each in seconds])
    note = f"1 execution, checked; wall time over the tool's own {SLOW * 1e3:.0f} ms"
    return [Row("sync", f"{THREADS} threads on one cold key", over, "ms", 25.0, note)]
