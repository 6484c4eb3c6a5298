"""The relay between hosts and a server of Streamable HTTP: `agent-cache mcp --url URL --listen HOST:PORT`.

A transparent reverse proxy: everything passes as it is and at once, in both directions, with these exceptions. A POSTed
`tools/call` goes through the rules, and a list or a resource through the cache of those. If the server is asked, its
messages to the host pass while the call runs, and its answer passes as its own bytes; what another request has brought
is answered as JSON. Answers to `tools/list`, and the notifications that the relay observes, are read on their way.
While a cassette is recorded or replayed, all requests go through it.

A host that goes away cancels its call from revision 2026-07-28 on, as the specification says. Before, the call goes on
to its end, unless the host can resume the stream of events: then the server must see that nobody reads it here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, nullcontext
from typing import Any, Final

import httpx2
import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from agent_cache.errors import ConfigurationError
from agent_cache.recording.http.identity import is_loopback
from agent_cache.relay.http_server import (
    Headers,
    Upstream,
    end_to_end,
    event_data,
    header,
    identity_of,
    is_event_stream,
    messages_of,
    parts_of,
    raw_headers,
    reason_of,
    without,
)
from agent_cache.relay.messages import (
    INTERNAL_ERROR,
    MODERN,
    ConnectionLost,
    Message,
    Response,
    RpcError,
    data_of,
    error_line,
    is_id,
    parsed,
    refusal_of,
    request_line,
)
from agent_cache.relay.relay import HostRequest, HostSession, Relay
from agent_cache.relay.stdio import signals

_LOG = logging.getLogger("agent_cache")

_JSON: Final = (b"content-type", b"application/json")
_CANCELLED: Final = {"code": -32800, "message": "Request cancelled"}  # nobody waits for it any more
_MAX_SESSIONS: Final = 10_000
_GRACE_S: Final = 5
"""Seconds for calls to end after a signal to stop."""


class _Incoming:
    """One HTTP request of a host, and the response to it while it is written.

    Args:
        request, send: as ASGI has them.
        listener: what it has come to.

    Attributes:
        url: where it goes to.
        headers: as they go to the server, but for those of one connection.
        status: that of the response, once it is begun.
        version: the revision of MCP; empty where the host does not say it.
        who: a hash of who asks; None if nothing tells hosts apart.
        session: what names the session: its id, else who asks.
    """

    def __init__(self, request: Request, send: Send, listener: HttpListener) -> None:
        self.request, self._send = request, send
        self.is_begun = self.is_ended = False
        self.status = 0
        scope = request.scope
        self.headers = headers = end_to_end(scope["headers"], b"host", b"content-length", b"expect")
        self.session_id = header(headers, b"mcp-session-id")
        self.version = header(headers, b"mcp-protocol-version")
        query = scope["query_string"]
        url, to = listener.upstream.url, query.decode("latin-1")
        self.url = url.copy_with(raw_path=scope["raw_path"] + (b"?" + query if query else b""), fragment=None)
        self.is_to_endpoint = self.url.path.rstrip("/") == url.path.rstrip("/")  # as the server will see it
        if self.is_to_endpoint:
            self.url = url.copy_with(query=b"&".join(part for part in (url.query, query) if part)) if query else url
        # Recordings are replayed for another version of their host: there all revisions share answers
        told = without(headers, b"mcp-protocol-version") if listener.relay.is_taped else headers
        self.who = identity_of(told, listener.vary_by, url=to)
        # What repeats an argument is another one with each call
        lasting = [pair for pair in told if not pair[0].startswith(b"mcp-param-")]
        self.session = self.session_id or identity_of(lasting, listener.vary_by, url=to) or ""
        headers += [pair for pair in listener.added if not header(headers, pair[0])]

    async def has_gone(self) -> None:
        """Wait until the host has closed the connection. The body must have been read."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""
        self.is_begun, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of the body. Returns when there is room for more. After the end, nobody waits for it."""
        if not self.is_ended:
            self.is_ended = is_last
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def whole(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send all of a response."""
        await self.begin(status, [*without(headers, b"content-length"), (b"content-length", b"%d" % len(body))])
        await self.write(body, is_last=True)

    async def message(self, line: bytes, headers: Headers = (), status: int = 200) -> None:
        """End with a JSON-RPC message: as an event, if the response is a stream by now."""
        body = line.rstrip(b"\n")
        if self.is_begun:
            await self.write(b"event: message\r\ndata: " + body + b"\r\n\r\n", is_last=True)
        else:
            await self.whole(status, [_JSON, *headers], body)


