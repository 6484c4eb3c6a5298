"""For tests of agents and of tiers: a clean slate, a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from agent_cache._metrics import METRICS
from agent_cache._pipeline.clock import CLOCK
from agent_cache._pipeline.codegen import GENERATION
from agent_cache._pipeline.state import LEDGER, clear_everything, forget_what_was_logged
from agent_cache.config import CURRENT, Configuration

__all__ = ["FakeClock", "loads_in_flight", "reset", "without_codegen"]


def reset() -> None:
    """A clean slate: no entries, no holds, counters at zero, the default configuration. Decorated tools stay decorated."""
    CURRENT.replace(Configuration())
    clear_everything()
    with LEDGER.lock:
        LEDGER.release_all()
    METRICS.clear()
    forget_what_was_logged()


def loads_in_flight() -> int:
    """How many runs of read tools have started and not ended."""
    with LEDGER.lock:
        return LEDGER.loads_in_flight()


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
        self._former, CLOCK.now = CLOCK.now, self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._former is not None:
            CLOCK.now = self._former


@contextmanager
def without_codegen() -> Iterator[None]:
    """Tools decorated inside take the general path at every call, instead of a generated body."""
    former, GENERATION.is_on = GENERATION.is_on, False
    try:
        yield
    finally:
        GENERATION.is_on = former
