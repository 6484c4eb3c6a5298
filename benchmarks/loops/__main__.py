"""`python -m benchmarks.loops`: recorded runs in guarded sessions, and the targets of the loop guard on them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from agent_cache import testing
from benchmarks.commands import command_parser, exits_without
from benchmarks.loops import report
from benchmarks.loops.families import HONEST, LOOPS
from benchmarks.loops.sessions import (
    Recordings,
    muted_loop_warnings,
    over_families,
    over_recordings,
)
from benchmarks.recorded_runs import DataAbsentError, data_directory


@exits_without(DataAbsentError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Exit code 0: every target is met; 1: one is not; 2: no data."""
    options = command_parser("benchmarks.loops", __doc__).parse_args(arguments)
    testing.reset()
    with muted_loop_warnings():
        return asyncio.run(_measure(Recordings.load(data_directory(), options.limit), options))


async def _measure(recordings: Recordings, options: argparse.Namespace) -> int:
    measured = await over_recordings(recordings)
    loops = await over_families(recordings, LOOPS)
    honest = await over_families(recordings, HONEST)
    held = [
        *report.targets_of_recordings(measured),
        *report.targets_of_loops(loops),
        *report.targets_of_honest(honest),
    ]
    recorded = report.recorded_table(measured)
    injected = "\n\n".join((report.loops_table(loops), report.honest_table(honest)))
    print(recorded, report.harmed_list(measured), injected, report.target_table(held), sep="\n\n")
    return 0 if all(one.is_met for one in held) else 1


if __name__ == "__main__":
    sys.exit(main())
