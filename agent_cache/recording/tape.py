"""`Tape`: what is done with each call of a run, whatever it is a call of: answered, run, written down."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Mapping
from typing import Any

from agent_cache.engine.interception import InterceptedCall, replay_into_sessions
from agent_cache.engine.runtime import Operation
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.frame import Frame
from agent_cache.recording.functions import Subject
from agent_cache.recording.identity import ROOT_PLACE, digest_of, digest_of_key, place_of
from agent_cache.recording.llm_shapes import Usage
from agent_cache.recording.outcomes import error_outcome, read_value, value_outcome
from agent_cache.recording.performance import perform
from agent_cache.recording.plain import plain_arguments
from agent_cache.recording.player import Player
from agent_cache.recording.recorder import Recorder
from agent_cache.recording.redacted import redacted_key
from agent_cache.recording.redaction import Redaction

__all__ = ["NO_CONTEXT", "Tape"]

_LOG = logging.getLogger("agent_cache")

NO_CONTEXT = (
    "run_in_executor and Thread do not take the context along; use asyncio.to_thread, or contextvars.copy_context().run"
)
"""Why a call in a thread is outside of all recordings, and what to do about it."""


class Tape:
    """One recording or replay, from its beginning to its end.

    Args:
        redaction: what is not written down, and takes no part in matching.
        player: answers from what was recorded; None if nothing was, or all is to run.
        recorder: writes down what runs; None if nothing may.
        policy: ``stub``, ``live`` or ``forbid`` by name of a function.
        answers: whether the player answers; otherwise it only notes what has run again.

    Attributes:
        counts: how many calls of each digest have started outside of all others.
        news: how many calls ran and were written down.
        thread: the identifier of the thread that it was put up in.
        is_guarded: whether a replay refuses what escapes it, also if it is not strict.
    """

    def __init__(
        self,
        redaction: Redaction,
        *,
        player: Player | None = None,
        recorder: Recorder | None = None,
        policy: Mapping[str, str] | None = None,
        answers: bool = True,
    ) -> None:
        self.redaction = redaction
        self.player = player
        self.recorder = recorder
        self.counts: dict[bytes, int] = {}
        self.news = 0
        self.thread = threading.get_ident()
        self.is_guarded = False
        self._answers = answers
        self._policy = dict(policy or {})
        self._policies: dict[str, str] = {}
        self._lock = threading.RLock()

    # A call begins

    def begin(self, subject: Subject, arguments: Mapping[str, Any], key: str | None = None) -> Frame:
        """Find out what is to be done with a call. Where there is something to replay, number it among those of its
        place.

        Raises:
            CassetteError: if it is not recorded, and may not run.
            ConfigurationError: if the redaction hook gave no arguments back.
        """
        data, raw = plain_arguments(subject.recorded(arguments), is_identity=key is None)
        given = data
        if self.redaction.may_touch(raw):
            data = self.redaction.apply(data)
            if type(data) is not dict:
                raise ConfigurationError(
                    f"{subject.name}: the redaction hook must return the arguments of a call as a dict, as it was "
                    f"given them; it returned {type(data).__name__}"
                )
        if key is not None:
            key = redacted_key(key, given, data, self.redaction)
        digest = digest_of(subject.name, data) if key is None else digest_of_key(subject.name, key)
        frame = Frame(self, subject, data, key, digest)
        if subject.kind == "llm":
            frame.usage = Usage()
        with self._lock:
            if self.player is not None:
                parent = frame.parent
                counts = self.counts if parent is None else parent.counts
                occurrence = counts.get(digest, 0)
                counts[digest] = occurrence + 1
                frame.place = place_of(ROOT_PLACE if parent is None else parent.place, digest, occurrence)
                self._look_up(frame, self.player)
            if self.recorder is not None and not self.recorder.is_closed:
                self.recorder.start(frame)
        return frame

    def _look_up(self, frame: Frame, player: Player) -> None:
        policy = self._policy_of(frame.subject) if self._policy else "stub"
        if policy == "forbid":
            raise player.miss(frame, f"{frame.subject.name} was called, and the policy forbids it")
        index = player.find(frame)
        if index is not None and policy == "stub" and self._answers:
            player.take(frame, index)
        elif index is not None:
            frame.index = index
            player.matcher.cover_alone(index)
        elif self.recorder is None and policy == "stub":
            raise player.miss(frame)

    def _policy_of(self, subject: Subject) -> str:
        found = self._policies.get(subject.name)
        if found is None:
            found = next(
                (self._policy[name] for name in (subject.name, *subject.names) if name in self._policy), "stub"
            )
            self._policies[subject.name] = found
        return found

    def escaped(self, called: Operation[Any] | Subject) -> None:
        """A thread without a context has called: it may belong to this run, and cannot tell. Said once a function.

        Raises:
            CassetteError: if it may not run then, by its policy, in a strict replay, or in a guarded one.
        """
        subject = called if isinstance(called, Subject) else _subject_of(called)
        thread = threading.current_thread().name
        if self.player is not None:
            policy = self._policy_of(subject)
            may_run = policy == "live" or not (self.player.strict or (self.is_guarded and self.recorder is None))
            if policy == "forbid" or not may_run:
                text = f"{subject.name} was called in thread {thread}, and would have run: {NO_CONTEXT}"
                raise self.player.latch(CassetteError(text, self.player.cassette.path))
        if subject.name not in _escaped:
            _escaped.add(subject.name)
            _LOG.warning(
                "%s ran in thread %s, outside of the recording or replay that goes on: %s",
                subject.name,
                thread,
                NO_CONTEXT,
            )

    # A call ends

    def returned(self, frame: Frame, value: Any) -> None:
        """A call that ran has returned."""
        self._note_end(frame)
        if self.recorder is not None:
            self._see(frame, value)
            self._end(frame, value_outcome(value, frame.subject.schema, self.redaction))

    def raised(self, frame: Frame, error: BaseException) -> None:
        """A call that ran has raised, or was cancelled, or was dropped in the middle."""
        self._note_end(frame)
        if self.recorder is not None:
            self._end(frame, self.failure(error))

    def yielded(self, frame: Frame, chunk: Any) -> None:
        """A stream that runs has yielded."""
        if self.recorder is not None and frame.chunks is not None:
            if frame.usage is not None:
                frame.usage.see(chunk)
            frame.chunks.append(value_outcome(chunk, frame.subject.chunk_schema, self.redaction, is_chunk=True))

    def closed(self, frame: Frame, end: dict[str, Any], chunks: list[Any] | None) -> None:
        """A stream that ran is over."""
        self._note_end(frame)
        if self.recorder is not None:
            if frame.usage is not None:
                frame.usage.see_arguments(frame.arguments)
                if frame.subject.extract is not None:
                    frame.subject.extract.see(frame.usage, *frame.passed, chunks or [], frame.subject.name)
            self._end(frame, frame.stream_outcome(end))

    def failure(self, error: BaseException) -> dict[str, Any]:
        """The outcome that an exception stands for."""
        if isinstance(error, GeneratorExit):
            return {"unfinished": True}
        if isinstance(error, asyncio.CancelledError) and _was_asked_for():
            return {"cancelled": True}
        return error_outcome(error, self.redaction)

    def played(self, frame: Frame) -> None:
        """A call that was answered is over."""
        with self._lock:
            assert self.player is not None
            self.player.end(frame)
            if self.recorder is not None:
                self.recorder.repeat(frame, self.player.matcher)

    def _note_end(self, frame: Frame) -> None:
        """A call that was recorded has run again, and has ended: what came after it may come now."""
        if self.player is not None and frame.index is not None:
            with self._lock:
                self.player.end(frame)

    def _see(self, frame: Frame, value: Any) -> None:
        if frame.usage is not None:
            frame.usage.see(value)
            frame.usage.see_arguments(frame.arguments)
            if frame.subject.extract is not None:
                frame.subject.extract.see(frame.usage, *frame.passed, value, frame.subject.name)

    def _end(self, frame: Frame, outcome: dict[str, Any]) -> None:
        source = frame.source
        if frame.taped is not None:
            source = frame.taped.source
            if frame.taped.replaced is not None:
                outcome["instead"] = list(frame.taped.replaced)
            if frame.taped.loops:
                outcome["loops"] = frame.taped.loops
        with self._lock:
            if self.recorder is not None and not self.recorder.is_closed:
                self.recorder.end(frame, outcome, source)
                self.news += 1

    # Reading what was recorded

    def read(self, frame: Frame, outcome: dict[str, Any], *, chunk: bool = False) -> Any:
        """A recorded value, as the annotation of the function says it is.

        Raises:
            CassetteError: if it cannot be had.
        """
        if "value" in outcome:
            return outcome["value"]
        assert self.player is not None
        schema = frame.subject.chunk_schema if chunk else frame.subject.schema
        line = 0 if frame.index is None else frame.index + 2
        try:
            return read_value(outcome, schema, self.player.cassette.path, line)
        except CassetteError as error:
            raise self.player.latch(error) from error.__cause__

    def retold(self, frame: Frame, value: Any, error: BaseException | None) -> None:
        """Let the sessions around a replayed tool see it."""
        call = frame.recorded
        if frame.taped is not None and call is not None:
            source = call.source or ("write" if hasattr(frame.taped.operation, "write") else "miss")
            instead = call.outcome.get("instead")
            taped = frame.taped
            taped.source, taped.loops = source, call.outcome.get("loops", [])
            taped.replaced = None if instead is None else (instead[0], instead[1])
            if taped.outer is not None:
                taped.outer.source, taped.outer.replaced, taped.outer.loops = source, taped.replaced, taped.loops
            replay_into_sessions(taped, value, error, call.duration_ms / 1000)

    # Tools come here from the pipeline

    def play(self, call: InterceptedCall) -> Awaitable[Any]:
        """What the caller of a tool gets."""
        return self._play(call)

    async def _play(self, call: InterceptedCall) -> Any:
        frame = self.begin(_subject_of(call.operation), call.arguments)
        frame.taped = call
        return await perform(frame, call.proceed)

    # The end

    def drop(self) -> None:
        """Leave the file as it was."""
        with self._lock:
            if self.recorder is not None:
                self.recorder.discard()

    def finish(self, error: BaseException | None) -> None:
        """Close the file, and raise what the run must not hide. An exception that leaves the run goes first.

        Raises:
            CassetteError: what was swallowed, what is left over in a strict replay, what the disk did not take.
        """
        with self._lock:
            if self.recorder is not None:
                if self.player is not None and not self.news and error is None and self._answers:
                    self.recorder.discard()
                else:
                    if self.player is not None:
                        self.recorder.keep_rest(self.player.matcher)
                    try:
                        self.recorder.finish("returned" if error is None else f"raised {type(error).__qualname__}")
                    except CassetteError:
                        if error is None:
                            raise
        if self.player is not None and error is None and self._answers:
            self.player.check_finished()


_escaped: set[str] = set()
_subjects: weakref.WeakKeyDictionary[Operation[Any], Subject] = weakref.WeakKeyDictionary()


def _subject_of(operation: Operation[Any]) -> Subject:
    """The subject of a decorated tool, made at its first recorded call."""
    found = _subjects.get(operation)
    if found is None:
        found = Subject(operation.function, operation.name, "tool", parameters=operation.parameters)
        _subjects[operation] = found
    return found


def _was_asked_for() -> bool:
    """Whether the task was told to stop, as against a coroutine that raised `CancelledError` by itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0
