"""The tools of every process: reads and writes of an entity, of all of them, and with the tag in the result."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from agent_cache import AgentCache, AgentCacheInvalidator
from benchmarks.fleet.truth import Journal, Truth

Consistency = Literal["bounded", "strong"]
Death = Literal["before", "after", "late"]
"""When a process dies: before the side effect, after it, or after one that came some leases after the write began."""
Versions = dict[str, int]
Reads = dict[str, Callable[[int], Awaitable[Versions]]]
Writes = dict[str, Callable[[int], Awaitable[Any]]]

LATENCY = 0.002
LEASES = 3.0
TTL = 30
WRITE: ContextVar[str] = ContextVar("write")
"""Number of the write that is being called: the side effect notes it."""


@dataclass(slots=True)
class Shop:
    """What the tools work on, and whether the process is to die in the next write."""

    truth: Truth
    journal: Journal
    lease: float
    dies: Death | None = None

    def load(self, entity: int) -> int:
        return self.truth.read(entity)

    async def save(self, entities: list[int], *, is_armed: bool) -> None:
        """The side effect of a write, somewhere in the midst of its time, and a sudden death if that is due."""
        await pause()
        if self.dies == "before":
            self._die(is_armed)
        if self.dies == "late":
            await asyncio.sleep(LEASES * self.lease)
        for entity in entities:
            self.truth.effect(entity, lambda version, now, e=entity: self._noted(e, version, now))  # type: ignore[misc]
        if self.dies is not None:
            self._die(is_armed)
        await pause()

    def _noted(self, entity: int, version: int, now: int) -> None:
        self.journal.note("effect", entity, version, now, WRITE.get())

    def _die(self, is_armed: bool) -> None:
        self.journal.note("died", WRITE.get(), time.monotonic_ns(), is_armed)
        os.kill(os.getpid(), signal.SIGKILL)


async def pause() -> None:
    """The time that a call to a backend takes: mostly short, sometimes long."""
    await asyncio.sleep(random.expovariate(1 / LATENCY))


def decorated(shop: Shop, consistency: Consistency) -> tuple[Reads, Writes]:
    """The tools, by what they touch."""
    reading, writing = _policies(consistency)

    @AgentCache("order:{order}", name="get", ttl=TTL, **reading)
    async def get(order: int) -> Versions:
        await pause()
        version = shop.load(order)
        await pause()
        return {str(order): version}

    @AgentCache("order", name="overview", ttl=TTL, **reading)
    async def overview() -> Versions:
        versions = {}
        for order in range(len(shop.truth)):
            versions[str(order)] = shop.load(order)
            await asyncio.sleep(0)
        await pause()
        return versions

    @AgentCache("order:{result[id]}", name="find", ttl=TTL, **reading)
    async def find(name: str) -> dict[str, int]:
        await pause()
        order = int(name.removeprefix("name of "))
        version = shop.load(order)
        await pause()
        return {"id": order, "version": version}

    @AgentCacheInvalidator("order:{order}", name="put", **writing)
    async def put(order: int) -> None:
        await shop.save([order], is_armed=False)

    @AgentCacheInvalidator("order", name="reprice", **writing)
    async def reprice() -> None:
        await shop.save(list(range(len(shop.truth))), is_armed=False)

    @AgentCacheInvalidator("order:{result[id]}", name="rename", **writing)
    async def rename(name: str) -> dict[str, int]:
        order = int(name.removeprefix("name of "))
        await shop.save([order], is_armed=True)
        return {"id": order}

    async def found(order: int) -> Versions:
        result = await find(f"name of {order}")
        return {str(result["id"]): result["version"]}

    return (
        {"entity": get, "root": lambda _: overview(), "result": found},
        {"entity": put, "root": lambda _: reprice(), "result": lambda order: rename(f"name of {order}")},
    )


def _policies(consistency: Consistency) -> tuple[dict[str, Any], dict[str, Any]]:
    if consistency == "bounded":
        return {}, {}
    from agent_cache import RemotePolicy

    return {"remote": RemotePolicy(consistency="strong")}, {"remote": RemotePolicy(on_unreachable="refuse")}
