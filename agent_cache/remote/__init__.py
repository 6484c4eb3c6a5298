"""The border to caches outside this process: what the pipeline asks of a tier, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_cache.remote.addresses import from_url
from agent_cache.remote.protocol import (
    Found,
    Lease,
    Listener,
    Request,
    SharedLoads,
    SharedTtls,
    Term,
    Ticket,
    Tier,
    Touched,
    Versions,
    WriteIntent,
)

if TYPE_CHECKING:
    from agent_cache.remote.file import FileTier
    from agent_cache.remote.redis import RedisTier

__all__ = [
    "FileTier",
    "Found",
    "Lease",
    "Listener",
    "RedisTier",
    "Request",
    "SharedLoads",
    "SharedTtls",
    "Term",
    "Ticket",
    "Tier",
    "Touched",
    "Versions",
    "WriteIntent",
    "from_url",
]


def __getattr__(name: str) -> Any:
    """Load a tier when it is asked for: one needs redis-py, the other the SQLite of this Python."""
    if name == "FileTier":
        from agent_cache.remote.file import FileTier

        return FileTier
    if name == "RedisTier":
        from agent_cache.remote.redis import RedisTier

        return RedisTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
