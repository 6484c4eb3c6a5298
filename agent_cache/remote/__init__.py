"""Caches outside of this process: the tiers, and what a tier of one's own is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_cache.errors import RemoteTierError
from agent_cache.remote.addresses import from_url
from agent_cache.remote.protocol import Found, Request, WriteIntent

if TYPE_CHECKING:
    from agent_cache.remote.backend import Backend
    from agent_cache.remote.file import FileTier
    from agent_cache.remote.memory import MemoryTier
    from agent_cache.remote.redis import RedisTier
    from agent_cache.remote.versioned import Tier, VersionedTier

__all__ = [
    "Backend", "FileTier", "Found", "MemoryTier", "RedisTier", "RemoteTierError", "Request", "Tier", "VersionedTier",
    "WriteIntent", "from_url",
]  # fmt: skip

_MODULES = {
    "Backend": "backend", "FileTier": "file", "MemoryTier": "memory", "RedisTier": "redis",
    "Tier": "versioned", "VersionedTier": "versioned",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a tier when it is asked for: one needs redis-py, another the SQLite of this Python."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"agent_cache.remote.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
