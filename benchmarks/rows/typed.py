"""Rows of results that are objects: what a hit pays so that no caller can change the others' result."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from types import GenericAlias
from typing import Any, Final

import msgspec

from agent_cache import AgentCache
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, hitting, measure
from benchmarks.workload import TTL, USER, scalar_tool, tree

LIMIT: Final = 3.0
NOTE: Final = "12 leaves, two objects in a list; over the hit of an immutable result"

ORDER = "#W2378156"


@dataclass
class AddressClass:
    street: str
    city: str
    zip: str


@dataclass
class ItemClass:
    item_id: str
    name: str
    price: float


@dataclass
class OrderClass:
    order_id: str
    user_id: str
    status: str
    address: AddressClass
    items: list[ItemClass]


class AddressStruct(msgspec.Struct):
    street: str
    city: str
    zip: str


class ItemStruct(msgspec.Struct):
    item_id: str
    name: str
    price: float


class OrderStruct(msgspec.Struct):
    order_id: str
    user_id: str
    status: str
    address: AddressStruct
    items: list[ItemStruct]


def results() -> dict[str, Callable[[], object]]:
    """Makers of a result, by what it is; pydantic's if it is installed."""
    made: dict[str, Callable[[], object]] = {
        "dataclass": lambda: OrderClass(
            ORDER,
            USER,
            "pending",
            AddressClass("Main Street 1", "Springfield", "02134"),
            [ItemClass("6086499569", "Bookshelf", 539.25), ItemClass("9408160950", "Lamp", 135.0)],
        ),
        "Struct": lambda: msgspec.convert(tree(ORDER), OrderStruct),
        "tree with a datetime": lambda: (
            tree(ORDER) | {"created": datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)}
        ),
    }
    try:
        pydantic: Any = import_module("pydantic")
    except ImportError:
        return made
    address = pydantic.create_model("Address", street=(str, ...), city=(str, ...), zip=(str, ...))
    item = pydantic.create_model("Item", item_id=(str, ...), name=(str, ...), price=(float, ...))
    order = pydantic.create_model(
        "Order",
        order_id=(str, ...),
        user_id=(str, ...),
        status=(str, ...),
        address=(address, ...),
        items=(GenericAlias(list, (item,)), ...),
    )
    return {**made, "pydantic model": lambda: order.model_validate(tree(ORDER))}


def tool_of(make: Callable[[], object]) -> Callable[[str], Coroutine[Any, Any, Any]]:
    async def get_order(order_id: str) -> Any:
        return make()

    return get_order


async def rows(effort: Effort) -> list[Row]:
    made = results()
    subjects: dict[str, Sample] = {"immutable": hitting(AgentCache("card", ttl=TTL)(scalar_tool()), USER)}
    for name, make in made.items():
        tool = AgentCache("order", ttl=TTL)(tool_of(make))
        one, other = await tool(USER), await tool(USER)
        if one is other or one != other or type(other) is not type(make()):
            message = f"a hit of a {name} is not an equal result of the same type: {other!r}"
            raise AssertionError(message)
        subjects[name] = hitting(tool, USER)
    figures = await measure(subjects, effort, title="hits, typed results")
    base = figures["immutable"]
    return [Row("typed", name, figures[name].above(base).scaled(1e6), "us", LIMIT, NOTE) for name in made]
