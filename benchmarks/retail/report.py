"""What the benchmark shows: progress on stderr, and tables or JSON on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.retail.replay import ReplayOutcome
from benchmarks.retail.shared_store import SharedStoreOutcome

Row = Sequence[str]


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show on stderr how far one stage has come; call what this yields once for every run done.

    A live bar in a terminal where `rich` is installed, else one line a stage.
    """
    bar = _bar() if sys.stderr.isatty() else None
    if bar is None:
        print(f"{label} ({total} runs) ...", file=sys.stderr, flush=True)
        yield lambda: None
        return
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def print_table(title: str, columns: Row, rows: Sequence[Row]) -> None:
    """One table on stdout, names to the left and numbers to the right; plain text if stdout is no terminal."""
    if sys.stdout.isatty() and _print_rich(title, columns, rows):
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    print(f"\n{title}")
    for row in (columns, ["-" * width for width in widths], *rows):
        numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print(row[0].ljust(widths[0]), *numbers, sep="  ")


REPLAY_COLUMNS = ("runs of", "runs", "calls", "equal", "oddities", "different", "hits")
SHARED_COLUMNS = (
    "policy",
    "sessions",
    "reads",
    "executions",
    "hits",
    "shared",
    "hit rate",
    "overlapped",
    "stale",
    "stale share",
    "time saved",
    "took",
)


def replay_row(outcome: ReplayOutcome) -> Row:
    counts = (outcome.runs, outcome.calls, outcome.equal, outcome.oddities, len(outcome.differences), outcome.hits)
    return (outcome.run_set, *(f"{count:,}" for count in counts))


def shared_row(outcome: SharedStoreOutcome) -> Row:
    counts = (outcome.sessions, outcome.reads, outcome.executions, outcome.hits, outcome.shared)
    return (
        outcome.policy.name,
        *(f"{count:,}" for count in counts),
        f"{outcome.hit_rate:.1%}",
        f"{outcome.overlapped:,}",
        f"{len(outcome.stale):,}",
        f"{outcome.stale_share:.2%}",
        f"{outcome.time_saved:.2f} s",
        f"{outcome.seconds:.2f} s",
    )


def replay_facts(outcome: ReplayOutcome) -> dict[str, Any]:
    """One outcome for `--json`, what differed included."""
    return asdict(outcome)


def shared_facts(outcome: SharedStoreOutcome) -> dict[str, Any]:
    """One outcome for `--json`, with a count per tool in place of the stale answers themselves."""
    stale_by_tool: dict[str, int] = {}
    for witness in outcome.stale:
        stale_by_tool[witness.tool] = stale_by_tool.get(witness.tool, 0) + 1
    return {
        "policy": outcome.policy.name,
        "sessions": outcome.sessions,
        "reads": outcome.reads,
        "executions": outcome.executions,
        "hits": outcome.hits,
        "shared": outcome.shared,
        "hit_rate": outcome.hit_rate,
        "overlapped": outcome.overlapped,
        "stale": len(outcome.stale),
        "stale_share": outcome.stale_share,
        "stale_by_tool": stale_by_tool,
        "time_saved": outcome.time_saved,
        "seconds": outcome.seconds,
    }


def _bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    return Progress(console=Console(stderr=True))


def _print_rich(title: str, columns: Row, rows: Sequence[Row]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return True
