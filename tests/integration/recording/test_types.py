"""Values come back as what they were."""

import enum
import re
import uuid
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, TypedDict

import pytest

from agent_cache.recording import (
    Cassette,
    CassetteError,
    intercept,
    record,
    register,
    replay,
)

pydantic = pytest.importorskip("pydantic")
msgspec = pytest.importorskip("msgspec")


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: float


class Row(TypedDict):
    id: int
    at: datetime


@dataclass
class Order:
    id: str
    price: Decimal
    lines: tuple[Point, ...] = ()
    colour: Colour = Colour.RED


class Card(msgspec.Struct):
    number: str
    tags: set[str]


class Model(pydantic.BaseModel):
    name: str
    when: datetime
    inner: list["Model"] = []


@dataclass
class Kind:
    """A class with an attribute of its own beside a tuple, which has no direct form."""

    label: ClassVar[str] = "kind"
    sizes: Any = ()


@dataclass
class Hidden:
    token: uuid.UUID


NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
CARD = Card("1", {"a", "b"})  # its text depends on the hash seed, so it cannot be a test id: workers must agree
ANNOTATED = [
    (Kind, Kind((1, 2))),
    (Order, Order("7", Decimal("1.50"), (Point(1, 2.5),))),
    (list[Order], [Order("7", Decimal("1.50"))]),
    (dict[str, Order], {"a": Order("7", Decimal("1.50"))}),
    (Order | None, None),
    (Order | None, Order("7", Decimal(3))),
    (Card, CARD),
    (Model, Model(name="a", when=NOW, inner=[Model(name="b", when=NOW)])),
    (list[Model], [Model(name="a", when=NOW)]),
    (Row, {"id": 1, "at": NOW}),
    (Colour, Colour.RED),
    (Point, Point(1, 2.0)),
    (datetime, NOW),
    (uuid.UUID, uuid.UUID(int=5)),
    (bytes, b"\x00\xff"),
    (set[int], {1, 2, 3}),
    (tuple[int, str], (1, "a")),
    (dict[int, str], {1: "a", 2: "b"}),
]
PLAIN = [
    None, True, 0, -0.0, 1.0, float("inf"), 2**70, "text", "\ud800", "", [], {}, (1, 2), {1: "a", "1": "b"},
    {"$tuple": [1]}, {"value": {"error": 1}}, {1, 2, 3}, frozenset({("a", 1)}), b"bytes", NOW, date(2026, 1, 2),
    timedelta(days=1), Decimal("1.10"), uuid.UUID(int=7), [1, True, 1.0, (1,)], {"deep": [{"er": (None,)}]},
]  # fmt: skip


def again(path, function):
    with record(path):
        recorded = function()
    with replay(path, strict=True):
        replayed = function()
    return recorded, replayed


def same(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other) and repr(one) == repr(other) if not isinstance(one, set | frozenset) else one == other
    )


@pytest.mark.parametrize(("annotation", "value"), ANNOTATED, ids=lambda each: str(each) if each is not CARD else "card")
def test_a_value_comes_back_as_the_annotation_says(annotation, value, path):
    def make():
        return value

    make.__annotations__["return"] = annotation
    recorded, replayed = again(path, intercept(make, name="make"))
    assert replayed == recorded
    assert type(replayed) is type(recorded)
    assert replayed is not recorded or value is None or isinstance(value, enum.Enum)


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_builtin_values_need_no_annotation(value, path):
    recorded, replayed = again(path, intercept(lambda: value, name="make"))
    assert same(recorded, replayed), (recorded, replayed)


def test_an_object_without_annotation_is_plain_data(path):
    def make():
        return Order("7", Decimal("1.50"))

    recorded, replayed = again(path, intercept(make, name="make"))
    assert recorded == Order("7", Decimal("1.50"))
    assert replayed == {"id": "7", "price": "1.50", "lines": [], "colour": 1}


def test_a_registered_class_needs_no_annotation(path):
    @register
    @dataclass
    class Local:
        a: int

    recorded, replayed = again(path, intercept(lambda: Local(3), name="make"))
    assert recorded == replayed == Local(3)


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
def test_an_object_of_a_class_that_has_changed_is_refused(make, fields, named, path):
    """As it is with another version of a client. The error names the field."""
    old = make(x=int, y=str)

    def answer():
        return old(x=1, y="a")

    answer.__annotations__["return"] = old
    with record(path, strict=True):
        intercept(answer, name="answer")()
    answer.__annotations__["return"] = make(**fields)
    with pytest.raises(CassetteError, match=rf"does not fit the return annotation \(.*\b({named})\b"), replay(path):
        intercept(answer, name="answer")()


def test_a_model_of_a_later_version_has_the_defaults_of_its_new_fields(path):
    def made(**fields):
        model = pydantic.create_model("Answer", __base__=WithState, **fields)
        model.__qualname__ = "Answer"
        return model

    old = made(x=(int, ...), gone=(int, 1))
    new = made(
        x=(int, ...), gone=(int, 1), tags=(list[str], pydantic.Field(default_factory=list)), seed=(int | None, None)
    )

    def answer():
        return old(x=1)

    answer.__annotations__["return"] = old
    with record(path, strict=True):
        intercept(answer, name="answer")()
    answer.__annotations__["return"] = new
    with replay(path, strict=True):
        back = intercept(answer, name="answer")()
    assert type(back) is new
    assert (back, back.model_fields_set, back._state) == (new(x=1), {"x"}, 7)
