"""The backend of a file: versions, holds, values and the feed in one SQLite database, and a page of memory beside it.

- A step stores its number into the page *inside its transaction*, before the commit: the holder of SQLite's lock is
  the only one who raises it. A hit compares the page with the number of the last step that this process has applied.
  So a page ahead of the rows costs a look, and never an answer. If it stays ahead, because a writer was killed, whoever
  looks commits an empty step. (Stored after the commit, a writer that is killed in between leaves others stale.)
- A step that cannot be noted: the process sets its byte before the effect, and then the number to one that nobody has.
  Nobody uses the file while any byte is set. Each process locks its byte of a lock file; a byte whose lock is free is
  of a process that has died: everything is held for a lease, and counts as written.
- The feed is read in autocommit, on a connection that nobody else uses, so that no snapshot is older than the page.
- The token tells a database from others that were at its path: tickets of another one store nothing.

`tests/properties/file_feed.py` explores each of these rules, with kills at every step.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from agent_cache.clock import CLOCK
from agent_cache.core.store import NEVER
from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import ARMED, HELD, IDLE, Reading, Refused, State, open_head
from agent_cache.remote.cells import EVERYTHING, STORE, Cell
from agent_cache.remote.feed import LOST, News
from agent_cache.remote.reports import Log
from agent_cache.remote.shared_page import NOBODYS, Page, beside, identity_of

__all__ = ["APPLICATION", "FORMAT", "PASSING", "SqliteBackend", "wall_time"]

APPLICATION: Final = 0x61676361
"""SQLite's ``application_id`` of our files."""
FORMAT: Final = 2
"""SQLite's ``user_version``: the version of the tables."""


_KEPT_MESSAGES: Final = 10_000
_MOST_CELLS: Final = 200_000
_LOOK_AFTER: Final = 0.5
"""Seconds between two looks at the files: that they were replaced is noticed within a second."""
_AHEAD: Final = 0.01
"""Seconds that the page may be ahead of the rows before whoever looks commits an empty step."""

T = TypeVar("T")

_SCHEMA: Final = """
create table meta (name text primary key, value integer) without rowid;
insert into meta values ('number', 1), ('floor', 1), ('bytes', 0), ('had_page', 0);
create table cell (name text primary key, number integer) without rowid;
create table hold (cell text, writer text, mode integer, deadline real, primary key (cell, writer)) without rowid;
create index hold_of on hold (writer);
create index hold_ends on hold (deadline);
create table value (
    address text primary key, head blob, payload blob, ends real, used real, size integer, tool text, space text
) without rowid;
create index value_used on value (used);
create index value_ends on value (ends);
create table feed (number integer primary key, space text, message blob);
insert into feed values (1, '', x'');
create table claim (name text primary key, who text, deadline real, slot integer) without rowid;
create table ttl (tool text primary key, ttl real) without rowid;
create table process (slot integer primary key, pid integer, max_bytes integer, report text);
"""


_STARTED: Final = time.time() - time.monotonic()


def wall_time() -> float:
    """The time of day, which processes compare, also after a restart. It moves with a clock that a test replaces."""
    now = CLOCK.now
    return time.time() if now is time.monotonic else _STARTED + now()


PASSING: Final = (sqlite3.Error, OSError, TimeoutError)
"""What opening or using the files raises for reasons that pass."""


