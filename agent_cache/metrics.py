"""Counters of the cache, per tool, per resource and in sum, for the process and for each session."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from agent_cache.at_fork import lock_of
from agent_cache.values.compare import utf8_text

OTHERS = "(others)"  # the row of what has no row of its own
NO_TOOL = "(no tool)"  # the label of invalidations without a tool: `invalidate(...)` and `writing(...)`
MAX_TOOL_LABELS = 1_000  # tools that have time series of their own

_MAX_ROWS = 10_000
"""Rows of tools, and of explicit invalidations, each; a session has fewer."""

_MAX_ROOTS = 1_000
"""Characters of the roots of an explicit invalidation that has a row of its own."""

_lock = lock_of(__name__)
"""For what takes several steps, such as a new row or the count of a loop: rare events, so all metrics share it."""

_COUNTERS = (
    *("hits", "misses", "shared", "invalidations", "writes", "evictions", "errors", "stale", "audits", "stale_found"),
    *("validated", "time_saved", "bypassed", "unstored"),
)


class Stats:
    """Counters of one tool, exact without a lock: CPython does not release the GIL within ``+= 1`` on a slot.

    They are those of `get_metrics`, but for ``uncached``, which is `bypassed`, calls that ran uncached, and `unstored`,
    results that could not be stored.
    """

    __slots__ = (*_COUNTERS, "__weakref__")

    def __init__(self) -> None:
        self.hits = self.misses = self.shared = self.invalidations = self.writes = self.evictions = self.errors = 0
        self.stale = self.audits = self.stale_found = self.bypassed = self.unstored = self.validated = 0
        self.time_saved = 0.0

    def clear(self) -> None:
        """Reset to zero in place, since generated code refers to this object."""
        Stats.__init__(self)


# Counts are tuples until they are shown: with an object for each row the garbage collector would look through the whole
# process during a snapshot of many tools, which takes longer than the rest.
_Counts = tuple[Any, ...]
_read: Callable[[Stats], _Counts] = attrgetter(*_COUNTERS)


def _sum(rows: Iterable[_Counts]) -> _Counts:
    return tuple(map(sum, zip((0,) * len(_COUNTERS), *rows, strict=True)))


def _shown(counts: _Counts) -> dict[str, Any]:
    """What a user sees of `_Counts`. `hit_rate` is the share of the cacheable calls that were hits."""
    row = dict(zip(_COUNTERS, counts, strict=True))
    bypassed, unstored = row.pop("bypassed"), row.pop("unstored")
    reads = _cacheable(row)
    rate = row["hits"] / reads if reads else 0.0
    return {"calls": reads + bypassed + row["writes"], **row, "uncached": bypassed + unstored, "hit_rate": rate}


def _cacheable(row: Mapping[str, int]) -> int:
    return row["hits"] + row["misses"] + row["shared"] + row["validated"]


def _by_name(rows: Iterable[tuple[str, _Counts]]) -> dict[str, dict[str, Any]]:
    found: defaultdict[str, list[_Counts]] = defaultdict(list)
    for name, counts in rows:
        found[name].append(counts)
    return {name: _shown(_sum(found[name])) for name in sorted(found)}


_PUBLIC = frozenset(_shown(_sum(())))
_Tool = tuple[str, tuple[str, ...]]
_REST: _Tool = OTHERS, (OTHERS,)


class Metrics:
    """The live counters of a process or of a session.

    The first `max_rows` tools, and roots of explicit invalidations, have a row of their own; what goes beyond is in the
    row ``"(others)"`` and in the sums.

    Reading an attribute (``hits``, ``misses``, ``shared``, ``validated``, ``invalidations``, ``uncached``,
    ``evictions``, ``errors``, ``calls``, ``loop_detections``, ``time_saved``, ``hit_rate``) sums all tools; `snapshot`
    gives them one by one.
    """

    def __init__(self, max_rows: int | None = None) -> None:
        self._max_rows = _MAX_ROWS if max_rows is None else max_rows
        self._tools: dict[_Tool, Stats] = {}
        self._explicit: dict[tuple[None, tuple[str, ...]], Stats] = {}
        self._loops: dict[str, int] = {}
        self._notices: dict[str, int] = {}
        self._callback_errors = 0

    def stats_of(self, tool: tuple[str, tuple[str, ...]]) -> Stats:
        """The counters of a tool by its name and its roots. Two tools with the same share them."""
        found = self._tools.get(tool)
        if found is None:
            with _lock:
                has_row = len(self._tools) < self._max_rows or tool in self._tools
                found = self._tools.setdefault(tool if has_row else _REST, Stats())
        return found

    def invalidated(self, roots: Iterable[str]) -> None:
        """Count an invalidation without a tool: `invalidate(...)` or `writing(...)`."""
        key = None, tuple(roots)
        stats = self._explicit.get(key)
        if stats is None:
            has_room = len(self._explicit) < self._max_rows and sum(map(len, key[1])) <= _MAX_ROOTS
            stats = self._explicit.setdefault(key if has_room else (None, (OTHERS,)), Stats())
        stats.invalidations += 1

    def acted_on_loop(self, kind: str) -> None:
        """Count a call that a session refused, replaced or warned of."""
        with _lock:
            self._loops[kind] = self._loops.get(kind, 0) + 1

    def noticed_loop(self, kind: str) -> None:
        """Count a loop at the notice level."""
        with _lock:
            self._notices[kind] = self._notices.get(kind, 0) + 1

    def callback_failed(self) -> None:
        """Count a failure of a user's function for loops."""
        with _lock:
            self._callback_errors += 1

    @property
    def loop_detections(self) -> int:
        """Calls that sessions refused, replaced or warned of."""
        return sum(self._loops.values())

    def _rows(self) -> list[tuple[str | None, tuple[str, ...], _Counts]]:
        """Tool, roots and counts; no tool for explicit invalidations."""
        with _lock:
            rows: list[tuple[Any, Stats]] = [*self._tools.items(), *list(self._explicit.items())]
        return [(tool, roots, _read(stats)) for (tool, roots), stats in rows]

    def __getattr__(self, name: str) -> Any:
        if name in _PUBLIC:
            return _shown(_sum(counts for *_, counts in self._rows()))[name]
        raise AttributeError(name)

    def snapshot(self) -> dict[str, Any]:
        """A copy as a dict: sums, loops by kind, counters by root under ``resources`` and by tool under ``tools``."""
        rows = self._rows()
        tools = _by_name((tool, counts) for tool, _, counts in rows if tool is not None)
        return _shown(_sum(counts for *_, counts in rows)) | {
            "loop_detections": self.loop_detections,
            "loops": dict(self._loops),
            "loop_notices": dict(self._notices),
            "callback_errors": self._callback_errors,
            "resources": _by_name((root, counts) for _, roots, counts in rows for root in roots),
            "tools": {tool: row for tool, row in tools.items() if row["calls"] or row["invalidations"]},
        }

    def clear(self) -> None:
        """Reset all counters to zero, and drop the rows of tools that are gone."""
        with _lock:
            in_use: weakref.WeakValueDictionary[_Tool, Stats] = weakref.WeakValueDictionary(self._tools)
            self._tools = {}
            self._tools = dict(in_use.items())
            for stats in self._tools.values():
                stats.clear()
            self._explicit.clear()
            self._loops.clear()
            self._notices.clear()
            self._callback_errors = 0


