"""What a file of a tier holds, read from outside of its processes: for `agent-cache stats`, `keys` and `doctor`.

Nothing here makes a file, changes one, or takes a lock that a process would wait for. The database is opened read-only,
and all that is read of it is of one moment. A file names its cells by numbers, so a root is known only if a value, a
recent write or a report names it; the id of an entity never is.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_cache.clock import boottime
from agent_cache.errors import ConfigurationError
from agent_cache.remote.file.cell_names import CellNames
from agent_cache.remote.file.database import APPLICATION, FORMAT, HELD, unpacked
from agent_cache.remote.file.open_files import NETWORK_FILE_SYSTEMS, filesystem_of, mounts_text, real_path
from agent_cache.remote.file.process_locks import ProcessLocks, require_locks
from agent_cache.remote.file.shared_page import SharedPage
from agent_cache.remote.file.stored_value import StoredHead, read_head

__all__ = [
    "FileFacts", "Inspection", "Process", "RunningWrite", "StoredValue", "UnreadableError", "file_facts", "inspected",
]  # fmt: skip

_SUFFIXES: Final = ("", "-wal", "-shm", ".page", ".lock")
_FLOOR: Final = 0


class UnreadableError(Exception):
    """The database is damaged, or cannot be read now."""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value in the file.

    Attributes:
        size: its bytes.
        head: what it depends on; None if it is damaged or of another version.
        ends: when it does, its grace included, as `time.time` counts.
        is_current: whether a lookup would find it: it has not ended, and nothing that it depends on was written since.
        is_own: whether it is of the namespace that was asked for; True if that cannot be told.
        home: one of its roots, the first by name.
    """

    entry: int
    tool: str
    home: str
    size: int
    head: StoredHead | None
    ends: float
    is_current: bool
    is_own: bool


@dataclass(frozen=True, slots=True)
class RunningWrite:
    """A write that is registered.

    Attributes:
        pid: of its process; 0 if that is not known.
        state: ``"running"``; ``"late"`` if it was not renewed in time, so that nothing is held for it any more;
            ``"dead"`` if its process has died, which the next lookup handles; ``"held"`` if it has ended, and what it
            named is held for some time more.
        left: seconds until its lease ends.
        cells: what it holds or would change if its process died.
    """

    pid: int
    state: str
    left: float
    cells: frozenset[int]


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has the file open.

    Attributes:
        pid: 0 if the system does not tell, as in another container.
        max_bytes: that it bounds all values to; None if it has not reported yet.
        report: see `reports`; empty if it has not reported yet.
        missing: its invalidations that are not in the file. Nobody uses the file while there are any.
    """

    pid: int
    max_bytes: int | None
    report: str
    missing: int


class Inspection:
    """A database at one moment, with its page and its locks.

    Attributes:
        path: of the database.
        page: None if there is none, or it is that of another database.
        locks: None without a lock file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._execute = connection.execute
        ((incarnation,),) = self._rows("SELECT value FROM counters WHERE name = 'incarnation'")
        self.page = SharedPage.open(_beside(path, ".page"), incarnation, is_read_only=True)
        lock = _beside(path, ".lock")
        self.locks = ProcessLocks(lock) if lock.exists() else None
        self._pids = self.locks.holders() if self.locks is not None else {}
        rows = self._rows("SELECT id, version, mode FROM cells WHERE id >= 0")
        cells: dict[int, tuple[int, int]] = {number: (version, mode) for number, version, mode in rows}
        self._floor = cells.pop(_FLOOR, (0, HELD))
        self._cells = cells

    def _rows(self, statement: str) -> list[Any]:
        return self._execute(statement).fetchall()

    def _is_alive(self, number: int, token: int) -> bool:
        return number in self._pids and self.page is not None and self.page.token(number) == token

    # The file

    @property
    def cell_count(self) -> int:
        """How many tags, roots and entries have a version of their own."""
        return len(self._cells)

    @property
    def used_bytes(self) -> int:
        """The bytes of all values, of all namespaces."""
        return sum(int(value) for (value,) in self._rows("SELECT value FROM counters WHERE name = 'bytes'"))

    @property
    def max_bytes(self) -> int | None:
        """What the processes bound these to: the smallest that one has said. None if none has."""
        rows = self._rows("SELECT number, token, max_bytes FROM processes")
        living = [bound for number, token, bound in rows if self._is_alive(number, token)]
        return min(living or [bound for *_, bound in rows], default=None)

    @property
    def is_usable(self) -> bool:
        """Whether no invalidation is known to be missing."""
        return self.page is not None and self.page.is_usable

    def roots(self) -> set[str]:
        """The roots that a value or a recent write names."""
        rows = self._rows("SELECT DISTINCT root FROM entries UNION SELECT DISTINCT root FROM changes")
        return {root for (root,) in rows if root}

    # Values

    def values(self, names: CellNames) -> Iterator[StoredValue]:
        """All values, with no payload."""
        now = time.time()
        for entry, head, size, ends, tool, root in self._execute(
            "SELECT id, head, size, ends, tool, root FROM entries"
        ):
            try:
                read = read_head(head)
                is_own = names.entry(read.digest) == entry
            except ValueError:
                yield StoredValue(entry, tool, root, size, None, ends, is_current=False, is_own=True)
            else:
                is_current = ends > now and self._is_current(read.versions.items())
                yield StoredValue(entry, tool, root, size, read, ends, is_current, is_own)

    def _is_current(self, versions: Iterable[tuple[int, int]]) -> bool:
        for number, version in versions:
            current, mode = self._cells.get(number, self._floor)
            if current != version or mode == HELD:
                return False
        return True

    # Writes and processes

    def writes(self) -> list[RunningWrite]:
        """The writes that are registered."""
        found = []
        now = boottime()
        for number, token, deadline, is_expired, held, armed in self._rows(
            "SELECT process, token, deadline, is_expired, held, armed FROM writers"
        ):
            if not token:
                state = "held"
            elif not self._is_alive(number, token):
                state = "dead"
            else:
                state = "late" if is_expired or deadline <= now else "running"
            try:
                cells = frozenset(unpacked(held) + unpacked(armed))
            except ValueError:
                cells = frozenset()
            found.append(RunningWrite(self._pids.get(number, 0), state, max(0.0, deadline - now), cells))
        return found

    def processes(self) -> list[Process]:
        """The processes that have the file open."""
        rows = self._rows("SELECT number, token, max_bytes, report FROM processes")
        reports = {number: (token, max_bytes, report) for number, token, max_bytes, report in rows}
        found = []
        for number, pid in sorted(self._pids.items(), key=lambda each: each[1]):
            token, max_bytes, report = reports.get(number, (0, None, ""))
            is_own = self._is_alive(number, token)
            missing = 0 if self.page is None else self.page.missing(number)
            found.append(Process(pid, max_bytes if is_own else None, report if is_own else "", missing))
        return found

    def missing_of_the_dead(self) -> int:
        """How many processes have died with invalidations that they had not written: the next one drops all values."""
        suspended = () if self.page is None else self.page.suspended()
        return sum(number not in self._pids for number in suspended)

    # Health

    def log_mode(self) -> str:
        """SQLite's journal mode."""
        ((mode,),) = self._rows("PRAGMA journal_mode")
        return str(mode)

    def damages(self) -> list[str]:
        """What SQLite finds wrong with the file: it reads all of it."""
        return [str(text) for (text,) in self._rows("PRAGMA quick_check(5)") if text != "ok"]


