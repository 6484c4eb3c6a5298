"""Contract of tiers: loads that processes share. Skipped for a tier that has no `claim`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from agent_cache.remote.protocol import Found, Request, Ticket
from tests.contract.workbench import Workbench, commit, load, read, store_over, value_of, write, writing

__all__ = ["ClaimTests"]

ORDER = replace(read("order:7"), shares_load=True)
FIND = replace(read(late=("order",), tool="shop:find_order", key="Mei"), shares_load=True)


class ClaimTests(Workbench):
    """Of the processes that miss a value, one loads it, and the others wait."""

    @asynccontextmanager
    async def loaders(self) -> AsyncIterator[tuple[Any, Any]]:
        """Two clients that share loads."""
        async with self.tiers() as (a, b):
            if not hasattr(a, "claim"):
                pytest.skip("the tier has no claim()")
            async with asyncio.timeout(100):  # a deadlock is a failure, not a run that never ends
                yield a, b

    async def renewed(self, tier: Any, ticket: Ticket) -> None:
        """Renew a claim, and return when the server has heard of it."""
        tier.renew_claim(ticket)
        await tier.lookup(ORDER)

    async def test_of_two_that_miss_a_value_one_loads_it_and_the_other_finds_that(self) -> None:
        """Whatever the request: the entity, the whole root, tags from the result, a session's."""
        for request in (
            ORDER,
            replace(ORDER, tags=("order",)),
            replace(ORDER, strong=True),
            replace(ORDER, session="s"),
            FIND,
        ):
            async with self.loaders() as (a, b):
                ticket = await lead(a, request)
                waiter = await Waiter.start(b, request)
                tags = request.tags or ("order:7",)
                await store_over(a, ticket, "new", tags)
                a.give_up(ticket)
                found, own = await waiter.task
                assert found is not None
                assert (found.value, found.tags) == ("new", tags)
                assert not own.has_claim
                assert own.versions

    async def test_what_has_expired_and_what_was_written_is_loaded_once_too(self) -> None:
        """As what was never there."""
        for is_written in (False, True):
            async with self.loaders() as (a, b):
                request = replace(ORDER, ttl=None if is_written else self.moment)
                await load(a, request, "old")
                if is_written:
                    async with writing(a, "order:7"):
                        pass
                else:
                    await self.advance(self.moment * 1.1)
                request = replace(request, ttl=None)
                ticket = await lead(a, request)
                waiter = await Waiter.start(b, request)
                await store_over(a, ticket, "new", ORDER.tags)
                a.give_up(ticket)
                assert (await waiter.task)[0].value == "new"

    async def test_who_leads_looks_once_more(self) -> None:
        """Another load may have ended since its lookup."""
        async with self.loaders() as (a, b):
            _, missed = await b.lookup(ORDER)
            await load(a, ORDER, "new")
            found, ticket = await b.claim(ORDER, missed)
            assert found is not None
            assert found.value == "new"
            assert not ticket.has_claim

    async def test_who_waits_for_a_load_that_is_given_up_leads_the_next(self) -> None:
        """It has failed, or was not stored."""
        async with self.loaders() as (a, b):
            ticket = await lead(a)
            waiter = await Waiter.start(b)
            a.give_up(ticket)
            assert not ticket.has_claim
            found, own = await waiter.task
            assert found is None
            assert own.has_claim
            await store_over(b, own, "new", ORDER.tags)
            assert await value_of(a, ORDER) == "new"

    async def test_a_claim_that_is_not_renewed_ends_with_its_lease(self) -> None:
        """Its process has died."""
        async with self.loaders() as (a, b):
            await lead(a)
            waiter = await Waiter.start(b)
            await self.advance(a.lease * 1.1)
            found, own = await waiter.task
            assert found is None
            assert own.has_claim

    async def test_a_claim_that_is_renewed_lasts(self) -> None:
        """A long load is one load."""
        async with self.loaders() as (a, b):
            ticket = await lead(a)
            waiter = await Waiter.start(b)
            await self.advance(a.lease * 0.6)
            await self.renewed(a, ticket)
            for _ in range(3):
                await self.advance(a.lease * 0.6)
                await self.renewed(a, ticket)
            await waiter.looks_again()
            assert not waiter.task.done()
            await store_over(a, ticket, "new", ORDER.tags)
            a.give_up(ticket)
            assert (await waiter.task)[0].value == "new"

    async def test_a_claim_that_has_become_another_ones_is_left_to_it(self) -> None:
        """Its former process was slow, and not dead."""
        async with self.loaders() as (a, b):
            former = await lead(a)
            await self.advance(a.lease * 1.1)
            ticket = await lead(b)
            a.renew_claim(former)
            a.give_up(former)
            waiter = await Waiter.start(a)
            await waiter.looks_again()
            await store_over(b, ticket, "new", ORDER.tags)
            b.give_up(ticket)
            assert (await waiter.task)[0].value == "new"

    async def test_nobody_waits_for_a_load_that_a_write_has_overtaken(self) -> None:
        """Nor is its value found."""
        async with self.loaders() as (a, b):
            overtaken = await lead(a)
            async with writing(b, "order:7"):
                pass
            ticket = await lead(b)
            await store_over(a, overtaken, "old", ORDER.tags)
            a.give_up(overtaken)
            assert await value_of(b, ORDER) == "nothing"
            await store_over(b, ticket, "new", ORDER.tags)
            assert await value_of(a, ORDER) == "new"

    async def test_who_waits_while_a_write_overtakes_the_load_leads_the_next(self) -> None:
        """It is never given what was loaded before the write."""
        for request in (ORDER, FIND):
            async with self.loaders() as (a, b):
                overtaken = await lead(a, request)
                waiter = await Waiter.start(b, request)
                async with writing(a, "order:7"):
                    await store_over(a, overtaken, "old", ("order:7",))
                await store_over(a, overtaken, "old", ("order:7",))
                a.give_up(overtaken)
                found, ticket = await waiter.task
                assert found is None
                if not ticket.has_claim:  # it has looked during the write, and went to load by itself
                    continue
                await store_over(b, ticket, "new", ("order:7",))
                assert await value_of(a, request) == "new"

    async def test_nothing_is_claimed_that_a_write_holds(self) -> None:
        """Nothing could be stored: nobody waits for that."""
        async with self.loaders() as (a, b):
            intent = write("order:7")
            await b.begin(intent)
            for tier in (a, b):
                _, missed = await tier.lookup(ORDER)
                found, ticket = await tier.claim(ORDER, missed)
                assert found is None
                assert not ticket.has_claim
            await commit(b, intent)

    async def test_who_waits_can_be_cancelled_at_once(self) -> None:
        """And takes nothing with it."""
        async with self.loaders() as (a, b):
            ticket = await lead(a)
            waiter = await Waiter.start(b)
            waiter.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter.task
            again = await Waiter.start(b)
            await store_over(a, ticket, "new", ORDER.tags)
            a.give_up(ticket)
            assert (await again.task)[0].value == "new"

    async def test_who_may_not_wait_loads_by_itself(self) -> None:
        """What it would wait for may be waiting for it."""
        async with self.loaders() as (a, b):
            ticket = await lead(a)
            _, missed = await b.lookup(ORDER)
            found, own = await b.claim(ORDER, missed, may_wait=lambda: False)
            assert found is None
            assert not own.has_claim
            await store_over(b, own, "new", ORDER.tags)
            assert await value_of(a, ORDER) == "new"
            a.give_up(ticket)

    async def test_a_read_that_does_not_ask_for_it_waits_for_no_load_of_what_was_never_there(self) -> None:
        """The default."""
        async with self.loaders() as (a, b):
            ticket = await lead(a)
            plain = replace(ORDER, shares_load=False)
            _, missed = await b.lookup(plain)
            found, own = await b.claim(plain, missed)
            assert found is None
            assert not own.has_claim
            a.give_up(ticket)

    async def test_without_the_server_each_loads_by_itself(self) -> None:
        """A claim is no reason to fail."""
        async with self.loaders() as (a, b):
            ticket = await lead(a)
            waiter = await Waiter.start(b)
            await self.stop_server()
            assert (await waiter.task)[0] is None
            a.renew_claim(ticket)
            a.give_up(ticket)
            await self.start_server()


