"""`python -m benchmarks.loops`: recorded runs in guarded sessions, beside what the loop guard is to hold on them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from agent_cache import testing
from benchmarks import page
from benchmarks.loops import report, targets
from benchmarks.loops.families import HONEST, LOOPS
from benchmarks.loops.measure import (
    Recordings,
    audits,
    loops_unsaid,
    over_families,
    over_frontier,
    over_recordings,
)
from benchmarks.loops.runs import data_directory
from benchmarks.options import parser_of
from benchmarks.retail.data import DataAbsentError


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 0: every target is met; 1: one is not; 2: no data."""
    options = _parser().parse_args(arguments)
    try:
        directory = data_directory()
    except DataAbsentError as absent:
        print(absent, file=sys.stderr)
        return 2
    testing.reset()
    with loops_unsaid():
        return asyncio.run(_measured(Recordings.load(directory, options.limit), options))


async def _measured(recordings: Recordings, options: argparse.Namespace) -> int:
    measured = await over_recordings(recordings)
    frontier = await over_frontier(recordings) if options.frontier else []
    loops = await over_families(recordings, LOOPS)
    honest = await over_families(recordings, HONEST)
    audited = await audits(recordings)
    held = [
        *targets.of_recordings(measured),
        *targets.of_loops(loops),
        *targets.of_honest(honest),
        *targets.of_audits(audited),
    ]
    recorded = f"{report.recorded_table(measured)}\n\n{report.audit_table(audited)}"
    injected = f"{report.loops_table(loops)}\n\n{report.honest_table(honest)}"
    if options.json:
        facts = {
            "recorded": report.facts(measured),
            "frontier": [{"policy": dict(levels), "measured": report.facts(some)} for levels, some in frontier],
            "loops": [report.fields_of(one) for one in loops],
            "honest": [report.fields_of(one) for one in honest],
            "short_circuit": {name: report.fields_of(one) for name, one in audited.items()},
            "targets": [one._asdict() for one in held],
        }
        print(json.dumps(facts, indent=1))
    else:
        tables = [recorded, report.harmed_list(measured), injected]
        tables += [report.frontier_table(frontier)] if frontier else []
        print(*tables, report.target_table(held), sep="\n\n")
    if options.page:
        page.put("loops: recorded", recorded, page.LOOPS)
        page.put("loops: targets", report.target_table(held), page.LOOPS)
        page.put("loops: injected", injected, page.LOOPS)
        if frontier:
            page.put("loops: frontier", report.frontier_table(frontier), page.LOOPS)
    return 0 if all(one.is_met for one in held) else 1


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.loops", __doc__)
    parser.add_argument("--frontier", action="store_true", help="also at other thresholds")
    parser.add_argument(
        "--page",
        action="store_true",
        help="put the tables into docs/explanation/loops.md, that of other thresholds with --frontier",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
