"""What an adapter adds to a tool call of its framework: `python -m benchmarks.adapters [--quick] [--page]`.

Measured is the adapter's own part: its hook around a tool that answers at once, minus `Toolbox.call` with the same
arguments. A framework that is not installed has no rows.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from importlib import util
from typing import Any

from agent_cache import Read, Toolbox, Watch
from benchmarks.commands import describe_machine, put_table
from benchmarks.table import SHOWN, Row, markdown
from benchmarks.timing import QUICK, Effort, calling, measure

LIMIT = 5.0
"""Microseconds that an adapter may add to a tool call of its framework."""
ARGUMENTS = {"order_id": "W1234567", "page": 2}
SCHEMA = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "page": {"type": "integer", "default": 1},
        "details": {"type": "boolean", "default": False},
    },
    "required": ["order_id"],
}
ANSWER = '{"order_id": "W1234567", "status": "pending"}'


async def get_order(order_id: str, page: int = 1, details: bool = False) -> str:
    """Say how an order stands."""
    return ANSWER


async def see_order(order_id: str, page: int = 1, details: bool = False) -> str:
    """Say how an order stands now."""
    return ANSWER


def toolbox() -> Toolbox:
    """A read that is answered from the cache, and a watch that runs at every call."""
    return Toolbox({"get_order": Read("order:{order_id}"), "see_order": Watch()}, namespace="adapters")


async def measure_adapter(
    framework: str,
    hit: Callable[[Any], Awaitable[Any]],
    miss: Callable[[Any], Awaitable[Any]],
    call: Callable[[Any], Awaitable[Any]],
    effort: Effort,
    *,
    kept: Any = ANSWER,
    **form: Any,
) -> list[Row]:
    """The rows of a framework.

    Args:
        framework: its name.
        hit: calls ``get_order`` through the adapter; takes one argument, which means nothing.
        miss: calls ``see_order`` through the adapter, with what stands for the tool answering at once.
        call: what the framework does for one call without the adapter.
        effort: how long to measure.
        kept: the form in which the adapter gives an answer to the toolbox.
        form: its options of `Toolbox.call`.
    """
    box = toolbox()

    async def answer() -> Any:
        return kept

    async def box_miss(_: Any) -> Any:
        return await box.call("see_order", ARGUMENTS, answer, schema=SCHEMA, **form)

    await hit(None)
    subjects = {"hit": hit, "miss": miss, "box miss": box_miss, "call": call}
    samples = {name: calling(subject, None) for name, subject in subjects.items()}
    await measure(samples, QUICK, title=f"{framework}, to warm up")  # the first tenth of a second takes twice the time
    figures = await measure(samples, effort, title=framework)
    added = figures["miss"].above(figures["box miss"])
    return [
        Row(framework, "added by the adapter to a call that runs", added.scaled(1e6), "us", LIMIT),
        Row(framework, "hit, that of the toolbox included", figures["hit"].spread.scaled(1e6), "us"),
        Row(framework, "a tool call of the framework itself", figures["call"].spread.scaled(1e6), "us"),
    ]


async def langchain(effort: Effort) -> list[Row]:
    """The middleware for LangChain, and what a `ToolNode` does for one call."""
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from agent_cache.integrations.langchain import AgentCacheMiddleware

    tools = [tool(get_order), tool(see_order)]
    requests: dict[str, Any] = {}
    messages: dict[str, Any] = {}

    async def keep(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        name = request.tool_call["name"]
        requests[name], messages[name] = request, await handler(request)
        return messages[name]

    def calls(*names: str) -> Any:
        made = [{"name": name, "args": ARGUMENTS, "id": name, "type": "tool_call"} for name in names]
        return {"messages": [{"role": "assistant", "content": "", "tool_calls": made}]}

    def graph(**options: Any) -> Any:
        node = ToolNode(tools, **options)
        return StateGraph(MessagesState).add_node(node).add_edge(START, "tools").add_edge("tools", END).compile()

    await graph(awrap_tool_call=keep).ainvoke(calls("get_order", "see_order"))
    ours = AgentCacheMiddleware(toolbox())
    message = messages["see_order"]
    assert isinstance(message, ToolMessage)

    async def answer(_: Any) -> Any:
        return message

    async def hit(_: Any) -> Any:
        return await ours.awrap_tool_call(requests["get_order"], answer)

    async def miss(_: Any) -> Any:
        return await ours.awrap_tool_call(requests["see_order"], answer)

    async def call(_: Any) -> Any:
        return await tools[0].ainvoke(requests["get_order"].tool_call)

    return await measure_adapter("langchain", hit, miss, call, effort)


async def openai_agents(effort: Effort) -> list[Row]:
    """The invoker of a function tool, and what the OpenAI Agents SDK does for one call."""
    import json

    from agents import Agent, function_tool
    from agents.tool import invoke_function_tool
    from agents.tool_context import ToolContext

    from agent_cache.integrations.openai_agents import cached

    tools: list[Any] = [function_tool(one, strict_mode=False) for one in (get_order, see_order)]
    get, see = (tool.on_invoke_tool for tool in cached(Agent("bench", tools=tools), toolbox()).tools)
    arguments = json.dumps(ARGUMENTS)
    context: Any = ToolContext(None, tool_name="get_order", tool_call_id="c", tool_arguments=arguments)

    async def answer(*_: Any) -> str:
        return ANSWER

    see._invoke_tool_impl = answer  # else it is the SDK's, which validates the arguments

    async def hit(_: Any) -> Any:
        return await get(context, arguments)

    async def miss(_: Any) -> Any:
        return await see(context, arguments)

    async def call(_: Any) -> Any:
        return await invoke_function_tool(function_tool=tools[0], context=context, arguments=arguments)

    return await measure_adapter("openai-agents", hit, miss, call, effort)


async def pydantic_ai(effort: Effort) -> list[Row]:
    """The wrapper of a toolset, and what Pydantic AI does for one call."""
    from pydantic_ai import FunctionToolset, RunContext
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.tool_manager import ToolManager
    from pydantic_ai.usage import RunUsage

    from agent_cache.integrations.pydantic_ai import AgentCacheToolset

    class Answering(FunctionToolset[Any]):
        async def call_tool(self, *_: Any) -> Any:
            return ANSWER

    context: Any = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    ours = AgentCacheToolset(Answering([get_order, see_order]), toolbox())
    tools = await ours.get_tools(context)
    manager = await ToolManager(FunctionToolset([get_order])).for_run_step(context)

    async def hit(_: Any) -> Any:
        return await ours.call_tool("get_order", ARGUMENTS, context, tools["get_order"])

    async def miss(_: Any) -> Any:
        return await ours.call_tool("see_order", ARGUMENTS, context, tools["see_order"])

    async def call(_: Any) -> Any:
        return await manager.handle_call(ToolCallPart("get_order", ARGUMENTS))

    return await measure_adapter("pydantic-ai", hit, miss, call, effort)


async def fastmcp(effort: Effort) -> list[Row]:
    """A server of FastMCP, and a client of MCP."""
    return [*await _mcp_server(effort), *await _mcp_client(effort)]


async def _mcp_server(effort: Effort) -> list[Row]:
    """The middleware for FastMCP, and what a server does for one call of a program.

    A hit asks the server whether the client may call the tool, as a call does: that is most of it.
    """
    from agent_cache.integrations.fastmcp import AgentCacheMiddleware

    contexts: dict[str, Any] = {}
    results: dict[str, Any] = {}

    class Keep(AgentCacheMiddleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            name = context.message.name
            contexts[name], results[name] = context, await call_next(context)
            return results[name]

    server = _order_server(middleware=[Keep(toolbox())])
    for name in ("get_order", "see_order"):
        await server.call_tool(name, ARGUMENTS)
    ours = AgentCacheMiddleware(toolbox())

    async def answer(_: Any) -> Any:
        return results["see_order"]

    async def hit(_: Any) -> Any:
        return await ours.on_call_tool(contexts["get_order"], answer)

    async def miss(_: Any) -> Any:
        return await ours.on_call_tool(contexts["see_order"], answer)

    async def call(_: Any) -> Any:
        return await server.call_tool("get_order", ARGUMENTS)

    kept = _plain(results["see_order"])
    return await measure_adapter("fastmcp", hit, miss, call, effort, kept=kept, **_mcp_form())


async def _mcp_client(effort: Effort) -> list[Row]:
    """The client's adapter, and what a `ClientSession` does for one call of a server in the same process."""
    from fastmcp import Client

    from agent_cache.integrations.mcp_client import CachedClient

    async with Client(_order_server()) as client:
        session: Any = client.session
        by_wire = session.call_tool
        result = await by_wire("see_order", ARGUMENTS)
        ours = CachedClient(session, toolbox())
        await ours.tools()

        async def at_once(*_: Any) -> Any:
            return result

        session.call_tool = at_once

        async def hit(_: Any) -> Any:
            return await ours.call_tool("get_order", ARGUMENTS)

        async def miss(_: Any) -> Any:
            return await ours.call_tool("see_order", ARGUMENTS)

        async def call(_: Any) -> Any:
            return await by_wire("get_order", ARGUMENTS)

        return await measure_adapter("mcp client", hit, miss, call, effort, kept=_plain(result), **_mcp_form())


