"""Audits: a share of the hits is checked by running the tool again beside them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    Read,
    StaleHit,
    Toolbox,
    configure,
    get_metrics,
    writing,
)
from agent_cache.recording import record, replay
from agent_cache.remote import WriteIntent
from agent_cache.resume import Journal
from agent_cache.testing import FaultyTier, MemoryServer, MemoryTier
from tests.harness import library
from tests.harness.gates import idle
from tests.harness.threads import until

pytestmark = pytest.mark.usefixtures("clock")


class Shop:
    """A store of prices, read tools that count their runs, and writes with and without the tag."""

    def __init__(self, **options: Any) -> None:
        self.prices: dict[str, Any] = {"7": 1, "8": 1}
        self.runs: list[str] = []
        self.threads: list[str] = []

        async def get(item: str) -> Any:
            self.runs.append(item)
            return self.prices[item]

        def get_now(item: str) -> Any:
            self.runs.append(item)
            self.threads.append(threading.current_thread().name)
            return self.prices[item]

        async def save(item: str, price: Any) -> None:
            self.prices[item] = price

        async def save_without_tag(item: str, price: Any) -> None:
            self.prices[item] = price

        self.get = AgentCache("price:{item}", name="get_price", **options)(get)
        self.get_now = AgentCache("price:{item}", name="get_price_now", **options)(get_now)
        self.save = AgentCacheInvalidator("price:{item}", name="save_price")(save)
        self.spoil = AgentCacheInvalidator("prize:{item}", name="spoil_price")(save_without_tag)


@pytest.fixture
def shop() -> Shop:
    return Shop(audit=1.0)


def counts() -> tuple[int, int]:
    """How many audits came to a result, and how many of them found a stale answer."""
    metrics = get_metrics()
    return metrics["audits"], metrics["stale_found"]


def no_audit_runs() -> bool:
    return library.nothing_in_flight()


# Which hits


async def test_a_hit_is_checked_and_a_miss_is_not(shop: Shop):
    assert await shop.get("7") == 1
    await idle()
    assert (shop.runs, counts()) == (["7"], (0, 0))
    assert await shop.get("7") == 1
    assert shop.runs == ["7"]  # it has not been waited for
    await idle()
    assert (shop.runs, counts()) == (["7", "7"], (1, 0))
    metrics = get_metrics()["tools"]["get_price"]
    assert (metrics["hits"], metrics["misses"], metrics["calls"]) == (1, 1, 2)
    shop.prices["7"] = 2
    assert await shop.get.fresh("7") == 2
    await idle()
    assert (len(shop.runs), counts()) == (3, (1, 0)), "a fresh call is no hit"


# What is found


@pytest.mark.parametrize("tool", ["get", "get_now"])
async def test_a_write_without_the_tag_is_found_and_its_stale_answer_dropped(
    shop: Shop, tool: str, caplog: pytest.LogCaptureFixture
):
    found: list[StaleHit] = []
    read: Any = getattr(shop, tool)

    async def call() -> Any:
        result = read("7")
        result = await result if tool == "get" else result
        await asyncio.to_thread(until, no_audit_runs)
        return result

    with configure(on_stale=found.append):
        await call()
        await shop.save("8", 5)
        await shop.spoil("7", 2)
        assert await call() == 1
        assert not read.contains("7")
        assert await call() == 2
        assert await call() == 2
    assert counts() == (2, 1)
    (hit,) = found
    assert (hit.tool, dict(hit.arguments), hit.cached, hit.fresh) == (read.__agent_cache__.name, {"item": "7"}, 1, 2)
    assert hit.tags == ("price:7",)
    assert hit.session is None
    assert "7" not in repr(hit).replace("price:7", "")
    (line,) = [one for one in caplog.records if one.__dict__.get("agent_cache_event") == "a stale answer"]
    said = line.getMessage()
    assert "price:{item}" in said
    assert "save_price (price:{item}), spoil_price (prize:{item})" in said
    assert ":7" not in said
    if tool == "get_now":
        assert shop.threads[1].startswith("agent_cache audits")


async def test_what_on_stale_calls_is_no_call_of_the_session_and_its_error_is_logged_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
):
    def on_stale(hit: StaleHit) -> None:
        shop.get_now("8")
        raise RuntimeError("broken")

    with configure(on_stale=on_stale):
        async with AgentCacheSession(loop_detection=False) as session:
            for price in (2, 3):
                await shop.get("7")
                shop.prices["7"] = price
                await shop.get("7")
                await idle()
    assert {record.tool for record in session.get_execution_trace()} == {"get_price"}
    assert get_metrics()["tools"]["get_price"]["stale_found"] == 2
    assert get_metrics()["tools"]["get_price_now"]["calls"] == 2, "nor one of the audit"
    assert caplog.text.count("on_stale raised") == caplog.text.count("an audit has found a stale answer") == 1


@pytest.mark.parametrize("failure", ["raises", "is rejected"])
async def test_a_run_that_fails_says_nothing(failure: str, caplog: pytest.LogCaptureFixture):
    shop = Shop(audit=1.0, cache_if=lambda price: price != "Error: busy")
    await shop.get("7")
    if failure == "raises":
        del shop.prices["7"]
    else:
        shop.prices["7"] = "Error: busy"
    await shop.get("7")
    await idle()
    assert (len(shop.runs), counts()) == (2, (0, 0))
    assert shop.get.contains("7")
    assert get_metrics()["errors"] == 0
    assert ("says nothing (KeyError: '7')" in caplog.text) == (failure == "raises")


# It has no effect


async def test_a_write_that_the_tool_makes_is_refused(caplog: pytest.LogCaptureFixture):
    saved = []

    @AgentCacheInvalidator("log", name="note_visit")
    async def note_visit() -> None:
        saved.append("async")

    @AgentCacheInvalidator("log", name="note_visit_now")
    def note_visit_now() -> None:
        saved.append("def")

    runs = []

    async def read(how: str) -> int:
        runs.append(how)
        try:
            async with chat.attach() if how == "attached" else AgentCacheSession():
                if how in ("async", "attached"):
                    await note_visit()
                elif how == "writing":
                    async with writing("log"):
                        saved.append("writing")
                else:
                    note_visit_now()
        except RuntimeError:
            pass  # a tool may well swallow it
        return len(saved)

    async with AgentCacheSession() as chat:
        pass
    for how in ("async", "attached", "def", "writing"):
        tool = AgentCache("visits", audit=1.0, name=f"visit_{how}")(read)
        for _ in range(3):
            async with chat:
                await tool(how)
                await idle()
    assert saved == ["async", "async", "def", "writing"]
    assert len(runs) == 8, "each is audited once"
    assert counts() == (0, 0)
    assert get_metrics()["tools"]["note_visit"]["calls"] == 2
    assert caplog.text.count("the tool writes, so its hits cannot be audited") == 4


async def test_the_caller_may_change_its_arguments_and_the_tool_cannot_change_them_behind_its_back():
    seen = []

    @AgentCache("orders", audit=1.0, name="find_orders")
    async def find(filters: dict[str, Any]) -> int:
        seen.append(dict(filters))
        filters["seen"] = True
        return 1

    await find({"status": "new"})
    mine = {"status": "new"}
    await find(mine)
    mine["status"] = "old"
    await idle()
    assert seen == [{"status": "new"}] * 2
    assert mine == {"status": "old"}


async def test_a_long_stream_that_an_audited_tool_reads_is_whole():
    @AgentCache("price", max_stream_bytes=100)
    async def pages() -> AsyncIterator[str]:
        for number in range(3):
            yield f"page {number}" * 20

    @AgentCache("price", audit=1.0, ttl=60)
    async def count_pages() -> int:
        return len([page async for page in pages()])

    for _ in range(2):
        assert await count_pages() == 3
        await idle()
    assert counts() == (1, 0)


async def test_nothing_is_audited_while_a_run_is_recorded_or_replayed(shop: Shop, tmp_path: Any):
    await shop.get("7")
    with record(tmp_path / "run.jsonl"):
        for _ in range(3):
            await shop.get("7")
            await idle()
    with replay(tmp_path / "run.jsonl"):
        for _ in range(3):
            await shop.get("7")
            await idle()
    async with AgentCacheSession("run", journal=Journal(tmp_path / "journals")):
        for _ in range(3):
            await shop.get("7")
            await idle()
    assert shop.runs[1:] == []
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert sum('"get_price"' in line for line in lines) >= 1
    assert counts() == (0, 0)
    await shop.get("7")
    await idle()
    assert counts() == (1, 0)


async def test_tools_known_by_name_are_audited_by_their_rule_alone():
    box = Toolbox({"get": Read("price"), "checked": Read("price", audit=1.0)}, namespace="audited")
    runs = []

    async def run() -> int:
        runs.append(1)
        return 1

    with configure(audit=1.0):
        for name in ("get", "checked"):
            for _ in range(2):
                await box.call(name, {"item": "7"}, run)
                await idle()
    assert len(runs) == 3
    assert get_metrics()["tools"]["audited:checked"]["audits"] == 1


# In a fleet


class Fleet:
    """A read over a tier of this process, and another process that writes."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.memory, self.other = MemoryTier(self.server), MemoryTier(self.server)
        self.tier = FaultyTier(self.memory)
        self.price = 1
        self.runs = 0

        async def get(item: str) -> int:
            self.runs += 1
            return self.price

        self.get = AgentCache("price:{item}", name="fleet_price", remote_cache=self.tier, audit=1.0)(get)

    async def write(self, item: str, price: int) -> None:
        intent = WriteIntent(os.urandom(8).hex(), (f"price:{item}",))
        await self.other.begin(intent)
        self.price = price
        await self.other.commit(intent, intent.tags, failed=False, hold=0.0)


async def test_a_stale_answer_is_dropped_in_the_tier_too():
    fleet = Fleet()

    async def call() -> Any:
        result = await fleet.get("7")
        await idle()
        return result

    await call()
    fleet.get.clear()
    assert await call() == 1
    assert fleet.runs == 1  # from the tier
    fleet.price = 2  # somebody writes around the cache
    assert [await call() for _ in range(3)] == [1, 2, 2]
    assert counts() == (2, 1)


async def test_a_write_of_another_process_explains_a_difference_before_its_message_arrives():
    fleet = Fleet()
    await fleet.get("7")
    fleet.memory.cut()
    await fleet.write("7", 2)
    assert await fleet.get("7") == 1  # within the bound of staleness
    await idle()
    assert fleet.runs == 2
    assert counts() == (0, 0)
    fleet.memory.reconnect(is_lost=False)
    assert await fleet.get("7") == 2
