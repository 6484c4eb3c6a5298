"""Counters of the cache, per tool, per resource and in sum, for the process and for each session."""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from agent_cache.core.evidence import Evidence, Seen
from agent_cache.values.compare import utf8_text

__all__ = [
    "EVIDENCE",
    "METRICS",
    "CounterFamily",
    "Metrics",
    "Stats",
    "ToolLabels",
    "clear_evidence",
    "counter_families",
    "evidence_by_tool",
    "get_metrics",
]

_COUNTERS = (
    "audits",
    "bypassed",
    "errors",
    "evictions",
    "hits",
    "invalidations",
    "misses",
    "shared",
    "stale",
    "stale_found",
    "time_saved",
    "unstored",
    "writes",
)
_read: Callable[[Stats], tuple[Any, ...]] = attrgetter(*_COUNTERS)


class Stats:
    """Counters of one tool, exact without a lock: CPython does not release the GIL within ``+= 1`` on a slot.

    Attributes:
        hits: results from the local store or a tier.
        misses: runs of the tool that were started to fill the cache.
        shared: calls that waited for a run started by another call.
        bypassed: calls that ran uncached: no identity, no session, caching switched off, or inside `bypass`.
        unstored: results that could not be stored: not copyable, tags not computable.
        writes: calls of an invalidator.
        invalidations: writes and explicit invalidations that were carried out.
        evictions: entries that were evicted for others.
        audits: hits that were compared with what the tool returns now, to a result.
        stale_found: those of them that were found to be stale.
        errors: exceptions raised by the tool.
        stale: calls answered with an expired result, by `grace` or `stale_if_error`. Each is counted as a hit, a miss
            or a shared call, too.
        time_saved: seconds of load time that hits did not spend. A call that waited for another one's run saves none.
    """

    __slots__ = (*_COUNTERS, "__weakref__")

    audits: int
    bypassed: int
    errors: int
    evictions: int
    hits: int
    invalidations: int
    misses: int
    shared: int
    stale: int
    stale_found: int
    time_saved: float
    unstored: int
    writes: int

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset to zero in place, since generated code refers to this object."""
        self.bypassed = self.errors = self.evictions = self.hits = self.invalidations = self.misses = 0
        self.shared = self.stale = self.unstored = self.writes = self.audits = self.stale_found = 0
        self.time_saved = 0.0

    @property
    def calls(self) -> int:
        return self.hits + self.misses + self.shared + self.bypassed + self.writes

    def add(self, counts: Iterable[Any]) -> None:
        for name, count in zip(_COUNTERS, counts, strict=True):
            setattr(self, name, getattr(self, name) + count)


_NOTHING = (0,) * len(_COUNTERS)


def _sum(rows: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The sums of what `_read` gives."""
    return tuple(map(sum, zip(_NOTHING, *rows, strict=True)))


def _as_dict(counts: tuple[Any, ...]) -> dict[str, Any]:
    """What a user sees of what `_read` gives. `hit_rate` is the share of the cacheable calls that were hits."""
    audits, bypassed, errors, evictions, hits, invalidations, misses, shared, *rest = counts
    stale, stale_found, time_saved, unstored, writes = rest
    reads = hits + misses + shared
    return {
        "calls": reads + bypassed + writes,
        "hits": hits,
        "misses": misses,
        "shared": shared,
        "invalidations": invalidations,
        "uncached": bypassed + unstored,
        "writes": writes,
        "evictions": evictions,
        "errors": errors,
        "stale": stale,
        "audits": audits,
        "stale_found": stale_found,
        "time_saved": time_saved,
        "hit_rate": hits / reads if reads else 0.0,
    }


_PUBLIC = frozenset(_as_dict(_NOTHING))


def _is_used(row: dict[str, Any]) -> bool:
    return bool(row["calls"] or row["invalidations"])


_MAX_ROWS = 10_000
"""Rows of tools that no longer exist, and of explicit invalidations, each; a session has fewer."""

_MAX_ROOTS = 1_000
"""Characters of the roots of an explicit invalidation that has a row of its own."""

_LOCK = threading.RLock()
"""For what takes several steps, such as a new row or the count of a loop: rare events, so all metrics share it."""

OTHERS = "(others)"
"""The row of what has no row of its own any more."""


