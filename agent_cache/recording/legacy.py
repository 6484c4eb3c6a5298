"""Cassettes of agentcassette (JSON, version 1): read as calls of ours.

They know arguments as ``args`` and ``kwargs`` in the spelling of the caller, and names without a module. A replay
binds them to the signature of the function that is called; see `agent_cache.recording.matching`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_cache.errors import CassetteError
from agent_cache.recording.format import Header, RecordedCall
from agent_cache.recording.identity import digest_of

__all__ = ["calls_of_agentcassette"]


def calls_of_agentcassette(data: Any, path: Path | str = "") -> tuple[Header, list[RecordedCall], float]:
    """Header, calls and duration of such a document.

    Raises:
        CassetteError: if it is none, or one of a version that was never published.
    """
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list):
        raise CassetteError("is JSON, but no cassette of agent-cache or agentcassette", path, 1)
    if data.get("version", 1) != 1:
        raise CassetteError(f"is a cassette of agentcassette of version {data['version']!r}; only 1 is known", path, 1)
    calls = [_call(step, index, path) for index, step in enumerate(data["steps"])]
    header = Header(recorded_at=_text(data.get("recorded_at")), model=_text(data.get("model")))
    return header, calls, _number(data.get("duration_ms"))


def _call(step: Any, index: int, path: Path | str) -> RecordedCall:
    arguments = step.get("arguments") if isinstance(step, dict) else None
    if not isinstance(step, dict) or not isinstance(step.get("name"), str) or not isinstance(arguments, dict):
        raise CassetteError(f"step {index} has no name or no arguments", path)
    if not isinstance(arguments.get("args", []), list) or not isinstance(arguments.get("kwargs", {}), dict):
        raise CassetteError(f"step {index} has arguments that are no args and kwargs", path)
    return RecordedCall(
        id=index + 1,
        kind=_text(step.get("type")) or "call",
        name=step["name"],
        arguments=arguments,
        digest=digest_of(step["name"], arguments).hex(),
        after=index,  # it knows no concurrency: calls stand in the order they ended
        outcome={"value": step.get("result")},
        duration_ms=_number(step.get("duration_ms")),
        input_tokens=int(_number(step.get("input_tokens"))),
        output_tokens=int(_number(step.get("output_tokens"))),
        form="agentcassette",
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
