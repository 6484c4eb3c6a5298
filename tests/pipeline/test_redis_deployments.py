"""The same tier on a cluster and behind Sentinels."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("redis")

import redis
import redis.asyncio
import redis.asyncio.sentinel

from agent_cache.clock import CLOCK
from agent_cache.remote import Touched
from agent_cache.remote.redis import RedisTier
from tests.contract.workbench import load, read, value_of, writing
from tests.harness.clusters import Cluster
from tests.harness.sentinels import NAME, Sentinel
from tests.harness.servers import HOST
from tests.harness.slow import slow
from tests.harness.tiers import until


@pytest.mark.parametrize("kind", ["async", *slow("sync")])
async def test_a_client_of_a_cluster_is_a_template(cluster, kind):
    made = redis.RedisCluster if kind == "sync" else redis.asyncio.RedisCluster
    client = made(host="127.0.0.1", port=cluster.primaries[0].port)
    async with RedisTier(client, timeout=0.5) as tier:
        for root in ("order", "user", "cart"):
            await load(tier, read(f"{root}:7", key=root), root)
            assert await value_of(tier, read(f"{root}:7", key=root)) == root
    await client.aclose() if kind == "async" else client.close()


@pytest.mark.slow
async def test_a_failover_is_a_loss_and_nothing_from_before_is_found(own_cluster: Cluster):
    """Its new primary has another identity. Afterwards everything works again."""
    async with RedisTier.from_url(own_cluster.url, cluster=True, max_staleness=0.6, timeout=0.3) as tier:
        told: list[Touched | None] = []
        tier.subscribe(told.append)
        roots = [f"root{number}" for number in range(12)]
        for root in roots:
            await load(tier, read(root, key=root), "old")
        await until(lambda: tier.trusted_until() > CLOCK.now())
        told.clear()
        heir = await asyncio.to_thread(own_cluster.failover, own_cluster.primaries[0])
        await until(lambda: told)
        await until(lambda: set(tier.stats()["servers"].values()) == {"ok"})
        await until(lambda: tier.trusted_until() > CLOCK.now())
        assert f"{HOST}:{heir.port}" in tier.stats()["servers"]
        found = [await value_of(tier, read(root, key=root)) for root in roots]
        assert set(found) == {"old", "nothing"}
        lost = {tag for touched in told for tag in (roots if touched is None else touched.tags)}
        assert {root for root, value in zip(roots, found, strict=True) if value == "nothing"} <= lost
        for root in roots:
            async with writing(tier, root):
                pass
            await load(tier, read(root, key=root), "new")
            assert await value_of(tier, read(root, key=root)) == "new"


async def test_behind_sentinels_the_tier_follows_the_primary(own_sentinel: Sentinel):
    watchers = redis.asyncio.sentinel.Sentinel([own_sentinel.address])
    client = watchers.master_for(NAME)
    async with RedisTier(client, max_staleness=0.6, timeout=0.3) as tier:
        told: list[Touched | None] = []
        tier.subscribe(told.append)
        await load(tier, read("order:7"), "old")
        assert await value_of(tier, read("order:7")) == "old"
        assert set(tier.stats()["servers"]) == {f"{HOST}:{own_sentinel.primary.port}"}
        await until(lambda: tier.trusted_until() > CLOCK.now())
        heir = await asyncio.to_thread(own_sentinel.kill)
        await until(lambda: tier.stats()["servers"] == {f"{HOST}:{heir.port}": "ok"}, 30)
        await until(lambda: tier.trusted_until() > CLOCK.now())
        assert None in told
        assert await value_of(tier, read("order:7")) == "nothing"
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"
    for each in (client, *watchers.sentinels):
        await each.aclose()
