"""Copies are what the tool gave, however they are made: from images, or by `copy.deepcopy`."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import enum
import functools
import inspect
import itertools
import sqlite3
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import strategies as st

from agent_cache.values import copies
from agent_cache.values.canonical import PYDANTIC_STATE
from agent_cache.values.copies import auto_copier, faster
from tests.harness.searches import searched

attrs = pytest.importorskip("attrs")
pydantic = pytest.importorskip("pydantic")

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Table(dict[Any, Any]):
    pass


class Row(list[Any]):
    pass


@dataclasses.dataclass
class Line:
    a: Any = None
    b: Any = None


@dataclasses.dataclass
class Box(Generic[T]):
    a: T
    b: Any = None

    @functools.cached_property
    def found(self) -> list[Any]:
        return [self.b]


@dataclasses.dataclass(slots=True)
class Narrow:
    a: Any = None
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    a: Any = None
    b: Any = None


class Open:
    def __init__(self, a: Any, b: Any) -> None:
        self.a = a
        self.b = b


@attrs.define(slots=False)
class Attributes:
    a: Any = None
    b: Any = None


class Model(pydantic.BaseModel):
    a: Any = None
    b: Any = None
    _kept: Any = pydantic.PrivateAttr(default=None)


class OpenModel(pydantic.BaseModel, extra="allow"):
    a: Any = None


class FrozenModel(pydantic.BaseModel, frozen=True):
    a: Any = None
    b: Any = None


class Root(pydantic.RootModel[Any]):
    pass


class Record(msgspec.Struct):
    a: Any = None
    b: Any = None


class FrozenRecord(msgspec.Struct, frozen=True):
    a: Any = None
    b: Any = None


class Pair(NamedTuple):
    a: Any
    b: Any


class Slot(NamedTuple):
    """A place in `content_of`."""

    kind: type
    name: str


def with_private(a: Any, b: Any) -> Model:
    made = Model(a=a)
    made._kept = b
    return made


def with_extra(a: Any, b: Any) -> OpenModel:
    return OpenModel(a=a, other=b)  # type: ignore[call-arg]


def with_undeclared(a: Any, b: Any) -> Line:
    made = Line(a)
    made.other = b  # type: ignore[attr-defined]
    return made


MAKERS: list[Callable[[Any, Any], Any]] = [
    *(Line, Box, Narrow, Place, Open, Attributes, Record, FrozenRecord, Pair, with_private, with_extra),
    with_undeclared,
    lambda a, b: Model(a=a, b=b),
    lambda a, b: FrozenModel(a=a, b=b),
    lambda a, b: Root([a, b]),
    lambda a, b: [a, b, a],
    lambda a, b: (a, b),
    lambda a, b: {"a": a, "b": [b]},
    lambda a, b: {Text("a"): a},
    lambda a, b: {Place(1, "k"): a, Colour.RED: b},
    lambda a, b: deque([a, b]),
    lambda a, b: OrderedDict(b=a, a=b),
    lambda a, b: defaultdict(list, a=[a], b=b),
    lambda a, b: [{"n": 1}, a, {"n": [b]}],
]

LEAVES = st.sampled_from([
    *(None, True, False, 0, 1, -1, 2**63, 2**64, -(2**63) - 1, 0.0, -0.0, 1.0, float("nan"), float("inf"), 1j, ...),
    *("", "a", "\ud800", "\U0001f600", b"", b"x", Colour.RED, Decimal("1.0"), UUID(int=1), PurePosixPath("a")),
    *(datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, fold=1), timedelta(1), int),  # noqa: DTZ001
    *(Text("a"), Number(1)),
])  # fmt: skip
FRESH = st.sampled_from([list, dict, set, tuple, frozenset, bytearray, lambda: {1, "a"}, lambda: {(1, 2)}])


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def twice(part: Any, make: Callable[[Any, Any], Any]) -> Any:
        return make(part, part)

    makers = st.sampled_from(MAKERS)
    return st.one_of(
        st.builds(lambda make, a, b: make(a, b), makers, inner, inner),
        st.builds(twice, inner, makers),
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", ""]), inner, max_size=3),
    )


@st.composite
def values(draw: st.DrawFn) -> Any:
    value = draw(st.recursive(st.one_of(LEAVES, FRESH.map(lambda make: make())), larger, max_leaves=10))
    if draw(st.booleans()):  # a cycle, through whatever can hold one
        parts = parts_of(value)
        # pydantic copies these dicts itself: no user has a reference to one.
        own = {id(getattr(part, name)) for part in parts if is_model(part) for name in PYDANTIC_STATE}
        inside = [part for part in parts if type(part) in (list, dict, Line) and id(part) not in own]
        if inside:
            link(draw(st.sampled_from(inside)), draw(st.sampled_from([value, *inside])))
    return value


def link(holder: Any, part: Any) -> None:
    if type(holder) is list:
        holder.append(part)
    elif type(holder) is dict:
        holder["link"] = part
    else:
        holder.link = part


def parts_of(value: Any) -> list[Any]:
    """Everything in a value that is not a leaf, each object once."""
    found, seen = [value], set[int]()
    for part in found:
        if id(part) not in seen:
            seen.add(id(part))
            found.extend(each for _, each in content_of(part))
    return list({id(part): part for part in found if content_of(part) or is_mutable(part)}.values())


def is_mutable(part: Any) -> bool:
    return isinstance(part, (list, dict, set, bytearray, deque, pydantic.BaseModel)) or hasattr(part, "__dict__")


def content_of(part: Any) -> list[tuple[Any, Any]]:
    """Every part of an object with the place where it is: nothing that a tool could see is left out."""
    if isinstance(part, (enum.Enum, type, PurePosixPath, UUID, Decimal, complex, datetime, timedelta)):
        return []
    found: list[tuple[Any, Any]] = []
    if isinstance(part, dict):
        found += [
            pair for number, (key, each) in enumerate(part.items()) for pair in ((("key", number), key), (number, each))
        ]
    elif isinstance(part, (list, tuple, deque)):
        found += enumerate(part)
    elif isinstance(part, (set, frozenset)):
        found += enumerate(sorted(part, key=repr))
    for kind in type(part).__mro__:
        for name, attribute in vars(kind).items():
            if inspect.ismemberdescriptor(attribute):
                try:
                    found.append((Slot(kind, name), attribute.__get__(part)))
                except AttributeError:
                    continue
    if hasattr(part, "__dict__"):
        found += vars(part).items()
    return found


def described(value: Any) -> list[Any]:
    """A value as a list of its objects: types, content, and which object is where.

    Objects without parts are described by their text, as they may be shared or not.
    """
    numbers: dict[int, int] = {}
    order: list[Any] = []

    def number(part: Any) -> Any:
        if not content_of(part) and not is_mutable(part):
            return type(part), repr(part)
        if id(part) not in numbers:
            numbers[id(part)] = len(order)
            order.append(part)
        return numbers[id(part)]

    number(value)
    found: list[Any] = [number(value)]
    for part in order:
        text = repr(part) if isinstance(part, (str, int, bytearray)) else ""
        extra = (part.maxlen if isinstance(part, deque) else None, getattr(part, "default_factory", None))
        found.append((type(part), text, extra, [(place, number(each)) for place, each in content_of(part)]))
    return found


@searched(13, 150, values())
def test_a_copy_is_what_the_tool_gave_and_shares_nothing_that_can_be_changed(value: Any):
    """`copy.deepcopy` makes the same, but that it gives up a cycle through a NamedTuple or a Struct."""
    make = auto_copier(value)
    if make is None:
        assert not any(type(part).__hash__ is None or is_model(part) for part in parts_of(value))
        return
    is_deep_copied = isinstance(make, functools.partial) and make.func is copy.deepcopy
    expected = described(copy.deepcopy(value) if is_deep_copied else value)
    owners = [value, make(), make(), faster(make)(), faster(make)()]
    for owner in owners[1:]:
        assert described(owner) == expected
    changeable = [{id(part) for part in parts_of(owner) if can_change(part)} for owner in owners]
    for one, other in itertools.combinations(changeable, 2):
        assert not one & other


def is_model(part: Any) -> bool:
    return isinstance(part, pydantic.BaseModel)


def can_change(part: Any) -> bool:
    """Whether anybody can set something in this object itself."""
    if isinstance(part, (tuple, frozenset, str, int, enum.Enum, type)):
        return False
    return not isinstance(part, (Place, FrozenRecord, Decimal, UUID, PurePosixPath))


class Own:
    """A class that decides how its objects are copied. `mark` shows it."""

    def __init__(self) -> None:
        self.parts = [1]
        self.mark = "made"


class WithDeepcopy(Own):
    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        made = type(self)()
        made.mark = "its way"
        return made


class WithReduce(Own):
    def __reduce__(self) -> Any:
        return marked, (type(self),)


class WithCopyreg(Own):
    pass


class ModelOfItsOwn(pydantic.BaseModel):
    parts: list[int]
    mark: str = "made"

    def __deepcopy__(self, memo: Any = None) -> ModelOfItsOwn:
        return ModelOfItsOwn(parts=[1], mark="its way")


def marked(kind: type) -> Any:
    made = kind()
    made.mark = "its way"
    return made


OWN_WAYS: list[Callable[[], Any]] = [
    *(WithDeepcopy, WithReduce, WithCopyreg),
    lambda: ModelOfItsOwn(parts=[1]),
]


@pytest.mark.parametrize("make", OWN_WAYS, ids=lambda make: make().__class__.__name__)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [Line(value)]], ids=["itself", "inside"])
def test_a_class_that_has_a_way_of_its_own_to_be_copied_is_left_to_it(
    make: Callable[[], Any], wrap: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(copyreg.dispatch_table, WithCopyreg, lambda value: (marked, (type(value),)))
    copier = auto_copier(wrap(make()))
    assert copier is not None
    given = copier()
    assert (given[0].a if isinstance(given, list) else given).mark == "its way"


def local() -> Any:
    @dataclasses.dataclass
    class Local:
        a: Any

    return Local([1])


UNKNOWN: dict[str, Callable[[], Any]] = {
    "exception": lambda: ValueError([1]),
    "partial": lambda: functools.partial(list, [1]),
    "set of mutable objects": lambda: {Open([1], 2)},
    "dict with a mutable key": lambda: {Open([1], 2): 1},
    "object of a local class": local,
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [Line(value)]], ids=["itself", "inside"])
def test_any_object_is_copied_as_deepcopy_does(name: str, wrap: Callable[[Any], Any]):
    value = wrap(UNKNOWN[name]())
    make = auto_copier(value)
    assert make is not None
    assert described(make()) == described(make()) == described(copy.deepcopy(value))
    assert make() is not make()


def test_what_has_state_that_no_attribute_shows_is_not_copied():
    value = sqlite3.connect(":memory:")
    try:
        with pytest.raises(copies.UncopyableError):
            auto_copier([value])
    finally:
        value.close()


SHARED: list[Any] = [
    Pair(1, (2, Pair(3, None))),
    (Colour.RED, frozenset({b"x"})),
    (UUID(int=1), int),
    PurePosixPath("a"),
]


@pytest.mark.parametrize("value", SHARED, ids=repr)
def test_a_tuple_of_immutable_parts_is_shared(value: Any):
    assert auto_copier(value) is None


@pytest.mark.parametrize(
    "value", [Place(1), (Place(1),), FrozenModel(a=1), FrozenRecord(1), Pair(1, []), Text("a"), Attributes(1)], ids=repr
)
def test_what_anything_can_change_is_not_shared(value: Any):
    make = auto_copier(value)
    assert make is not None
    assert make() is not make()


CHANGED: list[Any] = [
    *((1,), {1}, frozenset({1}), Text("a"), Number(1), True, 2**64, -(2**63) - 1, "\ud800", 1j, Colour.RED),
    *({Text("a"): 1}, {(1,): 1}, {True: 1}, {2**64: 1}, {"\ud800": 1}, Table(), Row(), Decimal(1), UUID(int=1)),
    *(bytearray(), datetime(2026, 1, 2, tzinfo=UTC), Record(1), Line(1), OrderedDict(a=1)),
]


@pytest.mark.parametrize("part", CHANGED, ids=repr)
@pytest.mark.parametrize("wrap", [lambda part: [[part]], lambda part: {"a": {"b": part}}], ids=["list", "dict"])
def test_a_part_that_message_pack_would_change_is_given_back_as_it_was(part: Any, wrap: Callable[[Any], Any]):
    make = auto_copier(wrap(part))
    assert make is not None
    assert described(make()) == described(faster(make)()) == described(wrap(part))


@pytest.mark.parametrize("make", [lambda part: [part, part], lambda part: (part, part), lambda part: Place(part, part)])
@pytest.mark.parametrize("innermost", [1, [1]], ids=["immutable", "mutable"])
def test_parts_that_are_shared_at_every_level_are_looked_at_once(make: Callable[[Any], Any], innermost: Any):
    """2**60 of them would be looked at otherwise."""
    value = innermost
    for _ in range(60):
        value = make(value)
    copier = auto_copier(value)
    for each in () if copier is None else (copier, faster(copier)):
        given = each()
        for _ in range(60):
            one, other = (given.a, given.b) if isinstance(given, Place) else given
            assert one is other
            given = one


def test_iterators_are_not_copied():
    class Cursor:
        def __init__(self) -> None:
            self.rows = [1]

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            return self.rows.pop()

    with pytest.raises(copies.UncopyableError):
        auto_copier(Cursor())
