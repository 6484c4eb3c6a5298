"""The first read of a process against a warm tier: `python -m benchmarks.fleet.starts ours|raw URL`.

A process of its own each time. What it has imported before the clock starts is what its agent would import anyway.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from agent_cache import AgentCache, configure
from agent_cache.remote.redis import RedisTier
from benchmarks.fleet.peers import raw_client
from benchmarks.table import Row
from benchmarks.timing import Effort, Spread, progress
from benchmarks.workload import CARD, TTL, USERS, users_in_turn
from tests.harness.servers import Server

ROOT = Path(__file__).parent.parent.parent
STARTS = 15
NAMESPACE = "starts"


async def rows(server: Server, effort: Effort) -> list[Row]:
    await _ours(server.port)  # warm from here on
    raw = raw_client(server.port)
    await raw.set("raw", CARD)
    await raw.aclose()
    taken: dict[str, list[dict[str, float]]] = {"ours": [], "raw": []}
    for number in range(STARTS):
        progress("starting processes", number, STARTS)
        for who, facts in taken.items():
            facts.append(_started(who, server.port))
    progress("starting processes", STARTS, STARTS)
    ours, theirs = taken["ours"], taken["raw"]
    ran = sum(facts["executions"] for facts in ours)
    if ran:
        raise AssertionError(f"the tier was warm, and the tool ran {ran:.0f} times")
    pairs = list(zip(ours, theirs, strict=True))
    first = Spread.of([mine["first"] / other["first"] for mine, other in pairs])
    return [
        Row(
            "remote", "first read of a process, over a raw client's first", first, "x", None,
            f"connecting included; raw {Spread.of([one['first'] for one in theirs]).median * 1e3:.1f} ms",
        ),
        Row("remote", "first read of a process", Spread.of([one["first"] * 1e3 for one in ours]), "ms", None, "a hit"),
        Row(
            "remote", f"its next {USERS - 1} reads together", Spread.of([one["next"] * 1e3 for one in ours]), "ms",
            None, "one after the other; all hits, the tool never ran",
        ),
    ]  # fmt: skip


def _started(who: str, port: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.fleet.starts", who, str(port)]
    facts: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    return facts


async def _ours(port: int) -> dict[str, float]:
    executions = 0

    @AgentCache("card:{user_id}", ttl=TTL, name="card")
    async def get_card(user_id: str) -> str:
        nonlocal executions
        executions += 1
        return CARD

    users: Any = users_in_turn(USERS)
    start = perf_counter()
    async with RedisTier.from_url(f"redis://127.0.0.1:{port}/0", namespace=NAMESPACE) as tier:
        with configure(remote=tier):
            await get_card(users[0])
            first = perf_counter()
            for user in users[1:]:
                await get_card(user)
            return {"first": first - start, "next": perf_counter() - first, "executions": executions}


async def _raw(port: int) -> dict[str, float]:
    start = perf_counter()
    client = raw_client(port)
    if await client.get("raw") is None:
        raise AssertionError("it was to be there")
    first = perf_counter() - start
    await client.aclose()
    return {"first": first, "executions": 0}


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"ours": _ours, "raw": _raw}[sys.argv[1]](int(sys.argv[2])))))
