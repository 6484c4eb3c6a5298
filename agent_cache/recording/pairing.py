"""Which call of one run is which call of another, and which call had to be over before which: the pure part of `drift`.

`pair_runs` pairs calls by chain, digest and occurrence, in lanes that belong together first; what is left over pairs by
name and the fewest changed fields. `Order` is what the tape knows of the order of a run. `differences` says where two
values differ. `docs/explanation/drift.md` describes the rule and gives the reasons.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any, TypeAlias

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.cassette_file import RecordedCall
from agent_cache.recording.tagged import encode, encode_sorted

__all__ = [
    "OUTSIDE",
    "Chains",
    "Difference",
    "Order",
    "Pairing",
    "Place",
    "Patterns",
    "Run",
    "Step",
    "child_chain",
    "differences",
    "fingerprint",
    "moved_steps",
    "pair_runs",
    "parsed_path",
    "pruned",
    "read_run",
    "shown_path",
]


# Calls

Chains: TypeAlias = dict[tuple[int, str], int]
"""Numbers of chains, by the number of the chain around a call and the name of the call. A *chain* is the names of the
calls that enclose a call; 0 is the empty one."""
OUTSIDE = -1
"""The chain of calls inside of a call that the baseline does not make."""


class Step:
    """A call, with what the rule needs of it. It has 250 bytes, whatever the call has returned.

    Attributes:
        number: its position in the order of starts, without calls of kind ``env``.
        index: of the call in the cassette that has it.
        id: as in `RecordedCall`.
        name, kind: as in `RecordedCall`.
        digest: likewise, with the asker; not hexadecimal where places are ignored.
        chain: the number of its chain.
        lane: number of its lane, in the order in which lanes start.
        is_write: as `RecordedCall.is_write`.
        start, end: the positions of these events among all of its run. `end` is -1 before it has ended.
        outcome: the fingerprint of its outcome.
        source: index of the cassette that has it.
        call: the call itself, where no cassette has it.
        twin: number of the step of the baseline that has the same arguments and outcome, where neither has it.
    """

    __slots__ = ("call", "chain", "digest", "end", "id", "index", "is_write", "kind", "lane", "name", "number",
                 "outcome", "source", "start", "twin")  # fmt: skip

    def __init__(self, number: int, index: int, call: RecordedCall, chain: int, lane: int, start: int) -> None:
        self.number = number
        self.index = index
        self.id = call.id
        self.name = call.name
        self.kind = call.kind
        self.digest: Hashable = call.digest + call.asker
        self.chain = chain
        self.lane = lane
        self.is_write = call.is_write
        self.start = start
        self.end = -1
        self.outcome = b""
        self.source = 0
        self.call: RecordedCall | None = None
        self.twin = -1

    @property
    def key(self) -> Hashable:
        """What makes it the same call."""
        return self.chain, self.digest


@dataclass(slots=True)
class Run:
    """The calls of a run.

    Attributes:
        steps: its calls in the order in which they started, without those of kind ``env``.
        parents: for each lane, the lane that it was forked from, or -1.
        lane_starts: for each lane, the position at which its first call started.
        tokens: those that its model calls have sent and received.
        forms: the forms in which its calls are written, as `RecordedCall.form`.
    """

    steps: list[Step] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    lane_starts: list[int] = field(default_factory=list)
    tokens: int = 0
    forms: set[str] = field(default_factory=set)
    _lanes: dict[int, int] = field(default_factory=dict)

    def lane_of(self, lane: int, forked: int, position: int, most: int | None = None) -> int:
        """The number here of a lane.

        Args:
            lane, forked: as of `RecordedCall`; `forked` is `lane` if that is not known.
            position: where a call of it starts.
            most: all lanes from this number on are one lane.
        """
        known = self._lanes.get(lane)
        if known is None:
            outer = -1 if forked == lane else self.lane_of(forked, forked, position, most)
            if most is not None and len(self.parents) > most:
                return most
            self._lanes[lane] = known = len(self.parents)
            self.parents.append(outer)
            self.lane_starts.append(position)
        return known


def child_chain(chains: Chains, chain: int, name: str, *, learn: bool) -> int:
    """The chain of what a call of this name encloses; `OUTSIDE` if it is not known and not to be learned."""
    if learn:
        return chains.setdefault((chain, name), len(chains) + 1)
    return chains.get((chain, name), OUTSIDE)


def read_run(cassette: Cassette, chains: Chains, *, learn: bool, change: Callable[[RecordedCall], RecordedCall]) -> Run:
    """The calls of a cassette, each read once.

    Args:
        cassette: a recording.
        chains: the chains of the baseline.
        learn: whether new chains are added to them.
        change: gives the call that counts instead of one that is in the cassette.

    Raises:
        CassetteError: if a call cannot be read.
    """
    outline = cassette.outline
    enclosing, run = outline.enclosing(), Run()
    places = outline.places()
    order = sorted(range(len(outline)), key=places.__getitem__)
    names = [""] * len(outline)
    for name, indices in outline.names.items():
        for index in indices:
            names[index] = name
    chain_of = [0] * len(outline)
    lane_of = [0] * len(outline)
    knows_forks = not any(outline.earlier)
    for index in order:
        outer = enclosing[index]
        if outer >= 0:
            chain_of[index] = child_chain(chains, chain_of[outer], names[outer], learn=learn)
        lane = outline.lanes[index]
        lane_of[index] = run.lane_of(lane, outline.forked[index] if knows_forks else lane, places[index])
    found: list[Step | None] = [None] * len(outline)
    for index, stored in enumerate(cassette.steps):
        if stored.kind == "env":
            continue
        call = change(stored)
        step = Step(0, index, call, chain_of[index], lane_of[index], places[index])
        step.end = places[~index]
        step.outcome = fingerprint(call.outcome)
        run.tokens += call.input_tokens + call.output_tokens
        run.forms.add(call.form)
        found[index] = step
    for index in order:
        known = found[index]
        if known is not None:
            known.number = len(run.steps)
            run.steps.append(known)
    return run


def fingerprint(outcome: Any) -> bytes:
    """16 bytes that are the same for the same outcome as it is written."""
    return blake2b(encode(outcome), digest_size=16).digest()


# Differences of two values

_ELEMENT = 0
"""In a path, each element of a list."""
_ANY_KEY = 1
"""In a pattern, each key of an object."""
Place: TypeAlias = tuple[str | int, ...]
"""Keys and `_ELEMENT`, from the top. The first is ``arguments``, ``result`` or ``error``."""
Difference: TypeAlias = tuple[Any, Any]
"""A value in the baseline and in the new run. One that is not there is None."""

_PART = re.compile(r"\.\*|\.([^\s.:\[\]\"]+)|\[\*\]|\[(\"(?:[^\"\\]|\\.)*\")\]")
_PLAIN_KEY = re.compile(r"[^\s.:*\[\]\"]+")
_MAX_DEPTH = 50


def shown_path(path: Place) -> str:
    """A path as text: ``result.items[*].price``. Other keys than words stand in brackets and quotes."""
    text = str(path[0])
    for part in path[1:]:
        if part == _ELEMENT:
            text += "[*]"
        elif part == _ANY_KEY:
            text += ".*"
        elif _PLAIN_KEY.fullmatch(str(part)):
            text += f".{part}"
        else:
            text += f"[{json.dumps(part)}]"
    return text


def parsed_path(text: str) -> Place:
    """The path or pattern that a text is, in the form of `shown_path`."""
    root = re.split(r"[.\[]", text, maxsplit=1)[0]
    found: list[str | int] = [root]
    for part in _PART.finditer(text, len(root)):
        if part[0] == ".*":
            found.append(_ANY_KEY)
        elif part[0] == "[*]":
            found.append(_ELEMENT)
        else:
            found.append(part[1] if part[1] is not None else json.loads(part[2]))
    return tuple(found)


class Patterns:
    """Places that may differ: paths of which what is below counts, too.

    Args:
        paths: paths and patterns.
    """

    def __init__(self, paths: Sequence[Place]) -> None:
        self._exact = {path for path in paths if _ANY_KEY not in path}
        self._others = [path for path in paths if _ANY_KEY in path]
        self.of_arguments = any(path[0] == "arguments" for path in paths)

    def __bool__(self) -> bool:
        return bool(self._exact or self._others)

    def have(self, path: Place) -> bool:
        """Whether this place is one of them, or below one."""
        if any(path[:length] in self._exact for length in range(1, len(path) + 1)):
            return True
        return any(
            len(other) <= len(path)
            and all(
                one == part or (one == _ANY_KEY and isinstance(part, str))
                for one, part in zip(other, path, strict=False)
            )
            for other in self._others
        )


def differences(was: Any, now: Any, root: str, most: int = 1_000) -> dict[Place, Difference]:
    """The places where two values differ, with the first two values at each. No more than `most` places.

    Texts that are JSON are compared as what they say. The elements of lists of one length are compared one by one;
    lists of different lengths differ as a whole.
    """
    found: dict[Place, Difference] = {}
    _compare(was, now, (root,), found, most)
    if not found and encode_sorted(was) != encode_sorted(now):  # 1, 1.0 and True are equal in Python
        found[root,] = was, now
    return found


def _compare(was: Any, now: Any, path: Place, found: dict[Place, Difference], most: int) -> None:
    if len(found) >= most:
        return
    if type(was) is str and type(now) is str:
        one, other = _read(was), _read(now)
        if one is not None and other is not None:
            was, now = one, other
    if type(was) is dict and type(now) is dict and len(path) < _MAX_DEPTH:
        for key in {**was, **now}:
            if key not in was or key not in now:
                found.setdefault((*path, key), (was.get(key), now.get(key)))
            elif was[key] != now[key]:
                _compare(was[key], now[key], (*path, key), found, most)
    elif type(was) is list and type(now) is list and len(was) == len(now) and len(path) < _MAX_DEPTH:
        for one, other in zip(was, now, strict=True):
            if one != other:
                _compare(one, other, (*path, _ELEMENT), found, most)
    elif was != now:
        found.setdefault(path, (was, now))


def _read(text: str) -> Any:
    """The object or list that a text is as JSON, else None."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def pruned(value: Any, path: Place, patterns: Patterns) -> Any:
    """A value without the places that may differ."""
    if type(value) is str:
        read = _read(value)
        value = value if read is None else read
    if type(value) is dict:
        return {
            key: pruned(one, (*path, key), patterns) for key, one in value.items() if not patterns.have((*path, key))
        }
    if type(value) is list:
        if patterns.have((*path, _ELEMENT)):
            return []
        return [pruned(one, (*path, _ELEMENT), patterns) for one in value]
    return value


