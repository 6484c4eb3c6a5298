"""What the caller gets instead of a stream."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

from agent_cache.recording.frame import Frame
from agent_cache.recording.streams.kinds import is_async_stream, is_plain_stream
from agent_cache.recording.streams.players import AsyncPlaying, Playing
from agent_cache.recording.streams.relays import relay, relay_async
from agent_cache.recording.streams.taps import AsyncTap, Tap

__all__ = ["played_stream", "recorded_stream"]


def recorded_stream(frame: Frame, stream: Any) -> Any:
    """What the caller gets instead of a stream that is being recorded."""
    if is_async_stream(stream):
        if is_plain_stream(stream):
            return _EitherFace(frame, stream)
        awaited = AsyncTap(frame, stream)
        return relay_async(awaited) if inspect.isasyncgen(stream) else _AsyncFace(relay_async(awaited), awaited)
    tap = Tap(frame, stream)
    return relay(tap) if inspect.isgenerator(stream) else _Face(relay(tap), tap)


def played_stream(frame: Frame) -> Any:
    """A recorded stream, to be read again."""
    assert frame.recorded is not None
    if frame.recorded.outcome["stream"].get("plain"):
        return _Face(relay(Playing(frame)))
    return _AsyncFace(relay_async(AsyncPlaying(frame)))


class _Face:
    """A stream object of an SDK: it iterates over what is recorded, and is itself in everything else."""

    def __init__(self, chunks: Generator[Any, Any, Any], tap: Tap | None = None) -> None:
        self._chunks = chunks
        self._tap = tap

    def __iter__(self) -> Iterator[Any]:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    def close(self) -> None:
        self._chunks.close()
        if self._tap is not None:  # a stream that was read to its end is closed all the same
            self._tap.close()

    def send(self, value: Any) -> Any:
        return self._chunks.send(value)

    def throw(self, error: BaseException) -> Any:
        return self._chunks.throw(error)

    def __enter__(self) -> _Face:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if self._tap is None:
            raise AttributeError(f"a replayed stream has chunks, and no {name!r}")
        return getattr(self._tap.source, name)


class _AsyncFace:
    """The same for one that is awaited."""

    def __init__(self, chunks: AsyncGenerator[Any, Any], tap: AsyncTap | None = None) -> None:
        self._chunks = chunks
        self._tap = tap

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks

    async def __anext__(self) -> Any:
        return await self._chunks.__anext__()

    async def aclose(self) -> None:
        await self._chunks.aclose()
        if self._tap is not None:  # a stream that was read to its end is closed all the same
            await self._tap.aclose()

    async def asend(self, value: Any) -> Any:
        return await self._chunks.asend(value)

    async def athrow(self, error: BaseException) -> Any:
        return await self._chunks.athrow(error)

    close = aclose

    async def __aenter__(self) -> _AsyncFace:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __getattr__(self, name: str) -> Any:
        if self._tap is None:
            raise AttributeError(f"a replayed stream has chunks, and no {name!r}")
        return getattr(self._tap.source, name)


class _EitherFace:
    """A stream object that can be read in both ways, as LiteLLM has it. How it is used first is how it was recorded."""

    def __init__(self, frame: Frame, source: Any) -> None:
        self._frame = frame
        self._source = source
        self._face: _Face | _AsyncFace | None = None
        frame.chunks = []
        frame.is_plain = not (frame.is_awaited or inspect.iscoroutinefunction(frame.subject.function))

    def _plain(self) -> _Face:
        if self._face is None:
            tap = Tap(self._frame, self._source)
            self._face = _Face(relay(tap), tap)
        if not isinstance(self._face, _Face):
            raise TypeError("this stream is awaited already")
        return self._face

    def _awaited(self) -> _AsyncFace:
        if self._face is None:
            tap = AsyncTap(self._frame, self._source)
            self._face = _AsyncFace(relay_async(tap), tap)
        if not isinstance(self._face, _AsyncFace):
            raise TypeError("this stream is read without waiting already")
        return self._face

    def __iter__(self) -> Iterator[Any]:
        return iter(self._plain())

    def __next__(self) -> Any:
        return next(self._plain())

    def __enter__(self) -> _Face:
        return self._plain()

    def __exit__(self, *_: object) -> None:
        self._plain().close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._awaited())

    async def __anext__(self) -> Any:
        return await anext(self._awaited())

    async def __aenter__(self) -> _AsyncFace:
        return self._awaited()

    async def __aexit__(self, *_: object) -> None:
        await self._awaited().aclose()

    async def aclose(self) -> None:
        await self._awaited().aclose()

    def close(self) -> Any:
        """As it was read; what was not read, as the stream itself says: a coroutine if that is one there."""
        if self._face is None and inspect.iscoroutinefunction(getattr(self._source, "close", None)):
            self._awaited()
        return self._plain().close() if self._face is None else self._face.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)
