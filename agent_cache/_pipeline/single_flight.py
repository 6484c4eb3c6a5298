"""Concurrent identical reads run the tool once.

The leader runs the tool inline, in its own task and context; followers wait on a future of their own each. A leader that is
cancelled hands the *same* flight to a follower, and so does a follower that is cancelled after it was promoted and before
it woke. A write detaches the flights it overlaps, so a reader that starts later never joins a load from before it.

A call that would wait on itself, directly or through other flights, runs the tool instead: the wait-for graph is walked before
a follower joins (Holt 1972, "Some deadlock properties of computer systems": a cycle is the deadlock, since each flight
is one resource with one holder).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, Final

from agent_cache._core.entries import Entry
from agent_cache._core.ledger import Load
from agent_cache._core.partition import Partition
from agent_cache._core.tags import Tag
from agent_cache._pipeline.call import Call, Proceed
from agent_cache._pipeline.clock import CLOCK
from agent_cache._pipeline.reaper import free
from agent_cache._pipeline.state import LEDGER
from agent_cache.remote.protocols import Ticket

__all__ = ["Flight", "single_flight"]

_PROMOTED: Final = object()


class _Failure:
    """The exception of a flight, with the traceback it had when it left the tool."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.traceback = error.__traceback__


class Flight(Load):
    """A load that others may wait for.

    Attributes:
        kept: what followers are answered from, set by the store stage.
        kept_tags: everything the stored answer depends on, None until it is stored: what the tiers may keep, too.
        tickets: what the tiers it has asked gave for it.
        blocked_on: flights that calls made under this one are waiting for: edges of the wait-for graph.
    """

    __slots__ = ("blocked_on", "joinable", "kept", "kept_tags", "loop", "tickets", "waiters")

    def __init__(
        self,
        home: Partition,
        key: Hashable,
        tags: tuple[Tag, ...],
        late_roots: tuple[str, ...],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(home, key, tags, late_roots)
        self.loop = loop
        self.waiters: deque[asyncio.Future[Any]] = deque()
        self.blocked_on: list[Flight] = []
        self.joinable = False
        self.kept: Entry | None = None
        self.kept_tags: tuple[Tag, ...] | None = None
        self.tickets: tuple[Ticket, ...] = ()

    def offer(self) -> None:
        """Let readers join, in place of any older flight."""
        self.joinable = True
        self.home.flights[self.key, self.loop] = self

    def detach(self) -> None:
        if self.joinable:
            self.joinable = False
            del self.home.flights[self.key, self.loop]

    def may_be_joined(self) -> bool:
        """Whether the tiers it has asked vouch for its value towards a reader that starts now."""
        return all(ticket.is_joinable() for ticket in self.tickets)

    def finish(self) -> None:
        """The load is over: nobody joins any more, and no write needs to know of it."""
        self.detach()
        LEDGER.finish(self, self.home.roots)

    def land(self, outcome: object) -> None:
        """Give every follower the outcome."""
        with LEDGER.lock:
            self.finish()
            waiters, self.waiters = self.waiters, deque()
        for waiter in waiters:
            _resolve(waiter, outcome, self.loop)

    def hand_over(self) -> None:
        """The leader is gone. Promote the first follower that still waits; without one the flight is over."""
        with LEDGER.lock:
            while self.waiters:
                waiter = self.waiters.popleft()
                if not waiter.done():
                    _resolve(waiter, _PROMOTED, self.loop)
                    return
            self.finish()

    def would_wait_for(self, other: Flight) -> bool:
        """Whether this flight, directly or through others, waits for another one (or is it)."""
        pending, seen = [self], {id(self)}
        while pending:
            flight = pending.pop()
            if flight is other:
                return True
            for blocker in flight.blocked_on:
                if id(blocker) not in seen:
                    seen.add(id(blocker))
                    pending.append(blocker)
        return False


def _resolve(waiter: asyncio.Future[Any], outcome: object, loop: asyncio.AbstractEventLoop) -> None:
    if waiter.done():
        return
    with suppress(RuntimeError):  # no loop is running here
        if asyncio.get_running_loop() is loop:
            waiter.set_result(outcome)
            return
    # An abandoned call is closed by the garbage collector, on whatever thread that runs, or when its loop is no more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_resolve, waiter, outcome, loop)


async def single_flight(call: Call, proceed: Proceed) -> Entry:
    """Lead a flight for this key, or follow the one that is under way."""
    home = call.plan.partition
    loop = asyncio.get_running_loop()
    under = call.leading
    with LEDGER.lock:
        if LEDGER.has_timed_holds:
            free(LEDGER.lapse(CLOCK.now()))
        flight: Flight | None = home.flights.get((call.key, loop))
        if flight is not None and call.is_fresh:
            flight.spoil()  # what it loads is older than what is asked for now
            flight = None
        waiter = None
        if flight is not None and flight.may_be_joined() and (under is None or not flight.would_wait_for(under)):
            waiter = loop.create_future()
            flight.waiters.append(waiter)
        else:
            is_alone, flight = flight is None, Flight(home, call.key, home.static + call.tags, call.operation.late_roots, loop)
            if is_alone:
                flight.offer()
            LEDGER.start(flight, home.roots)
        if under is not None:
            under.blocked_on.append(flight)
    try:
        return await (_lead(call, proceed, flight) if waiter is None else _follow(call, proceed, flight, waiter))
    finally:
        if under is not None:
            under.blocked_on.remove(flight)


async def _lead(call: Call, proceed: Proceed, flight: Flight) -> Entry:
    call.leading = call.flight = flight
    call.source = "miss"
    try:
        entry = await proceed(call)
    except Exception as error:
        flight.land(_Failure(error))
        raise
    except BaseException:
        if flight.kept_tags is not None:  # interrupted after the answer was stored, while a tier was given its copy
            flight.land(flight.kept)
        else:
            flight.tickets = ()
            flight.hand_over()
        raise
    flight.land(flight.kept)
    return entry


async def _follow(call: Call, proceed: Proceed, flight: Flight, waiter: asyncio.Future[Any]) -> Entry:
    call.source = "shared"
    try:
        outcome = await waiter
    except BaseException:
        with LEDGER.lock:
            if waiter.done() and not waiter.cancelled() and waiter.result() is _PROMOTED:
                flight.hand_over()
            elif waiter in flight.waiters:
                flight.waiters.remove(waiter)
        raise
    if outcome is _PROMOTED:
        with LEDGER.lock:
            flight.restart()
        return await _lead(call, proceed, flight)
    if type(outcome) is _Failure:
        raise outcome.error.with_traceback(outcome.traceback)
    kept: Entry = outcome
    return Entry(kept.answer(), 0.0, kept.cost)