# Pairs


@dataclass(slots=True)
class Pairing:
    """Which call is which.

    Attributes:
        matched: pairs of the same call.
        changed: pairs of a call with other arguments, and where they differ.
        left: calls that only the baseline has.
        right: calls that only the new run has.
    """

    matched: list[tuple[Step, Step]] = field(default_factory=list)
    changed: list[tuple[Step, Step, dict[Place, Difference]]] = field(default_factory=list)
    left: list[Step] = field(default_factory=list)
    right: list[Step] = field(default_factory=list)


_number = attrgetter("number")
Changes: TypeAlias = Callable[[Step, Step], dict[Place, Difference]]
"""Where the arguments of two calls differ; nowhere if they are the same call."""

_MAX_FULL = 400
"""Pairs of calls of one name up to which all are compared. Of more, each with `_WINDOW` in its neighbourhood."""
_WINDOW = 8
_MAX_SCANNED = 64


def pair_runs(base: Sequence[Step], new: Sequence[Step], parents: Sequence[int], new_parents: Sequence[int],
              changes: Changes) -> Pairing:  # fmt: skip
    """Pair the calls of two runs.

    Args:
        base, new: their calls in the order in which they started.
        parents, new_parents: as `Run.parents`.
        changes: compares the arguments of two calls of one name.
    """
    asked: dict[Hashable, list[Step]] = {}
    for step in base:
        asked.setdefault(step.key, []).append(step)
    made: dict[Hashable, list[Step]] = {}
    for step in new:
        made.setdefault(step.key, []).append(step)
    twins = _twin_lanes(base, new, asked, made, parents, new_parents)
    found = Pairing()
    for key, steps in asked.items():
        there = made.get(key)
        if there is None:
            found.left += steps
        elif len(steps) == 1 == len(there):
            found.matched.append((steps[0], there[0]))
        else:
            _pair_same(steps, there, twins, found)
    for key, steps in made.items():
        if key not in asked:
            found.right += steps
    found.left.sort(key=_number)
    found.right.sort(key=_number)
    _pair_changed(found, asked, twins, changes)
    found.matched.sort(key=lambda pair: pair[0].number)
    return found


