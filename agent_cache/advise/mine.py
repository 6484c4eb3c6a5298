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
   equal answers. (After eight failures in a row the true rate is below 31 % with 95 % confidence: the "rule of three"
   of Hanley and Lippman-Hand 1983, "If nothing goes wrong, is everything all right?".) Otherwise the pair gets the
   whole root, and `Advice.lacking` says so. Lists and searches need more, since an item that comes in was not in the
   list before. Of a write on another server, all writes of that server between equal answers of this one count.

An answer that changes with no write in between is *volatile*, and not to be cached. So is a read of an id whose changes
no id explains, unless it stayed the same without a write for long enough; and where runs begin anew, one that differs
from run to run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from agent_cache.advise.calls import LoggedCall
from agent_cache.advise.intervals import ENOUGH, INTERVALS, Equal, Evidence, Harmless, Option, worlds_of
from agent_cache.advise.paths import (
    Survey,
    ToolFacts,
    find_candidates,
    is_argument,
    kind_by_name,
    server_of,
)  # fmt: skip
from agent_cache.advise.tag_rules import Advice, Kind, Link, Origin, ToolAdvice, Why, tagged

__all__ = ["mine", "unwrapped"]

_OF_LISTS: Final = 24
_OF_KEYS: Final = 24
_OF_OTHERS: Final = 6
_OF_SERVERS: Final = 100
"""How many pairs of a write and an answer on another server have to have been harmless."""
_OF_SEARCHES: Final = 100
"""How many writes have to have been harmless where each may bring an item in: fewer left stale answers in a world whose
pages of users change by one write in a hundred.
"""
_ENOUGH_CHANGES: Final = 4.6
"""How many changes would have to be expected where none was seen, to conclude that there are none: ``-log(0.01)``, with
99 % confidence if changes are independent of each other.
"""
_ENOUGH_READS: Final = 6
"""To how many different calls of a read a write must have been harmless, if that many were repeated at all."""
ROOT: Final = -1

Given = tuple[Literal["read", "write"] | None, Why]


def mine(
    calls: Sequence[LoggedCall], *, ignore: Sequence[str] = (), progress: Callable[[int], None] | None = None
) -> Advice:
    """Find what the writes of a log change, and the tags that follow."""
    calls, inner = unwrapped(calls)
    handlers = {call.tool for call in calls if call.encloses and call.kind is None}
    ignored = handlers | {one.tool for one in calls if any(fnmatchcase(one.tool, pattern) for pattern in ignore)}
    calls = [call for call in calls if call.tool not in ignored]
    survey = Survey(calls)
    servers = Counter(server_of(tool)[0] for tool in survey.tools)
    kinds = {tool: _kind_of(tool, facts, servers) for tool, facts in survey.tools.items()}
    writers = {tool for tool, (kind, _) in kinds.items() if kind != "read"}
    readers = {tool for tool, (kind, _) in kinds.items() if kind != "write"}
    if progress is not None:
        progress(len(calls))
    worlds = worlds_of(calls, writers, readers)
    evidence = Evidence(calls, find_candidates(survey, writers, readers), writers, readers, worlds)
    return replace(_Conclusion(survey, kinds, evidence).advice(), inner=inner, ignored=tuple(sorted(ignored)))


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
        return ("write" if facts.given["write"] else "read"), "given"
    if facts.hint is not None:
        return facts.hint, "hint"
    by_name = kind_by_name(tool, servers)
    return by_name, "unknown" if by_name is None else "name"


# Which links explain the changes


class _Chosen(NamedTuple):
    """A link that was chosen."""

    option: Option
    origin: Origin
    changes: int
    unchanged: int


