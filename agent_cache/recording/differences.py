"""How two recordings differ, and where two values do, as a person looks for it: by field, by element, by word.

A prompt is thousands of words of which two have changed. So lists are aligned, and long texts are compared word by
word. The work is bounded: what is longer is shown by the place where the difference begins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import common_length, encode_sorted

__all__ = ["CassetteDiff", "changes", "diff_cassettes"]

_ABSENT = object()
_LONG = 60
"""Texts up to this length are shown as a whole."""
_AROUND = 24
_MAX_SHOWN = 100
_MAX_PLACES = 4
"""Places of one text that are shown."""
_MAX_LINES = 12
_MAX_ELEMENTS = 1000
_MAX_WORDS = 600
"""Words that are compared, without those that both texts begin and end with. It takes quadratic time."""
_MAX_DEPTH = 20
_WORD = re.compile(r"\w+|[^\w\s]|\s+")


def changes(was: Any, now: Any, path: str) -> list[str]:
    """Lines that say where `now` differs from `was`, each with the path to the place.

    Args:
        was, now: plain data.
        path: the name of both.
    """
    lines = list(_changes(was, now, path, 0))
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    return lines


def _changes(was: Any, now: Any, path: str, depth: int) -> Iterator[str]:
    if type(was) is dict and type(now) is dict and depth < _MAX_DEPTH:
        for name in dict.fromkeys((*was, *now)):
            one, other = was.get(name, _ABSENT), now.get(name, _ABSENT)
            if one != other:
                yield from _changes(one, other, f"{path}.{name}", depth + 1)
    elif type(was) is list and type(now) is list and max(len(was), len(now)) <= _MAX_ELEMENTS and depth < _MAX_DEPTH:
        for one, other, number in _aligned(was, now):
            label = _label(now[number] if one is _ABSENT else was[number])
            yield from _changes(one, other, f"{path}[{number}]{label}", depth + 1)
    elif type(was) is str and type(now) is str and max(len(was), len(now)) > _LONG:
        for place in _changes_of_text(was, now):
            yield f"{path}{place}"
    elif was != now or type(was) is not type(now):
        yield f"{path}: {_short(was)} -> {_short(now)}"


def _aligned(was: list[Any], now: list[Any]) -> Iterator[tuple[Any, Any, int]]:
    """Pairs of elements that differ, and the number of the first of them. What was added or removed has no other."""
    ones, others = list(map(encode_sorted, was)), list(map(encode_sorted, now))
    for tag, begin, end, begin_now, end_now in SequenceMatcher(None, ones, others, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for at in range(max(end - begin, end_now - begin_now)):
            one = was[begin + at] if begin + at < end else _ABSENT
            other = now[begin_now + at] if begin_now + at < end_now else _ABSENT
            yield one, other, begin_now + at if one is _ABSENT else begin + at


def _label(element: Any) -> str:
    """Whose element of a list it is: the role of a message, the name of a tool."""
    if type(element) is not dict:
        return ""
    inner = element.get("function")
    for name in (element.get("role"), element.get("name"), inner.get("name") if type(inner) is dict else None):
        if type(name) is str:
            return f" ({name})"
    return ""


def _changes_of_text(was: str, now: str) -> Iterator[str]:
    ones, others = _WORD.findall(was), _WORD.findall(now)
    first = common_length(ones, others)
    last = common_length(ones[first:][::-1], others[first:][::-1])
    middle, middle_now = ones[first : len(ones) - last], others[first : len(others) - last]
    places = [("replace", 0, len(middle), 0, len(middle_now))]
    if len(middle) <= _MAX_WORDS and len(middle_now) <= _MAX_WORDS:
        matcher = SequenceMatcher(str.isspace, middle, middle_now, autojunk=False)
        places = [place for place in matcher.get_opcodes() if place[0] != "equal"]
    for _, begin, end, begin_now, end_now in places[:_MAX_PLACES]:
        before, after = "".join(ones[: first + begin]), "".join(ones[first + end :])
        removed, added = _short("".join(middle[begin:end])), _short("".join(middle_now[begin_now:end_now]))
        line = f" line {before.count(chr(10)) + 1}: " if "\n" in was else ": "
        yield (
            f"{line}{_tail(before)}{f'[-{removed}-]' if end > begin else ''}"
            f"{f'{{+{added}+}}' if end_now > begin_now else ''}{_head(after)}"
        )
    if len(places) > _MAX_PLACES:
        yield f": and {len(places) - _MAX_PLACES} more places"


def _tail(text: str) -> str:
    text = text.rpartition("\n")[2]
    return text if len(text) <= _AROUND else "..." + text[-_AROUND:]


def _head(text: str) -> str:
    text = text.partition("\n")[0]
    return text if len(text) <= _AROUND else text[:_AROUND] + "..."


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "(none)"
    text = value.replace("\n", "\\n") if type(value) is str else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"


# Differences of two cassettes

_MAX_ALIGNED = 5000
"""Calls between two common ones up to which calls of one name are paired. Of longer stretches none are: it takes
quadratic time."""


@dataclass(frozen=True, slots=True)
class CassetteDiff:
    """The differences of a recording `b` from a recording `a`.

    Attributes:
        new_calls: names of calls that only `b` has, sorted; a name appears once for each such call.
        dropped_calls: the same for `a`.
        changed_calls: calls of both whose arguments, asker or outcome differ: ``{"id", "id_b", "name", "changed", "a",
            "b"}``, with the names of the parts that differ under ``"changed"``.
        moved_calls: calls that are the same in both, in another order: ``{"id", "id_b", "name"}``.
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
        """Whether both made the same calls in the same order, with the same outcomes. Times do not count."""
        return not (self.new_ids or self.dropped_ids or self.changed_calls or self.moved_calls)


