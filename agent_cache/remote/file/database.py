"""The database of a file tier: versions of cells, running writes, and values, in transactions.

A *cell* (see `cell_names`) has a version, which every write that touches it changes. A value is stored with the
versions that its lookup saw before the load, and counts only while they are current. While a write runs its cells are
*held*: they match nothing. If only its result will tell what it touches, S and D of the root are *armed*: values still
count, but if the writer dies, both change. Writers are registered by id, so that a repeated or late step ends values
and restores none. A cell that has no row has the version of row 0, which changes whenever rows are pruned: what was
pruned reads as written.

Every step is one transaction that holds SQLite's write lock, and changes the slots of the memory-mapped page within it.
`begin` changes them before its rows are committed, so a copy is refused before the write's tool can start; after a kill
in between a slot stays busy without a write, and `repair` frees it. Since only the holder of the lock changes slots, no
step undoes another's.

The number of a step's message is the version of the cells and the generation of the slots that it changes. A reader
that sees a slot of a later generation than the last message has read the database before the step was committed: what
it has found counts, as the write has not ended, and must not be trusted afterwards.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from agent_cache.clock import boottime
from agent_cache.remote.file.cell_names import RootChanges
from agent_cache.remote.file.process_locks import ProcessLocks
from agent_cache.remote.file.shared_page import SLOTS, SharedPage, slot_of

__all__ = [
    "APPLICATION", "ARMED", "FORMAT", "HELD", "IDLE", "Busy", "Cell", "Change", "Damaged", "Database", "Unwritable",
    "WriteCells", "connect", "is_damage", "mode_of", "packed", "translated", "unpacked", "version_of",
]  # fmt: skip

APPLICATION: Final = 0x61676361
"""SQLite's ``application_id`` of our files."""
FORMAT: Final = 1
"""SQLite's ``user_version``: the version of the tables."""

IDLE, ARMED, HELD = 0, 1, 2

_FLOOR: Final = 0
_ALL: Final = -1
"""Stands for all cells, in a message."""
_NO_FLOOR: Final = "the version of cells without a row is missing"
_MOST_AT_ONCE: Final = 400
"""Cells that one statement looks up as columns, of which SQLite allows 2,000."""
_MAX_CELLS: Final = 200_000
_MAX_CHANGES: Final = 10_000
_MAX_EXPIRED: Final = 1_000

_VALUE: Final = "SELECT head, payload FROM entries WHERE id = ?"

T = TypeVar("T")

SCHEMA: Final = """
CREATE TABLE cells (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, mode INTEGER NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE writers (
    id TEXT PRIMARY KEY, process INTEGER NOT NULL, token INTEGER NOT NULL, deadline REAL NOT NULL, span REAL NOT NULL,
    is_expired INTEGER NOT NULL, held BLOB NOT NULL, armed BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE holders (
    slot INTEGER NOT NULL, cell INTEGER NOT NULL, writer TEXT NOT NULL, mode INTEGER NOT NULL,
    PRIMARY KEY (slot, cell, writer)
) WITHOUT ROWID;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, head BLOB NOT NULL, payload BLOB NOT NULL, ends REAL NOT NULL, used INTEGER NOT NULL,
    size INTEGER NOT NULL, tool TEXT NOT NULL, root TEXT NOT NULL
);
CREATE INDEX entries_by_use ON entries (used, size);
CREATE INDEX entries_by_end ON entries (ends);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY, origin INTEGER NOT NULL, root TEXT NOT NULL, cells BLOB NOT NULL, entries BLOB NOT NULL
);
CREATE TABLE claims (
    id INTEGER PRIMARY KEY, process INTEGER NOT NULL, token INTEGER NOT NULL, claim INTEGER NOT NULL,
    deadline REAL NOT NULL, span REAL NOT NULL
);
CREATE TABLE processes (
    number INTEGER PRIMARY KEY, token INTEGER NOT NULL, pid INTEGER NOT NULL, max_bytes INTEGER NOT NULL,
    report TEXT NOT NULL
);
CREATE TABLE ttls (tool TEXT PRIMARY KEY, ttl REAL NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('bytes', 0);
"""


