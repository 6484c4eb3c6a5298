"""Byte-range locks that tell which processes of a file live.

Each process holds one byte of a lock file for as long as it lives; the kernel releases it with the process, however
that ends. POSIX locks belong to a process, and are all released when it closes *any* descriptor of the file: so it is
opened once per process, and closed when nothing in the process uses it any more. A process's own locks look free to it.
A child does not inherit them.

Byte 0 is held while the files are made, opened or replaced.
"""

from __future__ import annotations

import os
import secrets
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agent_cache.errors import ConfigurationError
from agent_cache.remote.file.shared_page import MAX_PROCESSES

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]  # refused by `require_locks`

__all__ = ["ProcessLocks", "require_locks"]

_TRIAL: Final = 1 << 20
"""A byte that is no process."""
_IS_TAKEN: Final = 7
_TAKE: Final = f"""\
import fcntl, os, sys
try:
    fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
except OSError:
    sys.exit({_IS_TAKEN})
"""
"""A program that takes a byte of a file, unless somebody has."""
_PAUSE: Final = 0.002


def require_locks() -> None:
    """Refuse a system without byte-range locks of POSIX.

    Raises:
        ConfigurationError: on Windows.
    """
    if fcntl is None:
        raise ConfigurationError(
            "FileTier needs byte-range locks of POSIX, which this system does not have; share the cache by a RedisTier"
        )


# What F_GETLK takes and returns, fcntl(2): `struct flock`, whose fields have another order where Linux is not.
_FLOCK: Final = struct.Struct("hhqqi" if sys.platform == "linux" else "qqihh")


def _flock(kind: int, start: int, length: int) -> bytes:
    whence = os.SEEK_SET
    fields = (kind, whence, start, length, 0) if sys.platform == "linux" else (start, length, 0, kind, whence)
    return _FLOCK.pack(*fields).ljust(32, b"\0")


def _read_flock(data: bytes) -> tuple[int, int, int, int]:
    """Kind, first byte, length and process id."""
    if sys.platform == "linux":
        kind, _, start, length, pid = _FLOCK.unpack_from(data)
    else:
        start, length, pid, kind, _ = _FLOCK.unpack_from(data)
    return kind, start, length, pid


class _LockFile:
    """A lock file as this process has it open, under whatever names.

    Attributes:
        taken: the numbers that this process holds, whose bytes look free to it.
        users: how many `ProcessLocks` use it.
    """

    __slots__ = ("descriptor", "taken", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.taken: set[int] = set()
        self.users = 0


_files: dict[tuple[int, int], _LockFile] = {}
_spare: dict[tuple[int, int], list[int]] = {}
"""Descriptors that were opened once too often. To close one would release the locks held over the others."""
# For the whole process, since the locks know no threads.
_opening = threading.RLock()
_trying = threading.Lock()


def _after_fork() -> None:
    global _opening, _trying
    _opening, _trying = threading.RLock(), threading.Lock()
    for file in _files.values():
        file.taken.clear()
        file.users = 0


os.register_at_fork(after_in_child=_after_fork)


class ProcessLocks:
    """The lock file of one database, as this process has it open.

    Attributes:
        number: the byte that this process holds, which is its number in the page; 0 before `enter`.
        token: tells this process from those that held the number before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.token = 0
        with _opening:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)
            status = os.fstat(descriptor)
            self._identity = status.st_dev, status.st_ino
            self._file = _files.setdefault(self._identity, _LockFile(descriptor))
            if self._file.descriptor != descriptor:
                _spare.setdefault(self._identity, []).append(descriptor)
            self._file.users += 1

    def leave(self) -> None:
        """Give the number back: this process has nothing open here any more."""
        with _opening:
            with _trying:
                if self.number:
                    self._file.taken.discard(self.number)
                    self._release(self.number)
                    self.number = 0
            self._file.users -= 1
            if self._file.users <= 0 and _files.get(self._identity) is self._file:
                del _files[self._identity]
                for descriptor in (self._file.descriptor, *_spare.pop(self._identity, ())):
                    os.close(descriptor)

    @contextmanager
    def opening(self, patience: float) -> Iterator[None]:
        """Be the only one to make, open or replace the files.

        Args:
            patience: seconds to wait for another process that does.

        Raises:
            TimeoutError: if another process does so for too long.
        """
        with _opening:
            end = time.monotonic() + patience
            while not self._try(0):
                if time.monotonic() > end:
                    raise TimeoutError("another process has been opening the files of the cache for too long")
                time.sleep(_PAUSE)
            try:
                yield
            finally:
                self._release(0)

    def enter(self, others: Collection[int]) -> None:
        """Take a number for this process. Called under `opening`.

        Args:
            others: numbers that it must not be.

        Raises:
            ConfigurationError: if there is none left.
        """
        taken = self._file.taken
        with _trying:
            for number in range(1, MAX_PROCESSES):
                if number not in taken and number not in others and self._try(number):
                    taken.add(number)
                    self.number, self.token = number, secrets.randbits(62) + 1
                    return
        raise ConfigurationError(f"FileTier: {MAX_PROCESSES - 1} processes have the file open, and no more can")

    def is_held(self, number: int) -> bool:
        """Whether a process holds a number."""
        if not number:  # nobody's: see `SharedPage`
            return False
        with _trying:  # or another thread would release what this one tries
            if number in self._file.taken:
                return True
            if not self._try(number):
                return True
            self._release(number)
            return False

    def holders(self) -> dict[int, int]:
        """The numbers that processes hold, with their process ids; 0 for one that the system does not tell, as of a
        process in another container. It takes no lock, so nobody is disturbed.
        """
        found = dict.fromkeys(self._file.taken, os.getpid())
        start = 1
        while start < MAX_PROCESSES:
            lock = _flock(fcntl.F_WRLCK, start, MAX_PROCESSES - start)
            kind, first, length, pid = _read_flock(fcntl.fcntl(self._file.descriptor, fcntl.F_GETLK, lock))
            if kind == fcntl.F_UNLCK:
                break
            end = first + length if length else MAX_PROCESSES  # a length of 0 is all that follows
            found |= dict.fromkeys(range(max(first, 1), end), max(pid, 0))
            start = end
        return found

    def works(self) -> bool:
        """Whether other processes see a lock of this one: on some file systems they do not."""
        with _trying:
            if not self._try(_TRIAL):
                return True  # somebody else is at it, and has been seen
            try:
                command: list[str | Path] = [sys.executable, "-c", _TAKE, self.path, str(_TRIAL)]
                return subprocess.run(command, check=False).returncode == _IS_TAKEN  # noqa: S603 - this Python
            finally:
                self._release(_TRIAL)

    def _try(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True

    def _release(self, byte: int) -> None:
        fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, byte)