def _twin_lanes(
    base: Sequence[Step],
    new: Sequence[Step],
    asked: Mapping[Hashable, list[Step]],
    made: Mapping[Hashable, list[Step]],
    parents: Sequence[int],
    new_parents: Sequence[int],
) -> dict[int, int]:
    """Which lane is which: by the calls that each side makes once, writes before others.

    Lanes that this leaves over belong together if they were forked from lanes that belong together, and make the same
    calls in the same order, as the lanes do that were forked from them. Then each time less of this is asked for.
    """
    votes: Counter[tuple[int, int]] = Counter()
    for key, steps in asked.items():
        there = made.get(key)
        if there is not None and len(steps) == 1 == len(there):
            votes[steps[0].lane, there[0].lane] += len(base) + 1 if steps[0].is_write else 1
    twins: dict[int, int] = {}
    taken: set[int] = set()

    def add(lane: int, other: int) -> None:
        if lane not in twins and other not in taken:
            twins[lane] = other
            taken.add(other)

    for (lane, other), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])):
        add(lane, other)
    lanes, others = _by_lane(base), _by_lane(new)
    for lane in range(len(parents) - 1, 0, -1):  # a forked lane has a higher number than its parent
        if lane in twins and parents[lane] >= 0 and new_parents[twins[lane]] >= 0:
            add(parents[lane], new_parents[twins[lane]])
    add(0, 0)  # those of the blocks
    rules: tuple[tuple[Callable[[_Lanes, Sequence[int]], dict[int, Hashable]], bool], ...] = (
        (partial(_trees, has_outcomes=True, has_places=True), True),
        (partial(_trees, has_outcomes=True), True),
        (_trees, True),
        (_trees, False),
        (_sequences, True),
        (_sequences, False),
        (_beginnings, True),
        (_chains, False),
    )
    for of_lanes, has_parent in rules:
        if twins.keys() >= lanes.keys() or taken >= others.keys():
            break
        signatures, of_new = of_lanes(lanes, parents), of_lanes(others, new_parents)
        waiting: dict[Hashable, deque[int]] = {}
        for other in others:
            if other not in taken:
                parent = new_parents[other] if has_parent else -1
                waiting.setdefault((parent, of_new[other]), deque()).append(other)
        for lane in sorted(lanes):  # a forked lane has a higher number than its parent, so its parent is paired
            parent = parents[lane] if has_parent else -1
            twin = twins.get(parent, parent if parent < 0 else -2)
            if lane not in twins and (queue := waiting.get((twin, signatures[lane]))):
                add(lane, queue.popleft())
    return twins


