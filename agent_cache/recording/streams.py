"""Streams: chunks are recorded while they pass, and replayed one by one.

A generator is replaced by a generator. A stream object of an SDK is replaced by a proxy that iterates over the recorded
chunks and passes everything else to the object. A stream that is closed early is recorded as closed there.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import Token
from types import GeneratorType
from typing import Any, Self, TypeAlias

from agent_cache.errors import ReplayExhausted
from agent_cache.recording.exceptions import error_outcome, read_error
from agent_cache.recording.functions import CURRENT_CALL, ActiveCall
from agent_cache.recording.lanes import checkpoint, is_cancellation
from agent_cache.recording.outcomes import schema_of, value_outcome
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.replaying import Replaying

OnEnd: TypeAlias = Callable[[ActiveCall, dict[str, Any], list[Any] | None], None]
OnReplayed: TypeAlias = Callable[[ActiveCall, list[Any], BaseException | None], None]

_NO_STREAMS = frozenset({dict, list, tuple, set, str, bytes, int, float, bool, type(None)})


def is_stream(value: Any) -> bool:
    """Whether a value is a generator, another iterator, or something iterable that can be closed: an SDK's stream."""
    kind = type(value)
    return kind not in _NO_STREAMS and (
        issubclass(kind, GeneratorType) or _is_async_stream(value) or _is_plain_stream(value)
    )


def _is_plain_stream(value: Any) -> bool:
    kind = type(value)
    if not hasattr(kind, "__iter__") or hasattr(kind, "read"):
        return False
    return hasattr(kind, "__next__") or (hasattr(kind, "close") and not hasattr(kind, "__len__"))


def _is_async_stream(value: Any) -> bool:
    kind = type(value)
    return hasattr(kind, "__aiter__") and any(hasattr(kind, name) for name in ("__anext__", "aclose", "close"))


def failure_outcome(error: BaseException, redaction: Redaction) -> dict[str, Any]:
    """The outcome of a call or a stream that an exception has left."""
    if isinstance(error, GeneratorExit):
        return {"unfinished": True}
    return {"cancelled": True} if is_cancellation(error) else error_outcome(error, redaction)


def leave_call(token: Token[ActiveCall | None]) -> None:
    """Restore the enclosing call. A generator that the garbage collector closes runs in another context: ignored."""
    try:
        CURRENT_CALL.reset(token)
    except ValueError:
        pass


# Recording


def recorded_stream(call: ActiveCall, stream: Any, redaction: Redaction, on_end: OnEnd) -> Any:
    """The stream that the caller gets in place of one that is recorded.

    An object that can be read in both ways, as LiteLLM's, is read as its function is called: with ``await`` or without.
    """
    is_awaited = call.is_awaited or call.function.form == "async"
    call.is_plain_stream = not _is_async_stream(stream) or (_is_plain_stream(stream) and not is_awaited)
    log = _StreamLog(call, stream, redaction, on_end)
    if call.is_plain_stream:
        return _record_plain(log) if inspect.isgenerator(stream) else _PlainProxy(_record_plain(log), log)
    return _record_async(log) if inspect.isasyncgen(stream) else _AwaitedProxy(_record_async(log), log)


class _StreamLog:
    """Writes the chunks of one running stream to its call, and reports its end once."""

    def __init__(self, call: ActiveCall, source: Any, redaction: Redaction, on_end: OnEnd) -> None:
        self.call = call
        self.source = source
        self._redaction = redaction
        self._on_end: OnEnd | None = on_end
        self._chunks: list[Any] | None = [] if call.function.has_extractors else None
        self._is_closed = False
        self._outcomes = call.chunks = []

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What a step of the stream calls is inside of the recorded call."""
        token = CURRENT_CALL.set(self.call)
        try:
            yield
        finally:
            leave_call(token)

    def add(self, chunk: Any) -> None:
        """Record a chunk."""
        call = self.call
        if not call.id:  # nothing is written: the policy lets it run in a replay
            return
        if call.usage is not None:
            call.usage.add(chunk)
        self._outcomes.append(value_outcome(chunk, call.function.chunk_schema, self._redaction, is_chunk=True))
        if self._chunks is not None:
            self._chunks.append(chunk)

    def returned(self, value: Any) -> None:
        """Record the value that a generator returned."""
        self.end(value_outcome(value, schema_of(Any), self._redaction))

    def failed(self, error: BaseException) -> None:
        """Record the exception that ended the stream."""
        self.end(failure_outcome(error, self._redaction))

    def end(self, outcome: dict[str, Any]) -> None:
        """Record how it ended; only the first end counts."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.call, outcome, self._chunks)

    def close(self) -> None:
        """Close the stream once, also if it was not read to its end."""
        try:
            self._close("close")
        finally:
            self.end({"closed": True})

    async def aclose(self) -> None:
        """As `close`, for a stream whose chunks are awaited."""
        try:
            closed = self._close("aclose", "close")
            if inspect.isawaitable(closed):
                await closed
        finally:
            self.end({"closed": True})

    def _close(self, *names: str) -> Any:
        closer = next((found for name in names if (found := getattr(self.source, name, None)) is not None), None)
        if closer is None or self._is_closed:
            return None
        self._is_closed = True
        return closer()


