"""Which call of one run is which call of another: the pure part of `drift`.

`pair_runs` pairs calls by the calls that enclose them, digest and occurrence, in lanes that belong together first; what
is left over pairs by name and the fewest changed fields. `differences` says where two values differ.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from hashlib import blake2b
from typing import Any, TypeAlias

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import encode, encode_sorted

# Calls

Chains: TypeAlias = dict[tuple[int, str], int]
"""Numbers of chains, by the number of the chain around a call and the name of the call. A *chain* is the names of the
calls that enclose a call; 0 is the empty one."""
OUTSIDE = -1
"""The chain of calls inside of a call that the baseline does not make."""


@dataclass(slots=True, eq=False)
class Step:
    """A call, with what the rule needs of it. Its size does not depend on what the call has returned.

    Attributes:
        number: its position in the order of starts, without calls of kind ``env``.
        index: of the call in the cassette that has it.
        id, name, kind, is_write: as in `RecordedCall`.
        digest: likewise, with the asker; not hexadecimal where places are ignored.
        chain: the number of its chain.
        lane: number of its lane, in the order in which lanes start.
        start, end: the positions of these events among all of its run. `end` is -1 before it has ended.
        outcome: the fingerprint of its outcome.
        source: index of the cassette that has it.
        call: the call itself, where no cassette has it.
        twin: number of the step of the baseline that has the same arguments and outcome, where neither has it.
    """

    number: int
    index: int
    id: int
    name: str
    kind: str
    digest: Hashable
    chain: int
    lane: int
    is_write: bool
    start: int
    end: int = -1
    outcome: bytes = b""
    source: int = 0
    call: RecordedCall | None = None
    twin: int = -1

    @classmethod
    def of(cls, number: int, index: int, call: RecordedCall, chain: int, lane: int, start: int) -> Step:
        """The step of a call."""
        digest = call.digest + call.asker
        return cls(number, index, call.id, call.name, call.kind, digest, chain, lane, call.is_write, start)

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
        tokens: those that its model calls have sent and received.
        forms: the forms in which its calls are written, as `RecordedCall.form`.
    """

    steps: list[Step] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    tokens: int = 0
    forms: set[str] = field(default_factory=set)
    _lanes: dict[int, int] = field(default_factory=dict)

    def lane_of(self, lane: int, forked: int, most: int | None = None) -> int:
        """The number here of a lane.

        Args:
            lane, forked: as of `RecordedCall`.
            most: all lanes from this number on are one lane.
        """
        known = self._lanes.get(lane)
        if known is None:
            outer = -1 if forked == lane else self.lane_of(forked, forked, most)
            if most is not None and len(self.parents) > most:
                return most
            self._lanes[lane] = known = len(self.parents)
            self.parents.append(outer)
        return known


def child_chain(chains: Chains, chain: int, name: str, *, learn: bool) -> int:
    """The chain of what a call of this name encloses; `OUTSIDE` if it is not known and not to be learned."""
    if learn:
        return chains.setdefault((chain, name), len(chains) + 1)
    return chains.get((chain, name), OUTSIDE)


def read_run(cassette: Cassette, chains: Chains, *, learn: bool, change: Callable[[RecordedCall], RecordedCall]) -> Run:
    """The calls of a recording.

    Args:
        cassette: the recording.
        chains: the chains of the baseline.
        learn: whether new chains are added to them.
        change: gives the call that counts instead of one that is in the cassette.

    Raises:
        CassetteError: if a call cannot be read.
    """
    outline, run = cassette.outline, Run()
    enclosing, places = outline.enclosing(), outline.places()
    names = {index: name for name, indices in outline.names.items() for index in indices}
    chain_of: dict[int, int] = {}
    for index in sorted(range(len(outline)), key=places.__getitem__):
        outer = enclosing[index]
        chain_of[index] = child_chain(chains, chain_of[outer], names[outer], learn=learn) if outer >= 0 else 0
        lane = run.lane_of(outline.lanes[index], outline.forked[index])
        call = change(cassette.steps[index])
        if call.kind == "env":
            continue
        step = Step.of(len(run.steps), index, call, chain_of[index], lane, places[index])
        step.end = places[~index]
        step.outcome = fingerprint(call.outcome)
        run.tokens += call.input_tokens + call.output_tokens
        run.forms.add(call.form)
        run.steps.append(step)
    return run


