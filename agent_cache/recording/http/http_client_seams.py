"""The seams of the two libraries over http.client: urllib3, and with it requests and boto3; and urllib.request.

A response, recorded or live, is fed to the real parser of http.client as bytes of a connection, so that what reads it
is the library's own code. A live one is logged while its bytes are fed. Only public names are used.
"""

from __future__ import annotations

import functools
import http.client
import inspect
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agent_cache.recording.http.exchange import Exchange, Patch, Recorded, open_exchange


def patches(library: Any) -> list[Patch]:
    """The methods to replace, of urllib3 or of the module urllib.request."""
    if hasattr(library, "AbstractHTTPHandler"):
        return [(library.AbstractHTTPHandler, "do_open", _do_open)]
    return [(library.HTTPConnectionPool, "urlopen", functools.partial(_urlopen, library))]


class _Connection(io.RawIOBase):
    """The bytes of a response, as a socket and as its file. Each read gets what one piece still has."""

    def __init__(self, wire: Iterator[bytes], close: Callable[[], None]) -> None:
        self._wire, self._close = wire, close
        self._rest = b""

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """The file that http.client reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._wire, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()


def _parsed(exchange: Exchange, response: Any, method: str, **options: Any) -> http.client.HTTPResponse:
    """The response of http.client for a recorded or a live one, which is logged while it is read with these options."""
    is_recorded = isinstance(response, Recorded)
    headers = response.headers if is_recorded else list(response.headers.items())
    source: Iterable[bytes] = response if is_recorded else _read(response, **options)
    exchange.log(response.status, response.reason or "", headers)
    names = {name.lower(): value.lower() for name, value in headers}
    if is_recorded and response.is_open and "content-length" not in names:
        headers, names = [*headers, ("transfer-encoding", "chunked")], {"transfer-encoding": "chunked"}
    is_chunked = names.get("transfer-encoding") == "chunked"

    def wire() -> Iterator[bytes]:
        lines = [f"HTTP/1.1 {response.status} {response.reason or ''}", *(f"{name}: {one}" for name, one in headers)]
        yield ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        try:
            for piece in filter(None, exchange.logged(source)):
                yield b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
        except http.client.IncompleteRead:
            if is_chunked:
                raise
            return  # the parser finds by itself that something is missing, and says what has come
        if is_chunked:
            yield b"0\r\n\r\n"

    def close() -> None:
        exchange.closed()
        response.close()

    parsed = http.client.HTTPResponse(_Connection(wire(), close), method=method.upper())  # type: ignore[arg-type]
    parsed.begin()
    return parsed


def _read(response: Any, **options: Any) -> Iterator[bytes]:
    """The pieces of a live response, by `read1`, which says nothing of an end that has come too early."""
    while piece := response.read1(65536, **options):
        yield piece
    if missing := getattr(response, "length_remaining", getattr(response, "length", None)):
        raise http.client.IncompleteRead(b"", missing)


def _lower(headers: Any) -> dict[str, str]:
    def text(value: Any) -> str:
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)

    return {text(name).lower(): text(value) for name, value in dict(headers or {}).items()}


def _read_body(body: Any) -> bytes:
    """The content of a body: bytes, text, a file or several of these. A file is read to its end."""
    if isinstance(body, str | bytes | bytearray | memoryview):
        body = [body]
    parts = [body.read()] if hasattr(body, "read") else body or ()
    return b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in parts)


def _urlopen(library: Any, original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def urlopen(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        options = {**given.arguments.pop("response_kw"), **given.arguments}
        del options["self"]
        method, url, headers = options["method"], options["url"], options["headers"]
        exchange = open_exchange(method, _full_url(self, url), _lower(self.headers if headers is None else headers))
        if exchange is None:
            return original(self, *args, **kwargs)
        body = _read_body(options["body"])
        if options["body"] is not None and not isinstance(options["body"], bytes | str):
            options["body"] = body
        response: Any = exchange.respond(body)
        if response is None:
            with exchange.running():
                response = original(self, **{**options, "preload_content": False})
        parsed = _parsed(exchange, response, method, decode_content=False)
        retries = options["retries"]
        if not isinstance(retries, library.Retry):
            retries = library.Retry.from_int(retries, redirect=options["redirect"], default=self.retries)
        return library.HTTPResponse(
            body=parsed,
            headers=parsed.msg.items(),
            status=parsed.status,
            version=parsed.version,
            reason=parsed.reason,
            preload_content=options["preload_content"],
            decode_content=options["decode_content"],
            original_response=parsed,
            retries=retries,
            request_method=method,
            request_url=url,
        )

    return urlopen


def _full_url(pool: Any, url: str) -> str:
    if not url.startswith("/"):  # through a proxy
        return url
    host = f"[{pool.host}]" if ":" in pool.host and not pool.host.startswith("[") else pool.host
    return f"{pool.scheme}://{host}{'' if pool.port is None else f':{pool.port}'}{url}"


def _do_open(original: Any) -> Any:
    @functools.wraps(original)
    def do_open(self: Any, http_class: Any, req: Any, **http_conn_args: Any) -> Any:
        method = req.get_method()
        exchange = open_exchange(method, req.full_url, _lower({**req.unredirected_hdrs, **req.headers}))
        if exchange is None:
            return original(self, http_class, req, **http_conn_args)
        body = _read_body(req.data)
        if req.data is not None:
            req.data = body
        response: Any = exchange.respond(body)
        if response is None:
            with exchange.running():
                response = original(self, http_class, req, **http_conn_args)
        parsed: Any = _parsed(exchange, response, method)
        parsed.url, parsed.msg = req.get_full_url(), parsed.reason
        return parsed

    return do_open
