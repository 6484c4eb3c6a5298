"""Tiers behind the local store: lookups before the tool runs, stores after it, and invalidations from other processes.

The order is local store, backup, remote tier. An invalidation received from a tier drops local copies at once. To the
farther tier, the nearer one is another local store: it must drop what other processes write, drop everything when
messages may have been lost, and is used only while the farther tier is trusted to pass messages on. A listener cannot
wait, so the nearer tier gets these invalidations before it is next asked (`_catch_up`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from agent_cache.clock import CLOCK
from agent_cache.core.evidence import SHORTEST
from agent_cache.core.keys import PLAIN
from agent_cache.core.lease import UNTRUSTED, CombinedLease, Lease
from agent_cache.core.store import NEVER
from agent_cache.core.tags import root_of
from agent_cache.core.versions import VERSIONS, entry_tag
from agent_cache.engine.blocking import call_in_background, in_background, running_loop
from agent_cache.engine.flight import Flight
from agent_cache.engine.inheritance import Inherits
from agent_cache.engine.operation import Proceed
from agent_cache.engine.result import (
    count_unstored,
    early_expiry,
    insert_if_valid,
    lease_of,
    note_load,
    protected_copy,
)
from agent_cache.engine.scope import TENANT, Call
from agent_cache.engine.stale import refresh
from agent_cache.engine.state import READERS, clear_tools, warn_once, write_now
from agent_cache.engine.ttls import follow
from agent_cache.values.canonical import MISSING, is_large, make_room

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Found, Request, Ticket, Tier, Touched, Versions

__all__ = [
    "ask_tiers",
    "check_versions",
    "lease_in",
    "offer_result",
    "request_of",
    "take_tickets",
    "unsubscribe_all",
]

T = TypeVar("T")

_MAX_REQUESTS: Final = 1_024


# The steps of a call


async def check_versions(proceed: Proceed, call: Call) -> Any:
    """Ask the farthest tier before anything is shared, for a tool with strong consistency.

    A running load of others is joined only if it began with the versions seen here: see `Ticket.agrees_with`. A nearer
    tier is not asked, as it would be no better than a local copy.
    """
    tiers = call.operation.tiers()
    if not tiers:  # configured away by another thread since
        return await proceed(call)
    (tier,) = tiers
    within = call.within
    if within is not None:  # before the lookup: a write during it must concern the load
        within.begin_read(call, (*call.known_tags(), entry_tag(call.operation.number, call.key)))
    found, ticket = await _ask(tier, (), call)
    call.asked = ((tier, ticket),)
    if found is None or call.is_fresh:
        return await proceed(call)
    if within is not None:
        within.inherit(_of_found(call, tier, found, ticket), call=call)
    call.source, call.cost = "hit", found.cost
    call.flight = _NO_FLIGHT
    if found.is_to_refresh:
        refresh(call)
    return found.value


def _of_found(call: Call, tier: Tier, found: Found, ticket: Ticket) -> Inherits:
    """What a load inherits from an answer that a tier had, of which there is no local copy."""
    expires = NEVER if found.ttl is None else CLOCK.now() + found.ttl
    lease = None if call.local.setup.lease is None else lease_of(ticket, call.local.setup.lease)
    source = _Versions({tier: ticket.versions})
    leases = {} if lease is None else {lease: (tier,)}
    tags = *found.tags, entry_tag(call.operation.number, call.key)
    return Inherits(tags, tenants=call.tenants, expires=expires, leases=leases, source=source, is_strong=True)


class _Versions(NamedTuple):
    """The versions of an answer that has neither an entry nor a load."""

    versions: Mapping[Tier, Versions | None]


class _NoFlight:
    """The flight of a call that a tier answered before single flight: nothing was stored."""

    result = stored_tags = None


_NO_FLIGHT: Any = _NoFlight()


async def ask_tiers(call: Call) -> Any:
    """Answer a load from the nearest tier that has the value. A tier that fails has none.

    Returns:
        The value, of which there is a local copy now; `MISSING` if the tool must run.
    """
    flight = call.flight
    if call.asked:
        flight.tickets = tuple([ticket for _, ticket in call.asked])
        if call.operation.policy.remote.shares_loads and not call.is_fresh:
            ((tier, ticket),) = call.asked
            found, ticket, flight.claim = await _claim(tier, ticket, call)
            call.asked, flight.tickets = ((tier, ticket),), (ticket,)
            if found is not None:
                return _store_found(call, found)
    else:
        tiers = call.operation.tiers()  # another thread may have configured others
        for farther, tier in enumerate(tiers, 1):
            found, ticket = await _ask(tier, tiers[farther:], call)
            if found is None and farther == len(tiers) and not call.is_fresh:
                found, ticket, flight.claim = await _claim(tier, ticket, call)
            call.asked += ((tier, ticket),)
            flight.tickets += (ticket,)
            if found is not None and not call.is_fresh:
                value = _store_found(call, found)
                _keep_versions(flight, call.asked)
                if farther > 1 and (found.ttl is None or found.ttl > 0):  # else it is in its grace period: not stored
                    life = _life_of_found(call, found)
                    await _offer(call, farther - 1, found.value, found.tags, found.cost, life)
                return value
    # Its tool has not started yet, so it sees what a write has done since, of which a lookup may have received the
    # message; if the write runs still, or came after a ticket, that keeps the result out.
    flight.since = flight.store.versions.now
    return MISSING


async def offer_result(call: Call, value: Any) -> None:
    """Store what the tool has returned in the tiers that were asked for it."""
    flight = call.flight
    assert flight.stored_tags is not None
    await _offer(call, len(call.asked), value, flight.stored_tags, call.cost, _life_of_loaded(flight, call))
    _keep_versions(flight, call.asked)


async def _claim(tier: Tier, ticket: Ticket, call: Call) -> tuple[Found | None, Ticket, Callable[[], None] | None]:
    """Have one process of the fleet load what a write has invalidated, or whatever is missed by a tool that shares its
    loads: see `SharedLoads`.

    Returns:
        What another process has loaded meanwhile, a ticket, and what to call when the own load has ended.
    """
    flight = call.flight
    shared: Any = tier  # `isinstance(tier, SharedLoads)` takes several us
    if not hasattr(shared, "claim"):
        return None, ticket, None
    if flight.store.is_held(flight.key, call.known_tags()):  # maybe by the very write that makes this call
        return None, ticket, None
    shares = call.operation.policy.remote.shares_loads
    options: dict[str, Any] = {}
    if call.operation.is_sync and running_loop() is not None:  # the load that it waits for may need this loop
        if not shares:
            return None, ticket, None
        options["may_wait"] = _may_not
    elif shares:
        options["may_wait"] = partial(_may_wait, flight)
    try:
        found, ticket = await _of_tier(call, shared.claim, request_of(call), ticket, **options)
    except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
        warn_once(f"a claim in {type(tier).__name__} failed", call.operation.name, error)
        return None, ticket, None
    if found is not None:
        return found, ticket, None
    give_up: Callable[[], None] = partial(shared.give_up, ticket)
    if shares and getattr(ticket, "has_claim", False):
        claim = _Claim(shared, ticket, flight)
        _claims.add(claim)
        give_up = claim.give_up
        if call.operation.is_sync:
            call_in_background(claim.renew_later)
        else:
            claim.renew_later()
    return None, ticket, partial(call_in_background, give_up) if call.operation.is_sync else give_up


def _may_not() -> bool:
    return False


class _Claim:
    """The claim to a load, renewed three times a lease until the load ends.

    All of it but the construction is done in the event loop in which the tier works for the call.
    """

    __slots__ = ("_interval", "_shared", "_ticket", "_timer", "flight")

    def __init__(self, shared: Any, ticket: Ticket, flight: Flight) -> None:
        self.flight = flight
        self._shared = shared
        self._ticket = ticket
        self._interval = shared.lease / 3
        self._timer: asyncio.TimerHandle | None = None

    def renew_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval, self._renew, context=Context())  # without the call's own

    def _renew(self) -> None:
        if not self.flight.is_open:  # it is being stored; or its caller was interrupted before it could give up
            return
        try:
            self._shared.renew_claim(self._ticket)
        except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
            warn_once("renewing a claim failed", type(self._shared).__name__, error)
        self.renew_later()

    def give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        _claims.discard(self)
        self._shared.give_up(self._ticket)


_claims: set[_Claim] = set()
"""Those of this process, to loads that run."""


def _may_wait(flight: Flight) -> bool:
    """Whether a load may wait for another process: not if a load that this process has claimed waits for it.

    The other process may need that one before it can end its own, and neither would know of the other. So in every ring
    of processes that wait for each other there would be one that does not. It is asked again before each pause, since
    more calls may have begun to wait for the flight.
    """
    for claim in tuple(_claims):
        claimed = claim.flight
        if not claimed.is_open:
            _claims.discard(claim)
        elif claimed.would_wait_for(flight):
            return False
    return True


def _keep_versions(flight: Flight, asked: tuple[tuple[Tier, Ticket], ...]) -> None:
    """Keep the versions in the tiers with the local copy, for loads that read it."""
    if flight.result is not None and flight.result.lease is not None and flight.stored_tags is not None:
        if len(asked) == 1:  # without a comprehension: nearly always
            ((tier, ticket),) = asked
            flight.result.versions = {tier: ticket.versions}
        else:
            flight.result.versions = {tier: ticket.versions for tier, ticket in asked}


class _NoTicket:
    """The ticket of a tier that failed: the versions are unknown, so what is loaded now is not stored.

    Other callers may join the load for a second, the default bound of staleness, so that a broken tier does not make
    every caller run the tool.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = CLOCK.now() + 1.0

    def is_clean(self) -> bool:
        return False

    def is_joinable(self) -> bool:
        return CLOCK.now() < self._until

    lasts = versions = None

    def agrees_with(self, other: Ticket) -> bool:  # noqa: ARG002 - it knows no versions, so it agrees with none
        return False


