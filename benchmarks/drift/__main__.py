"""`python -m benchmarks.drift`: false alarms in repeats of retail runs, changes that are found."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.commands import command_parser, exits_without, positive, run_progress
from benchmarks.drift.measure import REPEATS, Counts, Measurement
from benchmarks.drift.runs import SHAPES, Injector
from benchmarks.recorded_runs import DataAbsentError, Run, data_directory, load_retail_runs
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.table import markdown

VOLATILE_RUNS = 150


@dataclass(slots=True)
class Results:
    """All that was measured.

    Attributes:
        shapes: by shape of the runs.
        volatile: with one recording as the baseline, and with two.
    """

    shapes: dict[str, Counts] = field(default_factory=dict)
    volatile: tuple[Counts, Counts] = field(default_factory=lambda: (Counts(), Counts()))

    @property
    def is_perfect(self) -> bool:
        """Whether there was no false alarm, and every change was found that the tape knows of."""
        counts = [*self.shapes.values(), self.volatile[1]]
        return not any(one.alarms or one.missed for one in counts)


@exits_without(DataAbsentError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Exit code 0: no false alarm, and no change missed; 1: not so; 2: no data."""
    options = _parser().parse_args(arguments)
    directory = data_directory()
    logging.getLogger("agent_cache").setLevel(logging.CRITICAL)
    store = load_store(directory)
    runs = load_retail_runs(directory, options.limit)
    results = asyncio.run(_measured(runs, store, options.repeats))
    print(_shapes_table(results), _changes_table(results), _varying_table(results), sep="\n\n")
    for counts in (*results.shapes.values(), *results.volatile[1:]):
        print(*counts.examples[:5], sep="\n", file=sys.stderr)
    return 0 if results.is_perfect else 1


async def _measured(runs: Sequence[Run], store: RetailStore, repeats: int) -> Results:
    results = Results()
    for shape in SHAPES:
        measurement = Measurement(store, runs)
        try:
            with run_progress(shape, len(measurement)) as advance:
                results.shapes[shape] = await measurement.shape(shape, repeats=repeats, advance=advance)
        finally:
            measurement.close()
    measurement = Measurement(store, runs)
    try:
        with run_progress("volatile fields", min(VOLATILE_RUNS, len(measurement))) as advance:
            results.volatile = await measurement.volatile(VOLATILE_RUNS, advance=advance)
    finally:
        measurement.close()
    return results


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.drift", __doc__)
    parser.add_argument("--repeats", type=positive, default=REPEATS, metavar="N", help=f"of each run; {REPEATS}")
    return parser


# Tables


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"


def _shapes_table(results: Results) -> str:
    headings = ("made", "false alarms in repeats", "changes found", "order of tasks", "missed")
    total = Counts()
    rows = []
    for shape, one in results.shapes.items():
        rows.append((shape, *_counts_row(one)))
        total.alarms += one.alarms
        total.repeats += one.repeats
        total.found += one.found
        total.injected += one.injected
        total.in_hole += one.in_hole
    rows.append(("**all**", *_counts_row(total)))
    return markdown(headings, rows)


def _counts_row(one: Counts) -> tuple[str, ...]:
    return (
        _of(one.alarms, one.repeats),
        _of(one.found.total(), one.injected.total()),
        f"{one.in_hole.total():,}",
        f"{one.missed:,}",
    )


def _changes_table(results: Results) -> str:
    found: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    in_hole: Counter[str] = Counter()
    for one in results.shapes.values():
        found += one.found
        injected += one.injected
        in_hole += one.in_hole
    return markdown(
        ("change", "found", "order of tasks"),
        ((kind, _of(found[kind], injected[kind]), f"{in_hole[kind]:,}") for kind in Injector.KINDS),
    )


def _varying_table(results: Results) -> str:
    rows = [
        ("request ids in answers", by, _of(one.alarms, one.repeats), _of(one.found.total(), one.injected.total()))
        for by, one in zip(("one recording", "two recordings"), results.volatile, strict=True)
    ]
    return markdown(("runs", "judged by", "false alarms", "found"), rows)


if __name__ == "__main__":
    sys.exit(main())
