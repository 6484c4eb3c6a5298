"""The relay between hosts and a server of Streamable HTTP: `agent-cache mcp --url URL --listen HOST:PORT`.

Everything passes as it is and at once, in both directions, with these exceptions. A POSTed `tools/call` goes through
the rules. If the server is asked for it, its messages to the host pass while the call runs, and its answer passes as
its own bytes; what another request has brought is answered as JSON. Answers to `tools/list`, and the notifications that
the relay observes, are read on their way. While a cassette is recorded or replayed, all requests go through it.

A host that goes away cancels its call from revision 2026-07-28 on, as the specification says. Before, the call goes on
to its end, unless the host can resume the stream of events: then the server must see that nobody reads it here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx2
import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from agent_cache.errors import ConfigurationError
from agent_cache.relay.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ConnectionLost,
    Message,
    Response,
    RpcError,
    batch_of,
    data_of,
    error_line,
    has_one_meaning,
    is_id,
    one_line,
    parsed,
    request_line,
)
from agent_cache.relay.relay import HostRequest, HostSession, Relay
from agent_cache.relay.streamable_http import (
    EVENT_STREAM,
    MODERN,
    EventSplitter,
    Headers,
    Upstream,
    end_to_end,
    event_data,
    event_of,
    header,
    identity_of,
    is_event_stream,
    raw_headers,
    reason_of,
    without,
)

__all__ = ["HttpListener", "address_of", "is_loopback", "listen"]

_LOG = logging.getLogger("agent_cache")

_JSON: Final = (b"content-type", b"application/json")
_REQUEST_CANCELLED: Final = -32800
"""As the MCP SDK answers a request that was cancelled. Nobody waits for it any more."""

_MAX_SESSIONS: Final = 10_000
_GRACE_S: Final = 5
"""Seconds for calls to end after a signal to stop."""
_IDLE_S: Final = 3600.0
"""A session of a host without a request for so long is forgotten; the next request begins another."""


class Reply:
    """The HTTP response to one request of a host, while it is written."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_begun = self.is_ended = False

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""
        self.is_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        """Send a part of the body. Returns when there is room for more. After the end, nobody waits for it."""
        if not self.is_ended:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self.is_ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send all of a response."""
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, [*without(headers, b"content-length"), length])
        await self.end(body)

    async def message(self, message: bytes, headers: Headers = ()) -> None:
        """End with a JSON-RPC message: as an event, if the response is a stream by now."""
        if self.is_begun:
            await self.end(event_of(message))
        else:
            await self.whole(200, [_JSON, *headers], message)


class BatchReply(Reply):
    """The part of a response that belongs to one request of a batch: events of a common stream."""

    def __init__(self, common: Reply) -> None:
        self._common = common
        self.is_begun = self.is_ended = False

    async def begin(self, status: int, headers: Headers) -> None:  # noqa: ARG002 - the stream has those of its own
        """Begin the common stream."""
        self.is_begun = True
        if not self._common.is_begun:
            await self._common.begin(200, [(b"content-type", EVENT_STREAM)])

    async def write(self, data: bytes) -> None:
        """Send whole events."""
        if not self.is_ended:
            await self._common.write(data)

    async def end(self, data: bytes = b"") -> None:
        """Send the last events of this request."""
        if data:
            await self.write(data)
        self.is_ended = True

    async def whole(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a message as an event."""
        await self.begin(status, headers)
        await self.end(event_of(one_line(body)))


@dataclass(slots=True, eq=False)
class Connected:
    """One session of a host, and what it does.

    Attributes:
        host: what the relay knows of it.
        requests: its calls that run.
        used: when it was used last, in seconds of the event loop.
    """

    host: HostSession
    requests: set[CallRequest] = field(default_factory=set)
    used: float = 0.0


