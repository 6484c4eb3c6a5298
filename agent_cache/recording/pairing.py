"""Which call of one run is which call of another.

A *lane* is what one task does in order. Lanes that make the same calls belong together, and their calls are aligned by
`difflib.SequenceMatcher`; what is left over is paired wherever it stands, and then by name with the fewest changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from hashlib import blake2b
from typing import TypeAlias, TypeVar

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import encode

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Step:
    """A call in its run.

    Attributes:
        call: the call.
        number: its position in the order in which calls started.
        index: in its cassette.
        chain: the names of the calls that enclose it.
        key: what makes it the same call: `chain`, the digest of name and arguments, the asker.
        lane: number of its lane.
        start, end: the positions of these events among all of its run.
        outcome: the fingerprint of its outcome.
    """

    call: RecordedCall
    number: int
    index: int
    chain: tuple[str, ...]
    key: Hashable
    lane: int
    start: int
    end: int
    outcome: bytes


Pair: TypeAlias = tuple[Step, Step]
"""A call of the first run, and the one of the second run that it is."""


def fingerprint(outcome: object) -> bytes:
    """16 bytes that are the same for the same outcome as it is written."""
    return blake2b(encode(outcome), digest_size=16).digest()


def read_run(cassette: Cassette, change: Callable[[RecordedCall], RecordedCall] = lambda call: call) -> list[Step]:
    """The calls of a recording in the order in which they started."""
    outline = cassette.outline
    enclosing, places = outline.enclosing(), outline.places()
    chains: dict[int, tuple[str, ...]] = {-1: (), -2: ("",)}
    steps: list[Step] = []
    for number, index in enumerate(sorted(range(len(outline)), key=places.__getitem__)):
        call, chain = change(cassette.steps[index]), chains[enclosing[index]]
        chains[index] = (*chain, call.name)
        key = chain, call.digest + call.asker
        start, end = places[index], places[~index]
        steps.append(Step(call, number, index, chain, key, call.lane, start, end, fingerprint(call.outcome)))
    return steps


@dataclass(slots=True)
class Pairing:
    """Which call is which.

    Attributes:
        same: pairs of the same call.
        changed: pairs of a call with other arguments.
        moved: pairs of `same` whose place in their task is another one, with the calls that each was moved over.
        left: calls that only the first run has.
        right: calls that only the second run has.
    """

    same: list[Pair] = field(default_factory=list)
    changed: list[Pair] = field(default_factory=list)
    moved: list[tuple[Step, Step, list[Step]]] = field(default_factory=list)
    left: list[Step] = field(default_factory=list)
    right: list[Step] = field(default_factory=list)


_MAX_COMPARED = 900
"""Pairs of calls of one name up to which all are compared. Of more, those in the same place are."""
_MAX_MOVED = 64


def pair_runs(base: Sequence[Step], new: Sequence[Step], count_changes: Callable[[Step, Step], int]) -> Pairing:
    """Pair the calls of two runs."""
    found, taken = Pairing(), set[Step]()

    def take(pairs: Iterable[Pair]) -> list[Pair]:
        pairs = list(pairs)
        found.same += pairs
        taken.update(step for pair in pairs for step in pair)
        return pairs

    def match(ones: Sequence[Step], others: Sequence[Step]) -> list[Pair]:
        pairs = take(_by(_outcome, _rest(ones, taken), _rest(others, taken)))
        return pairs + take(_by(_key, _rest(ones, taken), _rest(others, taken)))

    twins = _twin_lanes(base, new)
    lanes = _grouped(new, lambda step: (twins.get(step.lane), step.chain))
    for lane, ones in _grouped(base, lambda step: (step.lane, step.chain)).items():
        others = lanes.get(lane, [])
        ordered = take(_aligned(ones, others, _outcome))
        moved = match(ones, others)
        for one, other in moved[:_MAX_MOVED]:
            over = [
                before
                for before, after in (*ordered, *moved)
                if (before.end < one.start and other.end < after.start)
                or (one.end < before.start and after.end < other.start)
            ]
            if over:
                found.moved.append((one, other, over))
    match(base, new)
    known = {step.key for step in base}
    groups = _grouped((step for step in _rest(new, taken) if step.key not in known), _name)
    for name, ones in _grouped(_rest(base, taken), _name).items():
        for one, other, changes in _nearest(ones, groups.get(name, []), count_changes, twins):
            taken.update((one, other))
            (found.changed if changes else found.same).append((one, other))
    found.left, found.right = _rest(base, taken), _rest(new, taken)
    return found


def _key(step: Step) -> Hashable:
    return step.key


def _outcome(step: Step) -> Hashable:
    return step.key, step.outcome


def _name(step: Step) -> Hashable:
    return step.chain, step.call.name


def _rest(steps: Iterable[Step], taken: set[Step]) -> list[Step]:
    return [step for step in steps if step not in taken]


def _grouped(items: Iterable[T], of: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(of(item), []).append(item)
    return found


def _by(of: Callable[[T], Hashable], ones: list[T], others: list[T]) -> Iterator[tuple[T, T]]:
    """Pairs of what is equal in this respect, in their order."""
    waiting = _grouped(reversed(others), of)
    return ((one, waiting[of(one)].pop()) for one in ones if waiting.get(of(one)))


def _aligned(ones: list[Step], others: list[Step], of: Callable[[Step], Hashable]) -> Iterator[Pair]:
    """Pair the same calls in their order, of several those with the same outcome."""
    matcher = SequenceMatcher(None, list(map(of, ones)), list(map(of, others)))
    for tag, begin, end, begin_new, end_new in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(ones[begin:end], others[begin_new:end_new], strict=True)
        elif tag == "replace" and of is _outcome:
            yield from _aligned(ones[begin:end], others[begin_new:end_new], _key)


def _nearest(
    ones: list[Step], others: list[Step], count: Callable[[Step, Step], int], twins: dict[int, int]
) -> Iterator[tuple[Step, Step, int]]:
    """Pair calls of one name, those with the fewest changes first."""
    if len(ones) * len(others) > _MAX_COMPARED:
        yield from ((one, other, count(one, other)) for one, other in zip(ones, others, strict=False))
        return
    scored = [
        (count(one, other), twins.get(other.lane) != one.lane, abs(one.number - other.number), one.number, one, other)
        for one in ones
        for other in others
    ]
    taken = set[Step]()
    for changes, *_, one, other in sorted(scored, key=lambda score: score[:4]):
        if one not in taken and other not in taken:
            taken.update((one, other))
            yield one, other, changes


def _twin_lanes(base: Sequence[Step], new: Sequence[Step]) -> dict[int, int]:
    """By lane of the new run, the lane that it belongs together with: both make the same calls, or are left over."""
    ones, others = (_grouped(steps, lambda step: step.lane) for steps in (base, new))
    twins: dict[int, int] = {}
    for of in (_outcome, _key, lambda _: ()):

        def signature(steps: list[Step], of: Callable[[Step], Hashable] = of) -> Hashable:
            return tuple(map(of, steps)) if of in (_outcome, _key) else ()

        for one, other in list(_by(signature, list(ones.values()), list(others.values()))):
            twins[other[0].lane] = one[0].lane
            del ones[one[0].lane], others[other[0].lane]
    return twins
