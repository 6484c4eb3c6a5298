"""Rows of sessions: the first call of a tool in one, and many at once."""

from __future__ import annotations

import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import process_time, thread_time
from typing import Final

from agent_cache import AgentCache, AgentCacheSession, testing
from benchmarks.rows.calls import WITHOUT_LIMITS, unlimited_session
from benchmarks.table import Row
from benchmarks.timing import Effort, Spread, measure, progress
from benchmarks.workload import TTL, USER, scalar_tool

Cached = Callable[[str], Awaitable[object]]

_numbers = itertools.count()

SESSIONS: Final = 1_000
TOOLS: Final = 20
TOOLS_OF_A_SESSION: Final = 5
CALLS_OF_A_SESSION: Final = 50
IDS: Final = 5
"""Of a tool in a session: so each is read twice, and half of the calls are hits."""


def cached_tools(count: int, root: str) -> list[Cached]:
    return [AgentCache(f"{root}:{{user_id}}", ttl=TTL, maxsize=None)(scalar_tool()) for _ in range(count)]


async def rows(effort: Effort) -> list[Row]:
    """The first call of a tool in a session, opening a session with options, and many sessions at once."""
    tools = cached_tools(TOOLS, "first")
    for tool in tools:
        await tool(USER)

    async def first_calls(n: int) -> float:
        seconds = 0.0
        rest = n
        while rest > 0:
            async with unlimited_session():
                start = thread_time()
                for tool in tools[:rest]:
                    await tool(USER)
                seconds += thread_time() - start
            rest -= len(tools)
        return seconds

    async def plain_calls(n: int) -> float:
        start = thread_time()
        for number in range(n):
            await tools[number % TOOLS](USER)
        return thread_time() - start

    async def open_and_close(n: int) -> float:
        start = thread_time()
        for _ in range(n):
            async with AgentCacheSession(max_tool_repeats=3, max_execution_depth=50, on_loop="warn"):
                pass
        return thread_time() - start

    figures = await measure(
        {"first": first_calls, "plain": plain_calls, "open": open_and_close}, effort, title="sessions of many tools"
    )
    first = figures["first"].above(figures["plain"]).scaled(1e6)
    calls, kilobytes = await many_sessions(effort)
    crowd = f"{TOOLS} tools, {TOOLS_OF_A_SESSION} of them in a session, half of the calls are hits"
    return [
        Row("sessions", "first call of a tool in a session", first, "us", 8.0, "a hit; over a hit without sessions"),
        Row("sessions", "the same, memory", await first_call_bytes(tools), "B", 2_000.0, "while the session is open"),
        Row("sessions", "opening with options", figures["open"].spread.scaled(1e6), "us", 4.0, "three; and closing"),
        Row("sessions", f"{SESSIONS:,} at once, a call", calls, "us", 40.0, f"{crowd}; collections included"),
        Row(
            "sessions",
            f"{SESSIONS:,} at once, each",
            kilobytes,
            "B",
            10_000.0,
            "while it is open; results not included",
        ),
    ]


async def first_call_bytes(tools: list[Cached]) -> Spread:
    """What a session allocates for the first hit of each tool."""
    sizes = []
    with traced():
        for _ in range(5):
            async with unlimited_session():
                await tools[0](USER)
                before = traced_bytes()
                for tool in tools[1:]:
                    await tool(USER)
                sizes.append((traced_bytes() - before) / (len(tools) - 1))
    return Spread.of(sizes)


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def many_sessions(effort: Effort) -> tuple[Spread, Spread]:
    """Microseconds of a call, and bytes of a session, in `SESSIONS` sessions that are open at once."""
    microseconds, sizes = [], []
    rounds = max(1, effort.rounds // 15)
    for round_ in range(rounds):
        progress(f"{SESSIONS:,} sessions at once", round_, rounds)
        testing.reset()
        tools = cached_tools(TOOLS, "crowd")
        gc.collect()
        start = process_time()
        async with open_sessions(tools, SESSIONS):
            microseconds.append((process_time() - start) / (SESSIONS * CALLS_OF_A_SESSION) * 1e6)
    progress("sessions at once", rounds, rounds)
    tools, few = cached_tools(TOOLS, "crowd"), SESSIONS // 10
    # The outer sessions have read and stored all that the inner ones read, so only the inner ones' own is counted.
    async with open_sessions(tools, few, shared=True):
        with traced():
            before = traced_bytes()
            async with open_sessions(tools, few, shared=True):
                sizes.append((traced_bytes() - before) / few)
    return Spread.of(microseconds), Spread.of(sizes)


@asynccontextmanager
async def open_sessions(tools: list[Cached], count: int, *, shared: bool = False) -> AsyncIterator[None]:
    """Sessions that have made all their calls and stay open inside the block. `shared`: they read the same keys."""
    close, ready = asyncio.Event(), asyncio.Semaphore(0)

    async def session(number: int) -> None:
        mine = [tools[(number + step) % len(tools)] for step in range(TOOLS_OF_A_SESSION)]
        owner = "user" if shared else f"user_{number}"
        async with AgentCacheSession(max_execution_depth=WITHOUT_LIMITS, on_loop="warn"):
            for call in range(CALLS_OF_A_SESSION):
                turn, tool = divmod(call, TOOLS_OF_A_SESSION)
                await mine[tool](f"{owner}_{turn % IDS}")
                await asyncio.sleep(0)
            ready.release()
            await close.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(session(number))
        for _ in range(count):
            await ready.acquire()
        try:
            yield
        finally:
            close.set()
