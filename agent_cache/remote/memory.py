"""A tier in memory, for tests and as the simplest backend: a fleet without a network, each `MemoryTier` a process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from agent_cache.clock import CLOCK
from agent_cache.core.lease import Lease, Term
from agent_cache.core.store import NEVER
from agent_cache.remote.backend import ARMED, HELD, IDLE, Reading, drive, open_head
from agent_cache.remote.cells import EVERYTHING, STORE, Cell, SomeCells
from agent_cache.remote.feed import LOST, News
from agent_cache.remote.versioned import VersionedTier

__all__ = ["MemoryServer", "MemoryTier"]

_MESSAGES = 10_000


class MemoryServer:
    """The server of any number of `MemoryTier` clients: a `Backend` that evicts nothing. ``MemoryTier(server)``."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.clients: weakref.WeakSet[MemoryTier] = weakref.WeakSet()
        self.is_up = True
        self._number = 0
        self._empty()

    def _empty(self) -> None:
        self._store = os.urandom(8).hex()
        self._floor = self._number = self._number + 1
        self._cells: dict[Cell, int] = {}
        self._writers: dict[str, tuple[dict[Cell, int], float]] = {}
        self._values: dict[Cell, tuple[bytes, bytes, float]] = {}
        self._messages: dict[int, bytes] = {}
        self._ttls: dict[str, float] = {}
        self._claims: dict[str, tuple[str, float]] = {}

    async def read(self, cells: SomeCells, address: Cell | None) -> Reading:
        with self._operation() as now:
            raw_head, payload, ends = self._values.get(address or "", (b"", b"", NEVER))
            raw_head = raw_head if now < ends else b""
            head = open_head(raw_head) if raw_head else None
            names = {*cells, *(head.versions if head is not None else ())}
            states: dict[Cell, tuple[Any, int]] = {cell: (self._cells.get(cell, self._floor), IDLE) for cell in names}
            for held, _ in self._writers.values():
                for cell in names & held.keys():
                    states[cell] = states[cell][0], max(states[cell][1], held[cell])
            states[STORE] = self._store, IDLE
            return Reading(states, now, head, raw_head, payload)

    async def put(self, address: Cell, head: bytes, payload: bytes, *, keep: float | None) -> None:
        with self._operation() as now:
            self._values[address] = head, payload, NEVER if keep is None else now + keep

    async def begin(
        self, writer: str, held: SomeCells, armed: SomeCells, lease: float, message: bytes, *, renew: bool = False
    ) -> int:
        with self._operation(is_step=True) as now:
            if renew and writer in self._writers:
                self._writers[writer] = self._writers[writer][0], now + lease
                return 0
            self._writers[writer] = {**dict.fromkeys(armed, ARMED), **dict.fromkeys(held, HELD)}, now + lease
            return self._step(held, message)

    async def commit(self, writer: str, moved: SomeCells, hold: float, message: bytes) -> int:
        with self._operation(is_step=True) as now:
            self._writers.pop(writer, None)
            if hold:
                self._writers[writer] = dict.fromkeys(moved, HELD), now + hold
            return self._step(moved, message)

    async def claim(self, name: str, who: str, lease: float) -> str:
        with self._operation() as now:
            owner, ends = self._claims.get(name, ("", now))
            if ends > now and owner != who:
                return owner
            self._claims[name] = who, now + lease
            return who

    async def feed(self, since: int | None) -> News:
        with self._operation():
            numbers = range((self._number if since is None else since) + 1, self._number + 1)
            is_whole = (since or 0) <= self._number and all(number in self._messages for number in numbers)
            messages = [(number, self._messages[number]) for number in numbers] if is_whole else None
            return News(self._store, self._number, messages)

    async def set_ttl(self, tool: str, ttl: float | None, message: bytes) -> int:
        with self._operation(is_step=True):
            self._ttls.pop(tool, None)
            if ttl is not None:
                self._ttls[tool] = ttl
            return self._step((), message)

    async def ttls(self) -> dict[str, float]:
        with self._operation():
            return dict(self._ttls)

    async def clear(self) -> int:
        with self._operation(is_step=True):
            count = len(self._values)
            self._values.clear()
            self._step((EVERYTHING,), LOST)
            return count

    async def aclose(self) -> None:
        pass

    @contextmanager
    def _operation(self, *, is_step: bool = False) -> Iterator[float]:
        """End the writers whose lease has passed, do one operation, given the time, and tell the clients of a step,
        without the lock, which they take under that of the versions.
        """
        with self._lock:
            if not self.is_up:
                raise ConnectionError("the server in memory is stopped")
            now = CLOCK.now()
            for writer, (cells, ends) in list(self._writers.items()):
                if ends <= now:
                    del self._writers[writer]
                    self._step(cells, b"")
            yield now
        if is_step:
            self._tell()

    def _step(self, moved: Iterable[Cell], message: bytes) -> int:
        self._number = number = self._number + 1
        self._cells.update(dict.fromkeys(moved, number))
        self._messages[number] = message
        self._messages.pop(number - _MESSAGES, None)
        return number

    def _tell(self) -> None:
        for client in list(self.clients):
            client.receive()

    def stop(self) -> None:
        """Answer no command until `start`. Nothing is lost."""
        self.is_up = False

    def start(self, *, empty: bool = False) -> None:
        """Answer again; `empty`: having lost everything."""
        with self._lock:
            self.is_up = True
            if empty:
                self._empty()
        self._tell()


class MemoryTier(VersionedTier):
    """A client of a `MemoryServer`. Two of them on one server are two processes.

    What others write arrives at once, but between `cut` and `reconnect`, for tests: trust lapses after `max_staleness`
    then.

    Args:
        server: None for one of its own.
        lease: seconds that a write is announced for, without renewal.
        max_staleness: seconds that local copies are trusted after the last moment at which the feed was complete.
        max_ttl: the longest life of a value in seconds, whatever is lost.
    """

    never_waits = True

    def __init__(
        self,
        server: MemoryServer | None = None,
        *,
        lease: float = 10.0,
        max_staleness: float = 1.0,
        max_ttl: float = 3600.0,
    ) -> None:
        self.server = MemoryServer() if server is None else server
        super().__init__(self.server, lease=lease, remote_ttl=max_ttl, max_staleness=max_staleness)
        self.keeper, self.longest_ttl = None, max_ttl
        self._is_cut = False
        self.trust = Lease(self, term=Term(lambda: CLOCK.now()))  # noqa: PLW0108 - which a test may replace
        self.server.clients.add(self)

    def receive(self) -> None:
        """See `VersionedTier`. Called by the server, too."""
        if not (self._is_cut or self.is_closed):
            with suppress(ConnectionError):
                drive(self.catch_up())

    def is_complete(self) -> bool:
        term = self.trust.term
        if self.is_closed or term is None or self.pending or not self.feed.listeners or not self.server.is_up:
            return False
        if self._is_cut:
            return term.is_running()
        drive(self.catch_up())
        return self.feed.ttls is not None

    def cut(self) -> None:
        """Let nothing arrive of what others write from now on, with no sign of it."""
        if self.trust.term is not None and not self._is_cut and self.server.is_up:
            self.trust.term.until = CLOCK.now() + self.max_staleness
        self._is_cut = True

    def reconnect(self, *, is_lost: bool = True) -> None:
        """Let it arrive again. With `is_lost`, what was written in between is unknown; else it arrives now."""
        self._is_cut = False
        if is_lost:
            self.feed.number = None
            self.feed.lose()
        self.receive()