class _Chooser:
    """Chooses the links of one read."""

    def __init__(self, read: str, evidence: Evidence, survey: Survey) -> None:
        self.read, self.evidence, self.survey = read, evidence, survey
        self.candidates = evidence.candidates
        self.records = list(evidence.records[read].items())
        self.suspects: Counter[str] = Counter()
        self.intervals: dict[str, list[Equal]] = defaultdict(list)
        for interval in evidence.equal[read]:
            for writer in interval.writes:
                self.intervals[writer].append(interval)

    def choose(self) -> tuple[list[_Chosen], dict[str, str]]:
        """The links, and for each write that got the whole root without a change: why."""
        chosen = covering = self._cover()
        why: dict[str, str] = {}
        for writer in sorted(self.evidence.writers):
            own = [one for one in chosen if one.option[0] == writer]
            others = [one for one in chosen if one.option[0] != writer]
            if roots := [one for one in own if one.option[1] == ROOT]:
                chosen = others + roots
                continue
            kept = self._without_implied([*own, *self._by_entity(writer, own, covering, keyed=True)])
            reason = self._lacking(writer, kept, covering)
            is_known = bool(kept) and reason is None
            if not is_known or not any(self.candidates[one.option[1]].is_key for one in kept):
                # Nothing says that it is about the entity of the read, or too little what it does to others, or that it
                # is about no other entity: then ids in the answer count, too.
                kept = self._without_implied([*kept, *self._by_entity(writer, kept, covering, keyed=False)])
                reason = None if is_known else self._lacking(writer, kept, covering)
            if reason is not None:
                why[writer] = reason
                kept = [self._link((writer, ROOT), "whole root")]
            chosen = others + kept
        return chosen, why

    def _link(self, option: Option, origin: Origin, changes: int = 0) -> _Chosen:
        return _Chosen(option, origin, changes, self._counts(option)[1])

    def _cover(self) -> list[_Chosen]:
        options = self._options()
        quality = {option: self._quality(option) for option in sorted(options)}
        left = set(range(len(self.records)))
        picked: list[tuple[Option, set[int]]] = []

        def number(of: set[int]) -> int:
            return sum(self.records[index][1] for index in of)

        while left:
            best = max(quality, key=lambda one: number(options[one] & left) * quality[one], default=None)
            if best is None or not options[best] & left:
                break
            picked.append((best, options[best]))
            left -= options[best]
        self.explained = number(set(range(len(self.records))) - left)
        self.suspected_servers = {server_of(option[0])[0] for option, _ in picked}
        by_links = set[int]().union(*(covered for option, covered in picked if option[1] != ROOT))
        for index, (record, count) in enumerate(self.records):
            if index not in by_links:
                self.suspects.update(dict.fromkeys((writer for writer, _ in record), count))
        for option, covered in sorted(picked, key=lambda one: quality[one[0]]):
            better = [other for other in picked if other[0] != option and quality[other[0]] >= quality[option]]
            if covered <= set().union(*(those for _, those in better)):
                picked.remove((option, covered))
        return [
            self._link(option, "whole root" if option[1] == ROOT else "evidence", number(covered))
            for option, covered in picked
        ]

    def _options(self) -> dict[Option, set[int]]:
        """What may explain changes: each candidate that met, and the whole roots."""
        options: dict[Option, set[int]] = defaultdict(set)
        for index, (record, _) in enumerate(self.records):
            for writer, signature in record:
                for one in (ROOT, *signature):
                    options[writer, one].add(index)
        return {option: covered for option, covered in options.items() if self._is_credible(option, covered)}

    def _counts(self, option: Option) -> tuple[int, int]:
        """How many writes met answers through it that changed, and that did not."""
        writer, one = option
        cells = [cell for met, cell in self.evidence.cells[writer, self.read].items() if one == ROOT or one in met]
        return sum(cell[0] for cell in cells), sum(cell[1] for cell in cells)

    def _confidence(self, option: Option) -> float:
        changed, unchanged = self._counts(option)
        return (changed + 0.5) / (changed + unchanged + 1)

    def _is_credible(self, option: Option, covered: set[int]) -> bool:
        """Whether a link that does not look like an entity explains more than chance would."""
        if option[1] == ROOT or self.candidates[option[1]].is_entity:
            return True
        if sum(self.records[index][1] for index in covered) < INTERVALS:
            return False
        (changed, unchanged), (with_it, without) = self._counts((option[0], ROOT)), self._counts(option)
        changed, unchanged = changed - with_it, unchanged - without
        usual = changed / (changed + unchanged) if changed + unchanged else 0.0
        return self._confidence(option) > max(0.3, min(2 * usual, (1 + usual) / 2))

    def _quality(self, option: Option) -> float:
        return (0.02 if option[1] == ROOT else self.candidates[option[1]].weight) * self._confidence(option)

    def _by_entity(self, writer: str, own: list[_Chosen], chosen: list[_Chosen], *, keyed: bool) -> list[_Chosen]:
        """Links through ids that nothing refutes: of the entity in the read's arguments, or of those in its answer."""
        cells = self.evidence.cells[writer, self.read]
        has, found = [one.option[1] for one in own], []
        for number in self.evidence.of_pair[writer, self.read]:
            candidate = self.candidates[number]
            if number in has or not candidate.is_entity or is_argument(candidate.read_path) is not keyed:
                continue
            if not keyed and not is_argument(candidate.write_path):
                continue
            seen = [signature for signature in cells if number in signature]
            if seen and all(not signature.isdisjoint(has) for signature in seen):
                continue  # implied
            is_one = "[]" not in candidate.write_path.partition("result")[2]
            enough = ENOUGH if keyed and is_one else _OF_OTHERS
            if candidate.is_key and not any(candidate.parts <= self.candidates[one].parts for one in has):
                enough = _OF_KEYS  # or a part of a key that explains changes
            if not self._is_refuted(writer, number, chosen, enough):
                found.append(self._link((writer, number), "same entity"))
        return found

    def _without_implied(self, links: list[_Chosen]) -> list[_Chosen]:
        """Those that no other one covers: a link through two values is part of one through either."""
        parts = [self.candidates[one.option[1]].parts for one in links]
        return [one for one, own in zip(links, parts, strict=True) if not any(other < own for other in parts)]

    def _is_refuted(self, writer: str, number: int, chosen: list[_Chosen], enough: int) -> bool:
        """Whether enough such writes left answers unchanged."""
        total = Harmless()
        for interval in self._unexplained(chosen, writer):
            if own := [position for position, tool, met in interval.met if tool == writer and number in met]:
                total.note(own, interval.key)
                if total.is_enough(enough):
                    return True
        return False

    def _unexplained(self, chosen: list[_Chosen], writer: str) -> Iterator[Equal]:
        """The intervals of a writer with equal answers in which no chosen link met.

        Only these show that a write is harmless. In the others, an answer that it has changed would count as changed by
        the link, and be missing here.
        """
        whole = {one.option[0] for one in chosen if one.option[1] == ROOT}
        links = [one.option for one in chosen if one.option[1] != ROOT]
        for interval in self.intervals.get(writer, ()):
            if whole.isdisjoint(interval.writes) and not any(
                tool == by and number in met for _, tool, met in interval.met for by, number in links
            ):
                yield interval

    def _lacking(self, writer: str, kept: list[_Chosen], chosen: list[_Chosen]) -> str | None:
        """What is missing before a write may leave answers alone that it does not meet; None if nothing is."""
        evidence, survey = self.evidence, self.survey
        linked = [self.candidates[one.option[1]] for one in kept]
        is_list = any("[]" in one.read_path for one in linked)
        is_search = survey.may_list(self.read, writer)
        is_of_all = not survey.arguments.get(self.read)  # a count, or a list of everything
        enough = _OF_LISTS if is_list or is_search or is_of_all else ENOUGH
        pairs = _ENOUGH_CHANGES * len(evidence.keys[self.read]) if is_search else 0
        reads = min(len(evidence.repeated[self.read]), _ENOUGH_READS)
        # A write may be the cause of changes if it lay before them and only whole roots explain them: then it must have
        # been harmless in so many intervals that these would have changed as well if it were.
        changed, unchanged = self.suspects[writer], len(self.intervals.get(writer, ()))
        intervals = _ENOUGH_CHANGES * (changed + unchanged) / changed if changed else 0
        total = Harmless()
        for interval in self._unexplained([*chosen, *kept], writer):
            if writes := interval.writes[writer]:
                total.note(writes, interval.key)
                is_wide = len(total.keys) >= reads and total.intervals >= intervals and len(total.pairs) >= pairs
                if is_wide and (len(total.writes) >= _OF_SEARCHES if is_search else total.is_enough(enough)):
                    return None
        if not is_list and self._is_keyed(writer, {one.write_path for one in linked if one.is_key}):
            return None
        if self._is_elsewhere(writer):
            return None
        return "rarely" if total.writes else "never"

    def _is_elsewhere(self, writer: str) -> bool:
        """Whether a write is of another server whose writes, all together, were seen often enough between equal answers
        of the server of the read, and of which none explains a change of this one.
        """
        own, server = server_of(self.read)[0], server_of(writer)[0]
        writes, pairs = self.evidence.elsewhere[server, own]
        is_other = bool(server) and server != own and server not in self.suspected_servers
        return is_other and len(writes) >= ENOUGH and sum(pairs) >= _OF_SERVERS

    def _is_keyed(self, writer: str, linked: set[str]) -> bool:
        """Whether the arguments of both are ids of one entity, and the write has no other ids."""
        pairs = [self.candidates[number] for number in self.evidence.of_pair[writer, self.read]]
        alike = {one.write_path for one in pairs if is_argument(one.write_path) and is_argument(one.read_path)}
        alike = {path for path in alike if ":" not in path}
        return bool(linked) and alike | self.survey.ids_of(writer) <= linked  # another argument may be an id, too


