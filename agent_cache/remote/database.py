"""The backend of a file: versions, holds, values and the feed in one SQLite database, and a page of memory beside it.

The page is a small file that all processes map: 64-bit words. The first is the number of the newest step, the second
the token of its database, and the others are marks: "an invalidation of mine is not in the database, up to this time".

- A step stores its number into the page *inside its transaction*, before the commit: the holder of SQLite's lock is
  the only one who raises it. A hit compares the page with the number of the last step that this process has applied.
  So a page ahead of the rows costs a look, and never an answer. If it stays ahead, because a writer was killed, whoever
  looks commits an empty step; if nobody does before the file is opened again, its values are dropped, as it may be an
  older copy. (Stored after the commit, a writer that is killed in between leaves others stale.)
- A step that cannot be noted: the process sets a mark before the effect, and then the number to one that nobody has.
  Nobody uses the file while there is a mark. The process sets it anew until the step is noted. One whose time has
  passed is of a process that has died: everything is held for a lease, and counts as written.
- The feed is read in autocommit, on a connection that nobody else uses, so that no snapshot is older than the page.
- The token tells a database from others that were at its path: a value names that of its own.

`tests/properties/file_feed.py` explores each of these rules, with kills at every step.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import sqlite3
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agent_cache.clock import CLOCK
from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import ARMED, HELD, IDLE, Reading, Refused, State, open_head
from agent_cache.remote.cells import EVERYTHING, STORE, Cell, SomeCells
from agent_cache.remote.feed import LOST, Log, News

__all__ = ["SqliteBackend", "beside", "require_ours"]

_LEFT_AS_IT_IS: Final = "it is left as it is: name another file"
_APPLICATION: Final = 0x61676361
_FORMAT: Final = 5
"""SQLite's ``application_id`` of our files, and its ``user_version``: the version of the tables."""
_KEPT_MESSAGES: Final = 10_000
_MOST_CELLS: Final = 200_000
_LOOK_AFTER: Final = 0.5
"""Seconds between two looks at the files: that they were replaced is noticed within a second."""
_AHEAD: Final = 0.01
"""Seconds that the page may be ahead of the rows before whoever looks commits an empty step."""

_SCHEMA: Final = """
create table meta (name text primary key, value integer) without rowid;
insert into meta values ('floor', 1), ('bytes', 0);
create table cell (name text primary key, number integer) without rowid;
create table hold (cell text, writer text, mode integer, deadline real, primary key (cell, writer)) without rowid;
create index hold_ends on hold (deadline);
create table value (
    address text primary key, head blob, payload blob, ends real, stored real, size integer, space text
) without rowid;
create index value_stored on value (stored);
create index value_ends on value (ends);
create trigger value_comes after insert on value begin
    update meta set value = value + new.size where name = 'bytes'; end;
create trigger value_goes after delete on value begin
    update meta set value = value - old.size where name = 'bytes'; end;
create table feed (number integer primary key, space text, message blob);
insert into feed values (1, '', x'');
create table claim (name text primary key, who text, deadline real) without rowid;
create table ttl (tool text primary key, ttl real) without rowid;
"""

_STATES: Final = """
select asked.value,
    coalesce((select number from cell where name = asked.value), (select value from meta where name = 'floor')),
    coalesce((select max(mode) from hold where cell = asked.value), 0), (select min(deadline) from hold)
from json_each(?) as asked
"""

_STARTED: Final = time.time() - time.monotonic()


def _wall_time() -> float:
    """The time of day, which processes compare, also after a restart. It moves with a clock that a test replaces."""
    now = CLOCK.now
    return time.time() if now is time.monotonic else _STARTED + now()


