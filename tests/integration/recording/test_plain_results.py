"""A result comes back from the plain data of a recording as what it was, in value and type, or is not written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypeVar

import msgspec
import pytest

from agent_cache.recording.outcomes import annotation_of_chunks, schema_of
from agent_cache.values.typed import Unencodable
from tests.harness.searches import searched
from tests.harness.typed import ANNOTATED, Line, Row, Spot, same

T = TypeVar("T")


UserId = NewType("UserId", str)


def roundtrip(value: Any, returns: Any) -> Any:
    plain = schema_of(returns).to_plain(value)
    return schema_of(returns).from_plain(json.loads(json.dumps(plain, allow_nan=False)))


@searched(30, 100, ANNOTATED)
def test_any_value_of_any_annotation_comes_back_the_same(case):
    annotation, value = case
    assert same(roundtrip(value, annotation), value)


def point(first: str, second: str, **options: Any) -> Any:
    return msgspec.defstruct("Point", [(first, int), (second, int)], **options)


def pair(first: str, second: str) -> Any:
    return NamedTuple("Point", [(first, int), (second, int)])


def choice(default: Any, **options: Any) -> Any:
    return msgspec.defstruct("Choice", [("made", tuple[str, ...], default)], omit_defaults=True, **options)


VERSIONS: list[Any] = [
    (lambda: (pair("x", "y"), pair("y", "x")), (1, 2)),
    (lambda: (point("x", "y", array_like=True), point("y", "x", array_like=True)), (1, 2)),
    (lambda: (choice(()), choice(("a",))), ()),
]


def fields(value: Any) -> dict[str, Any]:
    names = getattr(value, "_fields", None) or getattr(value, "__struct_fields__", None) or value.__pydantic_fields__
    return {name: getattr(value, name) for name in names}


@pytest.mark.parametrize(("versions", "values"), VERSIONS)
def test_a_recorded_result_is_read_by_the_names_of_its_fields(versions, values):
    """A recording has no fingerprint, and outlives many versions."""
    first, second = versions()
    value = first(*values)
    assert fields(schema_of(second).from_plain(schema_of(first).to_plain(value))) == fields(value)


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
        (Row | Stream[Line], Line),
        (Row | Stream[Line] | Stream[Spot], Line | Spot),
        (Lines, Line),
        (Vague, Any),
        (list[Line], Any),
        (Any, Any),
        (None, Any),
    ],
)
def test_the_annotation_of_a_stream_tells_what_its_chunks_are(annotation, chunks):
    assert annotation_of_chunks(annotation) == chunks


def test_a_model_with_a_secret_in_it_is_not_written():
    pydantic = pytest.importorskip("pydantic")

    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(Unencodable):
        schema_of(Login).to_plain(Login(password="hunter2"))