class _Exchange(HostRequest):
    """One request to the endpoint, which goes to the server as it came. A call is the relay's to forward, or not.

    Attributes:
        is_resumable: whether the host can read the rest of the response by another request.
    """

    def __init__(
        self, listener: HttpListener, incoming: _Incoming, body: bytes, message: Message, host: HostSession | None
    ) -> None:
        super().__init__(message, incoming.who, host)
        self._listener, self._incoming, self._body = listener, incoming, body
        self._status, self._headers = 200, [_JSON]
        self._held: bytes | None = None  # of the server's response, what the host has not got
        self._parts: AsyncGenerator[bytes] | None = None
        self._upstream: httpx2.Response | None = None
        self._line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_resumable = self.is_broken = False

    # What the relay calls

    async def forward(self) -> Response:
        """Send the request to the server. Its messages to the host pass until its answer is there."""
        await self.close()
        incoming = self._incoming
        response = self._upstream = await self._listener.open(incoming, self._body)
        self._status, self._headers = response.status_code, self._listener.headers_of(response)
        try:
            if not is_event_stream(self._headers):
                self._held = await response.aread()
                return self._whole(self._held)
            if not incoming.is_begun:
                await incoming.begin(self._status, self._headers)
            self._parts = parts_of(response)
            async for part in self._parts:
                data = event_data(part)
                message = parsed(data)
                if message is not None and not message.method and message.id == self.id is not None:
                    self._held = part
                    return Response(data, message)
                self.is_resumable = self.is_resumable or any(line[:3] == b"id:" for line in part.splitlines())
                if message is not None:
                    await self._listener.heard(message, incoming, self)
                await incoming.write(part)
            raise ConnectionLost("the server has ended its response without an answer")
        except httpx2.TransportError as error:
            self.is_broken = True
            raise ConnectionLost(f"the server has broken off: {reason_of(error)}") from error
        finally:
            if incoming.is_ended:  # it was answered by the cache, and this is a load after that
                await self.close()

    def _whole(self, body: bytes) -> Response:
        """The response without a stream. What only HTTP refuses is an error of JSON-RPC to the relay."""
        message = parsed(body)
        if self._status >= 500:  # of a proxy on the way, perhaps: nobody knows what the server has done
            raise ConnectionLost(f"the server answered HTTP {self._status}")
        if message is not None and self._status < 300 and (message.result or message.error):
            return Response(body, message)
        said = data_of(message.error) if message is not None else None
        text = f"agent-cache: the server answered HTTP {self._status}"
        error = said if isinstance(said, dict) else {"code": INTERNAL_ERROR, "message": text}
        return Response(body, Message(id=self.id, error=msgspec.Raw(msgspec.json.encode(error))), is_refusal=True)

    async def ask(self, method: str, params: dict[str, Any]) -> Response:
        """Make a request of the relay's own in the name of the host."""
        body = request_line(f"agent-cache:{uuid.uuid4().hex}", method, params).rstrip(b"\n")
        response = await self._listener.open(self._incoming, body, method=method)
        try:
            async with aclosing(messages_of(response)) as messages:
                async for data in messages:
                    message = parsed(data)
                    if message is not None and not message.method and (message.result or message.error):
                        return Response(data, message)
        except httpx2.TransportError as error:
            raise ConnectionLost(f"the server has broken off: {reason_of(error)}") from error
        finally:
            await response.aclose()
        raise RpcError(INTERNAL_ERROR, f"the server answered {method} by HTTP {response.status_code}")

    def reply(self, line: bytes) -> None:
        """Take the answer, which `respond` sends."""
        self._line.set_result(line)

    # What the listener calls

    async def pass_on(self) -> None:
        """Let the server answer, whatever it says."""
        incoming = self._incoming
        try:
            self._listener.learn(self.message, await self.forward())
        except (RpcError, ConnectionLost) as error:
            if self._held is None and not incoming.is_begun:  # it cannot be reached
                said = error.error if isinstance(error, RpcError) else str(error)
                await incoming.message(error_line(self.id, said), status=502 if self.id is None else 200)
                return
        if not self.is_broken:  # else the response stays without an end, as the server's did
            await self._finish()

    async def respond(self, running: asyncio.Task[None]) -> None:
        """Send the answer to the host as soon as it is there, or that the request was cancelled."""
        if not self._line.done():
            ends: list[asyncio.Future[Any]] = [self._line, running]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        incoming = self._incoming
        line = self._line.result() if self._line.done() else error_line(self.id, _CANCELLED)
        message = parsed(line)
        is_own = self.response is not None and line is self.response.line
        is_error = message is not None and bool(message.error)
        if self._held is not None and self._line.done() and (is_own or (is_error and not incoming.is_begun)):
            await self._finish()
        elif is_error and incoming.is_begun and self.is_resumable and self._line.done():
            await incoming.write(b"", is_last=True)  # the host asks for the rest
        else:
            is_hello = self.method == "initialize" and self._listener.relay.is_replay
            await incoming.message(line, [(b"mcp-session-id", uuid.uuid4().hex.encode())] if is_hello else ())

    async def _finish(self) -> None:
        """Send what is left of the server's response."""
        incoming = self._incoming
        if self._parts is None:
            await incoming.whole(self._status, self._headers, self._held or b"")
            return
        await incoming.write(self._held or b"")
        try:
            async for part in self._parts:
                await incoming.write(part)
        except httpx2.TransportError as error:
            _LOG.info("the server has broken off after its answer: %s", error)
        await incoming.write(b"", is_last=True)

    async def close(self) -> None:
        """Close the response of the server."""
        response, self._upstream, self._parts, self._held = self._upstream, None, None, None
        if response is not None:
            await response.aclose()


