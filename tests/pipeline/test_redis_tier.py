"""What pages promise of a tier on a server beside the contract: what stands there, who may do what, what it costs."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache.errors import ConfigurationError
from agent_cache.remote import RedisTier
from agent_cache.remote.codecs import JsonCodec, MessagePackCodec, SignedCodec
from tests.contract.workbench import commit, load, read, value_of, write
from tests.harness.proxies import Proxy
from tests.harness.rights import least
from tests.harness.servers import HOST, Server
from tests.harness.slow import slow
from tests.harness.tiers import Make, making, until

DAY = 86_400.0
MIB = 1_048_576


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making(is_heard=True) as make:
        yield make


# What stands on the server


async def test_keys_hold_roots_and_digests_and_no_ids(make: Make, valkey: Server):
    tier = make(valkey.url)
    await load(tier, read("order:secret", key="secret"), "x")
    await tier.begin(write("order:secret"))
    with valkey.client() as client:
        names = list(client.scan_iter("{agent_cache}:*", 1000))
        members = [*client.zrange("{agent_cache}:w", 0, -1), *client.hvals("{agent_cache}:r")]
    assert len(names) > 5
    assert not any("secret" in text for text in [*names, *members])


@pytest.mark.parametrize(("count", "batches"), [(50, 1), (120, 3)])
async def test_lookups_of_one_moment_share_a_command_and_later_ones_another(
    make: Make, valkey: Server, count: int, batches: int
):
    """One that is under way would answer from before a write that has ended in between."""
    tier = make(valkey.url)
    requests = [read(f"order:{number}", key=str(number)) for number in range(count)]
    for request in requests:
        await load(tier, request, request.key)
    before = tier.stats()["batches"]
    found = await asyncio.gather(*(tier.lookup(request) for request in requests))
    assert [each.value for each, _ in found] == [request.key for request in requests]
    assert tier.stats()["batches"] == before + batches
    first = asyncio.create_task(tier.lookup(requests[0]))
    while tier.stats()["batches"] == before + batches:
        await asyncio.sleep(0)
    await tier.lookup(requests[0])
    await first
    assert tier.stats()["batches"] == before + batches + 2


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({}, MIB),
        ({"max_value_size": 3 * MIB}, 3 * MIB),
        ({"codec": JsonCodec(max_size=2048)}, 2048),
        ({"codec": SignedCodec(MessagePackCodec(max_size=2 * MIB), b"k" * 32), "max_value_size": MIB}, MIB),
    ],
)
async def test_a_value_over_the_limit_is_not_stored(make: Make, valkey: Server, options: Any, longest: int):
    tier = make(valkey.url, **options)
    long = os.urandom(longest // 2)
    await load(tier, read("order:7"), long)
    assert await value_of(tier, read("order:7")) == long
    await load(tier, read("order:8", key="8"), os.urandom(longest + 100))
    assert await value_of(tier, read("order:8", key="8")) == "nothing"
    assert tier.stats() | {"stores": 1, "unencodable": 1, "bad_values": 0} == tier.stats()


# Time


@pytest.mark.parametrize(
    ("options", "ttl", "lasts"),
    [({}, None, 3_600), ({}, 7_200, 7_200), ({}, 10 * DAY, DAY / 2), ({"remote_ttl": 2 * DAY}, 10 * DAY, 2 * DAY)],
)
async def test_a_value_lives_as_long_as_its_tool_says_and_not_for_days(
    make: Make, valkey: Server, options: Any, ttl: float | None, lasts: float
):
    request = read("order:7", ttl=ttl)
    await load(make(valkey.url, **options), request, "value")
    found, _ = await make(valkey.url, **options).lookup(request)
    assert lasts - 60 < found.ttl <= lasts


@pytest.mark.parametrize("delays", ["to_server", "to_client"])
async def test_a_value_is_no_younger_for_who_has_waited_for_the_server(
    make: Make, valkey: Server, proxy: Proxy, delays: str
):
    """The moment at which the server read its clock lies anywhere between the question and the reply."""
    tier, request = make(proxy.url), read("order:7", ttl=60.0)
    await tier.lookup(request)
    proxy.delay(**{delays: 0.1})
    _, ticket = await tier.lookup(request)
    await tier.store(ticket, "x", request.tags, 0.5, age=20.0)
    stored = time.monotonic()
    found, _ = await tier.lookup(request)
    assert found is not None
    assert found.age >= 20.0 + time.monotonic() - stored
    assert found.ttl is not None
    assert found.ttl <= 60.0 - found.age


# Event loops


def test_an_event_loop_that_has_ended_is_not_kept(valkey: Server):
    """A program may run one for each call."""
    tier, loops = RedisTier.from_url(valkey.url), list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def use() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await tier.lookup(read("order:7"))

    for _ in range(4):
        asyncio.run(use())
    gc.collect()
    assert [each() for each in loops[:-1]] == [None] * 3
    asyncio.run(tier.aclose())


# Commits that are on their way


@pytest.mark.parametrize("count", [1_500, *slow(30_000)])
@pytest.mark.parametrize("kind", ["entities", "entries"])
async def test_a_write_of_very_many_things_lands_and_ends_them(make: Make, valkey: Server, kind: str, count: int):
    tier, other = make(valkey.url), make(valkey.url)
    told: list[Any] = []
    other.subscribe(told.append)
    requests = [read(f"order:{number}" if kind == "entities" else "order", key=str(number)) for number in range(count)]
    await load(other, requests[7], "old")
    await other.caught_up()
    tags = [request.tags[0] for request in requests] if kind == "entities" else []
    intent = write(*tags, entries=() if tags else tuple(requests))
    await tier.begin(intent)
    await commit(tier, intent)
    await other.caught_up()
    assert tier.stats()["pending"] == tier.stats()["failures"] == valkey.command("ZCARD", "{agent_cache}:w") == 0
    assert await value_of(other, requests[7]) == "nothing"
    if kind == "entities":
        assert [one.tags for one in told] == [("order",)] * 2


# Rights, and options


async def does_everything(tier: RedisTier) -> None:
    await load(tier, read("order:7", ttl=5.0), "x")
    await value_of(tier, read("order:7", ttl=5.0))
    intent = write("order:7", late=("user",), entries=(read("order:7"),))
    await tier.begin(intent)
    await tier.renew(intent)
    await commit(tier, intent, failed=True)
    await tier.discard(read("order:7"))
    tier.publish_ttl("shop:get", 12.0)
    await tier.caught_up()


async def test_a_user_with_the_rights_of_the_guide_can_do_everything(make: Make, own_valkey: Server):
    own_valkey.command("ACL", "SETUSER", "agent", *least())
    tier = make(f"redis://agent:secret@{HOST}:{own_valkey.port}")
    await does_everything(tier)
    await until(lambda: tier.stats()["pending"] == 0)
    assert await tier.caught_up()
    assert tier.stats()["failures"] == 0


async def test_who_may_not_wait_for_messages_asks_for_them_now_and_then(make: Make, own_valkey: Server):
    """Some proxies refuse commands that block."""
    own_valkey.command("ACL", "SETUSER", "agent", *(each for each in least() if each != "+xread"))
    tier = make(f"redis://agent:secret@{HOST}:{own_valkey.port}", max_staleness=3000)

    def refused() -> int:
        return int(own_valkey.info("commandstats").get("cmdstat_xread", {}).get("rejected_calls", 0))

    await until(lambda: refused() > 0)
    await asyncio.to_thread(lambda: [refused() for _ in range(300)])
    assert refused() == 1
    assert await value_of(tier, read("order:7")) == "nothing"
    assert tier.stats()["failures"] == 0


@pytest.mark.parametrize("right", ["+get", "+zadd", "+zrem", "+zrangebyscore", *slow("+hset", "+xadd", "+xrange")])
async def test_a_right_that_is_missing_is_a_failure_and_nothing_that_is_done_without(
    make: Make, own_valkey: Server, right: str
):
    """``ZRANGEBYSCORE`` is how a writer that has died is found."""
    own_valkey.command("ACL", "SETUSER", "agent", *(each for each in least() if each != right))
    tier = make(f"redis://agent:secret@{HOST}:{own_valkey.port}", timeout=0.5, max_staleness=1.0)
    await does_everything(tier)
    assert tier.stats()["failures"] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"namespace": ""}, {"namespace": "a b"}, {"namespace": "{a}"}, {"max_staleness": 0},
        {"max_staleness": 0.1, "timeout": 0.2}, {"lease": -1}, {"max_value_size": 5}, {"codec": object()},
        {"remote_ttl": None},
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_once(options: Any):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RedisTier.from_url("redis://localhost", **options)
