"""What a tier tells operators: warnings that are logged once, and a report of the calls of this process.

A report is JSON: ``{root: [hits, misses, shared]}``.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from agent_cache.clock import boottime
from agent_cache.metrics import METRICS

__all__ = ["Log", "report_text"]

_LOG_AGAIN_AFTER: Final = 60.0
_MAX_LOGGED: Final = 1_000

_MAX_ROOTS: Final = 100


@dataclass(slots=True)
class Log:
    """Logs each warning once, and writes it to stderr if no logging is set up.

    Argument values are never part of one.
    """

    tier: str
    _logged: dict[str, float] = field(default_factory=dict)

    def once(self, event: str, reason: object = "") -> None:
        """Log a warning, unless the same event was logged before."""
        if event not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged[event] = boottime()
            extra = {"agent_cache_event": event, "agent_cache_tier": self.tier}
            logger = logging.getLogger("agent_cache")
            text = f"{self.tier}: {event}{f' ({reason})' if reason else ''}"
            logger.warning("%s", text, extra=extra)
            if not _is_heard(logger):
                with suppress(OSError, ValueError, AttributeError):  # it may be closed, full or missing
                    sys.stderr.write(f"agent_cache: {text}\n")

    def allow_again(self, event: str) -> None:
        """Let an event that has ended be logged again, at most once a minute."""
        if boottime() - self._logged.get(event, float("-inf")) > _LOG_AGAIN_AFTER:
            self._logged.pop(event, None)


def _is_heard(logger: logging.Logger | None) -> bool:
    """Whether a program has set up logging: the library's own handler writes nowhere."""
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def report_text() -> str:
    """The report of this process: its hundred busiest roots.

    Roots that nothing was read of are left out: tools are often decorated in every process and used in a few.
    """
    resources = METRICS.snapshot()["resources"].items()
    counts = {root: [calls[name] for name in ("hits", "misses", "shared")] for root, calls in resources}
    busiest = sorted((root for root in counts if any(counts[root])), key=lambda root: -sum(counts[root]))
    report: dict[str, Any] = {root: counts[root] for root in busiest[:_MAX_ROOTS]}
    return json.dumps(report, separators=(",", ":"))
