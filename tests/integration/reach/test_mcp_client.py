"""`agent_cache.integrations.mcp_client` around real clients, of servers in memory, over stdio, and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="the servers of these tests are FastMCP's")

from fastmcp import Client
from fastmcp.exceptions import ToolError
from mcp import types

from agent_cache import ConfigurationError, Pass, Read, Toolbox
from agent_cache.integrations import explain
from agent_cache.integrations.mcp_client import CachedClient, describe
from tests.integration.reach.mcp_shop import Shop, new_box

pytestmark = pytest.mark.usefixtures("clock")  # an empty library, whose clock stands still

ORDER = {"order_id": "1"}
Wrapped = Callable[[Client[Any]], Any]
OF_FASTMCP: Wrapped = lambda client: client
OF_THE_SDK: Wrapped = lambda client: client.session


async def test_fastmcps_client_gives_typed_data_and_raises_its_own_errors():
    shop = Shop()
    async with Client(shop.server) as client:
        cached = CachedClient(client, new_box())
        for _ in range(2):
            answer = await cached.call_tool("list_orders")
            assert answer.data == ["1", "2"]
            with pytest.raises(ToolError, match="no such order"):
                await cached.call_tool("get_refused", ORDER)
            assert (await cached.call_tool("get_refused", ORDER, raise_on_error=False)).is_error
    assert shop.runs.count("list_orders") == 1
    assert shop.runs.count("get_refused") == 4


async def test_answers_are_kept_apart_by_version_and_by_a_function_of_the_client():
    shop = Shop()
    tenants = ["a", "b"]
    box = new_box()
    async with Client(shop.server) as client:
        for tenant in tenants * 2:
            await CachedClient(client.session, box, vary=lambda of: tenant).call_tool("get_order", ORDER)  # noqa: B023
        assert len(shop.runs) == 2
        for version in ("1", "2", "1"):
            meta: Any = {"fastmcp": {"version": version}, "progressToken": version * 3}
            await CachedClient(client.session, box).call_tool("no_such_tool", ORDER, meta=meta)
    assert len(shop.runs) == 2


async def test_what_came_of_asking_the_client_is_not_stored():
    shop = Shop()

    async def accepts(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"value": "yes"}

    async with Client(shop.server, elicitation_handler=accepts, mode="legacy") as client:
        for wrapped in (OF_FASTMCP, OF_THE_SDK):
            cached = CachedClient(wrapped(client), new_box())
            for _ in range(2):
                await cached.call_tool("get_elicited", ORDER)
    assert shop.runs == ["get_elicited"] * 4


async def test_tools_are_listed_once_and_again_when_they_have_changed():
    shop = Shop()
    listings = []

    async with Client(shop.server, mode="legacy") as client:
        session = client.session
        list_tools = session.list_tools

        async def counted(**options: Any) -> Any:
            if options:  # the session lists them itself, without, to check what a tool returns
                listings.append(options)
            return await list_tools(**options)

        session.list_tools = counted  # type: ignore[method-assign]
        box = Toolbox({"list_orders": Read("order"), "change": Pass()}, namespace="changing", hints="kind")
        cached = CachedClient(session, box)
        await asyncio.gather(*[cached.call_tool("get_order", ORDER) for _ in range(3)])
        assert len(listings) == 1
        for _ in range(2):
            await cached.call_tool("list_orders")
        assert shop.runs.count("list_orders") == 1
        assert {tool.name: tool for tool in await cached.tools()}["get_order"].annotations == {"readOnlyHint": True}

        @shop.server.tool
        async def change(ctx: Any = None) -> str:
            from fastmcp.server.dependencies import get_context

            await get_context().send_notification(types.ToolListChangedNotification())
            return "changed"

        await cached.call_tool("change")
        assert "change" in {tool.name for tool in await cached.tools()}
        await cached.call_tool("list_orders")
        assert shop.runs.count("list_orders") == 2
    assert len(listings) == 2


async def test_a_client_is_described_once_it_has_listed_the_tools():
    async with Client(Shop().server) as client:
        cached = CachedClient(client, new_box())
        with pytest.raises(ConfigurationError, match=r"await client.tools\(\)"):
            describe(cached)
        assert await cached.tools() == describe(cached)
        assert {row.tool: row.kind for row in explain(cached, new_box())}["get_order"] == "read"
    assert describe(object()) is None
