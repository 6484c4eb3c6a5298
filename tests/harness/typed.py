"""Annotations and values that fit them, for what writes values down and reads them back."""

from __future__ import annotations

import dataclasses
import enum
import math
import typing
import uuid
from datetime import UTC, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import strategies as st

from agent_cache.values.canonical import MAX_DEPTH, canonical
from agent_cache.values.typed import JSON, MESSAGE_PACK, ReturnedChunks, Returns, schema_of

__all__ = [
    "ANNOTATED", "JSON", "MAX_DEPTH", "MESSAGE_PACK", "Frozen", "Line", "Parcel", "ReturnedChunks", "Returns", "Row",
    "Spot", "Status", "Tree", "same", "schema_of",
]  # fmt: skip


class Status(enum.Enum):
    OPEN = "open"
    SHUT = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Spot(NamedTuple):
    x: int
    label: Any = None


@dataclasses.dataclass
class Line:
    sku: str
    price: float
    extra: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    lines: list[Line]
    status: Status | None = None


class Parcel(msgspec.Struct):
    weight: Decimal
    spot: Spot | None = None
    tags: set[str] = set()


class Row(TypedDict):
    id: int
    at: NotRequired[timedelta]


@dataclasses.dataclass
class Tree:
    children: list[Tree]
    value: int | str = 0


FLOATS = st.floats().map(lambda number: math.nan if number != number else number)  # one NaN: their bits are not kept
ZONES = st.sampled_from(
    [None, UTC, timezone(timedelta(hours=-3)), timezone(timedelta(0), "X"), ZoneInfo("Europe/Berlin")]
)
TEXT = st.text(st.characters(exclude_categories=()), max_size=5)  # halves of surrogate pairs too
HASHABLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers() | st.booleans(),
    str: TEXT,
    bytes: st.binary(max_size=5),
    bool: st.booleans(),
    Decimal: st.decimals(allow_nan=False),
    uuid.UUID: st.uuids(),
    Status: st.sampled_from(Status),
    type(None): st.none(),
}
_builtin = st.recursive(
    st.one_of(
        *(each for kind, each in HASHABLE.items() if kind is not Status),
        FLOATS,
        st.dates(),
        st.datetimes(timezones=ZONES),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT | st.sampled_from(["$tuple", "$typed"]), inner, max_size=2)
        | st.dictionaries(st.integers() | st.tuples(st.integers()), inner, max_size=2)
        | st.frozensets(st.integers() | TEXT, max_size=3)
        | st.sets(st.integers() | TEXT, max_size=3)
    ),
    max_leaves=6,
)
LINES = st.builds(Line, TEXT, FLOATS | st.integers(), _builtin)
SPOTS = st.builds(Spot, st.integers(), _builtin)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    **HASHABLE,
    Any: _builtin,
    float: FLOATS | st.integers(),
    Rights: st.sampled_from([Rights(0), Rights.READ, Rights.READ | Rights.WRITE]),
    Spot: SPOTS,
    Line: LINES,
    Frozen: st.builds(Frozen, st.lists(LINES, max_size=2), st.none() | st.sampled_from(Status)),
    Parcel: st.builds(Parcel, HASHABLE[Decimal], st.none() | SPOTS, st.sets(TEXT, max_size=2)),
    Row: st.fixed_dictionaries({"id": st.integers()}, optional={"at": st.timedeltas()}),
    Tree: st.recursive(
        st.builds(Tree, st.just([])), lambda inner: st.builds(Tree, st.lists(inner, max_size=2), TEXT), max_leaves=4
    ),
    typing.Literal["a", 1, True]: st.sampled_from(["a", 1, True]),
}


def _pair(kind: Any) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    return st.just((kind, KINDS[kind]))


def _lists(inner: Any) -> Any:
    kind, values = inner
    return st.sampled_from([
        (list[kind], st.lists(values, max_size=3)),
        (tuple[kind, ...], st.lists(values, max_size=3).map(tuple)),
        (typing.Sequence[kind], st.lists(values, max_size=3)),
        (dict[str, kind], st.dictionaries(TEXT, values, max_size=3)),
        (dict[int, kind], st.dictionaries(st.integers(), values, max_size=3)),
        (typing.Optional[kind], st.none() | values),  # noqa: UP045 - as below
    ])  # fmt: skip


def _couples(one: Any, other: Any) -> Any:
    return st.sampled_from([
        (tuple[one[0], other[0]], st.tuples(one[1], other[1])),
        (typing.Union[one[0], other[0]], one[1] | other[1]),  # noqa: UP007 - `|` does not take `Any` on 3.11
    ])  # fmt: skip


ANNOTATED = st.recursive(
    st.sampled_from(list(KINDS)).flatmap(_pair)
    | st.sampled_from(list(HASHABLE)).map(lambda kind: (set[kind], st.sets(HASHABLE[kind], max_size=3))),
    lambda inner: inner.flatmap(_lists) | st.tuples(inner, inner).flatmap(lambda pair: _couples(*pair)),
    max_leaves=4,
).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))
"""An annotation, and a value that fits it."""


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, by the rule of keys, which is another code than the one that is tested with it."""
    return type(one) is type(other) and canonical(one) == canonical(other)
