"""Runs a tool and stores its result.

A result becomes a cache entry only if no invalidation overlapped the load (the rule: `core.coherence`). The value is
copied before the first caller has it, so that nobody can change what is stored. `refresh` does the same in the
background, for entries that are served within their grace period.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextvars import copy_context
from functools import cache
from threading import RLock
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.evidence import SHORTEST, LastLoad
from agent_cache.core.lease import Lease
from agent_cache.core.options import refresh_window
from agent_cache.core.store import NEVER, Entry, Store, UnsharedEntry, entry_size
from agent_cache.core.tags import Tag
from agent_cache.core.versions import VERSIONS, EntryTag, entry_tag
from agent_cache.engine.blocking import THREADS, run_blocking, start_thread
from agent_cache.engine.flight import Flight
from agent_cache.engine.inheritance import NO_LEASES, Inherited, Inherits, Source
from agent_cache.engine.runtime import PLACE, Call, Plan, known_tags
from agent_cache.engine.state import (
    WITNESSES,
    event_loop,
    evict_for,
    free,
    note_dropped,
    tell_evicted,
    wait_for_lock,
    warn_once,
)
from agent_cache.values.canonical import MISSING, is_large
from agent_cache.values.compare import fingerprint
from agent_cache.values.copies import IMMUTABLE, UncopyableError

if TYPE_CHECKING:
    from random import Random

    from agent_cache.remote.protocol import Ticket, Tier

__all__ = [
    "ServedEntry",
    "count_unstored",
    "early_expiry",
    "inherit_entry",
    "insert_and_note",
    "insert_if_valid",
    "jitter",
    "lease_of",
    "load",
    "load_at_once",
    "protected_copy",
    "read_of",
    "refresh",
    "reload_expired",
    "run_at_once",
    "run_tool",
    "run_uncached",
    "store_result",
]

Run = Callable[[Call], Awaitable[Entry]]
Insert = Callable[[Call, Entry], object]


@cache
def jitter() -> Random:
    """The random numbers behind ``jitter=``, made for the first of them: see `agent_cache.testing.JITTER`."""
    from random import Random  # a module that few processes need

    made = Random()  # noqa: S311 - it spreads expiry and protects nothing
    os.register_at_fork(after_in_child=made.seed)  # or all workers of a server would shorten their entries alike
    return made


_reloads: dict[Any, dict[object, asyncio.Task[None] | Call]] = {}
"""Background reloads, by the entry that they replace, in each event loop, which holds tasks only weakly. Those of
synchronous tools are under `blocking.THREADS`."""


async def run_tool(call: Call) -> Entry:
    """Run the tool and measure its duration. Exceptions pass through unchanged."""
    function = call.operation.coroutine_function
    call.started = started = CLOCK.now()
    value = await (function(*call.args, **call.kwargs) if call.kwargs else function(*call.args))
    return Entry(value, 0.0, CLOCK.now() - started)


async def run_at_once(call: Call) -> Entry:
    """The same of a tool that is a `def`, in the calling thread."""
    function = call.operation.function
    call.started = started = CLOCK.now()
    value = function(*call.args, **call.kwargs) if call.kwargs else function(*call.args)
    if type(value) not in IMMUTABLE:
        _refuse_awaitable(call, value)
    return Entry(value, 0.0, CLOCK.now() - started)


def _refuse_awaitable(call: Call, value: object) -> None:
    if hasattr(type(value), "__await__"):
        if isinstance(value, Coroutine):
            value.close()
        raise TypeError(
            f"{call.operation.name} is a `def` that has returned a {type(value).__name__}, which is to be awaited; "
            "make it an `async def` that awaits this"
        )


async def load(call: Call) -> Entry:
    """Run the tool under single flight and store its result.

    Decorated reads that the tool makes are inherited from, unless it has ``inherit=False``.

    Repeats the body of `run_tool`: one coroutine less is 6 % of a miss (benchmarks.budgets, "miss": static tag).
    """
    operation, scope = call.operation, call.scope
    function = operation.coroutine_function
    if operation.policy.inherit:
        call.within = call.flight
        call.scope = scope.inside or scope.inside_load()
    else:
        call.within = None
        call.scope = scope.outside_of_load
    call.started = started = CLOCK.now()
    try:
        value = await (function(*call.args, **call.kwargs) if call.kwargs else function(*call.args))
    finally:
        call.scope = scope
    entry = Entry(value, 0.0, CLOCK.now() - started)
    store_result(call, entry)
    return entry


async def load_at_once(call: Call) -> Entry:
    """The same of a tool that is a `def`, in the calling thread.

    Repeats `load`, for one coroutine less: see benchmarks.budgets, "sync".
    """
    operation, scope = call.operation, call.scope
    function = operation.function
    if operation.policy.inherit:
        call.within = call.flight
        call.scope = scope.inside or scope.inside_load()
    else:
        call.within = None
        call.scope = scope.outside_of_load
    call.started = started = CLOCK.now()
    try:
        value = function(*call.args, **call.kwargs) if call.kwargs else function(*call.args)
    finally:
        call.scope = scope
    if type(value) not in IMMUTABLE:
        _refuse_awaitable(call, value)
    entry = Entry(value, 0.0, CLOCK.now() - started)
    store_result(call, entry)
    return entry


def run_uncached(call: Call) -> Awaitable[Entry]:
    """Run a read tool whose result is not stored, nor shared with other callers."""
    within = call.within
    if within is not None:
        plan = call.plan
        owner = None if plan.store is None else plan.store.owner
        owners = _NONE if owner is None else frozenset({owner})
        tenants = _NONE if plan.tenant is None else frozenset({plan.tenant})
        every: EntryTag = (call.operation.number,)
        tags = (*known_tags(call), every)
        within.inherit(Inherits(tags, owners, tenants, is_cached=False))
    return run_at_once(call) if call.operation.returns_at_once else run_tool(call)


class ServedEntry:
    """The flight of a call that an entry has answered although it was no hit: nothing was loaded or stored."""

    __slots__ = ("result",)

    stored_tags = None

    def __init__(self, result: Entry) -> None:
        self.result = result


def inherit_entry(within: Flight, plan: Plan, key: Hashable, entry: Entry) -> bool:
    """Let a load inherit from a local entry that answers a read made in it, unless a write has been faster.

    Args:
        key: qualified.

    Returns:
        Whether the entry counts still, now that the load depends on it.
    """
    store: Store = plan.store
    inherited = within.inherited
    if not within.is_open or (inherited is not None and id(entry) in inherited.hits):
        return store.is_current(key, entry)
    tags = (*entry.tags, entry_tag(store.tool.number, key))
    within.begin_read(entry, tags, store.owner)
    if not store.is_current(key, entry):
        within.end_read(entry)
        return False
    within.inherit(_inherits(plan, tags, entry, is_copy=True), entry, call=entry)
    return True


def read_of(call: Call, flight: Flight, *, failed: bool = False) -> Inherits:
    """What a load inherits from a call that has led a flight, or waited for it.

    Args:
        failed: whether it has no value of it.
    """
    plan, store = call.plan, flight.store
    own = flight.end_tags
    if own is None or failed:
        own = flight.tags + flight.late_roots
    tags = (*own, entry_tag(store.tool.number, flight.key))
    source = flight if flight.tickets else None
    entry = flight.result if flight.stored_tags is not None and not failed else None
    read = _inherits(plan, tags, entry, source, is_cached=flight.is_cached and not failed)
    if call.operation.policy.remote.is_strong:
        read = read._replace(is_strong=True)
    elif not failed and flight.tickets and not all(ticket.is_clean() for ticket in flight.tickets):
        read = read._replace(is_doubted=True)
    return read if flight.inherited is None else flight.inherited.beside(read)


def _inherits(
    plan: Plan,
    tags: tuple[Tag | EntryTag, ...],
    entry: Entry | None,
    source: Source | None = None,
    *,
    is_cached: bool = True,
    is_copy: bool = False,
) -> Inherits:
    """What a load inherits from an answer with this entry."""
    store: Store = plan.store
    leases: Mapping[Lease, tuple[Tier, ...]] = NO_LEASES
    if entry is not None and entry.lease is not None:
        leases = {entry.lease: store.tool.tiers() or tuple(store.tool.inherited_tiers)}
        source = source or entry
    return Inherits(
        tags,
        _NONE if store.owner is None else frozenset({store.owner}),
        _NONE if plan.tenant is None else frozenset({plan.tenant}),
        NEVER if entry is None else entry.expires,
        is_cached,
        leases,
        source,
        is_copy,
    )


_NONE: Final[frozenset[Any]] = frozenset()


def store_result(call: Call, entry: Entry, insert: Insert | None = None) -> None:
    """Store the result unless an invalidation overlapped its load, its life or `cache_if` forbid it, or it cannot be
    copied.

    Args:
        insert: what to do with an entry that may be stored, instead of `insert_if_valid`.
    """
    operation, flight = call.operation, call.flight
    policy, evidence = operation.policy, operation.evidence
    if entry.cost > SHORTEST:
        evidence.earn(entry.cost)
    tags = flight.tags if not operation.late_roots else _result_tags(call, entry.value)
    flight.end_tags = tags
    may_live, failure = True, None
    if not policy.life_varies:
        expires = NEVER if policy.ttl is None else call.started + policy.ttl
    else:
        expires, failure = _expiry_of(call, entry.value)
        may_live = expires > call.started
    for ticket in flight.tickets:
        if ticket.lasts is not None:  # the tier may miss some writes, so it bounds the life of the entry
            expires = min(expires, call.started + ticket.lasts)
    if flight.tickets and may_live and expires != NEVER:
        expires = early_expiry(call, expires, entry.cost)
    inherited = flight.inherited
    if inherited is not None:
        expires = min(expires, inherited.expires)
    stored: Entry | None
    if insert is None and tags is not None and flight.waiters is None and _is_refused(flight, entry.value):
        stored = flight.result = entry  # for the caller that ran the tool alone: it needs no copy
    else:
        stored = protected_copy(call, entry, expires)
    is_failure = False
    if stored is None or tags is None:
        count_unstored(call)
    elif policy.cache_if is not None and not _accepted_by_cache_if(call, entry):
        # A failed call, as `ReadOperation.is_successful` has it, says nothing against what is there.
        is_failure = not policy.kept_for or not operation.is_successful(entry.value)
    elif failure is not None:
        count_unstored(call)
        warn_once("ttl= gave no duration, so the result was not cached", operation.name, failure)
    elif may_live:
        if insert is not None:
            operation.evidence.forget(_key_in_evidence(call))
            insert(call, stored)
        elif evidence.allowance > 0:
            insert_and_note(call, entry.value, stored)
        else:
            insert_if_valid(call, stored)
        return
    if insert is None and evidence.allowance > 0:
        _note_unstored(call)
    if call.is_fresh or (policy.kept_for and not is_failure):
        with VERSIONS.lock:  # older than the value that is not to be stored; assigned, so that it is freed afterwards
            _former = flight.store.discard(call.key)


def _is_refused(flight: Flight, value: object) -> bool:
    """Whether a value that would be copied is not going to be stored because of a write, nor shared with others. If so,
    nobody joins its load any more.
    """
    if type(value) in IMMUTABLE or flight.end_tags is None:
        return False
    store = flight.store
    if flight.is_clean and flight.since == store.versions.now and not store.versions.held:
        return False
    with VERSIONS.lock:  # in which callers of other threads join
        is_touched = not flight.is_clean or store.is_touched(flight.key, flight.end_tags, flight.since)
        if flight.waiters or not (is_touched or store.is_held(flight.key, flight.end_tags)):
            return False
        flight.give_up()
    return True


def _expiry_of(call: Call, value: object) -> tuple[float, Exception | None]:
    """When a result expires whose life is its own, and why that is not known."""
    try:
        life = call.operation.policy.life_of(value, lambda: jitter().random())
    except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
        return call.started, error
    call.flight.life = life
    return NEVER if life is None else call.started + life, None


def early_expiry(call: Call, expires: float, cost: float) -> float:
    """When the local copy of a value expires: a little earlier than the value itself, at random, if its tier has one
    process reload it then. In the last part of its life it expires with the value: it is about to be reloaded.
    """
    window = refresh_window(cost, expires - call.started)
    if expires - CLOCK.now() > window:
        for each in call.flight.tickets:
            if getattr(each, "refreshes_early", False):
                return expires - window * jitter().random()
    return expires


_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}


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


def protected_copy(call: Call, entry: Entry, expires: float) -> Entry | None:
    """Make the entry that hits and followers are answered from; None if its value cannot be copied.

    Followers run the tool themselves then: two readers of one generator would each get a part of it.

    An immutable value of a tool without tiers is shared as it is.
    """
    flight, plan, value = call.flight, call.plan, entry.value
    tags: tuple[Tag | EntryTag, ...] = flight.end_tags or flight.tags
    inherited = flight.inherited
    if inherited is not None:
        known = set(tags)
        tags += tuple([tag for tag in (*inherited.tags, *inherited.entries) if tag not in known])
    is_immutable = type(value) in IMMUTABLE
    if is_immutable and plan.keeps_plain and inherited is None:  # nearly all: what follows costs twice as much
        flight.result = made = Entry(value, expires, entry.cost, tags)
        return made
    flight.result = entry
    operation = call.operation
    copy = None
    if not is_immutable:
        try:
            copy = operation.policy.copy_rule.snapshot(value)
        except UncopyableError as error:
            warn_once("a result could not be copied, so it was not cached", operation.name, error)
            flight.result = UnsharedEntry(None, 0.0, entry.cost)
            return None
    # What is stored, not what was returned: the image of a tree is 3 to 6 times smaller.
    stored = value if copy is None else copy
    size = 0 if plan.configuration.max_bytes is None else entry_size(stored, call.key, tags)
    lease = plan.lease
    if lease is not None and len(flight.tickets) == 1 == len(operation.tiers()):
        lease = lease_of(flight.tickets[0], lease)
    if inherited is not None:
        lease = inherited.lease_beside(lease)
    flight.result = Entry(
        value if copy is None else None,
        expires,
        entry.cost,
        tags,
        copy=copy,
        size=size,
        lease=lease,
        kept_for=operation.policy.kept_for,
    )
    return flight.result


def lease_of(ticket: Ticket, lease: Lease) -> Lease:
    """The lease in a copy of an only tier's value: that of its ticket, if it has one, else that of the whole tier."""
    own: Lease | None = getattr(ticket, "lease", None)
    return lease if own is None else own


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


