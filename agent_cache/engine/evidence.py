"""What the loads of a tool have shown, for `recommendations()`: why each was needed, whether it has changed.

It is bounded: the latest load of at most 128 calls is remembered, chosen by a hash of their keys. All loads of these
calls are seen and none of the others, so that shares are those of all calls: SHARDS (Waldspurger, Park, Garthwaite,
Ahmad: Efficient MRC Construction with SHARDS, FAST 2015).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

from agent_cache.core.store import Entry
from agent_cache.engine.scope import Call
from agent_cache.metrics import Stats
from agent_cache.values.compare import fingerprint

__all__ = ["SHORTEST", "Evidence", "LastLoad"]

CAUSES: Final = ("cold", "expired", "evicted", "invalidated", "unstored")
"""Why a call was not answered from the cache: it was never loaded before, or its result had reached its ttl, was
evicted for others, was dropped by a write, or could not be stored."""

SHORTEST: Final = 1e-3
"""Seconds. Shorter loads are not looked at: there is little to save, and a comparison would take a good part of it."""

_MAX_CALLS: Final = 128

_LONGEST: Final[dict[Any, int]] = {str: 65_536, bytes: 65_536, dict: 500, list: 500, set: 500, tuple: 500}
"""How long a result is that is compared: 0.1 ms for so many bytes of its copy, 1.5 ms for the members of a flat one."""

_ALL: Final = 1 << 64
_MIX: Final = 0x9E3779B97F4A7C15  # odd: multiplied by it, numbers that follow each other are spread over all 64 bits


@dataclass(slots=True)
class LastLoad:
    """The latest load of a call."""

    started: float
    expires: float  # of its entry
    digest: Hashable  # of the result; None if it has none, or it was not computed
    is_stored: bool
    is_evicted: bool = False


class Evidence:
    """What was seen of one tool, with the counters `stats`. Threads take no lock for it: a count may be lost.

    Attributes:
        latest: the latest loads, by the hash of their keys. The same object as long as the tool lives.
        causes: how many of the loads that were looked at had each of the `CAUSES`.
        changed, unchanged: reloads of results that were still stored, and that no write had touched.
        seconds: the intervals between these loads and the ones before, in sum.
        dropped, dropped_unchanged: reloads of results that a write had dropped; and those that had not changed.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self.latest: dict[int, LastLoad] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.latest.clear()
        self._threshold = _ALL
        self.restart()

    def restart(self) -> None:
        """Count anew, since the ttl is another one now: a rate is estimated from intervals that are alike."""
        self.changed = self.unchanged = self.dropped = self.dropped_unchanged = 0
        self.seconds = 0.0
        self.causes = dict.fromkeys(CAUSES, 0)
        self._former = self._stats.hits + self._stats.shared, self._stats.misses

    @property
    def calls(self) -> tuple[int, int]:
        """Calls that were answered without a load, and loads, looked at or not."""
        hits, loads = self._former
        return max(0, self._stats.hits + self._stats.shared - hits), max(0, self._stats.misses - loads)

    @property
    def different_calls(self) -> int:
        """An estimate of how many different calls there were."""
        return round(len(self.latest) * _ALL / self._threshold)

    def note(self, call: Call, value: object, stored: Entry | None, present: Entry | None) -> None:
        """Note a load, or a result that a tier had: its entry if it was stored, and the entry that was there before and
        counted, though it may have expired.
        """
        store, started = call.flight.store, call.started
        key = store.evidence_key(call.key)
        if not self._is_chosen(key):
            return
        former = self.latest.get(key)
        digest = None if stored is None else _digest(call, value, stored)
        expires = started if stored is None else stored.expires
        cause = _cause(former, present, started)
        if cause == "invalidated" and store.owner is not None:
            cause = None  # another session of this id has ended
        if cause is not None and call.source == "miss" and not call.is_fresh:
            self.causes[cause] += 1
        if former is not None and former.digest is not None and digest is not None:
            is_same, interval = former.digest == digest, started - former.started
            if present is not None and present.expires == former.expires and interval > 0:
                self.unchanged += is_same
                self.changed += not is_same
                self.seconds += interval
            elif cause == "invalidated":
                self.dropped += 1
                self.dropped_unchanged += is_same
        self.latest[key] = LastLoad(started, expires, digest, is_stored=stored is not None)
        while len(self.latest) > _MAX_CALLS:
            self._threshold >>= 1
            for other in list(self.latest):  # in one step of the interpreter: other threads may forget one
                if not self._is_chosen(other):
                    self.latest.pop(other, None)

    def _is_chosen(self, key: int) -> bool:
        return (key * _MIX) % _ALL < self._threshold


def _cause(former: LastLoad | None, present: Entry | None, now: float) -> str | None:
    """Why a call had to be loaded; None if that is not known, as for a hit that its tier did not confirm in time."""
    if present is not None:
        return "expired" if present.expires <= now else None
    if former is None:
        return "cold"
    if not former.is_stored:
        return "unstored"
    if former.expires <= now:
        return "expired"  # whatever has removed it since: it would have been loaded all the same
    return "evicted" if former.is_evicted else "invalidated"


def _digest(call: Call, value: object, stored: Entry) -> Hashable:
    """What two results share that are the same, types included; None if that cannot be told, or takes long."""
    outcome_key = call.operation.policy.loop.outcome_key
    image: Any = value
    for part in getattr(stored.copy, "args", ()):
        if type(part) is bytes:
            image = part  # of the copy that is stored anyway: to walk the value takes a hundred times as long
    if type(image) in _LONGEST and len(image) > _LONGEST[type(image)]:
        return None
    try:
        return fingerprint(image if outcome_key is None else outcome_key(value))
    except Exception:  # noqa: BLE001 - the user's function; the loop guard logs that it raises
        return None
