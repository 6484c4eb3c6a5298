"""What `agent-cache mcp --url --listen` costs: a tool call through the relay, beside the same call without it.

    python -m benchmarks.relay_http [--rounds 30] [--host sdk|posts] [--base direct|proxy]

With ``--base proxy`` the call beside it goes through a reverse proxy of the same libraries that does nothing else. The
server is one of the MCP SDK, in a process of its own, and so is the relay; all speak Streamable HTTP on loopback.
The host is the SDK's client, or one that posts requests and reads the answers. Rounds of direct calls, misses, hits and
direct calls again take turns, and each ratio is one of the same round; the table has their medians.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.relay import RULES, print_rows, ratios

CALLS: Final = 40
"""Calls in a round, of each kind."""
BUDGETS: Final = {"miss": 1.2, "miss, 200 KB": 1.2, "hit, 200 KB": 1.0}
"""Times a call through the proxy. A large hit has no promise but to cost no more than the call."""

PROXY = """
import sys
import httpx2, uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
client, url = httpx2.AsyncClient(timeout=None), sys.argv[1]
near = {b"connection", b"content-length", b"host", b"transfer-encoding"}
async def proxy(scope, receive, send):
    request = Request(scope, receive)
    headers = [pair for pair in scope["headers"] if pair[0] not in near]
    asked = httpx2.Request(request.method, url, headers=headers, content=await request.body())
    answer = await client.send(asked, stream=True)
    response = StreamingResponse(answer.aiter_raw(), answer.status_code)
    response.raw_headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in near]
    await response(scope, receive, send)
    await answer.aclose()
config = uvicorn.Config(proxy, log_level="critical", access_log=False, lifespan="off", ws="none", port=0)
bound = config.bind_socket()
print(bound.getsockname()[1], flush=True)
uvicorn.Server(config).run(sockets=[bound])
"""

SERVER = (sys.executable, str(Path(__file__).parents[1] / "tests" / "harness" / "mcp_http_server.py"))
HostOf = Callable[[str], AbstractAsyncContextManager[Any]]


class PostingHost:
    """A host that posts requests and reads the answers."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url
        self._headers = {"accept": "application/json, text/event-stream"}
        self._asked = 0

    async def begin(self) -> None:
        said = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "benchmark", "version": "1"},
        }
        hello = await self._post({"id": 0, "method": "initialize", "params": said})
        self._headers |= {"mcp-session-id": hello.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await self._post({"method": "notifications/initialized"})

    async def _post(self, message: dict[str, Any]) -> Any:
        return await self._client.post(self._url, json={"jsonrpc": "2.0", **message}, headers=self._headers)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> None:
        self._asked += 1
        params = {"name": name, "arguments": arguments}
        answer = await self._post({"id": self._asked, "method": "tools/call", "params": params})
        assert b'"isError":false' in answer.content, answer.content[:200]


@asynccontextmanager
async def posting_host(url: str) -> AsyncIterator[PostingHost]:
    import httpx2

    async with httpx2.AsyncClient(timeout=None) as client:
        host = PostingHost(client, url)
        await host.begin()
        yield host


@asynccontextmanager
async def sdk_host(url: str) -> AsyncIterator[Any]:
    from mcp import Client

    async with Client(url, mode="legacy") as client:
        yield client


@contextmanager
def process_of(command: Sequence[str], stream: str) -> Iterator[str]:
    """Start a command, and yield the first line that it prints."""
    pipes: dict[str, Any] = {stream: subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield getattr(process, stream).readline().strip()
        finally:
            process.kill()


async def measured(rounds: int, host_of: HostOf, base: str) -> int:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        port = stack.enter_context(process_of(SERVER, "stdout"))
        path, url = Path(folder) / "rules.toml", f"http://127.0.0.1:{port}/mcp"
        path.write_text(RULES)
        near = url
        if base == "proxy":
            proxy = stack.enter_context(process_of((sys.executable, "-c", PROXY, url), "stdout"))
            near = f"http://127.0.0.1:{proxy}/mcp"
        options = ("--config", str(path), "--url", url, "--listen", "127.0.0.1:0")
        with process_of((sys.executable, "-m", "agent_cache", "mcp", *options), "stderr") as line:
            relay = next(word for word in line.split() if word.startswith("http://"))
            async with host_of(near) as direct, host_of(relay) as through:
                rows = await ratios(rounds, direct, through, CALLS)
    return int(print_rows(rows, BUDGETS if base == "proxy" else {}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--host", choices=("sdk", "posts"), default="sdk")
    parser.add_argument("--base", choices=("direct", "proxy"), default="proxy")
    options = parser.parse_args()
    host_of = sdk_host if options.host == "sdk" else posting_host
    return asyncio.run(measured(options.rounds, host_of, options.base))


if __name__ == "__main__":
    sys.exit(main())
