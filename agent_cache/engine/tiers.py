"""Tiers behind the local store: lookups before the tool runs, stores after it, and invalidations from other processes.

The order is local store, backup, remote tier. What a tier says was written makes local copies stale at once. To the
farther tier, the nearer one is another local store: it must drop what other processes write, drop everything when
messages may have been lost, and is used only while the farther tier is trusted to pass messages on. A listener cannot
wait, so the nearer tier gets these invalidations before it is next asked (`_catch_up`).

A tier that fails is logged, and has nothing: a broken cache is not a broken agent.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent_cache.clock import CLOCK
from agent_cache.core.lease import CombinedLease, Lease
from agent_cache.core.store import NEVER
from agent_cache.core.tags import root_of
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.blocking import call_in_background, in_background, running_loop
from agent_cache.engine.result import count_unstored, insert_if_valid, protected_copy
from agent_cache.engine.scope import Call
from agent_cache.engine.stale import refresh
from agent_cache.engine.state import TOOLS, clear_tools, warn_once, write_now
from agent_cache.engine.ttls import follow
from agent_cache.values.canonical import MISSING

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Found, Request, Touched
    from agent_cache.remote.versioned import Ticket, Tier

__all__ = ["ask_tiers", "lease_in", "of_tier", "offer_result", "request_of", "take_tickets", "unsubscribe_all"]

# The steps of a call


async def ask_tiers(call: Call) -> Any:
    """Answer a load from the nearest tier that has the value, and keep a local copy of it. Returns the value, or
    `MISSING` if the tool must run.
    """
    flight, tiers = call.flight, call.operation.tiers()  # another thread may have configured others
    policy = call.operation.policy
    # A thread whose event loop stands still meanwhile waits for no other process, nor what a load of it calls for it.
    may_wait = flight.joinable and not (call.operation.is_sync and running_loop())
    shares = policy.remote.flight == "fleet" and not call.is_fresh and may_wait
    for farther, tier in enumerate(tiers, 1):
        found, ticket = await _ask(tier, tiers[farther:], call, lead=shares and farther == len(tiers))
        call.asked += ((tier, ticket),)
        flight.tickets += (ticket,)
        if found is None or call.is_fresh:
            continue
        value = _store_found(call, found)
        _keep_versions(call)
        if farther > 1 and (found.ttl is None or found.ttl > 0):  # else it is in its grace period: not stored
            life = None if found.ttl is None or not policy.life_varies else found.age + found.ttl
            await _offer(call, farther - 1, found.value, found.tags, found.cost, life)
        return value
    # Its tool has not started yet, so it sees what a write has done since, of which a lookup may have received the
    # message; if the write runs still, or came after a ticket, that keeps the result out.
    flight.since = flight.store.versions.now
    return MISSING


async def offer_result(call: Call, value: Any) -> None:
    """Store what the tool has returned in the tiers that were asked for it. It lives no longer than what it has
    inherited.
    """
    flight = call.flight
    assert flight.stored_tags is not None
    life = flight.life if call.operation.policy.life_varies else None
    if flight.inherited is not None and flight.inherited.expires != NEVER:
        left = flight.inherited.expires - call.started
        life = left if life is None else min(life, left)
    await _offer(call, len(call.asked), value, flight.stored_tags, call.cost, life)
    _keep_versions(call)


async def take_tickets(call: Call) -> tuple[Ticket, ...]:
    """The present versions of what a call depends on, from each of its tiers."""
    tiers = call.operation.tiers()
    return tuple([(await _ask(tier, tiers[farther:], call))[1] for farther, tier in enumerate(tiers, 1)])


def of_tier(call: Call, method: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Awaitable[Any]:
    """What a method of a tier returns; for a synchronous tool, in the background loop."""
    return in_background(method, *args, **options) if call.operation.is_sync else method(*args, **options)


async def _ask(tier: Tier, farther: tuple[Tier, ...], call: Call, *, lead: bool = False) -> tuple[Found | None, Ticket]:
    """Look a call up in a tier. With `lead`, what is missed is loaded by one process: see `VersionedTier.lookup`."""
    operation, request = call.operation, request_of(call)
    try:
        if farther or ((known := _known.get(tier)) is not None and known.roots):  # also a nearer one that is now alone
            await of_tier(call, _catch_up, tier, operation.tags.roots)
        found, ticket = await of_tier(call, tier.lookup, request, lead=lead)
    except Exception as error:  # noqa: BLE001 - see above
        from agent_cache.remote.versioned import Ticket

        warn_once(f"lookup in {type(tier).__name__} failed", operation.name, error)
        return None, Ticket(tier, request)
    if ticket.claim is not None:
        call.flight.claim = partial(call_in_background, ticket.give_up) if operation.is_sync else ticket.give_up
    return (found if all(one.trust.is_valid() for one in farther) else None), ticket


def _store_found(call: Call, found: Found) -> Any:
    """Store a local copy of what a tier had. It expires no later than the tier's."""
    call.source, call.cost = "hit", found.cost
    now = CLOCK.now()
    call.started = now - found.age
    flight, static = call.flight, call.flight.store.static
    tags = flight.end_tags = static + tuple([tag for tag in found.tags if tag not in static])
    if tags != flight.tags:
        with VERSIONS.lock:
            call.operation.extend(tags)  # those that were inherited where the value was loaded
    stored = protected_copy(call, found.value, NEVER if found.ttl is None else now + found.ttl)
    if found.ttl is not None and found.ttl <= 0:  # in its grace period
        flight.is_cached = True
    elif stored is None:
        count_unstored(call)
    else:
        insert_if_valid(call, stored)
    if found.is_to_refresh:
        refresh(call)
    return found.value


