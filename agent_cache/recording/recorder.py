"""Records the calls of one run, replays them, or does both.

`Recorder` is the interceptor of a block of `record` or `replay`. At the beginning of a call it decides whether a
recorded call answers it or whether it runs; at its end the outcome goes to a `CallLog`. `CassetteWriter` is the one
that is a file which grows.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.core.asker import UnknownAsker
from agent_cache.core.tags import root_of, unescape
from agent_cache.engine.interception import InterceptedCall, Receiver, replay_into_sessions
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import PLACE, Call
from agent_cache.engine.streaming import proceed_stream
from agent_cache.errors import CassetteError, ConfigurationError, UncacheableArgumentsError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.cassette_file import (
    UNKNOWN_ASKER,
    Header,
    PartialFile,
    RecordedCall,
    Trailer,
    call_line,
    digest_of,
    digest_of_asker,
    digest_of_key,
    header_line,
    now_text,
    partial_of,
    trailer_line,
    with_asker,
)
from agent_cache.recording.exceptions import read_error
from agent_cache.recording.functions import CURRENT_CALL, ActiveCall, RecordedFunction
from agent_cache.recording.lanes import Lanes, cancellations
from agent_cache.recording.player import ROOT_PLACE, Matcher, Player, by_nobody, place_of
from agent_cache.recording.redaction import Redaction, redact_key
from agent_cache.recording.results import problems_of, value_outcome
from agent_cache.recording.streams import failure_outcome, is_stream, leave_call, recorded_stream, replayed_stream
from agent_cache.recording.tagged import encode
from agent_cache.values.compare import utf8_text

__all__ = [
    "NO_CONTEXT",
    "CallLog",
    "CassetteWriter",
    "Recorder",
    "recorded_function",
    "show_in_sessions",
]

_LOG = logging.getLogger("agent_cache")

_MAX_PROBLEMS = 100
"""Different calls that a replay cannot repeat of which a recording warns."""

NO_CONTEXT = (
    "run_in_executor and Thread do not take the context along; use asyncio.to_thread, or contextvars.copy_context().run"
)
"""Why a call in a thread is outside of all recordings, and what to do about it."""


class Recorder(Receiver):
    """A running or finished recording.

    Attributes:
        path: the file; None if there is none.
        mode: as it was given.
        player: answers calls from the old recording; None if nothing was recorded before, or all calls run.
        http: what of the run's HTTP is recorded: an `http.exchange.Http`, or None.
    """

    def __init__(
        self,
        path: Path | None,
        mode: str,
        redaction: Redaction,
        *,
        player: Player | None = None,
        writer: CallLog | None = None,
        policy: Mapping[str, str] | None = None,
        strict: bool = False,
        is_guarded: bool = False,
        http: Any = None,
    ) -> None:
        self.path = path
        self.mode = mode
        self.player = player
        self.http = http
        self.thread = threading.get_ident()  # the engine asks only other threads' recorders about an escaped call
        self._redaction = redaction
        self._writer = writer
        self._is_guarded = is_guarded  # a replay refuses calls in threads without a context, also if it is not strict
        self._counts: dict[bytes, int] = {}  # of calls that no recorded call encloses, by digest
        self._answers = mode != "all"
        self._policy = dict(policy or {})
        self._policies: dict[str, str] = {}
        self.lanes = Lanes() if player is None else player.lanes
        self._has_lanes = writer is not None or (player is not None and player.strict)
        self._new_calls = 0
        self._functions: dict[str, RecordedFunction] = {}  # the first of each name
        self._told_apart: set[RecordedFunction] = set()  # others, by what they bind
        self._failure: CassetteError | None = None  # of a call that cannot be recorded
        self._problems: set[str] = set()
        self._strict = strict
        self._lock = threading.RLock()

    @property
    def cassette(self) -> Cassette:
        """The recorded calls; while the recording runs, those that have ended.

        Raises:
            CassetteError: if it cannot be read, or there is no file.
        """
        if self.path is None:
            raise CassetteError("an observed run has no file")
        is_running = self._writer is not None and not self._writer.is_closed
        return Cassette.load(partial_of(self.path) if is_running else self.path)

    @property
    def steps(self) -> Sequence[RecordedCall]:
        """Its calls, in the order of their numbers; while the recording runs, in the order in which they ended."""
        return self.cassette.steps

    def __repr__(self) -> str:
        return f"<Recorder of {self.path}, mode={self.mode!r}>"

    # Calls come here: of wrapped functions, of cached tools, and of threads without a context

    def run(
        self, function: RecordedFunction, args: tuple[Any, ...], kwargs: dict[str, Any], proceed: Callable[[], Any]
    ) -> Any:
        """Answer a call of a wrapped function, or make it. See `FunctionInterceptor`.

        Raises:
            CassetteError: if it is not recorded, and may not run.
        """
        try:
            arguments = function.bind(args, kwargs)
        except TypeError:  # the function refuses these arguments itself
            return proceed()
        asker = self._asker(function, _asker_of_function, args, kwargs)
        call = self._begin(function, arguments, function.key_of(args, kwargs), asker=asker)
        call.passed = args, kwargs
        if function.form == "async":
            return self._run_async(call, proceed)
        if function.form == "plain":
            return self._run_plain(call, proceed)
        return self._run_stream(call, proceed)

    async def play(self, call: InterceptedCall) -> Any:
        """Answer a call of a cached tool, or make it.

        Raises:
            CassetteError: if it is not recorded, and may not run.
        """
        return await self._run_async(self._begin_tool(call), call.proceed)

    def play_stream(self, call: InterceptedCall) -> Any:
        """Answer a call of a cached streaming tool, or make it.

        Raises:
            CassetteError: if it is not recorded, and may not run.
        """
        return self._run_stream(self._begin_tool(call), partial(proceed_stream, call))

    def escaped(self, called: Operation[Any] | RecordedFunction) -> None:
        """Warn, once a function, of a call in a thread without a context: it may belong to this run.

        Raises:
            CassetteError: if it may not run then: by its policy, in a strict replay, or in a guarded one.
        """
        function = called if isinstance(called, RecordedFunction) else _function_of(called)
        thread = threading.current_thread().name
        if self.player is not None:
            policy = self._policy_of(function)
            may_run = policy == "live" or not (self.player.strict or (self._is_guarded and self._writer is None))
            if policy == "forbid" or not may_run:
                text = f"{function.name} was called in thread {thread}, and would have run: {NO_CONTEXT}"
                raise self.player.latch(CassetteError(text, self.player.cassette.path))
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
        """`_begin` for a call of a cached tool."""
        function, arguments = _function_of(call.operation), call.arguments
        asker = self._asker(function, _asker_of_tool, call, arguments)
        active = self._begin(function, call.recorded_arguments, asker=asker)
        active.tool_call = call
        return active

    def _asker(self, function: RecordedFunction, parts: Callable[..., dict[str, Any]], *call: Any) -> str:
        """Digest of who makes a call.

        Args:
            function: what is called.
            parts: gives what tells callers apart, by name, from the function and the call.
            call: the call.

        Raises:
            CassetteError: if that cannot be said, and the call must not be taken for another one.
        """
        try:
            found = parts(function, *call)
            if function.bound is not None:
                known = digest_of_asker({**found, "bound": function.bound})
                if self._is_told_apart(function, known):
                    return known
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

    def _is_told_apart(self, function: RecordedFunction, asker: str) -> bool:
        """Whether what a function binds tells its calls from those of another one of its name.

        The first one of a name that a recording meets needs no word for what it binds. So a value that differs from run
        to run, such as a path, keeps no replay from finding the calls of the only function that has it.

        Args:
            function: what is called.
            asker: digest of who makes the call, with what the function binds.
        """
        if function in self._told_apart:
            return True
        if self.player is None or (function.name, asker) not in self.player.askers:
            first = self._functions.setdefault(function.name, function)
            if first is function or first.bound is None or first.is_same(function):
                return False
        self._told_apart.add(function)
        return True

    def _begin(
        self,
        function: RecordedFunction,
        arguments: Mapping[str, Any],
        key: str | None = None,
        *,
        asker: str = "",
    ) -> ActiveCall:
        """Find the recorded call that answers a call, or number it as a new one.

        Args:
            function, arguments: what is called.
            key: what ``cache_key=`` returned.
            asker: digest of who asks.

        Raises:
            CassetteError: if it is not recorded, and may not run.
            ConfigurationError: if the redaction hook did not return arguments.
        """
        if self._functions.get(function.name) is not function and function not in self._told_apart:
            self._check_name(function)
        is_known = True
        try:
            data, raw = plain_arguments(function.recorded_arguments(arguments), is_identity=key is None)
        except UncacheableArgumentsError as error:
            key = function.key_instead(arguments)
            if key is None:
                data, raw = self._without_identity(function, arguments, error)
                is_known = False
            else:
                data, raw = plain_arguments(function.recorded_arguments(arguments), is_identity=False)
        given, given_key = data, key
        if self._redaction.may_change(raw):
            data = self._redacted(function, data)
        if key is not None:
            key = redact_key(key, given, data, self._redaction)
        is_redacted = (data is not given and data != given) or key != given_key
        digest = digest_of(function.name, data) if key is None else digest_of_key(function.name, key)
        call = ActiveCall(self, function, data, key, digest, asker)
        if is_redacted:
            call.given, call.given_key = given, given_key
        with self._lock:
            if self._has_lanes:
                lane = self.lanes.current()
                call.lane, call.forked = lane.number, lane.forked
            if self.player is not None:
                index = self._place(call, arguments, self.player, is_redacted=is_redacted)
                if not is_known and not self.player.matcher.is_earlier(index):
                    index = None
                self._look_up(call, index, self.player)
            if self._writer is not None and not self._writer.is_closed:
                self._writer.start(call)
        return call

    def _check_name(self, function: RecordedFunction) -> None:
        first = self._functions.setdefault(function.name, function)
        if first is function or (function.name in _shared_names and not self.is_strict) or first.is_same(function):
            return
        text = (
            f"there are two functions of the name {function.name}, and a call of one is a call of the other; give "
            "them names by name="
        )
        if self.is_strict and self.player is not None:
            raise self.player.latch(CassetteError(text, self.path or ""))
        if self.is_strict:
            self._problems.add(text)
        if function.name not in _shared_names:
            _shared_names.add(function.name)
            _LOG.warning("recording: %s", text)

    def _redacted(self, function: RecordedFunction, data: dict[str, Any]) -> dict[str, Any]:
        redacted: Any = self._redaction.apply(data)
        if type(redacted) is not dict:
            raise ConfigurationError(
                f"{function.name}: the redaction hook must return the arguments of a call as a dict, as it was "
                f"given them; it returned {type(redacted).__name__}"
            )
        return redacted

    def _without_identity(
        self, function: RecordedFunction, arguments: Mapping[str, Any], error: UncacheableArgumentsError
    ) -> tuple[dict[str, Any], bytes]:
        """The data of arguments that do not identify a call, if it can do without.

        That is one that just runs or is observed, and one in a replay of version 1, which knew some objects by their
        class.

        Raises:
            CassetteError: for any other call.
        """
        if self._needs_no_identity(function):
            return plain_arguments(function.recorded_arguments(arguments), is_identity=False)
        data = None
        if self._writer is None and self.player is not None and self.player.matcher.has_earlier:
            data = function.earlier_arguments(arguments)
        if data is not None:
            return data, encode(data)
        raise self._unidentified(
            function,
            f"a call with another argument would be the same: {error.reason}. Pass values instead, leave the argument "
            "out by skip_args=, or name what tells calls apart by cache_key=, or by key= of AgentCache",
        ) from error.__cause__

    def _needs_no_identity(self, function: RecordedFunction) -> bool:
        """Whether a call of this function just runs, or is only observed."""
        if self._writer is not None:
            return not self._writer.needs_identity
        return self.player is not None and self._policy_of(function) == "live"

    def _unidentified(self, function: RecordedFunction, reason: str) -> CassetteError:
        """The error for a call that may be another one. It is raised again at the end."""
        failure = CassetteError(f"a call of {function.name} cannot be recorded, because {reason}", self.path or "")
        self._failure = self._failure or failure
        return failure

    def _place(
        self, call: ActiveCall, arguments: Mapping[str, Any], player: Player, *, is_redacted: bool
    ) -> int | None:
        """Find the place of a call in the recording. Returns the index of the recorded call there."""
        parent = call.parent
        counts, enclosing = (self._counts, ROOT_PLACE) if parent is None else (parent.counts, parent.place)
        occurrence = counts.get(call.matched, 0)
        call.place = place_of(enclosing, call.matched, occurrence)
        index = player.find(call, is_redacted=is_redacted)
        if index is None and not occurrence and not call.function.has_cache_key:
            for digest, is_of in self._other_digests(call, arguments, player):
                index = player.matcher.find(place_of(enclosing, digest, 0))
                if index is not None and is_of(index):
                    call.matched, occurrence = digest, counts.get(digest, 0)
                    call.place = place_of(enclosing, digest, occurrence)
                    index = player.matcher.find(call.place)
                    break
                index = None
        call.occurrence = occurrence
        counts[call.matched] = occurrence + 1
        return index

    def _other_digests(
        self, call: ActiveCall, arguments: Mapping[str, Any], player: Player
    ) -> Iterator[tuple[bytes, Callable[[int], bool]]]:
        """The digests that the same call has in a recording that was made elsewhere, by an earlier version, or by
        another package. The last two did not know who asked.

        With each, whether a recorded call is one of these.
        """
        function = call.function
        try:
            other = function.other_arguments(arguments)
            if other is not None:
                digest = digest_of(function.name, self._redacted(function, plain_arguments(other)[0]))
                yield with_asker(digest, call.asker), _is_any
        except UncacheableArgumentsError:  # a default has no identity
            pass
        earlier = function.earlier_arguments(arguments) if player.matcher.has_earlier else None
        if earlier is not None:
            yield digest_of(function.name, self._redacted(function, earlier)), player.matcher.is_earlier
        if call.asker and player.matcher.has_foreign:
            yield call.digest, player.matcher.is_foreign

    def _look_up(self, call: ActiveCall, index: int | None, player: Player) -> None:
        policy = self._policy_of(call.function) if self._policy else "stub"
        if policy == "forbid":
            raise player.miss(call, f"{call.function.name} was called, and the policy forbids it")
        if call.asker == UNKNOWN_ASKER and policy == "stub" and self._answers:
            if self._writer is None or (index is not None and not call.function.is_read):
                raise player.miss(call, by_nobody(call))
            index = None
        if index is not None and policy == "stub" and self._answers:
            player.take(call, index)
        elif index is not None:
            player.pass_by(call, index)
        elif self._writer is None and policy == "stub":
            raise player.miss(call)

    def _policy_of(self, function: RecordedFunction) -> str:
        found = self._policies.get(function.name)
        if found is None:
            found = next(
                (self._policy[name] for name in (function.name, *function.names) if name in self._policy), "stub"
            )
            self._policies[function.name] = found
        return found

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
            return self._replayed_stream(call)
        return recorded_stream(call, proceed(), self._redaction, self._stream_ended)

    async def _run_awaitable(self, call: ActiveCall, value: Awaitable[Any]) -> Any:
        """A call of a plain function that returned an awaitable ends when that does."""
        call.is_awaited = True

        async def wait() -> Any:
            return await value

        return await self._run_async(call, wait)

    def _returned(self, call: ActiveCall, value: Any) -> Any:
        if is_stream(value):
            return recorded_stream(call, value, self._redaction, self._stream_ended)
        if call.index is not None:
            self._end_in_player(call)
        if self._writer is not None:
            if call.usage is not None:
                call.usage.add(value)
                call.usage.complete(call, value)
            self._write(call, value_outcome(value, call.schema, self._redaction))
        return value

    def _raised(self, call: ActiveCall, error: BaseException) -> None:
        if call.index is not None:
            self._end_in_player(call)
        if self._writer is not None:
            self._write(call, failure_outcome(error, self._redaction))

    def _stream_ended(self, call: ActiveCall, end: dict[str, Any], chunks: list[Any] | None) -> None:
        if call.index is not None:
            self._end_in_player(call)
        if self._writer is not None:
            if call.usage is not None:
                call.usage.complete(call, chunks or [])
            self._write(call, call.stream_outcome(end, self._redaction))

    def _end_in_player(self, call: ActiveCall) -> None:
        """A recorded call that ran again has ended: in a strict replay those behind it may start now."""
        if self.player is not None and call.index is not None:
            with self._lock:
                self.player.matcher.end(call.index)

    def _write(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        source = ""
        tags: list[str] = []
        tool_call = call.tool_call
        if tool_call is not None:
            source = tool_call.source
            if tool_call.replaced is not None:
                outcome["instead"] = list(tool_call.replaced)
            if tool_call.loops:
                outcome["loops"] = tool_call.loops
            if source == "write" and tool_call.call is not None and tool_call.call.tags:
                tags = _redacted_tags(call, tool_call.call, outcome, self._redaction)
        with self._lock:
            if self._writer is not None and not self._writer.is_closed:
                if self._writer.needs_identity and (len(outcome) > 1 or "value" not in outcome):
                    for problem in problems_of(outcome):
                        self._report(f"{call.function.name} {problem}")
                self._writer.end(call, outcome, source, tags)
                self._new_calls += 1

    def _report(self, problem: str) -> None:
        """Warn, once a recording, of a call that a replay cannot repeat."""
        if problem not in self._problems and len(self._problems) < _MAX_PROBLEMS:
            self._problems.add(problem)
            _LOG.warning("recording to %s: %s", self.path, problem)

    # Requests: the exchange with a server makes them, or has the answer, between these two

    def begin_exchange(self, endpoint: RecordedFunction, arguments: Mapping[str, Any]) -> ActiveCall:
        """Find the recorded call that answers a request, or number it as a new one.

        Raises:
            CassetteError: if it is not recorded, and may not be made.
        """
        try:
            asker = self._asker(endpoint, _asker_of_function, (), {})
            return self._begin(endpoint, arguments, asker=asker)
        finally:
            self._functions.pop(endpoint.name, None)  # a run may ask for any number of URLs

    def end_exchange(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        """A request that was made has this outcome, redacted."""
        self._end_in_player(call)
        if self._writer is not None:
            self._write(call, outcome)

    @property
    def is_strict(self) -> bool:
        """Whether this is a strict recording or replay."""
        return self._strict or (self.player is not None and self.player.strict)

    @property
    def is_strict_replay(self) -> bool:
        """Whether nothing may be made that is not recorded, or named by the user."""
        return self._writer is None and self.player is not None and self.player.strict

    def refuse_connection(self, address: str, module: str) -> None:
        """Refuse a connection that is no request of a known client.

        Raises:
            CassetteError: always, and again at the end.
        """
        error = CassetteError(
            f"{module} has opened a connection to {address}, which is neither recorded nor replayed; record a function "
            "that does so, or name the host in Http(ignore=...)",
            self.path,
        )
        if self.player is not None:
            raise self.player.latch(error)
        self._failure = self._failure or error
        raise error

    @property
    def redaction(self) -> Redaction:
        """The rules by which secrets are removed."""
        return self._redaction

    # Calls that are answered

    async def _answer_async(self, call: ActiveCall, recorded: RecordedCall) -> Any:
        player = self.player
        assert player is not None
        outcome = recorded.outcome
        try:
            if recorded.source != "hit":
                await player.turn(call)  # which notices a cancellation, too
            if "stream" in outcome:
                return self._replayed_stream(call)
            if "cancelled" in outcome or "unfinished" in outcome:
                try:
                    await player.wait_until_cancelled(call)
                except cancellations() as cancellation:
                    show_in_sessions(call, None, cancellation)
                    raise
            if "error" in outcome:
                error = read_error(outcome["error"])
                show_in_sessions(call, None, error)
                raise error
            value = player.read(call, outcome)
            if call.tool_call is not None:
                show_in_sessions(call, value, None)
            return value
        finally:
            if "stream" not in outcome:
                self.answered(call)

    def _answer_plain(self, call: ActiveCall, recorded: RecordedCall) -> Any:
        player = self.player
        assert player is not None
        outcome = recorded.outcome
        if "stream" in outcome:
            return self._replayed_stream(call)
        try:
            if "cancelled" in outcome or "unfinished" in outcome:
                raise player.broken(call.index, f"{recorded.name} had not ended when the recording did")
            if "error" in outcome:
                error = read_error(outcome["error"])
                show_in_sessions(call, None, error)
                raise error
            value = player.read(call, outcome)
            show_in_sessions(call, value, None)
            return value
        finally:
            self.answered(call)

    def _replayed_stream(self, call: ActiveCall) -> Any:
        player, recorded = self.player, call.recorded
        assert player is not None
        assert recorded is not None
        if "stream" not in recorded.outcome:
            text = f"{recorded.name} returned a value when it was recorded, and is a stream now: record it again"
            raise player.broken(call.index, text)
        stream = replayed_stream(call, player, self.answered)
        if call.tool_call is None:
            return stream
        return (_shown_in_sessions_of_thread if call.is_sync_tool else _shown_in_sessions)(call, stream)

    def answered(self, call: ActiveCall) -> None:
        """A call has ended that was answered from the old recording."""
        with self._lock:
            assert self.player is not None
            assert call.index is not None
            self.player.matcher.end(call.index)
            if self._writer is not None:
                self._writer.repeat(call, self.player.matcher)

    # The end

    @contextmanager
    def in_this_task(self) -> Iterator[None]:
        """Make the running task the block's own for a while: lane 0, and the one that ends by a divergence elsewhere.

        Raises:
            CassetteError: that divergence.
        """
        with self.lanes.continued():
            try:
                yield
            except BaseException as error:
                self.raise_divergence(error)
                raise
            else:
                self.lanes.has_ended(None)

    def raise_divergence(self, error: BaseException | None) -> None:
        """Raise the divergence in another task that has ended the block, if that is why this error leaves it.

        Raises:
            CassetteError: the divergence.
        """
        if self.lanes.has_ended(error) and self.player is not None and (found := self.player.error) is not None:
            raise found from found.__cause__

    def discard(self) -> None:
        """Leave the file as it was."""
        self.lanes.is_over = True
        with self._lock:
            if self._writer is not None:
                self._writer.discard()

    def finish(self, error: BaseException | None) -> None:
        """Close the file, and raise an error that the run has swallowed. One that leaves the run takes precedence.

        Raises:
            CassetteError: if an error was swallowed, a call could not be recorded, or was not made in a strict replay,
                a line was not written, or a call was recorded under `strict` that cannot be replayed.
        """
        self.lanes.is_over = True
        player, writer = self.player, self._writer
        with self._lock:
            if writer is not None and player is not None and not self._new_calls and error is None and self._answers:
                writer.discard()
            elif writer is not None:
                if player is not None:
                    writer.keep_rest(player.matcher)
                try:
                    writer.finish(error)
                except CassetteError:
                    if error is None:
                        raise
        if self._failure is not None and error is None:
            raise self._failure.with_traceback(None)
        if player is not None and error is None and self._answers:
            player.check_finished()
        if self._strict and self._problems and error is None:
            raise CassetteError(
                f"has calls that cannot be replayed: {'. '.join(sorted(self._problems))}", self.path or ""
            )


def _is_any(_index: int) -> bool:
    return True


_escaped: set[str] = set()
_shared_names: set[str] = set()


def _function_of(operation: Operation[Any]) -> RecordedFunction:
    """The function of a cached tool, described at its first recorded call."""
    found: RecordedFunction | None = operation.recorded
    if found is None:
        key = getattr(operation.policy, "key", None)  # a write has none
        found = RecordedFunction(
            operation.function, operation.name, "tool", parameters=operation.parameters.shown, key=key
        )
        found.is_read = operation.is_read
        operation.recorded = found
    return found


def _asker_of_tool(function: RecordedFunction, call: InterceptedCall, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What tells apart who makes a call of a cached tool, by name."""
    parts: dict[str, Any] = {}
    if (tenant := call.scope.tenant) is not None:
        parts["tenant"] = tenant
    try:
        asker = call.operation.asker_of(arguments)
    except UnknownAsker:
        if not parts:
            raise
        asker = None
    if asker is not None:
        parts["asker"] = asker
    if (key := function.asker_by_key(arguments)) is not None:
        parts["key"] = key
    return parts


