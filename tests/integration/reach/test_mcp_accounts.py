"""Two accounts at one MCP server share no answer, whatever tells the server who asks, and each has its hits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

agents = pytest.importorskip("agents", reason="needs the OpenAI Agents SDK, Pydantic AI and FastMCP")
pytest.importorskip("pydantic_ai", reason="as above")
pytest.importorskip("fastmcp", reason="as above")

import httpx2  # noqa: E402
from agents import Agent, Runner  # noqa: E402
from agents.mcp import MCPServerStreamableHttp  # noqa: E402
from agents.testing import ScriptedModel, assistant_message, function_call  # noqa: E402
from fastmcp import Client  # noqa: E402
from fastmcp.client.transports import StreamableHttpTransport  # noqa: E402
from mcp import ClientSession  # noqa: E402
from mcp.client.client import Client as SdkClient  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from pydantic_ai import Agent as PydanticAgent  # noqa: E402
from pydantic_ai.mcp import MCPToolset  # noqa: E402
from pydantic_ai.models.test import TestModel  # noqa: E402

from agent_cache import Read, Toolbox  # noqa: E402
from agent_cache.integrations.mcp_client import CachedClient  # noqa: E402
from agent_cache.integrations.openai_agents import cached  # noqa: E402
from agent_cache.integrations.pydantic_ai import AgentCacheCapability  # noqa: E402
from tests.harness.mcp_http_host import running  # noqa: E402
from tests.harness.odd_mcp_server import OddApplication  # noqa: E402

pytestmark = pytest.mark.usefixtures("clock")

Ask = Callable[[Toolbox], Awaitable[str]]
"""What an account is answered, through a toolbox."""
Connect = Callable[[str, str], AbstractAsyncContextManager[Ask]]
"""Connects to a URL as a user."""


@pytest.fixture
async def server() -> AsyncIterator[OddApplication]:
    agents.set_tracing_disabled(True)
    application = OddApplication()
    async with running(application) as origin:
        application.url = f"{origin}/mcp"
        yield application
    agents.set_tracing_disabled(False)


def of_openai_agents(make: Callable[[str, str], Any]) -> Connect:
    @asynccontextmanager
    async def connect(url: str, name: str) -> AsyncIterator[Ask]:
        async with make(url, name) as connection:

            async def ask(box: Toolbox) -> str:
                model = ScriptedModel([[function_call("whoami", {}, call_id="c0")], [assistant_message("done")]])
                result = await Runner.run(cached(Agent("a", model=model, mcp_servers=[connection]), box), "go")
                return str([one for one in result.to_input_list() if one.get("type") == "function_call_output"])

            yield ask

    return connect


def of_pydantic_ai(make: Callable[[str, str], MCPToolset[Any]]) -> Connect:
    @asynccontextmanager
    async def connect(url: str, name: str) -> AsyncIterator[Ask]:
        toolset = make(url, name)

        async def ask(box: Toolbox) -> str:
            agent = PydanticAgent(TestModel(), toolsets=[toolset], capabilities=[AgentCacheCapability(box)])
            return str((await agent.run("go")).output)

        yield ask

    return connect


def of_a_client(connected: Callable[[str, str], AbstractAsyncContextManager[Any]], **options: Any) -> Connect:
    @asynccontextmanager
    async def connect(url: str, name: str) -> AsyncIterator[Ask]:
        async with connected(url, name) as client:

            async def ask(box: Toolbox) -> str:
                given = {"vary": lambda _: name} if options else {}
                return str((await CachedClient(client, box, **given).call_tool("whoami", {})).content[0].text)

            yield ask

    return connect


def factory(name: str) -> Callable[..., Any]:
    def make(headers: Any = None, **options: Any) -> Any:
        return httpx2.AsyncClient(headers={**(headers or {}), "authorization": name}, **options)

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


@asynccontextmanager
async def session_of(url: str, name: str) -> AsyncIterator[Any]:
    async with (
        httpx2.AsyncClient(headers={"authorization": name}) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        yield session


@asynccontextmanager
async def transport_of(url: str, name: str) -> AsyncIterator[Any]:
    async with (
        httpx2.AsyncClient(headers={"authorization": name}) as http,
        SdkClient(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def with_headers(url: str, name: str) -> Any:
    return Client(StreamableHttpTransport(url, headers={"x-user": name}))


WAYS: dict[str, tuple[bool, Connect]] = {
    "agents: headers": (
        True, of_openai_agents(lambda url, name: MCPServerStreamableHttp({"url": url, "headers": {"X-User": name}})),
    ),
    "agents: the query under one name": (
        True, of_openai_agents(lambda url, name: MCPServerStreamableHttp({"url": f"{url}?user={name}"}, name="crm")),
    ),
    "agents: a factory of clients": (
        False,
        of_openai_agents(
            lambda url, name: MCPServerStreamableHttp({"url": url, "httpx_client_factory": factory(name)})
        ),
    ),
    "agents: an auth object": (
        False,
        of_openai_agents(lambda url, name: MCPServerStreamableHttp({"url": url, "auth": httpx2.BasicAuth(name, "x")})),
    ),
    "agents: a class of one's own": (False, of_openai_agents(Own)),
    "pydantic: headers": (True, of_pydantic_ai(lambda url, name: MCPToolset(url, headers={"Authorization": name}))),
    "pydantic: a bearer token": (True, of_pydantic_ai(lambda url, name: MCPToolset(url, auth=name))),
    "pydantic: the query": (True, of_pydantic_ai(lambda url, name: MCPToolset(f"{url}?user={name}"))),
    "pydantic: an auth object": (
        False, of_pydantic_ai(lambda url, name: MCPToolset(url, auth=httpx2.BasicAuth(name, "x"))),
    ),
    "pydantic: a factory of clients": (
        False,
        of_pydantic_ai(
            lambda url, name: MCPToolset(StreamableHttpTransport(url, httpx_client_factory=factory(name)))
        ),
    ),
    "pydantic: a function of the run": (
        True, of_pydantic_ai(lambda url, name: MCPToolset(url, headers=lambda ctx: {"Authorization": name})),
    ),
    "fastmcp: headers": (True, of_a_client(with_headers)),
    "mcp: a client of a url": (True, of_a_client(lambda url, name: SdkClient(f"{url}?user={name}"))),
    "mcp: a client of a transport": (False, of_a_client(transport_of)),
    "mcp: a session": (False, of_a_client(session_of)),
    "mcp: a session of which vary says whose it is": (True, of_a_client(session_of, vary=True)),
}  # fmt: skip
"""Whether a connection shows what it sends, and how one is made."""


@pytest.mark.parametrize("way", WAYS)
async def test_two_accounts_share_nothing_and_each_has_its_hits(way: str, server: OddApplication) -> None:
    is_shown, connect = WAYS[way]
    box, seen = Toolbox({"whoami": Read("me", ttl=60)}, namespace="accounts"), []
    async with connect(server.url, "ada") as ada, connect(server.url, "bob") as bob:
        seen += [await ask(box) for ask in (ada, bob, ada, bob)]
    assert seen[0] == seen[2] != seen[1] == seen[3]
    assert server.calls == 2
    async with connect(server.url, "ada") as ada_again:
        assert await ada_again(box) == seen[0]
    assert server.calls == (2 if is_shown else 3)
