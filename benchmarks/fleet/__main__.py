"""`python -m benchmarks.fleet`: play every fault while a fleet is at work, and check each read against the truth.

A read is stale if it started after a write had returned and got what was there before. A strong one never is. A
bounded one may be, for `--max-staleness` seconds after the write: without a fault until its message arrives, which
takes about a millisecond on an idle machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.commands import exits_without
from benchmarks.fleet.conductor import Fleet, Outcome, run
from benchmarks.fleet.faults import FAULTS
from benchmarks.fleet.promises import complaint
from benchmarks.table import markdown
from tests.harness.binaries import ServerUnavailableError

HEADINGS = ("fault", "consistency", "operations", "hit rate", "faults", "stale reads", "worst lag", "")


@exits_without(ServerUnavailableError)
def main(arguments: Sequence[str] | None = None) -> int:
    """0: every promise was kept; 1: one was not; 2: there is no server here."""
    options = _parser().parse_args(arguments)
    fleet = Fleet(
        processes=options.processes,
        operations=options.operations,
        max_staleness=options.max_staleness,
        seed=options.seed,
        in_memory=options.in_memory,
    )
    lines: list[tuple[str, ...]] = []
    broken = 0
    total = len(options.faults) * len(options.consistency)
    for name in options.faults:
        for consistency in options.consistency:
            print(f"{name}, {consistency} ({len(lines) + 1} of {total}) ...", file=sys.stderr, flush=True)
            outcome = run(FAULTS[name], replace(fleet, consistency=consistency))
            wrong = complaint(name, outcome, replace(fleet, consistency=consistency))
            broken += wrong is not None
            lines.append(_line(name, consistency, outcome, wrong))
            for line in outcome.complaints:
                print(line, file=sys.stderr)
    print(markdown(HEADINGS, lines))
    return int(broken > 0)


def _line(name: str, consistency: str, outcome: Outcome, wrong: str | None) -> tuple[str, ...]:
    verdict = outcome.verdict
    return (
        name,
        consistency,
        f"{verdict.operations:,}",
        f"{_hit_rate(outcome):.0%}",
        str(outcome.struck),
        str(verdict.stale_reads),
        f"{verdict.worst * 1e3:.1f} ms",
        "ok" if wrong is None else wrong.upper(),
    )


def _hit_rate(outcome: Outcome) -> float:
    return outcome.verdict.hits / max(1, outcome.verdict.reads)


def _parser() -> argparse.ArgumentParser:
    usual = Fleet()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="NAME")
    parser.add_argument("--consistency", nargs="+", choices=["bounded", "strong"], default=["bounded", "strong"])
    parser.add_argument("--processes", type=int, default=usual.processes, metavar="N")
    parser.add_argument(
        "--operations", type=int, default=usual.operations, metavar="N", help="of all processes, per run"
    )
    parser.add_argument("--max-staleness", type=float, default=usual.max_staleness, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-memory", action="store_true", help="a tier in each process: to try the run itself")
    return parser


if __name__ == "__main__":
    sys.exit(main())
