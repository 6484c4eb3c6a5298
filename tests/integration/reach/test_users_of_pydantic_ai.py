"""Users of one agent of Pydantic AI, over one toolbox or one decorated tool, share no answer."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed")

import httpx2
from pydantic import BaseModel, PrivateAttr, SecretStr
from pydantic_ai import Agent, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

from agent_cache import AgentCache, Read, Toolbox, get_metrics
from agent_cache.integrations import explain
from agent_cache.integrations.pydantic_ai import AgentCacheCapability, AgentCacheToolset
from tests.integration.reach.user_servers import WhoAmI

pytestmark = pytest.mark.usefixtures("clock")


@dataclasses.dataclass
class Deps:
    user: str
    http: Any = dataclasses.field(default_factory=object)


class Model(BaseModel):
    account: int
    token: SecretStr = SecretStr("")
    _tenant: str = PrivateAttr("")


USERS: dict[str, Callable[[str], Any]] = {
    "dataclass": Deps,
    "dict": lambda name: {"user": name},
    "pydantic model": lambda name: Model(account=len(name)),
    "text": str,
    "headers of a client beside a name": lambda name: {"user": name, "client": httpx2.AsyncClient()},
}


def calling(*names: str) -> FunctionModel:
    """A model that calls these tools, one a turn, in each run."""

    def answer(messages: list[Any], info: AgentInfo) -> ModelResponse:
        done = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
        return ModelResponse(parts=[ToolCallPart(names[done], {}) if done < len(names) else TextPart("done")])

    return FunctionModel(answer)


async def answers(agent: Agent[Any, Any], deps: Any = None, **options: Any) -> list[Any]:
    result = await agent.run("go", deps=deps, **options)
    return [
        part.content for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)
    ]


class Desk:
    """An agent whose tool reads the context, and one whose tool does not."""

    def __init__(self, *, decorated: bool = False, rule: Any = None, **options: Any) -> None:
        self.box = Toolbox({"my_*": rule or Read("ticket"), "list_*": Read("ticket")}, namespace="desk")
        runs = itertools.count()

        async def my_tickets(ctx: RunContext[Any]) -> int:
            """Tickets of the current user."""
            return next(runs)

        async def list_all() -> int:
            """Everything."""
            return next(runs)

        if decorated:
            mine, every = AgentCache("ticket")(my_tickets), AgentCache("ticket")(list_all)
            self.agents = {name: Agent(calling(name), tools=[mine, every]) for name in ("my_tickets", "list_all")}
        else:
            self.agents = {
                name: Agent(
                    calling(name),
                    tools=[my_tickets, list_all],
                    capabilities=[AgentCacheCapability(self.box, **options)],
                )
                for name in ("my_tickets", "list_all")
            }

    async def mine(self, deps: Any, **options: Any) -> Any:
        (answer,) = await answers(self.agents["my_tickets"], deps, **options)
        return answer

    async def all(self, deps: Any) -> Any:
        (answer,) = await answers(self.agents["list_all"], deps)
        return answer


@pytest.mark.parametrize("decorated", [False, True], ids=["toolbox", "decorated"])
@pytest.mark.parametrize("kind", USERS)
async def test_two_users_share_nothing_and_one_has_her_hits(kind: str, decorated: bool):
    desk, made = Desk(decorated=decorated), USERS[kind]
    assert [await desk.mine(made(name)) for name in ("ada", "robert", "ada", "robert")] == [0, 1, 0, 1]
    assert (get_metrics()["hits"], get_metrics()["uncached"]) == (2, 0)


async def test_users_in_the_metadata_of_a_run_are_apart():
    desk = Desk()
    users = ("ada", "bob", "ada")
    assert [await desk.mine(None, metadata={"user_id": user, "run": object()}) for user in users] == [0, 1, 0]


async def test_a_client_alone_is_nobody_and_explain_says_so(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    async with httpx2.AsyncClient() as client:
        with caplog.at_level(logging.WARNING):
            assert [await desk.mine(client) for _ in range(2)] == [0, 1]
    (warning,) = [message for message in caplog.messages if "my_tickets" in message]
    assert "vary=" in warning
    assert "shared=True" in warning
    table = explain(desk.agents["my_tickets"], desk.box)
    assert any("my_tickets" in problem and "shared=True" in problem for problem in table.problems)
    assert {row.tool: "context" in row.why for row in table} == {"my_tickets": True, "list_all": False}


async def test_a_toolset_made_for_each_run_counts_too():
    runs = itertools.count()

    def my_tickets(ctx: RunContext[Any]) -> int:
        return next(runs)

    box = Toolbox({"my_*": Read("ticket")}, namespace="desk")
    made = DynamicToolset(lambda ctx: FunctionToolset([my_tickets]))
    agent = Agent(calling("my_tickets"), toolsets=[AgentCacheToolset(made, box)])
    assert [(await answers(agent, Deps(user)))[0] for user in ("ada", "bob", "ada")] == [0, 1, 0]


# MCP servers


@pytest.fixture(scope="module")
def server() -> Iterator[WhoAmI]:
    with contextlib.closing(WhoAmI()) as running:
        yield running


def accounts(url: str) -> dict[str, Callable[[str], MCPToolset[Any]]]:
    from fastmcp.client.transports import StreamableHttpTransport

    def factory(name: str) -> Callable[..., Any]:
        def make(headers: Any = None, **options: Any) -> Any:
            return httpx2.AsyncClient(headers={**(headers or {}), "authorization": name}, **options)

        return make

    return {
        "headers": lambda name: MCPToolset(url, headers={"Authorization": name}),
        "a bearer token": lambda name: MCPToolset(url, auth=name),
        "an auth object": lambda name: MCPToolset(url, auth=httpx2.BasicAuth(name, "x")),
        "the query of the url": lambda name: MCPToolset(f"{url}?user={name}"),
        "a factory of clients": lambda name: MCPToolset(
            StreamableHttpTransport(url, httpx_client_factory=factory(name))
        ),
        "a function of the run": lambda name: MCPToolset(url, headers=lambda ctx: {"Authorization": name}),
    }


@pytest.mark.parametrize("how", list(accounts("http://x")))
async def test_two_accounts_at_one_mcp_server_share_nothing(how: str, server: WhoAmI):
    box = Toolbox({"get_me": Read("me", ttl=60)}, namespace="accounts")
    made = accounts(server.url)[how]
    toolsets = {name: made(name) for name in ("ada", "bob")}
    seen = []
    for name in ("ada", "bob", "ada"):
        agent = Agent(calling("get_me"), toolsets=[toolsets[name]], capabilities=[AgentCacheCapability(box)])
        seen += await answers(agent)
    assert seen[0] != seen[1]
    assert seen[2] == seen[0]


async def test_one_account_has_its_hits_with_a_toolset_made_anew(server: WhoAmI):
    box = Toolbox({"get_me": Read("me", ttl=60)}, namespace="accounts")
    before = server.calls
    for _ in range(3):
        toolset = MCPToolset(server.url, headers={"Authorization": "ada"})
        await answers(Agent(calling("get_me"), toolsets=[toolset], capabilities=[AgentCacheCapability(box)]))
    assert server.calls == before + 1


# A decorator of `*args, **kwargs` between ours and the tool