# All of it


class _Conclusion:
    """Makes the advice out of what was counted."""

    def __init__(self, survey: Survey, kinds: Mapping[str, Given], evidence: Evidence) -> None:
        self.survey, self.kinds, self.evidence = survey, kinds, evidence
        self.links: list[Link] = []
        self.volatile: dict[str, str] = {}

    def advice(self) -> Advice:
        evidence = self.evidence
        lacking: dict[str, dict[str, str]] = {}
        changes = explained = 0
        for read in sorted(evidence.readers):
            free = evidence.free_changes[read]
            changes += free + evidence.records[read].total()
            if self.kinds[read][0] is None:
                continue
            if free:
                self.volatile[read] = f"its answers changed {free} time{'s' if free > 1 else ''} without a write"
                continue
            if read in evidence.worlds.unsteady:
                self.volatile[read] = "its answers differ between runs that begin anew, before anything was written"
                continue
            chooser = _Chooser(read, evidence, self.survey)
            chosen, why = chooser.choose()
            by_itself = self._may_change_by_itself(read, chosen)
            if by_itself is not None:
                self.volatile[read] = by_itself
                continue
            explained += chooser.explained
            self.links += [self._link(one, read) for one in chosen]
            lacking[read] = why
        tools = {tool: self._tool(tool) for tool in sorted(self.survey.tools)}
        kept = [link for link in self.links if tools[link.write].kind in ("write", "unknown")]
        tools, links = tagged(kept, tools)
        return Advice(
            tools=tools,
            links=links,
            lacking=lacking,
            changes=changes,
            explained=explained,
            is_shared=evidence.worlds.are_one,
            resets=evidence.worlds.resets,
        )

    def _link(self, chosen: _Chosen, read: str) -> Link:
        writer, number = chosen.option
        candidate = None if number == ROOT else self.evidence.candidates[number]
        return Link(
            write=writer,
            write_path=candidate.write_path if candidate else "",
            read=read,
            read_path=candidate.read_path if candidate else "",
            origin=chosen.origin,
            changes=chosen.changes,
            unchanged=chosen.unchanged,
        )

    def _may_change_by_itself(self, read: str, chosen: list[_Chosen]) -> str | None:
        """Why a read of an id, whose changes whole roots alone explain, may change by itself: what changes slowly looks
        so, where writes lie between all of its answers. A list of all, or their count, takes no id: it is not meant.

        It does not if, at the rate at which it has changed, it would have changed between writes as well.
        """
        evidence = self.evidence
        causes = [one for one in chosen if one.changes]
        has_link = any(one.option[1] != ROOT for one in causes)
        if not causes or has_link or not self.survey.ids_of(read):
            return None
        changes = evidence.records[read].total()
        if changes * evidence.calls_without[read] >= _ENOUGH_CHANGES * evidence.calls_with[read]:
            return None
        writers = ", ".join(sorted(one.option[0] for one in causes))
        return f"it may change by itself: its answers change after {writers}, and no id says which"

    def _tool(self, tool: str) -> ToolAdvice:
        facts, (by, why) = self.survey.tools[tool], self.kinds[tool]
        kind: Kind
        linked = [link for link in self.links if link.write == tool]
        changed = ", ".join(sorted({link.read for link in linked if link.changes})[:3])
        is_shown = any(link.changes and link.origin != "same entity" for link in linked)
        if by == "read" and tool in self.volatile:
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
            tool, kind, why, reason,
            calls=facts.calls, repeats=self.evidence.repeats[tool],
            parameters=dict(facts.parameters), parse=facts.text,
        )  # fmt: skip
