"""For tests of agents and of tiers: a clean slate, a clock that is moved by hand, a tier in memory, a suite for
every tier.

The fixtures stand in `agent_cache.testing.fixtures`, which needs pytest: ``pytest_plugins =
["agent_cache.testing.fixtures"]`` in the topmost ``conftest.py`` makes them known.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from agent_cache.testing._clock import FakeClock
from agent_cache.testing._state import loads_in_flight, reset, without_codegen
from agent_cache.testing.faults import FaultyTier
from agent_cache.testing.memory import MemoryTier
from agent_cache.testing.server import MemoryServer

if TYPE_CHECKING:
    from agent_cache.testing.contract import TierContract

__all__ = [
    "FakeClock",
    "FaultyTier",
    "MemoryServer",
    "MemoryTier",
    "TierContract",
    "loads_in_flight",
    "reset",
    "without_codegen",
]


def __getattr__(name: str) -> Any:
    """Load the suite when it is asked for, with pytest's explanation of failed asserts if pytest is running."""
    if name != "TierContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if (pytest := sys.modules.get("pytest")) is not None and "agent_cache.testing.contract" not in sys.modules:
        pytest.register_assert_rewrite("agent_cache.testing.contract")
    from agent_cache.testing.contract import TierContract

    return TierContract
