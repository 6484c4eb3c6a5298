"""The same tier on a cluster and behind Sentinels."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("redis")

import redis
import redis.asyncio
import redis.asyncio.sentinel

from agent_cache.clock import CLOCK
from agent_cache.remote import Request, Touched
from agent_cache.remote.redis import RedisTier
from tests.contract.workbench import RecordingListener, commit, load, read, value_of, write, writing
from tests.harness.clusters import Cluster, slot_of
from tests.harness.sentinels import NAME, Sentinel
from tests.harness.servers import HOST
from tests.harness.slow import slow
from tests.harness.tiers import making, until


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", *slow("sync")])
async def test_a_client_of_a_cluster_is_a_template(cluster, kind):
    made = redis.RedisCluster if kind == "sync" else redis.asyncio.RedisCluster
    client = made(host="127.0.0.1", port=cluster.primaries[0].port)
    async with RedisTier(client, timeout=1.5, max_staleness=3.0) as tier:
        for root in ("order", "user", "cart"):
            await load(tier, read(f"{root}:7", key=root), root)
            assert await value_of(tier, read(f"{root}:7", key=root)) == root
    await client.aclose() if kind == "async" else client.close()


@pytest.mark.slow
async def test_a_failover_is_a_loss_and_nothing_from_before_is_found(own_cluster: Cluster):
    """Its new primary has another identity. Afterwards everything works again."""
    async with RedisTier.from_url(own_cluster.url, cluster=True, max_staleness=3.0, timeout=1.5) as tier:
        told: list[Touched | None] = []
        tier.subscribe(told.append)
        roots = [f"root{number}" for number in range(12)]
        for root in roots:
            await load(tier, read(root, key=root), "old")
        await until(lambda: tier.trusted_until() > CLOCK.now())
        told.clear()
        heir = await asyncio.to_thread(own_cluster.failover, own_cluster.primaries[0])
        await until(lambda: told)
        await until(lambda: f"{HOST}:{heir.port}" in tier.stats()["servers"])
        await until(lambda: set(tier.stats()["servers"].values()) == {"ok"})
        await until(lambda: tier.trusted_until() > CLOCK.now())
        found = [await value_of(tier, read(root, key=root)) for root in roots]
        assert set(found) == {"old", "nothing"}
        lost = {tag for touched in told for tag in (roots if touched is None else touched.tags)}
        assert {root for root, value in zip(roots, found, strict=True) if value == "nothing"} <= lost
        for root in roots:
            async with writing(tier, root):
                pass
            await load(tier, read(root, key=root), "new")
            assert await value_of(tier, read(root, key=root)) == "new"


@pytest.mark.slow
async def test_a_write_lands_while_its_slot_moves_and_its_readers_keep_no_copies(cluster: Cluster):
    """Neither server runs a script of an open slot. The cells are held one by one, and the script is run later."""
    slot = slot_of("{agent_cache:order}")
    target = cluster.another_than(cluster.primary_for("{agent_cache:order}"))
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=3.0) as make:
        reader, writer = make(cluster.url), make(cluster.url)
        told = RecordingListener()
        reader.subscribe(told)
        await load(reader, read("order:7"), "old")
        assert (await reader.lookup(read("order:7")))[1].is_clean()
        running = write("order:8")
        await writer.begin(running)  # so the server has some of the keys that a script needs, and not all
        steps = cluster.move_slot(slot, target)
        next(steps)
        async with writing(writer, "order:7", on_unreachable="refuse"):
            assert await value_of(reader, read("order:7")) == "nothing"
        await load(reader, read("order:7"), "not stored")
        assert await value_of(reader, read("order:7")) == "nothing"
        await until(lambda: told.concerns("order:7"))
        assert list(steps)
        assert await value_of(reader, read("order:7")) == "nothing"
        await commit(writer, running)
        await until(lambda: writer.stats()["pending"] == 0)
        await until_found(reader, read("order:7"), "new")
        assert set(reader.stats()["servers"].values()) == {"ok"}  # a slot that moves is no failure of a server


async def test_readers_drop_their_copies_of_a_root_whose_slot_opens_whether_or_not_there_are_writes(cluster: Cluster):
    """Those of other roots stay."""
    slot = slot_of("{agent_cache:order}")
    target = cluster.another_than(cluster.primary_for("{agent_cache:order}"))
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=2.0) as make:
        reader = make(cluster.url)
        told = RecordingListener()
        reader.subscribe(told)
        for root in ("order", "user"):
            await load(reader, read(f"{root}:7", key=root), "old")
        _, ticket = await reader.lookup(read("order:7", key="order"))
        assert ticket.is_clean()
        next(cluster.move_slot(slot, target))
        await until(lambda: told.concerns("order:7"))
        assert not told.concerns("user:7")
        assert not ticket.is_clean()
        assert await value_of(reader, read("user:7", key="user")) == "old"
        cluster.keep_slot(slot, target)
        await until_found(reader, read("order:7", key="order"), "new")


async def test_a_copy_of_many_reads_is_not_trusted_once_the_slot_of_one_of_them_opens(cluster: Cluster):
    tag = "{agent_cache:order}"
    source = cluster.primary_for(tag)
    neighbours = [f"o{n}" for n in range(99) if cluster.primary_for(f"{{agent_cache:o{n}}}") is source][:2]
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=2.0) as make:
        tier = make(cluster.url)
        trusts = []
        for root in ("order", *neighbours):
            await load(tier, read(f"{root}:7", key=root), "old")
            _, ticket = await tier.lookup(read(f"{root}:7", key=root))
            trusts.append(ticket.lease)
        (of_all,) = tier.merge_leases([*tier.merge_leases(trusts[:2]), trusts[2]])
        (of_neighbours,) = tier.merge_leases(trusts[1:])
        await until(of_all.is_valid)
        target = cluster.another_than(source)
        next(cluster.move_slot(slot_of(tag), target))
        await until(lambda: trusts[0].is_over and not trusts[0].is_valid())
        await until(of_neighbours.is_valid)
        assert of_all.is_over
        assert not of_all.is_valid()
        cluster.keep_slot(slot_of(tag), target)


@pytest.mark.slow
async def test_what_a_write_has_replaced_is_not_found_after_its_slot_was_about_to_move_and_did_not(cluster: Cluster):
    slot = slot_of("{agent_cache:order}")
    target = cluster.another_than(cluster.primary_for("{agent_cache:order}"))
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=3.0) as make:
        reader, writer = make(cluster.url), make(cluster.url)
        await load(reader, read("order:7"), "old")
        next(cluster.move_slot(slot, target))
        async with writing(writer, "order:7"):
            pass
        cluster.keep_slot(slot, target)
        fresh = make(cluster.url)  # knows nothing of the move
        assert await value_of(fresh, read("order:7")) == "nothing"
        await until_found(fresh, read("order:7"), "new")


async def test_a_value_is_found_and_replaced_while_its_own_slot_moves(cluster: Cluster):
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=3.0) as make:
        tier = make(cluster.url)
        await load(tier, read("order:7"), "old")
        (key,) = [key for node in cluster.primaries for key in node.command("KEYS", "v:*")]
        target = cluster.another_than(cluster.primary_for(key))
        steps = cluster.move_slot(slot_of(key), target)
        assert (next(steps), next(steps)) == (0, 1)
        assert await value_of(tier, read("order:7")) == "old"
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"
        assert list(steps) == []
        assert await value_of(tier, read("order:7")) == "new"
        assert set(tier.stats()["servers"].values()) == {"ok"}


async def test_heartbeats_go_on_while_the_slot_of_their_key_moves(cluster: Cluster):
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=2.0) as make:
        tier = make(cluster.url)
        assert await tier.caught_up()
        source = cluster.primaries[0]
        (key,) = source.command("KEYS", "agent_cache:hb:*")
        for _ in (steps := cluster.move_slot(slot_of(key), cluster.another_than(source))):
            if not source.command("KEYS", key):
                break
        await until(lambda: source.command("KEYS", "agent_cache:hb:*"))
        assert tier.trusted_until() > CLOCK.now()
        assert list(steps) == []


@pytest.mark.slow
async def test_a_slot_that_moves_atomically_takes_its_root_with_it(cluster: Cluster):
    slot = slot_of("{agent_cache:order}")
    target = cluster.another_than(cluster.primary_for("{agent_cache:order}"))
    async with making(is_heard=True, cluster=True, timeout=1.5, max_staleness=3.0) as make:
        reader, writer = make(cluster.url), make(cluster.url)
        await load(reader, read("order:7"), "old")
        await asyncio.to_thread(cluster.move_slot_atomically, slot, target)
        assert await value_of(reader, read("order:7")) == "nothing"
        async with writing(writer, "order:7"):
            pass
        await until_found(reader, read("order:7"), "new")
        assert set(writer.stats()["servers"].values()) == {"ok"}


async def until_found(tier: RedisTier, request: Request, value: str) -> None:
    """Load and store until the value is found, and may be kept locally."""
    async with asyncio.timeout(60):
        while True:
            await load(tier, request, value)
            found, ticket = await tier.lookup(request)
            if found is not None and ticket.is_clean():
                break
            await asyncio.sleep(0.01)
    assert found.value == value


@pytest.mark.slow
async def test_behind_sentinels_the_tier_follows_the_primary(own_sentinel: Sentinel):
    watchers = redis.asyncio.sentinel.Sentinel([own_sentinel.address])
    client = watchers.master_for(NAME)
    async with RedisTier(client, max_staleness=3.0, timeout=1.5) as tier:
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
