"""A host of MCP over Streamable HTTP that shows each byte, and the relay in front of a server, in this process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import uvicorn

from agent_cache.relay.http_proxy import HttpListener, Upstream, end_to_end, event_data, listen, parts_of
from agent_cache.relay.relay import Relay
from agent_cache.relay.relay_settings import load
from tests.harness.mcp_host import ENVELOPE, AnyHost, hello_of, text_of

__all__ = [
    "ACCEPT", "Answer", "HttpHost", "end_to_end", "event_data", "hosted", "listen", "parts_of", "relaying", "running",
    "serving",
]  # fmt: skip

HTTP_SERVER = (sys.executable, str(Path(__file__).with_name("mcp_http_server.py")))
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@contextmanager
def serving(*mode: str) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    with subprocess.Popen([*HTTP_SERVER, *mode], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.kill()


@asynccontextmanager
async def running(application: Any) -> AsyncIterator[str]:
    """The origin at which an application is served."""
    config = uvicorn.Config(application, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ws="none")
    config.server_header = config.date_header = False
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await serving


class InProcess(NamedTuple):
    """A relay in this process, and its URL for hosts."""

    url: str
    relay: Relay
    listener: HttpListener


@asynccontextmanager
async def relaying(
    url: str, rules: Path, *, headers: Any = (), vary_by: Any = (), **options: Any
) -> AsyncIterator[InProcess]:
    """A relay in front of a server."""
    upstream = Upstream(url)
    box, settings = load(rules)
    async with Relay(box, settings, **options) as relay:
        listener = HttpListener(relay, upstream, headers=headers, vary_by=vary_by)
        async with running(listener) as origin:
            yield InProcess(origin + listener.path, relay, listener)
    await upstream.aclose()


class Answer:
    """What came for one request: all of it, and the messages in it."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.status = response.status_code
        self.headers = response.headers
        self.body = b""
        self.messages: list[dict[str, Any]] = []

    @property
    def last(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def text(self) -> str:
        return text_of(self.last["result"])


class HttpHost(AnyHost):
    """A host over HTTP. The requests of the server get `answer`; `messages` are all that came."""

    def __init__(self, url: str, *, modern: bool = False, **headers: str) -> None:
        super().__init__()
        self.url = url
        self.modern = modern
        self.headers = {**ACCEPT, **headers}
        self.client = httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None))
        self.messages: list[Any] = []
        self.answer: Any = {"action": "accept", "content": {"color": "red"}}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def handshake(self, version: str = "2025-11-25") -> Answer:
        """Begin a session."""
        hello = await self.request("initialize", hello_of(version))
        if "mcp-session-id" in hello.headers:
            self.headers["mcp-session-id"] = hello.headers["mcp-session-id"]
        self.headers["mcp-protocol-version"] = version
        await self.notify("notifications/initialized")
        return hello

    def message(self, method: str, params: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
        """A request, and the headers that go with it."""
        self._next += 1
        self.last_id = self._next
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": dict(params or {})}
        headers = dict(self.headers)
        if self.modern:
            message["params"]["_meta"] = {**ENVELOPE, **message["params"].get("_meta", {})}
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
            if "name" in message["params"]:
                headers["mcp-name"] = message["params"]["name"]
        return message, headers

    def start(self, method: str, params: dict[str, Any] | None = None) -> asyncio.Task[Answer]:
        """Send a request; its answer is awaited later. To cancel the task is to close the connection."""
        message, headers = self.message(method, params)
        return self.post(message, headers)

    def post(self, message: Any, headers: dict[str, str] | None = None) -> asyncio.Task[Answer]:
        """Post anything."""
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self._begin(self._send("POST", headers or self.headers, content))

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, method: str, headers: dict[str, str], content: bytes | None = None, url: str = "") -> Answer:
        async with self.client.stream(method, url or self.url, headers=headers, content=content) as response:
            answer = Answer(response)
            rest = b""
            async for chunk in response.aiter_bytes():
                answer.body += chunk
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
                    for event in events:
                        data = b"".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
                        if data:
                            self._hear(json.loads(data), answer)
            if response.headers.get("content-type", "").startswith("application/json") and answer.body:
                self._hear(json.loads(answer.body), answer)
            return answer

    def _hear(self, message: Any, answer: Answer) -> None:
        answer.messages.append(message)
        self.messages.append(message)
        if isinstance(message, dict) and "method" in message:
            if "id" in message:
                self.asked.append(message)
                self.post({"jsonrpc": "2.0", "id": message["id"], "result": self.answer})
            else:
                self.notifications.append(message)
        self._change.set()

    async def request(self, method: str, params: dict[str, Any] | None = None) -> Answer:
        return await self.start(method, params)

    def begin(self, tool: str, **arguments: Any) -> asyncio.Task[Answer]:
        """Start a call of a tool, with progress."""
        meta = {"progressToken": f"of {self._next + 1}"}
        return self.start("tools/call", {"name": tool, "arguments": arguments, "_meta": meta})

    async def call(self, tool: str, **arguments: Any) -> str:
        """The text that a tool answers with."""
        answer = await self.begin(tool, **arguments)
        assert "result" in answer.last, answer.last
        return answer.text

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> Answer:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def get(self, path: str = "", **headers: str) -> Answer:
        """A GET of the endpoint, or of another path of its server."""
        url = str(httpx2.URL(self.url).copy_with(raw_path=path.encode())) if path else ""
        return await self._send("GET", {**self.headers, **headers}, None, url)

    def listen(self, **headers: str) -> asyncio.Task[Answer]:
        """Open the stream of messages that belong to no request, or the rest of another one."""
        return self._begin(self._send("GET", {**self.headers, "accept": "text/event-stream", **headers}))

    async def delete(self) -> Answer:
        return await self._send("DELETE", self.headers)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.aclose()


@asynccontextmanager
async def hosted(url: str, *, version: str = "2025-11-25", **headers: str) -> AsyncIterator[HttpHost]:
    """A host, which has begun."""
    host = HttpHost(url, modern=version >= "2026", **headers)
    try:
        if not host.modern:
            await host.handshake(version)
        yield host
    finally:
        await host.close()
