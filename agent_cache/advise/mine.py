"""Finds in a log of tool calls which writes change which answers, and through which values of the two calls.

**Evidence.** An *interval* lies between two sights of one read: two calls with the same arguments, both answered. If
the answer changed, one of the writes between them is the cause; if it did not, none of them is. A write and a read
*meet* through a pair of paths, such as ``order_id`` and ``result[orders][][order_id]``, if they have a value in common
there, compared by its text, as tags are. Runs share one state only if the log shows it: between two runs a reset looks
as if the writes were harmless. Calls that overlap, writes that failed, and answers that are missing, redacted or from a
cache are evidence of nothing.

**What is advised.** By default a write drops every answer of a read. For each pair of a write tool and a read tool:

1. *Links by evidence.* Every change must be explained by a pair of paths through which a write of the interval met the
   read, else by the whole root. They are chosen as a greedy set cover (Chvatal 1979, "A greedy heuristic for the
   set-covering problem"), weighted by how often an answer changed when its values met (the confidence of an association
   rule: Agrawal, Imielinski and Swami 1993) and by how much the two paths look like one entity.
2. *Links by entity.* A write that carries an id of the entity that a read is about is linked to it without a change,
   unless so many different writes met answers that nothing else could have changed, and none changed.
3. *The rest.* What a write does to answers that no link meets must have been seen: `ENOUGH` different writes between
   equal answers (the "rule of three" of Hanley and Lippman-Hand 1983: the true rate is below 31 % with 95 %
   confidence). Otherwise the pair gets the whole root, by a link without a change. Lists and searches need more, since
   an item may come in. Of a write on another server, all writes of that server between equal answers of this one count.

An answer that changes with no write in between is *volatile*, and not to be cached. So is a read of an id whose changes
no id explains, unless it stayed the same without a write for long enough; and where runs begin anew, one that differs
from run to run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate, islice
from typing import Any, Final, Literal, NamedTuple

from agent_cache.advise.calls import UNKNOWN, LoggedCall, answer_digest, is_failure, is_transient, key_of
from agent_cache.advise.paths import Pair, ToolFacts, find_pairs, kind_by_name, may_list, server_of, survey, values_at
from agent_cache.advise.tag_rules import BY_NAME, Advice, Kind, Link, Origin, ToolAdvice, tagged

__all__ = ["mine", "unwrapped"]

ENOUGH: Final = 8
"""How many different writes have to have left answers unchanged before such writes are taken for harmless."""
_OF_LISTS: Final = 24
"""The same where an item may come into a list, and where both calls are about one thing by their arguments."""
_OF_SEARCHES: Final = 100
"""The same where each write may bring an item in, of which one in a hundred may change a page. And how many pairs of a
write and an answer on another server."""
_OF_OTHERS: Final = 6
_INTERVALS: Final = 3
_ENOUGH_CHANGES: Final = 4.6
"""How many changes would be expected where none was seen, if there were any: ``-log(0.01)``, with 99 % confidence."""
_ENOUGH_READS: Final = 6
"""To how many different calls of a read a write must have been harmless, if that many were repeated at all."""
_MOST_KEPT: Final = 16
"""How many writes of one tool in one interval are counted that did not meet the read."""
_MOST_INTERVALS: Final = 5_000
_UNMET: Final = frozenset[Pair]()
_ANY: Final = "\0"
_ALL: Final = "\1"
"""In the place of a text: of writes that may have named anything, and of all of them."""

Given = tuple[Literal["read", "write"] | None, str]
Signature = frozenset[Pair]
"""The pairs through which one write met one read."""


def mine(calls: Sequence[LoggedCall], *, ignore: Sequence[str] = ()) -> Advice:
    """Find what the writes of a log change, and the tags that follow."""
    calls, inner = unwrapped(calls)
    handlers = {call.tool for call in calls if call.encloses and call.kind is None}
    ignored = handlers | {one.tool for one in calls if any(fnmatchcase(one.tool, pattern) for pattern in ignore)}
    calls = [call for call in calls if call.tool not in ignored]
    tools = survey(calls)
    servers = Counter(server_of(tool)[0] for tool in tools)
    kinds = {tool: _kind_of(tool, facts, servers) for tool, facts in tools.items()}
    writers = {tool for tool, (kind, _) in kinds.items() if kind != "read"}
    readers = {tool for tool, (kind, _) in kinds.items() if kind != "write"}
    worlds = _worlds_of(calls, writers, readers)
    evidence = _Evidence(calls, find_pairs(tools, writers, readers), writers, readers, is_shared=worlds.are_one)
    return replace(_concluded(tools, kinds, evidence, worlds), inner=inner, ignored=tuple(sorted(ignored)))


_TOOL_NAMES: Final = ("tool_name", "toolName", "tool", "name", "function_name", "function")
_TOOL_ARGUMENTS: Final = ("params", "arguments", "args", "parameters", "input", "tool_args")


def unwrapped(calls: Sequence[LoggedCall]) -> tuple[list[LoggedCall], dict[str, tuple[str, str]]]:
    """The calls with those of meta-tools as the calls of the tools that they name, and the arguments by which each
    meta-tool does so: ``execute-tool(tool_name="get_order", params={"order_id": "W1"})`` is ``get_order``.

    A tool is one if all of its calls have a text that is the name of a tool and an object, by names that such
    arguments have, and if there are several such names.
    """
    seen: dict[str, set[tuple[str, str]]] = {}
    names: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        given = call.arguments
        inside = [name for name in _TOOL_ARGUMENTS if isinstance(given.get(name), dict)]
        pairs = {(name, one) for one in inside for name in _TOOL_NAMES if isinstance(given.get(name), str)}
        seen[call.tool] = seen.get(call.tool, pairs) & pairs
        names[call.tool].update(given[name] for name, _ in pairs)
    inner = {
        tool: min(pairs, key=lambda one: (_TOOL_NAMES.index(one[0]), one[1]))
        for tool, pairs in seen.items()
        if pairs and len(names[tool]) > 1
    }

    def real(call: LoggedCall, name: str, inside: str) -> LoggedCall:
        return replace(call, tool=call.arguments[name], arguments=call.arguments[inside], kind=None, hints={})

    return [real(call, *inner[call.tool]) if call.tool in inner else call for call in calls], inner


def _kind_of(tool: str, facts: ToolFacts, servers: Mapping[str, int]) -> Given:
    if facts.given:
        return ("write" if facts.given["write"] else "read"), "its log says so"
    if facts.hint is not None:
        return facts.hint, "its annotations say so"
    if facts.is_open:
        return None, "its arguments, and not its name, say whether it writes"
    by_name = kind_by_name(tool, servers)
    return by_name, BY_NAME if by_name else "neither its log nor its name says what it is"


# Whether runs share one state


class _Worlds(NamedTuple):
    """Whether runs share a state; how many answers were as before a change of an earlier run; reads found unsteady."""

    are_one: bool
    resets: int = 0
    unsteady: frozenset[str] = frozenset()


def _worlds_of(calls: Sequence[LoggedCall], writers: set[str], readers: set[str]) -> _Worlds:
    """Decide by what runs find that have written nothing yet: what another one has changed and seen, or what was there
    before. A tool whose answers change within a run without a write shows nothing.
    """
    if len({call.run for call in calls}) < 2:
        return _Worlds(are_one=True)
    wrote = set[str]()
    last: dict[Any, tuple[str, bytes, int]] = {}
    start: dict[Any, tuple[str, bytes]] = {}
    changed: dict[Any, tuple[str, bytes, bytes]] = {}
    lasting, resets, same, other = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    unstable, latest = set[str](), -1
    for at, call in enumerate(calls):
        tool, run = call.tool, call.run
        if tool in writers:
            wrote.add(run)
            latest = at
        if tool not in readers or call.result is UNKNOWN or not call.is_whole or (own := key_of(call)) is None:
            continue
        key, answer = (tool, own), answer_digest(call.result)
        former_run, former, seen = last.get(key, ("", answer, at))
        if former_run == run and former != answer and latest <= seen:
            unstable.add(tool)
        last[key] = run, answer, at
        began, before = start.get(key, (run, answer))
        if run in wrote:
            if before != answer:
                changed.setdefault(key, (run, before, answer))
            continue
        by, old, new = changed.pop(key, (run, answer, answer))
        lasting[tool] += by != run and answer == new
        resets[tool] += by != run and answer == old
        if began != run:
            (same if before == answer else other)[tool] += 1
        start[key] = run, answer
    for counts in (lasting, resets, same, other):
        for tool in unstable:
            del counts[tool]
    contrary = resets.total()
    if lasting.total() > 2 * contrary:
        return _Worlds(are_one=True)
    # Where runs begin from one state, what differs is what changes by itself.
    unsteady = frozenset(
        tool
        for tool, number in other.items()
        if contrary and number >= max(_INTERVALS, same[tool])
        if same.total() - same[tool] > other.total() - number
    )
    return _Worlds(are_one=False, resets=contrary, unsteady=unsteady)


# Intervals


class Interval(NamedTuple):
    """What lies between two sights of a read: its key, whether the answer changed, the writes that may have changed it,
    or surely have not (number, tool, and pairs through which it met), and the paths at which the answer has no item:
    every write meets it there, which says nothing of what it names.
    """

    key: int
    is_change: bool
    writes: tuple[tuple[int, str, Signature], ...]
    empty: frozenset[str]


class _Evidence:
    """The second pass over a log: the intervals of each read."""

    def __init__(
        self, calls: Sequence[LoggedCall], pairs: list[Pair], writers: set[str], readers: set[str], *, is_shared: bool
    ) -> None:
        self.writers, self.readers = writers, readers
        self.pairs: dict[tuple[str, str], dict[tuple[str, str], Pair]] = defaultdict(dict)
        """Of a write and a read, by their paths."""
        self.paths: dict[str, set[str]] = defaultdict(set)
        for one in pairs:
            self.pairs[one.write, one.read][one.write_path, one.read_path] = one
            self.paths[one.write].add(one.write_path)
            self.paths[one.read].add(one.read_path)
        self.intervals: dict[str, list[Interval]] = defaultdict(list)
        self.keys: dict[str, Counter[int]] = defaultdict(Counter)
        """Of each read how often each of its calls was made again."""
        self.free_changes, self.repeats, self.unchanged = Counter[str](), Counter[str](), Counter[str]()
        self.calls_without, self.calls_with = Counter[str](), Counter[str]()
        by_run: dict[str, list[LoggedCall]] = defaultdict(list)
        for call in calls:
            by_run["" if is_shared else call.run].append(call)
        first = 0
        for part in by_run.values():
            self._look_at(part, first)
            first += len(part)
        # By the servers of writes and of reads: the writes that lay in equal intervals, and in how many.
        self.elsewhere: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        for read, intervals in self.intervals.items():
            own = server_of(read)[0]
            for interval in intervals:
                for write, tool, _ in () if interval.is_change else interval.writes:
                    self.elsewhere[server_of(tool)[0], own][write] += 1

    def _look_at(self, calls: Sequence[LoggedCall], first: int) -> None:
        """Find the intervals of one world, whose calls are numbered from `first`."""
        writes = _Writes(calls, self)
        sights: dict[Any, tuple[int, bytes] | None] = {}  # the last answer of each read: None if it is not known
        for at, call in enumerate(calls):
            if call.tool not in self.readers or (own := key_of(call)) is None:
                continue
            key = call.tool, own
            former = sights.get(key)
            self.repeats[call.tool] += key in sights
            self.keys[call.tool][hash(key)] += former is not None
            if is_transient(call) or (call.result is UNKNOWN and call.error is None):
                sights.setdefault(key, None)
                continue
            answer = b"error" if call.error is not None else answer_digest(call.result)
            sights[key] = None if call.error is not None else (at, answer)  # an error is not stored
            if former is None:
                continue
            since, is_change = former[0], former[1] != answer
            self.unchanged[call.tool] += not is_change
            if is_change:  # a write that failed has an effect now and then, if no other can have
                between = writes.between(since, at) or writes.between(since, at, failed=True)
            elif calls[since].is_whole and call.is_whole:
                between = writes.between(since, at, surely=True)
            else:
                continue
            if between:
                numbered = tuple((first + position, tool, met) for position, tool, met in between)
                lists = [path for path in self.paths[call.tool] if "[]" in path]
                empty = frozenset(path for path in lists if values_at(calls[since], path, is_write=False) == ())
                self.intervals[call.tool].append(Interval(hash(key), is_change, numbered, empty))
                self.calls_with[call.tool] += at - since
            else:
                self.calls_without[call.tool] += at - since
                self.free_changes[call.tool] += is_change


class _Writes:
    """The writes of calls that share one state, by what they name."""

    def __init__(self, calls: Sequence[LoggedCall], evidence: _Evidence) -> None:
        self._calls, self._evidence = calls, evidence
        ends = [*accumulate((float("-inf") if one.ended is None else one.ended for one in calls), max)]
        # The first call that had not ended when each began, so that the two overlap.
        self._begins = [
            at if one.started is None else min(at, bisect_right(ends, one.started)) for at, one in enumerate(calls)
        ]
        self._running = 64 if any(begin < at for at, begin in enumerate(self._begins)) else 0
        self._positions: dict[tuple[str, bool], list[int]] = defaultdict(list)
        self._naming: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        for at, call in enumerate(calls):
            if call.tool in evidence.writers:
                self._positions[call.tool, is_failure(call)].append(at)
                for path in evidence.paths[call.tool]:
                    values = values_at(call, path, is_write=True)
                    for text in (_ALL, *((_ANY,) if values is None else values[:500])):
                        self._naming[text][call.tool, path].append(at)

    def between(
        self, since: int, at: int, *, failed: bool = False, surely: bool = False
    ) -> list[tuple[int, str, Signature]]:
        """The writes that may lie between two sights of a read, or surely do: all that met, and some of the others."""
        met = self._met(since, at)
        found: list[tuple[int, str, Signature]] = []
        for (tool, has_failed), positions in self._positions.items():
            if has_failed is failed and (several := self._part(positions, since, at)):
                if surely:
                    several = [one for one in several if self._begins[one] > since and one < self._begins[at]]
                found += [(one, tool, frozenset(met[one])) for one in several if one in met]
                others = (one for one in several if one not in met)
                found += [(one, tool, _UNMET) for one in islice(others, _MOST_KEPT)]
        return found

    def _part(self, positions: list[int], since: int, at: int) -> list[int]:
        """Those of these positions that may lie between two sights: also of such as still ran at the last."""
        low, high = bisect_left(positions, self._begins[since]), bisect_right(positions, at)
        running = positions[high : high + self._running]
        return positions[low:high] + [one for one in running if self._begins[one] <= at]

    def _met(self, since: int, at: int) -> dict[int, set[Pair]]:
        """The writes that met an answer, and the pairs: also those that may have named anything."""
        read, found = self._calls[since], defaultdict[int, set[Pair]](set)
        for path in self._evidence.paths[read.tool]:
            values = values_at(read, path, is_write=False)
            for text in (_ANY, *((_ALL,) if values == () else values or ())):
                for (tool, own), positions in self._naming.get(text, {}).items():
                    if pair := self._evidence.pairs[tool, read.tool].get((own, path)):
                        for one in self._part(positions, since, at)[:256]:
                            found[one].add(pair)
        return found


# Which links explain the changes


class _Harmless(NamedTuple):
    """Writes that left answers unchanged which nothing else can have changed: in how many intervals (where they met
    through items of a list, those with items), which writes, which calls of the read, and which of both together.
    """

    intervals: int
    writes: set[int]
    keys: set[int]
    both: set[tuple[int, int]]

    def is_enough(self, enough: int) -> bool:
        """Whether they are so many that such writes are harmless."""
        several = len(self.writes) >= _INTERVALS and len(self.keys) >= ENOUGH // 2 and len(self.both) >= 2 * enough
        return self.intervals >= _INTERVALS and (len(self.writes) >= enough or several)


class _Chooser:
    """Chooses the links of one read."""

    def __init__(self, read: str, evidence: _Evidence, tools: Mapping[str, ToolFacts]) -> None:
        self.read, self.evidence, self.tools = read, evidence, tools
        self.roots = {writer: Pair(writer, "", read, "") for writer in sorted(evidence.writers)}
        changes: Counter[frozenset[Pair]] = Counter()
        self.equal: dict[str, list[Interval]] = defaultdict(list)
        self.counts: dict[Pair, list[int]] = defaultdict(lambda: [0, 0])
        for interval in evidence.intervals[read]:
            pairs = set[Pair]()
            for _, writer, met in interval.writes:
                for one in (self.roots[writer], *met):
                    pairs.add(one)
                    self.counts[one][not interval.is_change] += (
                        interval.is_change or one.read_path not in interval.empty
                    )
            if interval.is_change:
                changes[frozenset(pairs)] += 1
            else:
                for one in pairs:
                    if one.is_root:
                        self.equal[one.write].append(interval)
        self.changes = list(changes.items())

    def choose(self) -> list[Link]:
        """The links. A write that got the whole root without a change was seen too little."""
        chosen = covering = self._cover()
        for writer, root in self.roots.items():
            own = [link for link in chosen if link.pair.write == writer]
            others = [link for link in chosen if link.pair.write != writer]
            if roots := [link for link in own if link.pair.is_root]:
                chosen = others + roots
                continue
            kept = [*own, *self._by_entity(writer, own, covering, keyed=True)]
            is_harmless = self._is_harmless(writer, kept, covering)
            is_known = bool(kept) and is_harmless
            if not is_known or not any(link.pair.is_key for link in kept):
                # Nothing says that it is about the entity of the read, or too little what it does to others, or that it
                # is about no other entity: then ids in the answer count, too.
                kept = [*kept, *self._by_entity(writer, kept, covering, keyed=False)]
                is_harmless = is_known or self._is_harmless(writer, kept, covering)
            chosen = others + (kept if is_harmless else [self._link(root, "whole root")])
        return chosen

    def _link(self, pair: Pair, origin: Origin, changes: int = 0) -> Link:
        return Link(pair, origin, changes, self.counts[pair][1])

    def _cover(self) -> list[Link]:
        covers: dict[Pair, set[int]] = defaultdict(set)
        for index, (record, _) in enumerate(self.changes):
            for pair in record:
                covers[pair].add(index)
        pairs = (one for writer, root in self.roots.items() for one in (root, *self._pairs_of(writer)))
        quality = {
            pair: pair.weight * self._confidence(pair)
            for pair in pairs
            if pair in covers and self._is_credible(pair, covers[pair])
        }
        left = set(range(len(self.changes)))
        picked: list[Pair] = []

        def number(of: set[int]) -> int:
            return sum(self.changes[index][1] for index in of)

        while left:
            best = max(quality, key=lambda one: number(covers[one] & left) * quality[one], default=None)
            if best is None or not covers[best] & left:
                break
            picked.append(best)
            left -= covers[best]
        self.suspected_servers = {server_of(pair.write)[0] for pair in picked}
        return [self._link(one, "whole root" if one.is_root else "evidence", number(covers[one])) for one in picked]

    def _pairs_of(self, writer: str) -> Iterable[Pair]:
        return self.evidence.pairs[writer, self.read].values()

    def _confidence(self, pair: Pair) -> float:
        changed, unchanged = self.counts[pair]
        return (changed + 0.5) / (changed + unchanged + 1)

    def _is_credible(self, pair: Pair, covered: set[int]) -> bool:
        """Whether a pair that does not look like an entity explains more than chance would."""
        if pair.is_root or pair.is_entity:
            return True
        if sum(self.changes[index][1] for index in covered) < _INTERVALS:
            return False
        changed, unchanged = (
            all_ - own for all_, own in zip(self.counts[self.roots[pair.write]], self.counts[pair], strict=True)
        )
        usual = changed / (changed + unchanged) if changed + unchanged else 0.0
        return self._confidence(pair) > max(0.3, min(2 * usual, (1 + usual) / 2))

    def _by_entity(self, writer: str, own: list[Link], chosen: list[Link], *, keyed: bool) -> list[Link]:
        """Links through ids that nothing refutes: of the entity in the read's arguments, or of those in its answer."""
        has, found = [link.pair for link in own], []
        for pair in self._pairs_of(writer):
            is_from_result = pair.write_path.startswith("result")
            if pair in has or not pair.is_entity or pair.is_argument is not keyed or (is_from_result and not keyed):
                continue
            enough = ENOUGH if keyed and not (is_from_result and "[]" in pair.write_path) else _OF_OTHERS
            if pair.is_key and not any(pair.parts <= one.parts for one in has):
                enough = _OF_LISTS  # or a part of a key that explains changes
            if not self._harmless(writer, chosen, pair).is_enough(enough):
                found.append(self._link(pair, "same entity"))
        return found

    def _harmless(self, writer: str, links: list[Link], pair: Pair | None = None) -> _Harmless:
        """The writes of a tool that left answers unchanged, in intervals in which no link met; those that met through a
        pair.

        Only these show that a write is harmless. In the others, an answer that it has changed would count as changed by
        the link, and be missing here.
        """
        linked = {link.pair for link in links}
        unexplained = (
            interval
            for interval in self.equal.get(writer, ())
            if not any(one in linked for _, tool, met in interval.writes for one in (self.roots[tool], *met))
        )
        both, intervals = set[tuple[int, int]](), 0
        for interval in islice(unexplained, _MOST_INTERVALS):
            own = [one for one, tool, met in interval.writes if tool == writer and (pair is None or pair in met)]
            both.update((one, interval.key) for one in own)
            intervals += bool(own) and (pair is None or pair.read_path not in interval.empty)
        return _Harmless(intervals, {write for write, _ in both}, {key for _, key in both}, both)

    def _is_harmless(self, writer: str, kept: list[Link], chosen: list[Link]) -> bool:
        """Whether a write leaves answers alone that it does not meet."""
        evidence, facts = self.evidence, self.tools[self.read]
        is_list = any("[]" in link.pair.read_path for link in kept)
        is_search = may_list(facts, self.tools[writer])
        enough = _OF_LISTS if is_list or is_search or not facts.arguments else ENOUGH
        changes = _ENOUGH_CHANGES * len(evidence.keys[self.read]) if is_search else 0
        reads = min(sum(again > 0 for again in evidence.keys[self.read].values()), _ENOUGH_READS)
        total = self._harmless(writer, [*chosen, *kept])
        is_open = self.tools[writer].is_open  # then none of these shows what its next command does
        is_wide = not is_open and len(total.keys) >= reads and len(total.both) >= changes
        if is_wide and (len(total.writes) >= _OF_SEARCHES if is_search else total.is_enough(enough)):
            return True
        is_one = not is_open and not is_list
        if is_one and self._is_keyed(writer, {link.pair.write_path for link in kept if link.pair.is_key}):
            return True
        # Of another server, all writes together, none of which explains a change of this one.
        own, server = server_of(self.read)[0], server_of(writer)[0]
        writes = evidence.elsewhere[server, own]
        is_other = bool(server) and server != own and server not in self.suspected_servers
        return is_other and len(writes) >= ENOUGH and writes.total() >= _OF_SEARCHES

    def _is_keyed(self, writer: str, linked: set[str]) -> bool:
        """Whether the arguments of both are ids of one entity, and the write has no other ids."""
        arguments = {pair.write_path for pair in self._pairs_of(writer) if pair.is_argument}
        alike = {path for path in arguments if ":" not in path and not path.startswith("result")}
        return bool(linked) and alike | self.tools[writer].ids <= linked  # another argument may be an id, too


