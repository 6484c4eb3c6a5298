"""The path of a call, from its local lookup to its end.

A hit of the global store that no other tool's call makes is answered by the generated body of the tool
(`engine.body`), at the root and in a session; any other one by `hit`. What no hit answers, and every write, goes
through `run`: recordings, sessions, middleware, and then `load`, or a write (`engine.write`). `load` is single flight,
the tiers, the tool and its result, in order.

Single flight: identical reads that overlap run the tool once, those of one event loop, or of synchronous tools in all
threads. The leader runs the tool inline, in its own task and context; each follower waits on a future of its own. If
the leader is cancelled, it hands the *same* flight to a follower, and so does a follower that is cancelled between
becoming the leader and waking.

A call that would wait for itself, directly or through other flights, runs the tool instead: the wait-for graph is
walked before a follower joins (Holt 1972, "Some deadlock properties of computer systems": each flight is one resource
with one holder, so a cycle is the deadlock). A synchronous call in a thread whose event loop runs never waits: the loop
would stand still, and the graph does not know what else it has to do.

`run` and `load` are coroutines also for a `def`, which `engine.blocking` drives by hand in the calling thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Mapping
from functools import partial
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.store import Entry, Store
from agent_cache.core.versions import VERSIONS, entry_tag
from agent_cache.engine.audit import begin_audit, chooses
from agent_cache.engine.blocking import THREADS, running_loop
from agent_cache.engine.flight import ALONE, BECOME_LEADER, STRANDED, Failure, Flight, wake_stranded
from agent_cache.engine.hooks import HookedCall, answered
from agent_cache.engine.operation import UNKEYED, Operation, Proceed
from agent_cache.engine.result import ServedEntry, inherit_entry, inherit_uncached, read_of, store_result
from agent_cache.engine.scope import HOOKS, PLACE, ROOT, TENANT, Call, Scope, report_escape
from agent_cache.engine.state import warn_once
from agent_cache.engine.tiers import ask_tiers, offer_result
from agent_cache.errors import NoEventLoopError
from agent_cache.values.canonical import MISSING
from agent_cache.values.copies import IMMUTABLE

__all__ = ["hit", "load", "run", "run_tool", "run_uncached"]

_MANY_CALLS: Final = 100
"""After how many calls of a tool a miss checks once that something writes its roots."""


def hit(
    operation: Any,
    here: Any,
    key: Hashable,
    arguments: Mapping[str, Any] | None = None,
    *,
    at: Scope | None = None,
    is_audited: bool = False,
) -> Any:
    """The value of a local hit, or `MISSING`. `engine.body` generates the same steps for calls at the root, and in a
    session.

    Args:
        here, arguments: the place of the call, and its arguments by name, where the tool's loop guard needs them.
        at: the scope whose store is meant, if it is not that of the place.
        is_audited: whether the hit was chosen for an audit.
    """
    call = here.call
    scope = at or (here if call is None else here.scope)
    if scope.hook is not None:
        return MISSING
    local: Any = operation.at_root if scope is ROOT else scope.tools.get(operation)
    if local is None or local.configuration is not CURRENT.value:
        local = scope.add_local(operation)
    store = local.store
    if store is None:
        return MISSING
    if local.tenant is not None:
        key = (TENANT, local.tenant, key)
    entry = store.lookup(key)
    if entry is None:
        return MISSING
    now = CLOCK.now()
    value = entry.value if now < entry.fast and entry.lease is None else entry.value_at(now)
    if value is MISSING:
        return MISSING
    if call is not None and call.within is not None:
        if not inherit_entry(call.within, local, key, entry):
            return MISSING
    elif entry.checked != store.versions.now and not store.is_current(key, entry):
        return MISSING
    if local.setup.audited and at is None and not is_audited and chooses(local.setup.audited):
        return MISSING  # `run` looks again, and audits
    if local.is_observed:
        value = local.hit(key, entry, value, now, arguments, call)
    if entry is not store.newest:
        store.use(key, entry)
    operation.stats.hits += 1
    operation.stats.time_saved += entry.cost
    return value


async def run(
    operation: Any,
    here: Any,
    key: Hashable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    is_fresh: bool = False,
    hooked: HookedCall | None = None,
) -> Any:
    """Run a read that no local hit has answered, or a write: let the sessions admit it, count it, and show the sessions
    how it ended. In a scope with hooks these are asked first; then it runs once more, outside of them.

    Args:
        here: the place of the call, or the scope that counts for it.
        key, args, kwargs: its identity, None of a write, and its arguments in their canonical spelling.
        is_fresh: whether a fresh value is asked for.
        hooked: the same call as hooks have received it, which is told of its `Call`; None without hooks.
    """
    scope = here if here.call is None else here.scope
    if scope.hook is not None:
        hooked = HookedCall(operation, scope, key, args, kwargs, is_fresh=is_fresh)
        outside = partial(run, operation, hooked.outside, key, args, kwargs, is_fresh=is_fresh, hooked=hooked)
        return await answered(scope, hooked, outside)
    local = operation.at_root if scope is ROOT else scope.tools.get(operation)
    if local is None or local.configuration is not CURRENT.value:
        local = scope.add_local(operation)
    setup, store = local.setup, local.store
    work: Proceed = setup.run
    if not operation.is_read:
        call = Call(operation, local, None, args, kwargs, "write")
    elif store is None or key is UNKEYED or not local.configuration.enabled:
        work = setup.uncached
        call = Call(operation, local, None if key is UNKEYED else key, args, kwargs, "uncached")
    else:
        if hooked is not None and not hooked.is_fresh:  # no hit is audited: what the tool does then would be recorded
            value = hit(operation, PLACE.get(), key, hooked.arguments, at=scope)
            if value is not MISSING:
                hooked.answered_by = "hit"
                return value
        elif setup.audited and not is_fresh and hooked is None:
            named = operation.parameters.named(args, kwargs)
            value = hit(operation, PLACE.get(), key, named, is_audited=True)
            if value is not MISSING:
                begin_audit(operation, local, key, args, kwargs)
                return value
        if local.tenant is not None:
            key = (TENANT, local.tenant, key)
        flight: Any = None
        value = None
        if store.flights and not is_fresh and setup.follows_at_once and not local.is_observed and hooked is None:
            value, flight = await _follow(operation, store, key)
            if value is not MISSING and value is not BECOME_LEADER:
                return value
        if operation.is_new and operation.stats.hits + operation.stats.misses >= _MANY_CALLS:
            operation.look_at_roots()
        call = Call(operation, local, key, args, kwargs, "miss")
        call.is_fresh = is_fresh if hooked is None else hooked.is_fresh
        if value is BECOME_LEADER:
            call.tags = flight.tags[len(store.static) :]
            work = partial(load, flight=flight)
        elif flight is not None:  # the value that others have got could not be copied for this caller
            call.source, work = "uncached", setup.uncached
        else:
            for rule, make, position in operation.early_rules:
                try:
                    call.tags += rule.make(call.arguments, None) if make is None else make(call.args[position])
                except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
                    event = f"tags could not be computed from {rule.source!r}, so the call ran uncached"
                    warn_once(event, operation.name, error)
                    call.source, work = "uncached", setup.uncached
                    break
    if HOOKS and call.scope.hook is None:
        report_escape(operation)
    if local.is_observed:
        call.admitted = call.started = now = CLOCK.now()
        replacement = local.admit(call, now)
        if replacement is not None:
            return replacement.answer
    if hooked is not None:
        hooked.call = call
    token = PLACE.set(call)
    try:
        value = await work(call)
    except BaseException as error:
        call.count(failed=isinstance(error, Exception))
        replacement = local.done(call, None, error, CLOCK.now()) if local.is_observed else None
        if replacement is None:
            raise
        return replacement.answer
    finally:
        call.depth = 0
        leading = call.leading
        if leading is not None and leading.leader is call and leading.is_open:
            # After a RecursionError: `load` had no room on the stack to end it, nor is there any for a function here.
            leading.is_open = leading.joinable = False
            leading.store.flights.pop(leading.id, None)
            STRANDED.append(leading)
        try:
            PLACE.reset(token)
        except ValueError:
            pass  # closed by the garbage collector, in another context than it ran in
    if call.source == "miss":  # what `count` does for these two, without a call
        for stats in local.stats:
            stats.misses += 1
    elif call.source == "write":
        for stats in local.stats:
            stats.writes += 1
    else:
        call.count()
    if local.is_observed:
        replacement = local.done(call, value, None, CLOCK.now())
        if replacement is not None:
            return replacement.answer
    return value


async def _follow(operation: Operation[Any], store: Store, key: Hashable) -> tuple[Any, Flight | None]:
    """Wait for a load that runs in this event loop, for a call that no other call's tool makes, and no session
    observes: without a `Call` (benchmarks.budgets, "1,000 tasks on one cold key").

    Returns:
        The value, and the flight that has it. The value is `BECOME_LEADER` if this call is to lead the load; `MISSING`
        if it could not be copied for it, or without a flight.
    """
    if PLACE.get().call is not None:
        return MISSING, None
    with VERSIONS.lock:
        flight: Flight | None = store.flights.get((key, asyncio.get_running_loop()))
        if flight is None or VERSIONS.timed or not flight.may_be_joined():
            return MISSING, None
        waiter = flight.join()
    try:
        outcome = await waiter
        if type(outcome) is Failure:
            outcome.raise_again()
    except BaseException:
        flight.leave(waiter)
        operation.stats.shared += 1
        outcome = waiter = None  # which have the error, which has this frame
        raise
    value = outcome if outcome is BECOME_LEADER else outcome.share()
    if value is not MISSING and value is not BECOME_LEADER:
        operation.stats.shared += 1
    return value, flight


async def load(call: Call, *, flight: Flight | None = None, may_serve_stored: bool = True) -> Any:
    """Answer a read by the load of another call, or a tier; else run the tool and store its result.

    The flight is found or made in one step under the lock, together with its edge in the wait-for graph. So of the
    callers that find none one leads, nobody joins a flight that has ended or was detached, and no two calls can begin
    to wait for each other at the same moment. In that step the store of a `def` is looked into again: in another thread
    a load may have ended since this call was no hit.

    A `KeyboardInterrupt` can be raised wherever a call has just been made. So a flight is shown to others inside of the
    `try` that gives it up again.

    Args:
        flight: a flight whose leader was interrupted, to be led by this call.
        may_serve_stored: False if what is there now may not be served.

    Returns:
        The value. ``call.source`` is set, and ``call.cost`` where the tool or a tier has answered.
    """
    operation, store = call.operation, call.local.store
    under, within = call.leading, None
    waiter: Any = None
    stored: Entry | None = None
    own: Flight | None = None
    call.source = "miss"
    try:
        if flight is None:
            if VERSIONS.timed:
                VERSIONS.expire(CLOCK.now())
            if STRANDED:
                wake_stranded()
            try:
                loop: Any = THREADS if operation.is_sync else asyncio.get_running_loop()
            except RuntimeError:
                raise NoEventLoopError(operation.name) from None
            if call.within is not None and call.within.is_open:
                within = call.within
                tag = entry_tag(store.tool.number, call.key)
                within.begin_read(call, (*store.static, *call.tags, *operation.late_roots, tag), store.owner)
            ident = call.key, loop
            with VERSIONS.lock:
                flight = store.flights.get(ident)
                is_joinable = flight is None
                if flight is not None:
                    if call.is_fresh:
                        flight.give_up()
                        is_joinable = True
                    elif not flight.may_be_joined():
                        flight.detach()  # this call leads, and later ones join it
                        is_joinable = True
                    elif not (loop is THREADS and running_loop() is not None) and (
                        under is None or not flight.would_wait_for(under)
                    ):
                        waiter = flight.join()
                elif loop is THREADS and may_serve_stored and not call.is_fresh:
                    found = store.lookup(call.key)  # a stale one is not freed under the lock
                    if found is not None and not store.is_stale(call.key, found):
                        stored = found
                if waiter is None and stored is None:
                    flight = own = operation.flight_class(store, ident, store.static + call.tags, operation.late_roots)
                    own.leader, call.leading = call, own
                    if is_joinable:
                        own.joinable = True
                        store.flights[ident] = own
                    else:
                        ALONE.add(own)
                if under is not None and flight is not None:
                    under.wait_for(flight)
            if stored is not None:
                value = stored.value_at(CLOCK.now())
                if value is MISSING or (
                    call.within is not None and not inherit_entry(call.within, call.local, call.key, stored)
                ):
                    return await load(call, may_serve_stored=False)
                if within is not None:
                    within.end_read(call)  # the entry has told it what it depends on
                call.source = "shared"
                call.flight = ServedEntry(stored)  # type: ignore[assignment]  # as much of one as sessions ask for
                return value
            if waiter is not None:
                assert flight is not None
                call.source, call.flight = "shared", flight
                outcome: Any = None
                failed = True
                try:
                    outcome = await waiter
                    failed = type(outcome) is Failure
                except BaseException:
                    flight.leave(waiter)
                    raise
                finally:
                    if outcome is not BECOME_LEADER:
                        if within is not None:
                            within.inherit(read_of(call, flight, failed=failed), call=call)
                        if under is not None:
                            under.waits_for.remove(flight)  # type: ignore[union-attr]  # wait_for() has made it a list
                if type(outcome) is Failure:
                    outcome.raise_again()
                if outcome is not BECOME_LEADER:
                    value = outcome.share()
                    if value is MISSING:  # it could not be copied for this caller
                        call.source = "uncached"
                        return await run_uncached(call)  # inside of what surrounds the call
                    return value
                call.source = "miss"
        if own is None:  # the leader of this flight was interrupted: the tool runs again, in this caller's context
            assert flight is not None
            own = flight
            own.leader, call.leading = call, own
            _tickets = own.tickets  # of any tier: they are freed after the lock
            with VERSIONS.lock:
                own.restart()
        call.flight = own
        value = MISSING
        try:
            if call.local.setup.tiers:
                value = await ask_tiers(call)
            if value is MISSING:
                if operation.own_load is not None:
                    value = await operation.own_load(call)
                else:
                    call.within = own if operation.policy.inherit else None
                    function = operation.coroutine_function  # `run_tool` without its frame: benchmarks.budgets, "miss"
                    call.started = started = CLOCK.now()
                    value = function(*call.args, **call.kwargs) if call.kwargs else function(*call.args)
                    if not operation.returns_at_once:
                        value = await value
                    elif type(value) not in IMMUTABLE:
                        _refuse_awaitable(call, value)
                    call.cost = CLOCK.now() - started
                    store_result(call, value)
                if own.tickets and own.stored_tags is not None:
                    await offer_result(call, value)
        finally:
            if own.claim is not None:
                give_up, own.claim = own.claim, None
                give_up()
        if own.is_open or own.waiters:
            own.land(own.result)
        own.leader = None
        if within is not None:
            within.inherit(read_of(call, own), call=call)
        return value
    except BaseException as error:
        outcome = waiter = None  # as above
        if own is not None:
            if within is not None:
                within.inherit(read_of(call, own, failed=True), call=call)
            if isinstance(error, Exception) and not call.local.has_refused(error):
                own.land(Failure(error))
            elif own.stored_tags is not None and not isinstance(error, Exception):
                own.land(own.result)  # interrupted after the value was stored, while a tier was given its copy
            else:  # the leader's run was stopped, not the tool: a follower runs the tool in its own run
                own.hand_over()
            if own.leader is call:
                own.leader = None
        raise
    finally:
        if own is not None and under is not None and under.waits_for and own in under.waits_for:
            under.waits_for.remove(own)


async def run_tool(call: Call) -> Any:
    """Run the tool and measure its duration. Exceptions pass through unchanged."""
    operation = call.operation
    function = operation.coroutine_function
    call.started = started = CLOCK.now()
    value = function(*call.args, **call.kwargs) if call.kwargs else function(*call.args)
    if not operation.returns_at_once:
        value = await value
    elif type(value) not in IMMUTABLE:
        _refuse_awaitable(call, value)
    call.cost = CLOCK.now() - started
    return value


async def run_uncached(call: Call) -> Any:
    """Run a read tool whose result is not stored, nor shared with other callers."""
    if call.within is not None:
        inherit_uncached(call)
    return await run_tool(call)


def _refuse_awaitable(call: Call, value: object) -> None:
    if hasattr(type(value), "__await__"):
        if isinstance(value, Coroutine):
            value.close()
        raise TypeError(
            f"{call.operation.name} is a `def` that has returned a {type(value).__name__}, which is to be awaited; "
            "make it an `async def` that awaits this"
        )
