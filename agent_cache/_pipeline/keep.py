"""Still clean? Then store: the one place where an answer becomes an entry."""

from __future__ import annotations

from agent_cache._core.entries import NEVER, Entry, Guarded, Unprotectable
from agent_cache._core.sizes import size_of
from agent_cache._core.tags import Tag
from agent_cache._pipeline.call import Call, Proceed
from agent_cache._pipeline.clock import CLOCK
from agent_cache._pipeline.reaper import free
from agent_cache._pipeline.state import LEDGER, enforce_max_bytes, log_once
from agent_cache.config import CURRENT

__all__ = ["keep", "keepsake", "put", "tags_of_result"]


async def keep(call: Call, proceed: Proceed) -> Entry:
    """Run the rest of the plan and store its answer, if no write has touched what it depends on since it started.

    The snapshot that protects a mutable value is taken before the caller has it.
    """
    entry = await proceed(call)
    tags = call.tags if not call.operation.tags.late else tags_of_result(call, entry.value)
    ttl = call.operation.policy.ttl
    kept = keepsake(call, entry, tags or (), NEVER if ttl is None else call.started + ttl)
    if kept is not None and tags is not None and _is_wanted(call, entry):
        put(call, kept, tags)
    return entry


def tags_of_result(call: Call, value: object) -> tuple[Tag, ...] | None:
    """Every tag the entry will depend on, beside the static ones. None if they cannot be computed: it is not stored then."""
    tags = call.tags
    for rule in call.operation.tags.late:
        try:
            tags += rule.make(call.arguments, value)
        except Exception as error:
            call.operation.stats.unstored += 1
            log_once(f"tags of a result could not be computed from {rule.source!r}, so it was not cached", call.operation.name, error)
            return None
    return tags


def keepsake(call: Call, entry: Entry, tags: tuple[Tag, ...], expires: float) -> Entry | None:
    """Make the entry that hits and followers are answered from. None if the value cannot be kept apart from its callers."""
    flight = call.flight
    flight.kept = entry
    operation = call.operation
    try:
        copy = operation.policy.protection.snapshot(entry.value)
    except Unprotectable as error:
        operation.stats.unstored += 1
        log_once("a result could not be copied, so it was not cached", operation.name, error)
        return None
    size = 0 if CURRENT.value.max_bytes is None else size_of(entry.value)
    trust = call.plan.trust
    if copy is None and trust is None:
        flight.kept = Entry(entry.value, expires, entry.cost, tags, size)
    else:
        value, fast = (entry.value, 0.0) if copy is None else (None, -NEVER)
        flight.kept = Guarded(value, fast, entry.cost, tags, size, expires, copy, trust)
    return flight.kept


def _is_wanted(call: Call, entry: Entry) -> bool:
    cache_if = call.operation.policy.cache_if
    if cache_if is None:
        return True
    try:
        return bool(cache_if(entry.value))
    except Exception as error:
        call.operation.stats.unstored += 1
        log_once("cache_if raised, so the result was not cached", call.operation.name, error)
        return False


def put(call: Call, kept: Entry, tags: tuple[Tag, ...]) -> bool:
    """Check and insert, as one step under the lock. Whether it was stored.

    The tiers that were asked have a say: a value they no longer vouch for is not kept here either. Where the answer was kept,
    the flight says under which tags, so that the tiers may have it too.
    """
    flight = call.flight
    home = flight.home
    evicted = None
    with LEDGER.lock:
        if LEDGER.has_timed_holds:
            free(LEDGER.lapse(CLOCK.now()))
        if tags and flight.late_roots:
            flight.resolve(tags)
        if not home.is_open or not CURRENT.value.enabled or not LEDGER.may_store(flight, home.static + tags):
            return False
        flight.kept_tags = home.static + tags
        if flight.tickets and not all(ticket.is_clean() for ticket in flight.tickets):
            return False
        evicted = home.store.insert(flight.key, kept)
        if evicted is not None:
            for stats in call.plan.stats:
                stats.evictions += 1
        for partition, _ in enforce_max_bytes(kept):
            partition.tool.stats.evictions += 1
    return True
