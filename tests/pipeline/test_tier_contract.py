"""The tier in memory keeps the contract that every tier must keep."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from urllib.parse import unquote

import pytest

from agent_cache.errors import RemoteTierError
from agent_cache.remote import Tier
from agent_cache.remote.memory import cells_written
from agent_cache.remote.protocol import Found, Request, Ticket, Touched, WriteIntent
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier
from tests.contract import TierContract
from tests.contract.workbench import Workbench, load, read, takes_time, value_of, versions_of, write


class TestMemoryTier(TierContract):
    make: Callable[[MemoryServer], MemoryTier] = MemoryTier

    @pytest.fixture(autouse=True)
    def on_a_clock_that_stands_still(self) -> Iterator[None]:
        with FakeClock() as self.clock:
            yield

    async def make_tiers(self) -> tuple[Tier, Tier]:
        self.server = MemoryServer()
        return self.make(self.server), self.make(self.server)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def cut(self, tier: Tier) -> None:
        tier.cut()

    async def reconnect(self, tier: Tier) -> None:
        tier.reconnect()

    async def stop_server(self) -> None:
        self.server.stop()

    async def start_server(self) -> None:
        self.server.start()


class WritesAfterTheFirstFetch(MemoryServer):
    """A message comes when a value was read and its tags are not known to the ticket yet."""

    write: Callable[[], None] | None = None

    def fetch(self, *arguments, **options):
        fetched = super().fetch(*arguments, **options)
        write, self.write = self.write, None
        if write is not None:
            write()
        return fetched


async def test_a_write_before_the_tags_of_a_found_value_are_known_is_not_missed():
    server = WritesAfterTheFirstFetch()
    a, b = MemoryTier(server), MemoryTier(server)
    report = read("report", tool="shop:report", key="today")
    await load(a, report, "old", "order:7", inherited=[await versions_of(a, read("order:7"))])
    intent = write("order:7")
    touched = Touched(intent.tags)
    server.write = lambda: server.commit(a, intent.id, cells_written(intent.tags, ()), 0.0, touched)
    assert await value_of(b, report) == "nothing"


class RunsWhatIsToBeRefused(MemoryTier):
    async def begin(self, write: WriteIntent) -> None:
        await super().begin(replace(write, on_unreachable="run"))


class RefusesByAnotherError(MemoryTier):
    async def begin(self, write: WriteIntent) -> None:
        try:
            await super().begin(write)
        except RemoteTierError as error:
            raise ConnectionError from error


class RefusesEveryWrite(MemoryTier):
    async def begin(self, write: WriteIntent) -> None:
        await super().begin(replace(write, on_unreachable="refuse"))


class Forgetful(MemoryTier):
    async def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        pass


class ReadsEscapesInTags(MemoryTier):
    async def begin(self, write: WriteIntent) -> None:
        await super().begin(replace(write, tags=tuple(map(unquote, write.tags))))

    async def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        await super().commit(write, tuple(map(unquote, tags)), failed=failed, hold=hold)


class TakesGraceForLife(MemoryTier):
    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        ttl = None if request.ttl is None else request.ttl + request.grace
        return await super().lookup(replace(request, ttl=ttl))


class HasEverybodyRefresh(MemoryTier):
    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        found, ticket = await super().lookup(request)
        return None if found is None else replace(found, is_to_refresh=True), ticket


class _Agreeable:
    """A ticket that asks only whether anybody is at work now."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def agrees_with(self, _other: Ticket) -> bool:
        return self.ticket.agrees_with(self.ticket)

    def __getattr__(self, name: str) -> object:
        return getattr(self.ticket, name)


class HasOneTtlForAll(MemoryTier):
    async def store(
        self, ticket: Ticket, value: object, tags: tuple[str, ...], cost: float, *, age: float, **_: object
    ) -> None:
        await super().store(ticket, value, tags, cost, age=age)


class AgreesWithWhatIsOver(MemoryTier):
    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        found, ticket = await super().lookup(request)
        return found, _Agreeable(ticket)

    async def store(self, ticket: Ticket, value: object, tags: tuple[str, ...], cost: float, **options: object) -> None:
        await super().store(ticket.ticket, value, tags, cost, **options)


class InheritsNothing(MemoryTier):
    async def store(self, ticket: Ticket, value: object, tags: tuple[str, ...], cost: float, **options: object) -> None:
        await super().store(ticket, value, ticket.request.tags, cost, **options | {"inherited": ()})


class FetchesInheritedVersionsAnew(MemoryTier):
    async def store(self, ticket: Ticket, value: object, tags: tuple[str, ...], cost: float, **options: object) -> None:
        cells = [self.server.fetch(None, versions)[1] for versions in options.pop("inherited", ())]
        inherited = [{name: cell.token for name, cell in each.items()} for each in cells]
        await super().store(ticket, value, tags, cost, **options, inherited=inherited)


class InheritsTheLaterVersion(MemoryTier):
    async def store(self, ticket: Ticket, value: object, tags: tuple[str, ...], cost: float, **options: object) -> None:
        inherited = [dict(ChainMap(*map(dict, reversed(options.pop("inherited", ())))))]
        await super().store(ticket, value, tags, cost, **options, inherited=inherited)


class TakesInheritedTagsForRechecked(MemoryTier):
    async def store(self, ticket: Ticket, value: object, tags: tuple[str, ...], cost: float, **options: object) -> None:
        if options.get("inherited"):
            ticket.request = replace(ticket.request, late_roots=())
        await super().store(ticket, value, tags, cost, **options)