class Metrics:
    """The live counters of a process or of a session.

    Every tool that counts here has its counters. Of tools that are gone, and of the roots of explicit invalidations,
    `max_rows` have a row of their own; what goes beyond is in the row ``"(others)"`` and in the sums.

    Reading an attribute (``hits``, ``misses``, ``shared``, ``invalidations``, ``uncached``, ``evictions``, ``errors``,
    ``calls``, ``loop_detections``, ``time_saved``, ``hit_rate``) sums all tools; `snapshot` gives them one by one.

    Args:
        max_rows: how many these may be, each; 10,000 if left out.
    """

    def __init__(self, max_rows: int | None = None) -> None:
        self._max_rows = _MAX_ROWS if max_rows is None else max_rows
        self._tools: dict[tuple[str, tuple[str, ...]], Stats] = {}
        self._explicit: dict[tuple[str, ...], Stats] = {}
        # What has no row of its own: in few processes, and in fewer sessions, each of which would make them.
        self._other_tools: Stats | None = None
        self._other_roots: Stats | None = None
        self._limit = self._max_rows
        self._loops: defaultdict[str, int] = defaultdict(int)
        self._notices: defaultdict[str, int] = defaultdict(int)
        self._callback_errors = 0

    def stats_of(self, tool: str, roots: Iterable[str]) -> Stats:
        """The counters of a tool. Two tools with the same name and roots share them."""
        key = tool, tuple(roots)
        found = self._tools.get(key)
        if found is not None:
            return found
        with _LOCK:
            found = self._tools.get(key)
            if found is None:
                if len(self._tools) >= self._limit:
                    self._sum_up_tools_that_are_gone()
                found = self._tools[key] = Stats()
        return found

    def _sum_up_tools_that_are_gone(self) -> None:
        """Keep the rows that something still counts in. There are twice as many as were kept the last time."""
        rows = self._tools
        copies = [(key, _read(rows[key])) for key in rows]
        in_use: weakref.WeakValueDictionary[tuple[str, tuple[str, ...]], Stats] = weakref.WeakValueDictionary(rows)
        self._tools = rows = {}
        self._tools = dict(in_use)
        others = self._other_tools = self._other_tools or Stats()
        for key, copied in copies:
            if key not in self._tools:
                others.add(copied)
        self._limit = max(self._max_rows, 2 * len(self._tools))

    def invalidated(self, roots: Iterable[str]) -> None:
        """Count an invalidation without a tool: `invalidate(...)` or `writing(...)`."""
        key = tuple(roots)
        stats = self._explicit.get(key)
        if stats is None:
            if len(self._explicit) < self._max_rows and sum(map(len, key)) <= _MAX_ROOTS:
                stats = self._explicit.setdefault(key, Stats())
            else:
                with _LOCK:
                    stats = self._other_roots = self._other_roots or Stats()
        stats.invalidations += 1

    def acted_on_loop(self, kind: str) -> None:
        """Count a call that a session refused, replaced or warned of."""
        with _LOCK:
            self._loops[kind] += 1

    def noticed_loop(self, kind: str) -> None:
        """Count a loop at the notice level."""
        with _LOCK:
            self._notices[kind] += 1

    def callback_failed(self) -> None:
        """Count a failure of a user's function for loops."""
        with _LOCK:
            self._callback_errors += 1

    @property
    def loop_detections(self) -> int:
        """Calls that sessions refused, replaced or warned of."""
        return sum(self._loops.values())

    def _rows(self) -> list[tuple[tuple[str, tuple[str, ...]], Stats]]:
        with _LOCK:
            others = self._other_tools
            return [*self._tools.items(), *([] if others is None else [((OTHERS, (OTHERS,)), others)])]

    def _explicit_rows(self) -> list[tuple[tuple[str, ...], Stats]]:
        others = self._other_roots
        return [*list(self._explicit.items()), *([] if others is None else [((OTHERS,), others)])]

    def __getattr__(self, name: str) -> Any:
        if name in _PUBLIC:
            rows = [*self._rows(), *self._explicit_rows()]
            return _as_dict(_sum(_read(stats) for _, stats in rows))[name]
        raise AttributeError(name)

    def snapshot(self) -> dict[str, Any]:
        """A copy as a dict: sums, loops by kind, counters by root under ``resources`` and by tool under ``tools``.

        It takes 3 us for a tool. Counts are tuples here: with an object for each row the garbage collector would look
        through the whole process meanwhile, which takes longer than the rest.
        """
        rows = [*self._rows(), *(((None, roots), stats) for roots, stats in self._explicit_rows())]
        read = [(tool, roots, _read(stats)) for (tool, roots), stats in rows]
        tools: dict[str, tuple[Any, ...]] = {}
        resources: dict[str, tuple[Any, ...]] = {}
        for tool, roots, counts in read:
            if tool is not None:
                tools[tool] = counts if tool not in tools else _sum((tools[tool], counts))
            for root in roots:
                resources[root] = counts if root not in resources else _sum((resources[root], counts))
        shown = {root: _as_dict(resources[root]) for root in sorted(resources)}
        if OTHERS in shown and not _is_used(shown[OTHERS]):
            del shown[OTHERS]
        total = _sum(counts for _, _, counts in read)
        return _as_dict(total) | {
            "loop_detections": self.loop_detections,
            "loops": dict(self._loops),
            "loop_notices": dict(self._notices),
            "callback_errors": self._callback_errors,
            "resources": shown,
            "tools": {tool: row for tool in sorted(tools) if _is_used(row := _as_dict(tools[tool]))},
        }

    def clear(self) -> None:
        """Reset all counters to zero."""
        for _, stats in self._rows():
            stats.clear()
        self._other_roots = None
        self._explicit.clear()
        with _LOCK:
            self._loops.clear()
            self._notices.clear()
            self._callback_errors = 0


