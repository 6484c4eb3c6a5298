"""What sessions and counters learn of a call that was answered from a recording."""

from __future__ import annotations

from typing import Any

from agent_cache.clock import CLOCK
from agent_cache.engine.call import Call
from agent_cache.engine.operation import count
from agent_cache.engine.read_operation import UNKEYED
from agent_cache.engine.tape import TapedCall, TapedScope
from agent_cache.errors import AgentLoopDetectedError
from agent_cache.metrics import METRICS

__all__ = ["retell"]

_BUDGETS = frozenset({"depth", "tool_calls", "time", "nesting"})
"""Over these any session refuses a call, and all note it. Over what a run does again, its innermost session answers."""


def retell(taped: TapedCall, value: Any, error: BaseException | None, seconds: float) -> None:
    """Let the sessions around a replayed call trace it, and count it as what it was when it was recorded.

    No session judges it: whether the run was a loop is part of the recording, and a loop that was raised then stops
    its session now.
    """
    source, instead = taped.source, taped.instead
    scope = taped.scope
    while isinstance(scope, TapedScope):
        scope = scope.outside
    operation = taped.operation
    plan = scope.plan(operation)
    key = None if taped.key is UNKEYED else taped.key
    now = CLOCK.now()
    call = Call(operation, plan, key, taped.args, taped.kwargs, source)
    call.started = now - seconds
    loop = error if isinstance(error, AgentLoopDetectedError) else None
    acted = instead
    if source == "blocked":
        acted = (instead or ("notice", "repeat")) if loop is None else (type(loop).__name__, loop.kind)
    if acted is not None:
        METRICS.acted_on_loop(acted[1])
    # Told that they are not the innermost, sessions trace and do not look for repeats.
    watches = [participant.watch(operation, is_innermost=False) for participant in scope.participants]
    for depth, watch in enumerate(watches):
        if watch is None:
            continue
        if acted is not None and (source == "blocked" or not depth or acted[1] in _BUDGETS):
            watch.blocked(key, now, *acted)
        else:
            watch.admit(call)
            watch.done(call, value, error, now)
    for level, kind, depth in taped.loops:
        for metrics in (METRICS, *(one.metrics for one in scope.participants[depth : depth + 1])):
            (metrics.noticed_loop if level == "notice" else metrics.acted_on_loop)(kind)
    if source != "blocked":
        count(call, seconds, failed=isinstance(error, Exception))
    if loop is not None and scope.participants:
        scope.participants[0].stop(loop)
