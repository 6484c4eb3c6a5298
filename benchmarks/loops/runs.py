"""The recorded runs, as agents made them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.retail import data as retail

RETAIL_SETS = retail.RUN_SETS
SHELL_SETS = ("intercode_bash", "intercode_python", "intercode_ctf", "swe_agent_demos")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One tool call.

    Attributes:
        arguments: as the tool is to receive them.
        identity: the arguments as text, equal for equal arguments.
        kind: `"read"`, `"write"`, or None where the recording does not say.
        turn: how many times the user had spoken; None where there is no user.
        batch: calls of one number were asked for together.
        is_oddity: the recording holds it, but it is no call of the tools that are called here.
    """

    tool: str
    arguments: Mapping[str, Any] = field(hash=False)
    identity: str
    result: str
    error: bool
    kind: str | None
    turn: int | None
    batch: int
    is_oddity: bool = False

    @property
    def is_write(self) -> bool:
        return self.kind == "write"


@dataclass(frozen=True, slots=True)
class Run:
    """What one agent did, in its order, and whether it did what it was asked to."""

    id: str
    success: bool
    calls: tuple[RecordedCall, ...]


def identity_of(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)


def data_directory() -> Path:
    """The folder with all recorded runs. Raises `DataAbsentError` where it is not."""
    directory = retail.data_directory()
    for name in SHELL_SETS:
        if not (directory / f"{name}.jsonl.gz").is_file():
            raise retail.DataAbsentError(f"'{name}.jsonl.gz' is missing in {str(directory)!r}")
    return directory


def load_runs(directory: Path, name: str, limit: int | None = None) -> list[Run]:
    """The first `limit` runs of one data set, or all."""
    with gzip.open(directory / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, limit)]
    if name not in RETAIL_SETS:
        return [_run(row) for row in rows]
    return [_retail_run(row, run) for row, run in zip(rows, retail.load_runs(directory, name)[:limit], strict=True)]


def _run(row: Mapping[str, Any]) -> Run:
    return Run(row["id"], bool(row["success"]), tuple(_call(call, call["args"]) for call in row["calls"]))


def _retail_run(row: Mapping[str, Any], run: retail.Run) -> Run:
    both = zip(row["calls"], run.calls, strict=True)
    calls = tuple(_call(call, real.arguments, is_oddity=real.is_oddity) for call, real in both)
    return Run(row["id"], bool(row["success"]), calls)


def _call(row: Mapping[str, Any], arguments: Mapping[str, Any], *, is_oddity: bool = False) -> RecordedCall:
    return RecordedCall(
        tool=row["tool"],
        arguments=arguments,
        identity=identity_of(arguments),
        result=row["result"],
        error=bool(row["error"]),
        kind=row["kind"],
        turn=row["turn"],
        batch=row["batch"],
        is_oddity=is_oddity,
    )
