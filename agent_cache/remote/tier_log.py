"""What all tiers share: the clock of the machine, and warnings that are logged once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

__all__ = ["Log", "boottime"]

_LOG_AGAIN_AFTER = 60.0
_MAX_LOGGED = 1_000

boottime: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since the machine was started, time in suspension included where the platform can tell. A machine that wakes
up has missed messages. All its processes read the same."""


@dataclass(slots=True)
class Log:
    """Logs each warning once. Argument values are never part of one."""

    tier: str
    _logged: dict[str, float] = field(default_factory=dict)

    def once(self, event: str, reason: object = "") -> None:
        """Log a warning, unless the same event was logged before."""
        if event not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged[event] = boottime()
            extra = {"agent_cache_event": event, "agent_cache_tier": self.tier}
            logging.getLogger("agent_cache").warning(
                "%s: %s%s", self.tier, event, f" ({reason})" if reason else "", extra=extra
            )

    def allow_again(self, event: str) -> None:
        """Let an event that has ended be logged again, at most once a minute."""
        if boottime() - self._logged.get(event, float("-inf")) > _LOG_AGAIN_AFTER:
            self._logged.pop(event, None)
