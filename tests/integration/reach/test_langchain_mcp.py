"""Tools of an MCP server in an agent of LangChain: langchain-mcp-adapters, whose SDK of MCP is of version 1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("langchain_mcp_adapters", reason="needs an environment with version 1 of MCP's SDK")

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.sessions import create_session
from langchain_mcp_adapters.tools import load_mcp_tools

from agent_cache import AgentCacheSession, AgentLoopDetectedError, Read, Toolbox, Watch, Write
from agent_cache.integrations.langchain import AgentCacheMiddleware
from tests.harness.mcp_host import SERVER
from tests.harness.mcp_http_host import running
from tests.harness.odd_mcp_server import OddApplication
from tests.integration.reach.test_langchain import ASK, model_of, tool_messages

pytestmark = pytest.mark.usefixtures("clock")

RULES = {"get_value": Read("value:{key}"), "large": Watch(), "fail": Read("fail"), "set_value": Write("value:{key}")}
GET = ("get_value", {"key": "a"})


@asynccontextmanager
async def tools_of_server() -> AsyncIterator[dict[str, BaseTool]]:
    connection: Any = {"transport": "stdio", "command": SERVER[0], "args": [*SERVER[1:]]}
    async with create_session(connection) as session:
        await session.initialize()
        yield {one.name: one for one in await load_mcp_tools(session)}


async def run(tools: dict[str, BaseTool], *turns: Any) -> list[ToolMessage]:
    middleware = AgentCacheMiddleware(Toolbox(RULES, namespace="adapters"))
    return tool_messages(await create_agent(model_of(*turns), [*tools.values()], middleware=[middleware]).ainvoke(ASK))


async def test_tools_of_a_server_are_cached_with_their_structured_contents():
    async with tools_of_server() as tools:
        same = ("get_value", {"key": "a", "form": "long"})  # the default of its schema
        write, count = ("set_value", {"key": "a", "value": "x"}), ("run_count", {"name": "fail"})
        found = await run(tools, [GET, same], GET, write, GET, ("fail", {}), ("fail", {}), count)
    first, second, third, _, after, *lost, count = found
    assert first.artifact == second.artifact == third.artifact == {"structured_content": {"result": "nothing (1)"}}
    assert after.artifact == {"structured_content": {"result": "x (2)"}}
    assert count.artifact == {"structured_content": {"result": "2"}}
    assert [one.tool_call_id for one in found[:4]] == ["c0.0", "c0.1", "c1.0", "c2.0"]
    assert {one.status for one in lost} == {"error"}
    assert "refused (2)" in str(lost[1].content)


async def test_answers_that_differ_by_the_ids_of_their_parts_alone_are_a_loop():
    """The adapters give each part of an answer a random id."""
    async with tools_of_server() as tools:
        with pytest.raises(AgentLoopDetectedError) as caught:
            async with AgentCacheSession(max_tool_repeats=3):
                await run(tools, *[("large", {"size": 3})] * 6)
    assert (caught.value.tool, caught.value.kind) == ("adapters:large", "repeat")


async def test_two_accounts_at_one_server_share_nothing_and_one_has_her_hits():
    box = Toolbox({"whoami": Read("me", ttl=60)}, namespace="accounts")
    server = OddApplication()
    async with running(server) as url:
        seen = []
        for user in ("ada", "bob", "ada"):
            connection = {"transport": "streamable_http", "url": url, "headers": {"Authorization": user}}
            tools = await MultiServerMCPClient({"who": connection}).get_tools()  # type: ignore[dict-item]
            agent = create_agent(model_of(("whoami", {})), tools, middleware=[AgentCacheMiddleware(box)])
            seen += [one.content[0]["text"] for one in tool_messages(await agent.ainvoke(ASK))]
        assert server.calls == 2
    assert seen[0] == seen[2] != seen[1]


async def test_two_open_sessions_share_nothing_unless_vary_says_who_asks():
    box = Toolbox({"whoami": Read("me", ttl=60)}, namespace="sessions")
    call = ("whoami", {})
    server = OddApplication()
    async with running(server) as url:
        for options, runs in [({}, 3), ({"vary": lambda request: request.runtime.config["configurable"]["user"]}, 2)]:
            before = server.calls
            for user in ("ada", "bob", "ada"):
                connection = {"transport": "streamable_http", "url": url, "headers": {"x-user": user}}
                async with create_session(connection) as session:
                    await session.initialize()
                    tools, middleware = await load_mcp_tools(session), [AgentCacheMiddleware(box, **options)]
                    agent = create_agent(model_of(call), tools, middleware=middleware)
                    result = await agent.ainvoke(ASK, {"configurable": {"user": user}})
                    assert user in str(tool_messages(result)[-1].content)
            assert server.calls == before + runs
