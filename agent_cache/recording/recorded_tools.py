"""Cached tools on a tape: what is called, who calls, which tags it writes, and the sessions around it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from agent_cache.core.asker import UnknownAsker
from agent_cache.core.tags import root_of, unescape
from agent_cache.engine.interception import InterceptedCall, replay_into_sessions
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import PLACE, Call
from agent_cache.recording.functions import ActiveCall, RecordedFunction
from agent_cache.recording.outcomes import encode
from agent_cache.recording.redaction import Redaction, redact_key
from agent_cache.values.compare import utf8_text


def function_of(operation: Operation[Any]) -> RecordedFunction:
    """The function of a cached tool, described at its first recorded call."""
    found: RecordedFunction | None = operation.recorded
    if found is None:
        key = getattr(operation.policy, "key", None)  # a write has none
        found = RecordedFunction(operation.function, operation.name, "tool", parameters=operation.parameters, key=key)
        found.is_read = operation.is_read
        operation.recorded = found
    return found


def recorded_function(value: Any) -> RecordedFunction | None:
    """What recordings know of a wrapped function or a cached tool; None if a value is neither."""
    found = getattr(value, "__agent_cache_recorded__", None)
    if isinstance(found, RecordedFunction):
        return found
    operation = getattr(value, "__agent_cache__", None)
    return function_of(operation) if isinstance(operation, Operation) else None


def asker_of_tool(function: RecordedFunction, call: InterceptedCall, arguments: Mapping[str, Any]) -> dict[str, Any]:
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
    if (key := function.tool_key(arguments)) is not None:
        parts["key"] = key
    return parts


def asker_of_function(function: RecordedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same for a call of a wrapped function, or a request."""
    parts: dict[str, Any] = {}
    if (tenant := PLACE.get().scope.tenant) is not None:
        parts["tenant"] = tenant
    if (asker := function.asker_of(args, kwargs)) is not None:
        parts["asker"] = asker
    return parts


def redacted_tags(call: ActiveCall, written: Call, outcome: dict[str, Any], redaction: Redaction) -> list[str]:
    """The tags that a write has invalidated, without secrets.

    They lose what redaction has removed from the arguments. What it has removed from the result is not known any more:
    a tag that only the result gives is as long as its segments stand in the redacted outcome. What UTF-8 cannot hold is
    escaped.
    """
    late = {rule.root for rule in written.operation.tags.late}
    shown = encode([call.arguments, outcome]).decode() if late else ""
    given = call.arguments if call.given is None else call.given
    found = set()
    for tag in written.tags:
        known = tag
        if root_of(tag) in late:
            root, *segments = tag.split(":")
            known = ":".join((root, *takewhile(lambda segment: unescape(segment) in shown, segments)))
        found.add(utf8_text(redact_key(known, given, call.arguments, redaction)))
    return sorted(found)


# Sessions around a replayed tool


def show_in_sessions(call: ActiveCall, value: Any, error: BaseException | None) -> None:
    """Let the sessions around a replayed tool trace and count it as they did when it was recorded."""
    tool_call, recorded = call.tool_call, call.recorded
    if tool_call is None or recorded is None:
        return
    notes, instead = tool_call.notes, recorded.outcome.get("instead")
    notes.source = recorded.source or ("miss" if tool_call.operation.is_read else "write")
    notes.replaced = None if instead is None else (instead[0], instead[1])
    notes.loops = recorded.outcome.get("loops", [])
    replay_into_sessions(tool_call, value, error, recorded.duration_ms / 1000)
