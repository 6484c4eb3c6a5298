"""What a process says of itself in its heartbeats: how often its reads are hits. People read it, and no tier."""

from __future__ import annotations

import json

from agent_cache._metrics import METRICS
from agent_cache.remote.redis.leases import NEVER, boottime

__all__ = ["Report"]

_MAX_ROOTS = 100
_PERIOD = 2.0


class Report:
    """``{root: [hits, misses, shared]}`` as JSON, at most every two seconds anew: heartbeats are more frequent."""

    def __init__(self) -> None:
        self._text = b""
        self._made = NEVER

    def text(self) -> bytes:
        """The report."""
        if boottime() - self._made > _PERIOD:
            resources = METRICS.snapshot()["resources"]
            busiest = sorted(resources, key=lambda root: -resources[root]["calls"])[:_MAX_ROOTS]
            counts = {root: [resources[root][name] for name in ("hits", "misses", "shared")] for root in busiest}
            self._text, self._made = json.dumps(counts, separators=(",", ":")).encode(), boottime()
        return self._text
