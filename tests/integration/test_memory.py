"""What the cache holds in memory is bounded, and what it lets go is freed outside of its lock."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AsyncCache,
    configure,
    invalidate,
)
from agent_cache.core.store import NEVER, Entry
from agent_cache.engine.state import LEDGER
from agent_cache.testing import FakeClock


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


def lock_is_free() -> bool:
    """Whether another thread could take the ledger's lock now."""
    found: list[bool] = []

    def take() -> None:
        found.append(LEDGER.lock.acquire(blocking=False))
        if found[0]:
            LEDGER.lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


class Watched:
    """A value that notes, when it is freed, whether the ledger's lock is free."""

    freed: list[bool] = []

    def __init__(self, name: object = None) -> None:
        self.name = name

    def __del__(self) -> None:
        Watched.freed.append(lock_is_free())

    def __sizeof__(self) -> int:
        return 1_000


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


async def replaced_while_it_was_not_the_last_one_used() -> None:
    thing = reader()
    await thing(1)
    await thing(2)
    await thing.fresh(1)


async def refused_by_cache_if_in_place_of_an_older_one() -> None:
    accepted = True
    thing = reader(cache_if=lambda _: accepted)
    await thing(1)
    accepted = False
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


async def evicted_by_one_large_answer() -> None:
    thing = reader(maxsize=None)

    @AgentCache("text")
    async def text() -> str:
        return "x" * 1_990_000

    with configure(max_bytes=2_000_000):
        for number in range(1_000):
            await thing(number)
        await text()


async def expired_in_a_store_without_a_bound() -> None:
    with FakeClock() as clock:
        thing = reader(maxsize=None, ttl=10)
        await thing(1)
        clock.advance(11)
        await thing(2)


async def loaded_again_when_it_had_expired() -> None:
    with FakeClock() as clock:
        thing = reader(ttl=10)
        await thing(1)
        clock.advance(11)
        await thing(1)


async def dropped_by_a_write_in_doubt_whose_time_is_over() -> None:
    with FakeClock() as clock:
        thing = reader()

        @AgentCacheInvalidator("thing:{number}", doubt=5)
        async def change(number: int) -> None:
            raise TimeoutError

        running = asyncio.Event()

        @AgentCache("other")
        async def slow() -> int:
            await running.wait()
            return 1

        task = asyncio.ensure_future(slow())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await change(1)
        with LEDGER.lock:
            stores = [one.store for one in LEDGER.partitions_under("thing")]
            stores[0].insert(1, Entry(Watched(), NEVER, 0.0, ("thing:1",)))  # nothing else is stored under a hold
        clock.advance(6)
        running.set()
        await task
        assert thing


async def dropped_by_a_write() -> None:
    thing = reader()
    await thing(1)
    await invalidate("thing:1")


async def dropped_with_its_root() -> None:
    thing = reader()
    await thing(1)
    await invalidate("thing")


async def dropped_by_its_key() -> None:
    thing = reader()
    await thing(1)
    await thing.invalidate(1)


async def cleared() -> None:
    thing = reader()
    await thing(1)
    thing.clear()


async def a_session_ends() -> None:
    thing = reader(scope="session")
    async with AgentCacheSession(loop_detection=False):
        await thing(1)


async def cached_by_async_cache(change: Callable[[AsyncCache], Any]) -> None:
    cache = AsyncCache(maxsize=2, default_ttl=10)
    cache.set(1, Watched())
    change(cache)


async def set_again_in_async_cache() -> None:
    await cached_by_async_cache(lambda cache: cache.set(1, None))


async def set_to_nothing_in_async_cache() -> None:
    await cached_by_async_cache(lambda cache: cache.set(1, None, ttl=0))


async def deleted_from_async_cache() -> None:
    await cached_by_async_cache(lambda cache: cache.delete(1))


async def evicted_from_async_cache() -> None:
    await cached_by_async_cache(lambda cache: [cache.set(number, None) for number in (2, 3)])


async def cleared_from_async_cache() -> None:
    await cached_by_async_cache(lambda cache: cache.clear())


