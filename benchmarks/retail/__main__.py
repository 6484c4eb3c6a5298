"""`python -m benchmarks.retail`: replay the recorded runs, then drive them all against one store."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from benchmarks.options import parser_of, positive
from benchmarks.retail.data import RUN_SETS, DataAbsentError, Run, data_directory, load_runs, load_store
from benchmarks.retail.policies import policies
from benchmarks.retail.replay import ReplayOutcome, replay
from benchmarks.retail.report import (
    REPLAY_COLUMNS,
    SHARED_COLUMNS,
    print_table,
    progress,
    replay_facts,
    replay_row,
    shared_facts,
    shared_row,
)
from benchmarks.retail.shared_store import SharedStoreOutcome, share_store
from benchmarks.retail.store import RetailStore
from benchmarks.retail.truth import Verdict

RunSets = dict[str, list[Run]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both parts. 0: answers as recorded, and none stale where tags are complete; 1: not so; 2: no data."""
    options = _parser().parse_args(arguments)
    try:
        directory = data_directory()
    except DataAbsentError as absent:
        print(absent, file=sys.stderr)
        return 2
    store = load_store(directory)
    run_sets = {name: load_runs(directory, name)[: options.limit] for name in RUN_SETS}
    replays = asyncio.run(_replay_all(run_sets, store))
    shared = asyncio.run(_share_all(run_sets, store, options.sessions, options.seed))
    if options.json:
        facts = {"replay": [replay_facts(o) for o in replays], "shared_store": [shared_facts(o) for o in shared]}
        print(json.dumps(facts, indent=2))
    else:
        print_table("Replayed, each run on a fresh store", REPLAY_COLUMNS, [replay_row(o) for o in replays])
        print_table("All runs on one store", SHARED_COLUMNS, [shared_row(o) for o in shared])
        print(f"overlapped: {Verdict.OVERLAPPED.value}", f"stale: {Verdict.STALE.value}", sep="\n")
    return 0 if _is_coherent(replays, shared) else 1


async def _replay_all(run_sets: RunSets, store: RetailStore) -> list[ReplayOutcome]:
    outcomes = []
    for name, runs in run_sets.items():
        with progress(f"replaying {name}", len(runs)) as advance:
            outcomes.append(await replay(name, runs, store, advance=advance))
    return outcomes


async def _share_all(
    run_sets: RunSets, store: RetailStore, sessions: Sequence[int], seed: int
) -> list[SharedStoreOutcome]:
    runs = [run for runs in run_sets.values() for run in runs]
    outcomes = []
    for count in sessions:
        for policy in policies(store.owner_of):
            with progress(f"{policy.name}, {count} at once", len(runs)) as advance:
                outcomes.append(
                    await share_store(runs, store, policy=policy, sessions=count, seed=seed, advance=advance)
                )
    return outcomes


def _is_coherent(replays: Sequence[ReplayOutcome], shared: Sequence[SharedStoreOutcome]) -> bool:
    as_recorded = not any(outcome.differences for outcome in replays)
    return as_recorded and not any(outcome.stale for outcome in shared if outcome.policy.is_complete)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.retail", __doc__)
    parser.add_argument("--sessions", type=positive, nargs="+", default=[1, 16, 64], metavar="K", help="runs at once")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the runs and of the latencies")
    return parser


if __name__ == "__main__":
    sys.exit(main())
