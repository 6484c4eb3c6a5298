"""The seam of httpx and httpx2: their transports that open connections. A transport of the program's own has none.

Only public names of both are used.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

from agent_cache.recording.http.exchange import Exchange, Patch, Recorded, open_exchange


def patches(library: Any) -> list[Patch]:
    """The methods to replace."""
    stream_class = _stream_class(library)
    return [
        (library.HTTPTransport, "handle_request", functools.partial(_handle_request, library, stream_class)),
        (library.AsyncHTTPTransport, "handle_async_request", functools.partial(_handle_async, library, stream_class)),
    ]


def _handle_request(library: Any, stream_class: Any, original: Any) -> Any:
    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        exchange = open_exchange(request.method, str(request.url), dict(request.headers))
        if exchange is None:
            return original(self, request)
        body = b"".join(request.stream)
        request.stream = library.ByteStream(body)
        if (recorded := exchange.respond(body)) is not None:
            response = _response(library, recorded)
        else:
            with exchange.running():
                response = original(self, request)
        return _logged(exchange, response, stream_class)

    return handle_request


def _handle_async(library: Any, stream_class: Any, original: Any) -> Any:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        exchange = open_exchange(request.method, str(request.url), dict(request.headers))
        if exchange is None:
            return await original(self, request)
        body = b"".join([part async for part in request.stream])
        request.stream = library.ByteStream(body)
        if (recorded := await exchange.respond_async(body)) is not None:
            response = _response(library, recorded)
        else:
            with exchange.running():
                response = await original(self, request)
        return _logged(exchange, response, stream_class)

    return handle_async_request


def _response(library: Any, recorded: Recorded) -> Any:
    extensions = {"http_version": b"HTTP/1.1", "reason_phrase": recorded.reason.encode("latin-1", "replace")}
    headers = [(name.encode(), value.encode()) for name, value in recorded.headers]  # a text would have to be ASCII
    return library.Response(recorded.status, headers=headers, stream=recorded, extensions=extensions)


def _logged(exchange: Exchange, response: Any, stream_class: Any) -> Any:
    response.stream = stream_class(exchange, response.stream)
    reason = response.extensions.get("reason_phrase", b"").decode("latin-1")
    exchange.log(response.status_code, reason, response.headers.multi_items())
    return response


def _stream_class(library: Any) -> Any:
    class Stream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]  # its module is not known
        """The body of a response, logged as it is read."""

        def __init__(self, exchange: Exchange, source: Any) -> None:
            self._exchange, self._source = exchange, source

        def __iter__(self) -> Iterator[bytes]:
            return self._exchange.logged(self._source)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self._exchange.logged_async(self._source)

        def close(self) -> None:
            try:
                self._source.close()
            finally:
                self._exchange.closed()

        async def aclose(self) -> None:
            try:
                await self._source.aclose()
            finally:
                self._exchange.closed()

    return Stream
