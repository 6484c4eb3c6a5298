"""The table of recorded and replayed runs, for people in Markdown and for machines in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from benchmarks.recording.measure import Outcome
from benchmarks.table import markdown

_COLUMNS: Final = (
    "runs of",
    "made",
    "runs",
    "calls",
    "answers as recorded",
    "equal",
    "executions",
    "left over",
    "secrets passed",
    "found",
)


def table(outcomes: Iterable[Outcome]) -> str:
    return markdown(_COLUMNS, map(_row, outcomes))


def facts(outcome: Outcome) -> dict[str, Any]:
    """For `--json`."""
    return asdict(outcome) | {"equal_percent": _share(outcome.equal, outcome.calls), "is_perfect": outcome.is_perfect}


def _row(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.run_set,
        outcome.way,
        f"{outcome.runs:,}",
        f"{outcome.calls:,}",
        "" if outcome.faithful is None else f"{_share(outcome.faithful, outcome.calls):.2f} %",
        f"{_share(outcome.equal, outcome.calls):.2f} %",
        f"{outcome.executions:,}",
        f"{outcome.left_over:,}",
        f"{outcome.credentials:,}" if outcome.credentials else "",
        f"{outcome.found:,}" if outcome.credentials else "",
    )


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 100.0
