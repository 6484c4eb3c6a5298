"""Recordings of version 1 of the format: what they matched rightly they match for ever, and nothing else."""

import asyncio
import enum
import functools
import pathlib
import re
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from agent_cache.recording import Cassette, CassetteError, DivergenceError, intercept, record, replay

EARLIER = pathlib.Path(__file__).with_name("earlier.jsonl")
"""Was recorded by the last release that wrote version 1, by `recorded` with what is below."""

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@dataclass
class Order:
    id: str
    price: Decimal = Decimal("1.50")


class Point(NamedTuple):
    x: int
    y: int


class Size(enum.Enum):
    SMALL = 1


class Label(str):
    __slots__ = ()


class Client:
    def __init__(self, host: str) -> None:
        self.host = host

    def handle(self, event: str) -> None: ...


class Unset: ...


UNSET = Unset()

RIGHT: dict[str, Any] = {
    "plain": lambda: {"a": [1, 2.5, None, True, "x"]},
    "tuple": lambda: (1, (2,)),
    "set": lambda: {"b", "a"},
    "keys": lambda: {1: "a"},
    "bytes": lambda: b"\xff",
    "order": lambda: Order("W1"),
    "point": lambda: Point(1, 2),
    "size": lambda: [Size.SMALL],
    "label": lambda: Label("a"),
    "ordered": lambda: OrderedDict(a=1),
    "day": lambda: date(2026, 7, 1),
    "noon": lambda: NOON,
    "noon in Berlin": lambda: NOON.astimezone(ZoneInfo("Europe/Berlin")),
    "span": lambda: timedelta(1),
    "path": lambda: pathlib.PurePosixPath("a/b"),
    "nan": lambda: float("nan"),
    "function": lambda: len,
    "class": lambda: Order,
    "lambda": lambda: lambda: 1,
    "method": lambda: Client("a").handle,
    "unset": lambda: UNSET,
    "object": object,
    "client": lambda: Client("a"),
    "lock": asyncio.Lock,
    "nested": lambda: {"client": [Client("a"), Order("W2")]},
}
WRONG: dict[str, Any] = {
    "complex": lambda: 1 + 2j,
    "range": lambda: range(3),
    "deque": lambda: deque([1]),
    "slice": lambda: slice(1),
    "pattern": lambda: re.compile("a"),
    "partial": lambda: functools.partial(int, base=2),
    "error": lambda: ValueError("a"),
    "nested complex": lambda: [{"a": 1j}],
}


class Shop:
    def search(self, text: str, limit: int = 10, top: Any = UNSET) -> str:
        return f"{text} {limit} {top is UNSET}"


look = intercept(lambda name, value: f"answer {name}", name="look")
search = intercept(Shop().search, name="search")


@intercept(name="outer")
def outer(order: Order) -> str:
    return str(look("inner", order))


def recorded(path: pathlib.Path) -> None:
    """Make the file. The names in it are those of this module."""
    with record(path):
        for name, make in (RIGHT | WRONG).items():
            look(name, make())
        search("a")
        search("b", top=1)
        outer(Order("W1"))


@pytest.fixture
def earlier(path: pathlib.Path) -> pathlib.Path:
    path.parent.mkdir()
    path.write_bytes(EARLIER.read_bytes())
    assert Cassette.load(path).header.agent_cache_cassette == 1
    return path


def test_what_was_recorded_rightly_is_found_again(earlier):
    with replay(earlier) as player:
        for name, make in RIGHT.items():
            assert look(name, make()) == f"answer {name}"
        assert search("a", limit=10) == "a 10 True"
        assert search("b", top=1) == "b 10 False"
        assert outer(Order("W1")) == "answer inner"
        assert player.remaining == len(WRONG)


def test_a_value_that_was_not_recorded_is_not_guessed(earlier):
    for name, make in WRONG.items():
        with pytest.raises(DivergenceError, match="record it again") as caught, replay(earlier):
            look(name, make())
        assert caught.value.expected["arguments"]["name"] == name


