"""A call that is being recorded or replayed, and the one that encloses it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agent_cache.recording.chunks import redacted_chunks
from agent_cache.recording.format import RecordedCall
from agent_cache.recording.llm_shapes import Usage

if TYPE_CHECKING:
    from agent_cache.engine.interception import InterceptedCall
    from agent_cache.recording.functions import Subject
    from agent_cache.recording.tape import Tape

__all__ = ["FRAME", "Frame"]


class Frame:
    """One call on one tape.

    Attributes:
        tape: the tape.
        subject: what was called.
        outer: the frame that was innermost when it started, of whatever tape.
        parent: the innermost of the same tape, or None.
        place: see `agent_cache.recording.identity`.
        digest: the same.
        counts: how many calls of each digest have started in it.
        arguments: as plain data, redacted.
        key: the identity that ``cache_key=`` gave it.
        recorded: what it is answered with; None if it runs.
        index: where that stands in the cassette.
        id, after, lane, started: as a `RecordedCall` has them; 0 where nothing is recorded.
        source: how a tool's cache answered.
        taped: the tool's call, if it is one.
        passed: positional and keyword arguments as they were passed, for extractors.
        usage: what is known of an LLM call; None for any other.
        chunks: what a stream has yielded so far, not redacted yet; None if it is none.
        is_plain: whether the stream is not awaited.
        is_awaited: whether a plain function returned something to be awaited, and this is what it came to.
    """

    __slots__ = (
        "after",
        "arguments",
        "chunks",
        "counts",
        "digest",
        "id",
        "index",
        "is_awaited",
        "is_plain",
        "key",
        "lane",
        "outer",
        "parent",
        "passed",
        "place",
        "recorded",
        "source",
        "started",
        "subject",
        "tape",
        "taped",
        "usage",
    )

    def __init__(self, tape: Tape, subject: Subject, arguments: dict[str, Any], key: str | None, digest: bytes) -> None:
        self.tape = tape
        self.subject = subject
        self.arguments = arguments
        self.key = key
        self.digest = digest
        self.outer = outer = FRAME.get()
        while outer is not None and outer.tape is not tape:
            outer = outer.outer
        self.parent = outer
        self.counts: dict[bytes, int] = {}
        self.place = b""
        self.recorded: RecordedCall | None = None
        self.index: int | None = None
        self.id = 0
        self.after = 0
        self.lane = 0
        self.started = 0.0
        self.source = ""
        self.taped: InterceptedCall | None = None
        self.passed: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.usage: Usage | None = None
        self.chunks: list[Any] | None = None
        self.is_plain = False
        self.is_awaited = False

    def stream_outcome(self, end: dict[str, Any]) -> dict[str, Any]:
        """What a stream came to, with how it ended."""
        stream: dict[str, Any] = {"chunks": redacted_chunks(self.chunks or [], self.tape.redaction), "end": end}
        if self.is_plain:
            stream["plain"] = True
        return {"stream": stream}


FRAME: ContextVar[Frame | None] = ContextVar("agent_cache_recorded_call", default=None)
"""The innermost recorded call that is running in this context. Child tasks and threads inherit it."""
