"""The one place where the tests touch the library's test switches: reset and fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from agent_cache import testing
from agent_cache.testing import harness


class Clock(Protocol):
    """The library's monotonic clock while a test holds it."""

    def advance(self, seconds: float, /) -> None: ...


@contextmanager
def fresh_library() -> Iterator[Clock]:
    """Give an empty library on a clock that stands still, and leave it empty."""
    testing.reset()
    with testing.FakeClock() as clock:
        try:
            yield clock
        finally:
            testing.reset()


def loads_in_flight() -> int:
    """How many runs of read tools have not ended, as far as the library knows."""
    return testing.loads_in_flight()


def calls_waiting() -> int:
    """How many calls wait for a run that another one has started."""
    return harness.calls_waiting()


def nothing_in_flight() -> bool:
    """Whether there are none."""
    return loads_in_flight() == 0