def insert_if_valid(call: Call, entry: Entry) -> bool:
    """Check for overlapping invalidations, insert, and end the flight, in one step.

    A ticket that is no longer clean prevents the local insertion, too.

    Returns:
        Whether no invalidation overlapped. If so, ``flight.stored_tags`` allows the tiers to store the value.
    """
    flight, plan = call.flight, call.plan
    store, key = flight.store, flight.key
    # What leaves the store is freed after the lock: the `__del__` of a value may wait for a lock of the user's. Hence
    # these names, which nothing reads.
    garbage: list[Any] = []
    replaced = evicted = _newest = None
    try:
        if not VERSIONS.lock.acquire(False):  # noqa: FBT003 - 0.08 us less than `with`; as a keyword, more
            wait_for_lock()
        now = CLOCK.now() if VERSIONS.timed or store.maxsize is None or len(store) >= store.maxsize else 0.0
        if VERSIONS.timed:
            VERSIONS.expire(now)
        inherited = flight.inherited
        configuration = CURRENT.value
        is_valid = (
            flight.is_clean
            and not store.is_touched(key, entry.tags, flight.since)
            and not store.is_held(key, entry.tags)
            and store.is_open
            and (configuration is plan.configuration or _is_still_enabled(configuration, plan))
            and (inherited is None or _may_depend_on(call, entry, inherited))
        )
        if is_valid:
            flight.stored_tags = tags = _tags_for_tiers(entry.tags)
            is_stored = True
            for ticket in flight.tickets:
                if (note_tags := getattr(ticket, "note_tags", None)) is not None:
                    note_tags(tags)
                if not ticket.is_clean():
                    is_stored = False
            if call.operation.policy is not call.operation.declared:  # its ttl may have been shortened meanwhile
                life = call.operation.policy.longest_ttl
                entry.expire_by(NEVER if life is None else call.started + life)
            if is_stored and entry.size:
                is_stored = _make_room(call, store, entry, garbage)
            if is_stored:
                _newest = store.newest
                replaced = store.peek(key)
                entry.checked = store.versions.now
                evicted, swept = store.insert(key, entry, now)
                garbage += swept
                if evicted is not None:
                    for stats in plan.stats:
                        stats.evictions += 1
            flight.is_cached = is_stored or call.operation.policy.remote.is_strong
        flight.finish()
    finally:
        try:
            VERSIONS.lock.release()
        except RuntimeError:
            pass  # interrupted while it waited
    if garbage:
        free(garbage)
    if replaced is not None:
        note_dropped((replaced,))
        if replaced.failure is not None:
            warn_once("copying a hit failed, so it was loaded anew", call.operation.name, replaced.failure)
    if WITNESSES and evicted is not None and (witness := WITNESSES.pop(id(evicted), None)) is not None:
        if type(witness) is set:
            tell_evicted(evicted, witness)
        else:
            witness.let_go(evicted, None)  # without a call: one miss in a session in two evicts an entry of its own
    return is_valid


