"""A run in the Trace Event Format of Chrome, as JSON: Perfetto's UI and `chrome://tracing` open it.

The format (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) nests the complete events
(``ph: X``) of a thread by their times alone: two that overlap and of which none contains the other are drawn wrong. So
a task is as many threads as it needs for each event to be inside of the call that encloses it, or beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_cache.report.timeline import TimedCall, Timeline

__all__ = ["trace_lines"]

_PROCESS = 1


def trace_lines(timeline: Timeline) -> Iterator[str]:
    """The lines of the document, one for each event."""
    yield '{"displayTimeUnit":"ms",'
    facts = {"run": timeline.title, "recorded_at": timeline.recorded_at, "notes": timeline.notes}
    yield f'"otherData":{_json(facts)},'
    yield '"traceEvents":['
    before = ""
    for event in _trace_events(timeline):
        if before:
            yield f"{before},"
        before = _json(event)
    yield before
    yield "]}"


def _trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """The events: names of threads, then calls by their starts, outer ones before inner ones, then what was paid."""
    threads = _threads(timeline.calls)
    yield _named("process_name", 0, timeline.title)
    for number, thread in enumerate(threads, 1):
        yield _named("thread_name", number, thread.label)
        yield {"ph": "M", "pid": _PROCESS, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}
    of_call = {id(call): number for number, thread in enumerate(threads, 1) for call in thread.calls}
    for call in sorted(timeline.calls, key=_order):
        number = of_call[id(call)]
        yield _slice(call, number)
        outer = timeline.calls[call.parent] if call.parent >= 0 else None
        if outer is not None and of_call[id(outer)] != number:
            yield from _arrow(call, of_call[id(outer)], number, outer)
        for loop in call.loops:
            common = {"ph": "i", "pid": _PROCESS, "tid": number, "ts": _start(call), "s": "t"}
            yield {**common, "cat": "loop", "name": f"loop: {loop}"}
    yield from _counters(timeline.calls)


def _start(call: TimedCall) -> int:
    return round(call.start * 1000)


def _end(call: TimedCall) -> int:
    """Rounded as the starts are, so that what contained another call still does."""
    return max(round(call.end * 1000), _start(call))


def _order(call: TimedCall) -> tuple[int, int, int]:
    return _start(call), -_end(call), call.depth


@dataclass(slots=True)
class _Thread:
    """What is drawn as one thread.

    Attributes:
        label: name of the thread.
        calls: its calls.
        open: those that have not ended at the start of the last one, an outer one before its inner ones.
    """

    label: str
    calls: list[TimedCall] = field(default_factory=list)
    open: list[TimedCall] = field(default_factory=list)

    def takes(self, call: TimedCall, outer: TimedCall | None) -> bool:
        """Add a call if it is drawn right here: inside of the call that encloses it, or inside of none."""
        while self.open and _end(self.open[-1]) <= _start(call):
            self.open.pop()
        if self.open and (self.open[-1] is not outer or _end(call) > _end(self.open[-1])):
            return False
        self.open.append(call)
        self.calls.append(call)
        return True


def _threads(calls: Sequence[TimedCall]) -> list[_Thread]:
    tasks: dict[int, list[_Thread]] = {}
    for call in sorted(calls, key=_order):
        outer = calls[call.parent] if call.parent >= 0 else None
        threads = tasks.setdefault(call.task, [])
        if not any(thread.takes(call, outer) for thread in threads):
            task = "main task" if call.task == 0 else f"task {call.task}"
            threads.append(_Thread(f"{task}, beside {len(threads)}" if threads else task))
            threads[-1].takes(call, outer)
    return [thread for task in sorted(tasks) for thread in tasks[task]]


def _named(name: str, thread: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": name, "args": {"name": value}}


def _slice(call: TimedCall, thread: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": call.id, "source": call.category, "name": call.name, "arguments": call.arguments}
    facts["outcome"] = call.outcome
    if call.state:
        facts["state"] = call.state
    if call.input_tokens or call.output_tokens:
        facts |= {"input_tokens": call.input_tokens, "output_tokens": call.output_tokens}
    if call.cost is not None:
        facts["cost_usd"] = float(call.cost)
    if call.model:
        facts["model"] = call.model
    if call.tags:
        facts["tags"] = ", ".join(call.tags)
    if call.loops:
        facts["loops"] = "; ".join(call.loops)
    start = _start(call)
    return {
        "ph": "X", "pid": _PROCESS, "tid": thread, "ts": start, "dur": _end(call) - start, "cat": call.category,
        "name": call.short_name, "args": facts,
    }  # fmt: skip


def _arrow(call: TimedCall, source: int, target: int, outer: TimedCall) -> Iterator[dict[str, Any]]:
    """From a call to one that it encloses and that another thread shows."""
    both = {"pid": _PROCESS, "cat": "encloses", "name": "encloses", "id": call.id}
    started = min(max(_start(call), _start(outer)), _end(outer))
    yield {"ph": "s", "tid": source, "ts": started, **both}
    yield {"ph": "f", "bp": "e", "tid": target, "ts": _start(call), **both}


def _counters(calls: Sequence[TimedCall]) -> Iterator[dict[str, Any]]:
    """What model calls have taken by the end of each."""
    sent = received = 0
    cost = 0.0
    for call in sorted(calls, key=_end):
        if not (call.input_tokens or call.output_tokens):
            continue
        sent, received, cost = sent + call.input_tokens, received + call.output_tokens, cost + float(call.cost or 0)
        common = {"ph": "C", "pid": _PROCESS, "ts": _end(call)}
        yield {**common, "name": "tokens", "args": {"input": sent, "output": received}}
        if cost:
            yield {**common, "name": "cost (USD)", "args": {"cost": cost}}


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=True, separators=(",", ":"))
