"""Answers with expired results: `grace` and `stale_if_error`.

An expired entry stays in its store until it is replaced, evicted or dropped by a write. So an entry that is found there
has the same claim to be right as a hit, but for its age: no write of its tags has ended since its load began. Both
options look it up in the very step in which they answer with it, `stale_if_error` after the load has failed. What a
write drops before that step, also one that overlaps the load, is never found.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from agent_cache.clock import CLOCK
from agent_cache.core.store import Entry
from agent_cache.engine.flight import Flight
from agent_cache.engine.runtime import Call, Proceed
from agent_cache.engine.state import warn_once
from agent_cache.engine.store_result import ServedEntry, inherit_entry, reload_expired
from agent_cache.values.canonical import MISSING

__all__ = ["serve_expired"]


async def serve_expired(proceed: Proceed, call: Call) -> Entry:
    """Answer with a result in its grace period and reload it in the background, or replace a failed load by it.

    The first stage of tools with `grace` or `stale_if_error`. A call for a fresh value gets neither.
    """
    if call.is_fresh:
        return await proceed(call)
    policy, within = call.operation.policy, call.within  # which its load changes
    if policy.grace:
        entry, value = _expired(call, within, policy.grace)
        if entry is not None:
            reload_expired(call, entry, proceed)
            call.source = "hit"
            call.flight = ServedEntry(entry)  # type: ignore[assignment]  # as much of one as sessions ask for
            return Entry(value, 0.0, entry.cost)
    try:
        return await proceed(call)
    except Exception as error:
        if not policy.stale_if_error or call.plan.has_refused(error):
            raise
        entry, value = _expired(call, within, policy.stale_if_error)
        if entry is None:
            raise
        warn_once("a load failed, so an expired result was returned", call.operation.name, error)
        if call.source != "shared":
            for stats in call.plan.stats:
                stats.errors += 1
        return Entry(value, 0.0, 0.0)


def _expired(call: Call, within: Flight | None, kept_for: float) -> tuple[Entry | None, Any]:
    """The entry of a call, and a value for its caller. None if it cannot be used, or expired longer ago than that."""
    store = call.plan.store
    entry: Entry | None = store.lookup(call.key)
    if entry is None or CLOCK.now() >= entry.expires + kept_for:
        return None, MISSING
    value = entry.expired_value()
    if value is MISSING:
        return None, MISSING
    is_current = store.is_current if within is None else partial(inherit_entry, within, call.plan)
    if not is_current(call.key, entry):
        return None, MISSING
    if entry is not store.newest:
        store.use(call.key, entry)
    for stats in call.plan.stats:
        stats.stale += 1
    return entry, value
