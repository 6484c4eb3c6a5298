"""The seams of the two libraries over http.client: urllib3, and with it requests and boto3; and urllib.request.

A response, recorded or live, is fed to the real parser of http.client as bytes of a connection, so that what reads it
is the library's own code. A live one is logged while its bytes are fed. Only public names are used.
"""

from __future__ import annotations

import functools
import http.client
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent_cache.recording.http.exchange import Exchange, Pairs, Patch, is_intercepted, open_exchange


def urllib3_patches(library: Any) -> list[Patch]:
    """The methods to replace."""
    return [(library.HTTPConnectionPool, "urlopen", functools.partial(_urlopen, library))]


def urllib_patches(library: Any) -> list[Patch]:
    """The same for the module urllib.request."""
    return [(library.AbstractHTTPHandler, "do_open", _do_open)]


# A response as the connection would have it

_AT_ONCE = 65536
"""Bytes that are read at once of a live response, if they are there."""


class _Connection(io.RawIOBase):
    """The bytes of a response, as a socket and as its file. Each read gets what one piece still has."""

    def __init__(self, wire: Iterator[bytes], close: Callable[[], None]) -> None:
        self._wire = wire
        self._close = close
        self._rest = b""

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """The file that http.client reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._wire, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()


def _wire(status: int, reason: str, headers: Pairs, pieces: Iterator[bytes], *, is_chunked: bool) -> Iterator[bytes]:
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    yield ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    try:
        for piece in pieces:
            yield b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
    except http.client.IncompleteRead:
        if is_chunked:
            raise
        return  # the parser finds by itself that something is missing, and says what has come
    if is_chunked:
        yield b"0\r\n\r\n"


def _read(response: Any, **options: Any) -> Iterator[bytes]:
    """The pieces of a live response, by `read1`, which says nothing of an end that has come too early."""
    while piece := response.read1(_AT_ONCE, **options):
        yield piece
    missing = getattr(response, "length_remaining", getattr(response, "length", None))
    if missing:
        raise http.client.IncompleteRead(b"", missing)


def _parsed(connection: Any, method: str) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(connection, method=method.upper())
    response.begin()
    return response


def _played(exchange: Exchange, method: str) -> http.client.HTTPResponse:
    """The response of http.client for a recorded one."""
    has_body = method.upper() != "HEAD" and exchange.status not in (204, 304)
    names = {name.lower() for name, _ in exchange.headers}
    is_chunked = has_body and exchange.is_stream and "content-length" not in names
    headers = [*exchange.headers, ("transfer-encoding", "chunked")] if is_chunked else exchange.headers
    wire = _wire(exchange.status, exchange.reason, headers, exchange.pieces(), is_chunked=is_chunked)
    return _parsed(_Connection(wire, exchange.closed), method)


def _logged(exchange: Exchange, response: Any, method: str, **options: Any) -> http.client.HTTPResponse:
    """The response of http.client for a live one, which is logged while it is read, by `read1` with these options."""
    headers = list(response.headers.items())
    exchange.responded(response.status, response.reason or "", headers)
    is_chunked = any(name.lower() == "transfer-encoding" and value.lower() == "chunked" for name, value in headers)
    pieces = exchange.logged(_read(response, **options))
    wire = _wire(response.status, response.reason or "", headers, pieces, is_chunked=is_chunked)

    def close() -> None:
        exchange.closed()
        response.close()

    return _parsed(_Connection(wire, close), method)


def _lower(headers: Any) -> dict[str, str]:
    def text(value: Any) -> str:
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)

    return {text(name).lower(): text(value) for name, value in dict(headers or {}).items()}


def _read_body(body: Any) -> bytes:
    """The content of a body: bytes, text, a file or several of these. A file is read to its end."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    parts = [body.read()] if hasattr(body, "read") else body
    return b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in parts)


# urllib3

_OPTIONS = (
    "retries", "redirect", "assert_same_host", "timeout", "pool_timeout", "release_conn", "chunked", "body_pos",
    "preload_content", "decode_content",
)  # fmt: skip
"""Parameters of `urlopen` behind the headers."""


def _urlopen(library: Any, original: Any) -> Any:
    @functools.wraps(original)
    def urlopen(self: Any, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **kw: Any) -> Any:
        exchange = None
        if is_intercepted():
            sent = _lower(self.headers if headers is None else headers)
            exchange = open_exchange(method, _full_url(self, url), sent)
        if exchange is None:
            return original(self, method, url, body, headers, *args, **kw)
        options = {**dict(zip(_OPTIONS, args, strict=False)), **kw}
        if exchange.needs_body:
            content = _read_body(body)
            if body is not None and not isinstance(body, bytes | str):
                body = content
            exchange.start(content)
            if exchange.is_answered:
                exchange.respond()
                return _urllib3_response(library, self, _played(exchange, method), method, url, options)
        with exchange.running():
            response = original(self, method, url, body, headers, **options)
        if options.get("preload_content", True):
            exchange.responded(response.status, response.reason or "", list(response.headers.items()))
            exchange.add(response.data, is_decoded=options.get("decode_content", True))
            exchange.ended()
            return response
        parsed = _logged(exchange, response, method, decode_content=False)
        return _urllib3_response(library, self, parsed, method, url, options)

    return urlopen


def _full_url(pool: Any, url: str) -> str:
    if not url.startswith("/"):  # through a proxy
        return url
    host = f"[{pool.host}]" if ":" in pool.host and not pool.host.startswith("[") else pool.host
    is_default = pool.port in (None, {"http": 80, "https": 443}.get(pool.scheme))
    return f"{pool.scheme}://{host}{'' if is_default else f':{pool.port}'}{url}"


def _urllib3_response(
    library: Any, pool: Any, parsed: http.client.HTTPResponse, method: str, url: str, options: Mapping[str, Any]
) -> Any:
    retries = options.get("retries")
    if not isinstance(retries, library.Retry):
        retries = library.Retry.from_int(retries, redirect=options.get("redirect", True), default=pool.retries)
    return library.HTTPResponse(
        body=parsed,
        headers=parsed.msg.items(),
        status=parsed.status,
        version=parsed.version,
        reason=parsed.reason,
        preload_content=options.get("preload_content", True),
        decode_content=options.get("decode_content", True),
        original_response=parsed,
        retries=retries,
        request_method=method,
        request_url=url,
    )


# urllib.request


def _do_open(original: Any) -> Any:
    @functools.wraps(original)
    def do_open(self: Any, http_class: Any, req: Any, **http_conn_args: Any) -> Any:
        exchange = None
        if is_intercepted():
            exchange = open_exchange(req.get_method(), req.full_url, _lower({**req.unredirected_hdrs, **req.headers}))
        if exchange is None:
            return original(self, http_class, req, **http_conn_args)
        parsed: Any = None
        if exchange.needs_body:
            content = _read_body(req.data)
            if req.data is not None and not isinstance(req.data, bytes):
                req.data = content
            exchange.start(content)
            if exchange.is_answered:
                exchange.respond()
                parsed = _played(exchange, req.get_method())
        if parsed is None:
            with exchange.running():
                response = original(self, http_class, req, **http_conn_args)
            parsed = _logged(exchange, response, req.get_method())
        parsed.url, parsed.msg = req.get_full_url(), parsed.reason
        return parsed

    return do_open
