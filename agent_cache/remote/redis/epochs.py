"""When each cell was last touched, as far as this process knows."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from agent_cache.remote.redis.keyspace import CellKey

__all__ = ["Epochs"]

_MAX = 50_000


class Epochs:
    """One sequence number for the process, and for each cell the number of its last touch. Bounded.

    What is pruned reads as "touched", never as "not touched": everything older than the floor may have been.
    """

    __slots__ = ("_floor", "_last", "_lock", "now")

    def __init__(self) -> None:
        self.now = 0
        self._floor = 0
        self._last: dict[CellKey, int] = {}
        self._lock = threading.RLock()

    def touch(self, cells: Iterable[CellKey]) -> None:
        """These have been written, here or elsewhere."""
        with self._lock:
            self.now += 1
            for cell in cells:
                self._last[cell] = self.now
            if len(self._last) > _MAX:
                self._floor = self.now
                self._last = {}

    def after_fork(self) -> None:
        """In the child: another thread may have had the lock. What the parent noted does not count here."""
        self._lock = threading.RLock()
        self.lose()

    def lose(self) -> None:
        """Anything may have been written."""
        with self._lock:
            self.now += 1
            self._floor = self.now
            self._last = {}

    def is_untouched(self, cells: Iterable[CellKey], since: int) -> bool:
        """Whether none of these was touched after the number `since`. Takes no lock."""
        if self.now == since:
            return True
        last = self._last  # before the floor: what is pruned in between is still in here
        if self._floor > since:
            return False
        return all(last.get(cell, 0) <= since for cell in cells)
