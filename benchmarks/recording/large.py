"""One large cassette in a process of its own: `python -m benchmarks.recording.large PACKAGE CALLS`.

Prints one line of JSON: seconds of processor time to record, to load, and to replay; size of the file; the most memory
that loading and replaying took on top of what the process had before. `PACKAGE` is agent_cache or agentcassette.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.rows.recording import ORDER


def measured(package: str, calls: int) -> dict[str, float]:
    """Record in one process; load and replay in another one, so that its peak is its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.cassette"
        facts: dict[str, float] = {}
        for what in ("record", "replay"):
            command = [sys.executable, "-m", __spec__.name, package, str(calls), what, str(path)]
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
    """The most resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(argv: list[str]) -> None:
    package, calls, *rest = argv
    module: Any = importlib.import_module("agent_cache.recording" if package == "agent_cache" else package)
    if not rest:
        print(json.dumps(measured(package, int(calls))))
        return
    what, path = rest
    print(json.dumps(asyncio.run((_record if what == "record" else _replay)(module, int(calls), path))))


if __name__ == "__main__":
    main(sys.argv[1:])
