"""The recorded call that is most like one that was not recorded, and what differs."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

from agent_cache.recording.format import RecordedCall
from agent_cache.recording.frame import Frame
from agent_cache.recording.matching import Matcher
from agent_cache.recording.plain import encode_sorted

__all__ = ["described", "differences", "nearest_to"]

MAX_CANDIDATES = 200
MAX_TEXT = 400
_SHORT = 60


def nearest_to(matcher: Matcher, frame: Frame) -> int | None:
    """Index of the recorded call that is most like this one: of the same name, best with the most equal arguments, best
    one that was not played. None if no call of that name was recorded.
    """
    candidates = matcher.named(frame.subject.name) or [
        index for name in frame.subject.names for index in matcher.named(name)
    ]
    if len(candidates) > MAX_CANDIDATES:
        waiting = [index for index in candidates if not matcher.is_covered(index)]
        candidates = (waiting or candidates)[:MAX_CANDIDATES]
    steps = matcher.cassette.steps
    return max(
        candidates,
        key=lambda index: (
            _likeness(steps[index].arguments, frame.arguments),
            not matcher.is_covered(index),
            -index,
        ),
        default=None,
    )


def described(name: str, arguments: dict[str, Any]) -> str:
    """A call as a person would write it, shortened."""
    inside = ", ".join(f"{key}={_short(value)}" for key, value in arguments.items())
    return f"{name}({inside if len(inside) <= MAX_TEXT else inside[:MAX_TEXT] + '...'})"


def differences(call: RecordedCall, frame: Frame) -> str:
    """One line for each argument that differs."""
    lines = [
        f"    recorded: {described(call.name, call.arguments)}",
        f"    called:   {described(frame.subject.name, frame.arguments)}",
    ]
    for name in dict.fromkeys((*call.arguments, *frame.arguments)):
        was, now = call.arguments.get(name, _MISSING), frame.arguments.get(name, _MISSING)
        if was != now:
            lines.append(f"      {name}: {_short(was, MAX_TEXT)} -> {_short(now, MAX_TEXT)}")
    if call.arguments == frame.arguments and call.key == frame.key:
        lines.append(
            "      the same arguments, but enclosed by other calls"
            if frame.parent is not None or call.parent
            else "      the same call, in another place"
        )
    return "\n".join(lines)


_MISSING = object()


def _likeness(was: dict[str, Any], now: dict[str, Any]) -> float:
    names = {*was, *now}
    if not names:
        return 1.0
    total = 0.0
    for name in names:
        if name in was and name in now:
            total += 1.0 if was[name] == now[name] else 0.9 * _similar(was[name], now[name])
    return total / len(names)


def _similar(was: Any, now: Any) -> float:
    one, other = encode_sorted(was)[:MAX_TEXT], encode_sorted(now)[:MAX_TEXT]
    return SequenceMatcher(None, one, other, autojunk=False).quick_ratio()


def _short(value: Any, bound: int = _SHORT) -> str:
    if value is _MISSING:
        return "(none)"
    text = repr(value)
    return text if len(text) <= bound else f"{text[: bound - 3]}..."
