"""Does a run see through the cache exactly what it saw without one?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agent_cache import AgentCacheSession
from benchmarks.retail.data import RecordedCall, Run
from benchmarks.retail.policies import tags_from_results
from benchmarks.retail.store import RetailStore
from benchmarks.retail.tools import make_tools


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the recorded one."""

    run_id: str
    call: RecordedCall
    answer: str


@dataclass(slots=True)
class ReplayOutcome:
    """What came of replaying a set of runs; `differences` is to be empty."""

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

    A run's tools are decorated anew, so no answer comes from another run's store; all hits are a run's own.
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
