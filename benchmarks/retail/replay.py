"""Makes recorded runs again through the cached tools: each on a fresh store, and all of them on one store.

On a fresh store (`replay`) a run must see exactly its recorded answers. On one store (`share_store`) every answer must
have been true while its read was running.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from agent_cache import AgentCacheSession, get_metrics
from agent_cache.testing import reset
from benchmarks.recorded_runs import RecordedCall, Run
from benchmarks.retail.policies import Policy, tags_from_results
from benchmarks.retail.store import READ_TOOLS, RetailStore
from benchmarks.retail.tools import RandomLatency, Tool, make_tools, short_sleep
from benchmarks.retail.truth import ObservedStore, Verdict, Witness

Arrival: TypeAlias = Callable[[Iterable[Run], random.Random], list[Run]]
"""The order in which runs come to a shared store."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that differs from the recorded one."""

    run_id: str
    call: RecordedCall
    answer: str


@dataclass(slots=True)
class ReplayOutcome:
    """Result of replaying a set of runs; `differences` should be empty."""

    run_set: str
    runs: int = 0
    calls: int = 0
    equal: int = 0
    oddities: int = 0
    hits: int = 0
    differences: list[Difference] = field(default_factory=list)


async def replay(
    run_set: str,
    runs: Iterable[Run],
    store: RetailStore,
    *,
    advance: Callable[[], None] = lambda: None,
) -> ReplayOutcome:
    """Make every recorded call through the decorated tools, each run in its own session and on a fresh store.

    The tools are decorated anew for each run, so that no answer comes from another run's store.
    """
    outcome = ReplayOutcome(run_set)
    for run in runs:
        tools = make_tools(store.copy(), policy=tags_from_results(store.owner_of))
        async with AgentCacheSession(loop_detection=False) as session:
            for call in run.calls:
                outcome.calls += 1
                if call.is_oddity:
                    outcome.oddities += 1
                    continue
                answer = await tools[call.tool](**call.arguments)
                if answer == call.result:
                    outcome.equal += 1
                else:
                    outcome.differences.append(Difference(run.id, call, answer))
        outcome.runs += 1
        outcome.hits += session.get_metrics()["hits"]
        advance()
    return outcome


def shuffled(runs: Iterable[Run], chance: random.Random) -> list[Run]:
    """In random order."""
    return sorted(runs, key=lambda run: chance.random())


def by_customer(runs: Iterable[Run], chance: random.Random) -> list[Run]:
    """Sorted by customer, so that reads and writes of one entity meet as often as possible."""
    return sorted(shuffled(runs, chance), key=_customer)


def _customer(run: Run) -> str:
    return next(filter(None, map(_named_customer, run.calls)), "")


def _named_customer(call: RecordedCall) -> str:
    if call.result.startswith("Error"):
        return ""
    if call.tool.startswith("find_user_id"):
        return call.result
    if call.result.startswith('{"order_id"'):
        user_id: str = json.loads(call.result)["user_id"]
        return user_id
    return str(call.arguments.get("user_id", ""))


@dataclass(slots=True)
class SharedStoreOutcome:
    """Result of all runs on one store under one policy.

    Of the reads, `hits` were answered from the cache, `shared` by another call's execution, and `executions` by the
    store itself; the last number is counted in the store and not by the cache. `overlapped` and `stale`: see `Verdict`.
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
        cached = self.hits + self.shared
        return len(self.stale) / cached if cached else 0.0


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
    """Make the runs on one copy of the store, `sessions` of them at any time, and judge every read.

    The runs come in the order of `arrival`, each in its own session; a run makes its calls in sequence, as recorded.
    `seed` determines that order and the latencies. Answers are compared with the store and not with the recordings,
    which know nothing of the other runs' writes. Caches and metrics are reset before and after.
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
