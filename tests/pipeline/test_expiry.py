"""How long results live: a ttl of each result, jitter, grace, and stale answers instead of errors."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import AgentCache, ConfigurationError, get_metrics, invalidate
from agent_cache.testing import JITTER, MemoryServer, MemoryTier
from tests.harness.gates import Gate, idle, started

pytestmark = pytest.mark.usefixtures("nothing_left")


class Broken(Exception):
    """What a tool raises."""


class Source:
    """A tool that counts its runs, and returns or raises what the test says."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0
        self.now: Any = None

        @AgentCache("order:{order_id}", **options)
        async def get_order(order_id: int) -> Any:
            self.runs += 1
            if isinstance(self.now, BaseException):
                raise self.now
            return (self.runs, order_id) if self.now is None else self.now

        self.get = get_order


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.agent_cache_event for record in caplog.records]


# A ttl of each result


async def test_a_function_gives_each_result_its_own_ttl(clock):
    source = Source(ttl=lambda result: result[1])
    for order_id in (10, 20):
        await source.get(order_id)
    clock.advance(9.9)
    assert (await source.get(10), await source.get(20)) == ((1, 10), (2, 20))
    clock.advance(0.2)
    assert (await source.get(10), await source.get(20)) == ((3, 10), (2, 20))
    clock.advance(10)
    assert await source.get(20) == (4, 20)


@pytest.mark.parametrize("life", [0, -1, 0.0, timedelta(0), timedelta(days=-1), float("-inf")])
async def test_a_result_without_life_is_returned_and_not_stored(life, caplog):
    source = Source(ttl=lambda _: life)
    assert [await source.get(1), await source.get(1)] == [(1, 1), (2, 1)]
    assert get_metrics()["uncached"] == 0, "as intended, so it is no failure"
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    "life", ["10", True, float("nan"), float("inf"), 1e300, [], pytest.param(Broken(), id="broken")], ids=repr
)
async def test_a_ttl_that_is_nonsense_is_counted_and_logged_once(life, caplog):
    def ttl(result: Any) -> Any:
        if isinstance(life, Broken):
            raise life
        return life

    source = Source(ttl=ttl)
    with caplog.at_level(logging.WARNING, "agent_cache"):
        assert [await source.get(1), await source.get(1)] == [(1, 1), (2, 1)]
    assert get_metrics()["uncached"] == 2
    assert warnings(caplog) == ["ttl= gave no duration, so the result was not cached"]


# Jitter


async def test_jitter_only_shortens(clock, monkeypatch):
    drawn = iter([0.0, 0.5, 1.0])
    monkeypatch.setattr(JITTER, "random", lambda: next(drawn))
    source = Source(ttl=100, jitter=0.2)
    for order_id in (1, 2, 3):
        await source.get(order_id)
    alive = []
    for moment in (79, 81, 91, 101):
        clock.advance(moment - clock.time + 1_000.0)
        runs = source.runs
        alive.append([order_id for order_id in (1, 2, 3) if await lives(source, order_id)])
        source.runs = runs
    assert alive == [[1, 2, 3], [1, 2], [1], []]


async def lives(source: Source, order_id: int) -> bool:
    """Whether a call is a hit. What it loads else is dropped again."""
    runs = source.runs
    source.now = Broken()
    try:
        await source.get(order_id)
    except Broken:
        return False
    finally:
        source.now = None
    return source.runs == runs


@pytest.mark.parametrize("option", ["jitter", "grace", "stale_if_error"])
def test_what_needs_a_ttl_is_refused_without(option):
    with pytest.raises(ConfigurationError, match=f"{option}.*add ttl"):
        AgentCache("order", **{option: 0.5})


# Grace


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def get_order(gate: Gate):
    @AgentCache("order:{order_id}", ttl=10, grace=30)
    async def get_order(order_id: int) -> Any:
        return await gate(order_id)

    return get_order


