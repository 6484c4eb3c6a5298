"""Rows of tiers: a hit on a local copy, an answer from the tier, and a write, with a file and with a server."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.remote.file import FileTier
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, calling, hitting, measure
from benchmarks.workload import TTL, USER
from tests.harness.binaries import ServerUnavailableError
from tests.harness.servers import Server

VALUE = "v" * 1000
_LIMITS = {"FileTier": (1.25, 150.0), "RedisTier": (1.6, None)}
"""Of a hit, as a multiple of one without a tier, and of a write in microseconds."""


async def rows(effort: Effort) -> list[Row]:
    """Nothing of a server where none can be started."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        tiers: dict[str, Any] = {"none": None, "FileTier": FileTier(Path(folder) / "cache")}
        try:
            from agent_cache.remote.redis import RedisTier

            tiers["RedisTier"] = RedisTier.from_url(stack.enter_context(Server.start()).url)
        except (ImportError, ServerUnavailableError):
            pass
        for tier in tiers.values():
            if tier is not None:
                await stack.enter_async_context(tier)
        return await _measured(tiers, effort)


async def _measured(tiers: dict[str, Any], effort: Effort) -> list[Row]:
    hits: dict[str, Sample] = {}
    answers: dict[str, Sample] = {}
    writes: dict[str, Sample] = {}
    for name, tier in tiers.items():
        clock = perf_counter if name == "RedisTier" else thread_time  # the server works in a process of its own

        async def get_order(order_id: str) -> str:
            return VALUE

        async def cancel_order(order_id: str) -> None: ...

        # A write goes to all tiers of its root, so each has a root of its own.
        read = AgentCache(f"{name}:{{order_id}}", ttl=TTL, name=f"{name}:get_order", remote_cache=tier)(get_order)
        hits[name] = hitting(read, USER)
        writes[name] = calling(AgentCacheInvalidator(f"{name}:{{order_id}}", remote_cache=tier)(cancel_order), USER)
        if tier is not None:
            answers[name] = _from_tier(read, clock)
            await answers[name](1)
            await tier.caught_up()
    hit = await measure(hits, effort, title="hits, with tiers")
    answer = await measure(answers, effort, title="answers from tiers")
    wrote = await measure(writes, effort, title="writes, with tiers")
    table = []
    for name in answers:
        most, longest = _LIMITS[name]
        table += [
            Row("tiers", f"{name}: hit on a local copy", hit[name].over(hit["none"]), "x", most, "over one without"),
            Row("tiers", f"{name}: answer of 1 KB", answer[name].spread.scaled(1e6), "us", None, "no local copy"),
            Row(
                "tiers",
                f"{name}: write",
                wrote[name].above(wrote["none"]).scaled(1e6),
                "us",
                longest,
                "over one without",
            ),
        ]
    return table


def _from_tier(read: Any, clock: Any) -> Sample:
    """Calls after each of which the local copy is dropped."""

    async def run(n: int) -> float:
        seconds = 0.0
        for _ in range(n):
            start = clock()
            await read(USER)
            seconds += clock() - start
            read.clear()
        return seconds

    return run
