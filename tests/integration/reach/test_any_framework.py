"""Functions that a framework takes as tools go through a toolbox, and look as before."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from typing import Any

import pytest

from agent_cache import AgentCacheSession, ConfigurationError, Pass, Read, Toolbox, Watch, Write
from agent_cache.integrations import explain, wrap
from agent_cache.toolbox import ToolInfo

pytestmark = pytest.mark.usefixtures("clock")

UNSET = object()


class Shop:
    """Tools of one's own, none decorated."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        rules = {"get_*": Read("order:{order_id}"), "cancel_order": Write("order:{order_id}")}
        self.box = Toolbox({**rules, "now": Watch(), "say": Pass()}, namespace="shop")

        async def get_order(order_id: str, full: bool = False, trace: Any = UNSET) -> dict[str, Any]:
            """Say how an order stands."""
            self.runs.append("get")
            await asyncio.sleep(0)
            return {"id": order_id, "run": len(self.runs)}

        async def cancel_order(order_id: str) -> str:
            """Cancel an order."""
            self.runs.append("cancel")
            return "cancelled"

        self.plain = get_order
        self.get_order = wrap(get_order, box=self.box)
        self.cancel_order = wrap(cancel_order, box=self.box)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_framework_sees_the_same_function(shop: Shop):
    wrapped, plain = shop.get_order, shop.plain
    assert inspect.signature(wrapped) == inspect.signature(plain)
    assert typing.get_type_hints(wrapped) == typing.get_type_hints(plain)
    assert inspect.iscoroutinefunction(wrapped)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(wrapped, name) == getattr(plain, name)


async def test_arguments_are_taken_by_their_names_with_their_defaults(shop: Shop):
    first, again = await asyncio.gather(shop.get_order("1"), shop.get_order(order_id="1"))
    assert first == again == await shop.get_order("1", False)
    assert shop.runs == ["get"]
    for wrong in (shop.get_order, shop.plain):
        with pytest.raises(TypeError, match="order_id"):
            await wrong()  # type: ignore[call-arg]


async def test_surplus_arguments_are_arguments(shop: Shop):
    async def get_any(*ids: str, **options: Any) -> tuple[Any, ...]:
        shop.runs.append("any")
        return ids, options

    tool = wrap(get_any, box=Toolbox({"get_any": Read("any")}, namespace="shop"))
    assert await tool("1", deep=True) == (("1",), {"deep": True})
    assert await tool("1", deep=True) == await tool("1", deep=True)
    await tool("1")
    await tool("2")
    assert shop.runs == ["any"] * 3
    assert await tool("3", ids="x") != await tool("4", ids="x"), "a surplus argument may have any name"


async def test_methods_and_partials_are_taken_by_name():
    class Store:
        runs = 0

        async def get_item(self, item: str) -> int:
            self.runs += 1
            return self.runs

    store, box = Store(), Toolbox({"get_*": Read("item:{item}")}, namespace="store")
    method = wrap(store.get_item, box=box)
    assert list(inspect.signature(method).parameters) == ["item"]
    assert [await method("tea"), await method(item="tea")] == [1, 1]
    partial = functools.partial(store.get_item, item="rum")
    wrapped = wrap(partial, box=box, name="get_rum")
    assert [await wrapped(), await wrapped()] == [2, 2]
    assert wrapped.__name__ == "get_rum"
    with pytest.raises(ConfigurationError, match="name="):
        wrap(partial, box=box)


def test_a_wrapped_tool_and_one_that_passes_stay_as_they_are(shop: Shop):
    async def say(text: str) -> str:
        return text

    assert wrap(shop.get_order, box=Toolbox({}, namespace="other")) is shop.get_order
    assert wrap(say, box=shop.box) is say


def test_a_synchronous_function_stays_one_and_shares_tags_with_the_others(shop: Shop):
    def get_name(order_id: str) -> str:
        """Name it."""
        shop.runs.append("name")
        return f"order {order_id}"

    tool = wrap(get_name, box=shop.box)
    assert not inspect.iscoroutinefunction(tool)
    assert inspect.signature(tool) == inspect.signature(get_name)
    with AgentCacheSession() as session:
        assert [tool("1"), tool(order_id="1")] == ["order 1"] * 2
        asyncio.run(shop.cancel_order("1"))
        assert tool("1") == "order 1"
    assert shop.runs == ["name", "cancel", "name"]
    assert [one.source for one in session.get_execution_trace()] == ["miss", "hit", "write", "miss"]
    with pytest.raises(TypeError, match="order_id"):
        tool()  # type: ignore[call-arg]


def stream(order_id: str) -> Any:
    yield order_id


@pytest.mark.parametrize("wrong", [Shop, "get_order", None, stream])
def test_what_is_no_tool_is_refused(shop: Shop, wrong: Any):
    with pytest.raises(TypeError, match="wrap"):
        wrap(wrong, box=shop.box, name="get_order")


def test_a_template_that_names_no_parameter_is_refused_when_the_function_is_wrapped(shop: Shop):
    async def get_user(user_id: str) -> str:
        return user_id

    with pytest.raises(ConfigurationError, match=r"shop:get_user.*order_id"):
        wrap(get_user, box=shop.box)


def test_explain_takes_functions_and_names(shop: Shop):
    table = explain([shop.get_order, shop.cancel_order, "now", ToolInfo("other")], shop.box)
    expected = [("get_order", "read"), ("cancel_order", "write"), ("now", "watch"), ("other", "write")]
    assert [(row.tool, row.kind) for row in table] == expected
    for wrong in ("get_order", 7, [object()]):
        with pytest.raises(TypeError, match="explain"):
            explain(wrong, shop.box)
