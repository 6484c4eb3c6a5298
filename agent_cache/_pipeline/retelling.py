"""What sessions and counters learn of a call that was answered from a recording."""

from __future__ import annotations

from typing import Any

from agent_cache._clock import CLOCK
from agent_cache._pipeline.call import Call
from agent_cache._pipeline.operation import UNKEYED, count
from agent_cache._pipeline.tape import TapedCall, TapedScope
from agent_cache.errors import AgentLoopDetectedError

__all__ = ["retell"]


def retell(taped: TapedCall, source: str, value: Any, error: BaseException | None, seconds: float) -> None:
    """Let the sessions around a replayed call trace it, and count it as what it was when it was recorded.

    No session judges it: whether the run was a loop is part of the recording, and a loop that was raised then stops
    its session now.
    """
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
    # Told that they are not the innermost, sessions trace and do not look for repeats.
    watches = [participant.watch(operation, is_innermost=False) for participant in scope.participants]
    for watch in watches:
        if watch is None:
            continue
        if source == "blocked":
            outcome, kind = ("notice", "repeat") if loop is None else (type(loop).__name__, loop.kind)
            watch.blocked(key, now, outcome, kind)
        else:
            watch.admit(call)
            watch.done(call, value, error, now)
    if source != "blocked":
        count(call, seconds, failed=isinstance(error, Exception))
    if loop is not None and scope.participants:
        scope.participants[0].stop(loop)
