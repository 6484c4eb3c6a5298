"""One recorded call in words."""

from __future__ import annotations

from typing import Any

from agent_cache.recording import RecordedCall
from agent_cache.recording.nearest import described

__all__ = ["called", "came_to", "duration", "error_of", "how", "tokens"]

_SHORT = 60
_ABSENT = object()


def called(call: RecordedCall) -> str:
    """Name and arguments, shortened."""
    if call.key is not None:
        return f"{call.name} [{_short(call.key)}]"
    return described(call.name, call.arguments)


def how(call: RecordedCall) -> str:
    """How it was answered: by a tool's cache, or what it is."""
    return call.source or call.kind


def error_of(call: RecordedCall) -> str | None:
    """The name of the exception it raised, None if it raised none; of a stream, how it ended."""
    outcome = call.outcome
    if isinstance(stream := outcome.get("stream"), dict) and isinstance(stream.get("end"), dict):
        outcome = stream["end"]
    error = outcome.get("error")
    return str(error.get("type", "")) if isinstance(error, dict) else None


def came_to(call: RecordedCall) -> str:
    """Its outcome, shortened."""
    outcome = call.outcome
    stream = outcome.get("stream")
    if isinstance(stream, dict):
        count, end = len(stream.get("chunks", ())), stream.get("end") or {}
        ended = "" if end.get("value", _ABSENT) is None else f", {_ended(end)}"
        return f"{count} chunk{'' if count == 1 else 's'}{ended}"
    return _ended(outcome)


def duration(ms: float) -> str:
    """Milliseconds as a person reads them."""
    if ms < 1:
        return f"{ms * 1000:.0f} us"
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


def tokens(call: RecordedCall) -> str:
    """Model and tokens of a call of a model."""
    parts = [call.model] if call.model else []
    if call.input_tokens or call.output_tokens:
        parts.append(f"{call.input_tokens}+{call.output_tokens} tokens")
    return ", ".join(parts)


def _ended(outcome: dict[str, Any]) -> str:
    error = outcome.get("error")
    if isinstance(error, dict):
        name = str(error.get("type", "")).removeprefix("builtins:")
        return f"raised {name}{': ' if error.get('message') else ''}{_short(error.get('message') or '', plain=True)}"
    for form in ("value", "typed", "any"):
        if form in outcome:
            return _short(outcome[form])
    if "object" in outcome:
        return f"{outcome['object'][0]} {_short(outcome['object'][1])}"
    if "unencodable" in outcome:
        return f"a {outcome['unencodable']}, not written down"
    return ", ".join(outcome) or "nothing"


def _short(value: Any, *, plain: bool = False) -> str:
    text = str(value).replace("\n", " ") if plain else repr(value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."
