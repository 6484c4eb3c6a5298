"""A result comes back from the plain data of a recording as what it was, in value and type, or is not written."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import ip_address, ip_network
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar

import msgspec
import pytest

from agent_cache.recording.outcomes import annotation_of_chunks, schema_of
from agent_cache.values.typed import Undecodable, Unencodable
from tests.harness.searches import searched
from tests.harness.typed import ANNOTATED, Frozen, Line, Parcel, Rights, Row, Spot, Status, Tree, same

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


def roundtrip(value: Any, returns: Any) -> Any:
    plain = schema_of(returns).to_plain(value)
    return schema_of(returns).from_plain(json.loads(json.dumps(plain, allow_nan=False)))


WHEN = datetime(2026, 1, 1)  # noqa: DTZ001 - many tools say no zone

# -- What comes back ------------------------------------------------------------------------------------------


@searched(30, 100, ANNOTATED)
def test_any_value_of_any_annotation_comes_back_the_same(case):
    annotation, value = case
    assert same(roundtrip(value, annotation), value)


UNSAID = [
    (1, 2),
    {1, 2},
    frozenset({1}),
    b"x",
    {1: 2},
    {True: 1},
    {(1, 2): 3},
    2**200,
    -(2**64),
    float("nan"),
    float("inf"),
    -0.0,
    1.0,
    "\ud800",
    {"$tuple": (1,)},
    {"$dict": b"", "$a": 1},
    {"": ()},
    date(2026, 1, 1),
    WHEN.replace(fold=1),
    time(1, fold=1),
    timedelta(-1, 2, 3),
    Decimal("1.10"),
    Decimal("sNaN"),
    Decimal("-Infinity"),
    PurePosixPath("a/b"),
    ip_address("::ffff:1.2.3.4%a"),
    ip_network("::ffff:1.2.3.0/120"),
    datetime(2026, 1, 1, tzinfo=UTC),
    {"rows": [{"at": WHEN, "price": Decimal("9.99")}, {"at": None, "price": 1}]},
]


@pytest.mark.parametrize("value", [*UNSAID, [float("nan")], {"a": "\ud800"}])
def test_builtin_values_come_back_from_what_json_carries(value):
    assert same(roundtrip(value, Any), value)


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        (Page([Line("a", 1.0)]), Page[Line]),
        (Page([Status.OPEN]), Page[Status]),
        (Half(Status.OPEN, {"a": (1,)}), Half),
        ([Line("a", 1.0), Spot(1), Status.SHUT, {"id": 1}], list[Line | Spot | Status | Row]),
        ([[1], ["a"], [Line("a", 0.5)]], list[list[int] | list[str] | list[Line]]),
        ((Spot(1), 2), tuple[Spot, int] | tuple[str]),
        ({"id": 1, "more": (1,)}, Row),
        ([{"id": 0}, {1: 1}], list[Row | dict[int, int]]),
        (UserId("a"), UserId),
        (Status.OPEN, Annotated[Status, []]),
        (Path("/a"), Path),
        (WHEN, date),
        ({Spot(1): Tree([Tree([], "x")])}, dict[Spot, Tree]),
        (Rights.READ | Rights.WRITE, Rights),
        (Parcel(Decimal(1), Spot(2, (1,)), {"a"}), Parcel | Frozen),
        ([Status.OPEN, {"id": "x"}, (Line("a", 1.0), 1)], list[Any | Status | Row | tuple[Line, int]]),
        (Line("a", 5), Line),  # an int in a field of float stays one
    ],
)
def test_classes_come_back_where_the_annotation_names_them(value, returns):
    assert same(roundtrip(value, returns), value)


def test_a_plain_result_stays_readable_json():
    assert schema_of(list[Line]).to_plain([Line("a", 1.5)]) == [{"sku": "a", "price": 1.5, "extra": None}]


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


REFUSED = [
    (Bare(), Any),
    (Bare(), Bare),
    (lambda: 1, Any),
    (Line, Any),
    (Status.OPEN, Any),
    (Line("a", 1.0), Any),
    (Line("a", 1.0), Spot),
    (stateful(), Stateful),
    (Stateful("a", 1.0), Line),
    (Text("a"), str),
    (Text("a"), Any),
    (deque([1]), Any),
    (threading.Lock(), Any),
    (object(), object),
    ({"a": Bare()}, Any),
    (Ellipsis, Any),
]


@pytest.mark.parametrize(("value", "returns"), REFUSED)
def test_what_would_come_back_as_something_else_is_refused(value, returns):
    with pytest.raises(Unencodable):
        schema_of(returns).to_plain(value)


def test_reasons_name_types_and_no_values():
    with pytest.raises(Unencodable) as caught:
        schema_of(dict[str, int]).to_plain({"password": Text("hunter2")})
    assert "dict" in str(caught.value)
    assert "hunter2" not in str(caught.value)


# -- Versions of classes ------------------------------------------------------------------------------------------


def point(first: str, second: str, **options: Any) -> Any:
    return msgspec.defstruct("Point", [(first, int), (second, int)], **options)


def pair(first: str, second: str) -> Any:
    return NamedTuple("Point", [(first, int), (second, int)])


def choice(default: Any, **options: Any) -> Any:
    return msgspec.defstruct("Choice", [("made", tuple[str, ...], default)], omit_defaults=True, **options)


def aliased(**aliases: str) -> Any:
    pydantic = pytest.importorskip("pydantic")
    fields = {name: (int, pydantic.Field(validation_alias=alias)) for name, alias in aliases.items()}
    return pydantic.create_model("Point", **fields)


VERSIONS: list[Any] = [
    (lambda: (pair("x", "y"), pair("y", "x")), (1, 2)),
    (lambda: (collections.namedtuple("Point", "x y"), collections.namedtuple("Point", "y x")), (1, 2)),
    (lambda: (point("x", "y", array_like=True), point("y", "x", array_like=True)), (1, 2)),
    (lambda: (point("x", "y"), point("x", "y", rename={"x": "y", "y": "x"})), (1, 2)),
    (lambda: (aliased(x="x", y="y"), aliased(x="y", y="x")), (1, 2)),
    (lambda: (choice(()), choice(("a",))), ()),
    (lambda: (choice(msgspec.field(default_factory=tuple)), choice(msgspec.field(default_factory=lambda: ("a",)))), ()),
]


def fields(value: Any) -> dict[str, Any]:
    names = getattr(value, "_fields", None) or getattr(value, "__struct_fields__", None) or value.__pydantic_fields__
    return {name: getattr(value, name) for name in names}


@pytest.mark.parametrize(("versions", "values"), VERSIONS[:3] + VERSIONS[5:])
def test_a_recorded_result_is_read_by_the_names_of_its_fields(versions, values):
    """A recording has no fingerprint, and outlives many versions."""
    first, second = versions()
    value = first(*values)
    assert fields(schema_of(second).from_plain(schema_of(first).to_plain(value))) == fields(value)


# -- Data that nobody here wrote ----------------------------------------------------------------------------------

FLOOD = [{"$int": f"{n * (2**61 - 1):x}"} for n in range(10_000)]  # all of one hash
WRONG = [
    ({"$object": ["Line", {"sku": "a", "price": 1.0, "extra": None}]}, Any),
    ({"$object": ["os.system", {}]}, Line),
    ({"$object": ["Line", {"sku": "a"}]}, Line),
    ({"$enum": ["Status", "NONE", None]}, Status),
    ({"$enum": ["Line", "OPEN", None]}, Line),
    ({"$enum": []}, Status),
    ({"$nothing": 1}, Any),
    ({"$tuple": 1}, Any),
    ({"$set": [[]]}, Any),
    ({"$datetime": ["x", 0, None]}, Any),
    ({"$datetime": ["2026-01-01", 7, None]}, Any),
    ({"$bytes": "§"}, Any),
    ({"$datetime": ["2026-01-01", 0, "../../etc/passwd"]}, Any),
    ({"$datetime": ["2026-01-01", 0, "os.path"]}, Any),
    ({"$int": "f" * 5000}, Any),
    ({"$int": 5}, Any),
    ({"$Decimal": [1]}, Any),
    ({"$Decimal": "x"}, Any),
    ({"$": 1}, Any),
    ({"$model": ["Line", {}, [], None, None]}, Line),
    ({"$timedelta": [10**12, 0, 0]}, Any),
    ({"$set": FLOOD}, Any),
]


@pytest.mark.parametrize(("data", "returns"), WRONG)
def test_data_that_no_encoder_wrote_is_undecodable(data, returns):
    loaded = set(sys.modules)
    with pytest.raises(Undecodable):
        schema_of(returns).from_plain({"$typed": data})
    assert {
        name for name in set(sys.modules) - loaded if not name.startswith(("zoneinfo", "tzdata", "importlib"))
    } == set()


# -- Streams ----------------------------------------------------------------------------------------------------------


class Stream(Generic[T]):
    """As the clients of model providers have them."""

    def __aiter__(self) -> AsyncIterator[T]: ...

    async def __anext__(self) -> T: ...

    async def close(self) -> None: ...


class Lines(Stream[Line]):
    async def __anext__(self) -> Line: ...


class Vague:
    def __next__(self): ...


@pytest.mark.parametrize(
    ("annotation", "chunks"),
    [
        (AsyncIterator[Line], Line),
        (Iterable[Line], Line),
        (Generator[Line, None, int], Line),
        (Stream[Line], Line),
        (Stream[Line | Spot], Line | Spot),
        (Annotated[Stream[Line], "wrapped"], Line),
        (Row | Stream[Line], Line),
        (Row | Stream[Line] | Stream[Spot], Line | Spot),
        (Lines, Line),
        (Stream, Any),
        (Vague, Any),
        (AsyncIterator, Any),
        (list[Line], Any),
        (Line, Any),
        (Any, Any),
        (None, Any),
        ("a text", Any),
    ],
)
def test_the_annotation_of_a_stream_tells_what_its_chunks_are(annotation, chunks):
    assert annotation_of_chunks(annotation) == chunks


# -- pydantic ---------------------------------------------------------------------------------------------------------


def model_cases(pydantic: Any) -> list[tuple[Any, Any]]:
    """Models with state beside their fields, each with its annotation."""

    class Inner(pydantic.BaseModel):
        at: datetime

    class Counted(pydantic.BaseModel):
        word: str
        _seen: list[Line] = pydantic.PrivateAttr(default_factory=list)
        _by_name: dict[str, Line] = pydantic.PrivateAttr(default_factory=dict)

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @functools.cached_property
        def length(self) -> int:
            return len(self.word)

        @functools.cached_property
        def inner(self) -> Inner:
            return Inner(at=WHEN)

    class Open(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        __pydantic_extra__: dict[str, Line]
        word: str
        other: str = ""

    counted = Counted(word="abc")
    counted._seen.append(Line("a", 1.0))
    counted._by_name["a"] = Line("b", 2.0)
    used = Counted(word="abc")
    assert (used.length, used.inner) == (3, Inner(at=WHEN))
    with_request = Open(word="a")
    object.__setattr__(with_request, "_request_id", "req_1")  # as the clients of OpenAI and Anthropic do
    object.__setattr__(with_request, "_other", (1, 2))
    several = Open(word="a", one=Line("a", 1.0), **{"$two": Line("b", 2.0)})
    return [(counted, Counted), (used, Counted), (with_request, Open), (several, Open | None)]


@pytest.mark.parametrize("number", range(4))
def test_models_come_back_with_all_their_state(number):
    value, returns = model_cases(pytest.importorskip("pydantic"))[number]
    back = roundtrip(value, returns)
    assert type(back) is type(value)
    assert back == value  # pydantic compares private attributes, extra ones and the set of fields set as well
    assert vars(back) == {name: each for name, each in vars(value).items() if name not in {"length", "inner"}}
    assert back.model_fields_set == value.model_fields_set
    if number == 1:
        assert (back.length, back.inner) == (3, value.inner)


def test_a_model_of_a_class_that_does_not_validate_comes_back_with_what_it_holds():
    pydantic = pytest.importorskip("pydantic")

    class Constructed(pydantic.BaseModel):
        """As the clients of OpenAI and Anthropic make theirs: from whatever the server sent."""

        reason: Literal["stop", "length"]
        inner: Constructed | None = None

        @classmethod
        def model_construct(cls, _fields_set: Any = None, **values: Any) -> Any:
            return super().model_construct(_fields_set, **values)

    Constructed.model_rebuild(_types_namespace={"Constructed": Constructed})
    value = Constructed.model_construct(reason="new_reason", inner={"reason": [1]})
    back = roundtrip(value, Constructed)
    assert same(back, value)
    assert vars(back) == {"reason": "new_reason", "inner": {"reason": [1]}}
    odd = Constructed.model_construct(reason=Line("a", 1.0))
    with pytest.raises(Unencodable):
        schema_of(Constructed).to_plain(odd)


def test_a_model_with_a_secret_in_it_is_not_written():
    pydantic = pytest.importorskip("pydantic")

    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(Unencodable):
        schema_of(Login).to_plain(Login(password="hunter2"))