async def _offer(call: Call, count: int, value: Any, tags: tuple[str, ...], cost: float, life: float | None) -> None:
    """Store a value in the nearest `count` tiers, in each only if the tickets of all farther ones are still clean."""
    asked, inherited = call.asked, call.flight.inherited
    for farther, (tier, ticket) in enumerate(asked[:count], 1):
        versions = [] if inherited is None else inherited.versions_in(tier)
        # Without versions of a read of its load in this tier, a write to it would not be seen.
        if versions is None or not all(behind.is_clean() for _, behind in asked[farther:]):
            continue
        age = CLOCK.now() - call.started
        try:
            await of_tier(call, tier.store, ticket, value, tags, cost, age=age, ttl=life, inherited=versions)
        except Exception as error:  # noqa: BLE001 - see above
            warn_once(f"storing in {type(tier).__name__} failed", call.operation.name, error)


def _keep_versions(call: Call) -> None:
    """Keep the versions in the tiers with the local copy, for loads that read it."""
    flight = call.flight
    if flight.result is not None and flight.result.lease is not None and flight.stored_tags is not None:
        flight.result.versions = {tier: ticket.versions for tier, ticket in call.asked}


# Requests: a call as tiers know it


def request_of(call: Call) -> Request:
    """The call as tiers know it."""
    operation, policy, store = call.operation, call.operation.policy, call.local.store
    from agent_cache.remote.protocol import Request  # which whoever has a tier has loaded

    return Request(
        tool=operation.name,
        key=call.key,
        arguments=_identity(call),
        tags=operation.tags.static + call.tags,
        late_roots=operation.late_roots,
        ttl=policy.longest_ttl,
        session=None if store is None else store.session,
        tenant=call.local.tenant,
        returns=operation.returns,
        roots=operation.tags.roots,
        grace=policy.grace or policy.remote.grace,
        strong=policy.remote.is_strong,
    )


def _identity(call: Call) -> tuple[tuple[str, Any], ...]:
    """The values that the key was made of: calls that differ by `key=`, `vary=` or asker must differ in a tier."""
    operation, policy = call.operation, call.operation.policy
    if policy.key is None:
        parts = operation.parameters.identities(call.arguments)
    else:
        parts = [("key=", policy.key(*call.args, **call.kwargs))]
    if policy.vary is not None:
        parts.append(("vary=", operation.varied(call.arguments)))
    if policy.version is not None:
        parts.append(("version=", policy.version))
    if operation.heeds_contexts and (asker := operation.part_by_contexts(call.arguments)) is not None:
        parts.append(("asker", asker))
    if policy.heeds_contexts and (made_for := operation.parameters.made_for()) is not None:
        parts.append(("made for", made_for))
    return tuple(parts)


# Invalidations from other processes

_MAX_PENDING: Final = 1_000
"""Tags that are pending for a nearer tier, before all of its roots are."""

