"""A server of Streamable HTTP, for a host that speaks stdio: `agent-cache mcp --url URL`.

`HttpLink` sends each line of the host as a POST and gives the messages of the responses back as lines. What the host
cannot know of HTTP, it keeps: the session's id, the revision, the headers that repeat a message's method and name
(revision 2026-07-28), the stream of messages that belong to no request, and the place to resume a broken stream from.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final

import httpx2

from agent_cache.relay.messages import (
    INTERNAL_ERROR,
    ConnectionLost,
    Message,
    Response,
    data_of,
    error_line,
    is_id,
    one_line,
    parsed,
    request_line,
)
from agent_cache.relay.streamable_http import (
    MODERN,
    EventSplitter,
    Headers,
    Upstream,
    event_data,
    is_event_stream,
    raw_headers,
    reason_of,
)

__all__ = ["HttpLink", "HttpServer", "connected"]

_LOG = logging.getLogger("agent_cache")

_RECONNECT_S: Final = 1.0
"""Before a stream is resumed, unless its server has said another time: as the clients of the MCP SDKs wait."""

_RECONNECT_ATTEMPTS: Final = 2
"""How often in a row a stream can fail to be resumed: as in the MCP SDKs."""

_END_S: Final = 2.0
"""Seconds that a server has to end the session."""

_META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN_VALUE: Final = re.compile(r"(?!=\?base64\?.*\?=$)(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")


class HttpLink:
    """The connection of one host to a server of Streamable HTTP.

    Args:
        upstream: the client of the server.
        headers: what is added to each request, such as Authorization.
        deliver: gets each line of the server that is no part of an `exchange`, with its newline.
        schema_of: the input schema of a tool, if it is known. It says which arguments are repeated in headers.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        headers: Headers = (),
        deliver: Callable[[bytes], object],
        schema_of: Callable[[str], Any],
    ) -> None:
        self._upstream = upstream
        self._headers = list(headers)
        self._deliver = deliver
        self._schema_of = schema_of
        self._session_id: str | None = None
        self._version: str | None = None
        self._initialize: bytes | None = None
        self._listening: asyncio.Task[None] | None = None
        self._renewal = asyncio.Lock()

    async def exchange(self, line: bytes) -> AsyncGenerator[bytes]:
        """Send a message of the host, and give the messages of the response, each as a line.

        For a request, the last one is its response. If the server refuses a request by the status of HTTP alone, that
        is a response with an error. Closing this generator closes the response.

        Raises:
            ConnectionLost: if the server cannot be reached, or breaks off before it has answered a request.
        """
        message = parsed(line)
        answered = False
        async with aclosing(self._exchanged(line, message)) as found:
            async for each in found:
                yield each
                answered = answered or (message is not None and _answers(each, message))
        if message is not None and message.is_request and not answered:
            raise ConnectionLost(f"the server at {self._upstream.name} ended its response without an answer")

    async def _exchanged(self, line: bytes, message: Message | None) -> AsyncGenerator[bytes]:
        is_initialize = message is not None and message.method == "initialize"
        if is_initialize:
            self._session_id = self._version = None
            self._initialize = line
        session = self._session_id
        response = await self._post(line, message)
        if response.status_code == 404 and "mcp-session-id" in response.request.headers and not is_initialize:
            await response.aclose()
            await self._renew(session)
            response = await self._post(line, message)
        try:
            if response.status_code >= 300:
                if message is not None and message.is_request:
                    yield await self._refusal(response, message)
                else:
                    _LOG.warning("the server at %s answered %s", self._upstream.name, _status(response))
                return
            if is_initialize:
                self._session_id = response.headers.get("mcp-session-id")
            if message is not None and message.method == "notifications/initialized":
                self._listen()
            if response.status_code in {202, 204}:
                return
            if not is_event_stream(raw_headers(response)):
                body = await response.aread()
                if body.strip():
                    if is_initialize:
                        self._learn_version(body)
                    yield _line(body)
                return
            async with aclosing(self._events(response, message)) as events:
                async for data in events:
                    if is_initialize:
                        self._learn_version(data)
                    yield _line(data)
        except httpx2.TransportError as error:
            raise ConnectionLost(f"the server at {self._upstream.name}: {reason_of(error)}") from error
        finally:
            await response.aclose()

    async def _post(self, line: bytes, message: Message | None) -> httpx2.Response:
        headers = [
            (b"accept", b"application/json, text/event-stream"),
            (b"content-type", b"application/json"),
            *self._common_headers(message),
        ]
        return await self._open("POST", headers, line.strip())

    async def _open(self, method: str, headers: Headers, body: bytes | None = None) -> httpx2.Response:
        sent = [*self._headers, *headers, (b"accept-encoding", self._upstream.encodings)]
        try:
            return await self._upstream.open(method, self._upstream.url, sent, body)
        except httpx2.TransportError as error:
            text = f"the server at {self._upstream.name} cannot be reached: {reason_of(error)}"
            raise ConnectionLost(text) from error

    def _common_headers(self, message: Message | None) -> list[tuple[bytes, bytes]]:
        """Those that say the session and the revision, and since 2026-07-28 what the message is."""
        params = data_of(message.params) if message is not None else None
        meta = params.get("_meta") if isinstance(params, dict) else None
        version = meta.get(_META_VERSION) if isinstance(meta, dict) else None
        if message is not None and isinstance(version, str) and isinstance(params, dict):
            name = params.get(_NAMED_BY.get(message.method, ""))
            found = {"mcp-protocol-version": version, "mcp-method": _header_value(message.method)}
            if isinstance(name, str):
                found["mcp-name"] = _header_value(name)
                if message.method == "tools/call":
                    found |= _argument_headers(self._schema_of(name), params.get("arguments"))
        else:
            found = {"mcp-session-id": self._session_id or "", "mcp-protocol-version": self._version or ""}
        return [(key.encode("latin-1"), value.encode("latin-1")) for key, value in found.items() if value]

    async def _refusal(self, response: httpx2.Response, message: Message) -> bytes:
        """The response to a request that the server has refused by its status: its own error, or one of ours."""
        found = parsed(await response.aread())
        error = data_of(found.error) if found is not None and found.error else None
        if isinstance(error, dict) and isinstance(error.get("code"), int):  # OAuth has errors of another form
            return error_line(message.id, error)
        text = f"agent-cache: the server at {self._upstream.name} answered {_status(response)}"
        if response.status_code == 401:
            text += '; give it credentials: --header "Authorization: Bearer ${TOKEN}", with TOKEN in the environment'
        if "location" in response.headers:
            text += f", elsewhere: {response.headers['location']}"
        return error_line(message.id, {"code": INTERNAL_ERROR, "message": text})

    async def _events(self, response: httpx2.Response, message: Message | None) -> AsyncGenerator[bytes]:
        """The data of a stream's events; resumed where the connection ends before the answer has come."""
        last_id, wait, failures = b"", _RECONNECT_S, 0
        current: httpx2.Response | None = response
        while True:
            try:
                if current is None:
                    headers = [(b"accept", b"text/event-stream"), (b"last-event-id", last_id)]
                    current = await self._open("GET", [*headers, *self._common_headers(None)])
                    if current.status_code != 200 or not is_event_stream(raw_headers(current)):
                        return
                splitter = EventSplitter()
                async for chunk in current.aiter_bytes():
                    for event in splitter.split(chunk):
                        failures = 0
                        found = event_data(event)
                        last_id = found.id or last_id
                        wait = wait if found.retry is None else found.retry / 1000
                        if found.data:
                            yield found.data
                            if message is not None and _answers(found.data, message):
                                return
            except (httpx2.TransportError, ConnectionLost):
                failures += 1
                if not last_id or failures >= _RECONNECT_ATTEMPTS:
                    raise
            finally:
                if current is not None:
                    await current.aclose()
            if not last_id:
                return
            current = None
            await asyncio.sleep(wait)

    def _learn_version(self, data: bytes) -> None:
        found = parsed(data)
        result = data_of(found.result) if found is not None and found.result else None
        if isinstance(result, dict) and isinstance(result.get("protocolVersion"), str):
            self._version = result["protocolVersion"]

    def _listen(self) -> None:
        """Begin to read what the server sends outside of responses, if it has sessions."""
        if self._listening is not None:
            self._listening.cancel()
        if self._session_id is not None and (self._version or "") < MODERN:
            self._listening = asyncio.create_task(self._read_messages())

    async def _read_messages(self) -> None:
        try:
            headers = [(b"accept", b"text/event-stream"), *self._common_headers(None)]
            response = await self._open("GET", headers)
            if response.status_code != 200 or not is_event_stream(raw_headers(response)):
                await response.aclose()
                return  # most servers have none
            async with aclosing(self._events(response, None)) as events:
                async for data in events:
                    self._deliver(_line(data))
        except (httpx2.TransportError, ConnectionLost) as error:
            _LOG.info("the stream of %s has ended: %s", self._upstream.name, error)

    async def _renew(self, ended: str | None) -> None:
        """Make a new session in place of one that the server has ended, as the specification wants it of clients."""
        async with self._renewal:
            if self._session_id != ended or self._initialize is None:
                return
            _LOG.warning("the server at %s has ended the session; beginning another", self._upstream.name)
            async with aclosing(self._exchanged(self._initialize, parsed(self._initialize))) as found:
                async for _ in found:
                    pass
            line = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
            async with aclosing(self._exchanged(line, parsed(line))) as found:
                async for _ in found:
                    pass

    async def aclose(self) -> None:
        """End the session, and close the connections."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if self._session_id is not None:
            try:
                response = await self._open("DELETE", self._common_headers(None))
                await response.aclose()
            except ConnectionLost as error:
                _LOG.info("%s", error)
        await self._upstream.aclose()


def _answers(data: bytes, message: Message) -> bool:
    """Whether a line is the response to a request."""
    found = parsed(data)
    return found is not None and not found.method and found.id == message.id and bool(found.result or found.error)


def _line(data: bytes) -> bytes:
    """A JSON text as one line."""
    return one_line(data) + b"\n"


def _status(response: httpx2.Response) -> str:
    return f"HTTP {response.status_code} {response.reason_phrase}".rstrip()


def _header_value(value: str) -> str:
    """A text as the value of a header: as it is, or in Base64 where it would not arrive so."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='surrogatepass')).decode()}?="


