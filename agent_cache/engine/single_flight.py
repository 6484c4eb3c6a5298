"""Concurrent identical reads run the tool once.

The leader runs the tool inline, in its own task and context; followers wait on a future of their own each. A leader
that is cancelled hands the *same* flight to a follower, and so does a follower that is cancelled after it was
promoted and before it woke. A write detaches the flights it overlaps, so a reader that starts later never joins a
load from before it.

A call that would wait on itself, directly or through other flights, runs the tool instead: the wait-for graph is
    walked before
a follower joins (Holt 1972, "Some deadlock properties of computer systems": a cycle is the deadlock, since each flight
is one resource with one holder).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Hashable
from typing import Any, Final, NoReturn

from agent_cache.clock import CLOCK
from agent_cache.core.coherence import Load, Partition
from agent_cache.core.store import Entry
from agent_cache.core.tags import Tag
from agent_cache.engine.call import Call, Proceed
from agent_cache.engine.reaper import free
from agent_cache.engine.state import LEDGER
from agent_cache.remote.protocol import Ticket, Tier
from agent_cache.values.canonical import MISSING

__all__ = ["PROMOTED", "Failure", "Flight", "single_flight", "take_over"]

PROMOTED: Final = object()
"""What a follower is told that has to lead."""


class Failure:
    """The exception of a flight, with the traceback it had when it left the tool."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.traceback = error.__traceback__

    def raise_again(self) -> NoReturn:
        """Raise it for one more follower."""
        error, context = self.error, self.error.__context__
        try:
            raise error.with_traceback(self.traceback)
        finally:
            error.__context__ = context  # what this follower was handling does not concern the others


