"""Streams: chunks are recorded while they pass, and replayed one by one.

The caller gets an iterator in place of a generator or a stream object of an SDK, over the recorded or the live chunks,
which passes everything else to the object. A stream that is closed early is recorded as closed there.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Self, TypeAlias

from agent_cache.engine.hooks import CURRENT_CALL, leave_call
from agent_cache.errors import ReplayExhausted
from agent_cache.recording.exceptions import error_outcome, read_error
from agent_cache.recording.functions import ActiveCall
from agent_cache.recording.lanes import checkpoint, is_cancellation
from agent_cache.recording.match import call_data
from agent_cache.recording.outcomes import schema_of, value_outcome
from agent_cache.recording.redaction import Redaction

OnEnd: TypeAlias = Callable[[ActiveCall, dict[str, Any], list[Any] | None], None]
OnReplayed: TypeAlias = Callable[[ActiveCall, list[Any], BaseException | None], None]

_NO_STREAMS = frozenset({dict, list, tuple, set, str, bytes, int, float, bool, type(None)})


def is_stream(value: Any) -> bool:
    """Whether a value is a generator, another iterator, or something iterable that can be closed: an SDK's stream."""
    return type(value) not in _NO_STREAMS and (_is_async_stream(value) or _is_plain_stream(value))


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


# Recording


def recorded_stream(
    call: ActiveCall, stream: Any, redaction: Redaction, on_end: OnEnd
) -> _PlainStream | _AwaitedStream:
    """The stream that the caller gets in place of one that is recorded.

    An object that can be read in both ways, as LiteLLM's, is read as its function is called: with ``await`` or without.
    """
    is_awaited = call.is_awaited or call.function.form == "async"
    call.is_plain_stream = not _is_async_stream(stream) or (_is_plain_stream(stream) and not is_awaited)
    log = _StreamLog(call, redaction, on_end)
    return _PlainStream(stream, log) if call.is_plain_stream else _AwaitedStream(stream, log)


class _StreamLog:
    """Writes the chunks of one running stream to its call, and reports its end once."""

    def __init__(self, call: ActiveCall, redaction: Redaction, on_end: OnEnd) -> None:
        self.call = call
        self._redaction = redaction
        self._on_end: OnEnd | None = on_end
        self._chunks: list[Any] | None = [] if call.function.has_extractors else None
        self._outcomes = call.chunks = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the stream: what it calls is inside of the recorded call, and what it raises ends that."""
        token = CURRENT_CALL.set(self.call)
        try:
            yield
        except (StopIteration, StopAsyncIteration) as stop:
            self.end(value_outcome(getattr(stop, "value", None), schema_of(Any), self._redaction))
            raise
        except BaseException as error:
            self.end(failure_outcome(error, self._redaction))
            raise
        finally:
            leave_call(token)

    def add(self, chunk: Any) -> Any:
        """Record a chunk."""
        call = self.call
        if call.usage is not None:
            call.usage.add(chunk)
        self._outcomes.append(value_outcome(chunk, call.function.chunk_schema, self._redaction, is_chunk=True))
        if self._chunks is not None:
            self._chunks.append(chunk)
        return chunk

    def end(self, outcome: dict[str, Any]) -> None:
        """Record how it ended; only the first end counts."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.call, outcome, self._chunks)


class _Stream:
    """What the caller of a stream gets. It passes everything but the chunks to the stream object."""

    def __init__(self, stream: Any, log: _StreamLog | None = None) -> None:
        self._stream = stream
        self._log = log  # none of a stream that is replayed
        self._chunks: Any = None
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        if not isinstance(self._stream, GeneratorType | AsyncGeneratorType):
            return getattr(self._stream, name)
        if name == "send":  # by `yield from`; what is sent does not reach the generator
            return lambda _: next(self)
        raise AttributeError(f"a recorded or replayed stream of chunks has no attribute {name!r}")

    def __del__(self) -> None:
        self._ended()  # who has left it does not read on

    def _step(self) -> AbstractContextManager[None]:
        return nullcontext() if self._log is None else self._log.step()

    def _add(self, chunk: Any) -> Any:
        return chunk if self._log is None else self._log.add(chunk)

    def _ended(self) -> None:
        if self._log is not None:
            self._log.end({"closed": True})

    def _closing(self, *names: str) -> Any:
        """Close the stream object, once. Returns what may have to be awaited."""
        found = [] if self._is_closed else [one for name in names if (one := getattr(self._stream, name, None))]
        self._is_closed = True
        return found[0]() if found else None


class _PlainStream(_Stream):
    """Iterates over chunks."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        with self._step():
            if self._chunks is None:
                self._chunks = iter(self._stream)
            chunk = next(self._chunks)
        return self._add(chunk)

    def close(self) -> None:
        try:
            self._closing("close")
        finally:
            self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _AwaitedStream(_Stream):
    """Iterates over chunks that are awaited."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        with self._step():
            if self._chunks is None:
                self._chunks = aiter(self._stream)
            chunk = await anext(self._chunks)
        return self._add(chunk)

    async def aclose(self) -> None:
        try:
            if inspect.isawaitable(closed := self._closing("aclose", "close")):
                await closed
        finally:
            self._ended()

    close = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


# Replay


def replayed_stream(call: ActiveCall, tape: Any, on_end: OnReplayed) -> _Stream:
    """A recorded stream, to be read again. `on_end` is given its chunks, and what has ended it otherwise."""
    assert call.recorded is not None
    stream = call.recorded.outcome["stream"]
    if stream.get("plain"):
        return _PlainStream(_replay(call, stream, tape, on_end))
    return _AwaitedStream(_replay_awaited(call, stream, tape, on_end))


def _replay(call: ActiveCall, stream: dict[str, Any], tape: Any, on_end: OnReplayed) -> Generator[Any, Any, Any]:
    chunks: list[Any] = []
    try:
        for chunk in stream["chunks"]:
            chunks.append(tape.read(call, chunk, is_chunk=True))
            yield chunks[-1]
        returned = _replayed_end(call, stream, tape)
    except BaseException as error:
        on_end(call, chunks, error)
        raise
    on_end(call, chunks, None)
    return returned


async def _replay_awaited(
    call: ActiveCall, stream: dict[str, Any], tape: Any, on_end: OnReplayed
) -> AsyncGenerator[Any, Any]:
    """The same for chunks that are awaited. Other tasks run between two chunks."""
    with closing(_replay(call, stream, tape, on_end)) as chunks:
        for left in range(len(stream["chunks"]), -1, -1):
            await checkpoint()
            if not left and "cancelled" in stream["end"]:
                await tape.wait_until_cancelled(call)
            for chunk in chunks:
                yield chunk
                break


def _replayed_end(call: ActiveCall, stream: dict[str, Any], tape: Any) -> Any:
    """The end after the last chunk: the value that a generator returned, or what it raised."""
    end = stream["end"]
    if "error" in end:
        raise read_error(end["error"])
    if "closed" in end or "unfinished" in end or "cancelled" in end:
        shown, count = call_data(call), len(stream["chunks"])
        text = f"the stream of {call.function.name} was closed after {count} chunks when it was recorded"
        number = None if call.recorded is None else call.recorded.id
        raise tape.latch(ReplayExhausted(number, shown, shown, text, tape.source_path))
    return tape.read(call, end)
