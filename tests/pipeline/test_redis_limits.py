"""One limit for the size of a value: the tier's and its codec's are the same."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from functools import partial

import pytest

pytest.importorskip("redis")

from agent_cache.errors import ConfigurationError
from agent_cache.remote import Touched
from agent_cache.remote.codecs import JsonCodec, MessagePackCodec, SignedCodec
from agent_cache.remote.redis import RedisTier
from tests.contract.workbench import load, read, value_of
from tests.harness.servers import HOST, Server
from tests.harness.tiers import Make, making

MIB = 1_048_576
KEY = b"k" * 32


@pytest.fixture
async def make(valkey: Server) -> AsyncIterator[Make]:
    async with making(timeout=2.0, max_staleness=6.0) as make:
        yield partial(make, valkey.url)


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({}, MIB),
        ({"max_value_size": 3 * MIB}, 3 * MIB),
        ({"max_value_size": 2048}, 2048),
        ({"codec": MessagePackCodec(max_size=3 * MIB)}, 3 * MIB),
        ({"codec": JsonCodec(max_size=2048)}, 2048),
        ({"codec": SignedCodec(MessagePackCodec(max_size=2 * MIB), KEY), "max_value_size": MIB}, MIB),
    ],
)
async def test_what_is_as_long_as_allowed_is_found_and_what_is_longer_is_not_stored(make: Make, options, longest: int):
    tier = make(**options)
    long = os.urandom(longest // 2)
    await load(tier, read("order:7"), long)
    assert await value_of(tier, read("order:7")) == long
    await load(tier, read("order:8", key="8"), os.urandom(longest + 100))
    assert await value_of(tier, read("order:8", key="8")) == "nothing"
    assert tier.stats() | {"stores": 1, "unencodable": 1, "bad_values": 0} == tier.stats()


async def test_a_header_has_its_limit_too(make: Make):
    """What could be stored and never read would be loaded again each time, and nobody would be told."""
    tier = make()
    await load(tier, read(key="7", late=("order",)), "x", *(f"order:{os.urandom(1_200).hex()}" for _ in range(250)))
    assert tier.stats()["unencodable"] == 1
    await load(tier, read(key="7", late=("order",)), "x", *(f"order:{number}" for number in range(250)))
    assert await value_of(tier, read(key="7", late=("order",))) == "x"


def test_a_tier_does_not_promise_more_than_its_codec():
    with pytest.raises(ConfigurationError, match="max_size"):
        RedisTier.from_url("redis://localhost", max_value_size=4 * MIB, codec=MessagePackCodec())


async def test_calls_with_large_arguments_are_not_remembered(make: Make):
    """What tells of them then is the root. Tables are bounded by number, and a key holds its arguments."""
    here, there = make(), make()
    told: list[Touched | None] = []
    there.subscribe(told.append)
    large, small = read("order:7", key="x" * 5_000), read("order:7", key="7")
    for tier in (here, there):
        await load(tier, large, "answer")
        await load(tier, small, "answer")
        assert await value_of(tier, large) == "answer"
        assert [call[1] for call in tier._writer.keyspace.memory.calls.values()] == ["7"]
        assert len(tier._reader._places) == 1
    await there.caught_up()
    await here.discard(large)
    await there.caught_up()
    assert told == [Touched(("order",))]
    assert await value_of(there, large) == "nothing"


async def test_of_requests_only_those_are_remembered_that_are_used_again(make: Make):
    """One that is made for a call alone may hold whatever its arguments hold."""
    tier = make()
    for _ in range(5):
        await load(tier, read("order:7"), "x")
    assert not tier._reader._latest
    again = read("order:7")
    for _ in range(5):
        assert await value_of(tier, again) == "x"
    assert [request is again for request, _ in tier._reader._latest.values()] == [True]


async def test_connections_to_servers_that_are_gone_are_closed(make: Make, valkey: Server, own_valkey: Server):
    tier = make()
    await load(tier, read("order:7"), "answer")
    topology = tier._transport.topology
    (former,) = topology.servers
    batchers = tier._transport.client()._batchers
    batcher = batchers[former]
    assert batcher._connection is not None
    topology.set_primary((HOST, own_valkey.port))  # as Sentinels have it after a failover
    assert await value_of(tier, read("order:7")) == "nothing"
    assert list(batchers) == topology.servers != [former]
    assert batcher._connection is None


async def test_a_server_that_comes_and_goes_is_said_once(make: Make, caplog: pytest.LogCaptureFixture):
    """One that takes heartbeats and refuses reads, for want of a right, does so three times a second."""
    tier = make()
    transport = tier._transport
    for _ in range(5):
        transport.fail(transport.topology.servers[0], "NOPERM")
        transport.recover(transport.topology.servers[0])
    assert caplog.text.count("cannot be used") == 1