def _record_plain(log: _StreamLog) -> Generator[Any, Any, Any]:
    try:
        chunks = None
        while True:
            with log.inside():
                chunks = iter(log.source) if chunks is None else chunks
                try:
                    chunk = next(chunks)
                except StopIteration as stop:
                    log.returned(stop.value)
                    return stop.value
            log.add(chunk)
            yield chunk
    except GeneratorExit:
        log.close()
        raise
    except BaseException as error:
        log.failed(error)
        raise


async def _record_async(log: _StreamLog) -> AsyncGenerator[Any, Any]:
    """The same for a stream whose chunks are awaited."""
    try:
        chunks = None
        while True:
            with log.inside():
                chunks = aiter(log.source) if chunks is None else chunks
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    log.returned(None)
                    return
            log.add(chunk)
            yield chunk
    except GeneratorExit:
        await log.aclose()
        raise
    except BaseException as error:
        log.failed(error)
        raise


# Replay


def replayed_stream(call: ActiveCall, tape: Replaying, on_end: OnReplayed) -> Any:
    """A recorded stream, to be read again. `on_end` is given its chunks, and what has ended it otherwise."""
    assert call.recorded is not None
    stream = call.recorded.outcome["stream"]
    if stream.get("plain"):
        return _PlainProxy(_replay_plain(call, stream, tape, on_end))
    return _AwaitedProxy(_replay_async(call, stream, tape, on_end))


def _replay_plain(
    call: ActiveCall, stream: dict[str, Any], tape: Replaying, on_end: OnReplayed
) -> Generator[Any, Any, Any]:
    chunks: list[Any] = []
    try:
        for chunk in stream["chunks"]:
            chunks.append(tape.read(call, chunk, is_chunk=True))
            yield chunks[-1]
        returned = _replay_end(call, stream, tape)
    except BaseException as error:
        on_end(call, chunks, error)
        raise
    on_end(call, chunks, None)
    return returned


async def _replay_async(
    call: ActiveCall, stream: dict[str, Any], tape: Replaying, on_end: OnReplayed
) -> AsyncGenerator[Any, Any]:
    """The same for chunks that are awaited. Other tasks run between two chunks."""
    chunks: list[Any] = []
    try:
        for chunk in stream["chunks"]:
            await checkpoint()
            chunks.append(tape.read(call, chunk, is_chunk=True))
            yield chunks[-1]
        await checkpoint()
        if "cancelled" in stream["end"]:
            await tape.wait_until_cancelled(call)
        _replay_end(call, stream, tape)
    except BaseException as error:
        on_end(call, chunks, error)
        raise
    on_end(call, chunks, None)


def _replay_end(call: ActiveCall, stream: dict[str, Any], tape: Replaying) -> Any:
    """The end after the last chunk: the value that a generator returned, or what it raised."""
    end = stream["end"]
    if "error" in end:
        raise read_error(end["error"])
    if "closed" in end or "unfinished" in end or "cancelled" in end:
        shown = {"name": call.function.name, "arguments": call.arguments}
        count = len(stream["chunks"])
        text = f"the stream of {call.function.name} was closed after {count} chunks when it was recorded"
        number = None if call.recorded is None else call.recorded.id
        raise tape.latch(ReplayExhausted(number, shown, shown, text, tape.source_path))
    return tape.read(call, end)


# Stream objects of SDKs


class _Proxy:
    """Passes everything but the chunks to the stream object, if there is one."""

    def __init__(self, chunks: Any, log: _StreamLog | None = None) -> None:
        self._chunks = chunks
        self._log = log

    def __getattr__(self, name: str) -> Any:
        if self._log is None:
            raise AttributeError(f"a replayed stream has its chunks only, and no attribute {name!r}")
        return getattr(self._log.source, name)


class _PlainProxy(_Proxy):
    """Iterates over chunks."""

    def __iter__(self) -> Any:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    def close(self) -> None:
        self._chunks.close()
        if self._log is not None:  # also a stream that was not begun, or was read to its end
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _AwaitedProxy(_Proxy):
    """Iterates over chunks that are awaited."""

    def __aiter__(self) -> Any:
        return self._chunks

    async def __anext__(self) -> Any:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        await self._chunks.aclose()
        if self._log is not None:  # as above
            await self._log.aclose()

    close = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