def _of_tier(call: Call, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> Awaitable[T]:
    """What a method of a tier returns; for a synchronous tool, in the background loop."""
    return in_background(method, *args, **options) if call.operation.is_sync else method(*args, **options)


async def _ask(tier: Tier, farther: tuple[Tier, ...], call: Call) -> tuple[Found | None, Ticket]:
    try:
        if farther or tier in _pending:  # also a nearer tier that is asked alone for a while
            await _of_tier(call, _catch_up, tier, call.operation.tags.roots)
        found, ticket = await _of_tier(call, tier.lookup, request_of(call))
        bound = call.operation.policy.longest_ttl
        if found is not None and bound is not None and (found.ttl is None or found.age + found.ttl > bound):
            found = _bounded(found, bound)
    except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
        warn_once(f"lookup in {type(tier).__name__} failed", call.operation.name, error)
        return None, _NoTicket()
    return (found if all(map(_is_trusted, farther)) else None), ticket


def _bounded(found: Found, bound: float) -> Found | None:
    """What a tier has of a tool whose ttl has been shortened since, for a tier that does not heed `Request.ttl`."""
    found.ttl = bound - found.age
    return found if found.ttl > 0 else None


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
    expires = NEVER if found.ttl is None else early_expiry(call, now + found.ttl)
    stored = protected_copy(call, found.value, expires)
    if found.ttl is not None and found.ttl <= 0:  # in its grace period
        flight.is_cached = True
        if found.is_to_refresh:
            refresh(call)
        return found.value
    if stored is None:
        count_unstored(call)
    else:
        present, serial = flight.store.peek(call.key), VERSIONS.now
        is_valid = insert_if_valid(call, stored)
        if found.cost >= SHORTEST:
            note_load(call, found.value, stored if is_valid else None, present, serial)
    if found.is_to_refresh:
        refresh(call)
    return found.value


def _life_of_loaded(flight: Flight, call: Call) -> float | None:
    """Seconds that a loaded value may live, if its request does not say so. No longer than what it has inherited."""
    life = flight.life if call.operation.policy.life_varies else None
    inherited = flight.inherited
    if inherited is None or inherited.expires == NEVER:
        return life
    left = inherited.expires - call.started
    return left if life is None else min(life, left)


def _life_of_found(call: Call, found: Found) -> float | None:
    """Seconds from the start of its load that a found value lives, if its request does not say so."""
    return found.age + found.ttl if call.operation.policy.life_varies and found.ttl is not None else None


async def take_tickets(call: Call) -> tuple[Ticket, ...]:
    """The present versions of what a call depends on, from each of its tiers."""
    tiers = call.operation.tiers()
    return tuple([(await _ask(tier, tiers[farther:], call))[1] for farther, tier in enumerate(tiers, 1)])


async def _offer(call: Call, count: int, value: Any, tags: tuple[str, ...], cost: float, life: float | None) -> None:
    """Store a value in the nearest `count` tiers, in each only if the tickets of all farther ones are still clean."""
    asked = call.asked
    inherited = call.flight.inherited
    for farther, (tier, ticket) in enumerate(asked[:count], 1):
        if isinstance(ticket, _NoTicket) or not all(behind.is_clean() for _, behind in asked[farther:]):
            continue
        versions = [] if inherited is None else inherited.versions_in(tier)
        if versions is None:
            continue  # a read of its load has no versions in this tier, so a write to it would not be seen
        age = CLOCK.now() - call.started
        try:
            # Options are given only if they are needed: a tier of a user's may be older than they are.
            options: dict[str, Any] = {} if life is None else {"ttl": life}
            if versions:
                options["inherited"] = versions
            await _of_tier(call, tier.store, ticket, value, tags, cost, age=age, **options)
        except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
            warn_once(f"storing in {type(tier).__name__} failed", call.operation.name, error)


# Requests: a call as tiers know it


def request_of(call: Call) -> Request:
    """The call as tiers know it.

    For a key of texts and numbers the same object is returned again, so that a tier can remember it: no argument can
    have changed since.
    """
    key, store = call.key, call.local.store
    if store is None:
        return _request_of(call)
    request: Request | None = store.requests.get(key)
    ttl = call.operation.policy.longest_ttl
    if request is None or request.ttl != ttl or request.tags != store.static + call.tags:
        request = _request_of(call)
        if _is_plain(key) and not is_large((key, request.tags)):
            make_room(store.requests, _MAX_REQUESTS)
            store.requests[key] = request
    return request


def _is_plain(key: Hashable) -> bool:
    return key is TENANT or type(key) in PLAIN or (type(key) is tuple and all(map(_is_plain, key)))


def _request_of(call: Call) -> Request:
    operation, policy = call.operation, call.operation.policy
    store = call.local.store
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
        shares_load=policy.remote.shares_loads,
    )


