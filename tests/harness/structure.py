"""Values under test, what "the same" means for them, and how to tell whether somebody has changed one."""

from __future__ import annotations

import copy
import dataclasses
import enum
import struct
import types
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from hypothesis import strategies as st

WHEN = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - a time of no zone, which a zone can make two of


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Paint(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    LOW = "low"


class Raw(bytes, enum.Enum):
    X = b"x"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    x: int
    y: int


class Couple(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Point:
    x: Any = 1
    y: Any = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    x: Any = 1
    y: Any = 2


def same(one: Any, other: Any) -> bool:
    """Equal type-exact structure, written without a thought of how keys are made."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, (dict, types.SimpleNamespace)):
        first, second = (value.items() if isinstance(value, dict) else vars(value).items() for value in (one, other))
        return len(first) == len(second) and all(any(same(pair, match) for match in second) for pair in first)
    if isinstance(one, (set, frozenset)):
        return len(one) == len(other) and all(any(same(member, match) for match in other) for member in one)
    if isinstance(one, (list, tuple, deque)):
        return (
            len(one) == len(other)
            and all(map(same, one, other))
            and getattr(one, "maxlen", 0) == getattr(other, "maxlen", 0)
        )
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, datetime):
        zones = (one.tzinfo, other.tzinfo)
        alike = type(zones[0]) is type(zones[1]) and str(zones[0]) == str(zones[1])
        return one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.fold == other.fold and alike
    return bool(one == other)


# Few values, and many that compare equal: two draws are the same often enough, and nearly the same more often.
SCALARS = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, float("nan"), "", "0", "1", "a", "a:1", "\ud800"),
        *(b"", b"1", b"x", b"T", Colour.RED, Paint.RED, Level.LOW, Word.LOW, Access(0), Access(3)),
        *(
            Decimal(1),
            Decimal("1.0"),
            date(2026, 1, 1),
            WHEN,
            WHEN.replace(fold=1),
            timedelta(1),
        ),
        *(WHEN.replace(tzinfo=UTC), uuid.UUID(int=1), PurePosixPath("a"), PureWindowsPath("a"), int, Raw.X),
    ]
)


def of_hashable(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Place, inner, inner),
    )


HASHABLE = st.recursive(SCALARS, of_hashable, max_leaves=4)


def of_values(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.sets(HASHABLE, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Couple, inner, inner),
        inner.map(lambda part: [part, part]),
    )


VALUES = st.recursive(SCALARS, of_values, max_leaves=8)

TWINS: dict[type, Callable[[Any], Any]] = {
    bool: int,
    int: float,
    float: lambda value: -value,
    list: tuple,
    tuple: list,
    dict: lambda value: dict(reversed(value.items())),
    set: frozenset,
    frozenset: lambda value: frozenset(reversed(list(value))),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    Raw: lambda value: bytes(value.value),
    Point: lambda value: Pair(value.x, value.y),
    Pair: lambda value: Couple(*value),
}


@st.composite
def near_pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two values, often of one structure: a copy, or a copy of which one part is replaced by something alike."""
    value = draw(VALUES)
    kind = draw(st.sampled_from(["copy", "twin", "inside", "other"]))
    if kind == "other":
        return value, draw(VALUES)
    other = copy.deepcopy(value)
    if kind == "twin" and type(other) in TWINS:
        return value, TWINS[type(other)](other)
    if kind == "inside" and isinstance(other, (list, deque)) and other:
        place = draw(st.integers(0, len(other) - 1))
        other[place] = TWINS.get(type(other[place]), lambda part: part)(other[place])
    if kind == "inside" and type(other) is dict and other:
        place = draw(st.sampled_from(list(other)))
        other[place] = TWINS.get(type(other[place]), lambda part: part)(other[place])
    return value, other


def spoil(value: Any) -> bool:
    """Change a value wherever it, or anything in it, can be changed; whether there was such a place."""
    spoilt = False
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        spoilt = sum(map(spoil, list(value))) > 0
    elif isinstance(value, dict):
        spoilt = sum(spoil(part) for pair in list(value.items()) for part in pair) > 0
    elif isinstance(value, types.SimpleNamespace):
        spoilt = sum(map(spoil, list(vars(value).values()))) > 0
    elif isinstance(value, (Point, Place)):
        spoilt = spoil(value.x) + spoil(value.y) > 0
    if isinstance(value, (list, deque)):
        value.append("spoilt")
    elif isinstance(value, set):
        value.add("spoilt")
    elif isinstance(value, dict):
        value["spoilt"] = "spoilt"
    elif isinstance(value, bytearray):
        value.extend(b"spoilt")
    elif isinstance(value, types.SimpleNamespace):
        value.spoilt = "spoilt"
    elif isinstance(value, Point):
        value.x = "spoilt"
    else:
        return spoilt
    return True
