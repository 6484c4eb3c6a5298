"""`agent_cache.integrations.fastmcp` in real FastMCP servers: in memory, over stdio, and over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="the FastMCP adapter is tested where FastMCP is installed")

from fastmcp import Client, Context, FastMCP
from fastmcp.server.providers.proxy import FastMCPProxy, ProxyClient

from agent_cache import AgentCacheSession, AgentLoopDetectedError, Read, Toolbox, Write
from agent_cache.integrations.fastmcp import AgentCacheMiddleware, describe
from tests.integration.reach.mcp_shop import Shop, new_box

pytestmark = pytest.mark.usefixtures("clock")  # an empty library, whose clock stands still

ORDER = {"order_id": "1"}


def text_of(result: Any) -> str:
    return result.content[0].text


def cached_shop(**options: Any) -> Shop:
    return Shop(AgentCacheMiddleware(new_box()), **options)


@pytest.mark.parametrize("masked", [False, True])
async def test_a_loop_is_an_error_result_with_its_text(masked: bool):
    shop = cached_shop(mask_error_details=masked)
    async with AgentCacheSession(on_loop="raise") as session, Client(shop.server) as client:
        answers = [await client.call_tool_mcp("now", {}) for _ in range(40)]
        await client.call_tool_mcp("get_order", ORDER)
        answers += [await client.call_tool_mcp("get_order", ORDER) for _ in range(40)]
        error = session.loop_error
        assert error is not None
        assert text_of(answers[-1]) == str(error)
        assert answers[-1].is_error
        with pytest.raises(AgentLoopDetectedError):
            session.raise_for_loop()
        session.new_turn()
        session.loop_error = None  # else the end of the session raises it
    assert not any(answer.is_error for answer in answers[:40])


async def test_answers_are_kept_apart_by_version():
    server = FastMCP("shop", middleware=[AgentCacheMiddleware(new_box())])
    runs = []

    @server.tool(name="get_price", version="1")
    async def first(order_id: str) -> str:
        runs.append("1")
        return "1"

    @server.tool(name="get_price", version="2")
    async def second(order_id: str) -> str:
        runs.append("2")
        return "2"

    async with Client(server) as client:
        for version in ("1", "2", None, "1", "2", None):
            answer = await client.call_tool("get_price", ORDER, version=version)
            assert answer.data == (version or "2")
    assert runs == ["1", "2"]  # the latest is version 2 until there is another one

    @server.tool(name="get_price", version="3")
    async def third(order_id: str) -> str:
        return "3"

    async with Client(server) as client:
        assert (await client.call_tool("get_price", ORDER)).data == "3"
        assert (await client.call_tool("get_price", ORDER, version="2")).data == "2"


async def test_a_hit_is_only_for_who_may_call_the_tool():
    shop = cached_shop()
    async with Client(shop.server) as client:
        await client.call_tool("get_order", ORDER)
        shop.server.disable(names={"get_order"})
        answer = await client.call_tool_mcp("get_order", ORDER)
        assert answer.is_error
        assert "Unknown tool" in text_of(answer)
        shop.server.enable(names={"get_order"})
        assert (await client.call_tool("get_order", ORDER)).data["run"] == 1


# What is not stored


@pytest.mark.parametrize("tool", ["get_elicited", "get_state", "get_set_state"])
async def test_what_depends_on_the_client_or_its_state_is_not_stored(tool: str):
    shop = cached_shop()

    async def accepts(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"value": "yes"}

    async with Client(shop.server, elicitation_handler=accepts, mode="legacy") as client:
        first, second = [await client.call_tool(tool, ORDER) for _ in range(2)]
        if tool == "get_set_state":
            assert (await client.call_tool("get_state", ORDER)).data == "1"
    assert first.data == second.data
    assert shop.runs[:2] == [tool] * 2


async def test_a_question_to_the_client_is_not_stored_and_its_later_rounds_pass():
    shop = cached_shop()

    async def accepts(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {}

    async with AgentCacheSession() as session, Client(shop.server, elicitation_handler=accepts) as client:
        for _ in range(2):
            assert (await client.call_tool("get_guarded", ORDER)).data == "1 one"
        assert [record.outcome for record in session.get_execution_trace()] != []
        assert session.loop_error is None
    assert shop.runs == ["get_guarded"] * 4


async def test_a_question_to_one_client_is_not_given_to_another_that_waits():
    shop = cached_shop()
    server, asked = shop.server, []
    both = asyncio.Event()

    @server.tool
    async def get_asking(order_id: str, ctx: Context) -> str:
        asked.append(ctx.session_id)
        await both.wait()
        answer = await ctx.elicit("sure?", str)
        return f"{answer.action} {len(asked)}"

    def client(answer: str) -> Client[Any]:
        async def accepts(message: str, kind: Any, params: Any, context: Any) -> Any:
            return {"value": answer}

        return Client(server, elicitation_handler=accepts, mode="legacy")

    async with client("a") as first, client("b") as second:
        calls = [asyncio.ensure_future(one.call_tool("get_asking", ORDER)) for one in (first, second)]
        await first.call_tool("now")
        await second.call_tool("now")
        both.set()
        await asyncio.gather(*calls)
    assert len(set(asked)) == 2


# Other ways to have tools


@pytest.mark.parametrize("where", ["above", "below", "both"])
async def test_a_mounted_server_is_cached_above_below_or_once_at_both(where: str):
    box = Toolbox(
        {"*get_order": Read("order:{order_id}"), "*cancel_order": Write("order:{order_id}")}, namespace="shop"
    )
    shop = Shop(*([] if where == "above" else [AgentCacheMiddleware(box)]))
    outer = FastMCP("outer", middleware=[] if where == "below" else [AgentCacheMiddleware(box)])
    outer.mount(shop.server, namespace="shop")
    async with AgentCacheSession() as session, Client(outer) as client:
        for _ in range(2):
            await client.call_tool("shop_get_order", ORDER)
            await client.call_tool("shop_get_order", ORDER)
            await client.call_tool("shop_cancel_order", ORDER)
        assert len(session.get_execution_trace()) == 6
    assert shop.runs == ["get_order", "cancel_order"] * 2


async def test_a_proxied_server_is_cached():
    shop = Shop()
    proxy = FastMCPProxy(client_factory=lambda: ProxyClient(shop.server), name="proxy")
    proxy.add_middleware(AgentCacheMiddleware(new_box(hints="kind")))
    async with Client(proxy) as client:
        for _ in range(2):
            await client.call_tool("get_order", ORDER)
            assert (await client.call_tool("get_order", ORDER)).data["id"] == "1"
            await client.call_tool("cancel_order", ORDER)
        answer = await client.call_tool_mcp("get_error", ORDER)
        assert answer.is_error
    assert shop.runs == ["get_order", "cancel_order"] * 2 + ["get_error"]


async def test_a_replaced_tool_gives_no_old_answers():
    server = FastMCP("shop", middleware=[AgentCacheMiddleware(new_box())], on_duplicate="replace")

    def add(answer: str) -> None:
        async def get_answer(order_id: str) -> str:
            return answer

        server.tool(get_answer)

    add("old")
    async with Client(server) as client:
        for _ in range(2):
            assert (await client.call_tool("get_answer", ORDER)).data == "old"
        add("new")
        assert (await client.call_tool("get_answer", ORDER)).data == "new"


async def test_a_server_is_described_inside_and_outside_of_an_event_loop():
    shop = cached_shop()
    found = describe(shop.server)
    assert found is not None
    assert await asyncio.to_thread(describe, shop.server) == found
    assert {tool.name for tool in found} >= {"get_order", "cancel_order"}
    assert describe(object()) is None
    assert new_box().explain(found)[0].kind == "read"