@contextmanager
def inspected(path: str | os.PathLike[str], *, patience: float) -> Iterator[Inspection]:
    """Open a file read-only.

    Args:
        patience: seconds to wait for who holds it alone, as while it is closed.

    Raises:
        ConfigurationError: if there is no such file, or it is not a tier's of this version.
        UnreadableError: if it is damaged, or locked. Also raised by what is read later.
    """
    require_locks()
    place = _place_of(path)
    if place.is_dir():
        raise ConfigurationError(f"{str(place)!r} is a directory; name a file in it")
    if not place.is_file():
        raise ConfigurationError(f"there is no file {str(place)!r}; a tier makes it when a program first uses it")
    if not os.access(place, os.R_OK):
        raise ConfigurationError(f"this user may not read {str(place)!r}")
    connection = None
    try:
        connection = sqlite3.connect(f"{place.as_uri()}?mode=ro", uri=True, timeout=patience, isolation_level=None)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("BEGIN")
        _check(connection, place)
        file = Inspection(place, connection)
        try:
            yield file
        finally:
            if file.locks is not None:
                file.locks.leave()
    except sqlite3.Error as error:
        is_none = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        if is_none and not _beside(place, ".page").exists():
            raise ConfigurationError(f"{str(place)!r} is no file of a tier") from error
        raise UnreadableError(str(error)) from error
    finally:
        if connection is not None:
            connection.close()


def _check(connection: sqlite3.Connection, path: Path) -> None:
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    if application != APPLICATION:
        raise ConfigurationError(f"{str(path)!r} is no file of a tier")
    if version != FORMAT:
        fix = "upgrade it" if version > FORMAT else "the next program that uses the file begins a new one"
        raise ConfigurationError(
            f"{str(path)!r} is of another version of agent-cache (format {version}, this is {FORMAT}); {fix}"
        )


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts of the files, without opening the database.

    Attributes:
        sizes: bytes of each file that is there, by its suffix; ``""`` is the database.
        modes: their permissions.
        owners: ids of the users that own them.
        folder_mode: permissions of the directory.
        kind: type of the file system; empty if it is not known.
        is_network: whether several machines may have that.
        free: bytes that are free there, for this user.
    """

    path: Path
    sizes: dict[str, int]
    modes: dict[str, int]
    owners: dict[str, int]
    folder_mode: int
    kind: str
    is_network: bool
    free: int


def file_facts(path: str | os.PathLike[str]) -> FileFacts:
    """Look at the files.

    Raises:
        OSError: if the directory cannot be looked at.
    """
    place = _place_of(path)
    found = {suffix: _beside(place, suffix).stat() for suffix in _SUFFIXES if _beside(place, suffix).exists()}
    space = os.statvfs(place.parent)
    kind = filesystem_of(place.parent, mounts_text())
    return FileFacts(
        place,
        {suffix: one.st_size for suffix, one in found.items()},
        {suffix: stat.S_IMODE(one.st_mode) for suffix, one in found.items()},
        {suffix: one.st_uid for suffix, one in found.items()},
        stat.S_IMODE(place.parent.stat().st_mode),
        kind,
        kind in NETWORK_FILE_SYSTEMS,
        space.f_bavail * space.f_frsize,
    )


def _place_of(path: str | os.PathLike[str]) -> Path:
    """The place of a file, which can be looked at.

    Raises:
        ConfigurationError: if it cannot.
    """
    try:
        place = real_path(path)
    except ValueError as error:
        raise ConfigurationError(f"{os.fspath(path)!r} cannot be the path of a file: {error}") from error
    try:
        place.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigurationError(f"{str(place)!r} cannot be looked at: {error.strerror}") from error
    return place


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
