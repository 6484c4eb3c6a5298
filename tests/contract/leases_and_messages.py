"""Contract of tiers, second part: dead writers, messages to other processes, lost connections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_cache.errors import RemoteTierError
from tests.contract.workbench import RecordingListener, Workbench, commit, load, read, value_of, write, writing

__all__ = ["LeaseTests", "OutageTests", "SubscriptionTests"]


class LeaseTests(Workbench):
    """Writers that take long or die: a `begin` lasts for its lease."""

    async def test_a_write_that_is_renewed_keeps_its_hold(self) -> None:
        """However long it runs."""
        async with self.tiers() as (a, b):
            intent = write("order:7")
            await b.begin(intent)
            for _ in range(3):
                await self.advance(b.lease * 0.7)
                await b.renew(intent)
            await load(a, read("order:7"), "half")
            assert await value_of(a, read("order:7")) == "nothing"
            await commit(b, intent)
            assert await value_of(a, read("order:7")) == "nothing"

    async def test_strong_reads_pass_over_what_depends_on_an_armed_root(self) -> None:
        """Its writer may have died after its effect."""
        async with self.tiers() as (a, b):
            requests = [replace(request, strong=True) for request in (read("order:7"), read("order", key="all"))]
            for request in requests:
                await load(a, request, "old")
                assert await value_of(a, request) == "old"
            intent = write(late=("order",))
            await b.begin(intent)
            for request in requests:
                assert await value_of(a, request) == "nothing"
                assert await value_of(a, replace(request, strong=False)) == "old"
            await commit(b, intent, "order:8")
            assert await value_of(a, requests[0]) == "old"
            assert await value_of(a, requests[1]) == "nothing"


class SubscriptionTests(Workbench):
    """Listeners, tickets, and how long local copies are trusted."""

    async def test_a_listener_is_told_when_others_begin_to_write_and_when_they_have_written(self) -> None:
        """Both drop local copies. A write that will be told its entity names the root first: if its writer dies, its
        commit never comes.
        """
        for intent, roots in ((write("order:7"), ("order",)), (write(late=("order",)), ("order", "order:8"))):
            async with self.tiers() as (a, b):
                received = RecordingListener()
                b.subscribe(received)
                await load(b, read("order:7"), "old")
                await a.begin(intent)
                await self.arrive()
                assert all(received.concerns(tag) for tag in ("order:7", *roots))
                assert not received.concerns("user:1")
                received.clear()
                await commit(a, intent, "order:7")
                await self.arrive()
                assert received.concerns("order:7")

    async def test_a_listener_is_told_of_single_entries(self) -> None:
        """By a write that names keys, and by `discard`."""
        async with self.tiers() as (a, b):
            received = RecordingListener()
            b.subscribe(received)
            request = read("order:7")
            await load(b, request, "old")
            intent = write(entries=(request,))
            await a.begin(intent)
            await commit(a, intent)
            await self.arrive()
            assert any(touched is None or (request.tool, request.key) in touched.keys for touched in received)
            received.clear()
            await a.discard(request)
            await self.arrive()
            assert any(touched is None or (request.tool, request.key) in touched.keys for touched in received)

    async def test_a_ticket_is_clean_until_what_it_depends_on_is_touched(self) -> None:
        """By another process or by this one; writes to other tags do not matter."""
        for writer in (0, 1):
            async with self.tiers() as tiers:
                _, ticket = await tiers[1].lookup(read("order:7"))
                _, late = await tiers[1].lookup(read(late=("order",), key="Mei"))
                async with writing(tiers[writer], "user:1"):
                    pass
                await self.arrive()
                assert ticket.is_clean()
                assert late.is_clean()
                async with writing(tiers[writer], "order:7"):
                    pass
                await self.arrive()
                assert not ticket.is_clean()
                assert not late.is_clean()
                assert not ticket.is_joinable()

    async def test_a_ticket_taken_while_a_write_runs_is_never_clean(self) -> None:
        """A local copy would outlive the writer's death. That goes for a hit under an armed root, too. Nor is a load
        shared that began while one holds what it reads.
        """
        for intent in (write("order:7"), write(late=("order",))):
            async with self.tiers() as (a, b):
                await load(b, read("order:7"), "old")
                await a.begin(intent)
                _, ticket = await b.lookup(read("order:7"))
                assert not ticket.is_clean()
                assert not (intent.tags and ticket.is_joinable())
                await commit(a, intent)
                assert not ticket.is_clean()

    async def test_an_old_load_is_shared_only_as_long_as_messages_come_in(self) -> None:
        """Without messages, any write may have overtaken it."""
        async with self.tiers() as (_, b):
            _, ticket = await b.lookup(read("order:7"))
            assert ticket.is_joinable()
            await self.advance(self.max_staleness * 1.2)
            assert ticket.is_joinable()
            await self.cut(b)
            await self.advance(self.max_staleness * 1.2)
            assert not ticket.is_joinable()

    async def test_local_copies_are_trusted_for_the_bound_of_staleness_at_the_most(self) -> None:
        """Asking again does not extend it."""
        async with self.tiers() as (_, b):
            await self.arrive()
            for waited in (0.0, self.max_staleness / 2):
                await self.advance(waited)
                assert b.trust.is_valid()

    async def test_nothing_is_trusted_that_nobody_listens_for(self) -> None:
        """No message could drop a local copy."""
        a, b = await self.make_tiers()
        try:
            await load(b, read("order:7"), "old")
            assert not b.trust.is_valid()
        finally:
            await a.aclose()
            await b.aclose()


class OutageTests(Workbench):
    """Reads fail open, writes are committed later, and only a refused write raises."""

    async def test_trust_lapses_when_messages_stop_coming_in(self) -> None:
        """At the latest after the bound of staleness."""
        async with self.tiers() as (_, b):
            await load(b, read("order:7"), "old")
            await self.cut(b)
            await self.advance(self.max_staleness * 1.2)
            assert not b.trust.is_valid()

    async def test_after_a_loss_anything_may_have_changed(self) -> None:
        """Listeners receive None, or what is under the roots of the server that was lost; loads under way are not
        stored, and then local copies are trusted again.
        """
        async with self.tiers() as (a, b):
            received = RecordingListener()
            b.subscribe(received)
            _, ticket = await b.lookup(read("order:7"))
            await self.cut(b)
            async with writing(a, "order:7"):
                pass
            await self.reconnect(b)
            await self.arrive()
            assert received.concerns("order:7")
            assert received.concerns("order")
            assert not ticket.is_clean()
            assert not ticket.is_joinable()
            assert b.trust.is_valid()

    async def test_a_server_that_is_away_makes_every_read_a_miss(self) -> None:
        """There is no error, and a load is not stored, since writes under way are unknown; nor is it when the server is
        back.
        """
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            await self.stop_server()
            found, ticket = await a.lookup(read("order:7"))
            assert found is None
            assert not ticket.is_clean()
            await a.store(ticket, "new", ("order:7",), 0.5, age=0.0)
            assert not await a.discard(read("order:7"))
            _, ticket = await a.lookup(read("order:8", key="8"))
            await self.start_server()
            await a.store(ticket, "old", ("order:8",), 0.5, age=0.0)
            assert await value_of(b, read("order:8", key="8")) == "nothing"

    async def test_a_write_is_made_up_for_when_the_server_is_back(self) -> None:
        """Also one that had begun before. The writing process finds no overwritten value from the start, the others not
        after the server is back.
        """
        for late, has_begun in (((), False), (("order",), False), ((), True)):
            async with self.tiers() as (a, b):
                await load(a, read("order:7"), "old")
                intent = write(*(() if late else ("order:7",)), late=late)
                if has_begun:
                    await a.begin(intent)
                await self.stop_server()
                if not has_begun:
                    await a.begin(intent)
                    await a.renew(intent)
                await commit(a, intent, *(("order:7",) if late else ()))
                await self.start_server()
                assert await value_of(a, read("order:7")) == "nothing"
                assert await value_of(b, read("order:7")) == "nothing"
                await load(a, read("order:7"), "new")
                assert await value_of(b, read("order:7")) == "new"

    async def test_a_write_that_asks_for_it_is_refused_without_the_server(self) -> None:
        """Its tool must not run. Nor is it said that all was dropped."""
        async with self.tiers() as (a, _):
            await self.stop_server()
            for asked in (a.begin(replace(write("order:7"), on_unreachable="refuse")), a.clear()):
                with pytest.raises(RemoteTierError):
                    await asked
            await self.start_server()

    async def test_a_closed_tier_is_harmless(self) -> None:
        """Closing twice is no error, and nothing is trusted afterwards."""
        async with self.tiers() as (_, b):
            await load(b, read("order:7"), "old")
            await b.aclose()
            await b.aclose()
            assert not b.trust.is_valid()
