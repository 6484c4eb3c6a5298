"""An argument is known by its content, or the call is not recorded: nobody gets the answer of another call."""

import array
import asyncio
import collections
import contextlib
import dataclasses
import decimal
import enum
import functools
import io
import ipaddress
import logging
import operator
import pathlib
import threading
import typing
import weakref
from collections import ChainMap, OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.errors import UncacheableArgumentsError
from agent_cache.recording import Cassette, CassetteError, DivergenceError, cached_llm_call, intercept, record, replay
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.outcomes import encode_sorted
from tests.harness.slow import slow

BERLIN, PARIS = ZoneInfo("Europe/Berlin"), ZoneInfo("Europe/Paris")
NOON = datetime(2026, 7, 1, 12)  # noqa: DTZ001 - without a zone


class Text(str):
    """A text that is written without what it hides."""

    __slots__ = ("note",)

    def __str__(self) -> str:
        return "***"


class Number(int):
    def __int__(self) -> int:
        return 0

    __index__ = __int__


class Amount(float):
    def __float__(self) -> float:
        return 0.0


class Money(decimal.Decimal):
    currency: str

    def __new__(cls, amount: str, currency: str) -> "Money":
        money = super().__new__(cls, amount)
        money.currency = currency
        return money


class Items(list[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Names(dict[str, Any]):
    def items(self) -> Any:
        return {}.items()


class Moment(datetime):
    label = ""


class Data(bytes): ...


class Pair(tuple[Any, ...]): ...


class Zone(tzinfo):
    def __init__(self, hours: int) -> None:
        self.hours = hours

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=self.hours)

    def tzname(self, when: datetime | None) -> str:
        return "here"

    def dst(self, when: datetime | None) -> None:
        return None


class Point(NamedTuple):
    x: float
    y: float


@dataclass
class Order:
    id: str


class Size(enum.Enum):
    SMALL = 1


class Other:
    """Classes that are called like those of this module."""

    @dataclass
    class Order:
        id: str

    Order.__qualname__ = "Order"
    Order.__module__ = "elsewhere"

    Size = enum.Enum("Size", {"SMALL": 1}, module="elsewhere", qualname="Size")


def text(value: str, note: str = "") -> Text:
    made = Text(value)
    made.note = note
    return made


def with_attribute(value: Any, **attributes: Any) -> Any:
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


def closure(limit: int) -> Any:
    def is_more(number: int) -> bool:
        return number > limit

    return is_more


def made_class(**fields: Any) -> Any:
    return dataclasses.make_dataclass("Made", list(fields.items()))


def raised(number: int) -> Any:
    return OSError(number, "it failed", "file")


MANY_PARTS = "values of many parts"  # more than the 100,000 that are written down
PAIRS: dict[str, Any] = {
    "complex": lambda: (1 + 2j, 1 + 3j),
    "complex and real": lambda: (1 + 0j, 1.0),
    "ranges": lambda: (range(3), range(4)),
    "deques": lambda: (deque([1]), deque([2])),
    "an ordered dict and a dict": lambda: (OrderedDict(a=1), {"a": 1}),
    "partials": lambda: (functools.partial(int, base=2), functools.partial(int, base=3)),
    "methods of builtins": lambda: (str.upper, str.lower),
    "bound methods": lambda: (Point(1, 2).count, Point(1, 3).count),
    "bound methods of objects": lambda: (Order("a").__repr__, Order("b").__repr__),
    "closures": lambda: (closure(1), closure(2)),
    "generics": lambda: (list[int], list[str]),
    "unions": lambda: (int | str, int | None),
    "literals": lambda: (Literal["a"], Literal["b"]),
    "classes of one name": lambda: (made_class(a=int), made_class(b=int)),
    "values of a class without fields": lambda: (Several(1, 2), Several(1, 3)),
    "interfaces": lambda: (ipaddress.ip_interface("10.0.0.1/8"), ipaddress.ip_interface("10.0.0.1/16")),
    "chained maps": lambda: (ChainMap({"a": 1}), ChainMap({"a": 2})),
    "numbers of many digits": lambda: (10**5000, 10**5000 + 1),
    "exceptions": lambda: (ValueError("a"), ValueError("b")),
    "exceptions of two classes": lambda: (ValueError("a"), TypeError("a")),
    "exceptions with attributes": lambda: (with_attribute(KeyError(1), n=1), with_attribute(KeyError(1), n=2)),
    "errors of the system": lambda: (raised(1), raised(2)),
    "groups": lambda: (ExceptionGroup("a", [ValueError(1)]), ExceptionGroup("a", [ValueError(2)])),
    "a text and a subclass": lambda: ("a", text("a")),
    "texts that hide": lambda: (text("a"), text("b")),
    "texts with slots": lambda: (text("a", "1"), text("a", "2")),
    "numbers that hide": lambda: (Number(1), Number(2)),
    "a number and a subclass": lambda: (1, Number(1)),
    "amounts that hide": lambda: (Amount(1), Amount(2)),
    "money": lambda: (Money("1", "EUR"), Money("1", "USD")),
    "sums": lambda: (Money("1", "EUR"), Money("2", "EUR")),
    "lists that hide": lambda: (Items([1]), Items([2])),
    "dicts that hide": lambda: (Names(a=1), Names(a=2)),
    "dicts with attributes": lambda: (with_attribute(Names(), a=1), with_attribute(Names(), a=2)),
    "bytes and a subclass": lambda: (b"a", Data(b"a")),
    "bytes that look like others": lambda: (b"\xff", b"hex:ff"),
    "bytes and a buffer": lambda: (b"a", bytearray(b"a")),
    "a list and a tuple of a class": lambda: ([1], Pair([1])),
    "a tuple and one of a class": lambda: ((1.0, 2.0), Point(1.0, 2.0)),
    "cut texts": lambda: ("\ud800\\ud801", "\ud800\ud801"),
    "forms of one letter": lambda: ("\u00e9", "e\u0301"),
    "zeros": lambda: (0.0, -0.0),
    "zeros in lists": lambda: ([0.0], [-0.0]),
    "true and one": lambda: (True, 1),
    "one and one": lambda: ({"a": [1]}, {"a": [1.0]}),
    "large numbers": lambda: (2**70, float(2**70)),
    "large numbers that differ": lambda: (2**70, 2**70 + 1),
    "not a number and its text": lambda: (float("nan"), "nan"),
    "decimals": lambda: (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "a decimal and a number": lambda: (decimal.Decimal(1), 1),
    "paths": lambda: (pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a")),
    "a path and a text": lambda: (pathlib.PurePosixPath("a"), "a"),
    "orders of two modules": lambda: (Order("a"), Other.Order("a")),
    "sizes of two modules": lambda: (Size.SMALL, Other.Size.SMALL),
    "objects with more than their fields": lambda: (
        with_attribute(Order("a"), note=1), with_attribute(Order("a"), note=2)
    ),
    "an object with more than its fields": lambda: (Order("a"), with_attribute(Order("a"), note=2)),
    "zones of one offset": lambda: (NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=PARIS)),
    "a zone and an offset": lambda: (
        NOON.replace(tzinfo=BERLIN), NOON.replace(tzinfo=timezone(timedelta(hours=2)))
    ),
    "zones of a class of one's own": lambda: (NOON.replace(tzinfo=Zone(1)), NOON.replace(tzinfo=Zone(2))),
    "a named offset": lambda: (timezone(timedelta(hours=1), "X"), timezone(timedelta(hours=2), "X")),
    "the second of two hours": lambda: (NOON, NOON.replace(fold=1)),
    "times in zones": lambda: (time(12, tzinfo=BERLIN), time(12, tzinfo=PARIS)),
    "a date and a time": lambda: (date(2026, 7, 1), NOON.replace(hour=0)),
    "a time and one of a class": lambda: (NOON, Moment(2026, 7, 1, 12)),
    "times with attributes": lambda: (
        with_attribute(Moment(2026, 7, 1), label="a"), with_attribute(Moment(2026, 7, 1), label="b")
    ),
    "a set and a frozen one": lambda: ({1}, frozenset({1})),
    "a text and bytes as keys": lambda: ({"a": 1}, {b"a": 1}),
    "a dict that looks like a tag": lambda: ({"$tuple": [1]}, (1,)),
    "deep values": lambda: (nested(90, 1), nested(90, 2)),
    MANY_PARTS: lambda: ([(number,) for number in range(60_000)], [(0,)] * 59_999 + [(1,)]),
}  # fmt: skip


def nested(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = (value,)
    return value


def cyclic(value: Any) -> Any:
    made = [value]
    made.append(made)
    return made


def identity(value: Any) -> bytes | None:
    """The data of an argument; None if its call is not recorded."""
    try:
        return encode_sorted(plain(value))
    except UncacheableArgumentsError:
        return None


@pytest.mark.parametrize("case", [case if case != MANY_PARTS else slow(case)[0] for case in PAIRS])
@pytest.mark.parametrize("is_inside", [False, True], ids=["alone", "in a list"])
def test_another_argument_is_another_call_or_none(case, is_inside):
    one, other = (identity([each] if is_inside else each) for each in PAIRS[case]())
    assert one is None or one != other


def test_another_argument_is_not_answered(path):
    refund = intercept(lambda amount: amounts.append(amount) or len(amounts), name="refund")
    amounts: list[Any] = []
    with record(path):
        assert refund(Order("a")) == 1
    with pytest.raises(DivergenceError), replay(path, strict=True):
        refund(Order("b"))
    with replay(path, strict=True):
        assert refund(Order("a")) == 1
    assert len(amounts) == 1, "the function ran in a replay"


SAME: dict[str, Any] = {
    "sets in any order": lambda: ({"b", "a", 3, (1,)}, {(1,), "a", 3, "b"}),
    "dicts in any order": lambda: ({1: "a", "b": (2,)}, {"b": (2,), 1: "a"}),
    "not a number": lambda: (float("nan"), -float("nan")),
    "an utc of two spellings": lambda: (NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=timezone(timedelta()))),
}


@dataclass
class Lazy:
    id: str

    @functools.cached_property
    def twice(self) -> str:
        return self.id * 2


def test_a_computed_property_is_no_other_argument():
    used = Lazy("a")
    assert used.twice == "aa"
    assert plain(used) == plain(Lazy("a"))


@pytest.mark.parametrize("case", SAME)
def test_an_equal_argument_is_the_same_call(case):
    one, other = SAME[case]()
    assert encode_sorted(plain(one)) == encode_sorted(plain(other))


def plain(value: Any) -> Any:
    return plain_arguments({"value": value})[0]["value"]


class Client:
    def __init__(self, host: str) -> None:
        self.host = host

    def handle(self, event: str) -> None: ...


class Slotted:
    __slots__ = ("host",)

    def __init__(self, host: str) -> None:
        self.host = host


def proxied() -> Any:
    order = Order("a")
    kept.append(order)
    return weakref.proxy(order)


kept: list[Any] = []

UNKNOWN: dict[str, Any] = {
    "a client": lambda: Client("a"),
    "an object with slots": lambda: Slotted("a"),
    "an object": object,
    "a lock": threading.Lock,
    "a lock of a loop": asyncio.Lock,
    "a generator": lambda: (number for number in range(2)),
    "an iterator": lambda: iter([1]),
    "a method of a client": lambda: Client("a").handle,
    "a partial of a client": lambda: functools.partial(Client.handle, Client("a")),
    "a function that has captured a client": lambda: closure(Client("a")),  # type: ignore[arg-type]
    "a weak reference": lambda: weakref.ref(Client),
    "a proxy": proxied,
    "a zone without a name": lambda: ZoneInfo.from_file(io.BytesIO(zone_file())),
    "what is nested too deep": lambda: nested(101, 1),
    "what contains itself": lambda: cyclic(1),
    "an array": lambda: array.array("i", [1]),
    "a view of a dict": lambda: {"a": 1}.keys(),
    "memory": lambda: memoryview(b"a"),
    "a getter of items": lambda: operator.itemgetter(1),
    "a module": lambda: operator,
    "a logger": lambda: logging.getLogger("a"),
    "a class of no name": lambda: type("Made", (), {}),
    "what raises when it is read": lambda: Failing(),
}


def zone_file() -> bytes:
    import zoneinfo

    for directory in zoneinfo.TZPATH:
        file = pathlib.Path(directory, "Europe/Berlin")
        if file.exists():
            return file.read_bytes()
    pytest.skip("there are no files of time zones")


class Several(collections.abc.Mapping[str, int]):
    """As the query of a URL: one name may have several values."""

    def __init__(self, *values: int) -> None:
        self.values_of_a = values

    def __getitem__(self, name: str) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter(("a",))

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Several) and self.values_of_a == other.values_of_a

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Failing:
    note: str = ""

    def __getattribute__(self, name: str) -> Any:
        if name == "note":
            raise RuntimeError("no")
        return super().__getattribute__(name)


@pytest.mark.parametrize("case", UNKNOWN)
@pytest.mark.parametrize("is_inside", [False, True], ids=["alone", "in a list"])
def test_a_call_with_an_argument_of_unknown_content_is_not_recorded(case, is_inside, path):
    runs: list[Any] = []
    ask = intercept(lambda value, number: runs.append(number), name="ask")
    value = UNKNOWN[case]()
    refused = pytest.raises(CassetteError, match=r"ask cannot be recorded.*argument 'value'.*cache_key=")
    with refused as caught, record(path):
        ask([value] if is_inside else value, 1)
    assert "0x" not in str(caught.value)
    assert runs == []
    assert len(Cassette.load(path)) == 0
    ask(value, 2)
    assert runs == [2], "outside of a recording it runs"


def test_that_a_call_was_not_recorded_is_said_at_the_end_if_something_swallows_it(path):
    ask = intercept(lambda client: 1, name="ask")
    with pytest.raises(CassetteError, match="cannot be recorded"), record(path), contextlib.suppress(Exception):
        ask(Client("a"))


async def test_a_tool_whose_argument_has_no_content_is_not_recorded(path):
    @AgentCacheInvalidator("order", name="refund")
    async def refund(client: Client, amount: int) -> int:
        raise AssertionError("it ran")

    with pytest.raises(CassetteError, match="refund cannot be recorded"):
        async with record(path):
            await refund(Client("a"), 1)


async def test_what_the_user_names_identifies_a_call_instead(path):
    @AgentCache("order", name="get", skip_args=1)
    async def get(client: Client, number: int) -> int:
        return number

    @AgentCache("order", name="look", key=lambda client, number: (client.host, number))
    async def look(client: Client, number: int) -> str:
        return f"{client.host} {number}"

    @intercept(name="ask", skip_args=1)
    def ask(client: Client, number: int) -> int:
        return number

    @intercept(name="tell", cache_key=lambda client, number: f"{client.host} {number}")
    def tell(client: Client, number: int) -> str:
        return f"{client.host} {number}"

    @cached_llm_call(name="model", skip_args=1)
    async def model(client: Client, number: int) -> int:
        return number

    async def run(*hosts: str) -> list[Any]:
        made: list[Any] = []
        for host in hosts:
            client = Client(host)
            made += [
                await get(client, 1),
                ask(client, 1),
                tell(client, 1),
                await look(client, 1),
                await model(client, 1),
            ]
        return made

    async with record(path):
        first = await run("a", "b")
    async with replay(path):
        assert await run("b", "a") == first[5:] + first[:5]
    with pytest.raises(DivergenceError):
        async with replay(path):
            await look(Client("c"), 1)
    assert [call.name for call in Cassette.load(path) if "client" in call.arguments] == ["tell", "look"] * 2


def test_an_object_without_content_is_known_by_its_class(path):
    class Unset: ...

    echo = intercept(lambda value: 1, name="echo")
    with record(path):
        echo(Unset())
        echo(...)
    with replay(path, strict=True):
        assert [echo(Unset()), echo(...)] == [1, 1]


def test_functions_and_classes_are_known_by_their_names():
    local = Order
    assert plain(local) == {"$function": f"{__name__}:Order"}
    assert plain(nested) == {"$function": f"{__name__}:nested"}
    assert plain(len) == {"$function": "builtins:len"}
    assert plain(int) == {"$function": "builtins:int"}
    assert plain(type(None)) == {"$function": "builtins:NoneType"}
    assert plain(typing.Any)["$function"] == "typing:Any"
    assert plain(Order.__repr__)["$function"]
    assert plain(str.upper) == {"$function": "builtins:str.upper"}
