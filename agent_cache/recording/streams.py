"""Streams, chunk by chunk: recorded while they pass, given back as they were, closed early where they were.

A tap has the interface of a generator, on either side: `send`, `throw` and `close` reach the real stream while one is
recorded. What a consumer sends into a stream is not recorded; what comes out is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from types import GeneratorType
from typing import Any

from agent_cache._typed.schema import schema_of
from agent_cache.errors import ReplayExhausted
from agent_cache.recording.deadlines import until_cancelled
from agent_cache.recording.failures import raised_from
from agent_cache.recording.frame import FRAME, Frame
from agent_cache.recording.outcomes import value_outcome

__all__ = ["is_stream", "played_stream", "recorded_stream", "relay", "relay_async"]


_NO_STREAMS = frozenset({dict, list, tuple, set, str, bytes, int, float, bool, type(None)})


def is_stream(value: Any) -> bool:
    """Whether it is a generator, awaited or not, another iterator, or something to iterate over that is closed: the
    stream of an SDK.
    """
    kind = type(value)
    if kind in _NO_STREAMS:
        return False
    return issubclass(kind, GeneratorType) or is_async_stream(value) or is_plain_stream(value)


def is_plain_stream(value: Any) -> bool:
    """Whether chunks are had from it without waiting."""
    kind = type(value)
    if not hasattr(kind, "__iter__") or hasattr(kind, "read"):
        return False
    return hasattr(kind, "__next__") or (hasattr(kind, "close") and not hasattr(kind, "__len__"))


def is_async_stream(value: Any) -> bool:
    """Whether chunks are to be awaited from it."""
    kind = type(value)
    return hasattr(kind, "__aiter__") and any(hasattr(kind, name) for name in ("__anext__", "aclose", "close"))


def recorded_stream(frame: Frame, stream: Any) -> Any:
    """What the caller gets instead of a stream that is being recorded."""
    if is_async_stream(stream):
        if is_plain_stream(stream):
            return _EitherFace(frame, stream)
        tap = _AsyncRecording(frame, stream)
        return relay_async(tap) if inspect.isasyncgen(stream) else _AsyncFace(relay_async(tap), tap)
    recording = _Recording(frame, stream)
    return relay(recording) if inspect.isgenerator(stream) else _Face(relay(recording), recording)


def played_stream(frame: Frame) -> Any:
    """A recorded stream, to be read again."""
    assert frame.recorded is not None
    if frame.recorded.outcome["stream"].get("plain"):
        return _Face(relay(_Playing(frame)))
    return _AsyncFace(relay_async(_AsyncPlaying(frame)))


def relay(tap: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A real generator over a tap, so that breaking off a loop closes it."""
    return (yield from tap)


