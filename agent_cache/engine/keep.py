"""Still clean? Then store: the one place where an answer becomes an entry."""

from __future__ import annotations

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.coherence import Partition
from agent_cache.core.store import IMMUTABLE, NEVER, Entry, Guarded, Unprotectable
from agent_cache.core.tags import Tag
from agent_cache.engine.call import Call
from agent_cache.engine.reaper import free
from agent_cache.engine.state import LEDGER, log_once, make_room
from agent_cache.values.canonical import size_of

__all__ = ["count_unstored", "keep", "keepsake", "put", "tags_of_result"]


def keep(call: Call, entry: Entry) -> None:
    """Store what the tool has just answered, if no write has touched what it depends on since it was started.

    The snapshot that protects a mutable value is taken before the caller has it.
    """
    operation = call.operation
    policy = operation.policy
    tags = call.tags if not operation.late_roots else tags_of_result(call, entry.value)
    expires = NEVER if policy.ttl is None else call.started + policy.ttl
    for ticket in call.flight.tickets:
        if ticket.lasts is not None:  # a write that a tier never hears of may matter for that long, and no longer
            expires = min(expires, call.started + ticket.lasts)
    kept = keepsake(call, entry, tags or (), expires)
    if kept is None or tags is None:
        count_unstored(call)
    elif policy.cache_if is None or _is_wanted(call, entry):
        put(call, kept, tags)
    elif call.is_fresh:
        with LEDGER.lock:
            call.flight.home.store.discard(call.key)  # it is older than the answer that is not to be kept


def tags_of_result(call: Call, value: object) -> tuple[Tag, ...] | None:
    """Every tag the entry will depend on, beside the static ones. None if they cannot be computed: it is not stored
    then.
    """
    tags = call.tags
    for rule in call.operation.tags.late:
        try:
            tags += rule.make(call.arguments, value)
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            log_once(
                f"tags of a result could not be computed from {rule.source!r}, so it was not cached",
                call.operation.name,
                error,
            )
            return None
    return tags


def keepsake(call: Call, entry: Entry, tags: tuple[Tag, ...], expires: float) -> Entry | None:
    """Make the entry that hits and followers are answered from. None if the value cannot be kept apart from its
    callers.
    """
    flight = call.flight
    flight.kept = entry
    operation = call.operation
    copy = None
    if type(entry.value) not in IMMUTABLE:
        try:
            copy = operation.policy.protection.snapshot(entry.value)
        except Unprotectable as error:
            log_once("a result could not be copied, so it was not cached", operation.name, error)
            return None
    plan = call.plan
    size = 0 if plan.configuration.max_bytes is None else size_of(entry.value)
    trust = plan.trust
    if copy is None and trust is None:
        # It is shared as it is: one object for caller and store.
        entry.fast, entry.tags, entry.size = expires, tags, size
        return entry
    value, fast = (entry.value, 0.0) if copy is None else (None, -NEVER)
    flight.kept = Guarded(value, fast, entry.cost, tags, size, expires, copy, trust)
    return flight.kept


def count_unstored(call: Call) -> None:
    """An answer was returned that could not be kept."""
    for stats in call.plan.stats:
        stats.unstored += 1


def _is_wanted(call: Call, entry: Entry) -> bool:
    try:
        return bool(call.operation.policy.cache_if(entry.value))
    except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
        count_unstored(call)
        log_once("cache_if raised, so the result was not cached", call.operation.name, error)
        return False


def put(call: Call, kept: Entry, tags: tuple[Tag, ...]) -> bool:
    """Check and insert, as one step under the lock, and end the flight in the same step. Whether it was stored.

    The tiers that were asked have a say: a value they no longer vouch for is not kept here either. Where the answer may
    be kept, the flight says under which tags, so that the tiers may have it too.
    """
    flight = call.flight
    home = flight.home
    all_tags = home.static + tags
    with LEDGER.lock:
        if LEDGER.timed:
            free(LEDGER.lapse(CLOCK.now()))
        if flight.written is not None:
            flight.resolve(all_tags)
        may_store = (
            flight.is_clean
            and home.is_open
            and CURRENT.value.enabled
            and (not LEDGER.holds_anything or LEDGER.may_store(flight, all_tags))
        )
        if may_store:
            flight.kept_tags = all_tags
            doubts = [ticket for ticket in flight.tickets if not ticket.is_clean()] if flight.tickets else ()
            if not doubts and (not kept.size or _has_room(call, home, kept)):
                if type(kept) is Guarded and kept.copy is not None:
                    _report_failure(call, home.store.peek(flight.key))
                if home.store.insert(flight.key, kept) is not None:
                    for stats in call.plan.stats:
                        stats.evictions += 1
        flight.finish()
    return may_store


def _has_room(call: Call, home: Partition, kept: Entry) -> bool:
    """Make room under ``max_bytes``; whether there can be any."""
    evicted = make_room(kept)
    for partition in evicted or ():
        for stats in call.plan.stats if partition is home else (partition.tool.stats,):
            stats.evictions += 1
    return evicted is not None


def _report_failure(call: Call, old: Entry | None) -> None:
    if type(old) is Guarded and old.failure is not None:
        log_once("copying a hit failed, so it was loaded anew", call.operation.name, old.failure)
