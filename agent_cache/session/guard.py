"""What a session does with the calls of one tool: `ToolInSession`, what the tool has in the scope of the session.

At each call it checks the budgets, writes the trace, counts, and has the loop detector judge the outcome. What that
finds goes to the `LoopGuard` of the session, which refuses the call, replaces its answer, or lets it go on.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Literal

from agent_cache.core.keys import PLAIN, Uncacheable, key_part
from agent_cache.core.options import checked_choice, checked_function
from agent_cache.core.store import Entry
from agent_cache.engine.hooks import note_answer, note_loop
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import PLACE, Call, LocalTool, Replacement, Scope
from agent_cache.engine.state import LOG, warn_once
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS, Metrics, Stats
from agent_cache.session.loop_detector import ToolHistory, digest_of
from agent_cache.session.loop_policy import ANY_NUMBER
from agent_cache.values.canonical import MISSING
from agent_cache.values.compare import etag_of, fingerprint, signature_of

__all__ = ["LoopGuard", "OnLoop", "OnNotice", "ToolInSession"]

Decision = Literal["raise", "warn", "short_circuit", "notice"]
OnLoop = Decision | Callable[[AgentLoopDetectedError], Decision | None]
OnNotice = Callable[[AgentLoopDetectedError], object]

_DECISIONS: Final = ("raise", "warn", "short_circuit", "notice")

_RECENT: Final = 10
"""How many calls the report on a spent budget names."""

_NOT_CHECKED: Final = "the loop detector failed, so the call was not checked"
_TEXTS: Final = frozenset({str, bytes})

_LONG_KEY: Final = 1_000
"""A key of more characters is replaced by its fingerprint, so that a session does not keep large arguments alive."""


class LoopGuard:
    """The reactions of a session to loops and spent budgets. Each is logged, and counted in the process and in the
    session.

    Attributes:
        loop_error: the loop or the spent budget that has stopped the run; None if none has.
        limit: how many calls the run may make; 0 once it was stopped, so that one comparison covers both.
    """

    session_id: str
    metrics: Metrics
    loop_error: AgentLoopDetectedError | None

    def __init__(self, on_loop: OnLoop, on_notice: OnNotice | None) -> None:
        if callable(on_loop):
            checked_function(on_loop, "AgentCacheSession: on_loop")
        else:
            checked_choice(on_loop, _DECISIONS, "AgentCacheSession: on_loop", or_else="a function")
        self._on_loop: OnLoop = on_loop
        self._on_notice: OnNotice | None = checked_function(on_notice, "AgentCacheSession: on_notice")
        self._raised: weakref.WeakSet[Exception] | None = None  # what has refused a call
        self.limit = ANY_NUMBER
        self.begin()

    def begin(self) -> None:
        """Forget what a former run was stopped for."""
        self.loop_error = None
        self._is_raised = False
        self._spent: frozenset[tuple[str, str]] = frozenset()  # the budgets that were reported, by kind and tool

    def _notice(self, loop: AgentLoopDetectedError) -> None:
        """React at the notice level: log, count, call ``on_notice``. The call is not changed."""
        self._log(logging.INFO, "may be a loop", loop)
        for metrics in (METRICS, self.metrics):
            metrics.noticed_loop(loop.kind)
        note_loop("notice", loop.kind, self.metrics)
        if self._on_notice is not None:
            self._ask_user("on_notice", loop.tool, self._on_notice, loop)

    def _act_later(self, loop: AgentLoopDetectedError, *, is_first: bool) -> None:
        """React at the action level to a write that has run: its answer is returned, and the next call is refused."""
        if is_first or self._on_loop == "warn":  # else it was counted when it was admitted
            self._count_loop(loop)
            note_loop("loop", loop.kind, self.metrics)
        if self.loop_error is None and self._on_loop == "raise":
            self._latch(loop)
        elif is_first:
            self._log(logging.WARNING, "loop detected", loop)

    def _latch(self, loop: AgentLoopDetectedError) -> None:
        """Stop the run: every later call is refused with this error, unless an earlier one has stopped it."""
        if self.loop_error is None:
            self.loop_error = loop
            self.limit = 0
            self._log(logging.WARNING, "loop detected", loop)

    def stop(self, loop: AgentLoopDetectedError) -> None:
        """Stop the run for a loop that was raised when it was recorded, and has just been raised again."""
        self._own(loop)
        if self._decide(loop) == "raise":
            self._latch(loop)
            self._is_raised = True

    def _own(self, loop: AgentLoopDetectedError) -> AgentLoopDetectedError:
        """Note that this session refuses a call with an error."""
        if self._raised is None:
            self._raised = weakref.WeakSet()
        self._raised.add(loop)
        return loop.with_traceback(None)  # the same error may be raised a thousand times

    def _decide(self, loop: AgentLoopDetectedError) -> Decision | None:
        on_loop = self._on_loop
        if self.loop_error is not None:
            return "raise"
        if not callable(on_loop):
            return on_loop

        def decide() -> Decision | None:
            decision = on_loop(loop)
            return decision if decision is None else checked_choice(decision, _DECISIONS, "what on_loop returns")

        decided: Decision | None = self._ask_user("on_loop", loop.tool, decide, default="raise")
        return decided

    def _ask_user(
        self, what: str, tool: str, function: Callable[..., Any], *arguments: Any, default: Any = None
    ) -> Any:
        """What a function of the user's returns; if it raises, the default: a broken guard is not a broken agent."""
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - the user's function
            self._count_failure(f"{what} raised, so the default was used", tool, error)
            return default

    def _count_failure(self, what: str, tool: str, error: Exception) -> None:
        """Count a failure of a user's function, or of the loop detector, and log it once."""
        for metrics in (METRICS, self.metrics):
            metrics.callback_failed()
        warn_once(what, tool, error)

    def _count_loop(self, loop: AgentLoopDetectedError) -> None:
        for metrics in (METRICS, self.metrics):
            metrics.acted_on_loop(loop.kind)

    def _log(self, level: int, what: str, loop: AgentLoopDetectedError) -> None:
        extra = {
            "agent_cache_event": "loop" if loop.level == "action" else "loop_notice",
            "agent_cache_tool": loop.tool,
            "agent_cache_kind": loop.kind,
            "agent_cache_session": self.session_id,
        }
        LOG.log(level, "%s: %s, %s, %d calls", what, loop.tool, loop.kind, loop.count, extra=extra)