async def relay_async(tap: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """The same for an asynchronous one."""
    step = tap.asend(None)
    while True:
        try:
            chunk = await step
        except StopAsyncIteration:
            return
        try:
            sent = yield chunk
        except GeneratorExit:
            await tap.aclose()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in by the consumer, and handed on
            step = tap.athrow(error)
        else:
            step = tap.asend(sent)


class _Recording(Generator[Any, Any, Any]):
    """A stream that runs, chunk by chunk."""

    def __init__(self, frame: Frame, source: Any) -> None:
        self._frame = frame
        self.source = source
        self._chunks = source if hasattr(type(source), "__next__") else None
        self._is_shut = False
        self._seen: list[Any] | None = [] if frame.subject.extract is not None else None
        self._is_over = False
        frame.chunks = []
        frame.is_plain = True

    def send(self, value: Any) -> Any:
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = iter(self.source)
        return self._step(lambda: next(chunks) if value is None else chunks.send(value))

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        error = kind if value is None and traceback is None else value
        thrower = getattr(self.source, "throw", None)
        if thrower is None:
            self._end(self._frame.tape.failure(error))
            raise error
        return self._step(lambda: thrower(error))

    def close(self) -> None:
        try:
            closer = getattr(self.source, "close", None)
            if closer is not None and not self._is_shut:
                self._is_shut = True
                closer()
        finally:
            self._end({"closed": True})

    def _step(self, go: Callable[[], Any]) -> Any:
        frame = self._frame
        token = FRAME.set(frame)
        try:
            chunk = go()
        except StopIteration as stop:
            self._end(value_outcome(stop.value, schema_of(Any), frame.tape.redaction))
            raise
        except BaseException as error:
            self._end(frame.tape.failure(error))
            raise
        finally:
            _reset(token)
        frame.tape.yielded(frame, chunk)
        if self._seen is not None:
            self._seen.append(chunk)
        return chunk

    def _end(self, end: dict[str, Any]) -> None:
        if not self._is_over:
            self._is_over = True
            self._frame.tape.closed(self._frame, end, self._seen)


class _AsyncRecording(AsyncGenerator[Any, Any]):
    """A stream that runs and is awaited, chunk by chunk."""

    def __init__(self, frame: Frame, source: Any) -> None:
        self._frame = frame
        self.source = source
        self._chunks: Any = source if hasattr(type(source), "__anext__") else None
        self._is_shut = False
        self._seen: list[Any] | None = [] if frame.subject.extract is not None else None
        self._is_over = False
        frame.chunks = []
        frame.is_plain = False

    async def asend(self, value: Any) -> Any:
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = aiter(self.source)
        return await self._step(lambda: anext(chunks) if value is None else chunks.asend(value))

    async def athrow(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        error = kind if value is None and traceback is None else value
        thrower = getattr(self.source, "athrow", None)
        if thrower is None:
            self._end(self._frame.tape.failure(error))
            raise error
        return await self._step(lambda: thrower(error))

    async def aclose(self) -> None:
        try:
            closer = getattr(self.source, "aclose", None) or getattr(self.source, "close", None)
            if closer is not None and not self._is_shut:
                self._is_shut = True
                closed = closer()
                if inspect.isawaitable(closed):
                    await closed
        finally:
            self._end({"closed": True})

    async def _step(self, go: Callable[[], Any]) -> Any:
        frame = self._frame
        token = FRAME.set(frame)
        try:
            chunk = await go()
        except StopAsyncIteration:
            self._end({"value": None})
            raise
        except BaseException as error:
            self._end(frame.tape.failure(error))
            raise
        finally:
            _reset(token)
        frame.tape.yielded(frame, chunk)
        if self._seen is not None:
            self._seen.append(chunk)
        return chunk

    def _end(self, end: dict[str, Any]) -> None:
        if not self._is_over:
            self._is_over = True
            self._frame.tape.closed(self._frame, end, self._seen)


class _Script:
    """What a recorded stream has to say, and in what order."""

    def __init__(self, frame: Frame) -> None:
        assert frame.recorded is not None
        self.frame = frame
        stream = frame.recorded.outcome["stream"]
        self._chunks = iter(stream["chunks"])
        self.end: dict[str, Any] = stream["end"]
        self.count = 0
        self.is_over = False

    def next(self) -> tuple[bool, Any]:
        """Whether there is one more chunk, and the chunk."""
        for chunk in self._chunks:
            self.count += 1
            return True, self.frame.tape.read(self.frame, chunk, chunk=True)
        return False, None

    def last(self) -> Any:
        """What came after the last chunk: the value that a generator returned, or an exception.

        Raises:
            BaseException: what the stream raised.
            ReplayExhausted: if it was closed there, and more is wanted now.
        """
        frame, end = self.frame, self.end
        if "error" in end:
            raise raised_from(end["error"], frame.subject.module)
        if "closed" in end or "unfinished" in end or "cancelled" in end:
            assert frame.tape.player is not None
            shown = {"name": frame.subject.name, "arguments": frame.arguments}
            text = f"the stream of {frame.subject.name} was closed after {self.count} chunks when it was recorded"
            raise frame.tape.player.latch(
                ReplayExhausted(frame.index or 0, shown, shown, text, frame.tape.player.cassette.path)
            )
        return frame.tape.read(frame, end)

    def finish(self) -> None:
        """The consumer wants no more."""
        if not self.is_over:
            self.is_over = True
            self.frame.tape.played(self.frame)


class _Playing(Generator[Any, Any, Any]):
    """A recorded stream."""

    def __init__(self, frame: Frame) -> None:
        self._script = _Script(frame)

    def send(self, _value: Any) -> Any:
        script = self._script
        if script.is_over:
            raise StopIteration
        try:
            is_chunk, chunk = script.next()
            if is_chunk:
                return chunk
            value = script.last()
        except BaseException:
            script.finish()
            raise
        script.finish()
        raise StopIteration(value)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        self._script.finish()
        raise kind if value is None and traceback is None else value

    def close(self) -> None:
        self._script.finish()


class _AsyncPlaying(AsyncGenerator[Any, Any]):
    """A recorded stream that is awaited."""

    def __init__(self, frame: Frame) -> None:
        self._script = _Script(frame)

    async def asend(self, _value: Any) -> Any:
        script = self._script
        if script.is_over:
            raise StopAsyncIteration
        try:
            await asyncio.sleep(0)
            is_chunk, chunk = script.next()
            if is_chunk:
                return chunk
            if "cancelled" in script.end:
                await until_cancelled(script.frame)
            script.last()
        except BaseException:
            script.finish()
            raise
        script.finish()
        raise StopAsyncIteration

    async def athrow(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        self._script.finish()
        raise kind if value is None and traceback is None else value

    async def aclose(self) -> None:
        self._script.finish()


class _Face:
    """A stream object of an SDK: it iterates over what is recorded, and is itself in everything else."""

    def __init__(self, chunks: Generator[Any, Any, Any], tap: _Recording | None = None) -> None:
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

    def __init__(self, chunks: AsyncGenerator[Any, Any], tap: _AsyncRecording | None = None) -> None:
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
            recording = _Recording(self._frame, self._source)
            self._face = _Face(relay(recording), recording)
        if not isinstance(self._face, _Face):
            raise TypeError("this stream is awaited already")
        return self._face

    def _awaited(self) -> _AsyncFace:
        if self._face is None:
            tap = _AsyncRecording(self._frame, self._source)
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


def _reset(token: Any) -> None:
    try:
        FRAME.reset(token)
    except ValueError:
        pass  # closed by the garbage collector, in another context than it ran in
