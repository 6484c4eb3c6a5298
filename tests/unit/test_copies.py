"""Copies are what the tool gave, however they are made: from images, or by `copy.deepcopy`."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import enum
import functools
import gc
import inspect
import itertools
import sqlite3
import sys
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
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

    def __post_init__(self) -> None:
        COUNTED.append("__post_init__")

    @functools.cached_property
    def found(self) -> list[Any]:
        return [self.b]


@dataclasses.dataclass(slots=True)
class Narrow:
    a: Any = None
    b: Any = None


class Wider(Narrow):
    __slots__ = ("c",)

    c: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    a: Any = None
    b: Any = None


@dataclasses.dataclass(frozen=True)
class OpenFact:
    a: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    a: Any = None
    b: Any = None


class Open:
    def __init__(self, a: Any, b: Any) -> None:
        COUNTED.append("__init__")
        self.a = a
        self.b = b

    def __setattr__(self, name: str, value: Any) -> None:
        COUNTED.append("__setattr__")
        super().__setattr__(name, value)


class Slotted:
    __slots__ = ("__private", "a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a = a
        self.__private = b


class Both(Slotted):
    """Slots of a base and a `__dict__`."""


@attrs.define(slots=False)
class Attributes:
    a: Any = None
    b: Any = None


@attrs.define
class SlottedAttributes:
    a: Any = None
    b: Any = None


class Model(pydantic.BaseModel):
    a: Any = None
    b: Any = None
    _kept: Any = pydantic.PrivateAttr(default=None)


class OpenModel(pydantic.BaseModel, extra="allow"):
    a: Any = None

    def model_post_init(self, context: Any, /) -> None:
        COUNTED.append("model_post_init")


class FrozenModel(pydantic.BaseModel, frozen=True):
    a: Any = None
    b: Any = None


class Root(pydantic.RootModel[Any]):
    pass


class Record(msgspec.Struct):
    a: Any = None
    b: Any = None

    def __post_init__(self) -> None:
        COUNTED.append("__post_init__")


class FrozenRecord(msgspec.Struct, frozen=True):
    a: Any = None
    b: Any = None


class OpenRecord(msgspec.Struct, dict=True):
    a: Any = None
    b: Any = None


class Pair(NamedTuple):
    a: Any
    b: Any


class Slot(NamedTuple):
    """A place in `content_of`."""

    kind: type
    name: str


COUNTED: list[str] = []
"""Methods of these classes that have been called."""


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


def with_unset(a: Any, b: Any) -> Narrow:
    made = Narrow(a, b)
    del made.b
    return made


def with_cached(a: Any, b: Any) -> Box[Any]:
    made = Box(a, b)
    assert made.found
    return made


def wider(a: Any, b: Any) -> Wider:
    made = Wider(a)
    made.c = b
    return made


MAKERS: list[Callable[[Any, Any], Any]] = [
    *(Line, Box, Narrow, Place, Fact, Open, Slotted, Both, Attributes, SlottedAttributes, Record, FrozenRecord),
    *(OpenRecord, Pair, with_private, with_extra, with_undeclared, with_unset, with_cached, wider),
    lambda a, b: Model(a=a, b=b),
    lambda a, b: FrozenModel(a=a, b=b),
    lambda a, b: Root([a, b]),
    lambda a, b: [a, b, a],
    lambda a, b: (a, b),
    lambda a, b: {"a": a, "b": [b]},
    lambda a, b: {1: a, None: b, 2.5: a, b"k": b, (1, "k"): a},
    lambda a, b: {Text("a"): a},
    lambda a, b: {Place(1, "k"): a, Colour.RED: b},
    lambda a, b: deque([a, b]),
    lambda a, b: OrderedDict(b=a, a=b),
    lambda a, b: defaultdict(list, a=[a], b=b),
    lambda a, b: Table(a=a),
    lambda a, b: Row([a, b]),
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
    return not isinstance(part, (Place, Fact, FrozenRecord, Decimal, UUID, PurePosixPath))


MADE_FROM_IMAGES: dict[str, Callable[[], Any]] = {
    "dataclass": lambda: Line([1], {"a": Line(2)}),
    "dataclass with slots": lambda: Narrow([1], Narrow(2)),
    "dataclass with more slots": lambda: wider([1], [2]),
    "frozen dataclass": lambda: Fact([1]),
    "frozen dataclass with slots": lambda: Place([1]),
    "generic dataclass": lambda: Box([1]),
    "class": lambda: Open([1], 2),
    "class with slots": lambda: Slotted([1], 2),
    "class with slots and more": lambda: Both([1], 2),
    "attrs": lambda: Attributes([1]),
    "pydantic": lambda: Model(a=[1], b=Model(a={"b": [2]})),
    "pydantic with private attributes": lambda: with_private([1], [2]),
    "pydantic with extra": lambda: with_extra([1], [2]),
    "frozen pydantic": lambda: FrozenModel(a=1),
    "Struct": lambda: Record([1], Record({"a": [2]})),
    "frozen Struct": lambda: FrozenRecord([1]),
    "NamedTuple": lambda: Pair([1], (2, ([3],))),
    "tree with a date": lambda: {"at": datetime(2026, 1, 2, tzinfo=UTC), "rows": [{"id": 1}, {"id": 2}]},
    "tree with a tuple": lambda: {"at": (1, [2]), "set": {1}},
    "tree with a large integer": lambda: {"at": [2**70]},
    "tree with half a character": lambda: {"at": ["\ud800"]},
    "list in two places": lambda: (lambda one: {"a": one, "b": one})([1]),
}


@pytest.mark.parametrize("name", MADE_FROM_IMAGES)
def test_no_code_of_the_classes_runs_for_a_copy(name: str, monkeypatch: pytest.MonkeyPatch):
    """Neither constructors, nor `__post_init__`, nor validators, nor `__setattr__`; and no `copy.deepcopy`."""
    value = MADE_FROM_IMAGES[name]()
    monkeypatch.setattr(copies.copy, "deepcopy", None)
    COUNTED.clear()
    make = auto_copier(value)
    assert make is not None
    assert described(make()) == described(value)
    assert COUNTED == []


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


class WithReduceEx(Own):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return marked, (type(self),)


class WithGetstate(Own):
    def __getstate__(self) -> Any:
        return {"parts": [1], "mark": "its way"}


class WithSetstate(Own):
    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, mark="its way")


class WithNew(Own):
    mark: Any

    def __new__(cls) -> Any:
        made = super().__new__(cls)
        made.count = len(CREATED)
        CREATED.append(cls)
        return made


class WithGetattr(Own):
    """As a proxy does, it finds `__deepcopy__` where its class has none."""

    def __getattr__(self, name: str) -> Any:
        if name == "__deepcopy__":
            return lambda memo: marked(type(self))
        raise AttributeError(name)


class WithGetattribute(Own):
    def __getattribute__(self, name: str) -> Any:
        if name == "__deepcopy__":
            return lambda memo: marked(type(self))
        return super().__getattribute__(name)


class WithCopyreg(Own):
    pass


class WithSetattr:
    """`copy.deepcopy` sets slots by it."""

    __slots__ = ("mark", "parts")

    def __init__(self) -> None:
        self.parts = [1]
        object.__setattr__(self, "mark", "made")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, "its way" if name == "mark" else value)


class WithBoth(Own):
    def __getstate__(self) -> Any:
        return 1

    def __setstate__(self, state: Any) -> None:
        self.mark = "its way"


class StructOfItsOwn(msgspec.Struct):
    parts: list[int]
    mark: str = "made"

    def __reduce__(self) -> Any:
        return StructOfItsOwn, ([1], "its way")


class ModelOfItsOwn(pydantic.BaseModel):
    parts: list[int]
    mark: str = "made"

    def __deepcopy__(self, memo: Any = None) -> ModelOfItsOwn:
        return ModelOfItsOwn(parts=[1], mark="its way")


class TupleOfItsOwn(NamedTuple):
    parts: list[int]
    mark: str = "made"

    def __deepcopy__(self, memo: Any) -> TupleOfItsOwn:
        return TupleOfItsOwn([1], "its way")


class WithOwnDict:
    """What it calls its `__dict__` is not where its attributes are."""

    __dict__ = property(lambda self: {})  # type: ignore[assignment]

    def __init__(self) -> None:
        self.parts = [1]


class OpenTuple(tuple[Any, ...]):
    _fields = ()


class HidesSlot(Slotted):
    """A slot of the base cannot be read by its name."""

    __slots__ = ("a",)


CREATED: list[type] = []


def marked(kind: type) -> Any:
    made = kind()
    made.mark = "its way"
    return made


OWN_WAYS: list[Callable[[], Any]] = [
    *(WithDeepcopy, WithReduce, WithReduceEx, WithGetstate, WithSetstate, WithGetattr),
    *(WithGetattribute, WithCopyreg, WithSetattr, WithBoth),
    lambda: StructOfItsOwn([1]),
    lambda: ModelOfItsOwn(parts=[1]),
    lambda: TupleOfItsOwn([1]),
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


UNKNOWN: dict[str, Callable[[], Any]] = {
    "attrs with slots": lambda: SlottedAttributes([1]),
    "root model": lambda: Root([1]),
    "tuple with a `__dict__`": lambda: OpenTuple([[1]]),
    "class with another `__dict__`": WithOwnDict,
    "class that hides a slot": lambda: HidesSlot([1], 2),
    "exception": lambda: ValueError([1]),
    "subclass of dict": lambda: Table(a=[1]),
    "deque": lambda: deque([[1]]),
    "lock's cousin": lambda: functools.partial(list, [1]),
    "set of mutable objects": lambda: {Open([1], 2)},
    "dict with a mutable key": lambda: {Open([1], 2): 1},
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [Line(value)]], ids=["itself", "inside"])
def test_what_may_have_more_state_than_can_be_seen_is_copied_as_deepcopy_does(name: str, wrap: Callable[[Any], Any]):
    value = wrap(UNKNOWN[name]())
    make = auto_copier(value)
    assert make is not None
    assert described(make()) == described(make()) == described(copy.deepcopy(value))
    assert make() is not make()


class Connection(sqlite3.Connection):
    """With state that only C code sees."""


@pytest.mark.parametrize("kind", [sqlite3.Connection, Connection])
def test_what_has_state_that_no_attribute_shows_is_not_copied(kind: type[sqlite3.Connection]):
    value = kind(":memory:")
    try:
        with pytest.raises(copies.UncopyableError):
            auto_copier([value])
    finally:
        value.close()


def test_a_struct_that_keeps_its_hash_is_copied_by_its_fields():
    class Hashed(msgspec.Struct, frozen=True, cache_hash=True):
        a: Any
        b: Any = None

    value = Hashed((1, Text("a")))
    assert hash(value)
    make = auto_copier([value])
    assert make is not None
    assert make() == [value]
    assert hash(make()[0]) == hash(value)


@pytest.mark.parametrize("kind", [Model, FrozenModel])
def test_a_model_with_an_attribute_under_the_name_of_a_property_is_copied_whole(kind: type[Any]):
    value = kind(a=1)
    vars(value)["copied"] = [1]
    vars(value)["model_fields_set"] = [2]
    vars(value)[3] = [3]
    make = auto_copier(value)
    assert make is not None
    assert described(make()) == described(value)
    assert make().__dict__["model_fields_set"] is not value.__dict__["model_fields_set"]


def test_a_class_that_decides_how_its_objects_are_created_is_asked():
    copier = auto_copier([WithNew()])
    assert copier is not None
    CREATED.clear()
    copier()
    assert len(CREATED) == 1


def test_a_way_that_is_registered_later_counts_from_then_on():
    value = Line([1])
    assert auto_copier(value) is not None
    copyreg.pickle(Line, lambda value: (Line, ("its way",)))  # type: ignore[arg-type]
    try:
        copier = auto_copier(value)
        assert copier is not None
        assert copier().a == "its way"
    finally:
        del copyreg.dispatch_table[Line]


@dataclasses.dataclass(frozen=True)
class Lazy:
    """A frozen object that is changed all the same, by its own methods."""

    number: int

    @functools.cached_property
    def parts(self) -> list[int]:
        return [self.number]


@dataclasses.dataclass(frozen=True, slots=True)
class LazySlots:
    number: int
    known: Any = None

    def parts(self) -> list[int]:
        if self.known is None:
            object.__setattr__(self, "known", [self.number])
        return self.known  # type: ignore[no-any-return]


class LazyStruct(msgspec.Struct, frozen=True):
    number: int
    known: Any = None

    def parts(self) -> list[int]:
        if self.known is None:
            msgspec.structs.force_setattr(self, "known", [self.number])
        return self.known  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class LazyProperty:
    number: int

    @property
    def parts(self) -> list[int]:
        return self.__dict__.setdefault("known", [self.number])  # type: ignore[no-any-return]


class Loose(OpenFact):
    """Its base forbids to set the fields, and only these."""


def loose() -> Loose:
    made = Loose(1)
    made.other = 2  # type: ignore[attr-defined]
    return made


@dataclasses.dataclass(frozen=True, slots=True)
class Priced:
    name: str
    price: Decimal = Decimal(1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.strip())

    @classmethod
    def free(cls, name: str) -> Priced:
        return cls(name, Decimal(0))


SHARED: list[Any] = [
    *(
        Fact(1, "a"),
        Fact(Fact((1, Place("x")), frozenset({1})), Colour.RED),
        Place(1, 2.0),
        Priced("a"),
        Priced.free("a"),
    ),
    *(FrozenRecord(1, FrozenRecord((2,))), Pair(1, (2, Pair(3, None))), (Place(1), Fact(b"x"))),
    Fact(datetime(2026, 1, 2, tzinfo=UTC), PurePosixPath("a")),
]


@pytest.mark.parametrize("value", SHARED, ids=repr)
def test_a_frozen_object_of_immutable_parts_is_shared(value: Any):
    assert auto_copier(value) is None


def test_a_frozen_object_with_a_dict_is_copied_since_vars_changes_it():
    value = OpenFact(1)
    copier = auto_copier((value,))
    assert copier is not None
    vars(copier()[0])["a"] = 2
    assert copier() == (value,) == (OpenFact(1),)


def test_a_struct_keeps_what_is_beside_its_fields():
    value = OpenRecord([1])
    value.token = {"next": "abc"}
    copier = auto_copier(value)
    assert copier is not None
    copier().token["next"] = "changed"
    assert (copier(), vars(copier())) == (value, {"token": {"next": "abc"}})


def test_the_class_of_a_named_tuple_is_not_kept():
    """Programs make one for each query."""
    copiers, classes = [], []
    for _ in range(3):
        row = namedtuple("row", "a")
        copiers.append(auto_copier(row([1])))
        classes.append(weakref.ref(row))
        del row
    copiers.clear()
    gc.collect()
    assert [reference() for reference in classes] == [None] * 3


def test_a_large_table_of_immutable_rows_is_shared():
    assert auto_copier(tuple((number, str(number), None) for number in range(100_000))) is None


@pytest.mark.parametrize(
    "value",
    [
        *(Lazy(1), LazySlots(1), LazyStruct(1), LazyProperty(1), loose(), FrozenModel(a=1), Line(1), Narrow(1)),
        *(Record(1), Model(a=1), Fact([1]), Place({}), FrozenRecord([1]), Pair(1, []), Fact(Line(1)), Fact((1, [2]))),
        *(Fact(Text("a")), Attributes(1)),
    ],
    ids=repr,
)
def test_what_anything_can_change_is_not_shared(value: Any):
    make = auto_copier(value)
    assert make is not None
    assert make() is not make()


@pytest.mark.parametrize("value", [Lazy(1), LazySlots(1), LazyStruct(1), LazyProperty(1)], ids=repr)
def test_what_a_frozen_object_has_computed_for_one_caller_is_not_seen_by_another(value: Any):
    make = auto_copier(value)
    assert make is not None
    parts = make().parts
    (parts() if callable(parts) else parts).append(2)
    parts = make().parts
    assert (parts() if callable(parts) else parts) == [1]


def test_an_attribute_that_is_added_to_a_frozen_object_counts():
    value = OpenFact(1)
    vars(value)["other"] = [1]
    make = auto_copier(value)
    assert make is not None
    make().other.append(2)
    assert make().other == [1]


PLAIN = st.recursive(
    LEAVES.filter(lambda leaf: type(leaf) in copies._PLAIN),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["a", 1, None, 0.5, b"k", "b"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@searched(20, 200, PLAIN)
def test_an_image_gives_back_a_plain_tree(value: Any):
    make = auto_copier([[value]])
    assert make is not None
    assert described(make()) == described(faster(make)()) == described([[value]])


@pytest.mark.parametrize(
    "part",
    [
        *(
            (1,),
            {1},
            frozenset({1}),
            Text("a"),
            Number(1),
            True,
            2**64,
            -(2**63) - 1,
            "\ud800",
            1j,
            Colour.RED,
            bytearray(),
        ),
        *({Text("a"): 1}, {Number(1): 1}, {(1,): 1}, {True: 1}, {2**64: 1}, {"\ud800": 1}, Table(), Row(), Decimal(1)),
        *(UUID(int=1), datetime(2026, 1, 2, tzinfo=UTC), Record(1), Line(1), OrderedDict(a=1)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("wrap", [lambda part: [[part]], lambda part: {"a": {"b": part}}], ids=["list", "dict"])
def test_a_part_that_message_pack_would_change_is_given_back_as_it_was(part: Any, wrap: Callable[[Any], Any]):
    make = auto_copier(wrap(part))
    assert make is not None
    assert described(make()) == described(faster(make)()) == described(wrap(part))


def test_a_tree_of_many_levels_is_copied_where_little_of_the_stack_is_left():
    value: Any = []
    for _ in range(200):
        value = [value]
    make = auto_copier(value)
    assert make is not None
    left = 100

    def down(levels: int) -> Any:
        return make() if levels == 0 else down(levels - 1)

    given = down(sys.getrecursionlimit() - len(inspect.stack()) - left)
    for _ in range(200):
        assert len(given) == 1
        given = given[0]
    assert given == []


@pytest.mark.parametrize("make", [lambda part: [part, part], lambda part: (part, part), lambda part: Fact(part, part)])
@pytest.mark.parametrize("innermost", [1, [1]], ids=["immutable", "mutable"])
def test_parts_that_are_shared_at_every_level_are_looked_at_once(make: Callable[[Any], Any], innermost: Any):
    """2**60 of them would be looked at otherwise."""
    value = innermost
    for _ in range(60):
        value = make(value)
    copier = auto_copier(value)
    if copier is not None:
        given = copier()
        for _ in range(60):
            one, other = (given.a, given.b) if isinstance(given, Fact) else given
            assert one is other
            given = one


def test_tuples_are_made_in_the_order_in_which_they_are_in_each_other():
    innermost: Any = ([1],)
    middle = (innermost, [2])
    value = [innermost, (middle, innermost), middle]
    value[0][0].append(value)
    make = auto_copier(value)
    assert make is not None
    assert described(make()) == described(value)


def test_nothing_of_the_tools_own_objects_is_kept_alive():
    """A copy is made of the kept parts alone."""

    class Watched(Line):
        pass

    value = Watched([Watched()], {"a": Watched(Record(Watched()), Model(a=Watched()))})
    make = auto_copier(value)
    inside = value.b["a"]
    watched = [weakref.ref(part) for part in (value, value.a[0], inside, inside.a.a, inside.b.a)]
    del value, inside
    gc.collect()
    assert [each() for each in watched] == [None] * 5
    assert make is not None
    assert isinstance(make().a[0], Watched)


def test_a_class_is_forgotten_with_its_values():
    @dataclasses.dataclass
    class Local:
        a: Any

    reference = weakref.ref(Local)
    assert auto_copier(Local([1])) is not None
    assert auto_copier(Local) is None
    del Local
    gc.collect()
    assert reference() is None


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