class ToolInSession(LocalTool, ToolHistory):
    """The calls of one tool in one session.

    Args:
        scope: where they are made.
        session: the `AgentCacheSession`.
        is_innermost: whether these calls are made in this session, and in no other one inside of it.
        is_judged: whether these calls are judged for loops. Of others, as of those that a tool makes by itself, only a
            new successful write matters: it ends the epoch.

    Attributes:
        own: the counters of the tool in this session.
    """

    # It refers to nothing that refers to it, and no bound method of its own is kept: what a session leaves is freed
    # without the garbage collector, which took a third of the time of short sessions.
    __slots__ = (
        "_add", "_has_etags", "_has_loop_key", "_is_inner", "_is_judged", "_operation", "_session", "_used", "calls",
        "detector", "hints", "is_write", "name", "own", "repeat",
    )  # fmt: skip

    def __init__(
        self,
        operation: Operation[Any],
        scope: Scope,
        session: Any,
        *,
        is_innermost: bool = True,
        is_judged: bool = True,
    ) -> None:
        self.observe(operation, scope)
        self._operation, self._session = operation, session
        self.name, self.hints = operation.name, operation.policy.loop
        self._add = session.trace.add if is_innermost else session.trace.add_inner
        self.own: Stats = session.metrics.stats_of(operation.counted_as)
        self.stats = operation.stats, self.own
        self._is_judged, self._has_loop_key = is_judged and is_innermost, self.hints.loop_key is not None
        self.is_write = not operation.is_read
        self._is_inner, self._has_etags = not is_innermost, operation.is_read and operation.policy.validate is not None
        self.repeat = "write_repeat" if self.is_write else "repeat"
        self.detector = None
        if session._detects_loops and (self.is_write or (self._is_judged and not self.hints.off)):
            self.detector = detector = session._detector or session.make_detector()
            calls = detector.tools.get(operation)
            self.calls = detector.calls_of(operation) if calls is None else calls  # it outlives this object
        self._used: list[int] | None = session.used_by(operation.name) if session.limits_tools else None

    # Hits

    def hit(
        self,
        key: Hashable,
        entry: Entry,
        value: Any,
        now: float,
        arguments: Mapping[str, Any] | None,
        parent: Call | None,
        is_asked: bool = False,  # noqa: FBT001, FBT002 - positional: a scope with several sessions alone gives it
    ) -> Any:
        session = self._session
        if not is_asked and (session.calls >= session.limit or session.is_bounded):
            instead = self.ask(key, now, cached=value)
            if instead is not None:
                self.own.hits += 1
                return instead.answer
        inside = None if parent is None else parent.number_in(session)
        detector = self.detector
        if detector is not None and inside is None:
            try:
                if detector.pause is not None:
                    detector.note_activity(now)
                digest = entry.digest
                if digest is None:
                    digest = entry.digest = digest_of(value) if self.hints.outcome_key is None else self._digest(value)
                loop_key = self._by_loop_key(arguments or {}, key) if self._has_loop_key else key
                verdict = self.record(loop_key, digest, value)
            except Exception as error:  # noqa: BLE001 - a broken guard is not a broken agent
                session._count_failure(_NOT_CHECKED, self.name, error)
                verdict = None
            if verdict is not None:
                report, is_first = verdict
                if report.level == "notice":
                    session._notice(report)
                else:
                    instead = self._act(report, key, now, value, is_first=is_first)
                    if instead is not None:
                        self.own.hits += 1
                        return instead.answer
        if self._used is not None:
            self._used[0] += 1
        # In one step, which no other thread interrupts: as in `metrics.Stats`.
        session.calls = number = session.calls + 1
        stats = self.own
        stats.hits += 1
        stats.time_saved += entry.cost
        if self._has_etags:
            if not hasattr(entry, "etag"):
                entry.etag = etag_of(value)
            session.trace.add((self.name, key, now, inside, number, self._is_inner, entry.etag))
        else:
            self._add((self.name, key, now, inside, number))
        return value

    # Calls that run

    def ask(self, key: Hashable, now: float, call: Call | None = None, cached: Any = MISSING) -> Replacement | None:
        """None if a call may be made, by the budgets and what is blocked; else what its caller gets. Counts no call."""
        session, used = self._session, self._used
        is_inside = self._enclosing_number() is not None
        detector = None if is_inside or not self._is_judged else self.detector
        if call is not None:
            if call.key is None and self.is_write:
                call.key = self._key_of_arguments(call)
            key, cached = call.key, _cached_for(call, now)
        if detector is not None:
            detector.note_activity(now)
        spent: tuple[str, int] | None = None
        # A run that was stopped lets the tools that are running end: half of their work is worse than all of it.
        if session.calls >= (session.most_calls if is_inside else session.limit):
            spent = "depth", session.calls
        elif now >= session.deadline:
            spent = "time", session.calls
        elif used is not None and used[0] >= used[1]:
            spent = "tool_calls", used[0]
        elif call is not None and call.depth > session.most_nested:
            spent = "nesting", call.depth
        if spent is not None:
            report = AgentLoopDetectedError(self.name, *spent, 0, session.trace.recent_tools(_RECENT))
            budget = spent[0], self.name if spent[0] == "tool_calls" else ""
            is_first = budget not in session._spent
            session._spent |= {budget}
            instead = self._act(report, key, now, cached, is_first=is_first, is_inside=is_inside)
            if instead is not None:
                return instead
        if call is not None and detector is not None and detector.blocked and session._on_loop != "warn":
            refusal = self.refusal_of(self._key_of(call))
            if refusal is not None:
                return self._act(refusal, key, now, cached, is_first=False)
        return None

    def admit(self, call: Call, now: float, is_asked: bool = False) -> Replacement | None:  # noqa: FBT001, FBT002 - as in hit()
        session, detector, parent = self._session, self.detector, call.parent
        if (parent is not None and parent.number_in(session) is not None) or not self._is_judged:
            detector = None
        if call.key is None and self.is_write:
            call.key = self._key_of_arguments(call)
        if detector is not None:
            if detector.pause is not None:
                detector.note_activity(now)
            call.loop_key = self._key_of(call) if call.key is None or self._has_loop_key else call.key
        if not is_asked and (
            session.calls >= session.limit
            or session.is_bounded
            or call.depth > session.most_nested
            or (detector is not None and detector.blocked)
        ):
            instead = self.ask(call.key, now, call)
            if instead is not None:
                return instead
        if self._used is not None:
            self._used[0] += 1
        session.calls = number = session.calls + 1
        if call.numbers is None:
            call.numbers = {session: number}
        else:
            call.numbers[session] = number
        if detector is not None:
            call.began = detector.clock
        return None

    def done(self, call: Call, value: Any, error: BaseException | None, now: float) -> Replacement | None:
        session, detector, source = self._session, self.detector, call.source
        parent = None if call.parent is None else call.parent.number_in(session)
        outcome = "ok" if error is None else _name_of(error)
        number = call.numbers[session]  # type: ignore[index]  # admit() has set it
        kind, started = "write" if self.is_write else "read", call.admitted
        fields = self.name, call.key, kind, source, outcome, started, now - started, parent, number
        if self._has_etags and error is None:
            session.trace.add((*fields, self._is_inner, etag_of(value)))
        else:
            self._add(fields)
        if detector is None:
            return None
        is_judged = parent is None and self._is_judged
        if is_judged:
            detector.active = now
            if error is not None and (not isinstance(error, Exception) or call.local.has_refused(error)):
                return None  # an interruption, or the refusal of a call that the tool has made
        elif not self.is_write or error is not None:
            return None
        entry: Entry | None = None
        digest: Hashable = None
        try:
            if error is not None:
                value, has_failed, digest = error, True, signature_of(error) or object()
            else:
                if source != "write" and source != "uncached":  # what is not stored may be a failure
                    flight = call.flight
                    if flight.stored_tags is not None and flight.result is not None:
                        entry, digest = flight.result, flight.result.digest
                is_fine = entry is not None or (self.is_write and self._operation.policy.ok is None)
                has_failed = not is_fine and not self._operation.is_successful(value)
                if digest is None:
                    digest = digest_of(value) if self.hints.outcome_key is None else self._digest(value)
                    if entry is not None:
                        entry.digest = digest
                if not is_judged:
                    if not has_failed:
                        self.record_change(self._key_of(call), digest)
                    return None
            verdict = self.record(call.loop_key, digest, value, failed=has_failed, began=call.began)
        except Exception as failure:  # noqa: BLE001 - a broken guard is not a broken agent
            session._count_failure(_NOT_CHECKED, self.name, failure)
            verdict = None
        if verdict is None:
            return None
        report, is_first = verdict
        if report.level == "notice":
            session._notice(report)
        elif self.is_write:
            session._act_later(report, is_first=is_first)
        else:  # without an entry there is no answer that a later call could be given again
            cached = MISSING if entry is None else value
            return self._act(report, call.key, now, cached, is_first=is_first, has_run=True)
        return None

    # Refusals

    def has_refused(self, error: Exception) -> bool:
        raised = self._session._raised
        return raised is not None and error in raised

    def blocked(self, key: Hashable, now: float, outcome: str, kind: str) -> None:
        """Record that a session has refused a call, or replaced its answer."""
        self._record_refusal(key, now, outcome)
        self._session.metrics.acted_on_loop(kind)

    def _act(
        self, loop: AgentLoopDetectedError, key: Hashable, now: float, cached: Any, *, is_first: bool,
        is_inside: bool = False, has_run: bool = False,
    ) -> Replacement | None:  # fmt: skip
        """React at the action level, to a call that has not run, which is recorded if it is refused or its answer is
        replaced, or to a read that has run.

        Args:
            cached: the cached result of exactly this call, or `MISSING`.
            is_first: whether this streak has not met the action level before; ``"warn"`` logs once a streak.
            is_inside: whether a tool makes the call: it never gets a text instead of a result.

        Returns:
            What the caller gets instead of an answer; None if the call goes on.
        """
        session = self._session
        loop = session.loop_error or loop
        decision = session._decide(loop)
        session._count_loop(loop)
        if decision == "raise":
            session._latch(loop)
            session._is_raised = True
        elif is_first:
            session._log(logging.WARNING, "loop detected", loop)
        is_refused = (decision == "notice" and is_inside) or (decision == "short_circuit" and cached is MISSING)
        if decision == "raise" or is_refused:
            if not has_run:
                self._record_refusal(key, now, type(loop).__name__)
            raise session._own(loop)
        if decision not in ("short_circuit", "notice"):
            note_loop("loop", loop.kind, session.metrics)
            return None
        if decision == "notice":
            cached = session._ask_user("refused", loop.tool, self._operation.notice, loop, default=str(loop))
        instead = Replacement(cached, decision, loop.kind)
        if not has_run:
            self._record_refusal(key, now, decision)
            note_answer(self._operation, instead)
        return instead

    def _record_refusal(self, key: Hashable, now: float, outcome: str) -> None:
        kind = "write" if self.is_write else "read"
        parent, calls = self._enclosing_number(), self._session.calls
        self._add((self.name, key, kind, "blocked", outcome, now, 0.0, parent, calls))

    def _enclosing_number(self) -> int | None:
        """The number of the call whose tool makes this one; None if the agent makes it."""
        parent = PLACE.get().call
        return None if parent is None else parent.number_in(self._session)

    # What identifies calls and results for the loop detector: the functions of `LoopHints` first

    def _key_of_arguments(self, call: Call) -> Hashable:
        """The key of the arguments of a write, which has none for the cache; None if they have no identity."""
        parameters, length = self._operation.parameters, 0
        parts: list[Hashable] = []
        try:
            if not parameters.is_plain:
                return _shortened(parameters.key(call.arguments))
            for value in call.args:  # as `Parameters.key` and `_shortened`, without their frames
                part: Any = value if type(value) in PLAIN else key_part(value)
                if type(part) in _TEXTS:
                    length += len(part)
                parts.append(part)
        except Uncacheable:
            return None
        key = parts[0] if len(parts) == 1 else tuple(parts)
        return key if length <= _LONG_KEY else fingerprint(key) or key

    def _key_of(self, call: Call) -> Hashable:
        """The identity of a miss or a write."""
        key = self._by_loop_key(call.arguments, call.key) if self._has_loop_key else call.key
        if key is not None:
            return key
        given = dict(self._operation.parameters.identities(call.arguments))
        return _shortened(tuple(map(self.detector.part_of_unkeyed, given.values())))

    def _by_loop_key(self, arguments: Mapping[str, Any], default: Hashable) -> Hashable:
        loop_key: Any = self.hints.loop_key

        def identify() -> Hashable:
            return _shortened(key_part(loop_key(dict(arguments))))

        found: Hashable = self._session._ask_user("loop_key", self.name, identify, default=default)
        return found

    def _digest(self, value: Any) -> Hashable:
        """What identifies a result of a tool with an ``outcome_key``."""
        return digest_of(
            self._session._ask_user("outcome_key", self.name, self.hints.outcome_key, value, default=value)
        )


def _cached_for(call: Call, now: float) -> Any:
    """The cached answer for a call that asked for a fresh one and so has not looked, or `MISSING`."""
    if not call.is_fresh or call.local.store is None:
        return MISSING
    entry = call.local.store.find(call.key)
    return MISSING if entry is None else entry.value_at(now)


def _name_of(error: BaseException) -> str:
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__


def _shortened(key: Hashable) -> Hashable:
    length = 0
    for part in key if type(key) is tuple else (key,):
        if type(part) in _TEXTS:
            length += len(part)
    return key if length <= _LONG_KEY else fingerprint(key) or key
