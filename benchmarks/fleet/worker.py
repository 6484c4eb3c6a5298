"""One process of the fleet: reads and writes at random, notes what came back, and ends.

`python -m benchmarks.fleet.worker JOB`, where JOB is a JSON object with the fields of `Job`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_cache import configure, get_metrics
from agent_cache.errors import RemoteTierError
from benchmarks.fleet.tools import WRITE, Consistency, Death, Reads, Shop, Writes, decorated
from benchmarks.fleet.truth import Journal, Truth

if TYPE_CHECKING:
    from agent_cache.remote import Tier


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do.

    Attributes:
        name: unique in its run.
        folder: where the truth is, and the journals.
        url: of the server; None for a tier in this process.
        cluster: the server is a node of a cluster.
        heat: how much more often the first entities are used than the others; 0 would be: all alike.
        tasks: that many at a time.
        operations: altogether.
        writes: share of them.
        read_kinds, write_kinds: how many of each kind among them.
        dies: in its last write.
        steps: its wall clock jumps back and forth.
    """

    name: str
    folder: str
    url: str | None
    cluster: bool
    namespace: str
    max_staleness: float
    lease: float
    consistency: Consistency
    heat: float
    tasks: int
    operations: int
    writes: float
    read_kinds: dict[str, int]
    write_kinds: dict[str, int]
    pace: float
    seed: int
    dies: Death | None = None
    steps: bool = False

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


class Worker:
    """A process at work."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.journal = Journal(Path(job.folder) / f"{job.name}.journal")
        self.shop = Shop(Truth(Path(job.folder) / "truth"), self.journal, job.lease)
        self.random = random.Random(job.seed)
        self.left = job.operations
        self._writes = itertools.count()

    async def run(self) -> None:
        tier = made_tier(self.job)
        with configure(remote=tier):
            reads, writes = decorated(self.shop, self.job.consistency)
            async with asyncio.TaskGroup() as group:
                for _ in range(self.job.tasks):
                    group.create_task(self._agent(reads, writes))
            if self.job.dies is not None:
                self.journal.note("hits", get_metrics()["hits"])
                self.shop.dies = self.job.dies
                while True:  # a write that was refused has not begun
                    await self._write(writes)
        self.journal.note("hits", get_metrics()["hits"])
        await tier.aclose()

    async def _agent(self, reads: Reads, writes: Writes) -> None:
        while self.left > 0:
            self.left -= 1
            if self.random.random() < self.job.writes:
                await self._write(writes)
            else:
                await self._read(reads)
            await asyncio.sleep(self.random.expovariate(1 / self.job.pace))

    async def _read(self, reads: Reads) -> None:
        kind = self._kind(self.job.read_kinds)
        start = time.monotonic_ns()
        versions = await reads[kind](self._entity())
        self.journal.note_later("read", kind, versions, start, self.job.name)

    async def _write(self, writes: Writes) -> None:
        kind = self._kind(self.job.write_kinds)
        write = f"{self.job.name}/{kind}-{next(self._writes)}"
        WRITE.set(write)
        try:
            await writes[kind](self._entity())
        except RemoteTierError:
            self.journal.note("failed", write, time.monotonic_ns())
        else:
            self.journal.note("returned", write, time.monotonic_ns())

    def _entity(self) -> int:
        # Some are hot: of these every interleaving of reads and writes comes up.
        return min(int(self.random.expovariate(self.job.heat)), len(self.shop.truth) - 1)

    def _kind(self, kinds: dict[str, int]) -> str:
        return self.random.choices([*kinds], [*kinds.values()])[0]


def made_tier(job: Job) -> Tier:
    """The tier under test, or one in memory that shows that the run itself works."""
    if job.url is None:
        from agent_cache.testing import MemoryTier

        return MemoryTier(max_staleness=job.max_staleness, lease=job.lease)
    from agent_cache.remote.redis import RedisTier

    options: dict[str, Any] = {"cluster": True} if job.cluster else {}
    return RedisTier.from_url(
        job.url, namespace=job.namespace, max_staleness=job.max_staleness, lease=job.lease, **options
    )


def step_the_wall_clock() -> None:
    """Have `time.time` jump by up to a day whenever it is read. The system's own clock is everybody's."""
    real, jumps = time.time, random.Random(1)
    time.time = lambda: real() + jumps.uniform(-86_400, 86_400)


def main(argument: str) -> None:
    job = Job(**json.loads(argument))
    if job.steps:
        step_the_wall_clock()
    asyncio.run(Worker(job).run())
    # Threads that wait for a server that is gone must not hold up the end of the run.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