def _is_damage(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and (
        (code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
        or code == sqlite3.SQLITE_IOERR_SHORT_READ
        or str(error).startswith(("no such table", "no such column", "no such row"))
    )


def beside(path: Path, suffix: str) -> Path:
    """A file beside the database."""
    return path.with_name(path.name + suffix)


def _identity_of(place: Path | int) -> tuple[int, int] | None:
    """What tells a file from others at its path; None without one."""
    try:
        found = os.fstat(place) if isinstance(place, int) else place.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# The page

_NOBODYS: Final = (1 << 62) - 1
"""A number that no step has."""
_WORDS: Final = 256
_MARKS: Final = range(2, _WORDS)
_CLEAN: Final = bytes(8 * len(_MARKS))


class _Page:
    """The page of a database, with the mark of one process. Made under SQLite's lock of writers."""

    def __init__(self, path: Path, token: int, number: int) -> None:
        fd = _opened_page(path, token)
        try:
            self.identity = token, _identity_of(fd)
            self._map = mmap.mmap(fd, 8 * _WORDS)
        finally:
            os.close(fd)
        self.word = memoryview(self._map).cast("Q")
        self.is_new = self.word[0] == 0
        if self.is_new:
            self.word[0] = number
        self._slot, self._mark = secrets.choice(_MARKS), 0

    def is_clean(self) -> bool:
        """Whether nobody has an invalidation that is not in the database."""
        return self._map[16:] == _CLEAN

    def mark(self, until: float) -> None:
        """Say that an invalidation of this process is missing up to this time, or with 0 that none is."""
        if until:
            free = (slot for slot in (self._slot, *_MARKS) if self.word[slot] in (0, self._mark))
            self._slot, self._mark = next(free, self._slot), int(until * 1e6)
            self.word[self._slot] = self._mark
            self.word[0] = _NOBODYS  # after the mark: who compares looks at the marks
        elif self._mark:
            self.clear([(self._slot, self._mark)])
            self._mark = 0

    def late(self, now: float) -> list[tuple[int, int]]:
        """The marks whose time has passed."""
        return [(slot, mark) for slot in _MARKS if 0 < (mark := self.word[slot]) <= now * 1e6]

    def clear(self, marks: Iterable[tuple[int, int]]) -> None:
        """Take back marks that are still there."""
        for slot, mark in marks:
            if self.word[slot] == mark:
                self.word[slot] = 0


def _opened_page(path: Path, token: int) -> int:
    place = beside(path, ".page")
    with suppress(FileNotFoundError):
        fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        size, head = os.fstat(fd).st_size, os.pread(fd, 16, 0)
        if size == 8 * _WORDS and struct.unpack("QQ", head)[1] == token:
            return fd
        if size >= 8:
            os.pwrite(fd, struct.pack("Q", _NOBODYS), 0)  # nobody goes on with the page of another database
        os.close(fd)
    made = beside(path, f".page-{secrets.token_hex(4)}")
    fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, struct.pack("QQ", 0, token) + _CLEAN)
        made.replace(place)
    except BaseException:
        os.close(fd)
        made.unlink(missing_ok=True)
        raise
    return fd


# The backend


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """A database that is open, the connection for the feed, and which files these are."""

    page: _Page
    db: sqlite3.Connection
    feed_db: sqlite3.Connection
    token: int
    identities: dict[Path, tuple[int, int] | None]


class SqliteBackend:
    """A `Backend` in a file. None of its methods waits for anything but the file.

    Args:
        path: checked, see `FileTier`.
        timeout: seconds that a call waits for a file that others have locked; calls after it do not wait, until one has
            succeeded.
        lease: seconds that a mark counts, and for which everything is held when its process has died.
        max_bytes: bytes of all values.
        namespace: of the tier. Others in the file have entries and messages of their own, and the same roots.

    Attributes:
        page: None while the files are not open; `followed`: that of the last answer of `feed`.
        look_by: the clock reading by which the files are to be looked at again.
        is_missing: whether an invalidation of this process is missing in them.
        is_over: whether it was closed, by the end of the program perhaps.
        inherited: what the parent had open when it forked without telling Python of it.
    """

    def __init__(self, path: Path, *, timeout: float, lease: float, max_bytes: int, namespace: str) -> None:
        self.path = path
        self.page: _Page | None = None
        self.look_by = 0.0
        self.log = Log(f"FileTier({str(path)!r})")
        self._timeout = timeout
        self._lease = lease
        self._max_bytes = max_bytes
        self._namespace = namespace
        self._is_slow = self.is_missing = self.is_over = False
        self._opened: _Opened | None = None
        self.inherited: _Opened | None = None
        self.followed: _Page | None = None
        self._identity: tuple[int, int] | None = None
        self._ahead: tuple[int, float] = (0, 0.0)
        self._lock = threading.RLock()

    # Opening

    def open(self) -> None:
        """Open the files, if they are not.

        Raises:
            ConfigurationError: if what is there is not ours.
            sqlite3.Error, OSError: for a reason that may pass.
        """
        with self._lock:
            for _ in range(3):
                if self._opened is not None:
                    return
                if self.is_over:
                    raise Refused("the tier was closed")
                try:
                    self._opened = self._open()
                except BaseException as error:
                    if not _is_damage(error):
                        self._is_slow = True
                        raise
                    self._set_aside()
            if self._opened is None:
                raise Refused("it is damaged again and again")

    def _open(self) -> _Opened:
        path = self.path
        if not path.exists():
            with self._alone():
                if not path.exists():  # else another process has made it meanwhile, and uses what is beside it
                    # SQLite would take what is left of a deleted database for this one's.
                    for suffix in ("-wal", "-shm"):
                        beside(path, suffix).unlink(missing_ok=True)
                    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._identity = _identity_of(path)  # before it is opened: another process may replace it meanwhile
        with ExitStack() as stack:
            db = stack.enter_context(closing(self._connect(0.0 if self._is_slow else self._timeout)))
            is_new = not require_ours(db, path)
            if is_new:
                _make(db, path)
            with _immediate(db):
                token = _meta(db, "token")
                page = self._page_of(db, token, is_new=is_new)
            feed_db = stack.enter_context(closing(self._connect(0.0)))
            places = [beside(path, suffix) for suffix in (".page", "-wal", "-shm")]
            identities = {path: self._identity, **{place: _identity_of(place) for place in places}}
            self.look_by = time.monotonic() + _LOOK_AFTER
            stack.pop_all()
            return _Opened(page, db, feed_db, token, identities)

    def _page_of(self, db: sqlite3.Connection, token: int, *, is_new: bool) -> _Page:
        if self.page is None or self.page.identity != (token, _identity_of(beside(self.path, ".page"))):
            former, self.page = self.page, None
            if former is not None:
                former.word[0] = _NOBODYS  # copies are trusted by it, here and where it is still used
            self.page = _Page(self.path, token, _newest(db))
            self.mark(is_missing=self.is_missing)
            if self.page.is_new and not is_new:  # whose invalidations were missing in the former one nobody knows
                self._step(db, (EVERYTHING,), LOST)
        self._drop_older(db, self.page.word[0])
        return self.page

    def _drop_older(self, db: sqlite3.Connection, number: int) -> None:
        """Drop all values if a step up to this one is missing: the database is an older copy of itself."""
        if _newest(db) < number < _NOBODYS:
            db.execute("insert into feed values (?, '', x'')", (number,))  # no number is used again
            self._step(db, (EVERYTHING,), LOST)

    def _connect(self, timeout: float) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            db.execute("pragma synchronous = normal")
            db.execute("pragma trusted_schema = off")
            db.execute("pragma temp_store = memory")
            db.execute("pragma journal_size_limit = 33554432")
        except BaseException:
            db.close()
            raise
        return db

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.db.close()
            opened.feed_db.close()

    def _set_aside(self) -> None:
        """Replace a damaged database, unless another process has: nobody trusts copies of its values any more, then it
        goes.
        """
        with self._alone():
            if _identity_of(self.path) != self._identity:
                return
            if not beside(self.path, ".page").exists():  # it never was a tier's
                raise ConfigurationError(f"FileTier: {str(self.path)!r} is not a database of SQLite; {_LEFT_AS_IT_IS}")
            self.log.once("the database is damaged; it is set aside, and a new one is begun")
            with suppress(OSError), beside(self.path, ".page").open("r+b", buffering=0) as page:
                page.write(struct.pack("Q", _NOBODYS))
            for suffix in ("-shm", ".page"):
                beside(self.path, suffix).unlink(missing_ok=True)
            for suffix in ("-wal", ""):  # the database last: from then on another process makes a new one
                with suppress(FileNotFoundError):
                    beside(self.path, suffix).replace(beside(self.path, f".corrupt{suffix}"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Make or replace a database while no other process does, if its folder can be locked."""
        with ExitStack() as stack:
            with suppress(OSError):
                stack.callback(os.close, locks := os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC))
                fcntl.flock(locks, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, of files that were not replaced. What it raises is an outage."""
        with self._lock:
            try:
                if self._opened is None or time.monotonic() >= self.look_by:
                    self.look_by = time.monotonic() + _LOOK_AFTER
                    known = {} if self._opened is None else self._opened.identities
                    if any(_identity_of(place) != identity for place, identity in known.items()):
                        self.log.once("the files were deleted or replaced by somebody else, so they are made anew")
                        self._disconnect()
                    self.open()
                assert self._opened is not None
                yield self._opened.db
            except (sqlite3.Error, OSError, ConfigurationError) as error:  # somebody may have put something else there
                if _is_damage(error):
                    self._disconnect()
                    with suppress(OSError, ConfigurationError):
                        self._set_aside()
                raise Refused(str(error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds SQLite's lock of writers, in which the writers have ended whose lease has passed."""
        with self._using() as db:
            try:
                with _immediate(db):
                    self._wait_for_locks(db, self._timeout)
                    self._expire(db)
                    yield db
            except sqlite3.OperationalError:
                self._wait_for_locks(db, 0)
                raise

    def _wait_for_locks(self, db: sqlite3.Connection, timeout: float) -> None:
        """Let calls wait for locks, or not after one has waited in vain."""
        if self._is_slow == bool(timeout):
            self._is_slow = not timeout
            db.execute(f"pragma busy_timeout = {int(timeout * 1000)}")

    def require_clean(self) -> None:
        """Raise if anybody has missing invalidations. Those of dead processes are made up for."""
        page = self.page
        if page is None or page.is_clean():
            return
        if late := page.late(_wall_time()):
            with self._transaction() as db:
                row = (EVERYTHING, secrets.token_hex(8), HELD, _wall_time() + self._lease)
                db.execute("insert into hold values (?, ?, ?, ?)", row)
                self._step(db, (EVERYTHING,), LOST)
            page.clear(late)
        if not page.is_clean():
            raise Refused("invalidations are missing in it")

    # Steps

    def _step(self, db: sqlite3.Connection, moved: Iterable[Cell], message: bytes) -> int:
        space = "" if message == LOST else self._namespace
        # SQLite gives it the number after the newest one, which is never deleted.
        number = db.execute("insert into feed (space, message) values (?, ?)", (space, message)).lastrowid or 0
        db.executemany("replace into cell values (?, ?)", [(name, number) for name in moved])
        if number % 256 == 0:
            self._prune(db, number)
        if self.page is not None:
            self.page.word[0] = number  # before the commit, under the lock: in order, and never one too few
        return number

    def _prune(self, db: sqlite3.Connection, number: int) -> None:
        db.execute("delete from feed where number <= ?", (number - _KEPT_MESSAGES,))
        if db.execute("select count(*) from cell").fetchone()[0] > _MOST_CELLS:
            middle = "select number from cell order by number limit 1 offset ?"
            ((cut,),) = db.execute(middle, (_MOST_CELLS // 2,)).fetchall()
            db.execute("delete from cell where number <= ?", (cut,))  # what is forgotten reads as written just now
            db.execute("update meta set value = ? where name = 'floor'", (number,))

    def _expire(self, db: sqlite3.Connection) -> None:
        dead = db.execute("delete from hold where deadline <= ? returning cell", (_wall_time(),)).fetchall()
        if dead:
            self._step(db, [name for (name,) in dead], b"")

    def _register(self, db: sqlite3.Connection, writer: str, held: SomeCells, armed: SomeCells, lease: float) -> None:
        ends = _wall_time() + lease
        rows = [(cell, writer, mode, ends) for mode, cells in ((HELD, held), (ARMED, armed)) for cell in cells]
        db.executemany("replace into hold values (?, ?, ?, ?)", rows)

    async def begin(
        self, writer: str, held: SomeCells, armed: SomeCells, lease: float, message: bytes, *, renew: bool = False
    ) -> int:
        with self._transaction() as db:
            ends = _wall_time() + lease
            if renew and db.execute("update hold set deadline = ? where writer = ?", (ends, writer)).rowcount:
                return 0
            self._register(db, writer, held, armed, lease)
            return self._step(db, held, message)

    async def commit(self, writer: str, moved: SomeCells, hold: float, message: bytes) -> int:
        with self._transaction() as db:
            db.execute("delete from hold where writer = ?", (writer,))
            if hold:
                self._register(db, writer, moved, (), hold)
            return self._step(db, moved, message)

    async def set_ttl(self, tool: str, ttl: float | None, message: bytes) -> int:
        with self._transaction() as db:
            db.execute("delete from ttl where tool = ?", (tool,))
            if ttl is not None:
                db.execute("insert into ttl values (?, ?)", (tool, ttl))
            return self._step(db, (), message)

    async def ttls(self) -> dict[str, float]:
        with self._using() as db:
            return dict(db.execute("select tool, ttl from ttl").fetchall())

    # Values

    async def read(self, cells: SomeCells, address: Cell | None) -> Reading:
        self.require_clean()
        with self._using() as db:
            now, head, raw_head, payload = _wall_time(), None, b"", b""
            # The value first: cells that have its versions after that had them before. Each statement reads one state.
            if address is not None:
                found = db.execute("select head, payload, ends from value where address = ?", (address,)).fetchone()
                if found is not None and (found[2] is None or found[2] > now):
                    raw_head, payload, _ = found
                    head = open_head(raw_head)
            names = msgspec.json.encode([*{*cells, *(() if head is None else head.versions)}]).decode()
            rows = db.execute(_STATES, (names,)).fetchall()
            if any(ends is not None and ends <= now for *_, ends in rows[:1]):
                with self._transaction():
                    pass  # which ends it
                rows = db.execute(_STATES, (names,)).fetchall()
            states: dict[Cell, State] = {name: (number, mode) for name, number, mode, _ in rows}
            assert self._opened is not None
            states[STORE] = self._opened.token, IDLE
        self.require_clean()
        return Reading(states, now, head, raw_head, payload)

    async def put(self, address: Cell, head: bytes, payload: bytes, *, keep: float | None) -> None:
        self.require_clean()
        with self._transaction() as db:
            now, size = _wall_time(), len(head) + len(payload)
            db.execute("delete from value where address = ?", (address,))
            row = (address, head, payload, None if keep is None else now + keep, now, size, self._namespace)
            db.execute("insert into value values (?, ?, ?, ?, ?, ?, ?)", row)
            if _meta(db, "bytes") > self._max_bytes:
                db.execute("delete from value where ends <= ?", (now,))
            while _meta(db, "bytes") > self._max_bytes:
                db.execute("delete from value where address in (select address from value order by stored limit 8)")

    async def values(self) -> AsyncIterator[list[tuple[Cell, bytes, int, float | None]]]:
        """All values, some at a time: address, head, size, and seconds until it ends."""
        with self._using() as db:
            statement = "select address, head, size, ends from value where space = ? order by address"
            rows = db.execute(statement, (self._namespace,)).fetchall()
        now = _wall_time()
        for start in range(0, len(rows), 200):
            yield [(*facts, None if ends is None else ends - now) for *facts, ends in rows[start : start + 200]]

    async def clear(self) -> int:
        with self._transaction() as db:
            count = db.execute("delete from value").rowcount
            self._step(db, (EVERYTHING,), LOST)
            return count

    async def claim(self, name: str, who: str, lease: float) -> str:
        with self._transaction() as db:
            now = _wall_time()
            db.execute("delete from claim where deadline <= ?", (now,))
            owner = db.execute("select who from claim where name = ?", (name,)).fetchone()
            if owner is not None and owner[0] != who:
                return str(owner[0])
            db.execute("replace into claim values (?, ?, ?)", (name, who, now + lease))
            return who

    # The feed

    async def feed(self, since: int | None) -> News:
        opened = self._opened
        is_due = opened is None or time.monotonic() >= self.look_by or opened.page.word[0] == _NOBODYS
        if is_due:
            self.look_by = 0.0  # SQLite may answer for a database that was set aside, out of its memory
            with self._using():
                opened = self._opened
        if opened is None:
            raise Refused("the files are not open")
        page, db = opened.page, opened.feed_db  # of one database, whatever another thread opens meanwhile
        self.require_clean()
        try:
            rows: Sequence[tuple[int, str, bytes]] = ()
            newest, is_whole = since, True
            if since is not None and (is_due or page.word[0] != since):
                # With the last known one: that it is there says in the same statement that none is missing behind it.
                statement = "select number, space, message from feed where number >= ? order by number"
                rows = db.execute(statement, (since,)).fetchall()
                newest = rows[-1][0] if rows else None
                is_whole = bool(rows) and rows[0][0] == since
            if newest is None:
                newest = _newest(db)
                if since is not None and newest < since and self.followed is page:
                    with self._transaction() as own_db:
                        self._drop_older(own_db, since)
                    newest = _newest(db)
        except sqlite3.Error as error:
            if _is_damage(error):
                with self._using():
                    raise
            raise Refused(str(error)) from error
        self.require_clean()  # again: a row may have been stored over the number that nobody has
        if page.word[0] != newest:
            self._repair(page, newest)
        if page.word[0] == _NOBODYS:
            raise Refused("its database may be replaced just now")
        own = "", self._namespace
        messages = [(number, message if space in own else b"") for number, space, message in rows[1:]]
        self.followed = page
        return News(str(opened.token), newest, messages if is_whole else None)

    def _repair(self, page: _Page, newest: int) -> None:
        """The page is ahead of the rows: a step is being committed, or was never."""
        now, word = time.monotonic(), page.word[0]
        if self._ahead[0] != word:
            self._ahead = word, now + _AHEAD
        elif now > self._ahead[1] and page.word[0] == word:
            with suppress(ConnectionError), self._transaction() as db:
                if _newest(db) == newest:
                    self._step(db, (), b"")

    def mark(self, *, is_missing: bool) -> bool:
        """Say in the page whether an invalidation is missing, for a lease, and in each that takes its place.

        Returns:
            Whether that could be said.
        """
        self.is_missing = is_missing
        if self.page is not None:
            self.page.mark(_wall_time() + self._lease if is_missing else 0)
        return self.page is not None

    # End, and forks

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open. May be repeated."""
        with self._lock:
            self.is_over = True
            self._disconnect()
            self.page = self.followed = None

    def before_fork(self) -> Callable[[], None]:
        """Close the connections, which must not be carried across a fork (https://sqlite.org/howtocorrupt.html, 2.6).

        Returns:
            What the parent does after it.
        """
        self._lock.acquire()
        self._disconnect()
        return self._lock.release

    def after_fork(self) -> None:
        """In the child, which is another process. What the parent has open, if it had no `before_fork`, is kept: to
        close it would harm the parent. The file cannot be used here then.
        """
        self._lock = threading.RLock()
        self.is_missing = False
        self.page = None  # a child has a mark of its own
        self.inherited, self._opened = self._opened or self.inherited, None


@contextmanager
def _immediate(db: sqlite3.Connection) -> Iterator[None]:
    """A transaction that holds SQLite's lock of writers."""
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("rollback")
        raise


def _newest(db: sqlite3.Connection) -> int:
    return int(db.execute("select coalesce(max(number), 0) from feed").fetchone()[0])


def _meta(db: sqlite3.Connection, name: str) -> int:
    for (value,) in db.execute("select value from meta where name = ?", (name,)).fetchall():
        return int(value)
    raise sqlite3.DatabaseError("no such row: somebody has emptied the tables")


def require_ours(db: sqlite3.Connection, path: Path) -> bool:
    """Whether a database is a tier's; False if it is empty.

    Raises:
        ConfigurationError: if it is another program's, or of another version.
    """
    db.execute("begin")  # all of one moment: another process may be making it
    found = db.execute("select * from pragma_application_id, pragma_user_version").fetchone()
    ((tables,),) = db.execute("select count(*) from sqlite_master").fetchall()
    db.execute("commit")
    if found != (_APPLICATION, _FORMAT) and (tables or found != (0, 0)):
        raise ConfigurationError(
            f"FileTier: {str(path)!r} is a database of another program, or of another version of agent-cache; "
            f"{_LEFT_AS_IT_IS}"
        )
    return bool(tables)


def _make(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new database."""
    path.chmod(0o600)  # if it was there, empty; SQLite gives the log the same rights
    db.execute("pragma page_size = 2048")  # what a write changes is spread over a handful, all of which go into the log
    ((mode,),) = db.execute("pragma journal_mode = wal").fetchall()
    if mode != "wal":
        raise ConfigurationError(f"FileTier: SQLite cannot keep a write-ahead log beside {str(path)!r}")
    with _immediate(db):
        if not db.execute("select count(*) from sqlite_master").fetchone()[0]:
            for statement in _SCHEMA.split(";\n"):
                db.execute(statement)
            db.execute("insert into meta values ('token', ?)", (secrets.randbits(62) | 1,))
            db.execute(f"pragma application_id = {_APPLICATION}")
            db.execute(f"pragma user_version = {_FORMAT}")
