"""Misses: what the first read of a key costs on top of the tool itself.

Every call has a new key, and the tool keeps its default `maxsize`, so that in steady state each miss also evicts one
entry: the price of a miss for as long as the process lives, not of filling an empty cache.
"""

from __future__ import annotations

from agent_cache import AgentCache
from benchmarks.rows.sessions import in_session
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, calling_each, measure
from benchmarks.workload import TTL, new_ids, scalar_tool, tree_tool

IN_SESSION = 2.0
FILL = 256


def _samples() -> dict[str, tuple[Sample, float]]:
    card = AgentCache(resource="card", ttl=TTL)(scalar_tool())
    entity = AgentCache(resource="card:{user_id}", ttl=TTL)(scalar_tool())
    result = AgentCache(resource="card:{result}", ttl=TTL)(scalar_tool())
    nested = AgentCache(resource="order", ttl=TTL)(tree_tool())
    return {
        "static tag": (calling_each(card, new_ids("a")), 2.5),
        "entity tag": (calling_each(entity, new_ids("b")), 3.5),
        "result tag": (calling_each(result, new_ids("c")), 4.0),
        "nested result": (calling_each(nested, new_ids("d")), 6.0),
    }


async def rows(effort: Effort) -> list[Row]:
    subjects: dict[str, Sample] = {
        "bare": calling_each(scalar_tool(), new_ids("x")),
        "bare tree": calling_each(tree_tool(), new_ids("y")),
    }
    limits: dict[str, float] = {}
    for name, (sample, limit) in _samples().items():
        await sample(FILL)
        subjects[name], limits[name] = sample, limit
    for name, (sample, limit) in _samples().items():
        await sample(FILL)
        subjects[f"{name}, in a session"], limits[f"{name}, in a session"] = in_session(sample), limit + IN_SESSION
    figures = await measure(subjects, effort, title="misses")
    table = []
    for name, limit in limits.items():
        base = figures["bare tree" if name.startswith("nested") else "bare"]
        table.append(Row("miss", name, figures[name].above(base).scaled(1e6), "us", limit, "over the bare tool"))
    return table
