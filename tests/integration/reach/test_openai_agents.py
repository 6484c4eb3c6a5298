"""Agents of the OpenAI Agents SDK whose tools are called through a toolbox, with models that play a script."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

from agents import Agent, FunctionTool, RunContextWrapper, Runner, UserError, function_tool, handoff  # noqa: E402
from agents.mcp import MCPServer  # noqa: E402
from agents.testing import ScriptedModel, assistant_message  # noqa: E402
from agents.tool_context import ToolContext  # noqa: E402
from mcp import MCPError  # noqa: E402

from agent_cache import AgentCacheSession, Read, Toolbox  # noqa: E402
from agent_cache.integrations.openai_agents import LoopInAgent, cached, describe  # noqa: E402
from tests.harness.scripted_models import Call, openai_model, openai_steps, read, toolbox, write  # noqa: E402

agents.set_tracing_disabled(True)

SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}


class Shop:
    """Orders, and the tools on them. `runs` is what was executed."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.fails: Exception | None = None

        @function_tool
        async def get_order(order_id: str) -> str:
            """Get an order."""
            return await self.run("get_order", order_id)

        @function_tool
        async def cancel_order(order_id: str) -> str:
            """Cancel an order."""
            return await self.run("cancel_order", order_id)

        self.get_order, self.cancel_order = get_order, cancel_order

    async def run(self, name: str, *arguments: Any) -> str:
        self.runs.append((name, *arguments))
        if self.fails is not None:
            raise self.fails
        return f"{name} {len(self.runs)}"

    def agent(self, *turns: list[Call], tools: list[Any] | None = None, **options: Any) -> Agent[Any]:
        tools = [self.get_order, self.cancel_order] if tools is None else tools
        return Agent("shop", model=openai_model(*turns), tools=tools, **options)


def answers(result: Any) -> dict[str, Any]:
    """What the model has got, by the id of its call."""
    return {
        item["call_id"]: item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output"
    }


async def run(agent: Agent[Any], **options: Any) -> dict[str, Any]:
    return answers(await Runner.run(agent, "go", **options))


# What is cached


async def test_a_synchronous_tool_is_cached_and_stays_one():
    runs = []

    @function_tool
    def get_sum(a: int, b: int = 2) -> int:
        runs.append((a, b))
        return a + b

    agent = cached(
        Shop().agent([("get_sum", {"a": 1, "b": 2})], [("get_sum", {"b": 2, "a": 1})], tools=[get_sum]),
        toolbox(get_sum=Read("sums")),
    )
    assert await run(agent) == {"c0.0": "3", "c1.0": "3"}
    assert runs == [(1, 2)]
    with pytest.raises(ValueError, match="sync"):
        dataclasses.replace(agent.tools[0], timeout_seconds=1)


async def test_a_vary_that_fails_ends_the_run_and_no_tool_has_run():
    shop = Shop()
    agent = cached(shop.agent([read()]), toolbox(), vary=lambda context: context.context.missing)
    with pytest.raises(UserError, match="missing"):
        await run(agent)
    assert not shop.runs


async def test_a_tool_without_failure_handling_of_the_sdk_is_cached_too():
    shop = Shop()

    async def invoke(context: ToolContext[Any], arguments: str) -> str:
        return await shop.run("get_raw", json.loads(arguments)["order_id"])

    raw = FunctionTool("get_raw", "Get.", SCHEMA, invoke)
    call = "get_raw", {"order_id": "7"}
    box, found = toolbox(), []
    for user in ("ada", "bob", "ada", "bob"):
        agent = cached(shop.agent([call], [call], tools=[raw]), box)
        found += {*(await run(agent, context={"user": user})).values()}
    assert found == ["get_raw 1", "get_raw 2"] * 2
    shop.fails = ValueError("no")
    with pytest.raises(UserError, match="no"):
        await run(cached(shop.agent([("get_raw", {"order_id": "8"})], tools=[raw]), toolbox()))


