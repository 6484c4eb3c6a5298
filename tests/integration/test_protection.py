"""What one caller does to an answer never shows in another's, whatever the answer is made of; and a copy is what the
tool gave, be it from an image or by `copy.deepcopy`.
"""

from __future__ import annotations

import asyncio
import copy
import copyreg
import dataclasses
import enum
import functools
import inspect
import io
import itertools
import sqlite3
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import strategies as st

from agent_cache import AgentCache, AgentCacheSession, get_metrics
from tests.harness.gates import Gate, idle
from tests.harness.searches import searched

attrs = pytest.importorskip("attrs")
pydantic = pytest.importorskip("pydantic")

pytestmark = pytest.mark.usefixtures("clock")

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

    @functools.cached_property
    def found(self) -> list[Any]:
        return [self.b]


@dataclasses.dataclass(slots=True)
class Narrow:
    a: Any = None
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    a: Any = None
    b: Any = None


class Open:
    def __init__(self, a: Any, b: Any) -> None:
        self.a = a
        self.b = b


@attrs.define(slots=False)
class Attributes:
    a: Any = None
    b: Any = None


class Model(pydantic.BaseModel):
    a: Any = None
    b: Any = None
    _kept: Any = pydantic.PrivateAttr(default=None)


class OpenModel(pydantic.BaseModel, extra="allow"):
    a: Any = None


class FrozenModel(pydantic.BaseModel, frozen=True):
    a: Any = None
    b: Any = None


class Root(pydantic.RootModel[Any]):
    pass


class Record(msgspec.Struct):
    a: Any = None
    b: Any = None


class FrozenRecord(msgspec.Struct, frozen=True):
    a: Any = None
    b: Any = None


class Pair(NamedTuple):
    a: Any
    b: Any


class Slot(NamedTuple):
    """A place in `content_of`."""

    kind: type
    name: str


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


MAKERS: list[Callable[[Any, Any], Any]] = [
    *(Line, Box, Narrow, Place, Open, Attributes, Record, FrozenRecord, Pair, with_private, with_extra),
    with_undeclared,
    lambda a, b: Model(a=a, b=b),
    lambda a, b: FrozenModel(a=a, b=b),
    lambda a, b: Root([a, b]),
    lambda a, b: [a, b, a],
    lambda a, b: (a, b),
    lambda a, b: {"a": a, "b": [b]},
    lambda a, b: {Text("a"): a},
    lambda a, b: {Place(1, "k"): a, Colour.RED: b},
    lambda a, b: deque([a, b]),
    lambda a, b: OrderedDict(b=a, a=b),
    lambda a, b: defaultdict(list, a=[a], b=b),
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
        names = ("__pydantic_extra__", "__pydantic_private__")
        own = {id(getattr(part, name)) for part in parts if is_model(part) for name in names}
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
    elif isinstance(part, (Exception, functools.partial)):
        found.append(("args", part.args))
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


def is_model(part: Any) -> bool:
    return isinstance(part, pydantic.BaseModel)


def can_change(part: Any) -> bool:
    """Whether anybody can set something in this object itself."""
    if isinstance(part, (tuple, frozenset, str, int, enum.Enum, type)):
        return False
    return not isinstance(part, (Place, FrozenRecord, Decimal, UUID, PurePosixPath))


async def answers_of(value: Any) -> list[Any]:
    """What the callers of a tool get that returns this value: the first one, and those whose answers are copies."""

    @AgentCache("r")
    async def tool() -> Any:
        return value

    before = get_metrics()["misses"]
    answers = [await tool() for _ in range(5)]  # the second copy may find a faster way for the next ones
    assert get_metrics()["misses"] == before + 1
    return answers


def check_apart(value: Any, answers: list[Any]) -> None:
    """Each answer is what the tool gave, and two share nothing that can be changed. `copy.deepcopy` makes the same, but
    that it gives up a cycle through a NamedTuple or a Struct.
    """
    expected = [described(value), described(copy.deepcopy(value))]
    assert all(described(each) in expected for each in answers)
    changeable = [{id(part) for part in parts_of(each) if can_change(part)} for each in answers]
    for one, other in itertools.combinations(changeable, 2):
        assert not one & other


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@searched(13, 150, value=values())
def test_an_answer_is_what_the_tool_gave_and_shares_nothing_that_can_be_changed(
    loop: asyncio.AbstractEventLoop, value: Any
):
    check_apart(value, loop.run_until_complete(answers_of(value)))


def local_class() -> Any:
    @dataclasses.dataclass
    class Local:
        a: Any

    return Local


Local = local_class()


FORMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "bytearray": (lambda: bytearray(b"x"), lambda value: value.extend(b"y")),
    "deque": (lambda: deque([1], maxlen=3), lambda value: value.append(2)),
    "defaultdict": (lambda: defaultdict(list, a=[1]), lambda value: value["a"].append(2)),
    "Counter": (lambda: Counter("ab"), lambda value: value.update("a")),
    "OrderedDict": (lambda: OrderedDict(a=1, b=2), lambda value: value.move_to_end("a")),
    "tuple deep down": (lambda: (1, (2, ({3},))), lambda value: value[1][1][0].add(4)),
    "dataclass's own field": (lambda: Line(1, 2), lambda value: setattr(value, "a", 5)),
    "tree": (lambda: Line([Line(b={"a": [1]})]), lambda value: value.a[0].b["a"].append(2)),
    "exception": (lambda: ValueError(["a"]), lambda value: value.args[0].append("b")),
    "pydantic model": (lambda: Model(a=["a"]), lambda value: value.a.append("b")),
    "msgspec struct": (lambda: Record(["a"]), lambda value: value.a.append("b")),
    "partial": (lambda: functools.partial(list, [1]), lambda value: value.args[0].append(2)),
    "set of mutable objects": (lambda: {Open([1], 2)}, lambda value: next(iter(value)).a.append(2)),
    "dict with a mutable key": (lambda: {Open([1], 2): 1}, lambda value: next(iter(value)).a.append(2)),
    "object of a local class": (lambda: Local([1]), lambda value: value.a.append(2)),
}


