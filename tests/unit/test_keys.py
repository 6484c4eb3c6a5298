"""Two different calls never share an entry, two spellings of one call always do, nothing is guessed from an address."""

from __future__ import annotations

import array
import copy
import dataclasses
import enum
import functools
import gc
import io
import threading
import types
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import strategies as st

from agent_cache import AgentCache, UncacheableArgumentsError, get_metrics
from agent_cache.core import keys
from agent_cache.core.keys import key_part
from agent_cache.core.parameters import receiver_part
from agent_cache.values import canonical as serials
from agent_cache.values.canonical import canonical
from tests.harness import library
from tests.harness.searches import searched
from tests.harness.slow import slow
from tests.harness.structure import VALUES, WHEN, Access, Pair, Place, Point, Raw, Word, near_pairs, same

HINTS = {"none": Any, "str": str, "int": int, "bool": bool}
"""A generated body tests the annotated type first, so each annotation is a path of its own."""


class Probe:
    """A read tool of one parameter that counts its executions."""

    def __init__(self, hint: Any = Any, **options: Any) -> None:
        self.runs = 0

        async def probe(value: hint) -> int:
            self.runs += 1
            return self.runs

        self.tool = AgentCache("probe", maxsize=None, **options)(probe)

    async def shares(self, one: Any, other: Any) -> bool:
        """Whether two calls are answered by one execution, in a library that has seen neither."""
        self.tool.clear()
        return await self.tool(one) == await self.tool(other)


@pytest.fixture(autouse=True)
def _no_aliases() -> None:
    """Each test recognises only the containers that it has shown itself."""
    keys.ALIASES.clear()


# -- Values that look alike and are not the same -------------------------------------------------------------


def two_functions_of_one_name() -> tuple[Any, Any]:
    made = []
    for name in ("one", "other"):
        module = types.ModuleType(name)
        exec("def get(): return 1", vars(module))
        made.append(vars(module)["get"])
    return made[0], made[1]


@dataclasses.dataclass
class Measured:
    x: int

    @functools.cached_property
    def area(self) -> int:
        return self.x**2


@dataclasses.dataclass
class Unequal:
    x: int = dataclasses.field(compare=False)


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Octets(bytes):
    pass


class Hidden:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class Partly(Hidden):
    __slots__ = ("x",)
    x: int


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x


@dataclasses.dataclass
class Moment(datetime):
    """A dataclass that has a date which none of its fields declares."""

    x: int

    def __new__(cls, year: int) -> Any:
        return datetime.__new__(cls, year, 1, 1)

    def __init__(self, year: int) -> None:
        self.x = 1


class Unlisted(enum.Enum):
    """Makes members of one name for values that it does not know, as clients of an API do."""

    KNOWN = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        member = object.__new__(cls)
        member._name_, member._value_ = "UNKNOWN", value
        return member


def with_attributes(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


BERLIN = ZoneInfo("Europe/Berlin")

# Beside what is searched at the end of this file
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "1 and 1.0": (1, 1.0),
    "0.0 and -0.0": (0.0, -0.0),
    "1 and True": (1, True),
    "StrEnum and str": (Word.LOW, "low"),
    "None as a key and as a value": ({None: 1}, {1: None}),
    "absent and None": ({"a": None}, {}),
    "flags": (Access.READ, Access.READ | Access.WRITE),
    "two dataclasses": (Point(), Place()),
    "field that does not compare": (Unequal(1), Unequal(2)),
    "undeclared attribute": (with_attributes(Point(), z=1), with_attributes(Point(), z=2)),
    "undeclared slot": (with_attributes(Partly(1), hidden=1), with_attributes(Partly(1), hidden=2)),
    "two lambdas": (lambda: 1, lambda: 1),
    "one instant in two zones": (WHEN.replace(tzinfo=UTC), WHEN.replace(tzinfo=BERLIN)),
    "folds": (WHEN.replace(tzinfo=BERLIN), WHEN.replace(tzinfo=BERLIN, fold=1)),
    "dataclass that is a datetime": (Moment(2025), Moment(2026)),
    "members that no Enum lists": (Unlisted("a"), Unlisted("b")),
    "subclass of str": (Text("x"), "x"),
    "subclass of int": (Whole(1), 1),
    "canonical bytes and what they stand for": (canonical([1]), [1]),
    "canonical True": (b"T", True),
    "large integers": (10**5000, 10**5000 + 1),
}

