"""`AgentCacheMiddleware` in the real `create_agent` and `ToolNode`, with LangChain's own fake chat model."""

from __future__ import annotations

import asyncio
import functools
import itertools
import operator
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langchain", reason='needs pip install "agent-cache[langchain]"')

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ConfigDict, Field

from agent_cache import AgentCache, AgentCacheSession, Read, Toolbox, Watch, Write, get_metrics
from agent_cache.integrations.langchain import AgentCacheMiddleware
from agent_cache.recording import record, replay
from tests.harness.scripted_models import langchain_message, langchain_model

pytestmark = pytest.mark.usefixtures("clock")  # a write that is in doubt in one test is not in the next

ASK = {"messages": [("user", "Where is my order?")]}


def model_of(*turns: Any) -> Any:
    """A model that makes these tool calls, and says that it is done. A turn is a call, or a list of calls."""
    return langchain_model(*[[one] if isinstance(one, tuple) else one for one in turns])


def get(order_id: Any = "1", name: str = "get_order", **more: Any) -> tuple[str, dict[str, Any]]:
    return name, {"order_id": order_id, **more}


CANCEL = ("cancel_order", {"order_id": "1"})


def in_both_ways(function: Any) -> BaseTool:
    """A tool that has a coroutine for `ainvoke` and a function for `invoke`."""

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    return StructuredTool.from_function(function, coroutine)


class Shop:
    """Tools over a table of orders. Each run is noted."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.orders = {"1": "pending", "2": "sent"}

        def get_order(order_id: str) -> str:
            """Say how an order stands."""
            self.runs.append(f"get {order_id}")
            return self.orders[order_id]

        def cancel_order(order_id: str) -> str:
            """Cancel an order."""
            self.runs.append(f"cancel {order_id}")
            self.orders[order_id] = "cancelled"
            return "ok"

        self.tools: list[BaseTool] = [in_both_ways(get_order), in_both_ways(cancel_order)]


RULES = {"get_*": Read("order:{order_id}"), "cancel_order": Write("order:{order_id}")}


def box_of(rules: Any = RULES, **options: Any) -> Toolbox:
    return Toolbox(rules, namespace="shop", **options)


def agent_of(model: Any, tools: Any, box: Toolbox | None = None, *, vary: Any = None, behind: Any = (), **more: Any):
    """An agent with our middleware outermost."""
    ours = AgentCacheMiddleware(box_of() if box is None else box, vary)
    return create_agent(model, tools, middleware=[ours, *behind], **more)


@pytest.fixture
def shop() -> Shop:
    return Shop()


class Way:
    """How an agent is called: with `ainvoke`, or with `invoke` in a thread."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def state(self, agent: Any, ask: Any = ASK, *given: Any, **more: Any) -> Any:
        """The last state of a run."""
        if self.name == "ainvoke":
            return await agent.ainvoke(ask, *given, **more)
        return await asyncio.to_thread(agent.invoke, ask, *given, **more)

    async def __call__(self, agent: Any, ask: Any = ASK, *given: Any, **more: Any) -> list[ToolMessage]:
        """The messages of its tools."""
        return tool_messages(await self.state(agent, ask, *given, **more))


@pytest.fixture(params=["ainvoke", "invoke"])
def run(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


def tool_messages(state: Any) -> list[ToolMessage]:
    return [one for one in state["messages"] if isinstance(one, ToolMessage)]


def texts(messages: list[ToolMessage]) -> list[Any]:
    return [one.content for one in messages]


async def test_a_hit_is_a_message_of_its_own_under_the_id_of_its_call(run, shop):
    """LangGraph replaces a message by a later one of the same id: both have to stay in the state."""
    first, second, third = await run(agent_of(model_of(get(), get(), get()), shop.tools))
    assert (first.tool_call_id, second.tool_call_id) == ("c0.0", "c1.0")
    assert len({first.id, second.id, third.id}) == 3
    assert second.additional_kwargs is not third.additional_kwargs
    assert second.response_metadata is not third.response_metadata
    assert (first.name, first.status) == (second.name, second.status) == ("get_order", "success")


def failing(shop: Shop, error: Any, name: str = "get_order") -> BaseTool:
    def fail(order_id: str) -> str:
        """Fail."""
        shop.runs.append("failed")
        raise error

    return tool(name)(fail)


async def test_an_exception_that_a_middleware_makes_a_text_of_is_not_stored(run, shop):
    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0, on_failure=lambda error: f"sorry: {error}")
    messages = await run(
        agent_of(model_of(get(), get()), [failing(shop, ZeroDivisionError("no such"))], behind=[retry])
    )
    assert shop.runs == ["failed"] * 4
    assert texts(messages) == ["sorry: no such"] * 2
    assert [one.status for one in messages] == ["error", "error"]
    assert [one.tool_call_id for one in messages] == ["c0.0", "c1.0"]


def greeting(shop: Shop) -> BaseTool:
    @tool
    def get_greeting(order_id: str, ident: Annotated[str, InjectedToolCallId]) -> Any:
        """Greet."""
        shop.runs.append("greet")
        return Command(update={"mood": "good", "messages": [ToolMessage("hello", tool_call_id=ident)]})

    return get_greeting


