"""The store behind the tools of all processes: a version per entity in shared memory, and a journal per process.

A journal is written so that it survives a SIGKILL of its process. Times are CLOCK_MONOTONIC in nanoseconds, which the
processes of one machine share.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VERSION_BYTES = 8
TOGETHER = 100


class Truth:
    """What each entity's version is now. An effect raises it by one, whichever process has it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._memory = mmap.mmap(self._file.fileno(), 0)
        self._versions = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, path: Path, entities: int) -> None:
        """Lay the file down, all versions 0."""
        path.write_bytes(bytes(VERSION_BYTES * entities))

    def __len__(self) -> int:
        return len(self._versions)

    def read(self, entity: int) -> int:
        """The version now. Eight aligned bytes are read in one go."""
        return self._versions[entity]

    def effect(self, entity: int, note: Callable[[int, int], None]) -> int:
        """Raise the version, and note it with its time before anybody else can raise it again.

        The lock is the kernel's, so that a process that is killed inside does not keep it.
        """
        place = entity * VERSION_BYTES
        fcntl.lockf(self._file, fcntl.LOCK_EX, VERSION_BYTES, place)
        try:
            version = self._versions[entity] + 1
            # Noted first: an effect that was not noted would make later reads look as if they came from nowhere.
            note(version, time.monotonic_ns())
            self._versions[entity] = version
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, VERSION_BYTES, place)
        return version


class Journal:
    """One process' notes, a JSON array a line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._waiting: list[str] = []

    def note(self, *fields: Any) -> None:
        """Write down at once, with all that waits."""
        self._waiting.append(json.dumps(fields))
        os.write(self._file, ("\n".join(self._waiting) + "\n").encode())
        self._waiting.clear()

    def note_later(self, *fields: Any) -> None:
        """Write down with some others: reads are many, and one that is lost with its process harms nothing."""
        if len(self._waiting) < TOGETHER:
            self._waiting.append(json.dumps(fields))
        else:
            self.note(*fields)


def noted(folder: Path) -> Iterator[list[Any]]:
    """All notes of all processes; a last line that a SIGKILL has cut off is left out."""
    for path in sorted(folder.glob("*.journal")):
        for line in path.read_text("utf-8").split("\n")[:-1]:
            yield json.loads(line)
