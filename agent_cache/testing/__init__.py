"""Helpers for tests of agents: reset, a fake clock, a tier in memory, a tier that fails on demand.

The pytest fixtures are in `agent_cache.testing.fixtures`: ``pytest_plugins = ["agent_cache.testing.fixtures"]`` in the
topmost ``conftest.py`` loads them.
"""

from typing import Final

from agent_cache.engine.state import random_numbers
from agent_cache.remote.memory import MemoryServer, MemoryTier
from agent_cache.testing.harness import FakeClock, FaultyTier, loads_in_flight, reset

__all__ = ["FakeClock", "FaultyTier", "JITTER", "MemoryServer", "MemoryTier", "SAMPLING", "loads_in_flight", "reset"]

JITTER: Final = random_numbers("jitter")
"""The random numbers behind ``jitter=``, a `random.Random` that a test may seed. The global one is not touched."""

SAMPLING: Final = random_numbers("audit")
"""The random numbers that choose which hits are audited, a `random.Random` that a test may seed."""
