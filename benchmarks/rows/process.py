"""Rows of a whole process: bytes per entry, and the time of `import agent_cache`."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agent_cache import AgentCache
from benchmarks.table import Row
from benchmarks.timing import Effort, Figure, Spread, progress
from benchmarks.workload import TTL, ScalarTool

Decorate = Callable[[ScalarTool], Callable[[str], Awaitable[object]]]

FIRST = 20_000
MARKS = 9
IMPORT_LIMIT = 0.1
MEMORY_CASES: tuple[tuple[str, str, float | None, float], ...] = (
    ("static tag", "card", TTL, 200.0),
    ("entity tag", "card:{user_id}", TTL, 500.0),
)


async def memory(effort: Effort) -> list[Row]:
    """Memory of a local entry over its key and value."""
    progress("bytes per entry")
    note = f"over key and value; {marks()[0]:,} to {marks()[-1]:,} entries"
    table = []
    for name, tag, ttl, limit in MEMORY_CASES:
        spread = await bytes_per_entry(AgentCache(resource=tag, ttl=ttl, maxsize=None))
        table.append(Row("memory", f"local entry, {name}", spread, "B", limit, note))
    return table


def marks() -> Sequence[int]:
    """Counts of entries at which the size is read: one doubling in equal steps."""
    return [FIRST + FIRST * step // (MARKS - 1) for step in range(MARKS)]


async def bytes_per_entry(decorate: Decorate) -> Spread:
    """What a cache allocates for each entry besides key and value: median, smallest and largest over one doubling.

    Keys and values are made before `tracemalloc` starts, so only the allocations of the cache are counted. Tables grow
    in steps, so the size is read at several counts.
    """
    last = marks()[-1]
    keys = [f"user_{number:08d}" for number in range(last)]
    values = {key: f"card {key}" for key in keys}

    async def get_card(user_id: str) -> str:
        return values[user_id]

    tool = decorate(get_card)
    await tool(keys[0])  # allocates what is shared by all entries
    sizes: list[float] = []
    gc.collect()
    tracemalloc.start()
    try:
        done = 1
        for mark in marks():
            for key in keys[done:mark]:
                await tool(key)
            done = mark
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0] / mark)
    finally:
        tracemalloc.stop()
    middle = sorted(sizes)[len(sizes) // 2]
    return Spread(middle, min(sizes), max(sizes))


def _seconds(statement: str, byte_code: str) -> float:
    """Processor time of a new interpreter; waiting on a busy machine does not count."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code, "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def _import_figures(statements: Mapping[str, str], effort: Effort) -> dict[str, Figure]:
    """Seconds of a new interpreter for each statement."""
    seconds: dict[str, list[float]] = {name: [] for name in statements}
    rounds = max(5, effort.rounds // 5)
    with tempfile.TemporaryDirectory() as byte_code:
        for statement in statements.values():
            _seconds(statement, byte_code)  # compiled once, as an installer does
        for round_ in range(rounds):
            progress("import time", round_, rounds)
            for name, statement in statements.items():
                seconds[name].append(_seconds(statement, byte_code))
    progress("import time", rounds, rounds)
    return {name: Figure(tuple(values)) for name, values in seconds.items()}


async def imports(effort: Effort) -> list[Row]:
    """`import agent_cache` in a new process."""
    statements = {
        "nothing": "pass",
        "asyncio": "import asyncio",
        "ours": "import asyncio, agent_cache",
        "alone": "import agent_cache",
    }
    figures = _import_figures(statements, effort)
    return [
        Row(
            "import",
            "import agent_cache",
            figures["alone"].above(figures["nothing"]),
            "s",
            IMPORT_LIMIT,
            "processor time over `pass`",
        ),
        Row("import", "the same, asyncio already there", figures["ours"].above(figures["asyncio"]), "s", IMPORT_LIMIT),
    ]