def _is_damage(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and (
        (code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
        or code == sqlite3.SQLITE_IOERR_SHORT_READ
        or str(error).startswith(("no such table", "no such column"))
    )


# The backend


class SqliteBackend:
    """A `Backend` in a file. None of its methods waits for anything but the file.

    Args:
        path: checked, see `FileTier`.
        timeout: seconds that a call waits for a file that others have locked; calls after it do not wait, until one has
            succeeded.
        lease: seconds for which everything is held when a process has died with invalidations missing.
        max_bytes: bytes of all values.
        namespace: of the tier. Others in the file have entries and messages of their own, and the same roots.

    Attributes:
        page: None while the files are not open.
        look_by: the clock reading by which the files are to be looked at again.
        replaced: how often they were found replaced.
    """

    def __init__(self, path: Path, *, timeout: float, lease: float, max_bytes: int, namespace: str, log: Log) -> None:
        self.path = path
        self.page: Page | None = None
        self.look_by = 0.0
        self._timeout = timeout
        self._lease = lease
        self._max_bytes = max_bytes
        self._namespace = namespace
        self._log = log
        self._is_slow = False
        self._is_missing = False
        self._is_over = False
        self._token = 0
        self._db: sqlite3.Connection | None = None
        self._feed_db: sqlite3.Connection | None = None
        self._identities: dict[Path, tuple[int, int] | None] = {}
        self._ahead: tuple[int, float] = (0, 0.0)
        self._uses: dict[Cell, float] = {}
        self._lock = threading.RLock()

    # Opening

    def open(self) -> None:
        """Open the files, if they are not.

        Raises:
            ConfigurationError: if what is there is not ours.
            sqlite3.Error, OSError, TimeoutError: for a reason that may pass.
        """
        with self._lock:
            if self._db is not None:
                return
            if self._is_over:
                raise Refused("the tier was closed")
            for _ in range(2):
                try:
                    self._open()
                except sqlite3.DatabaseError as error:
                    self._disconnect()
                    if not _is_damage(error):
                        raise
                    if not beside(self.path, ".page").exists():
                        raise ConfigurationError(
                            f"FileTier: {str(self.path)!r} is not a database of SQLite; it is left as it is: name "
                            "another file"
                        ) from error
                    self._set_aside(identity_of(self.path))
                except BaseException:
                    self._disconnect()
                    raise
                else:
                    if self._db is not None:
                        return

    def _open(self) -> None:
        path = self.path
        if not path.exists():
            for suffix in ("-wal", "-shm"):  # SQLite would take what is left of a deleted database for this one's
                beside(path, suffix).unlink(missing_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        identity = identity_of(path)
        self._db = db = self._connect(self._timeout)
        if not _prepare(db, path):  # of an older version
            self._disconnect()
            self._set_aside(identity, keep=False)
            return
        db.execute("begin immediate")
        try:
            meta = dict(db.execute("select name, value from meta"))
            ((newest,),) = db.execute("select max(number) from feed")
            self._token = meta["token"]
            if self.page is None or self.page.identity != identity_of(beside(path, ".page")):
                former, self.page = self.page, None
                if former is not None:
                    former.leave()
                self.page = Page(path, self._token, newest)
                if self._is_missing:
                    self.page.mark(is_missing=True)
                if self.page.is_new and meta["had_page"]:  # whose invalidations were missing nobody knows
                    self._step(db, (EVERYTHING,), LOST)
                elif not meta["had_page"]:
                    db.execute("update meta set value = 1 where name = 'had_page'")
                db.execute("replace into process values (?, ?, ?, '')", (self.page.slot, os.getpid(), self._max_bytes))
            db.execute("commit")
        except BaseException:
            if db.in_transaction:
                db.execute("rollback")
            raise
        if identity_of(path) != identity:
            raise sqlite3.OperationalError("the file was replaced while it was opened")
        self._feed_db = self._connect(0.0)
        suffixes = ("", ".page", ".lock", "-wal", "-shm")
        self._identities = {one: identity_of(one) for one in (beside(path, suffix) for suffix in suffixes)}
        self.look_by = time.monotonic() + _LOOK_AFTER

    def _connect(self, timeout: float) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            for pragma in (
                "synchronous = normal",
                "trusted_schema = off",
                "temp_store = memory",
                "journal_size_limit = 33554432",
            ):
                db.execute(f"pragma {pragma}")
        except BaseException:
            db.close()
            raise
        return db

    def _disconnect(self) -> None:
        for db in (self._db, self._feed_db):
            if db is not None:
                db.close()
        self._db = self._feed_db = None

    def _set_aside(self, identity: tuple[int, int] | None, *, keep: bool = True) -> None:
        """Replace a database, unless another process has: nobody trusts copies of its values any more, then it goes."""
        locks = os.open(beside(self.path, ".lock.new"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(locks, fcntl.LOCK_EX)
            if identity_of(self.path) != identity:
                return
            if keep:
                self._log.once("the database is damaged; it is set aside, and a new one is begun")
            with suppress(OSError):
                fd = os.open(beside(self.path, ".page"), os.O_RDWR | os.O_CLOEXEC)
                os.pwrite(fd, struct.pack("Q", NOBODYS), 0)
                os.close(fd)
            for suffix in ("", "-wal"):
                former = beside(self.path, suffix)
                if keep and former.exists():
                    former.replace(beside(self.path, f".corrupt{suffix}"))
            for suffix in ("", "-wal", "-shm", ".page"):
                beside(self.path, suffix).unlink(missing_ok=True)
        finally:
            beside(self.path, ".lock.new").unlink(missing_ok=True)
            os.close(locks)

    def _are_replaced(self) -> bool:
        return any(identity_of(path) != known for path, known in self._identities.items())

    def _reopen_if_replaced(self) -> None:
        """Look at the files, and open them anew if somebody has replaced them."""
        self.look_by = time.monotonic() + _LOOK_AFTER
        if self._db is not None and self._are_replaced():
            self._log.once("the files were deleted or replaced by somebody else, so they are made anew")
            self._disconnect()
        self.open()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection. What it raises is an outage."""
        with self._lock:
            try:
                if self._db is None or time.monotonic() >= self.look_by:
                    self._reopen_if_replaced()
                assert self._db is not None
                yield self._db
            except PASSING as error:
                if isinstance(error, ConnectionError):
                    raise
                if _is_damage(error):
                    identity = self._identities.get(self.path)
                    self._disconnect()
                    with suppress(OSError):
                        self._set_aside(identity)
                raise Refused(str(error)) from error
            except ConfigurationError as error:  # somebody has put something else there
                raise Refused(str(error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds SQLite's lock of writers, in which the writers have ended whose lease has passed."""
        with self._using() as db:
            try:
                db.execute("begin immediate")
            except sqlite3.OperationalError:
                self._wait(db, is_slow=True)
                raise
            self._wait(db, is_slow=False)
            try:
                self._expire(db)
                yield db
                db.execute("commit")
            except BaseException:
                if db.in_transaction:
                    with suppress(sqlite3.Error):
                        db.execute("rollback")
                raise

    def _wait(self, db: sqlite3.Connection, *, is_slow: bool) -> None:
        """Let calls wait for locks, or not after one has waited in vain."""
        if is_slow != self._is_slow:
            self._is_slow = is_slow
            db.execute(f"pragma busy_timeout = {0 if is_slow else int(self._timeout * 1000)}")

    def require_clean(self) -> None:
        """Raise unless nobody has missing invalidations. Those of dead processes are made up for."""
        page = self.page
        if page is None or page.is_clean():
            return
        with self._lock, page.adopted() as slots:
            if slots:
                with self._transaction() as db:
                    row = (EVERYTHING, secrets.token_hex(8), HELD, wall_time() + self._lease)
                    db.execute("insert into hold values (?, ?, ?, ?)", row)
                    self._step(db, (EVERYTHING,), LOST)
        if not page.is_clean():
            raise Refused("invalidations are missing in it")

    # Steps

    def _step(self, db: sqlite3.Connection, moved: Iterable[Cell], message: bytes) -> int:
        ((number,),) = db.execute("update meta set value = value + 1 where name = 'number' returning value").fetchall()
        db.executemany("replace into cell values (?, ?)", [(name, number) for name in moved])
        db.execute(
            "insert into feed values (?, ?, ?)",
            (number, "" if message == LOST else self._namespace, message),
        )
        if number % 256 == 0:
            self._prune(db, number)
        if self.page is not None:
            self.page.word[0] = number  # before the commit, under the lock: in order, and never one too few
        return int(number)

    def _prune(self, db: sqlite3.Connection, number: int) -> None:
        now = wall_time()
        db.execute("delete from feed where number <= ?", (number - _KEPT_MESSAGES,))
        db.execute("delete from claim where deadline <= ?", (now,))
        ((count,),) = db.execute("select count(*) from cell").fetchall()
        if count > _MOST_CELLS:  # what is forgotten reads as written just now
            middle = "select number from cell order by number limit 1 offset ?"
            ((cut,),) = db.execute(middle, (_MOST_CELLS // 2,)).fetchall()
            db.execute("delete from cell where number <= ?", (cut,))
            db.execute("update meta set value = ? where name = 'floor'", (number,))

    def _expire(self, db: sqlite3.Connection) -> None:
        now = wall_time()
        if db.execute("select 1 from hold where deadline <= ? limit 1", (now,)).fetchone():
            dead = [name for (name,) in db.execute("select cell from hold where deadline <= ?", (now,))]
            db.execute("delete from hold where deadline <= ?", (now,))
            self._step(db, dead, b"")

    def _register(
        self, db: sqlite3.Connection, writer: str, held: Collection[Cell], armed: Collection[Cell], lease: float
    ) -> None:
        ends = wall_time() + lease
        rows = [(cell, writer, mode, ends) for mode, cells in ((HELD, held), (ARMED, armed)) for cell in cells]
        db.executemany("replace into hold values (?, ?, ?, ?)", rows)

    async def begin(
        self, writer: str, held: Collection[Cell], armed: Collection[Cell], lease: float, message: bytes
    ) -> int:
        """See `Backend`."""
        with self._transaction() as db:
            self._register(db, writer, held, armed, lease)
            return self._step(db, held, message)

    async def renew(
        self, writer: str, held: Collection[Cell], armed: Collection[Cell], lease: float, message: bytes
    ) -> None:
        """See `Backend`."""
        with self._transaction() as db:
            if not db.execute("update hold set deadline = ? where writer = ?", (wall_time() + lease, writer)).rowcount:
                self._register(db, writer, held, armed, lease)
                self._step(db, held, message)

    async def commit(self, writer: str, moved: Collection[Cell], hold: float, message: bytes) -> int:
        """See `Backend`."""
        with self._transaction() as db:
            db.execute("delete from hold where writer = ?", (writer,))
            if hold:
                self._register(db, writer, moved, (), hold)
            return self._step(db, moved, message)

    async def set_ttl(self, tool: str, ttl: float | None, message: bytes) -> int:
        """See `Backend`."""
        with self._transaction() as db:
            db.execute("delete from ttl where tool = ?", (tool,))
            if ttl is not None:
                db.execute("insert into ttl values (?, ?)", (tool, ttl))
            return self._step(db, (), message)

    async def ttls(self) -> dict[str, float]:
        """See `Backend`."""
        with self._using() as db:
            return dict(db.execute("select tool, ttl from ttl").fetchall())

    # Values

    async def read(self, cells: Collection[Cell], address: Cell | None) -> Reading:
        """See `Backend`."""
        self.require_clean()
        with self._using() as db:
            now = wall_time()
            reading, ends = self._read(db, cells, address, now)
            if ends <= now:  # of a writer among them
                with self._transaction():
                    pass  # which ends it
                reading, _ = self._read(db, cells, address, now)
        self.require_clean()
        if reading.head is not None and address is not None:
            self._uses[address] = now
        return reading

    def _read(
        self, db: sqlite3.Connection, cells: Collection[Cell], address: Cell | None, now: float
    ) -> tuple[Reading, float]:
        """What is there, and when the first hold of a cell ends.

        The value first: cells that have its versions after that had them before. Each statement reads one state.
        """
        head, raw_head, payload, ends = None, b"", b"", None
        if address is not None:
            found = db.execute("select head, payload, ends from value where address = ?", (address,)).fetchone()
            if found is not None:
                raw_head, payload, ends = found
                if ends is not None and ends <= now:
                    raw_head = b""
                head = open_head(raw_head) if raw_head else None
        names = tuple({*cells, *head.versions}) if head is not None else tuple(cells)
        states: dict[Cell, State] = {}
        floor, first = 0, NEVER
        held: list[tuple[Cell, int]] = []
        for name, number, mode, deadline in db.execute(_states_statement(len(names)), names):
            if mode is None:
                if name is None:
                    floor = number
                else:
                    states[name] = number, IDLE
            else:
                held.append((name, mode))
                first = min(first, deadline)
        for name in names if len(states) < len(names) else ():
            if name not in states:
                states[name] = floor, IDLE
        for name, mode in held:
            number, present = states[name]
            states[name] = number, max(present, mode)
        states[STORE] = self._token, IDLE
        return Reading(states, now, head, raw_head, payload), first

    async def put(self, address: Cell, head: bytes, payload: bytes, *, store: Any, keep: float | None) -> None:
        """See `Backend`."""
        self.require_clean()
        opened = open_head(head)
        with self._transaction() as db:
            if store != self._token or opened is None:
                return
            now, size = wall_time(), len(head) + len(payload)
            former = db.execute("select size from value where address = ?", (address,)).fetchone()
            row = (
                address,
                head,
                payload,
                None if keep is None else now + keep,
                now,
                size,
                opened.tool,
                self._namespace,
            )
            db.execute("replace into value values (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._add_bytes(db, size - (former[0] if former else 0))
            uses, self._uses = self._uses, {}
            db.executemany("update value set used = ? where address = ?", [(used, one) for one, used in uses.items()])
            self._make_room(db, now)

    def _add_bytes(self, db: sqlite3.Connection, count: int) -> int:
        statement = "update meta set value = value + ? where name = 'bytes' returning value"
        ((total,),) = db.execute(statement, (count,)).fetchall()
        return int(total)

    def _make_room(self, db: sqlite3.Connection, now: float) -> None:
        """Drop values that have ended, then those that were not used for longest."""
        total = self._add_bytes(db, 0)
        if total <= self._max_bytes:
            return
        for some in ("where ends <= ?", "where ? order by used limit 8"):
            while total > self._max_bytes:
                dropped = db.execute(f"select address, size from value {some}", (now,)).fetchall()  # noqa: S608 - of this module
                db.executemany("delete from value where address = ?", [(address,) for address, _ in dropped])
                total = self._add_bytes(db, -sum(size for _, size in dropped))
                if not dropped or some.startswith("where ends"):
                    break

    async def clear(self) -> int:
        """See `Backend`."""
        with self._transaction() as db:
            count = db.execute("delete from value").rowcount
            db.execute("update meta set value = 0 where name = 'bytes'")
            self._step(db, (EVERYTHING,), LOST)
            return count

    async def claim(self, name: str, who: str, lease: float, *, renew: bool = False) -> str:
        """See `Backend`."""
        with self._transaction() as db:
            now = wall_time()
            row = db.execute("select who, deadline, slot from claim where name = ?", (name,)).fetchone()
            if renew and (row is None or row[0] != who):
                return ""
            page = self.page
            if row is not None and row[1] > now and row[0] != who and not (page is not None and page.is_dead(row[2])):
                return str(row[0])
            slot = 0 if page is None else page.slot
            db.execute("replace into claim values (?, ?, ?, ?)", (name, who, now + lease, slot))
            return who

    async def release(self, name: str, who: str) -> None:
        """See `Backend`."""
        with self._transaction() as db:
            db.execute("delete from claim where name = ? and who = ?", (name, who))

    # The feed

    async def feed(self, since: int | None) -> News:
        """See `Backend`. Called under the lock of the versions."""
        if self._feed_db is None or self.page is None or time.monotonic() >= self.look_by:
            with self._using():
                pass
        page, db = self.page, self._feed_db
        if page is None or db is None:
            raise Refused("the files are not open")
        self.require_clean()
        try:
            rows: Sequence[tuple[int, str, bytes]] = ()
            newest = since
            if since is not None and page.word[0] != since:
                statement = "select number, space, message from feed where number > ? order by number"
                rows = db.execute(statement, (since,)).fetchall()
                newest = rows[-1][0] if rows else None
            if newest is None:
                ((newest,),) = db.execute("select max(number) from feed").fetchall()
        except sqlite3.Error as error:
            if _is_damage(error):
                with self._using():
                    raise
            raise Refused(str(error)) from error
        self.require_clean()  # again: a row may have been stored over the number that nobody has
        if page.word[0] != newest:
            self._repair(page, newest)
        store = str(self._token)
        if since is None:
            return News(store, newest, ())
        is_whole = newest >= since and (not rows or rows[0][0] == since + 1)
        own = "", self._namespace
        messages = [(number, message if space in own else b"") for number, space, message in rows]
        return News(store, newest, messages if is_whole else None)

    def _repair(self, page: Page, newest: int) -> None:
        """The page is ahead of the rows: a step is being committed, or was never."""
        now, word = time.monotonic(), page.word[0]
        if self._ahead[0] != word:
            self._ahead = word, now + _AHEAD
        elif now > self._ahead[1] and page.word[0] == word:
            with suppress(ConnectionError), self._transaction() as db:
                if db.execute("select max(number) from feed").fetchone()[0] == newest:
                    self._step(db, (), b"")

    def mark(self, *, is_missing: bool) -> bool:
        """Say in the page whether an invalidation is missing, and in each that takes its place.

        Returns:
            Whether that could be said.
        """
        self._is_missing = is_missing
        page = self.page
        if page is None:
            return False
        page.mark(is_missing=is_missing)
        return True

    def report(self, text: str) -> None:
        """Write what this process has counted, for `agent-cache tier stats`, and which values were used."""
        page = self.page
        if page is None:
            return
        with self._transaction() as db:
            db.execute("replace into process values (?, ?, ?, ?)", (page.slot, os.getpid(), self._max_bytes, text))
            uses, self._uses = self._uses, {}
            db.executemany("update value set used = ? where address = ?", [(used, one) for one, used in uses.items()])

    # End, and forks

    async def aclose(self) -> None:
        """See `Backend`."""
        self.close()

    def close(self) -> None:
        """Close what is open. May be repeated."""
        with self._lock:
            if self._db is not None and self.page is not None:
                with suppress(sqlite3.Error):
                    self._db.execute("pragma busy_timeout = 0")
                    self._db.execute("delete from process where slot = ?", (self.page.slot,))
            self._is_over = True
            self._disconnect()
            page, self.page = self.page, None
            if page is not None:
                page.leave()

    def before_fork(self) -> Callable[[], None]:
        """Close the connections, which must not be carried across a fork (https://sqlite.org/howtocorrupt.html, 2.6).

        Returns:
            What the parent does after it.
        """
        self._lock.acquire()
        self._disconnect()
        return self._lock.release

    def after_fork(self) -> None:
        """In the child, which is a process of its own."""
        self._lock = threading.RLock()
        self._uses = {}
        self._is_missing = False
        self.page = None  # a child takes a byte of its own


@cache
def _states_statement(count: int) -> str:
    """The floor, the numbers of so many cells, and who holds them: one statement, of one moment."""
    cells = ", ".join(f"?{number}" for number in range(1, count + 1))
    return (
        "select null, value, null, null from meta where name = 'floor' "  # noqa: S608 - marks alone
        f"union all select name, number, null, null from cell where name in ({cells}) "
        f"union all select cell, null, mode, deadline from hold where cell in ({cells})"
    )


def _prepare(db: sqlite3.Connection, path: Path) -> bool:
    """Make the tables of a new database. Returns False if it is of an older version.

    Raises:
        ConfigurationError: if it is not ours, or of a newer version.
    """
    db.execute("begin")  # all of one moment: another process may be making it
    ((application,),) = db.execute("pragma application_id").fetchall()
    ((version,),) = db.execute("pragma user_version").fetchall()
    ((tables,),) = db.execute("select count(*) from sqlite_master").fetchall()
    db.execute("commit")
    if application not in (0, APPLICATION) or (application == 0 and (tables or version)):
        raise ConfigurationError(
            f"FileTier: {str(path)!r} is a database of another program; it is left as it is: name another file"
        )
    if version > FORMAT:
        raise ConfigurationError(
            f"FileTier: {str(path)!r} was made by a newer version of agent-cache (format {version}, this is {FORMAT}); "
            "upgrade this one, or name another file"
        )
    if tables:
        return bool(version == FORMAT)
    path.chmod(0o600)  # if it was there, empty; SQLite gives the log the same rights
    db.execute("pragma page_size = 2048")  # what a write changes is spread over a handful, all of which go into the log
    ((mode,),) = db.execute("pragma journal_mode = wal").fetchall()
    if mode != "wal":
        raise ConfigurationError(
            f"FileTier: SQLite cannot keep a write-ahead log beside {str(path)!r}; use a local disk"
        )
    db.execute("begin immediate")
    try:
        if not db.execute("select count(*) from sqlite_master").fetchone()[0]:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute("insert into meta values ('token', ?)", (secrets.randbits(62) | 1,))
            db.execute(f"pragma application_id = {APPLICATION}")
            db.execute(f"pragma user_version = {FORMAT}")
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
    return True
