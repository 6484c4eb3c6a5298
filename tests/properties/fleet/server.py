"""The server's half of the protocol: cells, the registry of writers, and the scripts that change them in one go.

Time is left out. A lease is over when the model says so, and a cell that leases keep is gone when all of them are.
Tokens are numbers; `renamed` gives them the smallest ones, for only whether two are equal matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from tests.properties.fleet.rules import Rules

S, D, T = 0, 1, 2
"""Moved by writes to the root; by every write at or below it; by writes to the one entity."""
CELLS = (S, D, T)
MISSING = 0
"""What a cell that is not there reads as; no token."""

Mark = Literal["idle", "held", "armed"]
Mode = Literal["held", "armed"]


class Cell(NamedTuple):
    token: int
    mark: Mark = "idle"
    leases: tuple[int, ...] = ()  # ids of the writes whose leases keep it; an idle one stays


class Registration(NamedTuple):
    mode: Mode
    cells: tuple[int, ...]
    is_over: bool = False


class Value(NamedTuple):
    version: int
    ident: int
    header: tuple[tuple[int, int], ...]  # (cell, token)
    is_expired: bool = False


class Server(NamedTuple):
    """What one node holds, and which node it is."""

    cells: tuple[Cell | None, ...]
    registry: tuple[Registration | None, ...]  # by id of the write
    values: tuple[Value | None, ...]  # by key
    promotions: int = 0
    node: int = 0


def ident(server: Server, rules: Rules) -> int:
    """What a client takes for the identity of the node that holds the cells."""
    if rules.identity == "replication id":
        return server.promotions
    return server.node if rules.identity == "run id" else 0


def token(server: Server, cell: int) -> int:
    found = server.cells[cell]
    return MISSING if found is None else found.token


def marks(server: Server, cells: Iterable[int]) -> set[Mark]:
    """What the cells are marked with, idle ones aside."""
    return {found.mark for cell in cells if (found := server.cells[cell]) is not None and found.mark != "idle"}


def counts(server: Server, value: Value | None, rules: Rules, *, is_strong: bool = False) -> bool:
    """Whether a lookup that comes now finds the value: each cell as in its header, and not held."""
    if value is None:
        return False
    if value.is_expired and not rules.grace_ends_with_a_write:
        return True
    if value.ident != ident(server, rules):
        return False
    found = marks(server, [cell for cell, _ in value.header])
    if "held" in found or ("armed" in found and is_strong and rules.strong_reads_pass_over_armed):
        return False
    return all(token(server, cell) == known and (known != MISSING or not rules.mints) for cell, known in value.header)


# The scripts


def begin(server: Server, write: int, mode: Mode, cells: tuple[int, ...]) -> Server:
    """Register a write; move what it holds, leave what it arms as it is."""
    server = _register(sweep(server), write, Registration(mode, cells))
    return _shape(server, cells, moved=mode == "held")


def commit(server: Server, write: int, cells: tuple[int, ...], rules: Rules, *, hold: bool = False) -> Server:
    """End a write: move its cells, and free the others that it had. `hold`: keep them held, the write is in doubt."""
    server = sweep(server)
    ended = write
    if rules.registry == "counts" and server.registry[write] is None:
        # One less, whoever that is.
        ended = next((other for other, one in enumerate(server.registry) if one is not None), write)
    had = server.registry[ended]
    server = _register(server, ended, None)
    if hold:
        server = _register(server, write, Registration("held", cells))
    server = _shape(server, cells, moved=True)
    left = () if had is None else tuple(cell for cell in had.cells if cell not in cells)
    return _shape(server, left, moved=False, missing_too=False)


def mint(server: Server, cells: Iterable[int]) -> Server:
    """Give those that are missing a fresh token."""
    server = sweep(server)
    return _shape(server, [cell for cell in cells if server.cells[cell] is None], moved=True)


def sweep(server: Server) -> Server:
    """Bury the writes whose leases are over: whatever they had changes."""
    for write, registration in enumerate(server.registry):
        if registration is not None and registration.is_over:
            server = _shape(_register(server, write, None), registration.cells, moved=True)
    return server


def end_lease(server: Server, write: int) -> Server:
    """Let a lease run out: the registration is left for the next sweep, cells that nobody else has vanish."""
    registration = server.registry[write]
    if registration is not None:
        server = _register(server, write, registration._replace(is_over=True))
    kept = []
    for cell in server.cells:
        if cell is not None and write in cell.leases:
            leases = tuple(lease for lease in cell.leases if lease != write)
            cell = cell._replace(leases=leases) if leases else None
        kept.append(cell)
    return server._replace(cells=tuple(kept))


def _register(server: Server, write: int, registration: Registration | None) -> Server:
    return server._replace(registry=replaced(server.registry, write, registration))


def _shape(server: Server, cells: Iterable[int], *, moved: bool, missing_too: bool = True) -> Server:
    """Mark cells by who is registered for them now, under a fresh token or the one they have."""
    shaped = list(server.cells)
    for cell in cells:
        before = shaped[cell]
        if before is None and not missing_too:
            continue
        having = [
            (write, one.mode) for write, one in enumerate(server.registry) if one is not None and cell in one.cells
        ]
        modes = {mode for _, mode in having}
        mark: Mark = "held" if "held" in modes else "armed" if modes else "idle"
        new = fresh() if moved or before is None else before.token
        shaped[cell] = Cell(new, mark, tuple(write for write, _ in having))
    return server._replace(cells=tuple(shaped))


# Tokens

_numbers = itertools.count(1_000_000)


def fresh() -> int:
    """A token that nobody has seen; `renamed` makes it small."""
    return next(_numbers)


def replaced(row: tuple[Any, ...], place: int, by: object) -> tuple[Any, ...]:
    """The row with another thing in one place."""
    return (*row[:place], by, *row[place + 1 :])
