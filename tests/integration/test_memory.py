"""What the cache holds in memory is bounded, and what it lets go is freed outside of its lock."""

from __future__ import annotations

import asyncio
import gc
import inspect
import linecache
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, AsyncCache, configure, invalidate
from agent_cache.testing import FakeClock
from tests.harness import library


def lock_is_free() -> bool:
    """Whether another thread could take the lock of the versions now."""
    found: list[bool] = []

    thread = threading.Thread(target=lambda: found.append(library.lock_is_free()))
    thread.start()
    thread.join()
    return found[0]


class Watched:
    """A value that notes, when it is freed, whether the lock is free."""

    freed: list[bool] = []

    def __init__(self, name: object = None) -> None:
        self.name = name

    def __del__(self) -> None:
        Watched.freed.append(lock_is_free())

    def __sizeof__(self) -> int:
        return 1_000


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let no collection of garbage start at an arbitrary place, such as under the lock."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# -- The lock ------------------------------------------------------------------------------------------------


def reader(**options: Any) -> Any:
    @AgentCache("thing:{number}", copy="never", **options)
    async def thing(number: int) -> Watched:
        return Watched(number)

    return thing


async def replaced_by_a_fresh_one() -> None:
    thing = reader()
    await thing(1)
    await thing.fresh(1)


async def evicted_by_maxsize() -> None:
    thing = reader(maxsize=1)
    await thing(1)
    await thing(2)


async def evicted_by_max_bytes() -> None:
    thing, other = reader(), reader()
    with configure(max_bytes=4_000):
        await other(0)
        for number in range(5):
            await thing(number)


async def expired_in_a_store_without_a_bound() -> None:
    with FakeClock() as clock:
        thing = reader(maxsize=None, ttl=10)
        await thing(1)
        clock.advance(11)
        await thing(2)


async def found_stale_by_a_call() -> None:
    thing = reader()
    await thing(1)
    await invalidate("thing:1")
    await thing(1)


async def a_session_ends() -> None:
    thing = reader(scope="session")
    async with AgentCacheSession(loop_detection=False):
        await thing(1)


async def cleared_from_async_cache() -> None:
    cache = AsyncCache()
    cache.set(1, Watched())
    cache.clear()


WAYS = [
    replaced_by_a_fresh_one,
    evicted_by_maxsize,
    evicted_by_max_bytes,
    expired_in_a_store_without_a_bound,
    found_stale_by_a_call,
    a_session_ends,
    cleared_from_async_cache,
]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("way", WAYS)
async def test_a_value_is_freed_outside_of_the_lock(way: Callable[[], Awaitable[None]]):
    """A `__del__` may wait for a lock of the user's, whose holder may be waiting for the library's."""
    Watched.freed = []
    await way()
    for _ in range(50):
        await asyncio.sleep(0)
    assert Watched.freed
    assert all(Watched.freed)


# -- What grows ----------------------------------------------------------------------------------------------


async def test_tools_with_names_of_their_own_leave_nothing_behind():
    """A factory may name each tool it makes."""
    functions: weakref.WeakSet[Any] = weakref.WeakSet()

    def make(number: int) -> Any:
        @AgentCache("thing:{key}", name=f"tool {number} of many")
        async def tool(key: str) -> int:
            return number

        @AgentCacheInvalidator("thing:{key}", name=f"change {number} of many")
        async def change(key: str) -> int:
            return number

        functions.add(tool)
        functions.add(change)
        functions.add(inspect.unwrap(tool))
        return tool, change

    before = library.reads_known()
    for number in range(50):
        tool, change = make(number)
        assert await tool("a") == number
        await change("a")
    del tool, change
    gc.collect()
    assert len(functions) == 0
    assert library.reads_known() <= before
    assert not [name for name in linecache.cache if "of many" in str(name)]


def test_counters_of_many_tools_are_summed_up():
    """The first ones have rows of their own, and the sums stay right."""
    counters = AgentCacheSession().metrics
    for number in range(1_100):
        counters.stats_of((f"tool {number}", (f"r{number}",))).hits += 1
    found = counters.snapshot()
    assert found["calls"] == found["hits"] == 1_100
    assert {*found["tools"]} == {*(f"tool {number}" for number in range(1_000)), "(others)"}
    assert found["tools"]["(others)"]["hits"] == found["resources"]["(others)"]["hits"] == 100
    kept = counters.stats_of(("tool 7", ("r7",)))
    counters.clear()  # nobody counts in any other row now
    assert counters.snapshot()["calls"] == 0
    for stats in (kept, counters.stats_of(("one more", ("r",)))):
        stats.misses += 1
    assert counters.snapshot()["tools"].keys() == {"tool 7", "one more"}


# -- max_bytes -----------------------------------------------------------------------------------------------


async def test_keys_and_tags_count():
    """10,000 long questions with answers of one word: the questions are what takes the memory."""

    @AgentCache("answer:{question}", maxsize=None)
    async def answer(question: str) -> bool:
        return True

    with configure(max_bytes=1_000_000):
        for number in range(1_000):
            await answer(f"{number:05}" + "x" * 10_000)
    assert 40 <= answer.cache_info().currsize <= 100
