"""The page of a file: memory that all processes map, and a byte for each of them, locked in a file beside it.

The page is a small file::

    [0:8]    the number of the newest step
    [8:16]   the token of its database
    [16:]    one byte for each process: "an invalidation of mine is not in the database"

Each process holds a lock of its byte of the lock file for as long as it has the files open, and the kernel releases it
with the process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["NOBODYS", "Page", "beside", "forget_slots", "identity_of", "slots_of"]

NOBODYS: Final = (1 << 64) - 1
"""A number that no step has."""
_SLOTS: Final = 1_024
_START: Final = 16
_SIZE: Final = _START + _SLOTS
_CLEAN: Final = bytes(_SLOTS)


def beside(path: Path, suffix: str) -> Path:
    """A file beside the database."""
    return path.with_name(path.name + suffix)


_TAKEN: dict[tuple[int, int], tuple[int, set[int]]] = {}
"""Of each lock file its one descriptor in this process, and the slots that it has. A process's own locks look free to
it, and it loses all of them with any descriptor that it closes.
"""


def forget_slots() -> None:
    """In the child of a fork, which has no locks."""
    for locks, _ in _TAKEN.values():
        os.close(locks)
    _TAKEN.clear()


class Page:
    """The page that processes map, and the byte of one of them.

    Attributes:
        word: its first item is the number of the newest step.
    """

    def __init__(self, path: Path, token: int, number: int) -> None:
        fd = _opened_page(path, token)
        try:
            self.identity = _identity_of(os.fstat(fd))
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self.word = memoryview(self._map)[:8].cast("Q")
        self.is_new = self.word[0] == 0
        if self.is_new:
            self.word[0] = number
        place = beside(path, ".lock")
        present = identity_of(place)
        if present is None or present not in _TAKEN:
            locks = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            present = _identity_of(os.fstat(locks))
            _TAKEN[present] = locks, set()
        self.lock_identity = present
        self._locks, self._taken = _TAKEN[present]
        self.slot = self._take_slot()

    def _take_slot(self) -> int:
        for slot in range(_SLOTS):
            if slot in self._taken or not self._lock(slot):
                continue
            if self._map[_START + slot]:  # of a dead process
                self._unlock(slot)
                continue
            self._taken.add(slot)
            return slot
        raise TimeoutError("too many processes use the file")

    def _lock(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except OSError:
            return False
        return True

    def _unlock(self, slot: int) -> None:
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, slot)

    def is_clean(self) -> bool:
        """Whether nobody has an invalidation that is not in the database."""
        return self._map[_START:_SIZE] == _CLEAN

    def mark(self, *, is_missing: bool) -> None:
        """Say whether an invalidation of this process is missing."""
        self._map[_START + self.slot] = is_missing
        if is_missing:
            self.word[0] = NOBODYS  # after the byte: who compares looks at the bytes

    @contextmanager
    def adopted(self) -> Iterator[list[int]]:
        """The slots of dead processes with missing invalidations, locked; they are cleared if this succeeds."""
        marked = [slot for slot in range(_SLOTS) if self._map[_START + slot]]
        mine = [slot for slot in marked if slot not in self._taken and self._lock(slot)]
        try:
            yield mine
            for slot in mine:
                self._map[_START + slot] = 0
        finally:
            for slot in mine:
                self._unlock(slot)

    def is_dead(self, slot: int) -> bool:
        """Whether the process that had a slot has died."""
        if slot in self._taken or not self._lock(slot):
            return False
        self._unlock(slot)
        return True

    def leave(self) -> None:
        """Give the byte of this process back, unless an invalidation is missing: that is adopted then."""
        self._taken.discard(self.slot)
        self._unlock(self.slot)
        known = _TAKEN.get(self.lock_identity)
        if not self._taken and known is not None and known[0] == self._locks:
            del _TAKEN[self.lock_identity]
            os.close(self._locks)


def _opened_page(path: Path, token: int) -> int:
    """Open the page of a database, or make one. The caller holds the database's lock of writers."""
    place = beside(path, ".page")
    try:
        fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        pass
    else:
        head = os.pread(fd, _START, 0)
        if os.fstat(fd).st_size == _SIZE and struct.unpack("QQ", head)[1] == token:
            return fd
        if os.fstat(fd).st_size >= 8:
            os.pwrite(fd, struct.pack("Q", NOBODYS), 0)  # nobody goes on with the page of another database
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


def slots_of(path: Path, token: int) -> tuple[int | None, set[int]]:
    """The number in the page of a database, None if it has none, and the slots with missing invalidations."""
    try:
        data = beside(path, ".page").read_bytes()
    except OSError:
        return None, set()
    if len(data) != _SIZE or struct.unpack_from("QQ", data)[1] != token:
        return None, set()
    return struct.unpack_from("Q", data)[0], {slot for slot in range(_SLOTS) if data[_START + slot]}


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def identity_of(path: Path) -> tuple[int, int] | None:
    """What tells a file from others at its path; None without one."""
    try:
        return _identity_of(path.stat())
    except OSError:
        return None
