"""What the loads of a tool have shown: why each was needed, and whether its result differed from the one before.

`Evidence` belongs to one tool and is bounded: it remembers the latest load of at most 128 calls, chosen by a hash of
their keys, and adds up what follows from them. The choice by hash is that of SHARDS (Waldspurger, Park, Garthwaite,
Ahmad: Efficient MRC Construction with SHARDS, FAST 2015): all loads of the chosen calls are seen and none of the
others, so that shares are those of all calls, however many there are. If too many are chosen, the threshold is halved.

`Seen` is a copy of the sums, which can be added to that of another process, and sent as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

__all__ = [
    "BY_NUMBER",
    "BY_SIZE",
    "CAUSES",
    "NOT",
    "SHORTEST",
    "Evidence",
    "LastLoad",
    "Seen",
    "interval_of",
]

CAUSES: Final = ("cold", "expired", "evicted", "invalidated", "unstored")
"""Why a call was not answered from the cache: it was never loaded before, or its result had reached its ttl, was
evicted for others, was dropped by a write, or could not be stored."""

_BINS_PER_OCTAVE: Final = 4
"""Intervals between two loads are counted in bins, each 19 % wider than the one before."""

_MAX_CALLS: Final = 128
"""Calls whose latest load is remembered: some 300 bytes each, beside their keys."""

_MAX_COMPARED: Final = 4_096
"""Comparisons after which all sums of them are halved, so that what was seen lately counts more."""

_SHARE: Final = 0.01
"""The part of the time of loads that may be spent on comparing their results."""

SHORTEST: Final = 1e-4
"""Seconds. A shorter load adds nothing to what may be spent, so tools that are so fast are not looked at: there is
little to save, and a comparison would take a good part of it."""

_MOST: Final = 0.05
"""Seconds that may be saved up."""

_ALL: Final = 1 << 64
_MIX: Final = 0x9E3779B97F4A7C15  # odd: multiplied by it, numbers that follow each other are spread over all 64 bits

_MAX_COMPARED_OF_ONE: Final = 128
"""The same for one call."""

NOT, BY_NUMBER, BY_SIZE = 0, 1, 2
"""Whether an entry was evicted: because of `maxsize`, or of `max_bytes`."""


class Changes(NamedTuple):
    """Reloads of one call whose results no write is known to have touched.

    Attributes:
        changed, unchanged: how many had changed, and had not.
        changed_seconds, unchanged_seconds: the intervals between these loads and the ones before, in sum.
    """

    changed: float = 0.0
    changed_seconds: float = 0.0
    unchanged: float = 0.0
    unchanged_seconds: float = 0.0

    def noted(self, interval: float, *, is_same: bool) -> Changes:
        """These and one more."""
        changed, changed_seconds, unchanged, unchanged_seconds = self
        if is_same:
            unchanged, unchanged_seconds = unchanged + 1, unchanged_seconds + interval
        else:
            changed, changed_seconds = changed + 1, changed_seconds + interval
        if changed + unchanged > _MAX_COMPARED_OF_ONE:
            return Changes(changed / 2, changed_seconds / 2, unchanged / 2, unchanged_seconds / 2)
        return Changes(changed, changed_seconds, unchanged, unchanged_seconds)

    @property
    def speed(self) -> float:
        """A rate that this call changes at least with, roughly, in changes a second: calls are compared by it."""
        seconds = self.changed_seconds + self.unchanged_seconds
        return max(0.0, self.changed - 2 * math.sqrt(self.changed)) / seconds if seconds else 0.0


NO_CHANGES: Final = Changes()


class LastLoad:
    """The latest load of a call.

    Attributes:
        started: the clock reading at which it began.
        expires: that at which its entry expires; of what was not stored, its start.
        digest: of the result; None if it has none, or it was not computed.
        serial: of the latest invalidation before the result was stored.
        is_stored: whether the result was stored.
        evicted: whether and why the entry was evicted: see `NOT`.
        changes: what the reloads of this call have shown.
    """

    __slots__ = ("changes", "digest", "evicted", "expires", "is_stored", "serial", "started")

    def __init__(self, started: float, expires: float, digest: bytes | None, serial: int, *, is_stored: bool) -> None:
        self.started = started
        self.expires = expires
        self.digest = digest
        self.serial = serial
        self.is_stored = is_stored
        self.evicted = NOT
        self.changes = NO_CHANGES


class Evidence:
    """What was seen of one tool. Only its owner calls it, and `note` once at a time; `forget`, `restart` and `seen` may
    be called by any thread meanwhile.

    Args:
        tool: the full name of the tool.
        stats: the counters of the tool: `agent_cache.metrics.Stats`.
        maxsize: its bound on entries.

    Attributes:
        allowance: seconds of the processor that may be spent on comparing: a hundredth of what the loads have taken.
        latest: the latest loads, by key. The same object as long as the tool lives.
        ttl: the longest life of a result in seconds, None without a bound.
        life_varies: whether `ttl` is a bound on what a function of the result returns.
        has_writers: whether something is known to write what the tool depends on.
    """

    __slots__ = (
        "__weakref__", "_base", "_seen", "_threshold", "allowance", "has_writers", "latest", "life_varies", "maxsize",
        "stats", "tool", "ttl",
    )  # fmt: skip

    def __init__(self, tool: str, stats: Any, maxsize: int | None) -> None:
        self.tool = tool
        self.stats = stats
        self.maxsize = maxsize
        self.ttl: float | None = None
        self.life_varies = False
        self.has_writers = False
        self.latest: dict[Hashable, LastLoad] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.latest.clear()
        self._threshold = _ALL
        self.allowance = 0.0
        self._seen = Seen()
        self._base = self._counts()

    def restart(self) -> None:
        """Forget why loads were needed, since the ttl is another one now. How results change stays known."""
        self._seen = self._seen.without_causes()
        self._base = self._counts()

    def _counts(self) -> tuple[int, int]:
        return self.stats.hits + self.stats.shared, self.stats.misses

    def earn(self, cost: float) -> None:
        """Allow more comparisons after a load that has taken so many seconds."""
        if cost > SHORTEST and self.allowance < _MOST:
            self.allowance = min(_MOST, self.allowance + _SHARE * cost)

    def is_chosen(self, key: Hashable) -> bool:
        """Whether the loads under this key are looked at."""
        return self._threshold == _ALL or (hash(key) * _MIX) % _ALL < self._threshold

    def note(
        self,
        key: Hashable,
        load: LastLoad,
        present: float | None,
        written: int,
        *,
        is_miss: bool,
    ) -> None:
        """Note a load, or a result that a tier had.

        Args:
            key: one that is chosen.
            present: when the entry expires that was stored under this key before; None without one.
            written: the serial number of the latest write under one of the tool's roots.
            is_miss: the call had to be loaded. False for one that asked for a fresh value, and for what a tier had.
        """
        former = self.latest.get(key)
        cause = _cause(former, present, load.started)
        if cause == "invalidated" and former is not None and written <= former.serial:
            cause = None  # it was dropped otherwise: by its name, or with a session whose id another one has now
        if is_miss and cause is not None:
            self._seen.count(cause, is_by_size=former is not None and former.evicted == BY_SIZE)
        if former is not None and former.is_stored and load.is_stored and None not in (former.digest, load.digest):
            is_same = former.digest == load.digest
            is_unwritten = (present is not None and present == former.expires) or (
                former.evicted != NOT and written <= former.serial
            )
            interval = load.started - former.started
            load.changes = former.changes
            if is_unwritten and interval > 0:
                self._seen.compare(interval, is_same=is_same)
                load.changes = former.changes.noted(interval, is_same=is_same)
            elif is_miss and cause == "invalidated":
                self._seen.compare_dropped(is_same=is_same)
        self.latest[key] = load
        if former is None and len(self.latest) > _MAX_CALLS:
            self._choose_fewer()

    def _choose_fewer(self) -> None:
        while len(self.latest) > _MAX_CALLS:
            self._threshold >>= 1
            for key in list(self.latest):  # in one step of the interpreter: other threads may forget one
                if not self.is_chosen(key):
                    self.latest.pop(key, None)

    def forget(self, key: Hashable) -> None:
        """Forget the latest load of a call, whose result was replaced otherwise."""
        self.latest.pop(key, None)

    def seen(self) -> Seen:
        """A copy of what was seen so far."""
        hits, misses = self._counts()
        former_hits, former_misses = self._base
        calls = round(len(self.latest) * _ALL / self._threshold)
        return self._seen.copy(
            ttl=self.ttl,
            life_varies=self.life_varies,
            maxsize=self.maxsize,
            has_writers=self.has_writers,
            hits=max(0, hits - former_hits),
            loads=max(0, misses - former_misses),
            calls=calls,
            fastest=max((each.changes for each in list(self.latest.values())), key=_speed, default=NO_CHANGES),
        )


def _speed(changes: Changes) -> float:
    return changes.speed


def _cause(former: LastLoad | None, present: float | None, now: float) -> str | None:
    """Why a call had to be loaded; None if that is not known, as for a hit that its tier did not confirm in time."""
    if present is not None:
        return "expired" if present <= now else None
    if former is None:
        return "cold"
    if not former.is_stored:
        return "unstored"
    if former.expires <= now:
        return "expired"  # whatever has removed it since: it would have been loaded all the same
    return "evicted" if former.evicted != NOT else "invalidated"


def bin_of(interval: float) -> int:
    """The bin of an interval in seconds."""
    return math.floor(_BINS_PER_OCTAVE * math.log2(interval))


def interval_of(number: int) -> float:
    """The middle of a bin, in seconds."""
    return float(2.0 ** ((number + 0.5) / _BINS_PER_OCTAVE))


_LEAST_BIN = -120
_GREATEST_BIN = 200
"""A nanosecond, and 30 million years."""


@dataclass(slots=True, eq=False, repr=False)
class Seen:
    """Sums over what was seen of the loads of a tool.

    Attributes:
        ttl, life_varies, maxsize, has_writers: as in `Evidence`.
        hits: calls that were answered without a load.
        loads: all loads, also those that were not looked at.
        calls: an estimate of how many different calls there were.
        causes: how many of the loads that were looked at had each of the `CAUSES`.
        by_size: how many of those because of an eviction were evicted for `max_bytes`.
        unchanged, unchanged_seconds: reloads of results that no write is known to have touched and that had not
            changed; and the intervals between these loads and the ones before in sum.
        changed: the same that had changed: how many, by the bin of the interval.
        dropped, dropped_unchanged: reloads of results that a write had dropped; and those that had not changed.
        fastest: the reloads of the call whose results have changed the fastest.
    """

    ttl: float | None = None
    life_varies: bool = False
    maxsize: int | None = None
    has_writers: bool = False
    hits: int = 0
    loads: int = 0
    calls: int = 0
    causes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    by_size: int = 0
    unchanged: float = 0
    unchanged_seconds: float = 0.0
    changed: dict[int, float] = field(default_factory=dict)
    dropped: float = 0
    dropped_unchanged: float = 0
    fastest: Changes = NO_CHANGES

    @property
    def compared(self) -> float:
        """Reloads of results that no write is known to have touched."""
        return self.unchanged + sum(self.changed.values())

    def count(self, cause: str, *, is_by_size: bool) -> None:
        """Count a load by its cause."""
        self.causes[cause] += 1
        self.by_size += is_by_size and cause == "evicted"

    def compare(self, interval: float, *, is_same: bool) -> None:
        """Count a reload of a result that no write is known to have touched."""
        if is_same:
            self.unchanged += 1
            self.unchanged_seconds += interval
        else:
            number = min(max(bin_of(interval), _LEAST_BIN), _GREATEST_BIN)
            self.changed[number] = self.changed.get(number, 0) + 1
        if self.compared > _MAX_COMPARED:
            self.unchanged /= 2
            self.unchanged_seconds /= 2
            self.changed = {number: count / 2 for number, count in self.changed.items() if count > 1 / 16}

    def compare_dropped(self, *, is_same: bool) -> None:
        """Count a reload of a result that a write had dropped."""
        self.dropped += 1
        self.dropped_unchanged += is_same
        if self.dropped > _MAX_COMPARED:
            self.dropped /= 2
            self.dropped_unchanged /= 2

    def copy(self, **changes: Any) -> Seen:
        """A copy with these changes."""
        values = {each.name: getattr(self, each.name) for each in fields(self)} | changes
        return Seen(**values | {"causes": dict(values["causes"]), "changed": dict(values["changed"])})

    def without_causes(self) -> Seen:
        """A copy in which no load has a cause."""
        return self.copy(causes=dict.fromkeys(CAUSES, 0), by_size=0)

    def with_sums_of(self, other: Seen) -> Seen:
        """The sums of two, as of two processes, with the settings of the one that has loaded more."""
        more = self if self.loads >= other.loads else other
        return more.copy(
            has_writers=self.has_writers or other.has_writers,
            hits=self.hits + other.hits,
            loads=self.loads + other.loads,
            calls=max(self.calls, other.calls),
            causes={cause: self.causes[cause] + other.causes[cause] for cause in CAUSES},
            by_size=self.by_size + other.by_size,
            unchanged=self.unchanged + other.unchanged,
            unchanged_seconds=self.unchanged_seconds + other.unchanged_seconds,
            changed={
                number: self.changed.get(number, 0) + other.changed.get(number, 0)
                for number in self.changed.keys() | other.changed.keys()
            },
            dropped=self.dropped + other.dropped,
            dropped_unchanged=self.dropped_unchanged + other.dropped_unchanged,
            fastest=max(self.fastest, other.fastest, key=_speed),
        )

    # As JSON, for other processes

    def as_json(self) -> list[Any]:
        """The sums as a list that `from_json` reads."""
        return [
            self.ttl, int(self.life_varies), self.maxsize, int(self.has_writers), self.hits, self.loads, self.calls,
            [self.causes[cause] for cause in CAUSES], self.by_size, round(self.unchanged, 1),
            round(self.unchanged_seconds, 3),
            {str(number): round(count, 2) for number, count in sorted(self.changed.items())},
            round(self.dropped, 1), round(self.dropped_unchanged, 1), [round(each, 3) for each in self.fastest],
        ]  # fmt: skip

    @classmethod
    def from_json(cls, value: Any) -> Seen | None:
        """What `as_json` has made; None for anything else. Whoever can write to the server can forge it."""
        if not isinstance(value, list) or len(value) != _FIELDS:
            return None
        ttl, varies, maxsize, writers, hits, loads, calls, causes, by_size, same, seconds, changed, *rest = value
        dropped, kept, fastest = rest
        if not isinstance(causes, list) or len(causes) != len(CAUSES) or not isinstance(changed, Mapping):
            return None
        if not isinstance(fastest, list) or len(fastest) != len(NO_CHANGES):
            return None
        counts = [hits, loads, calls, by_size, *causes]
        numbers = [same, seconds, dropped, kept, *fastest, *changed.values(), *([] if ttl is None else [ttl])]
        is_valid = (
            all(type(count) is int and 0 <= count < 1 << 63 for count in counts)
            and all(type(number) in (int, float) and 0 <= number < 1e18 for number in numbers)
            and (maxsize is None or (type(maxsize) is int and 0 < maxsize < 1 << 63))
            and ttl != 0
            and kept <= dropped
            and varies in (0, 1)
            and writers in (0, 1)
            and len(changed) <= _GREATEST_BIN - _LEAST_BIN + 1
            and all(_is_bin(number) for number in changed)
        )
        if not is_valid:
            return None
        return cls(
            ttl, bool(varies), maxsize, bool(writers), hits, loads, calls, dict(zip(CAUSES, causes, strict=True)),
            by_size, same, seconds, {int(number): count for number, count in changed.items()}, dropped, kept,
            Changes(*fastest),
        )  # fmt: skip


_FIELDS: Final = len(fields(Seen))


def _is_bin(text: Any) -> bool:
    return text in _BINS


_BINS: Final = frozenset(map(str, range(_LEAST_BIN, _GREATEST_BIN + 1)))
