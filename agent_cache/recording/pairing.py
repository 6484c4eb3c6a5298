"""Which call of one run is which call of another, and what two recordings do not have in common.

A *lane* is what one task does in order. Lanes that make the same calls belong together, and their calls are aligned by
`difflib.SequenceMatcher`; what is left over is paired wherever it stands, and then by name with the fewest changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.differences import differences
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import encode

T = TypeVar("T")

_MAX_COMPARED = 900
"""Pairs of calls of one name up to which all are compared. Of more, those in the same place are."""
_MAX_MOVED = 64


@dataclass(slots=True, eq=False)
class Step:
    """A call in its run.

    Attributes:
        number: its position in the order in which calls started; `index`: in its cassette.
        chain: the names of the calls that enclose it.
        key: what makes it the same call: `chain`, the digest of name and arguments, the asker.
        outcome: 16 bytes that are the same for the same outcome as it is written.
    """

    call: RecordedCall
    number: int
    index: int
    chain: tuple[str, ...]
    key: Hashable
    lane: int
    outcome: bytes


Pair: TypeAlias = tuple[Step, Step]
"""A call of the first run, and the one of the second run that it is."""


@dataclass(slots=True)
class Pairing:
    """Which call is which.

    Attributes:
        same: pairs of the same call; `changed`: of a call with other arguments.
        moved: pairs of `same` whose place in their task is another one, with the calls that each was moved over.
        left, right: calls that only the first run has, or the second.
    """

    same: list[Pair] = field(default_factory=list)
    changed: list[Pair] = field(default_factory=list)
    moved: list[tuple[Step, Step, list[Step]]] = field(default_factory=list)
    left: list[Step] = field(default_factory=list)
    right: list[Step] = field(default_factory=list)


def step_of(call: RecordedCall, chain: tuple[str, ...], number: int = 0, index: int = 0) -> Step:
    """A call in its run."""
    outcome = blake2b(encode(call.outcome), digest_size=16).digest()
    return Step(call, number, index, chain, (chain, call.digest + call.asker), call.lane, outcome)


def read_run(cassette: Cassette) -> list[Step]:
    """The calls of a recording in the order in which they started."""
    enclosing = cassette.outline.enclosing()
    chains: dict[int, tuple[str, ...]] = {-1: (), -2: ("",)}
    steps: list[Step] = []
    for number, index in enumerate(cassette.outline.starts()):
        call, chain = cassette.steps[index], chains[enclosing[index]]
        chains[index] = (*chain, call.name)
        steps.append(step_of(call, chain, number, index))
    return steps


def pair_runs(base: Sequence[Step], new: Sequence[Step], count_changes: Callable[[Step, Step], int]) -> Pairing:
    """Pair the calls of two runs."""
    found, taken = Pairing(), set[Step]()

    def take(pairs: Iterable[Pair]) -> list[Pair]:
        pairs = list(pairs)
        found.same += pairs
        taken.update(step for pair in pairs for step in pair)
        return pairs

    def rest(steps: Iterable[Step]) -> list[Step]:
        return [step for step in steps if step not in taken]

    def match(ones: Sequence[Step], others: Sequence[Step]) -> list[Pair]:
        pairs = take(_by(_outcome, rest(ones), rest(others)))
        return pairs + take(_by(_key, rest(ones), rest(others)))

    twins = _twin_lanes(base, new)
    lanes = _grouped(new, lambda step: (twins.get(step.lane), step.chain))
    for lane, ones in _grouped(base, lambda step: (step.lane, step.chain)).items():
        others = lanes.get(lane, [])
        ordered = take(_aligned(ones, others, _outcome))
        moved = match(ones, others)
        for one, other in moved[:_MAX_MOVED]:
            pairs = (*ordered, *moved)
            over = [was for was, now in pairs if (was.number < one.number) != (now.number < other.number)]
            if over:
                found.moved.append((one, other, over))
    match(base, new)
    known = {step.key for step in base}
    groups = _grouped((step for step in rest(new) if step.key not in known), _name)
    for name, ones in _grouped(rest(base), _name).items():
        for one, other, changes in _nearest(ones, groups.get(name, []), count_changes, twins):
            taken.update((one, other))
            (found.changed if changes else found.same).append((one, other))
    found.left, found.right = rest(base), rest(new)
    return found


def _key(step: Step) -> Hashable:
    return step.key


def _outcome(step: Step) -> Hashable:
    return step.key, step.outcome


def _name(step: Step) -> Hashable:
    return step.chain, step.call.name


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
        if taken.isdisjoint((one, other)):
            taken.update((one, other))
            yield one, other, changes


def _twin_lanes(base: Sequence[Step], new: Sequence[Step]) -> dict[int, int]:
    """By lane of the new run, the lane that it belongs together with: both make the same calls, or are left over."""
    ones, others = ([*_grouped(steps, lambda step: step.lane).values()] for steps in (base, new))
    twins: dict[int, int] = {}
    for of in (_outcome, _key, None):

        def signature(steps: list[Step], of: Callable[[Step], Hashable] | None = of) -> Hashable:
            return None if of is None else tuple(map(of, steps))

        pairs = [(one[0].lane, other[0].lane) for one, other in _by(signature, ones, others)]
        twins |= {other: one for one, other in pairs}
        ones = [steps for steps in ones if steps[0].lane not in twins.values()]
        others = [steps for steps in others if steps[0].lane not in twins]
    return twins


# Differences of two cassettes


@dataclass(frozen=True, slots=True)
class CassetteDiff:
    """The differences of a recording `b` from a recording `a`.

    Attributes:
        new_calls: names of calls that only `b` has, sorted; a name appears once for each such call.
        dropped_calls: the same for `a`.
        changed_calls: calls of both whose arguments, asker or outcome differ: ``{"id", "id_b", "name", "changed", "a",
            "b"}``, with the names of the parts that differ under ``"changed"``.
        moved_calls: calls that are the same in both, in another order of their task: ``{"id", "id_b", "name"}``.
        new_ids, dropped_ids: ids of these calls in `b` and in `a`.
        input_token_delta, output_token_delta, token_delta, step_delta: `b` minus `a`.
    """

    new_calls: list[str] = field(default_factory=list)
    dropped_calls: list[str] = field(default_factory=list)
    changed_calls: list[dict[str, Any]] = field(default_factory=list)
    moved_calls: list[dict[str, Any]] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    dropped_ids: list[int] = field(default_factory=list)
    input_token_delta: int = 0
    output_token_delta: int = 0
    step_delta: int = 0

    @property
    def token_delta(self) -> int:
        """The difference in tokens sent and received."""
        return self.input_token_delta + self.output_token_delta

    @property
    def identical(self) -> bool:
        """Whether the tasks of both made the same calls in one order, with the same outcomes. Times do not count."""
        return not (self.new_ids or self.dropped_ids or self.changed_calls or self.moved_calls)


def diff_cassettes(a: Cassette | str | os.PathLike[str], b: Cassette | str | os.PathLike[str]) -> CassetteDiff:
    """Compare two recordings, given as cassettes or as paths. Which call is which is found as for drift.

    Raises:
        CassetteError: if one cannot be loaded.
    """
    one, other = (each if isinstance(each, Cassette) else Cassette.load(each) for each in (a, b))
    found = pair_runs(
        read_run(one),
        read_run(other),
        lambda was, now: 1 + sum(1 for _ in differences(was.call.arguments, now.call.arguments, "")),
    )
    changed = sorted(((was.call, now.call) for was, now in (*found.same, *found.changed)), key=lambda pair: pair[0].id)
    return CassetteDiff(
        new_calls=sorted(step.call.name for step in found.right),
        dropped_calls=sorted(step.call.name for step in found.left),
        changed_calls=[change for was, now in changed if (change := _change(was, now)) is not None],
        moved_calls=[{"id": was.call.id, "id_b": now.call.id, "name": was.call.name} for was, now, _ in found.moved],
        new_ids=[step.call.id for step in found.right],
        dropped_ids=[step.call.id for step in found.left],
        input_token_delta=other.total_input_tokens - one.total_input_tokens,
        output_token_delta=other.total_output_tokens - one.total_output_tokens,
        step_delta=len(other) - len(one),
    )


def _change(before: RecordedCall, after: RecordedCall) -> dict[str, Any] | None:
    parts = ("name", "arguments", "key", "asker", "outcome")
    changed = [part for part in parts if getattr(before, part) != getattr(after, part)]
    if not changed:
        return None
    return {"id": before.id, "id_b": after.id, "name": before.name, "changed": changed, "a": before, "b": after}
