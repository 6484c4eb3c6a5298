"""Contract of tiers: loads that processes share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agent_cache.remote import Found, Request
from tests.contract.workbench import Workbench, commit, load, read, store_over, value_of, write, writing

__all__ = ["ClaimTests"]

ORDER = read("order:7")
FIND = read(late=("order",), tool="shop:find_order", key="Mei")


class ClaimTests(Workbench):
    """Of the processes that miss a value, one loads it, and the others wait."""

    async def test_of_two_that_miss_a_value_one_loads_it_and_the_other_finds_that(self) -> None:
        """Whatever the request: the entity, the whole root, tags from the result, a session's."""
        others = replace(ORDER, tags=("order",)), replace(ORDER, strong=True), replace(ORDER, session="s")
        for request in (ORDER, FIND, *others):
            async with self.tiers() as (a, b):
                ticket = await lead(a, request)
                waiter = await Waiter.start(b, request)
                tags = request.tags or ("order:7",)
                await store_over(a, ticket, "new", tags)
                ticket.give_up()
                found, own = await waiter.task
                assert found is not None
                assert (found.value, found.tags) == ("new", tags)
                assert own.claim is None
                assert own.versions

    async def test_who_leads_looks_once_more(self) -> None:
        """Another load may have ended since its first look."""
        async with self.tiers() as (a, b):
            claim = b.backend.claim

            async def late(*arguments: Any) -> str:
                del b.backend.claim
                await load(a, ORDER, "new")
                return await claim(*arguments)

            b.backend.claim = late  # type: ignore[method-assign]
            found, ticket = await b.lookup(ORDER, lead=True)
            assert found is not None
            assert found.value == "new"
            assert ticket.claim is None

    async def test_who_waits_for_a_load_that_is_given_up_leads_the_next(self) -> None:
        """It has failed, or was not stored."""
        async with self.tiers() as (a, b):
            ticket = await lead(a)
            waiter = await Waiter.start(b)
            ticket.give_up()
            assert ticket.claim is None
            found, own = await waiter.task
            assert found is None
            assert own.claim is not None
            await store_over(b, own, "new", ORDER.tags)
            assert await value_of(a, ORDER) == "new"

    async def test_a_claim_ends_with_its_lease_and_is_left_to_who_claims_it_then(self) -> None:
        """Its process has died, or is slow."""
        async with self.tiers() as (a, b):
            former = await lead(a)
            waiter = await Waiter.start(b)
            await self.advance(a.lease * 1.1)
            found, own = await waiter.task
            assert found is None
            assert own.claim is not None
            former.give_up()
            again = await Waiter.start(a)
            await store_over(b, own, "new", ORDER.tags)
            own.give_up()
            assert (await again.task)[0].value == "new"

    async def test_who_waits_while_a_write_overtakes_the_load_leads_the_next(self) -> None:
        """It is never given what was loaded before the write."""
        for request in (ORDER, FIND):
            async with self.tiers() as (a, b):
                overtaken = await lead(a, request)
                waiter = await Waiter.start(b, request)
                async with writing(a, "order:7"):
                    await store_over(a, overtaken, "old", ("order:7",))
                await store_over(a, overtaken, "old", ("order:7",))
                overtaken.give_up()
                found, ticket = await waiter.task
                assert found is None
                if ticket.claim is None:  # it has looked during the write, and went to load by itself
                    continue
                await store_over(b, ticket, "new", ("order:7",))
                assert await value_of(a, request) == "new"

    async def test_nothing_is_claimed_that_a_write_holds(self) -> None:
        """Nothing could be stored: nobody waits for that."""
        async with self.tiers() as (a, b):
            intent = write("order:7")
            await b.begin(intent)
            for tier in (a, b):
                found, ticket = await tier.lookup(ORDER, lead=True)
                assert found is None
                assert ticket.claim is None
            await commit(b, intent)

    async def test_who_waits_can_be_cancelled_at_once(self) -> None:
        """And takes nothing with it."""
        async with self.tiers() as (a, b):
            ticket = await lead(a)
            waiter = await Waiter.start(b)
            waiter.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter.task
            again = await Waiter.start(b)
            await store_over(a, ticket, "new", ORDER.tags)
            ticket.give_up()
            assert (await again.task)[0].value == "new"

    async def test_without_the_server_each_loads_by_itself(self) -> None:
        """A claim is no reason to fail."""
        async with self.tiers() as (a, b):
            ticket = await lead(a)
            waiter = await Waiter.start(b)
            await self.stop_server()
            assert (await waiter.task)[0] is None
            ticket.give_up()
            await self.start_server()


class Waiter:
    """A reader that waits for another one's load.

    Attributes:
        task: its lookup.
    """

    def __init__(self, task: asyncio.Task[tuple[Found | None, Any]]) -> None:
        self.task: asyncio.Task[tuple[Any, Any]] = task

    @classmethod
    async def start(cls, tier: Any, request: Request = ORDER) -> Waiter:
        """Return when it has asked for the claim that another one has, and waits."""
        claim, asked = tier.backend.claim, asyncio.Event()

        async def watched(*arguments: Any) -> Any:
            owner = await claim(*arguments)
            asked.set()
            return owner

        tier.backend.claim = watched
        waiter = cls(asyncio.create_task(tier.lookup(request, lead=True)))
        asking = asyncio.create_task(asked.wait())
        await asyncio.wait([asking, waiter.task], return_when="FIRST_COMPLETED")
        asking.cancel()
        del tier.backend.claim
        assert not waiter.task.done(), waiter.task.result()
        return waiter


async def lead(tier: Any, request: Request = ORDER) -> Any:
    """Miss a value, and claim its load. Returns the ticket."""
    async with asyncio.timeout(100):  # a deadlock is a failure, not a run that never ends
        found, ticket = await tier.lookup(request, lead=True)
    assert found is None
    assert ticket.claim is not None
    return ticket
