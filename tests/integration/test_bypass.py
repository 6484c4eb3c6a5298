"""`bypass`: reads of one task run their tools uncached, and everything else goes on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
    bypass,
    configure,
    get_metrics,
    invalidate,
    writing,
)
from agent_cache.testing import MemoryServer
from tests.pipeline.fleet import WatchedTier

pytestmark = pytest.mark.usefixtures("clock")


class Orders:
    """A read tool that answers with the number of its run, in each scope, and a write tool."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0

        async def get(id: str) -> int:
            self.runs += 1
            return self.runs

        async def save(id: str) -> None: ...

        self.get = AgentCache("order:{id}", name="get", **options)(get)
        self.own = AgentCache("order:{id}", "session", name="own")(get)
        self.save = AgentCacheInvalidator("order:{id}", name="save")(save)


@pytest.fixture
def orders() -> Orders:
    return Orders()


async def test_reads_inside_run_their_tools_and_store_nothing(orders: Orders):
    assert await orders.get("7") == 1
    with bypass():
        assert [await orders.get("7"), await orders.get("7"), await orders.get("8")] == [2, 3, 4]
        assert await orders.get.fresh("7") == 5
    assert [await orders.get("7"), await orders.get("8")] == [1, 6]
    metrics = get_metrics()
    assert (metrics["uncached"], metrics["misses"], metrics["hits"]) == (4, 2, 1)


async def test_a_block_is_entered_once_at_a_time(orders: Orders):
    block = bypass()
    with block, pytest.raises(ConfigurationError, match="already entered"):
        block.__enter__()
    block.__exit__(None, None, None)
    with block:
        assert await orders.get("7") == 1
    assert [await orders.get("7"), await orders.get("7")] == [2, 2]


async def test_children_belong_to_the_block_and_other_tasks_do_not(orders: Orders):
    await orders.get("7")
    entered, ended = asyncio.Event(), asyncio.Event()

    async def bypassing() -> list[int]:
        with bypass():
            child = asyncio.ensure_future(orders.get("7"))
            there = await asyncio.to_thread(lambda: asyncio.run(orders.get("7")))
            entered.set()
            await ended.wait()
            return [await child, there, await orders.get("7")]

    task = asyncio.ensure_future(bypassing())
    await entered.wait()
    assert await orders.get("7") == 1
    ended.set()
    assert sorted(await task) == [2, 3, 4]
    assert await orders.get("7") == 1


async def test_writes_inside_invalidate_everywhere(orders: Orders):
    here = WatchedTier(MemoryServer())
    with configure(remote=here):
        await orders.get("7")
        with bypass():
            await orders.save("7")
        assert await orders.get("7") == 2
        with bypass():
            await invalidate("order:7")
            async with writing("order:8"):
                pass
        assert await orders.get("7") == 3
    assert here.orders.count("begin") == here.orders.count("commit") == 3


async def test_sessions_trace_count_and_check_for_loops(orders: Orders):
    async with AgentCacheSession() as session:
        await orders.own("7")
        with bypass():
            await orders.own("7")
            await orders.save("7")
        sources = [(record.tool, record.source) for record in session.get_execution_trace()]
        assert sources == [("own", "miss"), ("own", "uncached"), ("save", "write")]
        assert (session.metrics.uncached, session.metrics.calls) == (1, 3)

    @AgentCache("same")
    async def same() -> str:
        return "same"

    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(max_tool_repeats=3):
            await same()
            with bypass():
                for _ in range(3):
                    await same()


@pytest.mark.parametrize("tenant", [None, "mine"])
async def test_a_read_that_another_makes_in_a_block_is_one_that_was_not_cached(orders: Orders, tenant: str | None):
    """So the outer one is not stored, unless it has a ttl of its own: nothing tells when the inner value changes."""
    runs: list[str] = []

    @AgentCache("report")
    async def report() -> int:
        runs.append("report")
        with bypass():
            return await orders.get("7")

    @AgentCache("brief", ttl=60)
    async def brief() -> int:
        runs.append("brief")
        with bypass():
            return await orders.get("7")

    async with AgentCacheSession(tenant=tenant, loop_detection=False):
        for tool in (report, report, brief, brief):
            await tool()
    assert runs == ["report", "report", "brief"]


# -- Blocks in generators ------------------------------------------------------------------------------------


async def _in_a_block() -> AsyncIterator[int]:
    with bypass():
        yield 1


async def _in_a_session_of_a_block() -> AsyncIterator[int]:
    with bypass():
        async with AgentCacheSession():
            yield 1


@pytest.mark.parametrize("numbers", [_in_a_block, _in_a_session_of_a_block])
async def test_a_block_ends_when_the_generator_that_it_is_in_is_closed_after_a_break(
    orders: Orders, numbers: Callable[[], AsyncIterator[int]]
):
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async for _ in numbers():
        break
    for _ in range(5):
        gc.collect()
        await asyncio.sleep(0)
    await orders.get("7")
    await orders.get("7")
    assert orders.get.cache_info().hits == 1
    assert not failures
