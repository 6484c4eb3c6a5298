"""What is compared on one server: a raw client, ours, and caches that people put before a server.

Each is used as its own documentation says for an async function with a time to live. A peer that is not installed is
left out. All answers are hits: the tools run once for each argument, before the clock starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from benchmarks.commands import installed_version
from benchmarks.workload import TTL
from tests.harness.servers import HOST

Tool = Callable[[Any], Awaitable[Any]]
Decorate = Callable[[Tool, int], Awaitable[Tool]]
"""Tool, port of the server: the tool behind a cache on that server."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to have answers on a server."""

    name: str
    distribution: str
    decorate: Decorate
    remark: str

    @property
    def version(self) -> str | None:
        """The installed version; None where the peer is not installed."""
        return installed_version(self.distribution)


def raw_client(port: int) -> Any:
    """A client with the settings that redis-py has by itself."""
    return import_module("redis.asyncio").Redis(host=HOST, port=port)


async def _cashews(tool: Tool, port: int) -> Tool:
    cache = import_module("cashews").Cache()
    cache.setup(f"redis://{HOST}:{port}/0")
    decorated: Tool = cache(ttl=timedelta(seconds=TTL), key="card:{user_id}")(tool)
    return decorated


async def _aiocache(tool: Tool, port: int) -> Tool:
    aiocache = import_module("aiocache")
    serializer = import_module("aiocache.serializers").JsonSerializer()
    decorated: Tool = aiocache.cached(
        ttl=TTL,
        cache=aiocache.Cache.REDIS,
        endpoint=HOST,
        port=port,
        serializer=serializer,
        key_builder=lambda function, user_id: f"aiocache:{user_id}",
    )(tool)
    return decorated


PEERS = (
    Peer("cashews", "cashews", _cashews, "no coherence: ttl alone; pickles"),
    Peer("aiocache", "aiocache", _aiocache, "no coherence: ttl alone; JSON"),
)
