"""The result of a load: what it depends on, how long it lives, its copy, and whether it may be stored.

A result becomes a cache entry only if no invalidation overlapped the load (the rule: `core.versions`). The value is
copied before the first caller has it, so that nobody can change what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.store import NEVER, Entry, Store, UnsharedEntry, entry_size
from agent_cache.core.tags import Tag
from agent_cache.core.versions import VERSIONS, EntryTag, entry_tag
from agent_cache.engine.flight import Flight
from agent_cache.engine.inheritance import NO_LEASES, Inherited, Inherits, Source
from agent_cache.engine.scope import Call, LocalTool
from agent_cache.engine.state import evict_for, random_numbers, warn_once
from agent_cache.engine.ttls import SHORTEST
from agent_cache.values.copies import IMMUTABLE, UncopyableError

__all__ = [
    "ServedEntry", "count_unstored", "inherit_entry", "inherit_uncached", "insert_if_valid",
    "protected_copy", "read_of", "store_result",
]  # fmt: skip

Insert = Callable[[Call, Entry], object]

_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}


class ServedEntry:
    """The flight of a call that an entry has answered although it was no hit: nothing was loaded or stored."""

    __slots__ = ("result",)

    stored_tags = None

    def __init__(self, result: Entry) -> None:
        self.result = result


def store_result(call: Call, value: Any, insert: Insert | None = None) -> None:
    """Store a result unless an invalidation overlapped its load, its life or `cache_if` forbid it, or it cannot be
    copied.

    Args:
        insert: what to do with an entry that may be stored, instead of `insert_if_valid`.
    """
    operation, flight, cost = call.operation, call.flight, call.cost
    policy = operation.policy
    former = flight.store.find(call.key) if cost >= SHORTEST and insert is None else None
    keeps_simply = call.local.setup.keeps_simply and not policy.life_varies
    if keeps_simply and flight.inherited is None and insert is None:  # benchmarks.budgets, "miss"
        flight.end_tags = flight.tags
        expires = NEVER if policy.ttl is None else call.started + policy.ttl
        if type(value) in IMMUTABLE:
            entry: Entry | None = Entry(value, expires, cost, flight.tags)
            flight.result = entry
        else:
            entry = protected_copy(call, value, expires)
        if entry is not None:
            if insert_if_valid(call, entry) and former is not None:
                operation.evidence.note(call, value, former)
            return
    tags = flight.end_tags = flight.tags if not operation.late_roots else _result_tags(call, value)
    failure: Exception | None = None
    if not policy.life_varies:
        expires = NEVER if policy.ttl is None else call.started + policy.ttl
    else:
        try:
            flight.life = life = policy.life_of(value, lambda: random_numbers("jitter").random())
            expires = NEVER if life is None else call.started + life
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            expires, failure = call.started, error
    may_live = expires > call.started
    for ticket in flight.tickets:
        if ticket.lasts is not None:  # the tier may miss some writes, so it bounds the life of the entry
            expires = min(expires, call.started + ticket.lasts)
    if flight.inherited is not None:
        expires = min(expires, flight.inherited.expires)
    stored = protected_copy(call, value, expires)
    is_failure = False
    if stored is None or tags is None:
        count_unstored(call)
    elif policy.cache_if is not None and not _accepted_by_cache_if(call, value):
        # A failed call, as `ReadOperation.is_successful` has it, says nothing against what is there.
        is_failure = not policy.kept_for or not operation.is_successful(value)
    elif failure is not None:
        count_unstored(call)
        warn_once("ttl= gave no duration, so the result was not cached", operation.name, failure)
    elif may_live:
        if insert is not None:
            insert(call, stored)
        elif insert_if_valid(call, stored) and former is not None:
            operation.evidence.note(call, value, former)
        return
    if call.is_fresh or (policy.kept_for and not is_failure):
        with VERSIONS.lock:  # older than the value that is not to be stored; assigned, so that it is freed afterwards
            _former = flight.store.discard(call.key)


def _result_tags(call: Call, value: object) -> tuple[Tag, ...] | None:
    """What the entry depends on by its own tags. None if they cannot be computed: the result is not stored then."""
    tags = call.flight.tags
    for rule in call.operation.tags.late:
        try:
            tags += rule.make(_NO_ARGUMENTS if rule.is_of_result else call.arguments, value)
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            warn_once(
                f"tags of a result could not be computed from {rule.source!r}, so it was not cached",
                call.operation.name,
                error,
            )
            return None
    return tags


def protected_copy(call: Call, value: Any, expires: float) -> Entry | None:
    """Make the entry that hits and followers are answered from; None if the value cannot be copied.

    Followers run the tool themselves then: two readers of one generator would each get a part of it.
    """
    flight, setup, policy = call.flight, call.local.setup, call.operation.policy
    tags: tuple[Tag | EntryTag, ...] = flight.end_tags or flight.tags
    inherited = flight.inherited
    if inherited is not None:
        known = set(tags)
        tags += tuple([tag for tag in (*inherited.tags, *inherited.entries) if tag not in known])
    copy = None
    if type(value) not in IMMUTABLE:
        try:
            copy = policy.copy_rule(value)
        except UncopyableError as error:
            warn_once("a result could not be copied, so it was not cached", call.operation.name, error)
            flight.result = UnsharedEntry(None, 0.0, call.cost)
            return None
    lease = setup.lease
    if inherited is not None:
        lease = inherited.lease_beside(lease)
    # What is stored, not what was returned: the image of a tree is 3 to 6 times smaller.
    size = 0 if setup.configuration.max_bytes is None else entry_size(copy or value, call.key, tags)
    kept = value if copy is None else None
    flight.result = made = Entry(
        kept, expires, call.cost, tags, copy=copy, size=size, lease=lease, kept_for=policy.kept_for
    )
    return made


def count_unstored(call: Call) -> None:
    """Count a result that was returned and could not be stored."""
    for stats in call.local.stats:
        stats.unstored += 1


def _accepted_by_cache_if(call: Call, value: Any) -> bool:
    try:
        return bool(call.operation.policy.cache_if(value))
    except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
        count_unstored(call)
        warn_once("cache_if raised, so the result was not cached", call.operation.name, error)
        return False


def insert_if_valid(call: Call, entry: Entry) -> bool:
    """Check for overlapping invalidations, insert, and end the flight, in one step.

    A ticket that is no longer clean prevents the local insertion, too.

    Returns:
        Whether the value may be stored: no write has overlapped it, and its session and the settings that it was loaded
        under are still there. If so, ``flight.stored_tags`` allows the tiers to store it.
    """
    flight, local = call.flight, call.local
    store, key = flight.store, flight.key
    # What leaves the store is freed after the lock: the `__del__` of a value may wait for a lock of the user's. Hence
    # these names, which nothing reads.
    dropped = _newest = None
    evicted: list[Any] = []
    is_valid = False
    with VERSIONS.lock:
        if VERSIONS.timed:
            VERSIONS.expire(CLOCK.now())
        inherited, since = flight.inherited, flight.since
        if (
            flight.is_clean
            and store.is_open
            and (
                (since == VERSIONS.now and not VERSIONS.held and store.owner is None)  # nearly always
                or store.may_take(key, entry, since)
            )
            and (CURRENT.value is local.configuration or _is_still_enabled(local))
            and (inherited is None or _may_depend_on(call, entry, inherited))
        ):
            is_valid = is_stored = True
            tags: Any = entry.tags
            if inherited is not None:  # the tags of entries are not for tiers
                tags = tuple([tag for tag in tags if isinstance(tag, str)])
            flight.stored_tags = tags
            for ticket in flight.tickets:
                is_stored = ticket.is_clean() and is_stored
            if entry.size and is_stored:
                is_stored = evict_for(entry, local, evicted)
            if is_stored:
                _newest = store.newest
                entry.checked = VERSIONS.now
                dropped = store.insert(key, entry, call.started + call.cost)
                if dropped is not None and dropped.evicted is not None:
                    for stats in local.stats:
                        stats.evictions += 1
            flight.is_cached = is_stored or call.operation.policy.remote.is_strong
        elif call.is_fresh:
            _newest = store.discard(key)  # older than what this caller gets
        flight.is_open = False  # as `Flight.finish`, without its frame
        if flight.joinable:
            flight.joinable = False
            store.flights.pop(flight.id, None)
    if dropped is not None and dropped.replaced is not None and dropped.replaced.failure is not None:
        warn_once("copying a hit failed, so it was loaded anew", call.operation.name, dropped.replaced.failure)
    return is_valid


def _is_still_enabled(local: LocalTool) -> bool:
    """Whether a result of former settings may be stored: not with other tiers, since the former ones would guard it."""
    return CURRENT.value.enabled and CURRENT.value.has_tiers_of(local.configuration)


def _may_depend_on(call: Call, entry: Entry, inherited: Inherited) -> bool:
    """Whether a result may be stored that depends on these reads.

    One that belongs to a session or a tenant is not shared with waiting callers either: they run the tool themselves.
    """
    is_own = inherited.belongs_to(call.flight.store.owner, call.local.tenant)
    if not is_own:
        call.flight.result = UnsharedEntry(None, 0.0, entry.cost)
    may_store = (
        is_own
        and not inherited.is_doubted
        and (inherited.is_cached or call.operation.declared.ttl is not None)
        and entry.expires > CLOCK.now()
    )
    if not may_store:
        count_unstored(call)
    return may_store


# What a load inherits from the reads that its tool makes: see `engine.inheritance`


def inherit_entry(within: Flight, local: LocalTool, key: Hashable, entry: Entry) -> bool:
    """Let a load inherit from a local entry that answers a read made in it, unless a write has been faster.

    Args:
        key: qualified.

    Returns:
        Whether the entry counts still, now that the load depends on it.
    """
    store: Store = local.store
    inherited = within.inherited
    if not within.is_open or (inherited is not None and id(entry) in inherited.hits):
        return store.is_current(key, entry)
    tags = (*entry.tags, entry_tag(store.tool.number, key))
    within.begin_read(entry, tags, store.owner)
    if not store.is_current(key, entry):
        within.end_read(entry)
        return False
    within.inherit(_inherits(local, tags, entry, is_copy=True), entry, call=entry)
    return True


def inherit_uncached(call: Call) -> None:
    """Let the load that a call is made in inherit from a run of a read whose result is not stored."""
    owner = None if call.local.store is None else call.local.store.owner
    every: EntryTag = (call.operation.number,)
    assert call.within is not None
    call.within.inherit(Inherits((*call.known_tags(), every), _set_of(owner), call.tenants, is_cached=False))


def read_of(call: Call, flight: Flight, *, failed: bool = False) -> Inherits:
    """What a load inherits from a call that has led a flight, or waited for it.

    Args:
        failed: whether it has no value of it.
    """
    own = flight.end_tags
    if own is None or failed:
        own = flight.tags + flight.late_roots
    tags = (*own, entry_tag(flight.store.tool.number, flight.key))
    source = flight if flight.tickets else None
    entry = flight.result if flight.stored_tags is not None and not failed else None
    read = _inherits(call.local, tags, entry, source, is_cached=flight.is_cached and not failed)
    if not failed and any(ticket.is_doubted() for ticket in flight.tickets):
        read = read._replace(is_doubted=True)
    return read if flight.inherited is None else flight.inherited.beside(read)


def _inherits(
    local: LocalTool,
    tags: tuple[Tag | EntryTag, ...],
    entry: Entry | None,
    source: Source | None = None,
    *,
    is_cached: bool = True,
    is_copy: bool = False,
) -> Inherits:
    """What a load inherits from an answer with this entry."""
    store: Store = local.store
    expires, leases = NEVER, NO_LEASES
    if entry is not None:
        expires = entry.expires
        if entry.lease is not None:
            leases = {entry.lease: store.tool.tiers() or tuple(store.tool.inherited_tiers)}
            source = source or entry
    return Inherits(tags, _set_of(store.owner), _set_of(local.tenant), expires, is_cached, leases, source, is_copy)


def _set_of(one: Any) -> frozenset[Any]:
    return frozenset() if one is None else frozenset({one})