_Lanes: TypeAlias = Mapping[int, list[Step]]
"""The calls of each lane."""


def _trees(
    lanes: _Lanes, parents: Sequence[int], *, has_outcomes: bool = False, has_places: bool = False
) -> dict[int, Hashable]:
    """For each lane, a number for its calls and for those of the lanes that were forked from it."""
    inner: dict[int, list[int]] = {}
    found: dict[int, Hashable] = {}
    for lane in sorted(lanes, reverse=True):
        steps = lanes[lane]
        own = tuple((step.key, step.outcome) for step in steps) if has_outcomes else tuple(step.key for step in steps)
        found[lane] = tree = hash((own, tuple(sorted(inner.pop(lane, ())))))
        parent = parents[lane]
        if parent >= 0:
            place = bisect_left(lanes.get(parent, ()), steps[0].start, key=attrgetter("start")) if has_places else 0
            inner.setdefault(parent, []).append(hash((tree, place)))
    return found


def _sequences(lanes: _Lanes, _: Sequence[int]) -> dict[int, Hashable]:
    return {lane: tuple(step.key for step in steps) for lane, steps in lanes.items()}


def _beginnings(lanes: _Lanes, _: Sequence[int]) -> dict[int, Hashable]:
    return {lane: steps[0].key for lane, steps in lanes.items()}


def _chains(lanes: _Lanes, _: Sequence[int]) -> dict[int, Hashable]:
    return {lane: (lane == 0, steps[0].chain) for lane, steps in lanes.items()}


def _by_lane(steps: Sequence[Step]) -> dict[int, list[Step]]:
    found: dict[int, list[Step]] = {}
    for step in steps:
        found.setdefault(step.lane, []).append(step)
    return found


