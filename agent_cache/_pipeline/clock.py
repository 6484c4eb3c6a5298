"""The one clock of the library. Everything that measures or expires reads it here, so that a test can replace it."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["CLOCK", "Clock"]


class Clock:
    """A holder of a monotonic clock in seconds."""

    __slots__ = ("now",)

    now: Callable[[], float]

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now


CLOCK = Clock()
