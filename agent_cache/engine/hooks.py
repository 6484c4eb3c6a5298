"""Hooks: what stands around each call of a scope, such as a tape, and may answer it before anything is looked up.

In a scope with hooks no hit is answered locally: `answered` passes every call through them, the innermost first. The
first that has an answer gives it. Otherwise the call is made outside of the hooks, and each is told how it has ended.

A hook has these methods, and the ``thread`` that it was installed in:

- ``begin(call)``: a `HookedCall` begins, or the call of a function that is no tool. Returns an object for it that the
  other methods are given, as `recording.functions.ActiveCall`; None to see no more of it.
- ``answer(active, is_plain)``, a coroutine: its answer, or `RUN`. For a plain function it awaits nothing.
- ``returned(active, value)``, which gives what the caller gets, and ``raised(active, error)``: it was made, and ended.
- ``escaped(called)``: a tool or function was called in another thread without a context, perhaps by this run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Final

from agent_cache.clock import CLOCK
from agent_cache.engine.blocking import run_blocking
from agent_cache.engine.operation import UNKEYED, Operation
from agent_cache.engine.scope import Call, Replacement, Scope
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS, Metrics

__all__ = [
    "CURRENT_CALL", "HookedCall", "answered", "answered_plainly", "note_answer", "note_loop", "replay_into_sessions",
]  # fmt: skip

RUN: Final = object()
"""What a hook answers if it has no answer after all: the call is made."""

CURRENT_CALL: ContextVar[Any] = ContextVar("agent_cache_current_call", default=None)
"""The innermost call that is running in this context, as a hook has begun it: an `ActiveCall`. Child tasks and threads
inherit it."""


class HookedCall:
    """One call of a tool in a scope with hooks.

    Attributes:
        scope, outside: the scope it is made in, and the same one without hooks.
        key, args, kwargs, is_fresh: as a `Call` has them. A hook may ask for a fresh value of a read.
        arguments: parameter names and values, injected contexts included.
        call: the `Call` that was made for it; None for a local hit, and for what a session refuses or a hook answers.
        answered_by: how it was answered if there is no `Call`: a value of `Call.source`, or ``"blocked"`` by a session.
        replaced: outcome and kind of the loop, if a session replaced the answer; else None.
        loops: loops that sessions noticed at it and let pass: ``"notice"`` or ``"loop"``, the kind of loop, and the
            session, counted from the innermost.
    """

    def __init__(
        self, operation: Operation[Any], scope: Scope, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any],
        *, is_fresh: bool = False,
    ) -> None:  # fmt: skip
        self.operation, self.scope, self.outside = operation, scope, scope
        while self.outside.outside is not None:  # as `Scope.without_recordings`, without its frame
            self.outside = self.outside.outside
        self.key, self.args, self.kwargs, self.is_fresh = key, args, kwargs, is_fresh
        self.arguments: dict[str, Any] = operation.parameters.named(args, kwargs)
        self.call: Call | None = None
        self.answered_by = "blocked" if self.outside.participants else "shared"
        self.replaced: tuple[str, str] | None = None
        self.loops: list[tuple[str, str, int]] = []


async def answered(scope: Scope, call: Any, proceed: Callable[[], Any], *, is_plain: bool = False) -> Any:
    """Pass a call through the hooks of its scope, the innermost first, until one answers it; else make it."""
    begun: list[tuple[Any, Any]] = []
    value: Any = None
    token = CURRENT_CALL.set(CURRENT_CALL.get())
    try:
        while (hook := scope.hook) is not None:
            scope = scope.outside  # type: ignore[assignment]  # a scope with a hook has one
            active = hook.begin(call)
            if active is None:
                continue
            if active.is_answered:
                value = await hook.answer(active, is_plain=is_plain)
                if value is not RUN:
                    break
            begun.append((hook, active))
            CURRENT_CALL.set(active)
        else:
            value = proceed() if is_plain else await proceed()  # here: no coroutine can raise StopIteration
    except BaseException as error:
        for hook, active in reversed(begun):
            hook.raised(active, error)
        raise
    finally:
        try:
            CURRENT_CALL.reset(token)
        except ValueError:
            pass  # closed by the garbage collector, in another context than it ran in
    if is_plain and begun and hasattr(type(value), "__await__"):
        return _awaited(begun, value)
    for hook, active in reversed(begun):
        value = hook.returned(active, value)
    return value


def answered_plainly(scope: Scope, call: Any, proceed: Callable[[], Any]) -> Any:
    """The same for a plain function or a generator. If what it returns has to be awaited, the call ends there."""
    return run_blocking(answered(scope, call, proceed, is_plain=True))


async def _awaited(begun: list[tuple[Any, Any]], value: Awaitable[Any]) -> Any:
    token = CURRENT_CALL.set(begun[-1][1])
    try:
        for _, active in begun:
            active.is_awaited = True
        found = await value
    except BaseException as error:
        for hook, active in reversed(begun):
            hook.raised(active, error)
        raise
    finally:
        leave_call(token)
    for hook, active in reversed(begun):
        found = hook.returned(active, found)
    return found


def leave_call(token: Token[Any]) -> None:
    """Restore the enclosing call. A generator that the garbage collector closes runs in another context: ignored."""
    with suppress(ValueError):
        CURRENT_CALL.reset(token)


# Sessions around a hooked call


def note_answer(operation: Operation[Any], replacement: Replacement) -> None:
    """Note that a session replaced the answer of the running tool, if hooks are around it."""
    active = CURRENT_CALL.get()
    call = None if active is None else active.tool_call
    if call is not None and call.operation is operation:
        call.replaced = replacement.outcome, replacement.kind


def note_loop(level: str, kind: str, metrics: Metrics) -> None:
    """Note that the session with these metrics noticed a loop and changed nothing."""
    active = CURRENT_CALL.get()
    call = None if active is None else active.tool_call
    if call is not None:
        depths = [depth for depth, one in enumerate(call.scope.participants) if one.metrics is metrics]
        call.loops += [(level, kind, depth) for depth in depths]


BUDGETS = frozenset({"depth", "tool_calls", "time", "nesting"})
"""Any session may refuse a call over one of these, and all note it. Repetitions are judged by the innermost one."""


def replay_into_sessions(hooked: HookedCall, value: Any, error: BaseException | None, seconds: float) -> None:
    """Trace and count an answered call in the sessions around it, as it was counted when it was recorded.

    No session judges it: whether the run was a loop is part of the recording, and a loop that was raised then stops its
    session now.

    Args:
        hooked: the call, with what is noted of it as recorded.
        value, error: its recorded outcome.
        seconds: its recorded duration.
    """
    source, acted, operation, scope = hooked.answered_by, hooked.replaced, hooked.operation, hooked.outside
    key = None if hooked.key is UNKEYED else hooked.key
    now = CLOCK.now()
    call = Call(operation, scope.local(operation), key, hooked.args, hooked.kwargs, source)
    call.admitted = call.started = now - seconds
    call.cost = seconds
    loop = error if isinstance(error, AgentLoopDetectedError) else None
    if source == "blocked":
        acted = (acted or ("notice", "repeat")) if loop is None else (type(loop).__name__, loop.kind)
    if acted is not None:
        METRICS.acted_on_loop(acted[1])
    for depth, participant in enumerate(scope.participants):
        observer = participant.tool_class(operation, scope, participant, is_innermost=not depth, is_judged=False)
        if acted is not None and (source == "blocked" or not depth or acted[1] in BUDGETS):
            observer.blocked(key, now, *acted)
        else:
            observer.admit(call, now, is_asked=True)
            observer.done(call, value, error, now)
    for level, kind, depth in hooked.loops:
        for metrics in (METRICS, *(one.metrics for one in scope.participants[depth : depth + 1])):
            (metrics.noticed_loop if level == "notice" else metrics.acted_on_loop)(kind)
    if source != "blocked":
        call.count(failed=isinstance(error, Exception))
    if loop is not None and scope.participants and not any(one.loop_error for one in scope.participants):
        scope.participants[0].stop(loop)
