"""`python -m benchmarks.retail`: replay the recorded runs, then make them all on one store."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from benchmarks.commands import command_parser, exits_without, positive, run_progress
from benchmarks.recorded_runs import RETAIL_SETS, DataAbsentError, Run, data_directory, load_runs
from benchmarks.retail.policies import policies
from benchmarks.retail.replay import ReplayOutcome, SharedStoreOutcome, replay, share_store
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.retail.truth import Verdict
from benchmarks.table import markdown

RunSets = dict[str, list[Run]]

REPLAY_COLUMNS = ("runs of", "runs", "calls", "equal", "oddities", "different", "hits")
SHARED_COLUMNS = (
    "policy", "sessions", "reads", "executions", "hits", "shared", "hit rate", "overlapped", "stale", "stale share",
    "time saved", "took",
)  # fmt: skip


@exits_without(DataAbsentError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run both parts. Exit code 0: answers as recorded, none stale where tags are complete; 1: not so; 2: no data."""
    options = _parser().parse_args(arguments)
    directory = data_directory()
    store = load_store(directory)
    run_sets = {name: load_runs(directory, name, options.limit) for name in RETAIL_SETS}
    replays = asyncio.run(_replay_all(run_sets, store))
    shared = asyncio.run(_share_all(run_sets, store, options.sessions, options.seed))
    print("Replayed, each run on a fresh store", markdown(REPLAY_COLUMNS, map(_replay_row, replays)), sep="\n")
    print("\nAll runs on one store", markdown(SHARED_COLUMNS, map(_shared_row, shared)), sep="\n")
    print(f"\noverlapped: {Verdict.OVERLAPPED.value}", f"stale: {Verdict.STALE.value}", sep="\n")
    return 0 if _is_coherent(replays, shared) else 1


async def _replay_all(run_sets: RunSets, store: RetailStore) -> list[ReplayOutcome]:
    outcomes = []
    for name, runs in run_sets.items():
        with run_progress(f"replaying {name}", len(runs)) as advance:
            outcomes.append(await replay(name, runs, store, advance=advance))
    return outcomes


async def _share_all(
    run_sets: RunSets, store: RetailStore, sessions: Sequence[int], seed: int
) -> list[SharedStoreOutcome]:
    runs = [run for runs in run_sets.values() for run in runs]
    outcomes = []
    for count in sessions:
        for policy in policies(store.owner_of):
            with run_progress(f"{policy.name}, {count} at once", len(runs)) as advance:
                outcomes.append(
                    await share_store(runs, store, policy=policy, sessions=count, seed=seed, advance=advance)
                )
    return outcomes


def _is_coherent(replays: Sequence[ReplayOutcome], shared: Sequence[SharedStoreOutcome]) -> bool:
    as_recorded = not any(outcome.differences for outcome in replays)
    return as_recorded and not any(outcome.stale for outcome in shared if outcome.policy.is_complete)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.retail", __doc__)
    parser.add_argument("--sessions", type=positive, nargs="+", default=[1, 16, 64], metavar="K", help="runs at once")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the runs and of the latencies")
    return parser


def _replay_row(outcome: ReplayOutcome) -> tuple[str, ...]:
    counts = (outcome.runs, outcome.calls, outcome.equal, outcome.oddities, len(outcome.differences), outcome.hits)
    return (outcome.run_set, *(f"{count:,}" for count in counts))


def _shared_row(outcome: SharedStoreOutcome) -> tuple[str, ...]:
    counts = (outcome.sessions, outcome.reads, outcome.executions, outcome.hits, outcome.shared)
    return (
        outcome.policy.name,
        *(f"{count:,}" for count in counts),
        f"{outcome.hit_rate:.1%}",
        f"{outcome.overlapped:,}",
        f"{len(outcome.stale):,}",
        f"{outcome.stale_share:.2%}",
        f"{outcome.time_saved:.2f} s",
        f"{outcome.seconds:.2f} s",
    )


if __name__ == "__main__":
    sys.exit(main())
