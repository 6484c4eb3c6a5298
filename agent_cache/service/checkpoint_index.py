"""The list of the checkpoints in a directory of journals, in memory, without their states.

Before each query the files of the directory are compared with what is known of them: what has grown is read from there
on, what was replaced is read again, and what is gone is forgotten. The first query of a process reads all of them.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from agent_cache.recording.file import JOURNAL_VERSION

_LOG = logging.getLogger("agent_cache")


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


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


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


@dataclass(slots=True)
class _Journal:
    """What is known of a file.

    Attributes:
        stamp: inode, size and time of change when it was read.
        read_to: bytes of whole lines that were read.
        head: of a journal; None if it is none.
        rows: its checkpoints.
    """

    stamp: tuple[int, int, int]
    read_to: int
    head: _Head | None
    rows: list[Row] = field(default_factory=list)

    def is_beginning_of(self, other: _Journal) -> bool:
        """Whether the other one is the same file, which may have grown."""
        return (self.head, self.stamp[0]) == (other.head, other.stamp[0]) and self.read_to <= other.stamp[1]


_line_decoder = msgspec.json.Decoder(_Line)
_head_decoder = msgspec.json.Decoder(_Head)
_CHECKPOINT = b'{"checkpoint"'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        self._journals: dict[str, _Journal] = {}
        self._rows: list[Row] = []  # of all journals, the oldest first
        self._by_id: dict[str, Row] = {}

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
        with self._lock:
            self._refresh()
            rows = self._rows
        end = len(rows) if after is None else bisect_left(rows, after, key=lambda row: row.position)
        found = (
            row
            for row in map(rows.__getitem__, range(end - 1, -1, -1))
            if session_id in (None, row.entry.session_id) and label in (None, row.entry.label)
        )
        return list(islice(found, limit))

    def find(self, checkpoint_id: str) -> Row | None:
        """The checkpoint of an id; the oldest, if somebody has copied a journal.

        Raises:
            OSError: if the directory cannot be read.
        """
        with self._lock:
            self._refresh()
            return self._by_id.get(checkpoint_id)

    def journal_of(self, session_id: str, run: str | None = None) -> str | None:
        """Name of the journal of a session, or of one run of it. None if there is none.

        Raises:
            OSError: if the directory cannot be read.
        """
        with self._lock:
            self._refresh()
            for name, one in self._journals.items():
                if one.head is not None and one.head.session_id == session_id and run in (None, one.head.run):
                    return name
        return None

    def forget(self, journal: str) -> None:
        """Read a journal from its beginning before the next query."""
        with self._lock:
            self._journals.pop(journal, None)

    # Comparing the directory with what is known of it

    def _refresh(self) -> None:
        found, has_changed = dict(self._files()), False
        for name in self._journals.keys() - found.keys():
            del self._journals[name]
            has_changed = True
        for name, stamp in found.items():
            before = self._journals.get(name)
            if before is None or before.stamp != stamp:
                self._read(name, before)
                has_changed = True
        if has_changed:
            rows = [row for one in self._journals.values() for row in one.rows]
            self._rows = sorted(rows, key=lambda row: (row.position, row.journal))
            self._by_id = {row.entry.id: row for row in reversed(self._rows)}

    def _files(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(".jsonl") and not entry.name.startswith("."):
                    try:
                        if entry.is_file(follow_symlinks=False):
                            yield entry.name, _stamp(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:  # it went while the directory was read
                        continue

    def _read(self, name: str, before: _Journal | None) -> None:
        """Read what a journal has beyond what was read before."""
        try:
            file = os.fdopen(open_journal(self._directory / name), "rb")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _LOG.warning("%s cannot be read, so its checkpoints are not listed: %s", name, error)
            self._journals.pop(name, None)
            return
        with file:
            stamp = _stamp(os.fstat(file.fileno()))
            first = file.readline()
            head = _head_of(first, name)
            found = _Journal(stamp, len(first) if first.endswith(b"\n") else 0, head)
            if before is not None and head is not None and before.is_beginning_of(found):
                found.read_to, found.rows = before.read_to, before.rows
                file.seek(before.read_to)
            for line in file:
                if head is None or not line.endswith(b"\n"):
                    break  # it is no journal, or being written, or its process was killed
                if line.startswith(_CHECKPOINT) and (row := _row(head.session_id, name, found.read_to, line)):
                    found.rows.append(row)
                found.read_to += len(line)
        self._journals[name] = found


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


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


def _row(session_id: str, journal: str, start: int, line: bytes) -> Row | None:
    try:
        found = _line_decoder.decode(line).checkpoint
        created_us = (datetime.fromisoformat(found.created_at) - _EPOCH) // timedelta(microseconds=1)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        _LOG.warning("%s has a broken checkpoint at byte %d, which is not listed: %s", journal, start, error)
        return None
    entry = CheckpointEntry(session_id=session_id, **msgspec.structs.asdict(found))
    position = Position(created_us, session_id, found.sequence, found.id)
    return Row(entry, position, journal, start, len(line))
