"""What the tier has counted, and what it has said once."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field

from agent_cache.remote.redis.leases import NEVER, boottime

__all__ = ["Counters", "Log"]

_RARELY = 60.0
_LOG = logging.getLogger("agent_cache")


@dataclass(slots=True)
class Counters:
    """Events since the tier was made.

    Attributes:
        hits: values found and current.
        misses: lookups that found none.
        batches: reads that went over a connection, whatever number of lookups shared it.
        stores: values written.
        unencodable: values that could not be written down, or were too large.
        bad_values: values that could not be read: forged, damaged, of another version or too large.
        failures: requests that a server did not answer, or refused.
        skipped: lookups and stores that did not ask, since something under their tags is pending.
        losses: times that messages may have been missed.
        invalidations: writes elsewhere that were heard of.
        unannounced: writes that ended when the tier was closed: nobody was told of them.
    """

    hits: int = 0
    misses: int = 0
    batches: int = 0
    stores: int = 0
    unencodable: int = 0
    bad_values: int = 0
    failures: int = 0
    skipped: int = 0
    losses: int = 0
    invalidations: int = 0
    unannounced: int = 0

    def as_dict(self) -> dict[str, int]:
        """A plain copy."""
        return asdict(self)


@dataclass(slots=True)
class Log:
    """Warnings that would otherwise be said at every call. Argument values are never in them."""

    tier: str
    _said: dict[str, float] = field(default_factory=dict)

    def once(self, event: str, reason: object = "") -> None:
        """Say it, unless it was said."""
        if event not in self._said and len(self._said) < 1_000:
            self._said[event] = boottime()
            extra = {"agent_cache_event": event, "agent_cache_tier": self.tier}
            _LOG.warning("%s: %s%s", self.tier, event, f" ({reason})" if reason else "", extra=extra)

    def again(self, event: str) -> None:
        """What was said is over: it may be said again, but not each second: it may come and go."""
        if boottime() - self._said.get(event, NEVER) > _RARELY:
            self._said.pop(event, None)
