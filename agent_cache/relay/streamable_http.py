"""What both ends of a relay over Streamable HTTP use: headers, server-sent events, and the client of the server.

The transport is that of the MCP specification, revisions 2025-03-26, 2025-06-18, 2025-11-25 and 2026-07-28. The relay
passes the bytes of what it need not change, so it splits a stream of events only where one ends; httpx2 reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, NamedTuple, TypeAlias

import httpx2
import msgspec

from agent_cache.core.contexts import TRANSPORT
from agent_cache.errors import ConfigurationError

__all__ = [
    "EVENT_STREAM",
    "MODERN",
    "Event",
    "EventSplitter",
    "Headers",
    "Upstream",
    "end_to_end",
    "event_data",
    "event_of",
    "header",
    "identity_of",
    "is_event_stream",
    "raw_headers",
    "reason_of",
    "without",
]

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case, with their values, in order; a name may occur more than once."""

EVENT_STREAM: Final = b"text/event-stream"

MODERN: Final = "2026-07-28"
"""From this revision on, a request has no session, and who closes its response cancels it."""

_HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""RFC 9110, 7.6.1: they are between two neighbours, not between host and server."""

_NEUTRAL: Final = frozenset(name.encode() for name in TRANSPORT)
"""Headers of the transport, as are those that begin with ``content-``. Every other one may tell who asks: a server
takes its credentials where it likes."""

_EMPTY_LINES: Final = (b"\n\n", b"\n\r", b"\r\r")  # of the three line ends; what ends by CR LF, ends by LF
_EVENT_HEADERS: Final = {"content-type": "text/event-stream; charset=utf-8"}
_ANY_REQUEST: Final = httpx2.Request("POST", "http://localhost/")  # what a response must have to be read as events


class Event(NamedTuple):
    """A server-sent event: its data, its identifier, and the milliseconds after which to connect again."""

    data: bytes
    id: bytes
    retry: int | None


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


def header(headers: Headers, name: bytes) -> str | None:
    """The first value of a header."""
    return next((value.decode("latin-1") for one, value in headers if one == name), None)


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
        if name in (b"authorization", b"cookie", b"mcp-protocol-version")
        or (name in chosen if chosen else name not in _NEUTRAL and not name.startswith(b"content-"))
    )
    if not told and not url:
        return None
    sent = [url, *([part.decode("latin-1") for part in pair] for pair in told)]
    return hashlib.sha256(msgspec.json.encode(sent)).hexdigest()


def is_event_stream(headers: Headers) -> bool:
    """Whether the body has server-sent events."""
    return (header(headers, b"content-type") or "").partition(";")[0].strip().lower() == EVENT_STREAM.decode()


def reason_of(error: Exception) -> str:
    """The text of an error; its class where it has none."""
    return str(error) or type(error).__name__


class EventSplitter:
    """Splits a body of server-sent events into the bytes of its events, which joined are the body."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, chunk: bytes) -> list[bytes]:
        """The events that have ended with this chunk, each with its empty line."""
        data, events, begin = self._rest + chunk, [], 0
        at = max(len(self._rest) - 1, 0)
        while found := [place for place in (data.find(each, at) for each in _EMPTY_LINES) if place >= 0]:
            end = min(found) + 2
            if data[end - 1 : end + 1] == b"\r\n":
                end += 1  # if it comes later, it is an empty line more, which means nothing
            events.append(data[begin:end])
            begin = at = end
        self._rest = data[begin:]
        return events

    def rest(self) -> bytes:
        """What has come of an event that has not ended."""
        rest, self._rest = self._rest, b""
        return rest


def event_data(event: bytes) -> Event:
    """An event, read. A comment is one without data."""
    usual = _usual_event(event)
    if usual is not None:
        return usual
    response = httpx2.Response(200, headers=_EVENT_HEADERS, content=event, request=_ANY_REQUEST)
    try:
        event.decode()
    except UnicodeDecodeError:  # which the reader would replace
        fields = [line.removeprefix(b"data:").removeprefix(b" ") for line in event.splitlines() if line[:5] == b"data:"]
        return Event(b"\n".join(fields), b"", None)
    for found in httpx2.EventSource(response, max_event_size=None):
        return Event(found.data.encode(), found.id.encode(), found.retry)
    return Event(b"", b"", None)


def _usual_event(event: bytes) -> Event | None:
    """An event with one line of data, as the SDKs send it: not worth 40 us, and three copies of a large answer."""
    found = {}
    for line in event.removesuffix(b"\n").removesuffix(b"\r").removesuffix(b"\n").split(b"\n"):
        name, _, value = line.removesuffix(b"\r").partition(b": ")
        if name not in {b"event", b"data", b"id"} or name in found or b"\r" in value or b"\0" in value:
            return None
        found[name] = value
    return Event(found[b"data"], found.get(b"id", b""), None) if b"data" in found else None


def event_of(message: bytes) -> bytes:
    """A JSON-RPC message, encoded without line ends, as an event."""
    return b"event: message\r\ndata: " + message + b"\r\n\r\n"


class Upstream:
    """The HTTP client of one server. It adds nothing to a request, keeps no cookie and has no timeout.

    Proxies and certificates are those of the environment, as httpx2 reads them. Password and user in the URL are sent
    as Basic authentication.

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
        self.encodings = self._client.headers["accept-encoding"].encode("latin-1")

    @property
    def name(self) -> str:
        """The address without password and query, for texts."""
        return str(self.url.copy_with(username=None, password=None, query=None, fragment=None))

    def endpoint(self, query: bytes) -> httpx2.URL:
        """The URL, with the query of a request behind its own."""
        if not query:
            return self.url
        return self.url.copy_with(query=b"&".join(part for part in (self.url.query, query) if part))

    def elsewhere(self, path: bytes, query: bytes) -> httpx2.URL:
        """Another address of the same server."""
        return self.url.copy_with(raw_path=path + (b"?" + query if query else b""), fragment=None)

    async def open(self, method: str, url: httpx2.URL, headers: Headers, body: bytes | None) -> httpx2.Response:
        """Send a request. The body of the response is not read, and the response is to be closed.

        Raises:
            httpx2.TransportError: if the server cannot be reached or breaks off.
        """
        request = httpx2.Request(method, url, headers=list(headers), content=body)
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
