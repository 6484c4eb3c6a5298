"""Cassettes with chosen times, as reports draw them; and what of recordings has rules of its own and no public name:
lines of files, checkpoints, tokens and prices, foreign files, what is known of a request or a stream, timelines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agent_cache.recording import Cassette, RecordedCall
from agent_cache.recording.file import Trailer, digest_of, line_of
from agent_cache.recording.foreign import is_foreign, read_foreign
from agent_cache.recording.http.bodies import pieces_of
from agent_cache.recording.http.identity import identity
from agent_cache.recording.outcomes import annotation_of_chunks
from agent_cache.recording.prices import Tokens, Usage, model_calls, savings_of
from agent_cache.report.chrome_trace import trace_lines
from agent_cache.report.timeline import Comparison, Timeline, compared, read_timeline, text_limit
from agent_cache.resume.checkpoints import Checkpoint, checkpoint_line, checkpoint_of, typed_state

__all__ = [
    "Comparison", "TimedRun", "Timeline", "Tokens", "Trailer", "Usage", "annotation_of_chunks", "line_of",
    "checkpoint_line", "checkpoint_of", "compared", "digest_of", "identity", "is_foreign", "model_calls", "pieces_of",
    "read_foreign", "read_timeline", "savings_of", "shop_run", "stored_checkpoint", "text_limit", "trace_lines",
    "typed_state",
]  # fmt: skip


def stored_checkpoint(state: Any) -> Checkpoint:
    """A checkpoint that was read from a journal."""
    line = checkpoint_line(Checkpoint(session_id="s", sequence=1, state=state))
    return checkpoint_of(msgspec.json.decode(line)["checkpoint"], "s")


class TimedRun:
    """Collects calls, and saves them as the cassette of a run."""

    def __init__(self, **header: Any) -> None:
        self.calls: list[RecordedCall] = []
        self.header = {"recorded_at": "2026-11-01T10:00:00Z", **header}

    def add(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        source: str = "",
        kind: str = "",
        outcome: dict[str, Any] | None = None,
        arguments: dict[str, Any] | None = None,
        **fields: Any,
    ) -> int:
        """Add a call, and return its number. Of a tool, `source` says how it was answered; times are milliseconds."""
        arguments = {} if arguments is None else arguments
        self.calls.append(
            RecordedCall(
                id=len(self.calls) + 1,
                kind=kind or ("tool" if source else "call"),
                name=name,
                arguments=arguments,
                digest=digest_of(name, arguments).hex(),
                outcome={"value": None} if outcome is None else outcome,
                source=source,
                started_ms=start,
                duration_ms=duration,
                **fields,
            )
        )
        return len(self.calls)

    def save(self, path: Path) -> Path:
        """Write the cassette."""
        duration = max((call.started_ms + call.duration_ms for call in self.calls), default=0.0)
        cassette = Cassette(self.calls, duration_ms=duration)
        cassette.header = msgspec.structs.replace(cassette.header, **self.header)
        cassette.save(path)
        return path


def shop_run(*, amount: int = 40, writes: bool = True) -> TimedRun:
    """A run of a shop's agent: a function with calls inside, two tasks at once, a loop, an error, models."""
    run = TimedRun(model="claude-sonnet-4-5")
    usage = {"model": "claude-sonnet-4-5", "input_tokens": 1000, "output_tokens": 100}
    run.add("shop:ask", 0, 300, kind="llm", arguments={"prompt": "Which are late?"}, **usage)
    for task, order in ((1, "W1"), (2, "W2")):
        at = {"lane": task}
        outer = run.add("shop:handle", 300, 700, arguments={"order_id": order}, **at)
        inside = {"parent": outer, **at}
        run.add("shop:get_order", 310, 190, source="miss", arguments={"order_id": order}, **inside)
        source, took = ("miss", 100) if task == 1 else ("shared", 90)
        run.add("shop:get_policy", 520, took, source=source, arguments={"topic": "late"}, **inside)
        run.add("shop:get_order", 640, 0.08, source="hit", arguments={"order_id": order}, **inside)
        if writes or task == 1:
            refused = {"error": {"type": "builtins:PermissionError", "message": "too much", "args": ["too much"]}}
            run.add(
                "shop:refund", 700, 150, source="write", arguments={"order_id": order, "amount": amount},
                outcome={"value": "refunded"} if task == 1 else refused, tags=[f"order:{order}"], **inside,
            )  # fmt: skip
        run.add("shop:ask", 860, 130, kind="llm", arguments={"prompt": f"Tell {order}"}, **inside, **usage)
    loops = {"value": {"id": "W1"}, "loops": [["notice", "repeat", 0]]}
    run.add("shop:get_order", 1010, 0.05, source="hit", arguments={"order_id": "W1"}, outcome=loops)
    blocked = {"value": "Stop.", "instead": ["notice", "repeat"]}
    run.add("shop:get_order", 1020, 0.05, source="blocked", arguments={"order_id": "W1"}, outcome=blocked)
    return run
