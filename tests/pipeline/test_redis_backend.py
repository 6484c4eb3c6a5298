"""The backend on a server, and in a cluster, keeps the contract of backends."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache.remote import RedisTier
from agent_cache.remote.backend import HELD, Backend
from agent_cache.remote.cells import STORE
from agent_cache.testing.tier_contract import BackendContract
from tests.harness.clusters import Cluster
from tests.harness.servers import Server

_numbers = itertools.count()


class OnServers(BackendContract):
    server: Server | Cluster

    async def make_backends(self) -> tuple[Backend, Backend]:
        options: dict[str, Any] = {"namespace": f"n{next(_numbers)}", "timeout": 5.0, "max_staleness": 10.0}
        options["cluster"] = isinstance(self.server, Cluster)
        self.both = [RedisTier.from_url(self.server.url, **options) for _ in range(2)]
        return self.both[0].backend, self.both[1].backend

    async def advance(self, seconds: float) -> None:
        for tier in self.both:
            tier.backend.shift += seconds


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
            before = (await other.read(("order::7", STORE), None)).states["order::7"]
            self.server.command("DEL", one.prefix + key)  # type: ignore[attr-defined, union-attr]  # of one server
            number = await one.commit("v", ("order::8",), 0.0, b"later")
            after = (await other.read(("order::7", STORE), None)).states["order::7"]
            assert before[1] == after[1] == HELD
            assert int(after[0]) <= number
            for backend in (one, other):
                await backend.aclose()

        asyncio.run(evict())
