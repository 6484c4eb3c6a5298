"""Pytest fixtures. ``pytest_plugins = ["agent_cache.testing.fixtures"]`` in the topmost ``conftest.py`` loads them.

This module is apart from `agent_cache.testing` because it alone needs pytest. To isolate every test:

    @pytest.fixture(autouse=True)
    def isolated(clean_agent_cache): ...
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_cache.config import CURRENT
from agent_cache.session.session import WATCHERS
from agent_cache.testing.harness import FakeClock, reset

__all__ = ["agent_cache_clock", "clean_agent_cache"]


@pytest.fixture
def clean_agent_cache() -> Iterator[None]:
    """Empty the cache and set the default configuration, before the test and after it.

    The configuration that the application has set by `configure`, and its instrumentation, are restored at the end.
    """
    former, watchers = CURRENT.save(), list(WATCHERS)
    reset()
    try:
        yield
    finally:
        reset()
        WATCHERS.extend(watchers)
        CURRENT.restore(former)


@pytest.fixture
def agent_cache_clock(clean_agent_cache: None) -> Iterator[FakeClock]:  # noqa: ARG001 - requested for its effect
    """Run the test with an empty cache on a clock that stands still: ``agent_cache_clock.advance(60)``."""
    with FakeClock() as clock:
        yield clock
