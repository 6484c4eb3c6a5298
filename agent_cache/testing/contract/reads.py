"""Reads by themselves: what is stored is found, for as long as it lives, by whom it belongs to."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import replace

from agent_cache.remote.protocol import Request, Tier
from agent_cache.testing.contract.workbench import Workbench, load, read, value_of, writing

__all__ = ["ReadTests"]


class ReadTests(Workbench):
    """Round trips."""

    async def test_a_tier_can_be_told_from_others_and_forgotten(self) -> None:
        """It is a key of tables that do not keep it alive."""
        async with self.tiers() as (a, b):
            assert len({a, b}) == 2
            assert [weakref.ref(tier)() for tier in (a, b)] == [a, b]

    async def test_a_miss_finds_nothing_and_gives_a_ticket(self) -> None:
        """A reader that finds nothing may load, store, and keep a local copy."""
        async with self.tiers() as (a, _):
            found, ticket = await a.lookup(read("order:7"))
            assert found is None
            assert ticket.is_clean()

    async def test_what_one_process_stores_another_finds(self) -> None:
        """The value comes with all its tags and with what its load cost."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7", "shop"), "old")
            found, ticket = await b.lookup(read("order:7", "shop"))
            assert found is not None
            assert (found.value, set(found.tags), found.cost) == ("old", {"order:7", "shop"}, 0.5)
            assert ticket.is_clean()

    async def test_none_is_a_value(self) -> None:
        """What a tool answers is cached, None too."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), None)
            assert await value_of(b, read("order:7")) is None

    async def test_a_value_belongs_to_whoever_asked(self) -> None:
        """Neither the loader nor a reader can change what others find."""
        async with self.tiers() as (a, _):
            loaded = {"items": ["shoe"]}
            await load(a, read("order:7"), loaded)
            loaded["items"].append("mine")
            found, _ = await a.lookup(read("order:7"))
            assert found is not None
            found.value["items"].append("yours")
            assert await value_of(a, read("order:7")) == {"items": ["shoe"]}

    async def test_a_later_value_replaces_an_earlier_one(self) -> None:
        """A reader that wants what is true now loads although there is a value, and stores."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            await load(b, read("order:7"), "new")
            assert await value_of(a, read("order:7")) == "new"

    async def test_a_value_lives_for_its_ttl(self) -> None:
        """It is found before, and not after."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7", ttl=self.moment), "old")
            found, _ = await b.lookup(read("order:7", ttl=self.moment))
            assert found is not None
            assert found.ttl is not None
            assert 0 < found.ttl <= self.moment
            await self.advance(self.moment * 1.1)
            assert await value_of(b, read("order:7", ttl=self.moment)) == "nothing"

    async def test_a_ttl_counts_from_the_start_of_the_load(self) -> None:
        """A value that comes from a farther tier, or from a slow load, is not made young by storing it."""
        async with self.tiers() as (a, b):
            request = read("order:7", ttl=self.moment * 4)
            _, ticket = await a.lookup(request)
            await a.store(ticket, "old", request.tags, 0.5, age=self.moment * 3)
            found, _ = await b.lookup(request)
            assert found is not None
            assert found.age >= self.moment * 3
            assert found.ttl is not None
            assert found.ttl <= self.moment
            await self.advance(self.moment * 1.1)
            assert await value_of(b, request) == "nothing"

    async def test_within_its_grace_a_value_is_known_to_be_old(self) -> None:
        """A tier that has grace finds it, and tells one reader at the most to load it anew. None outlives a write."""
        for is_written in (False, True):
            async with self.tiers() as (a, b):
                request = replace(read("order:7", ttl=self.moment), grace=self.moment * 4)
                await load(a, request, "old")
                found, _ = await b.lookup(request)
                assert found is not None
                assert not found.is_to_refresh
                assert found.ttl is not None
                assert 0 < found.ttl <= self.moment
                if is_written:
                    async with writing(a, "order:7"):
                        pass
                await self.advance(self.moment * 1.1)
                late = [found for tier in (a, b, a, b) if (found := (await tier.lookup(request))[0]) is not None]
                assert not (late and is_written)
                assert all(found.ttl is not None and found.ttl <= 0 for found in late)
                assert sum(found.is_to_refresh for found in late) <= 1

    async def test_tools_calls_sessions_and_tenants_are_kept_apart(self) -> None:
        """One of them being different is enough."""
        async with self.tiers() as (a, b):
            mine = read("order:7", key="7", session="s", tenant="t")
            await load(a, mine, "mine")
            others = (
                replace(mine, tool="shop:get_user"),
                replace(mine, key="8", arguments=(("id", "8"),)),
                replace(mine, key=7, arguments=(("id", 7),)),
                replace(mine, session="other"),
                replace(mine, session=None),
                replace(mine, tenant="other"),
                replace(mine, tenant=None),
            )
            assert [await value_of(b, other) for other in others] == ["nothing"] * len(others)
            assert await value_of(b, mine) == "mine"

    async def test_a_discarded_value_is_gone_for_everyone(self) -> None:
        """And `discard` says whether there was one."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            assert await b.discard(read("order:7"))
            assert not await b.discard(read("order:7"))
            assert await value_of(a, read("order:7")) == "nothing"

    async def test_a_load_under_way_does_not_bring_back_what_was_discarded(self) -> None:
        """It may have read what the discarding process knows to be wrong."""
        async with self.tiers() as (a, b):
            _, ticket = await a.lookup(read("order:7"))
            await b.discard(read("order:7"))
            await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
            assert await value_of(b, read("order:7")) == "nothing"

    async def test_several_event_loops_and_threads_share_a_client(self) -> None:
        """Each finds what the others have stored."""
        async with self.tiers() as (a, b):
            requests = [read("order", key=str(number)) for number in range(4)]
            for request in requests:
                await asyncio.to_thread(_load_alone, a, request)
            assert [await value_of(b, request) for request in requests] == ["old"] * 4


def _load_alone(tier: Tier, request: Request) -> None:
    """In an event loop of its own."""
    asyncio.run(load(tier, request, "old"))
