"""The one place where tests touch what the library has for a whole process: switches, settings and versions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

import pytest

from agent_cache import testing
from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core import versions
from agent_cache.engine import state
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


@contextmanager
def instructions() -> Iterator[Counter[str]]:
    """Count what the package executes in this thread, by file."""
    count = Counter[str]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and "agent_cache/" in frame.f_code.co_filename:
            count[frame.f_code.co_filename] += 1
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(None)


def loads_in_flight() -> int:
    """How many runs of read tools have not ended, as far as the library knows."""
    return testing.loads_in_flight()


def calls_waiting() -> int:
    """How many calls wait for a run that another one has started."""
    return harness.calls_waiting()


def nothing_in_flight() -> bool:
    """Whether there are none."""
    return loads_in_flight() == 0


def setting(name: str) -> Any:
    """What is configured now: ``enabled``, ``max_bytes``, ``middleware``, ``remote``, ``backup``."""
    return getattr(CURRENT.value, name)


def instrument(function: Any) -> None:
    """Put a middleware around all that are configured, as exporters do; None takes it away."""
    CURRENT.instrument(function)


def tiers_once_configured() -> list[Any]:
    """The tiers that writes go to although they are configured no more."""
    return CURRENT.tiers_once_configured()


def lock_is_free() -> bool:
    """Whether the lock of the versions can be taken in this thread."""
    if versions.VERSIONS.lock.acquire(blocking=False):
        versions.VERSIONS.lock.release()
        return True
    return False


def writes_that_run() -> bool:
    """Whether there is a write that has not ended."""
    return bool(versions.VERSIONS.running)


def forget_writes(*, held: bool = False) -> bool:
    """End what writes in doubt hold; `held`: also what anything else holds. Returns whether there was more."""
    versions.VERSIONS.release_all()
    is_held = bool(versions.VERSIONS.held)
    if held:
        versions.VERSIONS.held.clear()
    return is_held


@contextmanager
def few_versions(count: int) -> Iterator[None]:
    """Keep so few versions that what is older counts as written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "GENERATION", count)
        yield


@contextmanager
def clock_in_c(reading: float) -> Iterator[None]:
    """Let the clock stand still, without a frame of Python when it is read."""
    former = CLOCK.now
    CLOCK.set(reading.__pos__)
    yield
    CLOCK.set(former)


def reads_known() -> int:
    """How many read tools writes look for entries in."""
    return len(state.TOOLS.readers())