def _identity(call: Call) -> tuple[tuple[str, Any], ...]:
    """The values that the key was made of: calls that differ by `key=`, `vary=` or asker must differ in a tier."""
    operation, policy = call.operation, call.operation.policy
    if policy.key is None:
        parts = operation.parameters.identities(call.arguments)
    else:
        args, kwargs = operation.parameters.canonical(call.args, call.kwargs)
        parts = [("key=", policy.key(*args, **kwargs))]
    if policy.vary is not None:
        arguments = operation.parameters.for_functions(call.arguments)
        parts.append(("vary=", policy.vary(arguments) if policy.vary_takes_arguments else policy.vary()))
    if operation.heeds_contexts and (asker := operation.part_by_contexts(call.arguments)) is not None:
        parts.append(("asker", asker))
    return tuple(parts)


# Invalidations from other processes

_MAX_PENDING = 1_000
"""Paths pending for a nearer tier before they are merged into their roots, and keys before they stand for all roots."""

_next_serial = itertools.count().__next__
# Weak: a tier that is no longer used is freed, with its subscription and what is pending for it.
_subscriptions: weakref.WeakKeyDictionary[Tier, Callable[[], None]] = weakref.WeakKeyDictionary()
_pending: weakref.WeakKeyDictionary[Tier, _Pending] = weakref.WeakKeyDictionary()
_nearer: weakref.WeakKeyDictionary[Tier, weakref.WeakSet[Tier]] = weakref.WeakKeyDictionary()


