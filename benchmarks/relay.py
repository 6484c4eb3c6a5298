"""`python -m benchmarks.relay`: tool calls through `agent-cache mcp`, beside the same calls without it.

The server is one of the MCP SDK, in a process of its own, and so is the relay. Over stdio a call is compared with one
that goes to the server itself, by the SDK's client and by a host that only writes and reads lines; over HTTP with one
through a reverse proxy of the same libraries that does nothing else. A *miss* has new arguments and reaches the server,
a *hit* does not. In each round all kinds take turns in a new order, and each ratio is one of the same round. Beside the
time that a call takes stands the processor time of all processes, which a busy machine changes less.

The exit code is 1 if the median of a row is over its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.commands import describe_machine, exits_without, positive
from benchmarks.table import HEADINGS, Row, markdown
from benchmarks.timing import Figure, progress

CALLS: Final = 20
"""Calls of a kind in a round."""

RULES: Final = """
namespace = "benchmark"
max_tool_repeats = 1000000
tools.read = { kind = "read", tags = ["value:{key}"], maxsize = 100000 }
tools.read_slowly = { kind = "read", tags = ["value:{key}"], maxsize = 100000 }
"""

Call: TypeAlias = Callable[[str, dict[str, Any]], Any]
"""Calls a tool of the server by a host: its name, its arguments."""


def this(role: str, *arguments: str) -> list[str]:
    """The command of a process that has this module as its program."""
    return [sys.executable, "-m", "benchmarks.relay", "--as", role, *arguments]


def make_server() -> Any:
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    def read(key: str) -> str:
        return f"the value of {key}"

    async def read_slowly(key: str) -> str:
        await asyncio.sleep(0.01)
        return read(key)

    server: Any = MCPServer("benchmark")
    for tool in (read, read_slowly):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True))
    return server


def make_proxy(url: str) -> Any:
    """A reverse proxy that does nothing else."""
    import httpx2
    from starlette.requests import Request
    from starlette.responses import StreamingResponse

    client = httpx2.AsyncClient(timeout=None)
    near = {b"connection", b"content-length", b"host", b"transfer-encoding"}

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        headers = [pair for pair in scope["headers"] if pair[0] not in near]
        asked = httpx2.Request(request.method, url, headers=headers, content=await request.body())
        answer = await client.send(asked, stream=True)
        response = StreamingResponse(answer.aiter_raw(), answer.status_code)
        found = [(name.lower(), value) for name, value in answer.headers.raw]
        response.raw_headers = [pair for pair in found if pair[0] not in near]
        await response(scope, receive, send)
        await answer.aclose()

    return proxy


def serve(application: Any, *, lifespan: str) -> None:
    """Serve over HTTP on a free port, which is printed."""
    import uvicorn

    # asyncio sends small responses at once only if the socket names its protocol
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        print(f"http://127.0.0.1:{bound.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(application, log_level="critical", lifespan=lifespan, ws="none", loop="asyncio")  # type: ignore[arg-type]
        uvicorn.Server(config).run(sockets=[bound])


# Hosts


@contextlib.asynccontextmanager
async def sdk_host(server: Sequence[str] | str) -> AsyncIterator[Call]:
    """The SDK's client of a command, or of a URL."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    with Path(os.devnull).open("w") as nowhere:  # noqa: ASYNC230 - before anything is measured
        target: Any = server
        if not isinstance(server, str):
            parameters = StdioServerParameters(command=server[0], args=list(server[1:]), env=dict(os.environ))
            target = stdio_client(parameters, errlog=nowhere)
        async with Client(target) as client:
            yield client.call_tool


@contextlib.asynccontextmanager
async def line_host(server: Sequence[str]) -> AsyncIterator[Call]:
    """A host that writes and reads lines."""
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*server, stdin=pipe, stdout=pipe, stderr=nowhere)
    assert process.stdin is not None
    assert process.stdout is not None
    to_server, from_server, numbers = process.stdin, process.stdout, itertools.count(1)

    async def request(method: str, params: dict[str, Any]) -> None:
        number = next(numbers)
        to_server.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        to_server.write(b"\n")
        answer = json.loads(await from_server.readline())
        assert answer["id"] == number and "result" in answer, answer  # noqa: PT018

    async def call(name: str, arguments: dict[str, Any]) -> None:
        await request("tools/call", {"name": name, "arguments": arguments})

    info = {"name": "benchmark", "version": "1"}
    await request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info})
    to_server.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    yield call
    to_server.close()
    await process.communicate()


