"""Bytes per entry: what a cache holds for each call besides the caller's own key and value.

Keys and values are made, and kept, before `tracemalloc` starts, so that only what the cache itself allocates is
counted and there is nothing to subtract. Tables grow in steps, so the size is read at several counts over one doubling.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.timing import Spread
from benchmarks.workload import ScalarTool

Decorate = Callable[[ScalarTool], Callable[[str], Awaitable[object]]]

FIRST = 20_000
MARKS = 9


def marks() -> Sequence[int]:
    """Counts of entries at which to look: one doubling in equal steps."""
    return [FIRST + FIRST * step // (MARKS - 1) for step in range(MARKS)]


async def bytes_per_entry(decorate: Decorate) -> Spread:
    """The median over one doubling of the number of entries, with the smallest and the largest."""
    last = marks()[-1]
    keys = [f"user_{number:08d}" for number in range(last)]
    values = {key: f"card {key}" for key in keys}

    async def get_card(user_id: str) -> str:
        return values[user_id]

    tool = decorate(get_card)
    await tool(keys[0])  # what is made once, at the first call, is not an entry's
    sizes: list[float] = []
    gc.collect()
    tracemalloc.start()
    try:
        done = 1
        for mark in marks():
            for key in keys[done:mark]:
                await tool(key)
            done = mark
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0] / mark)
    finally:
        tracemalloc.stop()
    middle = sorted(sizes)[len(sizes) // 2]
    return Spread(middle, min(sizes), max(sizes))