@pytest.mark.parametrize("are_cached", [True, False])
async def test_what_an_agent_as_a_tool_says_is_not_stored_and_what_its_tools_write_is_read_anew(are_cached):
    """Its run may change the state of both runs, and wait for an approval."""
    shop, box, ask = Shop(), toolbox(), ("ask", {"input": "7"})
    inner = shop.agent()
    inner.model = ScriptedModel([*openai_steps([write()]), *([assistant_message(text)] for text in ("done", "again"))])
    tool = (cached(inner, box) if are_cached else inner).as_tool("ask", "Ask.")
    outer = shop.agent([read()], [ask], [ask], [read()], [read()], tools=[shop.get_order, tool])
    assert [info.name for info in describe(outer) or ()] == ["get_order", *(() if are_cached else ["ask"])]
    copy = cached(outer, box)
    assert (copy.tools[1] is tool) == are_cached
    assert (await run(copy))["c2.0"] == "again"
    assert [name for name, _ in shop.runs] == ["get_order", "cancel_order", "get_order"]


# Handoffs


async def test_agents_that_are_reached_by_handoffs_are_cached_and_described_also_in_a_circle():
    shop = Shop()
    first, second, third = (Agent(name, tools=[shop.get_order]) for name in ("first", "second", "third"))
    first.handoffs, second.handoffs, third.handoffs = [second], [handoff(third)], [first]
    third.tools.append(shop.cancel_order)
    first.model = openai_model([read()], [("transfer_to_second", "{}")], [read()])
    second.model = ScriptedModel(openai_steps([read()], [("transfer_to_third", "{}")], prefix="second"))
    third.model = ScriptedModel(openai_steps([read()], [("transfer_to_first", "{}")], prefix="third"))
    copy = cached(first, toolbox())
    for agent in (first, copy):
        assert [info.name for info in describe(agent) or ()] == ["get_order", "cancel_order"]
    result = await Runner.run(copy, "go")
    assert result.last_agent is copy
    assert shop.runs == [("get_order", "7")]
    assert first.handoffs == [second]


def status_of(what: str) -> Any:
    @function_tool
    def get_status(number: str) -> str:
        return f"{what} {number}"

    return get_status


async def test_tools_of_one_name_in_agents_of_one_handoff_are_kept_apart():
    box = Toolbox({"get_status": Read("status:{number}", ttl=60)}, namespace="openai_handoffs")
    ask = [("get_status", {"number": "7"})]
    billing = Agent("billing", tools=[status_of("invoice")])
    billing.model = ScriptedModel([*openai_steps(ask, ask, prefix="billing"), [assistant_message("done")]])
    orders = Agent("orders", tools=[status_of("order")], handoffs=[billing])
    orders.model = ScriptedModel(openai_steps(ask, ask, [("transfer_to_billing", "{}")]))
    result = await run(cached(orders, box))
    assert [result[call] for call in ("c0.0", "c1.0", "billing0.0", "billing1.0")] == ["order 7"] * 2 + [
        "invoice 7"
    ] * 2