class Incoming:
    """One request of a host.

    Args:
        request: the request.
        send: sends the response.
        vary_by: the headers that tell who asks; see `identity_of`.
        is_taped: whether it is recorded or replayed. Then hosts of all revisions share answers: a recording is replayed
            for another version of its host.

    Attributes:
        headers: as they go to the server, but for those of one connection, and those that the relay adds.
        version: the revision of MCP; empty where the host does not say it.
        who: a hash of who asks; None if nothing tells hosts apart.
        session: what names the session: its id, else who asks.
    """

    def __init__(self, request: Request, send: Send, vary_by: Iterable[str], *, is_taped: bool) -> None:
        self.request = request
        self.reply = Reply(send)
        self.headers = headers = end_to_end(request.scope["headers"], b"host", b"content-length", b"expect")
        self.session_id = header(headers, b"mcp-session-id")
        self.version = header(headers, b"mcp-protocol-version") or ""
        query = request.scope["query_string"].decode("latin-1")
        told = without(headers, b"mcp-protocol-version") if is_taped else headers
        self.who = identity_of(told, vary_by, url=query)
        self.session = self.session_id or ""
        if not self.session:  # what repeats an argument is another one with each call
            lasting = [pair for pair in told if not pair[0].startswith(b"mcp-param-")]
            self.session = identity_of(lasting, vary_by, url=query) or ""

    async def has_gone(self) -> None:
        """Wait until the host has closed the connection. The body must have been read."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


class CallRequest(HostRequest):
    """A request of a host that goes through the relay.

    Attributes:
        is_resumable: whether the host can read the rest of the response by another request.
    """

    def __init__(
        self,
        listener: HttpListener,
        incoming: Incoming,
        reply: Reply,
        body: bytes,
        message: Message,
        host: HostSession,
    ) -> None:
        params = data_of(message.params)
        params = params if isinstance(params, dict) else {}
        super().__init__(message.id, message.method, params, vary=incoming.who, host=host)
        self._listener = listener
        self._incoming = incoming
        self._http_reply = reply
        self._body = body
        self._answer: Response | None = None
        self._status = 200
        self._headers: Headers = ()
        self._bytes: bytes | None = None
        self._response: httpx2.Response | None = None
        self._rest: AsyncIterator[bytes] | None = None
        self._line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.has_run = self.is_resumable = self.is_broken = False

    # What the relay calls

    async def forward(self) -> Response:
        """Send the request to the server as it came. Its messages to the host pass until its answer is there."""
        self.has_run = True
        await self.close()
        response = self._response = await self._listener.post(self._incoming, self._body)
        self._status, self._headers = response.status_code, _headers_of(response)
        try:
            if response.status_code == 200 and is_event_stream(self._headers):
                return await self._stream(response)
            body = self._bytes = await response.aread()
        except httpx2.TransportError as error:
            raise ConnectionLost(f"the server has broken off: {reason_of(error)}") from error
        finally:
            if self._http_reply.is_ended:  # it was answered by the cache, and this is a load after that
                await self.close()
        return self._whole(body)

    async def _stream(self, response: httpx2.Response) -> Response:
        if not self._http_reply.is_begun:
            await self._http_reply.begin(response.status_code, self._headers)
        chunks = self._rest = response.aiter_bytes()
        splitter = EventSplitter()
        async for chunk in chunks:
            events = splitter.split(chunk)
            for at, event in enumerate(events):
                found = event_data(event)
                message = parsed(found.data)
                if message is not None and not message.method and message.id == self.id:
                    self._bytes = b"".join((*events[at:], splitter.rest()))
                    self._answer = Response(found.data, message)
                    return self._answer
                self.is_resumable = self.is_resumable or bool(found.id)
                if message is not None:
                    await self._listener.heard(message, self._incoming, self)
                await self._http_reply.write(event)
        self.is_broken = True
        await self._http_reply.write(splitter.rest())
        raise ConnectionLost("the server has ended its response without an answer")

    def _whole(self, body: bytes) -> Response:
        """The response without a stream. What only HTTP refuses is an error of JSON-RPC to the relay."""
        message = parsed(body)
        if self._status >= 500:  # of a proxy on the way, perhaps: nobody knows what the server has done
            raise ConnectionLost(f"the server answered HTTP {self._status}")
        if self._status >= 300 or message is None or not (message.result or message.error):
            text = f"the server answered HTTP {self._status}"
            said = data_of(message.error) if message is not None and message.error else None
            error = said if isinstance(said, dict) else {"code": INTERNAL_ERROR, "message": f"agent-cache: {text}"}
            message = Message(id=self.id, error=msgspec.Raw(msgspec.json.encode({**error, "data": _HTTP_REFUSAL})))
        self._answer = Response(body, message)
        return self._answer

    async def ask(self, method: str, params: dict[str, Any]) -> Response:
        """Make a request of the relay's own in the name of the host."""
        body = request_line(f"agent-cache:{uuid.uuid4().hex}", method, params).rstrip(b"\n")
        response = await self._listener.post(self._incoming, body, method=method)
        try:
            if is_event_stream(_headers_of(response)):
                splitter = EventSplitter()
                async for chunk in response.aiter_bytes():
                    for event in splitter.split(chunk):
                        data = event_data(event).data
                        message = parsed(data)
                        if message is not None and not message.method:
                            return Response(data, message)
                raise ConnectionLost("the server has ended its response without an answer")
            body = await response.aread()
        except httpx2.TransportError as error:
            raise ConnectionLost(f"the server has broken off: {reason_of(error)}") from error
        finally:
            await response.aclose()
        message = parsed(body)
        if message is None or not (message.result or message.error):
            raise RpcError(INTERNAL_ERROR, f"the server answered {method} by HTTP {response.status_code}")
        return Response(body, message)

    def reply(self, line: bytes) -> None:
        """Take the answer, which `respond` sends."""
        self._line.set_result(line)

    # What the listener calls

    async def respond(self, running: asyncio.Task[None]) -> None:
        """Send the answer to the host as soon as it is there, or that the request was cancelled."""
        ends: list[asyncio.Future[Any]] = [self._line, running]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self._line.done():
            text = {"code": _REQUEST_CANCELLED, "message": "Request cancelled"}
            await self._http_reply.message(error_line(self.id, text).rstrip(b"\n"))
            return
        line = self._line.result()
        message = parsed(line)
        is_error = message is not None and bool(message.error)
        if self._answer is not None and line is self._answer.line:
            await self._finish()
        elif is_error and not self.has_run and message is not None and _is_http_refusal(message):
            # The server has refused the request that this one has waited for, perhaps for reasons of its session
            await self.pass_through()
        elif is_error and self._bytes is not None and not self._http_reply.is_begun:
            await self._http_reply.whole(self._status, self._headers, self._bytes)
        elif is_error and self.is_broken and self.is_resumable:
            await self._http_reply.end()  # the host asks for the rest
        else:
            await self._http_reply.message(line.rstrip(b"\n"), self._listener.answer_headers(self.method))

    async def pass_through(self) -> None:
        """Let the server answer, whatever it says."""
        try:
            await self.forward()
        except ConnectionLost as error:
            if self._bytes is None:
                line = error_line(self.id, {"code": INTERNAL_ERROR, "message": f"agent-cache: {error}"})
                await self._http_reply.message(line.rstrip(b"\n"))
                return
        await self._finish()

    async def _finish(self) -> None:
        """Send the server's answer as it came, and what comes after it."""
        if self._rest is None:
            await self._http_reply.whole(self._status, self._headers, self._bytes or b"")
            return
        await self._http_reply.write(self._bytes or b"")
        try:
            async for chunk in self._rest:
                await self._http_reply.write(chunk)
        except httpx2.TransportError as error:
            _LOG.info("the server has broken off after its answer: %s", error)
        await self._http_reply.end()

    async def close(self) -> None:
        """Close the response of the server."""
        response, self._response, self._rest, self._bytes = self._response, None, None, None
        if response is not None:
            await response.aclose()


