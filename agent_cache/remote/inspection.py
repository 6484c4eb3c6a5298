"""What a tier holds, read from outside of its processes: for `agent-cache tier stats`, `keys` and `doctor`.

Nothing here makes a file or changes one. The database of a file is opened read-only, and all that is read of it is of
one moment. Cells name roots; the id of an entity is a keyed digest, and of calls there are digests alone.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import HELD, Head, open_head
from agent_cache.remote.cells import STORE, Cell
from agent_cache.remote.file import NETWORK_FILE_SYSTEMS, filesystem_of, mounts_text, real_path

__all__ = ["FileFacts", "FileInspection", "StoredValue", "UnreadableError", "file_facts", "inspected", "root_of_cell"]

_SUFFIXES: Final = ("", "-wal", "-shm", ".page", ".lock")


class UnreadableError(Exception):
    """The database is damaged, or cannot be read now."""


def root_of_cell(cell: Cell) -> str:
    """The root that a cell belongs to; empty if it is none of a tag."""
    return "" if cell[:1] in "@*#" else cell.partition(":")[0]


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value in a tier.

    Attributes:
        digest: of its call.
        size: its bytes.
        head: what it depends on; None if it is damaged or of another version.
        age, left: seconds since its load, and until it ends, its grace included; None if that is not known, or never.
        is_current: whether a lookup would find it.
    """

    digest: str
    size: int
    head: Head | None
    age: float | None
    left: float | None
    is_current: bool

    @property
    def roots(self) -> set[str]:
        """The roots that it depends on."""
        cells = () if self.head is None else self.head.versions
        return {root for cell in cells if (root := root_of_cell(cell))}

    @classmethod
    def of(
        cls,
        address: Cell,
        head: Head | None,
        states: Mapping[Cell, tuple[Any, int]],
        *,
        size: int,
        now: float,
        left: float | None,
        others: tuple[Any, int] = (None, HELD),
    ) -> StoredValue:
        """Look whether a value is current under these states of its cells, and of all others."""
        is_current = head is not None and (left is None or left > 0)
        for cell, version in () if head is None else head.versions.items():
            present, mode = states.get(cell, others)
            is_current = is_current and present == version and mode < HELD
        age = None if head is None else max(0.0, now - head.loaded)
        return cls(address[1:], size, head, age, None if left is None else max(0.0, left), is_current)

    def tags(self, named: Mapping[Cell, str]) -> list[str]:
        """What it depends on. An entity is ``order:#`` and its digest, unless it is among the named."""
        found: dict[str, None] = {}
        for cell in () if self.head is None else self.head.versions:
            root = root_of_cell(cell)
            if not root:
                continue
            if cell.startswith(f"{root}::"):
                found[named.get(cell, f"{root}:#{cell[len(root) + 2 :][:12]}")] = None
            elif cell.endswith(":D"):
                found[root] = None
        return list(found)


# A file


class FileInspection:
    """A database at one moment, with its page and its locks.

    Attributes:
        path: of the database.
        number: of the newest step; and of the page, None if there is none, or it is that of another database.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        from agent_cache.remote.database import wall_time
        from agent_cache.remote.shared_page import slots_of

        self.path = path
        self.now = wall_time()
        self._connection = connection
        self._meta = dict(self._rows("select name, value from meta"))
        self.page_number, self._marked = slots_of(path, self._meta["token"])
        self._processes = self._rows("select slot, pid, max_bytes, report from process order by pid")

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._connection.execute(statement, values).fetchall()

    @property
    def cell_count(self) -> int:
        """How many tags, roots and entries have a version of their own."""
        return int(self._rows("select count(*) from cell")[0][0])

    @property
    def used_bytes(self) -> int:
        """The bytes of all values, of all namespaces."""
        return int(self._meta["bytes"])

    @property
    def max_bytes(self) -> int | None:
        """What the processes bound these to: the smallest that one has said. None if none has."""
        return min([bound for _, _, bound, _ in self._processes], default=None)

    def values(self, namespace: str) -> Iterator[StoredValue]:
        """All values of a namespace, with no payload."""
        floor = self._meta["floor"], 0
        states: dict[Cell, tuple[Any, int]] = {cell: (number, 0) for cell, number in self._rows("select * from cell")}
        for cell, mode in self._rows("select cell, max(mode) from hold group by cell"):
            states[cell] = states.get(cell, floor)[0], mode
        states[STORE] = self._meta["token"], 0
        statement = "select address, head, size, ends from value where space = ? order by address"
        for address, raw_head, size, ends in self._rows(statement, namespace):
            left = None if ends is None else ends - self.now
            head = open_head(raw_head)
            yield StoredValue.of(address, head, states, size=size, now=self.now, left=left, others=floor)

    def others(self, namespace: str) -> int:
        """How many values there are of other namespaces."""
        return int(self._rows("select count(*) from value where space <> ?", namespace)[0][0])

    def writes(self) -> tuple[int, Counter[str]]:
        """How many writes are registered, and how many under each root."""
        roots: Counter[str] = Counter()
        writers = set()
        for writer, cell in self._rows("select writer, cell from hold where deadline > ?", self.now):
            writers.add(writer)
            if cell.endswith(":D"):
                roots[root_of_cell(cell)] += 1
        return len(writers), roots

    def late(self) -> int:
        """How many writes were not renewed in time: the next call ends them."""
        return int(self._rows("select count(distinct writer) from hold where deadline <= ?", self.now)[0][0])

    def processes(self) -> list[tuple[int, str]]:
        """The processes that have reported and live: pid and report."""
        return [(pid, report) for _, pid, _, report in self._processes if _lives(pid)]

    def pending(self) -> tuple[int, int]:
        """How many living processes have invalidations that are not in the file, and how many that have died."""
        living = {slot for slot, pid, *_ in self._processes if _lives(pid)}
        return len(self._marked & living), len(self._marked - living)

    def log_mode(self) -> str:
        """SQLite's journal mode."""
        return str(self._rows("pragma journal_mode")[0][0])

    def damages(self) -> list[str]:
        """What SQLite finds wrong with the file: it reads all of it."""
        return [str(text) for (text,) in self._rows("pragma quick_check(5)") if text != "ok"]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def inspected(path: str | os.PathLike[str], *, patience: float) -> Iterator[FileInspection]:
    """Open a file read-only.

    Args:
        patience: seconds to wait for who holds it alone, as while it is closed.

    Raises:
        ConfigurationError: if there is no such file, or it is not a tier's of this version.
        UnreadableError: if it is damaged, or locked. Also raised by what is read later.
    """
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
        connection.execute("pragma trusted_schema = off")
        connection.execute("begin")
        _check(connection, place)
        yield FileInspection(place, connection)
    except sqlite3.Error as error:
        is_none = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        if is_none and not _beside(place, ".page").exists():
            raise ConfigurationError(f"{str(place)!r} is no file of a tier") from error
        raise UnreadableError(str(error)) from error
    finally:
        if connection is not None:
            connection.close()


def _check(connection: sqlite3.Connection, path: Path) -> None:
    from agent_cache.remote.database import APPLICATION, FORMAT

    ((application,),) = connection.execute("pragma application_id").fetchall()
    ((version,),) = connection.execute("pragma user_version").fetchall()
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
        files: what is there, by its suffix; ``""`` is the database.
        folder_mode: permissions of the directory.
        kind: type of the file system; empty if it is not known.
        is_network: whether several machines may have that.
        free: bytes that are free there, for this user.
    """

    path: Path
    files: dict[str, os.stat_result]
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
        found,
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
