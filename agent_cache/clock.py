"""The two clocks of the library: `CLOCK` for all expiry and measurement in a process, which a test can replace, and
`boottime` for the times that the processes of a machine compare, and for connections.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["CLOCK", "Clock", "boottime"]

boottime: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since the machine was started, time in suspension included where the platform can tell. A machine that wakes
up has missed messages. All its processes read the same."""


class Clock:
    """A replaceable monotonic clock in seconds.

    A generated body reads the clock through a global name, which saves a hit one attribute; `set` replaces these, too.
    """

    __slots__ = ("_functions", "now")

    now: Callable[[], float]

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._functions: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def show_in(self, function: Any, name: str) -> None:
        """Put the clock among the globals of a generated function, under this name."""
        self._functions[function] = name
        function.__globals__[name] = self.now

    def set(self, now: Callable[[], float]) -> None:
        """Replace the clock everywhere."""
        self.now = now
        for function, name in list(self._functions.items()):
            function.__globals__[name] = now


CLOCK = Clock()
