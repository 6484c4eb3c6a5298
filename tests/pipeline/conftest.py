"""What the tests of the pipeline share: a check of what is left over, and a fleet's server."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness import library
from tests.pipeline.fleet import Truth, WatchedTier


@pytest.fixture
def nothing_left(clock: library.Clock) -> Iterator[None]:
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
def here(server: MemoryServer) -> WatchedTier:
    """The tier of this process."""
    return WatchedTier(server)


@pytest.fixture
def elsewhere(server: MemoryServer) -> MemoryTier:
    """The tier of another process."""
    return MemoryTier(server)


@pytest.fixture
def truth() -> Truth:
    """The store behind the tools of a fleet."""
    return Truth()


pytest.register_assert_rewrite("tests.contract")  # its modules are no test files, and their asserts are to be explained
