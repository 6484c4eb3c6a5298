"""Measures the cost of recording and replaying, beside agentcassette if installed: `benchmarks.recording.speed`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.commands import describe_machine, put_table
from benchmarks.rows import recording
from benchmarks.rows.recording import ORDER
from benchmarks.table import HEADINGS, markdown
from benchmarks.timing import QUICK, Effort, progress

CALLS = 100_000
_COLUMNS = ("cassette of", "calls", "size", "record", "load", "replay", "load and replay", "memory for both")


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Exit code 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording.speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds, and a tenth of the calls")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--page", action="store_true", help="also put the tables into docs/benchmarks.md")
    parser.add_argument("--large", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.large:
        package, count, what, path = options.large
        module = importlib.import_module("agent_cache.recording" if package == "agent_cache" else package)
        print(json.dumps(asyncio.run((_record if what == "record" else _replay)(module, int(count), path))))
        return 0
    rows = asyncio.run(recording.rows(QUICK if options.quick else Effort()))
    calls = CALLS // 10 if options.quick else CALLS
    packages = [name for name in ("agent_cache", "agentcassette") if find_spec(name) is not None]
    if len(packages) < 2:
        print("agentcassette is not installed and is left out", file=sys.stderr)
    facts = {}
    for name in packages:
        progress(f"{calls:,} calls with {name}")
        facts[name] = measure_large(name, calls)
    if options.json:
        print(json.dumps({"rows": [row.as_json() for row in rows], "large": facts}, indent=1))
    else:
        print(markdown(HEADINGS, [row.cells() for row in rows]))
    table = markdown(_COLUMNS, [_line(name, calls, found) for name, found in facts.items()])
    if not options.json:
        print(f"\n{table}")
    if options.page:
        put_table("large cassette", f"{describe_machine([name.replace('_', '-') for name in packages])}\n\n{table}")
    return 0 if all(row.holds for row in rows) else 1


def _line(name: str, calls: int, found: dict[str, float]) -> tuple[str, ...]:
    def each(*names: str) -> str:
        seconds = sum(found[one] for one in names)
        return f"{seconds:.2f} s, {seconds / calls * 1e6:.1f} us a call"

    return (
        name,
        f"{calls:,}",
        f"{found['bytes'] / 1e6:.0f} MB",
        each("record"),
        each("load"),
        each("replay"),
        each("load", "replay"),
        f"{found['peak'] / 1e6:.0f} MB",
    )


def measure_large(package: str, calls: int) -> dict[str, float]:
    """Record in one process, load and replay in another, so that each has its own peak of memory.

    Returns the seconds of processor time to `record`, `load` and `replay`, the `bytes` of the file, and the `peak` of
    memory that loading and replaying added to the process.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.cassette"
        facts: dict[str, float] = {}
        for what in ("record", "replay"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.recording.speed",
                "--large",
                package,
                str(calls),
                what,
                str(path),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
            facts |= json.loads(done.stdout)
        return facts | {"bytes": path.stat().st_size}


async def _record(module: Any, calls: int, path: str) -> dict[str, float]:
    get_order = _tool(module)
    start = process_time()
    with module.record(path):
        for number in range(calls):
            await get_order(f"order_{number}")
    return {"record": process_time() - start}


async def _replay(module: Any, calls: int, path: str) -> dict[str, float]:
    get_order = _tool(module)
    before, start = _peak(), process_time()
    block = module.replay(path)
    player = block.__enter__()
    loaded = process_time()
    for number in range(calls):
        await get_order(f"order_{number}")
    done = process_time()
    assert player.remaining == 0
    block.__exit__(None, None, None)
    return {"load": loaded - start, "replay": done - loaded, "peak": _peak() - before}


def _tool(module: Any) -> Any:
    async def get_order(order_id: str) -> Any:
        return ORDER

    return module.intercept(get_order, name="get_order")


def _peak() -> int:
    """The largest resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
