"""`agent_cache.integrations.fastmcp` in real FastMCP servers: in memory, over stdio, and over HTTP."""

# ruff: noqa: B008 - FastMCP's dependencies are calls in defaults

from __future__ import annotations

import asyncio
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

from agent_cache import (
    AgentCache,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
    Read,
    Toolbox,
    Write,
    get_metrics,
)
from agent_cache.integrations.fastmcp import AgentCacheMiddleware, describe
from tests.integration.reach.mcp_shop import Shop, new_box, over_http

pytestmark = pytest.mark.usefixtures("clock")  # an empty library, whose clock stands still

ORDER = {"order_id": "1"}


def text_of(result: Any) -> str:
    return result.content[0].text


def cached_shop(**options: Any) -> Shop:
    return Shop(AgentCacheMiddleware(new_box()), **options)


async def test_a_loop_is_told_with_its_text_where_details_of_errors_are_masked():
    shop = cached_shop(mask_error_details=True)
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(max_tool_repeats=3), Client(shop.server) as client:
            answers = [await client.call_tool_mcp("now", {}) for _ in range(40)]
            answers += [await client.call_tool_mcp("get_order", ORDER) for _ in range(3)]
            assert [answer.is_error for answer in answers] == [False] * 42 + [True]
            assert "get_order was called 3 times" in text_of(answers[-1])


async def test_answers_are_kept_apart_by_version():
    server = FastMCP("shop", middleware=[AgentCacheMiddleware(new_box())])
    runs = []

    @server.tool(name="get_price", version="1")
    async def first(order_id: str) -> str:
        runs.append("1")
        return "1"

    @server.tool(name="get_price", version="2")
    async def second(order_id: str) -> str:
        runs.append("2")
        return "2"

    async with Client(server) as client:
        for version in ("1", "2", None, "1", "2", None):
            answer = await client.call_tool("get_price", ORDER, version=version)
            assert answer.data == (version or "2")
    assert runs == ["1", "2"]  # the latest is version 2 until there is another one

    @server.tool(name="get_price", version="3")
    async def third(order_id: str) -> str:
        return "3"

    async with Client(server) as client:
        assert (await client.call_tool("get_price", ORDER)).data == "3"
        assert (await client.call_tool("get_price", ORDER, version="2")).data == "2"


async def test_a_hit_is_only_for_who_may_call_the_tool():
    shop = cached_shop()
    async with Client(shop.server) as client:
        await client.call_tool("get_order", ORDER)
        shop.server.disable(names={"get_order"})
        answer = await client.call_tool_mcp("get_order", ORDER)
        assert answer.is_error
        assert "Unknown tool" in text_of(answer)
        shop.server.enable(names={"get_order"})
        assert (await client.call_tool("get_order", ORDER)).data["run"] == 1


async def test_two_of_our_middlewares_on_a_server_are_refused():
    one = AgentCacheMiddleware(new_box())
    for other in (one, AgentCacheMiddleware(one.box), AgentCacheMiddleware(new_box())):
        shop = Shop(one, other)
        with pytest.raises(ConfigurationError, match="'shop' has two AgentCacheMiddleware"):
            await shop.server.call_tool("cancel_order", ORDER)
        assert shop.runs == []


# What is not stored


@pytest.mark.parametrize("tool", ["get_elicited", "get_state", "get_set_state"])
async def test_what_depends_on_the_client_or_its_state_is_not_stored(tool: str):
    shop = cached_shop()

    async def accepts(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"value": "yes"}

    async with Client(shop.server, elicitation_handler=accepts, mode="legacy") as client:
        first, second = [await client.call_tool(tool, ORDER) for _ in range(2)]
        if tool == "get_set_state":
            assert (await client.call_tool("get_state", ORDER)).data == "1"
    assert first.data == second.data
    assert shop.runs[:2] == [tool] * 2


