"""The memory-mapped page beside the database: which tags were written, at the price of a memory read.

A page is an array of 64-bit words that all processes of a file map. Each tag (each cell: see `cell_names`) has a
*slot*, by its number modulo `SLOTS`. A slot holds the generation of its last change, which is the page's sequence
number at that moment, and a bit that is set while a write runs on it. Two tags may share a slot: that costs a look at
the database, never a stale answer.

Slots are changed only by who holds the write lock of the database: first the slots, then the sequence number. A reader
reads them in the other order. So a process that has seen a sequence number has seen every slot that was changed before
it. A local copy of a value remembers the slots it depends on: while the sequence number is the one at which they were
last compared, one word proves that it is current.

A process whose invalidations could not be written into the database says so in a word of its own (`suspend`). Until
they are written nobody uses the values in the file, nor copies of them.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from agent_cache.core.lease import ENDED, Lease

__all__ = ["MAX_PROCESSES", "NO_LEASE", "SLOTS", "PageLease", "SharedPage", "Use", "is_settled", "reader_of", "slot_of"]

SLOTS: Final = 65_536
MAX_PROCESSES: Final = 1_024
"""Processes that may use one file at a time. Number 0 is not given to any."""

_MAGIC: Final = 0x6167_6361_6368_6502  # "agcache", and the version of this layout
_SEQUENCE, _MAGIC_WORD, _INCARNATION, _RAISED, _CHANGES, _TTLS, _CLEARED, _LATEST = range(8)
_TOKENS: Final = 16
_SUSPENDED: Final = _TOKENS + MAX_PROCESSES
_FIRST_SLOT: Final = _SUSPENDED + MAX_PROCESSES
_SIZE: Final = 8 * (_FIRST_SLOT + SLOTS)
_LONGEST_JUMP: Final = 1 << 32

_barrier = threading.Lock()


def _order() -> None:
    """Keep the processor from moving memory accesses across this line, which some do (ARM): a release of a lock, then
    an acquisition of it, which stay in this order on all of them.
    """
    with _barrier:
        pass
    with _barrier:
        pass


def _after_fork() -> None:
    global _barrier  # noqa: PLW0603 - another thread may have had it
    _barrier = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def slot_of(cell: int) -> int:
    """The slot of a cell."""
    return cell % SLOTS


def reader_of(cells: Iterable[int]) -> Callable[[Any], tuple[int, ...]]:
    """A function that reads the slots of these cells from the words of a page, as a tuple."""
    words = sorted({_FIRST_SLOT + cell % SLOTS for cell in cells})
    if len(words) > 1:
        return itemgetter(*words)
    if words:
        only = words[0]
        return lambda view: (view[only],)
    return lambda _: ()


class SharedPage:
    """One page, as this process has it mapped.

    Attributes:
        words: all of it. ``words[0]`` is the sequence number.
        incarnation: that of the database which it belongs to.
    """

    def __init__(self, words: memoryview, incarnation: int) -> None:
        self.words = words
        self.incarnation = incarnation

    @classmethod
    def of_nothing(cls) -> SharedPage:
        """In place of a page while none can be opened: nothing is usable, and no process sees it."""
        return cls(memoryview(bytearray(_SIZE)).cast("Q"), 1)

    @classmethod
    def create(cls, path: Path, incarnation: int) -> SharedPage:
        """Make the page of a new database. A former one is retired, so that whoever has mapped it lets go.

        The caller holds the lock under which files are opened.
        """
        former = cls.open(path, None)
        if former is not None:
            former.retire()
        path.unlink(missing_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(number, 0, _SIZE) if hasattr(os, "posix_fallocate") else os.ftruncate(number, _SIZE)
            words = memoryview(mmap.mmap(number, _SIZE)).cast("Q")
        finally:
            os.close(number)
        words[_SEQUENCE] = 1
        words[_INCARNATION] = incarnation
        words[_MAGIC_WORD] = _MAGIC
        return cls(words, incarnation)

    @classmethod
    def open(cls, path: Path, incarnation: int | None, *, is_read_only: bool = False) -> SharedPage | None:
        """Map an existing page; None if there is none, or it is not that of this database (None: of any)."""
        mode, access = (os.O_RDONLY, mmap.ACCESS_READ) if is_read_only else (os.O_RDWR, mmap.ACCESS_WRITE)
        try:
            number = os.open(path, mode | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            return None
        try:
            if os.fstat(number).st_size != _SIZE:
                return None
            words = memoryview(mmap.mmap(number, _SIZE, access=access)).cast("Q")
        finally:
            os.close(number)
        found = words[_INCARNATION]
        if words[_MAGIC_WORD] != _MAGIC or incarnation not in (None, found):
            return None
        return cls(words, found)

    # The whole page

    @property
    def is_usable(self) -> bool:
        """Whether the database may be used: it was not replaced, and no invalidation is known to be missing in it."""
        words = self.words
        return words[_RAISED] == words[_CLEARED] and words[_INCARNATION] == self.incarnation

    @property
    def is_retired(self) -> bool:
        """Whether the database was replaced by another one."""
        return self.words[_INCARNATION] != self.incarnation

    def retire(self) -> None:
        """Let every process that has mapped this page let go of its copies and open the file anew."""
        self.words[_INCARNATION] = 0
        self._jump()

    def _jump(self) -> None:
        """Change the sequence number without holding the lock: to one that nobody else gives it."""
        _order()
        self.words[_SEQUENCE] += secrets.randbelow(_LONGEST_JUMP) + 2

    @property
    def sequence(self) -> int:
        """The number of the last change."""
        return self.words[_SEQUENCE]

    # Slots

    def change(self, slots: Mapping[int, bool], number: int) -> None:
        """Give slots a new generation; True: a write runs on it. The caller holds the database's write lock.

        Args:
            number: the generation, larger than `latest`.
        """
        words = self.words
        words[_LATEST] = number  # first: it is not given again if this process dies before the sequence number
        for slot, is_busy in slots.items():
            words[_FIRST_SLOT + slot] = number << 1 | is_busy
        _order()
        words[_SEQUENCE] = number

    def free(self, slots: Iterable[int], number: int) -> None:
        """Free slots whose write has never begun. The caller holds the database's write lock.

        Args:
            number: of the last step that was committed: what was trusted before the interrupted one is so again.
        """
        for slot in slots:
            self.words[_FIRST_SLOT + slot] = number << 1

    @property
    def latest(self) -> int:
        """A number that is as large as any that was given: the next one has to be larger."""
        words = self.words
        return max(words[_SEQUENCE], words[_LATEST])

    def busy(self, cells: Iterable[int]) -> list[int]:
        """The slots of these cells on which a write runs, or was interrupted before it had begun."""
        return [slot for slot in {slot_of(cell) for cell in cells} if self.words[_FIRST_SLOT + slot] & 1]

    # Messages and ttls: counters that say when to look into the database

    @property
    def changes(self) -> int:
        """The number of the last message in the database."""
        return self.words[_CHANGES]

    @changes.setter
    def changes(self, number: int) -> None:
        self.words[_CHANGES] = number

    @property
    def ttls(self) -> int:
        """How often the ttls in the database were changed."""
        return self.words[_TTLS]

    def count_ttls(self) -> None:
        """Note that they were. The caller holds the write lock."""
        self.words[_TTLS] += 1

    # Processes

    def token(self, process: int) -> int:
        """What tells the present holder of a process number from former ones."""
        return self.words[_TOKENS + process]

    def enter(self, process: int, token: int) -> None:
        """Note who has a process number now."""
        self.words[_TOKENS + process] = token

    def suspend(self, process: int, count: int) -> None:
        """Note how many invalidations of a process are not in the database. Nobody uses it while there are any."""
        self.words[_SUSPENDED + process] = count
        if count:
            _order()
            self.words[_RAISED] = secrets.randbits(62)
            self._jump()

    def suspended(self) -> Collection[int]:
        """The processes whose invalidations are not in the database."""
        words = self.words[_SUSPENDED : _SUSPENDED + MAX_PROCESSES]
        if words.tobytes() == _NONE_SUSPENDED:
            return ()
        return [process for process in range(MAX_PROCESSES) if words[process]]

    def missing(self, process: int) -> int:
        """How many invalidations of a process are not in the database."""
        return self.words[_SUSPENDED + process]

    def resume(self) -> bool:
        """Let the database be used again if nobody's invalidations are missing. The caller holds the write lock.

        Only what had been raised before the look is cleared. So there is no moment at which the database seems usable
        while it is not, and who raises again meanwhile is not overlooked.
        """
        words = self.words
        raised = words[_RAISED]
        _order()
        if self.suspended():
            return False
        words[_CLEARED] = raised
        return True


_NONE_SUSPENDED: Final = bytes(8 * MAX_PROCESSES)


def is_settled(slots: tuple[int, ...], committed: int) -> bool:
    """Whether a state of the database shows all steps that have changed these slots: see `database`."""
    return not slots or max(slots) >> 1 <= committed


class Use:
    """The use that a tier makes of the files, until it is closed.

    It is not the tier: a copy must not keep a tier that nothing else refers to.
    """

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class PageLease(Lease):
    """The trust in copies of values that depend on some slots: while these are unchanged, and the tier is not closed.
    Who closes it drops the copies, too: a lease that was renewed before is compared without a call.

    Attributes:
        read: reads the slots.
        seen: what they were before the value was looked up.
    """

    __slots__ = ("_page", "_use", "read", "seen")

    def __init__(
        self, page: SharedPage, use: Use, read: Callable[[Any], tuple[int, ...]], seen: tuple[int, ...]
    ) -> None:
        self.page, self.stamp, self.term = page.words, ENDED, None  # by a call, it would be 0.2 us of each lookup more
        self._page = page
        self._use = use
        self.read = read
        self.seen = seen

    def is_of(self, page: SharedPage) -> bool:
        """Whether it was given for the same database: versions of a former one mean nothing in another."""
        return self._page.incarnation == page.incarnation

    @property
    def is_current(self) -> bool:
        """Whether no write has begun or ended on the slots since they were read. It compares them.

        First it looks whether invalidations are missing. Else one that is written between the two looks would be
        overlooked: its slots are compared before, and nothing is missing afterwards.
        """
        return self._page.is_usable and self.read(self.page) == self.seen

    def renew(self) -> bool:
        """See `Lease`. The sequence number is read first: see the module."""
        page = self.page
        number = page[_SEQUENCE]
        _order()
        if self._use.is_over or not self._page.is_usable:
            return False
        _order()
        if self.read(page) != self.seen:
            return False
        self.stamp = number
        return True


NO_LEASE: Final = PageLease(SharedPage(memoryview(bytes(64)).cast("Q"), 1), Use(), lambda _: (), (0,))
"""That of a lookup that could not use the file: it is never current."""