METRICS = Metrics()


def get_metrics() -> dict[str, Any]:
    """Counts of this process since it started, with and without sessions.

    Returns:
        A copy as a dict, with the keys ``calls``, ``hits``, ``misses``, ``shared``, ``validated``, ``invalidations``,
        ``uncached``, ``writes``, ``evictions``, ``errors``, ``stale``, ``audits``, ``stale_found``, ``time_saved``
        (seconds) and ``hit_rate``, which is ``hits / (hits + misses + shared + validated)``, or 0.0; the same by root
        under ``"resources"`` and by tool (``"module:qualname"``) under ``"tools"``, where ``"(others)"`` sums up the
        tools after the first 10,000. ``"loop_detections"`` and, by kind, ``"loops"`` count the calls that sessions
        acted upon, ``"loop_notices"`` the notices, ``"callback_errors"`` failures of users' functions for loops, and of
        the loop detector itself.
    """
    return METRICS.snapshot()


# What monitoring reads


class ToolLabels:
    """The values of the label ``tool``: the first 1,000 tools keep their own, all later ones share ``"(others)"``.

    A label is a text that UTF-8 can hold, whatever name a model has called: another would fail every export.
    """

    def __init__(self) -> None:
        self._named: dict[str, str] = {}

    def of(self, tool: str) -> str:
        """The label of a tool."""
        if tool not in self._named and len(self._named) >= MAX_TOOL_LABELS:
            return OTHERS
        return self._named.setdefault(tool, utf8_text(tool))


