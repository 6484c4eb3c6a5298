"""Ttls that are set at run time, over real servers: who learns them, when, and after what has gone wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache import AgentCache, get_ttl, set_ttl, testing
from agent_cache.remote import SharedTtls
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.redis.scripts import RESTORE_TTLS
from agent_cache.remote.redis.subscriber import Subscription
from agent_cache.testing import MemoryTier
from tests.contract.workbench import load, read
from tests.harness.clusters import Cluster, slot_of
from tests.harness.proxies import Proxy
from tests.harness.rights import least
from tests.harness.servers import HOST, Server
from tests.harness.tiers import Make, making, until

KEY = "t:{agent_cache::ttl}:ttls"
_HASH_RIGHTS = {"+hget", "+hset", "+hdel", "+hgetall"}


@pytest.fixture(autouse=True)
def _isolated() -> Any:
    testing.reset()
    yield
    testing.reset()


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making(max_staleness=6.0, timeout=2.0) as make:  # heartbeats every two seconds
        yield make


class Follower:
    """What a process knows by its tier."""

    def __init__(self, tier: RedisTier) -> None:
        self.tier = tier
        self.ttls: dict[str, float] = {}
        self.changes = 0
        tier.follow_ttls(self._receive)

    def _receive(self, ttls: Any) -> None:
        self.ttls = dict(ttls)
        self.changes += 1

    async def knows(self, ttls: dict[str, float]) -> None:
        await until(lambda: self.ttls == ttls)


async def live(*tiers: RedisTier) -> None:
    """Wait until they hear messages."""
    for tier in tiers:
        await tier.caught_up()
        await until(lambda tier=tier: tier._subscriber.until > 0)


def fields(server: Server) -> dict[str, str]:
    found = server.command("HGETALL", KEY)
    return {name: value for name, value in dict(found).items() if name}


async def test_both_tiers_pass_ttls_on(make: Make, valkey: Server):
    assert isinstance(make(valkey.url), SharedTtls)
    assert isinstance(MemoryTier(), SharedTtls)


async def test_a_message_makes_it_known_before_the_next_heartbeat(make: Make, valkey: Server):
    """With heartbeats every 20 s: only a message can be the cause."""
    here, there = (make(valkey.url, max_staleness=60.0) for _ in range(2))
    follower = Follower(there)
    await live(here, there)
    here.publish_ttl("shop:get", 12.5)
    await follower.knows({"shop:get": 12.5})
    here.publish_ttl("shop:get", None)
    await follower.knows({})
    assert fields(valkey) == {}


async def test_a_process_that_starts_later_learns_it(make: Make, valkey: Server):
    here = make(valkey.url)
    here.publish_ttl("shop:get", 12.0)
    await until(lambda: fields(valkey) == {"shop:get": "12.0"})
    await Follower(make(valkey.url)).knows({"shop:get": 12.0})


async def test_whoever_serves_a_local_copy_knows_it(make: Make, valkey: Server):
    """The trust in local copies counts from a heartbeat that has asked for it."""
    here = make(valkey.url)
    here.publish_ttl("shop:get", 12.0)
    await until(lambda: fields(valkey))
    follower = Follower(make(valkey.url))
    follower.tier.subscribe(lambda _: None)
    await until(lambda: follower.tier.trusted_until() > 0)
    assert follower.ttls == {"shop:get": 12.0}


async def test_a_process_that_was_cut_off_learns_it_when_it_is_back(make: Make, valkey: Server, proxy: Proxy):
    here, away = make(valkey.url), Follower(make(proxy.url, max_staleness=0.6, timeout=0.3))
    here.publish_ttl("shop:get", 12.0)
    await away.knows({"shop:get": 12.0})
    proxy.refuse()
    here.publish_ttl("shop:get", 24.0)
    here.publish_ttl("shop:list", 5.0)
    await until(lambda: len(fields(valkey)) == 2)
    assert away.ttls == {"shop:get": 12.0}
    proxy.heal()
    await away.knows({"shop:get": 24.0, "shop:list": 5.0})


async def test_a_lost_message_is_made_up_for_by_a_heartbeat(make: Make, valkey: Server, proxy: Proxy):
    here, deaf = make(valkey.url), Follower(make(proxy.url, max_staleness=0.6, timeout=0.3))
    await live(here, deaf.tier)
    proxy.lose_news()
    here.publish_ttl("shop:get", 12.0)
    await deaf.knows({"shop:get": 12.0})


async def test_what_was_set_while_the_server_was_away_is_delivered_later(make: Make, valkey: Server, proxy: Proxy):
    away = Follower(make(proxy.url, max_staleness=0.6, timeout=0.3))
    await live(away.tier)
    proxy.refuse()
    away.tier.publish_ttl("shop:get", 12.0)
    assert away.ttls == {"shop:get": 12.0}
    proxy.heal()
    await until(lambda: fields(valkey) == {"shop:get": "12.0"})


async def test_closing_delivers_what_was_set(valkey: Server):
    """As in a script that does nothing else."""
    async with RedisTier.from_url(valkey.url, timeout=2.0, max_staleness=6.0) as tier:
        tier.publish_ttl("shop:get", 12.0)
    assert fields(valkey) == {"shop:get": "12.0"}


async def test_many_at_once(make: Make, valkey: Server):
    here, there = make(valkey.url), Follower(make(valkey.url))
    wanted = {f"shop:get{number}": number + 1.0 for number in range(1_234)}
    for tool, ttl in wanted.items():
        here.publish_ttl(tool, ttl)
    await there.knows(wanted)


async def test_a_server_that_has_lost_its_data_gets_it_back(make: Make, own_valkey: Server):
    followers = [Follower(make(own_valkey.url, max_staleness=0.6, timeout=0.3)) for _ in range(2)]
    followers[0].tier.publish_ttl("shop:get", 12.0)
    for each in followers:
        await each.knows({"shop:get": 12.0})
    own_valkey.command("FLUSHALL")
    await until(lambda: fields(own_valkey) == {"shop:get": "12.0"})
    await asyncio.to_thread(own_valkey.restart, empty=True)
    await until(lambda: fields(own_valkey) == {"shop:get": "12.0"})
    assert [each.ttls for each in followers] == [{"shop:get": 12.0}] * 2


async def test_what_another_process_has_put_back_is_not_overwritten(make: Make, own_valkey: Server):
    follower = Follower(make(own_valkey.url, max_staleness=0.6, timeout=0.3))
    follower.tier.publish_ttl("shop:get", 12.0)
    await until(lambda: fields(own_valkey))
    own_valkey.command("EVAL", _REPLACE, 1, KEY)
    await follower.knows({"shop:get": 99.0})
    assert fields(own_valkey) == {"shop:get": "99"}


_REPLACE = "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], '', 'other', 'shop:get', '99')"


@pytest.mark.parametrize(
    ("forged", "known"),
    [
        ({"": "1", "a": "nan", "b": "inf", "c": "-5", "d": "0", "e": "x", "f": "1e400", "g": "7"}, {"g": 7.0}),
        ({"": "1", "n" * 5_000: "7", "g": "7"}, {"g": 7.0}),
        ({"a": "7"}, {}),
        ({"": "1", b"\xff\xfe": "7", "g": "7"}, {"g": 7.0}),
    ],
)
async def test_what_cannot_be_a_ttl_is_left_out(make: Make, own_valkey: Server, forged: Any, known: Any):
    with own_valkey.client() as client:
        client.hset(KEY, mapping=forged)
    follower = Follower(make(own_valkey.url))
    await live(follower.tier)
    await until(lambda: "" not in forged or follower.changes)
    assert follower.ttls == known


async def test_a_key_of_another_type_costs_the_ttls_and_nothing_else(make: Make, own_valkey: Server, caplog: Any):
    own_valkey.command("SET", KEY, "x")
    tier = make(own_valkey.url)
    tier.subscribe(lambda _: None)
    tier.publish_ttl("shop:get", 12.0)
    await until(lambda: tier.stats()["trusted"])
    await until(lambda: "the hash of ttls" in caplog.text)
    assert tier.stats()["failures"] == 0


@pytest.mark.slow
async def test_rights_of_earlier_versions_suffice_for_everything_else(
    make: Make, own_valkey: Server, caplog: pytest.LogCaptureFixture
):
    rights = [right for right in least() if right not in _HASH_RIGHTS]
    assert len(rights) == len(least()) - len(_HASH_RIGHTS)
    own_valkey.command("ACL", "SETUSER", "agent", *rights)
    tier = make(f"redis://agent:secret@{HOST}:{own_valkey.port}", max_staleness=1.8, timeout=1.5)
    follower = Follower(tier)
    tier.subscribe(lambda _: None)
    with caplog.at_level(logging.WARNING, "agent_cache"):
        tier.publish_ttl("shop:get", 12.0)
        await until(lambda: tier.stats()["trusted"])
        await until(lambda: "the hash of ttls" in caplog.text)
    assert follower.ttls == {"shop:get": 12.0}
    assert tier.stats()["failures"] == 0
    before, beats = refused(own_valkey), heartbeats(own_valkey)
    await until(lambda: heartbeats(own_valkey) > beats + 3)
    assert refused(own_valkey) == before


def refused(server: Server) -> int:
    """How often the version was asked for in vain."""
    return int(server.info("commandstats").get("cmdstat_hget", {}).get("rejected_calls", 0))


def heartbeats(server: Server) -> int:
    """How many there were, at least."""
    return int(server.info("commandstats")["cmdstat_time"]["calls"])


async def test_a_change_that_is_made_while_another_one_is_on_its_way_is_not_lost(
    make: Make, valkey: Server, proxy: Proxy
):
    tier = make(proxy.url)
    await live(tier)
    proxy.delay(to_client=0.5)
    tier.publish_ttl("shop:get", 1.0)
    await until(lambda: fields(valkey) == {"shop:get": "1.0"})
    tier.publish_ttl("shop:get", 2.0)
    proxy.heal()
    await until(lambda: fields(valkey) == {"shop:get": "2.0"})


def test_what_a_process_puts_back_replaces_nothing(valkey: Server):
    """Another one may have set a ttl since its heartbeat found nothing."""
    script = RESTORE_TTLS.source.decode()
    for version, ttl in (("one", "1.0"), ("two", "2.0")):
        valkey.command("EVAL", script, 1, KEY, version, "channel", "shop:get", ttl)
    assert valkey.command("HGET", KEY, "") == "one"
    assert fields(valkey) == {"shop:get": "1.0"}


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_user_that_may_not_hear_of_ttls_hears_of_everything_else(
    make: Make,
    own_valkey: Server,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    goes_on: bool,
):
    """Also if it has asked for the messages of a root before the refusal comes."""
    listen = Subscription._listen_for_ttls

    def then_for_a_root(subscription: Subscription) -> None:
        listen(subscription)
        if subscription._awaits_ttls and goes_on:
            subscription.add(subscription._keyspace.root("cart"))

    monkeypatch.setattr(Subscription, "_listen_for_ttls", then_for_a_root)
    rights = [right for right in least() if not right.startswith("&")]
    own_valkey.command("ACL", "SETUSER", "agent", *rights, "&c:{agent_cache:order}*", "&c:{agent_cache:cart}*")
    tier = make(f"redis://agent:secret@{HOST}:{own_valkey.port}", max_staleness=1.8, timeout=1.5)
    other = make(own_valkey.url)
    follower = Follower(tier)
    tier.subscribe(lambda _: None)
    await load(tier, read("order:7"), "x")
    await until(lambda: "messages about ttls are refused" in caplog.text)
    beats = heartbeats(own_valkey)
    await until(lambda: heartbeats(own_valkey) > beats + 3)
    assert tier.stats()["losses"] == 0
    assert tier.stats()["trusted"]
    other.publish_ttl("shop:get", 12.0)
    await follower.knows({"shop:get": 12.0})


@pytest.mark.slow
async def test_the_least_rights_suffice(make: Make, own_valkey: Server):
    own_valkey.command("ACL", "SETUSER", "agent", *least())
    here, there = (make(f"redis://agent:secret@{HOST}:{own_valkey.port}") for _ in range(2))
    follower = Follower(there)
    here.publish_ttl("shop:get", 12.0)
    await follower.knows({"shop:get": 12.0})
    here.publish_ttl("shop:get", None)
    await follower.knows({})


@pytest.mark.slow
async def test_in_a_cluster(cluster: Cluster):
    async with making(cluster=True, max_staleness=6.0, timeout=2.0) as make:
        here, there = make(cluster.url), Follower(make(cluster.url))
        here.publish_ttl("shop:get", 12.0)
        await there.knows({"shop:get": 12.0})
        await Follower(make(cluster.url)).knows({"shop:get": 12.0})
        assert cluster.primary_for(KEY).command("HGET", KEY, "shop:get") == "12.0"
        assert slot_of(KEY) == slot_of("c:{agent_cache::ttl}")


@pytest.mark.slow
async def test_tools_here_and_in_another_process(make: Make, valkey: Server):
    """A process of its own starts, reads through the tier, and tells the ttl that it has; then it is taken back."""
    tier = make(valkey.url)

    @AgentCache("price", ttl=100, name="prices:get", remote_cache=tier)
    async def get_price() -> int:
        return 1

    await get_price()
    set_ttl(get_price, 12)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OTHER, valkey.url,
        stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert await process.stdout.readline() == b"12.0\n"
    set_ttl("prices:get", None)
    assert await process.stdout.readline() == b"100.0\n"
    process.stdin.write(b"33\n")
    await until(lambda: get_ttl(get_price) == 33)
    process.stdin.close()
    assert await process.wait() == 0


_OTHER = """
import asyncio, sys
from agent_cache import AgentCache, get_ttl, set_ttl
from agent_cache.remote import RedisTier

async def main():
    async with RedisTier.from_url(sys.argv[1], timeout=2.0, max_staleness=6.0) as tier:

        @AgentCache("price", ttl=100, name="prices:get", remote_cache=tier)
        async def get_price() -> int:
            return 1

        for wanted in (12, 100):
            await get_price()
            async with asyncio.timeout(60):
                while get_ttl(get_price) != wanted:
                    await asyncio.sleep(0.005)
            print(get_ttl(get_price), flush=True)
        set_ttl(get_price, float(await asyncio.to_thread(sys.stdin.readline)))
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
