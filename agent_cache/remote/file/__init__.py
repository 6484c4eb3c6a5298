"""`FileTier`: one coherent cache for the processes of one machine, in a file, without a server."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
import threading
import time
import weakref
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from agent_cache.core.lease import Lease
from agent_cache.core.options import count, seconds
from agent_cache.core.versions import VERSIONS
from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import checked_namespace, drive
from agent_cache.remote.codecs import Codec
from agent_cache.remote.keeper import Keeper
from agent_cache.remote.versioned import UNUSABLE, VersionedTier

if sys.platform != "win32":  # which is refused
    from agent_cache.remote.database import SqliteBackend

__all__ = ["FileTier", "checked_path"]

NETWORK_FILE_SYSTEMS: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse",
    "fuse.glusterfs", "fuse.juicefs", "fuse.mfs", "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.sshfs",
    "fuse.vmhgfs-fuse", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
    "prl_fs", "smb3", "smbfs", "vboxsf", "wekafs",
})  # fmt: skip


class FileTier(VersionedTier):
    """A tier in one SQLite file, which the processes of one machine share: workers of a server, of pytest-xdist, a
    script that is started again. No server, and nothing but the standard library.

    As soon as a write has ended in any process, no process returns what was loaded before, also from its local copies:
    a hit compares a word of memory that all processes share. What is in the file survives the processes, and the
    machine's restart as far as SQLite's log does (``synchronous=NORMAL``).

    The files are ``path``, and beside it ``-wal``, ``-shm`` and ``.page``, readable for this user alone. A
    file that cannot be used, also when the tier is made, costs a call at most `timeout`, in which its event loop waits;
    the tools run without it, and what they write is made up for before anybody uses the file again. A damaged file is
    set aside as ``path.corrupt``, and a new one is begun. Do not copy the files to another machine, and remove them all
    or none. Windows and network file systems are refused.

    One tier serves any number of event loops and threads, and may be used after a fork.

    Args:
        path: of the database. Its directory exists, and not everybody may write into it.
        namespace: keeps the entries of different programs in one file apart.
        timeout: seconds that a call waits for a file that other processes have locked.
        lease: seconds that what a process was writing when it died is held: its effect may still come.
        remote_ttl: seconds that a value lives whose tool has no ttl; None is as long as there is room. Mind that writes
            between two runs of a program, by whatever else, are not seen.
        codec: how values are written; the default is MessagePack.
        max_bytes: bytes of all values. Those that were stored first make room.
        max_value_size: bytes of the longest value that is stored or read. None is as much as the codec allows, which is
            1 MiB for the default.

    Raises:
        ConfigurationError: if any of this cannot work. A file that is not a tier's is left as it is.
    """

    never_waits = True
    backend: SqliteBackend
    keeper: Keeper

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "agent_cache",
        timeout: float | timedelta = 0.25,
        lease: float | timedelta = 10.0,
        remote_ttl: float | timedelta | None = 3600.0,
        codec: Codec | None = None,
        max_bytes: int = 268_435_456,
        max_value_size: int | None = None,
    ) -> None:
        count(65_536, max_bytes, "FileTier: max_bytes")
        self.path: Path = checked_path(path)
        lease = seconds(lease, "FileTier: lease")
        self.backend = SqliteBackend(
            self.path,
            timeout=seconds(timeout, "FileTier: timeout"),
            lease=lease,
            max_bytes=min(max_bytes, 1 << 62),  # more than SQLite can count
            namespace=checked_namespace(namespace, "FileTier"),
        )
        super().__init__(
            self.backend, namespace=namespace, lease=lease, remote_ttl=remote_ttl, codec=codec,
            max_value_size=max_value_size, max_staleness=0,
        )  # fmt: skip
        self.log = self.backend.log
        self.max_value_size = min(self.max_value_size, max_bytes // 2)
        self.trust = Lease(self)
        self._marking = threading.Lock()
        try:
            self.backend.open()
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, PermissionError):
                raise ConfigurationError(f"FileTier: {str(self.path)!r} cannot be opened: {error}") from error
            self.log.once("the files cannot be opened now, so the tools run without them", error)
        if "uwsgi" in sys.modules:  # which forks without telling Python: no connection is carried across that
            self.backend.before_fork()()
        weakref.finalize(self, self.backend.close)

    def __repr__(self) -> str:
        return f"FileTier({str(self.path)!r})"

    # What others write

    async def catch_up(self) -> None:
        """See `VersionedTier`. It never waits."""
        self._apply_news()
        if self.feed.ttls is None:
            await self._read_ttls()
            self._apply_news()

    def _apply_news(self) -> None:
        with VERSIONS.lock:
            try:
                news = drive(self.backend.feed(self.feed.number))
            except ConnectionError:
                self.trust.stamp = -1
                raise
            self.feed.apply(news)
            page = self.backend.followed
            assert page is not None
            # Last, and the page first: a hit that finds both compares the versions after that. Without a thread that
            # looks whether the files were replaced, each hit does.
            self.trust.page = page.word
            is_heard = self.feed.listeners and self.keeper.is_alive() and self.feed.ttls is not None
            is_present = page is self.backend.page  # else another thread has opened another database
            self.trust.stamp = self.feed.number or -1 if is_heard and is_present else -1

    def is_complete(self) -> bool:
        """See `VersionedTier`."""
        if self.is_closed or self.pending or not self.feed.listeners:
            return False
        self._keep_up()
        try:
            self._apply_news()
        except ConnectionError:
            return False
        return self.feed.ttls is not None

    def receive(self) -> None:
        """See `VersionedTier`. What others write arrives within a tenth of a second; a lookup applies what came before
        it.
        """
        drive(self.caught_up())

    def _note_pending(self) -> None:
        with self._marking:  # or a thread that has delivered the last one takes back what another has just said
            is_missing = any(one.has_failed for one in list(self.pending.values()))
            if not (is_missing or self.backend.is_missing):
                return
            is_said = self.backend.mark(is_missing=is_missing)
        if is_said and is_missing:
            self.log.once("an invalidation could not be written, so nobody uses the file until it is")
        elif is_missing:
            self.log.once("a write ends before the file could be opened; others serve what it has changed until then")
        else:
            self.log.allow_again("an invalidation could not be written, so nobody uses the file until it is")
        self._keep_up()

    async def look_after(self) -> Awaitable[object]:
        """Deliver what is pending, look whether the files were replaced, and apply what others have written. Called by
        the thread, ten times a second.
        """
        try:
            if self.pending:
                await self.flush()
            is_due = time.monotonic() >= self.backend.look_by
            if (is_due or not self.trust.is_valid()) and await self.caught_up():
                self.log.allow_again(UNUSABLE)
        except ConnectionError:
            if self.pending:
                self._note_pending()  # again, until it is delivered
        return asyncio.sleep(0.1)

    def _keep_up(self) -> None:
        super()._keep_up()
        if self.backend.inherited is not None:
            text = "was used before a fork that Python was not told of: make it in each worker (uWSGI: lazy-apps)"
            raise ConfigurationError(f"{self!r} {text}")

    def after_fork(self) -> None:
        """See `VersionedTier`."""
        super().after_fork()
        self.trust.stamp = -1


# Where the files lie


def _mount_of(place: Path) -> tuple[str, str]:
    """Where the file system is mounted that a file is in, and its type, as Linux says; empty if that is not known."""
    found = "", ""
    with suppress(OSError):  # another system than Linux
        for line in Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines():
            _, point, kind, *_ = line.split(" ")
            point = point.replace(r"\040", " ")
            if len(point) >= len(found[0]) and place.is_relative_to(point):
                found = point, kind
    return found


def checked_path(path: Any) -> Path:
    """An absolute path without links, at which a database may be; ``~`` is the home directory.

    Raises:
        ConfigurationError: if it cannot be there, naming the fix.
    """
    if os.name == "nt":
        raise ConfigurationError("FileTier: Windows has no locks of single bytes; share the cache by a RedisTier")
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or path == ":memory:":
        raise ConfigurationError(f"FileTier: path must be the path of a file, got {path!r}")
    is_wrong = False
    try:
        place = Path(os.path.realpath(Path(path).expanduser()))
        mode = place.parent.stat().st_mode
        with suppress(FileNotFoundError, NotADirectoryError):
            is_wrong = not stat.S_ISREG(place.stat().st_mode)
    except (OSError, ValueError, RuntimeError, TypeError) as error:  # a missing directory, or one that is not readable
        raise ConfigurationError(f"FileTier: {path!r} cannot be the path of a file: {error}") from error
    point, kind = _mount_of(place)
    if is_wrong or not stat.S_ISDIR(mode):
        problem = "it is no file"
    elif mode & stat.S_IWOTH:
        problem = "everybody may write into its directory; use one of your own (mkdir -m 700)"
    elif point == str(place):
        problem = "it is mounted by itself, so the files beside it are others than elsewhere; mount its directory"
    elif kind in NETWORK_FILE_SYSTEMS:
        problem = f"it is on a network file system ({kind}); use a local disk, or a RedisTier"
    elif not os.access(place.parent, os.W_OK | os.X_OK) or (place.exists() and not os.access(place, os.R_OK | os.W_OK)):
        problem = "this user may not write it; use a file of your own"
    else:
        return place
    raise ConfigurationError(f"FileTier: {str(place)!r} cannot be used: {problem}")
