"""`Recorder`: writes down what a run sees, call by call as they end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.errors import CassetteError
from agent_cache.recording.format import Header, RecordedCall, Trailer, call_line, header_line, trailer_line
from agent_cache.recording.frame import Frame
from agent_cache.recording.matching import Matcher
from agent_cache.recording.partial import PartialFile
from agent_cache.recording.redaction import Redaction

__all__ = ["Recorder", "header_of"]

_LOG = logging.getLogger("agent_cache")


class Recorder:
    """The file of a recording while it grows. All of it is called under the lock of its tape.

    Attributes:
        path: where it will be.
        written: how many calls stand in it.
        failure: what the disk said, if it did not take a line. The agent is not stopped for that; the end of the
            recording raises it.
    """

    def __init__(self, path: Path, model: str | None, redaction: Redaction) -> None:
        self.path = path
        self._redaction = redaction
        self._file = PartialFile(path)
        self._began = time.perf_counter()
        self.written = 0
        self.failure: OSError | None = None
        self.is_closed = False
        self._next_id = 1
        self._last = 0
        self._open: dict[int, Frame] = {}
        self._ids: dict[int, int] = {}
        self._tasks: MutableMapping[Any, int] = weakref.WeakKeyDictionary()
        self._threads: dict[int, int] = {}
        self._next_lane = 0
        self._latest: Callable[[], Any] = _nobody
        self._latest_lane = 0
        try:
            self._file.append(header_line(header_of(model, redaction)))
        except OSError as error:
            self._file.discard()
            raise CassetteError(f"cannot be written: {error.strerror}", path) from error

    def start(self, frame: Frame) -> None:
        """Number a call that starts."""
        frame.id, frame.after = self._next_id, self._last
        frame.lane = self._lane()
        frame.started = time.perf_counter()
        self._next_id += 1
        self._open[frame.id] = frame

    def end(self, frame: Frame, outcome: dict[str, Any], source: str) -> None:
        """Write down a call that has ended."""
        if self.is_closed or self._open.pop(frame.id, None) is None:
            return
        now = time.perf_counter()
        if frame.is_awaited:
            outcome["awaited"] = True
        call = RecordedCall(
            id=frame.id,
            parent=None if frame.parent is None else frame.parent.id,
            kind=frame.subject.kind,
            name=frame.subject.name,
            arguments=frame.arguments,
            key=frame.key,
            digest=frame.digest.hex(),
            after=frame.after,
            lane=frame.lane,
            outcome=outcome,
            source=source,
            started_ms=_milliseconds(frame.started - self._began),
            duration_ms=_milliseconds(now - frame.started),
        )
        if (usage := frame.usage) is not None:  # three more fields double what it takes to make one
            call = msgspec.structs.replace(
                call,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                model=None if usage.model is None else self._redaction.labelled("model", usage.model),
            )
        self._write(call)

    def repeat(self, frame: Frame, matcher: Matcher) -> None:
        """Write a call once more that was answered from the old recording, and what it enclosed."""
        if self.is_closed or self._open.pop(frame.id, None) is None or frame.index is None:
            return
        after = self._last
        for child in matcher.children(frame.index):
            self._copy(child, frame.id, after, matcher)
        assert frame.recorded is not None
        parent = None if frame.parent is None else frame.parent.id
        self._write(
            msgspec.structs.replace(
                frame.recorded, id=frame.id, parent=parent, after=frame.after, lane=frame.lane, form="",
                digest=frame.digest.hex(), name=frame.subject.name, arguments=frame.arguments,
            )
        )  # fmt: skip
        self._ids[frame.index] = frame.id

    def keep_rest(self, matcher: Matcher) -> None:
        """Write what the old recording has, and this run has not called."""
        for index in list(matcher.left_over()):
            parent = matcher.parent(index)
            if parent < 0 or matcher.is_covered(parent):
                self._copy(index, self._ids.get(parent), self._last, matcher)

    def finish(self, ended: str) -> None:
        """Close the recording: calls that have not ended are noted as that."""
        for frame in list(self._open.values()):
            outcome: dict[str, Any] = {"unfinished": True}
            if frame.chunks is not None:
                outcome = frame.stream_outcome(outcome)
            self.end(frame, outcome, frame.source)
        self.is_closed = True
        duration = _milliseconds(time.perf_counter() - self._began)
        self._append(trailer_line(Trailer(calls=self.written, duration_ms=duration, ended=ended)))
        if self.failure is not None:
            self._file.leave()
            raise CassetteError(
                f"could not be written: {self.failure.strerror}; what could be is in {self.path.name}.partial",
                self.path,
            ) from self.failure
        self._file.finish()

    def discard(self) -> None:
        """Nothing new was recorded: the file stays as it is."""
        self.is_closed = True
        self._file.discard()

    def _lane(self) -> int:
        """The number of the task, or of the thread, that makes a call."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is not None and self._latest() is task:
            return self._latest_lane
        lanes: MutableMapping[Any, int] = self._threads if task is None else self._tasks
        lane = lanes.setdefault(threading.get_ident() if task is None else task, self._next_lane)
        if lane == self._next_lane:
            self._next_lane += 1
        if task is not None:
            self._latest, self._latest_lane = weakref.ref(task), lane
        return lane

    def _copy(self, index: int, parent: int | None, after: int, matcher: Matcher) -> None:
        number = self._next_id
        self._next_id += 1
        self._ids[index] = number
        for child in matcher.children(index):
            self._copy(child, number, after, matcher)
        matcher.cover_alone(index)
        self._write(msgspec.structs.replace(matcher.cassette.steps[index], id=number, parent=parent, after=after))

    def _write(self, call: RecordedCall) -> None:
        self._append(call_line(call))
        self.written += 1
        self._last = call.id

    def _append(self, line: bytes) -> None:
        if self.failure is not None:
            return
        try:
            self._file.append(line)
        except OSError as error:
            self.failure = error
            _LOG.error("recording to %s stopped: %s; the run goes on", self.path, error)


def _nobody() -> None:
    """A reference to no task."""


def _milliseconds(seconds: float) -> float:
    """To the microsecond."""
    return int(seconds * 1e6) / 1000


def header_of(model: str | None, redaction: Redaction) -> Header:
    """The header of a recording that begins now."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Header(recorded_at=now, model=model, redact=redaction.describe())
