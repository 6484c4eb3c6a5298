"""Where the arguments of two calls differ, as a person looks for it: by field, by element of a list, by word.

A prompt is thousands of words of which two have changed. So lists are aligned, and long texts are compared word by
word. The work is bounded: what is longer is shown by the place where the difference begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from agent_cache.recording.tagged import encode_sorted

__all__ = ["changes", "common_length", "likeness"]

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


def common_length(ones: Sequence[Any], others: Sequence[Any]) -> int:
    """How many elements two sequences begin with in common, found by halves: slices are compared at once."""
    begin, end = 0, min(len(ones), len(others))
    while begin < end:
        middle = (begin + end + 1) // 2
        if ones[begin:middle] == others[begin:middle]:
            begin = middle
        else:
            end = middle - 1
    return begin


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


def likeness(was: Any, now: Any, depth: int = 0) -> float:
    """How much two values are alike, from 0 up to 1 for equal ones, by what they have in common."""
    if was == now:
        return 1.0
    if type(was) is dict and type(now) is dict and depth < _MAX_DEPTH:
        names = {*was, *now}
        return 0.95 * sum(likeness(was[n], now[n], depth + 1) for n in names if n in was and n in now) / len(names)
    if type(was) is list and type(now) is list and depth < _MAX_DEPTH:
        pairs = list(zip(was, now, strict=False))[:_MAX_ELEMENTS]
        most = min(max(len(was), len(now)), _MAX_ELEMENTS)
        return 0.95 * sum(likeness(one, other, depth + 1) for one, other in pairs) / most
    if type(was) is str and type(now) is str:
        begin = common_length(was, now)
        end = common_length(was[begin:][::-1], now[begin:][::-1])
        return 0.05 + 0.9 * (begin + end) / max(len(was), len(now))
    return 0.05 if type(was) is type(now) else 0.0
