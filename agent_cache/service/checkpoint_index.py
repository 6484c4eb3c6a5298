"""The list of the checkpoints in a directory of journals.

A SQLite database in memory has one row for each checkpoint, without its state, and one for each journal, with how far
it was read. Before each query the files of the directory are compared with the rows; what has grown is read from there
on, what was replaced is read again, and what is gone is removed.

A copy of the database is kept in the directory, so that a new process does not read all journals. It is a cache and no
more: it is replaced in one step, and one that is damaged, of another version, or of another directory is ignored.
Processes share nothing else, so that none waits for another.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from agent_cache.recording.file import JOURNAL_VERSION

__all__ = ["CheckpointEntry", "CheckpointIndex", "Position", "Row", "open_journal"]

INDEX = ".checkpoints.sqlite3"
"""Name of the copy of the database."""

_LOG = logging.getLogger("agent_cache")
_VERSION = 1
# The copy is written when so much was read since the last one: reading less again takes a few milliseconds.
_BYTES_BETWEEN_COPIES = 1024 * 1024
_FILES_BETWEEN_COPIES = 100

_SCHEMA = """
CREATE TABLE journal (
    name TEXT PRIMARY KEY, inode TEXT, size INTEGER, mtime_ns INTEGER, read_to INTEGER, session_id TEXT, run TEXT
);
CREATE INDEX journal_session ON journal (session_id, run);
CREATE TABLE checkpoint (
    id TEXT, session_id TEXT, sequence INTEGER, after INTEGER, label TEXT, importance REAL, created_at TEXT,
    framework TEXT, created_us INTEGER, journal TEXT, start INTEGER, length INTEGER
);
CREATE INDEX checkpoint_id ON checkpoint (id);
CREATE INDEX checkpoint_journal ON checkpoint (journal);
CREATE INDEX checkpoint_order ON checkpoint (created_us, session_id, sequence, id);
CREATE INDEX checkpoint_session ON checkpoint (session_id, created_us, sequence, id);
CREATE INDEX checkpoint_label ON checkpoint (label, created_us, session_id, sequence, id);
"""


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its state.

    Attributes:
        id: names it among all checkpoints.
        session_id: id of its session.
        sequence: its number in its session, from 1.
        after: id of the last call that had ended when it was made, 0 if none had.
        label: its label, redacted.
        importance: from 0 to 1.
        created_at: time in UTC.
        framework: the kind of its state.
    """

    id: str
    session_id: str
    sequence: int
    after: int
    label: str
    importance: float
    created_at: str
    framework: str


class Position(NamedTuple):
    """The place of a checkpoint in the list."""

    created_us: int
    session_id: str
    sequence: int
    id: str


class Row(NamedTuple):
    """A checkpoint in the list, and where its line is."""

    entry: CheckpointEntry
    position: Position
    journal: str
    start: int
    length: int


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # SQLite has integers of 64 bits


class _Envelope(msgspec.Struct, frozen=True):
    """What a line has beside the state."""

    id: str
    sequence: _Number
    after: _Number
    label: str
    importance: float
    created_at: str
    framework: str


class _Line(msgspec.Struct, frozen=True):
    checkpoint: _Envelope


class _Head(msgspec.Struct, frozen=True):
    """The part of a journal's header that the list needs."""

    agent_cache_journal: int
    session_id: str
    run: str


class _Known(NamedTuple):
    """What the database has about a journal."""

    inode: str
    size: int
    mtime_ns: int
    read_to: int
    run: str | None


_line_decoder = msgspec.json.Decoder(_Line)
_head_decoder = msgspec.json.Decoder(_Head)
_CHECKPOINT = b'{"checkpoint"'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = (
    "id, session_id, sequence, after, label, importance, created_at, framework, created_us, journal, start, length"
)