_next_serial = itertools.count().__next__


class _Known:
    """What this process knows of a tier. The lock of the versions guards it.

    Attributes:
        end: ends the subscription to it; None without one.
        nearer: the tiers in front of it.
        roots: of a nearer tier, roots of the tools that have asked it. What lies under others is not noted: such a root
            is invalidated as a whole before its first lookup.
        pending: the tags that it was not told yet to drop. Each has a serial number: so one that is added again, while
            the tier is told of it, stays.
    """

    __slots__ = ("end", "nearer", "pending", "roots")

    def __init__(self) -> None:
        self.end: Callable[[], None] | None = None
        self.nearer: weakref.WeakSet[Tier] = weakref.WeakSet()
        self.roots: set[str] = set()
        self.pending: dict[str, int] = {}

    def add(self, touched: Touched | None) -> None:
        """Add an invalidation. After a loss of messages, and for single entries, which have other addresses in another
        tier, everything under every root is dropped.
        """
        serial = _next_serial()
        if touched is not None and touched.tags and not touched.keys:
            self.pending.update(dict.fromkeys([tag for tag in touched.tags if root_of(tag) in self.roots], serial))
            if len(self.pending) <= _MAX_PENDING:
                return
        self.pending = dict.fromkeys(self.roots, serial)


_known: weakref.WeakKeyDictionary[Tier, _Known] = weakref.WeakKeyDictionary()
"""Weak: a tier that is no longer used is freed, with its subscription and what is pending for it."""


async def _catch_up(tier: Tier, roots: tuple[str, ...]) -> None:
    """Invalidate in a nearer tier what is pending for it. If the tier raises, it stays pending and the error passes."""
    with VERSIONS.lock:
        known = _known.setdefault(tier, _Known())
        new = [root for root in roots if root not in known.roots]
        known.pending.update(dict.fromkeys(new, _next_serial()))
        known.roots.update(new)
        told = dict(known.pending)
    if not told:
        return
    from agent_cache.remote.protocol import WriteIntent

    tags = tuple(told)
    await tier.commit(WriteIntent(os.urandom(16).hex(), tags), tags, failed=False, hold=0.0)
    with VERSIONS.lock:
        for name, serial in told.items():
            if known.pending.get(name) == serial:
                del known.pending[name]


def lease_in(tiers: tuple[Tier, ...]) -> Lease | None:
    """Subscribe to these tiers, nearest first. Returns the lease in local copies of their values, if there are any."""
    for index, tier in enumerate(tiers):
        _subscribe(tier, tiers[:index])
    return CombinedLease.of(tier.trust for tier in tiers)


def _subscribe(tier: Tier, nearer: tuple[Tier, ...]) -> None:
    """Subscribe once to a tier, before any copy of its values is stored."""
    with VERSIONS.lock:
        known = _known.setdefault(tier, _Known())
        for one in nearer:
            if one not in known.nearer:
                known.nearer.add(one)
                _known.setdefault(one, _Known()).roots.clear()  # it may hold what was invalidated here before
        if known.end is not None:
            return
    ends = tier.subscribe(partial(_receive, weakref.ref(tier))), follow(tier)

    def end() -> None:
        for each in ends:
            each()

    with VERSIONS.lock:
        if known.end is None:
            known.end = end
            return
    end()  # another thread was faster


def unsubscribe_all() -> None:
    """Unsubscribe from all tiers. Setups that are made later subscribe again."""
    with VERSIONS.lock:
        ends = [known.end for known in _known.values() if known.end is not None]
        _known.clear()
    for end in ends:
        end()


def _receive(subscribed: weakref.ref[Tier], touched: Touched | None) -> None:
    """Apply an invalidation of another process; None means that some may have been lost."""
    tier = subscribed()
    if tier is None:
        return
    with VERSIONS.lock:
        known = _known.get(tier)
        for nearer in () if known is None else known.nearer:
            _known.setdefault(nearer, _Known()).add(touched)
    tools = TOOLS.readers() if touched is None or touched.keys else []
    if touched is None:
        clear_tools([tool for tool in tools if tier in tool.tiers() or tier in tool.inherited_tiers])
    else:  # also entries of tools without tiers: they depend on the same data
        write_now(touched.tags, [(tool, key) for name, key in touched.keys for tool in tools if tool.name == name])