def _asker_of_function(function: RecordedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same for a call of a wrapped function, or a request."""
    parts: dict[str, Any] = {}
    if (tenant := PLACE.get().scope.tenant) is not None:
        parts["tenant"] = tenant
    if (asker := function.asker_of(args, kwargs)) is not None:
        parts["asker"] = asker
    return parts


def recorded_function(value: Any) -> RecordedFunction | None:
    """What recordings know of a wrapped function or a cached tool; None if a value is neither."""
    found = getattr(value, "__agent_cache_recorded__", None)
    if isinstance(found, RecordedFunction):
        return found
    operation = getattr(value, "__agent_cache__", None)
    return _function_of(operation) if isinstance(operation, Operation) else None


def show_in_sessions(call: ActiveCall, value: Any, error: BaseException | None) -> None:
    """Let the sessions around a replayed tool trace and count it as they did when it was recorded."""
    tool_call, recorded = call.tool_call, call.recorded
    if tool_call is None or recorded is None:
        return
    tool_call.source = recorded.source or ("miss" if tool_call.operation.is_read else "write")
    instead = recorded.outcome.get("instead")
    tool_call.replaced = None if instead is None else (instead[0], instead[1])
    tool_call.loops = recorded.outcome.get("loops", [])
    outer = tool_call.outer
    if outer is not None:
        outer.source, outer.replaced, outer.loops = tool_call.source, tool_call.replaced, tool_call.loops
    replay_into_sessions(tool_call, value, error, recorded.duration_ms / 1000)


async def _shown_in_sessions(call: ActiveCall, stream: Any) -> AsyncGenerator[Any, Any]:
    """A replayed stream of a tool, which sessions trace and count when it ends."""
    chunks: list[Any] = []
    try:
        async with aclosing(stream):
            async for chunk in stream:
                chunks.append(chunk)
                yield chunk
    except BaseException as error:
        _show_end_in_sessions(call, error)
        raise
    show_in_sessions(call, tuple(chunks), None)


def _shown_in_sessions_of_thread(call: ActiveCall, stream: Any) -> Generator[Any, Any, None]:
    """The same for a synchronous one."""
    chunks: list[Any] = []
    try:
        with closing(stream):
            for chunk in stream:
                chunks.append(chunk)
                yield chunk
    except BaseException as error:
        _show_end_in_sessions(call, error)
        raise
    show_in_sessions(call, tuple(chunks), None)


def _show_end_in_sessions(call: ActiveCall, error: BaseException) -> None:
    """A stream that its consumer leaves ends as if it were cancelled."""
    show_in_sessions(call, None, asyncio.CancelledError() if isinstance(error, GeneratorExit) else error)


def _redacted_tags(call: ActiveCall, written: Call, outcome: dict[str, Any], redaction: Redaction) -> list[str]:
    """The tags that a write has invalidated, without secrets.

    They lose what redaction has removed from the arguments. What it has removed from the result is not known any more:
    a tag that only the result gives is as long as its segments stand in the redacted outcome. What UTF-8 cannot hold is
    escaped.
    """
    late = {rule.root for rule in written.operation.tags.late}
    shown = encode([call.arguments, outcome]).decode() if late else ""
    found = set()
    for tag in written.tags:
        known = tag
        if root_of(tag) in late:
            root, *segments = tag.split(":")
            known = ":".join((root, *takewhile(lambda segment: unescape(segment) in shown, segments)))
        given = call.arguments if call.given is None else call.given
        found.add(utf8_text(redact_key(known, given, call.arguments, redaction)))
    return sorted(found)


class CallLog:
    """The calls of a run while they are made: numbers each that starts, and makes the recorded call when it has ended.

    The recorder calls it under its lock. A subclass keeps the calls (`keep`).

    Attributes:
        is_closed: whether nothing is kept any more.
        needs_identity: whether a call is refused whose arguments do not tell it from others.
    """

    needs_identity = True

    def __init__(self, redaction: Redaction) -> None:
        self.is_closed = False
        self._redaction = redaction
        self._began = time.perf_counter()
        self._next_id = 1
        self._last_id = 0
        self._open: dict[int, ActiveCall] = {}

    def start(self, call: ActiveCall) -> None:
        """Number a call that starts."""
        call.id, call.after = self._next_id, self._last_id
        call.started = time.perf_counter()
        self._next_id += 1
        self._open[call.id] = call

    def end(self, call: ActiveCall, outcome: dict[str, Any], source: str, tags: list[str]) -> None:
        """Keep a call that has ended."""
        if self.is_closed or self._open.pop(call.id, None) is None:
            return
        self.keep(self.recorded(call, outcome, source, tags))

    def recorded(
        self, call: ActiveCall, outcome: dict[str, Any], source: str = "", tags: Sequence[str] = ()
    ) -> RecordedCall:
        """A call with this outcome, as a line of a log has it."""
        now = time.perf_counter()
        if call.is_awaited:
            outcome["awaited"] = True
        line = RecordedCall(
            id=call.id,
            parent=None if call.parent is None else call.parent.id,
            kind=call.function.kind,
            name=call.function.name,
            arguments=call.arguments,
            key=call.key,
            digest=call.digest.hex(),
            after=call.after,
            lane=call.lane,
            forked=call.forked,
            outcome=outcome,
            source=source,
            started_ms=_milliseconds(call.started - self._began),
            duration_ms=_milliseconds(now - call.started),
        )
        if tags or call.asker:
            line = msgspec.structs.replace(line, tags=list(tags), asker=call.asker)
        if (usage := call.usage) is not None:  # more fields double the time of the constructor
            tokens = usage.tokens
            line = msgspec.structs.replace(
                line,
                input_tokens=tokens.input,
                output_tokens=tokens.output,
                cache_read_tokens=tokens.cache_read,
                cache_write_tokens=tokens.cache_write,
                cache_write_1h_tokens=tokens.cache_write_1h,
                model=None if usage.model is None else self._redaction.labelled("model", usage.model),
            )
        return line

    def keep(self, call: RecordedCall) -> None:
        """Keep a call that has ended, after those that had ended before it."""
        self._last_id = call.id

    def repeat(self, call: ActiveCall, matcher: Matcher) -> None:  # noqa: ARG002 - a cassette copies what it enclosed
        """A call has ended that was answered from an earlier recording."""
        self._open.pop(call.id, None)

    def keep_rest(self, matcher: Matcher) -> None:
        """The run has ended; what is left in the earlier recording was not made."""

    def end_open_calls(self) -> None:
        """End the calls that have not ended, as unfinished."""
        for call in list(self._open.values()):
            outcome: dict[str, Any] = {"unfinished": True}
            if call.chunks is not None:
                outcome = call.stream_outcome(outcome, self._redaction)
            elif call.exchange is not None:
                outcome = call.exchange.unfinished(self._redaction)
            self.end(call, outcome, "", [])

    def finish(self, error: BaseException | None) -> None:  # noqa: ARG002 - a file has it
        """End the calls that have not ended, and close.

        Args:
            error: the exception that ended the run, or None.
        """
        self.end_open_calls()
        self.is_closed = True

    def discard(self) -> None:
        """Close, and keep nothing more."""
        self.is_closed = True


class CassetteWriter(CallLog):
    """The file of a recording while it grows.

    If the disk does not take a line, writing stops and the run goes on; `finish` raises the error.

    Attributes:
        path: where the cassette will be.

    Raises:
        CassetteError: if the file cannot be written, or is being recorded.
    """

    def __init__(
        self,
        path: Path,
        model: str | None,
        redaction: Redaction,
        http: dict[str, Any] | None = None,
        forked_from: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self._like = path  # an earlier recording: tasks are in its order, where only chance decides
        self._file = PartialFile(path)
        super().__init__(redaction)
        self._written = 0
        self._failure: OSError | None = None
        self._copied_ids: dict[int, int] = {}
        self._copied_lanes = 0
        of_http = msgspec.UNSET if http is None else http
        header = Header(
            recorded_at=now_text(),
            model=None if model is None else redaction.labelled("model", model),
            redact=redaction.describe(),
            http=of_http,
            forked_from=msgspec.UNSET if forked_from is None else forked_from,
            log=True,
        )
        try:
            self._file.append(header_line(header))
        except OSError as error:
            self._file.discard()
            raise CassetteError(f"cannot be written: {error.strerror}", path) from error

    def repeat(self, call: ActiveCall, matcher: Matcher) -> None:
        """Write a call again that was answered from the old recording, and the calls that it enclosed."""
        if self.is_closed or self._open.pop(call.id, None) is None or call.index is None:
            return
        assert call.recorded is not None
        self._copied_ids[call.index] = call.id
        self._copy(matcher.inside(call.index), {call.recorded.lane: call.lane}, call.lane, matcher)
        parent = None if call.parent is None else call.parent.id
        self.keep(
            msgspec.structs.replace(
                call.recorded, id=call.id, parent=parent, after=call.after, lane=call.lane, forked=call.forked,
                until=0, form="", digest=call.digest.hex(), name=call.function.name, arguments=call.arguments,
            )
        )  # fmt: skip

    def keep_rest(self, matcher: Matcher) -> None:
        """Write the calls of the old recording that this run has not made."""
        self._copy(list(matcher.left_over()), {0: 0}, 0, matcher)

    def finish(self, error: BaseException | None) -> None:
        """Write the calls that have not ended and the trailer, and put the calls in the place of the old file.

        Args:
            error: the exception that ended the run, or None.

        Raises:
            CassetteError: if the disk did not take all of it.
        """
        super().finish(error)
        ended = "returned" if error is None else f"raised {type(error).__qualname__}"
        duration = _milliseconds(time.perf_counter() - self._began)
        self._append(trailer_line(Trailer(calls=self._written, duration_ms=duration, ended=ended)))
        if self._failure is not None:
            self._file.leave()
            raise CassetteError(
                f"could not be written: {self._failure.strerror}; what could be is in {self.path.name}.partial",
                self.path,
            ) from self._failure
        self._file.finish_as(lambda: Cassette.load(self._file.partial).lines(like=self._like))

    def discard(self) -> None:
        """Leave the old file as it is."""
        super().discard()
        self._file.discard()

    def _copy(self, indices: Sequence[int], lanes: dict[int, int], forked: int, matcher: Matcher) -> None:
        """Write calls of the old recording again, which overlap as they did.

        Args:
            indices: of the calls.
            lanes: lanes of this recording by those of the old one. Others get negative numbers, which are free.
            forked: the lane that lanes were forked from whose origin is not known.
            matcher: of the old recording.
        """
        after: dict[int, int] = {}
        for event in matcher.events_of(indices):
            if event >= 0:
                self._copied_ids[event], after[event] = self._next_id, self._last_id
                self._next_id += 1
                continue
            call = matcher.cassette.steps[~event]
            matcher.cover_alone(~event)
            if call.lane not in lanes:
                self._copied_lanes += 1
                lanes[call.lane] = -self._copied_lanes
            self.keep(
                msgspec.structs.replace(
                    call, id=self._copied_ids[~event], parent=self._copied_ids.get(matcher.parent(~event)),
                    after=after[~event], lane=lanes[call.lane], forked=lanes.get(call.forked, forked), until=0,
                )
            )  # fmt: skip

    def keep(self, call: RecordedCall) -> None:
        """Write a call."""
        super().keep(call)
        self._append(call_line(call))
        self._written += 1

    def _append(self, line: bytes) -> None:
        if self._failure is not None:
            return
        try:
            self._file.append(line)
        except OSError as error:
            self._failure = error
            _LOG.error("recording to %s stopped: %s; the run goes on", self.path, error)


def _milliseconds(seconds: float) -> float:
    """Rounded down to the microsecond."""
    return int(seconds * 1e6) / 1000
