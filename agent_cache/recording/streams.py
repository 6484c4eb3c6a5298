"""Streams: chunks are recorded while they pass, and replayed one by one.

A generator is replaced by a generator. A stream object of an SDK is replaced by a proxy that iterates over the recorded
chunks and passes everything else to the object. What the consumer sends or throws into a stream reaches it, and is not
recorded. A stream that is closed early is recorded as closed there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
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

__all__ = ["failure_outcome", "is_stream", "leave_call", "recorded_stream", "replayed_stream"]

OnEnd: TypeAlias = Callable[[ActiveCall, dict[str, Any], list[Any] | None], None]

_NO_STREAMS = frozenset({dict, list, tuple, set, str, bytes, int, float, bool, type(None)})


def is_stream(value: Any) -> bool:
    """Whether a value is a generator, another iterator, or something iterable that can be closed: an SDK's stream."""
    kind = type(value)
    if kind in _NO_STREAMS:
        return False
    return issubclass(kind, GeneratorType) or _is_async_stream(value) or _is_plain_stream(value)


def _is_plain_stream(value: Any) -> bool:
    kind = type(value)
    if not hasattr(kind, "__iter__") or hasattr(kind, "read"):
        return False
    return hasattr(kind, "__next__") or (hasattr(kind, "close") and not hasattr(kind, "__len__"))


def _is_async_stream(value: Any) -> bool:
    kind = type(value)
    return hasattr(kind, "__aiter__") and any(hasattr(kind, name) for name in ("__anext__", "aclose", "close"))


def recorded_stream(call: ActiveCall, stream: Any, redaction: Redaction, on_end: OnEnd) -> Any:
    """The stream that the caller gets in place of one that is recorded.

    Args:
        call: the call that returned it.
        stream: the real stream.
        redaction: of the chunks.
        on_end: is called once, with how it ended and with its chunks, if an extractor of the user wants them.
    """
    log = _StreamLog(call, stream, redaction, on_end)
    if _is_async_stream(stream):
        if _is_plain_stream(stream):
            call.is_plain_stream = not (call.is_awaited or call.function.form == "async")
            return _DualStreamProxy(None, log)
        return _record_async(log) if inspect.isasyncgen(stream) else _AsyncStreamProxy(_record_async(log), log)
    call.is_plain_stream = True
    return _record_plain(log) if inspect.isgenerator(stream) else _StreamProxy(_record_plain(log), log)


def replayed_stream(call: ActiveCall, tape: Replaying, on_end: Callable[[ActiveCall], None]) -> Any:
    """A recorded stream, to be read again. `on_end` is called when it ends, or when its consumer stops reading it."""
    assert call.recorded is not None
    if call.recorded.outcome["stream"].get("plain"):
        return _StreamProxy(_replay_plain(call, tape, on_end))
    return _AsyncStreamProxy(_replay_async(call, tape, on_end))


def failure_outcome(error: BaseException, redaction: Redaction) -> dict[str, Any]:
    """The outcome of a call or a stream that an exception has left."""
    if isinstance(error, GeneratorExit):
        return {"unfinished": True}
    if is_cancellation(error):
        return {"cancelled": True}
    return error_outcome(error, redaction)


def leave_call(token: Token[ActiveCall | None]) -> None:
    """Restore the enclosing call. A generator that the garbage collector closes runs in another context: ignored."""
    try:
        CURRENT_CALL.reset(token)
    except ValueError:
        pass


# Recording


class _StreamLog:
    """Writes the chunks of one running stream to its call, and reports its end once."""

    def __init__(self, call: ActiveCall, source: Any, redaction: Redaction, on_end: OnEnd) -> None:
        self.call = call
        self.source = source
        self._redaction = redaction
        self._on_end = on_end
        self._chunks: list[Any] | None = [] if call.function.has_extractors else None
        self._is_over = False
        self._is_closed = False
        self._outcomes = call.chunks = []

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
        if not self._is_over:
            self._is_over = True
            self._on_end(self.call, outcome, self._chunks)

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
    """A generator over a running stream. What a step calls is inside of the recorded call."""
    source = log.source
    chunks: Any = None

    def receive() -> Any:
        return next(chunks)

    step: Callable[[], Any] = receive
    while True:
        token = CURRENT_CALL.set(log.call)
        try:
            if chunks is None:
                chunks = source if hasattr(type(source), "__next__") else iter(source)
            chunk = step()
        except StopIteration as stop:
            log.returned(stop.value)
            return stop.value
        except BaseException as error:
            log.failed(error)
            raise
        finally:
            leave_call(token)
        log.add(chunk)
        try:
            sent = yield chunk
        except GeneratorExit:
            log.close()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in by the consumer
            step = functools.partial(_throw, source, "throw", error)
        else:
            step = receive if sent is None else functools.partial(chunks.send, sent)