@contextlib.contextmanager
def http_process(command: Sequence[str], stream: str = "stdout") -> Iterator[str]:
    """Start what serves over HTTP. Yields its URL, which it says in its first line."""
    pipes: dict[str, Any] = {stream: subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield next(word for word in getattr(process, stream).readline().split() if word.startswith("http"))
        finally:
            process.kill()


def processor_seconds() -> float:
    """Of this process and of those that it has started; 0 where the system does not say it."""
    nanoseconds, processes = 0, [Path("/proc/self")]
    for process in processes:
        for thread in process.glob("task/*"):
            with contextlib.suppress(OSError):  # it has ended
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
                processes += [Path("/proc", child) for child in (thread / "children").read_text().split()]
    return nanoseconds / 1e9


async def rows(
    rounds: int, title: str, base: Call, relay: Call, *, tool: str = "read", calls: int = CALLS, **budgets: float
) -> list[Row]:
    """The rows of a miss and of a hit."""
    kinds = {"base": base, "miss": relay, "hit": relay}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    processor: dict[str, list[float]] = {name: [] for name in kinds}
    order, shuffle, numbers = list(kinds), random.Random(7).shuffle, itertools.count()
    for round_ in range(-2, rounds):  # two that do not count
        progress(title, max(round_, 0), rounds)
        shuffle(order)
        for name in order:
            keys = ["same"] * calls if name == "hit" else [str(next(numbers)) for _ in range(calls)]
            call, used, start = kinds[name], processor_seconds(), time.perf_counter()
            for key in keys:
                await call(tool, {"key": key})
            if round_ >= 0:
                seconds[name].append((time.perf_counter() - start) / calls)
                processor[name].append((processor_seconds() - used) / calls)
    progress(title, rounds, rounds)
    found = {name: Figure(tuple(each)) for name, each in seconds.items()}
    work = {name: statistics.median(each) for name, each in processor.items()}
    return [
        Row(
            title, name, found[name].over(found["base"]), "x", budgets.get(name),
            f"{found[name].spread.median * 1e6:.0f} us; processor time {work[name] / (work['base'] or 1):.2f}x",
        )
        for name in ("miss", "hit")
    ]  # fmt: skip


async def measured(rounds: int) -> list[Row]:
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as processes:
        path = Path(folder) / "rules.toml"
        path.write_text(RULES)
        mcp = [sys.executable, "-m", "agent_cache", "mcp", "--config", str(path)]
        command = [*mcp, "--", *this("server")]
        async with sdk_host(this("server")) as base, sdk_host(command) as relay:
            found += await rows(rounds, "stdio, the SDK's client", base, relay, miss=1.2, hit=0.25)
            slow: Any = {"tool": "read_slowly", "calls": CALLS // 4}
            found += await rows(rounds, "the same, a tool of 10 ms", base, relay, **slow)
        async with line_host(this("server")) as base, line_host(command) as relay:
            found += await rows(rounds, "stdio, a host of lines", base, relay, miss=1.4)
        url = processes.enter_context(http_process(this("http-server")))
        proxied = processes.enter_context(http_process(this("proxy", url)))
        listening = [*mcp, "--url", url, "--listen", "127.0.0.1:0"]
        relayed = processes.enter_context(http_process(listening, "stderr"))
        async with sdk_host(proxied) as base, sdk_host(relayed) as relay:
            found += await rows(rounds, "HTTP, beside a plain proxy", base, relay, miss=1.2)
    return found


@exits_without(ImportError)
def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__)
    parser.add_argument("--rounds", type=positive, default=60)
    parser.add_argument("--as", dest="role", choices=("server", "http-server", "proxy"), help=argparse.SUPPRESS)
    parser.add_argument("url", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "server":
        make_server().run()
    elif options.role == "http-server":
        serve(make_server().streamable_http_app(), lifespan="on")
    elif options.role == "proxy":
        serve(make_proxy(options.url), lifespan="off")
    if options.role is not None:
        return 0
    found = asyncio.run(measured(options.rounds))
    print(describe_machine(("mcp", "httpx2", "starlette", "uvicorn")))
    print(markdown(HEADINGS, [row.cells() for row in found]))
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
