"""What the reloads of a tool show, for `recommendations()`: whether a result has changed since it was loaded before.

A load that takes the place of an expired entry, which no write has touched, is compared with it. All else that is
recommended rests on the counters of the tool.
"""

from __future__ import annotations

import math
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.core.store import Entry
from agent_cache.engine.scope import Call
from agent_cache.metrics import Stats
from agent_cache.values.compare import fingerprint
from agent_cache.values.copies import packed

__all__ = ["SHORTEST", "Evidence"]

SHORTEST: Final = 1e-3
"""Seconds. Shorter loads are not looked at: there is little to save, and a comparison would take a good part of it."""


class Evidence:
    """What was seen of one tool, with the counters `stats`. Threads take no lock for it: a count may be lost."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self.expired = 0  # how many loads have replaced a result that had expired
        self.restart()

    def restart(self) -> None:
        """Count anew, since the ttl is another one now: a rate is estimated from intervals that are alike."""
        self._began = CLOCK.now() if self.expired else -math.inf  # of what was loaded before, the ttl was another one
        self.expired = self.changed = self.unchanged = 0
        self.seconds = 0.0  # the intervals between the compared loads and the ones before, in sum
        self._former = self._counted()

    def _counted(self) -> tuple[int, ...]:
        stats = self._stats
        return stats.hits + stats.shared, stats.misses, stats.evictions, stats.unstored

    @property
    def counts(self) -> tuple[int, ...]:
        """Calls that were answered without a load, loads, evictions, and results that could not be stored."""
        return tuple([max(0, now - before) for now, before in zip(self._counted(), self._former, strict=True)])

    def note(self, call: Call, value: Any, former: Entry) -> None:
        """Note that a result takes the place of one that still counted, but for its age."""
        policy = call.operation.policy
        ttl, outcome_key = policy.ttl, policy.loop.outcome_key
        if ttl is None or callable(ttl) or former.expires > call.started:
            return
        interval = call.started - former.expires + ttl
        if interval <= 0 or call.started - interval < self._began:
            return
        self.expired += 1
        results = former.expired_value(), value
        try:
            one, other = map(_image, results if outcome_key is None else map(outcome_key, results))
        except Exception:  # noqa: BLE001 - the user's function; the loop guard logs that it raises
            return
        if one is not None and other is not None:
            self.unchanged += one == other
            self.changed += one != other
            self.seconds += interval


def _image(result: Any) -> bytes | None:
    """What is equal for equal results; None if this one cannot be compared. MessagePack takes 1 us for 0.8 KB."""
    try:
        return packed(result)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return fingerprint(result)
