"""The seam of aiohttp: the innermost client middleware of each request, which is given to `ClientSession._request`.

These private names of aiohttp are used, and pinned in tests/integration/recording/test_http.py:

- `ClientSession._request`, through which every request passes, and `ClientSession._middlewares` and
  `ClientSession._auto_decompress`, which a request without its own ones has;
- `StreamReader._wait`, in which a reader waits for data: here it gets the next piece of a body.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from agent_cache.recording.http.exchange import Patch, Recorded, open_exchange

_UNLIMITED = 2**40  # bytes that a reader may hold: it asks for a piece only when it has none
_PACKED = frozenset({"content-encoding", "content-length"})
_UNPACKED = frozenset({"gzip", "deflate", "br", "zstd"})
"""The encodings that aiohttp takes off. Others, and several at once, it gives to the program."""


def patches(library: Any) -> list[Patch]:
    """The methods to replace."""
    return [(library.ClientSession, "_request", functools.partial(_request, library))]


def _request(library: Any, original: Any) -> Any:
    @functools.wraps(original)
    async def request(self: Any, method: Any, str_or_url: Any, **options: Any) -> Any:
        given = options.get("middlewares")
        decodes = options.get("auto_decompress")
        decodes = self._auto_decompress if decodes is None else decodes
        middleware = functools.partial(_middleware, library, self, decodes)
        options["middlewares"] = (*(self._middlewares if given is None else given), middleware)
        return await original(self, method, str_or_url, **options)

    return request


async def _middleware(
    library: Any,
    session: Any,
    decodes: bool,  # noqa: FBT001 - a parameter of aiohttp's
    request: Any,
    handler: Callable[[Any], Awaitable[Any]],
) -> Any:
    headers = {name.lower(): value for name, value in request.headers.items()}
    exchange = open_exchange(request.method, str(request.url), headers)
    if exchange is None:
        return await handler(request)
    body = await request.body.as_bytes() if hasattr(request.body, "as_bytes") else bytes(request.body or b"")
    if (recorded := await exchange.respond_async(body)) is not None:
        exchange.log(recorded.status, recorded.reason, recorded.headers)
        content = _reader_class()(functools.partial(anext, exchange.logged_async(recorded), b""))
        if recorded.is_empty:
            content.feed_eof()
        response = await _response(library, session, request, recorded, content)
    else:
        with exchange.running():
            response = await handler(request)
        found = list(response.headers.items())
        if decodes and response.headers.get("content-encoding", "").lower() in _UNPACKED:
            found = [(name, value) for name, value in found if name.lower() not in _PACKED]
        exchange.log(response.status, response.reason or "", found)
        if not response.content.at_eof():
            response.content = _reader_class()(functools.partial(exchange.logged_piece, response.content.readany))
    _call_first(response, exchange.closed)
    return response


def _call_first(response: Any, closed: Callable[[], None]) -> None:
    """Call this before a response is closed or released."""

    def call(original: Any) -> Any:
        closed()
        return original()

    for name in ("close", "release"):
        setattr(response, name, functools.partial(call, getattr(response, name)))


async def _response(library: Any, session: Any, request: Any, recorded: Recorded, content: Any) -> Any:
    """A recorded response, started on a connection that has it."""
    multidict = importlib.import_module("multidict")
    parser = importlib.import_module("aiohttp.http_parser")
    options: dict[str, Any] = {
        **dict.fromkeys(("writer", "continue100", "timer")),
        "request_info": request.request_info,
        "traces": [],
        "loop": request.loop,
        "session": session,
        "stream_writer": SimpleNamespace(output_size=0),
    }
    kind = request.response_class
    known = inspect.signature(kind.__init__).parameters  # a newer version has more
    response = kind(request.method, request.original_url, **{name: options[name] for name in options if name in known})
    message = parser.RawResponseMessage(
        version=library.HttpVersion11,
        code=recorded.status,
        reason=recorded.reason,
        headers=multidict.CIMultiDictProxy(multidict.CIMultiDict(recorded.headers)),
        raw_headers=tuple((name.encode(), value.encode()) for name, value in recorded.headers),
        should_close=False,
        compression=None,
        upgrade=False,
        chunked=False,
    )
    await response.start(_Connection(message, content))
    return response


class _Connection:
    """A connection on which one response has arrived. It is its own protocol."""

    upgraded = False

    def __init__(self, message: Any, content: Any) -> None:
        self.protocol = self
        self._arrived = message, content
        self._callbacks: list[Callable[[], None]] = []
        self.add_callback = self._callbacks.append

    async def read(self) -> Any:
        return self._arrived

    def release(self) -> None:
        while self._callbacks:
            self._callbacks.pop(0)()

    close = release


@functools.cache
def _reader_class() -> Any:
    streams: Any = importlib.import_module("aiohttp.streams")
    protocols = importlib.import_module("aiohttp.base_protocol")

    class PullingReader(streams.StreamReader):  # type: ignore[misc]  # its module is not known
        """A reader that gets a piece when somebody waits for one."""

        __slots__ = ("_pull",)

        def __init__(self, pull: Callable[[], Awaitable[bytes]]) -> None:
            loop = asyncio.get_running_loop()
            super().__init__(protocols.BaseProtocol(loop), _UNLIMITED, loop=loop)
            self._pull = pull

        async def _wait(self, func_name: str) -> None:  # noqa: ARG002 - a parameter of aiohttp's
            try:
                piece = await self._pull()
            except Exception as error:
                self.set_exception(error)
                raise
            if piece:
                self.feed_data(piece)
            else:
                self.feed_eof()

    return PullingReader
