"""Agents of Google ADK with a toolbox: the framework itself, with a model that follows a script."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="the adapter of Google ADK needs google-adk")
pytest.importorskip("mcp", reason="toolsets of MCP servers need google-adk[mcp]")

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import AgentTool, BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters

from agent_cache import (
    AgentCache,
    AgentCacheSession,
    Read,
    Toolbox,
    Watch,
    Write,
)
from agent_cache.integrations.adk import cached

pytestmark = [
    pytest.mark.usefixtures("clock"),
    pytest.mark.filterwarnings("default"),  # those of ADK and what it imports
]

Turn = list[tuple[str, dict[str, Any]]]


class Script(BaseLlm):
    """A model that makes the calls of one turn after the other, and then answers."""

    model: str = "script"
    turns: list[Turn]
    seen: list[Any] = []
    at: int = 0

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[Any, None]:
        self.seen.append(llm_request)
        if self.at < len(self.turns):
            parts = [
                types.Part(function_call=types.FunctionCall(id=f"c{self.at}-{number}", name=name, args=args))
                for number, (name, args) in enumerate(self.turns[self.at])
            ]
        else:
            parts = [types.Part(text="done")]
        self.at += 1
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def run(
    agent: Any, *, user: str = "ann", runner: InMemoryRunner | None = None, session_id: str | None = None
) -> list[Any]:
    """What the model was told each tool had answered, with the ids of its calls."""
    runner = runner or InMemoryRunner(agent=agent, app_name="shop")
    if session_id is None:
        session_id = (await runner.session_service.create_session(app_name="shop", user_id=user)).id
    content = types.Content(role="user", parts=[types.Part(text="hi")])
    return [
        (response.id, response.response)
        async for event in runner.run_async(user_id=user, session_id=session_id, new_message=content)
        for response in event.get_function_responses()
    ]


def answers(found: list[Any]) -> list[Any]:
    return [response for _, response in found]


class Shop:
    """Tools as users of ADK write them."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.box = Toolbox(
            {
                "get_*": Read("order:{order_id}"),
                "cancel_order": Write("order:{order_id}"),
                "boom": Read("order"),
                "fail": Read("order"),
                "note": Read("order"),
                "whoami": Read("order"),
                "now": Watch(),
            },
            namespace="adk",
        )

    def get_order(self, order_id: str, full: bool = False) -> dict[str, Any]:
        """Say how an order stands."""
        self.runs.append("get")
        return {"id": order_id, "run": len(self.runs)}

    async def get_later(self, order_id: str) -> str:
        """The same, asynchronous."""
        self.runs.append("later")
        await asyncio.sleep(0)
        return f"run {len(self.runs)}"

    def cancel_order(self, order_id: str) -> str:
        """Cancel an order."""
        self.runs.append("cancel")
        return "cancelled"

    def boom(self) -> str:
        """Fail."""
        self.runs.append("boom")
        raise LookupError("no such order")

    def fail(self) -> dict[str, str]:
        """Fail by an answer."""
        self.runs.append("fail")
        return {"error": "try later"}

    def note(self, tool_context: ToolContext) -> str:
        """Change the state."""
        self.runs.append("note")
        tool_context.state["notes"] = len(self.runs)
        return "noted"

    def whoami(self, tool_context: ToolContext) -> str:
        """Read the context."""
        self.runs.append("whoami")
        return tool_context.user_id

    def agent(self, *turns: Turn, tools: tuple[Any, ...] = (), **options: Any) -> LlmAgent:
        every = (self.get_order, self.get_later, self.cancel_order, self.boom, self.fail, self.note, self.whoami)
        return LlmAgent(name="clerk", model=Script(turns=list(turns)), tools=[*every, *tools], **options)

    def cached(self, *turns: Turn, vary: Any = None, **options: Any) -> LlmAgent:
        return cached(self.agent(*turns, **options), self.box, vary)


@pytest.fixture
def shop() -> Shop:
    return Shop()


GET: Turn = [("get_order", {"order_id": "1"})]
CANCEL: Turn = [("cancel_order", {"order_id": "1"})]


async def test_an_answer_whose_tool_has_changed_the_state_is_not_stored(shop: Shop):
    agent = shop.cached([("note", {})], [("note", {})])
    runner = InMemoryRunner(agent=agent, app_name="shop")
    made = await runner.session_service.create_session(app_name="shop", user_id="ann")
    async with AgentCacheSession() as session:
        await run(agent, runner=runner, session_id=made.id)
    after = await runner.session_service.get_session(app_name="shop", user_id="ann", session_id=made.id)
    assert after is not None
    assert after.state["notes"] == 2
    assert shop.runs == ["note", "note"]
    assert [one.outcome for one in session.get_execution_trace()] == ["ok", "ok"]


async def test_long_running_tools_and_generators_are_left_alone(shop: Shop):
    def get_ticket(order_id: str) -> dict[str, str]:
        """Ask a human."""
        shop.runs.append("ticket")
        return {"status": "pending"}

    async def get_stream(order_id: str) -> AsyncIterator[str]:
        """Stream."""
        yield order_id

    for tool in (LongRunningFunctionTool(get_ticket), FunctionTool(get_stream)):
        assert cached(tool, shop.box) is tool
    for _ in range(2):
        agent = shop.cached([("get_ticket", {"order_id": "1"})], tools=(LongRunningFunctionTool(get_ticket),))
        await run(agent)
    assert shop.runs == ["ticket"] * 2


