"""Hooks of a session into the calls of one operation: `SessionHooks` implements `engine.scope.CallObserver`.

At each call they check the budgets, write the trace, count, and pass the outcome to the loop detector; what that finds
goes to the guard, which refuses the call, replaces its answer, or lets it go on.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.core.store import NEVER, Entry
from agent_cache.engine.interception import note_answer
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import PLACE, Call, Participant, Replacement
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import Stats
from agent_cache.session.guard import LoopGuard
from agent_cache.session.loop_detector import (
    RUNNING_TASKS,
    CallCount,
    Image,
    LoopDetector,
    RunState,
    ToolDetector,
    Verdict,
    task_of_thread,
)
from agent_cache.session.loop_policy import LoopPolicy
from agent_cache.session.trace import Trace
from agent_cache.session.unkeyed import UnkeyedCalls
from agent_cache.values.canonical import MISSING
from agent_cache.values.compare import fingerprint, signature_of

__all__ = ["SessionHooks"]

_RECENT: Final = 10
"""How many calls the report on a spent budget names."""

_NOT_COUNTED: Final = CallCount()
"""Counts the calls of tools without a limit of their own, in place of a counter for each."""

_ALWAYS_ASKED: Final = RunState(None)
_ALWAYS_ASKED.limit = 0
"""The limit of calls that are checked one by one."""

_NOT_STORED: Final = frozenset({"uncached", "write"})
"""Sources of answers that the cache does not store: such a call has no flight."""

_LONG_KEY: Final = 1_000
"""A key of more characters is replaced by its fingerprint, so that the detector does not keep large arguments alive."""


class CallIdentity:
    """Identifies the calls and the results of one tool for the loop detector.

    The functions of its `LoopHints` take precedence. If one fails, the failure is counted and the default is used. A
    call that has no key is identified by what can be said of it.

    Attributes:
        of_result: maps a result to what identifies it; to None if it cannot be compared.
    """

    __slots__ = ("_detector", "_guard", "_hints", "_operation")

    def __init__(self, operation: Operation[Any], guard: LoopGuard, detector: LoopDetector | None) -> None:
        self._operation = operation
        self._detector = detector
        self._guard = guard
        self._hints = operation.policy.loop

    @property
    def of_result(self) -> Callable[[Any], Hashable | None]:
        return fingerprint if self._hints.outcome_key is None else self._by_outcome_key

    def of_call(self, call: Call) -> Hashable:
        """The identity of a miss or a write."""
        identity = None if self._hints.loop_key is None else self._by_loop_key(call.arguments)
        if identity is not None:
            return identity
        if call.key is not None:
            return call.key
        parameters = self._operation.parameters
        try:
            return _shortened(parameters.key(call.arguments))
        except Uncacheable:
            unkeyed = UnkeyedCalls() if self._detector is None else self._detector.unkeyed
            return _shortened(unkeyed.key(parameters, call.arguments))

    def of_hit(self, key: Hashable, arguments: Mapping[str, Any] | None) -> Hashable:
        """The identity of a hit of a tool with a ``loop_key``."""
        identity = self._by_loop_key(arguments or {})
        return key if identity is None else identity

    def _by_loop_key(self, arguments: Mapping[str, Any]) -> Hashable | None:
        loop_key = self._hints.loop_key
        assert loop_key is not None
        try:
            return _shortened(key_part(loop_key(dict(arguments))))
        except Exception as error:  # noqa: BLE001 - the user's function; the arguments are the default
            self._guard.count_failure("loop_key failed", self._operation.name, error)
            return None

    def _by_outcome_key(self, value: Any) -> Hashable | None:
        outcome_key = self._hints.outcome_key
        assert outcome_key is not None
        try:
            outcome = outcome_key(value)
        except Exception as error:  # noqa: BLE001 - the user's function; the whole result is the default
            self._guard.count_failure("outcome_key raised", self._operation.name, error)
        else:
            identity = fingerprint(outcome)
            if identity is not None:
                return identity
            reason = TypeError(f"a {type(outcome).__name__} cannot be compared")
            self._guard.count_failure("outcome_key returned a value without identity", self._operation.name, reason)
        return fingerprint(value)


def _set_key(call: Call) -> None:
    """Give a write the key of its arguments, for the trace and the loop detector. It has none for the cache."""
    try:
        call.key = _shortened(call.operation.parameters.key(call.arguments))
    except Uncacheable:
        pass


def _shortened(key: Hashable) -> Hashable:
    parts = key if isinstance(key, tuple) else (key,)
    if sum(len(part) for part in parts if isinstance(part, str | bytes)) <= _LONG_KEY:
        return key
    return fingerprint(key) or key


class SessionHooks:
    """The hooks of one session for the calls of one operation.

    Args:
        session: the session, as an identity for `Call.numbers`, and its counters.
        policy: the budgets; None if the session has none.
        detector: the loop detector of the session; None if it detects no loops.
        is_innermost: whether these calls are judged for loops. In an outer session, as for calls that a tool makes by
            itself, only a new successful write matters: it ends the epoch.
        is_inner: whether these calls are made in an inner session.
        deadline: the clock reading after which no call is admitted.
    """

    # It refers to nothing that refers to it, and no bound method of its own is kept: what a session leaves is freed
    # without the garbage collector, which took a third of the time of short sessions.
    __slots__ = (
        "_add", "_current_task", "_deadline", "_detector", "_guard", "_identity_made", "_is_cache_key", "_is_innermost",
        "_is_sync", "_kind", "_limit", "_limits", "_max_calls", "_max_nesting", "_name", "_operation", "_run",
        "_session", "_tool_detector", "_trace", "_turns", "_used", "stats",
    )  # fmt: skip

    def __init__(
        self,
        operation: Operation[Any],
        *,
        session: Participant,
        policy: LoopPolicy | None,
        detector: LoopDetector | None,
        is_innermost: bool,
        is_inner: bool,
        guard: LoopGuard,
        run: RunState,
        trace: Trace,
        stats: Stats,
        deadline: float,
    ) -> None:
        self._operation = operation
        self._name = name = operation.name
        self._session = session
        self._guard = guard
        self._run = self._limits = run
        self._trace = trace
        self._add = trace.add_inner if is_inner else trace.add
        self.stats = stats
        is_read = operation.is_read
        self._kind = "read" if is_read else "write"
        self._is_innermost = is_innermost
        hints = operation.policy.loop
        self._is_cache_key = is_read and hints.loop_key is None
        if is_read and (hints.off or not is_innermost):
            detector = None
        self._detector = detector
        self._identity_made: CallIdentity | None = None
        self._tool_detector: ToolDetector | None = None
        if detector is not None:
            self._tool_detector = self._tool_detector_of(detector)
            if not is_innermost:
                self._detector = detector = None
        # Where a pause between two calls begins a new turn.
        self._turns = None if detector is None or detector.longest_pause is None else detector
        self._is_sync = operation.is_sync
        self._current_task: Callable[[], Any] = current_task
        if operation.is_sync:  # where pauses matter, each call notes its task: in a thread no iteration ends
            self._current_task = task_of_thread if self._turns is None else object
        self._deadline = deadline
        self._limit = self._max_nesting = NEVER
        self._max_calls: int | None = None
        self._used = _NOT_COUNTED
        if policy is not None:
            self._max_calls = policy.calls_of(name)
            if self._max_calls is not None:  # this budget alone needs the count, and a long session may have many tools
                self._used = run.used_by(name)
            if policy.max_execution_depth is not None:
                self._limit = policy.max_execution_depth
            if policy.max_nesting is not None:
                self._max_nesting = policy.max_nesting
        if self._max_calls is not None or deadline != NEVER:
            self._limits = _ALWAYS_ASKED

    @property
    def _identity(self) -> CallIdentity:
        """Made when the key of a call does not identify it, or a result is to be identified."""
        identity = self._identity_made
        if identity is None:
            detector = self._detector if self._tool_detector is None else self._tool_detector.detector
            identity = self._identity_made = CallIdentity(self._operation, self._guard, detector)
        return identity

    def _tool_detector_of(self, detector: LoopDetector) -> ToolDetector:
        """It outlives these hooks, which may be made again."""
        found = detector.tools.get(self._operation)
        if found is None:
            loop = self._operation.policy.loop
            found = detector.add_tool(
                self._operation,
                ToolDetector(
                    detector,
                    self._name,
                    loop,
                    is_write=not self._operation.is_read,
                    identify=fingerprint if loop.outcome_key is None else self._identity.of_result,
                ),
            )
        return found

    # Hits

    def hit(
        self,
        key: Hashable,
        entry: Entry,
        value: Any,
        now: float,
        arguments: Mapping[str, Any] | None,
        parent: Call | None,
        is_admitted: bool = False,  # noqa: FBT001, FBT002 - positional, since `see` alone gives it
    ) -> Any:
        run, session = self._run, self._session
        if run.calls >= self._limits.limit and not is_admitted:
            return self._ask_first(key, entry, value, now, arguments, parent)
        detector = self._tool_detector
        inside = None if parent is None else parent.number_in(session)
        if detector is not None and inside is None:
            try:
                if (
                    self._current_task() is not run.task
                    if RUNNING_TASKS is None or self._is_sync
                    else run.running != RUNNING_TASKS
                ):
                    run.note_task() if self._turns is None else self._turns.note_task()
                verdict = detector.hit(key if self._is_cache_key else self._identity.of_hit(key, arguments), entry)
            except Exception as error:  # noqa: BLE001 - a broken guard is not a broken agent
                verdict = self._detector_failed(error)
            if verdict is not None:
                instead = self._judge_hit(verdict, key, now, value)
                if instead is not None:
                    self.answered()
                    return instead.answer
        # In one step, which no other thread interrupts: as in `metrics.Stats`.
        run.calls = number = run.calls + 1
        stats = self.stats
        stats.hits += 1
        stats.time_saved += entry.cost
        self._add((self._name, key, now, inside, number))
        return value

    def see(
        self,
        key: Hashable,
        entry: Entry,
        value: Any,
        now: float,
        arguments: Mapping[str, Any] | None,
        parent: Call | None,
    ) -> Any:
        self._used.calls += 1  # `_judge_hit` takes back a hit that is refused or replaced
        return self.hit(key, entry, value, now, arguments, parent, is_admitted=True)

    def _ask_first(
        self,
        key: Hashable,
        entry: Entry,
        value: Any,
        now: float,
        arguments: Mapping[str, Any] | None,
        parent: Call | None,
    ) -> Any:
        """Answer a hit that a budget may refuse."""
        instead = self.ask(key, now, cached=value)
        if instead is None:
            return self.see(key, entry, value, now, arguments, parent)
        self.answered()
        return instead.answer

    def answered(self) -> None:
        self.stats.hits += 1

    def _judge_hit(self, verdict: Verdict, key: Hashable, now: float, value: Any) -> Replacement | None:
        report = verdict.as_error()
        if verdict.level == "notice":
            self._guard.notice(report)
            return None
        instead: Replacement | None = None
        is_refused = True
        try:
            instead = self._act(report, key, now, value, is_first=verdict.is_first)
            is_refused = instead is not None
        finally:
            if is_refused:
                self._used.calls -= 1
        return instead

    def _detector_failed(self, error: Exception) -> Verdict | None:
        """Go on without a verdict on a call: its answer is what matters."""
        self._guard.count_failure("the loop detector failed", self._name, error, "the call was not checked")
        return None

    # Calls that run

    def ask(self, key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING) -> Replacement | None:
        run = self._run
        if call is not None and call.key is None and self._kind == "write":
            _set_key(call)
            key = call.key
        is_inside = self._enclosing_number() is not None
        detector = None if is_inside else self._detector
        if self._turns is not None and detector is not None:
            self._turns.note_activity()
        if call is not None and detector is not None:
            call.loop_key = self._identity.of_call(call)
        spent: tuple[str, int] | None = None
        # A run that was stopped lets the tools that are running end: half of their work is worse than all of it.
        if run.calls >= (self._limit if is_inside else run.limit):
            spent = "depth", run.calls
        elif now >= self._deadline:
            spent = "time", run.calls
        elif self._max_calls is not None and self._used.calls >= self._max_calls:
            spent = "tool_calls", self._used.calls
        elif call is not None and call.depth > self._max_nesting:
            spent = "nesting", call.depth
        if spent is not None:
            report = AgentLoopDetectedError(self._name, *spent, 0, self._trace.recent_tools(_RECENT))
            is_first = self._guard.is_first_report(report)
            cached = cached if call is None else _cached_for(call, now)
            instead = self._act(report, key, now, cached, is_first=is_first, is_inside=is_inside)
            if instead is not None:
                return instead
        if call is not None and detector is not None and detector.blocked and self._guard.refuses:
            assert self._tool_detector is not None
            verdict = self._tool_detector.blocked(call.loop_key)
            if verdict is not None:
                return self._act(verdict.as_error(), key, now, _cached_for(call, now), is_first=False)
        return None

    def admit(self, call: Call, now: float | None = None) -> Replacement | None:
        run, detector, parent = self._run, self._detector, call.parent
        if call.key is None and self._kind == "write":
            _set_key(call)
        if parent is not None and parent.number_in(self._session) is not None:
            detector = None
        if self._turns is not None and detector is not None:
            self._turns.note_activity()
        is_asked = now is None
        if now is not None and (
            run.calls >= self._limits.limit
            or call.depth > self._max_nesting
            or (detector is not None and detector.blocked)
        ):
            is_asked = True
            instead = self.ask(call.key, now, call)
            if instead is not None:
                return instead
        if self._max_calls is not None:
            self._used.calls += 1
        run.calls = number = run.calls + 1
        if call.numbers is None:
            call.numbers = {self._session: number}
        else:
            call.numbers[self._session] = number
        if detector is not None:
            call.began = detector.position + detector.unchanged  # `LoopDetector.clock`, without the call
            if not is_asked:
                key = call.key if self._is_cache_key else None
                call.loop_key = self._identity.of_call(call) if key is None else key
        return None

    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Replacement | None:
        parent = None if call.parent is None else call.parent.number_in(self._session)
        outcome = "ok" if error is None else _name_of(error)
        number, duration = call.numbers[self._session], now - call.started  # type: ignore[index]  # admit() has set it
        self._add((self._name, call.key, self._kind, call.source, outcome, call.started, duration, parent, number))
        detector = self._tool_detector
        if detector is None:
            return None
        if parent is not None or not self._is_innermost:
            if self._kind == "write" and error is None and self._operation.is_successful(value):
                try:
                    signature, image = self._compared(detector, value)
                    detector.record_change(self._identity.of_call(call), signature, image)
                except Exception as failure:  # noqa: BLE001 - as below
                    self._detector_failed(failure)
            return None
        if self._turns is not None:
            self._turns.active = now
        if error is not None and (not isinstance(error, Exception) or call.local.has_refused(error)):
            return None  # an interruption, or the refusal of a call that the tool has made
        run, entry = self._run, None
        compared: Entry | Image | None = None
        try:
            if RUNNING_TASKS is None or self._is_sync or run.running != RUNNING_TASKS:
                run.note_task()
            if error is None:
                if call.source not in _NOT_STORED and call.flight.stored_tags is not None:
                    flight = call.flight
                    entry, store = flight.result, flight.store
                    if store.newest is not entry and store.peek(call.key) is not entry:
                        entry = None  # too large for the cache, or dropped by another thread: it is not kept alive here
                    elif detector.record_first(call.loop_key, entry):
                        return None
                if entry is None:
                    signature, compared = self._compared(detector, value)
                    has_failed = not self._operation.is_successful(value)
                else:
                    signature, compared, has_failed = None, entry, False
            else:
                value, signature, has_failed = error, signature_of(error), True
            verdict = detector.record(
                call.loop_key, signature, value=value, entry=compared, error=has_failed, began=call.began
            )
        except Exception as failure:  # noqa: BLE001 - a broken guard is not a broken agent
            verdict = self._detector_failed(failure)
        return None if verdict is None else self._judge_run(verdict, value, entry)

    def _compared(self, detector: ToolDetector, value: Any) -> tuple[Hashable | None, Image | None]:
        """What a result that is not cached is compared by: what identifies it, or its image."""
        image = detector.image_of(value) if self._operation.policy.loop.outcome_key is None else None
        return (self._identity.of_result(value), None) if image is None else (None, image)

    def _judge_run(self, verdict: Verdict, value: Any, entry: Entry | None) -> Replacement | None:
        """React to a call that has run, and is in the trace already.

        Args:
            entry: the cache entry of its result. Without one there is no answer that a later call could be given again.
        """
        report = verdict.as_error()
        if verdict.level == "notice":
            self._guard.notice(report)
            return None
        if self._kind == "write":
            self._guard.act_later(report, is_first=verdict.is_first)
            return None
        return self._guard.act(
            report, self._operation.notice, MISSING if entry is None else value, is_first=verdict.is_first
        )

    # Refusals

    def has_refused(self, error: Exception) -> bool:
        return self._guard.has_raised(error)

    def blocked(self, key: Hashable, now: float, outcome: str, kind: str) -> None:
        self._record_refusal(key, now, outcome)
        self._session.metrics.acted_on_loop(kind)

    def _act(
        self,
        report: AgentLoopDetectedError,
        key: Hashable,
        now: float,
        cached: Any,
        *,
        is_first: bool,
        is_inside: bool = False,
    ) -> Replacement | None:
        """React to a call that has not run, and record it if it is refused or its answer is replaced."""
        try:
            instead = self._guard.act(report, self._operation.notice, cached, is_first=is_first, is_inside=is_inside)
        except AgentLoopDetectedError as error:
            self._record_refusal(key, now, type(error).__name__)
            raise
        if instead is not None:
            self._record_refusal(key, now, instead.outcome)
            note_answer(self._operation, instead)
        return instead

    def _record_refusal(self, key: Hashable, now: float, outcome: str) -> None:
        parent = self._enclosing_number()
        self._add((self._name, key, self._kind, "blocked", outcome, now, 0.0, parent, self._run.calls))

    def _enclosing_number(self) -> int | None:
        """The number of the call whose tool makes this one; None if the agent makes it."""
        parent = PLACE.get().call
        return None if parent is None else parent.number_in(self._session)


def _cached_for(call: Call, now: float) -> Any:
    """The cached answer for a call that asked for a fresh one and so has not looked, or `MISSING`."""
    if not call.is_fresh or call.local.store is None:
        return MISSING
    entry = call.local.store.find(call.key)
    return MISSING if entry is None else entry.value_at(now)


def _name_of(error: BaseException) -> str:
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
