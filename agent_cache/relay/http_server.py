"""A server of Streamable HTTP: the client of it, what is sent to it and comes from it, and `HttpServer`, which is such
a server for a host that speaks stdio (``agent-cache mcp --url URL``).

The transport is that of the MCP specification, revisions 2025-03-26, 2025-06-18, 2025-11-25 and 2026-07-28. The relay
passes the bytes of what it need not change, so it splits a stream of events only where one ends.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, TypeAlias

import httpx2
import msgspec

from agent_cache.core.asker import TRANSPORT
from agent_cache.errors import ConfigurationError
from agent_cache.relay.messages import (
    ConnectionLost,
    Message,
    data_of,
    envelope_of,
    error_line,
    is_id,
    one_line,
    parsed,
)

_LOG = logging.getLogger("agent_cache")

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case, with their values, in order; a name may occur more than once."""

_HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""RFC 9110, 7.6.1: they are between two neighbours, not between host and server."""
_NEUTRAL: Final = frozenset(name.encode() for name in TRANSPORT)
"""Headers of the transport, as are those that begin with ``content-``. Every other one may tell who asks: a server
takes its credentials where it likes."""
_ALWAYS: Final = frozenset({b"authorization", b"cookie", b"mcp-protocol-version"})
_EVENT_END: Final = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)")
_END_S: Final = 2.0
"""Seconds that a server has to end the session."""


def end_to_end(headers: Headers, *names: bytes) -> list[tuple[bytes, bytes]]:
    """The headers without those that are between two neighbours, and without `names`."""
    listed = {one.strip() for name, value in headers if name == b"connection" for one in value.lower().split(b",")}
    return without(headers, *_HOP_BY_HOP, *listed, *names)


def without(headers: Headers, *names: bytes) -> list[tuple[bytes, bytes]]:
    """The headers without `names`."""
    return [(name, value) for name, value in headers if name not in names]


def raw_headers(response: httpx2.Response) -> list[tuple[bytes, bytes]]:
    """The headers of a response."""
    return [(name.lower(), value) for name, value in response.headers.raw]


def header(headers: Headers, name: bytes) -> str:
    """The first value of a header; empty without one."""
    return next((value.decode("latin-1") for one, value in headers if one == name), "")


def identity_of(headers: Headers, names: Iterable[str] = (), *, url: str = "") -> str | None:
    """A hash of who asks, and in which revision: requests of one identity share answers. None if nothing tells it.

    Args:
        headers: those of the request, as they are sent.
        names: the only headers that tell who asks, beside Authorization, Cookie and the revision. By default all do
            that are not of the transport: a server may take its key from a header of any name.
        url: where it is sent to, with query and user; or a part of that.
    """
    chosen = {name.lower().encode("latin-1") for name in names}
    told = sorted(
        (name, value)
        for name, value in headers
        if name in _ALWAYS or (name in chosen if chosen else name not in _NEUTRAL and not name.startswith(b"content-"))
    )
    if not told and not url:
        return None
    sent = [url, *([part.decode("latin-1") for part in pair] for pair in told)]
    return hashlib.sha256(msgspec.json.encode(sent)).hexdigest()


def reason_of(error: Exception) -> str:
    """The text of an error; its class where it has none."""
    return str(error) or type(error).__name__


def is_event_stream(headers: Headers) -> bool:
    """Whether the body has server-sent events."""
    return header(headers, b"content-type").partition(";")[0].strip().lower() == "text/event-stream"


async def parts_of(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The body, in parts that joined are the body: each event where there are events, else all of it.

    Raises:
        httpx2.TransportError: if the server breaks off.
    """
    if not is_event_stream(raw_headers(response)):
        yield await response.aread()
        return
    rest = b""
    async with aclosing(response.aiter_bytes()) as chunks:
        async for chunk in chunks:
            at, rest = max(len(rest) - 3, 0), rest + chunk
            while found := _EVENT_END.search(rest, at):
                yield rest[: found.end()]
                at, rest = 0, rest[found.end() :]
    if rest:
        yield rest


def event_data(event: bytes) -> bytes:
    """The data of an event; empty for a comment."""
    lines = [line.partition(b":") for line in event.splitlines()]
    return b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")


