"""What the tests of the pipeline share: an empty library, tools with either call body, and a fleet's server."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from agent_cache.testing import MemoryServer
from tests.harness import library
from tests.pipeline.fleet import Truth


@pytest.fixture
def clock() -> Iterator[library.Clock]:
    """An empty library on a clock that stands still."""
    with library.fresh_library() as clock:
        yield clock


@pytest.fixture(params=library.CALL_BODIES)
def body(request: pytest.FixtureRequest, clock: library.Clock) -> Iterator[str]:
    """Tools that the test decorates answer by a generated body, and then once more by the general path."""
    with library.call_body(request.param):
        yield request.param


@pytest.fixture
def nothing_left(body: str) -> Iterator[None]:
    """Whatever the test was about, it leaves no load in flight."""
    before = library.loads_in_flight()
    yield
    gc.collect()  # A call that was abandoned ends when it is collected.
    assert library.loads_in_flight() <= before


@pytest.fixture
def server() -> MemoryServer:
    """The server that the processes of a fleet share."""
    gc.collect()  # A write reaches the tiers of every tool that is alive: those of earlier tests must be gone.
    return MemoryServer()


@pytest.fixture
def truth() -> Truth:
    """The store behind the tools of a fleet."""
    return Truth()
