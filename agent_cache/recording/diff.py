"""`diff_cassettes`: what one run did that another did not. Calls are aligned, so one more call shifts nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.format import RecordedCall

__all__ = ["CassetteDiff", "diff_cassettes"]

MAX_ALIGNED = 5000
"""Steps between two common ones up to which single calls are aligned by name; longer stretches are paired in order."""


@dataclass(frozen=True, slots=True)
class CassetteDiff:
    """The way from a recording `a` to a recording `b`.

    Attributes:
        new_calls: names of calls that only `b` has, sorted, each as often as it is new.
        dropped_calls: the same for `a`.
        changed_calls: calls of both whose arguments or outcome differ: ``{"index", "index_b", "name", "changed", "a",
            "b"}``, with the names of the parts that differ under ``"changed"``.
        moved_calls: calls that are the same in both, in another order: ``{"index", "index_b", "name"}``.
        new_steps, dropped_steps: indices in `b` and in `a`.
        input_token_delta, output_token_delta, token_delta, step_delta: `b` minus `a`.
    """

    new_calls: list[str] = field(default_factory=list)
    dropped_calls: list[str] = field(default_factory=list)
    changed_calls: list[dict[str, Any]] = field(default_factory=list)
    moved_calls: list[dict[str, Any]] = field(default_factory=list)
    new_steps: list[int] = field(default_factory=list)
    dropped_steps: list[int] = field(default_factory=list)
    input_token_delta: int = 0
    output_token_delta: int = 0
    step_delta: int = 0

    @property
    def token_delta(self) -> int:
        """Both kinds of tokens together."""
        return self.input_token_delta + self.output_token_delta

    @property
    def identical(self) -> bool:
        """Whether both made the same calls in the same order, with the same outcomes. Time does not count."""
        return not (self.new_steps or self.dropped_steps or self.changed_calls or self.moved_calls)


def diff_cassettes(a: Cassette | str | os.PathLike[str], b: Cassette | str | os.PathLike[str]) -> CassetteDiff:
    """Compare two recordings, given as cassettes or as paths.

    Calls are compared in the order in which they were started. First those are aligned that are the same in both; in
    between, calls of one name are taken for changed. What is the same in both, but out of order, has moved.

    Raises:
        CassetteError: if one cannot be loaded.
    """
    one = a if isinstance(a, Cassette) else Cassette.load(a)
    other = b if isinstance(b, Cassette) else Cassette.load(b)
    before, after = _order(one), _order(other)
    dropped: list[int] = []
    new: list[int] = []
    changed: list[tuple[int, int]] = []
    matcher = SequenceMatcher(None, _keys(one, before), _keys(other, after), autojunk=False)
    for tag, start, end, start_b, end_b in matcher.get_opcodes():
        pairs = list(zip(before[start:end], after[start_b:end_b], strict=False))
        if tag == "equal":
            changed += pairs
            continue
        left, right, paired = _paired(one, other, before[start:end], after[start_b:end_b])
        dropped += left
        new += right
        changed += paired
    moved = _moved(one, other, dropped, new)
    moved_from, moved_to = {pair[0] for pair in moved}, {pair[1] for pair in moved}
    dropped = sorted(index for index in dropped if index not in moved_from)
    new = sorted(index for index in new if index not in moved_to)
    return CassetteDiff(
        new_calls=sorted(other[index].name for index in new),
        dropped_calls=sorted(one[index].name for index in dropped),
        changed_calls=[
            described
            for index, index_b in sorted((*changed, *moved))
            if (described := _change(index, index_b, one[index], other[index_b])) is not None
        ],
        moved_calls=[{"index": index, "index_b": index_b, "name": one[index].name} for index, index_b in moved],
        new_steps=new,
        dropped_steps=dropped,
        input_token_delta=other.total_input_tokens - one.total_input_tokens,
        output_token_delta=other.total_output_tokens - one.total_output_tokens,
        step_delta=len(other) - len(one),
    )


def _order(cassette: Cassette) -> list[int]:
    return [index for _, index in sorted((call.id, index) for index, call in enumerate(cassette.steps))]


def _keys(cassette: Cassette, order: list[int]) -> list[str]:
    names = [(call.name, call.digest) for call in cassette.steps]
    return [f"{names[index][0]} {names[index][1]}" for index in order]


def _paired(
    one: Cassette, other: Cassette, left: list[int], right: list[int]
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Of a stretch without common calls: those of one name, in order, are the same call with other arguments."""
    if len(left) > MAX_ALIGNED or len(right) > MAX_ALIGNED:
        return left, right, []
    common = _common(one, other, left, right)
    keep_left = [index for index in left if one[index].digest not in common]
    keep_right = [index for index in right if other[index].digest not in common]
    matcher = SequenceMatcher(
        None, [one[at].name for at in keep_left], [other[at].name for at in keep_right], autojunk=False
    )
    pairs = [
        (keep_left[block.a + at], keep_right[block.b + at])
        for block in matcher.get_matching_blocks()
        for at in range(block.size)
    ]
    taken, taken_b = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    return [at for at in left if at not in taken], [at for at in right if at not in taken_b], pairs


def _common(one: Cassette, other: Cassette, left: list[int], right: list[int]) -> set[str]:
    return {one[index].digest for index in left} & {other[index].digest for index in right}


def _moved(one: Cassette, other: Cassette, dropped: list[int], new: list[int]) -> list[tuple[int, int]]:
    """The same call on both sides, in another place."""
    places: dict[tuple[str, str], list[int]] = {}
    for index in sorted(new):
        places.setdefault((other[index].name, other[index].digest), []).append(index)
    moved = []
    for index in sorted(dropped):
        waiting = places.get((one[index].name, one[index].digest))
        if waiting:
            moved.append((index, waiting.pop(0)))
    return moved


def _change(index: int, index_b: int, was: RecordedCall, now: RecordedCall) -> dict[str, Any] | None:
    changed = [part for part in ("name", "arguments", "key", "outcome") if getattr(was, part) != getattr(now, part)]
    if not changed:
        return None
    return {"index": index, "index_b": index_b, "name": was.name, "changed": changed, "a": was, "b": now}