_HTTP_REFUSAL: Final = {"agent-cache": "HTTP"}
"""The data of an error that stands for a status of HTTP."""


def _is_http_refusal(message: Message) -> bool:
    error = data_of(message.error)
    return isinstance(error, dict) and error.get("data") == _HTTP_REFUSAL


def _is_read(body: bytes, message: Message | None) -> bool:
    """Whether it is known what a message of a host asks for. What is not may be a call of any tool."""
    if message is None or not has_one_meaning(body, message):
        return False
    return is_id(message.id) or message.method != "tools/call"


def _headers_of(response: httpx2.Response) -> list[tuple[bytes, bytes]]:
    """The headers for the host, who gets the body without content-encoding."""
    return end_to_end(raw_headers(response), b"content-encoding")


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
        self._relay = relay
        self._upstream = upstream
        self._added = list(headers)
        self._vary_by = tuple(vary_by)
        relay.identity = identity_of(self._added, url=str(upstream.url))
        self._is_local = is_local
        self._origins = frozenset(origins)
        self.path = upstream.url.path
        self._sessions: dict[str, Connected] = {}
        self._opening = asyncio.Lock()
        self._calls: dict[tuple[str, str, Any], asyncio.Task[None]] = {}
        self._endless: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        incoming = Incoming(request, send, self._vary_by, is_taped=self._relay.is_taped)
        incoming.headers += [pair for pair in self._added if header(incoming.headers, pair[0]) is None]
        refusal = self._refusal(request)
        if refusal is not None:
            body = msgspec.json.encode({"jsonrpc": "2.0", "error": {"code": INTERNAL_ERROR, "message": refusal}})
            await incoming.reply.whole(403, [_JSON], body)
            return
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        if scope["path"].rstrip("/") != self.path.rstrip("/"):
            await self._elsewhere(incoming, body)
        elif scope["method"] == "POST":
            await self._post(incoming, body)
        elif self._relay.is_replay:
            if scope["method"] == "DELETE":
                await incoming.reply.whole(204, [])
            else:
                await incoming.reply.whole(405, [(b"allow", b"POST, DELETE")])
        else:
            status = await self._pass(incoming, scope["method"], body or None)
            if scope["method"] == "DELETE" and status < 300 and incoming.session_id is not None:
                self._forget(incoming.session_id)

    def _refusal(self, request: Request) -> str | None:
        """Why a request is refused: a page of the web must not talk to a server on the machine of its reader."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._is_local and not is_loopback(_host_in(f"http://{host}")):
            return f"agent-cache: the host {host!r} is not this machine"
        if origin is not None and origin not in self._origins and not is_loopback(_host_in(origin)):
            return f"agent-cache: the origin {origin!r} is not allowed; --allow-origin allows it"
        return None

    # Messages

    async def _post(self, incoming: Incoming, body: bytes) -> None:
        batch = batch_of(body)
        if batch is not None:
            await self._batch(incoming, body, batch)
            return
        message = parsed(body)
        is_read = _is_read(body, message)
        if is_read and message is not None and message.is_request and self._relay.answers(message.method):
            await self._answer(incoming, incoming.reply, body, message)
        elif self._relay.is_replay:
            if is_read and message is not None and not message.is_request:
                await incoming.reply.whole(202, [])
            else:
                text = {"code": INVALID_REQUEST, "message": "agent-cache: this is no request that can be read"}
                await incoming.reply.whole(400, [_JSON], error_line(None, text).rstrip(b"\n"))
        elif not is_read and body.strip():
            await asyncio.shield(self._relay.start_unread(partial(self._pass, incoming, "POST", body, message)))
        else:
            if message is not None and message.method == "notifications/cancelled":
                self._cancel(incoming, data_of(message.params))  # before the server answers: nobody else waits for that
            await self._pass(incoming, "POST", body, message)

    async def _batch(self, incoming: Incoming, body: bytes, batch: list[bytes]) -> None:
        """Several messages at once, as revision 2025-03-26 has them: each goes its own way."""
        messages = [(each, parsed(each)) for each in batch]
        if not all(_is_read(each, one) for each, one in messages) and not self._relay.is_replay:
            await asyncio.shield(self._relay.start_unread(partial(self._pass, incoming, "POST", body)))
            return
        if not any(one is not None and one.is_request and self._relay.answers(one.method) for _, one in messages):
            await self._pass(incoming, "POST", body)
            return
        async with asyncio.TaskGroup() as group:
            for each, message in messages:
                if message is not None and message.is_request and is_id(message.id):
                    group.create_task(self._answer(incoming, BatchReply(incoming.reply), each, message))
                elif not self._relay.is_replay:
                    group.create_task(self._send_only(incoming, each))
        await incoming.reply.end()

    async def _send_only(self, incoming: Incoming, body: bytes) -> None:
        try:
            response = await self.post(incoming, body)
            await response.aclose()
        except (ConnectionLost, RpcError) as error:
            _LOG.warning("a notification did not reach the server: %s", error)

    async def _answer(self, incoming: Incoming, reply: Reply, body: bytes, message: Message) -> None:
        """Answer a request by the relay."""
        state = await self._session_of(incoming)
        request = CallRequest(self, incoming, reply, body, message, state.host)
        state.requests.add(request)
        if not self._relay.answers(message.method):  # the part of a batch that needs no rules
            try:
                await request.pass_through()
            finally:
                state.requests.discard(request)
                await request.close()
            return
        running = self._relay.start(request)
        await asyncio.sleep(0)
        if request.is_answered:  # by the cache, which takes no more than this one turn of the event loop
            state.requests.discard(request)
            await request.respond(running)
            return
        key = None if incoming.session_id is None else (incoming.session_id, type(message.id).__name__, message.id)
        if key is not None:
            self._calls[key] = running
        responding = asyncio.create_task(request.respond(running))
        gone = asyncio.create_task(incoming.has_gone())
        try:
            await asyncio.wait([responding, gone], return_when=asyncio.FIRST_COMPLETED)
            if not responding.done() and (incoming.version >= MODERN or request.is_resumable):
                running.cancel()
            await responding
        except asyncio.CancelledError:
            running.cancel()
            responding.cancel()
            raise
        finally:
            gone.cancel()
            state.requests.discard(request)
            if key is not None and self._calls.get(key) is running:
                del self._calls[key]
            await request.close()

    def _cancel(self, incoming: Incoming, params: Any) -> None:
        """Cancel the call that a host has cancelled. The server is told by the host's own message."""
        name = params.get("requestId") if isinstance(params, dict) else None
        if incoming.session_id is not None and isinstance(name, str | int):
            running = self._calls.get((incoming.session_id, type(name).__name__, name))
            if running is not None:
                running.cancel()

    async def heard(self, message: Message, incoming: Incoming, request: CallRequest | None = None) -> None:
        """Take note of a message of the server, before the host gets it."""
        if message.is_request:
            if request is not None:
                request.asked_host = True
            else:  # it may be for any of them
                state = self._sessions.get(incoming.session)
                for each in state.requests if state is not None else ():
                    each.asked_host = True
        elif message.method in self._relay.observed:
            state = self._sessions.get(incoming.session)
            host = None if state is None else state.host
            await self._relay.observe(message.method, data_of(message.params), host)

    def answer_headers(self, method: str) -> Headers:
        """The headers of an answer that the server has not given."""
        if method == "initialize" and self._relay.is_replay:
            return [(b"mcp-session-id", uuid.uuid4().hex.encode())]
        return []

    # Sessions

    async def _session_of(self, incoming: Incoming) -> Connected:
        """The session of a host: by its id; where it has none, by who asks."""
        name = incoming.session
        now = asyncio.get_running_loop().time()
        state = self._sessions.pop(name, None)
        if state is None:
            async with self._opening:
                state = self._sessions.get(name)
                if state is None:
                    self._forget_idle(now)
                    state = Connected(await self._relay.begin_session())
        self._sessions[name] = state  # the last one is the one used last
        state.used = now
        return state

    def _forget_idle(self, now: float) -> None:
        for name, state in list(self._sessions.items()):
            is_idle = now - state.used > _IDLE_S or len(self._sessions) >= _MAX_SESSIONS
            if not is_idle:
                break
            if not state.requests:
                self._forget(name)

    def _forget(self, name: str) -> None:
        state = self._sessions.pop(name, None)
        if state is not None:
            self._relay.end_session(state.host)

    # The server

    async def post(self, incoming: Incoming, body: bytes, *, method: str | None = None) -> httpx2.Response:
        """Send a message to the server.

        Args:
            incoming: whose headers are sent.
            method: the method of the message, if it is not that of the host.

        Raises:
            RpcError: if the server cannot be reached.
            ConnectionLost: if it breaks off.
        """
        headers = without(incoming.headers, b"accept-encoding")
        if method is not None:
            headers = [
                (name, value) for name, value in headers if name != b"mcp-name" and not name.startswith(b"mcp-param-")
            ]
            headers = [(name, method.encode() if name == b"mcp-method" else value) for name, value in headers]
        headers.append((b"accept-encoding", self._upstream.encodings))
        url = self._upstream.endpoint(incoming.request.scope["query_string"])
        try:
            return await self._upstream.open("POST", url, headers, body)
        except httpx2.ConnectError as error:
            text = f"agent-cache: the server at {self._upstream.name} cannot be reached: {error}"
            raise RpcError(INTERNAL_ERROR, text) from error
        except httpx2.TransportError as error:
            text = f"the server at {self._upstream.name} has broken off: {reason_of(error)}"
            raise ConnectionLost(text) from error

    async def _elsewhere(self, incoming: Incoming, body: bytes) -> None:
        """A path beside the endpoint: nothing of it is read."""
        if self._relay.is_replay:
            await incoming.reply.whole(404, [])
            return
        scope = incoming.request.scope
        url = self._upstream.elsewhere(scope["raw_path"], scope["query_string"])
        await self._pass(incoming, scope["method"], body or None, url=url)

    async def _pass(
        self,
        incoming: Incoming,
        method: str,
        body: bytes | None,
        message: Message | None = None,
        url: httpx2.URL | None = None,
    ) -> int:
        """Pass a request on, and the response back. Returns the status of HTTP."""
        passing = asyncio.create_task(self._passed(incoming, method, body, message, url))
        gone = asyncio.create_task(incoming.has_gone())
        if method == "GET" or (message is not None and message.method == "subscriptions/listen"):
            self._endless.add(passing)
        try:
            await asyncio.wait([passing, gone], return_when=asyncio.FIRST_COMPLETED)
            if not passing.done() and gone.done():
                passing.cancel()
            await asyncio.wait([passing])
            return 499 if passing.cancelled() else passing.result()
        finally:
            gone.cancel()
            passing.cancel()
            self._endless.discard(passing)

    async def _passed(
        self, incoming: Incoming, method: str, body: bytes | None, message: Message | None, url: httpx2.URL | None
    ) -> int:
        reply, is_endpoint = incoming.reply, url is None
        headers = incoming.headers
        if is_endpoint:
            headers = [*without(headers, b"accept-encoding"), (b"accept-encoding", self._upstream.encodings)]
            url = self._upstream.endpoint(incoming.request.scope["query_string"])
        assert url is not None
        try:
            response = await self._upstream.open(method, url, headers, body)
        except httpx2.TransportError as error:
            text = f"agent-cache: the server at {self._upstream.name} cannot be reached: {reason_of(error)}"
            name = message.id if message is not None and message.is_request else None
            line = error_line(name, {"code": INTERNAL_ERROR, "message": text}).rstrip(b"\n")
            await reply.whole(200 if name is not None else 502, [_JSON], line)
            return 502
        status: int = response.status_code
        try:
            sent = _headers_of(response) if is_endpoint else end_to_end(raw_headers(response))
            if is_endpoint and "content-encoding" in response.headers:
                sent = without(sent, b"content-length")
            await reply.begin(status, self._located(sent, incoming))
            if not is_endpoint:
                async for chunk in response.aiter_raw():
                    await reply.write(chunk)
            elif is_event_stream(sent):
                async for event in self._events(response, incoming, message):
                    await reply.write(event)
            else:
                parts = []
                async for chunk in response.aiter_bytes():
                    parts.append(chunk)
                    await reply.write(chunk)
                await self._learn(incoming, message, b"".join(parts))
        except httpx2.TransportError as error:
            _LOG.info("the server at %s has broken off: %s", self._upstream.name, error)
            return status  # the response stays without an end, as the server's did
        finally:
            await response.aclose()
        await reply.end()
        return status

    async def _events(
        self, response: httpx2.Response, incoming: Incoming, message: Message | None
    ) -> AsyncGenerator[bytes]:
        splitter = EventSplitter()
        async for chunk in response.aiter_bytes():
            for event in splitter.split(chunk):
                data = event_data(event).data
                heard = parsed(data)
                if heard is not None and heard.method:
                    await self.heard(heard, incoming)
                elif heard is not None:
                    await self._learn(incoming, message, data)
                yield event
        yield splitter.rest()

    async def _learn(self, incoming: Incoming, asked: Message | None, data: bytes) -> None:
        """Take note of the answer to a request that has passed."""
        if asked is None or not self._relay.learns(asked.method):
            return
        answer = parsed(data)
        if answer is not None and answer.result:
            state = await self._session_of(incoming)
            self._relay.learn(asked.method, data_of(asked.params), data_of(answer.result), state.host)

    def _located(self, headers: list[tuple[bytes, bytes]], incoming: Incoming) -> Headers:
        """A redirection to another path of the server leads to that path of the relay."""
        location = header(headers, b"location")
        if location is None or incoming.request.scope["path"].rstrip("/") != self.path.rstrip("/"):
            return headers
        origin = str(self._upstream.url.copy_with(username=None, password=None, raw_path=b"/", fragment=None))
        if not location.startswith(origin):
            return headers
        path = b"/" + location.removeprefix(origin).encode("latin-1")
        return [(name, path if name == b"location" else value) for name, value in headers]

    def end_streams(self) -> None:
        """End what has no end of its own: streams of messages that hosts listen to."""
        for task in self._endless:
            task.cancel()


