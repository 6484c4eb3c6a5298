"""The recorded retail runs as the benchmark makes them: dict results, and tools that cost next to nothing.

A tool gives way to other tasks once and returns the answer of the call that its agent is making, so that what is left
of the time of a run is the cache's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from benchmarks.recorded_runs import load_retail_runs
from benchmarks.retail.store import READ_TOOLS, WRITE_TOOLS
from benchmarks.retail.tools import functions_with

Tool: TypeAlias = Callable[..., Awaitable[Any]]
Tools: TypeAlias = dict[str, Tool]

READS = tuple(tool for tool in READ_TOOLS if tool != "calculate")
WRITES = WRITE_TOOLS
LOOKUP_BY_ADDRESS = "find_user_id_by_name_zip"
"""The only lookup whose answer a write changes: that of the user's address."""


class Answer(Protocol):
    """What a tool returns when it runs."""

    @property
    def result(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class TraceCall:
    """A recorded call with its result: the record as a dict, or text. The same object each time it is asked for."""

    tool: str
    arguments: Mapping[str, Any] = field(hash=False)
    result: Any = field(hash=False)

    @property
    def is_write(self) -> bool:
        return self.tool in WRITES


TraceRun: TypeAlias = tuple[TraceCall, ...]


def load_trace(directory: Path, limit: int | None = None) -> list[TraceRun]:
    """The calls of the recorded retail runs that read or write the store's records; runs without any are left out."""
    wanted = frozenset(READS + WRITES)
    runs = [
        tuple(
            TraceCall(call.tool, call.arguments, from_text(call.result))
            for call in run.calls
            if call.tool in wanted and not call.is_oddity
        )
        for run in load_retail_runs(directory, limit)
    ]
    return [run for run in runs if run]


def from_text(text: str) -> Any:
    """What a tool that returns records makes of the store's JSON; other text stays as it is: ids and errors."""
    return json.loads(text) if text.startswith("{") else text


def as_text(result: Any) -> str:
    """The text that `from_text` was given."""
    return result if isinstance(result, str) else json.dumps(result)


def count_calls(runs: Iterable[TraceRun]) -> int:
    return sum(map(len, runs))


ANSWER: ContextVar[Answer] = ContextVar("answer")
"""The answer of the call that the agent of this task is making."""


def make_tools() -> Tools:
    """New undecorated tools by name, with the signatures of the store's own."""
    made = functions_with("await sleep(0); return answer.get().result", sleep=asyncio.sleep, answer=ANSWER)
    return {name: made[name] for name in (*READS, *WRITES)}
