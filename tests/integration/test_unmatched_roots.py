"""Warnings of roots that only writes or only reads have, which are most often misspelt."""

from __future__ import annotations

import asyncio
import gc
import logging
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, configure, invalidate, writing
from agent_cache.testing import MemoryServer, MemoryTier

pytestmark = pytest.mark.usefixtures("clock")

CALLS = 100

# The roots are words that no tool of another test has: one that is still alive would be the nearest name.


def reading(resource: Any = "zqxjvkwqz:{id}", **options: Any) -> Any:
    async def get(id: str) -> str:
        return id

    return AgentCache(resource, name=options.pop("name", "get"), **options)(get)


def changing(resource: Any = "zqxjvkwqz:{id}", **options: Any) -> Any:
    async def save(id: str) -> str:
        return id

    return AgentCacheInvalidator(resource, name=options.pop("name", "save"), **options)(save)


async def called(get: Any, times: int = CALLS) -> None:
    """Call a read many times; only the last is a miss again, as a miss checks what the tool has done so far."""
    for _ in range(times):
        await get("7")
    await get("8")


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Any:
    gc.collect()  # the tools of earlier tests have roots as well
    caplog.set_level(logging.WARNING, "agent_cache")
    return lambda: [record.getMessage() for record in caplog.records]


async def test_a_write_root_without_a_read_is_warned_of_at_the_first_call_with_the_nearest_name(warned: Any):
    get, save, again = reading("zqxjvkwqz:{id}"), changing("zqxjvkwqzs:{id}"), changing("zqxjvkwqzs", name="again")
    assert warned() == []
    for _ in range(2):
        await save("7")
        await again("7")
    assert warned() == [
        "save: no read tool depends on 'zqxjvkwqzs', so this write drops nothing under it; is 'zqxjvkwqz' meant?"
    ]
    del get


async def test_a_read_that_is_decorated_before_the_first_write_is_in_time(warned: Any):
    save = changing()
    get = reading(["zqxjvkwqz:{id}", "zqcartqz"])
    await save("7")
    assert warned() == []
    del get


async def test_a_write_that_reaches_a_tier_may_have_its_reads_in_other_processes(warned: Any):
    save = changing()
    with configure(remote=MemoryTier(MemoryServer())):
        await save("7")
    await save("7")
    assert warned() == []


async def test_a_write_that_names_entries_is_not_warned_of(warned: Any):
    get = reading("zqxjvkwqz:{id}")
    save = changing("anything", clear_all=False, key_fn=lambda args, kwargs: get.cache_key(*args))
    await save("7")
    await called(get)
    assert warned() == [], "the root of the entries that it names counts as written"


async def test_a_read_root_without_a_write_is_warned_of_after_many_calls_with_the_nearest_name(warned: Any):
    get, other, save = reading("zqxjvkwqzs:{id}"), reading("zqxjvkwqzs", name="other"), changing("zqxjvkwqz:{id}")
    await called(get, CALLS - 1)
    assert warned() == []
    for name in "abc":
        await get(name)
        await other(name)
    await called(other)
    assert [message.split(";") for message in warned()] == [
        [
            "get: no write has 'zqxjvkwqzs', so what depends on it is cached until it is evicted",
            " if it changes, write it or give the tool a ttl",
            " is 'zqxjvkwqz' meant?",
        ]
    ]
    del save


async def by_writing(get: Any) -> None:
    async with writing("zqxjvkwqz"):
        pass


BY_HAND: dict[str, Any] = {
    "invalidate": lambda get: invalidate("zqxjvkwqz:7"),
    "writing": by_writing,
    "one entry": lambda get: get.invalidate("7"),
    "clear": lambda get: asyncio.to_thread(get.clear),
}


@pytest.mark.parametrize("how", BY_HAND)
async def test_what_is_invalidated_by_hand_counts_as_written(how: str, warned: Any):
    get = reading()
    await BY_HAND[how](get)
    await called(get)
    assert warned() == []


async def test_a_read_that_expires_or_has_a_tier_needs_no_write_here(warned: Any):
    await called(reading(ttl=timedelta(hours=1)))
    await called(reading(remote_cache=MemoryTier(MemoryServer())))
    assert warned() == []
