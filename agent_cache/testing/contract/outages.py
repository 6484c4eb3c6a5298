"""Connections that break and servers that go away: reads fail open, writes are made up for, nothing raises."""

from __future__ import annotations

from dataclasses import replace

from agent_cache.clock import CLOCK
from agent_cache.errors import RemoteTierError
from agent_cache.testing.contract.workbench import News, Workbench, commit, load, read, value_of, write, writing

__all__ = ["OutageTests"]


class OutageTests(Workbench):
    """A broken cache is not a broken agent."""

    async def test_trust_lapses_when_messages_stop_coming_in(self) -> None:
        """At the latest after the bound of staleness."""
        async with self.tiers() as (_, b):
            await load(b, read("order:7"), "old")
            await self.cut(b)
            await self.advance(self.max_staleness * 1.2)
            assert b.trusted_until() <= CLOCK.now()

    async def test_after_a_loss_anything_may_have_changed(self) -> None:
        """Listeners are told so, loads under way are not kept, and then there is trust again."""
        async with self.tiers() as (a, b):
            news = News()
            b.subscribe(news)
            _, ticket = await b.lookup(read("order:7"))
            await self.cut(b)
            async with writing(a, "order:7"):
                pass
            await self.reconnect(b)
            await self.arrive()
            assert None in news
            assert not ticket.is_clean()
            assert not ticket.is_joinable()
            assert b.trusted_until() > CLOCK.now()

    async def test_a_server_that_is_away_makes_every_read_a_miss(self) -> None:
        """Without an error; and what is loaded then is not kept, for nobody knows what is being written."""
        async with self.tiers() as (a, _):
            await load(a, read("order:7"), "old")
            await self.stop_server()
            found, ticket = await a.lookup(read("order:7"))
            assert found is None
            assert not ticket.is_clean()
            await a.store(ticket, "new", ("order:7",), 0.5, age=0.0)
            assert not await a.discard(read("order:7"))

    async def test_what_is_loaded_without_the_server_is_not_stored_when_it_is_back(self) -> None:
        """Its ticket says nothing about what was written meanwhile."""
        async with self.tiers() as (a, b):
            await self.stop_server()
            _, ticket = await a.lookup(read("order:7"))
            await self.start_server()
            await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
            assert await value_of(b, read("order:7")) == "nothing"

    async def test_a_write_is_made_up_for_when_the_server_is_back(self) -> None:
        """The writing process sees none of what it has overwritten from the start; the others do not for long."""
        for late in ((), ("order",)):
            async with self.tiers() as (a, b):
                await load(a, read("order:7"), "old")
                await self.stop_server()
                intent = write(*(() if late else ("order:7",)), late=late)
                await a.begin(intent)
                await a.renew(intent)
                await commit(a, intent, *(("order:7",) if late else ()))
                await self.start_server()
                assert await value_of(a, read("order:7")) == "nothing"
                assert await value_of(b, read("order:7")) == "nothing"
                await load(a, read("order:7"), "new")
                assert await value_of(b, read("order:7")) == "new"

    async def test_a_write_that_loses_the_server_half_way_is_made_up_for(self) -> None:
        """Its lease ends what its commit could not, and its commit lands when it can."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            intent = write("order:7")
            await a.begin(intent)
            await self.stop_server()
            await commit(a, intent)
            await self.start_server()
            assert await value_of(a, read("order:7")) == "nothing"
            assert await value_of(b, read("order:7")) == "nothing"

    async def test_a_write_that_asks_for_it_is_refused_without_the_server(self) -> None:
        """Its tool does not run then."""
        async with self.tiers() as (a, _):
            await self.stop_server()
            try:
                await a.begin(replace(write("order:7"), on_unreachable="refuse"))
            except RemoteTierError:
                pass
            else:
                raise AssertionError("the write was begun although nobody could be told")
            await self.start_server()

    async def test_a_closed_tier_is_harmless(self) -> None:
        """Closing twice is no error, and nothing is trusted afterwards."""
        async with self.tiers() as (_, b):
            await b.aclose()
            await b.aclose()
            assert b.trusted_until() <= CLOCK.now()