class Warehouse(BaseToolset):
    """A toolset that makes its tools anew each time."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        super().__init__(**options)
        self.shop = shop

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        return [FunctionTool(self.shop.get_later)]


async def test_tools_of_a_toolset_have_the_names_that_the_model_sees(shop: Shop):
    def agent() -> LlmAgent:
        made = LlmAgent(
            name="clerk",
            model=Script(turns=[[("get_all_get_later", {"order_id": "1"})]] * 2),
            tools=[Warehouse(shop, tool_name_prefix="get_all")],
        )
        return cached(made, shop.box)

    async with AgentCacheSession() as session:
        await run(agent())
        await run(agent())
    assert shop.runs == ["later"]
    assert {one.tool for one in session.get_execution_trace()} == {"adk:get_all_get_later"}


SERVER = """
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("shop")
runs = 0

@server.tool()
def get_order(order_id: str, full: bool = False) -> str:
    global runs
    runs += 1
    return f"run {runs}"

@server.tool()
def get_nothing(order_id: str) -> str:
    global runs
    runs += 1
    raise LookupError(order_id)

@server.tool()
def cancel_order(order_id: str) -> str:
    return "cancelled"

@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def look_around() -> str:
    return "shelves"

server.run("stdio")
"""


async def test_tools_of_an_mcp_server_are_cached_and_their_error_results_are_not(tmp_path: Path):
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    parameters = StdioServerParameters(command=sys.executable, args=[str(tmp_path / "server.py")])
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=parameters, timeout=60))
    nothing: Turn = [("get_nothing", {"order_id": "1"})]
    turns = [GET * 2, [("get_order", {"order_id": "1", "full": False})], CANCEL, GET, nothing, nothing]
    agent = LlmAgent(name="clerk", model=Script(turns=[*turns, [("look_around", {})]]), tools=[toolset])
    rules: dict[str, Any] = {"get_*": Read("order:{order_id}"), "cancel_order": Write("order:{order_id}")}
    try:
        async with AgentCacheSession() as session:
            found = answers(await run(cached(agent, Toolbox(rules, namespace="mcp", hints="kind"))))
    finally:
        await toolset.close()
    texts = [answer["content"][0]["text"] for answer in found]
    assert texts[:5] == ["run 1", "run 1", "run 1", "cancelled", "run 2"]
    assert found[5]["isError"] is True
    trace = [(one.tool, one.source) for one in session.get_execution_trace()]
    assert trace[-3:] == [("mcp:get_nothing", "miss")] * 2 + [("mcp:look_around", "miss")]
    assert trace[3] == ("mcp:cancel_order", "write")


async def test_sub_agents_and_agents_that_are_tools_are_copied(shop: Shop):
    inner = shop.agent(GET)
    helper = LlmAgent(name="helper", model=Script(turns=[GET]), tools=[shop.get_order])
    boss = LlmAgent(name="boss", model=Script(turns=[[("helper", {"request": "x"})]]), tools=[AgentTool(helper)])
    team = SequentialAgent(name="team", sub_agents=[inner, boss])
    changed = cached(team, shop.box)
    async with AgentCacheSession() as session:
        await run(changed)
    assert shop.runs == ["get"]
    assert [one.tool for one in session.get_execution_trace()] == ["adk:get_order"] * 2
    assert team.sub_agents[0] is inner
    assert inner.tools[0] == shop.get_order


def test_what_is_read_of_adk_beside_its_public_names():
    """`_get_declaration` gives the schema of a tool."""

    def get_order(order_id: str, full: bool = False) -> str:
        """Say."""
        return order_id

    declaration = FunctionTool(get_order)._get_declaration()
    assert declaration is not None
    assert declaration.parameters_json_schema or declaration.parameters


# Users apart

RUNS = itertools.count()


@pytest.fixture(autouse=True)
def counted_runs() -> None:
    global RUNS
    RUNS = itertools.count()


class OneCall(BaseLlm):
    """Calls its tool once for each message of the user."""

    model: str = "script"

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[Any, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is None:
            part = types.Part(function_call=types.FunctionCall(name="my_tickets", args={}))
        else:
            part = types.Part(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def my_tickets(tool_context: ToolContext) -> str:
    """Tickets of the current user."""
    return str(next(RUNS))


async def of_all() -> str:
    """Tickets of everybody."""
    return str(next(RUNS))


of_all.__name__ = "my_tickets"


class Office:
    """An application with one agent, whose users have sessions."""

    def __init__(self, tool: Any, *, decorated: bool = False, rule: Any = None, **options: Any) -> None:
        self.box = Toolbox({"my_*": rule or Read("ticket")}, namespace="desk")
        made = AgentCache("ticket")(tool) if decorated else tool
        agent = LlmAgent(name="clerk", model=OneCall(), tools=[made])
        self.agent = agent if decorated else cached(agent, self.box, **options)
        self.runner = InMemoryRunner(agent=self.agent, app_name="desk")

    async def session(self, user: str, **state: Any) -> tuple[str, str]:
        made = await self.runner.session_service.create_session(app_name="desk", user_id=user, state=state)
        return user, made.id

    async def ask(self, session: tuple[str, str]) -> str:
        content = types.Content(role="user", parts=[types.Part(text="?")])
        user, ident = session
        found = [
            response.response["result"]
            async for event in self.runner.run_async(user_id=user, session_id=ident, new_message=content)
            for response in event.get_function_responses()
        ]
        (answer,) = found
        return str(answer)


WAYS = pytest.mark.parametrize("decorated", [False, True], ids=["toolbox", "decorated"])


@WAYS
@pytest.mark.parametrize("name", ["user:tenant", "user_name", "tenant_id"])
async def test_two_people_behind_one_user_id_share_nothing(name: str, decorated: bool):
    office = Office(my_tickets, decorated=decorated)
    answers = [await office.ask(await office.session("web", **{name: person})) for person in ("ada", "bob")]
    assert answers == ["0", "1"]
