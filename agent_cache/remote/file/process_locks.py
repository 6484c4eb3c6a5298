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
import threading
import time
from collections.abc import Iterator
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

    def enter(self) -> None:
        """Take a number for this process. Called under `opening`.

        Raises:
            ConfigurationError: if there is none left.
        """
        taken = self._file.taken
        with _trying:
            for number in range(1, MAX_PROCESSES):
                if number not in taken and self._try(number):
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

    def _try(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True

    def _release(self, byte: int) -> None:
        fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, byte)
