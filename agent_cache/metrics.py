"""Counts of what the cache did: per tool, per resource and in sum, for the process and for each session."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["METRICS", "Metrics", "Stats", "get_metrics"]

_PUBLIC = ("calls", "hits", "misses", "shared", "invalidations", "uncached", "evictions", "errors", "time_saved")


class Stats:
    """Counters of one tool. ``+= 1`` on a slot has no point at which CPython gives the GIL away, so they are exact
    without a lock.

    Attributes:
        hits: answers from the local store or a tier.
        misses: runs of the tool that were started to fill the cache.
        shared: calls that waited for somebody else's run.
        bypassed: calls that never took part: arguments without identity, no session, caching switched off.
        unstored: answers that could not be kept: not copyable, tags not computable.
        writes: calls of an invalidator.
        invalidations: writes and explicit invalidations that were carried out.
        evictions: entries that made room for others.
        errors: exceptions that came out of the tool.
        time_saved: seconds of load time that hits and shared calls did not spend.
    """

    __slots__ = (
        "bypassed",
        "errors",
        "evictions",
        "hits",
        "invalidations",
        "misses",
        "shared",
        "time_saved",
        "unstored",
        "writes",
    )

    bypassed: int
    errors: int
    evictions: int
    hits: int
    invalidations: int
    misses: int
    shared: int
    time_saved: float
    unstored: int
    writes: int

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to zero, in place: generated code holds on to this object."""
        for name in Stats.__slots__:
            setattr(self, name, 0)
        self.time_saved = 0.0

    @property
    def calls(self) -> int:
        return self.hits + self.misses + self.shared + self.bypassed + self.writes

    @property
    def uncached(self) -> int:
        return self.bypassed + self.unstored

    @property
    def hit_rate(self) -> float:
        """Share of the cacheable calls that were answered without a run: 0.0 when there were none."""
        reads = self.hits + self.misses + self.shared
        return self.hits / reads if reads else 0.0

    def add(self, other: Stats) -> None:
        for name in Stats.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PUBLIC} | {"hit_rate": self.hit_rate}


class Metrics:
    """The live counters of a process or of a session.

    Reading an attribute (``hits``, ``misses``, ``shared``, ``invalidations``, ``uncached``, ``evictions``, ``errors``,
    ``calls``, ``loop_detections``, ``time_saved``, ``hit_rate``) adds up all tools; `snapshot` gives the breakdown.
    """

    def __init__(self) -> None:
        self._tools: dict[tuple[str, tuple[str, ...]], Stats] = {}
        self._explicit: dict[tuple[str, ...], Stats] = {}
        self._loops: Counter[str] = Counter()
        self._notices: Counter[str] = Counter()
        self._callback_errors = 0
        self._lock = threading.RLock()  # these are rare, and a Counter adds up in several steps

    def stats_of(self, tool: str, roots: Iterable[str]) -> Stats:
        """The counters of a tool; two tools of one name that read the same roots share them."""
        return self._tools.setdefault((tool, tuple(roots)), Stats())

    def invalidated(self, roots: Iterable[str]) -> None:
        """Count an invalidation that no tool stands for: `invalidate(...)` or `writing(...)`."""
        self._explicit.setdefault(tuple(roots), Stats()).invalidations += 1

    def acted_on_loop(self, kind: str) -> None:
        """Count a call that a session refused, replaced or warned of."""
        with self._lock:
            self._loops[kind] += 1

    def noticed_loop(self, kind: str) -> None:
        """Count a loop that was noticed and not acted upon."""
        with self._lock:
            self._notices[kind] += 1

    def callback_failed(self) -> None:
        """Count a function of the user's, asked about loops, that raised."""
        with self._lock:
            self._callback_errors += 1

    @property
    def loop_detections(self) -> int:
        """Calls that sessions refused, replaced or warned of."""
        return sum(self._loops.values())

    def total(self) -> Stats:
        """All tools added up."""
        total = Stats()
        for stats in (*list(self._tools.values()), *list(self._explicit.values())):
            total.add(stats)
        return total

    def __getattr__(self, name: str) -> Any:
        if name in _PUBLIC or name == "hit_rate":
            return getattr(self.total(), name)
        raise AttributeError(name)

    def snapshot(self) -> dict[str, Any]:
        """A plain copy: flat sums, loops by kind, and the counts of calls per root under ``resources`` and per
        ``module:qualname`` under ``tools``.
        """
        total = self.total()
        resources: dict[str, Stats] = {}
        tools: dict[str, Stats] = {}
        for (tool, roots), stats in list(self._tools.items()):
            tools.setdefault(tool, Stats()).add(stats)
            for root in roots:
                resources.setdefault(root, Stats()).add(stats)
        for roots, stats in list(self._explicit.items()):
            for root in roots:
                resources.setdefault(root, Stats()).add(stats)
        return total.as_dict() | {
            "loop_detections": self.loop_detections,
            "loops": dict(self._loops),
            "loop_notices": dict(self._notices),
            "callback_errors": self._callback_errors,
            "resources": {root: stats.as_dict() for root, stats in sorted(resources.items())},
            "tools": {
                tool: stats.as_dict() for tool, stats in sorted(tools.items()) if stats.calls or stats.invalidations
            },
        }

    def clear(self) -> None:
        """Everything back to zero."""
        for stats in self._tools.values():
            stats.clear()
        self._explicit.clear()
        with self._lock:
            self._loops.clear()
            self._notices.clear()
            self._callback_errors = 0


METRICS = Metrics()


def get_metrics() -> dict[str, Any]:
    """Counts of this process since it started, with and without sessions.

    Returns:
        A plain copy:
            ``calls hits misses shared invalidations uncached evictions errors time_saved hit_rate loop_detections``,
        and the same per root under ``"resources"`` and per tool (``"module:qualname"``) under ``"tools"``.
        ``"loops"`` and ``"loop_notices"`` break the calls that sessions acted upon, and those they only noticed, down
        by the kind of loop or budget; ``"callback_errors"`` counts the functions given for loops that raised.
        `time_saved` is in seconds. ``hit_rate = hits / (hits + misses + shared)``, 0.0 when there were none.
    """
    return METRICS.snapshot()
