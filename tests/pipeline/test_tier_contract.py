"""The tier in memory keeps the contract that every tier must keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_cache.remote import Tier
from agent_cache.testing import FakeClock, MemoryServer, MemoryTier
from tests.contract import TierContract


class TestMemoryTier(TierContract):
    @pytest.fixture(autouse=True)
    def on_a_clock_that_stands_still(self) -> Iterator[None]:
        with FakeClock() as self.clock:
            yield

    async def make_tiers(self) -> tuple[Tier, Tier]:
        self.server = MemoryServer()
        return MemoryTier(self.server), MemoryTier(self.server)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def cut(self, tier: Tier) -> None:
        tier.cut()

    async def reconnect(self, tier: Tier) -> None:
        tier.reconnect()

    async def stop_server(self) -> None:
        self.server.stop()

    async def start_server(self) -> None:
        self.server.start()
