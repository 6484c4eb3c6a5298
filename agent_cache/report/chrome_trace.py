"""A run in the Trace Event Format of Chrome, as JSON: Perfetto's UI and `chrome://tracing` open it.

The format (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) nests the complete events
(``ph: X``) of a thread by their times alone: two that overlap and of which none contains the other are drawn wrong. So
each row of the timeline is a thread, in which no two calls overlap, below that of the calls that enclose its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent_cache.report.timeline import TimedCall, Timeline

__all__ = ["trace_lines"]


def trace_lines(timeline: Timeline) -> Iterator[str]:
    """The lines of the document, one for each event."""
    facts = {"run": timeline.title, "recorded_at": timeline.recorded_at, "notes": timeline.notes}
    yield f'{{"displayTimeUnit":"ms",\n"otherData":{_json(facts)},\n"traceEvents":['
    before = ""
    for event in _events(timeline):
        if before:
            yield f"{before},"
        before = _json({"pid": 1, **event})
    yield f"{before}\n]}}"


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """The events: names of threads, then calls by their starts."""
    yield {"ph": "M", "tid": 0, "name": "process_name", "args": {"name": timeline.title}}
    for track in timeline.tracks:
        for row in range(track.rows):
            number, label = track.first + row + 1, f"{track.label}, {row + 1}" if row else track.label
            yield {"ph": "M", "tid": number, "name": "thread_name", "args": {"name": label}}
            yield {"ph": "M", "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}
    for call in sorted(timeline.calls, key=lambda call: (call.start, call.row)):
        start = round(call.start * 1000)
        place = {"tid": call.row + 1, "ts": start}
        yield {
            "ph": "X", **place, "dur": max(round(call.end * 1000) - start, 0), "cat": call.category,
            "name": call.short_name, "args": _facts(call),
        }  # fmt: skip
        for loop in call.loops:
            yield {"ph": "i", **place, "s": "t", "cat": "loop", "name": f"loop: {loop}"}


def _facts(call: TimedCall) -> dict[str, Any]:
    facts = {
        "id": call.id,
        "source": call.category,
        "name": call.name,
        "arguments": call.arguments,
        "outcome": call.outcome,
        "state": call.state,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cost_usd": call.cost and float(call.cost),
        "model": call.model,
        "tags": ", ".join(call.tags),
        "loops": "; ".join(call.loops),
    }
    return {name: value for name, value in facts.items() if value or name in ("arguments", "outcome")}


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=True, separators=(",", ":"))
