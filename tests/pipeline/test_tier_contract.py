"""The tier in memory keeps the contract that every tier must keep."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import unquote

import pytest

from agent_cache.errors import RemoteTierError
from agent_cache.remote import Tier
from agent_cache.remote.backend import IDLE, drive
from agent_cache.remote.protocol import Found, Request, Ticket, WriteIntent
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier
from tests.contract import TierContract


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
        read = [(await self.server.read(versions, None)).states for versions in options.pop("inherited", ())]
        inherited = [{cell: version for cell, (version, _) in states.items()} for states in read]
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
        ticket.known = request.tags
        return found, ticket


class HasVersionsUnderAWrite(MemoryTier):
    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        found, ticket = await super().lookup(request)
        ticket.versions = {cell: version for cell, (version, _) in ticket.seen.items()}
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
        ticket.seen = {cell: (version, IDLE) for cell, (version, _) in ticket.seen.items()}
        return await super().claim(request, ticket, **options)


class EndsTheClaimsOfOthers(MemoryTier):
    def give_up(self, ticket: Ticket) -> None:
        name, _ = ticket.claim
        drive(self.server.release(name, drive(self.server.claim(name, "nobody", 0.0))))


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
