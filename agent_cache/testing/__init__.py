"""Helpers for tests of agents: reset, a fake clock, a tier in memory, a tier that fails on demand.

The pytest fixtures are in `agent_cache.testing.fixtures`: ``pytest_plugins = ["agent_cache.testing.fixtures"]`` in the
topmost ``conftest.py`` loads them.
"""

from agent_cache.engine.store_result import JITTER
from agent_cache.remote.memory import MemoryServer, MemoryTier
from agent_cache.testing.harness import FakeClock, FaultyTier, loads_in_flight, reset, without_codegen

__all__ = [
    "FakeClock",
    "FaultyTier",
    "JITTER",
    "MemoryServer",
    "MemoryTier",
    "loads_in_flight",
    "reset",
    "without_codegen",
]
