"""What one caller does to an answer never shows in another's, whatever the answer is made of."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import io
import itertools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession, get_metrics
from tests.harness import library
from tests.harness.gates import Gate, idle
from tests.harness.searches import searched
from tests.harness.structure import VALUES, Point, same, spoil


@dataclasses.dataclass
class Tree:
    children: list[Tree] = dataclasses.field(default_factory=list)
    payload: dict[str, Any] = dataclasses.field(default_factory=dict)


def pydantic_model() -> Any:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        lines: list[str]

    return Order(lines=["a"])


def msgspec_struct() -> Any:
    msgspec = pytest.importorskip("msgspec")

    class Order(msgspec.Struct):
        lines: list[str]

    return Order(["a"])


# Beside what is searched at the end of this file
FORMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "bytearray": (lambda: bytearray(b"x"), lambda value: value.extend(b"y")),
    "deque": (lambda: deque([1], maxlen=3), lambda value: value.append(2)),
    "defaultdict": (lambda: defaultdict(list, a=[1]), lambda value: value["a"].append(2)),
    "Counter": (lambda: Counter("ab"), lambda value: value.update("a")),
    "OrderedDict": (lambda: OrderedDict(a=1, b=2), lambda value: value.move_to_end("a")),
    "tuple deep down": (lambda: (1, (2, ({3},))), lambda value: value[1][1][0].add(4)),
    "dataclass's own field": (lambda: Point(1, 2), lambda value: setattr(value, "x", 5)),
    "tree": (lambda: Tree([Tree(payload={"a": [1]})]), lambda value: value.children[0].payload["a"].append(2)),
    "exception": (lambda: ValueError(["a"]), lambda value: value.args[0].append("b")),
    "pydantic model": (pydantic_model, lambda value: value.lines.append("b")),
    "msgspec struct": (msgspec_struct, lambda value: value.lines.append("b")),
}


def look(value: Any) -> Any:
    """A value as text that shows everything in it."""
    return repr(value.args if isinstance(value, Exception) else value)


@pytest.mark.parametrize("scope", ["global", "session"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_caller_that_changes_its_answer_changes_nobody_elses(clock: library.Clock, form: str, scope: Any):
    make, change = FORMS[form]
    truth = make()

    @AgentCache("r", scope)
    async def tool() -> Any:
        return copy.deepcopy(truth)

    async with AgentCacheSession():
        for _ in range(4):
            answer = await tool()
            assert type(answer) is type(truth)
            assert look(answer) == look(truth)
            change(answer)
            assert look(answer) != look(truth)
    assert get_metrics()["misses"] == 1
    assert get_metrics()["hits"] == 3


@pytest.mark.parametrize("form", FORMS)
async def test_concurrent_callers_have_answers_of_their_own(clock: library.Clock, form: str):
    make, change = FORMS[form]
    gate = Gate()

    @AgentCache("r")
    async def tool() -> Any:
        return await gate()

    seen = []

    async def caller() -> None:
        answer = await tool()
        seen.append(look(answer))
        change(answer)

    callers = [asyncio.ensure_future(caller()) for _ in range(4)]
    await idle()
    value = make()
    expected = look(value)
    gate.last.returns(value)
    await asyncio.gather(*callers)
    seen.append(look(await tool()))
    assert seen == [expected] * 5
    assert len(gate.calls) == 1


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
    "file": lambda numbers: io.TextIOWrapper(io.BytesIO("".join(f"{number}\n" for number in numbers).encode())),
}
"""Results that reading uses up. Those of one source would each give a part of it."""


async def everything(answer: Any) -> list[Any]:
    if hasattr(answer, "__anext__"):
        return [number async for number in answer]
    return list(answer)


@pytest.mark.parametrize("where", ["outside", "in a session"])
@pytest.mark.parametrize("form", USED_UP)
async def test_an_answer_that_reading_uses_up_is_given_to_one_caller(clock: library.Clock, form: str, where: str):
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


async def test_a_tool_that_goes_on_changing_what_it_returned_changes_no_hit(clock: library.Clock):
    inside = {"lines": ["a"]}

    @AgentCache("r")
    async def tool() -> Any:
        return inside

    first = await tool()
    assert first is inside, "who loads it has the tool's own object, as without a cache"
    inside["lines"].append("b")
    assert await tool() == {"lines": ["a"]}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@searched(15, 50, value=VALUES)
def test_no_spoilt_answer_is_ever_seen_again(loop: asyncio.AbstractEventLoop, value: Any):
    truth = copy.deepcopy(value)

    async def run() -> None:
        @AgentCache("r")
        async def tool() -> Any:
            return copy.deepcopy(value)

        for _ in range(3):
            answer = await tool()
            assert same(answer, truth)
            spoil(answer)

    loop.run_until_complete(run())