def is_loopback(host: str) -> bool:
    """Whether a host name or address is always this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_in(url: str) -> str:
    try:
        host: str = httpx2.URL(url).host
    except httpx2.InvalidURL:
        return ""
    return host


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


class _Server(uvicorn.Server):
    """A server that ends streams without an end when it is to stop, and waits for calls only."""

    def __init__(self, config: uvicorn.Config, listener: HttpListener) -> None:
        super().__init__(config)
        self._listener = listener

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, at a signal."""
        self._listener.end_streams()
        await super().shutdown(sockets)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens. asyncio sends small responses at once only if the socket names its protocol."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two processes have one address
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


async def listen(listener: HttpListener, address: tuple[str, int], on_listening: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT. Calls that run then have a few seconds to end.

    Args:
        listener: the application.
        address: of the socket.
        on_listening: gets the URL for hosts, when they can connect.

    Raises:
        OSError: if the address cannot be bound.
    """
    host, port = address
    config = uvicorn.Config(
        listener, log_config=None, log_level="critical", access_log=False, lifespan="off", ws="none",
        server_header=False, date_header=False, proxy_headers=False, timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
    )  # fmt: skip
    with _bound(host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        server = _Server(config, listener)

        def stop(*_: object) -> None:
            server.should_exit = True

        # Until uvicorn has handlers of its own; and it sends itself the signal again when it has stopped: the recording
        # has to be finished after that.
        before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            on_listening(f"http://{shown}:{bound.getsockname()[1]}{listener.path}")
            await server.serve(sockets=[bound])
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
