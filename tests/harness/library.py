"""The one place where the tests touch the library's test switches: reset and fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from agent_cache import testing
from agent_cache.metrics import GONE, METRICS


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


def forget_tools_that_are_gone() -> None:
    """Keep no counters of theirs: a process has those of 10,000, and each look at the metrics goes through all."""
    METRICS._sum_up_tools_that_are_gone()
    METRICS._tools.pop(GONE, None)
    METRICS._limit = METRICS._max_rows


def loads_in_flight() -> int:
    """How many runs of read tools have not ended, as far as the library knows."""
    return testing.loads_in_flight()


def calls_waiting() -> int:
    """How many calls wait for a run that another one has started."""
    return testing.calls_waiting()


def nothing_in_flight() -> bool:
    """Whether there are none."""
    return loads_in_flight() == 0