def test_that_an_object_was_known_by_its_class_is_said_once(earlier, caplog, monkeypatch):
    monkeypatch.setattr("agent_cache.recording.arguments._warned", set())
    for _ in range(2):
        with replay(earlier):
            for name in ("client", "nested", "unset", "order"):
                look(name, RIGHT[name]())
    [warning] = [message for message in caplog.messages if "known by its class alone" in message]
    assert "test_earlier_recordings.Client" in warning


def test_calls_inside_of_an_earlier_one_are_found(earlier):
    with replay(earlier, policy={"outer": "live"}):
        assert outer(Order("W1")) == "answer inner"
    with pytest.raises(DivergenceError), replay(earlier, policy={"outer": "live"}):
        outer(Order("W2"))


def test_more_calls_than_were_recorded_are_no_earlier_ones(earlier):
    with pytest.raises(CassetteError, match="was recorded 1 times, and was called once more"), replay(earlier):
        for _ in range(2):
            look("order", Order("W1"))


def test_new_calls_in_an_earlier_recording_are_of_this_version(earlier):
    """The calls that are made again are written anew, the others are kept, and both are found."""
    made = dict(list(RIGHT.items())[:10])
    with record(earlier, mode="new_episodes"):
        for name, make in made.items():
            assert look(name, make()) == f"answer {name}"
        assert outer(Order("W1")) == "answer inner"
        assert look("complex", 3 + 4j) == "answer complex"
        assert search("c") == "c 10 True"
    text = earlier.read_text()
    assert text.startswith('{"agent_cache_cassette":2')
    with replay(earlier) as player:
        for name, make in RIGHT.items():
            assert look(name, make()) == f"answer {name}"
        assert look("complex", 3 + 4j) == "answer complex"
        assert [search("a"), search("b", top=1), search("c")] == ["a 10 True", "b 10 False", "c 10 True"]
        assert outer(Order("W1")) == "answer inner"
        assert player.remaining == len(WRONG)
    with replay(earlier, policy={"outer": "live"}):
        assert outer(Order("W1")) == "answer inner"
    with pytest.raises(DivergenceError), replay(earlier):
        look("label", "b")
    with pytest.raises(DivergenceError), replay(earlier):
        look("complex", 1 + 2j)


def test_an_earlier_recording_that_is_saved_again_is_found(earlier):
    Cassette.load(earlier).save(earlier)
    test_what_was_recorded_rightly_is_found_again(earlier)
    test_a_value_that_was_not_recorded_is_not_guessed(earlier)


def test_a_call_of_this_version_is_no_earlier_one(path):
    """What version 1 wrote in the same way is another value now."""
    with record(path):
        look("label", "a")
        look("ordered", {"a": 1})
        look("client", Unset())
    for name, value in (("label", Label("a")), ("ordered", OrderedDict(a=1)), ("order", Order("W1"))):
        with pytest.raises(DivergenceError), replay(path):
            look(name, value)
    with pytest.raises(CassetteError, match="cannot be recorded"), replay(path):
        look("client", Client("a"))


class Bare: ...


def test_a_call_of_this_version_among_earlier_ones_is_none_of_them(earlier):
    with record(earlier, mode="new_episodes"):
        look("new text", "a")
        look("new object", Bare())
    with_attribute = Bare()
    with_attribute.note = 1  # type: ignore[attr-defined]
    for name, value in (("new text", Label("a")), ("new object", with_attribute)):
        with pytest.raises(DivergenceError), replay(earlier):
            look(name, value)
    with replay(earlier):
        assert [look("new text", "a"), look("label", Label("a"))] == ["answer new text", "answer label"]


def test_what_is_known_by_its_content_now_is_no_object_that_was_known_by_its_class(earlier):
    class Value(Client):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Value) and self.host == other.host

        __hash__ = None  # type: ignore[assignment]

    Value.__qualname__ = "Client"
    with pytest.raises(DivergenceError, match="record it again"), replay(earlier):
        look("client", Value("a"))
