"""Clients of one FastMCP server share no answer that depends on who they are."""

# ruff: noqa: B008 - FastMCP's dependencies are calls in defaults

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="the FastMCP adapter is tested where FastMCP is installed")

from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.dependencies import CurrentContext, CurrentFastMCP, CurrentHeaders, Depends, Progress
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.dependencies import get_access_token, get_http_headers, get_http_request
from fastmcp.server.providers.proxy import FastMCPProxy, ProxyClient

from agent_cache import AgentCache, Read, Toolbox, get_metrics
from agent_cache.integrations.fastmcp import AgentCacheMiddleware
from tests.integration.reach.mcp_shop import over_http

pytestmark = pytest.mark.usefixtures("clock")

RUNS = itertools.count()


@pytest.fixture(autouse=True)
def runs() -> None:
    global RUNS
    RUNS = itertools.count()


async def by_context(ctx: Context) -> str:
    return str(next(RUNS))


async def by_current_context(ctx: Context = CurrentContext()) -> str:
    return str(next(RUNS))


async def by_token() -> str:
    return f"{next(RUNS)}{str(get_access_token())[:0]}"


async def by_headers() -> str:
    return f"{next(RUNS)}{str(get_http_headers())[:0]}"


async def by_request() -> str:
    return f"{next(RUNS)}{str(get_http_request())[:0]}"


async def by_injected_headers(headers: dict[str, str] = CurrentHeaders()) -> str:
    return str(next(RUNS))


async def by_request_of_the_context(ctx: Context) -> str:
    assert ctx.request_context is not None
    return f"{next(RUNS)}{str(ctx.request_context.request)[:0]}"


def who() -> str:
    return get_http_headers().get("x-user", "")


async def by_helper() -> str:
    return f"{next(RUNS)}{who()[:0]}"


async def by_dependency(user: str = Depends(who)) -> str:
    return str(next(RUNS))


async def of_all(progress: Progress = Progress(), server: FastMCP[Any] = CurrentFastMCP()) -> str:
    return str(next(RUNS))


def anew(function: Any) -> Any:
    """The same function once more: FastMCP notes in it that it is registered."""
    made = types.FunctionType(function.__code__, globals(), argdefs=function.__defaults__)
    made.__annotations__, made.__module__ = function.__annotations__, function.__module__
    return made


def server_of(function: Any, *, decorated: bool, rule: Any = None, auth: Any = None, **options: Any) -> FastMCP[Any]:
    box = Toolbox({"my_*": rule or Read("ticket", ttl=60)}, namespace="desk")
    server: FastMCP[Any] = FastMCP(
        "desk", middleware=[] if decorated else [AgentCacheMiddleware(box, **options)], auth=auth
    )
    own = anew(function)
    server.tool(AgentCache("ticket", ttl=60)(own) if decorated else own, name="my_tickets")
    return server


def tokens(*names: str) -> StaticTokenVerifier:
    return StaticTokenVerifier({name: {"client_id": "app", "scopes": []} for name in names})


async def ask(url: str, **options: Any) -> str:
    async with Client(StreamableHttpTransport(url, **options)) as client:
        return str((await client.call_tool("my_tickets")).data)


WAYS = pytest.mark.parametrize("decorated", [False, True], ids=["middleware", "decorated"])


@WAYS
@pytest.mark.parametrize(
    "function",
    [by_context, by_current_context, by_token],
    ids=lambda one: one.__name__,
)
async def test_users_by_their_access_tokens(function: Any, decorated: bool):
    with over_http(server_of(function, decorated=decorated, auth=tokens("ada", "bob"))) as url:
        assert [await ask(url, auth=user) for user in ("ada", "bob", "ada", "bob")] == ["0", "1", "0", "1"]
    assert (get_metrics()["hits"], get_metrics()["uncached"]) == (2, 0)


@WAYS
@pytest.mark.parametrize(
    ("function", "header"),
    [
        *itertools.product([by_headers, by_request_of_the_context], ["x-user", "authorization", "cookie"]),
        *itertools.product([by_request, by_injected_headers, by_helper, by_dependency], ["x-user"]),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
async def test_users_of_a_tool_that_reads_the_request(function: Any, header: str, decorated: bool):
    with over_http(server_of(function, decorated=decorated)) as url:
        answers = [await ask(url, headers={header: user}) for user in ("ada", "bob", "ada", "bob")]
        assert answers == ["0", "1", "0", "1"]


@WAYS
@pytest.mark.parametrize("function", [by_context, by_headers, of_all], ids=lambda one: one.__name__)
async def test_one_client_has_its_hits_in_memory_and_over_http(function: Any, decorated: bool):
    server = server_of(function, decorated=decorated)
    async with Client(server) as client:
        assert [(await client.call_tool("my_tickets")).data for _ in range(3)] == ["0", "0", "0"]
    with over_http(server) as url:
        first = await ask(url)
        assert [await ask(url) for _ in range(2)] == [first, first]
    assert get_metrics()["uncached"] == 0


@WAYS
async def test_a_tool_that_takes_nothing_of_a_client_is_shared(decorated: bool):
    with over_http(server_of(of_all, decorated=decorated)) as url:
        assert [await ask(url, headers={"x-user": user}) for user in ("ada", "bob")] == ["0", "0"]


async def test_a_tool_that_takes_nothing_of_a_client_is_told_apart_by_access_token_too():
    with over_http(server_of(of_all, decorated=False, auth=tokens("ada", "bob"))) as url:
        assert [await ask(url, auth=user) for user in ("ada", "bob", "ada")] == ["0", "1", "0"]


@WAYS
async def test_users_in_the_metadata_of_a_request_are_apart(decorated: bool):
    async with Client(server_of(by_context, decorated=decorated)) as client:
        metas = [{"user_id": one, "turn": number} for number, one in enumerate(["ada", "bob", "ada"])]
        assert [(await client.call_tool("my_tickets", meta=meta)).data for meta in metas] == ["0", "1", "0"]


async def test_clients_of_a_proxy_are_apart_by_what_it_passes_on():
    behind: FastMCP[Any] = FastMCP("behind")
    behind.tool(anew(by_headers), name="my_tickets")
    with over_http(behind) as inner:
        box = Toolbox({"my_*": Read("ticket", ttl=60)}, namespace="desk")
        front = FastMCPProxy(client_factory=lambda: ProxyClient(inner), middleware=[AgentCacheMiddleware(box)])
        with over_http(front) as url:
            answers = [await ask(url, headers={"x-user": user}) for user in ("ada", "bob", "ada")]
    assert answers == ["0", "1", "0"]


async def test_a_proxy_answers_with_the_version_that_is_asked_for():
    behind: FastMCP[Any] = FastMCP("behind")
    for version in ("1.0", "2.0"):
        behind.tool(_named(version), name="my_tickets", version=version)
    box = Toolbox({"my_*": Read("ticket", ttl=60)}, namespace="desk")
    front = FastMCPProxy(client_factory=lambda: ProxyClient(behind), middleware=[AgentCacheMiddleware(box)])
    async with Client(front) as client:
        answers = [
            (await client.call_tool("my_tickets", version=one)).data for one in (None, "1.0", "2.0", "1.0", None)
        ]
    assert answers == ["2.0", "1.0", "2.0", "1.0", "2.0"]


def _named(version: str) -> Callable[[], str]:
    def my_tickets() -> str:
        return version

    return my_tickets
