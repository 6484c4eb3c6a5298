"""Loads the recorded runs and the store's database from `benchmarks/data`."""

from __future__ import annotations

import ast
import gzip
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.retail.records import Table
from benchmarks.retail.store import RetailStore

DATA_VARIABLE = "AGENT_CACHE_DATA"
RUN_SETS = ("tau_retail_fork", "tau_retail_gold")

_DATA = Path(__file__).resolve().parents[1] / "data"
_LISTS_SENT_AS_TEXT = ("item_ids", "new_item_ids")


class DataAbsentError(Exception):
    """The recorded runs are not in the folder that the text names."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One tool call of a run, and the text that the real tool answered."""

    tool: str
    arguments: Mapping[str, Any]
    result: str
    is_oddity: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What one agent did, in its order."""

    id: str
    calls: tuple[RecordedCall, ...]


def data_directory() -> Path:
    """The folder with the runs: `AGENT_CACHE_DATA` if it is set, else `benchmarks/data`.

    Raises `DataAbsentError` if a file is missing there.
    """
    named = os.environ.get(DATA_VARIABLE)
    directory = Path(named) if named else _DATA
    needed = [f"{name}.jsonl.gz" for name in RUN_SETS] + [f"retail_db/{table}.json.gz" for table in _TABLES]
    missing = [name for name in needed if not (directory / name).is_file()]
    if missing:
        hint = f"unset {DATA_VARIABLE}" if named else f"set {DATA_VARIABLE} to the folder that holds it"
        raise DataAbsentError(f"{missing[0]!r} is missing in {str(directory)!r}; {hint}")
    return directory


def load_store(directory: Path) -> RetailStore:
    """The store as every run found it."""
    return RetailStore(*(_table(directory / "retail_db" / f"{table}.json.gz") for table in _TABLES))


def load_runs(directory: Path, run_set: str) -> list[Run]:
    """Every run of one set, in the order of the file."""
    with gzip.open(directory / f"{run_set}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [_run(json.loads(line)) for line in lines]


_TABLES = ("users", "orders", "products")


def _table(path: Path) -> Table:
    with gzip.open(path, "rt", encoding="utf-8") as text:
        table: Table = json.load(text)
    return table


def _run(row: Mapping[str, Any]) -> Run:
    return Run(id=row["id"], calls=tuple(_calls(row["calls"])))


def _calls(rows: list[dict[str, Any]]) -> Iterator[RecordedCall]:
    for row in rows:
        yield RecordedCall(
            tool=row["tool"],
            arguments=_arguments(row["args"]),
            result=row["result"],
            is_oddity=_is_oddity(row),
        )


def _arguments(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the tool is to receive them: some lists were recorded as the text of a list."""
    arguments = dict(recorded)
    for name in _LISTS_SENT_AS_TEXT:
        if isinstance(arguments.get(name), str):
            arguments[name] = ast.literal_eval(arguments[name])
    return arguments


def _is_oddity(row: Mapping[str, Any]) -> bool:
    """What the recordings hold that the store never said.

    `get_input_from_user` asked a person and not the store, and one `think` was called with a wrong argument name, so
    that its answer is an error text of the recording's own Python.
    """
    return row["tool"] == "get_input_from_user" or (row["tool"] == "think" and bool(row["error"]))
