"""The caches that are compared, each used as its own documentation says for an async function with a time to live.

A peer that is not installed is left out. Modules are imported by name, inside the factory that needs them, since some
have no type hints and one calls its top-level package `cache`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module, metadata
from typing import Any, Protocol

from benchmarks.workload import TTL

Tool = Callable[[Any], Awaitable[Any]]


class Decorate(Protocol):
    """Decorate a tool of one argument for at most so many entries."""

    def __call__(self, tool: Tool, /, maxsize: int) -> Tool: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """One cache: how it decorates a tool of a scalar argument, of a nested dict, and one that a crowd wants at once."""

    name: str
    distribution: str
    scalar: Decorate
    nested: Decorate
    stampede: Decorate
    remark: str = ""

    @property
    def version(self) -> str | None:
        """The installed version; None where the peer is not installed."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return None


def json_key(filters: dict[str, Any]) -> str:
    """The key that people write by hand for an argument that cannot be hashed."""
    return json.dumps(filters, sort_keys=True)


def _agent_cache(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("agent_cache").AgentCache(resource="card", ttl=TTL, maxsize=maxsize)(tool)
    return decorated


def _async_lru(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("async_lru").alru_cache(maxsize=maxsize, ttl=TTL)(tool)
    return decorated


def _async_lru_nested(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("async_lru").alru_cache(maxsize=maxsize, ttl=TTL, key=json_key)(tool)
    return decorated


def _cachebox(tool: Tool, maxsize: int) -> Tool:
    cachebox = import_module("cachebox")
    decorated: Tool = cachebox.cached(cachebox.TTLCache(maxsize, TTL))(tool)
    return decorated


def _cachebox_nested(tool: Tool, maxsize: int) -> Tool:
    cachebox = import_module("cachebox")
    decorated: Tool = cachebox.cached(cachebox.TTLCache(maxsize, TTL), key_maker=json_key)(tool)
    return decorated


def _async_cache(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("cache").AsyncTTL(time_to_live=TTL, maxsize=maxsize)(tool)
    return decorated


def _cashews(tool: Tool, maxsize: int) -> Tool:
    cache = import_module("cashews").Cache()
    cache.setup("mem://", size=maxsize)
    decorated: Tool = cache(ttl=timedelta(seconds=TTL))(tool)
    return decorated


def _aiocache(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("aiocache").cached(ttl=TTL)(tool)  # its memory cache has no bound
    return decorated


def _aiocache_stampede(tool: Tool, maxsize: int) -> Tool:
    decorated: Tool = import_module("aiocache").cached_stampede(ttl=TTL)(tool)
    return decorated


def _theine(tool: Tool, maxsize: int) -> Tool:
    decorated: Any = import_module("theine").Memoize(maxsize, timedelta(seconds=TTL))(tool)
    decorated.key(lambda argument: f"card:{argument}")
    keyed: Tool = decorated
    return keyed


def _theine_stampede(tool: Tool, maxsize: int) -> Tool:
    decorated = _theine(tool, maxsize)

    async def call(argument: Any) -> Any:  # equal calls return one awaitable, and `gather` would await it once for all
        return await decorated(argument)

    return call


def _theine_nested(tool: Tool, maxsize: int) -> Tool:
    decorated: Any = import_module("theine").Memoize(maxsize, timedelta(seconds=TTL))(tool)
    decorated.key(json_key)
    keyed: Tool = decorated
    return keyed


BY_HAND = "nested key by hand: json.dumps"

OURS = Peer("agent_cache", "agent-cache", _agent_cache, _agent_cache, _agent_cache)
CACHEBOX = Peer("cachebox", "cachebox", _cachebox, _cachebox_nested, _cachebox, f"TTLCache, Rust; {BY_HAND}")
PEERS = (
    OURS,
    CACHEBOX,
    Peer("async-lru", "async-lru", _async_lru, _async_lru_nested, _async_lru, BY_HAND),
    Peer("theine", "theine", _theine, _theine_nested, _theine_stampede, f"Rust policy; {BY_HAND}"),
    Peer("async-cache", "async-cache", _async_cache, _async_cache, _async_cache, "AsyncTTL"),
    Peer("aiocache", "aiocache", _aiocache, _aiocache, _aiocache_stampede, "memory; cold key: cached_stampede"),
    Peer("cashews", "cashews", _cashews, _cashews, _cashews, "mem://"),
)


def is_present(peer: Peer) -> bool:
    """Whether the peer can be imported; ours may be a source tree that was never installed."""
    if peer is not OURS:
        return peer.version is not None
    try:
        return hasattr(import_module("agent_cache"), "AgentCache")
    except ImportError:
        return False
