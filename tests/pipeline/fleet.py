"""Two processes in one interpreter: the same tools decorated twice, each time behind a client of one server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.remote import Request, Tier
from agent_cache.testing import FaultyTier, MemoryServer, MemoryTier


class Truth:
    """The store behind the tools: what the orders are now, and which tools have run."""

    def __init__(self) -> None:
        self.orders = {"7": "old", "8": "old"}
        self.runs: list[str] = []

    def load(self, id: str) -> str:
        """What a read tool does."""
        self.runs.append(f"get {id}")
        return self.orders[id]

    def save(self, id: str, value: str = "new") -> str:
        """What a write tool does."""
        self.runs.append(f"set {id}")
        self.orders[id] = value
        return id


class WatchedTier(FaultyTier):
    """A tier in memory, with faults, that remembers requests and counts its listeners."""

    def __init__(self, server: MemoryServer, **options: Any) -> None:
        self.memory = MemoryTier(server, **options)
        super().__init__(self.memory)
        self.requests: list[Request] = []
        self.listeners = 0

    async def lookup(self, request: Request, *, lead: bool = False) -> Any:
        self.requests.append(request)
        return await super().lookup(request, lead=lead)

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        self.listeners += 1
        return self.memory.subscribe(listener)


class Process:
    """Tools of one process. What `tier` is None for has no tier of its own.

    Their names are no others in the suite: where a tier is configured for all tools, two of one name are refused.
    """

    def __init__(self, truth: Truth, tier: Tier | None, backup: Tier | None = None, **options: Any) -> None:
        async def get_order(id: str) -> str:
            return truth.load(id)

        async def find_order(name: str) -> dict[str, str]:
            return {"id": "7", "value": truth.load("7")}

        async def set_order(id: str) -> str:
            return truth.save(id)

        tiers = {"remote_cache": tier, "backup": backup}
        self.get_order = AgentCache("order:{id}", name="process:get_order", **tiers, **options)(get_order)
        self.find_order = AgentCache("order:{result[id]}", name="process:find_order", **tiers, **options)(find_order)
        self.set_order = AgentCacheInvalidator("order:{id}", name="process:set_order")(set_order)