class _Pending:
    """Invalidations that a nearer tier has not received yet.

    Each has a serial number, so that `acknowledge` leaves what was added again meanwhile.

    What lies under other roots is not kept: such a root is invalidated as a whole before its first lookup.

    Attributes:
        roots: roots of the tools that have asked the tier. Its entries under them are older than this process's
            subscription only if the root itself is pending.
    """

    __slots__ = ("keys", "paths", "roots")

    def __init__(self) -> None:
        self.paths: dict[str, int] = {}
        self.keys: dict[tuple[str, Hashable], int] = {}
        self.roots: set[str] = set()

    def add(self, touched: Touched | None) -> None:
        """Add an invalidation; None, after a loss of messages, stands for everything under every root."""
        serial = _next_serial()
        if touched is not None:
            self.paths.update((path, serial) for path in touched.tags if root_of(path) in self.roots)
            self.keys.update(dict.fromkeys(touched.keys, serial))
        if touched is None or len(self.keys) > _MAX_PENDING:
            self.paths.update(dict.fromkeys(self.roots, serial))
            self.keys.clear()
        if len(self.paths) > _MAX_PENDING:
            self.paths = dict.fromkeys(map(root_of, self.paths), serial)

    def acknowledge(self, paths: dict[str, int], keys: dict[tuple[str, Hashable], int]) -> None:
        """Remove invalidations that the tier has received."""
        for path, serial in paths.items():
            if self.paths.get(path) == serial:
                del self.paths[path]
        for key, serial in keys.items():
            if self.keys.get(key) == serial:
                del self.keys[key]