# All of it


def _concluded(
    tools: Mapping[str, ToolFacts], kinds: Mapping[str, Given], evidence: _Evidence, worlds: _Worlds
) -> Advice:
    """Make the advice out of what was found."""
    links: list[Link] = []
    volatile: dict[str, str] = {}
    for read in sorted(evidence.readers):
        if kinds[read][0] is None:
            continue
        if free := evidence.free_changes[read]:
            volatile[read] = f"its answers changed {free} time{'s' if free > 1 else ''} without a write"
            continue
        if read in worlds.unsteady:
            volatile[read] = "its answers differ between runs that begin anew, before anything was written"
            continue
        chosen = _Chooser(read, evidence, tools).choose()
        if (by_itself := _change_by_itself(tools[read], evidence, chosen)) is not None:
            volatile[read] = by_itself
            continue
        links += chosen
    is_judged = any(kind == "read" and tool not in volatile for tool, (kind, _) in kinds.items())
    advised = {
        tool: _advised(facts, kinds[tool], links, volatile, evidence.repeats[tool], is_judged=is_judged)
        for tool, facts in sorted(tools.items())
    }
    kept = [link for link in links if advised[link.pair.write].kind in ("write", "unknown")]
    advised, rooted = tagged(kept, advised)
    return Advice(tools=advised, links=rooted, is_shared=worlds.are_one, resets=worlds.resets)


