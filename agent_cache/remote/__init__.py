"""The border to caches outside this process: what the pipeline asks of a tier, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from agent_cache.remote.redis import RedisTier

__all__ = [
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
]


def __getattr__(name: str) -> Any:
    """Load the tier that needs redis-py when it is asked for."""
    if name != "RedisTier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agent_cache.remote.redis import RedisTier

    return RedisTier