PARTS: list[Any] = [
    *((1,), {1}, frozenset({1}), Text("a"), Number(1), True, 2**64, -(2**63) - 1, "\ud800", 1j, Colour.RED),
    *({Text("a"): 1}, {(1,): 1}, {True: 1}, {2**64: 1}, {"\ud800": 1}, Table(), Row(), Decimal(1), UUID(int=1)),
    *(bytearray(), datetime(2026, 1, 2, tzinfo=UTC), Record(1), Line(1), OrderedDict(a=1), Place(1), FrozenModel(a=1)),
    *(FrozenRecord(1), Pair(1, []), Attributes(1), Pair(1, (2, Pair(3, None))), (Colour.RED, frozenset({b"x"}))),
]
"""What MessagePack would change, and what is frozen and is not, or may be shared."""


@pytest.mark.parametrize("part", PARTS, ids=repr)
async def test_a_part_of_an_answer_is_given_back_as_it_was(part: Any):
    for value in (part, [[part]], {"a": {"b": part}}):
        check_apart(value, await answers_of(value))


@pytest.mark.parametrize("scope", ["global", "session"])
@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_a_caller_that_changes_its_answer_changes_nobody_elses(form: str, is_inside: bool, scope: Any):
    """Be it who ran the tool, who waited for that, or who gets a hit; also inside of something else."""
    make, change = FORMS[form]
    gate, seen = Gate(), list[Any]()

    @AgentCache("r", scope)
    async def tool() -> Any:
        return await gate()

    async def caller() -> None:
        answer = await tool()
        answer = answer[0].a if is_inside else answer
        seen.append(described(answer))
        change(answer)

    async with AgentCacheSession():
        callers = [asyncio.ensure_future(caller()) for _ in range(4)]
        await idle()
        gate.last.returns([Line(make())] if is_inside else make())
        await asyncio.gather(*callers)
        for _ in range(3):
            await caller()
    assert seen == [described(make())] * 7
    assert len(gate.calls) == 1


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


class WithCopyreg(Own):
    pass


class ModelOfItsOwn(pydantic.BaseModel):
    parts: list[int]
    mark: str = "made"

    def __deepcopy__(self, memo: Any = None) -> ModelOfItsOwn:
        return ModelOfItsOwn(parts=[1], mark="its way")


def marked(kind: type) -> Any:
    made = kind()
    made.mark = "its way"
    return made


OWN_WAYS: list[Callable[[], Any]] = [WithDeepcopy, WithReduce, WithCopyreg, lambda: ModelOfItsOwn(parts=[1])]


