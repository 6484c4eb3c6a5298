"""An argument is known by its content, or the call is not recorded: nobody gets the answer of another call."""

import contextlib
import decimal
import pathlib
import sys
import threading
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agent_cache import AgentCache
from agent_cache.recording import (
    Cassette,
    CassetteError,
    DivergenceError,
    RecordedCall,
    cached_llm_call,
    intercept,
    observe,
    record,
    replay,
)

NOON = datetime(2026, 7, 1, 12)  # noqa: DTZ001 - without a zone


class Text(str):
    """A text that is written without what it hides."""

    __slots__ = ()

    def __str__(self) -> str:
        return "***"


@dataclass
class Order:
    id: str


class Other:
    """Classes that are called like those of this module."""

    @dataclass
    class Order:
        id: str

    Order.__qualname__ = "Order"
    Order.__module__ = "elsewhere"


class Client:
    def __init__(self, host: str) -> None:
        self.host = host

    def handle(self, event: str) -> None: ...


@dataclass
class Failing:
    note: str = ""

    def __getattribute__(self, name: str) -> Any:
        if name == "note":
            raise RuntimeError("no")
        return super().__getattribute__(name)


def nested(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = (value,)
    return value


def cyclic(value: Any) -> Any:
    made = [value]
    made.append(made)
    return made


BERLIN, PARIS = (NOON.replace(tzinfo=ZoneInfo(f"Europe/{name}")) for name in ("Berlin", "Paris"))
PAIRS: dict[str, tuple[Any, Any]] = {
    "true and one": (True, 1),
    "one and one": ({"a": [1]}, {"a": [1.0]}),
    "not a number and its text": (float("nan"), "nan"),
    "a text and a subclass": ("a", Text("a")),
    "bytes that look like others": (b"\xff", b"hex:ff"),
    "a list and a tuple": ([1], (1,)),
    "a set and a frozen one": ({1}, frozenset({1})),
    "a text and bytes as keys": ({"a": 1}, {b"a": 1}),
    "a dict that looks like a tag": ({"$tuple": [1]}, (1,)),
    "decimals": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "a path and a text": (pathlib.PurePosixPath("a"), "a"),
    "orders of two modules": (Order("a"), Other.Order("a")),
    "zones of one offset": (BERLIN, PARIS),
    "a date and a time": (date(2026, 7, 1), NOON.replace(hour=0)),
    "functions": (nested, cyclic),
    "generics": (list[int], list[str]),
    "types that may be none": (int | None, str | None),
    "an hour that a clock shows twice": (BERLIN, BERLIN.replace(fold=1)),
}
SAME: dict[str, tuple[Any, Any]] = {
    "sets in any order": ({"b", "a", 3, (1,)}, {(1,), "a", 3, "b"}),
    "dicts in any order": ({1: "a", "b": (2,)}, {"b": (2,), 1: "a"}),
}
UNKNOWN: dict[str, Any] = {
    "a client": Client("a"),
    "an object": object(),
    "a lock": threading.Lock(),
    "a method of a client": Client("a").handle,
    "a lambda": lambda: 1,
    "what is nested too deep": nested(101, 1),
    "what contains itself": cyclic(1),
    "what raises when it is read": Failing(),
}


def recorded(path: pathlib.Path, *values: Any) -> list[RecordedCall]:
    """Calls with these arguments as a recording has them; fewer if one is not recorded."""
    ask = intercept(lambda value: None, name="ask")
    for number, value in enumerate(values):
        with contextlib.suppress(CassetteError), record(path.with_name(f"{number}.jsonl")):
            ask(value)
    return [call for number, _ in enumerate(values) for call in Cassette.load(path.with_name(f"{number}.jsonl"))]


@pytest.mark.parametrize("case", PAIRS | SAME)
@pytest.mark.parametrize("is_inside", [False, True], ids=["alone", "in a list"])
def test_another_argument_is_another_call_or_none_and_an_equal_one_the_same(case, is_inside, path):
    found = recorded(path, *([each] if is_inside else each for each in (PAIRS | SAME)[case]))
    assert found
    assert len({call.digest for call in found}) == (1 if case in SAME else len(found))
    assert len(found) == 2 or case not in SAME


@pytest.mark.parametrize("case", UNKNOWN)
@pytest.mark.parametrize("is_inside", [False, True], ids=["alone", "in a list"])
def test_a_call_with_an_argument_of_unknown_content_is_not_recorded(case, is_inside, path):
    runs: list[Any] = []
    ask = intercept(lambda value, number: runs.append(number), name="ask")
    value = UNKNOWN[case]
    refused = pytest.raises(CassetteError, match=r"ask cannot be recorded.*argument 'value'.*cache_key=")
    with refused as caught, record(path), contextlib.suppress(CassetteError):  # it is raised again at the end
        ask([value] if is_inside else value, 1)
    assert "0x" not in str(caught.value)
    assert runs == []
    assert len(Cassette.load(path)) == 0
    ask(value, 2)
    assert runs == [2], "outside of a recording it runs"


def test_a_call_that_just_runs_or_is_only_observed_needs_no_identity(path):
    class Seen:
        names: list[str] = []

        def on_start(self, call: RecordedCall) -> None:
            self.names.append(call.name)

        def on_end(self, call: RecordedCall) -> None: ...

    ask = intercept(lambda client: 1, name="ask")
    with record(path):
        pass
    with replay(path, strict=True, policy={"ask": "live"}), observe(Seen()):
        assert ask(Client("a")) == 1
    assert Seen.names == ["ask"]


async def test_what_the_user_names_identifies_a_call_instead(path):
    async def number_of(client: Client, number: int) -> int:
        return number

    def text_of(client: Client, number: int) -> str:
        return f"{client.host} {number}"

    @AgentCache("order", name="look", key=lambda client, number: (client.host, number))
    async def look(client: Client, number: int) -> str:
        return text_of(client, number)

    get = AgentCache("order", name="get", skip_args=1)(number_of)
    ask = intercept(number_of, name="ask", skip_args=1)
    model = cached_llm_call(name="model", skip_args=1)(number_of)
    tell = intercept(text_of, name="tell", cache_key=text_of)

    async def run(*hosts: str) -> list[Any]:
        made: list[Any] = []
        for client in map(Client, hosts):
            made += [await get(client, 1), await ask(client, 1), tell(client, 1)]
            made += [await look(client, 1), await model(client, 1)]
        return made

    async with record(path):
        first = await run("a", "b")
    async with replay(path):
        assert await run("b", "a") == first[5:] + first[:5]
    with pytest.raises(DivergenceError):
        async with replay(path):
            await look(Client("c"), 1)
    assert [call.name for call in Cassette.load(path) if "client" in call.arguments] == ["tell", "look"] * 2


@pytest.mark.parametrize("key", [lambda text: None, lambda text: 1 / 0, lambda: "", lambda text: object()])
def test_a_key_that_is_none_leaves_the_arguments_as_they_identify_a_call(key, path, caplog):
    """A function that forgets to return would make all calls the same."""
    ask = intercept(lambda text: text, name="ask", cache_key=key)
    with record(path):
        assert [ask("a"), ask("b")] == ["a", "b"]
    with replay(path):
        assert [ask("b"), ask("a")] == ["b", "a"]
    assert "cache_key of ask" in caplog.text


def test_a_parameter_or_a_field_of_a_later_version_that_is_not_given_changes_no_call(path):
    """As classes of a client get more fields, whose objects are sent back to a model."""
    now, later = (
        make_dataclass("Block", [("text", str)]),
        make_dataclass("Block", [("text", str), ("notes", Any, None)]),
    )
    with record(path):
        intercept(lambda block: 1, name="ask")(now("a"))
    with replay(path, strict=True):
        assert intercept(lambda block, seed=None: 2, name="ask")(later("a")) == 1
    with pytest.raises(DivergenceError), replay(path):
        intercept(lambda block: 2, name="ask")(later("a", []))


@pytest.mark.parametrize("name", ["NotGiven", "Omit"])
def test_what_a_client_passes_for_not_given_is_no_argument(name, monkeypatch, path):
    """As clients that Stainless has generated: they pass more of them in later versions."""
    kind = type(name, (), {"__module__": "vendor._types"})
    monkeypatch.setitem(sys.modules, "vendor._types", SimpleNamespace(**{name: kind}))
    ask = intercept(lambda text, seed, options: None, name="ask")
    with record(path):
        ask("a", kind(), {"n": 1, "top": kind()})
    assert Cassette.load(path)[0].arguments == {"text": "a", "options": {"n": 1}}
