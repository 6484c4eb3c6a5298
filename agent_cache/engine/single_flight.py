"""Single flight: concurrent identical reads of one event loop run the tool once.

The leader runs the tool inline, in its own task and context; each follower waits on a future of its own. If the leader
is cancelled, it hands the *same* flight to a follower, and so does a follower that is cancelled between becoming the
leader and waking. A write detaches the flights it overlaps, so a reader that starts later never joins a load from
before it.

A call that would wait for itself, directly or through other flights, runs the tool instead: the wait-for graph is
walked before a follower joins (Holt 1972, "Some deadlock properties of computer systems": each flight is one resource
with one holder, so a cycle is the deadlock).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from agent_cache.clock import CLOCK
from agent_cache.core.coherence import Partition
from agent_cache.core.store import Entry, entry_of
from agent_cache.engine.runtime import BECOME_LEADER, Call, Failure, Flight, Proceed
from agent_cache.engine.state import LEDGER, free
from agent_cache.values.canonical import MISSING

__all__ = ["single_flight", "take_over"]


def single_flight(proceed: Proceed, call: Call) -> Awaitable[Entry]:
    """Lead a flight for this key, or follow the one under way.

    Takes no lock: flights belong to one event loop, so only its thread looks them up, joins and ends them. A write in
    another thread marks and detaches what it finds in the ledger's sets; a load that enters them later has not started
    the tool yet, and a reader that finds a flight just before it is detached began before that write ended.
    """
    partition: Partition = call.plan.partition
    flights = partition.flights
    under = call.leading
    is_behind = LEDGER.timed_holds and _expire_holds()
    ident = call.key, asyncio.get_running_loop()
    present: Flight | None = flights.get(ident)
    if present is not None:
        if call.is_fresh:
            with LEDGER.lock:
                present.mark_dirty()  # its value is older than the one asked for now
        elif is_behind or not (present.agrees_with(call.asked) if call.asked else present.may_be_joined()):
            with LEDGER.lock:
                present.detach()  # this call leads, and later ones join it
            present = None
        elif under is None or not _would_deadlock(under, present):
            waiter = present.join(ident[1])
            if under is not None:
                under.wait_for(present)
            return _follow(call, proceed, present, waiter, under, _let_inherit(call, present))
    flight = Flight(partition, ident, partition.static + call.tags, call.operation.late_roots)
    if call.asked:
        flight.tickets = tuple(ticket for _, ticket in call.asked)
    if present is None or call.is_fresh:
        flight.joinable = True
        flights[ident] = flight
    partition.loads.add(flight)  # last: a write in another thread that finds it detaches it, and may not find it again
    if under is not None:
        under.wait_for(flight)
    return _lead(call, proceed, flight, under, None if call.within is None else _let_inherit(call, flight))


def _let_inherit(call: Call, flight: Flight) -> Flight | None:
    """Let the load that a call is made in inherit from a flight. Returns that load."""
    within = call.within
    if within is None or not within.is_open or not call.is_dependency:
        return None
    flight.add_dependent(within)
    return within


def _expire_holds() -> bool:
    """Release the holds that are over. Returns whether some of them have to wait."""
    now = CLOCK.now()
    with LEDGER.lock:
        garbage = LEDGER.expire_holds(now)
        is_behind = LEDGER.is_behind(now)
    free(garbage)
    return is_behind


def _would_deadlock(under: Flight, flight: Flight) -> bool:
    with LEDGER.lock:
        return flight.would_wait_for(under)


async def _lead(
    call: Call, proceed: Proceed, flight: Flight, under: Flight | None, dependent: Flight | None = None
) -> Entry:
    call.leading = call.flight = flight
    call.source = "miss"
    try:
        entry = await proceed(call)
    except Exception as error:
        if call.plan.has_refused(error):
            if dependent is not None:
                flight.drop_dependent(dependent)
            flight.hand_over()  # the leader's run was stopped, not the tool: a follower runs the tool in its own run
        else:
            if flight.dependents:
                flight.pass_on_failure()
            flight.land(Failure(error))
        raise
    except BaseException:
        if dependent is not None:
            flight.drop_dependent(dependent)
        if flight.stored_tags is not None:  # interrupted after the value was stored, while a tier was given its copy
            flight.land(flight.result)
        else:
            flight.hand_over()
        raise
    finally:
        if under is not None:
            under.waits_for.remove(flight)  # type: ignore[union-attr]  # wait_for() has made it a list
    if flight.is_open or flight.waiters:
        flight.land(flight.result)
    return entry


async def _follow(
    call: Call,
    proceed: Proceed,
    flight: Flight,
    waiter: asyncio.Future[object],
    under: Flight | None,
    dependent: Flight | None,
) -> Entry:
    call.source = "shared"
    call.flight = flight
    try:
        outcome = await waiter
    except BaseException:
        flight.leave(waiter)
        if under is not None:
            under.waits_for.remove(flight)  # type: ignore[union-attr]  # as in _lead()
        if dependent is not None:
            flight.drop_dependent(dependent)
        raise
    if outcome is BECOME_LEADER:
        return await take_over(proceed, call, flight, under, dependent)
    if under is not None:
        under.waits_for.remove(flight)  # type: ignore[union-attr]  # as in _lead()
    if type(outcome) is Failure:
        outcome.raise_again()
    entry = entry_of(outcome)  # type: ignore[arg-type]  # nothing else is left
    value = entry.share()
    if value is MISSING:  # it could not be copied for this caller
        call.source = "uncached"
        return await call.plan.uncached(call)
    return Entry(value, 0.0, entry.cost)


def take_over(
    proceed: Proceed, call: Call, flight: Flight, under: Flight | None = None, dependent: Flight | None = None
) -> Awaitable[Entry]:
    """Lead a flight whose leader was cancelled: the tool runs again, in this caller's task and context."""
    _tickets = flight.tickets  # of any tier: they are freed after the lock
    with LEDGER.lock:
        flight.restart()
    return _lead(call, proceed, flight, under, dependent)
