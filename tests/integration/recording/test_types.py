"""A result comes back from a recording as what it was, in value and type, or a recording says that it will not."""

from __future__ import annotations

import re
import tempfile
import uuid
from collections import namedtuple
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest

from agent_cache.recording import Cassette, CassetteError, intercept, record, register, replay
from tests.harness.cassettes import annotation_of_chunks
from tests.harness.searches import searched
from tests.harness.typed import ANNOTATED, Line, Row, Spot, same

pydantic = pytest.importorskip("pydantic")
msgspec = pytest.importorskip("msgspec")

T = TypeVar("T")
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def making(value: Any, annotation: Any = Any) -> Any:
    def make():
        return value

    make.__annotations__["return"] = annotation
    return intercept(make, name="make")


def again(value: Any, annotation: Any = Any, annotation_now: Any = None) -> Any:
    """The value that a replay gives for this one. Its function may have another annotation then."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        with record(path):
            making(value, annotation)()
        with replay(path, strict=True):
            return making(None, annotation if annotation_now is None else annotation_now)()


@searched(30, 100, ANNOTATED)
def test_any_value_of_any_annotation_comes_back_the_same(case):
    annotation, value = case
    assert same(again(value, annotation), value)


class Model(pydantic.BaseModel):
    name: str
    when: datetime
    inner: list[Model] = []


class Linked(pydantic.BaseModel):
    url: pydantic.HttpUrl
    others: list[pydantic.AnyUrl]


@dataclass
class Kind:
    """A class with an attribute of its own beside a tuple, which has no direct form."""

    label: ClassVar[str] = "kind"
    sizes: Any = ()


@dataclass
class Order:
    id: str
    price: Decimal


@dataclass
class Hidden:
    token: uuid.UUID


EDGES = [
    (Any, -0.0), (Any, {"$tuple": [1]}), (Any, {"value": {"error": 1}}), (Any, {1: "a", "1": "b"}),
    (Any, [1, True, 1.0, (1,)]), (Any, {"deep": [{"er": (None,)}]}), (Kind, Kind((1, 2))),
    (list[Model], [Model(name="a", when=NOW, inner=[Model(name="b", when=NOW)])]),
    (Linked, Linked(url="https://a.example/?q=1", others=["ftp://b.example/"])),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value"), EDGES, ids=range(len(EDGES)))
def test_what_looks_like_something_else_comes_back_as_what_it_was(annotation, value):
    found = again(value, annotation)
    assert (found, repr(found)) == (value, repr(value))


def test_an_object_without_annotation_is_plain_data_unless_its_class_is_registered():
    @register
    @dataclass
    class Local:
        a: int

    assert again(Order("7", Decimal("1.50"))) == {"id": "7", "price": "1.50"}
    assert again(Local(3)) == Local(3)


def test_a_model_with_a_secret_in_it_is_not_written(path):
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    with record(path):
        making(Login(password="hunter2"), Login)()
    assert "hunter2" not in path.read_text()


# Streams


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
        (Stream[Line], Line),
        (Annotated[Stream[Line], "wrapped"], Line),
        (Row | Stream[Line] | Stream[Spot], Line | Spot),
        (Lines, Line),
        *((one, Any) for one in (Vague, list[Line], Any, None)),
    ],
)
def test_the_annotation_of_a_stream_tells_what_its_chunks_are(annotation, chunks):
    assert annotation_of_chunks(annotation) == chunks


# What does not come back


class Bare:
    """Declares no fields."""


def rows():
    return {"rows": [{"at": NOW, "handle": Bare()}]}


def fail():
    raise LocalError("bad")


LocalError = type("Unfindable", (ValueError,), {})


def fail_within():
    raise ExceptionGroup("several", [ValueError("a"), LocalError("b")])


def pieces():
    yield 1
    yield Bare()
    raise LocalError("bad")


def hidden() -> Hidden:
    return Hidden(token=uuid.UUID(int=17))


UNREPLAYABLE = [
    (rows, [r"rows returned a builtins:dict, which cannot be replayed \(.*test_types.Bare declares no fields"]),
    (fail, ["fail raised .*:Unfindable, which a replay raises as RecordedError"]),
    (fail_within, ["fail_within raised .*:Unfindable, which a replay raises as RecordedError"]),
    (pieces, ["pieces yielded a .*test_types:Bare, which cannot be", "pieces raised .*:Unfindable"]),
    (lambda: Order("7", Decimal(1)), ["returned a .*test_types:Order, which a replay gives back as plain data"]),
    (hidden, ["hidden returned a value that does not fit its annotation without its secrets"]),
]


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(("function", "said"), UNREPLAYABLE, ids=lambda each: getattr(each, "__name__", ""))
def test_what_cannot_be_replayed_is_said_while_recording(function, said, is_strict, path, caplog):
    recorded = intercept(function, name=function.__name__.strip("<>"))

    def run():
        for _ in range(2):
            try:
                result = recorded()
                if function is pieces:
                    list(result)
            except (LocalError, ExceptionGroup):
                pass

    for _ in range(2):  # each recording says it, once
        caplog.clear()
        if is_strict:
            with pytest.raises(CassetteError, match="cannot be replayed") as raised, record(path, strict=True):
                run()
            assert all(re.search(text, str(raised.value)) for text in said)
        else:
            with record(path):
                run()
        warnings = [entry.getMessage() for entry in caplog.records]
        assert len(warnings) == len(said)
        assert all(re.search(text, "\n".join(warnings)) for text in said)
    assert Cassette.load(path).trailer is not None, "it is written all the same"


class WithState(pydantic.BaseModel):
    _state: int = pydantic.PrivateAttr(default=7)


def point(first: str, second: str) -> Any:
    return msgspec.defstruct("Point", [(first, int), (second, int)], array_like=True)


def pair(first: str, second: str) -> Any:
    return NamedTuple("Point", [(first, int), (second, int)])


@pytest.mark.parametrize("make", [point, pair])
def test_a_recorded_result_is_read_by_the_names_of_its_fields(make):
    """A recording has no fingerprint, and outlives many versions."""
    old, new = make("x", "y"), make("y", "x")
    back = again(old(1, 2), old, new)
    assert (back.x, back.y) == (1, 2)


KINDS_OF_CLASSES = {
    "dataclass": lambda **fields: make_dataclass("Answer", [*fields.items()]),
    "pydantic": lambda **fields: pydantic.create_model(
        "Answer", __base__=WithState, **{name: (each, ...) for name, each in fields.items()}
    ),
    "struct": lambda **fields: msgspec.defstruct("Answer", [*fields.items()]),
}


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"x": int, "y": str, "new": int}, "new"), ({"x": int, "other": str}, "other|y")],
    ids=["requires a new field", "renamed a field"],
)
@pytest.mark.parametrize("make", KINDS_OF_CLASSES.values(), ids=KINDS_OF_CLASSES.keys())
def test_an_object_of_a_class_that_has_changed_is_refused(make, fields, named):
    """As it is with another version of a client. The error names the field."""
    old = make(x=int, y=str)
    with pytest.raises(CassetteError, match=rf"does not fit the return annotation \(.*\b({named})\b"):
        again(old(x=1, y="a"), old, make(**fields))


def test_a_model_of_a_later_version_has_the_defaults_of_its_new_fields():
    def made(**fields):
        model = pydantic.create_model("Answer", __base__=WithState, x=(int, ...), gone=(int, 1), **fields)
        model.__qualname__ = "Answer"
        return model

    old = made()
    new = made(tags=(list[str], pydantic.Field(default_factory=list)), seed=(int | None, None))
    back = again(old(x=1), old, new)
    assert type(back) is new
    assert (back, back.model_fields_set, back._state) == (new(x=1), {"x"}, 7)


LATER_VERSIONS = {
    "dataclass": lambda *fields: make_dataclass(
        "Answer", [one if len(one) < 3 else (*one[:2], field(default_factory=one[2].copy)) for one in fields]
    ),
    "struct": lambda *fields: msgspec.defstruct("Answer", [*fields]),
    "namedtuple": lambda *fields: namedtuple(
        "Answer", [one[0] for one in fields], defaults=[one[2] for one in fields if len(one) > 2]
    ),
}


@pytest.mark.parametrize("make", LATER_VERSIONS.values(), ids=LATER_VERSIONS.keys())
def test_an_object_without_a_direct_form_is_read_by_a_later_version_of_its_class_too(make):
    old, new = make(("x", Any), ("gone", Any)), make(("x", Any), ("tags", list[str], []))
    back = again({1: old(x=(1, 2), gone=3)}, dict[int, old], dict[int, new])
    assert (type(back[1]), back) == (new, {1: new(x=(1, 2), tags=[])})
