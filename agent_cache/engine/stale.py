"""Answers with expired results, and reloads in the background: `grace` and `stale_if_error`.

An expired entry stays in its store until it is replaced, evicted or dropped by a write. So an entry that is found there
has the same claim to be right as a hit, but for its age: no write of its tags has ended since its load began. Both
options look it up in the very step in which they answer with it, `stale_if_error` after the load has failed. What a
write drops before that step, also one that overlaps the load, is never found.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from agent_cache.at_fork import at_fork
from agent_cache.clock import CLOCK
from agent_cache.core.store import Entry
from agent_cache.engine.blocking import THREADS
from agent_cache.engine.flight import Flight
from agent_cache.engine.operation import Proceed
from agent_cache.engine.result import ServedEntry, inherit_entry
from agent_cache.engine.scope import PLACE, Call
from agent_cache.engine.state import event_loop, run_beside, warn_once
from agent_cache.values.canonical import MISSING

__all__ = ["is_refresh", "refresh", "serve_expired"]


async def serve_expired(proceed: Proceed, call: Call) -> Any:
    """Answer with a result in its grace period and reload it in the background, or replace a failed load by it.

    A call for a fresh value gets neither.
    """
    if call.is_fresh:
        return await proceed(call)
    policy, within = call.operation.policy, call.within  # which its load changes
    if policy.grace:
        entry, value = _expired(call, within, policy.grace)
        if entry is not None:
            if (call.key, _loop_of(call)) not in call.local.store.flights:
                _start(_reload_of(call), entry, proceed)
            call.source, call.cost = "hit", entry.cost
            call.flight = ServedEntry(entry)  # type: ignore[assignment]  # as much of one as sessions ask for
            return value
    try:
        return await proceed(call)
    except Exception as error:
        if not policy.stale_if_error or call.local.has_refused(error):
            raise
        entry, value = _expired(call, within, policy.stale_if_error)
        if entry is None:
            raise
        warn_once("a load failed, so an expired result was returned", call.operation.name, error)
        if call.source != "shared":
            for stats in call.local.stats:
                stats.errors += 1
        call.cost = 0.0
        return value


def _expired(call: Call, within: Flight | None, kept_for: float) -> tuple[Entry | None, Any]:
    """The entry of a call, and a value for its caller. None if it cannot be used, or expired longer ago than that."""
    store = call.local.store
    entry: Entry | None = store.lookup(call.key)
    if entry is None or CLOCK.now() >= entry.expires + kept_for:
        return None, MISSING
    value = entry.expired_value()
    is_current = store.is_current if within is None else partial(inherit_entry, within, call.local)
    if value is MISSING or not is_current(call.key, entry):
        return None, MISSING
    if entry is not store.newest:
        store.use(call.key, entry)
    for stats in call.local.stats:
        stats.stale += 1
    return entry, value


# Reloads

_reloading: set[tuple[Any, object]] = set()
"""Reloads that run, by their event loop, `blocking.THREADS` for a `def`, and the entry that each replaces."""
at_fork(after_in_child=_reloading.clear)  # they go on in the parent


def refresh(call: Call) -> None:
    """Reload an entry in the background while the old value is served.

    The reload asks for the versions itself, so it does not miss a write in between. It is no call of the agent's:
    sessions neither count nor see it, and its failure is counted and logged.
    """
    reload = _reload_of(call)
    reload.is_fresh = True
    _start(reload, reload, call.local.setup.reload)


def is_refresh(call: Call) -> bool:
    """Whether a load is one of `refresh`: nobody has asked for a fresh value."""
    return (call.flight.id[1], call) in _reloading


def _reload_of(call: Call) -> Call:
    reload = Call(call.operation, call.local, call.key, call.args, call.kwargs, "miss")
    reload.tags = call.tags
    reload.parent = reload.leading = reload.within = None
    return reload


def _loop_of(call: Call) -> Any:
    return THREADS if call.operation.is_sync else event_loop(call.operation.name)


def _start(reload: Call, replaces: object, run: Proceed) -> None:
    """Reload beside the call. Tiers are asked first: another process may have reloaded it."""
    operation, key = reload.operation, (_loop_of(reload), replaces)
    if key not in _reloading:
        _reloading.add(key)
        name = f"agent_cache refreshes {operation.name}"
        run_beside(partial(_reload, reload, run), name, partial(_reloading.discard, key), is_sync=operation.is_sync)


async def _reload(call: Call, run: Proceed) -> None:
    PLACE.set(call)
    stats, failed = call.operation.stats, False
    try:
        await run(call)
    except Exception as error:  # noqa: BLE001 - the tool's own; the caller has its answer already
        failed = True
        warn_once("refreshing an entry within its grace period failed", call.operation.name, error)
    finally:
        call.depth = 0
    if call.source == "miss":  # else a tier or another caller's load has answered
        stats.misses += 1
        stats.errors += failed
    elif call.source == "validated":
        stats.validated += 1