def _tags_for_tiers(tags: tuple[Tag | EntryTag, ...]) -> tuple[Tag, ...]:
    """The tags that other processes know: not those of single entries."""
    return tuple([tag for tag in tags if isinstance(tag, str)])


# What loads show: see `core.evidence`


class _Noting:
    """The lock around what is noted of loads. Taken without waiting: of two that end at once one is not noted."""

    lock = RLock()


def _renew_lock() -> None:
    """In the child of a fork: another thread may have had it."""
    _Noting.lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def insert_and_note(call: Call, value: object, stored: Entry) -> None:
    """Insert as `insert_if_valid`, and note what the load shows about the tool: why it was needed, and whether its
    result differs from the one before. The processor time of this is subtracted from what the tool may spend on it.
    """
    began = thread_time()
    evidence = call.operation.evidence
    present, serial = call.flight.store.peek(call.key), VERSIONS.now
    is_stored = insert_if_valid(call, stored)
    expires = stored.expires if is_stored else call.started
    _note(call, value, LastLoad(call.started, expires, None, serial, is_stored=is_stored), present)
    evidence.allowance -= thread_time() - began


def _note_unstored(call: Call) -> None:
    """Note a load whose result was not stored, since it may not be, or cannot."""
    present = call.flight.store.peek(call.key)
    _note(call, MISSING, LastLoad(call.started, call.started, None, VERSIONS.now, is_stored=False), present)


