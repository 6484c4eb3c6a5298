"""Agents of Pydantic AI whose tools are called through a toolbox, with models that play a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed")

from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext, Tool
from pydantic_ai.messages import ModelRequest
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from agent_cache import AgentCacheSession, Read, Toolbox, Write
from agent_cache.integrations.pydantic_ai import AgentCacheCapability, AgentCacheToolset
from agent_cache.recording import record, replay
from tests.harness.scripted_models import Call, pydantic_model, read, toolbox, write


class Shop:
    """Orders, and the tools on them. `runs` is what was executed."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.fails: BaseException | None = None

    async def get_order(self, order_id: str) -> str:
        """Get an order."""
        return await self.run("get_order", order_id)

    async def cancel_order(self, order_id: str) -> str:
        """Cancel an order."""
        return await self.run("cancel_order", order_id)

    async def run(self, name: str, *arguments: Any) -> str:
        self.runs.append((name, *arguments))
        if self.fails is not None:
            raise self.fails
        return f"{name} {len(self.runs)}"

    def agent(
        self, *turns: list[Call], box: Toolbox | None = None, vary: Any = None, tools: Any = None, **options: Any
    ) -> Agent[Any, Any]:
        """An agent whose model makes the calls of each turn; without a box, it has no cache."""
        capabilities = [AgentCacheCapability(box, vary)] if box is not None else []
        given = [self.get_order, self.cancel_order] if tools is None else tools
        options["capabilities"] = [*options.get("capabilities", ()), *capabilities]
        return Agent(pydantic_model(*turns), tools=given, **options)


def answers(result: Any) -> dict[str, Any]:
    """What the model has got, by the id of its call."""
    return {
        part.tool_call_id: part.content
        for message in result.all_messages()
        if isinstance(message, ModelRequest)
        for part in message.parts
        if hasattr(part, "tool_call_id") and hasattr(part, "content")
    }


async def run(agent: Agent[Any, Any], **options: Any) -> dict[str, Any]:
    return answers(await agent.run("go", **options))


# What is cached


async def test_toolsets_with_a_prefix_are_known_by_what_the_model_sees():
    first, second = Shop(), Shop()
    toolsets = [FunctionToolset([shop.get_order]).prefixed(name) for name, shop in (("a", first), ("b", second))]
    box = Toolbox({"*_get_order": Read("order:{order_id}")}, namespace="two_pa")
    calls = [[("a_get_order", {"order_id": "7"})], [("b_get_order", {"order_id": "7"})]]
    agent = first.agent(*calls, *calls, tools=[], toolsets=toolsets, box=box)
    await run(agent)
    assert first.runs == second.runs == [("get_order", "7")]


async def test_what_other_toolsets_do_for_a_call_is_done_at_every_call():
    """A check of permissions, say. Cached answers are given to those who may ask."""
    shop = Shop()

    @dataclass
    class Checked(WrapperToolset[Any]):
        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            if ctx.deps == "guest":
                raise ModelRetry("not for guests")
            return await super().call_tool(name, tool_args, ctx, tool)

    for box in (toolbox(), None):
        toolset = Checked(FunctionToolset([shop.get_order]))
        checked = toolset if box else AgentCacheToolset(toolset, toolbox())
        agent = shop.agent([read()], [read()], tools=[], toolsets=[checked], box=box, retries=5)
        assert len(set((await run(agent, deps="admin")).values())) == 1
        assert set((await run(agent, deps="guest")).values()) == {"not for guests"}
    assert len(shop.runs) == 2


class Logged(WrapperToolset[Any]):
    """A toolset of one's own with a constructor of its own."""

    def __init__(self, shop: Shop, log: list[str]) -> None:
        super().__init__(FunctionToolset([shop.get_order]))
        self.log = log

    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        self.log.append(name)
        return await super().call_tool(name, tool_args, ctx, tool)


@pytest.mark.parametrize("per_run_step", [False, True])
async def test_toolsets_that_are_made_for_a_run_are_cached(per_run_step: bool):
    shop = Shop()
    agent = shop.agent([read()], [read()], [write()], tools=[], box=toolbox(), output_type=[str, DeferredToolRequests])

    @agent.toolset(per_run_step=per_run_step)
    def made(ctx: RunContext[Any]) -> Any:
        gated = FunctionToolset([shop.cancel_order]).approval_required()
        return CombinedToolset([Logged(shop, []), gated])

    async with AgentCacheSession() as session:
        first = await agent.run("go")
        assert [call.tool for call in session.get_execution_trace()] == ["shop:get_order"] * 2
        assert len(first.output.approvals) == 1
    assert shop.runs == [("get_order", "7")]


class Filter(BaseModel):
    city: str
    limit: int = 10


