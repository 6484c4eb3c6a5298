"""Measures every in-process budget of agent_cache: `python -m benchmarks.budgets`.

Exit status 1 if a budget is missed. A figure near its limit on a busy machine deserves a second run. `--against PATH`
compares each row with the same row of another checkout (`benchmarks/against.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent_cache import testing
from benchmarks import against
from benchmarks.commands import describe_machine
from benchmarks.rows import calls, journals, recording, sessions, tiers, writes
from benchmarks.table import HEADINGS, Row, markdown
from benchmarks.timing import QUICK, Effort
from benchmarks.trace import runs as trace

GROUPS: dict[str, Callable[[Effort], Awaitable[list[Row]]]] = {
    "hit": calls.hits,
    "miss": calls.misses,
    "session": calls.sessions,
    "sessions": sessions.rows,
    "write": writes.writes,
    "tiers": tiers.rows,
    "recording": recording.rows,
    "journal": journals.rows,
    "trace": trace.rows,
}


async def measured(groups: list[str], effort: Effort) -> list[Row]:
    """The rows of these groups, each group from empty caches."""
    table: list[Row] = []
    for group in groups:
        testing.reset()
        table += await GROUPS[group](effort)
    testing.reset()
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budgets", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("groups", nargs="*", metavar="group", help=f"only these: {', '.join(GROUPS)}")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer, shorter rounds and a tenth of the entries: not exact",
    )
    parser.add_argument(
        "--against", type=Path, metavar="PATH",
        help="compare with the checkout at PATH in this process; exit code 1 if a row is more than 5 %% slower",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if unknown := [group for group in options.groups if group not in GROUPS]:
        parser.error(f"unknown group: {', '.join(unknown)}; choose from {', '.join(GROUPS)}")
    if options.against is not None:
        try:
            return against.print_comparison(options.against, options.groups, quick=options.quick)
        except ValueError as error:
            parser.error(str(error))
    table = asyncio.run(measured(options.groups or list(GROUPS), QUICK if options.quick else Effort()))
    print(describe_machine(["agent-cache"]), markdown(HEADINGS, [row.cells() for row in table]), sep="\n\n")
    missed = [row.what for row in table if not row.holds]
    if missed:
        print(f"{len(missed)} missed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
