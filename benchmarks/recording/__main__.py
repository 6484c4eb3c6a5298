"""`python -m benchmarks.recording`: record every retail run, and replay it with nobody behind the tools."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from benchmarks import page
from benchmarks.loops.runs import Run, load_runs
from benchmarks.options import parser_of, positive
from benchmarks.recording import report
from benchmarks.recording.measure import SEEDS, Outcome, at_once, in_turn, with_credentials
from benchmarks.retail.data import RUN_SETS, DataAbsentError, data_directory, load_store
from benchmarks.retail.report import progress
from benchmarks.retail.store import RetailStore


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 0: all equal, nothing ran, no secret found; 1: not so; 2: no data."""
    options = _parser().parse_args(arguments)
    try:
        directory = data_directory()
    except DataAbsentError as absent:
        print(absent, file=sys.stderr)
        return 2
    run_sets = {name: load_runs(directory, name, options.limit) for name in RUN_SETS}
    outcomes = asyncio.run(_measured(run_sets, load_store(directory), options.seeds))
    if options.json:
        print(json.dumps([report.facts(one) for one in outcomes], indent=1))
    else:
        print(report.table(outcomes))
    if options.page:
        page.put("recorded runs", report.table(outcomes))
    return 0 if all(one.is_perfect for one in outcomes) else 1


async def _measured(run_sets: dict[str, list[Run]], store: RetailStore, seeds: int) -> list[Outcome]:
    outcomes = []
    for name, runs in run_sets.items():
        with progress(f"{name}, one after the other", len(runs)) as advance:
            outcomes.append(await in_turn(name, runs, store, advance))
        with progress(f"{name}, rounds at once", seeds * len(runs)) as advance:
            outcomes.append(await at_once(name, runs, store, advance, range(seeds)))
        with progress(f"{name}, with credentials", len(runs)) as advance:
            outcomes.append(await with_credentials(name, runs, store, advance))
    return outcomes


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.recording", __doc__)
    parser.add_argument("--seeds", type=positive, default=SEEDS, metavar="N", help=f"of the latencies; {SEEDS}")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
