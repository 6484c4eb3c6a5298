"""What `import agent_cache` costs a process that starts."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

from benchmarks.table import Row
from benchmarks.timing import Effort, Figure, progress

LIMIT = 0.1


def _seconds(statement: str) -> float:
    start = perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)  # noqa: S603 - our own interpreter, literal statements
    return perf_counter() - start


async def rows(effort: Effort) -> list[Row]:
    statements = {
        "nothing": "pass",
        "asyncio": "import asyncio",
        "ours": "import asyncio, agent_cache",
        "alone": "import agent_cache",
    }
    seconds: dict[str, list[float]] = {name: [] for name in statements}
    rounds = max(5, effort.rounds // 2)
    for statement in statements.values():
        _seconds(statement)  # byte code is written once
    for round_ in range(rounds):
        progress("import time", round_, rounds)
        for name, statement in statements.items():
            seconds[name].append(_seconds(statement))
    progress("import time", rounds, rounds)
    figures = {name: Figure(tuple(values)) for name, values in seconds.items()}
    return [
        Row("import", "import agent_cache", figures["alone"].above(figures["nothing"]), "s", LIMIT, "wall clock over `pass`"),
        Row("import", "the same, asyncio already there", figures["ours"].above(figures["asyncio"]), "s", LIMIT),
    ]
