"""For how long local copies are trusted, on a clock that also runs while the machine sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

__all__ = ["NEVER", "asleep", "boottime"]

NEVER = float("-inf")

boottime: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds, suspended time included where the platform can tell. A machine that wakes up has missed messages."""


def asleep() -> float:
    """Seconds that the machine has slept, counted from anywhere: what the clock of local copies has not seen."""
    return boottime() - time.monotonic()
