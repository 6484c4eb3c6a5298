"""Single flight: concurrent identical reads of one event loop run the tool once, and so do those of synchronous tools
in all threads.

The leader runs the tool inline, in its own task and context; each follower waits on a future of its own. If the leader
is cancelled, it hands the *same* flight to a follower, and so does a follower that is cancelled between becoming the
leader and waking. A write detaches the flights it overlaps, so a reader that starts later never joins a load from
before it.

A call that would wait for itself, directly or through other flights, runs the tool instead: the wait-for graph is
walked before a follower joins (Holt 1972, "Some deadlock properties of computer systems": each flight is one resource
with one holder, so a cycle is the deadlock). A synchronous call in a thread whose event loop runs never waits: the loop
would stand still, and the graph does not know what else it has to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from agent_cache.clock import CLOCK
from agent_cache.core.store import Entry, Store
from agent_cache.core.versions import VERSIONS, entry_tag
from agent_cache.engine.blocking import THREADS, ThreadFlight, Waiter, has_running_loop
from agent_cache.engine.flight import ALONE, BECOME_LEADER, STRANDED, Failure, Flight
from agent_cache.engine.runtime import Call, Proceed
from agent_cache.engine.state import wait_for_lock
from agent_cache.engine.store_result import ServedEntry, inherit_entry, read_of, run_uncached
from agent_cache.errors import NoEventLoopError
from agent_cache.values.canonical import MISSING

__all__ = ["single_flight", "take_over", "thread_flight"]


def single_flight(proceed: Proceed, call: Call, kind: type[Flight] = Flight) -> Awaitable[Entry]:
    """Lead a flight for this key, or follow the one under way. `kind` is the class of the tool's flights.

    Takes no lock: flights belong to one event loop, so only its thread looks them up, joins and ends them.
    """
    store: Store = call.plan.store
    flights = store.flights
    under = call.leading
    if VERSIONS.timed:
        VERSIONS.expire(CLOCK.now())
    if STRANDED:
        _wake_stranded()
    try:
        ident = call.key, asyncio.get_running_loop()
    except RuntimeError:
        raise NoEventLoopError(call.operation.name) from None
    within = _noted(call)
    present: Flight | None = flights.get(ident)
    if present is not None:
        if call.is_fresh:
            present.give_up()
        elif not (present.agrees_with(call.asked) if call.asked else present.may_be_joined()):
            present.detach()  # this call leads, and later ones join it
            present = None
        elif under is None or _may_wait(under, present):
            return _follow(call, proceed, present, present.join(ident[1]), under, within)
    flight = kind(store, ident, store.static + call.tags, call.operation.late_roots)
    if call.asked:
        flight.tickets = tuple([ticket for _, ticket in call.asked])
    flight.leader, call.leading = call, flight
    if present is None or call.is_fresh:
        flight.joinable = True
        flights[ident] = flight
    else:
        ALONE.add(flight)
    if under is not None:
        under.wait_for(flight)
    return _lead(call, proceed, flight, under, within)


async def thread_flight(
    proceed: Proceed, call: Call, kind: type[ThreadFlight] = ThreadFlight, *, may_be_stored: bool = True
) -> Entry:
    """The same for a synchronous tool: see `blocking.ThreadFlight`.

    The flight is found or made in one step under the lock, together with its edge in the wait-for graph. So of the
    callers that find none one leads, nobody joins a flight that has ended or was detached, and no two calls can begin
    to wait for each other at the same moment. In that step the store is looked into again: a load may have ended since
    this call was no hit.

    A `KeyboardInterrupt` can be raised wherever a call has just been made. So a flight is shown to others inside of the
    `try` that gives it up again.

    Args:
        kind: the class of the tool's flights.
        may_be_stored: False if what is there now may not be served.
    """
    store: Store = call.plan.store
    flights = store.flights
    under = call.leading
    ident = call.key, THREADS
    if VERSIONS.timed:
        VERSIONS.expire(CLOCK.now())
    if STRANDED:
        _wake_stranded()
    within = _noted(call)
    waiter: Waiter | None = None
    stored: Entry | None = None
    own: ThreadFlight | None = None
    entry: Entry | None = None
    try:
        try:
            if not VERSIONS.lock.acquire(False):  # noqa: FBT003 - as in store_result.insert_if_valid()
                wait_for_lock()
            flight: ThreadFlight | None = flights.get(ident)
            is_joinable = flight is None
            if flight is not None:
                if call.is_fresh:
                    flight.give_up()
                    is_joinable = True
                elif not (flight.agrees_with(call.asked) if call.asked else flight.may_be_joined()):
                    flight.detach()
                    is_joinable = True
                elif not has_running_loop() and (under is None or _may_wait(under, flight)):
                    waiter = flight.join()
            elif may_be_stored and not (call.is_fresh or call.asked):
                found = store.lookup(call.key)  # a stale one is not freed under the lock
                if found is not None and not store.is_touched(call.key, found.tags, found.checked):
                    stored = found
            if waiter is None and stored is None:
                flight = own = kind(store, ident, store.static + call.tags, call.operation.late_roots)
                if call.asked:
                    own.tickets = tuple([ticket for _, ticket in call.asked])
                own.leader, call.leading = call, own
                if is_joinable:
                    own.joinable = True
                    flights[ident] = own
                else:
                    ALONE.add(own)
                if under is not None:
                    under.wait_for(own)
        finally:
            try:
                VERSIONS.lock.release()
            except RuntimeError:
                pass  # interrupted while it waited
        if own is not None:
            call.flight = own
            call.source = "miss"
            entry = await proceed(call)
            if own.is_open or own.waiters:
                own.land(own.result)
            own.leader = None
            if within is not None:
                within.inherit(read_of(call, own), call=call)
            return entry
    except BaseException as error:
        if own is not None:
            _give_up(call, own, within, error)
        raise
    finally:
        if own is not None and under is not None and under.waits_for and own in under.waits_for:
            under.waits_for.remove(own)
    if stored is not None:
        return await _from_store(proceed, call, kind, stored)
    assert flight is not None
    assert waiter is not None
    return await _follow(call, proceed, flight, waiter, under, within)


async def _from_store(proceed: Proceed, call: Call, kind: type[ThreadFlight], entry: Entry) -> Entry:
    """Answer with an entry that another thread has stored since this call was no hit, if it may be served."""
    value = entry.value_at(CLOCK.now())
    if value is not MISSING and call.within is not None and not inherit_entry(call.within, call.plan, call.key, entry):
        value = MISSING
    if value is MISSING:
        return await thread_flight(proceed, call, kind, may_be_stored=False)
    call.source = "shared"
    call.flight = ServedEntry(entry)  # type: ignore[assignment]  # as much of one as sessions ask for
    return Entry(value, 0.0, entry.cost)


def _noted(call: Call) -> Flight | None:
    """Let the load that a call is made in depend on what is known of the call. Returns that load, if there is one."""
    within = call.within
    if within is None or not within.is_open or not call.is_dependency:
        return None
    store: Store = call.plan.store
    own = entry_tag(store.tool.number, call.key)
    within.begin_read(call, (*store.static, *call.tags, *call.operation.late_roots, own), store.owner)
    return within


def _wake_stranded() -> None:
    """Let those lead that wait for a flight whose leader could not wake them."""
    while STRANDED:
        STRANDED.pop().hand_over()


def _may_wait(under: Flight, flight: Flight) -> bool:
    """Note that something under a flight waits for another one, unless it would wait for itself."""
    with VERSIONS.lock:
        if flight.would_wait_for(under):
            return False
        under.wait_for(flight)
    return True


async def _lead(call: Call, proceed: Proceed, flight: Flight, under: Flight | None, within: Flight | None) -> Entry:
    flight.leader = call
    call.leading = call.flight = flight
    call.source = "miss"
    try:
        entry = await proceed(call)
        if flight.is_open or flight.waiters:
            flight.land(flight.result)
        flight.leader = None
        if within is not None:
            within.inherit(read_of(call, flight), call=call)
    except BaseException as error:
        _give_up(call, flight, within, error)
        raise
    finally:
        if under is not None:
            under.waits_for.remove(flight)  # type: ignore[union-attr]  # wait_for() has made it a list
    return entry


def _give_up(call: Call, flight: Flight, within: Flight | None, error: BaseException) -> None:
    """End a flight whose leader has raised, or let a follower lead it."""
    if within is not None:
        within.inherit(read_of(call, flight, failed=True), call=call)
    if isinstance(error, Exception):
        if call.plan.has_refused(error):
            flight.hand_over()  # the leader's run was stopped, not the tool: a follower runs the tool in its own run
        else:
            flight.land(Failure(error))
    elif flight.stored_tags is not None:  # interrupted after the value was stored, while a tier was given its copy
        flight.land(flight.result)
    else:
        flight.hand_over()
    if flight.leader is call:
        flight.leader = None


async def _follow(
    call: Call,
    proceed: Proceed,
    flight: Flight,
    waiter: asyncio.Future[object] | Waiter,
    under: Flight | None,
    within: Flight | None,
) -> Entry:
    call.source = "shared"
    call.flight = flight
    is_leading = failed = False
    try:
        outcome = await waiter
        if outcome is BECOME_LEADER:
            is_leading = True
            return await take_over(proceed, call, flight, under, within)
        failed = type(outcome) is Failure
    except BaseException:
        failed = True
        if not is_leading:
            flight.leave(waiter)
        raise
    finally:
        if not is_leading:
            if within is not None:
                within.inherit(read_of(call, flight, failed=failed), call=call)
            if under is not None:
                under.waits_for.remove(flight)  # type: ignore[union-attr]  # as in _lead()
    if type(outcome) is Failure:
        outcome.raise_again()
    assert isinstance(outcome, Entry)  # nothing else is left
    value = outcome.share()
    if value is MISSING:  # it could not be copied for this caller
        call.source = "uncached"
        return await run_uncached(call)  # inside of what surrounds the plan's
    return Entry(value, 0.0, outcome.cost)


def take_over(
    proceed: Proceed, call: Call, flight: Flight, under: Flight | None = None, within: Flight | None = None
) -> Awaitable[Entry]:
    """Lead a flight whose leader was cancelled: the tool runs again, in this caller's task and context."""
    _tickets = flight.tickets  # of any tier: they are freed after the lock
    with VERSIONS.lock:
        flight.restart()
    return _lead(call, proceed, flight, under, within)