# Errors


class Busy(Exception):
    """Another thread or process uses the database now."""


class Unwritable(Exception):
    """The database does not take a transaction: locked for too long, full, read-only, or its disk fails."""


class Damaged(Exception):
    """What is in the file is not a database of ours any more."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that what is in the file is no database of ours."""
    code = getattr(error, "sqlite_errorcode", None)
    return (
        (code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
        or code == sqlite3.SQLITE_IOERR_SHORT_READ
        or str(error).startswith(("no such table", "no such column"))
    )


def translated(error: sqlite3.Error) -> Exception:
    """What an error means: `Busy`, `Unwritable`, `Damaged`; itself if it is a mistake of ours."""
    code = getattr(error, "sqlite_errorcode", None)
    kind = None if code is None else code & 0xFF
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy(str(error))
    if is_damage(error):
        return Damaged(str(error))
    if kind == sqlite3.SQLITE_ERROR:
        return error  # of this module
    return Unwritable(str(error))


# Cells


Cell = int
"""A version, and in the last two bits, whether a write holds (`HELD`) or arms (`ARMED`) it."""


def version_of(cell: Cell) -> int:
    """The version of a cell."""
    return cell >> 2


def mode_of(cell: Cell) -> int:
    """`IDLE`, `ARMED` or `HELD`."""
    return cell & 3


def packed(numbers: Iterable[int]) -> bytes:
    """Cells as bytes."""
    return array("q", numbers).tobytes()


def unpacked(data: bytes) -> list[int]:
    """Cells that were packed.

    Raises:
        ValueError: if these are no cells.
    """
    numbers = array("q")
    numbers.frombytes(data)
    return list(numbers)


@dataclass(frozen=True, slots=True)
class WriteCells:
    """What a write holds and arms.

    Attributes:
        id: of the write.
        changes: the same as listeners are told it.
    """

    id: str
    held: frozenset[int]
    armed: frozenset[int]
    changes: RootChanges


@dataclass(frozen=True, slots=True)
class Change:
    """A message: cells that a write has changed under a root.

    Attributes:
        origin: the tier that wrote.
    """

    number: int
    origin: int
    root: str
    cells: list[int]
    entries: list[int]

    @property
    def are_all(self) -> bool:
        """Whether all values were dropped."""
        return self.cells == [_ALL]


@cache
def _lookup(count: int) -> str:
    one = "(SELECT version * 4 + mode FROM cells WHERE id = ?%d)"
    cells = ", ".join([one % number for number in range(2, count + 3)])
    return (
        f"SELECT {cells}, (SELECT max(number) FROM changes), head, payload "  # noqa: S608 - marks alone
        "FROM (SELECT 1) LEFT JOIN entries ON id = ?1"
    )


def connect(path: Path, *, patience: float = 0.0) -> sqlite3.Connection:
    """A connection that waits for locks for no longer than this, and leaves checkpoints to `Database.checkpoint`."""
    # Used by several threads, one at a time.
    connection = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        for pragma in ("synchronous = NORMAL", "wal_autocheckpoint = 0", "trusted_schema = OFF", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


class Database:
    """One connection and the page beside it. One thread at a time.

    Every method is a transaction, or one statement, which reads one state of the database.

    Attributes:
        committed: number of the last step that the latest lookup of cells could see: see the module.

    Raises (all methods):
        Busy: another connection holds the write lock.
        Unwritable: the database takes no transaction now.
        Damaged: it has to be replaced.
    """

    def __init__(self, connection: sqlite3.Connection, page: SharedPage, locks: ProcessLocks) -> None:
        self._connection = connection
        self._execute = connection.execute
        self.page = page
        self._locks = locks
        self.committed = 0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _write(self, step: Callable[[], T]) -> T:
        """Run a step as one transaction, under the write lock."""
        execute = self._execute
        try:
            execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise translated(error) from error
        try:
            result = step()
            execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                try:
                    execute("ROLLBACK")
                except sqlite3.Error:
                    pass  # it was rolled back by the error itself
            if isinstance(error, sqlite3.Error):
                raise translated(error) from error
            raise
        return result

    def _read(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise translated(error) from error

    # Lookups

    def look_up(self, cells: Sequence[int], entry: int) -> tuple[tuple[Cell, ...], bytes | None, bytes]:
        """These cells, and the head and payload of an entry, at one moment; None and nothing without one.

        One row of subqueries takes 3.8 us, a row for each 6.5.
        """
        if len(cells) > _MOST_AT_ONCE:  # the entry first: cells that are current afterwards were so before
            value = self.value(entry) or (None, b"")
            found = self.cells(cells)
            return tuple([found[cell] for cell in cells]), *value
        try:
            *states, floor, committed, head, payload = self._execute(
                _lookup(len(cells)), (entry, *cells, _FLOOR)
            ).fetchone()
        except sqlite3.Error as error:
            raise translated(error) from error
        if floor is None or committed is None:
            raise Damaged(_NO_FLOOR)
        self.committed = committed
        if None in states:
            states = [floor if state is None else state for state in states]
        return tuple(states), head, payload

    def value(self, entry: int) -> tuple[bytes, bytes] | None:
        """Head and payload of an entry; None without one."""
        try:
            found: tuple[bytes, bytes] | None = self._execute(_VALUE, (entry,)).fetchone()
        except sqlite3.Error as error:
            raise translated(error) from error
        return found

    def cells(self, cells: Collection[int]) -> dict[int, Cell]:
        """These cells at one moment."""
        wanted = "[" + ",".join(map(str, (_FLOOR, *cells))) + "]"
        rows = self._read(
            "SELECT id, version * 4 + mode FROM cells WHERE id IN (SELECT value FROM json_each(?)) "
            "UNION ALL SELECT -1, max(number) FROM changes",
            (wanted,),
        )
        known: dict[int, Cell] = dict(rows)
        floor, committed = known.pop(_FLOOR, None), known.pop(-1, None)
        if floor is None or committed is None:
            raise Damaged(_NO_FLOOR)
        self.committed = committed
        return {cell: known.get(cell, floor) for cell in cells}

    def last_number(self) -> int:
        """The number of the last step that was committed."""
        ((number,),) = self._read("SELECT max(number) FROM changes")
        if number is None:
            raise Damaged(_NO_FLOOR)
        return int(number)

    # Writes. Each may be repeated.

    def begin(self, write: WriteCells, origin: int, lease: float) -> None:
        """Announce a write: hold and arm its cells until it ends or its lease does."""
        self._write(lambda: self._begin(write, origin, lease))

    def _begin(self, write: WriteCells, origin: int, lease: float) -> None:
        number = self._publish(origin, write.changes)
        self.page.change(dict.fromkeys(map(slot_of, write.held | write.armed), True), number)
        self._register(write.id, lease, write.held, write.armed, self._locks.number, self._locks.token)
        self._set(write.held, number, HELD)
        for cell in write.armed - write.held:
            self._execute(
                "INSERT INTO cells SELECT ?, version, ? FROM cells WHERE id = 0 "
                "ON CONFLICT (id) DO UPDATE SET mode = max(mode, excluded.mode)",
                (cell, ARMED),
            )

    def renew(self, write: WriteCells, origin: int, lease: float) -> None:
        """Extend the lease of a write. One that is not known any more is announced again."""

        def step() -> None:
            renewed = self._execute(
                "UPDATE writers SET deadline = ?, span = ? WHERE id = ? AND is_expired = 0",
                (boottime() + lease, lease, write.id),
            )
            if renewed.rowcount < 1:
                self._begin(write, origin, lease)

        self._write(step)

    def commit(self, write_id: str, cells: frozenset[int], hold: float, origin: int, changes: RootChanges) -> None:
        """End a write: change these cells, and release the others that it held or armed.

        Args:
            hold: seconds that they are held nevertheless.
        """

        def step() -> None:
            released = self._remove(write_id) - cells
            if hold > 0:
                self._register(write_id, hold, cells, frozenset(), 0, 0)
            self._change(cells, released, self._publish(origin, changes))

        self._write(step)

    def _register(
        self, write_id: str, span: float, held: frozenset[int], armed: frozenset[int], process: int, token: int
    ) -> None:
        execute = self._execute
        execute(
            "INSERT OR REPLACE INTO writers VALUES (?, ?, ?, ?, ?, 0, ?, ?)",
            (write_id, process, token, boottime() + span, span, packed(held), packed(armed)),
        )
        for mode, cells in ((ARMED, armed), (HELD, held)):
            for cell in cells:
                execute("INSERT OR REPLACE INTO holders VALUES (?, ?, ?, ?)", (slot_of(cell), cell, write_id, mode))

    def _remove(self, write_id: str) -> frozenset[int]:
        """Remove a registration. Returns the cells that it held or armed."""
        rows = self._execute("DELETE FROM writers WHERE id = ? RETURNING held, armed", (write_id,)).fetchall()
        return self._release(write_id, *rows[0]) if rows else frozenset()

    def _release(self, write_id: str, held: bytes, armed: bytes) -> frozenset[int]:
        cells = frozenset(unpacked(held) + unpacked(armed))
        for cell in cells:
            self._execute(
                "DELETE FROM holders WHERE slot = ? AND cell = ? AND writer = ?", (slot_of(cell), cell, write_id)
            )
        return cells

    def _change(self, cells: Iterable[int], released: Iterable[int] = (), version: int | None = None) -> None:
        """Give cells a new version; these and the released ones are held and armed as the registered writes say."""
        if version is None:
            version = self._publish(0, {})
        modes: dict[int, int] = {}
        slots: dict[int, bool] = {}
        released = frozenset(released)
        for cell in released.union(cells):
            slot = slot_of(cell)
            if slot not in slots:
                rows = self._execute(
                    "SELECT cell, max(mode) FROM holders WHERE slot = ? GROUP BY cell", (slot,)
                ).fetchall()
                slots[slot] = bool(rows)
                modes.update(rows)
            mode = modes.get(cell, IDLE)
            if cell in released:
                self._execute("UPDATE cells SET mode = ? WHERE id = ?", (mode, cell))
            else:
                self._set((cell,), version, mode)
        self.page.change(slots, version)

    def _set(self, cells: Iterable[int], version: int, mode: int) -> None:
        for cell in cells:
            self._execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", (cell, version, mode))

    def _publish(self, origin: int, changes: RootChanges, *, are_all: bool = False) -> int:
        """Add messages for listeners. Returns the number of the last one, which is a new version.

        Args:
            are_all: all values were dropped.
        """
        latest = self.page.latest
        for root, (cells, entries) in (changes or {"": ([_ALL] if are_all else [], [])}).items():
            inserted = self._execute(
                "INSERT INTO changes SELECT max(max(number), ?) + 1, ?, ?, ?, ? FROM changes",
                (latest, origin, root, packed(cells), packed(entries)),
            )
            latest = inserted.lastrowid or latest
        self.page.changes = latest
        return latest

    # Writers that died or were not heard of

    def _expire(self) -> None:
        """Handle the deadlines that are over. A deadline from before the machine was started may lie far ahead."""
        now = boottime()
        due = self._execute(
            "SELECT id, token, held, armed FROM writers WHERE is_expired = 0 AND deadline <= ?", (now,)
        ).fetchall()
        for write_id, token, held, armed in due:
            cells = self._release(write_id, held, armed)
            if token:  # its process lives: its effect may come later, and it may die before it commits
                self._execute("UPDATE writers SET is_expired = 1 WHERE id = ?", (write_id,))
            else:
                self._execute("DELETE FROM writers WHERE id = ?", (write_id,))
            self._change(cells)

    def recover(self) -> bool:
        """Handle the writes whose processes have died and whose deadlines are over. Returns whether there were any.

        What a dead process has begun is held for its lease more, since its effect may still come, and changes then.
        """
        if not self.find_due():
            return False
        self._write(self._recover)
        return True

    def find_due(self) -> bool:
        """Whether `recover` would find something."""
        now = boottime()
        rows = self._read(
            "SELECT DISTINCT process, token, is_expired = 0 AND (deadline <= ?1 OR deadline > ?1 + span) FROM writers",
            (now,),
        )
        return any(is_due or (token and not self.is_alive(process, token)) for process, token, is_due in rows)

    def _recover(self) -> None:
        now = boottime()
        self._execute("UPDATE writers SET deadline = ? + span WHERE deadline > ? + span", (now, now))
        owners = self._execute("SELECT DISTINCT process, token FROM writers WHERE token != 0").fetchall()
        for process, token in owners:
            if self.is_alive(process, token):
                continue
            dead = self._execute(
                "SELECT id, span, held, armed FROM writers WHERE process = ? AND token = ?", (process, token)
            )
            for write_id, lease, held, armed in dead.fetchall():
                cells = frozenset(unpacked(held) + unpacked(armed))
                self._release(write_id, held, armed)
                self._register(write_id, lease, cells, frozenset(), 0, 0)
                self._change(cells)
        self._expire()
        count = self._execute("SELECT count(*) FROM writers WHERE is_expired = 1").fetchone()[0]
        if count > _MAX_EXPIRED:  # late announcements of writes that had ended: nothing else leaves so many
            self._execute(
                "DELETE FROM writers WHERE id IN "
                "(SELECT id FROM writers WHERE is_expired = 1 ORDER BY deadline LIMIT ?)",
                (count - _MAX_EXPIRED // 2,),
            )

    def is_alive(self, process: int, token: int) -> bool:
        """Whether the process that had this number and token lives."""
        return self.page.token(process) == token and self._locks.is_held(process)

    def repair(self, slots: Iterable[int]) -> bool:
        """Free slots that are busy although no write is registered: its process was killed before it had begun. Returns
        whether there were any.
        """

        def abandoned() -> list[int]:
            return [
                slot
                for slot in slots
                if not self._execute("SELECT 1 FROM holders WHERE slot = ? LIMIT 1", (slot,)).fetchall()
            ]

        if not abandoned():
            return False

        def step() -> bool:
            found = abandoned()  # again, under the lock: a write may have been about to begin
            self.page.free(found, self.last_number())  # nothing has changed in the database
            return bool(found)

        return self._write(step)

    def resume(self, held_until: dict[tuple[int, int], float], lease: float) -> bool:
        """Let the database be used again, unless invalidations are missing.

        What a process that has died had not written is unknown: all values are dropped, a lease after it was found,
        since the effects of its writes may still come.

        Args:
            held_until: until when that is, by the dead processes that were found. It is updated.
        """
        dead = {
            (process, self.page.token(process))
            for process in self.page.suspended()
            if not self.is_alive(process, self.page.token(process))
        }
        for one in held_until.keys() - dead:
            del held_until[one]
        now = boottime()
        over = [one for one in dead if held_until.setdefault(one, now + lease) <= now]
        if over:
            self._write(self._drop_values)
            for process, _ in over:
                self.page.suspend(process, 0)
        return self._write(self.page.resume)

    def settle(self) -> None:
        """Count a step that was begun and never committed: copies under its slots are trusted from now on."""
        if self.page.latest > self.last_number():
            self._write(lambda: self._publish(0, {}))

    def _drop_values(self) -> None:
        """Drop every value, and outdate what may be stored by loads that are running."""
        self._execute("DELETE FROM entries")
        self._execute("UPDATE counters SET value = 0 WHERE name = 'bytes'")
        number = self._publish(0, {}, are_all=True)
        self._execute("UPDATE cells SET version = ?", (number,))
        held = {slot for (slot,) in self._execute("SELECT DISTINCT slot FROM holders").fetchall()}
        self.page.change({slot: slot in held for slot in range(SLOTS)}, number)

    # Values

    def store(self, entry: int, head: bytes, payload: bytes, ends: float, tool: str, root: str) -> int:
        """Store a value. If its versions are not current it does not count, so nothing is compared here.

        Returns:
            The bytes of all values.
        """
        size = len(head) + len(payload) + 64

        def step() -> int:
            execute = self._execute
            former = execute("SELECT size FROM entries WHERE id = ?", (entry,)).fetchone()
            execute(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (entry, head, payload, ends, int(time.time()), size, tool, root),
            )
            return self._count(size - (former[0] if former else 0))

        return self._write(step)

    def _count(self, change: int) -> int:
        ((total,),) = self._execute(
            "UPDATE counters SET value = value + ? WHERE name = 'bytes' RETURNING value", (change,)
        ).fetchall()
        return int(total)

    def remove(self, entry: int) -> None:
        """Remove a value."""

        def step() -> None:
            former = self._execute("DELETE FROM entries WHERE id = ? RETURNING size", (entry,)).fetchall()
            self._count(-sum(size for (size,) in former))

        self._write(step)

    def note_uses(self, uses: Mapping[int, int]) -> None:
        """Note when entries were last used."""
        self._write(
            lambda: self._executemany(
                "UPDATE entries SET used = ? WHERE id = ?", [(at, number) for number, at in list(uses.items())]
            )
        )

    def _executemany(self, statement: str, rows: list[Any]) -> None:
        self._connection.executemany(statement, rows)

    def evict(self, limit: int) -> int:
        """Remove values that have ended, then those that were not used for longest, a part at a time.

        Returns:
            The bytes of what is left.
        """

        def step() -> int:
            execute = self._execute
            ended = execute(
                "DELETE FROM entries WHERE id IN (SELECT id FROM entries WHERE ends <= ? LIMIT 500) RETURNING size",
                (time.time(),),
            ).fetchall()
            total = self._count(-sum(size for (size,) in ended))
            doomed = []
            for number, size in (
                execute("SELECT id, size FROM entries ORDER BY used LIMIT 500") if total > limit else ()
            ):
                doomed.append((number,))
                total -= size
                if total <= limit:
                    break
            if doomed:
                self._executemany("DELETE FROM entries WHERE id = ?", doomed)
                execute("UPDATE counters SET value = ? WHERE name = 'bytes'", (total,))
            return total

        return self._write(step)

    def prune(self) -> None:
        """Bound the tables of cells, messages and processes."""

        def step() -> None:
            execute = self._execute
            execute("DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - ?", (_MAX_CHANGES,))
            execute("DELETE FROM claims WHERE deadline <= ?", (boottime(),))
            for process, token in execute("SELECT number, token FROM processes").fetchall():
                if not self.is_alive(process, token):
                    execute("DELETE FROM processes WHERE number = ?", (process,))
            count = execute("SELECT count(*) FROM cells").fetchone()[0]
            if count > _MAX_CELLS:
                execute(
                    "DELETE FROM cells WHERE id IN (SELECT id FROM cells WHERE id > 0 AND mode = 0 ORDER BY version "
                    "LIMIT ?)",
                    (count // 2,),
                )
                execute("UPDATE cells SET version = ? WHERE id = 0", (self._publish(0, {}),))

        self._write(step)

    def clear(self) -> int:
        """Drop all values. Returns how many there were."""

        def step() -> int:
            ((count,),) = self._execute("SELECT count(*) FROM entries").fetchall()
            self._drop_values()
            return int(count)

        return self._write(step)

    # Messages and ttls

    def changes_since(self, number: int) -> tuple[bool, list[Change]]:
        """Whether messages after this one are missing, and those that are there."""
        rows = self._read(
            "SELECT number, origin, root, cells, entries, (SELECT min(number) FROM changes) FROM changes "
            "WHERE number > ? ORDER BY number",
            (number,),
        )
        changes = [Change(n, origin, root, unpacked(cells), unpacked(own)) for n, origin, root, cells, own, _ in rows]
        return bool(rows) and rows[0][-1] > number, changes

    def ttls(self) -> dict[str, float]:
        """The ttls that are set, by the names of tools."""
        return dict(self._read("SELECT tool, ttl FROM ttls"))

    def set_ttl(self, tool: str, ttl: float | None) -> None:
        """Set the ttl of a tool, or take it back."""

        def step() -> None:
            if ttl is None:
                self._execute("DELETE FROM ttls WHERE tool = ?", (tool,))
            else:
                self._execute("INSERT OR REPLACE INTO ttls VALUES (?, ?)", (tool, ttl))
            self.page.count_ttls()

        self._write(step)

    # Claims of loads

    def claim(self, key: int, claim: int, span: float) -> int:
        """Claim a load, unless another process has that lives. A claim lasts for so many seconds.

        Args:
            claim: random.

        Returns:
            The claim that holds now.
        """

        def step() -> int:
            now = boottime()
            row = self._execute(
                "SELECT process, token, claim, deadline, span FROM claims WHERE id = ?", (key,)
            ).fetchone()
            if row is not None:
                process, token, other, deadline, former = row
                if now < deadline <= now + former and self.is_alive(process, token):
                    return int(other)
            self._execute(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?)",
                (key, self._locks.number, self._locks.token, claim, now + span, span),
            )
            return claim

        return self._write(step)

    def renew_claim(self, key: int, claim: int, span: float) -> None:
        """Let a claim last for longer, if it still holds."""
        self._write(
            lambda: self._execute(
                "UPDATE claims SET deadline = ? WHERE id = ? AND claim = ?", (boottime() + span, key, claim)
            )
        )

    def give_up(self, key: int, claim: int) -> None:
        """End a claim."""
        self._write(lambda: self._execute("DELETE FROM claims WHERE id = ? AND claim = ?", (key, claim)))

    # Upkeep

    @staticmethod
    def check(connection: sqlite3.Connection) -> None:
        """Look at what every call needs, when a database is opened.

        Raises:
            sqlite3.DatabaseError: if it cannot be read.
            ValueError: if something is missing.
        """
        ((_,),) = connection.execute("SELECT version FROM cells WHERE id = 0").fetchall()
        ((_,),) = connection.execute("SELECT value FROM counters WHERE name = 'bytes'").fetchall()
        for table in ("writers", "holders", "entries", "changes", "claims", "processes", "ttls"):
            connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()  # noqa: S608 - names of this module

    def report(self, pid: int, max_bytes: int, report: str) -> None:
        """Note what this process has counted, for who inspects the file."""
        row = self._locks.number, self._locks.token, pid, max_bytes, report
        self._write(lambda: self._execute("INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?)", row))

    def size(self) -> int:
        """The bytes of all values."""
        ((total,),) = self._read("SELECT value FROM counters WHERE name = 'bytes'")
        return int(total)

    def checkpoint(self) -> None:
        """Move what was written from the log into the database."""
        self._read("PRAGMA wal_checkpoint(PASSIVE)")

    def empty_log(self, patience: float) -> None:
        """The same to its end, so that the log begins anew. Others cannot write meanwhile.

        Args:
            patience: seconds to wait until nobody reads what is in it.
        """
        self._read(f"PRAGMA busy_timeout = {int(patience * 1000)}")
        try:
            self._read("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._read("PRAGMA busy_timeout = 0")

    def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file; nothing, if all is well."""
        return [text for (text,) in self._read("PRAGMA quick_check(5)") if text != "ok"]
