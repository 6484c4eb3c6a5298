"""What `agent-cache mcp` costs over stdio: a tool call through the relay, beside the same call without it.

    python -m benchmarks.relay [--rounds 40] [--host sdk|lines]

The server is one of the MCP SDK, in a process of its own, and so is the relay. The host is the SDK's client, or one
that writes and reads lines, whose own time is a tenth of that. Rounds of direct calls, misses, hits and direct calls
again take turns, and each ratio is one of the same round; the table has their medians. `start` is what comes before the
first answer, beside the server's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

CALLS: Final = 40
"""Calls in a round, of each kind."""
STARTS: Final = 7
BUDGETS: Final = {"miss": 1.3, "hit": 0.25, "start": 0.4}
"""Times a direct call; seconds for the start."""

SERVER = (sys.executable, str(Path(__file__).parents[1] / "tests" / "harness" / "mcp_server.py"))
HostOf = Callable[[Sequence[str]], AbstractAsyncContextManager[Any]]
RULES = """
namespace = "benchmark"
on_loop = "off"
[tools.get_value]
kind = "read"
tags = ["value:{key}"]
maxsize = 100000
[tools.large]
kind = "read"
tags = ["large:{size}"]
maxsize = 100000
"""


class LineHost:
    """A host that writes and reads lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._asked = 0

    async def request(self, method: str, params: dict[str, Any]) -> None:
        self._asked += 1
        self._write({"id": self._asked, "method": method, "params": params})
        while json.loads(await self._output.readline()).get("id") != self._asked:
            pass

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> None:
        await self.request("tools/call", {"name": name, "arguments": arguments})

    async def greet(self) -> None:
        info = {"name": "benchmark", "version": "1"}
        await self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info})
        self._write({"method": "notifications/initialized"})

    def close(self) -> None:
        self._input.close()

    def _write(self, message: dict[str, Any]) -> None:
        self._input.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


@asynccontextmanager
async def line_host_of(command: Sequence[str]) -> AsyncIterator[Any]:
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=nowhere, limit=1 << 26)
    host = LineHost(process)
    await host.greet()
    yield host
    host.close()
    await process.communicate()


@asynccontextmanager
async def client_of(command: Sequence[str]) -> AsyncIterator[Any]:
    """The SDK's client of a server."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(os.environ))
    errors = await asyncio.to_thread(Path(os.devnull).open, "w")
    async with Client(stdio_client(parameters, errlog=errors), mode="legacy") as client:
        yield client


async def seconds_of(client: Any, tool: str, arguments: Sequence[dict[str, Any]]) -> float:
    began = time.perf_counter()
    for each in arguments:
        await client.call_tool(tool, each)
    return (time.perf_counter() - began) / len(arguments)


async def ratios(rounds: int, direct: Any, through: Any, calls: int = CALLS) -> dict[str, tuple[float, float]]:
    """For each row, the median of its ratio to a direct call, and seconds.

    Args:
        rounds: how many count, after two that do not.
        direct: a client of the server.
        through: a client of the relay before it.
        calls: how many small ones of each kind are made in a round.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds + 2):
        small = [{"key": f"{number}-{each}"} for each in range(calls)]
        large = [{"size": 200_000 + number * 10 + each} for each in range(8)]
        for name, tool, same, others in (
            ("", "get_value", {"key": "same"}, small),
            (", 200 KB", "large", {"size": 199_999}, large),
        ):
            repeats = [same] * len(others)
            before = await seconds_of(direct, tool, repeats)
            miss = await seconds_of(through, tool, others)
            hit = await seconds_of(through, tool, repeats)
            base = (before + await seconds_of(direct, tool, repeats)) / 2
            if number >= 2:
                for row, seconds in ((f"direct{name}", base), (f"miss{name}", miss), (f"hit{name}", hit)):
                    found.setdefault(row, []).append((seconds / base, seconds))
    return {
        row: (statistics.median(ratio for ratio, _ in values), statistics.median(each for _, each in values))
        for row, values in found.items()
    }


def print_rows(rows: Mapping[str, tuple[float, float]], budgets: Mapping[str, float]) -> bool:
    """Print the table. Returns whether a row is over its budget."""
    failed = False
    print(f"{'':14} {'per call':>10} {'of direct':>10} {'budget':>8}")
    for row, (ratio, seconds) in rows.items():
        budget = budgets.get(row)
        print(f"{row:14} {seconds * 1e6:7.0f} us {ratio:10.2f} {'' if budget is None else budget:>8}")
        failed |= budget is not None and ratio > budget
    return failed


async def start_of(command: Sequence[str]) -> float:
    began = time.perf_counter()
    async with line_host_of(command):
        return time.perf_counter() - began


async def measured(rounds: int, host_of: HostOf) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.toml"
        path.write_text(RULES)
        relay = (sys.executable, "-m", "agent_cache", "mcp", "--config", str(path), "--", *SERVER)
        starts = [(await start_of(SERVER), await start_of(relay)) for _ in range(STARTS)]
        async with host_of(SERVER) as direct, host_of(relay) as through:
            rows = await ratios(rounds, direct, through)
    late = statistics.median(through - direct for direct, through in starts)
    failed = print_rows(rows, BUDGETS) or late > BUDGETS["start"]
    own = statistics.median(direct for direct, _ in starts)
    print(f"{'start':14} {late:8.2f} s {'':10} {BUDGETS['start']:6} s, over {own:.2f} s")
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--host", choices=("sdk", "lines"), default="sdk")
    options = parser.parse_args()
    return asyncio.run(measured(options.rounds, client_of if options.host == "sdk" else line_host_of))


if __name__ == "__main__":
    sys.exit(main())