async def _record_async(log: _StreamLog) -> AsyncGenerator[Any, Any]:
    """The same for a stream whose chunks are awaited."""
    source = log.source
    chunks: Any = None

    def receive() -> Any:
        return anext(chunks)

    step: Callable[[], Any] = receive
    while True:
        token = CURRENT_CALL.set(log.call)
        try:
            if chunks is None:
                chunks = source if hasattr(type(source), "__anext__") else aiter(source)
            chunk = await step()
        except StopAsyncIteration:
            log.end({"value": None})
            return
        except BaseException as error:
            log.failed(error)
            raise
        finally:
            leave_call(token)
        log.add(chunk)
        try:
            sent = yield chunk
        except GeneratorExit:
            await log.aclose()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in by the consumer
            step = functools.partial(_throw, source, "athrow", error)
        else:
            step = receive if sent is None else functools.partial(chunks.asend, sent)


def _throw(source: Any, method: str, error: BaseException) -> Any:
    """Throw what the consumer has thrown into the real stream. One without such a method ends there."""
    thrower = getattr(source, method, None)
    if thrower is None:
        raise error
    return thrower(error)


# Replay


def _replay_plain(call: ActiveCall, tape: Replaying, on_end: Callable[[ActiveCall], None]) -> Generator[Any, Any, Any]:
    """A generator over recorded chunks. What is sent into it is ignored."""
    assert call.recorded is not None
    stream = call.recorded.outcome["stream"]
    try:
        for chunk in stream["chunks"]:
            yield tape.read(call, chunk, is_chunk=True)
        return _replay_end(call, tape, stream)
    finally:
        on_end(call)


async def _replay_async(
    call: ActiveCall, tape: Replaying, on_end: Callable[[ActiveCall], None]
) -> AsyncGenerator[Any, Any]:
    """The same for chunks that are awaited. Other tasks run between two chunks."""
    assert call.recorded is not None
    stream = call.recorded.outcome["stream"]
    try:
        for chunk in stream["chunks"]:
            await checkpoint()
            yield tape.read(call, chunk, is_chunk=True)
        await checkpoint()
        if "cancelled" in stream["end"]:
            await tape.wait_until_cancelled(call)
        _replay_end(call, tape, stream)
    finally:
        on_end(call)


def _replay_end(call: ActiveCall, tape: Replaying, stream: dict[str, Any]) -> Any:
    """The end after the last chunk: the value that a generator returned, or an exception.

    Raises:
        BaseException: what the stream raised.
        ReplayExhausted: if its consumer stopped here when it was recorded, and wants another chunk now.
    """
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


class _StreamProxy(_Proxy):
    """Iterates over chunks."""

    def __iter__(self) -> Iterator[Any]:
        return self._chunks  # type: ignore[no-any-return]  # a generator

    def __next__(self) -> Any:
        return next(self._chunks)

    def close(self) -> None:
        self._chunks.close()
        if self._log is not None:  # also a stream that was not begun, or was read to its end
            self._log.close()

    def send(self, value: Any) -> Any:
        return self._chunks.send(value)

    def throw(self, error: BaseException) -> Any:
        return self._chunks.throw(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _AsyncStreamProxy(_Proxy):
    """Iterates over chunks that are awaited."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks  # type: ignore[no-any-return]  # as above

    async def __anext__(self) -> Any:
        return await self._chunks.__anext__()

    async def aclose(self) -> None:
        await self._chunks.aclose()
        if self._log is not None:  # as above
            await self._log.aclose()

    async def asend(self, value: Any) -> Any:
        return await self._chunks.asend(value)

    async def athrow(self, error: BaseException) -> Any:
        return await self._chunks.athrow(error)

    close = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _DualStreamProxy(_Proxy):
    """A stream object that can be read in both ways, as LiteLLM's. Its first use decides how it is recorded."""

    _log: _StreamLog
    _proxy: _StreamProxy | _AsyncStreamProxy | None = None

    def _plain(self) -> _StreamProxy:
        if self._proxy is None:
            self._log.call.is_plain_stream = True
            self._proxy = _StreamProxy(_record_plain(self._log), self._log)
        if not isinstance(self._proxy, _StreamProxy):
            raise TypeError("this stream is read with `async for` already")
        return self._proxy

    def _awaited(self) -> _AsyncStreamProxy:
        if self._proxy is None:
            self._log.call.is_plain_stream = False
            self._proxy = _AsyncStreamProxy(_record_async(self._log), self._log)
        if not isinstance(self._proxy, _AsyncStreamProxy):
            raise TypeError("this stream is read with `for` already")
        return self._proxy

    def __iter__(self) -> Iterator[Any]:
        return iter(self._plain())

    def __next__(self) -> Any:
        return next(self._plain())

    def __enter__(self) -> _StreamProxy:
        return self._plain()

    def __exit__(self, *_: object) -> None:
        self._plain().close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._awaited())

    async def __anext__(self) -> Any:
        return await anext(self._awaited())

    async def __aenter__(self) -> _AsyncStreamProxy:
        return self._awaited()

    async def __aexit__(self, *_: object) -> None:
        await self._awaited().aclose()

    async def aclose(self) -> None:
        await self._awaited().aclose()

    def close(self) -> Any:
        """Close it as it was read. If it was not read, this returns a coroutine where the stream's own close does."""
        if self._proxy is None and inspect.iscoroutinefunction(getattr(self._log.source, "close", None)):
            self._awaited()
        return self._plain().close() if self._proxy is None else self._proxy.close()
