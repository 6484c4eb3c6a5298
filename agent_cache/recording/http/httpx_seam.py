"""The seam of httpx and httpx2: their transports that open connections. A transport of the program's own has none.

Only public names of both are used.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

from agent_cache.recording.http.exchange import Exchange, Patch, is_intercepted, open_exchange


def patches(library: Any) -> list[Patch]:
    """The methods to replace."""
    return [
        (library.HTTPTransport, "handle_request", functools.partial(_handle_request, library)),
        (library.AsyncHTTPTransport, "handle_async_request", functools.partial(_handle_async_request, library)),
    ]


def _handle_request(library: Any, original: Any) -> Any:
    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        exchange = _opened(request) if is_intercepted() else None
        if exchange is None:
            return original(self, request)
        if exchange.needs_body:
            body = b"".join(request.stream)
            request.stream = library.ByteStream(body)
            exchange.start(body)
            if exchange.is_answered:
                exchange.respond()
                return _response(library, exchange)
        with exchange.running():
            response = original(self, request)
        return _logged(library, exchange, response)

    return handle_request


def _handle_async_request(library: Any, original: Any) -> Any:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        exchange = _opened(request) if is_intercepted() else None
        if exchange is None:
            return await original(self, request)
        if exchange.needs_body:
            body = b"".join([part async for part in request.stream])
            request.stream = library.ByteStream(body)
            exchange.start(body)
            if exchange.is_answered:
                await exchange.respond_async()
                return _response(library, exchange)
        with exchange.running():
            response = await original(self, request)
        return _logged(library, exchange, response)

    return handle_async_request


def _opened(request: Any) -> Exchange | None:
    return open_exchange(request.method, str(request.url), dict(request.headers))


def _logged(library: Any, exchange: Exchange, response: Any) -> Any:
    reason = response.extensions.get("reason_phrase", b"").decode("latin-1")
    exchange.responded(response.status_code, reason, response.headers.multi_items())
    response.stream = _stream_class(library)(exchange, response.stream)
    return response


def _response(library: Any, exchange: Exchange) -> Any:
    extensions = {"http_version": b"HTTP/1.1", "reason_phrase": exchange.reason.encode("latin-1", "replace")}
    headers = [(name.encode(), value.encode()) for name, value in exchange.headers]  # a text would have to be ASCII
    stream = _stream_class(library)(exchange, None)
    return library.Response(exchange.status, headers=headers, stream=stream, extensions=extensions)


@functools.cache
def _stream_class(library: Any) -> Any:
    class Stream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]  # its module is not known
        """The body of a response, logged as it is read; or a recorded one, if there is no source."""

        def __init__(self, exchange: Exchange, source: Any) -> None:
            self._exchange = exchange
            self._source = source

        def __iter__(self) -> Iterator[bytes]:
            return self._exchange.pieces() if self._source is None else self._exchange.logged(self._source)

        def __aiter__(self) -> AsyncIterator[bytes]:
            if self._source is None:
                return self._exchange.awaited_pieces()
            return self._exchange.logged_async(self._source)

        def close(self) -> None:
            try:
                if self._source is not None:
                    self._source.close()
            finally:
                self._exchange.closed()

        async def aclose(self) -> None:
            try:
                if self._source is not None:
                    await self._source.aclose()
            finally:
                self._exchange.closed()

    return Stream