class CounterFamily(NamedTuple):
    """A counter as OpenTelemetry names it: the names of its labels, and its counts by their values."""

    name: str
    unit: str
    description: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


_FAMILIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("requests", "{request}", "Calls by source: hit, miss, shared, validated, uncached or write.", ("tool", "source")),
    ("audits", "{audit}", "Hits that an audit has compared with what the tool returns, to a result.", ("tool",)),
    ("errors", "{error}", "Exceptions raised by the tool.", ("tool",)),
    ("evictions", "{entry}", "Entries removed to make room for others.", ("tool",)),
    ("invalidations", "{invalidation}", "Writes and explicit invalidations that were carried out.", ("tool",)),
    ("stale", "{request}", "Calls answered with an expired result, by grace or stale_if_error.", ("tool",)),
    ("stale_found", "{audit}", "Audits that have found a stale answer.", ("tool",)),
    ("time_saved", "s", "Time that runs of the tool would have taken for its hits.", ("tool",)),
    ("unstored", "{result}", "Results that could not be stored: not copyable, or tags not computable.", ("tool",)),
    ("loops", "{call}", "Calls that a session refused, replaced or warned of, by kind of loop or budget.", ("kind",)),
    ("loop_notices", "{call}", "Loops noticed before they were acted upon, by kind.", ("kind",)),
    ("callback_errors", "{error}", "Failures of users' functions for loops, and of the loop guard itself.", ()),
)


def counter_families(labels: ToolLabels) -> list[CounterFamily]:
    """Everything that `get_metrics` counts, as counters with labels: ``tool``, ``source`` and ``kind``, never an id.

    The `labels` are those of one exporter, which keeps them as long as it exports.
    """
    snapshot = METRICS.snapshot()
    counts: dict[str, defaultdict[tuple[str, ...], float]] = {name: defaultdict(int) for name, *_ in _FAMILIES}
    of_no_tool = snapshot["invalidations"]
    for tool, row in snapshot["tools"].items():
        label, reads = labels.of(tool), _cacheable(row)
        bypassed = row["calls"] - reads - row["writes"]
        answered = {"hit": row["hits"], "miss": row["misses"], "shared": row["shared"]}
        rest = {"validated": row["validated"], "uncached": bypassed, "write": row["writes"]}
        for source, count in {**answered, **rest}.items():
            if count or (reads and source in answered):  # a read that never was a hit has a hit rate of 0, and not none
                counts["requests"][label, source] += count
        for name, _, _, of in _FAMILIES:
            if of == ("tool",):
                counts[name][(label,)] += row["uncached"] - bypassed if name == "unstored" else row[name]
        of_no_tool -= row["invalidations"]
    if of_no_tool > 0:
        counts["invalidations"][(NO_TOOL,)] += of_no_tool
    for name in ("loops", "loop_notices"):
        counts[name].update({(kind,): count for kind, count in snapshot[name].items()})
    counts["callback_errors"][()] = snapshot["callback_errors"]
    return [CounterFamily(f"agent_cache.{name}", unit, text, of, counts[name]) for name, unit, text, of in _FAMILIES]
