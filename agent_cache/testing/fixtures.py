"""Pytest fixtures. ``pytest_plugins = ["agent_cache.testing.fixtures"]`` in the topmost ``conftest.py`` makes them
known.

To isolate every test, whether it asks or not:

    @pytest.fixture(autouse=True)
    def isolated(clean_agent_cache): ...
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_cache.config import CURRENT
from agent_cache.testing._clock import FakeClock
from agent_cache.testing._state import reset

__all__ = ["agent_cache_clock", "clean_agent_cache"]


@pytest.fixture
def clean_agent_cache() -> Iterator[None]:
    """Give the test an empty cache with the default configuration, and leave nothing of it to the next one.

    What the application has set by `configure` is put back afterwards.
    """
    former = CURRENT.value
    reset()
    try:
        yield
    finally:
        reset()
        CURRENT.replace(former)


@pytest.fixture
def agent_cache_clock(clean_agent_cache: None) -> Iterator[FakeClock]:  # noqa: ARG001 - it is there for what it does
    """Give the test an empty cache on a clock that stands still: ``agent_cache_clock.advance(60)``."""
    with FakeClock() as clock:
        yield clock