def _pair_same(steps: list[Step], there: list[Step], twins: Mapping[int, int], found: Pairing) -> None:
    """Pair calls that are all the same call: in twin lanes in their order, the others by their outcomes."""
    lanes, rest = _by_lane(there), []
    left: list[Step] = []
    for lane, own in _by_lane(steps).items():
        others = lanes.pop(twins.get(lane, -1), None)
        if others is None:
            left += own
            continue
        pairs = _aligned(own, others)
        found.matched += pairs
        if len(own) > len(pairs):
            used = {id(step) for step, _ in pairs}
            left += (step for step in own if id(step) not in used)
        elif len(others) > len(pairs):
            used = {id(step) for _, step in pairs}
            rest += [step for step in others if id(step) not in used]
    for others in lanes.values():
        rest += others
    left.sort(key=_number)
    rest.sort(key=_number)
    by_outcome: dict[bytes, deque[Step]] = {}
    for step in rest:
        by_outcome.setdefault(step.outcome, deque()).append(step)
    unlike: list[Step] = []
    used = set()
    for step in left:
        if queue := by_outcome.get(step.outcome):
            other = queue.popleft()
            used.add(id(other))
            found.matched.append((step, other))
        else:
            unlike.append(step)
    rest = [step for step in rest if id(step) not in used]
    found.matched += zip(unlike, rest, strict=False)
    found.left += unlike[len(rest) :]
    found.right += rest[len(unlike) :]


def _aligned(own: list[Step], others: list[Step]) -> list[tuple[Step, Step]]:
    """Pair calls in their order. If one side has more, those of the shorter one prefer the same outcome."""
    if len(own) == len(others):
        return list(zip(own, others, strict=True))
    is_longer = len(own) > len(others)
    few, many = (others, own) if is_longer else (own, others)
    pairs, at = [], 0
    for place, step in enumerate(few):
        last = len(many) - (len(few) - place - 1)
        alike = range(at, min(last, at + _MAX_SCANNED))
        at = next((there for there in alike if many[there].outcome == step.outcome), at)
        pairs.append((many[at], step) if is_longer else (step, many[at]))
        at += 1
    return pairs


def _pair_changed(
    found: Pairing, asked: Mapping[Hashable, list[Step]], twins: Mapping[int, int], changes: Changes
) -> None:
    """Pair what is left over by name, chain and the fewest changed fields, writes first.

    A call that the baseline has, too, is one too many and no changed one.
    """
    groups: dict[tuple[int, str], tuple[list[Step], list[Step]]] = {}
    for step in found.left:
        groups.setdefault((step.chain, step.name), ([], []))[0].append(step)
    for step in found.right:
        if step.chain != OUTSIDE and step.key not in asked and (step.chain, step.name) in groups:
            groups[step.chain, step.name][1].append(step)
    taken: set[int] = set()
    for left, right in sorted(groups.values(), key=lambda group: not group[0][0].is_write):
        if right:
            _pair_group(left, right, twins, changes, found, taken)
    if taken:
        found.left = [step for step in found.left if id(step) not in taken]
        found.right = [step for step in found.right if id(step) not in taken]


def _pair_group(
    left: list[Step], right: list[Step], twins: Mapping[int, int], changes: Changes, found: Pairing, taken: set[int]
) -> None:
    scored = []
    for place, other in enumerate(right):
        for at in _neighbours(place, len(left), len(right)):
            step = left[at]
            where = changes(step, other)
            far = abs(at / len(left) - place / len(right))
            scored.append(((len(where), twins.get(step.lane) != other.lane, far, at, place), step, other, where))
    scored.sort(key=lambda one: one[0])
    for _, step, other, where in scored:
        if id(step) not in taken and id(other) not in taken:
            _take(step, other, where, found, taken)
    rest = [step for step in left if id(step) not in taken]
    others = [step for step in right if id(step) not in taken]
    for step, other in zip(rest, others, strict=False):  # out of the windows
        _take(step, other, changes(step, other), found, taken)


def _take(step: Step, other: Step, where: dict[Place, Difference], found: Pairing, taken: set[int]) -> None:
    taken.add(id(step))
    taken.add(id(other))
    if where:
        found.changed.append((step, other, where))
    else:
        found.matched.append((step, other))