def _argument_headers(schema: Any, arguments: Any) -> dict[str, str]:
    """The headers that repeat arguments, as the schema says by ``x-mcp-header``."""
    found: dict[str, str] = {}
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not isinstance(arguments, Mapping):
        return found
    for name, said in properties.items():
        value = arguments.get(name)
        if value is None or not isinstance(said, Mapping):
            continue
        wanted = said.get("x-mcp-header")
        if isinstance(wanted, str) and isinstance(value, (str, int)):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found[f"mcp-param-{wanted.lower()}"] = _header_value(text)
        found |= _argument_headers(said, value)
    return found


class HttpServer:
    """A server of Streamable HTTP in the place of a child process: what the relay over stdio writes to.

    Args:
        upstream: the client of the server.
        headers: what is added to each request.
        on_line: called with each line of the server.
        on_lost: called with the identifier of a request that gets no answer any more.
        schema_of: see `HttpLink`.

    Attributes:
        has_closed: never; a server that is away may be back for the next request.
    """

    has_closed = False

    def __init__(
        self,
        upstream: Upstream,
        *,
        headers: Headers,
        on_line: Callable[[bytes], object],
        on_lost: Callable[[Any, ConnectionLost], object],
        schema_of: Callable[[str], Any],
    ) -> None:
        self._link = HttpLink(upstream, headers=headers, deliver=on_line, schema_of=schema_of)
        self._on_line = on_line
        self._on_lost = on_lost
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._requests: dict[Any, tuple[asyncio.Task[None], bool]] = {}
        self._sender = asyncio.create_task(self._send())

    def write(self, line: bytes) -> None:
        """Send a line of the host."""
        self._lines.put_nowait(line)

    async def _send(self) -> None:
        """What is no request goes in order, as it came; a request waits for nothing but that."""
        while True:
            line = await self._lines.get()
            message = parsed(line)
            if message is not None and message.is_request:
                name = message.id if is_id(message.id) else line
                task = asyncio.create_task(self._exchange(line, message))
                self._requests[name] = task, is_modern(message)
                task.add_done_callback(partial(self._forget, name))
            elif message is None or not self._has_cancelled(message):
                await self._exchange(line, message)

    def _forget(self, name: Any, task: asyncio.Task[None]) -> None:
        if name in self._requests and self._requests[name][0] is task:
            del self._requests[name]

    def _has_cancelled(self, message: Message) -> bool:
        """Since revision 2026-07-28, who closes the response has cancelled the request: no message says so."""
        if message.method != "notifications/cancelled":
            return False
        params = data_of(message.params)
        name = params.get("requestId") if isinstance(params, dict) else None
        task, closes = self._requests.get(name, (None, False)) if isinstance(name, str | int) else (None, False)
        if task is not None and closes:
            task.cancel()
        return closes

    async def _exchange(self, line: bytes, message: Message | None) -> None:
        try:
            async with aclosing(self._link.exchange(line)) as found:
                async for each in found:
                    self._on_line(each)
        except ConnectionLost as error:
            if message is not None and message.is_request and is_id(message.id):
                self._on_lost(message.id, error)
            else:
                _LOG.warning("a message of the host is lost: %s", error)

    async def end(self, *, at_once: bool = False) -> int:
        """End the session. Returns 0, in the place of an exit code."""
        tasks = [self._sender, *(task for task, _ in self._requests.values())]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        try:
            async with asyncio.timeout(0.5 if at_once else _END_S):
                await self._link.aclose()
        except TimeoutError:
            _LOG.info("the server did not end the session in time")
        return 0


@asynccontextmanager
async def connected(upstream: Upstream, headers: Headers = ()) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Yield a function that makes requests of a server: ``await ask(method, params)`` is the result.

    A method that begins with ``notifications/`` is a notification, which has no result.

    Raises:
        ConnectionLost: by `ask`, if the server cannot be reached.
        RpcError: by `ask`, if the server answers by an error.
    """
    numbers = itertools.count(1)

    async def ask(method: str, params: dict[str, Any]) -> Any:
        number = None if method.startswith("notifications/") else next(numbers)
        async with aclosing(link.exchange(request_line(number, method, params))) as found:
            async for line in found:
                message = parsed(line)
                if message is not None and not message.method and number is not None and message.id == number:
                    return Response(line, message).result()
        return None

    link = HttpLink(upstream, headers=headers, deliver=lambda _: None, schema_of=lambda _: None)
    try:
        yield ask
    finally:
        await link.aclose()


def is_modern(message: Message) -> bool:
    """Whether a message is of revision 2026-07-28 or later: each of these says its revision."""
    params = data_of(message.params)
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and _META_VERSION in meta
