"""Users of one agent of the OpenAI Agents SDK, over one toolbox or one decorated tool, share no answer."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

import httpx2  # noqa: E402
from agents import Agent, FunctionTool, RunContextWrapper, Runner, function_tool  # noqa: E402
from agents.mcp import MCPServerStreamableHttp  # noqa: E402
from agents.testing import ScriptedModel, assistant_message, function_call  # noqa: E402
from agents.tool_context import ToolContext  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from agent_cache import AgentCache, Read, Toolbox, get_metrics  # noqa: E402
from agent_cache.integrations import explain  # noqa: E402
from agent_cache.integrations.openai_agents import cached  # noqa: E402
from tests.integration.reach.user_servers import WhoAmI  # noqa: E402

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def no_traces_to_a_server() -> Iterator[None]:
    agents.set_tracing_disabled(True)
    yield
    agents.set_tracing_disabled(False)


@dataclasses.dataclass
class Context:
    user: str
    client: Any = dataclasses.field(default_factory=object)


class Model(BaseModel):
    account: dict[str, str]


class Plain:
    def __init__(self, name: str) -> None:
        self.name = name


USERS: dict[str, Callable[[str], Any]] = {
    "dataclass": Context,
    "dict": lambda name: {"user": name},
    "pydantic model": lambda name: Model(account={"id": name}),
    "nested": lambda name: {"session": Context(name), "db": object()},
    "plain object": Plain,
    "text": str,
}

RUNS = itertools.count()


@pytest.fixture(autouse=True)
def runs() -> None:
    global RUNS
    RUNS = itertools.count()


async def by_wrapper(ctx: RunContextWrapper[Any]) -> str:
    """Tickets of the current user."""
    return str(next(RUNS))


async def by_tool_context(ctx: ToolContext[Any]) -> str:
    """Tickets of the current user."""
    return str(next(RUNS))


async def _invoke(ctx: ToolContext[Any], raw: str) -> str:
    return str(next(RUNS))


def of_ones_own() -> FunctionTool:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    return FunctionTool("my_tickets", "Tickets of the current user.", schema, _invoke)


def named(function: Any) -> FunctionTool:
    return function_tool(function, name_override="my_tickets")


TOOLS: dict[str, Callable[[], FunctionTool]] = {
    "its wrapper": lambda: named(by_wrapper),
    "its tool context": lambda: named(by_tool_context),
    "an invoker of one's own": of_ones_own,
    "a decorated function": lambda: named(AgentCache("ticket")(by_wrapper)),
}


class Desk:
    """An agent whose model calls its one tool in each run."""

    def __init__(self, tool: FunctionTool, rule: Any = None, **options: Any) -> None:
        self.box = Toolbox({"my_*": rule or Read("ticket")}, namespace="desk")
        self.agent = cached(Agent("desk", tools=[tool]), self.box, **options)

    async def ask(self, context: Any) -> str:
        self.agent.model = ScriptedModel([[function_call("my_tickets", {}, call_id="c0")], [assistant_message("done")]])
        return await answer(self.agent, context)


async def answer(agent: Any, context: Any = None) -> str:
    result = await Runner.run(agent, "go", context=context)
    (found,) = [one.output for one in result.new_items if type(one).__name__ == "ToolCallOutputItem"]
    return str(found)


@pytest.mark.parametrize("kind", USERS)
@pytest.mark.parametrize("tool", TOOLS)
async def test_two_users_share_nothing_and_one_has_her_hits(kind: str, tool: str):
    desk, made = Desk(TOOLS[tool]()), USERS[kind]
    assert [await desk.ask(made(name)) for name in ("ada", "bob", "ada", "bob")] == ["0", "1", "0", "1"]
    assert (get_metrics()["hits"], get_metrics()["uncached"]) == (2, 0)


async def test_a_context_that_says_nothing_runs_uncached_with_one_warning(caplog: pytest.LogCaptureFixture):
    desk = Desk(named(by_wrapper))
    with caplog.at_level(logging.WARNING):
        assert [await desk.ask(object()) for _ in range(2)] == ["0", "1"]
    (warning,) = [message for message in caplog.messages if "my_tickets" in message]
    assert "vary=" in warning
    assert "shared=True" in warning
    table = explain(desk.agent, desk.box)
    assert "context" in table[0].why
    assert any("shared=True" in problem for problem in table.problems)


class Invoker:
    def __init__(self, user: str) -> None:
        self.user = user

    async def __call__(self, ctx: ToolContext[Any], raw: str) -> str:
        return self.user


def _closure(user: str) -> Callable[..., Any]:
    async def invoke(ctx: ToolContext[Any], raw: str) -> str:
        return user

    return invoke


INVOKERS: dict[str, Callable[[str], Any]] = {
    "an object": Invoker,
    "a closure": _closure,
}


@pytest.mark.parametrize("kind", INVOKERS)
def test_invokers_that_are_made_for_each_user_are_warned_of(kind: str, caplog: pytest.LogCaptureFixture):
    box = Toolbox({"my_*": Read("ticket")}, namespace="desk")
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    for users, warnings in [(("ada", "ada"), 0), (("bob",), 1)]:
        for user in users:
            tool = FunctionTool("my_tickets", "Tickets of a user.", schema, INVOKERS[kind](user))
            cached(Agent("desk", tools=[tool]), box)
        assert caplog.text.count("made anew around other values") == warnings


# MCP servers


@pytest.fixture(scope="module")
def server() -> Iterator[WhoAmI]:
    with contextlib.closing(WhoAmI()) as running:
        yield running


def factory(name: str) -> Callable[..., Any]:
    def make(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
        sent = {**(headers or {}), "authorization": name}
        return httpx2.AsyncClient(headers=sent, timeout=timeout, auth=auth, follow_redirects=True)

    return make


class Own(MCPServerStreamableHttp):
    """A server of the user's own, which signs what it sends in its own way."""

    def __init__(self, url: str, user: str) -> None:
        super().__init__({"url": url})
        self.params = {"url": url}
        self._user = user

    def create_streams(self) -> Any:
        signed = MCPServerStreamableHttp({"url": self.params["url"], "headers": {"Authorization": self._user}})
        return signed.create_streams()


