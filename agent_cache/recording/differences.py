"""Where two values differ: divergences, ``cassette diff`` and drift show what is found here.

Elements of lists are aligned, and texts that are JSON are compared as what they say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from agent_cache.recording.outcomes import common_length, encode_sorted

ABSENT: Final[Any] = object()
"""Stands for a value that only the other side has."""

Places: TypeAlias = dict[str, tuple[Any, Any]]
"""By path, ``result.items[*].price``: the value on the one side and on the other; None if it is not there."""
KEY: Final = r'(?:\.[^\s.:\[\]"]+|\["(?:[^"\\]|\\.)*"\])'
"""A pattern of the step of a path to a key of an object."""

_LONG = 60
"""Texts up to this length are shown as a whole."""
_AROUND = 24
_MAX_SHOWN = 100
_MAX_LINES = 12
_MAX_ELEMENTS = 1000
_MAX_DEPTH = 50
_ELEMENT = re.compile(r"\[\d+\](?: \([^)]*\))?")
_PLAIN_KEY = re.compile(r"[^\s.:*\[\]\"]+")
_WORD = re.compile(r"\w+|\W")


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
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{encode_sorted(key).decode()}]"


def places_of(was: Any, now: Any, most: int = 1_000) -> Places:
    """Where two values differ, with the first two values at each place; lists are one place for all elements."""
    found: Places = {}
    for path, one, other in islice(differences(was, now, ""), most):
        place = _ELEMENT.sub("[*]", path)
        found.setdefault(place, (None if one is ABSENT else one, None if other is ABSENT else other))
    return found


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


def changes(was: Any, now: Any, path: str) -> list[str]:
    """Lines that say where `now` differs from `was`, each with the path to the place."""
    lines: list[str] = []
    for place, one, other in differences(was, now, path):
        if type(one) is str and type(other) is str and max(len(one), len(other)) > _LONG:
            lines.append(f"{place}{_change_of_text(one, other)}")
        else:
            lines.append(f"{place}: {_short(one)} -> {_short(other)}")
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    return lines


def _change_of_text(was: str, now: str) -> str:
    """What stands between the words that both texts begin and end with, and a little around it."""
    ones, others = _WORD.findall(was), _WORD.findall(now)
    first = common_length(ones, others)
    last = common_length(ones[first:][::-1], others[first:][::-1])
    before, after = "".join(ones[:first]), "".join(ones[len(ones) - last :])
    removed, added = "".join(ones[first : len(ones) - last]), "".join(others[first : len(others) - last])
    line = f" line {before.count(chr(10)) + 1}: " if "\n" in was else ": "
    head, tail = before.rpartition("\n")[2], after.partition("\n")[0]
    head = head if len(head) <= _AROUND else "..." + head[-_AROUND:]
    tail = tail if len(tail) <= _AROUND else tail[:_AROUND] + "..."
    change = (f"[-{_short(removed)}-]" if removed else "") + (f"{{+{_short(added)}+}}" if added else "")
    return f"{line}{head}{change}{tail}"


def _short(value: Any) -> str:
    if value is ABSENT:
        return "(none)"
    text = value.replace("\n", "\\n") if type(value) is str else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"
