"""How large a value is taken to be: roughly right, each object once, whatever is in it."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agent_cache import AgentCache, configure

attrs = pytest.importorskip("attrs")
msgspec = pytest.importorskip("msgspec")
pydantic = pytest.importorskip("pydantic")


def size_of(value: Any) -> int:
    """What an entry with this value is taken to need beyond that with None."""
    return _size_of_entry(value) - _size_of_entry(None)


def _size_of_entry(value: Any) -> int:
    @AgentCache("r", copy="never")
    def tool() -> Any:
        return value

    with configure(max_bytes=10**9):
        tool()
    assert tool.contains()
    size: int = tool.__agent_cache__.store.bytes
    return size


def test_a_value_counts_with_all_it_contains():
    assert size_of("x" * 1_000) == pytest.approx(1_000, rel=0.1)
    assert size_of(["x" * 1_000, {"k": b"y" * 1_000}]) == pytest.approx(2_000, rel=0.3)
    assert size_of({"x" * 1_000: 1}) > 1_000
    assert size_of((frozenset(["x" * 1_000]),)) > 1_000
    assert size_of([*range(10**6, 10**6 + 50_000)]) == pytest.approx(50_000 * 36, rel=0.1)  # some of them are measured


def test_data_outside_of_the_interpreter_counts_by_what_its_object_says():
    """A frame of polars passes the question on to an object of its extension, and counts once."""
    data = type("PyDataFrame", (), {"__slots__": (), "estimated_size": lambda _: 100_000})()
    frame = type("DataFrame", (), {"estimated_size": lambda self: self.data.estimated_size()})()
    frame.data = data
    assert size_of([frame]) == pytest.approx(100_000, rel=0.1)


def test_what_is_there_twice_counts_once():
    text = "x" * 1_000
    assert size_of([text, text, [text]]) < 2_000
    cycle: list[Any] = [text]
    cycle.append(cycle)
    assert size_of(cycle) < 2_000


class Plain:
    def __init__(self, number: int) -> None:
        self.text = f"text {number}" * 3
        self.parts = [number, number + 1]


class Slotted:
    __slots__ = ("number", "text")

    def __init__(self, number: int) -> None:
        self.number = float(number)
        self.text = f"text {number}" * 3


@dataclasses.dataclass(frozen=True)
class Record:
    text: str
    number: float


class Model(pydantic.BaseModel):
    text: str
    number: float


class Struct(msgspec.Struct, gc=False):
    text: str
    number: float


def row(number: int) -> dict[str, Any]:
    return {"sku": f"sku {number}", "price": number * 1.5, "tags": [f"tag {number}"]}


SHAPES: dict[str, Callable[[int], Any]] = {
    "a text": lambda number: f"text {number}" * 20,
    "a flat dict": lambda number: {"id": number, "name": f"name {number}", "price": number * 1.5},
    "a tree": lambda number: {"id": number, "rows": [row(number + each) for each in range(5)]},
    "a list of rows": lambda number: [row(number + each) for each in range(100)],
    "a tuple of texts": lambda number: tuple(f"text {number + each}" for each in range(20)),
    "a defaultdict": lambda number: defaultdict(list, {f"key {number + each}": [each] for each in range(20)}),
    "a memoryview": lambda number: memoryview(bytes(1_000 + number % 2)),
    "an object": Plain,
    "an object with slots": Slotted,
    "a dataclass": lambda number: Record(f"text {number}", number * 1.5),
    "a pydantic model": lambda number: Model(text=f"text {number}", number=number * 1.5),
    "a msgspec Struct": lambda number: Struct(f"text {number}", number * 1.5),
}


COPIES = [(shape, copy) for shape in SHAPES for copy in ("auto", "never") if (shape, copy) != ("a memoryview", "auto")]
"""A memoryview cannot be copied, so it is not stored."""


@pytest.mark.parametrize(("shape", "copy"), COPIES)
async def test_the_estimate_of_an_entry_is_what_it_takes(shape: str, copy: Any):
    """Within a factor of two of what tracemalloc measures, with the key and the tables."""
    assert 0.5 < await estimated_to_used("r", SHAPES[shape], copy) < 2.0


@pytest.mark.parametrize(
    "resource", ["r:{question}", "r:{question}:part", ["r:{question}", "s:{question}", "t:{number}"]]
)
async def test_the_estimate_of_an_entry_includes_its_tags(resource: Any):
    """The median of five: what the interpreter allocates and frees beside it differs from time to time."""
    shares = [await estimated_to_used(resource, str, "auto", longer_by=0) for _ in range(5)]
    assert 0.7 < statistics.median(shares) < 1.5


async def estimated_to_used(resource: Any, make: Callable[[int], Any], copy: Any, longer_by: int = 300) -> float:
    """The estimated size of some entries, divided by what tracemalloc measures."""

    @AgentCache(resource, copy=copy, maxsize=None)
    async def tool(question: str, number: int) -> Any:
        return make(len(question))

    count = 100
    gc.disable()
    with configure(max_bytes=1_000_000_000):
        await tool("x", 0)
        tool.clear()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(count):
                await tool("x" * (longer_by + number), number % 2)
            used = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
    store = tool.__agent_cache__.store
    assert len(store) == count
    return store.bytes / used


def test_a_function_counts_for_nothing_it_belongs_to():
    """A copy rule, a class or a service that a value refers to is shared, and not part of the entry."""

    class Service:
        def __init__(self) -> None:
            self.data = "x" * 100_000

        def copy(self, value: Any) -> Any:
            return value

    service = Service()
    assert size_of(partial(service.copy, "x" * 1_000)) < 2_000
    assert size_of([service.copy, Service, lambda: service, sys]) < 1_000
    assert size_of({"x": "x" * 1_000}.copy) > 1_000


def test_a_dict_that_changes_while_it_is_measured_is_estimated_all_the_same():
    """Another thread may change a value that is shared."""
    table: dict[Any, Any] = {}

    class Growing:
        def __sizeof__(self) -> int:
            table[len(table)] = None
            return 100

    table.update({"a": Growing(), "b": Growing(), "c": "x" * 1_000})
    assert size_of(table) > 300