def fingerprint(outcome: Any) -> bytes:
    """16 bytes that are the same for the same outcome as it is written."""
    return blake2b(encode(outcome), digest_size=16).digest()


# Differences of two values

_ELEMENT = 0
"""In a path, each element of a list."""
_ANY_KEY = 1
"""In a pattern, each key of an object."""
Position: TypeAlias = tuple[str | int, ...]
"""Keys and `_ELEMENT`, from the top. The first is ``arguments``, ``result`` or ``error``."""
Difference: TypeAlias = tuple[Any, Any]
"""A value in the baseline and in the new run. One that is not there is None."""

_PART = re.compile(r"\.\*|\.([^\s.:\[\]\"]+)|\[\*\]|\[(\"(?:[^\"\\]|\\.)*\")\]")
_PLAIN_KEY = re.compile(r"[^\s.:*\[\]\"]+")
_MAX_DEPTH = 50


def shown_path(path: Position) -> str:
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


def parsed_path(text: str) -> Position:
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

    def __init__(self, paths: Sequence[Position]) -> None:
        self._exact = {path for path in paths if _ANY_KEY not in path}
        self._others = [path for path in paths if _ANY_KEY in path]
        self.of_arguments = any(path[0] == "arguments" for path in paths)

    def __bool__(self) -> bool:
        return bool(self._exact or self._others)

    def have(self, path: Position) -> bool:
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


def differences(was: Any, now: Any, root: str, most: int = 1_000) -> dict[Position, Difference]:
    """The places where two values differ, with the first two values at each. No more than `most` places.

    Texts that are JSON are compared as what they say. The elements of lists of one length are compared one by one;
    lists of different lengths differ as a whole.
    """
    found: dict[Position, Difference] = {}
    _compare(was, now, (root,), found, most)
    if not found and encode_sorted(was) != encode_sorted(now):  # 1, 1.0 and True are equal in Python
        found[root,] = was, now
    return found


def _compare(was: Any, now: Any, path: Position, found: dict[Position, Difference], most: int) -> None:
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


