"""The relay between hosts and a server of Streamable HTTP: `agent-cache mcp --url URL --listen HOST:PORT`.

A transparent reverse proxy: everything passes as it is, in both directions, with these exceptions. A POSTed
`tools/call` goes through the rules, and a list or a resource through the cache of those. If the server is asked, its
messages to the host pass while the call runs, and its answer passes as its own bytes; what another request has brought
is answered as JSON. The notifications that the relay observes are read on their way.

A host that goes away closes its connection to the server, too. What that means to the call, the server decides: since
revision 2026-07-28 it is cancelled.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, nullcontext, suppress
from typing import Any, Final, TypeAlias

import httpx2
import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from agent_cache.core.asker import TRANSPORT
from agent_cache.errors import ConfigurationError
from agent_cache.recording.http.identity import is_loopback
from agent_cache.relay import messages
from agent_cache.relay.messages import ConnectionLost, Message, RpcError
from agent_cache.relay.relay import HostRequest, Relay
from agent_cache.relay.stdio import introduced, signals

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case, with their values, in order; a name may occur more than once."""

_JSON: Final = (b"content-type", b"application/json")
_ACCEPT: Final = (b"accept", b"application/json, text/event-stream")
_BROKEN_OFF: Final = "the server has broken off: {}"
_CANCELLED: Final = {"code": -32800, "message": "Request cancelled"}  # nobody waits for it any more
_GRACE_S: Final = 5
"""Seconds for calls to end after a signal to stop."""
_HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""RFC 9110, 7.6.1: they are between two neighbours, not between host and server."""
_NEUTRAL: Final = frozenset(name.encode() for name in TRANSPORT)
"""Headers of the transport, as are those that begin with ``content-``. Every other one may tell who asks: a server
takes its credentials where it likes."""
_ALWAYS: Final = frozenset({b"authorization", b"cookie", b"mcp-protocol-version"})
_BALANCING: Final = re.compile(
    rb"(?<![^;\s])(?:AWS[AE]LB(?:TG)?(?:CORS)?|ARRAffinity(?:SameSite)?|GCLB|__cf_bm|__cflb|_cfuvid)=[^;]*;?\s*"
)
"""Cookies by which load balancers know a connection again. Some are others with each response."""
_EVENT_END: Final = re.compile(rb"\r?\n\r?\n|\r\r")  # a CR behind a LF has its own LF still to come

# Headers


def end_to_end(headers: Headers, *names: bytes) -> list[tuple[bytes, bytes]]:
    """The headers without those that are between two neighbours, and without `names`."""
    listed = {one.strip() for name, value in headers if name == b"connection" for one in value.lower().split(b",")}
    left_out = {*_HOP_BY_HOP, *listed, *names}
    return [(name, value) for name, value in headers if name not in left_out]


def header(headers: Headers, name: bytes) -> str:
    """The first value of a header; empty without one."""
    return next((value.decode("latin-1") for one, value in headers if one == name), "")


def identity_of(headers: Headers, names: Iterable[str] = (), *, url: str = "") -> str | None:
    """A hash of who asks, and in which revision: requests of one identity share answers. None if nothing tells it.

    All headers count that are not of the transport, since a server may take its key from a header of any name; if there
    are `names`, these, Authorization, Cookie and the revision; and of the `url`, query and user, too.
    """
    chosen = {name.lower().encode("latin-1") for name in names}
    told = sorted(
        (name, _BALANCING.sub(b"", value) if name == b"cookie" else value)
        for name, value in headers
        if name in _ALWAYS or (name in chosen if chosen else name not in _NEUTRAL and not name.startswith(b"content-"))
    )
    if not told and not url:
        return None
    sent = [url, *([part.decode("latin-1") for part in pair] for pair in told)]
    return hashlib.sha256(msgspec.json.encode(sent)).hexdigest()


# The server


class Upstream:
    """The HTTP client of one server. It adds nothing to a request, and no cookie of one host to another's, and has no
    timeout.

    Proxies and certificates are those of the environment, as httpx2 reads them. Password and user in the URL are sent
    as Basic authentication. `name` is the address without password and query, for texts.
    """

    def __init__(self, url: str) -> None:
        try:
            self.url = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise ConfigurationError(f"--url: {error}") from None
        if self.url.scheme not in {"http", "https"} or not self.url.host or (self.url.port or 0) > 65_535:
            raise ConfigurationError("--url: give the endpoint of the server, such as https://example.com/mcp")
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        self._client = httpx2.AsyncClient(timeout=None, limits=limits)
        self._encodings = (b"accept-encoding", self._client.headers["accept-encoding"].encode("latin-1"))
        self.name = str(self.url.copy_with(username=None, password=None, query=None, fragment=None))
        self._origin = str(self.url.copy_with(username=None, password=None, raw_path=b"/", fragment=None))
        self.aclose = self._client.aclose

    async def open(self, method: str, url: httpx2.URL, headers: Headers, body: bytes | None) -> httpx2.Response:
        """Send a request. The body of the response is not read, and the response is to be closed. Raises `RpcError` if
        the server cannot be reached, `ConnectionLost` if it breaks off.
        """
        sent = [*(pair for pair in headers if pair[0] != b"accept-encoding"), self._encodings]
        try:
            return await self._client.send(httpx2.Request(method, url, headers=sent, content=body), stream=True)
        except httpx2.ConnectError as error:
            raise RpcError(f"agent-cache: the server at {self.name} cannot be reached: {error}") from error
        except httpx2.RequestError as error:
            raise ConnectionLost(_BROKEN_OFF.format(str(error) or type(error).__name__)) from error

    def headers_of(self, response: httpx2.Response) -> list[tuple[bytes, bytes]]:
        """The headers for the host, who gets the body without content-encoding. A redirection to another path of the
        server leads to that path of the relay.
        """
        is_another_length = "content-encoding" in response.headers or _is_event_stream(response)
        names = [b"content-encoding", b"content-length"] if is_another_length else []
        headers = end_to_end([(name.lower(), value) for name, value in response.headers.raw], *names)
        location = header(headers, b"location")
        if not location.startswith(self._origin):
            return headers
        path = b"/" + location.removeprefix(self._origin).encode("latin-1")
        return [(name, path if name == b"location" else value) for name, value in headers]

    async def introduced(self, headers: Headers) -> tuple[str, list[Any]]:
        """The name of the server and its tools: see `agent_cache.relay.stdio.introduced`."""
        session: list[tuple[bytes, bytes]] = []

        async def ask(method: str, params: dict[str, Any]) -> Any:
            modern = [(b"mcp-protocol-version", messages.MODERN.encode()), (b"mcp-method", method.encode())]
            sent = [*headers, _ACCEPT, _JSON, *session, *(modern if "_meta" in params else ())]
            number = None if method.startswith("notifications/") else 1
            response = await self.open("POST", self.url, sent, messages.request_line(number, method, params))
            name = response.headers.get("mcp-session-id")
            session[:] = [(b"mcp-session-id", name.encode("latin-1"))] if name else session
            if number is not None:
                return (await answer_in(response)).answer()
            await response.aclose()
            return None

        return await introduced(ask)


async def parts_of(response: httpx2.Response) -> AsyncGenerator[tuple[bytes, Message | None]]:
    """The body, in parts that joined are the body, and the message in each: an event where there are events, else all
    of it. An event that the end has cut is none.
    """
    rest = bytearray()  # what is joined to it costs no copy of what came before
    try:
        if not _is_event_stream(response):
            yield await response.aread(), messages.parsed(response.content)
            return
        async with aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                at = max(len(rest) - 3, 0)
                rest += chunk
                while found := _EVENT_END.search(rest, at):
                    event, at = bytes(rest[: found.end()]), 0
                    del rest[: len(event)]
                    yield event, messages.parsed(event_data(event))
    except httpx2.RequestError as error:
        raise ConnectionLost(_BROKEN_OFF.format(str(error) or type(error).__name__)) from error


def _is_event_stream(response: httpx2.Response) -> bool:
    return bool(response.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream")


def event_data(event: bytes) -> bytes:
    """The data of an event; empty for a comment."""
    lines = [line.partition(b":") for line in event.splitlines()]
    return b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")


async def answer_in(response: httpx2.Response) -> Message:
    """The answer to the relay's own request in a body, which is read and closed."""
    is_refused = response.status_code in (401, 403)  # whose body has an error of OAuth
    async with aclosing(response), aclosing(parts_of(response)) as parts:
        async for _, message in parts:
            if not is_refused and message is not None and (message.result or message.error):
                return message
    to = response.headers.get("location")
    more = f": its endpoint is {to}" if to else ": it wants credentials, as by --header" if is_refused else ""
    raise RpcError(f"the server answered HTTP {response.status_code}{more}")


