"""What the reloads of a tool show, for `recommendations()`: whether a result has changed since it was loaded before.

A load that takes the place of an expired entry, which no write has touched, is compared with it, by the copies that are
stored anyway. All else that is recommended rests on the counters of the tool.
"""

from __future__ import annotations

import math
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.core.store import Entry
from agent_cache.engine.scope import Call
from agent_cache.metrics import Stats
from agent_cache.values.canonical import MISSING

__all__ = ["SHORTEST", "Evidence"]

SHORTEST: Final = 1e-3
"""Seconds. Shorter loads are not looked at: there is little to save, and a comparison would take a good part of it."""

_MOST_MEMBERS: Final = 500
"""How many members a flat container has that is compared: 20 us."""


class Evidence:
    """What was seen of one tool, with the counters `stats`. Threads take no lock for it: a count may be lost.

    Attributes:
        expired: how many loads have replaced a result that had expired.
        changed, unchanged: how many of these were compared, and had changed or not.
        seconds: the intervals between the compared loads and the ones before, in sum.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self.expired = 0
        self.restart()

    def restart(self) -> None:
        """Count anew, since the ttl is another one now: a rate is estimated from intervals that are alike."""
        self._began = CLOCK.now() if self.expired else -math.inf  # of what was loaded before, the ttl was another one
        self.expired = self.changed = self.unchanged = 0
        self.seconds = 0.0
        self._former = self._counted()

    def _counted(self) -> tuple[int, ...]:
        stats = self._stats
        return stats.hits + stats.shared, stats.misses, stats.evictions, stats.unstored

    @property
    def counts(self) -> tuple[int, ...]:
        """Calls that were answered without a load, loads, evictions, and results that could not be stored."""
        return tuple([max(0, now - before) for now, before in zip(self._counted(), self._former, strict=True)])

    def note(self, call: Call, value: Any, stored: Entry, former: Entry) -> None:
        """Note that an entry takes the place of one that still counted, but for its age."""
        ttl = call.operation.policy.ttl
        if ttl is None or callable(ttl) or former.expires > call.started:
            return
        interval = call.started - former.expires + ttl
        if interval <= 0 or call.started - interval < self._began:
            return
        self.expired += 1
        outcome_key = call.operation.policy.loop.outcome_key
        one, other = _image(former), _image(stored)
        try:
            if outcome_key is not None:
                one, other = outcome_key(former.expired_value()), outcome_key(value)
            if one is MISSING or other is MISSING:
                return
            is_same = bool(one == other)
        except Exception:  # noqa: BLE001 - the user's function or class; the loop guard logs that it raises
            return
        self.unchanged += is_same
        self.changed += not is_same
        self.seconds += interval


def _image(entry: Entry) -> Any:
    """What is equal for equal results, without a copy: bytes, a flat container, or the value itself where it is shared.
    `MISSING` if there is nothing like this, or it is large.
    """
    if entry.copy is None:
        return entry.value
    for part in getattr(entry.copy, "args", ()):
        if type(part) is bytes:
            return part
    flat: Any = getattr(entry.copy, "__self__", MISSING)
    return flat if type(flat) in (dict, list, set) and len(flat) <= _MOST_MEMBERS else MISSING
