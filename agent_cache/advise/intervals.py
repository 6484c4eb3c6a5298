"""The intervals of a log, in which a read was seen twice: what was written between, and whether the answer changed.

The second pass over a log. See `agent_cache.advise.mine` for what follows from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from agent_cache.advise.calls import UNKNOWN, LoggedCall, answer_digest, is_failure, is_transient, key_of
from agent_cache.advise.paths import Candidate, server_of, values_at

__all__ = [
    "ENOUGH", "INTERVALS", "UNMET", "Equal", "Evidence", "Harmless", "Option", "Signature", "worlds_of",
]  # fmt: skip

ENOUGH: Final = 8
"""How many different writes have to have left answers unchanged before such writes are taken for harmless."""
INTERVALS: Final = 3
_MAX_KEPT: Final = 64
_IN_FLIGHT: Final = 64

Signature = frozenset[int]
"""The candidates through which one write met one read."""
UNMET: Final[Signature] = frozenset()
Option = tuple[str, int]
"""A link to choose: a write tool, and the candidate that must be met; -1 for the whole root."""
Record = frozenset[tuple[str, Signature]]
"""A change: the write tools between, each with the candidates through which it met."""


class Worlds(NamedTuple):
    """Whether the runs of a log share one state."""

    are_one: bool
    resets: int = 0
    unsteady: frozenset[str] = frozenset()


def worlds_of(calls: Sequence[LoggedCall], writers: set[str], readers: set[str]) -> Worlds:
    """Decide by what runs find that have written nothing yet: what another one has changed and seen, or what was there
    before. A tool whose answers change within a run without a write shows nothing.
    """
    if len({call.run for call in calls}) < 2:
        return Worlds(are_one=True)
    wrote: dict[str, int] = {}
    last: dict[tuple[str, Any], tuple[str, bytes, int]] = {}
    start: dict[tuple[str, Any], bytes] = {}
    began: dict[tuple[str, Any], str] = {}
    changed: dict[tuple[str, Any], tuple[str, bytes, bytes]] = {}
    lasting, resets, unstable = Counter[str](), Counter[str](), set[str]()
    same, other = Counter[str](), Counter[str]()
    latest = -1
    for at, call in enumerate(calls):
        tool, run = call.tool, call.run
        if tool in writers:
            wrote[run] = latest = at
        if tool not in readers or call.result is UNKNOWN or not call.is_whole or (own := key_of(call)) is None:
            continue
        key, answer = (tool, own), answer_digest(call.result)
        former = last.get(key)
        if former is not None and former[0] == run and former[1] != answer and latest <= former[2]:
            unstable.add(tool)
        last[key] = run, answer, at
        if run in wrote:
            if start.get(key, answer) != answer and key not in changed:
                changed[key] = run, start[key], answer
            continue
        if (made := changed.pop(key, None)) is not None and made[0] != run:
            lasting[tool] += answer == made[2]
            resets[tool] += answer == made[1]
        if key in start and began[key] != run:
            (same if start[key] == answer else other)[tool] += 1
        start[key], began[key] = answer, run
    for counts in (lasting, resets, same, other):
        for tool in unstable:
            del counts[tool]
    shown, contrary = lasting.total(), resets.total()
    are_one = shown > 2 * contrary
    # Where runs begin from one state, what differs is what changes by itself.
    begin_alike = not are_one and contrary > 0
    unsteady = frozenset(
        tool
        for tool, number in other.items()
        if begin_alike and number >= max(INTERVALS, same[tool])
        if same.total() - same[tool] > other.total() - number
    )
    return Worlds(are_one, 0 if are_one else contrary, unsteady)


@dataclass(frozen=True, slots=True)
class Equal:
    """An interval whose two answers were equal."""

    key: int
    met: tuple[tuple[int, str, Signature], ...]
    writes: Mapping[str, tuple[int, ...]]


class Harmless:
    """Writes that left answers unchanged which nothing else can have changed."""

    def __init__(self) -> None:
        self.intervals = 0
        self.writes: set[int] = set()
        self.keys: set[int] = set()
        self.pairs: set[tuple[int, int]] = set()

    def note(self, writes: Sequence[int], key: int) -> None:
        """Add an interval, with its writes."""
        self.intervals += 1
        self.keys.add(key)
        self.writes.update(writes)
        self.pairs.update((write, key) for write in writes)

    def is_enough(self, enough: int) -> bool:
        """Whether they are so many that such writes are harmless."""
        if len(self.writes) >= enough and self.intervals >= INTERVALS:
            return True
        return len(self.writes) >= INTERVALS and len(self.keys) >= ENOUGH // 2 and len(self.pairs) >= 2 * enough


class _Sight(NamedTuple):
    """The last answer of one read."""

    position: int
    answer: bytes


class Evidence:
    """The second pass over a log: intervals, counted by what met in them."""

    def __init__(
        self, calls: Sequence[LoggedCall], found: list[Candidate], writers: set[str], readers: set[str], worlds: Worlds
    ) -> None:
        self.candidates = found
        self.writers, self.readers, self.worlds = writers, readers, worlds
        self.of_pair: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._numbers: dict[tuple[str, str, str, str], int] = {}
        self._paths: dict[str, set[str]] = defaultdict(set)
        for number, one in enumerate(self.candidates):
            self.of_pair[one.write, one.read].append(number)
            self._numbers[one.write, one.write_path, one.read, one.read_path] = number
            self._paths[one.write].add(one.write_path)
            self._paths[one.read].add(one.read_path)
        self.cells: dict[tuple[str, str], dict[Signature, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        self.records: dict[str, Counter[Record]] = defaultdict(Counter)
        self.equal: dict[str, list[Equal]] = defaultdict(list)
        # By the servers of writes and of reads: the writes that lay in equal intervals, and how many pairs of both.
        self.elsewhere: dict[tuple[str, str], tuple[set[int], list[int]]] = defaultdict(lambda: (set(), []))
        self.free_changes, self.repeats = Counter[str](), Counter[str]()
        self.calls_without, self.calls_with = Counter[str](), Counter[str]()
        self.keys: dict[str, set[int]] = defaultdict(set)
        self.repeated: dict[str, set[int]] = defaultdict(set)
        by_run: dict[str, list[LoggedCall]] = defaultdict(list)
        for call in calls:
            by_run["" if worlds.are_one else call.run].append(call)
        self._first = 0
        for part in by_run.values():
            self._look_at(part)
            self._first += len(part)

    def _look_at(self, calls: Sequence[LoggedCall]) -> None:
        """Find the intervals of one world."""
        self._calls = calls
        latest, ends = float("-inf"), list[float]()
        for call in calls:
            latest = max(latest, call.ended if call.ended is not None else latest)
            ends.append(latest)
        self._begins = [
            at if call.started is None else min(at, bisect_right(ends, call.started)) for at, call in enumerate(calls)
        ]
        self._has_overlaps = any(begin < at for at, begin in enumerate(self._begins))
        # Where each tool wrote, failed, and named which value at which path.
        self._positions: dict[str, list[int]] = defaultdict(list)
        self._failures: dict[str, list[int]] = defaultdict(list)
        self._named: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        self._all_named: dict[tuple[str, str], list[int]] = defaultdict(list)
        for at, call in enumerate(calls):
            if call.tool in self.writers:
                (self._failures if is_failure(call) else self._positions)[call.tool].append(at)
                for path in self._paths[call.tool]:
                    values = values_at(call, path, is_write=True)
                    self._all_named[call.tool, path].append(at)
                    for text in ("\0",) if values is None else values[:500]:
                        self._named[text][call.tool, path].append(at)
        sights: dict[tuple[str, Any], _Sight | None] = {}
        for at, call in enumerate(calls):
            if call.tool in self.readers and (own := key_of(call)) is not None:
                self._see(at, call, (call.tool, own), sights)

    def _see(
        self, at: int, call: LoggedCall, key: tuple[str, Any], sights: dict[tuple[str, Any], _Sight | None]
    ) -> None:
        tool, hashed = call.tool, hash(key)
        self.keys[tool].add(hashed)
        self.repeats[tool] += key in sights
        former = sights.get(key)
        if former is not None:
            self.repeated[tool].add(hashed)
        if is_transient(call) or (call.result is UNKNOWN and call.error is None):
            sights.setdefault(key, None)
            return
        answer = b"error" if call.error is not None else answer_digest(call.result)
        if former is not None:
            self._interval(former, at, answer, hashed)
        sights[key] = None if call.error is not None else _Sight(at, answer)  # an error is not stored

    def _interval(self, former: _Sight, at: int, answer: bytes, key: int) -> None:
        calls, first = self._calls, former.position
        tool, is_change = calls[at].tool, former.answer != answer
        if not is_change and not (calls[first].is_whole and calls[at].is_whole):
            return
        begin, surely_before = self._begins[first], self._begins[at]
        met = self._met(calls[first], begin, at)
        record, refused = set[tuple[str, Signature]](), set[tuple[str, Signature]]()
        harmless: list[tuple[int, str, Signature]] = []
        others: dict[str, tuple[int, ...]] = {}
        for writer, positions in self._failures.items() if is_change else ():
            own = met.get(writer, {})
            refused.update((writer, own.get(one, UNMET)) for one in self._between(positions, begin, at)[:_MAX_KEPT])
        for writer, positions in self._positions.items():
            between = self._between(positions, begin, at)
            if not between:
                continue
            cells, own = self.cells[writer, tool], met.get(writer, {})
            own = {one: own[one] for one in between if one in own} if own else {}
            if is_change:
                for signature in own.values():
                    cells[signature][0] += 1
                    record.add((writer, signature))
                if count := len(between) - len(own):
                    cells[UNMET][0] += count
                    record.add((writer, UNMET))
                continue
            cells[UNMET][1] += len(between) - len(own)
            unmet = [one for one in between[:_MAX_KEPT] if one not in own][:16]
            sure = [one for one in (*own, *unmet) if self._begins[one] > first and one < surely_before]
            for position in sure:
                if position in own:
                    cells[own[position]][1] += 1
                    harmless.append((self._first + position, writer, own[position]))
            if sure:
                others[writer] = tuple(self._first + one for one in sure)
                writes, pairs = self.elsewhere[server_of(writer)[0], server_of(tool)[0]]
                writes.update(others[writer])
                pairs.append(len(sure))
        if is_change and (record or refused):  # a write that failed has an effect now and then, if no other can have
            self.records[tool][frozenset(record or refused)] += 1
        elif others:
            self.equal[tool].append(Equal(key, tuple(harmless), others))
        if record or refused or others:
            self.calls_with[tool] += at - first
            return
        self.calls_without[tool] += at - first
        self.free_changes[tool] += is_change

    def _between(self, positions: list[int], begin: int, at: int) -> list[int]:
        """Those of these positions of writes that may lie between two sights: also of such as still ran at the last."""
        low, high = bisect_left(positions, begin), bisect_right(positions, at)
        running = positions[high : high + _IN_FLIGHT] if self._has_overlaps else []
        return positions[low:high] + [one for one in running if self._begins[one] <= at]

    def _met(self, read: LoggedCall, begin: int, at: int) -> dict[str, dict[int, Signature]]:
        """The writes that met an answer, by tool and position: also those that may have named anything."""
        found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for path in self._paths[read.tool]:
            values = values_at(read, path, is_write=False)
            named = [self._all_named] if values == () else [self._named.get(text, {}) for text in values or ()]
            for of_value in (*named, self._named.get("\0", {})):
                for (writer, write_path), positions in of_value.items():
                    number = self._numbers.get((writer, write_path, read.tool, path))
                    if number is not None:
                        for position in self._between(positions, begin, at)[: 4 * _MAX_KEPT]:
                            found[writer][position].add(number)
        return {writer: {one: frozenset(met) for one, met in own.items()} for writer, own in found.items()}
