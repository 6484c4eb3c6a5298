"""Ttls that are set at run time: what becomes of stored results, of loads that run, and of the other processes."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    ConfigurationError,
    Read,
    Toolbox,
    Watch,
    Write,
    configure,
    get_ttl,
    set_ttl,
    testing,
    writing,
)
from agent_cache.integrations import wrap
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    testing.reset()
    with FakeClock() as clock:
        yield clock
    testing.reset()


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
def loads(request: pytest.FixtureRequest) -> Loads:
    return Loads(is_mutable=getattr(request, "param", False))


KINDS = pytest.mark.parametrize("loads", [False, True], ids=["plain", "copied"], indirect=True)


# What is stored


@KINDS
@pytest.mark.parametrize("ttl", [100, None, lambda _: 50.0, lambda _: None])
async def test_a_shorter_ttl_drops_what_is_stored(clock: FakeClock, name: str, ttl: Any, loads: Loads):
    tool = tool_of(loads, name, ttl=ttl)
    await tool()
    clock.advance(5)
    set_ttl(tool, 30)
    await tool()
    assert loads.count == 2
    clock.advance(29)
    await tool()
    assert loads.count == 2
    clock.advance(1)
    await tool()
    assert loads.count == 3


@KINDS
async def test_a_longer_ttl_prolongs_nothing_that_is_stored(clock: FakeClock, name: str, loads: Loads):
    """It was promised to be no older than that."""
    tool = tool_of(loads, name, ttl=10)
    await tool()
    set_ttl(tool, 100)
    clock.advance(10)
    await tool()
    assert loads.count == 2
    clock.advance(99)
    await tool()
    assert loads.count == 2


async def test_none_goes_back_to_what_the_code_declares(clock: FakeClock, name: str, loads: Loads):
    tool = tool_of(loads, name, ttl=10)
    set_ttl(tool, 1000)
    assert get_ttl(tool) == 1000
    set_ttl(tool, None)
    assert get_ttl(tool) == 10
    await tool()
    clock.advance(10)
    await tool()
    assert loads.count == 2


@pytest.mark.parametrize("option", ["grace", "stale_if_error"])
async def test_grace_begins_at_the_new_end(clock: FakeClock, name: str, option: str, loads: Loads):
    fails = False

    @AgentCache(name, name=name, ttl=100, **{option: 5})
    async def tool() -> int:
        if fails:
            raise OSError("gone")
        return int(loads.next())

    set_ttl(tool, 10)
    await tool()
    fails = True
    clock.advance(14)
    assert await tool() == 1
    clock.advance(1)
    with pytest.raises(OSError, match="gone"):
        await tool()


async def test_jitter_never_lets_it_live_longer(clock: FakeClock, name: str, loads: Loads):
    tool = tool_of(loads, name, ttl=100, jitter=0.5, maxsize=None)
    set_ttl(tool, 60)
    for number in range(200):
        await tool(str(number))
    clock.advance(60)
    assert not any(tool.contains(str(number)) for number in range(200))
    for number in range(200):
        await tool(str(number))
    clock.advance(30)
    assert all(tool.contains(str(number)) for number in range(200))


async def test_what_a_function_refuses_is_not_stored_under_a_bound(clock: FakeClock, name: str, loads: Loads):
    lives = {"never": 0.0, "short": 5.0, "long": 500.0, "ever": None}

    @AgentCache(name, name=name, ttl=lambda result: lives[result])
    async def tool(key: str) -> str:
        loads.next()
        return key

    assert get_ttl(tool) is tool.__agent_cache__.declared.ttl
    set_ttl(tool, 50)
    assert get_ttl(tool) == 50
    for key in lives:
        await tool(key)
    assert [tool.contains(key) for key in lives] == [False, True, True, True]
    clock.advance(5)
    assert [tool.contains(key) for key in lives] == [False, False, True, True]
    clock.advance(45)
    assert not any(tool.contains(key) for key in lives)


async def test_what_was_made_of_the_results_is_dropped_with_a_shorter_ttl(clock: FakeClock, name: str):
    inner_loads, outer_loads = Loads(), Loads()
    inner = tool_of(inner_loads, name, ttl=100)

    @AgentCache(f"{name}outer", name=f"{name}outer", ttl=1000)
    async def outer() -> Any:
        await inner()
        return outer_loads.next()

    await outer()
    clock.advance(50)
    await outer()
    assert outer_loads.count == 1
    set_ttl(inner, 20)
    await outer()
    assert (inner_loads.count, outer_loads.count) == (2, 2)
    clock.advance(20)
    await outer()
    assert (inner_loads.count, outer_loads.count) == (3, 3)


async def test_a_ttl_at_run_time_does_not_store_what_depends_on_an_uncached_read(name: str, loads: Loads):
    """Only a ttl in the code says that such a result may be cached at all."""

    @AgentCache(f"{name}inner", name=f"{name}inner", ttl=lambda _: 0)
    async def inner() -> int:
        return 1

    @AgentCache(name, name=name)
    async def outer() -> Any:
        await inner()
        return loads.next()

    set_ttl(outer, 60)
    await outer()
    await outer()
    assert loads.count == 2


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


async def test_a_result_that_was_given_before_its_write_has_ended_does_not_outlive_the_new_ttl(name: str):
    tool = tool_of(Loads(), name, ttl=100)
    async with writing(name):
        await tool.set(7)
        set_ttl(tool, 10)
    assert not tool.contains()


# Which tools


async def test_it_is_found_by_its_name(clock: FakeClock, name: str):
    tool = tool_of(Loads(), name, ttl=100)
    set_ttl(name, timedelta(minutes=2))
    assert get_ttl(tool) == get_ttl(name) == 120
    set_ttl(name, None)
    assert get_ttl(name) == 100


async def test_a_tool_that_is_decorated_later_gets_it(name: str):
    former = tool_of(Loads(), name, ttl=100)
    set_ttl(former, 10)
    assert get_ttl(tool_of(Loads(), name, ttl=500)) == 10


async def test_all_tools_of_one_name_get_it(name: str):
    one, two = tool_of(Loads(), name, ttl=100), tool_of(Loads(), name, ttl=200)
    with pytest.raises(ConfigurationError, match="several tools are called"):
        get_ttl(name)
    set_ttl(one, 10)
    assert [get_ttl(one), get_ttl(two), get_ttl(name)] == [10, 10, 10]
    set_ttl(two, None)
    assert [get_ttl(one), get_ttl(two)] == [100, 200]


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


async def test_what_is_no_read_tool_is_refused(name: str):
    @AgentCacheInvalidator(name, name=f"{name}write")
    async def write() -> None: ...

    async def plain() -> None: ...

    tool_of(Loads(), name)
    for bad in (write, f"{name}write"):
        with pytest.raises(ConfigurationError, match="is no read tool"):
            set_ttl(bad, 10)
    bad_ones: list[Any] = [plain, 7, None, "", "nobody:knows", MemoryTier()]
    for each in bad_ones:
        for function in (get_ttl, lambda tool: set_ttl(tool, 10)):
            with pytest.raises(ConfigurationError):
                function(each)


async def test_a_function_that_goes_through_a_toolbox_is_not_called_a_write_tool(name: str):
    """It may be any kind of tool: the ttl is set by the name that the toolbox gives it."""

    async def get_price(key: int) -> int:
        return key

    wrapped = wrap(get_price, box=Toolbox({"get_price": Read("price:{key}")}, namespace=name))
    for function in (get_ttl, lambda tool: set_ttl(tool, 10)):
        with pytest.raises(ConfigurationError, match="give the tool that AgentCache decorates, or its name"):
            function(wrapped)
    await wrapped(1)
    set_ttl(f"{name}:get_price", 10)
    assert get_ttl(f"{name}:get_price") == 10


# Threads and forks


def test_nothing_outlives_a_ttl_that_another_thread_shortens(clock: FakeClock, name: str):
    """Loads of many threads while it is shortened and lengthened: what is there in the end has the last ttl."""
    tools = []
    for number in range(3):

        @AgentCache(name, name=f"{name}{number}", ttl=1000, maxsize=None)
        def tool(key: int) -> int:
            return key

        tools.append(tool)
    ends = threading.Event()

    def call(tool: Any) -> None:
        for key in itertools.count():
            tool(key % 5_000)
            if ends.is_set():
                return

    threads = [threading.Thread(target=call, args=(tool,)) for tool in tools]
    for thread in threads:
        thread.start()
    for number in range(60):
        for tool in tools:
            set_ttl(tool, 1000 if number % 2 else 10)
    for tool in tools:
        set_ttl(tool, 5)
    clock.advance(5)
    ends.set()
    for thread in threads:
        thread.join()
    for tool in tools:
        store = tool.__agent_cache__.store
        entries = list(map(store.peek, store.keys()))
        assert all(entry.expires <= clock.time + 5 for entry in entries)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_it_and_may_change_it(name: str):
    tool = tool_of(Loads(), name, ttl=100)
    set_ttl(tool, 10)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            before = get_ttl(tool)
            set_ttl(tool, None)
            code = 0 if (before, get_ttl(tool)) == (10, 100) else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert get_ttl(tool) == 10


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
    slow.tier.stall()
    set_ttl(tool, 10)
    assert [each.ttls for each in (there, away, slow)] == [{name: 10}, {}, {}]
    away.tier.reconnect()
    slow.tier.resume()
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


async def test_what_a_tier_has_of_before_is_no_older_either(clock: FakeClock, name: str, loads: Loads):
    server = MemoryServer()
    tool = tool_of(loads, name, ttl=100, remote_cache=MemoryTier(server))
    await tool()
    clock.advance(50)
    tool.clear()
    set_ttl(tool, 60)
    await tool()
    assert loads.count == 1
    clock.advance(9)
    await tool()
    assert loads.count == 1
    clock.advance(1)
    await tool()
    assert loads.count == 2


async def test_a_longer_ttl_counts_in_the_tier_for_what_is_loaded_from_now_on(
    clock: FakeClock, name: str, loads: Loads
):
    """Also for a call that was made before, whose request the tier has seen."""
    server = MemoryServer()
    tool = tool_of(loads, name, ttl=10, remote_cache=MemoryTier(server))
    await tool()
    set_ttl(tool, 1000)
    clock.advance(10)
    await tool()
    assert loads.count == 2
    clock.advance(500)
    tool.clear()
    await tool()
    assert loads.count == 2


async def test_a_server_that_is_away_gets_it_when_it_is_back(name: str):
    server = MemoryServer()
    tool = tool_of(Loads(), name, ttl=100, remote_cache=MemoryTier(server))
    server.stop()
    set_ttl(tool, 10)
    assert get_ttl(tool) == 10
    server.start()
    await tool()
    assert await server.ttls() == {name: 10}


async def test_a_configured_tier_passes_it_on_for_tools_without_one_of_their_own(name: str):
    server = MemoryServer()
    tool = tool_of(Loads(), name, ttl=100)
    with configure(remote=MemoryTier(server)):
        set_ttl(tool, 10)
    assert await server.ttls() == {name: 10}


async def test_every_tier_of_a_tool_gets_it_and_gives_it_up(name: str):
    near, far = MemoryServer(), MemoryServer()
    tool = tool_of(Loads(), name, ttl=100)
    with configure(backup=MemoryTier(near), remote=MemoryTier(far)):
        await tool()
        set_ttl(tool, 20)
        set_ttl(tool, 30)
        set_ttl(tool, None)
        assert (get_ttl(tool), await near.ttls(), await far.ttls()) == (100, {}, {})
        set_ttl(tool, 20)
        for server in (near, far):
            MemoryTier(server).publish_ttl(name, None)
        assert get_ttl(tool) == 100


async def test_names_that_no_tool_here_has_wait_for_one(name: str):
    server = MemoryServer()
    MemoryTier(server).publish_ttl(f"{name}later", 10)
    await tool_of(Loads(), name, ttl=100, remote_cache=MemoryTier(server))()
    assert get_ttl(tool_of(Loads(), f"{name}later", ttl=100)) == 10
