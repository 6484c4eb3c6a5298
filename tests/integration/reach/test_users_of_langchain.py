"""Users of one agent or graph of LangChain, over one toolbox or one decorated tool, share no answer."""

from __future__ import annotations

import itertools
import operator
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langchain", reason='needs pip install "agent-cache[langchain]"')

from langchain.agents import AgentState, create_agent
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.prebuilt import InjectedState, ToolRuntime
from pydantic import BaseModel, ConfigDict, Field

from agent_cache import AgentCache, Read, Toolbox, get_metrics
from agent_cache.integrations.langchain import AgentCacheMiddleware
from tests.harness.scripted_models import langchain_model

pytestmark = pytest.mark.usefixtures("clock")


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


def agent_of(function: Any, *, decorated: bool = False) -> Any:
    """An agent with this one tool, which its model calls once in each run."""
    box = Toolbox({"my_*": Read("ticket")}, namespace="desk")
    inner = AgentCache("ticket")(function) if decorated else function
    made = (
        inner
        if isinstance(inner, BaseTool)
        else StructuredTool.from_function(inner, name="my_tickets", description="Tickets.")
    )
    middleware = [] if decorated else [AgentCacheMiddleware(box)]
    return create_agent(
        langchain_model([("my_tickets", {})]),
        [made],
        middleware=middleware,
        context_schema=ContextDict,
        state_schema=State,
    )


class State(AgentState[Any]):
    user_name: str
    nick: str
    turns: Annotated[int, operator.add]


def ask(agent: Any, context: Any = None, state: Any = None, **configurable: Any) -> str:
    """What the tool has answered last."""
    given = {"messages": [("user", "?")], **(state or {})}
    config = {"configurable": {"thread_id": str(uuid.uuid4()), **configurable}}
    result = agent.invoke(given, config, **({} if context is None else {"context": context}))
    return str([one for one in result["messages"] if one.type == "tool"][-1].content)


@pytest.mark.parametrize("function", [my_tickets, by_config, by_get_config], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ["user_id", "langgraph_auth_user"])
def test_users_by_what_is_configurable(function: Any, name: str):
    agent = agent_of(function)
    users = ("ada", "bob", "ada")
    given = [{name: user if name != "langgraph_auth_user" else {"identity": user}} for user in users]
    assert [ask(agent, **configurable) for configurable in given] == ["0", "1", "0"]


@pytest.mark.parametrize("decorated", [False, True], ids=["middleware", "decorated"])
def test_users_by_the_state_of_a_graph(decorated: bool):
    for function, name in [(by_state, "user_name"), (by_field_of_state, "nick"), (my_tickets, "user_name")]:
        agent = agent_of(function, decorated=decorated)
        first = ask(agent, state={name: "ada", "turns": 1, "nick": "ada"})
        assert ask(agent, state={name: "bob", "turns": 1, "nick": "bob"}) != first
        assert ask(agent, state={name: "ada", "turns": 2, "nick": "ada"}) == first


@pytest.mark.parametrize("decorated", [False, True], ids=["middleware", "decorated"])
@pytest.mark.parametrize("function", [my_tickets, by_config, by_state, of_all], ids=lambda one: one.__name__)
def test_one_user_without_a_context_has_her_hits_in_every_thread_and_step(function: Any, decorated: bool):
    agent = agent_of(function, decorated=decorated)
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
    agent = agent_of(made())
    users = ("ada", "bob", "ada")
    assert [ask(agent, {"user": user}, user_id=user) for user in users] == ["0", "1", "0"]