def lease_in(tiers: tuple[Tier, ...]) -> Lease | None:
    """Subscribe to these tiers, nearest first. Returns the lease in local copies of their values, if there are any."""
    return CombinedLease.of(
        _TierLease(tier) if _subscribe(tier, tiers[:index]) else UNTRUSTED for index, tier in enumerate(tiers)
    )


class _TierLease(Lease):
    """The lease in copies of a tier whose tickets give none. Each hit asks the tier.

    Two of one tier are equal, so that a copy of many reads asks it once.
    """

    __slots__ = ("tier",)

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self.tier = tier

    def renew(self) -> bool:
        return CLOCK.now() < self.tier.trusted_until()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TierLease) and self.tier is other.tier

    def __hash__(self) -> int:
        return hash(id(self.tier))


def unsubscribe_all() -> None:
    """Unsubscribe from all tiers. Plans that are compiled later subscribe again."""
    with VERSIONS.lock:
        ends = list(_subscriptions.values())
        for state in (_subscriptions, _pending, _nearer):
            state.clear()
    for end in ends:
        end()


def _is_trusted(tier: Tier) -> bool:
    """Whether copies of this tier's values may be served now."""
    return tier in _subscriptions and CLOCK.now() < tier.trusted_until()


async def _catch_up(tier: Tier, roots: tuple[str, ...]) -> None:
    """Invalidate in a nearer tier what is pending for it. If the tier raises, it stays pending and the error passes."""
    with VERSIONS.lock:
        pending = _pending.setdefault(tier, _Pending())
        new = [root for root in roots if root not in pending.roots]
        if not new and not pending.paths and not pending.keys:
            return
        pending.paths.update(dict.fromkeys(new, _next_serial()))
        pending.roots.update(new)
        paths, keys = dict(pending.paths), dict(pending.keys)
    tags = tuple(paths)
    from agent_cache.remote.protocol import WriteIntent

    await tier.commit(WriteIntent(os.urandom(16).hex(), tags, keys=tuple(keys)), tags, failed=False, hold=0.0)
    with VERSIONS.lock:
        pending.acknowledge(paths, keys)


def _subscribe(tier: Tier, nearer: tuple[Tier, ...]) -> bool:
    """Subscribe once to a tier, before any copy of its values is stored. Returns whether that succeeded."""
    with VERSIONS.lock:
        known = _nearer.setdefault(tier, weakref.WeakSet())
        for one in nearer:
            if one not in known:
                known.add(one)
                if (pending := _pending.get(one)) is not None:
                    pending.roots.clear()  # it may hold what was invalidated here before it was a nearer tier
        if tier in _subscriptions:
            return True
    try:
        end = _end_all(tier.subscribe(partial(_receive, weakref.ref(tier))), follow(tier))
    except Exception as error:  # noqa: BLE001 - a broken cache is not a broken agent
        warn_once("subscription failed, so no copies of its values are served", type(tier).__name__, error)
        return False
    with VERSIONS.lock:
        if _subscriptions.setdefault(tier, end) is end:
            return True
    end()  # another thread was faster
    return True


def _end_all(*ends: Callable[[], None]) -> Callable[[], None]:
    def end() -> None:
        for each in ends:
            each()

    return end


def _receive(subscribed: weakref.ref[Tier], touched: Touched | None) -> None:
    """Apply an invalidation of another process; None means that some may have been lost."""
    tier = subscribed()
    if tier is None:
        return
    with VERSIONS.lock:
        for nearer in _nearer.get(tier, ()):
            _pending.setdefault(nearer, _Pending()).add(touched)
    if touched is None:
        _drop_copies_of(tier)
    else:  # also entries of tools without tiers: they depend on the same data
        write_now(touched.tags, _entries_named(touched.keys) if touched.keys else ())


def _entries_named(keys: tuple[tuple[str, Hashable], ...]) -> tuple[tuple[object, Hashable], ...]:
    tools = READERS.all()
    return tuple((tool, key) for name, key in keys for tool in tools if tool.name == name)


def _drop_copies_of(tier: Tier) -> None:
    """Drop the entries of every tool that uses this tier."""
    clear_tools([tool for tool in READERS.all() if tier in tool.tiers() or tier in tool.inherited_tiers])
