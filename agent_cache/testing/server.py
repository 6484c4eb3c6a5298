"""What the clients of a fleet share: cells, a registry of writers, values and a channel. In memory, to be read.

A *cell* is a random token that is never used again. Each root has the cell S, moved by writes to the root, and D,
moved by every write at or below it; each entity has a cell T. A read of ``order:7`` depends on S and T, a read of
all of ``order`` on D. A write to ``order:7`` moves T and D, a write to ``order`` moves S and D. So a write costs two
cells, however many entries there are.

A value carries the tokens it was loaded under and counts only while they are current. While a write runs, its cells are
*held*: they match nothing, so nothing is found and what is loaded is dead when it is stored. If only the write's result
will say which entity it touches, S and D of the root are *armed*: they keep their tokens, and hits go on, but if the
writer dies they go with its lease, and everything under the root with them. Writers are registered by id, so a command
that comes late or twice kills entries and revives none.

In Redis each method here is one script on the keys of one root, which are in one slot; what stands under `_lock`
here is what a script does in one go. Left out is what a single server in one process does not need: the identity of
the server in each value (failover, restart from an old image), and eviction.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent_cache.clock import CLOCK
from agent_cache.remote.protocol import Touched
from agent_cache.testing.cells import CellName

__all__ = ["Cell", "MemoryServer", "Mode", "Stored"]

Mode = Literal["held", "armed"]

CELL_TTL = 7200.0
"""Seconds that an idle cell lives, longer than any value: a value whose cell is gone is dead."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A token, whether a write has it held or armed, and when it vanishes."""

    token: str
    mode: Literal["idle", "held", "armed"]
    until: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A value and the tokens it was loaded under.

    Attributes:
        copy: makes a fresh copy of a mutable value; None if the value may be shared.
        header: a token for each cell it depends on.
        loaded: when its load started.
        expires: when it ends, counted from there.
    """

    value: Any
    copy: Callable[[], Any] | None
    header: Mapping[CellName, str]
    tags: tuple[str, ...]
    cost: float
    loaded: float
    expires: float


@dataclass(slots=True)
class _Registration:
    """A writer at work, or one in doubt."""

    cells: frozenset[CellName]
    deadline: float


Receive = Callable[[object, Touched], None]


class MemoryServer:
    """Shared by any number of `MemoryTier` clients, each of which stands for a process: ``MemoryTier(server)``.

    It evicts nothing: what it holds is what the test has put there.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_up = True
        self._cells: dict[CellName, Cell] = {}
        self._writers: dict[tuple[str, Mode], _Registration] = {}
        self._values: dict[Hashable, Stored] = {}
        self._channel: dict[object, Receive] = {}

    # Values

    def fetch(self, address: Hashable, cells: Iterable[CellName]) -> tuple[Stored | None, dict[CellName, Cell]]:
        """A value, if it counts, and these cells as they are at the same moment."""
        with self._lock:
            self._reach()
            stored = self._values.get(address)
            if stored is not None and not self._counts(stored):
                stored = None
            return stored, self._look_at(cells)

    def is_idle(self, cells: Iterable[CellName]) -> bool:
        """Whether no write is at work on any of these."""
        with self._lock:
            return all(cell.mode == "idle" for cell in self._look_at(cells).values())

    def store(self, address: Hashable, stored: Stored) -> None:
        """Keep a value. If its tokens are not current it is dead already, so nothing need be compared here."""
        with self._lock:
            self._reach()
            self._values[address] = stored

    def _counts(self, stored: Stored) -> bool:
        cells = self._look_at(stored.header)
        is_current = all(
            cells[name].token == token and cells[name].mode != "held" for name, token in stored.header.items()
        )
        return is_current and CLOCK.now() < stored.expires

    # Writers. Every command is idempotent by id.

    def begin(
        self, sender: object, writer: str, mode: Mode, cells: frozenset[CellName], lease: float, touched: Touched
    ) -> None:
        """Hold or arm cells until the lease is over, and say so."""
        if cells:
            with self._lock:
                self._reach()
                self._sweep()
                self._register(writer, mode, cells, lease)
            self._publish(sender, touched)

    def renew(self, writer: str, mode: Mode, cells: frozenset[CellName], lease: float) -> None:
        """Prolong a lease. A writer that is not known, or no longer, begins again."""
        if cells:
            with self._lock:
                self._reach()
                self._sweep()
                if (writer, mode) in self._writers:
                    self._writers[writer, mode].deadline = CLOCK.now() + lease
                    self._reshape(cells)
                else:
                    self._register(writer, mode, cells, lease)

    def commit(self, sender: object, writer: str, cells: frozenset[CellName], hold: float, touched: Touched) -> None:
        """End a write: these cells move, the others that it had are let go. `hold` keeps them held for some seconds."""
        with self._lock:
            self._reach()
            self._sweep()
            ended = [self._writers.pop((writer, mode), None) for mode in ("held", "armed")]
            if hold:
                self._writers[writer, "held"] = _Registration(cells, CLOCK.now() + hold)
            self._move(cells)
            self._reshape(frozenset().union(*(each.cells for each in ended if each is not None)) - cells)
        self._publish(sender, touched)

    def _register(self, writer: str, mode: Mode, cells: frozenset[CellName], lease: float) -> None:
        self._writers[writer, mode] = _Registration(cells, CLOCK.now() + lease)
        if mode == "held":
            self._move(cells)
        else:
            self._reshape(cells)

    def _sweep(self) -> None:
        """A writer whose lease is over may have written before it died, and so may one in doubt: all its cells move."""
        now = CLOCK.now()
        for key, dead in [(key, one) for key, one in self._writers.items() if one.deadline <= now]:
            del self._writers[key]
            self._move(dead.cells)

    # Cells

    def _look_at(self, names: Iterable[CellName]) -> dict[CellName, Cell]:
        """These cells, all at one moment. What is missing is minted, so that a token is there before a load begins.

        If "missing" were a value itself, an old entry would count again when the cell had gone.
        """
        names, now = tuple(names), CLOCK.now()
        missing = [name for name in names if name not in self._cells or self._cells[name].until <= now]
        if missing:
            self._sweep()
            self._move(missing)
        return {name: self._cells[name] for name in names}

    def _move(self, names: Iterable[CellName]) -> None:
        for name in names:
            self._shape(name, secrets.token_hex(8))

    def _reshape(self, names: Iterable[CellName]) -> None:
        for name, cell in self._look_at(names).items():
            self._shape(name, cell.token)

    def _shape(self, name: CellName, token: str) -> None:
        """Held if any writer holds it, armed if any arms it; such a cell vanishes with the last of their leases."""
        having = [(mode, one.deadline) for (_, mode), one in self._writers.items() if name in one.cells]
        until = max((deadline for _, deadline in having), default=CLOCK.now() + CELL_TTL)
        modes = {mode for mode, _ in having}
        self._cells[name] = Cell(token, "held" if "held" in modes else "armed" if modes else "idle", until)

    # The channel, and the server itself

    def connect(self, client: object, receive: Receive) -> None:
        """Have a client told of every begin and every commit."""
        self._channel[client] = receive

    def disconnect(self, client: object) -> None:
        """Tell it nothing more."""
        self._channel.pop(client, None)

    def _publish(self, sender: object, touched: Touched) -> None:
        # Without the lock: a client hands it to listeners, which take locks of their own.
        for receive in list(self._channel.values()):
            receive(sender, touched)

    @property
    def is_up(self) -> bool:
        """Whether commands are answered."""
        return self._is_up

    def stop(self) -> None:
        """Answer no command until `start`. Nothing is lost."""
        self._is_up = False

    def start(self, *, empty: bool = False) -> None:
        """Answer again; `empty`: having forgotten everything. Then each client must `reconnect`, too."""
        with self._lock:
            self._is_up = True
            if empty:
                self._cells.clear()
                self._writers.clear()
                self._values.clear()

    def _reach(self) -> None:
        if not self._is_up:
            raise ConnectionError("the server is not there")
