"""Lists of a server of revision 2026-07-28, by their hints, between real clients and a server of the SDK."""

from __future__ import annotations

import pytest

pytest.importorskip("mcp.client.caching", reason="needs mcp>=2, which speaks that revision")
pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="as above")
pytest.importorskip("starlette", reason="as above")

import mcp_types as types
from mcp import Client
from mcp.server.lowlevel import Server

from agent_cache.testing import reset
from tests.harness.mcp_http_host import relaying, running

RULES = 'namespace = "lists"\n'


@pytest.fixture(autouse=True)
def clean():
    yield
    reset()


async def test_hosts_that_send_the_same_share_a_list_while_it_lives(rules):
    lists = []

    async def on_list_tools(context, params):
        lists.append(params)
        tool = types.Tool(name=f"tool_{len(lists)}", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool], ttl_ms=60_000, cache_scope="private")

    app = Server("shop", on_list_tools=on_list_tools).streamable_http_app()
    found = []
    async with app.router.lifespan_context(app), running(app) as origin, relaying(f"{origin}/mcp", rules) as relay:
        for _ in range(2):
            async with Client(relay.url) as client:
                listed = await client.list_tools()
                found.append([tool.name for tool in listed.tools])
                assert 0 < listed.ttl_ms <= 60_000
    assert found == [["tool_1"]] * 2
