"""The files of a tier as this process has them open: how they are made, checked, shared, replaced and looked after.

Beside the database at ``PATH`` lie its log (``-wal``, ``-shm``: SQLite's), the memory-mapped page (``.page``) and the
lock file (``.lock``). All tiers of one path in a process share one `OpenFiles`, with two connections: one that calls
use in their own thread, as long as nobody else needs it or the write lock, and one of the keeper, a thread that takes
what has to wait, and looks after the files.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import re
import secrets
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from agent_cache.errors import ConfigurationError
from agent_cache.remote.file.database import (
    APPLICATION,
    FORMAT,
    SCHEMA,
    Busy,
    Damaged,
    Database,
    Unwritable,
    connect,
    is_damage,
    translated,
)
from agent_cache.remote.file.process_locks import ProcessLocks, require_locks
from agent_cache.remote.file.shared_page import SharedPage
from agent_cache.remote.reports import Log, report_text

__all__ = ["NETWORK_FILE_SYSTEMS", "OpenFiles", "Unreachable", "filesystem_of", "mounts_text", "open_files"]

_PERIOD: Final = 0.1
"""Seconds between two looks of the keeper at the page."""
_LOOK_AFTER: Final = 0.5
"""Seconds between two looks at the files: that they were deleted is noticed within a second."""
_REPORT: Final = 2.0
"""Seconds between two reports of what this process has counted."""
_PRUNE: Final = 30.0
_LONG_LOG: Final = 1 << 22
"""Bytes of the write-ahead log above which it is moved into the database."""
_TOO_LONG_LOG: Final = 1 << 24
"""Bytes of it above which writers wait until all of it was moved: while some write all the time it never ends else."""
_LOG_PATIENCE: Final = 0.02
_SPIN: Final = 0.001
"""Seconds that a call waits in its own thread for others to be done with the database."""
_SPIN_PAUSE: Final = 0.00005
_SHORTEST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.004
_PATIENCE: Final = 5.0
"""Seconds that it may take to make a tier while others are busy with its files."""
_TRIES: Final = 20
_TRY_PAUSE: Final = 0.0005
_FORK_PATIENCE: Final = 1.0
_MAX_USES: Final = 10_000
_MAX_PENDING: Final = 10_000
_FEW: Final = 16
"""Pending invalidations that are written in the thread of a call."""

_PASSING: Final = frozenset({
    errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EFBIG, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE,
    errno.ENOLCK, errno.ENOMEM, errno.ENOSPC,
})  # fmt: skip
"""Errors of the system for which nobody has to change a setting of the tier."""
_FORBIDDEN: Final = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH})
_NOT_OPENED = "the files cannot be opened now, so the tools run without them"

NETWORK_FILE_SYSTEMS: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs",
})  # fmt: skip

T = TypeVar("T")
Step = Callable[[Database], T]


class Unreachable(Exception):
    """The files cannot be used now. Never leaves the tier."""


class _ForKeeperError(Busy):
    """A call needs the keeper first: to open the files, after a fork or when they were replaced, or to write many
    pending invalidations.
    """


class User(Protocol):
    """A tier, as its files know it."""

    def look(self, database: Database) -> None:
        """Handle messages and ttls, if the page says that there are new ones."""
        ...

    def lose(self) -> None:
        """Drop all copies: the files were replaced, so anything may have changed."""
        ...


# Where the files lie


def filesystem_of(folder: Path, mounts: str) -> str:
    """The type of the file system that a folder is in; empty if it is not known.

    Args:
        folder: resolved.
        mounts: what Linux says in ``/proc/self/mountinfo``: see proc(5).
    """
    found, longest = "", -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        names = fields.split(" ")
        if len(names) < 5 or not rest:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), names[4])  # a space is \040
        if len(point) >= longest and folder.is_relative_to(point):
            found, longest = rest.split(" ", 1)[0], len(point)
    return found


def mounts_text() -> str:
    """What is mounted where; empty if this system does not tell it so."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:  # another system than Linux
        return ""