class Waiter:
    """A reader that waits for another one's load.

    Attributes:
        task: its claim.
    """

    def __init__(self, tier: Any, request: Request) -> None:
        self._paused = asyncio.Event()
        self.task: asyncio.Task[tuple[Any, Any]] = asyncio.create_task(self._claim(tier, request))

    @classmethod
    async def start(cls, tier: Any, request: Request = ORDER) -> Waiter:
        """Return when it waits."""
        waiter = cls(tier, request)
        await waiter.looks_again()
        return waiter

    async def looks_again(self) -> None:
        """Return when it has looked once more, and goes on waiting."""
        self._paused.clear()
        pausing = asyncio.create_task(self._paused.wait())
        await asyncio.wait([pausing, self.task], return_when="FIRST_COMPLETED")
        pausing.cancel()
        assert not self.task.done(), self.task.result()

    async def _claim(self, tier: Any, request: Request) -> tuple[Found | None, Ticket]:
        found, missed = await tier.lookup(request)
        assert found is None
        return await tier.claim(request, missed, may_wait=self._may_wait)  # type: ignore[no-any-return]

    def _may_wait(self) -> bool:
        self._paused.set()
        return True


async def lead(tier: Any, request: Request = ORDER) -> Any:
    """Miss a value, and claim its load. Returns the ticket."""
    found, missed = await tier.lookup(request)
    assert found is None
    found, ticket = await tier.claim(request, missed, may_wait=_must_not_wait)
    assert found is None
    assert ticket.has_claim
    return ticket


def _must_not_wait() -> bool:
    raise AssertionError("it waits for another load")
