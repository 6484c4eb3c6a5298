"""Two spellings of one argument are one to a toolbox, where they are one to the tool: a write by one ends the other."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

pytest.importorskip("pydantic", reason="the frameworks check arguments by pydantic")

from pydantic import BaseModel, StringConstraints

from agent_cache import Read, Toolbox, Write

pytestmark = pytest.mark.usefixtures("clock")

Code = Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True)]
STORE: dict[Any, str] = {}


class Where(BaseModel):
    code: Code


def get_number(order_id: int) -> str:
    """Get."""
    return STORE.get(order_id, "old")


def get_optional(order_id: int | None = None) -> str:
    """Get."""
    return STORE.get(order_id, "old")


def get_numbers(ids: list[int]) -> str:
    """Get."""
    return STORE.get(ids[0], "old")


def get_code(order_id: Code) -> str:
    """Get."""
    return STORE.get(order_id, "old")


def get_codes(ids: list[Code]) -> str:
    """Get."""
    return STORE.get(ids[0], "old")


def get_where(where: Where, depth: int = 1) -> str:
    """Get."""
    return STORE.get(where.code, "old")


def set_number(order_id: int) -> str:
    """Set."""
    STORE[order_id] = "new"
    return "done"


def set_code(order_id: Code) -> str:
    """Set."""
    STORE[order_id] = "new"
    return "done"


TOOLS = [get_number, get_optional, get_numbers, get_code, get_codes, get_where, set_number, set_code]
CASES = [
    ("get_number", {"order_id": "7"}, "set_number", {"order_id": 7}),
    ("get_number", {"order_id": "07"}, "set_number", {"order_id": 7}),
    ("get_number", {"order_id": 7.0}, "set_number", {"order_id": "07"}),
    ("get_optional", {"order_id": "07"}, "set_number", {"order_id": 7}),
    ("get_numbers", {"ids": ["07", 8]}, "set_number", {"order_id": 7}),
    ("get_code", {"order_id": " w1"}, "set_code", {"order_id": "W1"}),
    ("get_code", {"order_id": "W1"}, "set_code", {"order_id": "w1 "}),
    ("get_codes", {"ids": ["w1"]}, "set_code", {"order_id": "W1"}),
    ("get_where", {"where": {"code": "w1"}}, "set_code", {"order_id": "W1"}),
]


def box() -> Toolbox:
    STORE.clear()
    rules = {
        "get_numbers": Read("order:{ids[]}"),
        "get_codes": Read("order:{ids[]}"),
        "get_where": Read("order:{where[code]}"),
        "get_*": Read("order:{order_id}"),
        "set_*": Write("order:{order_id}"),
    }
    return Toolbox(rules, namespace="spelt")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_in_langchain(case: Any):
    pytest.importorskip("langchain", reason="LangChain is not installed")
    from langchain_core.messages import AIMessage
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from agent_cache.integrations.langchain import AgentCacheMiddleware

    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(TOOLS, wrap_tool_call=AgentCacheMiddleware(box()).wrap_tool_call))
    graph.set_entry_point("tools")
    graph.set_finish_point("tools")
    compiled = graph.compile()

    def call(name: str, given: Any) -> str:
        calls = [{"name": name, "args": given, "id": "1"}]
        return str(compiled.invoke({"messages": [AIMessage("", tool_calls=calls)]})["messages"][-1].content)

    read, given, write, written = case
    before = call(read, given)
    call(write, written)
    assert (before, call(read, given)) == ("old", "new")


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
async def test_in_openai_agents(case: Any, strict: bool):
    pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")
    from agents import Agent, Runner, function_tool, set_tracing_disabled
    from agents.testing import ScriptedModel, assistant_message, function_call

    from agent_cache.integrations.openai_agents import cached

    read, given, write, written = case
    set_tracing_disabled(True)
    try:
        calls = enumerate([(read, given), (write, written), (read, given)])
        turns = [[function_call(name, one, call_id=f"c{number}")] for number, (name, one) in calls]
        tools = [function_tool(one, strict_mode=strict) for one in TOOLS]
        model = ScriptedModel([*turns, [assistant_message("done")]])
        result = await Runner.run(cached(Agent("a", model=model, tools=tools), box()), "go")
    finally:
        set_tracing_disabled(False)
    outputs = [str(one.output) for one in result.new_items if type(one).__name__ == "ToolCallOutputItem"]
    assert (outputs[0], outputs[2]) == ("old", "new")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
async def test_in_fastmcp(case: Any):
    pytest.importorskip("fastmcp", reason="FastMCP is not installed")
    from fastmcp import Client, Context, FastMCP

    from agent_cache.integrations.fastmcp import AgentCacheMiddleware

    server: FastMCP[Any] = FastMCP("spelt", middleware=[AgentCacheMiddleware(box())])
    for one in TOOLS:
        if one is get_number:

            def with_context(order_id: int, ctx: Any) -> str:
                """Get."""
                return STORE.get(order_id, "old")

            with_context.__annotations__["ctx"] = Context
            server.tool(with_context, name="get_number")
        else:
            server.tool(one)
            del one.__fastmcp__  # the mark of a function that is registered
    read, given, write, written = case
    async with Client(server) as client:
        before = (await client.call_tool(read, given)).data
        await client.call_tool(write, written)
        assert (before, (await client.call_tool(read, given)).data) == ("old", "new")


async def test_a_strict_server_refuses_another_spelling_although_there_is_an_answer():
    pytest.importorskip("fastmcp", reason="FastMCP is not installed")
    from fastmcp import Client, FastMCP
    from fastmcp.exceptions import ToolError

    from agent_cache.integrations.fastmcp import AgentCacheMiddleware

    server: FastMCP[Any] = FastMCP("spelt", middleware=[AgentCacheMiddleware(box())], strict_input_validation=True)

    def get_strict(order_id: int) -> str:
        return "found"

    server.tool(get_strict)
    async with Client(server) as client:
        await client.call_tool("get_strict", {"order_id": 7})
        with pytest.raises(ToolError):
            await client.call_tool("get_strict", {"order_id": "7"})
