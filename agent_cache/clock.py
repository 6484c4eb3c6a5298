"""The clock of the library. All expiry and measurement reads it here, so that a test can replace it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["CLOCK", "Clock"]


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
