"""Streams: chunks are recorded while they pass, and replayed one by one.

The caller gets an iterator in place of a generator or a stream object of an SDK, over the recorded or the live chunks,
which passes everything else to the object. A stream that is closed early is recorded as closed there.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import closing, contextmanager
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Self

from agent_cache.engine.hooks import CURRENT_CALL, leave_call
from agent_cache.recording.exceptions import error_outcome, read_error
from agent_cache.recording.functions import ActiveCall
from agent_cache.recording.lanes import CHECKPOINT, is_cancellation
from agent_cache.recording.outcomes import decode, encode, schema_of, value_outcome
from agent_cache.recording.redaction import Redaction

NO_STREAMS = frozenset({dict, list, tuple, set, str, bytes, int, float, bool, type(None)})
"""Classes of values that are known at once to be no streams."""


def is_stream(value: Any) -> bool:
    """Whether a value is a generator, another iterator, or something iterable that can be closed: an SDK's stream."""
    return type(value) not in NO_STREAMS and (_is_async_stream(value) or _is_plain_stream(value))


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


# What the caller gets


class _Stream:
    """The stream that the caller gets. It passes everything but the chunks to the stream object.

    With a tape each chunk is written to the call, and how the stream ended, once. Without, it is replayed.
    """

    def __init__(self, stream: Any, call: ActiveCall, tape: Any = None) -> None:
        self._stream, self._call, self._tape = stream, call, tape
        self._chunks: Any = None
        self._is_closed = False
        if tape is not None:
            call.chunks = []
        self._extracted: list[Any] | None = [] if call.function.has_extractors else None

    def __getattr__(self, name: str) -> Any:
        if not isinstance(self._stream, GeneratorType | AsyncGeneratorType):
            return getattr(self._stream, name)
        if name == "send":  # by `yield from`; what is sent does not reach the generator
            return lambda _: next(self)
        raise AttributeError(f"a recorded or replayed stream of chunks has no attribute {name!r}")

    def __del__(self) -> None:
        self._end({"closed": True})  # who has left it does not read on

    @contextmanager
    def _step(self) -> Iterator[None]:
        """A step of the stream: what it calls is inside of the recorded call, and what it raises ends that."""
        tape = self._tape
        if tape is None:
            yield
            return
        token = CURRENT_CALL.set(self._call)
        try:
            yield
        except (StopIteration, StopAsyncIteration) as stop:
            self._end(self._call.written(value_outcome, getattr(stop, "value", None), schema_of(Any), tape.redaction))
            raise
        except BaseException as error:
            self._end(self._call.written(failure_outcome, error, tape.redaction))
            raise
        finally:
            leave_call(token)

    def _add(self, chunk: Any) -> Any:
        """Record a chunk."""
        call, tape = self._call, self._tape
        if tape is not None and call.chunks is not None:
            if call.usage is not None:
                call.usage.add(chunk)
            call.chunks.append(value_outcome(chunk, call.function.chunk_schema, tape.redaction, is_chunk=True))
            if self._extracted is not None:
                self._extracted.append(chunk)
        return chunk

    def _end(self, outcome: dict[str, Any]) -> None:
        """Record how it ended; only the first end counts."""
        tape, self._tape = self._tape, None
        if tape is not None:
            tape.stream_ended(self._call, outcome, self._extracted)

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
            self._end({"closed": True})

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
            self._end({"closed": True})

    close = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def recorded_stream(call: ActiveCall, stream: Any, tape: Any) -> _Stream:
    """The stream that the caller gets in place of one that is recorded.

    An object that can be read in both ways, as LiteLLM's, is read as its function is called: with ``await`` or without.
    """
    is_awaited = call.is_awaited or call.function.form == "async"
    call.is_plain_stream = not _is_async_stream(stream) or (_is_plain_stream(stream) and not is_awaited)
    return (_PlainStream if call.is_plain_stream else _AwaitedStream)(stream, call, tape)


# Replay


def replayed_stream(call: ActiveCall, tape: Any) -> _Stream:
    """A recorded stream, to be read again."""
    assert call.recorded is not None
    stream, form = call.recorded.outcome["stream"], call.function.form
    if form == "stream" or (form != "async stream" and stream.get("plain")):
        return _PlainStream(_replay(call, stream, tape), call)
    return _AwaitedStream(_replay_awaited(call, stream, tape), call)


def _replay(call: ActiveCall, stream: dict[str, Any], tape: Any) -> Generator[Any, Any, Any]:
    chunks: list[Any] = []
    try:
        for chunk in stream["chunks"]:
            chunks.append(tape.read(call, decode(encode(chunk)), is_chunk=True))  # its reader may change it
            yield chunks[-1]
        returned = _replayed_end(call, stream, tape)
    except BaseException as error:
        tape.stream_answered(call, chunks, error)
        raise
    tape.stream_answered(call, chunks, None)
    return returned


async def _replay_awaited(call: ActiveCall, stream: dict[str, Any], tape: Any) -> AsyncGenerator[Any, Any]:
    """The same for chunks that are awaited. Other tasks run between two chunks."""
    with closing(_replay(call, stream, tape)) as chunks:
        for left in range(len(stream["chunks"]), -1, -1):
            await CHECKPOINT
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
        text = f"the stream of {call.function.name} was closed after {len(stream['chunks'])} chunks"
        raise tape.exhausted(call, f"{text} when it was recorded")
    return tape.read(call, end)
