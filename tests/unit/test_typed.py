"""A value comes back from bytes as what it was, in value and type, or is not written at all."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, NewType, TypeVar, Union

import msgspec
import pytest

from agent_cache.remote.codecs import Undecodable, Unencodable
from tests.harness.batches import in_batches
from tests.harness.searches import searched
from tests.harness.typed import (
    ANNOTATED,
    JSON,
    MAX_DEPTH,
    MESSAGE_PACK,
    Frozen,
    Line,
    Parcel,
    ReturnedChunks,
    Returns,
    Rights,
    Row,
    Spot,
    Status,
    Tree,
    same,
    schema_of,
)

if TYPE_CHECKING:
    from somewhere import Unknown

T = TypeVar("T")


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


@dataclasses.dataclass
class Half:
    known: Status
    unknown: Unknown


UserId = NewType("UserId", str)


def roundtrip(value: Any, returns: Any, wire: Any = MESSAGE_PACK) -> Any:
    data, is_tagged = schema_of(returns).dump(value, wire)
    return schema_of(returns).load(data, wire, is_tagged=is_tagged)


WHEN = datetime(2026, 1, 1)  # noqa: DTZ001 - many tools say no zone

# -- What comes back ------------------------------------------------------------------------------------------


@searched(15, 100, ANNOTATED)
def test_any_value_of_any_annotation_comes_back_the_same(case):
    annotation, value = case
    for wire in (MESSAGE_PACK, JSON):
        assert same(roundtrip(value, annotation, wire), value)


UNSAID: list[Any] = [
    *((1, 2), {1, 2}, frozenset({1}), b"x", {1: 2}, {True: 1}, {(1, 2): 3}, 2**200, -(2**64), float("nan")),
    *(float("inf"), -0.0, 1.0, "\ud800", {"$tuple": (1,)}, {"$dict": b"", "$a": 1}, date(2026, 1, 1)),
    *(WHEN.replace(fold=1), time(1, fold=1), timedelta(-1, 2, 3), Decimal("1.10"), PurePosixPath("a/b")),
    *(datetime(2026, 1, 1, tzinfo=UTC), {"rows": [{"at": WHEN, "price": Decimal("9.99")}, {"at": None}]}),
]


@pytest.mark.parametrize("wire", [MESSAGE_PACK, JSON])
@pytest.mark.parametrize("returns", [Any, "a text", dict | Any])
@in_batches("value", UNSAID, size=40)
def test_builtin_values_come_back_where_no_annotation_says_what_they_are(value, returns, wire):
    assert same(roundtrip(value, returns, wire), value)


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        (Page([Line("a", 1.0)]), Page[Line]),
        (Half(Status.OPEN, {"a": (1,)}), Half),
        ([Line("a", 1.0), Spot(1), Status.SHUT, {"id": 1}], list[Line | Spot | Status | Row]),
        ((Spot(1), 2), tuple[Spot, int] | tuple[str]),
        ({"id": 1, "more": (1,)}, Row),
        (UserId("a"), UserId),
        (Status.OPEN, Annotated[Status, []]),
        ({Spot(1): Tree([Tree([], "x")])}, dict[Spot, Tree]),
        (Rights.READ | Rights.WRITE, Rights),
        (Parcel(Decimal(1), Spot(2, (1,)), {"a"}), Parcel | Frozen),
        ([Status.OPEN, {"id": "x"}, (Line("a", 1.0), 1)], list[Any | Status | Row | tuple[Line, int]]),
        (Line("a", 5), Line),  # an int in a field of float stays one
    ],
)
@pytest.mark.parametrize("wire", [MESSAGE_PACK, JSON])
def test_classes_come_back_where_the_annotation_names_them(value, returns, wire):
    assert same(roundtrip(value, returns, wire), value)


def test_a_plain_result_stays_readable_json():
    plain = {"id": 1, "lines": [{"sku": "a", "price": 1.5}]}
    assert JSON.encode(plain) == schema_of(dict).dump(plain, JSON)[0]


# -- What is refused ------------------------------------------------------------------------------------------


class Stateful(Line):
    pass


def stateful() -> Stateful:
    line = Stateful("a", 1.0)
    line.note = "beside the fields"
    return line


class Bare:
    pass


class Text(str):
    __slots__ = ()


REFUSED: list[tuple[Any, Any]] = [
    *((value, Any) for value in (Bare(), lambda: 1, Line, Status.OPEN, Line("a", 1.0), Text("a"), deque([1]))),
    *((value, Any) for value in (threading.Lock(), {"a": Bare()}, Ellipsis)),
    *((Bare(), Bare), (Line("a", 1.0), Spot), (stateful(), Stateful), (Stateful("a", 1.0), Line)),
    *((Text("a"), str), (object(), object)),
]


@pytest.mark.parametrize(("value", "returns"), REFUSED)
def test_what_would_come_back_as_something_else_is_refused(value, returns):
    for wire in (MESSAGE_PACK, JSON):
        with pytest.raises(Unencodable):
            schema_of(returns).dump(value, wire)


def nested(depth: int, wrap: Any) -> Any:
    return functools.reduce(lambda value, _: wrap(value), range(depth), 1)


def test_values_are_written_down_to_the_depth_and_the_size_that_are_promised():
    deep = nested(MAX_DEPTH, lambda value: [value])
    assert roundtrip(deep, Any) == deep
    with pytest.raises(Unencodable, match="levels deep"):
        schema_of(Any).dump([deep], MESSAGE_PACK)
    with pytest.raises(Unencodable, match="parts"):  # shared a million fold, and refused at once
        schema_of(Any).dump(nested(60, lambda value: [value, value]), MESSAGE_PACK)


def test_reasons_name_types_and_no_values():
    with pytest.raises(Unencodable) as caught:
        schema_of(dict[int, int]).dump({1: Text("hunter2")}, MESSAGE_PACK)
    assert "test_typed.Text" in str(caught.value)
    assert "hunter2" not in str(caught.value)


# -- Annotations ----------------------------------------------------------------------------------------------


async def says_line() -> Line: ...


class Tool:
    async def __call__(self) -> Line: ...

    async def method(self) -> Line: ...


@functools.wraps(says_line)
def dressed() -> None: ...


def saying(hint: Any) -> Any:
    def tool(): ...

    tool.__annotations__ = {} if hint is ... else {"return": hint}
    return tool


@pytest.mark.parametrize("function", [says_line, Tool(), Tool().method, functools.partial(says_line), dressed])
def test_the_return_annotation_is_looked_up_in_what_is_called(function):
    assert schema_of(Returns(function)).annotation == Line


@pytest.mark.parametrize(
    ("hint", "annotation"),
    [
        *((..., Any), ("None", type(None)), ("dict[str, Unknown]", Any), ("Line | None", Line | None)),
        (Awaitable[Line], Line),
    ],
)
def test_the_return_annotation_means_what_its_names_do(hint, annotation):
    assert schema_of(Returns(saying(hint))).annotation == annotation
    assert schema_of(Returns(len)).annotation is Any


def test_a_class_that_is_local_to_the_function_around_the_tool_is_known():
    @dataclasses.dataclass
    class Local:
        x: int

    async def tool() -> Local:
        return Local(1)

    assert roundtrip(Local(1), Returns(tool)) == Local(1)


@pytest.mark.parametrize(
    ("annotation", "chunks"),
    [
        *((AsyncIterator[Line], Line), (Iterable[Line], Line), (Generator[Line, None, int], Line)),
        *((AsyncIterator, Any), (list[Line], Any), (Any, Any)),
    ],
)
def test_the_annotation_of_a_generator_tells_what_its_chunks_are(annotation, chunks):
    assert ReturnedChunks(saying(annotation)).resolve() == tuple[chunks, ...]


def test_an_annotation_is_read_at_the_first_value():
    async def early() -> Later: ...  # noqa: F821 - that is the point

    returns = Returns(early)
    early.__globals__["Later"] = Line
    try:
        assert schema_of(returns).annotation is Line
    finally:
        del early.__globals__["Later"]


def test_annotations_that_mean_the_same_have_one_fingerprint():
    one = schema_of(Union[int, str, None])  # noqa: UP007 - as older code says it
    assert one.fingerprint == schema_of(None | str | int).fingerprint
    assert (
        len({schema_of(kind).fingerprint for kind in (int, str, list[int], list[str], Line, Spot, Any, Row, Tree)}) == 9
    )


def test_a_class_that_has_changed_has_another_fingerprint():
    def make(**hints: Any) -> type:
        return dataclasses.make_dataclass("Order", hints.items())

    first = schema_of(make(id=int)).fingerprint
    assert schema_of(make(id=int)).fingerprint == first
    assert schema_of(make(id=str)).fingerprint != first
    assert schema_of(make(id=int, at=datetime)).fingerprint != first
    assert schema_of(list[make(id=str)]).fingerprint != schema_of(list[make(id=int)]).fingerprint

    def members(**values: int) -> Any:
        return enum.Enum("Kind", values)

    assert schema_of(members(A=1)).fingerprint != schema_of(members(A=2)).fingerprint


def point(first: str, second: str, **options: Any) -> Any:
    return msgspec.defstruct("Point", [(first, int), (second, int)], **options)


def pair(first: str, second: str) -> Any:
    return NamedTuple("Point", [(first, int), (second, int)])


def aliased(**aliases: str) -> Any:
    pydantic = pytest.importorskip("pydantic")
    fields = {name: (int, pydantic.Field(validation_alias=alias)) for name, alias in aliases.items()}
    return pydantic.create_model("Point", **fields)


VERSIONS: list[Any] = [
    (lambda: (pair("x", "y"), pair("y", "x")), (1, 2)),
    (lambda: (point("x", "y", array_like=True), point("y", "x", array_like=True)), (1, 2)),
    (lambda: (point("x", "y"), point("x", "y", rename={"x": "y", "y": "x"})), (1, 2)),
    (lambda: (aliased(x="x", y="y"), aliased(x="y", y="x")), (1, 2)),
]


def fields(value: Any) -> dict[str, Any]:
    names = getattr(value, "_fields", None) or getattr(value, "__struct_fields__", None) or value.__pydantic_fields__
    return {name: getattr(value, name) for name in names}


@pytest.mark.parametrize("wire", [MESSAGE_PACK, JSON])
@pytest.mark.parametrize(("versions", "values"), VERSIONS)
def test_two_versions_of_a_class_do_not_misread_each_other(versions, values, wire):
    """Fields that changed places, names in data that were swapped, another default: what is not read is a miss."""
    first, second = versions()
    value = first(*values) if hasattr(first, "_fields") or hasattr(first, "__struct_fields__") else first(x=1, y=2)
    data, is_tagged = schema_of(list[first]).dump([value], wire)
    assert same(schema_of(list[first]).load(data, wire, is_tagged=is_tagged), [value])
    if schema_of(list[first]).fingerprint == schema_of(list[second]).fingerprint:
        (back,) = schema_of(list[second]).load(data, wire, is_tagged=is_tagged)
        assert fields(back) == fields(value)


@pytest.mark.parametrize("wire", [MESSAGE_PACK, JSON])
@pytest.mark.parametrize("place", [lambda kind: kind, lambda kind: tuple[kind, Line], lambda kind: tuple[Line, kind]])
def test_a_default_that_a_class_leaves_out_of_data_is_not_that_of_another_version(place, wire):
    first, second = (msgspec.defstruct("Point", [("x", int, x)], omit_defaults=True) for x in (1, 2))
    made = {str(first): first(), str(Line): Line("a", 1.0)}
    kinds = getattr(place(first), "__args__", ())
    value = tuple(made[str(kind)] for kind in kinds) or first()
    data, is_tagged = schema_of(place(first)).dump(value, wire)
    back = schema_of(place(second)).load(data, wire, is_tagged=is_tagged)
    assert [one.x for one in (back if kinds else [back]) if hasattr(one, "x")] == [1]


# -- Data that nobody here wrote ----------------------------------------------------------------------------------

WRONG = [
    ({"$object": ["Line", {"sku": "a", "price": 1.0, "extra": None}]}, Any),
    ({"$object": ["os.system", {}]}, Line),
    ({"$object": ["Line", {"sku": "a"}]}, Line),
    ({"$enum": ["Status", "NONE", None]}, Status),
    ({"$enum": ["Line", "OPEN", None]}, Line),
    ({"$nothing": 1}, Any),
    ({"$tuple": 1}, Any),
    ({"$set": [[]]}, Any),
    ({"$datetime": ["x", 0, None]}, Any),
    ({"$bytes": "§"}, Any),
    ({"$datetime": ["2026-01-01", 0, "../../etc/passwd"]}, Any),
    ({"$int": 5}, Any),
    ({"$Decimal": "x"}, Any),
    ({"$Fraction": ["1e9"]}, Any),  # or of a billion digits
    ({"$model": ["Line", {}, [], None, None]}, Line),
    ({"$timedelta": [10**12, 0, 0]}, Any),
]


@pytest.mark.parametrize(("data", "returns"), WRONG)
def test_data_that_no_encoder_wrote_is_undecodable(data, returns):
    loaded = set(sys.modules)
    with pytest.raises(Undecodable):
        schema_of(returns).load(MESSAGE_PACK.encode(data), MESSAGE_PACK, is_tagged=True)
    assert {
        name for name in set(sys.modules) - loaded if not name.startswith(("zoneinfo", "tzdata", "importlib"))
    } == set()


# -- pydantic ---------------------------------------------------------------------------------------------------------


def model_cases(pydantic: Any) -> list[tuple[Any, Any]]:
    """Models with state beside their fields, each with its annotation."""

    class Inner(pydantic.BaseModel):
        at: datetime
        price: Decimal = Decimal("1.10")

    class Root(pydantic.RootModel[list[Inner]]):
        pass

    class Counted(pydantic.BaseModel):
        word: str = pydantic.Field("x", alias="Word")
        anything: Any = None
        _seen: list[Line] = pydantic.PrivateAttr(default_factory=list)

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @functools.cached_property
        def length(self) -> int:
            return len(self.word)

    class Open(pydantic.BaseModel, extra="allow"):
        __pydantic_extra__: dict[str, Line]
        word: str
        other: str = ""

    inner, counted, used = Inner(at=WHEN), Counted(Word="abc", anything=(1, 2)), Counted(Word="abc")
    counted._seen.append(Line("a", 1.0))
    assert used.length == 3
    with_request = Open(word="a")
    object.__setattr__(with_request, "_request_id", "req_1")  # as the clients of OpenAI and Anthropic do
    partial = Open.model_construct(other="b")  # its required field is missing: a server has left it out
    several = Open(word="a", one=Line("a", 1.0), **{"$two": Line("b", 2.0)})
    return [
        *((inner, Inner), (Root([inner]), Root), (counted, Counted), (Counted(), Counted), (used, Counted)),
        *((with_request, Open), (partial, Open), (several, Open | None), ([counted, inner], list[Counted | Inner])),
    ]


@pytest.mark.parametrize("wire", [MESSAGE_PACK, JSON])
def test_models_come_back_with_all_their_state(wire):
    for value, returns in model_cases(pytest.importorskip("pydantic")):
        back = roundtrip(value, returns, wire)
        assert type(back) is type(value)
        assert back == value  # pydantic compares private attributes, extra ones and the set of fields set as well
        if not isinstance(value, list):
            assert vars(back) == {name: each for name, each in vars(value).items() if name != "length"}
            assert back.model_fields_set == value.model_fields_set


def test_data_gives_a_model_no_attributes_that_its_class_has():
    pydantic = pytest.importorskip("pydantic")

    class Query(pydantic.BaseModel):
        text: str
        extra: Any = None
        _private: int = pydantic.PrivateAttr(default=0)

    schema = schema_of(Query)
    for name in ("model_dump", "_private", "__class__", "__pydantic_private__"):
        value = Query(text="a")
        vars(value)[name] = 1
        with pytest.raises(Unencodable):
            schema.dump(value, JSON)
        forged = {
            "$object": [Query.__qualname__, {"text": "a", "extra": None, name: 1}, None, {"_private": 0}, ["text"]]
        }
        with pytest.raises(Undecodable):
            schema.load(JSON.encode(forged), JSON, is_tagged=True)
    with pytest.raises(Unencodable):  # what it is shown as says nothing of it
        roundtrip(Query(text="a", extra=pydantic.SecretStr("hunter2")), Query)
