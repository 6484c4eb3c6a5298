"""`CacheStore`: the responses that a client of MCP keeps by their ``ttlMs``, lists and resources, in this cache.

``Client(url, cache=CacheConfig(store=CacheStore(FileTier("mcp.db")), partition="ada"))``: the hosts of a machine, or of
a fleet, share what one of them has fetched, and what one is notified of ends for all. Tested with mcp 2.3.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from agent_cache import ConfigurationError, Read, Toolbox, invalidate

try:
    import mcp_types
    from mcp.client.caching import CacheEntry, CacheKey
except ImportError as error:
    raise ImportError(
        'agent_cache.integrations.mcp_store needs version 2 of the SDK of MCP: pip install "agent-cache[mcp]" "mcp>=2"'
    ) from error

if TYPE_CHECKING:
    from agent_cache.remote import Tier

__all__ = ["CacheStore"]

_TOOL: Final = "response"
_KEPT: Final = dict[str, Any]


class CacheStore:
    """A `mcp.client.caching.ResponseCacheStore` that keeps responses in this process, and in a tier.

    Entries of other partitions are other entries: the SDK puts what says who asks into their keys. It needs asyncio.

    Args:
        tier: where several processes share them, such as `agent_cache.remote.FileTier`. Its owner closes it.
        maxsize: how many responses this process keeps.
        namespace: stores of another namespace share nothing with this one.

    Raises:
        ConfigurationError: if one of them cannot work.
    """

    def __init__(self, tier: Tier | None = None, *, maxsize: int = 1024, namespace: str = "mcp-responses") -> None:
        if not namespace.replace("-", "_").isidentifier():
            raise ConfigurationError(f"CacheStore: namespace must be a plain name, got {namespace!r}")
        self._root = namespace
        shared: dict[str, Any] = {} if tier is None else {"remote_cache": tier}
        rule = Read(f"{namespace}:{{key}}", ttl=_life_of, maxsize=maxsize, **shared)
        self._box = Toolbox({_TOOL: rule}, namespace=namespace)

    async def get(self, key: CacheKey) -> CacheEntry | None:
        """The entry of this key; None without one."""
        kept = await _alone(self._loaded(key, {}))
        kind = _kind_named(kept.get("kind", ""))
        if kind is None:
            return None
        return CacheEntry(kind.model_validate(kept["value"]), kept["scope"], kept["expires_at"])

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        """Keep an entry in place of that of the same key. What is no result of the SDK's own is not kept."""
        kind = type(entry.value)
        if _kind_named(kind.__name__) is not kind or entry.expires_at is None:
            await self.delete(key)
            return
        value = entry.value.model_dump(mode="json", by_alias=True, exclude_none=True)
        kept = {"kind": kind.__name__, "value": value, "scope": entry.scope, "expires_at": entry.expires_at}
        await _alone(self._replaced(key, kept))

    async def delete(self, key: CacheKey) -> None:
        """Drop the entry of this key, in every process that shares the tier."""
        await _alone(invalidate((self._root, _text_of(key))))

    async def clear(self) -> None:
        """Drop every entry of this namespace."""
        await _alone(invalidate((self._root,)))

    async def _replaced(self, key: CacheKey, kept: dict[str, Any]) -> None:
        await invalidate((self._root, _text_of(key)))
        for _ in range(3):  # it may join a `get` that has begun since, and finds nothing
            if await self._loaded(key, kept):
                return

    async def _loaded(self, key: CacheKey, kept: dict[str, Any]) -> dict[str, Any]:
        """What is kept, else `kept`, which is kept from now on unless it is empty."""

        async def load() -> dict[str, Any]:
            return kept

        found: dict[str, Any] = await self._box.call(_TOOL, {"key": _text_of(key)}, load, returns=_KEPT, store_if=bool)
        return found


def _kind_named(name: str) -> Any:
    """A class of results of the SDK; None if it has no such one."""
    kind = getattr(mcp_types, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, mcp_types.CacheableResult) else None


def _text_of(key: CacheKey) -> str:
    return json.dumps([key.method, key.params_key, key.partition])


def _life_of(kept: dict[str, Any]) -> float:
    return max(kept["expires_at"] - time.time(), 0.0) if kept else 0.0


async def _alone(work: Coroutine[Any, Any, Any]) -> Any:
    """Run outside of every session and tenant: a client's store is no tool of the agent."""
    return await asyncio.get_running_loop().create_task(work, context=Context())
