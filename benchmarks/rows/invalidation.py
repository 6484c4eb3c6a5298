"""Rows of invalidation: how long the event loop is blocked while a million entries are invalidated, or dropped.

A task that only yields watches the loop: the time between two of its turns is the time that everything else held it.
Processor time is judged, because a busy machine also takes the core away; wall time is shown beside it. A write leaves
the entries where they are, to be found stale; the first calls after it are watched, too. When all are dropped the watch
ends with the last entry that is freed: then the reference count of an object that every entry holds is back.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter, thread_time

from agent_cache import AgentCache, AgentCacheInvalidator, invalidate
from benchmarks.table import Row
from benchmarks.timing import Effort, Spread, gc_off, progress
from benchmarks.workload import TTL

REPEATS = 3
PATIENCE = 30.0
AFTERWARDS = 100
"""Calls after a write, each of which finds a stale entry and loads it again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The longest turn of the loop by both clocks, and the seconds that the call and the freeing took."""

    cpu: float
    wall: float
    call: float
    freed: float


class Watch:
    """A task that yields again and again, and keeps the longest time between two of its turns."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        wall, cpu = perf_counter(), thread_time()
        while True:
            await asyncio.sleep(0)
            now, spent = perf_counter(), thread_time()
            self.wall, self.cpu = max(self.wall, now - wall), max(self.cpu, spent - cpu)
            wall, cpu = now, spent

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class Marker:
    """An object that every entry holds."""


async def _hold(resource: str | list[str], entries: int, write: Callable[[], Awaitable[object]] | None) -> Hold:
    """Fill a store, and end its entries by this write; by `clear` for None."""
    marker = Marker()

    async def get_card(user_id: str, shop: str = "main") -> tuple[Marker, str]:
        return (marker, f"card {user_id}")

    tool = AgentCache(resource=resource, ttl=TTL, maxsize=None, copy="never")(get_card)
    with gc_off():
        for number in range(entries):
            await tool(f"user_{number:08d}")
        held = sys.getrefcount(marker)
        if held < entries:
            message = f"only {held} of {entries} entries were stored"
            raise AssertionError(message)
        watch = Watch()
        await asyncio.sleep(0)
        start = perf_counter()
        if write is None:
            tool.clear()
        else:
            await write()
        call = perf_counter() - start
        while write is None and sys.getrefcount(marker) > held - entries + 1 and perf_counter() - start < PATIENCE:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        freed = perf_counter() - start
        if write is not None:
            for number in range(AFTERWARDS):
                await tool(f"user_{number:08d}")
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # the watch measures the last turn too
        await watch.stop()
    left = sys.getrefcount(marker) - (held - entries)
    if write is None and left > 1:
        message = f"{left} entries of {resource!r} were not freed in {PATIENCE} s"
        raise AssertionError(message)
    return Hold(watch.cpu, watch.wall, call, freed)


async def rows(effort: Effort) -> list[Row]:
    async def write(name: str) -> None:
        """A write tool without an effect of its own."""

    write_root = AgentCacheInvalidator(resource="card")(write)
    write_card = AgentCacheInvalidator(resource="card:{name}")(write)
    write_shop = AgentCacheInvalidator(resource="shop:{name}")(write)
    cases: tuple[tuple[str, str | list[str], Callable[[], Awaitable[object]] | None], ...] = (
        ("clear()", "card:{user_id}", None),
        ("static tag, invalidate()", "card", lambda: invalidate("card")),
        ("static tag, a write of one entity", "card", lambda: write_card("user_00000007")),
        ("entity tags, a write of their root", "card:{user_id}", lambda: write_root("any")),
        ("entity tags under two roots", ["card:{user_id}", "user:{user_id}"], lambda: write_root("any")),
        ("all under one entity, a write of it", ["card:{user_id}", "shop:{shop}"], lambda: write_shop("main")),
    )
    table = []
    for name, resource, invalidation in cases:
        holds = []
        for repeat in range(REPEATS):
            progress(f"invalidating {effort.entries:,} entries, {name}", repeat, REPEATS)
            holds.append(await _hold(resource, effort.entries, invalidation))
        progress(name, REPEATS, REPEATS)
        note = (
            f"wall {min(hold.wall for hold in holds) * 1e3:.1f} to {max(hold.wall for hold in holds) * 1e3:.1f} ms; "
            f"the call {statistics.median(hold.call for hold in holds) * 1e3:.1f} ms"
        )
        if invalidation is None:
            note += f", all freed after {statistics.median(hold.freed for hold in holds) * 1e3:.0f} ms"
        cpu = Spread.of([hold.cpu for hold in holds]).scaled(1e3)
        table.append(Row("invalidation", f"{effort.entries:,} entries: {name}", cpu, "ms", 5.0, note))
    return table
