"""For how long local copies are trusted, on a clock that also runs while the machine sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

__all__ = ["NEVER", "boottime"]

NEVER = float("-inf")

boottime: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds, suspended time included where the platform can tell. A machine that wakes up has missed messages."""