@pytest.mark.parametrize("make", OWN_WAYS, ids=lambda make: make().__class__.__name__)
async def test_a_class_that_has_a_way_of_its_own_to_be_copied_is_left_to_it(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(copyreg.dispatch_table, WithCopyreg, lambda value: (marked, (type(value),)))
    for wrap in (lambda value: value, lambda value: [Line(value)]):
        _, given, *_ = await answers_of(wrap(make()))
        assert (given[0].a if isinstance(given, list) else given).mark == "its way"


@pytest.mark.parametrize("make", [lambda part: [part, part], lambda part: (part, part), lambda part: Place(part, part)])
@pytest.mark.parametrize("innermost", [1, [1]], ids=["immutable", "mutable"])
async def test_parts_that_are_shared_at_every_level_are_looked_at_once(make: Callable[[Any], Any], innermost: Any):
    """2**60 of them would be looked at otherwise."""
    value = innermost
    for _ in range(60):
        value = make(value)
    for given in await answers_of(value):
        for _ in range(60):
            one, other = (given.a, given.b) if isinstance(given, Place) else given
            assert one is other
            given = one


class Cursor:
    """An iterator of a class of one's own."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.rows = [*numbers]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.rows:
            raise StopIteration
        return self.rows.pop(0)


class Connected:
    """What has state that no attribute shows."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.rows, self.connection = [*numbers], sqlite3.connect(":memory:")
        self.connection.close()

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)


def from_function(numbers: Iterator[int]) -> Iterator[int]:
    return iter(lambda: next(numbers), None)  # `copy.deepcopy` copies it, and its copies share the function


async def from_generator(numbers: Iterator[int]) -> AsyncIterator[int]:
    for number in numbers:
        yield number


USED_UP: dict[str, Callable[[Iterator[int]], Any]] = {
    "generator": lambda numbers: (number for number in numbers),
    "asynchronous generator": from_generator,
    "iterator over a function": from_function,
    "chain": lambda numbers: itertools.chain(from_function(numbers), ()),
    "a cursor": Cursor,
    "a connection": Connected,
    "file": lambda numbers: io.TextIOWrapper(io.BytesIO("".join(f"{number}\n" for number in numbers).encode())),
}
"""Results that reading uses up. Those of one source would each give a part of it."""


async def everything(answer: Any) -> list[Any]:
    if hasattr(answer, "__anext__"):
        return [number async for number in answer]
    return list(answer)


def test_the_log_says_what_cannot_be_copied_and_what_to_do(caplog: Any):
    AgentCache("r")(lambda: {"rows": [Connected(iter(()))]})()
    assert "a dict cannot be copied: cannot pickle 'sqlite3.Connection' object; return plain data" in caplog.text


@pytest.mark.parametrize("where", ["outside", "in a session"])
@pytest.mark.parametrize("form", USED_UP)
async def test_an_answer_that_reading_uses_up_is_given_to_one_caller(form: str, where: str):
    make = USED_UP[form]
    gate = Gate()

    @AgentCache("r")
    async def tool() -> Any:
        await gate()
        return make(iter(range(6)))

    async def caller() -> Any:
        if where == "outside":
            return await tool()
        async with AgentCacheSession():
            return await tool()

    callers = [asyncio.ensure_future(caller()) for _ in range(3)]
    await idle()
    assert len(gate.calls) == 1
    while gate.running:
        gate.running[0].returns(None)
        await idle()
    answers = await asyncio.gather(*callers)
    whole = await everything(make(iter(range(6))))
    # Each in turn: a part that one has taken would be missing in the next.
    assert [await everything(answer) for answer in answers] == [whole] * 3
    assert len({id(answer) for answer in answers}) == 3
    assert len(gate.calls) == 3
    assert get_metrics()["uncached"] == 3, "two ran the tool themselves, and what the first got was not stored"
    assert get_metrics()["misses"] == 1
    later = asyncio.ensure_future(tool())
    await idle()
    gate.last.returns(None)
    assert await everything(await later) == whole, "it was not stored"


async def test_a_tool_that_goes_on_changing_what_it_returned_changes_no_hit():
    inside = {"lines": ["a"]}

    @AgentCache("r")
    async def tool() -> Any:
        return inside

    first = await tool()
    assert first is inside, "who loads it has the tool's own object, as without a cache"
    inside["lines"].append("b")
    assert await tool() == {"lines": ["a"]}
