"""The responses that clients of MCP keep, in this cache, and in a tier that several share."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("mcp.client.caching", reason="needs mcp>=2")

import mcp_types as types
from mcp import Client
from mcp.client.caching import CacheConfig, CacheEntry, CacheKey
from mcp.server.lowlevel import Server

from agent_cache import AgentCacheSession, ConfigurationError
from agent_cache.integrations.mcp_store import CacheStore
from agent_cache.remote.file import FileTier
from agent_cache.testing import FakeClock, reset

pytestmark = pytest.mark.usefixtures("clean")

KEY = CacheKey("tools/list", "", "of ada")


def entry(name="a", seconds=60.0):
    tools = types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"})])
    return CacheEntry(tools, "private", time.time() + seconds)


async def test_an_entry_comes_back_under_its_own_key_until_it_is_replaced_or_deleted():
    store, first, second = CacheStore(), entry("a"), entry("b")
    assert await store.get(KEY) is None
    await store.set(KEY, first)
    assert await store.get(KEY) == first
    for other in (("tools/list", "", "of bob"), ("prompts/list", "", "of ada"), ("x", "y", "z")):
        assert await store.get(CacheKey(*other)) is None
    await store.set(KEY, second)
    assert await store.get(KEY) == second
    await store.delete(KEY)
    assert await store.get(KEY) is None
    await store.set(KEY, first)
    await store.clear()
    assert await store.get(KEY) is None


async def test_an_entry_ends_with_its_time():
    with FakeClock() as clock:
        store = CacheStore()
        await store.set(KEY, entry(seconds=30))
        assert await store.get(KEY) is not None
        clock.advance(31)
        assert await store.get(KEY) is None
        await store.set(KEY, entry(seconds=-1))
        assert await store.get(KEY) is None


async def test_processes_share_what_is_kept_and_what_ends(tmp_path):
    tiers = [FileTier(tmp_path / "responses.db") for _ in range(2)]
    one, other = (CacheStore(tier) for tier in tiers)
    await one.set(KEY, entry("a"))
    reset()  # as another process: what is in memory is gone
    assert (await other.get(KEY)).value.tools[0].name == "a"
    await one.delete(KEY)
    assert await other.get(KEY) is None
    for tier in tiers:
        await tier.aclose()


async def test_a_session_of_the_agent_sees_nothing_of_it():
    async with AgentCacheSession() as session:
        store = CacheStore()
        await store.set(KEY, entry())
        await store.get(KEY)
    assert session.get_metrics()["calls"] == 0


def test_a_namespace_that_cannot_work_is_refused():
    with pytest.raises(ConfigurationError, match="namespace"):
        CacheStore(namespace="a:b")


async def test_clients_of_one_store_list_once_for_each_user():
    lists = []

    async def on_list_tools(context, params):
        lists.append(params)
        tool = types.Tool(name=f"tool {len(lists)}", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool], ttl_ms=60_000, cache_scope="private")

    store, found = CacheStore(), []
    for user in ("ada", "bob", "ada"):
        server = Server("s", on_list_tools=on_list_tools)
        async with Client(server, cache=CacheConfig(store=store, partition=user, target_id="s")) as client:
            found.append([(await client.list_tools()).tools[0].name for _ in range(2)])
    assert found == [["tool 1"] * 2, ["tool 2"] * 2, ["tool 1"] * 2]