def _note(call: Call, value: object, load: LastLoad, present: Entry | None) -> None:
    """Note a load.

    Args:
        value: its result, to be compared; `MISSING` if it is not.
        present: the entry that was there before.
    """
    operation, key, lock = call.operation, _key_in_evidence(call), _Noting.lock
    evidence = operation.evidence
    try:  # the lock is taken inside: see `wait_for_lock`
        if lock.acquire(blocking=False) and evidence.is_chosen(key) and (key in evidence.latest or not is_large(key)):
            load.digest = _digest(call, value)
            # A list: an interrupt while a generator is being closed would be lost.
            evidence.has_writers = any([use.is_written or use.writers for use in operation.root_uses])  # noqa: C419
            written = max([VERSIONS.last(root) for root in operation.roots], default=0)
            expires = None if present is None else present.expires
            evidence.note(key, load, expires, written, is_miss=call.source == "miss" and not call.is_fresh)
    finally:
        try:
            lock.release()
        except RuntimeError:
            pass  # another thread has it


def _key_in_evidence(call: Call) -> Hashable:
    session = call.flight.store.session
    return call.key if session is None else (session, call.key)


def _digest(call: Call, value: object) -> bytes | None:
    """What two results share that are the same, types included; None if that cannot be told."""
    outcome_key = call.operation.policy.loop.outcome_key
    if outcome_key is not None and value is not MISSING:
        try:
            value = outcome_key(value)
        except Exception:  # noqa: BLE001 - the user's function; the loop guard logs that it raises
            return None
    return fingerprint(value)


