"""Single flight under a thousand tasks: one execution, at hardly more than the tasks themselves cost."""

from __future__ import annotations

from agent_cache import AgentCache
from benchmarks.crowd import Crowd
from benchmarks.table import Row
from benchmarks.timing import Effort, measure
from benchmarks.workload import TTL


async def rows(effort: Effort) -> list[Row]:
    bare, ours = Crowd(), Crowd(AgentCache(resource="card", ttl=TTL))
    figures = await measure(
        {"bare": bare.sample, "ours": ours.sample}, effort, title="a thousand tasks on one cold key"
    )
    if ours.most_executions != 1:
        message = f"a thousand tasks on one cold key ran the tool {ours.most_executions} times"
        raise AssertionError(message)
    ratio = figures["ours"].over(figures["bare"])
    return [
        Row("single flight", "1,000 tasks on one cold key", ratio, "x", 1.4, "1 execution, checked; over a bare gather")
    ]
