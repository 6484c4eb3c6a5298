"""Loads before the end of a ttl, by one process of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

pytest.importorskip("redis")


from agent_cache import AgentCache
from agent_cache.core.options import refresh_window
from agent_cache.remote import Request
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.versioned import Ticket
from agent_cache.testing import JITTER, FakeClock
from tests.contract.workbench import read, value_of
from tests.harness.servers import Server
from tests.harness.tiers import Make, making, until

FLEET = range(4)
ORDER = read("order:7")


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Tiers that are listened to, and closed afterwards."""
    async with making(is_heard=True, max_staleness=30.0, timeout=9.0) as make:
        yield make


async def missed(tier: RedisTier, request: Request = ORDER) -> Ticket:
    found, ticket = await tier.lookup(request)
    assert found is None
    return ticket


# Before the end of a ttl


@pytest.mark.parametrize(("age", "refreshing"), [(5.0, 0), (8.5, 1)])
async def test_shortly_before_its_end_one_process_loads_a_value_again(make: Make, valkey: Server, age, refreshing):
    tiers = [make(valkey.url) for _ in FLEET]
    request = read("order:7", ttl=10.0)
    ticket = await missed(tiers[0], request)
    await tiers[0].store(ticket, "old", request.tags, 0.5, age=age)
    found = [(await tier.lookup(request))[0] for tier in (*tiers, *tiers)]
    assert [each.value for each in found if each] == ["old"] * 2 * len(tiers)
    assert sum(each.is_to_refresh for each in found if each) == refreshing
    assert all(each.ttl is not None and each.ttl > 0 for each in found if each)


@pytest.mark.parametrize("age", [8.5, 10.5])
async def test_who_discards_a_value_that_is_about_to_end_does_not_claim_to_load_it(make: Make, valkey: Server, age):
    """Nobody else would for as long as the lease lasts."""
    tier, other = make(valkey.url), make(valkey.url)
    request = replace(read("order:7", ttl=10.0), grace=10.0)
    await tier.store(await missed(tier, request), "old", request.tags, 0.5, age=age)
    assert await other.discard(request)
    await tier.store(await missed(tier, request), "new", request.tags, 0.5, age=age)
    found, _ = await tier.lookup(request)
    assert found is not None
    assert found.is_to_refresh


async def test_a_value_that_is_about_to_end_is_answered_at_once_and_loaded_again(make: Make, valkey: Server):
    tier, other = make(valkey.url), make(valkey.url)
    runs: list[str] = []

    @AgentCache("order:{id}", ttl=10.0, remote_cache=tier, name="get_order")
    async def get_order(id: int) -> str:
        runs.append("new")
        return "new"

    request = replace(get_order.cache_key(7).request, tags=("order:7",))
    ticket = await missed(other, request)
    await other.store(ticket, "old", request.tags, 0.5, age=8.5)
    assert await get_order(7) == "old"
    async with asyncio.timeout(60):
        while await value_of(other, request) != "new":
            await asyncio.sleep(0.01)
    assert await get_order(7) == "new"
    assert runs == ["new"]


@pytest.mark.parametrize(("drawn", "asked"), [(0.0, 0), (1.0, 1)])
async def test_a_local_copy_ends_a_little_before_its_value_at_random(
    make: Make, valkey: Server, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, drawn, asked
):
    """So that one process asks the tier before the others do."""
    monkeypatch.setattr(JITTER, "random", lambda: drawn)
    tier = make(valkey.url)

    @AgentCache("order:{id}", ttl=10.0, remote_cache=tier, name="get_order")
    async def get_order(id: int) -> str:
        return f"order {id}"

    await get_order(7)
    await until(lambda: tier.stats()["trusted"])
    await get_order(7)
    assert tier.stats()["hits"] == 0
    clock.advance(9.97)
    assert await get_order(7) == "order 7"
    assert tier.stats()["hits"] == asked


@pytest.mark.parametrize("cost", [0.0, 0.001, 1.0, 60.0])
@pytest.mark.parametrize("life", [0.1, 1.0, 3_600.0])
def test_no_more_than_a_fifth_of_a_life_is_given_away(cost, life):
    assert 0 < refresh_window(cost, life) <= life / 5
    assert refresh_window(cost, life) == life / 5 or refresh_window(cost, life) >= 4 * cost
