"""A host of MCP that shows each line: it starts a relay, or a server, and speaks JSON-RPC over its pipes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

SERVER = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))
RELAY = (sys.executable, "-m", "agent_cache", "mcp")
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


class AnyHost:
    """What a host over any transport has.

    Attributes:
        notifications: those of the server, in order.
        asked: the requests of the server.
        last_id: the identifier of the last request.
    """

    def __init__(self) -> None:
        self.notifications: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.last_id: Any = None
        self._next = 0
        self._change = asyncio.Event()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until something that came makes it true."""
        while not condition():
            self._change.clear()
            await self._change.wait()


class Host(AnyHost):
    """The host's end of pipes.

    Attributes:
        lines: what came, in order, as bytes.
        answer: what each request of the server is answered with.
        meta: the `_meta` of each request.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self.process = process
        self.lines: list[bytes] = []
        self.answer: Callable[[dict[str, Any]], Any] = lambda message: {"action": "accept", "content": {"color": "red"}}
        self.meta: dict[str, Any] = {}
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self.errors = ""
        self._reader = asyncio.ensure_future(self._read())
        self._error_reader = asyncio.ensure_future(self._read_errors())

    async def _read(self) -> None:
        while line := await self.process.stdout.readline():
            self.lines.append(line)
            message = json.loads(line)
            if "method" not in message:
                future = self._waiting.pop(message["id"], None)
                if future is not None and not future.done():
                    future.set_result(message)
            elif "id" in message:
                self.asked.append(message)
                await self.write({"jsonrpc": "2.0", "id": message["id"], "result": self.answer(message)})
            else:
                self.notifications.append(message)
            self._change.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError("the other side has closed"))
        self._change.set()

    async def write(self, message: Any) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.process.stdin.write(line)
        await self.process.stdin.drain()

    def start(
        self, method: str, params: dict[str, Any] | None = None, id: Any = None
    ) -> asyncio.Future[dict[str, Any]]:
        """Send a request; its response is awaited later."""
        self._next += 1
        id = self._next if id is None else id
        meta = {**self.meta, **(params or {}).get("_meta", {})}
        future = self._waiting[id] = asyncio.get_running_loop().create_future()
        self.last_id = id
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": meta}}
        if not meta:
            del message["params"]["_meta"]
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        return future

    async def request(self, method: str, params: dict[str, Any] | None = None, id: Any = None) -> Any:
        """The result; an error is raised as `RuntimeError`."""
        response = await self.start(method, params, id)
        if "error" in response:
            raise RuntimeError(response["error"]["code"], response["error"]["message"])
        return response["result"]

    def begin(self, tool: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Start a call of a tool."""
        return self.start("tools/call", {"name": tool, "arguments": arguments})

    async def call(self, tool: str, **arguments: Any) -> str:
        """The text that a tool answers with."""
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        return text_of(result)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        await self.write({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def handshake(self, version: str = "2025-06-18") -> dict[str, Any]:
        """Begin as hosts did before 2026."""
        hello = await self.request("initialize", hello_of(version))
        await self.notify("notifications/initialized")
        return hello

    async def end(self) -> int:
        """Close the host's side, and wait until the other has ended. Returns its exit code."""
        self.process.stdin.close()
        await self._reader
        await self._error_reader
        return await self.process.wait()

    async def close(self) -> None:
        """Leave nothing open."""
        self._reader.cancel()
        await asyncio.gather(self._reader, self._error_reader, return_exceptions=True)

    async def _read_errors(self) -> None:
        while line := await self.process.stderr.readline():
            self.errors += line.decode(errors="replace")
            self._change.set()


def hello_of(version: str = "2025-06-18", name: str = "tests") -> dict[str, Any]:
    """What a host of this name begins with."""
    capabilities: dict[str, Any] = {"elicitation": {}, "roots": {}}
    return {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": name, "version": "1"}}


def text_of(result: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in result["content"])


async def piped(command: Sequence[Any], *, limit: int, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a command with pipes."""
    environment = {**environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    return await asyncio.create_subprocess_exec(*map(str, command), limit=limit, env=environment, **pipes)


@asynccontextmanager
async def started(command: Sequence[Any], *, greets: bool = True, **environment: str) -> AsyncIterator[Host]:
    """Start a command and speak with it; what it prints to standard error is in `Host.errors` at the end."""
    process = await piped(command, limit=1 << 26, environment={**os.environ, **environment})
    host = Host(process)
    try:
        if greets:
            await host.handshake()
        yield host
        await host.end()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await host.close()
        sys.stderr.write(host.errors)


def relayed(*options: Any, server: Sequence[Any] = SERVER, **more: Any) -> AbstractAsyncContextManager[Host]:
    """A host of a relay in front of a server."""
    return started((*RELAY, *options, "--", *server), **more)


async def run_of(host: Host, *, token: int = 1) -> list[dict[str, Any]]:
    """Ask the test server everything that a host may ask, in order. Returns the responses."""
    found = [
        await host.start("tools/list", {}),
        await host.start("prompts/list", {}),
        await host.start("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
        await host.start("resources/read", {"uri": "text://ada"}),
    ]
    if not host.meta:
        found.append(await host.start("ping"))  # which protocol 2026 has not
    a = {"key": "a"}
    for tool, arguments in (
        ("get_value", a), ("get_value", a), ("set_value", {**a, "value": "x"}), ("get_value", a),
        ("get_value", {**a, "form": "long"}), ("clock", {}), ("clock", {}), ("ask_host", a), ("fail", {}),
        ("undescribed", {}), ("run_count", {"name": "get_value"}), ("no such tool", {}),
    ):  # fmt: skip
        meta = {"progressToken": token, **host.meta}
        found.append(await host.start("tools/call", {"name": tool, "arguments": arguments, "_meta": meta}))
    return found
