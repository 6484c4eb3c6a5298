"""For tests of agents and of tiers: a clean slate, a clock that is moved by hand, a tier in memory.

The fixtures stand in `agent_cache.testing.fixtures`, which needs pytest: ``pytest_plugins =
["agent_cache.testing.fixtures"]`` in the topmost ``conftest.py`` makes them known.
"""

from __future__ import annotations

from agent_cache.remote.memory import MemoryServer, MemoryTier
from agent_cache.testing._clock import FakeClock
from agent_cache.testing._state import loads_in_flight, reset, without_codegen
from agent_cache.testing.faults import FaultyTier

__all__ = [
    "FakeClock",
    "FaultyTier",
    "MemoryServer",
    "MemoryTier",
    "loads_in_flight",
    "reset",
    "without_codegen",
]
