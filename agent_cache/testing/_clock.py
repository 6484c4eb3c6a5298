"""A clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from agent_cache.clock import CLOCK

__all__ = ["FakeClock"]


class FakeClock:
    """The library's clock, moved by hand: ``with FakeClock() as clock: clock.advance(60)``."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.time = start
        self._former: Callable[[], float] | None = None

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time += seconds

    def __enter__(self) -> Self:
        self._former = CLOCK.now
        CLOCK.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None:
            CLOCK.set(self._former)