def _is_still_enabled(configuration: Configuration, plan: Plan) -> bool:
    """Whether a result may be stored that was loaded under former settings.

    With other tiers it may not, since the entry would be guarded by the former ones.
    """
    return configuration.enabled and configuration.has_tiers_of(plan.configuration)


def _may_depend_on(call: Call, entry: Entry, inherited: Inherited) -> bool:
    """Whether a result may be stored that depends on these reads.

    One that belongs to a session or a tenant is not shared with waiting callers either: they run the tool themselves.
    """
    is_own = inherited.belongs_to(call.flight.store.owner, call.plan.tenant)
    if not is_own:
        call.flight.result = UnsharedEntry(None, 0.0, entry.cost)
    may_store = (
        is_own
        and not inherited.is_doubted
        and inherited.is_undisturbed()
        and (inherited.is_cached or call.operation.declared.ttl is not None)
        and entry.expires > CLOCK.now()
    )
    if not may_store:
        count_unstored(call)
    return may_store


def _make_room(call: Call, store: Store, entry: Entry, garbage: list[Any]) -> bool:
    """Evict what exceeds ``max_bytes``. Returns whether the entry fits."""
    evicted = evict_for(entry, garbage)
    for other, count in evicted or ():
        for stats in call.plan.stats if other is store else (other.stats,):
            stats.evictions += count
    return evicted is not None


