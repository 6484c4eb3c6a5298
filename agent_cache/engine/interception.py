"""Calls of a scope that is being recorded or replayed: an `Interceptor` receives each one before any lookup.

In a scope with an interceptor no hit is answered locally, so every call reaches `Interceptor.play` as an
`InterceptedCall`, which can `proceed` as if there were no interceptor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable
from contextvars import ContextVar, Token
from typing import Any

from agent_cache.clock import CLOCK
from agent_cache.engine.call import hit, run
from agent_cache.engine.operation import UNKEYED, Operation
from agent_cache.engine.scope import INTERCEPTORS, PLACE, Call, Interceptor, Replacement, Scope, report_escape
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS, Metrics
from agent_cache.values.canonical import MISSING

__all__ = [
    "INTERCEPTORS",
    "InterceptedCall",
    "Interceptor",
    "Receiver",
    "note_answer",
    "note_loop",
    "replay_into_sessions",
    "report_escape",
]


class Notes:
    """How an intercepted call was answered: one for all interceptors around it.

    Attributes:
        call: the `Call` that was made for it; None for a local hit, and for a follower of another call's load.
        source: if there is no `Call`, how it was answered: ``"hit"``, ``"shared"``, or ``"blocked"`` by a session.
        replaced: outcome and kind of the loop, if a session replaced the answer; else None.
        loops: loops that sessions noticed at it and let pass: ``"notice"`` or ``"loop"``, the kind of loop, and the
            session, counted from the innermost.
    """

    __slots__ = ("call", "loops", "replaced", "source")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.source = "shared"
        self.replaced: tuple[str, str] | None = None
        self.loops: list[tuple[str, str, int]] = []


class InterceptedCall:
    """One call of a tool as an interceptor receives it.

    Attributes:
        operation: the tool's `ReadOperation` or `WriteOperation`.
        scope: the scope it is made in.
        key, args, kwargs: as a `Call` has them.
        arguments: parameter names and values, injected contexts included.
        is_fresh: the caller asked for a fresh value.
        notes: how it was answered, once it was.
    """

    __slots__ = ("args", "arguments", "is_fresh", "key", "kwargs", "notes", "operation", "scope")

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
        self.arguments: dict[str, Any] = operation.parameters.named(args, kwargs)
        self.is_fresh = is_fresh
        self.notes: Notes = Notes() if outer is None else outer.notes

    @property
    def source(self) -> str:
        """How it was answered: a value of `Call.source`, or ``"blocked"`` by a session."""
        notes = self.notes
        return notes.source if notes.call is None else notes.call.source

    @property
    def outside(self) -> Scope:
        """Its scope without the interceptor."""
        assert self.scope.outside is not None
        return self.scope.outside

    async def proceed(self) -> Any:
        """Make the call as if there were no interceptor, and note how it was answered."""
        outside, called = self.outside, (self.key, self.args, self.kwargs)
        if outside.interceptor is not None:
            inner = InterceptedCall(self.operation, outside, *called, is_fresh=self.is_fresh, outer=self)
            return await outside.interceptor.play(inner)
        token = self.enter()
        try:
            value = self.local_hit()
            if value is MISSING:
                value = await run(self.operation, outside, *called, is_fresh=self.is_fresh, intercepted=self)
            return value
        finally:
            self.leave(token)

    def local_hit(self) -> Any:
        """The value of a local hit outside of the interceptor, or `MISSING`. It is not audited: what the tool does then
        would be recorded.
        """
        if not self.operation.is_read or self.is_fresh or self.key is UNKEYED:
            return MISSING
        value = hit(self.operation, PLACE.get(), self.key, self.arguments, at=self.outside)
        if value is not MISSING:
            self.notes.source = "hit"
        return value

    def enter(self) -> Token[InterceptedCall | None]:
        """Let what sessions say of it be noted, until `leave`."""
        if self.outside.participants:
            self.notes.source = "blocked"  # unless they admit it: then there is a `Call`
        return _INTERCEPTED.set(self)

    def leave(self, token: Token[InterceptedCall | None]) -> None:
        """Undo `enter`."""
        try:
            _INTERCEPTED.reset(token)
        except ValueError:
            pass  # closed by the garbage collector, in another context than it ran in


_INTERCEPTED: ContextVar[InterceptedCall | None] = ContextVar("agent_cache_intercepted_call", default=None)


class Receiver:
    """What interceptors have in common."""

    def receive(self, *call: Any, is_fresh: bool = False) -> Awaitable[Any]:
        """Play a call: `Interceptor.receive`."""
        played: Awaitable[Any] = self.play(InterceptedCall(*call, is_fresh=is_fresh))  # type: ignore[attr-defined]  # of each kind of interceptor
        return played


def note_answer(operation: Operation[Any], replacement: Replacement) -> None:
    """Note that a session replaced the answer of the running intercepted call, if there is one."""
    intercepted = _INTERCEPTED.get()
    if intercepted is not None and intercepted.operation is operation:
        intercepted.notes.replaced = (replacement.outcome, replacement.kind)


def note_loop(level: str, kind: str, metrics: Metrics) -> None:
    """Note that the session with these metrics noticed a loop and changed nothing."""
    intercepted = _INTERCEPTED.get()
    if intercepted is not None:
        depths = [depth for depth, one in enumerate(intercepted.scope.participants) if one.metrics is metrics]
        intercepted.notes.loops += [(level, kind, depth) for depth in depths]


_BUDGETS = frozenset({"depth", "tool_calls", "time", "nesting"})
"""Any session may refuse a call over one of these, and all note it. Repetitions are judged by the innermost one."""


def replay_into_sessions(intercepted: InterceptedCall, value: Any, error: BaseException | None, seconds: float) -> None:
    """Trace and count a replayed call in the sessions around it, as it was counted when it was recorded.

    No session judges it: whether the run was a loop is part of the recording, and a loop that was raised then stops its
    session now.

    Args:
        intercepted: the call, with its notes as recorded.
        value, error: its recorded outcome.
        seconds: its recorded duration.
    """
    source, acted = intercepted.source, intercepted.notes.replaced
    scope, operation = intercepted.scope.without_recordings(), intercepted.operation
    key = None if intercepted.key is UNKEYED else intercepted.key
    now = CLOCK.now()
    call = Call(operation, scope.local(operation), key, intercepted.args, intercepted.kwargs, source)
    call.admitted = call.started = now - seconds
    call.cost = seconds
    loop = error if isinstance(error, AgentLoopDetectedError) else None
    if source == "blocked":
        acted = (acted or ("notice", "repeat")) if loop is None else (type(loop).__name__, loop.kind)
    if acted is not None:
        METRICS.acted_on_loop(acted[1])
    for depth, participant in enumerate(scope.participants):
        observer = participant.tool_class(operation, scope, participant, is_innermost=not depth, is_judged=False)
        if acted is not None and (source == "blocked" or not depth or acted[1] in _BUDGETS):
            observer.blocked(key, now, *acted)
        else:
            observer.admit(call, now, is_asked=True)
            observer.done(call, value, error, now)
    for level, kind, depth in intercepted.notes.loops:
        for metrics in (METRICS, *(one.metrics for one in scope.participants[depth : depth + 1])):
            (metrics.noticed_loop if level == "notice" else metrics.acted_on_loop)(kind)
    if source != "blocked":
        call.count(failed=isinstance(error, Exception))
    if loop is not None and scope.participants:
        scope.participants[0].stop(loop)