class Moody(AgentState):
    mood: Annotated[str, lambda _, new: new]


@pytest.mark.parametrize("rule", [Read("order"), Write("order"), Watch()], ids=["read", "write", "watch"])
async def test_a_command_is_neither_stored_nor_shared(run, shop, rule):
    greet = get(name="get_greeting")
    agent = agent_of(
        model_of([greet, greet], greet), [greeting(shop)], box_of({"get_greeting": rule}), state_schema=Moody
    )
    async with AgentCacheSession(max_tool_repeats=9):
        state = await run.state(agent)
    assert state["mood"] == "good"
    assert [one.tool_call_id for one in tool_messages(state)] == ["c0.0", "c0.1", "c1.0"]
    assert shop.runs == ["greet"] * 3


async def test_equal_reads_that_interrupt_ask_each_for_itself(run, shop):
    @tool
    def get_secret(order_id: str) -> str:
        """Read a secret."""
        return f"secret for {interrupt('who asks?')}"

    secret, box = get(name="get_secret"), box_of()
    agent = agent_of(model_of([secret, secret]), [get_secret], box, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    state = await run.state(agent, ASK, config)
    idents = [one.id for one in state["__interrupt__"]]
    assert len(set(idents)) == 2
    state = await run.state(agent, Command(resume=dict.fromkeys(idents, "anna")), config)
    assert texts(tool_messages(state)) == ["secret for anna"] * 2
    agent = agent_of(model_of([secret]), [get_secret], box, checkpointer=InMemorySaver())
    assert "__interrupt__" in await run.state(agent, ASK, config)
    state = await run.state(agent, Command(resume="bob"), config)
    assert texts(tool_messages(state)) == ["secret for bob"]


def node_of(tools: Any, box: Toolbox | None = None, **options: Any) -> Any:
    ours = AgentCacheMiddleware(box_of() if box is None else box)
    node = ToolNode(tools, wrap_tool_call=ours.wrap_tool_call, awrap_tool_call=ours.awrap_tool_call, **options)
    return StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").add_edge("tools", END).compile()


async def test_a_node_of_tools_is_cached(run, shop):
    graph = node_of(shop.tools)
    for number in range(2):
        [message] = await run(graph, {"messages": [langchain_message([get()], number)]})
        assert (message.content, message.tool_call_id) == ("pending", f"c{number}.0")
    assert shop.runs == ["get 1"]


# Recordings


@pytest.fixture
def path(tmp_path: Any) -> Any:
    return tmp_path / "agent.jsonl"


async def test_commands_are_replayed_under_the_ids_of_the_replaying_run(run, shop, path, caplog):
    greet = get(name="get_greeting")
    async with record(path):
        agent = agent_of(model_of(greet), [greeting(shop)], state_schema=Moody)
        recorded = await run.state(agent)
    assert "cannot be replayed" not in caplog.text
    other = Shop()
    renamed = AIMessage("", tool_calls=[{"name": "get_greeting", "args": {"order_id": "1"}, "id": "other"}])
    async with replay(path):
        state = await run.state(agent_of(model_of(renamed), [greeting(other)], state_schema=Moody))
    assert other.runs == []
    assert (state["mood"], recorded["mood"]) == ("good", "good")
    assert [(one.content, one.tool_call_id) for one in tool_messages(state)] == [("hello", "other")]


async def test_artifacts_and_errors_are_replayed(run, shop, path):
    @tool(response_format="content_and_artifact")
    def get_chart(order_id: str) -> Any:
        """Draw a chart."""
        shop.runs.append("chart")
        if order_id == "2":
            raise ToolException("no chart")
        return "a chart", {"points": [1, 2]}

    get_chart.handle_tool_error = True
    turns = (get(name="get_chart"), get("2", name="get_chart"))
    async with record(path):
        recorded = await run(agent_of(model_of(*turns), [get_chart]))
    async with replay(path):
        replayed = await run(agent_of(model_of(*turns), [get_chart]))
    assert shop.runs == ["chart", "chart"]
    assert [one.model_dump(exclude={"id"}) for one in recorded] == [one.model_dump(exclude={"id"}) for one in replayed]


async def test_an_interrupted_run_is_replayed(run, shop, path):
    @tool
    def cancel_order(order_id: str) -> str:
        """Cancel an order."""
        shop.runs.append("asked")
        return f"cancelled: {interrupt('really?')}"

    config = {"configurable": {"thread_id": "1"}}

    async def whole() -> Any:
        agent = agent_of(model_of(CANCEL), [cancel_order], checkpointer=InMemorySaver())
        state = await run.state(agent, ASK, config)
        assert [one.value for one in state["__interrupt__"]] == ["really?"]
        return texts(tool_messages(await run.state(agent, Command(resume="yes"), config)))

    async with record(path):
        assert await whole() == ["cancelled: yes"]
    async with replay(path):
        assert await whole() == ["cancelled: yes"]
    assert shop.runs == ["asked", "asked"]


async def test_the_example_of_readme_works():
    readme = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    [code] = re.findall(r"^<!-- needs: langchain -->\n```python no-run\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    runs: list[str] = []

    def get_order(order_id: str) -> str:
        """Say how an order stands."""
        runs.append(order_id)
        return "pending"

    names: dict[str, Any] = {"model": model_of(get("W1"), get("W1")), "tools": [get_order]}
    exec(code, names)
    await names["agent"].ainvoke(ASK)
    assert runs == ["W1"]


# Users apart


class ContextDict(TypedDict, total=False):
    user: str


RUNS = itertools.count()


@pytest.fixture(autouse=True)
def runs() -> None:
    global RUNS
    RUNS = itertools.count()


def my_tickets(runtime: ToolRuntime[Any, Any]) -> str:
    return str(next(RUNS))


def by_config(config: RunnableConfig) -> str:
    return str(next(RUNS))


def by_get_config() -> str:
    get_config()
    return str(next(RUNS))


def by_state(state: Annotated[dict[str, Any], InjectedState]) -> str:
    return str(next(RUNS))


def by_field_of_state(who: Annotated[str, InjectedState("nick")]) -> str:
    return str(next(RUNS))


def of_all() -> str:
    return str(next(RUNS))


def agent_with(function: Any, *, decorated: bool = False) -> Any:
    """An agent with this one tool, which its model calls once in each run."""
    box = Toolbox({"my_*": Read("ticket")}, namespace="desk")
    inner = AgentCache("ticket")(function) if decorated else function
    if not isinstance(inner, BaseTool):
        inner = StructuredTool.from_function(inner, name="my_tickets", description="Tickets.")
    model, middleware = langchain_model([("my_tickets", {})]), [] if decorated else [AgentCacheMiddleware(box)]
    return create_agent(model, [inner], middleware=middleware, context_schema=ContextDict, state_schema=State)


class State(AgentState[Any]):
    user_name: str
    nick: str
    turns: Annotated[int, operator.add]


def ask(agent: Any, context: Any = None, state: Any = None, **configurable: Any) -> str:
    """What the tool has answered last."""
    given = {"messages": [("user", "?")], **(state or {})}
    config = {"configurable": {"thread_id": str(uuid.uuid4()), **configurable}}
    result = agent.invoke(given, config, **({} if context is None else {"context": context}))
    return str(tool_messages(result)[-1].content)


@pytest.mark.parametrize("function", [my_tickets, by_config, by_get_config], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ["user_id", "langgraph_auth_user"])
def test_users_by_what_is_configurable(function: Any, name: str):
    agent = agent_with(function)
    users = ("ada", "bob", "ada")
    given = [{name: user if name != "langgraph_auth_user" else {"identity": user}} for user in users]
    assert [ask(agent, **configurable) for configurable in given] == ["0", "1", "0"]


@pytest.mark.parametrize("decorated", [False, True], ids=["middleware", "decorated"])
def test_users_by_the_state_of_a_graph(decorated: bool):
    for function, name in [(by_state, "user_name"), (by_field_of_state, "nick"), (my_tickets, "user_name")]:
        agent = agent_with(function, decorated=decorated)
        first = ask(agent, state={name: "ada", "turns": 1, "nick": "ada"})
        assert ask(agent, state={name: "bob", "turns": 1, "nick": "bob"}) != first
        assert ask(agent, state={name: "ada", "turns": 2, "nick": "ada"}) == first


@pytest.mark.parametrize("decorated", [False, True], ids=["middleware", "decorated"])
@pytest.mark.parametrize("function", [my_tickets, by_config, by_state, of_all], ids=lambda one: one.__name__)
def test_one_user_without_a_context_has_her_hits_in_every_thread_and_step(function: Any, decorated: bool):
    agent = agent_with(function, decorated=decorated)
    answers = [ask(agent, state={"turns": turn}) for turn in range(3)]
    assert answers == ["0", "0", "0"]
    assert get_metrics()["uncached"] == 0


class Lookup(BaseTool):
    name: str = "my_tickets"
    description: str = "Tickets of the current user."

    def _run(self, config: RunnableConfig) -> str:
        return str(next(RUNS))


class Injected(BaseModel):
    """Arguments, one of which is injected."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    runtime: ToolRuntime[Any, Any] = Field(default=None)


class BySchema(BaseTool):
    name: str = "my_tickets"
    description: str = "Tickets of the current user."
    args_schema: Any = Injected

    def _run(self, runtime: Any = None) -> str:
        return str(next(RUNS))


def of_runnable() -> BaseTool:
    class Nothing(BaseModel):
        pass

    runnable = RunnableLambda(lambda given, config: str(next(RUNS)))
    return runnable.as_tool(args_schema=Nothing, name="my_tickets", description="Tickets of the current user.")


@pytest.mark.filterwarnings("ignore:This API is in beta")
@pytest.mark.parametrize("made", [Lookup, BySchema, of_runnable], ids=["a class", "a schema", "a runnable"])
def test_tools_that_are_no_functions(made: Callable[[], BaseTool]):
    agent = agent_with(made())
    assert [ask(agent, {"user": one}, user_id=one) for one in ("ada", "bob", "ada")] == ["0", "1", "0"]