NESTINGS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "tuple": lambda value: (0, value),
    "dict": lambda value: {"k": value},
    "deep": lambda value: {"k": [(value,)]},
    "dataclass": Point,
    "tuple in NamedTuple": lambda value: Pair((value,), 1),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("hint", ["none", "str", *slow("int", "bool")])
async def test_different_arguments_are_different_calls(clock: library.Clock, hint: str):
    probe = Probe(HINTS[hint])
    shared = []
    for name, pair in DIFFERENT.items():
        for nesting, nest in NESTINGS.items():
            one, other = map(nest, pair)
            if await probe.shares(one, other) or await probe.shares(other, one):
                shared.append(f"{name}, {nesting}")
    assert shared == []


# -- Values that are the same --------------------------------------------------------------------------------

SAME: dict[str, Callable[[], tuple[Any, Any]]] = {
    "list": lambda: ([1, [2]], [1, [2]]),
    "dict of mixed keys": lambda: ({1: 1, "1": 2, None: 3}, {None: 3, "1": 2, 1: 1}),
    "set order": lambda: (set(range(100)), {99 - number for number in range(100)}),
    "set of mixed types": lambda: ({1, "1", None, (1,)}, {(1,), None, "1", 1}),
    "frozenset in a tuple": lambda: ((frozenset("ab"),), (frozenset("ba"),)),
    "dataclass with a cached property": lambda: ((lambda it: (it.area, it)[1])(Measured(2)), Measured(2)),
    "datetime": lambda: (WHEN.replace(tzinfo=BERLIN), WHEN.replace(tzinfo=ZoneInfo("Europe/Berlin"))),
    "offset": lambda: (
        WHEN.replace(tzinfo=timezone(timedelta(hours=1))),
        WHEN.replace(tzinfo=timezone(timedelta(minutes=60))),
    ),
    "Path": lambda: (Path("a/b"), Path("a") / "b"),
    "a function": lambda: (two_functions_of_one_name, two_functions_of_one_name),
}


@pytest.mark.parametrize("hint", HINTS)
async def test_equal_arguments_are_one_call(clock: library.Clock, hint: str):
    probe = Probe(HINTS[hint])
    apart = []
    for name, make in SAME.items():
        for nesting, nest in NESTINGS.items():
            one, other = map(nest, make())
            if not await probe.shares(one, other) or probe.tool.cache_key(one) != probe.tool.cache_key(other):
                apart.append(f"{name}, {nesting}")
    assert apart == []


# -- Objects and their addresses -----------------------------------------------------------------------------


def successor(make: Callable[[], Any], keep: Any) -> Any:
    """Let `keep` hold the only reference to one object, drop it, and make another one at its address."""
    address = id(keep.pop())
    gc.collect()
    others = []
    for _ in range(10_000):
        other = make()
        if id(other) == address:
            return other
        others.append(other)
    pytest.skip("this interpreter did not use the address again")


@pytest.mark.parametrize(
    ("make", "part"),
    [
        pytest.param(lambda: lambda: 1, key_part, id="lambda"),
        pytest.param(lambda: type("Local", (), {}), key_part, id="class"),
        pytest.param(lambda: Plain(1), receiver_part, id="receiver"),
    ],
)
def test_an_object_at_the_address_of_another_has_a_key_of_its_own(make: Callable[[], Any], part: Any):
    keep = [make()]
    former = part(keep[0])
    other = successor(make, keep)
    assert part(other) != former
    assert part(other) == part(other)