METRICS = Metrics()

EVIDENCE: weakref.WeakValueDictionary[int, Evidence] = weakref.WeakValueDictionary()
"""What the loads of each tool have shown, by its `id`. Kept by the tools."""


def _all_evidence() -> list[Evidence]:
    # In one step of the interpreter: other threads decorate tools.
    return [evidence for known in EVIDENCE.valuerefs() if (evidence := known()) is not None]


def evidence_by_tool() -> dict[str, Seen]:
    """What was seen of the tools of each name, in sum. Those of which no load was looked at are left out.

    Two tools with the same name and roots share their counters.
    """
    found: dict[str, Seen] = {}
    counted: set[tuple[str, int]] = set()
    for evidence in _all_evidence():
        if not evidence.latest:
            continue
        seen = evidence.seen()
        if (evidence.tool, id(evidence.stats)) in counted:
            seen.hits = seen.loads = 0
        counted.add((evidence.tool, id(evidence.stats)))
        former = found.get(evidence.tool)
        found[evidence.tool] = seen if former is None else former.with_sums_of(seen)
    return found


def clear_evidence() -> None:
    """Forget what the loads of all tools have shown: also in the child of a fork, which has seen none of it."""
    for evidence in _all_evidence():
        evidence.clear()


os.register_at_fork(after_in_child=clear_evidence)


def get_metrics() -> dict[str, Any]:
    """Counts of this process since it started, with and without sessions.

    Returns:
        A copy as a dict, with the keys ``calls``, ``hits``, ``misses``, ``shared``, ``invalidations``, ``uncached``,
        ``writes``, ``evictions``, ``errors``, ``stale``, ``audits``, ``stale_found``, ``time_saved`` (seconds),
        ``hit_rate`` and ``loop_detections``; the same by root under ``"resources"`` and by tool
        (``"module:qualname"``) under ``"tools"``.
        What has no row of its own any more is in the row ``"(others)"``: tools that are gone, and roots of explicit
        invalidations, beyond 10,000 each.
        ``hit_rate = hits / (hits + misses + shared)``, 0.0 if there were none.
        ``"loops"`` counts the calls that sessions acted upon, ``"loop_notices"`` the notices, each by the kind of loop
        or budget; ``"callback_errors"`` counts the failures of users' functions for loops, and of the loop detector
        itself.
    """
    return METRICS.snapshot()


# What monitoring reads

MAX_TOOL_LABELS = 1_000
"""Tools that have time series of their own."""

NO_TOOL = "(no tool)"
"""The label of invalidations without a tool: `invalidate(...)` and `writing(...)`."""


