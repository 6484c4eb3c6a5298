"""A stopwatch that tells what a block took from what the machine took."""

from __future__ import annotations

import threading
import time
from typing import Self

__all__ = ["Stopwatch"]

_TICK = 0.005
_LATE = 0.05


class Stopwatch:
    """How long a block takes, with and without the time for which this process could not run.

    A thread of it wakes up all the time. Where that is late, the process stood still: its machine was paused, or had
    something else to do. A bound from above is asked of `running`, one from below of `seconds`.
    """

    def __init__(self) -> None:
        self._stood_still = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stopwatch", daemon=True)

    @property
    def seconds(self) -> float:
        """What the block took."""
        return self._ticked - self._started

    @property
    def running(self) -> float:
        """What it took without the time for which the process stood still."""
        return self.seconds - self._stood_still

    def __enter__(self) -> Self:
        self._started = self._ticked = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._tick()

    def _watch(self) -> None:
        while not self._is_over.wait(_TICK):
            self._tick()

    def _tick(self) -> None:
        now = time.perf_counter()
        since, self._ticked = now - self._ticked, now
        if since > _LATE:
            self._stood_still += since - _TICK