class HttpListener:
    """The application (ASGI) that hosts talk to in place of the server.

    Its paths are those of the server: the endpoint is the path of the server's URL, and every other path passes.

    Args:
        relay: what answers calls. It must have been entered. It gets the identity of the server.
        upstream: the client of the server.
        headers: what is added to each request, such as Authorization, where the host has none of the name.
        vary_by: the headers that tell who asks; see `identity_of`.
        is_local: whether only this machine can connect. Then a request must name this machine as its host.
        origins: web origins that may send requests, beside those of this machine.

    Attributes:
        path: that of the endpoint.
    """

    def __init__(
        self,
        relay: Relay,
        upstream: Upstream,
        *,
        headers: Headers = (),
        vary_by: Iterable[str] = (),
        is_local: bool = True,
        origins: Iterable[str] = (),
    ) -> None:
        self.relay, self.upstream, self.added = relay, upstream, list(headers)
        self.vary_by, self._is_local, self._origins = tuple(vary_by), is_local, frozenset(origins)
        relay.identity = identity_of(self.added, url=str(upstream.url))
        self.path = upstream.url.path
        self._sessions: dict[str, HostSession] = {}
        self._calls: dict[tuple[str, str, Any], asyncio.Task[None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request, method = Request(scope, receive), scope["method"]
        incoming = _Incoming(request, send, self)
        if refusal := self._refusal(request):
            await incoming.message(error_line(None, refusal), status=403)
            return
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        found = parsed(body) if method == "POST" else None
        message, line = found or Message(), refusal_of(body, found) if method == "POST" else None
        if not incoming.is_to_endpoint:  # a server may have its endpoint under several names
            if self.relay.is_replay or (method == "POST" and b"tools/call" in body):
                line = error_line(None, f"calls of tools go to {self.path}")
                await incoming.message(line, status=404)
            else:
                await self._pass(incoming, body, Message())
        elif line is not None:
            await incoming.message(line, status=400)
        elif message.is_request and self.relay.answers(message) and is_id(message.id):
            await self._answer(incoming, body, message)
        elif self.relay.is_replay:
            status = {"POST": 400 if found is None or message.is_request else 202, "DELETE": 204}.get(method, 405)
            await incoming.whole(status, [(b"allow", b"POST, DELETE")] if status == 405 else [])
        else:
            if message.method == "notifications/cancelled":  # before the server answers: nobody else waits for that
                key = self._key_of(incoming, message.params_by_name().get("requestId"))
                if key in self._calls:
                    self._calls[key].cancel()
            await self._pass(incoming, body, message)
            if method == "DELETE" and incoming.status < 300:
                self._forget(incoming.session_id)

    def _refusal(self, request: Request) -> str:
        """Why a request is refused: a page of the web must not talk to a server on the machine of its reader."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._is_local and not is_loopback(_host_in(f"http://{host}")):
            return f"the host {host!r} is not this machine"
        if origin is not None and origin not in self._origins and not is_loopback(_host_in(origin)):
            return f"the origin {origin!r} is not allowed; --allow-origin allows it"
        return ""

    # Messages

    async def _answer(self, incoming: _Incoming, body: bytes, message: Message) -> None:
        """Answer a request by the relay."""
        session = self._session_of(incoming)
        request = _Exchange(self, incoming, body, message, session)
        session.running.add(request)
        running = self.relay.start(request)
        await asyncio.sleep(0)
        if request.is_answered:  # by the cache, which takes no more than this one turn of the event loop
            session.running.discard(request)
            await request.respond(running)
            return
        key = self._key_of(incoming, message.id)
        self._calls[key] = running
        responding = asyncio.create_task(request.respond(running))
        try:
            if not await _ends_before_its_host(responding, incoming) and (
                incoming.version >= MODERN or request.is_resumable
            ):
                running.cancel()
            await responding
        except asyncio.CancelledError:
            running.cancel()
            responding.cancel()
            raise
        finally:
            session.running.discard(request)
            if self._calls.get(key) is running:
                del self._calls[key]
            await request.close()

    async def _pass(self, incoming: _Incoming, body: bytes, message: Message) -> None:
        """Pass a request on, and the response back."""
        request = _Exchange(self, incoming, body, message, None)
        passing = asyncio.create_task(request.pass_on())
        try:
            if not await _ends_before_its_host(passing, incoming):
                passing.cancel()
            await asyncio.wait([passing])
            if not passing.cancelled():
                passing.result()
        finally:
            passing.cancel()
            await request.close()

    def _key_of(self, incoming: _Incoming, id: Any) -> tuple[str, str, Any]:  # noqa: A002 - the protocol's name
        """What names a call within all sessions."""
        return incoming.session_id or uuid.uuid4().hex, type(id).__name__, id if is_id(id) else None

    async def heard(self, message: Message, incoming: _Incoming, request: HostRequest) -> None:
        """Take note of a message of the server, before the host gets it."""
        session = self._sessions.get(incoming.session)
        if message.is_request:
            request.asked_host = True
            if request.host is None and session is not None:  # on a stream of its own it may be for any of them
                for each in session.running:
                    each.asked_host = True
        elif message.method in self.relay.observed:
            await self.relay.observe(message.method, data_of(message.params), session)

    def learn(self, asked: Message, answer: Response) -> None:
        """Take note of the answer to a request that passes."""
        if not answer.is_refusal and self.relay.learns(asked.method):
            self.relay.learn(asked, answer.result())

    # Sessions

    def _session_of(self, incoming: _Incoming) -> HostSession:
        """The session of a host: by its id; where it has none, by who asks."""
        session = self._sessions.pop(incoming.session, None)
        if session is None:
            session = self.relay.begin_session()
            if len(self._sessions) >= _MAX_SESSIONS:
                self._forget(next((name for name, each in self._sessions.items() if not each.running), ""))
        self._sessions[incoming.session] = session  # the last one is the one used last
        return session

    def _forget(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self.relay.end_session(session)

    # The server

    async def open(self, incoming: _Incoming, body: bytes, *, method: str | None = None) -> httpx2.Response:
        """Send a request to the endpoint.

        Args:
            incoming: whose headers are sent.
            body: the message, if it is a POST.
            method: the method of the message, if it is not that of the host.

        Raises:
            RpcError: if the server cannot be reached.
            ConnectionLost: if it breaks off.
        """
        headers = incoming.headers
        if method is not None:
            sent = [pair for pair in headers if pair[0] != b"mcp-name" and not pair[0].startswith(b"mcp-param-")]
            headers = [(name, method.encode() if name == b"mcp-method" else value) for name, value in sent]
        try:
            return await self.upstream.open(incoming.request.method, incoming.url, headers, body or None)
        except httpx2.ConnectError as error:
            text = f"agent-cache: the server at {self.upstream.name} cannot be reached: {error}"
            raise RpcError(INTERNAL_ERROR, text) from error
        except httpx2.TransportError as error:
            text = f"the server at {self.upstream.name} has broken off: {reason_of(error)}"
            raise ConnectionLost(text) from error

    def headers_of(self, response: httpx2.Response) -> list[tuple[bytes, bytes]]:
        """The headers for the host, who gets the body without content-encoding. A redirection to another path of the
        server leads to that path of the relay.
        """
        names = [b"content-encoding", b"content-length"] if "content-encoding" in response.headers else []
        headers = end_to_end(raw_headers(response), *names)
        location = header(headers, b"location")
        origin = str(self.upstream.url.copy_with(username=None, password=None, raw_path=b"/", fragment=None))
        if not location.startswith(origin):
            return headers
        path = b"/" + location.removeprefix(origin).encode("latin-1")
        return [(name, path if name == b"location" else value) for name, value in headers]


async def _ends_before_its_host(work: asyncio.Task[None], incoming: _Incoming) -> bool:
    """Wait until a task has ended, or its host has gone. Returns whether the task has ended."""
    gone = asyncio.create_task(incoming.has_gone())
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        gone.cancel()


def _host_in(url: str) -> str:
    try:
        return str(httpx2.URL(url).host)
    except httpx2.InvalidURL:
        return ""


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``--listen``: `HOST:PORT`, or a port of this machine. Port 0 is a free one.

    Raises:
        ConfigurationError: for anything else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not (port.isascii() and port.isdecimal() and int(port) < 65536 and host):
        raise ConfigurationError(f"--listen: {text!r} is no address; write HOST:PORT, such as 127.0.0.1:8123")
    return host, int(port)


async def listen(listener: HttpListener, address: tuple[str, int], on_listening: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT. Calls that run then have a few seconds to end.

    Args:
        listener: the application.
        address: of the socket.
        on_listening: gets the URL for hosts, when they can connect.

    Raises:
        OSError: if the address cannot be bound.
    """
    host, _ = address
    config = uvicorn.Config(
        listener, log_config=None, log_level="critical", access_log=False, lifespan="off", ws="none", loop="asyncio",
        server_header=False, date_header=False, proxy_headers=False, timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
    )  # fmt: skip
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server(address, family=family, backlog=128)
    # asyncio sends small responses at once only if the socket names its protocol
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach()) as bound:
        server: Any = uvicorn.Server(config)
        server.capture_signals = nullcontext  # a recording has to be finished after it has stopped
        with signals(lambda _: setattr(server, "should_exit", True)):
            shown = f"[{host}]" if ":" in host else host
            on_listening(f"http://{shown}:{bound.getsockname()[1]}{listener.path}")
            await server.serve(sockets=[bound])