def open_journal(path: Path) -> int:
    """Open a file for reading: a regular one, no link, and without waiting for the writer of a pipe.

    Raises:
        OSError: if that is not possible.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path.name} is not a regular file")
    return descriptor


class CheckpointIndex:
    """The checkpoints of a directory, newest first.

    Every method may be called from any thread.

    Args:
        directory: the directory of journals.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._bytes_read = 0
        self._files_read = 0
        self._is_copied = True

    def page(
        self, *, session_id: str | None = None, label: str | None = None, after: Position | None = None, limit: int
    ) -> list[Row]:
        """The next checkpoints of the list.

        Checkpoints that are made later come before the first page, so those that follow a position stay the same.

        Args:
            session_id: only those of this session.
            label: only those with exactly this label.
            after: the position after which the page begins; None for the first page.
            limit: the most rows.

        Raises:
            OSError: if the directory cannot be read.
        """
        conditions: list[str] = []
        values: list[object] = []
        for column, value in (("session_id", session_id), ("label", label)):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        if after is not None:
            conditions.append("(created_us, session_id, sequence, id) < (?, ?, ?, ?)")
            values += after
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        query = (
            f"SELECT {_FIELDS} FROM checkpoint {where}"  # noqa: S608 - of constants
            "ORDER BY created_us DESC, session_id DESC, sequence DESC, id DESC LIMIT ?"
        )
        return self._rows(query, [*values, limit])

    def find(self, checkpoint_id: str) -> Row | None:
        """The checkpoint of an id; the oldest, if somebody has copied a journal.

        Raises:
            OSError: if the directory cannot be read.
        """
        query = (
            f"SELECT {_FIELDS} FROM checkpoint WHERE id = ? "  # noqa: S608 - of constants
            "ORDER BY created_us, session_id, sequence, journal LIMIT 1"
        )
        return next(iter(self._rows(query, [checkpoint_id])), None)

    def journal_of(self, session_id: str, run: str | None = None) -> str | None:
        """Name of the journal of a session, or of one run of it. None if there is none.

        Raises:
            OSError: if the directory cannot be read.
        """
        query, values = "SELECT name FROM journal WHERE session_id = ?", [session_id]
        if run is not None:
            query, values = f"{query} AND run = ?", [session_id, run]
        with self._lock:
            found = self._refreshed().execute(f"{query} LIMIT 1", values).fetchone()
        return None if found is None else str(found[0])

    def forget(self, journal: str) -> None:
        """Read a journal from its beginning before the next query."""
        with self._lock:
            if self._database is not None:
                self._remove(self._database, journal)

    def _rows(self, query: str, values: list[Any]) -> list[Row]:
        with self._lock:
            found = self._refreshed().execute(query, values).fetchall()
        return [_row(each) for each in found]

    # Comparing the directory with the database

    def _refreshed(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = self._copied_database() or _new_database(self._directory)
            weakref.finalize(self, self._database.close)
        database = self._database
        known = {
            name: _Known(*rest)
            for name, *rest in database.execute("SELECT name, inode, size, mtime_ns, read_to, run FROM journal")
        }
        for name, found in self._files():
            before = known.pop(name, None)
            if before is None or (str(found.st_ino), found.st_size, found.st_mtime_ns) != before[:3]:
                self._read(database, name, before)
        for name in known:
            self._remove(database, name)
        if self._bytes_read >= _BYTES_BETWEEN_COPIES or self._files_read >= _FILES_BETWEEN_COPIES:
            self._save(database)
        return database

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(".jsonl") and not entry.name.startswith("."):
                    try:
                        if entry.is_file(follow_symlinks=False):
                            yield entry.name, entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # it went while the directory was read
                        continue

    def _read(self, database: sqlite3.Connection, name: str, before: _Known | None) -> None:
        """Read what a journal has beyond what was read before."""
        try:
            file = os.fdopen(open_journal(self._directory / name), "rb")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _LOG.warning("%s cannot be read, so its checkpoints are not listed: %s", name, error)
            self._remove(database, name)
            return
        with file:
            found = os.fstat(file.fileno())
            first = file.readline()
            head = _head_of(first, name)
            inode, run = str(found.st_ino), None if head is None else head.run
            read_to = len(first) if first.endswith(b"\n") else 0
            is_same = before is not None and run is not None and (before.inode, before.run) == (inode, run)
            if before is not None and is_same and before.read_to <= found.st_size:
                read_to = before.read_to
                file.seek(read_to)
            else:
                self._remove(database, name)
            start = read_to
            lines: list[tuple[int, bytes]] = []
            for line in file if head is not None else ():
                if not line.endswith(b"\n"):
                    break  # it is being written, or its process was killed
                if line.startswith(_CHECKPOINT):
                    lines.append((read_to, line))
                read_to += len(line)
        self._bytes_read += read_to - start
        self._files_read += 1
        with database:
            database.execute(
                "INSERT OR REPLACE INTO journal VALUES (?, ?, ?, ?, ?, ?, ?)",
                (name, inode, found.st_size, found.st_mtime_ns, read_to, head and head.session_id, run),
            )
            if head is not None:
                rows = [row for at, line in lines if (row := _columns(head, name, at, line)) is not None]
                database.executemany("INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _remove(self, database: sqlite3.Connection, name: str) -> None:
        with database:
            database.execute("DELETE FROM journal WHERE name = ?", [name])
            database.execute("DELETE FROM checkpoint WHERE journal = ?", [name])

    # The copy

    def _copied_database(self) -> sqlite3.Connection | None:
        """The database of the copy, if that is sound, of this version and of this directory."""
        try:
            with os.fdopen(open_journal(self._directory / INDEX), "rb") as file:
                content = file.read()
        except OSError:
            return None
        database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            database.deserialize(content)
            checks = [row[0] for row in database.execute("PRAGMA quick_check(1)")]
            about = database.execute("SELECT version, directory FROM about").fetchall()
            with closing(_new_database(self._directory)) as expected:
                is_same = _tables(expected) == _tables(database)
            if checks == ["ok"] and about == [(_VERSION, _name_of(self._directory))] and is_same:
                return database
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            _LOG.info("%s is no index of checkpoints, and is made anew: %s", INDEX, error)
        database.close()
        return None

    def _save(self, database: sqlite3.Connection) -> None:
        """Replace the copy. A directory that cannot be written has none."""
        self._bytes_read = self._files_read = 0
        try:
            descriptor, name = tempfile.mkstemp(prefix=f"{INDEX}.", dir=self._directory)
            scratch = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(database.serialize())
                scratch.replace(self._directory / INDEX)
            finally:
                scratch.unlink(missing_ok=True)
        except OSError as error:
            if self._is_copied:
                _LOG.warning("the index of checkpoints cannot be kept in %s: %s", self._directory, error)
            self._is_copied = False


def _name_of(directory: Path) -> str:
    return os.fsencode(os.path.realpath(directory)).hex()  # a name need not be text


def _new_database(directory: Path) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript(_SCHEMA)
    with database:
        database.execute("CREATE TABLE about (version INTEGER, directory TEXT)")
        database.execute("INSERT INTO about VALUES (?, ?)", (_VERSION, _name_of(directory)))
    return database


def _tables(database: sqlite3.Connection) -> list[tuple[str, str]]:
    return database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def _head_of(line: bytes, name: str) -> _Head | None:
    """The header of a journal of a known version; None for any other file."""
    if not line.startswith(b'{"agent_cache_journal"'):
        return None
    try:
        head = _head_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # also one that is being written
    if head.agent_cache_journal > JOURNAL_VERSION:
        _LOG.warning("%s is a journal of a newer version, so its checkpoints are not listed", name)
        return None
    return head


def _columns(head: _Head, journal: str, start: int, line: bytes) -> tuple[object, ...] | None:
    try:
        found = _line_decoder.decode(line).checkpoint
        created_us = (datetime.fromisoformat(found.created_at) - _EPOCH) // timedelta(microseconds=1)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        _LOG.warning("%s has a broken checkpoint at byte %d, which is not listed: %s", journal, start, error)
        return None
    return (
        found.id, head.session_id, found.sequence, found.after, found.label, found.importance, found.created_at,
        found.framework, created_us, journal, start, len(line),
    )  # fmt: skip


def _row(columns: tuple[Any, ...]) -> Row:
    fields = CheckpointEntry.__struct_fields__
    *rest, created_us, journal, start, length = columns
    entry = CheckpointEntry(**dict(zip(fields, rest, strict=True)))
    return Row(entry, Position(created_us, entry.session_id, entry.sequence, entry.id), journal, start, length)
