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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.at_fork import lock_of
from agent_cache.core.asker import UnknownAsker
from agent_cache.core.tags import root_of
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.hooks import HookedCall, replay_into_sessions
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import PLACE
from agent_cache.engine.state import warn_once
from agent_cache.errors import CassetteError, DivergenceError, RecordedError, ReplayExhausted, UncacheableArgumentsError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.call_log import CallLog
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.exceptions import read_error
from agent_cache.recording.file import UNKNOWN_ASKER, RecordedCall, digest_of, digest_of_asker, partial_of
from agent_cache.recording.functions import ActiveCall, FunctionCall, RecordedFunction, function_of
from agent_cache.recording.lanes import CHECKPOINT, Lanes, Turns
from agent_cache.recording.match import ADVICE, ROOT_PLACE, Matcher, by_nobody, call_data, described, missing, place_of
from agent_cache.recording.outcomes import exact_json, problems_of, read_value, value_outcome
from agent_cache.recording.prices import Savings, model_calls, savings_of
from agent_cache.recording.redaction import Redaction, redact_key
from agent_cache.recording.streams import NO_STREAMS, failure_outcome, is_stream, recorded_stream, replayed_stream

_LOG = logging.getLogger("agent_cache")

_PATIENCE = 5.0  # seconds that a call waits to be cancelled, beyond those that it took when it was recorded
_OPEN_ENDED = frozenset({"stream", "cancelled", "unfinished"})  # of calls that end by what their caller does

NO_CONTEXT = (
    "run_in_executor and Thread do not take the context along; use asyncio.to_thread, or contextvars.copy_context().run"
)
"""Why a call in a thread is outside of all recordings, and what to do about it."""


