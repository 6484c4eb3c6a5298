"""Real servers keep the contracts that every tier and every backend must keep: Valkey, Redis and a cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache.remote import RedisTier, Tier
from agent_cache.remote.backend import HELD, Backend
from agent_cache.testing import FakeClock
from agent_cache.testing.tier_contract import BackendContract
from tests.contract import TierContract
from tests.harness.clusters import Cluster
from tests.harness.proxies import Proxy
from tests.harness.servers import Server
from tests.harness.tiers import PATIENT

_numbers = itertools.count()


class TestRedisTier(TierContract):
    """Two tiers on a server, each behind a proxy. The server's clock is moved on with that of the library."""

    max_staleness = 30.0

    @pytest.fixture(autouse=True)
    def server(self, any_server: Server) -> Iterator[None]:
        with FakeClock() as self.clock, Proxy.start(any_server.port) as one, Proxy.start(any_server.port) as other:
            self.proxies, self.away = (one, other), set[Proxy]()
            yield

    async def make_tiers(self) -> tuple[Tier, Tier]:
        options: dict[str, Any] = {"namespace": f"n{next(_numbers)}", "timeout": 9.0, "lease": self.lease}
        options["max_staleness"] = self.max_staleness
        self.both = one, other = [RedisTier.from_url(proxy.url, **options) for proxy in self.proxies]
        return one, other

    def proxy_of(self, tier: Tier) -> Proxy:
        return self.proxies[self.both.index(tier)]

    async def advance(self, seconds: float) -> None:
        """What was heard counts by a clock that runs on while the machine sleeps. Who is not cut off hears on."""
        self.clock.advance(seconds)
        for tier, proxy in zip(self.both, self.proxies, strict=True):
            tier.backend.shift += seconds
            for term in (tier.heard, tier.trust.term) if proxy in self.away else ():
                if term is not None:
                    term.until -= seconds

    async def arrive(self) -> None:
        for tier in self.both:
            await tier.caught_up()

    async def cut(self, tier: Tier) -> None:
        self.away.add(self.proxy_of(tier))
        self.proxy_of(tier).lose_news()

    async def reconnect(self, tier: Tier) -> None:
        self.away.discard(self.proxy_of(tier))
        self.proxy_of(tier).heal()
        self.proxy_of(tier).cut_followers()

    async def stop_server(self) -> None:
        for proxy in self.proxies:
            self.away.add(proxy)
            proxy.refuse()

    async def start_server(self) -> None:
        for proxy in self.proxies:
            self.away.discard(proxy)
            proxy.heal()
        for tier in self.both:
            while not await tier.caught_up():
                await asyncio.sleep(0.01)


class OnServers(BackendContract):
    server: Server | Cluster

    async def make_backends(self) -> tuple[Backend, Backend]:
        options: dict[str, Any] = {"namespace": f"n{next(_numbers)}", **PATIENT}
        options["cluster"] = isinstance(self.server, Cluster)
        self.both = [RedisTier.from_url(self.server.url, **options) for _ in range(2)]
        return self.both[0].backend, self.both[1].backend

    async def advance(self, seconds: float) -> None:
        for tier in self.both:
            tier.backend.shift += seconds
        async for client, keys in self.both[0].backend._keys_of_values():  # whose ends the server's own clock decides
            for key in keys:
                await client.pexpire(key, await client.pttl(key) - int(seconds * 1000))


@pytest.mark.slow
class TestCluster(OnServers):
    @pytest.fixture(autouse=True)
    def in_a_cluster(self, cluster: Cluster) -> None:
        self.server = cluster


class TestRedis(OnServers):
    @pytest.fixture(autouse=True)
    def on_a_server(self, any_server: Server) -> None:
        self.server = any_server

    @pytest.mark.parametrize("key", ["c:order::7", "n", "f"])
    def test_what_is_evicted_while_a_write_runs_is_held_all_the_same(self, key: str) -> None:
        """With a version that it never had before: a server without memory takes keys away."""

        async def evict() -> None:
            one, other = await self.make_backends()
            await one.begin("w", ("order::7",), (), 60.0, b"")
            before = (await other.read(("order::7", "#"), None)).states["order::7"]
            self.server.command("DEL", one.prefix + key)  # type: ignore[attr-defined, union-attr]  # of one server
            number = await one.commit("v", ("order::8",), 0.0, b"later")
            after = (await other.read(("order::7", "#"), None)).states["order::7"]
            assert before[1] == after[1] == HELD
            assert int(after[0]) <= number
            for backend in (one, other):
                await backend.aclose()

        asyncio.run(evict())
