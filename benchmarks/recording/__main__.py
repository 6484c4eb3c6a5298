"""`python -m benchmarks.recording`: record every retail run, and replay it without a store behind the tools."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.commands import command_parser, exits_without, positive, run_progress
from benchmarks.recorded_runs import RETAIL_SETS, DataAbsentError, Run, data_directory, load_runs
from benchmarks.recording.replayed import SEEDS, Outcome, at_once, in_turn, with_credentials
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.table import markdown

_COLUMNS: Final = (
    "runs of", "made", "runs", "calls", "answers as recorded", "equal", "executions", "left over", "secrets passed",
    "found",
)  # fmt: skip


@exits_without(DataAbsentError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Exit code 0: all equal, nothing ran, no secret found; 1: not so; 2: no data."""
    options = _parser().parse_args(arguments)
    directory = data_directory()
    run_sets = {name: load_runs(directory, name, options.limit) for name in RETAIL_SETS}
    outcomes = asyncio.run(_measured(run_sets, load_store(directory), options.seeds))
    print(markdown(_COLUMNS, map(_row, outcomes)))
    return 0 if all(one.is_perfect for one in outcomes) else 1


async def _measured(run_sets: dict[str, list[Run]], store: RetailStore, seeds: int) -> list[Outcome]:
    outcomes = []
    for name, runs in run_sets.items():
        with run_progress(f"{name}, one after the other", len(runs)) as advance:
            outcomes.append(await in_turn(name, runs, store, advance))
        with run_progress(f"{name}, rounds at once", seeds * len(runs)) as advance:
            outcomes.append(await at_once(name, runs, store, advance, range(seeds)))
        with run_progress(f"{name}, with credentials", len(runs)) as advance:
            outcomes.append(await with_credentials(name, runs, store, advance))
    return outcomes


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.recording", __doc__)
    parser.add_argument("--seeds", type=positive, default=SEEDS, metavar="N", help=f"of the latencies; {SEEDS}")
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
