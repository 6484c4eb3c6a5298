"""Rows of size: many sessions, many tools, many entries, several threads."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any, Final

from agent_cache import AgentCache, AgentCacheSession, get_metrics, testing
from benchmarks.rows.calls import WITHOUT_LIMITS, unlimited_session
from benchmarks.table import Row
from benchmarks.timing import Effort, Spread, gc_off, measure, progress
from benchmarks.workload import TTL, USER, ScalarTool, scalar_tool

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


async def sessions(effort: Effort) -> list[Row]:
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


MANY_TOOLS: Final = 10_000
HIDDEN: Final = 400
PARAMETERS: Final = (
    "order_id: str",
    "user_id: str, limit: int = 10",
    "query: str, page: int = 1, size: int = 20",
    "path: str, *, deep: bool = False",
)
TYPES_MODULE: Final = (
    "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n{when}:\n    from decimal import Decimal\n"
)


async def tools(effort: Effort) -> list[Row]:
    """Programs with many tools: decoration, `get_metrics()`, and annotations that exist only for a type checker."""
    source = "\n".join(
        f"async def tool_{number}({PARAMETERS[number % len(PARAMETERS)]}) -> str:\n    return 'x'"
        for number in range(MANY_TOOLS)
    )
    first = [parameters.partition(":")[0] for parameters in PARAMETERS]
    progress(f"{MANY_TOOLS:,} tools")
    testing.reset()
    with module_of(source) as functions:
        with gc_off():
            start = thread_time()
            decorated = [
                AgentCache(f"resource{number}:{{{first[number % len(first)]}}}", ttl=TTL)(function)
                for number, function in enumerate(functions)
            ]
            seconds = (thread_time() - start) / MANY_TOOLS
        for tool in decorated:
            await tool(USER)
    metrics = []
    for _ in range(5):
        start = thread_time()
        get_metrics()
        metrics.append(thread_time() - start)
    if (counted := get_metrics()["misses"]) != MANY_TOOLS:
        message = f"{MANY_TOOLS} tools were called once each, and {counted} misses counted"
        raise AssertionError(message)
    del decorated, functions
    testing.reset()
    hidden, plain = [], []
    for _ in range(max(1, min(3, effort.rounds // 7))):
        plain.append(decoration_seconds("if True"))
        hidden.append(decoration_seconds("if TYPE_CHECKING"))
    note = f"{Spread.of(plain).median:.2f} s with the same types imported"
    return [
        Row("tools", f"decoration, each of {MANY_TOOLS:,}", Spread.of([seconds * 1e6]), "us", 200.0),
        Row("tools", f"get_metrics(), {MANY_TOOLS:,} tools", Spread.of(metrics).scaled(1e3), "ms", 60.0),
        Row("tools", f"decorating {HIDDEN} tools with types under TYPE_CHECKING", Spread.of(hidden), "s", 0.5, note),
    ]


@contextmanager
def module_of(source: str) -> Iterator[list[Any]]:
    """The functions of a module with this source, which has a file as a program's module does."""
    name = f"many_tools_{next(_numbers)}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(source, encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            invalidate_caches()
            module = import_module(name)
            yield [value for key, value in vars(module).items() if key.startswith("tool_")]
        finally:
            sys.path.remove(folder)
            sys.modules.pop(name, None)


def decoration_seconds(when: str) -> float:
    """Decorate tools whose annotations name a class that is imported only `when`."""
    source = TYPES_MODULE.format(when=when) + "\n".join(
        f"async def tool_{number}(order_id: str, least: Decimal | None = None) -> dict[str, Decimal]:\n    return {{}}"
        for number in range(HIDDEN)
    )
    with module_of(source) as functions, gc_off():
        start = thread_time()
        kept = [AgentCache("order:{order_id}", ttl=TTL)(function) for function in functions]
        seconds = thread_time() - start
    if len(kept) != HIDDEN:
        raise AssertionError(len(kept))
    return seconds


THREADS: Final = 2
MISSES_OF_A_THREAD: Final = 20_000


async def threads(effort: Effort) -> list[Row]:
    """Two threads, each with an event loop, that miss at full speed: wall time, since what they do is wait."""
    rounds = max(3, effort.rounds // 8)
    seconds: dict[str, list[float]] = {"bare": [], "one": [], "two": []}
    for round_ in range(rounds):
        progress("threads that miss", round_, rounds)
        with gc_off():
            seconds["bare"].append(missing([scalar_tool()]))
            seconds["one"].append(missing([_card()]))
            tool = _card()
            seconds["two"].append(missing([tool] * THREADS))
    progress("threads that miss", rounds, rounds)
    alone = f"one thread alone {Spread.of(seconds['one']).median * 1e6:.1f} us"
    over = [two - bare for two, bare in zip(seconds["two"], seconds["bare"], strict=True)]
    what = "a miss in each of two threads at full speed"
    return [
        Row(
            "threads",
            what,
            Spread.of(over).scaled(1e6),
            "us",
            8.0,
            f"wall time over the bare tool, half of it the other's turn; {alone}",
        )
    ]


def _card() -> ScalarTool:
    return AgentCache("card", ttl=TTL)(scalar_tool())


def missing(tools: list[ScalarTool]) -> float:
    """Wall seconds that a thread waits for one of its misses, with one thread for each tool."""
    start = threading.Barrier(len(tools) + 1)

    async def miss(tool: ScalarTool, name: str) -> None:
        keys = [f"{name}_{number}" for number in range(MISSES_OF_A_THREAD)]
        start.wait()
        for key in keys:
            await tool(key)

    workers = [
        threading.Thread(target=lambda tool=tool, name=f"{number}": asyncio.run(miss(tool, name)))
        for number, tool in enumerate(tools)
    ]
    for worker in workers:
        worker.start()
    start.wait()
    began = perf_counter()
    for worker in workers:
        worker.join()
    return (perf_counter() - began) / MISSES_OF_A_THREAD


async def collection(effort: Effort) -> list[Row]:
    """The longest pause by a garbage collection while a cache grows to half as many entries again as `entries`."""
    entries = effort.entries * 3 // 2
    pauses: list[float] = []
    for round_ in range(3 if effort.rounds > 3 else 1):
        progress(f"growing to {entries:,} entries", round_, 3)
        pauses.append(await longest_collection(entries))
    progress("growing", 3, 3)
    what = f"longest collection while growing to {entries:,} entries"
    return [Row("collection", what, Spread.of(pauses).scaled(1e3), "ms", 60.0, "processor time; entity tags")]


async def longest_collection(entries: int) -> float:
    tool = AgentCache("card:{user_id}", ttl=TTL, maxsize=None)(scalar_tool())
    longest = started = 0.0

    def watch(phase: str, info: object) -> None:
        nonlocal longest, started
        if phase == "start":
            started = thread_time()
        else:
            longest = max(longest, thread_time() - started)

    gc.collect()
    gc.callbacks.append(watch)
    try:
        for number in range(entries):
            await tool(f"user_{number:08d}")
    finally:
        gc.callbacks.remove(watch)
    return longest