async def test_an_agent_that_a_handoff_makes_is_cached():
    shop = Shop()

    async def make(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
        return shop.agent([read()], [read()])

    to_new = agents.Handoff("to_new", "Go on.", {}, make, "shop", strict_json_schema=False)
    agent = Agent(
        "first", model=ScriptedModel(openai_steps([read()], [("to_new", "{}")], prefix="f")), handoffs=[to_new]
    )
    agent.tools = [shop.get_order]
    await Runner.run(cached(agent, toolbox()), "go")
    assert shop.runs == [("get_order", "7")]


# MCP servers


def texts(result: dict[str, Any]) -> dict[str, str]:
    """The texts of answers that are lists of parts."""
    return {
        call: part if isinstance(part, str) else "".join(one["text"] for one in part) for call, part in result.items()
    }


class OwnServer(MCPServer):
    """A server of one's own, whose tools are functions of this process, by the classes of the MCP SDK."""

    def __init__(self, shop: Shop, name: str = "own", **options: Any) -> None:
        super().__init__(**options)
        self.shop, self._name = shop, name
        self.properties: dict[str, Any] = {"order_id": {"type": "string"}}

    @property
    def name(self) -> str:
        return self._name

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        from mcp.types import Tool

        schema = {"type": "object", "properties": self.properties}
        return [
            Tool.model_validate({"name": "get_order", "inputSchema": schema}),
            Tool.model_validate({"name": "cancel_order", "inputSchema": schema}),
        ]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        from mcp.types import CallToolResult

        text = await self.shop.run(tool_name, (arguments or {}).get("order_id"))
        return CallToolResult.model_validate(
            {"content": [{"type": "text", "text": text}], "structuredContent": {"it": text}, "_meta": {"trace": text}}
        )

    async def list_prompts(self) -> Any:
        return "prompts"

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


def mcp_agent(shop: Shop, *turns: list[Call], server: OwnServer | None = None, **options: Any) -> Agent[Any]:
    return shop.agent(*turns, tools=[], mcp_servers=[server or OwnServer(shop)], **options)


async def test_a_loop_of_mcp_tools_leaves_the_runner():
    shop = Shop()
    with pytest.raises(LoopInAgent) as caught:
        async with AgentCacheSession(max_tool_repeats=3):
            await run(cached(mcp_agent(shop, *[[read()]] * 9), toolbox()))
    assert caught.value.tool == "shop:get_order"
    assert shop.runs == [("get_order", "7")]


async def test_two_servers_with_tools_of_one_name_share_no_answers():
    shop = Shop()
    servers = [OwnServer(shop, "a"), OwnServer(shop, "b")]
    calls = [[("mcp_a__get_order", {"order_id": "7"})], [("mcp_b__get_order", {"order_id": "7"})]]
    agent = shop.agent(*calls, *calls, tools=[], mcp_servers=servers, mcp_config={"include_server_in_tool_names": True})
    result = texts(await run(cached(agent, toolbox())))
    assert [*result.values()] == ["get_order 1", "get_order 2"] * 2


async def test_a_tool_of_an_mcp_server_that_changes_is_asked_anew():
    shop, box = Shop(), toolbox()
    server = OwnServer(shop)
    agent = cached(mcp_agent(shop, [read()], server=server), box)
    assert texts(await run(agent)) == {"c0.0": "get_order 1"}
    server.properties = {**server.properties, "lines": {"type": "boolean", "default": True}}
    agent.model = openai_model([read()])
    assert texts(await run(agent)) == {"c0.0": "get_order 2"}


@pytest.mark.parametrize(
    ("error", "is_in_doubt"),
    [
        (MCPError(408, "timed out"), True), (MCPError(-32602, "no such order"), False),
        (UserError("Failed to call tool: Connection lost."), True), (ValueError("no"), False),
    ],
)  # fmt: skip
async def test_a_write_that_an_mcp_server_has_not_answered_is_in_doubt(clock, error: Exception, is_in_doubt: bool):
    shop, box = Shop(), toolbox()
    shop.fails = error
    texts_of_errors = []

    def explain(context: Any, found: Exception) -> str:
        texts_of_errors.append(found)
        return "failed"

    server = OwnServer(shop, failure_error_function=explain)
    assert await run(cached(mcp_agent(shop, [write()], server=server), box)) == {"c0.0": "failed"}
    assert await run(mcp_agent(shop, [write()], server=server)) == {"c0.0": "failed"}
    with_cache, without = texts_of_errors
    assert (type(with_cache), str(with_cache)) == (type(without), str(without))
    shop.fails = None
    first = texts(await run(cached(mcp_agent(shop, [read()], [read()], server=server), box)))
    assert (len(set(first.values())) == 2) is is_in_doubt
    clock.advance(6)
    later = texts(await run(cached(mcp_agent(shop, [read()], [read()], server=server), box)))
    assert len(set(later.values())) == 1


async def test_a_server_is_of_its_class_and_has_its_fields_and_methods_as_they_are_now():
    server = OwnServer(Shop(), require_approval="always")
    agent = cached(mcp_agent(Shop(), server=server), toolbox())
    (wrapper,) = agent.mcp_servers
    assert cached(agent, toolbox()).mcp_servers == [wrapper]
    server.use_structured_content = True
    assert isinstance(wrapper, OwnServer)
    assert wrapper._needs_approval_policy is wrapper.use_structured_content is True
    assert (wrapper.name, wrapper.cached_tools, await wrapper.list_prompts()) == ("own", None, "prompts")