async def test_two_instances_share_nothing_and_equal_value_objects_do(clock: library.Clock):
    class Shop:
        def __init__(self, token: str) -> None:
            self.token = token

        @AgentCache("me")
        async def me(self) -> str:
            return self.token

        @AgentCache("all", skip_args=1)
        async def everyone(self) -> str:
            return self.token

    one, other = Shop("a"), Shop("b")
    assert [await each.me() for each in (one, other, one, Shop("a"))] == ["a", "b", "a", "a"]
    assert get_metrics()["misses"] == 3
    assert [await each.everyone() for each in (one, other)] == ["a", "a"]


async def test_a_value_object_is_a_receiver_by_value(clock: library.Clock):
    @dataclasses.dataclass(frozen=True)
    class Client:
        token: str

        @AgentCache("me")
        async def me(self) -> str:
            return self.token

    assert [await Client("a").me(), await Client("a").me(), await Client("b").me()] == ["a", "a", "b"]
    assert get_metrics()["misses"] == 2


# -- What declares no identity -------------------------------------------------------------------------------


@dataclasses.dataclass
class Expired:
    """A value object whose fields cannot be read: an expired row of an ORM, say."""

    x: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise LookupError("the row is not bound to a session")
        return object.__getattribute__(self, name)


def cyclic_list() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def doubled(depth: int) -> Any:
    return nested(depth, lambda value: [value, value])


def zone_without_a_name() -> Any:
    """As one is that was read from a file: what it is shown as says nothing of its content."""
    return ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(35) + b"\1" + bytes(3) + b"\4" + bytes(6) + b"UTC\0"))


STRANGE: dict[str, Callable[[], Any]] = {
    "zone without a name": zone_without_a_name,
    "object": object,
    "instance": lambda: Plain(1),
    "dict subclass": lambda: defaultdict(int, a=1),
    "namespace": lambda: types.SimpleNamespace(a=1),
    "generator": lambda: (x for x in [1]),
    "bound method": lambda: Plain(1).__init__,
    "partial": lambda: functools.partial(print),
    "lock": threading.Lock,
    "unreadable dataclass": Expired,
    "cyclic list": cyclic_list,
    "list 99 deep": lambda: nested(99, lambda value: [value]),
    "list 5,000 deep": lambda: nested(5_000, lambda value: [value]),
    "list 200,000 deep": lambda: nested(200_000, lambda value: [value]),
    "list of 300,000": lambda: list(range(300_000)),
    "list of 2**64 parts": lambda: doubled(64),  # the last one is tried by the gate, too
}


LARGE = ("list of 300,000", "list 200,000 deep")


@pytest.mark.parametrize("name", [*(name for name in STRANGE if name not in LARGE), *slow(*LARGE)])
async def test_strange_arguments_are_keyed_or_run_uncached_and_never_crash(clock: library.Clock, name: str):
    probe = Probe()
    for value in (STRANGE[name](), {"in": [STRANGE[name]()]}):
        before = get_metrics()
        runs = probe.runs
        answers = [await probe.tool(value), await probe.tool(value)]
        after = get_metrics()
        uncached = after["uncached"] - before["uncached"]
        assert (uncached, probe.runs - runs) in {(0, 1), (2, 2)}
        assert (answers[0] == answers[1]) is (uncached == 0)


def test_the_alias_table_is_bounded():
    for number in range(keys._MAX_ALIASES + 100):
        key_part([number])
    assert len(keys.ALIASES) <= keys._MAX_ALIASES
    key_part(["x" * 1_000_000])
    assert max(map(len, keys.ALIASES)) <= keys._MAX_ALIAS_BYTES


def test_serial_numbers_do_not_outlive_their_objects():
    gc.collect()
    before = len(serials._serials)
    for _ in range(1_000):
        key_part(lambda: 1)
    gc.collect()
    assert len(serials._serials) <= before + 1


def test_bytes_like_leaves_in_a_container_never_share_an_alias():
    """`marshal` writes every buffer as plain bytes, an enum of bytes too."""
    leaves: list[Any] = [b"x", bytearray(b"x"), Raw.X, array.array("b", b"x"), memoryview(b"x"), Octets(b"x")]
    for order in (leaves, leaves[::-1]):
        seen: dict[Any, Any] = {}
        for leaf in order:
            for wrapped in ([leaf], {"a": (leaf,)}):
                try:
                    part = key_part(wrapped)
                except UncacheableArgumentsError:
                    continue
                assert seen.setdefault((type(wrapped), part), leaf) is leaf


