"""A run as a trajectory in ATIF-v1.7, which Harbor, Terminal-Bench and NeMo read: `trajectory`.

The format (https://www.harborframework.com/docs/agents/trajectory-format) has a step for each answer of the model,
with the calls of tools that follow it, and what these answered. Calls that are made inside of other calls are a part
of these, and have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, Final

from agent_cache.recording.call_text import outcome_text
from agent_cache.recording.cassette import Cassette, recorded_rules, redact_call
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.redaction import Redaction
from agent_cache.report.timeline import Timeline, model_texts

__all__ = ["trajectory"]

_MOST: Final = 1_000_000
"""Characters of one answer."""


def trajectory(cassette: Cassette, timeline: Timeline) -> dict[str, Any]:
    """The trajectory of a run, redacted."""
    steps = list(_steps(cassette, timeline))
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    models = [call for call in timeline.calls if call.kind == "llm"]
    costs = [float(call.cost) for call in models if call.cost is not None]
    totals = {
        "total_prompt_tokens": sum(call.input_tokens for call in models),
        "total_completion_tokens": sum(call.output_tokens for call in models),
        "total_cached_tokens": sum(call.cache_read_tokens for call in models),
        "total_steps": len(steps),
    }
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": timeline.title,
        "agent": {"name": "agent-cache", "version": version("agent-cache"), "model_name": timeline.model or None},
        "steps": steps,
        "final_metrics": totals | ({"total_cost_usd": sum(costs)} if costs else {}),
    }


def _steps(cassette: Cassette, timeline: Timeline) -> Iterator[dict[str, Any]]:
    rules = Redaction().joined(recorded_rules(cassette))
    try:
        began = datetime.fromisoformat(cassette.recorded_at or "")
    except ValueError:  # it was written by hand, or is not there
        began = None
    calls = timeline.calls
    enclosing = {call.parent for call in calls}
    step: dict[str, Any] | None = None
    for position, call in enumerate(calls):
        outer = call.parent
        while outer >= 0 and calls[outer].kind not in ("tool", "write", "llm"):
            outer = calls[outer].parent
        is_handler = call.kind == "call" and position in enclosing
        if call.index < 0 or outer >= 0 or is_handler or call.kind not in ("tool", "write", "call", "llm"):
            continue
        recorded = redact_call(cassette[call.index], rules)
        if call.kind == "llm" or step is None:
            if step is not None:
                yield step
            step = {"step_id": 0, "source": "agent", "message": ""}
            with suppress(OverflowError):  # a time that no calendar has
                if began is not None:
                    when = began.astimezone(UTC) + timedelta(milliseconds=call.end)
                    step["timestamp"] = when.isoformat().replace("+00:00", "Z")
        if call.kind == "llm":
            step["message"] = model_texts(recorded)[1]
            step["model_name"] = call.model or None
            step["metrics"] = {
                "prompt_tokens": call.input_tokens,
                "completion_tokens": call.output_tokens,
                "cached_tokens": call.cache_read_tokens,
            } | ({"cost_usd": float(call.cost)} if call.cost is not None else {})
        else:
            _add_tool(step, recorded)
    if step is not None:
        yield step


def _add_tool(step: dict[str, Any], call: RecordedCall) -> None:
    known = f"call-{call.id}"
    asked = {"tool_call_id": known, "function_name": call.name, "arguments": dict(call.arguments)}
    step.setdefault("tool_calls", []).append(asked)
    outcome = call.outcome
    value = next((outcome[form] for form in ("value", "typed", "any") if form in outcome), None)
    content = json.dumps(value, ensure_ascii=False, default=str) if value is not None else outcome_text(call, _MOST)
    content = value if isinstance(value, str) else content
    step.setdefault("observation", {"results": []})["results"].append({"source_call_id": known, "content": content})
