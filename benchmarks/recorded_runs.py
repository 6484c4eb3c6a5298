"""Loads the recorded runs of real agents from `benchmarks/data` (its README describes format, sources and licenses)."""

from __future__ import annotations

import ast
import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

DATA_VARIABLE = "AGENT_CACHE_DATA"
RETAIL_SETS = ("tau_retail_fork", "tau_retail_gold")
SHELL_SETS = ("intercode_bash", "intercode_python", "intercode_ctf", "swe_agent_demos")

_DATA = Path(__file__).resolve().parent / "data"
_LISTS_RECORDED_AS_TEXT = ("item_ids", "new_item_ids")


class DataAbsentError(Exception):
    """The recorded runs are not in the folder that the text names."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One tool call.

    Attributes:
        arguments: as the tool receives them.
        identity: the arguments as text, equal for equal arguments.
        result: the text that the real tool returned.
        kind: `"read"`, `"write"`, or None where the recording does not say.
        turn: how many messages the user had sent; None where there is no user.
        batch: calls with one number were requested together.
        is_oddity: the recording holds it, but the tools of the store never answered it.
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
    """The calls of one agent in order, and whether it solved its task."""

    id: str
    success: bool
    calls: tuple[RecordedCall, ...]


def data_directory() -> Path:
    """The folder with the runs: `AGENT_CACHE_DATA` if it is set, else `benchmarks/data`.

    Raises `DataAbsentError` if a file is missing there.
    """
    named = os.environ.get(DATA_VARIABLE)
    directory = Path(named) if named else _DATA
    needed = [f"{name}.jsonl.gz" for name in (*RETAIL_SETS, *SHELL_SETS)]
    needed += [f"retail_db/{table}.json.gz" for table in ("users", "orders", "products")]
    missing = [name for name in needed if not (directory / name).is_file()]
    if missing:
        hint = f"unset {DATA_VARIABLE}" if named else f"set {DATA_VARIABLE} to the folder that holds it"
        raise DataAbsentError(f"{missing[0]!r} is missing in {str(directory)!r}; {hint}")
    return directory


def load_runs(directory: Path, name: str, limit: int | None = None) -> list[Run]:
    """The first `limit` runs of one data set in the order of the file, or all."""
    rows = load_rows(directory, name, limit)
    return [Run(row["id"], bool(row["success"]), tuple(map(_call, row["calls"]))) for row in rows]


def load_retail_runs(directory: Path, limit: int | None = None) -> list[Run]:
    """The runs of both retail sets, the first `limit` of each, or all."""
    return [run for name in RETAIL_SETS for run in load_runs(directory, name, limit)]


def load_rows(directory: Path, name: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The same runs as the file has them, with the arguments that the model sent: some lists are texts."""
    with gzip.open(directory / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, limit)]


def identity_of(arguments: Mapping[str, Any]) -> str:
    """The arguments as JSON with sorted keys."""
    return json.dumps(arguments, sort_keys=True)


def _call(row: Mapping[str, Any]) -> RecordedCall:
    arguments = _arguments(row["args"])
    return RecordedCall(
        tool=row["tool"],
        arguments=arguments,
        identity=identity_of(arguments),
        result=row["result"],
        error=bool(row["error"]),
        kind=row["kind"],
        turn=row["turn"],
        batch=row["batch"],
        is_oddity=_is_oddity(row),
    )


def _arguments(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the tool receives them: some lists of the retail runs were recorded as the text of a list."""
    arguments = dict(recorded)
    for name in _LISTS_RECORDED_AS_TEXT:
        if isinstance(arguments.get(name), str):
            arguments[name] = ast.literal_eval(arguments[name])
    return arguments


def _is_oddity(row: Mapping[str, Any]) -> bool:
    """Whether the store never answered this call of a retail run.

    `get_input_from_user` asked a person, and one `think` was called with a wrong argument name, so that its result is
    the error text of the Python that recorded it.
    """
    return row["tool"] == "get_input_from_user" or (row["tool"] == "think" and bool(row["error"]))