# Hosts


class _Exchange(HostRequest):
    """One HTTP request of a host, and the response to it while it is written.

    `url` and `headers` go to the server; `vary` is a hash of who asks, and `session` the id of the session, else who
    asks.
    """

    def __init__(self, listener: HttpListener, request: Request, send: Send, body: bytes) -> None:
        self.request, self.body, self._listener, self._send = request, body, listener, send
        self.is_post = request.method == "POST"
        self.found = messages.parsed(body) if self.is_post else None
        scope, upstream = request.scope, listener.upstream
        self.headers = headers = end_to_end(scope["headers"], b"host", b"content-length", b"expect")
        self.session_id = header(headers, b"mcp-session-id")
        query = scope["query_string"]
        url, to = upstream.url, query.decode("latin-1")
        self.url = url.copy_with(raw_path=scope["raw_path"] + (b"?" + query if query else b""), fragment=None)
        self.is_to_endpoint = self.url.path.rstrip("/") == url.path.rstrip("/")  # as the server will see it
        if self.is_to_endpoint and url.query:
            self.url = self.url.copy_with(query=b"&".join(part for part in (url.query, query) if part))
        # Recordings are replayed for another version of their host: there all revisions share answers
        told = [pair for pair in headers if not (listener.relay.is_taped and pair[0] == b"mcp-protocol-version")]
        super().__init__(self.found or Message(), identity_of(told, listener.vary_by, url=to))
        # What repeats an argument is another one with each call, and the revision is not known before the first
        lasting = [pair for pair in told if not pair[0].startswith((b"mcp-param-", b"mcp-protocol-version"))]
        self.session = self.session_id or identity_of(lasting, listener.vary_by, url=to) or ""
        headers += [pair for pair in listener.added if not header(headers, pair[0])]
        self._line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.status, self._headers = 0, [_JSON]
        self._is_begun = self._is_ended = False
        self._held = b""  # the server's answer as it came, with what surrounds it
        self._is_resumable = False  # whether the host can ask for the rest of the stream

    # The response

    async def _begin(self, status: int, headers: Headers) -> None:
        self._is_begun, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of the body. Returns when there is room for more. After the end, nobody waits for it."""
        if not self._is_ended:
            self._is_ended = is_last
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def whole(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send all of a response."""
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        await self._begin(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.write(body, is_last=True)

    async def end(self, line: bytes, status: int = 200) -> None:
        """End with a JSON-RPC message: as an event, if the response is a stream by now."""
        body = line.rstrip(b"\n")
        if self._is_begun:
            await self.write(b"event: message\r\ndata: " + body + b"\r\n\r\n", is_last=True)
        else:
            await self.whole(status, [_JSON], body)

    # As the relay wants it

    async def forward(self, *, passes: bool = False) -> Message:
        """Send the request to the server. Its messages to the host pass until its answer is there; all of the response
        does, if it `passes`.
        """
        upstream = self._listener.upstream
        response = await upstream.open(self.request.method, self.url, self.headers, self.body or None)
        async with aclosing(response):
            is_stream = _is_event_stream(response)
            self.status, self._headers = response.status_code, upstream.headers_of(response)
            if passes or (is_stream and not self._is_begun):
                await self._begin(self.status, self._headers)
            async with aclosing(parts_of(response)) as parts:
                async for part, message in parts:
                    if message is not None and message.method:
                        await self._listener.heard(message, self, () if passes else (self,))
                    elif not passes and not is_stream:
                        self._held = part
                        return self._whole(part, message)
                    elif not passes and message is not None and str(message.id) == str(self.id):
                        self._held = part
                        return message
                    elif message is not None:  # of a stream that the host resumes
                        self._listener.relay.note_end(f"{self.session_id} {message.id}")
                    self._is_resumable |= part.startswith(b"id:") or b"\nid:" in part
                    await self.write(part)
            if passes:
                await self.write(b"", is_last=True)
                return Message()
            self.rest = f"{self.session_id} {self.id}" if self._is_resumable and self.session_id else ""
            raise ConnectionLost("the server has ended its response without an answer")

    def _whole(self, body: bytes, message: Message | None) -> Message:
        """The response without a stream. What only HTTP refuses is an error of JSON-RPC to the relay."""
        if self.status >= 500:  # of a proxy on the way, perhaps: nobody knows what the server has done
            self.response = Message(line=body)
            raise ConnectionLost(f"the server answered HTTP {self.status}")
        if message is not None and (message.error or (message.result and str(message.id) == str(self.id))):
            return message
        refused = messages.parsed(messages.error_line(self.id, f"the server answered HTTP {self.status}")) or Message()
        refused.line = body
        return refused

    async def ask(self, method: str, params: dict[str, Any]) -> Message:
        """Make a request of the relay's own in the name of the host."""
        sent = [pair for pair in self.headers if not pair[0].startswith((b"mcp-name", b"mcp-param-"))]
        headers = [(name, method.encode() if name == b"mcp-method" else value) for name, value in sent]
        body = messages.request_line(f"agent-cache:{uuid.uuid4().hex}", method, params)
        return await answer_in(await self._listener.upstream.open("POST", self.url, headers, body))

    def reply(self, line: bytes) -> None:
        """Take the answer, which `respond` sends."""
        self._line.set_result(line)

    async def respond(self, running: asyncio.Task[None]) -> None:
        """Send the answer to the host as soon as it is there, or that the request was cancelled."""
        ends: list[asyncio.Future[Any]] = [self._line, running]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        line = self._line.result() if self._line.done() else messages.error_line(self.id, _CANCELLED)
        if self.response is None and self._is_resumable:
            await self.write(b"", is_last=True)  # the host asks for the rest
        elif self.response is None or line is not self.response.line:
            await self.end(line)
        elif self._is_begun:
            await self.write(self._held, is_last=True)
        else:
            await self.whole(self.status, self._headers, self._held)

    async def pass_on(self) -> None:
        """Pass the request on, and the response back."""
        try:
            await self.forward(passes=True)
        except (RpcError, ConnectionLost) as error:
            if self._is_begun:
                raise  # which closes the connection
            await self.end(messages.error_line(self.id, error), status=502 if self.id is None else 200)


class HttpListener:
    """The application (ASGI) that hosts talk to in place of the server.

    Its paths are those of the server: the endpoint is the path of the server's URL, and every other path passes.

    `headers` are added to each request where the host has none of the name; of `vary_by` see `identity_of`. If only
    this machine can connect, a request must name it as its host. Of the web only this machine's origins may send any.
    """

    def __init__(
        self,
        relay: Relay,
        upstream: Upstream,
        *,
        headers: Headers = (),
        vary_by: Iterable[str] = (),
        is_local: bool = True,
    ) -> None:
        self.relay, self.upstream, self.added = relay, upstream, list(headers)
        self.vary_by, self._is_local = tuple(vary_by), is_local
        relay.identity = identity_of(self.added, url=str(upstream.url))
        self.path = upstream.url.path
        self._calls: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, unless its host goes away."""
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        answering = asyncio.create_task(self._answer(_Exchange(self, request, send, body)))
        leaving = asyncio.create_task(gone())
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            leaving.cancel()
            answering.cancel()
            await asyncio.wait([answering])

    async def _answer(self, exchange: _Exchange) -> None:
        message, body, is_replay = exchange.message, exchange.body, self.relay.is_replay
        if message.method in ("initialize", "server/discover") and exchange.session in self.relay.hosts:
            self.relay.hosts[exchange.session].tools = None  # a server without sessions may be a newer one by now
        if refusal := self._refusal(exchange.request):
            await exchange.end(messages.error_line(None, refusal), status=403)
        elif not exchange.is_to_endpoint:  # a server may have its endpoint under several names
            if is_replay or (exchange.is_post and b"tools/call" in body):
                text = "a call of a tool came to %s; calls are answered at %s alone"
                logging.getLogger("agent_cache").warning(text, exchange.url.path, self.path)
                await exchange.end(messages.error_line(None, f"calls of tools go to {self.path}"), status=404)
            else:
                await exchange.pass_on()
        elif message.is_request and self.relay.answers(message):
            await self._call(exchange)
        elif is_replay:
            status = {"POST": 202, "DELETE": 204}.get(exchange.request.method, 405)
            await exchange.whole(status, [(b"allow", b"POST, DELETE")] if status == 405 else [])
        elif exchange.is_post and messages.is_unjudged(body, exchange.found):
            async with self.relay.unjudged():
                await exchange.pass_on()
        else:
            if message.method == "notifications/cancelled":
                name = exchange.session_id, str(exchange.params.get("requestId"))
                running = self._calls.get(name)
                if running is not None:  # before the server answers: nobody else waits for that
                    running.cancel()
                self.relay.note_end(" ".join(name))
            await exchange.pass_on()
            if exchange.request.method == "DELETE" and exchange.status < 300:
                self.relay.end_host(exchange.session_id)

    def _refusal(self, request: Request) -> str:
        """Why a request is refused: a page of the web must not talk to a server on the machine of its reader."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._is_local and not is_loopback(_host_in(f"http://{host}")):
            return f"the host {host!r} is not this machine"
        if origin is not None and not is_loopback(_host_in(origin)):
            return f"the origin {origin!r} is not this machine"
        return ""

    async def _call(self, exchange: _Exchange) -> None:
        """Have the relay answer a request. A host that goes away has cancelled it."""
        session = exchange.host = self.relay.host(exchange.session)
        session.running.add(exchange)
        if not exchange.session_id:  # several hosts may send the same: what one connection brings is of one of them
            exchange.checked = self.relay.host(f"{exchange.session} {exchange.request.client}")
        running = self.relay.start(exchange)
        key = exchange.session_id or uuid.uuid4().hex, str(exchange.id)
        self._calls[key] = running
        try:
            await exchange.respond(running)
        except asyncio.CancelledError:
            running.cancel()
            raise
        finally:
            session.running.discard(exchange)
            self._calls.pop(key, None)

    async def heard(self, message: Message, exchange: _Exchange, asking: Sequence[HostRequest]) -> None:
        """Take note of a request or a notification of the server, before the host gets it. On a stream of its own it
        may be for any request that runs.
        """
        session = self.relay.hosts.get(exchange.session)
        if message.is_request:
            for each in asking or (session.running if session is not None else ()):
                each.asked_host = True
        elif message.method in self.relay.observed:
            await self.relay.observe(message.method, message.content, session)


def _host_in(url: str) -> str:
    with suppress(httpx2.InvalidURL):
        return str(httpx2.URL(url).host)
    return ""


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``--listen``: `HOST:PORT`, or a port of this machine. Port 0 is a free one."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not (port.isascii() and port.isdecimal() and int(port) < 65536 and host):
        raise ConfigurationError(f"--listen: {text!r} is no address; write HOST:PORT, such as 127.0.0.1:8123")
    return host, int(port)


async def listen(listener: HttpListener, address: tuple[str, int], on_listening: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT. Calls that run then have a few seconds to end. `on_listening` gets the URL for
    hosts, when they can connect.
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