class Tape:
    """A running or finished recording or replay: a hook (`engine.hooks`).

    Attributes:
        path, mode: as given to `record` and `replay`.
        answers: the recorded calls that may answer; None if there are none.
        file: where new calls go; None if nothing is written.
        is_strict: whether the order of recorded calls counts, and each must be made.
        cursor: how many calls were answered.
        divergences: where the run differs from the recording, in order: ``{"call_id", "expected", "actual"}``, as in
            `DivergenceError`.
        error: the first of these errors; it is raised again at the end, in case something has swallowed it.
    """

    _keeps_rest = True  # what of the answers the run has not made is in the file, too

    def __init__(
        self, path: Path | None, mode: str, redaction: Redaction, *, answers: Matcher | None = None,
        file: CallLog | None = None, policy: Mapping[str, str] | None = None, strict: bool = False,
        is_guarded: bool = False, http: Any = None,
    ) -> None:  # fmt: skip
        self.path, self.mode, self.redaction = path, mode, redaction
        self._absolute = None if path is None else path.absolute()  # the program may change its directory
        self.answers, self.file, self.http = answers, file, http
        self._source = "" if answers is None else answers.cassette.path
        self.is_strict = strict
        self.thread = threading.get_ident()  # the engine asks only other threads' tapes about an escaped call
        self.lanes, self._turns = Lanes(), Turns()
        self.cursor = 0
        self.divergences: list[dict[str, Any]] = []
        self.error: CassetteError | None = None
        self._is_guarded = is_guarded
        self._answers_calls = mode != "all"
        self._policy = dict(policy or {})
        self._has_lanes = file is not None or (answers is not None and strict)
        self._counts: dict[bytes, int] = {}  # of calls that no recorded call encloses, by digest
        self._new_calls = 0
        self._functions: dict[str, RecordedFunction] = {}  # the first of each name
        self._problems: set[str] = set()  # calls that a replay cannot repeat, of which the log has been warned
        self._last: dict[tuple[int, int, int], int] = {}  # call, by parent, lane of the run and of the recording
        self._made_again: set[int] = set()  # indices of recorded calls that were made instead of answered
        self._lock = lock_of(self)
        if answers is not None and answers.cassette.is_partial:
            _LOG.warning("%s was left by a recording that was killed; calls may be missing", answers.cassette.path)

    @property
    def cassette(self) -> Cassette:
        """The recorded calls: of a replay those that answer, as the run has left them, else those that have ended."""
        if self.file is None and self.answers is not None:
            return self.answers.cassette
        if self._absolute is None:
            raise CassetteError("an observed run has no file")
        is_running = self.file is not None and not self.file.is_closed
        return Cassette.load(partial_of(self._absolute) if is_running else self._absolute)

    @property
    def steps(self) -> Sequence[RecordedCall]:
        """Its calls, in the order of their numbers; while the recording runs, in the order in which they ended."""
        return self.cassette.steps

    @property
    def remaining(self) -> int:
        """How many recorded calls were neither answered nor enclosed by one that was."""
        return 0 if self.answers is None else self.answers.remaining

    @property
    def savings(self) -> Savings:
        """Model calls that were not made, because they, or the calls that enclose them, were answered so far.

        Their prices need `genai-prices` (``pip install "agent-cache[prices]"``).
        """
        answers = self.answers
        if answers is None:
            return Savings()
        chosen = [one for one in answers.outline.of_models if answers.is_covered[one] and one not in self._made_again]
        calls = model_calls(answers.cassette.steps, chosen, answers.parents.__getitem__)
        return savings_of(calls, answers.cassette.recorded_at)

    # A call begins

    def begin(self, call: HookedCall | FunctionCall) -> ActiveCall:
        """Find the recorded call that answers a call, or number it as a new one."""
        if isinstance(call, FunctionCall):
            function = call.function
        else:
            function = call.operation.recorded or function_of(call.operation)
        if self._functions.get(function.name) is not function:
            self._check_name(function)
        asker = self._asker(function, call) if function.has_askers or call.scope.tenant is not None else ""
        arguments = call.arguments if function.records_all else function.recorded_arguments(call.arguments)
        key = None if function.cache_key is None else function.key_of(call.args, call.kwargs)
        exact = exact_json(arguments)
        if exact is not None and b'"$' not in exact[0]:  # a dict that looks like a tag is written as one
            raw, data = exact
        else:
            raw, data, key = self._written(function, call, arguments, key)
        given, given_key = data, key
        if self.redaction.may_change(raw):
            try:
                data = self.redaction.apply(data)
            except Exception as error:
                raise self.hook_failed(function, error) from error
            if type(data) is not dict:
                text = f"{function.name}: the redaction hook must return the arguments of a call as a dict, not"
                raise self.latch(CassetteError(f"{text} {type(data).__name__}", self.path or ""))
        if key is not None:
            key = redact_key(key, given, data, self.redaction)
        digest = digest_of(function.name, data, key)
        active = ActiveCall(self, function, data, key, digest, asker, call)
        if (data is not given and data != given) or key != given_key:
            active.given, active.given_key = given, given_key
        with self._lock:
            if self._has_lanes:
                lane = self.lanes.current()
                active.lane, active.forked = lane.number, lane.forked
            if self.answers is not None:
                self._look_up(active, self.answers)
                active.is_answered = active.recorded is not None
            if self.file is not None and not self.file.is_closed:
                self.file.start(active)
        return active

    def begin_exchange(self, endpoint: RecordedFunction, arguments: Mapping[str, Any]) -> ActiveCall:
        """The same for a request."""
        try:
            return self.begin(FunctionCall(endpoint, PLACE.get().scope, named=arguments))
        finally:
            self._functions.pop(endpoint.name, None)  # a run may ask for any number of URLs

    def _written(
        self, function: RecordedFunction, call: HookedCall | FunctionCall, arguments: Mapping[str, Any], key: str | None
    ) -> tuple[bytes, dict[str, Any], str | None]:
        """Arguments that are no JSON as plain data, and the key without which they would identify nothing."""
        try:
            data, raw = plain_arguments(arguments, is_identity=key is None)
        except UncacheableArgumentsError as error:
            key = function.tool_key(call.arguments)
            if key is None and not self._needs_no_identity(function):
                text = (
                    f"a call with another argument would be the same: {error.reason}. Pass values instead, leave the "
                    "argument out by skip_args=, or name what tells calls apart by cache_key=, or key= of AgentCache"
                )
                raise self._unidentified(function, text) from error.__cause__
            data, raw = plain_arguments(arguments, is_identity=False)
        return raw, data, key

    def _asker(self, function: RecordedFunction, call: HookedCall | FunctionCall) -> str:
        """Digest of what tells apart who makes a call."""
        found: dict[str, Any] = {"tenant": call.scope.tenant}
        try:
            if call.operation is None:
                found["asker"] = function.asker_of(call.args, call.kwargs)
            else:
                found["key"] = function.tool_key(call.arguments)
                found["asker"] = call.operation.asker_of(call.arguments)
            return digest_of_asker(found)
        except UnknownAsker:
            if found["tenant"] is not None:
                return digest_of_asker(found)
            return "" if self._needs_no_identity(function) else UNKNOWN_ASKER
        except UncacheableArgumentsError as error:
            if self._needs_no_identity(function):
                return ""
            text = f"the same call of another asker would be the same: {error.reason}. Let vary= return a value"
            raise self._unidentified(function, text) from error.__cause__

    def _check_name(self, function: RecordedFunction) -> None:
        """Compare a function with the first one of its name that the run has called, if it may run at all."""
        if self.answers is None and self._policy_of(function) == "forbid":
            text = f"{function.name} was called, and the policy forbids it"
            raise self.latch(CassetteError(text, self.path or ""))
        first = self._functions.setdefault(function.name, function)
        if first is function:
            _ = function.parts  # as they are before its first call
        elif not first.is_same(function):
            text = "two functions have this name, and a recording takes them for one; give each its own by name="
            if self.is_strict or (first.binds_others(function) and not self._needs_no_identity(function)):
                raise self.latch(CassetteError(f"{function.name}: {text}", self.path or ""))
            warn_once(text, function.name)

    def _needs_no_identity(self, function: RecordedFunction) -> bool:
        """Whether a call of this function just runs, or is only observed."""
        if self.file is not None:
            return not self.file.needs_identity
        return self.answers is not None and self._policy_of(function) == "live"

    def _unidentified(self, function: RecordedFunction, reason: str) -> CassetteError:
        """The error for a call that may be another one."""
        text = f"a call of {function.name} cannot be recorded, because {reason}"
        return self.latch(CassetteError(text, self.path or ""))

    # Which recorded call it is

    def _place(self, call: ActiveCall, answers: Matcher) -> int | None:
        """Find the place of a call in the recording. Returns the index of the recorded call there."""
        parent = call.parent
        counts, enclosing = (self._counts, ROOT_PLACE) if parent is None else (parent.counts, parent.place)
        call.occurrence = counts.get(call.matched, 0)
        counts[call.matched] = call.occurrence + 1
        call.place = place_of(enclosing, call.matched, call.occurrence)
        if answers.outline.foreign:
            answers.adopt(call.function)
        return answers.index_of.get(call.place)

    def _look_up(self, call: ActiveCall, answers: Matcher) -> None:
        index = self._place(call, answers)
        policy = self._policy_of(call.function) if self._policy else "stub"
        if policy == "forbid":
            raise self.missed(call, answers, f"{call.function.name} was called, and the policy forbids it")
        is_answering = policy == "stub" and self._answers_calls
        if is_answering and call.asker == UNKNOWN_ASKER:
            if self.file is None or (index is not None and not call.function.is_read):
                raise self.missed(call, answers, by_nobody(call))
        elif is_answering and index is not None:
            self.take(call, index, answers)
        elif index is not None:
            self.pass_by(call, index, answers)
        elif self.file is None and policy == "stub":
            raise self.missed(call, answers)

    def _policy_of(self, function: RecordedFunction) -> str:
        return next((self._policy[name] for name in (function.name, *function.names) if name in self._policy), "stub")

    def take(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """Answer a call with the recorded one at this index."""
        call.index = index
        call.recorded = answers.cassette.steps[index]
        if self.is_strict:
            self._check_order(call, index, answers)
        answers.cover(index, is_played=True)
        self.cursor += 1
        outer = call.parent
        while outer is not None:
            if outer.tool_call is not None and (flight := getattr(outer.tool_call.call, "flight", None)) is not None:
                with VERSIONS.lock:  # what is made of recorded answers is no result for the cache
                    flight.give_up()
            outer = outer.parent

    def pass_by(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """Note a call that runs although it was recorded."""
        call.index = index
        answers.cover(index, is_played=False)
        self._made_again.add(index)

    def _check_order(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """Calls of one task come in the order in which one task had made them.

        The order between tasks does not count, nor which of them takes which work of a queue, nor calls that several
        tasks made alike.
        """
        if len(answers.tasks_of[answers.parents[index], answers.outline.digests[index]]) > 1:
            return  # another task may be given the answer otherwise
        key = answers.parents[index], call.lane, answers.outline.lanes[index]
        last = self._last.setdefault(key, index)
        if answers.outline.positions[last] <= answers.outline.positions[index]:
            self._last[key] = index
            return
        later, first = answers.shown(last), answers.shown(index)
        text = (
            f"{described(later.name, later.arguments)} was called too early: call {first.id}, "
            f"{described(first.name, first.arguments)}, came before it in the same task when this was recorded"
        )
        raise self.diverged(index, {"name": later.name, "arguments": later.arguments}, text)

    # The answer to a call

    async def answer(self, call: ActiveCall, *, is_plain: bool) -> Any:
        """The recorded outcome of a call. Other tasks run before, as they did when it was recorded.

        Of a plain function or a generator nothing may be awaited here.
        """
        recorded, answers, index, form = call.recorded, self.answers, call.index, call.function.form
        assert recorded is not None
        assert answers is not None
        assert index is not None
        outcome = recorded.outcome
        if is_plain and outcome.get("awaited"):
            return self.answer(call, is_plain=False)
        is_plain |= call.is_sync_tool
        try:
            # A hit lets no other task run, unless that has an earlier answer. A cancellation is noticed here, too.
            if not is_plain and (recorded.source != "hit" or not self._is_next(index, answers)):
                await (self.turn(call) if answers.is_concurrent else CHECKPOINT)
            if "stream" in outcome:
                return replayed_stream(call, self)
            if is_plain and "stream" in form:
                text = f"{recorded.name} returned a value when it was recorded, and is a stream now: record it again"
                raise self.broken(call.index, text)
            if "cancelled" in outcome or "unfinished" in outcome:
                if is_plain:
                    raise self.broken(call.index, f"{recorded.name} had not ended when the recording did")
                await self.wait_until_cancelled(call)
            value, error = None, None
            if "error" in outcome:
                error = read_error(outcome["error"])
                if isinstance(error, RecordedError) and not outcome["error"].get("unknown"):
                    text = "is not found here, or says something else now; a RecordedError takes its place"
                    warn_once(f"raised {error.type_name} when it was recorded, which {text}", recorded.name)
            else:
                value = self.read(call, outcome)
            if call.tool_call is not None:
                show_in_sessions(call.tool_call, recorded, value, error)
            if error is not None:
                raise error
            return value
        except asyncio.CancelledError as cancellation:
            if call.tool_call is not None and ("cancelled" in outcome or "unfinished" in outcome):
                show_in_sessions(call.tool_call, recorded, None, cancellation)
            raise
        finally:
            if self.file is not None and "stream" not in outcome:
                self.answered(call)

    def read(self, call: ActiveCall, outcome: dict[str, Any], *, is_chunk: bool = False) -> Any:
        """A recorded value or chunk, as the annotation of the function describes it."""
        if "value" in outcome and "made" not in outcome:
            return outcome["value"]
        schema = call.function.chunk_schema if is_chunk else call.schema
        try:
            return read_value(outcome, schema, "", 0)
        except CassetteError as error:
            raise self.broken(call.index, f"{call.function.name}: {error.reason}") from error.__cause__

    async def turn(self, call: ActiveCall) -> None:
        """Let other tasks run, as the recorded call did, and calls that had ended earlier be answered earlier."""
        answers, recorded = self.answers, call.recorded
        is_ended = recorded is not None and _OPEN_ENDED.isdisjoint(recorded.outcome)
        if answers is None or call.index is None or not is_ended or not answers.is_concurrent:
            await CHECKPOINT
        else:
            rank = answers.outline.positions[~call.index]
            await self._turns.take(rank, is_next=answers.has_made_all_before(rank))

    def _is_next(self, index: int, answers: Matcher) -> bool:
        """Whether no call is missing or in flight that had ended before this one."""
        rank = answers.outline.positions[~index] if answers.is_concurrent else -1
        return rank < 0 or (not self._turns.has_before(rank) and answers.has_made_all_before(rank))

    async def wait_until_cancelled(self, call: ActiveCall, *, is_for_ever: bool = False) -> None:
        """Wait until this task is cancelled, as it was when the call was recorded: by a timeout of the caller, say.

        The wait ends `_PATIENCE` after the time that the recorded call took. A call that had not ended when the
        recording did may wait for ever.
        """
        recorded = call.recorded
        assert recorded is not None
        is_for_ever = is_for_ever or "unfinished" in recorded.outcome
        timeout = None if is_for_ever else recorded.duration_ms / 1000 + _PATIENCE
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=timeout)
        text = (
            f"{described(call.function.name, call.arguments)} was cancelled when it was recorded, so there is no "
            "answer, and now nobody has cancelled it"
        )
        raise self.diverged(-1 if call.index is None else call.index, call_data(call), f"{text}\n{ADVICE}")

    def stream_answered(self, call: ActiveCall, chunks: list[Any], error: BaseException | None) -> None:
        """A stream has ended. One that its consumer leaves ends in the sessions as if it were cancelled."""
        self.answered(call)
        if isinstance(error, GeneratorExit):
            error = asyncio.CancelledError()
        if call.tool_call is not None and call.recorded is not None:
            show_in_sessions(call.tool_call, call.recorded, None if error else tuple(chunks), error)

    def answered(self, call: ActiveCall) -> None:
        """A call has ended that was answered from the old recording."""
        if self.file is not None and self.answers is not None:
            with self._lock:
                self.file.repeat(call, self.answers)

    # A call that runs has ended

    def returned(self, call: ActiveCall, value: Any) -> Any:
        """A call has returned this. Returns what the caller gets: a stream is recorded while it is read."""
        if type(value) not in NO_STREAMS and is_stream(value):
            return recorded_stream(call, value, self)
        if self.file is not None:
            if call.usage is not None:
                call.usage.add(value)
                call.usage.complete(call, value)
            exact = exact_json(value)
            if exact is not None and not self.redaction.may_change(exact[0]):
                self.write(call, {"value": msgspec.Raw(exact[0])})
            else:
                self.write(call, call.written(value_outcome, value, call.schema, self.redaction))
        return value

    def raised(self, call: ActiveCall, error: BaseException) -> None:
        """A call has raised this."""
        if call.is_sync_tool and isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
            error = error.__cause__  # as the tool raised it, which the engine's coroutine cannot
        if self.file is not None:
            self.write(call, call.written(failure_outcome, error, self.redaction))

    def stream_ended(self, call: ActiveCall, end: dict[str, Any], chunks: list[Any] | None) -> None:
        """A stream that was recorded has ended. `chunks` are what extractors read, if there are any."""
        if self.file is not None:
            if call.usage is not None:
                call.usage.complete(call, chunks or [])
            self.write(call, call.written(call.stream_outcome, end, self.redaction))

    def write(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        """Write a call that was made, with its redacted outcome."""
        source, tags, tool_call = "", [], call.tool_call
        if tool_call is not None:
            made = tool_call.call
            source = tool_call.answered_by if made is None else made.source
            if tool_call.replaced is not None:
                outcome["instead"] = list(tool_call.replaced)
            if tool_call.loops:
                outcome["loops"] = tool_call.loops
            if source == "write" and made is not None and made.tags:
                late = made.operation.tags.late
                roots = {rule.root for rule in late} if late else ()  # more of such a tag may be a secret
                tags = [root if (root := root_of(tag)) in roots else tag for tag in made.tags] if late else [*made.tags]
        with self._lock:
            if self.file is not None and not self.file.is_closed:
                if self.file.needs_identity and (len(outcome) > 1 or "value" not in outcome):
                    for problem in problems_of(outcome):
                        text = f"{call.function.name} {problem}"
                        if text not in self._problems:
                            self._problems.add(text)
                            _LOG.warning("recording to %s: %s", self.path, text)
                self.file.end(call, outcome, source, tags)
                self._new_calls += 1

    def hook_failed(self, function: RecordedFunction, error: Exception) -> CassetteError:
        """The error for a redaction hook that fails, whose text may have what it should have removed. It is latched."""
        what = "hook, which gets values of any type," if self.redaction.hook else "of a value nested so deeply"
        text = f"{function.name}: the redaction {what} raised {type(error).__name__}"
        found = self.latch(CassetteError(text, self.path or ""))
        found.__cause__ = error
        return found

    # What is outside of the run

    def escaped(self, called: Operation[Any] | RecordedFunction) -> None:
        """Warn, once a function, of a call in a thread without a context: it may belong to this run."""
        function = called if isinstance(called, RecordedFunction) else function_of(called)
        if self.answers is not None:
            policy = self._policy_of(function)
            is_refused = self.is_strict or (self._is_guarded and self.file is None)
            if policy == "forbid" or (policy == "stub" and is_refused):
                text = f"{function.name} was called in a thread, and would have run: {NO_CONTEXT}"
                raise self.latch(CassetteError(text, self.answers.cassette.path))
        warn_once(f"ran in a thread outside of the recording or replay that goes on: {NO_CONTEXT}", function.name)

    def refuse_connection(self, address: str) -> None:
        """Refuse a connection that is no request of a known client."""
        text = f"a connection to {address} was opened, which is neither recorded nor replayed"
        advice = "record a function that does so, or name the host in Http(ignore=...)"
        raise self.latch(CassetteError(f"{text}; {advice}", self.path or ""))

    # Errors

    def latch(self, error: CassetteError) -> CassetteError:
        """Keep the first error, to raise it again at the end."""
        self.error = self.error or error
        return error

    def broken(self, index: int | None, reason: str) -> CassetteError:
        """The error for a recorded call that cannot be replayed. It is latched."""
        return self.latch(CassetteError(reason, self._source, (index or 0) + 2))

    def diverged(
        self, index: int, actual: dict[str, Any] | None, text: str,
        kind: type[DivergenceError | ReplayExhausted] = DivergenceError,
    ) -> CassetteError:  # fmt: skip
        """The error for a place where the run differs from the recording. It is noted, and latched."""
        number, expected = None, None
        if index >= 0 and self.answers is not None:
            call = self.answers.shown(index)
            number, expected = call.id, {"name": call.name, "arguments": call.arguments}
        self.divergences.append({"call_id": number, "expected": expected, "actual": actual})
        return self.latch(kind(number, expected, actual, text, self._source))

    def exhausted(self, call: ActiveCall, text: str) -> CassetteError:
        """The error for who reads on where a recorded stream or response was left. It is latched."""
        shown, number = call_data(call), None if call.recorded is None else call.recorded.id
        return self.latch(ReplayExhausted(number, shown, shown, text, self._source))

    def missed(self, call: ActiveCall, answers: Matcher, rule: str = "") -> CassetteError:
        """The error for a call that has no recorded answer, or may not have it by this rule."""
        index, text, kind = missing(answers, call, rule)
        return self.diverged(index, call_data(call), text, kind)

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
                if answers is not None and self._keeps_rest:
                    file.keep_rest(answers)
                try:
                    file.finish(error)
                except CassetteError:
                    if error is None:
                        raise
        if error is not None:
            return
        if answers is not None:
            self.check_finished(answers)
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.is_strict and self._problems:
            text = f"has calls that cannot be replayed: {'. '.join(sorted(self._problems))}"
            raise CassetteError(text, self.path or "")

    def check_finished(self, answers: Matcher) -> None:
        """Check a replay at its end."""
        if self.error is None and self.is_strict and self._answers_calls and answers.remaining:
            call = answers.shown(index := next(answers.left_over()))
            shown = described(call.name, call.arguments)
            text = f"{answers.remaining} recorded calls were not made. The first is call {call.id}, {shown}"
            raise self.diverged(index, None, text)


# Cached tools on a tape


def show_in_sessions(tool_call: HookedCall, recorded: RecordedCall, value: Any, error: BaseException | None) -> None:
    """Let the sessions around a replayed tool trace and count it as they did when it was recorded."""
    instead = recorded.outcome.get("instead")
    tool_call.answered_by, is_read = recorded.source, tool_call.operation.is_read
    if recorded.source != "blocked" and (not recorded.source or is_read is (recorded.source == "write")):
        tool_call.answered_by = "miss" if is_read else "write"  # it was a read when it was recorded, or the reverse
    tool_call.replaced = None if instead is None else (instead[0], instead[1])
    tool_call.loops = recorded.outcome.get("loops", [])
    replay_into_sessions(tool_call, value, error, recorded.duration_ms / 1000)
