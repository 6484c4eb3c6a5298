"""Runs a tool and stores its result.

A result becomes a cache entry only if no invalidation overlapped the load (the rule: `core.coherence`). The value is
copied before the first caller has it, so that nobody can change what is stored. `refresh` does the same in the
background, for entries that are served within their grace period.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.coherence import Partition
from agent_cache.core.store import IMMUTABLE, NEVER, Entry, GuardedEntry, KeptEntry, UncopyableError
from agent_cache.core.tags import Tag
from agent_cache.engine.runtime import ENCLOSING, Call
from agent_cache.engine.state import LEDGER, evict_for, free, warn_once
from agent_cache.values.canonical import size_of
from agent_cache.values.compare import is_empty

__all__ = [
    "count_unstored",
    "insert_if_valid",
    "load",
    "protected_copy",
    "refresh",
    "reload_expired",
    "run_tool",
    "store_result",
]

Run = Callable[[Call], Awaitable[Entry]]
Insert = Callable[[Call, Entry, tuple[Tag, ...]], object]

JITTER: Final = random.Random()  # noqa: S311 - it spreads expiry and protects nothing
"""The random numbers behind ``jitter=``, a `random.Random` that a test may seed. The global one is not touched."""

os.register_at_fork(after_in_child=JITTER.seed)  # or all workers of a server would shorten their entries alike

_reloads: dict[asyncio.AbstractEventLoop, dict[object, asyncio.Task[None]]] = {}
"""Background reloads, by the entry that they replace. The event loop itself holds tasks only weakly."""


async def run_tool(call: Call) -> Entry:
    """Run the tool and measure its duration. Exceptions pass through unchanged."""
    function = call.operation.function
    call.started = started = CLOCK.now()
    value = await (function(*call.args, **call.kwargs) if call.kwargs else function(*call.args))
    return Entry(value, 0.0, CLOCK.now() - started)


async def load(call: Call) -> Entry:
    """Run the tool under single flight and store its result.

    Repeats the body of `run_tool`: one coroutine less is 6 % of a miss (benchmarks.budgets, "miss": static tag).
    """
    function = call.operation.function
    call.started = started = CLOCK.now()
    value = await (function(*call.args, **call.kwargs) if call.kwargs else function(*call.args))
    entry = Entry(value, 0.0, CLOCK.now() - started)
    store_result(call, entry)
    return entry


def store_result(call: Call, entry: Entry, insert: Insert | None = None) -> None:
    """Store the result unless an invalidation overlapped its load, its life or `cache_if` forbid it, or it cannot be
    copied.

    Args:
        insert: what to do with an entry that may be stored, instead of `insert_if_valid`.
    """
    operation = call.operation
    policy = operation.policy
    tags = call.tags if not operation.late_roots else _result_tags(call, entry.value)
    failure = None
    if not policy.life_varies:
        expires = NEVER if policy.ttl is None else call.started + policy.ttl
    else:
        expires, failure = _expiry_of(call, entry.value)
    for ticket in call.flight.tickets:
        if ticket.lasts is not None:  # the tier may miss some writes, so it bounds the life of the entry
            expires = min(expires, call.started + ticket.lasts)
    stored = protected_copy(call, entry, tags or (), expires)
    if stored is None or tags is None:
        count_unstored(call)
    elif policy.cache_if is not None and not _accepted_by_cache_if(call, entry):
        if not call.is_fresh and not (policy.kept_for and is_empty(entry.value)):
            return  # a failed call, as `ReadOperation.is_successful` has it, says nothing against what is there
    elif failure is not None:
        count_unstored(call)
        warn_once("ttl= gave no duration, so the result was not cached", operation.name, failure)
    elif expires > call.started:
        (insert or insert_if_valid)(call, stored, tags)
        return
    if call.is_fresh or policy.kept_for:
        with LEDGER.lock:
            older = call.flight.partition.store.discard(call.key)  # than the value that is not to be stored
        del older  # freed outside of the lock


def _expiry_of(call: Call, value: object) -> tuple[float, Exception | None]:
    """When a result expires whose life is its own, and why that is not known."""
    try:
        life = call.operation.policy.life_of(value, JITTER.random)
    except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
        return call.started, error
    call.flight.life = life
    return NEVER if life is None else call.started + life, None


def _result_tags(call: Call, value: object) -> tuple[Tag, ...] | None:
    """The entry's tags beside the static ones. None if they cannot be computed: the result is not stored then."""
    tags = call.tags
    for rule in call.operation.tags.late:
        try:
            tags += rule.make(call.arguments, value)
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            warn_once(
                f"tags of a result could not be computed from {rule.source!r}, so it was not cached",
                call.operation.name,
                error,
            )
            return None
    return tags


