"""One limit for the size of a value: the tier's and its codec's are the same."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache.errors import ConfigurationError
from agent_cache.remote.codecs import JsonCodec, MessagePackCodec, SignedCodec
from agent_cache.remote.redis import RedisTier
from agent_cache.testing.contract.workbench import load, read, value_of
from tests.harness.servers import Server

Make = Callable[..., RedisTier]
MIB = 1_048_576
KEY = b"k" * 32


@pytest.fixture
async def make(valkey: Server) -> AsyncIterator[Make]:
    made: list[RedisTier] = []

    def make(**options: Any) -> RedisTier:
        made.append(RedisTier.from_url(valkey.url, **({"timeout": 0.9} | options)))
        return made[-1]

    yield make
    for tier in made:
        await tier.aclose()


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
    await load(tier, read(key="7", late=("order",)), "x", *(f"order:{os.urandom(300).hex()}" for _ in range(250)))
    assert tier.stats()["unencodable"] == 1
    await load(tier, read(key="7", late=("order",)), "x", *(f"order:{number}" for number in range(250)))
    assert await value_of(tier, read(key="7", late=("order",))) == "x"


def test_a_tier_does_not_promise_more_than_its_codec():
    with pytest.raises(ConfigurationError, match="max_size"):
        RedisTier.from_url("redis://localhost", max_value_size=4 * MIB, codec=MessagePackCodec())
