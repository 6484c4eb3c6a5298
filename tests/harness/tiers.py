"""Tiers of a test's own on real servers, and waiting for what they do in their own time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agent_cache.remote.redis import RedisTier
from tests.harness.processes import until

__all__ = ["PATIENT", "Make", "making", "until"]

PATIENT: dict[str, Any] = {"timeout": 9.0, "max_staleness": 30.0}
"""A busy machine is no outage: it may take seconds for a handshake."""

Make = Callable[..., RedisTier]


@asynccontextmanager
async def making(*, is_heard: bool = False, **defaults: Any) -> AsyncIterator[Make]:
    """Make tiers of a URL or a deployment, each with these options where the test names no others, and `PATIENT`.
    All are closed.

    Args:
        is_heard: whether they are listened to, as those that tools use are.
    """
    made: list[RedisTier] = []

    def make(server: Any, **options: Any) -> RedisTier:
        options = PATIENT | defaults | options
        tier = RedisTier.from_url(server, **options) if isinstance(server, str) else RedisTier(server, **options)
        if is_heard:
            tier.subscribe(lambda _: None)
        made.append(tier)
        return tier

    yield make
    for tier in made:
        await tier.aclose()
