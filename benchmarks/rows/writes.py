"""Rows of writes: what a local write costs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any, Final

from agent_cache import AgentCache, AgentCacheInvalidator
from benchmarks.rows.calls import in_session, unlimited_session
from benchmarks.rows.recording import ORDER
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, Spread, calling, calling_each, gc_off, measure, progress
from benchmarks.workload import TTL, USER, new_ids, scalar_tool

AsyncTool = Callable[[str], Coroutine[Any, Any, Any]]

MANY_TOOLS: Final = 50
ENTRIES_OF_A_TOOL: Final = 100
READERS: Final = 1_000

RECORD: Final[dict[str, Any]] = {**ORDER, "items": ORDER["items"][:4]}
"""0.8 KB of JSON."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Readers:
    """Tools that read one root, and no other tool does; each holds entries of other entities than `USER`."""

    root: str
    tools: Sequence[Callable[[str], Awaitable[object]]]

    @classmethod
    async def of(cls, count: int) -> Readers:
        root = f"written{next(_numbers)}"
        tools = [AgentCache(f"{root}:{{user_id}}", ttl=TTL)(scalar_tool()) for _ in range(count)]
        for tool in tools:
            for number in range(ENTRIES_OF_A_TOOL):
                await tool(f"other_{number}")
        return cls(root, tools)

    def write(self, result: object = None) -> AsyncTool:
        """A write of one entity of the root."""
        return AgentCacheInvalidator(f"{self.root}:{{user_id}}")(write_tool(result))


def write_tool(result: object = None) -> AsyncTool:
    """A new undecorated tool without an effect."""

    async def write(user_id: str) -> Any:
        return result

    return write


async def writes(effort: Effort) -> list[Row]:
    """One write of one entity, over the bare tool; and one that many sessions have read."""
    one, many, held, read = [await Readers.of(count) for count in (1, MANY_TOOLS, MANY_TOOLS, 1)]
    figures = await measure(
        {
            "bare": calling(write_tool(), USER),
            "bare record": calling_each(write_tool(RECORD), new_ids("w")),
            "one": calling(one.write(), USER),
            "many": calling(many.write(), USER),
            "held": dropping(held),
            "session": in_session(calling_each(read.write(RECORD), new_ids("w"))),
        },
        effort,
        title="writes",
    )

    def over(base: str, name: str) -> Spread:
        return figures[name].above(figures[base]).scaled(1e6)

    many_drops = f"the same, {MANY_TOOLS} reading tools with an entry each"
    session_note = "trace and loop guard on, a new entity each time, 1 reading tool"
    return [
        Row("write", "local write, 1 reading tool", over("bare", "one"), "us", 8.0, "no entry of that entity"),
        Row("write", f"local write, {MANY_TOOLS} reading tools", over("bare", "many"), "us", 20.0, "likewise"),
        Row("write", many_drops, over("bare", "held"), "us", None, "all dropped; for scale"),
        Row("write", "in a session, 0.8 KB result", over("bare record", "session"), "us", 25.0, session_note),
        await session_readers(effort),
    ]


def dropping(readers: Readers) -> Sample:
    """Writes of an entity that every tool has an entry of; the reads before each write are not timed."""
    write = readers.write()

    async def run(n: int) -> float:
        seconds = 0.0
        for _ in range(n):
            for tool in readers.tools:
                await tool(USER)
            start = thread_time()
            await write(USER)
            seconds += thread_time() - start
        return seconds

    return run


async def session_readers(effort: Effort) -> Row:
    """One write of an entity that a session-scoped tool has an entry of in each of `READERS` open sessions."""
    root = f"written{next(_numbers)}"
    executions = 0

    async def count(user_id: str) -> str:
        nonlocal executions
        executions += 1
        return user_id

    tool = AgentCache(f"{root}:{{user_id}}", scope="session", ttl=TTL)(count)
    write = AgentCacheInvalidator(f"{root}:{{user_id}}")(write_tool())
    rounds = max(3, effort.rounds // 8)
    seconds: list[float] = []
    for round_ in range(rounds):
        progress(f"a write with {READERS:,} sessions that have read", round_, rounds)
        written = asyncio.Event()
        waiting = asyncio.Semaphore(0)

        async def read(written: asyncio.Event = written, waiting: asyncio.Semaphore = waiting) -> None:
            async with unlimited_session():
                await tool(USER)
                waiting.release()
                await written.wait()
                await tool(USER)

        with gc_off():
            executions = 0
            async with asyncio.TaskGroup() as group:
                for _ in range(READERS):
                    group.create_task(read())
                for _ in range(READERS):
                    await waiting.acquire()
                start = thread_time()
                await write(USER)
                seconds.append(thread_time() - start)
                written.set()
        if executions != 2 * READERS:
            message = f"{READERS} sessions read before and after a write: {executions} executions"
            raise AssertionError(message)
    progress("session readers", rounds, rounds)
    what = f"one write, {READERS:,} sessions hold an entry of it"
    return Row("write", what, Spread.of(seconds).scaled(1e3), "ms", 1.0, "session-scoped; they read again, checked")
