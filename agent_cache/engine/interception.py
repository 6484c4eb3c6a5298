"""Calls of a scope that is being recorded or replayed: an `Interceptor` receives each one before any lookup.

`InterceptedScope` takes the place of a scope while an interceptor is active in it. Its plans answer no hit locally, so
every call reaches `Interceptor.play` as an `InterceptedCall`, which can `proceed` as if there were no interceptor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable
from contextvars import ContextVar, Token
from copy import copy
from functools import partial
from typing import Any

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.store import Entry
from agent_cache.engine.runtime import (
    INTERCEPTORS,
    UNKEYED,
    Call,
    Interceptor,
    Operation,
    Participant,
    Plan,
    Proceed,
    Replacement,
    Scope,
    count,
    report_escape,
)
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS, Metrics
from agent_cache.values.canonical import MISSING

__all__ = [
    "INTERCEPTORS",
    "InterceptedCall",
    "InterceptedScope",
    "Interceptor",
    "note_answer",
    "note_loop",
    "replay_into_sessions",
    "report_escape",
]


class InterceptedCall:
    """One call of a tool as an interceptor receives it.

    Attributes:
        operation: the tool's `ReadOperation` or `WriteOperation`.
        scope: the scope it is made in.
        key, args, kwargs: as a `Call` has them.
        is_fresh: the caller asked for a fresh value.
        outer: the same call at the inner interceptor, where one recording is made inside of another.
        call: the `Call` that was made for it; None for a local hit, and for a follower of another call's load.
        source: how it was answered, once it was: a value of `Call.source`, or ``"blocked"`` by a session.
        replaced: outcome and kind of the loop, if a session replaced the answer; else None.
        loops: loops that sessions noticed at it and let pass: ``"notice"`` or ``"loop"``, the kind of loop, and the
            session, counted from the innermost.
    """

    __slots__ = (
        "args",
        "call",
        "is_fresh",
        "key",
        "kwargs",
        "loops",
        "operation",
        "outer",
        "replaced",
        "scope",
        "source",
    )

    def __init__(
        self,
        operation: Operation[Any],
        scope: Scope,
        key: Hashable,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_fresh: bool = False,
        outer: InterceptedCall | None = None,
    ) -> None:
        self.operation = operation
        self.scope = scope
        self.key = key
        self.args = args
        self.kwargs = kwargs
        self.is_fresh = is_fresh
        self.outer = outer
        self.call: Call | None = None
        self.source = "shared"
        self.replaced: tuple[str, str] | None = None
        self.loops: list[tuple[str, str, int]] = []

    @property
    def arguments(self) -> dict[str, Any]:
        """Parameter names and values, injected contexts included."""
        named: dict[str, Any] = self.operation.parameters.named(self.args, self.kwargs)
        return named

    @property
    def recorded_arguments(self) -> dict[str, Any]:
        """The same as recordings have them."""
        recorded: dict[str, Any] = self.operation.parameters.recorded(self.args, self.kwargs)
        return recorded

    async def proceed(self) -> Any:
        """Make the call as if there were no interceptor, and note how it was answered."""
        assert isinstance(self.scope, InterceptedScope)
        outside = self.scope.outside
        try:
            if outside.interceptor is not None:
                return await outside.interceptor.play(self.inside_of(outside))
            return await self._run(self.scope.beneath)
        finally:
            self.note_source()

    def inside_of(self, outside: Scope) -> InterceptedCall:
        """The same call at the interceptor of an outer scope."""
        return InterceptedCall(
            self.operation, outside, self.key, self.args, self.kwargs, is_fresh=self.is_fresh, outer=self
        )

    def note_source(self) -> None:
        """Note how it was answered, once it has ended."""
        if self.call is not None:
            self.source = self.call.source
        if self.outer is not None:
            self.outer.source, self.outer.call, self.outer.replaced = self.source, self.call, self.replaced
            self.outer.loops = self.loops

    async def _run(self, beneath: Scope) -> Any:
        operation = self.operation
        token = self.enter(beneath)
        try:
            if operation.is_read and not self.is_fresh:
                value = operation.local_hit(beneath, self.key, self.arguments)
                if value is not MISSING:
                    self.source = "hit"
                    return value
            return await operation.answer(beneath, self.key, self.args, self.kwargs, is_fresh=self.is_fresh)
        finally:
            self.leave(token)

    def enter(self, beneath: Scope) -> Token[InterceptedCall | None]:
        """Let the `Call` be noted that is made for it in a scope beneath the interceptor, until `leave`."""
        if beneath.plan(self.operation).observers:
            # In a session every admitted call becomes a `Call`, which `_show_call` notes. Without one it was refused.
            self.source = "blocked"
        return _INTERCEPTED.set(self)

    def leave(self, token: Token[InterceptedCall | None]) -> None:
        """Undo `enter`."""
        try:
            _INTERCEPTED.reset(token)
        except ValueError:
            pass  # closed by the garbage collector, in another context than it ran in


_INTERCEPTED: ContextVar[InterceptedCall | None] = ContextVar("agent_cache_intercepted_call", default=None)


def _show_call(proceed: Proceed, call: Call) -> Awaitable[Entry]:
    """Note the `Call` that was made for an intercepted call."""
    intercepted = _INTERCEPTED.get()
    if intercepted is not None and intercepted.operation is call.operation:
        intercepted.call = call
    return proceed(call)


def note_answer(operation: Operation[Any], replacement: Replacement) -> None:
    """Note that a session replaced the answer of the running intercepted call, if there is one."""
    intercepted = _INTERCEPTED.get()
    if intercepted is not None and intercepted.operation is operation:
        intercepted.replaced = (replacement.outcome, replacement.kind)


def note_loop(level: str, kind: str, metrics: Metrics) -> None:
    """Note that the session with these metrics noticed a loop and changed nothing."""
    intercepted = _INTERCEPTED.get()
    if intercepted is not None:
        for depth, participant in enumerate(intercepted.scope.participants):
            if participant.metrics is metrics:
                intercepted.loops.append((level, kind, depth))


class InterceptedScope(Scope):
    """A scope in which every call goes to an interceptor.

    Attributes:
        outside: the same place without this interceptor.
        beneath: that place, with plans that note the `Call` made for each intercepted call.
    """

    __slots__ = ("_outside_of_load", "beneath", "outside")

    def __init__(self, outside: Scope, interceptor: Interceptor) -> None:
        super().__init__(outside.participants, outside.tenant, bypasses=outside.bypasses)
        self.answers_inline = False
        self.interceptor = interceptor
        self.outside = outside
        self.beneath = _Beneath(outside)
        self._outside_of_load: Scope | None = None

    @property
    def outside_of_load(self) -> Scope:
        outside = self.outside.outside_of_load
        if outside is self.outside:
            return self
        if self.interceptor is None:  # the recording has ended
            return outside
        if self._outside_of_load is None:
            self._outside_of_load = InterceptedScope(outside, self.interceptor)
        return self._outside_of_load

    def become(self, other: Scope) -> None:
        super().become(other)
        if self.interceptor is None and self.became is not None:
            self.outside = self.became  # the recording has ended: this is a place like any other

    def inside_load(self) -> Scope:
        """What is called inside of a load is recorded, too."""
        inside = self.outside.inside_load()
        if inside is self.outside:
            return self
        if self.inside is None:
            if self.interceptor is None:  # the recording has ended
                return super().inside_load()
            self.inside = InterceptedScope(inside, self.interceptor)
        return self.inside

    def within(self, participant: Participant, tenant: Hashable | None) -> Scope:
        """A session that is opened inside of the recording is recorded, too."""
        if self.interceptor is None:
            return self.outside.within(participant, tenant)
        return InterceptedScope(self.outside.within(participant, tenant), self.interceptor)

    def variant(self, *, bypasses: bool) -> Scope:
        if self.interceptor is None:
            return self.outside.variant(bypasses=bypasses)
        return self._follow(InterceptedScope(self.outside.variant(bypasses=bypasses), self.interceptor))

    def storing(self) -> Scope:
        return self.outside.storing()

    def plan(self, operation: Operation[Any]) -> Plan:
        plan = self.plans.get(operation)
        if plan is None or plan.configuration is not CURRENT.value:
            if self.interceptor is None:
                return super().plan(operation)
            plan = copy(self.outside.plan(operation))
            plan.admit = _no_hit
            plan.store = None
            plan.has_detour = True
            self.keep_plan(operation, plan)
        return plan


class _Beneath(Scope):
    """A scope with the plans of another one, each with `_show_call` before its stages."""

    __slots__ = ("_of",)

    def __init__(self, of: Scope) -> None:
        super().__init__(of.participants, of.tenant, bypasses=of.bypasses)
        self._of = of

    def plan(self, operation: Operation[Any]) -> Plan:
        plan = self.plans.get(operation)
        if plan is None or plan.configuration is not CURRENT.value:
            of = self._of.plan(operation)
            plan = copy(of)
            if of.unsampled is not None:  # no hit is audited here: what the tool does would be recorded
                plan.admit, plan.unsampled = of.unsampled, None
                plan.has_detour = of.store is None or not of.configuration.enabled
            plan.run = partial(_show_call, of.run)
            plan.load = partial(_show_call, of.load)
            plan.uncached = partial(_show_call, of.uncached)
            self.keep_plan(operation, plan)
        return plan


def _no_hit(_key: Hashable, _arguments: object = None) -> Any:
    return MISSING


_BUDGETS = frozenset({"depth", "tool_calls", "time", "nesting"})
"""Any session may refuse a call over one of these, and all note it. Repetitions are judged by the innermost one."""


def replay_into_sessions(intercepted: InterceptedCall, value: Any, error: BaseException | None, seconds: float) -> None:
    """Trace and count a replayed call in the sessions around it, as it was counted when it was recorded.

    No session judges it: whether the run was a loop is part of the recording, and a loop that was raised then stops its
    session now.

    Args:
        intercepted: the call, with `source`, `replaced` and `loops` as recorded.
        value, error: its recorded outcome.
        seconds: its recorded duration.
    """
    source, replaced = intercepted.source, intercepted.replaced
    scope = intercepted.scope
    while isinstance(scope, InterceptedScope):
        scope = scope.outside
    operation = intercepted.operation
    plan = scope.plan(operation)
    key = None if intercepted.key is UNKEYED else intercepted.key
    now = CLOCK.now()
    call = Call(operation, plan, key, intercepted.args, intercepted.kwargs, source)
    call.started = now - seconds
    loop = error if isinstance(error, AgentLoopDetectedError) else None
    acted = replaced
    if source == "blocked":
        acted = (replaced or ("notice", "repeat")) if loop is None else (type(loop).__name__, loop.kind)
    if acted is not None:
        METRICS.acted_on_loop(acted[1])
    observers = [
        participant.observer_of(operation, is_innermost=not depth, is_replay=True)
        for depth, participant in enumerate(scope.participants)
    ]
    for depth, observer in enumerate(observers):
        if acted is not None and (source == "blocked" or not depth or acted[1] in _BUDGETS):
            observer.blocked(key, now, *acted)
        else:
            observer.admit(call)
            observer.done(call, value, error, now)
    for level, kind, depth in intercepted.loops:
        for metrics in (METRICS, *(one.metrics for one in scope.participants[depth : depth + 1])):
            (metrics.noticed_loop if level == "notice" else metrics.acted_on_loop)(kind)
    if source != "blocked":
        count(call, seconds, failed=isinstance(error, Exception))
    if loop is not None and scope.participants:
        scope.participants[0].stop(loop)
