"""One run: a server, the processes of a fleet, a fault, and the verdict on all that was read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.fleet.faults import Fault, Scene
from benchmarks.fleet.tools import Consistency
from benchmarks.fleet.truth import Journal, Truth, noted
from benchmarks.fleet.verdict import Verdict, judge
from benchmarks.fleet.worker import Job
from tests.harness.clusters import Cluster
from tests.harness.proxies import Proxy
from tests.harness.servers import Server

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 180.0
SHARE_DONE = 0.9


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many, and under which promise.

    Attributes:
        heat: how much more often the first entities are used than the others.
        lives: how often a process starts that dies in the fault: its operations are shared among its lives.
        read_kinds, write_kinds: how many of each kind there are among the reads, and among the writes.
    """

    processes: int = 4
    lives: int = 6
    tasks: int = 4
    entities: int = 8
    heat: float = 0.5
    operations: int = 40_000
    writes: float = 0.02
    read_kinds: Mapping[str, int] = field(default_factory=lambda: {"entity": 5, "result": 3, "root": 2})
    write_kinds: Mapping[str, int] = field(default_factory=lambda: {"entity": 6, "result": 3, "root": 1})
    pace: float = 0.001
    max_staleness: float = 1.0
    lease: float = 2.0
    consistency: Consistency = "bounded"
    in_memory: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        struck: how often the fault did.
        seconds: that it took.
        complaints: what processes said that ended otherwise than they should.
    """

    verdict: Verdict
    struck: int
    seconds: float
    complaints: tuple[str, ...]


def run(fault: Fault, fleet: Fleet) -> Outcome:
    """Play a fault while a fleet is at work."""
    fleet = replace(fleet, **fault.fleet)
    with ExitStack() as exits:
        scene = Scene()
        if not fleet.in_memory:
            _stage(scene, fault, exits)
        folder = Path(tempfile.mkdtemp(prefix="fleet-"))
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
        Truth.create(folder / "truth", fleet.entities)
        scene.journal = Journal(folder / "director.journal")
        job = Job(
            name="",
            folder=str(folder),
            url=None,
            cluster=fault.where == "cluster",
            namespace="fleet",
            max_staleness=fleet.max_staleness,
            lease=fleet.lease,
            consistency=fleet.consistency,
            heat=fleet.heat,
            tasks=fleet.tasks,
            operations=fleet.operations // fleet.processes,
            writes=fleet.writes,
            read_kinds=dict(fleet.read_kinds),
            write_kinds=dict(fleet.write_kinds),
            pace=fleet.pace,
            seed=0,
            dies=None,
            steps=fault.steps,
        )
        players = [
            _Player(_as_side(job, scene, fault, is_writer=number % 2 == 1), number, fault, fleet)
            for number in range(fleet.processes)
        ]
        struck: list[int] = []
        director = threading.Thread(target=lambda: struck.append(fault.play(scene)))
        started = time.monotonic()
        for thread in [director, *players]:
            thread.start()
        for player in players:
            player.join()
        scene.over.set()
        director.join(PATIENCE)
        seconds = time.monotonic() - started
        verdict = judge(noted(folder))
        complaints = [each for player in players for each in player.complaints]
        if not struck:
            complaints.append("the fault did not play to its end")
        if verdict.operations < SHARE_DONE * fleet.operations:
            complaints.append(f"only {verdict.operations} of {fleet.operations} operations were noted")
        return Outcome(verdict, verdict.dead + sum(struck), seconds, tuple(complaints))


def _stage(scene: Scene, fault: Fault, exits: ExitStack) -> None:
    """Start what the fleet talks to."""
    if fault.where == "cluster":
        scene.cluster = exits.enter_context(Cluster.start(**fault.options))
        return
    scene.server = exits.enter_context(Server.start(**fault.options))
    if fault.where == "pair":
        scene.standby = exits.enter_context(Server.start(**fault.options))
        scene.line = exits.enter_context(Proxy.start(scene.server.port))
    if fault.where == "pair" or fault.cut_off is not None:
        scene.proxy = exits.enter_context(Proxy.start(scene.server.port))


def _as_side(job: Job, scene: Scene, fault: Fault, *, is_writer: bool) -> Job:
    """What a process does, and how it gets to the server."""
    if fault.cut_off is not None or fault.apart:
        job = replace(job, writes=2 * job.writes if is_writer else 0.0)
    through_proxy = fault.where == "pair" or (fault.cut_off is not None and is_writer == (fault.cut_off == "writers"))
    target = scene.proxy if through_proxy else scene.cluster or scene.server
    return replace(job, url=None if target is None else target.url)


class _Player(threading.Thread):
    """Runs one process after another until its share of the operations is done."""

    def __init__(self, job: Job, number: int, fault: Fault, fleet: Fleet) -> None:
        super().__init__(name=f"process {number}")
        self.complaints: list[str] = []
        lives = (
            fleet.lives if fault.dies is not None and number % 2 else 1
        )  # the others must see what the dead have left
        self._jobs = [
            replace(
                job,
                name=f"{number}.{life}",
                seed=1000 * fleet.seed + 10 * number + life,
                operations=job.operations // lives,
                dies=fault.dies if lives > 1 else None,
            )
            for life in range(lives)
        ]

    def run(self) -> None:
        for job in self._jobs:
            self._play(job)

    def _play(self, job: Job) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fleet.worker", job.as_argument()],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, said = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
            said = f"not done after {PATIENCE:g} s; {said}"
        wanted = -9 if job.dies is not None else 0
        if process.returncode != wanted:
            self.complaints.append(f"process {job.name} ended with {process.returncode}: {said.strip()[-2000:]}")