async def test_a_tool_that_takes_one_model_has_the_names_of_its_fields():
    shop = Shop()

    async def get_shops(where: Filter) -> str:
        return await shop.run("get_shops", where.city)

    async def move_shops(city: str) -> str:
        return await shop.run("move_shops", city)

    box = Toolbox({"get_shops": Read("city:{city}"), "move_shops": Write("city:{city}")}, namespace="one_model_pa")
    rome, oslo = {"city": "Rome"}, {"city": "Oslo"}
    turns = [[("get_shops", rome)], [("get_shops", oslo)], [("move_shops", rome)], [("get_shops", rome)],
             [("get_shops", oslo)]]  # fmt: skip
    result = await run(shop.agent(*turns, tools=[get_shops, move_shops], box=box))
    assert [*result.values()] == ["get_shops 1", "get_shops 2", "move_shops 3", "get_shops 4", "get_shops 2"]


async def resumed(agent: Agent[Any, Any], result: Any, **options: Any) -> Any:
    requests = result.output
    return await agent.run(
        message_history=result.all_messages(),
        deferred_tool_results=DeferredToolResults(
            approvals={call.tool_call_id: True for call in requests.approvals},
            calls={call.tool_call_id: "from outside" for call in requests.calls},
            **options,
        ),
    )


async def test_what_comes_with_an_approval_belongs_to_the_key():
    shop, box = Shop(), toolbox()

    async def get_order(ctx: RunContext[Any], order_id: str) -> str:
        return await shop.run("get_order", ctx.tool_call_metadata)

    for reason, expected in [("a", "get_order 1"), ("b", "get_order 2"), ("a", "get_order 1")]:
        agent = shop.agent(
            [read()], tools=[Tool(get_order, requires_approval=True)], box=box, output_type=[str, DeferredToolRequests]
        )
        result = await agent.run("go")
        assert answers(await resumed(agent, result, metadata={"c0.0": {"reason": reason}})) == {"c0.0": expected}


async def test_a_call_that_a_tool_defers_is_no_failure_and_not_stored():
    shop = Shop()

    async def get_order(order_id: str) -> str:
        shop.runs.append(order_id)
        raise CallDeferred({"job": order_id}, kind="question")

    agent = shop.agent(*[[read()]] * 6, tools=[get_order], box=toolbox(), output_type=[str, DeferredToolRequests])
    async with AgentCacheSession() as session:
        result = await agent.run("go")
        while isinstance(result.output, DeferredToolRequests):
            (call,) = result.output.calls
            assert result.output.kind(call.tool_call_id) == "question"
            assert result.output.metadata == {call.tool_call_id: {"job": "7"}}
            session.new_turn()
            result = await resumed(agent, result)
        assert {call.outcome for call in session.get_execution_trace()} == {"ok"}
    assert shop.runs == ["7"] * 6


async def test_the_tools_that_durable_execution_runs_pass():
    """Its runs are replayed from the calls that it has made."""
    from pydantic_ai.durable_exec._toolset import DurableToolsetBase

    class Durable(DurableToolsetBase[Any]):
        pass

    def durable(toolset: Any) -> Any:
        return Durable(toolset, in_durable_context=lambda: True, lifecycle="enter-always", durable_registrations=None)

    shop = Shop()
    toolset, filtered = (durable(FunctionToolset([shop.get_order])) for _ in range(2))
    for options in (
        {"toolsets": [toolset], "box": toolbox()},
        {"toolsets": [AgentCacheToolset(filtered.filtered(lambda *_: True), toolbox())]},
    ):
        async with AgentCacheSession() as session:
            result = await run(shop.agent([read()], [read()], tools=[], **options))
            assert not session.get_execution_trace()
        assert len(set(result.values())) == 2


async def test_a_recorded_deferral_is_replayed(tmp_path: Path):
    shop, path = Shop(), tmp_path / "run.jsonl"

    async def get_order(order_id: str) -> str:
        shop.runs.append(order_id)
        raise CallDeferred({"job": 1}, kind="question")

    def agent() -> Agent[Any, Any]:
        return shop.agent([read()], tools=[get_order], box=toolbox(), output_type=[str, DeferredToolRequests])

    async with record(path):
        recorded = (await agent().run("go")).output
    async with replay(path):
        replayed = (await agent().run("go")).output
    assert recorded == replayed
    assert replayed.metadata == {"c0.0": {"job": 1}}
    assert shop.runs == ["7"]


@pytest.mark.parametrize("is_function", [True, False])
async def test_users_in_the_metadata_of_a_run_are_apart(is_function: bool):
    shop = Shop()

    async def get_order(ctx: RunContext[Any], order_id: str) -> str:
        return await shop.run("get_order", ctx.metadata["user_id"])

    class Service(AbstractToolset[Any]):
        id = None

        async def get_tools(self, ctx: Any) -> Any:
            schema, validator = {"properties": {"order_id": {}}}, SchemaValidator(core_schema.dict_schema())
            definition = ToolDefinition(name="get_order", parameters_json_schema=schema)
            return {
                "get_order": ToolsetTool(toolset=self, tool_def=definition, max_retries=1, args_validator=validator)
            }

        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            return await get_order(ctx, **tool_args)

    tools: Any = {"tools": [get_order]} if is_function else {"tools": [], "toolsets": [Service()]}
    agent, found = shop.agent([read()], box=toolbox(), **tools), []
    for user in ("ada", "bob", "ada"):
        found += (await run(agent, metadata={"user_id": user, "run": object()})).values()
    assert found == ["get_order 1", "get_order 2", "get_order 1"]