class ToolLabels:
    """The values of the label ``tool``: the first 1,000 tools have their own, all later ones share ``"(others)"``.

    A tool keeps its label, so no series goes down because another tool was called. Programs that name a tool after an
    id would otherwise make a time series for each of them. A label is a text that UTF-8 can hold, whatever name a model
    has called: one that is not would fail every export for as long as the process lives.
    """

    def __init__(self) -> None:
        self._named: dict[str, str] = {}

    def of(self, tool: str) -> str:
        """The label of a tool."""
        label = self._named.get(tool)
        if label is not None:
            return label
        if len(self._named) >= MAX_TOOL_LABELS:
            return OTHERS
        self._named[tool] = label = utf8_text(tool)
        return label


@dataclass(frozen=True, slots=True)
class CounterFamily:
    """A counter as monitoring reads it.

    Attributes:
        name: its name in OpenTelemetry. Prometheus has ``_`` for each ``.``, the unit if there is one, and ``_total``.
        unit: the unit as in OpenTelemetry: ``s``, or a noun in braces, which is no unit in Prometheus.
        description: one sentence.
        labels: the names of its labels.
        values: the values of the labels, and the count.
    """

    name: str
    unit: str
    description: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


_OF_TOOLS = (
    ("audits", "{audit}", "Hits that an audit has compared with what the tool returns, to a result."),
    ("errors", "{error}", "Exceptions raised by the tool."),
    ("evictions", "{entry}", "Entries removed to make room for others."),
    ("invalidations", "{invalidation}", "Writes and explicit invalidations that were carried out."),
    ("stale", "{request}", "Calls answered with an expired result, by grace or stale_if_error."),
    ("stale_found", "{audit}", "Audits that have found a stale answer."),
    ("time_saved", "s", "Time that runs of the tool would have taken for its hits."),
    ("unstored", "{result}", "Results that could not be stored: not copyable, or tags not computable."),
)
_OF_LOOPS = (
    ("loops", "Calls that a session refused, replaced or warned of, by kind of loop or budget."),
    ("loop_notices", "Loops noticed before they were acted upon, by kind."),
)


def counter_families(labels: ToolLabels) -> list[CounterFamily]:
    """Everything that `get_metrics` counts, as counters with labels: ``tool``, ``source`` and ``kind``, never an id.

    Args:
        labels: those of one exporter, which keeps them as long as it exports.
    """
    snapshot = METRICS.snapshot()
    requests: defaultdict[tuple[str, ...], float] = defaultdict(int)
    counts: dict[str, defaultdict[tuple[str, ...], float]] = {name: defaultdict(int) for name, *_ in _OF_TOOLS}
    of_no_tool = snapshot["invalidations"]
    for tool, row in snapshot["tools"].items():
        label = labels.of(tool)
        reads = row["hits"] + row["misses"] + row["shared"]
        bypassed = row["calls"] - reads - row["writes"]
        by_source = (
            ("hit", row["hits"], reads),
            ("miss", row["misses"], reads),
            ("shared", row["shared"], reads),
            ("uncached", bypassed, bypassed),
            ("write", row["writes"], row["writes"]),
        )
        for source, count, is_shown in by_source:
            if is_shown:  # a read that never was a hit has a hit rate of 0, and not none
                requests[label, source] += count
        for name, counted in counts.items():
            counted[(label,)] += row["uncached"] - bypassed if name == "unstored" else row[name]
        of_no_tool -= row["invalidations"]
    if of_no_tool > 0:
        counts["invalidations"][(NO_TOOL,)] += of_no_tool
    return [
        CounterFamily(
            "agent_cache.requests",
            "{request}",
            "Calls of a tool, by the source of their answer: hit, miss, shared, uncached or write.",
            ("tool", "source"),
            requests,
        ),
        *(
            CounterFamily(f"agent_cache.{name}", unit, description, ("tool",), counts[name])
            for name, unit, description in _OF_TOOLS
        ),
        *(
            CounterFamily(
                f"agent_cache.{name}",
                "{call}",
                description,
                ("kind",),
                {(kind,): count for kind, count in snapshot[name].items()},
            )
            for name, description in _OF_LOOPS
        ),
        CounterFamily(
            "agent_cache.callback_errors",
            "{error}",
            "Failures of users' functions for loops, and of the loop guard itself.",
            (),
            {(): snapshot["callback_errors"]},
        ),
    ]