def protected_copy(call: Call, entry: Entry, tags: tuple[Tag, ...], expires: float) -> Entry | None:
    """Make the entry that hits and followers are answered from; None if its value cannot be copied.

    An immutable value of a tool without tiers is shared as it is: the entry itself is returned.
    """
    flight = call.flight
    flight.result = entry
    operation = call.operation
    copy = None
    if type(entry.value) not in IMMUTABLE:
        try:
            copy = operation.policy.copy_rule.snapshot(entry.value)
        except UncopyableError as error:
            warn_once("a result could not be copied, so it was not cached", operation.name, error)
            return None
    plan = call.plan
    size = 0 if plan.configuration.max_bytes is None else size_of(entry.value)
    trust = plan.trust
    kept_for = operation.policy.kept_for
    if copy is None and trust is None:
        if kept_for:
            flight.result = KeptEntry(entry.value, expires, entry.cost, tags, size, kept_for)
            return flight.result
        entry.fast, entry.tags, entry.size = expires, tags, size
        return entry
    value, fast = (entry.value, 0.0) if copy is None else (None, -NEVER)
    flight.result = GuardedEntry(value, fast, entry.cost, tags, size, expires, copy, trust, kept_for)
    return flight.result


def count_unstored(call: Call) -> None:
    """Count a result that was returned and could not be stored."""
    for stats in call.plan.stats:
        stats.unstored += 1


def _accepted_by_cache_if(call: Call, entry: Entry) -> bool:
    try:
        return bool(call.operation.policy.cache_if(entry.value))
    except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
        count_unstored(call)
        warn_once("cache_if raised, so the result was not cached", call.operation.name, error)
        return False


def insert_if_valid(call: Call, entry: Entry, tags: tuple[Tag, ...]) -> bool:
    """Check for overlapping invalidations, insert, and end the flight, as one step under the lock.

    A ticket that is no longer clean prevents the local insertion, too.

    Returns:
        Whether no invalidation overlapped. If so, ``flight.stored_tags`` allows the tiers to store the value.
    """
    flight = call.flight
    partition = flight.partition
    all_tags = partition.static + tags
    garbage: list[Any] = []
    with LEDGER.lock:
        if LEDGER.timed_holds:
            garbage = LEDGER.expire_holds(CLOCK.now())
        is_valid = (
            flight.is_clean
            and partition.is_open
            and CURRENT.value.enabled
            and ((flight.since < 0 and not LEDGER.holds) or LEDGER.may_store(flight, all_tags))
        )
        if is_valid:
            flight.stored_tags = all_tags
            doubts = [ticket for ticket in flight.tickets if not ticket.is_clean()] if flight.tickets else ()
            if not doubts and (not entry.size or _make_room(call, partition, entry)):
                if type(entry) is GuardedEntry and entry.copy is not None:
                    _warn_of_failed_copy(call, partition.store.peek(flight.key))
                evicted, dropped = partition.insert(flight.key, entry)
                garbage += dropped
                if evicted is not None:
                    for stats in call.plan.stats:
                        stats.evictions += 1
        flight.finish()
    if garbage:
        free(garbage)
    return is_valid


def _make_room(call: Call, partition: Partition, entry: Entry) -> bool:
    """Evict what exceeds ``max_bytes``. Returns whether the entry fits."""
    evicted = evict_for(entry)
    for other in evicted or ():
        for stats in call.plan.stats if other is partition else (other.tool.stats,):
            stats.evictions += 1
    return evicted is not None


def _warn_of_failed_copy(call: Call, old: Entry | None) -> None:
    if type(old) is GuardedEntry and old.failure is not None:
        warn_once("copying a hit failed, so it was loaded anew", call.operation.name, old.failure)


def refresh(call: Call) -> None:
    """Reload an entry in the background while the old value is served (`grace=`).

    The reload asks for the versions itself, so it does not miss a write in between. It is no call of the agent's:
    sessions neither count nor see it, and its failure is counted and logged.
    """
    reload = Call(call.operation, call.plan, call.key, call.args, call.kwargs, "miss")
    reload.is_fresh = True
    reload.tags = call.tags
    _start_reload(reload, reload, call.plan.run)


def reload_expired(call: Call, entry: Entry, run: Run) -> None:
    """Reload an expired local entry in the background, unless a load of it runs in this event loop already.

    Args:
        run: the stages behind the one that serves it. Tiers are asked first: another process may have reloaded it.
    """
    loop = asyncio.get_running_loop()
    if entry not in _reloads.get(loop, ()) and (call.key, loop) not in call.plan.partition.flights:
        reload = Call(call.operation, call.plan, call.key, call.args, call.kwargs, "miss")
        reload.tags = call.tags
        _start_reload(reload, entry, run)


def _start_reload(reload: Call, replaces: object, run: Run) -> None:
    reload.parent = reload.leading = None
    loop = asyncio.get_running_loop()
    if loop not in _reloads:
        for ended in [each for each in list(_reloads) if each.is_closed()]:
            _reloads.pop(ended, None)
    reloads = _reloads.setdefault(loop, {})
    task = loop.create_task(_reload(reload, run), name=f"agent_cache refreshes {reload.operation.name}")
    reloads[replaces] = task

    def forget(_task: asyncio.Task[None]) -> None:
        reloads.pop(replaces, None)
        if not reloads and _reloads.get(loop) is reloads:
            del _reloads[loop]

    task.add_done_callback(forget)


async def _reload(call: Call, run: Run) -> None:
    ENCLOSING.set(call)
    stats = call.operation.stats
    failed = False
    try:
        await run(call)
    except Exception as error:  # noqa: BLE001 - the tool's own; the caller has its answer already
        failed = True
        warn_once("refreshing an entry within its grace period failed", call.operation.name, error)
    if call.source == "miss":  # else a tier or another caller's load has answered
        stats.misses += 1
        stats.errors += failed
