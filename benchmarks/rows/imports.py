"""What `import agent_cache` costs a process that starts."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from benchmarks.table import Row
from benchmarks.timing import Effort, Figure, progress

LIMIT = 0.1


def _seconds(statement: str, byte_code: str) -> float:
    """Processor time of a new interpreter: what it waits for on a busy machine is not counted."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code, "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


async def rows(effort: Effort) -> list[Row]:
    statements = {
        "nothing": "pass",
        "asyncio": "import asyncio",
        "ours": "import asyncio, agent_cache",
        "alone": "import agent_cache",
    }
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
    figures = {name: Figure(tuple(values)) for name, values in seconds.items()}
    return [
        Row(
            "import",
            "import agent_cache",
            figures["alone"].above(figures["nothing"]),
            "s",
            LIMIT,
            "processor time over `pass`",
        ),
        Row("import", "the same, asyncio already there", figures["ours"].above(figures["asyncio"]), "s", LIMIT),
    ]