class WatchesItsOwnTagsOnly(MemoryTier):
    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        found, ticket = await super().lookup(request)
        ticket.tags = request.tags
        return found, ticket


class HasVersionsUnderAWrite(MemoryTier):
    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        found, ticket = await super().lookup(request)
        ticket.versions = {name: cell.token for name, cell in ticket.cells.items()}
        return found, ticket

    async def store(self, ticket: Ticket, value: object, tags: tuple[str, ...], cost: float, **options: object) -> None:
        versions = ticket.versions
        await super().store(ticket, value, tags, cost, **options)
        ticket.versions = versions


class LeadsWithoutLookingAgain(MemoryTier):
    async def claim(self, request: Request, ticket: Ticket, **options: object) -> tuple[Found | None, Ticket]:
        _, claimed = await super().claim(request, ticket, **options)
        return None, claimed


class ClaimsWhatIsHeld(MemoryTier):
    async def claim(self, request: Request, ticket: Ticket, **options: object) -> tuple[Found | None, Ticket]:
        ticket.cells = {name: replace(cell, mode="idle") for name, cell in ticket.cells.items()}
        return await super().claim(request, ticket, **options)


class EndsTheClaimsOfOthers(MemoryTier):
    def give_up(self, ticket: Ticket) -> None:
        name, _ = ticket.claim
        self.server.give_up_claim(name, self.server.claim(name, "nobody", 0.0))


class RenewsNothing(MemoryTier):
    def renew_claim(self, ticket: Ticket) -> None:
        pass


class HasNoHash(MemoryTier):
    __hash__ = None


BROKEN = {
    RunsWhatIsToBeRefused: "test_a_write_that_asks_for_it_is_refused_without_the_server",
    RefusesByAnotherError: "test_a_write_that_asks_for_it_is_refused_without_the_server",
    RefusesEveryWrite: "test_a_write_is_made_up_for_when_the_server_is_back",
    Forgetful: "test_what_is_loaded_after_a_write_is_found",
    ReadsEscapesInTags: "test_a_write_ends_what_meets_its_tag",
    TakesGraceForLife: "test_within_its_grace_a_value_is_known_to_be_old",
    HasEverybodyRefresh: "test_within_its_grace_a_value_is_known_to_be_old",
    AgreesWithWhatIsOver: "test_a_ticket_agrees_with_none_that_was_taken_before_a_write",
    HasOneTtlForAll: "test_a_value_may_live_for_less_than_others_of_its_tool",
    InheritsNothing: "test_a_write_ends_what_was_made_of_what_it_touches",
    FetchesInheritedVersionsAnew: "test_what_was_made_of_an_outdated_copy_is_never_found",
    InheritsTheLaterVersion: "test_what_was_made_of_two_versions_is_not_stored",
    TakesInheritedTagsForRechecked: "test_a_tag_of_its_own_result_is_rechecked_although_it_is_inherited_too",
    WatchesItsOwnTagsOnly: "test_a_ticket_is_clean_until_what_is_inherited_is_touched",
    HasVersionsUnderAWrite: "test_nothing_is_inherited_from_what_is_being_written",
    LeadsWithoutLookingAgain: "test_who_leads_looks_once_more",
    EndsTheClaimsOfOthers: "test_a_claim_that_has_become_another_ones_is_left_to_it",
    RenewsNothing: "test_a_claim_that_is_renewed_lasts",
    ClaimsWhatIsHeld: "test_nothing_is_claimed_that_a_write_holds",
    HasNoHash: "test_a_tier_can_be_told_from_others_and_forgotten",
}


@pytest.mark.parametrize(("broken", "test"), BROKEN.items())
async def test_a_broken_tier_is_caught(broken, test):
    """Each of these lets an agent see what is stale, or an exception of the cache."""
    contract = TestMemoryTier()
    contract.make = broken
    errors = AssertionError, ConnectionError, RemoteTierError, TypeError
    with FakeClock() as contract.clock, pytest.raises(errors):
        await getattr(contract, test)()


class Slow(Workbench):
    """A test with a step that takes so long, and a tier that is wrong or not."""

    moment = 0.05

    def __init__(self, seconds: float, *, is_wrong: bool) -> None:
        self.seconds, self.is_wrong, self.attempts = seconds, is_wrong, 0

    @takes_time
    async def test(self) -> None:
        self.attempts += 1
        with self.within(self.moment):
            await asyncio.sleep(self.seconds)
            assert not self.is_wrong


@pytest.mark.parametrize("is_wrong", [True, False])
async def test_a_step_that_took_too_long_proves_nothing_and_begins_again_with_more_time(is_wrong: bool):
    slow = Slow(0.1, is_wrong=is_wrong)
    with pytest.raises(AssertionError) if is_wrong else nullcontext():
        await slow.test()
    assert slow.attempts > 1


async def test_a_tier_that_is_wrong_in_time_fails_at_once():
    slow = Slow(0.0, is_wrong=True)
    with pytest.raises(AssertionError):
        await slow.test()
    assert slow.attempts == 1


async def test_a_step_that_takes_too_long_each_time_fails_the_test():
    slow = Slow(0.2, is_wrong=False)
    slow.moment = 0.01
    with pytest.raises(pytest.fail.Exception, match="too slow"):
        await slow.test()