async def loaded(gate: Gate, call: Any, value: Any) -> None:
    task = await started(call)
    gate.last.returns(value)
    assert await task == value


async def test_within_its_grace_a_result_is_returned_at_once_and_loaded_again_once(clock, gate, get_order):
    await loaded(gate, get_order(1), "old")
    clock.advance(10)
    assert [await asyncio.create_task(get_order(1)) for _ in range(3)] == ["old"] * 3  # the reload outlives its caller
    await idle()
    assert [await get_order(1) for _ in range(3)] == ["old"] * 3
    assert len(gate.calls) == 2
    gate.last.returns("new")
    await idle()
    assert await get_order(1) == "new"
    clock.advance(9.9)
    assert await get_order(1) == "new"
    assert len(gate.calls) == 2


async def test_a_fresh_call_waits_for_the_tool_within_the_grace_too(clock, gate, get_order):
    await loaded(gate, get_order(1), "old")
    clock.advance(10)
    await loaded(gate, get_order.fresh(1), "new")
    assert await get_order(1) == "new"


async def test_a_reload_that_fails_is_counted_logged_once_and_tried_again(clock, gate, get_order, caplog):
    await loaded(gate, get_order(1), "old")
    clock.advance(10)
    for _ in range(2):
        assert await get_order(1) == "old"
        await idle()
        gate.last.raises(Broken())
        await idle()
    assert len(gate.calls) == 3
    metrics = get_metrics()
    assert (metrics["hits"], metrics["stale"], metrics["misses"], metrics["errors"]) == (2, 2, 3, 2)
    assert warnings(caplog) == ["refreshing an entry within its grace period failed"]


# Stale instead of an error


async def test_a_failed_load_is_replaced_by_what_expired_a_short_while_ago(clock, caplog):
    source = Source(ttl=10, stale_if_error=30)
    assert await source.get(1) == (1, 1)
    source.now = Broken()
    for seconds in (10, 29.9):
        clock.advance(seconds - clock.time + 1_000 + (10 if seconds > 10 else 0))
        assert await source.get(1) == (1, 1)
    clock.advance(0.2)
    with pytest.raises(Broken):
        await source.get(1)
    metrics = get_metrics()
    assert (metrics["misses"], metrics["errors"], metrics["stale"], metrics["hits"]) == (4, 3, 2, 0)
    assert warnings(caplog) == ["a load failed, so an expired result was returned"]


# With a tier


async def test_with_a_tier_the_local_copy_is_served_and_the_tier_is_asked_behind_it(clock):
    """Another process has reloaded it already, so the tool does not run again."""
    server = MemoryServer()
    here, there = (Source(remote_cache=MemoryTier(server), name="get_order", ttl=10, grace=30) for _ in range(2))
    assert await here.get(1) == (1, 1)
    clock.advance(10)
    there.now = "new"
    assert await there.get.fresh(1) == "new"
    assert await here.get(1) == (1, 1)
    await idle()
    assert await here.get(1) == "new"
    assert here.runs == 1


# Inherited by other reads


@pytest.mark.parametrize("option", ["grace", "stale_if_error"])
@pytest.mark.parametrize("outer_ttl", [None, 60])
async def test_what_is_made_of_an_expired_answer_is_not_stored(clock, option, outer_ttl):
    """It has expired already; what is made of the next one is stored, and dropped with it."""
    source, pages = Source(ttl=10, **{option: 30}), 0

    @AgentCache("page", ttl=outer_ttl)
    async def page() -> Any:
        nonlocal pages
        pages += 1
        return pages, await source.get(1)

    assert await page() == (1, (1, 1))
    clock.advance(10)
    if option == "stale_if_error":
        source.now = Broken()
    assert await page() == (2, (1, 1))
    await idle()
    source.now = None
    new = await page()
    assert new[0] == 3
    assert new[1] != (1, 1)
    assert await page() == new
    await invalidate("order:1")
    assert (await page())[0] == 4
