"""P3: a call that would wait on itself, directly or through others, runs the tool instead of waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.testing import MemoryTier
from tests.harness.gates import Gate, cancelled, idle, started

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
async def patience():
    """A deadlock is a failure here, not a test run that never ends."""
    async with asyncio.timeout(30):
        yield


async def at_once(call: Callable[[], Coroutine[Any, Any, int]]) -> int:
    first, _ = await asyncio.gather(call(), call())
    return first


@pytest.mark.parametrize("flight", ["process", "fleet"])
@pytest.mark.parametrize("how", [lambda call: call(), lambda call: asyncio.ensure_future(call()), at_once])
async def test_a_tool_may_call_itself_with_the_same_arguments(how: Callable[[Any], Any], flight: Any, clock: Any):
    """By itself, in a task of its own, or several times at once: the inner calls run, and wait in no ring."""
    depth = 0

    @AgentCache("order", remote_cache=MemoryTier(lease=999), remote=RemotePolicy(flight=flight))
    async def count() -> int:
        nonlocal depth
        depth += 1
        mine = depth
        return mine if mine >= 3 else await how(count)

    assert await count() >= 3  # by a clock that stands: the claim of the first load does not end


async def test_two_tools_may_call_each_other_in_one_task():
    """A(1) calls B(1), which calls A(1): the third call runs."""
    runs: list[str] = []

    @AgentCache("a")
    async def a(x: int) -> str:
        runs.append("a")
        return "end" if runs.count("a") == 2 else await b(x)

    @AgentCache("b")
    async def b(x: int) -> str:
        runs.append("b")
        return await a(x)

    assert await a(1) == "end"
    assert runs == ["a", "b", "a"]


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_tools_in_several_tasks_do_not_wait_in_a_ring(names: str):
    """A waits for B, B for C; C, about to wait for A, runs it."""
    gate = Gate()
    runs: list[str] = []

    def tool(name: str, following: str):
        @AgentCache(name, name=name)
        async def call(x: int) -> str:
            runs.append(name)
            await gate(name)
            return "end" if len(runs) > len(names) else await tools[following](x)

        return call

    tools = {name: tool(name, following) for name, following in zip(names, names[1:] + names[0], strict=True)}
    callers = [await started(tools[name](1)) for name in names]
    while gate.running:
        gate.running[0].returns(None)
        await idle()
    assert await asyncio.gather(*callers) == ["end"] * len(names)
    assert len(runs) == len(names) + 1


async def test_a_call_under_another_call_still_joins_a_stranger_flight():
    """Only a ring is broken up: what nobody above waits for is shared as ever."""
    gate = Gate()

    @AgentCache("inner")
    async def inner() -> str:
        return await gate()

    @AgentCache("outer")
    async def outer(x: int) -> str:
        return await inner()

    callers = [await started(inner()), await started(outer(1)), await started(outer(2))]
    assert len(gate.calls) == 1
    gate.last.returns("shared")
    assert await asyncio.gather(*callers) == ["shared"] * 3


async def test_who_takes_over_under_a_call_is_known_to_stand_there():
    """A waiter inside another call takes the flight over; the tool then calls what stands above it: no hang."""
    gate = Gate()
    runs: list[str] = []

    @AgentCache("inner")
    async def inner() -> str:
        runs.append("inner")
        await gate()
        return await outer()

    @AgentCache("outer")
    async def outer() -> str:
        runs.append("outer")
        return await inner() if runs.count("outer") == 1 else "end"

    leader = await started(inner())
    caller = await started(outer())
    await cancelled(leader)
    gate.running[0].returns(None)
    assert await caller == "end"
    assert runs == ["inner", "outer", "inner", "outer"]


async def test_a_read_that_writes_what_it_read_is_not_kept():
    """A write inside a load overlaps that load: its answer is returned and not stored."""
    version = 0

    @AgentCacheInvalidator("order")
    async def touch() -> None:
        nonlocal version
        version += 1

    @AgentCache("order")
    async def read_and_touch() -> int:
        seen = version
        await touch()
        return seen

    assert [await read_and_touch() for _ in range(3)] == [0, 1, 2]
