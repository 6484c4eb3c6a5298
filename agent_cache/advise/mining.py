"""Finds in a log of tool calls which writes change which answers, and through which values of the two calls.

**Evidence.** An *interval* lies between two sights of one read: two calls with the same arguments, both answered. The
writes between them are its candidates. If the answer changed, one of them is the cause; if it did not, none of them is.
A write and a read *meet* through a pair of paths, such as ``order_id`` of the one and ``result[orders][][order_id]`` of
the other, if they have a value in common there, as tags compare values: by their text. The paths are those of templates
(`agent_cache.core.tags`), and they are followed as templates follow them.

**What is advised.** By default a write drops every answer of a read: whatever is left out needs evidence. For each pair
of a write tool and a read tool:

1. *Links by evidence.* Every change of an answer must be explained by a link: a pair of paths through which a write of
   the interval met the read. Links are chosen as a greedy set cover (Chvatal 1979, "A greedy heuristic for the
   set-covering problem"): the next one explains the most changes that are still unexplained, weighted by how often an
   answer changed when its values met (the confidence of an association rule: Agrawal, Imielinski and Swami 1993,
   "Mining association rules between sets of items in large databases") and by how much the two paths look like one
   entity. A path that looks like nothing has to explain several changes, and more often than chance. A change that no
   link explains is explained by the whole root of the pair.
2. *Links by entity.* A write that carries an id of the entity that a read is about is linked to it without a change,
   unless it is refuted: eight different writes met answers that nothing else could have changed, and none changed
   (24 if the id is an argument of both, six if it stands among the items of a list). The arguments that have one name
   in both calls are such an id together, whatever they are called: ``floor`` and ``zone`` of a lamp.
   Where no argument of both is such an id, the ids in the answer count as well.
3. *The rest.* What a write does to answers that no link meets must have been seen: eight different writes between equal
   answers, in three intervals; or three writes, sixteen pairs in all; and between the answers of six different calls.
   (After eight failures in a row the true rate is below 31 % with 95 % confidence: the "rule of three" of Hanley and
   Lippman-Hand 1983, "If nothing goes wrong, is everything all right?".) Otherwise the pair gets the whole root, and
   `Advice.unknown` says so. A pair whose arguments are ids of one entity needs none of it. Lists need three times as
   much, since an item that comes in was not in the list before; and searches of what the write names, or of what its
   result names, a hundred writes. A write that lay before changes which only the root of another one explains may be
   their cause: it must have been harmless in so many intervals that changes of this rate would have shown in them with
   99 % confidence. Where the log spells one id in several ways (``INV-7``, ``inv-7``), nothing is enough: tags compare
   text.

**What is evidence of nothing.** Calls that overlap; writes that failed (they explain a change where no other write can,
and never show that a write is harmless); answers that are missing, redacted, or came from a cache. An answer that
changes with no write in between is *volatile*, and is not to be cached: unless the runs of the log turn out to start
anew each, or a tool that was taken for a read turns out to change it. So is a read of an id whose changes no id
explains, unless it stayed the same without a write for so long that changes of this rate would have shown.

The log is read twice, or three times if such a tool is found: once for the paths and their values, and once for the
intervals. Memory is bounded by `_MAX_SIGHTS` answers and `_MAX_FACTS` of their values, whatever the size of the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any, Final, Literal

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.advise.paths import (
    Candidate,
    Survey,
    ToolFacts,
    Values,
    answer_digest,
    compile_path,
    find_candidates,
    is_argument,
    is_failure,
    is_transient,
    kind_by_name,
    name_of,
    nouns_of,
    values_at,
)
from agent_cache.advise.resets import ResetFinder
from agent_cache.advise.tag_rules import Advice, Kind, Link, Origin, ToolAdvice, Why, tag_templates
from agent_cache.core.keys import Uncacheable, key_part

__all__ = ["mine"]

ENOUGH: Final = 8
"""How many different writes have to have left answers unchanged before such writes are taken for harmless."""
_ENOUGH_OF_LISTS: Final = 24
_ENOUGH_OF_SEARCHES: Final = 100
_ENOUGH_OF_KEYS: Final = 24
_ENOUGH_CHANGES: Final = 4.6
"""How many changes would have to be expected where none was seen, to conclude that there are none: ``-log(0.01)``, with
99 % confidence if changes are independent of each other.
"""
_ENOUGH_OF_OTHERS: Final = 6
_ENOUGH_INTERVALS: Final = 3
_ENOUGH_READS: Final = 6
"""To how many different calls of a read a write must have been harmless, if that many were repeated at all."""
_CHANCE: Final = 0.001
"""How likely it may be that a read is taken for a write of another one because it ran before its changes by chance."""
_MIN_OVERLAP: Final = 0.3
"""The share of their values that two arguments have in common if they may stand for the same things."""
_MAX_SIGHTS: Final = 200_000
_MAX_FACTS: Final = 2_000_000
_MAX_POPULAR: Final = 2_000
"""A value that more answers than this have in common tells none of them from the others."""
_MAX_KEPT: Final = 64
_MAX_EQUAL: Final = 20_000
"""How many intervals are kept for each read: of those with equal answers the first, of the others different ones."""


# The second pass: intervals

Signature = frozenset[int]
"""The candidates through which one write met one read."""
_UNMET: Final[Signature] = frozenset()


class _Joined(dict[tuple[Signature, int], Signature]):
    """A signature with one candidate more. Equal ones are one object: there are few, however often they are met."""

    def __init__(self) -> None:
        self._known: dict[Signature, Signature] = {}

    def __missing__(self, key: tuple[Signature, int]) -> Signature:
        signature = key[0] | {key[1]}
        self[key] = joined = self._known.setdefault(signature, signature)
        return joined


class _Sight:
    """The last answer of one read, and what has met it since."""

    __slots__ = (
        "answer",
        "before",
        "ended",
        "facts",
        "first",
        "is_failed",
        "is_whole",
        "met",
        "position",
        "roots",
        "run",
    )

    def __init__(self, position: int, answer: bytes, ended: float | None, run: str) -> None:
        self.position = position
        self.answer = answer
        self.ended = ended
        self.run = run
        self.first = answer
        self.is_failed = False
        self.is_whole = True
        self.facts: dict[str, Values] = {}
        self.roots: list[str] = []
        self.met: dict[int, Signature] = {}
        self.before: list[_Written] = []


@dataclass(frozen=True, slots=True)
class _Written:
    """A write, as the intervals around it need it."""

    position: int
    tool: str
    started: float | None
    ended: float | None
    is_failed: bool
    facts: Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class _Equal:
    """An interval whose two answers were equal.

    Attributes:
        key: of the read, hashed.
        begin: the position of the first answer.
        end: the position of the second one.
        met: the writes that met the read in it: position, tool, and through what.
        writers: the tools that wrote in it.
        doubtful: positions of writes that overlapped one of the two reads.
    """

    key: int
    begin: int
    end: int
    met: tuple[tuple[int, str, Signature], ...]
    writers: frozenset[str]
    doubtful: frozenset[int]


class _Cell:
    """How often writes of one tool met a read through the same candidates, by whether its answer changed."""

    __slots__ = ("changed", "unchanged")

    def __init__(self) -> None:
        self.changed = 0
        self.unchanged = 0


class _Harmless:
    """Writes that left answers unchanged which nothing else can have changed."""

    __slots__ = ("intervals", "keys", "pairs", "writes")

    def __init__(self) -> None:
        self.intervals = 0
        self.writes: set[int] = set()
        self.keys: set[int] = set()
        self.pairs: set[tuple[int, int]] = set()

    def note(self, writes: Iterable[int], key: int) -> None:
        """Add an interval, with its writes."""
        self.intervals += 1
        self.keys.add(key)
        for write in writes:
            self.writes.add(write)
            self.pairs.add((write, key))

    def is_enough(self, enough: int) -> bool:
        """Whether they are so many that such writes are harmless."""
        if len(self.writes) >= enough and self.intervals >= _ENOUGH_INTERVALS:
            return True
        few = _ENOUGH_INTERVALS
        return len(self.writes) >= few and len(self.keys) >= ENOUGH // 2 and len(self.pairs) >= 2 * enough


Free = Counter[frozenset[str]]
"""Intervals without a write, counted by the other tools that ran in them."""
Record = frozenset[tuple[str, Signature]]
"""A change of an answer: the write tools between, each with the candidates through which it met."""


class _Evidence:
    """The second pass over a log: intervals, counted by what met in them.

    Attributes:
        ambiguous: pairs of a write and a read that share an id in several spellings. It links them no better than the
            whole root.
        resets: by read, how often its answer went back to its first one between two runs, without a write.
        calls_with: by read, how many calls its intervals with a write are long, all together.
        calls_without: those without one.
        survivals: how often an answer that was not the first one was the same in another run, without a write between.
    """

    def __init__(self, found: list[Candidate], writers: set[str], readers: set[str], *, within_runs: bool) -> None:
        self.candidates = candidates = [one for one in found if not one.is_ambiguous]
        self.ambiguous = {(one.write, one.read) for one in found if one.is_ambiguous and one.is_entity}
        self.writers = writers
        self.readers = readers
        self.within_runs = within_runs
        self.by_write: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.by_read: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, one in enumerate(candidates):
            self.by_write[one.write][one.write_path].append(number)
            self.by_read[one.read][one.read_path].append(number)
        self._compiled = {path: compile_path(path) for one in candidates for path in (one.write_path, one.read_path)}
        self.cells: dict[tuple[str, str], dict[Signature, _Cell]] = defaultdict(lambda: defaultdict(_Cell))
        self.records: dict[str, Counter[Record]] = defaultdict(Counter)
        self.equal: dict[str, list[_Equal]] = defaultdict(list)
        self.free_changes: dict[str, Free] = defaultdict(Counter)
        self.free_equal: dict[str, Free] = defaultdict(Counter)
        self.resets: Counter[str] = Counter()
        self.survivals = 0
        self.free_within_runs: Counter[str] = Counter()
        self.calls_without: Counter[str] = Counter()
        self.calls_with: Counter[str] = Counter()
        self.repeats: Counter[str] = Counter()
        self.keys: dict[str, set[int]] = defaultdict(set)
        self.unstored: Counter[tuple[str, str]] = Counter()
        self.dropped = 0
        self.uncompared = 0
        self._joined = _Joined()
        self._sights: OrderedDict[tuple[str, Any], _Sight] = OrderedDict()
        self._unanswered: set[int] = set()
        self._facts = 0
        self._holders: dict[tuple[str, str], dict[str, set[_Sight]]] = defaultdict(dict)
        self._positions: dict[str, list[int]] = defaultdict(list)
        self._whole: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._named: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._recent: deque[_Written] = deque(maxlen=256)
        self._last_call: dict[str, int] = {}
        self._at = 0
        self._failed: set[int] = set()
        self._failures: dict[str, list[int]] = defaultdict(list)

    def add(self, call: LoggedCall) -> None:
        self._at += 1
        if call.tool in self.readers:
            self._read(call)
        if call.tool in self.writers:
            self._write(call)
        self._last_call[call.tool] = self._at

    # Writes

    def _write(self, call: LoggedCall) -> None:
        at, failed = self._at, is_failure(call)
        paths = self.by_write[call.tool]
        facts = {path: values_at(call, self._compiled[path], is_write=True) for path in paths}
        if failed:  # what its result would have named is not known, and nothing follows from that
            facts = {path: Values() if values.is_error else values for path, values in facts.items()}
        self._positions[call.tool].append(at)
        if failed:
            self._failed.add(at)
            self._failures[call.tool].append(at)
        self._recent.append(_Written(at, call.tool, call.started, call.ended, failed, facts))
        for path, numbers in paths.items():
            values = facts[path]
            if values.is_error:
                self._whole[call.tool, path].append(at)
                continue
            if values.texts:
                self._named[call.tool, path].append(at)
            for number in numbers:
                candidate = self.candidates[number]
                holders = self._holders.get((candidate.read, candidate.read_path))
                if not holders:
                    continue
                alone = self._joined[_UNMET, number]
                for text in values.texts[:500]:
                    sights = holders.get(text)
                    if sights is None or len(sights) > _MAX_POPULAR:
                        continue
                    for sight in sights:
                        met = sight.met
                        signature = met.get(at)
                        if signature is not None:
                            met[at] = self._joined[signature, number]
                        elif len(met) < 512:
                            met[at] = alone

    # Reads

    def _read(self, call: LoggedCall) -> None:
        tool = call.tool
        if not call.is_keyed:
            return
        try:
            key = (tool, (call.run if self.within_runs else None, key_part(call.arguments)))
        except (Uncacheable, TypeError, ValueError):
            return
        former = self._sights.get(key)
        if former is not None or hash(key) in self._unanswered:
            self.repeats[tool] += 1
        if former is not None and len(self.keys[tool]) < _MAX_KEPT:
            self.keys[tool].add(hash(key))
        if is_transient(call) or (call.result is UNKNOWN and call.error is None):
            if former is None and len(self._unanswered) < _MAX_SIGHTS:
                self._unanswered.add(hash(key))
            return
        failed = call.error is not None
        answer = b"error" if failed else answer_digest(call.result)
        overlapping = self._overlapping(call)
        if former is not None:
            self._interval(former, call, answer, overlapping, hash(key))
            del self._sights[key]
            self._release(tool, former)
        sight = _Sight(self._at, answer, call.ended, call.run)
        sight.is_failed = failed
        if failed:
            self._sights[key] = sight
            return
        sight.before = overlapping
        for path in self.by_read[tool]:
            values = values_at(call, self._compiled[path], is_write=False)
            sight.facts[path] = values
            if values.is_root:
                sight.roots.append(path)
            elif values.is_error:
                self.unstored[tool, path] += 1
            holders = self._holders[tool, path]
            for text in values.texts:
                holders.setdefault(text, set()).add(sight)
            self._facts += len(values.texts)
        sight.is_whole = call.is_whole
        sight.first = answer if former is None else former.first
        self._sights[key] = sight
        while len(self._sights) > _MAX_SIGHTS or (self._facts > _MAX_FACTS and len(self._sights) > 1):
            (oldest, _), old = self._sights.popitem(last=False)
            self._release(oldest, old)
            self.dropped += 1

    def _overlapping(self, call: LoggedCall) -> list[_Written]:
        """The writes that ended while a call was running. The log is in the order of ends."""
        found: list[_Written] = []
        if call.started is not None:
            for write in reversed(self._recent):
                if not _overlaps(write, call) or len(found) >= _MAX_KEPT:
                    break
                found.append(write)
        return found

    def _release(self, tool: str, sight: _Sight) -> None:
        for path, values in sight.facts.items():
            holders = self._holders[tool, path]
            for text in values.texts:
                sights = holders[text]
                sights.discard(sight)
                if not sights:
                    del holders[text]
            self._facts -= len(values.texts)

    def _interval(self, former: _Sight, call: LoggedCall, answer: bytes, overlapping: list[_Written], key: int) -> None:
        if former.is_failed:
            return  # an error is not stored
        tool = call.tool
        is_change = former.answer != answer
        if not is_change and not (former.is_whole and call.is_whole):
            return
        doubtful = {w.position for w in overlapping}
        if former.ended is not None:
            for w in reversed(self._recent):
                if w.position <= former.position:
                    break
                if w.started is not None and w.started < former.ended:
                    doubtful.add(w.position)
        met = self._completed(former, tool)
        record: set[tuple[str, Signature]] = set()
        refused: set[tuple[str, Signature]] = set()
        present: set[str] = set()
        harmless: list[tuple[int, str, Signature]] = []
        before = {write.tool for write in former.before}
        for writer, positions in self._positions.items():
            if positions[-1] <= former.position and writer not in before:
                continue
            low, high = bisect_right(positions, former.position), bisect_left(positions, self._at)
            if low >= high and writer not in before:
                continue
            present.add(writer)
            cells, own = self.cells[writer, tool], met.get(writer) or {}
            failed = self._failed.intersection(own) if own else _UNMET
            unmet_failed = self._count_failed(writer, former.position) - len(failed)
            unmet = high - low - len(own) - unmet_failed
            signatures: set[Signature] = set()
            if is_change:
                signatures = {signature for position, signature in own.items() if position not in failed}
                refused.update((writer, own[position]) for position in failed)
                if unmet_failed:
                    refused.add((writer, _UNMET))
                for position, signature in own.items():
                    if position not in failed:
                        cells[signature].changed += 1
                if unmet > 0:
                    signatures.add(_UNMET)
                    cells[_UNMET].changed += unmet
            else:
                for position, signature in own.items():
                    if position not in doubtful and position not in failed:
                        cells[signature].unchanged += 1
                        harmless.append((position, writer, signature))
                if unmet > 0:
                    cells[_UNMET].unchanged += unmet
            for w in former.before:
                if w.tool == writer and is_change:
                    signatures.add(self._met_directly(w, former, tool))
            if is_change:
                record.update((writer, one) for one in signatures)
        if not record:
            record = refused  # a write that failed has an effect now and then, if nothing else can have had it
        if present and not is_change and len(self.equal[tool]) < _MAX_EQUAL:
            bad = frozenset(doubtful)
            self.equal[tool].append(_Equal(key, former.position, self._at, tuple(harmless), frozenset(present), bad))
        between = None
        (self.calls_with if present or overlapping else self.calls_without)[tool] += self._at - former.position
        if not present and not overlapping:
            between = frozenset(
                other
                for other, last in self._last_call.items()
                if last > former.position and other != tool and other not in self.writers
            )
        if is_change:
            if between is not None:
                self.free_changes[tool][between] += 1
                if former.run == call.run:
                    self.free_within_runs[tool] += 1
                elif answer == former.first:
                    self.resets[tool] += 1
            elif record:
                known, one = self.records[tool], frozenset(record)
                if one in known or len(known) < _MAX_EQUAL:
                    known[one] += 1
                else:
                    self.uncompared += 1
        elif between is not None:
            if former.run != call.run and answer != former.first:
                self.survivals += 1
            if len(self.free_equal[tool]) < 10_000:
                self.free_equal[tool][between] += 1

    def _count_failed(self, writer: str, after: int) -> int:
        """How many writes of a tool have failed since a position, before this call."""
        failures = self._failures[writer]
        return bisect_left(failures, self._at) - bisect_right(failures, after)

    def harmless_writes(self, writer: str, interval: _Equal) -> list[int]:
        """The writes of one tool in an interval with equal answers, a part of them if there are many."""
        positions = self._positions[writer]
        low, high = bisect_right(positions, interval.begin), bisect_left(positions, interval.end)
        return [
            position
            for position in positions[low : min(high, low + _MAX_KEPT)]
            if position not in self._failed and position not in interval.doubtful
        ]

    def _completed(self, former: _Sight, tool: str) -> dict[str, dict[int, Signature]]:
        """What met it, by tool and position: also writes that may have named anything, and reads of everything."""
        found: dict[str, dict[int, Signature]] = defaultdict(dict)
        for position, signature in former.met.items():
            found[self.candidates[next(iter(signature))].write][position] = signature
        for path, numbers in self.by_read[tool].items():
            is_root = path in former.roots
            for number in numbers:
                candidate = self.candidates[number]
                named = (candidate.write, candidate.write_path)
                for positions in (self._whole.get(named), self._named.get(named) if is_root else None):
                    if positions and positions[-1] > former.position:
                        for position in positions[bisect_right(positions, former.position) :][:_MAX_KEPT]:
                            own = found[candidate.write]
                            own[position] = self._joined[own.get(position, _UNMET), number]
        return found

    def _met_directly(self, write: _Written, sight: _Sight, tool: str) -> Signature:
        found = set()
        for path, numbers in self.by_write[write.tool].items():
            values = write.facts[path]
            for number in numbers:
                candidate = self.candidates[number]
                if candidate.read == tool:
                    held = sight.facts.get(candidate.read_path)
                    if held is not None and (values.is_error or held.is_root or set(values.texts) & set(held.texts)):
                        found.add(number)
        return frozenset(found)


def _overlaps(write: _Written, call: LoggedCall) -> bool:
    return write.ended is not None and call.started is not None and write.ended > call.started


# Which links explain the changes

Option = tuple[str, Signature]
"""A link to choose: a write tool, and the candidates that must all be met; none for the whole root."""


@dataclass(slots=True)
class _Chosen:
    """A link that was chosen."""

    option: Option
    origin: Origin
    changes: int
    unchanged: int


class _Chooser:
    """Chooses the links of one read.

    Attributes:
        explained: how many changes the links explain.
        unexplained: how many nothing explains.
        suspects: the tools that wrote where only a whole root explains a change. Each may be its cause.
    """

    def __init__(self, read: str, evidence: _Evidence, survey: Survey, trust: Mapping[str, float]) -> None:
        self.read = read
        self.evidence = evidence
        self.survey = survey
        self.trust = trust
        self.candidates = evidence.candidates
        self.records = list(evidence.records[read].items())
        self.explained = 0
        self.unexplained = 0
        self.suspects: Counter[str] = Counter()

    def choose(self) -> tuple[list[_Chosen], dict[str, str]]:
        """The links, and for each write that got the whole root without a change: why."""
        chosen = covering = self._cover()
        why: dict[str, str] = {}
        for writer in sorted(self.evidence.writers):
            own = [one for one in chosen if one.option[0] == writer]
            if any(not one.option[1] for one in own):
                chosen = [one for one in chosen if one.option[0] != writer or not one.option[1]]
                continue
            kept = _without_implied([*own, *self._by_entity(writer, own, covering, keyed=True)])
            reason = self._lacking(writer, kept, covering)
            is_known = bool(kept) and reason is None
            if not is_known or not any(self.candidates[number].is_key for one in kept for number in one.option[1]):
                # Nothing says that it is about the entity of the read, or too little what it does to others, or that it
                # is about no other entity: then ids in the answer count, too.
                kept = _without_implied([*kept, *self._by_entity(writer, kept, covering, keyed=False)])
                reason = None if is_known else self._lacking(writer, kept, covering)
            if reason is not None:
                why[writer] = reason
                kept = [_Chosen((writer, _UNMET), "whole root", 0, self._counts((writer, _UNMET))[1])]
            chosen = [one for one in chosen if one.option[0] != writer] + kept
        for writer in sorted(self.evidence.writers):
            chosen += self._by_same_arguments(writer, chosen)
        return chosen, why

    def _cover(self) -> list[_Chosen]:
        options = self._options()
        quality = {option: self._quality(option) for option in options}
        left = set(range(len(self.records)))
        picked: list[tuple[Option, set[int]]] = []
        while left and options:
            best, best_score = None, 0.0
            for option, covered in options.items():
                gain = sum(self.records[index][1] for index in covered & left)
                if not gain:
                    continue
                score = gain * quality[option]
                if score > best_score or (score == best_score and best is not None and _order(option) < _order(best)):
                    best, best_score = option, score
            if best is None:
                break
            picked.append((best, options[best]))
            left -= options[best]
        self.unexplained = sum(self.records[index][1] for index in left)
        by_links = set[int]().union(*(covered for option, covered in picked if option[1]))
        for index, (record, number) in enumerate(self.records):
            if index not in by_links:
                self.suspects.update(dict.fromkeys((writer for writer, _ in record), number))
        self.explained = sum(number for _, number in self.records) - self.unexplained
        found = []
        for option, covered in sorted(picked, key=lambda one: quality[one[0]]):
            better = [other for other in picked if other[0] != option and quality[other[0]] >= quality[option]]
            if covered <= set().union(*(those for _, those in better)):
                picked.remove((option, covered))
        for option, covered in picked:
            changes = sum(self.records[index][1] for index in covered)
            found.append(_Chosen(option, "evidence" if option[1] else "whole root", changes, self._counts(option)[1]))
        return found

    def _options(self) -> dict[Option, set[int]]:
        options: dict[Option, set[int]] = defaultdict(set)
        for index, (record, _) in enumerate(self.records):
            for writer, signature in record:
                options[writer, _UNMET].add(index)
                for number in signature:
                    options[writer, frozenset({number})].add(index)
                for several in self._composites(signature):
                    options[writer, several].add(index)
        return {option: covered for option, covered in options.items() if self._is_credible(option, covered)}

    def _composites(self, signature: Signature) -> list[Signature]:
        """Pairs of arguments, and all arguments, that bear the same names in both calls."""
        same = [
            number
            for number in sorted(signature)
            if (one := self.candidates[number]).write_path == one.read_path
            and "[" not in one.read_path
            and is_argument(one.read_path)
        ]
        found = [frozenset(pair) for pair in combinations(same[:6], 2)]
        if len(same) > 2:
            found.append(frozenset(same))
        return found

    def _counts(self, option: Option) -> tuple[int, int]:
        """How many writes met answers through it that changed, and that did not."""
        writer, numbers = option
        cells = self.evidence.cells[writer, self.read]
        changed = sum(cell.changed for signature, cell in cells.items() if numbers <= signature)
        return changed, sum(cell.unchanged for signature, cell in cells.items() if numbers <= signature)

    def _rate_without(self, option: Option) -> float:
        """How often an answer changed when a write of the same tool did not meet it through this option."""
        all_changed, all_unchanged = self._counts((option[0], _UNMET))
        met_changed, met_unchanged = self._counts(option)
        changed, unchanged = all_changed - met_changed, all_unchanged - met_unchanged
        return changed / (changed + unchanged) if changed + unchanged else 0.0

    def _confidence(self, option: Option) -> float:
        changed, unchanged = self._counts(option)
        return (changed + 0.5) / (changed + unchanged + 1)

    def _is_credible(self, option: Option, covered: set[int]) -> bool:
        """Whether a link that does not look like an entity explains more than chance would."""
        numbers = option[1]
        if not numbers or any(self.candidates[number].is_entity for number in numbers):
            return True
        changes = sum(self.records[index][1] for index in covered)
        usual = self._rate_without(option)
        return changes >= 3 and self._confidence(option) > max(0.3, min(2 * usual, (1 + usual) / 2))

    def _quality(self, option: Option) -> float:
        writer, numbers = option
        weight = max((self.candidates[number].weight for number in numbers), default=0.02)
        return weight * self._confidence(option) * self.trust.get(writer, 1.0)

    def _by_entity(self, writer: str, own: list[_Chosen], chosen: list[_Chosen], *, keyed: bool) -> list[_Chosen]:
        """Links through ids that nothing refutes: of the entity in the read's arguments, or of those in its answer."""
        cells = self.evidence.cells[writer, self.read]
        has = [one.option[1] for one in own]
        found = []
        for number, candidate in enumerate(self.candidates):
            if candidate.write != writer or candidate.read != self.read or not candidate.is_entity:
                continue
            if frozenset({number}) in has or is_argument(candidate.read_path) is not keyed:
                continue
            if not keyed and not is_argument(candidate.write_path):
                continue
            seen = [signature for signature in cells if number in signature]
            if seen and all(any(one <= signature for one in has) for signature in seen):
                continue  # implied
            is_one = "[]" not in candidate.write_path.partition("result")[2]
            enough = ENOUGH if keyed and is_one else _ENOUGH_OF_OTHERS
            if candidate.is_key and not any(number in one for one in has):  # or a part of a key that explains changes
                enough = _ENOUGH_OF_KEYS
            numbers = frozenset({self._known_before(number)})
            if self._is_refuted(writer, frozenset({number}), chosen, enough):
                numbers = self._all_of_key(number)
                if len(numbers) < 2 or numbers in has or self._is_refuted(writer, numbers, chosen, ENOUGH):
                    continue
            option = writer, numbers
            found.append(_Chosen(option, "same entity", 0, self._counts(option)[1]))
        return found

    def _by_same_arguments(self, writer: str, chosen: list[_Chosen]) -> list[_Chosen]:
        """The link through all arguments that a write shares with the read, if these are at least half of those of the
        read, and no link has any of them yet.

        ``dim(floor, zone)`` may change ``lamp(floor, zone)``, though no argument is named as an id, and none alone
        tells one lamp from another. Only writes that named all of them between two equal answers refute it: those that
        named something else were seen to be harmless, and say nothing of these.
        """
        linked = {number for one in chosen if one.option[0] == writer for number in one.option[1]}
        if any(one.option == (writer, _UNMET) for one in chosen):
            return []  # its whole root drops the read anyway
        same = frozenset(
            number for number in self._same_arguments(writer) if self.candidates[number].overlap >= _MIN_OVERLAP
        )
        is_part = 2 * len(same) < self.survey.count_arguments(self.read)
        if not same or is_part or same & linked or self._is_refuted(writer, same, chosen, ENOUGH):
            return []
        option = writer, same
        return [_Chosen(option, "same entity", 0, self._counts(option)[1])]

    def _same_arguments(self, writer: str) -> frozenset[int]:
        """The candidates through arguments that bear the same name in both calls."""
        return frozenset(
            number
            for number, one in enumerate(self.candidates)
            if (one.write, one.read) == (writer, self.read)
            and one.write_path == one.read_path
            and is_argument(one.read_path)
            and "[" not in one.read_path
        )

    def _all_of_key(self, number: int) -> Signature:
        """The candidates through the arguments that bear the same names in both calls, if this is one of them."""
        same = self._same_arguments(self.candidates[number].write)
        return same if number in same else frozenset()

    def _known_before(self, number: int) -> int:
        """The candidate in place of one: through an argument of the write instead of its result, if they always meet
        together. Of a write that fails, the result is not known, and the whole root is dropped.
        """
        candidate = self.candidates[number]
        facts = self.survey.tools[candidate.write]
        if is_argument(candidate.write_path) or facts.errors + facts.refusals <= 0.05 * facts.calls:
            return number
        cells = self.evidence.cells[candidate.write, self.read]
        with_it = [signature for signature in cells if number in signature]
        if sum(cells[signature].changed + cells[signature].unchanged for signature in with_it) < 3:
            return number
        for other in sorted(frozenset.intersection(*with_it)):
            one = self.candidates[other]
            is_same = all(number in signature for signature in cells if other in signature)
            if one.is_entity and is_argument(one.write_path) and is_same:
                return other
        return number

    def _is_refuted(self, writer: str, numbers: Signature, chosen: list[_Chosen], enough: int) -> bool:
        """Whether enough such writes left answers unchanged."""
        total = _Harmless()
        for interval in self._unexplained(chosen):
            own = [position for position, tool, met in interval.met if tool == writer and numbers <= met]
            if own:
                total.note(own, interval.key)
                if total.is_enough(enough):
                    return True
        return False

    def _unexplained(self, chosen: list[_Chosen]) -> Iterator[_Equal]:
        """The intervals with equal answers in which no chosen link met.

        Only these show that a write is harmless. In the others, an answer that it has changed would count as changed by
        the link, and be missing here.
        """
        whole = {one.option[0] for one in chosen if not one.option[1]}
        links = [one.option for one in chosen if one.option[1]]
        for interval in self.evidence.equal[self.read]:
            if not whole.isdisjoint(interval.writers):
                continue
            if not any(tool == by and numbers <= met for _, tool, met in interval.met for by, numbers in links):
                yield interval

    def _lacking(self, writer: str, kept: list[_Chosen], chosen: list[_Chosen]) -> str | None:
        """What is missing before a write may leave answers alone that it does not meet; None if nothing is."""
        if (writer, self.read) in self.evidence.ambiguous:
            return "shares an id with it that is spelt in several ways"
        linked = [number for one in kept for number in one.option[1]]
        is_list = any("[]" in self.candidates[number].read_path for number in linked)
        enough, is_search = _ENOUGH_OF_LISTS if is_list else ENOUGH, self.survey.may_list(self.read, writer)
        if self._may_be_named_by(writer, linked, [*chosen, *kept]):
            return "has an argument that may be an id, of which too little was seen between two equal answers"
        reads, intervals = min(len(self.evidence.keys[self.read]), _ENOUGH_READS), self._intervals_for(writer)
        total = _Harmless()
        for interval in self._unexplained([*chosen, *kept]):
            if writer in interval.writers:
                writes = self.evidence.harmless_writes(writer, interval)
                if writes:
                    total.note(writes, interval.key)
                    is_wide = len(total.keys) >= reads and total.intervals >= intervals
                    is_seen = len(total.writes) >= _ENOUGH_OF_SEARCHES if is_search else total.is_enough(enough)
                    if is_wide and is_seen:
                        return None
        if not is_list and self._is_keyed(writer, linked):
            return None
        many = len(total.writes)
        if not many:
            return "was never seen between two equal answers"
        return f"was seen only {many} time{'s' if many > 1 else ''} between two equal answers"

    def _intervals_for(self, writer: str) -> float:
        """In how many intervals a write has to have been harmless that may be the cause of changes, as it lay before
        them and only whole roots explain them: so many that they would have changed as well if it were.
        """
        changed = self.suspects[writer]
        if not changed:
            return 0
        unchanged = sum(writer in interval.writers for interval in self.evidence.equal[self.read])
        return _ENOUGH_CHANGES * (changed + unchanged) / changed

    def _may_be_named_by(self, writer: str, linked: list[int], chosen: list[_Chosen]) -> bool:
        """Whether another argument of the write holds values like those that identify the read, and it is not known
        what happens if it meets. An amount does so, and an id with the name of a role.
        """
        known = {self.candidates[number].write_path for number in linked}
        return any(
            not self._is_refuted(writer, frozenset({number}), chosen, ENOUGH // 2)
            for number, one in enumerate(self.candidates)
            if one.write == writer
            and one.read == self.read
            and not one.is_entity
            and one.overlap >= _MIN_OVERLAP
            and one.write_path not in known
            and is_argument(one.write_path)
            and is_argument(one.read_path)
            and name_of(self.read, one.read_path).is_id
        )

    def _is_keyed(self, writer: str, numbers: list[int]) -> bool:
        """Whether the arguments of both are ids of one entity, and the write has no other ids."""
        linked = {self.candidates[number].write_path for number in numbers if self.candidates[number].is_key}
        if not linked:
            return False
        if any(
            one.write == writer and one.read == self.read and one.write_path not in linked
            for one in self.candidates
            if is_argument(one.write_path) and is_argument(one.read_path)
        ):
            return False  # another argument has values of the same kind: it may be an id, too
        for (tool, path), profile in self.survey.paths.items():
            is_other = tool == writer and is_argument(path) and path not in linked
            if is_other and (name_of(tool, path).is_id or profile.main_class == "id"):
                return False
        return True


def _order(option: Option) -> tuple[str, list[int]]:
    return option[0], sorted(option[1])


def _without_implied(links: list[_Chosen]) -> list[_Chosen]:
    """Those that no other one covers: a link through two values is part of one through either."""
    return [one for one in links if not any(other is not one and other.option[1] < one.option[1] for other in links)]


# All of it

Progress = Callable[[int], None]


def mine(calls: Iterable[LoggedCall], *, progress: Progress | None = None) -> Advice:
    """Find what the writes of a log change, and the tags that follow.

    Args:
        calls: a log, in the order of one time line. It is iterated several times.
        progress: called with the number of calls done, of all passes together, now and then.
    """
    report = _Ticker(progress)
    survey = Survey()
    for call in calls:
        survey.add(call)
        report.tick()
    survey.finish()
    kinds = {tool: _kind_of(tool, facts) for tool, facts in survey.tools.items()}
    changers: dict[str, str] = {}
    within_runs = False
    while True:
        writers = {tool for tool, (kind, _) in kinds.items() if kind != "read"} | set(changers)
        readers = {tool for tool, (kind, _) in kinds.items() if kind != "write"} - set(changers)
        evidence = _Evidence(find_candidates(survey, writers, readers), writers, readers, within_runs=within_runs)
        resets = ResetFinder(writers, readers)
        for call in calls:
            evidence.add(call)
            resets.add(call)
            report.tick()
        if not within_runs and _begins_anew(evidence):
            within_runs = True
            continue
        found = _find_changers(evidence)
        if not found or len(changers) > 8:
            break
        changers.update(found)
    report.finish()
    return replace(_Conclusion(survey, kinds, changers, evidence).advice(), resets=resets.found())


class _Ticker:
    """Reports progress every thousand calls."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._count = 0

    def tick(self) -> None:
        self._count += 1
        if self._progress is not None and self._count % 1_000 == 0:
            self._progress(self._count)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._count)


def _kind_of(tool: str, facts: ToolFacts) -> tuple[Literal["read", "write"] | None, Why]:
    if facts.given:
        return ("write" if facts.given["write"] else "read"), "given"
    if facts.hint is not None:
        return facts.hint, "hint"
    by_name = kind_by_name(tool)
    return (by_name, "name") if by_name is not None else (None, "unknown")


def _begins_anew(evidence: _Evidence) -> bool:
    """Whether each run of the log has a state of its own: answers went back to the first one between runs, without a
    write, and never within one.

    What changes by itself goes back as well, in a state that all runs share. There, what writes have changed is still
    so in later runs: such answers must be fewer than those that went back.
    """
    resets = sum(number for tool, number in evidence.resets.items() if not evidence.free_within_runs[tool])
    return resets >= 2 and evidence.survivals < resets


def _find_changers(evidence: _Evidence) -> dict[str, str]:
    """Tools that were taken for reads, and after which answers change that nothing else explains.

    Such a tool ran before each of these changes, rarely where the answer stayed, and not by chance: others may have
    changed the answers of a log that shows none of their writes.
    """
    found: dict[str, str] = {}
    readers = len(evidence.readers)
    for read, changes in sorted(evidence.free_changes.items()):
        number = sum(changes.values())
        if number < 3:
            continue
        equal = evidence.free_equal[read]
        best, best_rate = None, 0.3
        for suspect in sorted(frozenset.intersection(*changes)):
            with_it = sum(count for between, count in equal.items() if suspect in between)
            without = sum(equal.values()) - with_it
            rate = number / (number + with_it)
            if without < ENOUGH or rate <= best_rate:
                continue
            chance = _chance_of_company(suspect, changes, equal, readers)
            if chance * readers**2 < _CHANCE:  # as many pairs were tried: the correction of Bonferroni
                best, best_rate = suspect, rate
        if best is not None:
            found[best] = read
    return found


def _chance_of_company(suspect: str, changes: Free, equal: Free, readers: int) -> float:
    """How likely a tool that changes nothing has run before every change.

    The more different tools ran in an interval, the likelier it is among them. So its share is taken from the equal
    intervals with as many; where there were none, all other reads are as likely.
    """
    of_size: Counter[int] = Counter()
    with_it: Counter[int] = Counter()
    for between, count in equal.items():
        of_size[len(between)] += count
        if suspect in between:
            with_it[len(between)] += count

    def share(size: int) -> float:
        if not of_size[size]:
            return size / max(size, readers - 1)
        return (with_it[size] + 1) / (of_size[size] + 2)  # the rule of succession of Laplace: never 0

    return prod(share(len(between)) ** count for between, count in changes.items())


class _Conclusion:
    """Makes the advice out of what was counted."""

    def __init__(
        self,
        survey: Survey,
        kinds: Mapping[str, tuple[Literal["read", "write"] | None, Why]],
        changers: Mapping[str, str],
        evidence: _Evidence,
    ) -> None:
        self.survey = survey
        self.kinds = kinds
        self.changers = changers
        self.evidence = evidence
        self.links: list[Link] = []
        self.unknown: list[str] = []
        self.changes = self.explained = 0
        self.volatile: dict[str, str] = {}

    def advice(self) -> Advice:
        evidence = self.evidence
        trust = {tool: 0.5 for tool in evidence.writers if self.kinds[tool][0] is None}
        for read in sorted(evidence.readers):
            free = sum(evidence.free_changes[read].values())
            records = sum(evidence.records[read].values())
            self.changes += free + records
            if self.kinds[read][0] is None:
                continue
            if free:
                self.volatile[read] = f"its answers changed {free} time{'s' if free > 1 else ''} without a write"
                continue
            chooser = _Chooser(read, evidence, self.survey, trust)
            chosen, why = chooser.choose()
            by_itself = self._may_change_by_itself(read, chosen)
            if by_itself is not None:
                self.volatile[read] = by_itself
                continue
            self.explained += chooser.explained
            if chooser.unexplained:
                self.unknown.append(f"{chooser.unexplained} changes of {read} have no explanation")
            self.links += [self._link(one, read) for one in chosen]
            self._say_what_is_missing(read, why)
        tools = {tool: self._tool(tool) for tool in sorted(self.survey.tools)}
        self._say_more(tools)
        kept = [link for link in self.links if tools[link.write].kind in ("write", "unknown")]
        tags, roots = tag_templates(
            [(link.write, link.write_path, link.read, link.read_path) for link in kept],
            reads=[tool for tool, one in tools.items() if one.kind == "read"],
            writes=[tool for tool, one in tools.items() if one.kind in ("write", "unknown")],
            names={tool: sorted(nouns_of(tool)) for tool in tools},
            entity=lambda tool, path: sorted(name_of(tool, path).entity),
        )
        return Advice(
            tools={tool: replace(one, tags=tags.get(tool, ())) for tool, one in tools.items()},
            links=tuple(replace(link, root=root) for link, root in zip(kept, roots, strict=True)),
            unknown=tuple(self.unknown),
            changes=self.changes,
            explained=self.explained,
            is_shared=not evidence.within_runs,
        )

    def _link(self, chosen: _Chosen, read: str) -> Link:
        writer, numbers = chosen.option
        order = list(self.survey.tools[read].parameters)
        pairs = [(self.evidence.candidates[n].write_path, self.evidence.candidates[n].read_path) for n in numbers]
        pairs.sort(key=lambda pair: (order.index(pair[1]) if pair[1] in order else len(order), pair))
        return Link(
            write=writer,
            write_path=":".join(pair[0] for pair in pairs),
            read=read,
            read_path=":".join(pair[1] for pair in pairs),
            origin=chosen.origin,
            changes=chosen.changes,
            exposed=chosen.changes + chosen.unchanged,
            unchanged=chosen.unchanged,
        )

    def _say_what_is_missing(self, read: str, why: Mapping[str, str]) -> None:
        never = [writer for writer, reason in why.items() if "never" in reason]
        spelt = [writer for writer in sorted(self.evidence.writers) if (writer, read) in self.evidence.ambiguous]
        rarely = [writer for writer in why if writer not in (*never, *spelt)]
        parts = [f"never seen between two equal answers: {', '.join(never)}"] if never else []
        parts += [f"seen there too rarely: {', '.join(rarely)}"] if rarely else []
        if parts:
            self.unknown.append(f"{read}: its whole root is dropped by what was {'; '.join(parts)}")
        if spelt:
            self.unknown.append(
                f"{read}: its whole root is dropped by {', '.join(spelt)}, since the log spells one id in several ways"
            )

    def _may_change_by_itself(self, read: str, chosen: list[_Chosen]) -> str | None:
        """Why a read of an id, whose changes whole roots alone explain, may change by itself: what changes slowly looks
        so, where writes lie between all of its answers. A list of all, or their count, takes no id: it is not meant.

        It does not if, at the rate at which it has changed, it would have changed between writes as well.
        """
        causes = [one for one in chosen if one.changes]
        is_spelt = any((one.option[0], read) in self.evidence.ambiguous for one in causes)
        if not causes or is_spelt or any(one.option[1] for one in causes) or not self.survey.takes_id(read):
            return None
        changes = sum(self.evidence.records[read].values())
        if changes * self.evidence.calls_without[read] >= _ENOUGH_CHANGES * self.evidence.calls_with[read]:
            return None
        writers = ", ".join(sorted(one.option[0] for one in causes))
        return f"it may change by itself: its answers change after {writers}, and no id says which"

    def _tool(self, tool: str) -> ToolAdvice:
        facts, (by, why) = self.survey.tools[tool], self.kinds[tool]
        kind: Kind
        linked = [link for link in self.links if link.write == tool]
        changed = ", ".join(sorted({link.read for link in linked if link.changes})[:3])
        is_shown = any(link.changes and link.origin != "same entity" for link in linked)
        if tool in self.changers:
            kind, why, reason = "write", "evidence", f"answers of {self.changers[tool]} change after it"
        elif by == "read" and tool in self.volatile:
            kind, why, reason = "watch", "evidence", self.volatile[tool]
        elif (by is None and is_shown) or (by == "write" and why == "name" and changed):
            kind, why, reason = "write", "evidence", f"answers of {changed} change after it"
        elif by is not None:
            kind = by
            reason = {"given": "its log says so", "hint": "its annotations say so", "name": "its name says so"}[why]
        elif linked or not self.evidence.readers:
            kind, why, reason = "unknown", "unknown", "neither its log nor its name says what it is"
        else:
            kind, why, reason = "pass", "evidence", "no answer changes after it"
        return ToolAdvice(
            tool=tool,
            kind=kind,
            why=why,
            reason=reason,
            calls=facts.calls,
            errors=facts.errors,
            repeats=self.evidence.repeats[tool],
            parameters=dict(facts.parameters),
            parse=facts.text,
        )

    def _say_more(self, tools: Mapping[str, ToolAdvice]) -> None:
        for tool, one in tools.items():
            if one.kind == "watch":
                self.unknown.append(f"{tool} is not to be cached: {one.reason}")
            if one.kind == "unknown":
                self.unknown.append(f"{tool} may read or write: {one.reason}")
            if one.kind == "read" and one.repeats == 0:
                self.unknown.append(f"{tool} was never called twice with the same arguments")
        for kind in ("read", "write"):
            named = [tool for tool, one in tools.items() if one.kind == kind and one.why == "name"]
            if named:
                is_one = len(named) == 1
                self.unknown.append(
                    f"{'this is' if is_one else 'these are'} taken for {f'a {kind}' if is_one else f'{kind}s'} by name "
                    f"alone, to be checked: {', '.join(named)}"
                )
        if self.evidence.within_runs:
            self.unknown.append("each run begins with a state of its own: nothing was concluded across runs")
        if self.evidence.uncompared:
            self.unknown.append(f"{self.evidence.uncompared} more changes of answers were counted and not explained")
        if self.evidence.dropped:
            self.unknown.append(
                f"{self.evidence.dropped} answers were forgotten before they were asked for again: the log has more "
                "different calls than are compared"
            )