async def expired_in_async_cache() -> None:
    with FakeClock() as clock:
        cache = AsyncCache(default_ttl=10)
        cache.set(1, Watched())
        clock.advance(11)
        await cache.get(1)


async def evicted_by_a_load_of_async_cache() -> None:
    cache = AsyncCache(maxsize=1)
    cache.set(1, Watched())

    async def load() -> None:
        return None

    await cache.get(2, load)


async def evicted_by_a_batch_of_async_cache() -> None:
    cache = AsyncCache(maxsize=1, batch_window_ms=0)
    cache.set(1, Watched())

    async def load(keys: list[Any]) -> list[Any]:
        return [None] * len(keys)

    await cache.get(2, batch_loader=load)


WAYS = [
    replaced_by_a_fresh_one,
    replaced_while_it_was_not_the_last_one_used,
    refused_by_cache_if_in_place_of_an_older_one,
    evicted_by_maxsize,
    evicted_by_max_bytes,
    evicted_by_one_large_answer,
    expired_in_a_store_without_a_bound,
    loaded_again_when_it_had_expired,
    dropped_by_a_write_in_doubt_whose_time_is_over,
    dropped_by_a_write,
    dropped_with_its_root,
    dropped_by_its_key,
    cleared,
    a_session_ends,
    set_again_in_async_cache,
    set_to_nothing_in_async_cache,
    deleted_from_async_cache,
    evicted_from_async_cache,
    cleared_from_async_cache,
    expired_in_async_cache,
    evicted_by_a_load_of_async_cache,
    evicted_by_a_batch_of_async_cache,
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_value_is_freed_outside_of_the_lock(way: Callable[[], Awaitable[None]]):
    """A `__del__` may wait for a lock of the user's, whose holder may be waiting for the ledger's."""
    Watched.freed = []
    await way()
    for _ in range(50):
        await asyncio.sleep(0)
    assert Watched.freed
    assert all(Watched.freed)


async def test_nothing_is_logged_under_the_lock():
    """A handler is the user's code, too."""
    free: list[bool] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            free.append(lock_is_free())

    class Once:
        """A value that is copied once, when it is stored."""

        def __init__(self, *, can_be_copied: bool = True) -> None:
            self.can_be_copied = can_be_copied

        def __deepcopy__(self, memo: object) -> Once:
            if not self.can_be_copied:
                raise RuntimeError("no copy")
            return Once(can_be_copied=False)

    @AgentCache("r")
    async def tool() -> Once:
        return Once()

    log, handler = logging.getLogger("agent_cache"), Handler()
    log.addHandler(handler)
    try:
        await tool()
        await tool()
    finally:
        log.removeHandler(handler)
    assert free == [True]


async def test_no_key_is_compared_or_hashed_under_the_lock():
    """The keys of `AsyncCache` may be any objects."""
    free: list[bool] = []

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            free.append(lock_is_free())
            return 7

        def __eq__(self, other: object) -> bool:
            free.append(lock_is_free())
            return isinstance(other, Key) and self.number == other.number

        def __del__(self) -> None:
            free.append(lock_is_free())

    async def load() -> str:
        return "loaded"

    async def load_all(keys: list[Key]) -> list[str]:
        return ["loaded"] * len(keys)

    cache = AsyncCache(maxsize=3, default_ttl=60, batch_window_ms=0)
    for number in range(5):
        cache.set(Key(number), number)
        cache.set((Key(number),), number)
    assert len(cache.cache) == 3
    assert await cache.get(Key(4)) == 4
    assert await asyncio.gather(*(cache.get(Key(number), load) for number in (5, 5, 6))) == ["loaded"] * 3
    assert (
        await asyncio.gather(*(cache.get(Key(number), batch_loader=load_all) for number in (7, 7, 8))) == ["loaded"] * 3
    )
    assert list(map(type, cache.cache)) == [Key] * 3
    cache.delete(Key(8))
    assert Key(8) not in cache.cache
    cache.clear()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(free) > 100
    assert all(free)
