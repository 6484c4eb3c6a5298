"""What a client tells its process: listeners, tickets, and for how long local copies are trusted."""

from __future__ import annotations

from dataclasses import replace

from agent_cache.clock import CLOCK
from agent_cache.testing.contract.workbench import News, Workbench, commit, load, read, write, writing

__all__ = ["NewsTests"]


class NewsTests(Workbench):
    """Local copies stand and fall with these."""

    async def test_a_listener_is_told_when_others_begin_to_write_and_when_they_have_written(self) -> None:
        """Local copies go at both."""
        async with self.tiers() as (a, b):
            news = News()
            b.subscribe(news)
            await load(b, read("order:7"), "old")
            intent = write("order:7")
            await a.begin(intent)
            await self.arrive()
            assert news.concern("order:7")
            assert news.concern("order")
            assert not news.concern("user:1")
            news.clear()
            await commit(a, intent)
            await self.arrive()
            assert news.concern("order:7")

    async def test_a_listener_is_told_the_root_by_a_write_that_will_be_told_its_entity(self) -> None:
        """If that writer dies, nobody will say more: local copies must be gone by then. They go when it begins."""
        async with self.tiers() as (a, b):
            news = News()
            b.subscribe(news)
            await load(b, read("order:7"), "old")
            await a.begin(write(late=("order",)))
            await self.arrive()
            assert news.concern("order:7")
            assert news.concern("order:8")

    async def test_a_listener_is_told_what_a_write_was_told(self) -> None:
        """The entity, or the root after a failure."""
        for failed, told in ((False, ("order:7",)), (True, ())):
            async with self.tiers() as (a, b):
                news = News()
                await load(b, read("order:7"), "old")
                intent = write(late=("order",))
                await a.begin(intent)
                await self.arrive()
                b.subscribe(news)
                await commit(a, intent, *told, failed=failed)
                await self.arrive()
                assert news.concern("order:7")

    async def test_a_listener_is_told_of_single_entries(self) -> None:
        """By a write that names keys, and by `discard`."""
        async with self.tiers() as (a, b):
            news = News()
            b.subscribe(news)
            request = read("order:7")
            await load(b, request, "old")
            intent = write(entries=(request,))
            await a.begin(intent)
            await commit(a, intent)
            await self.arrive()
            assert any(told is None or (request.tool, request.key) in told.keys for told in news)
            news.clear()
            await a.discard(request)
            await self.arrive()
            assert any(told is None or (request.tool, request.key) in told.keys for told in news)

    async def test_a_subscription_that_was_ended_is_told_nothing(self) -> None:
        """And ending it again is no error."""
        async with self.tiers() as (a, b):
            news = News()
            end = b.subscribe(news)
            end()
            end()
            async with writing(a, "order:7"):
                pass
            await self.arrive()
            assert news == []

    async def test_a_ticket_is_clean_until_what_it_depends_on_is_touched(self) -> None:
        """By others or by this process; what is written elsewhere does not matter."""
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

    async def test_a_ticket_agrees_with_none_that_was_taken_before_a_write(self) -> None:
        """Whoever wrote: a strong reader does not share a load that may have read what was there before."""
        for writer in (0, 1):
            async with self.tiers() as tiers:
                request = replace(read("order:7"), strong=True)
                _, first = await tiers[1].lookup(request)
                async with writing(tiers[writer], "order:7"):
                    pass
                _, second = await tiers[1].lookup(request)
                assert not second.agrees_with(first)

    async def test_a_ticket_taken_while_a_write_runs_is_never_clean(self) -> None:
        """A local copy would outlive the writer's death. That goes for a hit under an armed root, too."""
        for intent in (write("order:7"), write(late=("order",))):
            async with self.tiers() as (a, b):
                await load(b, read("order:7"), "old")
                await a.begin(intent)
                _, ticket = await b.lookup(read("order:7"))
                assert not ticket.is_clean()
                await commit(a, intent)
                assert not ticket.is_clean()

    async def test_a_load_is_not_shared_that_began_while_a_write_ran(self) -> None:
        """Its writer may die with its work done, and no commit would say so."""
        async with self.tiers() as (a, b):
            await a.begin(write("order:7"))
            _, ticket = await b.lookup(read("order:7"))
            assert not ticket.is_joinable()

    async def test_an_old_load_is_shared_only_as_long_as_messages_come_in(self) -> None:
        """Without them it may have been overtaken by anything."""
        async with self.tiers() as (_, b):
            _, ticket = await b.lookup(read("order:7"))
            assert ticket.is_joinable()
            await self.advance(self.max_staleness * 1.2)
            assert ticket.is_joinable()
            await self.cut(b)
            await self.advance(self.max_staleness * 1.2)
            assert not ticket.is_joinable()

    async def test_local_copies_are_trusted_for_the_bound_of_staleness_at_the_most(self) -> None:
        """However often one asks."""
        async with self.tiers() as (_, b):
            await self.arrive()
            for _ in range(2):
                until, now = b.trusted_until(), CLOCK.now()
                assert now < until <= now + self.max_staleness
                await self.advance(self.max_staleness / 2)

    async def test_nothing_is_trusted_that_nobody_listens_for(self) -> None:
        """A local copy that no message can drop would stay."""
        a, b = await self.make_tiers()
        try:
            assert b.trusted_until() <= CLOCK.now()
        finally:
            await a.aclose()
            await b.aclose()
