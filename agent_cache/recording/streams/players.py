"""Recorded streams: what came out of them, in order, and how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

from agent_cache.errors import ReplayExhausted
from agent_cache.recording.deadlines import until_cancelled
from agent_cache.recording.failures import raised_from
from agent_cache.recording.frame import Frame
from agent_cache.recording.streams.relays import thrown

__all__ = ["AsyncPlaying", "Playing"]


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


class Playing(Generator[Any, Any, Any]):
    """A recorded stream."""

    def __init__(self, frame: Frame) -> None:
        self._script = _Script(frame)

    def send(self, _value: Any) -> Any:
        """The next chunk; nobody hears what is sent."""
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
        """End it; nothing in it could catch this."""
        self._script.finish()
        raise thrown(kind, value, traceback)

    def close(self) -> None:
        """The consumer wants no more."""
        self._script.finish()


class AsyncPlaying(AsyncGenerator[Any, Any]):
    """A recorded stream that is awaited."""

    def __init__(self, frame: Frame) -> None:
        self._script = _Script(frame)

    async def asend(self, _value: Any) -> Any:
        """The next chunk; nobody hears what is sent."""
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
        """End it; nothing in it could catch this."""
        self._script.finish()
        raise thrown(kind, value, traceback)

    async def aclose(self) -> None:
        """The consumer wants no more."""
        self._script.finish()