def refresh(call: Call) -> None:
    """Reload an entry in the background while the old value is served (`grace=`).

    The reload asks for the versions itself, so it does not miss a write in between. It is no call of the agent's:
    sessions neither count nor see it, and its failure is counted and logged.
    """
    reload = Call(call.operation, call.plan, call.key, call.args, call.kwargs, "miss")
    reload.is_fresh = True
    reload.tags = call.tags
    _start_reload(reload, reload, call.plan.reload)


def reload_expired(call: Call, entry: Entry, run: Run) -> None:
    """Reload an expired local entry in the background, unless a load of it runs already: in this event loop, or in any
    thread, if the tool is synchronous.

    Args:
        run: the stages behind the one that serves it. Tiers are asked first: another process may have reloaded it.
    """
    loop = THREADS if call.operation.is_sync else event_loop(call.operation.name)
    if entry not in _reloads.get(loop, ()) and (call.key, loop) not in call.plan.store.flights:
        reload = Call(call.operation, call.plan, call.key, call.args, call.kwargs, "miss")
        reload.tags = call.tags
        _start_reload(reload, entry, run)


def _start_reload(reload: Call, replaces: object, run: Run) -> None:
    reload.parent = reload.leading = reload.within = None
    if reload.operation.is_sync:
        _reload_in_thread(reload, replaces, run)
        return
    loop = event_loop(reload.operation.name)
    if loop not in _reloads:
        for ended in [each for each in list(_reloads) if each != THREADS and each.is_closed()]:
            _reloads.pop(ended, None)
    reloads = _reloads.setdefault(loop, {})
    task = loop.create_task(_reload(reload, run), name=f"agent_cache refreshes {reload.operation.name}")
    reloads[replaces] = task

    def forget(_task: asyncio.Task[None]) -> None:
        reloads.pop(replaces, None)
        if not reloads and _reloads.get(loop) is reloads:
            del _reloads[loop]

    task.add_done_callback(forget)


def _reload_in_thread(reload: Call, replaces: object, run: Run) -> None:
    reloads = _reloads.setdefault(THREADS, {})
    if reloads.setdefault(replaces, reload) is not reload:
        return  # another thread was faster
    context = copy_context()

    def work() -> None:
        try:
            context.run(run_blocking, _reload(reload, run))
        finally:
            reloads.pop(replaces, None)

    if not start_thread(work, f"agent_cache refreshes {reload.operation.name}"):
        reloads.pop(replaces, None)


async def _reload(call: Call, run: Run) -> None:
    PLACE.set(call)
    stats = call.operation.stats
    failed = False
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
