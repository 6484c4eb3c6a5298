"""`Tape`: stands around each call of a run, answers it from a recording, or lets it run and writes it down.

A tape has *answers*, the calls of a recording, a *file* where new calls are written, or both:

- a recording has a file, a replay has answers and refuses what is missing;
- ``once`` is one of these; ``new_episodes`` has both, and runs what is missing;
- ``all`` has both, and runs every call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent_cache.core.asker import UnknownAsker
from agent_cache.engine.interception import InterceptedCall, Receiver
from agent_cache.engine.operation import Operation
from agent_cache.engine.streaming import proceed_stream
from agent_cache.errors import CassetteError, ConfigurationError, UncacheableArgumentsError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.call_log import CallLog
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.exceptions import read_error
from agent_cache.recording.file import (
    UNKNOWN_ASKER,
    RecordedCall,
    digest_of,
    digest_of_asker,
    digest_of_key,
    partial_of,
)
from agent_cache.recording.functions import CURRENT_CALL, ActiveCall, RecordedFunction
from agent_cache.recording.match import ROOT_PLACE, Matcher, by_nobody, place_of
from agent_cache.recording.outcomes import problems_of, value_outcome
from agent_cache.recording.recorded_tools import (
    asker_of_function,
    asker_of_tool,
    function_of,
    redacted_tags,
    show_in_sessions,
)
from agent_cache.recording.redaction import Redaction, redact_key
from agent_cache.recording.replaying import Replaying
from agent_cache.recording.streams import failure_outcome, is_stream, leave_call, recorded_stream, replayed_stream

_LOG = logging.getLogger("agent_cache")

_MAX_PROBLEMS = 100
"""Different calls that a replay cannot repeat of which a recording warns."""

NO_CONTEXT = (
    "run_in_executor and Thread do not take the context along; use asyncio.to_thread, or contextvars.copy_context().run"
)
"""Why a call in a thread is outside of all recordings, and what to do about it."""


class Tape(Replaying, Receiver):
    """A running or finished recording or replay."""

    def __init__(
        self,
        path: Path | None,
        mode: str,
        redaction: Redaction,
        *,
        answers: Matcher | None = None,
        file: CallLog | None = None,
        policy: Mapping[str, str] | None = None,
        strict: bool = False,
        is_guarded: bool = False,
        http: Any = None,
    ) -> None:
        super().__init__(answers, strict=strict)
        self.path = path
        self.mode = mode
        self.redaction = redaction
        self.file = file
        self.http = http
        self.thread = threading.get_ident()  # the engine asks only other threads' tapes about an escaped call
        self._is_guarded = is_guarded
        self._answers_calls = mode != "all"
        self._policy = dict(policy or {})
        self._has_lanes = file is not None or (answers is not None and strict)
        self._counts: dict[bytes, int] = {}  # of calls that no recorded call encloses, by digest
        self._new_calls = 0
        self._functions: dict[str, RecordedFunction] = {}  # the first of each name
        self._failure: CassetteError | None = None  # of a call that cannot be recorded
        self._problems: set[str] = set()
        self._lock = threading.RLock()

    @property
    def cassette(self) -> Cassette:
        """The recorded calls: of a replay those that answer, of a recording those that have ended so far."""
        if self.file is None and self.answers is not None:
            return self.answers.cassette
        if self.path is None:
            raise CassetteError("an observed run has no file")
        is_running = self.file is not None and not self.file.is_closed
        return Cassette.load(partial_of(self.path) if is_running else self.path)

    @property
    def steps(self) -> Sequence[RecordedCall]:
        """Its calls, in the order of their numbers; while the recording runs, in the order in which they ended."""
        return self.cassette.steps

    def __repr__(self) -> str:
        return f"<Tape of {self.path}, mode={self.mode!r}>"

    # Calls come here: of wrapped functions, of cached tools, and of threads without a context

    def run(
        self, function: RecordedFunction, args: tuple[Any, ...], kwargs: dict[str, Any], proceed: Callable[[], Any]
    ) -> Any:
        """Answer a call of a wrapped function, or make it. See `FunctionInterceptor`."""
        try:
            arguments = function.bind(args, kwargs)
        except TypeError:  # the function refuses these arguments itself
            return proceed()
        asker = self._asker(function, asker_of_function, args, kwargs)
        call = self._begin(function, arguments, function.key_of(args, kwargs), asker=asker)
        call.passed = args, kwargs
        if function.form == "async":
            return self._run_async(call, proceed)
        if function.form == "plain":
            return self._run_plain(call, proceed)
        return self._run_stream(call, proceed)

    async def play(self, call: InterceptedCall) -> Any:
        """Answer a call of a cached tool, or make it."""
        return await self._run_async(self._begin_tool(call), call.proceed)

    def play_stream(self, call: InterceptedCall) -> Any:
        """Answer a call of a cached streaming tool, or make it."""
        return self._run_stream(self._begin_tool(call), partial(proceed_stream, call))

    def escaped(self, called: Operation[Any] | RecordedFunction) -> None:
        """Warn, once a function, of a call in a thread without a context: it may belong to this run."""
        function = called if isinstance(called, RecordedFunction) else function_of(called)
        thread = threading.current_thread().name
        if self.answers is not None:
            policy = self._policy_of(function)
            may_run = policy == "live" or not (self.is_strict or (self._is_guarded and self.file is None))
            if policy == "forbid" or not may_run:
                text = f"{function.name} was called in thread {thread}, and would have run: {NO_CONTEXT}"
                raise self.latch(CassetteError(text, self.answers.cassette.path))
        if function.name not in _escaped:
            _escaped.add(function.name)
            _LOG.warning(
                "%s ran in thread %s, outside of the recording or replay that goes on: %s",
                function.name,
                thread,
                NO_CONTEXT,
            )

    # The beginning of a call

    def _begin_tool(self, call: InterceptedCall) -> ActiveCall:
        function = function_of(call.operation)
        asker = self._asker(function, asker_of_tool, call, call.arguments)
        active = self._begin(function, call.arguments, asker=asker)
        active.tool_call = call
        return active

    def _asker(self, function: RecordedFunction, parts: Callable[..., dict[str, Any]], *call: Any) -> str:
        """Digest of who makes a call, of `parts(function, *call)`."""
        try:
            found = parts(function, *call)
            return digest_of_asker(found) if found else ""
        except UnknownAsker:
            return "" if self._needs_no_identity(function) else UNKNOWN_ASKER
        except UncacheableArgumentsError as error:
            if self._needs_no_identity(function):
                return ""
            raise self._unidentified(
                function,
                f"the same call of another asker would be the same: {error.reason}. Let vary= return a value",
            ) from error.__cause__

    def _begin(
        self, function: RecordedFunction, arguments: Mapping[str, Any], key: str | None = None, *, asker: str = ""
    ) -> ActiveCall:
        """Find the recorded call that answers a call, or number it as a new one. `key` is what ``cache_key=`` made."""
        if self._functions.get(function.name) is not function:
            self._check_name(function)
        identifying = function.recorded_arguments(arguments)
        try:
            data, raw = plain_arguments(identifying, is_identity=key is None)
        except UncacheableArgumentsError as error:
            key = function.tool_key(arguments, warns=True)
            if key is None and not self._needs_no_identity(function):
                raise self._unidentified(
                    function,
                    f"a call with another argument would be the same: {error.reason}. Pass values instead, leave the "
                    "argument out by skip_args=, or name what tells calls apart by cache_key=, or by key= of "
                    "AgentCache",
                ) from error.__cause__
            data, raw = plain_arguments(identifying, is_identity=False)
        given, given_key = data, key
        if self.redaction.may_change(raw):
            data = self.redaction.apply(data)
            if type(data) is not dict:
                raise ConfigurationError(
                    f"{function.name}: the redaction hook must return the arguments of a call as a dict, as it was "
                    f"given them; it returned {type(data).__name__}"
                )
        if key is not None:
            key = redact_key(key, given, data, self.redaction)
        digest = digest_of(function.name, data) if key is None else digest_of_key(function.name, key)
        call = ActiveCall(self, function, data, key, digest, asker)
        if (data is not given and data != given) or key != given_key:
            call.given, call.given_key = given, given_key
        with self._lock:
            if self._has_lanes:
                lane = self.lanes.current()
                call.lane, call.forked = lane.number, lane.forked
            if self.answers is not None:
                self._look_up(call, self._place(call, arguments, self.answers), self.answers)
            if self.file is not None and not self.file.is_closed:
                self.file.start(call)
        return call

    def _check_name(self, function: RecordedFunction) -> None:
        if (first := self._functions.setdefault(function.name, function)) is function:
            _ = function.parts  # as they are before its first call
            return
        if first.is_same(function):
            return
        text = (
            f"there are two functions of the name {function.name}, and a call of one is a call of the other; give "
            "them names by name="
        )
        if first.binds_others(function) and not self._needs_no_identity(function):
            failure = CassetteError(text, self.path or "")
            if self.answers is not None:
                raise self.latch(failure)
            self._failure = self._failure or failure
            raise failure
        if self.is_strict and self.answers is not None:
            raise self.latch(CassetteError(text, self.path or ""))
        if self.is_strict:
            self._problems.add(text)
        if function.name not in _shared_names:
            _shared_names.add(function.name)
            _LOG.warning("recording: %s", text)

    def _needs_no_identity(self, function: RecordedFunction) -> bool:
        """Whether a call of this function just runs, or is only observed."""
        if self.file is not None:
            return not self.file.needs_identity
        return self.answers is not None and self._policy_of(function) == "live"

    def _unidentified(self, function: RecordedFunction, reason: str) -> CassetteError:
        """The error for a call that may be another one. It is raised again at the end."""
        failure = CassetteError(f"a call of {function.name} cannot be recorded, because {reason}", self.path or "")
        self._failure = self._failure or failure
        return failure

    def _place(
        self,
        call: ActiveCall,
        arguments: Mapping[str, Any],  # noqa: ARG002 - those of the function, for a branch
        answers: Matcher,
    ) -> int | None:
        """Find the place of a call in the recording. Returns the index of the recorded call there."""
        parent = call.parent
        counts, enclosing = (self._counts, ROOT_PLACE) if parent is None else (parent.counts, parent.place)
        occurrence = counts.get(call.matched, 0)
        call.place = place_of(enclosing, call.matched, occurrence)
        if answers.has_foreign:
            answers.adopt(call.function)
        index = answers.find(call.place)
        call.occurrence = occurrence
        counts[call.matched] = occurrence + 1
        return index

    def _look_up(self, call: ActiveCall, index: int | None, answers: Matcher) -> None:
        policy = self._policy_of(call.function) if self._policy else "stub"
        if policy == "forbid":
            raise self.missed(call, answers, f"{call.function.name} was called, and the policy forbids it")
        if call.asker == UNKNOWN_ASKER and policy == "stub" and self._answers_calls:
            if self.file is None or (index is not None and not call.function.is_read):
                raise self.missed(call, answers, by_nobody(call))
            index = None
        if index is not None and policy == "stub" and self._answers_calls:
            self.take(call, index, answers)
        elif index is not None:
            self.pass_by(call, index, answers)
        elif self.file is None and policy == "stub":
            raise self.missed(call, answers)

    def _policy_of(self, function: RecordedFunction) -> str:
        return next((self._policy[name] for name in (function.name, *function.names) if name in self._policy), "stub")

    # Calls that run

    async def _run_async(self, call: ActiveCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
        if call.recorded is not None:
            if call.is_sync_tool:
                return self._answer_plain(call, call.recorded)
            return await self._answer_async(call, call.recorded)
        token = CURRENT_CALL.set(call)
        try:
            value = await proceed()
        except BaseException as error:
            self._raised(call, error)
            raise
        finally:
            leave_call(token)
        return self._returned(call, value)

    def _run_plain(self, call: ActiveCall, proceed: Callable[[], Any]) -> Any:
        if call.recorded is not None:
            if call.recorded.outcome.get("awaited"):
                return self._answer_async(call, call.recorded)
            return self._answer_plain(call, call.recorded)
        token = CURRENT_CALL.set(call)
        try:
            value = proceed()
        except BaseException as error:
            self._raised(call, error)
            raise
        finally:
            leave_call(token)
        if hasattr(type(value), "__await__"):
            return self._run_awaitable(call, value)
        return self._returned(call, value)

    def _run_stream(self, call: ActiveCall, proceed: Callable[[], Any]) -> Any:
        if call.recorded is not None:
            return self._replayed_stream(call, call.recorded)
        return recorded_stream(call, proceed(), self.redaction, self._stream_ended)

    async def _run_awaitable(self, call: ActiveCall, value: Awaitable[Any]) -> Any:
        """A call of a plain function that returned an awaitable ends when that does."""
        call.is_awaited = True

        async def wait() -> Any:
            return await value

        return await self._run_async(call, wait)

    def _returned(self, call: ActiveCall, value: Any) -> Any:
        if is_stream(value):
            return recorded_stream(call, value, self.redaction, self._stream_ended)
        if self.file is not None:
            if call.usage is not None:
                call.usage.add(value)
                call.usage.complete(call, value)
            self._write(call, value_outcome(value, call.schema, self.redaction))
        return value

    def _raised(self, call: ActiveCall, error: BaseException) -> None:
        if self.file is not None:
            self._write(call, failure_outcome(error, self.redaction))

    def _stream_ended(self, call: ActiveCall, end: dict[str, Any], chunks: list[Any] | None) -> None:
        if self.file is not None:
            if call.usage is not None:
                call.usage.complete(call, chunks or [])
            self._write(call, call.stream_outcome(end, self.redaction))

    def _write(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        source = ""
        tags: list[str] = []
        tool_call = call.tool_call
        if tool_call is not None:
            source = tool_call.source
            notes = tool_call.notes
            if notes.replaced is not None:
                outcome["instead"] = list(notes.replaced)
            if notes.loops:
                outcome["loops"] = notes.loops
            if source == "write" and notes.call is not None and notes.call.tags:
                tags = redacted_tags(call, notes.call, outcome, self.redaction)
        with self._lock:
            if self.file is not None and not self.file.is_closed:
                if self.file.needs_identity and (len(outcome) > 1 or "value" not in outcome):
                    for problem in problems_of(outcome):
                        self._report(f"{call.function.name} {problem}")
                self.file.end(call, outcome, source, tags)
                self._new_calls += 1

    def _report(self, problem: str) -> None:
        """Warn, once a recording, of a call that a replay cannot repeat."""
        if problem not in self._problems and len(self._problems) < _MAX_PROBLEMS:
            self._problems.add(problem)
            _LOG.warning("recording to %s: %s", self.path, problem)

    # Requests: the exchange with a server makes them, or has the answer, between these two

    def begin_exchange(self, endpoint: RecordedFunction, arguments: Mapping[str, Any]) -> ActiveCall:
        """Find the recorded call that answers a request, or number it as a new one."""
        try:
            return self._begin(endpoint, arguments, asker=self._asker(endpoint, asker_of_function, (), {}))
        finally:
            self._functions.pop(endpoint.name, None)  # a run may ask for any number of URLs

    def end_exchange(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        """A request that was made has this outcome, redacted."""
        if self.file is not None:
            self._write(call, outcome)

    @property
    def is_strict_replay(self) -> bool:
        """Whether nothing may be made that is not recorded, or named by the user."""
        return self.file is None and self.answers is not None and self.is_strict

    def refuse_connection(self, address: str) -> None:
        """Refuse a connection that is no request of a known client."""
        error = CassetteError(
            f"a connection to {address} was opened, which is neither recorded nor replayed; record a function that "
            "does so, or name the host in Http(ignore=...)",
            self.path,
        )
        if self.answers is not None:
            raise self.latch(error)
        self._failure = self._failure or error
        raise error

    # Calls that are answered

    async def _answer_async(self, call: ActiveCall, recorded: RecordedCall) -> Any:
        outcome = recorded.outcome
        try:
            if recorded.source != "hit":
                await self.turn(call)  # which notices a cancellation, too
            if "stream" in outcome:
                return self._replayed_stream(call, recorded)
            if "cancelled" in outcome or "unfinished" in outcome:
                try:
                    await self.wait_until_cancelled(call)
                except asyncio.CancelledError as cancellation:
                    show_in_sessions(call, None, cancellation)
                    raise
            return self._answer(call, outcome)
        finally:
            if "stream" not in outcome:
                self.answered(call)

    def _answer_plain(self, call: ActiveCall, recorded: RecordedCall) -> Any:
        outcome = recorded.outcome
        if "stream" in outcome:
            return self._replayed_stream(call, recorded)
        try:
            if "cancelled" in outcome or "unfinished" in outcome:
                raise self.broken(call.index, f"{recorded.name} had not ended when the recording did")
            return self._answer(call, outcome)
        finally:
            self.answered(call)

    def _answer(self, call: ActiveCall, outcome: dict[str, Any]) -> Any:
        if "error" in outcome:
            error = read_error(outcome["error"])
            show_in_sessions(call, None, error)
            raise error
        value = self.read(call, outcome)
        show_in_sessions(call, value, None)
        return value

    def _replayed_stream(self, call: ActiveCall, recorded: RecordedCall) -> Any:
        if "stream" not in recorded.outcome:
            text = f"{recorded.name} returned a value when it was recorded, and is a stream now: record it again"
            raise self.broken(call.index, text)
        return replayed_stream(call, self, self._stream_answered)

    def _stream_answered(self, call: ActiveCall, chunks: list[Any], error: BaseException | None) -> None:
        """A stream that its consumer leaves ends in the sessions as if it were cancelled."""
        self.answered(call)
        if isinstance(error, GeneratorExit):
            error = asyncio.CancelledError()
        show_in_sessions(call, None if error else tuple(chunks), error)

    def answered(self, call: ActiveCall) -> None:
        """A call has ended that was answered from the old recording."""
        if self.file is not None and self.answers is not None:
            with self._lock:
                self.file.repeat(call, self.answers)

    # The end

    def discard(self) -> None:
        """Leave the file as it was."""
        self.lanes.is_over = True
        with self._lock:
            if self.file is not None:
                self.file.discard()

    def finish(self, error: BaseException | None) -> None:
        """Close the file, and raise an error that the run has swallowed. One that leaves the run takes precedence."""
        self.lanes.is_over = True
        answers, file = self.answers, self.file
        with self._lock:
            if file is not None and answers is not None and not self._new_calls and not error and self._answers_calls:
                file.discard()
            elif file is not None:
                if answers is not None:
                    file.keep_rest(answers)
                try:
                    file.finish(error)
                except CassetteError:
                    if error is None:
                        raise
        if error is not None:
            return
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if answers is not None and self._answers_calls:
            self.check_finished(answers)
        if self.is_strict and self._problems:
            raise CassetteError(
                f"has calls that cannot be replayed: {'. '.join(sorted(self._problems))}", self.path or ""
            )


_escaped: set[str] = set()
_shared_names: set[str] = set()
