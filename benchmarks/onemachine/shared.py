"""What the processes of a run share: the truth behind the tools, and the counts of each process, which survive it."""

from __future__ import annotations

import fcntl
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final

ENTITIES: Final = 24
PROCESSES: Final = 64
"""Processes that have counts: those of the run, and children that they fork."""
TASKS: Final = 8
_WORD: Final = 8


class Count(IntEnum):
    """What a process counts."""

    OPERATIONS = 0
    READS = 1
    WRITES = 2
    LOADS = 3
    FOUND = 4
    STALE = 5
    STALE_IN_WINDOW = 6
    NOTICED = 7
    SLOWEST = 8
    ERRORS = 9
    UNUSABLE = 10
    FORKS = 11


class Flag(IntEnum):
    """What the conductor says to all processes."""

    IS_OVER = 0
    IS_FULL = 1
    IS_READ_ONLY = 2
    DELETED_AT = 3


_COUNTS = 16


class Shared:
    """Numbers in shared memory.

    Attributes:
        truth: what each entity is now.
        ended: the largest number that a write of the entity which has returned has set.
        doing: by process and task, what it writes: entity and number, 0 for none.
        flags: see `Flag`.
    """

    def __init__(self, folder: Path) -> None:
        words = 2 * ENTITIES + PROCESSES * (_COUNTS + 2 * TASKS) + 8
        path = folder / "shared"
        if not path.exists():
            path.write_bytes(bytes(_WORD * words))
        self._file = path.open("r+b")
        memory = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("q")
        self.truth, memory = memory[:ENTITIES], memory[ENTITIES:]
        self.ended, memory = memory[:ENTITIES], memory[ENTITIES:]
        self._counts, memory = memory[: PROCESSES * _COUNTS], memory[PROCESSES * _COUNTS :]
        self.doing, self.flags = memory[: 2 * PROCESSES * TASKS], memory[2 * PROCESSES * TASKS :]
        self._threads = threading.Lock()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the other threads of this process away, over a fork."""
        with self._threads:
            yield

    @contextmanager
    def _locked(self, entity: int) -> Iterator[None]:
        with self._threads:  # the kernel's lock is that of the process, and ends with it
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, entity)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, entity)

    def effect(self, entity: int, process: int, task: int) -> int:
        """Raise an entity. Returns the number, which no other write sets."""
        with self._locked(entity):
            number = self.truth[entity] + 1
            self.doing[2 * (process * TASKS + task)] = entity + 1
            self.doing[2 * (process * TASKS + task) + 1] = number
            self.truth[entity] = number
        return number

    def end(self, entity: int, number: int) -> None:
        """Note that the write has returned which has set this number."""
        with self._locked(entity):
            self.ended[entity] = max(self.ended[entity], number)

    def forget(self, process: int, task: int) -> None:
        """Note that nothing is being written."""
        self.doing[2 * (process * TASKS + task)] = 0

    def written_by(self, process: int) -> list[tuple[int, int]]:
        """Entities and numbers of the writes that a process has not ended, if their effect has come."""
        first = 2 * process * TASKS
        words = self.doing[first : first + 2 * TASKS].tolist()
        for task in range(TASKS):
            self.forget(process, task)
        return [(entity - 1, number) for entity, number in zip(words[::2], words[1::2], strict=True) if entity]

    def count(self, process: int, what: Count, number: int = 1) -> None:
        """Add to a count. Each process has its own."""
        self._counts[process * _COUNTS + what] += number

    def raise_to(self, process: int, what: Count, number: int) -> None:
        """Let a count be this at least."""
        index = process * _COUNTS + what
        self._counts[index] = max(self._counts[index], number)

    def counted(self, process: int, what: Count) -> int:
        """The count of one process."""
        return self._counts[process * _COUNTS + what]

    def total(self, what: Count) -> int:
        """The count of all."""
        return sum(self.counted(process, what) for process in range(PROCESSES))

    def largest(self, what: Count) -> int:
        """The largest count of a process."""
        return max(self.counted(process, what) for process in range(PROCESSES))