# -- Libraries of declared fields ----------------------------------------------------------------------------


def of_pydantic() -> tuple[Any, Any, Any]:
    pydantic = pytest.importorskip("pydantic")

    class Query(pydantic.BaseModel):
        text: str
        limit: Any = 10

    class Loose(pydantic.BaseModel, extra="allow"):
        text: str

    return Query, type("Twin", (Query,), {}), Loose


def of_msgspec() -> tuple[Any, Any, Any]:
    msgspec = pytest.importorskip("msgspec")
    query, twin = (msgspec.defstruct(name, [("text", str), ("limit", Any, 10)]) for name in ("Query", "Twin"))
    return query, twin, msgspec.defstruct("Loose", [("text", str)], dict=True)


def of_attrs() -> tuple[Any, Any, Any]:
    attrs = pytest.importorskip("attrs")

    @attrs.define
    class Query:
        text: str
        limit: Any = 10

    @attrs.define(slots=False)
    class Loose:
        text: str

    return Query, attrs.define(type("Twin", (Query,), {})), Loose


@pytest.mark.parametrize("library_of", [of_pydantic, of_msgspec, of_attrs])
async def test_objects_are_known_by_the_fields_that_their_class_declares(clock: library.Clock, library_of: Any):
    query, twin, loose = library_of()
    probe, one = Probe(), query(text="a", limit=1)
    assert await probe.shares(one, query(limit=1, text="a"))
    assert await probe.shares(loose(text="a"), loose(text="a"))
    for other in (query(text="b", limit=1), query(text="a", limit=True), twin(text="a", limit=1)):
        assert not await probe.shares(one, other)
        assert not await probe.shares([one], [other])
    noted = [loose(text="a"), loose(text="a")]
    for number, each in enumerate(noted):
        vars(each)["more"] = number
    assert not await probe.shares(*noted)


async def test_of_pydantic_models_their_whole_state_counts(clock: library.Clock):
    pydantic = pytest.importorskip("pydantic")

    class Query(pydantic.BaseModel, extra="allow"):
        text: str
        limit: Any = 10
        _private: int = pydantic.PrivateAttr(default=0)

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @functools.cached_property
        def length(self) -> int:
            return len(self.text)

    probe, hidden, computed = Probe(), Query(text="a"), Query(text="a")
    hidden._private = 1
    assert computed.length == 1
    for same_one in (computed, Query.model_construct({"text"}, text="a")):
        assert await probe.shares(Query(text="a"), same_one)
    for other in (hidden, Query(text="a", limit=10), Query(text="a", more=1), Query.model_construct(set())):
        assert not await probe.shares(Query(text="a"), other)


# -- The property --------------------------------------------------------------------------------------------


@searched(30, 100, near_pairs())
def test_keys_are_equal_if_and_only_if_the_structure_is(pair: tuple[Any, Any]):
    one, other = pair
    first, second = key_part(one), key_part(other)
    assert (type(first) is type(second) and first == second) is same(one, other)
    assert key_part(one) == first, "recognised by its image, it must be what it was"
    assert hash(key_part(copy.deepcopy(one))) == hash(first)
    assert (canonical(one) == canonical(other)) is same(one, other)


@searched(15, 100, st.lists(VALUES, max_size=3), st.data())
def test_a_list_that_changes_is_keyed_by_what_it_is_now(value: list[Any], data: st.DataObject):
    seen = [(copy.deepcopy(value), key_part(value))]
    for _ in range(3):
        if value and data.draw(st.booleans()):
            value.pop(data.draw(st.integers(0, len(value) - 1)))
        else:
            value.insert(data.draw(st.integers(0, len(value))), data.draw(VALUES))
        key = key_part(value)
        for former, former_key in seen:
            assert (former_key == key) is same(former, value)
        seen.append((copy.deepcopy(value), key))