class Flight(Load):
    """A load that others may wait for.

    Attributes:
        ident: its key and its event loop.
        waiters: one future for each follower; None as long as there was none.
        blocked_on: flights that calls made under this one are waiting for, or leading: edges of the wait-for graph.
        joinable: whether readers find it.
        kept: what followers are answered from, set by the keep stage.
        kept_tags: everything the stored answer depends on, None until it is stored: what the tiers may keep, too.
        tickets: what the tiers it has asked gave for it.
    """

    __slots__ = ("blocked_on", "ident", "joinable", "kept", "kept_tags", "tickets", "waiters")

    def __init__(
        self,
        home: Partition,
        ident: tuple[Hashable, asyncio.AbstractEventLoop],
        tags: tuple[Tag, ...],
        late_roots: tuple[str, ...],
    ) -> None:
        # As Load.__init__, without the call: a miss makes one, and each frame is a fortieth of what it may cost.
        self.home = home
        self.key = ident[0]
        self.tags = tags
        self.late_roots = late_roots
        self.written = None
        self.is_clean = True
        self.is_open = True
        self.ident = ident
        self.waiters: deque[asyncio.Future[Any]] | None = None
        self.blocked_on: list[Flight] | None = None
        self.joinable = False
        self.kept: Entry | None = None
        self.kept_tags: tuple[Tag, ...] | None = None
        self.tickets: tuple[Ticket, ...] = ()

    def detach(self) -> None:
        if self.joinable:
            self.joinable = False
            self.home.flights.pop(self.ident, None)

    def may_be_joined(self) -> bool:
        """Whether the tiers it has asked vouch for its value towards a reader that starts now."""
        return all(ticket.is_joinable() for ticket in self.tickets)

    def agrees_with(self, asked: tuple[tuple[Tier, Ticket], ...]) -> bool:
        """Whether a reader that has asked the tiers itself saw what this load began with."""
        return len(self.tickets) == len(asked) and all(
            mine.agrees_with(theirs) for (_, mine), theirs in zip(asked, self.tickets, strict=True)
        )

    def restart(self) -> None:
        super().restart()
        self.tickets = ()

    def finish(self) -> None:
        """The load is over, under the lock: nobody joins any more, and no write needs to know of it."""
        home = self.home
        if self.joinable:
            self.joinable = False
            home.flights.pop(self.ident, None)
        self.is_open = False
        for loads in home.loads:
            loads.discard(self)

    def land(self, outcome: object) -> None:
        """Give every follower the outcome."""
        if self.is_open:
            with LEDGER.lock:
                self.finish()
        if self.waiters:
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(outcome)

    def join(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Wait for the outcome: a future of one's own."""
        waiter = loop.create_future()
        if self.waiters is None:
            self.waiters = deque()
        self.waiters.append(waiter)
        return waiter

    def leave(self, waiter: asyncio.Future[Any]) -> None:
        """A follower has been interrupted. If it was promoted and has not woken, the next one is."""
        if waiter.done() and not waiter.cancelled() and waiter.result() is PROMOTED:
            self.hand_over()
        elif self.waiters and waiter in self.waiters:
            self.waiters.remove(waiter)

    def hand_over(self) -> None:
        """The leader is gone. Promote the first follower that still waits; without one the flight is over."""
        if self.waiters and not self._is_on_its_loop():
            # An abandoned call is closed by the garbage collector, on whatever thread that runs.
            try:
                self.ident[1].call_soon_threadsafe(self.hand_over)
                return
            except RuntimeError:
                self.waiters.clear()  # the loop is closed: nobody waits on it any more
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(PROMOTED)
                return
        with LEDGER.lock:
            self.finish()

    def _is_on_its_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.ident[1]
        except RuntimeError:
            return False

    def would_wait_for(self, other: Flight) -> bool:
        """Whether this flight, directly or through others, waits for another one (or is it)."""
        pending, seen = [self], {id(self)}
        while pending:
            flight = pending.pop()
            if flight is other:
                return True
            for blocker in flight.blocked_on or ():
                if id(blocker) not in seen:
                    seen.add(id(blocker))
                    pending.append(blocker)
        return False

    def blocks_on(self, other: Flight) -> None:
        """Something under this flight now waits for another."""
        if self.blocked_on is None:
            self.blocked_on = [other]
        else:
            self.blocked_on.append(other)


def single_flight(call: Call, proceed: Proceed) -> Awaitable[Entry]:
    """Lead a flight for this key, or follow the one that is under way.

    Takes no lock: flights belong to one event loop, so only its thread looks them up, joins and lands them. A write
        in another thread
    marks and detaches what it finds in the ledger's sets; a load that enters them later has not started the tool yet,
    and a reader that finds a flight just before it is detached began before that write ended.
    """
    home: Partition = call.plan.partition
    loop = asyncio.get_running_loop()
    under = call.leading
    if LEDGER.timed:
        _lapse()
    ident = call.key, loop
    present: Flight | None = home.flights.get(ident)
    if present is not None:
        if call.is_fresh:
            with LEDGER.lock:
                present.spoil()  # what it loads is older than what is asked for now
        elif not (present.agrees_with(call.asked) if call.asked else present.may_be_joined()):
            with LEDGER.lock:
                present.detach()  # who comes now leads, and who comes next joins that
            present = None
        elif under is None or not _would_deadlock(under, present):
            waiter = present.join(loop)
            if under is not None:
                under.blocks_on(present)
            return _follow(call, proceed, present, waiter, under)
    flight = Flight(home, ident, home.static + call.tags, call.operation.late_roots)
    if call.asked:
        flight.tickets = tuple(ticket for _, ticket in call.asked)
    for loads in home.loads:
        loads.add(flight)
    if present is None or call.is_fresh:
        flight.joinable = True
        home.flights[ident] = flight
    if under is not None:
        under.blocks_on(flight)
    return _lead(call, proceed, flight, under)


def _lapse() -> None:
    with LEDGER.lock:
        garbage = LEDGER.lapse(CLOCK.now())
    free(garbage)


def _would_deadlock(under: Flight, flight: Flight) -> bool:
    with LEDGER.lock:
        return flight.would_wait_for(under)


async def _lead(call: Call, proceed: Proceed, flight: Flight, under: Flight | None) -> Entry:
    call.leading = call.flight = flight
    call.source = "miss"
    try:
        entry = await proceed(call)
    except Exception as error:
        if call.plan.has_refused(error):
            flight.hand_over()  # the leader's run was stopped, not the tool: a follower runs it in its own
        else:
            flight.land(Failure(error))
        raise
    except BaseException:
        if flight.kept_tags is not None:  # interrupted after the answer was stored, while a tier was given its copy
            flight.land(flight.kept)
        else:
            flight.hand_over()
        raise
    finally:
        if under is not None:
            under.blocked_on.remove(flight)  # type: ignore[union-attr]  # blocks_on() has made it a list
    if flight.is_open or flight.waiters:
        flight.land(flight.kept)
    return entry


async def _follow(
    call: Call, proceed: Proceed, flight: Flight, waiter: asyncio.Future[Any], under: Flight | None
) -> Entry:
    call.source = "shared"
    call.flight = flight
    try:
        outcome = await waiter
    except BaseException:
        flight.leave(waiter)
        if under is not None:
            under.blocked_on.remove(flight)  # type: ignore[union-attr]  # as above
        raise
    if outcome is PROMOTED:
        return await take_over(call, proceed, flight, under)
    if under is not None:
        under.blocked_on.remove(flight)  # type: ignore[union-attr]  # as above
    if type(outcome) is Failure:
        outcome.raise_again()
    value = outcome.share()
    if value is MISSING:  # it could not be copied for this caller
        call.source = "uncached"
        return await call.plan.uncached(call)
    return Entry(value, 0.0, outcome.cost)


def take_over(call: Call, proceed: Proceed, flight: Flight, under: Flight | None = None) -> Awaitable[Entry]:
    """A promoted follower leads the same flight: the tool runs again, in its task and context."""
    with LEDGER.lock:
        flight.restart()
        LEDGER.start(flight)
    return _lead(call, proceed, flight, under)
