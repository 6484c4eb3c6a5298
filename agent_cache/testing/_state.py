"""A clean slate, and a look at what is going on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent_cache.config import CURRENT, default_configuration
from agent_cache.engine.codegen import GENERATION
from agent_cache.engine.state import LEDGER, clear_everything, forget_warnings
from agent_cache.engine.tiers import unsubscribe_all
from agent_cache.metrics import METRICS

__all__ = ["loads_in_flight", "reset", "without_codegen"]


def reset() -> None:
    """A clean slate: no entries, no holds, counters at zero, the default configuration. Decorated tools stay
    decorated.
    """
    CURRENT.replace(default_configuration())
    unsubscribe_all()
    clear_everything()
    with LEDGER.lock:
        LEDGER.release_all()
    METRICS.clear()
    forget_warnings()


def loads_in_flight() -> int:
    """How many runs of read tools have started and not ended."""
    with LEDGER.lock:
        return LEDGER.loads_in_flight()


@contextmanager
def without_codegen() -> Iterator[None]:
    """Tools decorated inside take the general path at every call, instead of a generated body."""
    former, GENERATION.is_on = GENERATION.is_on, False
    try:
        yield
    finally:
        GENERATION.is_on = former
