"""Real servers keep the contract that every tier must keep: Valkey and Redis, and a cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("redis")

from agent_cache.remote import RedisTier, Tier
from agent_cache.testing import FakeClock
from tests.contract import TierContract
from tests.harness.clusters import Cluster
from tests.harness.proxies import Proxy
from tests.harness.servers import Server

_numbers = itertools.count()


class OnServers(TierContract):
    """Two tiers on servers, whose clock is moved on with that of the library."""

    max_staleness = 5.0
    is_cluster = False
    url: str

    @pytest.fixture(autouse=True)
    def on_a_clock_that_is_moved(self) -> Iterator[None]:
        with FakeClock() as self.clock:
            yield

    async def make_tiers(self) -> tuple[Tier, Tier]:
        namespace = f"n{next(_numbers)}"
        self.both = [
            RedisTier.from_url(
                self.url,
                cluster=self.is_cluster,
                namespace=namespace,
                max_staleness=self.max_staleness,
                timeout=2.0,
                lease=self.lease,
            )
            for _ in range(2)
        ]
        return self.both[0], self.both[1]

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for tier in self.both:
            tier.backend.shift += seconds

    async def arrive(self) -> None:
        for tier in self.both:
            await tier.caught_up()

    async def start_server(self) -> None:
        for tier in self.both:
            while not await tier.caught_up():
                await asyncio.sleep(0.01)


class TestRedisTier(OnServers):
    @pytest.fixture(autouse=True)
    def server(self, any_server: Server) -> Iterator[None]:
        with Proxy.start(any_server.port) as self.proxy:
            self.url = self.proxy.url
            yield

    async def stop_server(self) -> None:
        self.proxy.refuse()

    async def start_server(self) -> None:
        self.proxy.heal()
        await super().start_server()


@pytest.mark.slow
class TestClusterTier(OnServers):
    is_cluster = True

    @pytest.fixture(autouse=True)
    def whole(self, cluster: Cluster) -> Iterator[None]:
        self.nodes, self.url = cluster.nodes, cluster.url
        yield
        for node in self.nodes:
            node.resume()

    async def stop_server(self) -> None:
        for node in self.nodes:
            node.pause()

    async def start_server(self) -> None:
        for node in self.nodes:
            node.resume()
        await super().start_server()