async def messages_of(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The messages in a body."""
    is_stream = is_event_stream(raw_headers(response))
    async with aclosing(parts_of(response)) as parts:
        async for part in parts:
            data = event_data(part) if is_stream else part
            if data.strip():
                yield data


class Upstream:
    """The HTTP client of one server. It adds nothing to a request, keeps no cookie and has no timeout.

    Proxies and certificates are those of the environment, as httpx2 reads them. Password and user in the URL are sent
    as Basic authentication. `name` is the address without password and query, for texts.

    Args:
        url: the endpoint of the server.

    Raises:
        ConfigurationError: for an address that is none of HTTP.
    """

    def __init__(self, url: str) -> None:
        try:
            self.url = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise ConfigurationError(f"--url: {error}") from None
        if self.url.scheme not in {"http", "https"} or not self.url.host:
            raise ConfigurationError("--url: give the endpoint of the server, such as https://example.com/mcp")
        self._client = httpx2.AsyncClient(
            timeout=None,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # those of one host are nothing to another
        )
        self._encodings = (b"accept-encoding", self._client.headers["accept-encoding"].encode("latin-1"))
        self.name = str(self.url.copy_with(username=None, password=None, query=None, fragment=None))
        self.aclose = self._client.aclose

    async def open(self, method: str, url: httpx2.URL, headers: Headers, body: bytes | None) -> httpx2.Response:
        """Send a request. The body of the response is not read, and the response is to be closed.

        Raises:
            httpx2.TransportError: if the server cannot be reached or breaks off.
        """
        sent = [*without(headers, b"accept-encoding"), self._encodings]  # what this client decodes
        return await self._client.send(httpx2.Request(method, url, headers=sent, content=body), stream=True)


# A server for a host over stdio

_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN_VALUE: Final = re.compile(r"(?!=\?base64\?.*\?=$)(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_ACCEPT: Final = [(b"accept", b"application/json, text/event-stream"), (b"content-type", b"application/json")]


class HttpServer:
    """A server of Streamable HTTP in the place of a child process: what the relay over stdio writes to.

    Each line is a POST. What the host cannot know of HTTP, this keeps: the session's id, the revision, the headers that
    repeat a message's method and name (revision 2026-07-28), and the stream of messages that belong to no request. A
    stream that breaks off is not resumed: its request has no answer. `has_closed` is never true: a server that is away
    may be back for the next request.

    Args:
        upstream: the client of the server.
        headers: what is added to each request, such as Authorization.
        schema_of: the input schema of a tool, if it is known. It says which arguments are repeated in headers.
        on_line: called with each line of the server.
        on_lost: called with the id of a request that gets no answer any more.
    """

    has_closed = False

    def __init__(
        self,
        upstream: Upstream,
        headers: Headers,
        schema_of: Callable[[str], Any],
        on_line: Callable[[bytes], object],
        on_lost: Callable[[Any, ConnectionLost], object],
    ) -> None:
        self._upstream, self._headers, self._schema_of = upstream, list(headers), schema_of
        self._on_line, self._on_lost = on_line, on_lost
        self._session_id: str | None = None
        self._version = ""
        self._initialize: tuple[bytes, Message] | None = None
        self._renewal = asyncio.Lock()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.write = self._lines.put_nowait
        self._modern: dict[Any, asyncio.Task[None]] = {}  # requests that are cancelled by closing their responses
        self._tasks: set[asyncio.Task[None]] = set()
        self._start(self._send())

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self) -> None:
        """What is no request goes in order, as it came; a request waits for nothing but that."""
        while True:
            line = await self._lines.get()
            message = parsed(line) or Message()
            asked = message.params_by_name().get("requestId") if message.method == "notifications/cancelled" else None
            if message.is_request:
                task = self._start(self._exchange(line, message))
                if is_id(message.id) and envelope_of(message.params_by_name()):
                    self._modern[message.id] = task
                    task.add_done_callback(partial(self._forget, message.id))
            elif is_id(asked) and asked in self._modern:
                self._modern[asked].cancel()
            else:
                await self._exchange(line, message)

    def _forget(self, name: Any, _: asyncio.Task[None]) -> None:
        self._modern.pop(name, None)

    async def _exchange(self, line: bytes, message: Message) -> None:
        """Send a message, and give the messages of the response back as lines."""
        try:
            if await self._answered(line, message) or not message.is_request:
                return
            reason = "ended its response without an answer"
        except httpx2.ConnectError as error:
            reason = f"cannot be reached: {reason_of(error)}"
        except httpx2.TransportError as error:
            reason = f"has broken off: {reason_of(error)}"
        lost = ConnectionLost(f"the server at {self._upstream.name} {reason}")
        if message.is_request and is_id(message.id):
            self._on_lost(message.id, lost)
        else:
            _LOG.warning("a message of the host is lost: %s", lost)

    async def _answered(self, line: bytes, message: Message, *, is_shown: bool = True) -> bool:
        """Whether the request of this message was answered."""
        if message.method == "initialize":
            self._session_id, self._version, self._initialize = None, "", (line, message)
        session, is_answered = self._session_id, False
        response = await self._post(line, message)
        if response.status_code == 404 and "mcp-session-id" in response.request.headers:
            await response.aclose()
            await self._renew(session)
            response = await self._post(line, message)
        try:
            if response.status_code >= 300:
                refusal = await self._refusal(response, message)
                if message.is_request:
                    self._on_line(refusal)
                else:
                    _LOG.warning("the server at %s answered HTTP %s", self._upstream.name, response.status_code)
                return True
            if message.method == "initialize":
                self._session_id = response.headers.get("mcp-session-id")
            elif message.method == "notifications/initialized" and self._session_id is not None:
                self._start(self._listen())
            async with aclosing(messages_of(response)) as messages:
                async for data in messages:
                    found = parsed(data)
                    if found is not None and not found.method and found.id == message.id:
                        is_answered = True
                        if message.method == "initialize":
                            self._version = str((data_of(found.result) or {}).get("protocolVersion", ""))
                    if is_shown:
                        self._on_line(one_line(data) + b"\n")
        finally:
            await response.aclose()
        return is_answered

    async def _post(self, line: bytes, message: Message) -> httpx2.Response:
        headers = [*self._headers, *_ACCEPT, *self._common_headers(message)]
        return await self._upstream.open("POST", self._upstream.url, headers, line.strip())

    def _common_headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        """Those that say the session and the revision, and since 2026-07-28 what the message is."""
        params = message.params_by_name()
        version = envelope_of(params).get(_VERSION)
        if isinstance(version, str):
            name = params.get(_NAMED_BY.get(message.method, ""))
            found = {"mcp-protocol-version": version, "mcp-method": _header_value(message.method)}
            if isinstance(name, str):
                found["mcp-name"] = _header_value(name)
                if message.method == "tools/call":
                    found |= _argument_headers(self._schema_of(name), params.get("arguments"))
        else:
            found = {"mcp-session-id": self._session_id or "", "mcp-protocol-version": self._version}
        return [(key.encode("latin-1"), value.encode("latin-1")) for key, value in found.items() if value]

    async def _refusal(self, response: httpx2.Response, message: Message) -> bytes:
        """The response to a request that the server has refused by its status: its own error, or one of ours."""
        found = parsed(await response.aread())
        error = data_of(found.error) if found is not None else None
        if isinstance(error, dict) and isinstance(error.get("code"), int):  # OAuth has errors of another form
            return error_line(message.id, error)
        text = f"the server at {self._upstream.name} answered HTTP {response.status_code} {response.reason_phrase}"
        if response.status_code == 401:
            text += '; give it credentials: --header "Authorization: Bearer ${TOKEN}", with TOKEN in the environment'
        if "location" in response.headers:
            text += f", elsewhere: {response.headers['location']}"
        return error_line(message.id, text)

    async def _listen(self) -> None:
        """Read what the server sends outside of responses."""
        headers = [*self._headers, (b"accept", b"text/event-stream"), *self._common_headers(Message())]
        try:
            response = await self._upstream.open("GET", self._upstream.url, headers, None)
            try:
                if response.status_code == 200 and is_event_stream(raw_headers(response)):  # most servers have none
                    async for data in messages_of(response):
                        self._on_line(one_line(data) + b"\n")
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            _LOG.info("the stream of %s has ended: %s", self._upstream.name, error)

    async def _renew(self, ended: str | None) -> None:
        """Make a new session in place of one that the server has ended, as the specification wants it of clients."""
        async with self._renewal:
            if self._session_id != ended or self._initialize is None:
                return
            _LOG.warning("the server at %s has ended the session; beginning another", self._upstream.name)
            await self._answered(*self._initialize, is_shown=False)
            line = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
            await self._answered(line, Message(method="notifications/initialized"), is_shown=False)

    async def end(self, *, at_once: bool = False) -> int:
        """End the session. Returns 0, in the place of an exit code."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(set(self._tasks))
        if self._session_id is not None:
            headers = [*self._headers, *self._common_headers(Message())]
            try:
                async with asyncio.timeout(0.5 if at_once else _END_S):
                    await (await self._upstream.open("DELETE", self._upstream.url, headers, None)).aclose()
            except (TimeoutError, httpx2.TransportError) as error:
                _LOG.info("the server did not end the session: %s", error)
        return 0


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
        if isinstance(wanted, str) and isinstance(value, str | int):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found[f"mcp-param-{wanted.lower()}"] = _header_value(text)
        found |= _argument_headers(said, value)
    return found
