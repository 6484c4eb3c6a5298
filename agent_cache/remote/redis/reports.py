"""What a process says of itself in its heartbeats: how often its reads are hits. People read it, and no tier."""

from __future__ import annotations

import json

from agent_cache.metrics import METRICS
from agent_cache.remote.redis.leases import NEVER, boottime

__all__ = ["Report"]

_MAX_ROOTS = 100
_PERIOD = 2.0


class Report:
    """``{root: [hits, misses, shared]}`` as JSON, at most every two seconds anew: heartbeats are more frequent.

    A root that nothing was read of is not in it: tools are often decorated in every process and used in a few.
    """

    def __init__(self) -> None:
        self._text = b""
        self._made = NEVER

    def text(self) -> bytes:
        """The report."""
        if boottime() - self._made > _PERIOD:
            resources = METRICS.snapshot()["resources"].items()
            counts = {root: [calls[name] for name in ("hits", "misses", "shared")] for root, calls in resources}
            busiest = sorted((root for root in counts if any(counts[root])), key=lambda root: -sum(counts[root]))
            published = {root: counts[root] for root in busiest[:_MAX_ROOTS]}
            self._text, self._made = json.dumps(published, separators=(",", ":")).encode(), boottime()
        return self._text
