"""What the loads of a tool have shown: why each was needed, and whether its result differed from the one before.

`Evidence` is bounded: it remembers the latest load of at most 128 calls, chosen by a hash of their keys, and adds up
what follows from them. All loads of the chosen calls are seen and none of the others, so that shares are those of all
calls: SHARDS (Waldspurger, Park, Garthwaite, Ahmad: Efficient MRC Construction with SHARDS, FAST 2015).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["BY_NUMBER", "BY_SIZE", "SHORTEST", "Evidence", "LastLoad"]

CAUSES: Final = ("cold", "expired", "evicted", "invalidated", "unstored")
"""Why a call was not answered from the cache: it was never loaded before, or its result had reached its ttl, was
evicted for others, was dropped by a write, or could not be stored."""

SHORTEST: Final = 1e-3
"""Seconds. Shorter loads are not looked at: there is little to save, and a comparison would take a good part of it."""

NOT, BY_NUMBER, BY_SIZE = 0, 1, 2
"""Whether an entry was evicted: because of `maxsize`, or of `max_bytes`."""

_MAX_CALLS: Final = 128
_MAX_COMPARED: Final = 4_096
"""Comparisons after which their sums are halved, so that what was seen lately counts more."""

_ALL: Final = 1 << 64
_MIX: Final = 0x9E3779B97F4A7C15  # odd: multiplied by it, numbers that follow each other are spread over all 64 bits


@dataclass(slots=True)
class LastLoad:
    """The latest load of a call.

    Attributes:
        started: the clock reading at which it began.
        expires: that at which its entry expires; of what was not stored, its start.
        digest: of the result; None if it has none, or it was not computed.
        serial: of the latest write before the result was stored.
        evicted: whether and why the entry was evicted: see `NOT`.
    """

    started: float
    expires: float
    digest: Hashable
    serial: int
    is_stored: bool
    evicted: int = NOT


class Evidence:
    """What was seen of one tool, with the counters `stats`. Threads take no lock for it: a count may be lost.

    Attributes:
        latest: the latest loads, by key. The same object as long as the tool lives.
        causes: how many of the loads that were looked at had each of the `CAUSES`.
        by_size: how many of those because of an eviction were evicted for `max_bytes`.
        changed, unchanged: reloads of results that no write is known to have touched.
        seconds: the intervals between these loads and the ones before, in sum.
        dropped, dropped_unchanged: reloads of results that a write had dropped; and those that had not changed.
    """

    def __init__(self, stats: Any) -> None:
        self._stats = stats
        self.latest: dict[Hashable, LastLoad] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.latest.clear()
        self._threshold = _ALL
        self.restart()

    def restart(self) -> None:
        """Count anew, since the ttl is another one now: a rate is estimated from intervals that are alike."""
        self.changed = self.unchanged = self.seconds = self.dropped = self.dropped_unchanged = 0.0
        self.causes = dict.fromkeys(CAUSES, 0)
        self.by_size = 0
        self._base = self._stats.hits + self._stats.shared, self._stats.misses

    @property
    def calls(self) -> tuple[int, int]:
        """Calls that were answered without a load, and loads, looked at or not."""
        hits, loads = self._base
        return max(0, self._stats.hits + self._stats.shared - hits), max(0, self._stats.misses - loads)

    @property
    def different_calls(self) -> int:
        """An estimate of how many different calls there were."""
        return round(len(self.latest) * _ALL / self._threshold)

    def is_chosen(self, key: Hashable) -> bool:
        """Whether the loads under this key are looked at."""
        return self._threshold == _ALL or (hash(key) * _MIX) % _ALL < self._threshold

    def note(self, key: Hashable, load: LastLoad, present: float | None, written: int, *, is_miss: bool) -> None:
        """Note a load, or a result that a tier had.

        Args:
            key: one that is chosen.
            present: when the entry expires that was stored under this key before; None without one.
            written: the serial number of the latest write under one of the tool's roots.
            is_miss: the call had to be loaded. False for one that asked for a fresh value, and for what a tier had.
        """
        former = self.latest.get(key)
        cause = _cause(former, present, load.started, written)
        if is_miss and cause is not None:
            self.causes[cause] += 1
            self.by_size += cause == "evicted" and former is not None and former.evicted == BY_SIZE
        has_both = former is not None and former.digest is not None and load.digest is not None
        if former is not None and has_both and former.is_stored and load.is_stored:
            is_same, interval = former.digest == load.digest, load.started - former.started
            is_unwritten = former.evicted != NOT and written <= former.serial
            if (is_unwritten or present == former.expires) and interval > 0:
                self.unchanged += is_same
                self.changed += not is_same
                self.seconds += interval
                if self.changed + self.unchanged > _MAX_COMPARED:
                    self.changed, self.unchanged, self.seconds = self.changed / 2, self.unchanged / 2, self.seconds / 2
            elif is_miss and cause == "invalidated":
                self.dropped += 1
                self.dropped_unchanged += is_same
        self.latest[key] = load
        while len(self.latest) > _MAX_CALLS:
            self._threshold >>= 1
            for other in list(self.latest):  # in one step of the interpreter: other threads may forget one
                if not self.is_chosen(other):
                    self.latest.pop(other, None)


def _cause(former: LastLoad | None, present: float | None, now: float, written: int) -> str | None:
    """Why a call had to be loaded; None if that is not known, as for a hit that its tier did not confirm in time."""
    if present is not None:
        return "expired" if present <= now else None
    if former is None:
        return "cold"
    if not former.is_stored:
        return "unstored"
    if former.expires <= now:
        return "expired"  # whatever has removed it since: it would have been loaded all the same
    if former.evicted != NOT:
        return "evicted"
    # Else it was dropped by its name, or with a session whose id another one has now.
    return "invalidated" if written > former.serial else None
