"""What only Google ADK has: toolsets, agents as tools, states of a session, tools that run long."""

from __future__ import annotations

import copy
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="the adapter of Google ADK needs google-adk")
pytest.importorskip("mcp", reason="toolsets of MCP servers need google-adk[mcp]")

from google.adk.agents import BaseAgent, LlmAgent, SequentialAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools import AgentTool, BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters
from pydantic import BaseModel

from agent_cache import AgentCache, AgentCacheSession, Read, Toolbox, Write
from agent_cache.integrations import explain
from agent_cache.integrations.adk import cached
from tests.harness.mcp_host import SERVER
from tests.harness.processes import run_python
from tests.harness.scripted_models import adk_model

pytestmark = [
    pytest.mark.usefixtures("clock"),
    pytest.mark.filterwarnings("default"),  # those of ADK and what it imports
]

Turn = list[tuple[str, dict[str, Any]]]
ORDER = {"order_id": "1"}
GET: Turn = [("get_order", ORDER)]


def agent_of(*turns: Turn, tools: list[Any], name: str = "clerk") -> LlmAgent:
    return LlmAgent(name=name, model=adk_model(*turns), tools=tools)


def box_of(**rules: Any) -> Toolbox:
    return Toolbox({"get_*": Read("order"), "cancel_order": Write("order"), **rules}, namespace="adk", hints="kind")


async def run(agent: Any, *, user: str = "ann", state: Any = None) -> tuple[list[Any], dict[str, Any]]:
    """What the model was told each tool had answered, and the state of the session afterwards."""
    runner = InMemoryRunner(agent=agent, app_name="shop")
    sessions = runner.session_service
    made = await sessions.create_session(app_name="shop", user_id=user, state=state)
    content = types.Content(role="user", parts=[types.Part(text="hi")])
    answers = [
        response.response
        async for event in runner.run_async(user_id=user, session_id=made.id, new_message=content)
        for response in event.get_function_responses()
    ]
    after = await sessions.get_session(app_name="shop", user_id=user, session_id=made.id)
    assert after is not None
    return answers, dict(after.state)


class Shop:
    """A tool of an order, whose runs are counted."""

    runs = 0

    def get_order(self, order_id: str) -> int:
        """Say how an order stands."""
        self.runs += 1
        return self.runs


async def test_an_answer_whose_tool_has_changed_the_state_is_not_stored():
    runs = itertools.count(1)

    def get_note(tool_context: ToolContext) -> str:
        """Change the state."""
        tool_context.state["notes"] = next(runs)
        return "noted"

    note: Turn = [("get_note", {})]
    async with AgentCacheSession() as session:
        _, state = await run(cached(agent_of(note, note, tools=[get_note]), box_of()))
    assert state["notes"] == 2
    assert [one.outcome for one in session.get_execution_trace()] == ["ok", "ok"]


async def test_an_answer_that_says_that_it_is_an_error_is_not_stored():
    runs = itertools.count(1)

    def get_failed() -> dict[str, str]:
        """Fail by an answer."""
        return {"error": f"try later {next(runs)}"}

    found, _ = await run(cached(agent_of([("get_failed", {})], [("get_failed", {})], tools=[get_failed]), box_of()))
    assert found == [{"error": "try later 1"}, {"error": "try later 2"}]


def test_decorated_tools_tools_that_run_long_and_generators_are_left_alone():
    @AgentCache("order:{order_id}")
    async def get_decorated(order_id: str) -> str:
        return order_id

    def get_ticket(order_id: str) -> dict[str, str]:
        return {"status": "pending"}

    async def get_stream(order_id: str) -> AsyncIterator[str]:
        yield order_id

    for tool in (
        get_decorated, FunctionTool(get_decorated), LongRunningFunctionTool(get_ticket), FunctionTool(get_stream),
        cached(FunctionTool(get_ticket), box_of()),
    ):  # fmt: skip
        assert cached(tool, box_of()) is tool


class Ref(BaseModel):
    id: int


async def test_two_spellings_of_a_field_of_a_model_are_one():
    shop = Shop()

    def get_order(ref: Ref) -> int:
        return shop.get_order(str(ref.id))

    turns: list[Turn] = [[("get_order", {"ref": {"id": spelt}})] for spelt in ("07", 7)]
    await run(cached(agent_of(*turns, tools=[get_order]), box_of()))
    assert shop.runs == 1


class ShopTool(Shop):
    __name__ = "get_order"
    __call__ = Shop.get_order


async def test_an_object_that_is_a_tool_has_answers_of_its_own():
    box, shops = box_of(), [ShopTool(), ShopTool()]
    for shop in shops * 2:
        await run(cached(agent_of(GET, tools=[shop]), box))
    assert [shop.runs for shop in shops] == [1, 1]


async def test_a_state_whose_values_cannot_be_compared_fails_no_call():
    class Table:
        def __eq__(self, other: object) -> Any:
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    def load(tool: BaseTool, args: Any, tool_context: ToolContext) -> None:
        tool_context.state["temp:table"] = Table()

    agent = agent_of(GET, GET, tools=[Shop().get_order]).clone({"before_tool_callback": load})
    assert (await run(cached(agent, box_of())))[0] == [{"result": 1}, {"result": 2}]