def _neighbours(place: int, left: int, right: int) -> range:
    """Which calls on the left one on the right is compared with."""
    if left * right <= _MAX_FULL:
        return range(left)
    scaled = place * left // right
    return range(max(0, min(place, scaled) - _WINDOW // 2), min(left, max(place, scaled) + _WINDOW // 2))


# Order


class _LaneState:
    """What is over in a lane, by chain, while `Order` goes through a run.

    Attributes:
        fronts: the latest nodes: all else that is over in it comes before these.
        barriers: its latest writes and model calls.
        joined, joined_barriers: the same of lanes that were forked from it and have ended, which nothing of it is
            behind yet.
        inherited: what was over before it began.
    """

    __slots__ = ("barriers", "fronts", "inherited", "joined", "joined_barriers")

    def __init__(self, inherited: dict[int, int]) -> None:
        self.inherited = inherited
        self.fronts: dict[int, list[int]] = {chain: [node] for chain, node in inherited.items()}
        self.barriers: dict[int, list[int]] = {}
        self.joined: dict[int, list[int]] = {}
        self.joined_barriers: dict[int, list[int]] = {}


_TOUCH, _START, _END = 0, 1, 2


class Order:
    """Which calls of a run had to be over before which others, as far as the tape knows it.

    Of two calls of one chain, the one that was over when the other started comes before it, if

    - both are of one lane;
    - it is of a lane that the other's was forked from, and was over when the first call of the forked one started;
    - it is of a lane that was forked from the other's and made no more calls, and one of the two is a write or a model
      call: programs wait for tasks before these.

    And what comes before that comes before, too. Nothing else is known of lanes that run side by side.

    It is a graph whose nodes are the calls, by their numbers, and joins of several nodes. It has at most three edges a
    call, and a copy of the latest nodes for each lane, of as many numbers as there are chains.

    Args:
        run: the calls.

    Attributes:
        calls: their number.
    """

    def __init__(self, run: Run) -> None:
        self.calls = len(run.steps)
        self._before: list[tuple[int, ...]] = [()] * self.calls
        self._sequence: list[int] = []
        self._parents = run.parents
        self._states: dict[int, _LaneState] = {}
        self._up: dict[int, int] = {}
        last_end: dict[int, int] = {}
        for step in run.steps:
            last_end[step.lane] = max(last_end.get(step.lane, -1), step.end)
        self._last_end = last_end
        started_behind = [-1] * self.calls
        for position, what, number in self._events(run):
            if what == _TOUCH:
                self._state(number)
                continue
            step = run.steps[number]
            state = self._state(step.lane)
            is_barrier = step.is_write or step.kind == "llm"
            if what == _START:
                started_behind[number] = self._start(state, step, is_barrier=is_barrier)
                continue
            front = state.fronts[step.chain]
            if len(front) < 2 and (not front or front[0] == started_behind[number]):
                front[:] = [number]
            else:
                front.append(number)
            if is_barrier:
                others = state.barriers.get(step.chain, ())
                state.barriers[step.chain] = [
                    *(other for other in others if run.steps[other].end > step.start), number
                ]  # fmt: skip
            if position == last_end[step.lane]:
                self._join(step.lane, position)
        self._states.clear()

    def before(self, node: int) -> tuple[int, ...]:
        """The nodes that come directly before a node. Those below the number of calls are calls."""
        return self._before[node]

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self._before)

    def latest_starts(self, starts: Sequence[int]) -> list[int]:
        """For each node, the latest start of a call that comes before it, in a run where calls start at `starts`.

        Args:
            starts: by number of a call; -1 for one that does not count.
        """
        found = [-1] * len(self._before)
        count = self.calls
        for node in self._sequence:
            latest = -1
            for other in self._before[node]:
                if found[other] > latest:
                    latest = found[other]
                if other < count and starts[other] > latest:
                    latest = starts[other]
            found[node] = latest
        return found

    def late(self, node: int, after: int, starts: Sequence[int], latest: Sequence[int], most: int) -> list[int]:
        """The calls that come before a call and start after a position in another run. No more than `most`.

        Args:
            node: the call.
            after: a position.
            starts, latest: as of `latest_starts`.
            most: a number of calls.
        """
        found: list[int] = []
        seen = {node}
        stack = [node]
        while stack and len(found) < most:
            for other in self._before[stack.pop()]:
                if other in seen:
                    continue
                seen.add(other)
                if other < self.calls and starts[other] > after:
                    found.append(other)
                if latest[other] > after:
                    stack.append(other)
        return found

    @staticmethod
    def _events(run: Run) -> Iterator[tuple[int, int, int]]:
        events = [(step.start, _START, step.number) for step in run.steps]
        events += [(step.end, _END, step.number) for step in run.steps]
        events += [(start, _TOUCH, lane) for lane, start in enumerate(run.lane_starts)]
        return iter(sorted(events))

    def _state(self, lane: int) -> _LaneState:
        state = self._states.get(lane)
        if state is None:
            parent = self._parents[lane]
            outer = self._states.get(parent)
            inherited = {}
            if outer is not None:
                for chain, front in outer.fronts.items():
                    if (node := self._collapsed(front)) >= 0:
                        inherited[chain] = node
            state = self._states[lane] = _LaneState(inherited)
        return state

    def _collapsed(self, front: list[int]) -> int:
        """One node that all of these come before; -1 if there are none."""
        if len(front) > 1:
            node = len(self._before)
            self._before.append(tuple(front))
            self._sequence.append(node)
            front[:] = [node]
        return front[0] if front else -1

    def _start(self, state: _LaneState, step: Step, *, is_barrier: bool) -> int:
        front = state.fronts.setdefault(step.chain, [])
        front += state.joined_barriers.pop(step.chain, ())
        if is_barrier:
            front += state.joined.pop(step.chain, ())
        node = self._collapsed(front)
        self._before[step.number] = (node,) if node >= 0 else ()
        self._sequence.append(step.number)
        return node

    def _join(self, lane: int, now: int) -> None:
        """A lane makes no more calls: the next lane above it that does may have waited for it."""
        above = self._above(lane, now)
        if above < 0:
            return
        state, outer = self._states[lane], self._state(above)
        for chain, front in state.fronts.items():
            if front and front != [state.inherited.get(chain)]:
                outer.joined.setdefault(chain, []).append(self._collapsed(front))
        for chain, nodes in state.joined.items():
            outer.joined.setdefault(chain, []).extend(nodes)
        for inner in (state.barriers, state.joined_barriers):
            for chain, nodes in inner.items():
                outer.joined_barriers.setdefault(chain, []).extend(nodes)

    def _above(self, lane: int, now: int) -> int:
        """The next lane above this one that makes calls after a position, or -1. Ended ones are skipped for good."""
        passed = []
        at = self._up.get(lane, self._parents[lane])
        while at >= 0 and self._last_end.get(at, -1) <= now:
            passed.append(at)
            at = self._up.get(at, self._parents[at])
        for one in (lane, *passed):
            self._up[one] = at
        return at


_ROUNDS = 40
_MAX_LATE = 64


def moved_steps(
    order: Order, pairs: Sequence[tuple[Step, Step]], free: set[int]
) -> list[tuple[Step, Step, list[Step]]]:
    """The fewest calls that have moved, with the calls of the baseline that each was moved over. A greedy choice.

    Two calls are in the other order in the new run if the one that comes second in the baseline was over when the first
    one started.

    Args:
        order: of the baseline.
        pairs: of its calls and those of the new run.
        free: numbers of calls whose order does not count.
    """
    steps = {step.number: (step, other) for step, other in pairs if step.number not in free}
    starts = [-1] * order.nodes
    for number, (_, other) in steps.items():
        starts[number] = other.start
    found = []
    for _ in range(_ROUNDS):
        latest = order.latest_starts(starts)
        over: dict[int, set[int]] = {}
        examined = 0
        for number, (_, other) in steps.items():
            if starts[number] < 0 or latest[number] <= other.end:
                continue
            for first in order.late(number, other.end, starts, latest, _MAX_LATE):
                over.setdefault(number, set()).add(first)
                over.setdefault(first, set()).add(number)
            examined += 1
            if examined == _MAX_LATE:
                break
        if not over:
            break
        while over:
            worst = max(over, key=lambda at: (len(over[at]), not steps[at][0].is_write, at))
            others = over.pop(worst)
            found.append((*steps[worst], [steps[at][0] for at in sorted(others)]))
            starts[worst] = -1
            for at in others:
                over[at].discard(worst)
                if not over[at]:
                    del over[at]
    return found
