"""Writers that take long, or never come back."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.workbench import Workbench, commit, load, read, value_of, write

__all__ = ["LeaseTests"]


class LeaseTests(Workbench):
    """What a `begin` does lasts for its lease."""

    async def test_nothing_is_stored_for_a_lease_after_a_writer_has_died(self) -> None:
        """Its effect may still land. Afterwards loads are stored again, and what was there before stays gone."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            await b.begin(write("order:7"))
            await load(a, read("order:7"), "old")
            assert await value_of(a, read("order:7")) == "nothing"
            await self.advance(b.lease * 1.1)
            assert await value_of(a, read("order:7")) == "nothing"
            await load(a, read("order:7"), "new")
            assert await value_of(a, read("order:7")) == "new"

    async def test_the_end_of_a_lease_is_a_move(self) -> None:
        """A load that began inside, before the effect perhaps, is not stored after it."""
        async with self.tiers() as (a, b):
            await b.begin(write("order:7"))
            _, ticket = await a.lookup(read("order:7"))
            await self.advance(b.lease * 1.1)
            await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
            assert await value_of(a, read("order:7")) == "nothing"

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

    async def test_a_write_that_is_renewed_keeps_its_root_armed(self) -> None:
        """Hits go on, and if it dies later, the root goes later."""
        async with self.tiers() as (a, b):
            intent = write(late=("order",))
            await load(a, read("order:7"), "old")
            await b.begin(intent)
            for _ in range(3):
                await self.advance(b.lease * 0.7)
                await b.renew(intent)
            assert await value_of(a, read("order:7")) == "old"
            await self.advance(b.lease * 1.1)
            assert await value_of(a, read("order:7")) == "nothing"

    async def test_strong_reads_pass_over_what_depends_on_an_armed_root(self) -> None:
        """Its writer may have died after its effect. They share no load that began so, either."""
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
                _, first = await a.lookup(request)
                _, second = await a.lookup(request)
                assert not second.agrees_with(first)
            await commit(b, intent, "order:8")
            assert await value_of(a, requests[0]) == "old"
            assert await value_of(a, requests[1]) == "nothing"

    async def test_a_renewal_that_finds_its_write_forgotten_begins_it_again(self) -> None:
        """A server may have lost it: restarted, failed over, or out of memory."""
        async with self.tiers() as (a, b):
            intent = write("order:7")
            await b.renew(intent)
            await load(a, read("order:7"), "half")
            assert await value_of(a, read("order:7")) == "nothing"
            await commit(b, intent)
            assert await value_of(a, read("order:7")) == "nothing"

    async def test_a_begin_that_arrives_after_its_commit_costs_a_lease_and_no_more(self) -> None:
        """Networks delay. Nothing that was dropped comes back by it."""
        async with self.tiers() as (a, b):
            intent = write("order:7")
            await load(a, read("order:7"), "old")
            await commit(b, intent)
            await b.begin(intent)
            assert await value_of(a, read("order:7")) == "nothing"
            await self.advance(b.lease * 1.1)
            await load(a, read("order:7"), "new")
            assert await value_of(a, read("order:7")) == "new"

    async def test_a_commit_after_the_lease_still_ends_what_it_names(self) -> None:
        """The writer was only slow: what was loaded between the end of its lease and its commit may be from before."""
        async with self.tiers() as (a, b):
            intent = write("order:7")
            await b.begin(intent)
            await self.advance(b.lease * 1.1)
            await load(a, read("order:7"), "old")
            await commit(b, intent)
            assert await value_of(a, read("order:7")) == "nothing"

    async def test_a_death_is_noticed_although_another_writer_is_at_work(self) -> None:
        """The other one arms the same root, so its cells outlive the lease that has ended."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            await b.begin(write(late=("order",)))
            await self.advance(b.lease * 0.6)
            second = write(late=("order",))
            await a.begin(second)
            await self.advance(b.lease * 0.6)
            await commit(a, second, "order:8")
            assert await value_of(a, read("order:7")) == "nothing"