def pruned(value: Any, path: Position, patterns: Patterns) -> Any:
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
        twins: lanes of the new run, by those of the baseline that they belong together with.
    """

    matched: list[tuple[Step, Step]] = field(default_factory=list)
    changed: list[tuple[Step, Step, dict[Position, Difference]]] = field(default_factory=list)
    left: list[Step] = field(default_factory=list)
    right: list[Step] = field(default_factory=list)
    twins: dict[int, int] = field(default_factory=dict)


Changes: TypeAlias = Callable[[Step, Step], dict[Position, Difference]]
"""Where the arguments of two calls differ; nowhere if they are the same call."""

_MAX_COMPARED = 400
"""Pairs of calls of one name up to which all are compared. Of more, each with `_WINDOW` in its neighbourhood."""
_WINDOW = 8


def pair_runs(base: Run, new: Run, changes: Changes) -> Pairing:
    """Pair the calls of two runs.

    Args:
        base, new: their calls.
        changes: compares the arguments of two calls of one name.
    """
    asked, made = _grouped(base.steps, lambda step: step.key), _grouped(new.steps, lambda step: step.key)
    found = Pairing(twins=_twin_lanes(base, new, asked, made))
    for key, steps in asked.items():
        there = made.get(key, [])
        if len(steps) == 1 == len(there):
            found.matched.append((steps[0], there[0]))
        else:
            _pair_same(steps, there, found)
    found.right += (step for key, steps in made.items() if key not in asked for step in steps)
    found.left.sort(key=lambda step: step.number)
    found.right.sort(key=lambda step: step.number)
    _pair_changed(found, asked, changes)
    found.matched.sort(key=lambda pair: pair[0].number)
    return found


def _grouped(steps: Iterable[Step], key: Callable[[Step], Hashable]) -> dict[Hashable, list[Step]]:
    found: dict[Hashable, list[Step]] = {}
    for step in steps:
        found.setdefault(key(step), []).append(step)
    return found


def _by_lane(steps: Iterable[Step]) -> dict[int, list[Step]]:
    found: dict[int, list[Step]] = {}
    for step in steps:
        found.setdefault(step.lane, []).append(step)
    return found


def _twin_lanes(
    base: Run, new: Run, asked: Mapping[Hashable, list[Step]], made: Mapping[Hashable, list[Step]]
) -> dict[int, int]:
    """Which lane is which: by the calls that each side makes once, writes before others.

    Lanes that this leaves over belong together if they, and the lanes that were forked from them, make the same calls
    in the same order; then each time less of this is asked for.
    """
    votes: Counter[tuple[int, int]] = Counter()
    for key, steps in asked.items():
        there = made.get(key, ())
        if len(steps) == 1 == len(there):
            votes[steps[0].lane, there[0].lane] += len(base.steps) + 1 if steps[0].is_write else 1
    twins: dict[int, int] = {}
    taken: set[int] = set()

    def add(lane: int, other: int) -> None:
        if lane not in twins and other not in taken:
            twins[lane] = other
            taken.add(other)

    for (lane, other), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])):
        add(lane, other)
    for lane in range(len(base.parents) - 1, 0, -1):  # a forked lane has a higher number than its parent
        if lane in twins and base.parents[lane] >= 0 and new.parents[twins[lane]] >= 0:
            add(base.parents[lane], new.parents[twins[lane]])
    add(0, 0)  # those of the blocks
    for level in range(6):
        signatures, of_new = _signatures(base, level), _signatures(new, level)
        has_parent = level not in (3, 5)
        waiting: dict[Hashable, deque[int]] = {}
        for other in sorted(of_new.keys() - taken):
            waiting.setdefault((new.parents[other] if has_parent else -1, of_new[other]), deque()).append(other)
        for lane in sorted(signatures.keys() - twins.keys()):
            parent = base.parents[lane] if has_parent else -1
            if queue := waiting.get((twins.get(parent, parent if parent < 0 else -2), signatures[lane])):
                add(lane, queue.popleft())
    return twins


def _signatures(run: Run, level: int) -> dict[int, Hashable]:
    """For each lane, what two lanes have in common that belong together.

    Args:
        run: the run.
        level: 0 for calls, outcomes, and the same of the lanes that were forked from it, and where; 1 without these
            places; 2 also without outcomes, 3 likewise; 4 for the first call; 5 for the calls around its calls.
    """
    lanes = _by_lane(run.steps)
    if level >= 4:
        return {lane: steps[0].key if level == 4 else steps[0].chain for lane, steps in lanes.items()}
    inner: dict[int, list[int]] = {}
    found: dict[int, Hashable] = {}
    for lane in sorted(lanes, reverse=True):
        own = tuple((step.key, step.outcome if level < 2 else b"") for step in lanes[lane])
        found[lane] = tree = hash((own, tuple(sorted(inner.pop(lane, ())))))
        parent = run.parents[lane]
        if parent >= 0:
            starts = [step.start for step in lanes.get(parent, ())] if not level else []
            inner.setdefault(parent, []).append(hash((tree, bisect_left(starts, lanes[lane][0].start))))
    return found


def _pair_same(steps: list[Step], there: list[Step], found: Pairing) -> None:
    """Pair calls that are all the same call: in twin lanes in their order, the others by their outcomes."""
    lanes, taken = _by_lane(there), set[int]()
    left: list[Step] = []
    for lane, own in _by_lane(steps).items():
        pairs = _aligned(own, lanes.get(found.twins.get(lane, -1), []))
        found.matched += pairs
        taken.update(id(other) for _, other in pairs)
        mine = {id(step) for step, _ in pairs}
        left += (step for step in own if id(step) not in mine)
    left.sort(key=lambda step: step.number)
    for has_outcome in (True, False):
        waiting: dict[bytes, deque[Step]] = {}
        for other in there:
            if id(other) not in taken:
                waiting.setdefault(other.outcome if has_outcome else b"", deque()).append(other)
        rest, left = left, []
        for step in rest:
            if queue := waiting.get(step.outcome if has_outcome else b""):
                other = queue.popleft()
                taken.add(id(other))
                found.matched.append((step, other))
            else:
                left.append(step)
    found.left += left
    found.right += (other for other in there if id(other) not in taken)


def _aligned(own: list[Step], others: list[Step]) -> list[tuple[Step, Step]]:
    """Pair calls in their order. If one side has more, those of the shorter one prefer the same outcome."""
    if len(own) == len(others):
        return list(zip(own, others, strict=True))
    matcher = SequenceMatcher(None, [step.outcome for step in own], [step.outcome for step in others], autojunk=False)
    return [
        pair
        for _, begin, end, begin_new, end_new in matcher.get_opcodes()
        for pair in zip(own[begin:end], others[begin_new:end_new], strict=False)
    ]


def _pair_changed(found: Pairing, asked: Mapping[Hashable, list[Step]], changes: Changes) -> None:
    """Pair what is left over by name, chain and the fewest changed fields, writes first.

    A call that the baseline has, too, is one too many and no changed one.
    """
    new = [step for step in found.right if step.chain != OUTSIDE and step.key not in asked]
    groups = _grouped(new, lambda step: (step.chain, step.name))
    taken: set[int] = set()

    def take(step: Step, other: Step, where: dict[Position, Difference]) -> None:
        taken.update((id(step), id(other)))
        if where:
            found.changed.append((step, other, where))
        else:
            found.matched.append((step, other))

    lefts = _grouped(found.left, lambda step: (step.chain, step.name))
    for group, left in sorted(lefts.items(), key=lambda one: not one[1][0].is_write):
        right = groups.get(group, [])
        scored = []
        for place, other in enumerate(right):
            for at in _neighbours(place, len(left), len(right)):
                where = changes(left[at], other)
                far = abs(at / len(left) - place / len(right))
                is_elsewhere = found.twins.get(left[at].lane) != other.lane
                scored.append(((len(where), is_elsewhere, far, at, place), left[at], other, where))
        for _, step, other, where in sorted(scored, key=lambda one: one[0]):
            if id(step) not in taken and id(other) not in taken:
                take(step, other, where)
        rest = [step for step in left if id(step) not in taken]
        for step, other in zip(rest, [step for step in right if id(step) not in taken], strict=False):
            take(step, other, changes(step, other))  # out of the windows
    found.left = [step for step in found.left if id(step) not in taken]
    found.right = [step for step in found.right if id(step) not in taken]


def _neighbours(place: int, left: int, right: int) -> range:
    """Which calls on the left one on the right is compared with."""
    if left * right <= _MAX_COMPARED:
        return range(left)
    scaled = place * left // right
    return range(max(0, min(place, scaled) - _WINDOW // 2), min(left, max(place, scaled) + _WINDOW // 2))


# Order

_MAX_MOVED = 64


def moved_steps(pairing: Pairing, free: set[int]) -> list[tuple[Step, Step, list[Step]]]:
    """The fewest calls that have moved, with the calls of the baseline that each was moved over. A greedy choice.

    The order of two calls counts if they are of one chain and one lane, in both runs, and one was over when the other
    started. Tasks that run side by side have no order.

    Args:
        pairing: of the two runs.
        free: numbers of calls whose order does not count.
    """
    lanes: dict[tuple[int, int], list[tuple[Step, Step]]] = {}
    for step, other in pairing.matched:
        if step.number not in free and pairing.twins.get(step.lane) == other.lane:
            lanes.setdefault((step.lane, step.chain), []).append((step, other))
    found = []
    for pairs in lanes.values():
        over: dict[int, set[int]] = {}  # positions in this lane
        for at in _out_of_order([other.start for _, other in pairs])[:_MAX_MOVED]:
            for to, (step, other) in enumerate(pairs):
                first, second = sorted((pairs[at], (step, other)), key=lambda pair: pair[0].start)
                if first[0].end < second[0].start and second[1].end < first[1].start:
                    over.setdefault(at, set()).add(to)
                    over.setdefault(to, set()).add(at)
        while over:
            worst = max(over, key=lambda at: (len(over[at]), not pairs[at][0].is_write, at))
            others = over.pop(worst)
            found.append((*pairs[worst], [pairs[at][0] for at in sorted(others)]))
            for at in others:
                over[at].discard(worst)
                if not over[at]:
                    del over[at]
    return found


def _out_of_order(numbers: list[int]) -> list[int]:
    """Positions of the fewest numbers without which the others ascend: all but a longest ascending subsequence."""
    ends: list[int] = []  # by length, the least last number of such a subsequence
    at_end: list[int] = []
    before: list[int] = []
    for at, number in enumerate(numbers):
        length = bisect_left(ends, number)
        ends[length : length + 1] = [number]
        at_end[length : length + 1] = [at]
        before.append(at_end[length - 1] if length else -1)
    kept: set[int] = set()
    at = at_end[-1] if at_end else -1
    while at >= 0:
        kept.add(at)
        at = before[at]
    return [at for at in range(len(numbers)) if at not in kept]
