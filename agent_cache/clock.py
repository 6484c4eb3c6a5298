"""The one clock of the library. Everything that measures or expires reads it here, so that a test can replace it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["CLOCK", "Clock"]


class Clock:
    """A holder of a monotonic clock in seconds.

    A generated body reads the clock by a name of its own, which saves the hit an attribute; `set` reaches these, too.
    """

    __slots__ = ("_shown_in", "now")

    now: Callable[[], float]

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._shown_in: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def show_in(self, function: Any, name: str) -> None:
        """Give the clock a name among the globals of a generated function."""
        self._shown_in[function] = name
        function.__globals__[name] = self.now

    def set(self, now: Callable[[], float]) -> None:
        """Read another clock from now on, everywhere."""
        self.now = now
        for function, name in list(self._shown_in.items()):
            function.__globals__[name] = now


CLOCK = Clock()
