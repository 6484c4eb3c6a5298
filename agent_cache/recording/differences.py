"""Where two values differ, and how two recordings do.

`differences` is the one walk over two values: divergences, ``cassette diff`` and drift show what it finds. Elements of
lists are aligned, and texts that are JSON are compared as what they say. The work is bounded: long texts are compared
word by word only where they differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec

from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import common_length, encode_sorted
from agent_cache.recording.pairing import pair_runs, read_run

ABSENT: Final[Any] = object()
"""Stands for a value that only the other side has."""

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
_MAX_DEPTH = 50
_WORD = re.compile(r"\w+|[^\w\s]|\s+")
_PLAIN_KEY = re.compile(r"[^\s.:*\[\]\"]+")


def differences(was: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The places where two values differ: the path, as ``result.items[2].price``, and both values, or `ABSENT`."""
    is_found = False
    for place in _differences(was, now, path, 0):
        is_found = True
        yield place
    if not is_found and encode_sorted(was) != encode_sorted(now):  # 1, 1.0 and True are equal in Python
        yield path, was, now


def _differences(was: Any, now: Any, path: str, depth: int) -> Iterator[tuple[str, Any, Any]]:
    if type(was) is str and type(now) is str:
        one, other = read_json(was), read_json(now)
        if one is not None and other is not None:
            was, now = one, other
    if type(was) is dict and type(now) is dict and depth < _MAX_DEPTH:
        for name in {**was, **now}:
            one, other = was.get(name, ABSENT), now.get(name, ABSENT)
            if one != other:
                yield from _differences(one, other, joined(path, name), depth + 1)
    elif type(was) is list and type(now) is list and max(len(was), len(now)) <= _MAX_ELEMENTS and depth < _MAX_DEPTH:
        for one, other, number in _aligned(was, now):
            label = _label(now[number] if one is ABSENT else was[number])
            yield from _differences(one, other, f"{path}[{number}]{label}", depth + 1)
    elif was != now:
        yield path, was, now


def read_json(text: str) -> Any:
    """The object or list that a text is as JSON, else None."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def joined(path: str, key: str) -> str:
    """The path to a key of an object. Other keys than words stand in brackets and quotes."""
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{encode_sorted(key).decode()}]"


def _aligned(was: list[Any], now: list[Any]) -> Iterator[tuple[Any, Any, int]]:
    """Pairs of elements that differ, and the number of the first of them. What was added or removed has no other."""
    first = common_length(was, now)
    ones, others = list(map(encode_sorted, was[first:])), list(map(encode_sorted, now[first:]))
    for tag, begin, end, begin_now, end_now in SequenceMatcher(None, ones, others, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for at in range(first, first + max(end - begin, end_now - begin_now)):
            one = was[begin + at] if begin + at < end + first else ABSENT
            other = now[begin_now + at] if begin_now + at < end_now + first else ABSENT
            yield one, other, begin_now + at if one is ABSENT else begin + at


def _label(element: Any) -> str:
    """Whose element of a list it is: the role of a message, the name of a tool."""
    if type(element) is not dict:
        return ""
    inner = element.get("function")
    for name in (element.get("role"), element.get("name"), inner.get("name") if type(inner) is dict else None):
        if type(name) is str:
            return f" ({name})"
    return ""


# Texts


def changes(was: Any, now: Any, path: str) -> list[str]:
    """Lines that say where `now` differs from `was`, each with the path to the place.

    Args:
        was, now: plain data.
        path: the name of both.
    """
    lines: list[str] = []
    for place, one, other in differences(was, now, path):
        if type(one) is str and type(other) is str and max(len(one), len(other)) > _LONG:
            lines += (f"{place}{change}" for change in _changes_of_text(one, other))
        else:
            lines.append(f"{place}: {_short(one)} -> {_short(other)}")
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    return lines


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
        head, tail = before.rpartition("\n")[2], after.partition("\n")[0]
        head = head if len(head) <= _AROUND else "..." + head[-_AROUND:]
        tail = tail if len(tail) <= _AROUND else tail[:_AROUND] + "..."
        change = (f"[-{removed}-]" if end > begin else "") + (f"{{+{added}+}}" if end_now > begin_now else "")
        yield f"{line}{head}{change}{tail}"
    if len(places) > _MAX_PLACES:
        yield f": and {len(places) - _MAX_PLACES} more places"


def _short(value: Any) -> str:
    if value is ABSENT:
        return "(none)"
    text = value.replace("\n", "\\n") if type(value) is str else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"


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
    one = a if isinstance(a, Cassette) else Cassette.load(a)
    other = b if isinstance(b, Cassette) else Cassette.load(b)
    found = pair_runs(read_run(one), read_run(other), lambda was, now: sum(1 for _ in differences(
        was.call.arguments, now.call.arguments, "")) + 1)  # fmt: skip
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
