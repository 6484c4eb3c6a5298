"""Rows of a toolbox: a call by name over the same call of a decorated tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time

from agent_cache import AgentCache, Read, Toolbox, Write
from benchmarks.rows.calls import in_session
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, calling, calling_each, measure
from benchmarks.workload import CARD, TTL, USER, new_ids, scalar_tool

SCHEMA = {"type": "object", "properties": {"user_id": {"type": "string"}}, "required": ["user_id"]}
FILL = 256


async def rows(effort: Effort) -> list[Row]:
    """Hits and misses of tools that are known by name."""
    box = Toolbox({"get_card": Read("card:{user_id}", ttl=TTL), "put_card": Write("card:{user_id}")}, namespace="box")
    decorated = AgentCache(resource="card:{user_id}", ttl=TTL)(scalar_tool())
    miss, miss_by_name = calling_each(decorated, new_ids("a")), _calling_each(box, new_ids("b"))
    await miss(FILL)
    await miss_by_name(FILL)
    hit, hit_by_name = calling(decorated, USER), _calling(box)
    figures = await measure(
        {
            "bare": calling(scalar_tool(), USER),
            "hit": hit,
            "by name": hit_by_name,
            "session": in_session(hit),
            "by name, session": in_session(hit_by_name),
            "miss": miss,
            "miss by name": miss_by_name,
        },
        effort,
        title="calls by name",
    )
    by_name, bare = figures["by name"], figures["bare"]
    note = f"{by_name.spread.median * 1e6:.2f} us a call"
    return [
        Row("toolbox", "hit, over a decorated hit", by_name.over(figures["hit"]), "x", 6.0, note),
        Row(
            "toolbox", "hit, over the bare tool", by_name.above(bare).scaled(1e6), "us", 1.5, "the arguments in a dict"
        ),
        Row("toolbox", "the same in a session", figures["by name, session"].over(figures["session"]), "x", 6.0),
        Row("toolbox", "miss, over a decorated miss", figures["miss by name"].over(figures["miss"]), "x", None),
    ]


async def _run() -> str:
    return CARD


def _calling(box: Toolbox) -> Sample:
    async def sample(n: int) -> float:
        start = thread_time()
        for _ in range(n):
            await box.call("get_card", {"user_id": USER}, _run, schema=SCHEMA)
        return thread_time() - start

    return sample


def _calling_each(box: Toolbox, arguments: Callable[[int], Sequence[object]]) -> Sample:
    async def sample(n: int) -> float:
        values = arguments(n)
        start = thread_time()
        for value in values:
            await box.call("get_card", {"user_id": value}, _run, schema=SCHEMA)
        return thread_time() - start

    return sample