def diff_cassettes(a: Cassette | str | os.PathLike[str], b: Cassette | str | os.PathLike[str]) -> CassetteDiff:
    """Compare two recordings, given as cassettes or as paths.

    Calls are compared in the order in which a finished cassette has them: those of one task in the order in which they
    were started. Calls that are the same in both are aligned first; in between, calls of one name count as changed. A
    call that is the same in both but out of order counts as moved.

    Raises:
        CassetteError: if one cannot be loaded.
    """
    one = a if isinstance(a, Cassette) else Cassette.load(a)
    other = b if isinstance(b, Cassette) else Cassette.load(b)
    keys, order = _keys_and_order(one)
    keys_b, order_b = _keys_and_order(other)
    pairs: list[tuple[int, int]] = []
    left, right = set(order), set(order_b)
    matcher = SequenceMatcher(None, [keys[at] for at in order], [keys_b[at] for at in order_b], autojunk=False)
    for tag, start, end, start_b, end_b in matcher.get_opcodes():
        stretch, stretch_b = order[start:end], order_b[start_b:end_b]
        if tag == "equal":
            found = list(zip(stretch, stretch_b, strict=True))
        else:
            found = _pairs_of_one_name(keys, keys_b, stretch, stretch_b)
        pairs += found
        left.difference_update(at for at, _ in found)
        right.difference_update(at for _, at in found)
    moved = _moved(keys, keys_b, left, right)
    dropped = sorted(left.difference(at for at, _ in moved))
    new = sorted(right.difference(at for _, at in moved))
    ids, ids_b = one.outline.ids, other.outline.ids
    return CassetteDiff(
        new_calls=sorted(keys_b[at][0] for at in new),
        dropped_calls=sorted(keys[at][0] for at in dropped),
        changed_calls=[
            change for at, at_b in sorted((*pairs, *moved)) if (change := _change(one[at], other[at_b])) is not None
        ],
        moved_calls=[{"id": ids[at], "id_b": ids_b[at_b], "name": keys[at][0]} for at, at_b in moved],
        new_ids=[ids_b[at] for at in new],
        dropped_ids=[ids[at] for at in dropped],
        input_token_delta=other.total_input_tokens - one.total_input_tokens,
        output_token_delta=other.total_output_tokens - one.total_output_tokens,
        step_delta=len(other) - len(one),
    )


_Keys: TypeAlias = list[tuple[str, str]]
"""Name and digest of each call, with its asker."""


def _keys_and_order(cassette: Cassette) -> tuple[_Keys, Sequence[int]]:
    """The keys of all calls, and their indices in the order of the lines of a finished cassette."""
    outline = cassette.outline
    keys: _Keys = [("", "")] * len(outline)
    for name, indices in outline.names.items():
        for index in indices:
            keys[index] = name, outline.digests[index].hex()
    return keys, outline.order_of_lines()


def _pairs_of_one_name(keys: _Keys, keys_b: _Keys, left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Pair calls of one name, in order, between two common calls: they are the same call with other arguments.

    Calls that are on both sides have moved, and are no part of a pair.
    """
    if len(left) > _MAX_ALIGNED or len(right) > _MAX_ALIGNED:
        return []
    common = {keys[at][1] for at in left} & {keys_b[at][1] for at in right}
    left = [at for at in left if keys[at][1] not in common]
    right = [at for at in right if keys_b[at][1] not in common]
    matcher = SequenceMatcher(None, [keys[at][0] for at in left], [keys_b[at][0] for at in right], autojunk=False)
    return [
        (left[block.a + at], right[block.b + at]) for block in matcher.get_matching_blocks() for at in range(block.size)
    ]


def _moved(keys: _Keys, keys_b: _Keys, left: set[int], right: set[int]) -> list[tuple[int, int]]:
    """Pairs of the same call in another place."""
    places: dict[tuple[str, str], list[int]] = {}
    for at in sorted(right):
        places.setdefault(keys_b[at], []).append(at)
    return [(at, places[keys[at]].pop(0)) for at in sorted(left) if places.get(keys[at])]


def _change(before: RecordedCall, after: RecordedCall) -> dict[str, Any] | None:
    changed = [
        part
        for part in ("name", "arguments", "key", "asker", "outcome")
        if getattr(before, part) != getattr(after, part)
    ]
    if not changed:
        return None
    return {"id": before.id, "id_b": after.id, "name": before.name, "changed": changed, "a": before, "b": after}