def checked_path(path: Any) -> Path:
    """Check where a database is to be.

    Raises:
        ConfigurationError: if it cannot be there, naming the fix.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigurationError(f"FileTier: path must be the path of a file, got {path!r}")
    if os.fspath(path) == ":memory:":
        raise ConfigurationError("FileTier: a database in memory is shared with nobody; leave the tier out")
    require_locks()
    try:
        place = real_path(path)
    except ValueError as error:
        raise ConfigurationError(f"FileTier: {path!r} cannot be the path of a file: {error}") from error
    folder = place.parent
    try:
        mode = folder.stat().st_mode
        present = place.stat().st_mode if stat.S_ISDIR(mode) and place.exists() else None
    except PermissionError as error:
        raise ConfigurationError(
            f"FileTier: this user may not look into {str(folder)!r}; use a file of your own"
        ) from error
    except FileNotFoundError as error:
        raise ConfigurationError(f"FileTier: there is no directory {str(folder)!r}; make it first") from error
    except OSError as error:
        raise ConfigurationError(f"FileTier: {str(place)!r}: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        raise ConfigurationError(f"FileTier: {str(folder)!r} is no directory")
    if present is not None and stat.S_ISDIR(present):
        raise ConfigurationError(f"FileTier: {str(place)!r} is a directory; name a file in it")
    if mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"FileTier: everybody may write into {str(folder)!r}, and could replace the cache; use a directory of your "
            "own (mkdir -m 700)"
        )
    kind = filesystem_of(folder, mounts_text())
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigurationError(
            f"FileTier: {str(folder)!r} is on a network file system ({kind}), where processes of several machines "
            "cannot share memory; use a local disk, or share the cache by a RedisTier"
        )
    if present is not None and not stat.S_ISREG(present):
        raise ConfigurationError(f"FileTier: {str(place)!r} is no regular file")
    for name, right in ((folder, os.W_OK | os.X_OK), (place, os.R_OK | os.W_OK)):
        if (name is folder or present is not None) and not os.access(name, right) and name.exists():
            raise ConfigurationError(f"FileTier: this user may not write {str(name)!r}; use a file of your own")
    return place


def real_path(path: str | os.PathLike[str]) -> Path:
    """An absolute path without links; ``~`` is the home directory.

    Raises:
        ValueError: if it can be no path, or names the home of nobody.
    """
    try:
        return Path(os.path.realpath(Path(path).expanduser()))
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _are_changed(identities: dict[Path, tuple[int, int] | None]) -> bool:
    return any(_identity(path) != known for path, known in identities.items())


# Making and opening the database


def _open_database(path: Path, page: Path, patience: float) -> tuple[sqlite3.Connection, int, bool]:
    """Open the database, made if there is none. The caller holds the lock under which files are opened.

    Returns:
        A connection, what tells the database from those that were at this path before, and whether it is new.

    Raises:
        ConfigurationError: if it is not ours, or of a newer version.
    """
    for _ in range(2):
        if not path.exists():
            for suffix in ("-wal", "-shm"):  # SQLite would take what is left of a deleted database for this one's
                _beside(path, suffix).unlink(missing_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = None
        try:
            connection = connect(path, patience=patience)
            is_new = _prepare(connection, path)
            if is_new is not None:
                ((incarnation,),) = connection.execute("SELECT value FROM counters WHERE name = 'incarnation'")
                Database.check(connection)
                return connection, int(incarnation), is_new
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            _close(connection)
            if isinstance(error, ConfigurationError):  # it is a `ValueError`, and says that the file is not ours
                raise
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                raise
            if not page.exists():
                raise ConfigurationError(
                    f"FileTier: {str(path)!r} is not a database of SQLite; it is left as it is: name another file"
                ) from error
            _set_aside(path, page)
        except BaseException:
            _close(connection)
            raise
        else:  # of an older version
            _close(connection)
            _set_aside(path, page, keep=False)
    raise Damaged("it cannot be replaced")


def _may_pass(error: BaseException) -> bool:
    """Whether the files may be opened later, although they cannot be now. Else a setting is wrong."""
    if isinstance(error, sqlite3.Error):
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _FORBIDDEN:
            return False
        error = translated(error)
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return error.errno in _PASSING
    return isinstance(error, Busy | Damaged | Unwritable | TimeoutError)


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()


def _prepare(connection: sqlite3.Connection, path: Path) -> bool | None:
    """Make the tables of a new database. Returns whether it is new; None if it is of an older version."""
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    if application not in (0, APPLICATION) or (application == 0 and (tables or version)):
        raise ConfigurationError(
            f"FileTier: {str(path)!r} is a database of another program; it is left as it is: name another file"
        )
    if version > FORMAT:
        raise ConfigurationError(
            f"FileTier: {str(path)!r} was made by a newer version of agent-cache (format {version}, this is {FORMAT}); "
            "upgrade this one, or name another file"
        )
    if tables and version < FORMAT:
        return None
    if not tables:
        path.chmod(0o600)  # if it was there, empty; SQLite gives the log the same rights
        # Small pages: what a write changes is spread over a handful, all of which go into the log.
        connection.execute("PRAGMA page_size = 2048")
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != "wal":
        raise ConfigurationError(
            f"FileTier: SQLite cannot keep a write-ahead log beside {str(path)!r}; use a local disk"
        )
    if not tables:
        connection.executescript(  # numbers of this program alone
            f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; {SCHEMA}"  # noqa: S608
            f"INSERT INTO counters VALUES ('incarnation', {secrets.randbits(62) | 1});"
            "INSERT INTO cells VALUES (0, 1, 0); INSERT INTO changes VALUES (1, 0, '', x'', x''); COMMIT;"
        )
    return not tables


def _set_aside(path: Path, page: Path, *, keep: bool = True) -> None:
    """Replace a database: first nobody trusts the copies of its values any more, then it is moved out of the way."""
    mapped = SharedPage.open(page, None)
    if mapped is not None:
        mapped.retire()
    if keep:
        for suffix in ("", "-wal"):
            former = _beside(path, suffix)
            if former.exists():
                former.replace(_beside(path, f".corrupt{suffix}"))
    for suffix in ("", "-wal", "-shm", ".page"):
        _beside(path, suffix).unlink(missing_ok=True)


# What this process has open


class OpenFiles:
    """The files of one path in this process.

    Attributes:
        page: the memory-mapped page.
        pending: invalidations that are not in the database, by the write; each a step that may be repeated.
        max_bytes: bytes of all values.
        lease: the longest of the tiers.
    """

    def __init__(self, path: Path, timeout: float, max_bytes: int) -> None:
        self.path = path
        self.timeout = timeout
        self.max_bytes = max_bytes
        self.log = Log(f"FileTier({str(path)!r})")
        self.users: weakref.WeakSet[User] = weakref.WeakSet()
        self.pending: dict[str, Step[object]] = {}
        self._unfinished: dict[str, tuple[Step[object], float]] = {}
        self._count = 0  # of tiers that are open
        self._incarnation = 0
        self._held_until: dict[tuple[int, int], float] = {}
        self.lease = 0.0
        self._uses: dict[int, int] = {}
        self._is_unusable = False
        self._reset()
        self.page = SharedPage.of_nothing()
        lock = _beside(path, ".lock")
        is_locked = lock.exists()
        try:
            self._open(_PATIENCE)
        except BaseException as error:
            if _may_pass(error):
                self.log.once(_NOT_OPENED, error)
                return
            self.close()
            if isinstance(error, ConfigurationError) and not is_locked:  # beside what is not ours, nothing is left
                lock.unlink(missing_ok=True)
            raise

    def _reset(self) -> None:
        self._lock = threading.Lock()  # of the connection for calls
        self._keeping = threading.Lock()  # of the keeper's
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._keeper: threading.Thread | None = None
        self._is_closed: Future[None] = Future()
        self._inline: Database | None = None
        self._kept: Database | None = None
        self._patient_after = self._open_after = 0.0
        self._pending_lock = threading.Lock()
        self._locks: ProcessLocks | None = None
        self._identities: dict[Path, tuple[int, int] | None] = {}
        self._logs: dict[Path, tuple[int, int] | None] = {}
        self._look_after_at = self._report_at = self._prune_at = 0.0
        self._logged = 0
        self._reported: tuple[int, int, str] | None = None

    def _open(self, patience: float) -> None:
        """Open everything, under the lock for that.

        Args:
            patience: seconds to wait for others that open the files or write to the database.
        """
        path, page, lock = self.path, _beside(self.path, ".page"), _beside(self.path, ".lock")
        if self._locks is not None and _identity(lock) != self._identities.get(lock):
            self._locks.leave()
            self._locks = None
        if self._locks is None:
            self._locks = ProcessLocks(lock)
        locks = self._locks
        with locks.opening(patience):
            connection, incarnation, is_new = _open_database(path, page, patience)
            try:
                mapped = SharedPage.open(page, incarnation)
                is_lost = mapped is None  # and with it, whose invalidations were not written
                if mapped is None:
                    mapped = SharedPage.create(page, incarnation)
                if not locks.number:
                    locks.enter(mapped.suspended())  # not the number of a dead process with missing invalidations
                mapped.enter(locks.number, locks.token)
                database = Database(connection, mapped, locks)
                if is_lost and not is_new:
                    database.clear()
                if is_lost:
                    mapped.changes = database.last_number()
                with self._pending_lock:
                    if self._incarnation not in (0, incarnation):
                        self.pending.clear()  # this database has no value that they would end
                    mapped.suspend(locks.number, len(self.pending))
                self._incarnation = incarnation
                # Before the other connection is closed: SQLite removes its log with the last one.
                self._kept = Database(connect(path), mapped, locks)
                self._inline = Database(connect(path), mapped, locks)
                for one in (self._kept, self._inline):
                    one.size()
            except BaseException:
                self._close()
                raise
            finally:
                connection.close()
            self.page = mapped
            self._reported = None  # in a new database there is no report
            self._identities = {one: _identity(one) for one in (path, page, lock)}
            self._logs = {one: _identity(one) for one in (_beside(path, "-wal"), _beside(path, "-shm"))}

    # Tiers of this process

    def join(self, user: User) -> None:
        """Be used by one tier more."""
        with self._lock:
            self._count += 1
            self.users.add(user)

    def leave(self) -> Future[None] | None:
        """Be used by one tier less; by none, everything is closed.

        Returns:
            When the keeper has closed it; None if nothing is to be waited for.
        """
        with _opened_lock:
            self._count -= 1
            if self._count:
                return None
            if _opened.get(self.path) is self:
                del _opened[self.path]
            if self._keeper is not None and self._keeper.is_alive():
                self._jobs.put(_End(self))
                return self._is_closed
        self.close()
        return None

    def _close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        inline, self._inline = self._inline, None
        kept, self._kept = self._kept, None
        for database in (inline, kept):
            if database is not None:
                database.close()

    def close(self) -> None:
        """Close everything. A process that has nothing open does not count as one that lives."""
        self._close()
        locks, self._locks = self._locks, None
        if locks is not None:
            locks.leave()

    def before_fork(self) -> Callable[[], None]:
        """Close the connections when no thread is inside of SQLite, which allows none to be carried across a fork (see
        https://sqlite.org/howtocorrupt.html, 2.6): a child that has inherited one, whose file locks it has not, takes
        its own for locked as well. The parent and the child open their own when they next need them.

        Returns:
            What the parent does after it.
        """
        locks = [lock for lock in (self._lock, self._keeping) if lock.acquire(timeout=_FORK_PATIENCE)]
        if len(locks) == 2:
            self._disconnect()

        def end() -> None:
            for lock in locks:
                lock.release()

        return end

    def after_fork(self) -> None:
        """In the child: what is pending is delivered by the parent. If a thread of that did not leave SQLite in time,
        no connection can be had here.
        """
        if self._inline is not None or self._kept is not None:
            _inherited.append((self._inline, self._kept))
            self._is_unusable = True
        self.pending, self._unfinished = {}, {}
        self._reset()

    # Work on the database

    @property
    def number(self) -> int:
        """The number of this process."""
        return 0 if self._locks is None else self._locks.number

    @property
    def is_open(self) -> bool:
        """Whether there is a connection for calls: after a fork, one is opened when it is first needed."""
        return self._inline is not None

    def now(self, step: Step[T], *, patience: float = 0.0) -> T:
        """Run a step in this thread.

        Args:
            patience: seconds to wait for other threads and processes: the event loop stands still meanwhile.

        Raises:
            Busy: if others use the database.
            Unreachable: if it cannot be used.
        """
        if not patience:
            return self._now(step)
        end = time.monotonic() + patience
        while True:
            try:
                return self._now(step)
            except Busy:
                if time.monotonic() > end:
                    raise
                time.sleep(_SPIN_PAUSE)

    def _now(self, step: Step[T]) -> T:
        if not self._lock.acquire(blocking=False):
            raise Busy("another thread uses it")
        try:
            if self._inline is None or self.page.is_retired:
                raise _ForKeeperError
            if self._keeper is None:
                self._start()
            if self.pending:
                if len(self.pending) > _FEW:
                    raise _ForKeeperError
                self._deliver(self._inline)
            return step(self._inline)
        except Unwritable as error:
            raise Unreachable(str(error)) from error
        except Damaged as error:
            self.later(_nothing, is_damaged=self.page)
            raise Unreachable(str(error)) from error
        finally:
            self._lock.release()

    def later(self, step: Step[T], *, is_damaged: SharedPage | None = None) -> Future[T]:
        """Have the keeper run a step: it waits for others no longer than the timeout. Its future has `Unreachable` if
        that fails.
        """
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if is_damaged is not None:
                    self._replace(is_damaged)
                future.set_result(self._patiently(step))
            except BaseException as error:  # noqa: BLE001 - passed on
                future.set_exception(error if isinstance(error, Unreachable) else Unreachable(str(error)))

        self._jobs.put(work)
        self._start()
        return future

    async def run(self, step: Step[T], *, patience: float = 0.0) -> T:
        """Run a step in this thread: again and again, while others use the database, for as long as the timeout.

        It is not left to the keeper, which would hold the write lock for longer: between two statements another thread
        may take the interpreter for 5 ms.

        Args:
            patience: as `now`.

        Raises:
            Unreachable: if it cannot be used.
        """
        started = time.monotonic()
        end = started + self.timeout if started > self._patient_after else started
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return self.now(step, patience=patience)
            except _ForKeeperError:
                return await asyncio.wrap_future(self.later(step))
            except Busy as error:
                now = time.monotonic()
                if now + pause > end:
                    self._patient_after = now + self.timeout  # others do not wait until then
                    raise Unreachable(f"another process has locked it: {error}") from error
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)

    def soon(self, step: Step[object]) -> None:
        """Run a step that nobody waits for, and that may fail: in this call if that is possible at once."""
        try:
            self.now(step)
        except Busy:
            self.later(step)
        except Unreachable:
            pass

    def write(self, key: str, step: Step[object]) -> Awaitable[Unreachable | None] | None:
        """Write an invalidation into the database, in this call if that is possible at once. One that cannot be
        written is pending, and nobody uses the database until it is written.

        Returns:
            None if it is written; else what gives, when it is awaited, why it is pending, or None. If nobody awaits it,
            the keeper writes it.
        """
        try:
            self.now(step, patience=_SPIN)
        except Busy:
            self._unfinished[key] = step, time.monotonic()
            self._start()
            return self._finish(key, step)
        except Unreachable as error:
            self.pend(key, step, error)
            return _failed(error)
        self._unfinished.pop(key, None)  # maybe an announcement whose caller was cancelled
        return None

    async def _finish(self, key: str, step: Step[object]) -> Unreachable | None:
        try:
            await self.run(step)
        except Unreachable as error:
            self.pend(key, step, error)
            self._forget_unfinished(key, step)
            return error
        self._forget_unfinished(key, step)
        return None

    def _forget_unfinished(self, key: str, step: Step[object]) -> None:
        if self._unfinished.get(key, (None,))[0] is step:
            self._unfinished.pop(key, None)

    def _finish_abandoned(self, database: Database) -> None:
        """Write what nobody has waited for: its event loop has ended, or its task was cancelled."""
        for key, (step, since) in list(self._unfinished.items()):
            if time.monotonic() > since + 2 * self.timeout:
                step(database)  # it may be repeated, so it does not matter if another thread is just at it
                self._forget_unfinished(key, step)

    def pend(self, key: str, step: Step[object], reason: object) -> None:
        """Keep an invalidation until it can be written."""
        with self._pending_lock:
            self.pending[key] = step
            if len(self.pending) > _MAX_PENDING:  # all values are invalidated, instead of each
                self.pending.clear()
                self.pending[""] = Database.clear
            self.page.suspend(self.number, len(self.pending))
        self.log.once("an invalidation could not be written, so nobody uses the file until it is", reason)
        self._start()

    def _deliver(self, database: Database) -> None:
        """Write the pending invalidations."""
        for key, step in list(self.pending.items()):
            step(database)
            with self._pending_lock:
                if self.pending.get(key) is step:
                    del self.pending[key]
        with self._pending_lock:
            self.page.suspend(self.number, len(self.pending))
        database.resume(self._held_until, self.lease)
        self.log.allow_again("an invalidation could not be written, so nobody uses the file until it is")

    def note_use(self, entry: int) -> None:
        """Note that a value was found. It is written later, together with others."""
        if len(self._uses) < _MAX_USES:
            self._uses[entry] = int(time.time())

    def note_stored(self, stored: int, size: int) -> None:
        """Have values evicted, or the log moved into the database, now and not at the next look, if it is time.

        Args:
            stored: bytes of the value that this process has stored.
            size: bytes of all values.
        """
        self._logged += stored
        if (size > self.max_bytes or self._logged > _LONG_LOG) and self._look_after_at:
            self._logged = 0
            self._look_after_at = 0.0
            self._jobs.put(_no_job)
            self._start()

    # The keeper

    def _start(self) -> None:
        if self._keeper is None or not self._keeper.is_alive():
            with _opened_lock:
                if self._keeper is None or not self._keeper.is_alive():
                    self._keeper = threading.Thread(target=_keep, args=(weakref.ref(self), self._jobs), daemon=True)
                    self._keeper.name = "agent_cache keeps a file"
                    self._keeper.start()

    def start(self) -> None:
        """Start the keeper, which passes on messages."""
        self._start()

    def _patiently(self, step: Step[T]) -> T:
        """Run a step on the keeper's connection, again and again while others hold the lock."""
        now = time.monotonic()
        end = now + self.timeout if now > self._patient_after else now
        pause = 0.0002
        while True:
            try:
                with self._keeping:
                    database = self._reopened()
                    if self.pending:
                        self._deliver(database)
                    return step(database)
            except Busy as error:
                if time.monotonic() + pause > end:
                    self._patient_after = time.monotonic() + self.timeout  # others do not wait until then
                    raise Unreachable(f"another process has locked it: {error}") from error
            except Unwritable as error:
                raise Unreachable(str(error)) from error
            except Damaged as error:
                self._replace(self.page)
                raise Unreachable(str(error)) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _reopened(self) -> Database:
        """The keeper's connection, opened anew after a fork, and if the files were replaced."""
        if self._kept is None or self.page.is_retired:
            former = self.page
            now = time.monotonic()
            if self._is_unusable:
                raise Unreachable("this process was forked while a thread was writing to the file")
            if self._count <= 0 or now < self._open_after:
                raise Unreachable("the files cannot be opened again")
            self._close()
            try:
                self._open(self.timeout)
            except (ConfigurationError, OSError, TimeoutError, sqlite3.Error, Busy, Damaged, Unwritable) as error:
                self._open_after = now + self.timeout
                self.log.once(_NOT_OPENED, error)
                raise Unreachable(str(error)) from error
            if former.is_retired:
                for user in list(self.users):
                    user.lose()
        assert self._kept is not None
        return self._kept

    def _replace(self, damaged: SharedPage) -> None:
        """Set a damaged database aside, unless another process has done so."""
        if damaged is not self.page or damaged.is_retired:
            return
        self.log.once("the database is damaged; it is set aside, and a new one is begun")
        self._close()
        try:
            with self._locks.opening(self.timeout):  # type: ignore[union-attr]  # a page was opened
                if not damaged.is_retired:
                    damaged.retire()
                    _set_aside(self.path, _beside(self.path, ".page"))
        except (OSError, TimeoutError) as error:
            self.log.once("the damaged database cannot be set aside", error)

    def look_after(self) -> None:
        """What the keeper does from time to time: pass on messages, and now and then look after the files."""
        with self._keeping:
            self._look_after()

    def _look_after(self) -> None:
        for user in list(self.users):
            user.look(self._reopened())
        now = time.monotonic()
        if now < self._look_after_at:
            return
        self._look_after_at = now + _LOOK_AFTER
        if not self.page.is_retired:
            if _are_changed(self._identities):
                self.log.once("the files were deleted or replaced by somebody else, so they are made anew")
                self.page.retire()
            elif _are_changed(self._logs) and self._kept is not None:
                raise Damaged("its log was deleted or replaced by somebody else")
        database = self._reopened()
        self._finish_abandoned(database)
        if self.pending:
            self._deliver(database)
        elif not self.page.is_usable:
            _insist(partial(database.resume, self._held_until, self.lease))
        _insist(database.settle)
        uses, self._uses = self._uses, {}
        if uses:
            _insist(partial(database.note_uses, uses))
        _insist(database.recover)
        limit = int(0.9 * self.max_bytes)
        if database.size() > self.max_bytes:
            while _insist(partial(database.evict, limit)) > limit:
                pass
        if now > self._prune_at:
            self._prune_at = now + _PRUNE
            _insist(database.prune)
        if now > self._report_at:
            self._report_at = now + _REPORT
            self._report(database)
        wal = _beside(self.path, "-wal")
        length = wal.stat().st_size if wal.exists() else 0
        if length > _LONG_LOG:
            database.checkpoint()
        if length > _TOO_LONG_LOG:
            database.empty_log(_LOG_PATIENCE)

    def _report(self, database: Database) -> None:
        """Write what this process has counted, if that has changed: for `agent-cache stats`."""
        report = os.getpid(), self.max_bytes, report_text()
        if report != self._reported:
            database.report(*report)
            self._reported = report

    def note_damage(self) -> None:
        """Replace the database that the keeper has found damaged."""
        self._replace(self.page)

    def close_quietly(self) -> None:
        """Close what is open, when nothing uses it any more. What is pending is tried once more."""
        try:
            if self.pending and self._kept is not None:
                self._deliver(self._kept)
        except (Busy, Damaged, Unwritable) as error:
            self.log.once("closed before all invalidations were written; the values in the file are dropped", error)
        self.close()

    def end_keeper(self) -> None:
        """Let another keeper be started, and do what was asked of this one after its end: it fails."""
        with _opened_lock:
            self._keeper = None
            is_closed, self._is_closed = self._is_closed, Future()
        is_closed.set_result(None)
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if not isinstance(job, _End):
                job()


async def _failed(error: Unreachable) -> Unreachable:
    return error


def _insist(step: Callable[[], T]) -> T:
    """Do a step although others write nearly all the time: the bounds of the file depend on it."""
    for _ in range(_TRIES):
        try:
            return step()
        except Busy:
            time.sleep(_TRY_PAUSE)
    return step()


class _End:
    """Tells the keeper to close the files. It keeps them until then: nothing else may."""

    def __init__(self, files: OpenFiles) -> None:
        self.files = files

    def __call__(self) -> None:
        self.files.close_quietly()
        self.files.end_keeper()


def _nothing(_: Database) -> None:
    """A step that does nothing."""


def _keep(reference: weakref.ref[OpenFiles], jobs: queue.SimpleQueue[Callable[[], None]]) -> None:
    """The body of the keeper's thread. It ends with its files."""
    while True:
        job: Callable[[], None]
        try:
            job = jobs.get(timeout=_PERIOD)
        except queue.Empty:
            job = _no_job
        if isinstance(job, _End):
            job()
            return
        files = reference()
        if files is None:
            return
        job()
        try:
            files.look_after()
        except (Busy, Unwritable, Unreachable, OSError):
            pass  # the next time
        except Damaged:
            files.note_damage()
        except Exception as error:  # noqa: BLE001 - all calls that have to wait depend on this thread
            files.log.once("the files could not be looked after", error)
        del files, job


def _no_job() -> None:
    """Stands for a job when the time for one is over."""


_opened: dict[Path, OpenFiles] = {}
_opened_lock = threading.RLock()
_making = threading.Lock()
"""Is held while a database is opened for the first time, and during a fork. Who holds another lock does not take it."""
_inherited: list[Any] = []
"""Connections of a parent process, which a child must not even close."""


def open_files(path: Any, *, timeout: float, max_bytes: int) -> OpenFiles:
    """The files at a path, opened once in a process. Of several tiers the smallest bounds count.

    Raises:
        ConfigurationError: if they cannot be there.
    """
    place = checked_path(path)
    with _making, _opened_lock:
        files = _opened.get(place)
        if files is None:
            try:
                files = _opened[place] = OpenFiles(place, timeout, max_bytes)
            except (OSError, TimeoutError, sqlite3.Error, Damaged, Unwritable, Busy) as error:
                raise ConfigurationError(f"FileTier: {str(place)!r} cannot be opened: {error}") from error
        files.max_bytes = min(files.max_bytes, max_bytes)
        files.timeout = min(files.timeout, timeout)
        return files


_ends_of_fork: list[Callable[[], None]] = []


def _before_fork() -> None:
    lock = _making
    if lock.acquire(timeout=_FORK_PATIENCE):
        _ends_of_fork.append(lock.release)
    _ends_of_fork.extend([files.before_fork() for files in list(_opened.values())])


def _after_fork_in_parent() -> None:
    while _ends_of_fork:
        _ends_of_fork.pop()()


def _after_fork() -> None:
    global _opened_lock, _making
    _opened_lock, _making = threading.RLock(), threading.Lock()
    _ends_of_fork.clear()
    for files in _opened.values():
        files.after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
