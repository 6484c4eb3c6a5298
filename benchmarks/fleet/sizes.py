"""Invalidation of a resource with many entries on the server, over one with ten: a write moves cells, it looks for no
entries."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_cache import AgentCache, AgentCacheInvalidator, configure
from agent_cache.remote.redis import RedisTier
from benchmarks.fleet.paired import one_by_one, paired
from benchmarks.fleet.peers import Tool
from benchmarks.table import Row
from benchmarks.timing import Effort, progress
from benchmarks.workload import TTL, scalar_tool
from tests.harness.servers import Server

FEW = 10
STORED = 10_000
"""So many are stored by calls; the rest are copies of the keys that one of them has, made by the server."""
COPIED_AT_ONCE = 20_000
COPY = """
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  for _, key in ipairs(KEYS) do redis.call('SET', key .. i, redis.call('GET', key), 'PX', 3600000) end
end
"""
TOGETHER = 250
BYTES_AN_ENTRY = 1_000
"""On the server: a value with its header, the entity's cell, the entry's own, and what the server adds to each."""


async def rows(server: Server, effort: Effort) -> list[Row]:
    many = _that_fit(effort.entries)
    async with RedisTier.from_url(server.url, namespace="sizes") as tier:
        with configure(remote=tier):
            for resource, entries in (("many", min(many, STORED)), ("few", FEW)):
                await _filled(resource, entries)
            _copied(server, many - STORED)
            held = int(server.command("DBSIZE"))
            if held < 3 * many:
                raise AssertionError(f"{held} keys on the server after {many} entries: {tier.stats()}")
            size = int(server.info("memory")["used_memory"]) / 2**20
            many_of, few_of = _writes("many"), _writes("few")
            figures = await paired(
                {
                    what: (one_by_one(many_of[what], _always_seven), one_by_one(few_of[what], _always_seven))
                    for what in many_of
                },
                effort,
                title=f"writes over {many:,} entries",
            )
    note = f"over one with {FEW}; {size:,.0f} MiB, all but {STORED:,} copied by the server"
    return [
        Row(
            "remote", f"write of a{'n' if what == 'entity' else ''} {what} of {many:,} entries",
            figures[what].ratio, "x", 2.0, note,
        )
        for what in figures
    ]  # fmt: skip


def _always_seven(calls: int) -> list[str]:
    return ["user_7"] * calls


def _writes(resource: str) -> dict[str, Tool]:
    async def put(user_id: str) -> None:
        """A write tool that does nothing itself."""

    return {
        "root": AgentCacheInvalidator(resource, name=f"put {resource}")(put),
        "entity": AgentCacheInvalidator(f"{resource}:{{user_id}}", name=f"put one of {resource}")(put),
    }


async def _filled(resource: str, entries: int) -> None:
    """Each stored by a tool that was called, as an agent would."""
    tool = AgentCache(f"{resource}:{{user_id}}", ttl=TTL, maxsize=FEW, name=f"get {resource}")(scalar_tool())
    for first in range(0, entries, TOGETHER):
        if first % (100 * TOGETHER) == 0:
            progress(f"storing {entries:,} entries", first, entries)
        await asyncio.gather(*(tool(f"user_{number}") for number in range(first, min(first + TOGETHER, entries))))
    progress("stored", entries, entries)


def _copied(server: Server, copies: int) -> None:
    with server.client() as client:
        patterns = ("v:sizes:*", "t:{sizes:many}:T*", "t:{sizes:many}:K*")
        keys = [next(client.scan_iter(match=pattern, count=1000)) for pattern in patterns]
        copy = client.register_script(COPY)
        for first in range(0, copies, COPIED_AT_ONCE):
            copy(keys=keys, args=[first, min(first + COPIED_AT_ONCE, copies) - 1])


def _that_fit(entries: int) -> int:
    """Half of the memory that is free may be used for them."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return entries
    available = next(int(line.split()[1]) for line in path.read_text("ascii").splitlines() if "MemAvailable" in line)
    return min(entries, available * 1024 // 2 // BYTES_AN_ENTRY)