def _change_by_itself(read: ToolFacts, evidence: _Evidence, chosen: list[Link]) -> str | None:
    """Why a read whose changes whole roots alone explain may change by itself: what changes slowly looks so, if writes
    lie between all of its answers. It does not if, at its rate, it would have changed between writes as well. Without
    an id, it is a list of all or a count, unless no two answers were ever the same: then it is a clock.
    """
    causes = [link.pair for link in chosen if link.changes]
    changes = sum(one.is_change for one in evidence.intervals[read.name])
    is_clock = changes >= ENOUGH and not evidence.unchanged[read.name] and len(causes) >= _INTERVALS
    if not causes or not all(pair.is_root for pair in causes) or not (read.ids or is_clock):
        return None
    if changes * evidence.calls_without[read.name] >= _ENOUGH_CHANGES * evidence.calls_with[read.name]:
        return None
    writers = ", ".join(sorted(pair.write for pair in causes))
    return f"it may change by itself: its answers change after {writers}, and no id says which"


def _advised(
    facts: ToolFacts, given: Given, links: list[Link], volatile: Mapping[str, str], repeats: int, *, is_judged: bool
) -> ToolAdvice:
    by, reason = given
    kind: Kind = by or "unknown"
    linked = [link for link in links if link.pair.write == facts.name]
    changed = ", ".join(sorted({link.pair.read for link in linked if link.changes})[:3])
    is_shown = any(link.changes and link.origin != "same entity" for link in linked)
    if by == "read" and facts.name in volatile:
        kind, reason = "watch", volatile[facts.name]
    elif (by is None and is_shown) or (by == "write" and reason == BY_NAME and changed):
        kind, reason = "write", f"answers of {changed} change after it"
    elif by is None and is_judged and not linked:  # where no answer is followed, none can change
        kind, reason = "pass", "no answer changes after it"
    return ToolAdvice(facts.name, kind, reason, facts.calls, repeats, dict(facts.parameters), parse=facts.is_text)