async def test_a_question_to_the_client_is_not_stored_and_its_later_rounds_pass():
    shop = cached_shop()

    async def accepts(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {}

    async with AgentCacheSession() as session, Client(shop.server, elicitation_handler=accepts) as client:
        for _ in range(2):
            assert (await client.call_tool("get_guarded", ORDER)).data == "1 one"
        assert [record.outcome for record in session.get_execution_trace()] != []
        assert session.loop_error is None
    assert shop.runs == ["get_guarded"] * 4


async def test_a_question_to_one_client_is_not_given_to_another_that_waits():
    shop = cached_shop()
    server, asked = shop.server, []
    both = asyncio.Event()

    @server.tool
    async def get_asking(order_id: str, ctx: Context) -> str:
        asked.append(ctx.session_id)
        await both.wait()
        answer = await ctx.elicit("sure?", str)
        return f"{answer.action} {len(asked)}"

    def client(answer: str) -> Client[Any]:
        async def accepts(message: str, kind: Any, params: Any, context: Any) -> Any:
            return {"value": answer}

        return Client(server, elicitation_handler=accepts, mode="legacy")

    async with client("a") as first, client("b") as second:
        calls = [asyncio.ensure_future(one.call_tool("get_asking", ORDER)) for one in (first, second)]
        await first.call_tool("now")
        await second.call_tool("now")
        both.set()
        await asyncio.gather(*calls)
    assert len(set(asked)) == 2


# Other ways to have tools


@pytest.mark.parametrize("where", ["above", "below", "both"])
async def test_a_mounted_server_is_cached_above_below_or_once_at_both(where: str):
    box = Toolbox(
        {"*get_order": Read("order:{order_id}"), "*cancel_order": Write("order:{order_id}")}, namespace="shop"
    )
    shop = Shop(*([] if where == "above" else [AgentCacheMiddleware(box)]))
    outer = FastMCP("outer", middleware=[] if where == "below" else [AgentCacheMiddleware(box)])
    outer.mount(shop.server, namespace="shop")
    async with AgentCacheSession() as session, Client(outer) as client:
        for _ in range(2):
            await client.call_tool("shop_get_order", ORDER)
            await client.call_tool("shop_get_order", ORDER)
            await client.call_tool("shop_cancel_order", ORDER)
        assert len(session.get_execution_trace()) == 6
    assert shop.runs == ["get_order", "cancel_order"] * 2
    [info] = [one for one in await asyncio.to_thread(describe, outer) or () if one.name == "shop_get_order"]
    assert not info.takes_context, "the function of a mounted tool is found"


async def test_a_proxied_server_is_cached():
    shop = Shop()
    proxy = FastMCPProxy(client_factory=lambda: ProxyClient(shop.server), name="proxy")
    proxy.add_middleware(AgentCacheMiddleware(new_box(hints="kind")))
    async with Client(proxy) as client:
        for _ in range(2):
            await client.call_tool("get_order", ORDER)
            assert (await client.call_tool("get_order", ORDER)).data["id"] == "1"
            await client.call_tool("cancel_order", ORDER)
        answer = await client.call_tool_mcp("get_error", ORDER)
        assert answer.is_error
    assert shop.runs == ["get_order", "cancel_order"] * 2 + ["get_error"]


async def test_a_replaced_tool_gives_no_old_answers():
    server = FastMCP("shop", middleware=[AgentCacheMiddleware(new_box())], on_duplicate="replace")

    def add(answer: str) -> None:
        async def get_answer(order_id: str) -> str:
            return answer

        server.tool(get_answer)

    add("old")
    async with Client(server) as client:
        for _ in range(2):
            assert (await client.call_tool("get_answer", ORDER)).data == "old"
        add("new")
        assert (await client.call_tool("get_answer", ORDER)).data == "new"


async def test_a_server_is_described_inside_and_outside_of_an_event_loop():
    shop = cached_shop()
    found = describe(shop.server)
    assert found is not None
    assert await asyncio.to_thread(describe, shop.server) == found
    assert {tool.name for tool in found} >= {"get_order", "cancel_order"}
    assert describe(object()) is None
    assert new_box().explain(found)[0].kind == "read"


# Clients apart

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
@pytest.mark.parametrize("function", [by_context, by_current_context, by_token], ids=lambda one: one.__name__)
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


async def test_arguments_are_compared_as_they_are_checked_also_beside_a_context() -> None:
    runs: list[int] = []
    box = Toolbox({"get_number": Read("number", shared=True)}, namespace="checked")
    server: FastMCP[Any] = FastMCP("numbers", middleware=[AgentCacheMiddleware(box)])

    @server.tool
    async def get_number(ctx: Context, number: int) -> int:
        runs.append(number)
        return number

    async with Client(server) as client:
        for number in (7, "07", 7.0):
            assert (await client.call_tool("get_number", {"number": number})).data == 7
    assert runs == [7]
