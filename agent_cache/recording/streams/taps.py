"""Streams that run: each chunk is recorded while it passes.

A tap has the interface of a generator: `send`, `throw` and `close` reach the real stream. What a consumer sends into a
stream is not recorded; what comes out is.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import Token
from typing import Any

from agent_cache.recording.frame import FRAME, Frame
from agent_cache.recording.outcomes import value_outcome
from agent_cache.recording.streams.relays import thrown
from agent_cache.values.schema import schema_of

__all__ = ["AsyncTap", "Tap"]


class _Track:
    """What a tap puts on the tape: chunks, and one end."""

    def __init__(self, frame: Frame, *, is_plain: bool) -> None:
        self.frame = frame
        self._seen: list[Any] | None = [] if frame.subject.extract is not None else None
        self._is_over = False
        frame.chunks = []
        frame.is_plain = is_plain

    def yielded(self, chunk: Any) -> Any:
        """One chunk came out."""
        self.frame.tape.yielded(self.frame, chunk)
        if self._seen is not None:
            self._seen.append(chunk)
        return chunk

    def failed(self, error: BaseException) -> None:
        """It ended so."""
        self.end(self.frame.tape.failure(error))

    def end(self, end: dict[str, Any]) -> None:
        """It ended; if it had before, that stands."""
        if not self._is_over:
            self._is_over = True
            self.frame.tape.closed(self.frame, end, self._seen)


class Tap(Generator[Any, Any, Any]):
    """Of a stream whose chunks are had without waiting."""

    def __init__(self, frame: Frame, source: Any) -> None:
        self._track = _Track(frame, is_plain=True)
        self.source = source
        self._chunks = source if hasattr(type(source), "__next__") else None
        self._is_shut = False

    def send(self, value: Any) -> Any:
        """The next chunk, recorded."""
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = iter(self.source)
        return self._step(lambda: next(chunks) if value is None else chunks.send(value))

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """What the stream makes of it; one that cannot be thrown into ends there."""
        error = thrown(kind, value, traceback)
        thrower = getattr(self.source, "throw", None)
        if thrower is None:
            self._track.failed(error)
            raise error
        return self._step(lambda: thrower(error))

    def close(self) -> None:
        """Close the stream, once."""
        try:
            closer = getattr(self.source, "close", None)
            if closer is not None and not self._is_shut:
                self._is_shut = True
                closer()
        finally:
            self._track.end({"closed": True})

    def _step(self, go: Callable[[], Any]) -> Any:
        track = self._track
        token = FRAME.set(track.frame)  # what a step calls is inside of the stream
        try:
            chunk = go()
        except StopIteration as stop:
            track.end(value_outcome(stop.value, schema_of(Any), track.frame.tape.redaction))
            raise
        except BaseException as error:
            track.failed(error)
            raise
        finally:
            _reset(token)
        return track.yielded(chunk)


class AsyncTap(AsyncGenerator[Any, Any]):
    """Of a stream that is awaited."""

    def __init__(self, frame: Frame, source: Any) -> None:
        self._track = _Track(frame, is_plain=False)
        self.source = source
        self._chunks: Any = source if hasattr(type(source), "__anext__") else None
        self._is_shut = False

    async def asend(self, value: Any) -> Any:
        """The next chunk, recorded."""
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = aiter(self.source)
        return await self._step(lambda: anext(chunks) if value is None else chunks.asend(value))

    async def athrow(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """What the stream makes of it; one that cannot be thrown into ends there."""
        error = thrown(kind, value, traceback)
        thrower = getattr(self.source, "athrow", None)
        if thrower is None:
            self._track.failed(error)
            raise error
        return await self._step(lambda: thrower(error))

    async def aclose(self) -> None:
        """Close the stream, once."""
        try:
            closer = getattr(self.source, "aclose", None) or getattr(self.source, "close", None)
            if closer is not None and not self._is_shut:
                self._is_shut = True
                closed = closer()
                if inspect.isawaitable(closed):
                    await closed
        finally:
            self._track.end({"closed": True})

    async def _step(self, go: Callable[[], Any]) -> Any:
        track = self._track
        token = FRAME.set(track.frame)  # what a step calls is inside of the stream
        try:
            chunk = await go()
        except StopAsyncIteration:
            track.end({"value": None})
            raise
        except BaseException as error:
            track.failed(error)
            raise
        finally:
            _reset(token)
        return track.yielded(chunk)


def _reset(token: Token[Frame | None]) -> None:
    try:
        FRAME.reset(token)
    except ValueError:
        pass  # closed by the garbage collector, in another context than it ran in
