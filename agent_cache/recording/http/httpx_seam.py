"""The seam of httpx and httpx2: their transports that open connections. A transport of the program's own has none.

Only public names of both are used.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from agent_cache.recording.http.exchange import Answer, Exchange, Pairs, is_intercepted, open_exchange

__all__ = ["patches"]


def patches(library: Any) -> list[tuple[type, str, Callable[[Any], Any]]]:
    """The methods to replace; see `seams.Patch`.

    Args:
        library: the module httpx or httpx2.
    """
    return [
        (library.HTTPTransport, "handle_request", functools.partial(_handle_request, library)),
        (library.AsyncHTTPTransport, "handle_async_request", functools.partial(_handle_async_request, library)),
    ]


def _handle_request(library: Any, original: Any) -> Any:
    logged, played = _streams(library)

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
                return _response(library, exchange.respond(), played)
        with exchange.running():
            response = original(self, request)
        exchange.responded(*_head(response))
        response.stream = logged(exchange, response.stream)
        return response

    return handle_request


def _handle_async_request(library: Any, original: Any) -> Any:
    logged, played = _streams(library)

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
                return _response(library, await exchange.respond_async(), played)
        with exchange.running():
            response = await original(self, request)
        exchange.responded(*_head(response))
        response.stream = logged(exchange, response.stream)
        return response

    return handle_async_request


def _opened(request: Any) -> Exchange | None:
    return open_exchange(request.method, str(request.url), dict(request.headers))


def _head(response: Any) -> tuple[int, str, Pairs]:
    reason = response.extensions.get("reason_phrase", b"")
    return response.status_code, reason.decode("latin-1"), response.headers.multi_items()


def _response(library: Any, answer: Answer, played: Any) -> Any:
    extensions = {"http_version": b"HTTP/1.1", "reason_phrase": answer.reason.encode("latin-1", "replace")}
    headers = [(name.encode(), value.encode()) for name, value in answer.headers]  # a text would have to be ASCII
    return library.Response(answer.status, headers=headers, stream=played(answer), extensions=extensions)


@functools.cache
def _streams(library: Any) -> tuple[Any, Any]:
    """The classes of streams for this library: of a response that is logged, and of one that is replayed."""

    class LoggedStream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]  # its module is not known
        """The body of a response, logged as it is read."""

        def __init__(self, exchange: Exchange, source: Any) -> None:
            self._exchange = exchange
            self._source = source

        def __iter__(self) -> Iterator[bytes]:
            exchange = self._exchange
            try:
                for part in self._source:
                    exchange.add(part)
                    yield part
            except BaseException as error:
                exchange.failed(error)
                raise
            exchange.ended()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            exchange = self._exchange
            try:
                async for part in self._source:
                    exchange.add(part)
                    yield part
            except BaseException as error:
                exchange.failed(error)
                raise
            exchange.ended()

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

    class PlayedStream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]  # as above
        """The body of a recorded response."""

        def __init__(self, answer: Answer) -> None:
            self._answer = answer

        def __iter__(self) -> Iterator[bytes]:
            return self._answer.pieces()

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self._answer.awaited_pieces()

        def close(self) -> None:
            self._answer.close()

        async def aclose(self) -> None:
            self._answer.close()

    return LoggedStream, PlayedStream
