"""Do many runs on one store ever see an answer that was no longer true?"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from agent_cache import AgentCacheSession, get_metrics
from agent_cache.testing import reset
from benchmarks.retail.arrival import Arrival, shuffled
from benchmarks.retail.data import Run
from benchmarks.retail.latency import RandomLatency, short_sleep
from benchmarks.retail.policies import Policy
from benchmarks.retail.store import READ_TOOLS, RetailStore
from benchmarks.retail.tools import Tool, make_tools
from benchmarks.retail.truth import ObservedStore, Verdict, Witness


@dataclass(slots=True)
class SharedStoreOutcome:
    """What came of driving all runs against one store under one policy.

    Of the reads, `hits` were answered from the cache, `shared` by another call's execution, and `executions` by the
    store itself; the last number is counted in the store and not by the cache. `overlapped` and `stale` are what
    `Verdict` says.
    """

    policy: Policy
    sessions: int
    reads: int = 0
    executions: int = 0
    hits: int = 0
    shared: int = 0
    overlapped: int = 0
    stale: list[Witness] = field(default_factory=list)
    time_saved: float = 0.0
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.hits / self.reads if self.reads else 0.0

    @property
    def stale_share(self) -> float:
        """The stale answers among those that did not come from the store itself."""
        spared = self.hits + self.shared
        return len(self.stale) / spared if spared else 0.0


async def share_store(
    runs: Iterable[Run],
    store: RetailStore,
    *,
    policy: Policy,
    sessions: int,
    seed: int,
    latency: RandomLatency = short_sleep,
    arrival: Arrival = shuffled,
    advance: Callable[[], None] = lambda: None,
) -> SharedStoreOutcome:
    """Drive the runs against one copy of the store, `sessions` of them at any time, and judge every read.

    The runs come in the order of `arrival`, each in its own session; a run makes its calls one after the other, as it
    was recorded. `seed` draws that order and the latencies. Answers are judged against the store and not against the
    recordings, which knew nothing of the other runs' writes. Starts from empty caches and zeroed metrics, and leaves
    both so.
    """
    reset()
    chance = random.Random(seed)
    observed = ObservedStore(store.copy())
    tools = make_tools(observed, policy=policy, latency=partial(latency, chance))
    waiting = deque(arrival(runs, chance))
    outcome = SharedStoreOutcome(policy, sessions)

    async def work() -> None:
        while waiting:
            await _drive(waiting.popleft(), tools, observed, outcome)
            advance()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(sessions):
            group.create_task(work())
    outcome.seconds = time.perf_counter() - started

    metrics = get_metrics()
    outcome.executions = observed.reads_executed
    outcome.hits, outcome.shared = metrics["hits"], metrics["shared"]
    outcome.time_saved = metrics["time_saved"]
    reset()
    return outcome


async def _drive(run: Run, tools: dict[str, Tool], observed: ObservedStore, outcome: SharedStoreOutcome) -> None:
    async with AgentCacheSession(loop_detection=False):
        for call in run.calls:
            if call.is_oddity:
                continue
            tool = tools[call.tool]
            if call.tool not in READ_TOOLS:
                with observed.writing():
                    await tool(**call.arguments)
                continue
            with observed.watching(call.tool, call.arguments) as witness:
                answer = await tool(**call.arguments)
            outcome.reads += 1
            verdict = witness.verdict(answer)
            outcome.overlapped += verdict is Verdict.OVERLAPPED
            if verdict is Verdict.STALE:
                outcome.stale.append(witness)
