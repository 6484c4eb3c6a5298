"""Ttls that are set at run time: what becomes of stored results, of loads that run, and of the other processes."""

from __future__ import annotations

import asyncio
import itertools
import math
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import AgentCache, ConfigurationError, Read, Toolbox, Watch, Write, get_ttl, set_ttl
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier

_numbers = itertools.count()


pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def name() -> str:
    return f"ttl{next(_numbers)}"


class Loads:
    """A tool's loads: a number for each, plain or in a dict, which is copied."""

    def __init__(self, *, is_mutable: bool = False) -> None:
        self.count = 0
        self.is_mutable = is_mutable

    def next(self) -> Any:
        self.count += 1
        return {"load": self.count} if self.is_mutable else self.count


def tool_of(loads: Loads, name: str, **options: Any) -> Any:
    @AgentCache(name, name=name, **options)
    async def tool(key: str = "a") -> Any:
        return loads.next()

    return tool


@pytest.fixture
def loads() -> Loads:
    return Loads()


# What is stored


@pytest.mark.parametrize("is_mutable", [False, True])
@pytest.mark.parametrize(
    ("ttl", "now", "counts"),
    [
        *((ttl, 30, [2, 2, 2, 3]) for ttl in (100, None, lambda _: 50.0, lambda _: None)),
        (10, 100, [1, 2, 2, 2]),  # a longer one prolongs nothing that is stored: it was promised to be no older
    ],
)
async def test_a_shorter_ttl_drops_what_is_stored_and_a_longer_one_prolongs_nothing(
    clock: FakeClock, name: str, ttl: Any, now: float, counts: list[int], is_mutable: bool
):
    loads = Loads(is_mutable=is_mutable)
    tool = tool_of(loads, name, ttl=ttl)
    await tool()
    set_ttl(tool, now)
    clock.advance(5)
    found = []
    for seconds in (0, 5, 24, 1):
        clock.advance(seconds)
        await tool()
        found.append(loads.count)
    assert found == counts


# Loads that run


@pytest.mark.parametrize(("ttl", "lives"), [(10, 0), (1000, 1000), (None, 100)])
async def test_a_load_that_runs_is_stored_with_the_ttl_of_now_unless_that_is_shorter(
    clock: FakeClock, name: str, ttl: float | None, lives: float
):
    running, may_end = asyncio.Event(), asyncio.Event()

    @AgentCache(name, name=name, ttl=100)
    async def tool() -> int:
        running.set()
        await may_end.wait()
        return 1

    call = asyncio.create_task(tool())
    await running.wait()
    set_ttl(tool, ttl)
    may_end.set()
    assert await call == 1
    if lives:
        clock.advance(lives - 1)
        assert tool.contains()
        clock.advance(1)
    assert not tool.contains()


# Bad input


@pytest.mark.parametrize(
    "ttl", [0, -1, math.nan, math.inf, -math.inf, "60", True, 1e300, timedelta(0), [60], lambda _: 1]
)
async def test_a_ttl_that_is_none_changes_nothing(name: str, ttl: Any):
    tool = tool_of(Loads(), name, ttl=100)
    await tool()
    with pytest.raises(ConfigurationError, match="set_ttl: the ttl of"):
        set_ttl(tool, ttl)
    assert get_ttl(tool) == 100
    assert tool.contains()


# In a fleet


class Process:
    """Another process of a fleet, as far as its tier shows what it knows."""

    def __init__(self, server: MemoryServer) -> None:
        self.tier = MemoryTier(server)
        self.ttls: dict[str, float] = {}
        self.end = self.tier.follow_ttls(lambda ttls: setattr(self, "ttls", dict(ttls)))


async def test_every_process_learns_it_at_once_or_when_it_starts_or_is_back(name: str):
    server = MemoryServer()
    tool = tool_of(Loads(), name, ttl=100, remote_cache=MemoryTier(server))
    there, away, slow = Process(server), Process(server), Process(server)
    away.tier.cut()
    slow.tier.cut()
    set_ttl(tool, 10)
    assert [each.ttls for each in (there, away, slow)] == [{name: 10}, {}, {}]
    away.tier.reconnect()
    slow.tier.reconnect(is_lost=False)
    assert [each.ttls for each in (away, slow, Process(server))] == [{name: 10}] * 3
    away.tier.cut()
    set_ttl(tool, None)
    assert [each.ttls for each in (there, away, slow)] == [{}, {name: 10}, {}]
    away.tier.reconnect()
    assert away.ttls == {}
    there.end()
    set_ttl(tool, 20)
    assert there.ttls == {}


async def test_what_another_process_sets_counts_here(clock: FakeClock, name: str, loads: Loads):
    server = MemoryServer()
    tool = tool_of(loads, name, ttl=100, remote_cache=MemoryTier(server))
    await tool()
    clock.advance(5)
    other = MemoryTier(server)
    other.publish_ttl(name, 10)
    assert get_ttl(tool) == 10
    clock.advance(5)
    await tool()
    assert loads.count == 2
    other.publish_ttl(name, None)
    assert get_ttl(tool) == 100


async def test_tools_of_a_toolbox_from_their_first_call_on(clock: FakeClock, name: str, loads: Loads):
    box = Toolbox({"get_*": Read(name, ttl=100), "put": Write(name), "now": Watch()}, namespace=name)

    async def run() -> Any:
        return loads.next()

    with pytest.raises(ConfigurationError, match="of one that a toolbox has called"):
        set_ttl(f"{name}:get_it", 10)
    await box.call("get_it", {}, run)
    assert get_ttl(f"{name}:get_it") == 100
    set_ttl(f"{name}:get_it", 10)
    assert get_ttl(f"{name}:get_it") == 10
    await box.call("get_it", {}, run)
    box.call_sync("get_it", {}, loads.next)
    clock.advance(9)
    await box.call("get_it", {}, run)
    assert loads.count == 3
    clock.advance(1)
    await box.call("get_it", {}, run)
    box.call_sync("get_it", {}, loads.next)
    assert loads.count == 5
    await box.call("now", {}, run)
    for bad in ("put", "now", "unknown"):
        with pytest.raises(ConfigurationError):
            set_ttl(f"{name}:{bad}", 10)