class Warehouse(BaseToolset):
    """A toolset that makes its tools anew each time."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        super().__init__(**options)
        self.shop = shop

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        return [FunctionTool(self.shop.get_order)]


async def test_tools_of_a_toolset_have_the_names_that_the_model_sees():
    shop, box, call = Shop(), box_of(), [("get_all_get_order", ORDER)]
    async with AgentCacheSession() as session:
        for _ in range(2):
            await run(cached(agent_of(call, tools=[Warehouse(shop, tool_name_prefix="get_all")]), box))
    assert shop.runs == 1
    assert {one.tool for one in session.get_execution_trace()} == {"adk:get_all_get_order"}


async def test_tools_of_an_mcp_server_are_cached_and_their_error_results_are_not():
    parameters = StdioServerParameters(command=SERVER[0], args=[*SERVER[1:]])
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=parameters, timeout=60))
    get, write, fail = ("get_value", {"key": "a"}), ("set_value", {"key": "a", "value": "x"}), ("fail", {})
    box = box_of(set_value=Write("order"), fail=Read("order"))
    try:
        found, _ = await run(cached(agent_of([get, get], [get], [write], [get], [fail], [fail], tools=[toolset]), box))
    finally:
        await toolset.close()
    texts = [answer["content"][0]["text"] for answer in found]
    assert texts[:5] == ["nothing (1)"] * 3 + ["set (1)", "x (2)"]
    assert ["refused (1)" in texts[5], "refused (2)" in texts[6]] == [answer["isError"] for answer in found[-2:]]


class Story(BaseAgent):
    """An agent as ADK's pages propose it: it runs the agents in its fields in an order of its own."""

    first: BaseAgent
    others: list[BaseAgent]

    async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Any]:
        for agent in (self.first, *self.others):
            async for event in agent.run_async(ctx):
                yield event


async def test_agents_in_fields_are_copied_and_each_once():
    shop, box = Shop(), box_of()
    first, other = (agent_of(GET, tools=[shop.get_order], name=name) for name in ("first", "other"))
    team = Story(name="story", first=first, others=[other], sub_agents=[first])
    copied = cached(team, box)
    await run(copied)
    assert shop.runs == 1
    assert copied.sub_agents[0] is copied.first is not team.first is first
    assert [row.tool for row in explain(other, box)] == [row.tool for row in explain(team, box)] == ["get_order"]


async def test_sub_agents_and_agents_that_are_tools_are_copied():
    shop = Shop()
    inner = agent_of(GET, tools=[shop.get_order])
    helper = agent_of(GET, tools=[shop.get_order], name="helper")
    boss = agent_of([("helper", {"request": "x"})], tools=[AgentTool(helper)], name="boss")
    team = SequentialAgent(name="team", sub_agents=[inner, boss])
    async with AgentCacheSession() as session:
        await run(copy.deepcopy(cached(team, box_of())))  # as an application may keep one for each user
    assert shop.runs == 1
    assert [one.tool for one in session.get_execution_trace()] == ["adk:get_order"] * 2
    assert team.sub_agents[0] is inner
    assert inner.tools[0] == shop.get_order


@pytest.mark.parametrize("decorated", [False, True], ids=["toolbox", "decorated"])
@pytest.mark.parametrize("name", ["user:tenant", "user_name", "tenant_id"])
async def test_two_people_behind_one_user_id_share_nothing(name: str, decorated: bool):
    runs = itertools.count()

    async def get_mine(tool_context: ToolContext) -> int:
        """Tickets of the current user."""
        return next(runs)

    box, tool = box_of(), AgentCache("ticket")(get_mine) if decorated else get_mine
    found = []
    for person in ("ada", "bob"):
        agent = agent_of([("get_mine", {})], tools=[tool])
        found += (await run(agent if decorated else cached(agent, box), user="web", state={name: person}))[0]
    assert found == [{"result": 0}, {"result": 1}]


# In a process of its own, since ADK takes the global provider, which can be set once.
PROGRAM = """
import asyncio
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types
from opentelemetry import trace
from agent_cache import AgentCacheSession, Read, Toolbox, Write, otel
from agent_cache.integrations.adk import cached
from agent_cache.integrations import explain
from tests.harness.scripted_models import adk_model
from tests.harness.telemetry import Telemetry

telemetry = Telemetry()
trace.set_tracer_provider(telemetry.tracers)
otel.instrument(telemetry.tracers, telemetry.meters)
TURNS = [[(name, {"order": "W1"})] for name in ("get_order", "get_order", "cancel_order")]

def get_order(order: str) -> str:
    return "pending"

async def cancel_order(order: str) -> str:
    return "cancelled"

async def main():
    rules = {"get_order": Read("adk_otel:{order}"), "cancel_order": Write("adk_otel:{order}")}
    box = Toolbox(rules, namespace="adk_otel")
    agent = cached(LlmAgent(name="shop", model=adk_model(*TURNS), tools=[get_order, cancel_order]), box)
    runner = InMemoryRunner(agent=agent, app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="ann")
    content = types.Content(role="user", parts=[types.Part(text="hi")])
    async with AgentCacheSession():
        async for _ in runner.run_async(user_id="ann", session_id=session.id, new_message=content):
            pass

asyncio.run(main())
for span in telemetry.spans():
    if span.name.startswith("execute_tool"):
        print(span.name, span.instrumentation_scope.name != "agent_cache", span.attributes.get("agent_cache.source"))
"""


def test_the_spans_of_google_adk_are_annotated():
    """ADK gives its own span of a tool call its attributes when it ends, so it is known by its name."""
    pytest.importorskip("opentelemetry.sdk", reason='pip install "agent-cache[test]" brings the SDK of OpenTelemetry')
    told = ["get_order True miss", "get_order True None", "cancel_order True write"]
    assert run_python(PROGRAM, "-W", "ignore").splitlines() == [f"execute_tool {one}" for one in told]
