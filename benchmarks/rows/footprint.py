"""Memory of a local entry over its value."""

from __future__ import annotations

from agent_cache import AgentCache
from benchmarks.memory import bytes_per_entry, marks
from benchmarks.table import Row
from benchmarks.timing import Effort, progress
from benchmarks.workload import TTL

CASES: tuple[tuple[str, str, float | None, float], ...] = (
    ("static tag", "card", TTL, 200.0),
    ("entity tag", "card:{user_id}", TTL, 500.0),
)


async def rows(effort: Effort) -> list[Row]:
    progress("bytes per entry")
    note = f"over key and value; {marks()[0]:,} to {marks()[-1]:,} entries"
    table = []
    for name, resource, ttl, limit in CASES:
        spread = await bytes_per_entry(AgentCache(resource=resource, ttl=ttl, maxsize=None))
        table.append(Row("memory", f"local entry, {name}", spread, "B", limit, note))
    return table