ACCOUNTS: dict[str, Callable[[str, str], Any]] = {
    "headers": lambda url, name: MCPServerStreamableHttp({"url": url, "headers": {"Authorization": name}}),
    "a factory of clients": lambda url, name: MCPServerStreamableHttp(
        {"url": url, "httpx_client_factory": factory(name)}
    ),
    "an auth object": lambda url, name: MCPServerStreamableHttp({"url": url, "auth": httpx2.BasicAuth(name, "x")}),
    "the query of the url, under one name": lambda url, name: MCPServerStreamableHttp(
        {"url": f"{url}?user={name}"}, name="crm"
    ),
    "a class of one's own": Own,
}


@pytest.mark.parametrize("how", ACCOUNTS)
async def test_two_accounts_at_one_mcp_server_share_nothing(how: str, server: WhoAmI):
    box = Toolbox({"get_me": Read("me", ttl=60)}, namespace="accounts")
    seen: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(ACCOUNTS[how](server.url, name)) for name in ("ada", "bob")]
        for connection in (one, other, one):
            model = ScriptedModel([[function_call("get_me", {}, call_id="c0")], [assistant_message("done")]])
            seen.append(await answer(cached(Agent("a", model=model, mcp_servers=[connection]), box)))
    assert seen[0] != seen[1]
    assert seen[2] == seen[0]


async def test_headers_that_change_before_a_connection_are_another_account(server: WhoAmI):
    box = Toolbox({"get_me": Read("me", ttl=60)}, namespace="accounts")
    connection, seen = MCPServerStreamableHttp({"url": server.url, "headers": {"X-User": "ada"}}), []
    agent = cached(Agent("a", mcp_servers=[connection]), box)
    for user in ("ada", "bob"):
        connection.params["headers"] = {"X-User": user}
        async with connection:
            agent.model = ScriptedModel([[function_call("get_me", {}, call_id="c0")], [assistant_message("done")]])
            seen.append(await answer(agent))
    assert "ada" in seen[0]
    assert "bob" in seen[1]


async def test_one_account_has_its_hits_with_a_connection_made_anew(server: WhoAmI):
    box, before = Toolbox({"get_me": Read("me", ttl=60)}, namespace="accounts"), server.calls
    for _ in range(3):
        async with ACCOUNTS["headers"](server.url, "ada") as connection:
            model = ScriptedModel([[function_call("get_me", {}, call_id="c0")], [assistant_message("done")]])
            await answer(cached(Agent("a", model=model, mcp_servers=[connection]), box))
    assert server.calls == before + 1
