"""The seams of the two libraries over http.client: urllib3, and with it requests and boto3; and urllib.request.

A recorded response is fed to the real parser of http.client as bytes of a connection, so that what reads it is the
library's own code.

Of urllib3 and of http.client, public names are used: a response is logged by instance attributes in front of its
methods `read`, `read1`, `readinto`, `readline`, `stream`, `read_chunked`, `drain_conn` and `close`. That these
attributes are what the libraries and `io` call is pinned in tests/integration/recording/test_http_seams.py.
"""

from __future__ import annotations

import functools
import http.client
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from agent_cache.recording.http.exchange import Answer, Exchange, is_intercepted, open_exchange

__all__ = ["urllib3_patches", "urllib_patches"]


def urllib3_patches(library: Any) -> list[tuple[type, str, Callable[[Any], Any]]]:
    """The methods to replace; see `seams.Patch`.

    Args:
        library: the module urllib3.
    """
    return [(library.HTTPConnectionPool, "urlopen", functools.partial(_urlopen, library))]


def urllib_patches(library: Any) -> list[tuple[type, str, Callable[[Any], Any]]]:
    """The same for the module urllib.request."""
    return [(library.AbstractHTTPHandler, "do_open", _do_open)]


# A recorded response, as the connection would have it


class _Connection(io.RawIOBase):
    """The bytes of a response, as a socket and as its file. Each read gets what one piece still has."""

    def __init__(self, answer: Answer, *, has_body: bool) -> None:
        self._answer = answer
        self._pieces = _wire(answer, has_body=has_body)
        self._rest = b""

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """The file that http.client reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._answer.close()
        super().close()


def _wire(answer: Answer, *, has_body: bool) -> Iterator[bytes]:
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in answer.headers)]
    is_chunked = has_body and answer.is_stream and all(name != "content-length" for name, _ in answer.headers)
    if is_chunked:
        lines.append("transfer-encoding: chunked")
    yield ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    for piece in answer.pieces():
        yield b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
    if is_chunked:
        yield b"0\r\n\r\n"


def _played(answer: Answer, method: str) -> http.client.HTTPResponse:
    """The response of http.client for an answer."""
    has_body = method.upper() != "HEAD" and answer.status not in (204, 304)
    connection: Any = _Connection(answer, has_body=has_body)
    response = http.client.HTTPResponse(connection, method=method.upper())
    response.begin()
    return response


# A response that is logged

_DRAINED = 65536
"""Bytes that are read at once of a response that nobody wants."""


class _Log:
    """Logs what is read of a response of either library. Its methods call each other; the outermost counts.

    Args:
        exchange: the exchange.
        response: the response.
        is_decoded: whether content-encoding was taken off what the call with these arguments returns.
    """

    def __init__(self, exchange: Exchange, response: Any, is_decoded: Callable[[tuple[Any, ...], Any], bool]) -> None:
        self._exchange = exchange
        self._response = response
        self._is_decoded = is_decoded
        self._depth = 0
        for name in ("read", "read1", "readline"):
            if hasattr(response, name):
                setattr(response, name, self._logged(name, getattr(response, name)))
        response.readinto = self._logged_readinto(response.readinto)
        for name in ("stream", "read_chunked"):
            if hasattr(response, name):
                setattr(response, name, self._logged_stream(getattr(response, name)))
        response.close = self._logged_close(response.close)
        if hasattr(response, "drain_conn"):
            response.drain_conn = self._logged_drain(response.drain_conn)

    def _inside(self, call: Callable[[], Any]) -> Any:
        self._depth += 1
        try:
            return call()
        except (StopIteration, GeneratorExit):
            raise
        except BaseException as error:
            self._exchange.failed(error)
            raise
        finally:
            self._depth -= 1

    def _logged(self, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            data = self._inside(lambda: original(*args, **kwargs))
            if not self._depth:
                self._exchange.add(bytes(data), is_decoded=self._is_decoded(args, kwargs))
                amount = args[0] if args else kwargs.get("amt")
                is_all = name == "read" and (amount is None or amount < 0)
                if is_all or (not data and amount != 0):
                    self._exchange.ended()
            return data

        return read

    def _logged_readinto(self, original: Any) -> Any:
        @functools.wraps(original)
        def readinto(buffer: Any) -> Any:
            size = self._inside(lambda: original(buffer))
            if not self._depth:
                self._exchange.add(bytes(memoryview(buffer)[:size]), is_decoded=self._is_decoded((), {}))
                if not size and len(buffer):
                    self._exchange.ended()
            return size

        return readinto

    def _logged_stream(self, original: Any) -> Any:
        @functools.wraps(original)
        def stream(*args: Any, **kwargs: Any) -> Iterator[bytes]:
            pieces = original(*args, **kwargs)
            while True:
                try:
                    data = self._inside(lambda: next(pieces))
                except StopIteration:
                    break
                if not self._depth:
                    self._exchange.add(bytes(data), is_decoded=self._is_decoded(args, kwargs))
                yield data
            if not self._depth:
                self._exchange.ended()

        return stream

    def _logged_drain(self, original: Any) -> Any:
        """urllib3 reads the rest, as of a redirect, beneath `read`; a replay has to read as far."""

        @functools.wraps(original)
        def drain_conn() -> None:
            with suppress(Exception):  # the original ignores those of a connection, and raises its own
                while self._response.read(_DRAINED):
                    pass
            original()

        return drain_conn

    def _logged_close(self, original: Any) -> Any:
        @functools.wraps(original)
        def close() -> None:
            original()
            if not self._depth:
                self._exchange.closed()

        return close


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
        if not is_intercepted():
            return original(self, method, url, body, headers, *args, **kw)
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
                return _urllib3_response(library, self, exchange.respond(), method, url, options)
        with exchange.running():
            response = original(self, method, url, body, headers, *args, **kw)
        exchange.responded(response.status, response.reason or "", list(response.headers.items()))
        decodes = options.get("decode_content", True)
        if options.get("preload_content", True):
            exchange.add(response.data, is_decoded=decodes)
            exchange.ended()
        else:
            _Log(exchange, response, functools.partial(_is_decoded, decodes))
        return response

    return urlopen


def _full_url(pool: Any, url: str) -> str:
    if not url.startswith("/"):  # through a proxy
        return url
    host = f"[{pool.host}]" if ":" in pool.host and not pool.host.startswith("[") else pool.host
    is_default = pool.port in (None, {"http": 80, "https": 443}.get(pool.scheme))
    return f"{pool.scheme}://{host}{'' if is_default else f':{pool.port}'}{url}"


def _is_decoded(by_default: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:  # noqa: FBT001 - bound
    given = args[1] if len(args) > 1 else kwargs.get("decode_content")
    return bool(by_default if given is None else given)


def _urllib3_response(
    library: Any, pool: Any, answer: Answer, method: str, url: str, options: Mapping[str, Any]
) -> Any:
    retries = options.get("retries")
    if not isinstance(retries, library.Retry):
        retries = library.Retry.from_int(retries, redirect=options.get("redirect", True), default=pool.retries)
    parsed = _played(answer, method)
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
        if exchange.needs_body:
            content = _read_body(req.data)
            if req.data is not None and not isinstance(req.data, bytes):
                req.data = content
            exchange.start(content)
            if exchange.is_answered:
                response: Any = _played(exchange.respond(), req.get_method())
                response.url, response.msg = req.get_full_url(), response.reason
                return response
        with exchange.running():
            response = original(self, http_class, req, **http_conn_args)
        exchange.responded(response.status, response.reason or "", list(response.headers.items()))
        _Log(exchange, response, lambda _args, _kwargs: False)
        return response

    return do_open
