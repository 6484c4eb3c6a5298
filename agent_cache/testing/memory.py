"""A tier in memory: the protocol of a fleet without a network. Each client stands for a process.

It is the reference: what a tier for a real server must do is done here in the fewest lines. The cells and what
becomes of them are described in `agent_cache.testing.server`; this side decides what may be stored under which, and
for how long local copies are trusted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Literal
from uuid import uuid4

from agent_cache.clock import CLOCK
from agent_cache.core.store import NEVER, Unprotectable, structural
from agent_cache.core.tags import meet, root_of
from agent_cache.errors import RemoteTierError
from agent_cache.remote.protocol import Found, Listener, Request, Ticket, Touched, WriteIntent
from agent_cache.testing.cells import CellName, armed_by, cells_of_root, moved_by, own_cell, read_by
from agent_cache.testing.server import Cell, MemoryServer, Stored

__all__ = ["MemoryTier"]


class MemoryTier:
    """A client of a `MemoryServer`. Two of them on one server are two processes.

    The subscription has three states for tests. *Live*: messages arrive at once and every PING is answered.
    *Stalled*: they wait in the pipe, and trust lapses after `max_staleness`; `resume` delivers them. *Cut*: they are
    lost and nobody notices, until `reconnect` tells the listeners that anything may have happened.

    Args:
        server: None for one of its own.
        lease: seconds that a write is announced for, without renewal.
        max_staleness: seconds that local copies are trusted after the last answered PING.
        max_ttl: seconds that a value lives at the most, whatever is lost.
        on_unreachable: ``"run"`` lets a write run that cannot be announced, and makes up for it; ``"refuse"`` stops it.
    """

    def __init__(
        self,
        server: MemoryServer | None = None,
        *,
        lease: float = 10.0,
        max_staleness: float = 1.0,
        max_ttl: float = 3600.0,
        on_unreachable: Literal["run", "refuse"] = "run",
    ) -> None:
        self.server = MemoryServer() if server is None else server
        self.lease = lease
        self.max_staleness = max_staleness
        self.max_ttl = max_ttl
        self._refuses = on_unreachable == "refuse"
        self._lock = threading.RLock()
        self._tickets: weakref.WeakSet[_Ticket] = weakref.WeakSet()
        self._listeners: list[Listener] = []
        self._pending: dict[str, Callable[[], None]] = {}
        self._pipe: Literal["live", "stalled", "cut"] = "live"
        self._delayed: list[tuple[object, Touched]] = []
        self._answered = -NEVER
        self.server.connect(self, self._receive)

    # Reads

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """Fetch the value and the cells it must agree with, in one go."""
        ticket = _Ticket(self, request)
        with self._lock:
            self._tickets.add(ticket)  # before it looks, so that no message falls in between
        try:
            self._settle_up()
            stored, ticket.cells = self.server.fetch(_address(request), ticket.depends_on | ticket.watches)
        except ConnectionError:
            return None, ticket
        if stored is None or (request.strong and not self.server.is_idle(stored.header)):
            return None, ticket
        now = CLOCK.now()
        value = stored.value if stored.copy is None else stored.copy()
        return Found(value, stored.tags, age=now - stored.loaded, cost=stored.cost, ttl=stored.expires - now), ticket

    async def store(self, ticket: Ticket, value: Any, tags: tuple[str, ...], cost: float, *, age: float) -> None:
        """Store under the tokens that were seen before the load, so that a value overtaken by a write is dead."""
        assert isinstance(ticket, _Ticket)
        loaded = CLOCK.now() - age
        expires = loaded + ticket.lasts
        try:
            copy = structural(value)
            self._settle_up()
            header = self._header(ticket, tags)
            if header is not None:
                kept = Stored(value if copy is None else None, copy, header, tags, cost, loaded, expires)
                self.server.store(_address(ticket.request), kept)
        except (ConnectionError, Unprotectable):
            pass  # neither is the tool's business

    def _header(self, ticket: _Ticket, tags: tuple[str, ...]) -> dict[CellName, str] | None:
        """The cells a value depends on, with the tokens they had before its load; None if it must not be stored."""
        before = ticket.cells
        if not ticket.depends_on <= before.keys() or any(before[name].mode == "held" for name in ticket.depends_on):
            return None
        header = {name: before[name] for name in ticket.depends_on}
        late = [tag for tag in tags if not read_by(tag) <= ticket.depends_on]
        if late:
            # The entity's own cell is seen only now. What proves that it was not written during the load is D, which
            # every write under the root moves, and S; that none was at work before, that they were not held.
            watched = frozenset().union(*(cells_of_root(root_of(tag)) for tag in late))
            _, after = self.server.fetch(None, watched | frozenset().union(*map(read_by, late)))
            for name in watched:
                if name not in before or before[name].mode == "held" or before[name].token != after[name].token:
                    return None
            header |= {name: after[name] for tag in late for name in read_by(tag)}
        return {name: cell.token for name, cell in header.items()}

    async def discard(self, request: Request) -> bool:
        """Write the entry itself: whoever is loading it now does not bring it back."""
        try:
            was_there = self.server.fetch(_address(request), ())[0] is not None
        except ConnectionError:
            was_there = False
        write = WriteIntent(uuid4().hex, (), keys=((request.tool, request.key),), entries=(request,))
        await self.commit(write, (), failed=False, hold=0.0)
        return was_there

    # Writes

    async def begin(self, write: WriteIntent) -> None:
        """Hold what it names, arm what its result will name."""
        held, armed = moved_by(write.tags, write.keys), armed_by(write)
        touched = Touched(write.tags + write.late_roots, write.keys)
        try:
            self._settle_up()
            self.server.begin(self, write.id, "held", held, self.lease, touched)
            self.server.begin(self, write.id, "armed", armed, self.lease, touched)
        except ConnectionError as error:
            if self._refuses or write.on_unreachable == "refuse":
                raise RemoteTierError("the write could not be announced, so it was not begun", self) from error
            self._owe(write, write.tags, failed=True, hold=0.0)

    async def renew(self, write: WriteIntent) -> None:
        """Prolong both."""
        try:
            self.server.renew(write.id, "held", moved_by(write.tags, write.keys), self.lease)
            self.server.renew(write.id, "armed", armed_by(write), self.lease)
        except ConnectionError:
            pass  # the next one, or the commit, makes up for it

    async def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        """Move what it has touched. What does not land now lands before this client asks for anything else."""
        self._owe(write, tags, failed=failed, hold=hold)
        try:
            self._settle_up()
        except ConnectionError:
            pass

    def _owe(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        """Note an invalidation that has not landed yet."""
        cells = moved_by(tags, write.keys) | (armed_by(write) if failed else frozenset())
        touched = Touched(tags + (write.late_roots if failed else ()), write.keys)
        self._pending[write.id] = lambda: self.server.commit(self, write.id, cells, hold, touched)

    def _settle_up(self) -> None:
        """Deliver what is owed before anything is asked: a process must not find what it has overwritten itself."""
        for writer, deliver in list(self._pending.items()):
            deliver()
            if self._pending.get(writer) is deliver:
                del self._pending[writer]

    # News

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell a listener what the other clients write."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def trusted_until(self) -> float:
        """`max_staleness` from the sending of the last PING that was answered."""
        self._ping()
        return self._answered + self.max_staleness if self._listeners else -NEVER

    def _ping(self) -> None:
        """PINGs go out all the time, so one has just been answered, behind all messages before it, if any is."""
        if self._pipe == "live" and self.server.is_up:
            self._answered = CLOCK.now()

    def _receive(self, sender: object, touched: Touched) -> None:
        match self._pipe:
            case "live":
                self._apply(sender, touched)
            case "stalled":
                self._delayed.append((sender, touched))

    def _apply(self, sender: object, touched: Touched | None) -> None:
        with self._lock:
            tickets, listeners = list(self._tickets), tuple(self._listeners)
        for ticket in tickets:
            if touched is None or ticket.concerns(touched):
                ticket.is_touched = True
        if sender is not self:  # a writer has dropped its own copies itself
            for listener in listeners:
                listener(touched)

    def stall(self) -> None:
        """Let messages wait in the pipe, and PINGs go unanswered."""
        self._ping()
        self._pipe = "stalled"

    def resume(self) -> None:
        """Deliver what has waited, in order. Nothing was lost, so what is kept locally still counts."""
        self._pipe, delayed, self._delayed = "live", self._delayed, []
        for sender, touched in delayed:
            self._apply(sender, touched)

    def cut(self) -> None:
        """Lose messages from now on, without anybody noticing but by unanswered PINGs."""
        self._ping()
        self._pipe = "cut"
        self._delayed.clear()

    def reconnect(self) -> None:
        """Subscribe again. What was said in between is unknown."""
        self._apply(None, None)
        self._pipe = "live"

    async def aclose(self) -> None:
        """Leave the server. Nothing is trusted any more."""
        self.server.disconnect(self)
        self.cut()
        self._answered = -NEVER


class _Ticket:
    """What a lookup saw.

    Attributes:
        depends_on: cells of everything known before the load, the entry's own among them.
        watches: S and D of the roots under which the result will name entities.
        cells: all of them as they were; empty if the server could not be asked.
        asked: when the lookup began.
        is_touched: a message has come since that concerns it, or messages may have been lost.
    """

    __slots__ = ("__weakref__", "asked", "cells", "depends_on", "is_touched", "request", "tier", "watches")

    def __init__(self, tier: MemoryTier, request: Request) -> None:
        self.tier = tier
        self.request = request
        self.depends_on = frozenset().union(own_cell(request.tool, request.key), *map(read_by, request.tags))
        self.watches = frozenset[CellName]().union(*map(cells_of_root, request.late_roots))
        self.cells: dict[CellName, Cell] = {}
        self.asked = CLOCK.now()
        self.is_touched = False

    def is_clean(self) -> bool:
        # Under an armed root a value may be stored there, where it dies with its writer's lease. A local copy would
        # not.
        return (
            bool(self.cells)
            and not self.request.strong
            and not self.is_touched
            and all(cell.mode == "idle" for cell in self.cells.values())
        )

    def is_joinable(self) -> bool:
        if self.request.strong or self.is_touched or any(cell.mode == "held" for cell in self.cells.values()):
            return False
        now = CLOCK.now()
        return now < self.asked + self.tier.max_staleness or now < self.tier.trusted_until()

    @property
    def lasts(self) -> float:
        ttl = self.request.ttl
        return self.tier.max_ttl if ttl is None else min(ttl, self.tier.max_ttl)

    def agrees_with(self, other: Ticket) -> bool:
        if not isinstance(other, _Ticket) or not self.cells or any(one.mode != "idle" for one in self.cells.values()):
            return False
        return {name: cell.token for name, cell in self.cells.items()} == {
            name: cell.token for name, cell in other.cells.items()
        }

    def concerns(self, touched: Touched) -> bool:
        """Whether a write changes what the load may see."""
        request = self.request
        return (request.tool, request.key) in touched.keys or any(
            root_of(path) in request.late_roots or any(meet(tag, path) for tag in request.tags) for path in touched.tags
        )


def _address(request: Request) -> Hashable:
    return request.tool, request.session, request.tenant, request.key