def _plain(result: Any) -> Any:
    from agent_cache.integrations.shared import as_json

    return as_json(result)


def _mcp_form() -> dict[str, Any]:
    from agent_cache.integrations.shared import fails, is_kept, notice

    return {"returns": dict, "failed": fails, "store_if": is_kept, "refused": notice}


def _order_server(**options: Any) -> Any:
    from fastmcp import FastMCP

    server: Any = FastMCP("adapters", **options)
    for tool in (get_order, see_order):
        server.tool(tool)
    return server


ADAPTERS: dict[str, tuple[tuple[str, ...], Callable[[Effort], Awaitable[list[Row]]]]] = {
    "fastmcp": (("fastmcp", "mcp"), fastmcp),
    "langchain": (("langchain", "langgraph"), langchain),
    "agents": (("openai-agents",), openai_agents),
    "pydantic_ai": (("pydantic-ai-slim",), pydantic_ai),
}
"""Module of the framework -> the distributions that it comes in, and what measures it."""


async def rows(effort: Effort) -> list[Row]:
    """The rows of every framework that is installed."""
    found: list[Row] = []
    for module, (_, measured) in ADAPTERS.items():
        if util.find_spec(module) is not None:
            found += await measured(effort)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/benchmarks.md")
    options = parser.parse_args()
    found = asyncio.run(rows(QUICK if options.quick else Effort()))
    table = markdown(SHOWN, [row.shown() for row in found])
    text = f"{describe_machine([name for names, _ in ADAPTERS.values() for name in names])}\n\n{table}"
    if options.page:
        put_table("adapters", text)
    print(text)
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
