"""What stands on a server is hostile until it is proved otherwise: anything but a value of ours is a counted miss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import pytest

pytest.importorskip("redis")

import redis
from hypothesis import given, settings, strategies as st

from agent_cache import AgentCache
from agent_cache.remote.backend import open_head
from agent_cache.remote.codecs import Codec, EncryptedCodec, JsonCodec, MessagePackCodec, SignedCodec
from agent_cache.remote.redis import RedisTier
from agent_cache.testing import reset
from tests.contract.workbench import load, read, value_of
from tests.harness.servers import Server
from tests.harness.slow import slow
from tests.harness.tiers import Make, making

LIMIT = 16_384
KEY = bytes(range(32))
VALUE = {"id": 7, "items": ["a", "b"]}


@dataclass
class Order:
    """What a tool returns."""

    id: int
    items: list[str]


@pytest.fixture
async def make(valkey: Server) -> AsyncIterator[Make]:
    async with making(max_value_size=LIMIT) as make:
        yield partial(make, valkey.url)


@pytest.fixture
def raw(valkey: Server):
    with valkey.client(decode_responses=False) as client:
        yield client


def codecs() -> list[Codec]:
    """Every kind, and what proves who wrote it around the default."""
    plain = MessagePackCodec()
    found: list[Codec] = [plain, JsonCodec(), SignedCodec(plain, KEY)]
    try:
        found.append(EncryptedCodec(plain, KEY))
    except ValueError:  # without cryptography
        pass
    return found


GUARDED = [codec for codec in codecs() if not isinstance(codec, MessagePackCodec | JsonCodec)]


def only_value(raw: redis.Redis) -> bytes:
    (key,) = raw.keys("{agent_cache}:v:*")
    return key


def junk() -> st.SearchStrategy[Callable[[bytes], bytes]]:
    """Ways to make something else of a good value."""
    cut = st.integers(0, 400).map(lambda at: lambda good: good[: at % len(good)])
    flip = st.tuples(st.integers(0, 10_000), st.integers(0, 7)).map(
        lambda spot: lambda good: _flipped(good, spot[0] % len(good), spot[1])
    )
    grown = st.binary(min_size=1, max_size=50).map(lambda more: lambda good: good + more)
    noise = st.binary(max_size=400).map(lambda noise: lambda _: noise)
    return st.one_of(cut, flip, grown, noise)


def _flipped(good: bytes, at: int, bit: int) -> bytes:
    return good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
@pytest.mark.parametrize("examples", [25, *slow(60)])
def test_what_was_damaged_is_a_miss_or_what_it_was(valkey: Server, codec: Codec, examples: int):
    """A flipped bit of the header may leave a value as good as it was, a little older perhaps; never another value."""
    asyncio.run(_damage(valkey, codec, examples))


async def _damage(valkey: Server, codec: Codec, examples: int) -> None:
    request = replace(read("order:7"), returns=dict[str, Any])
    is_guarded = codec in GUARDED
    async with RedisTier.from_url(
        valkey.url, codec=codec, max_value_size=LIMIT, timeout=10.0, max_staleness=30.0
    ) as tier:
        await load(tier, request, VALUE)
        loop = asyncio.get_running_loop()
        with valkey.client(decode_responses=False) as raw:
            key = only_value(raw)
            good = raw.get(key)

            async def look(bad: bytes) -> None:
                raw.set(key, bad)
                before = tier.stats()
                found = await value_of(tier, request)
                after = tier.stats()
                if bad == good or (found == VALUE and not is_guarded):
                    return
                assert found == "nothing", bad
                assert after["misses"] == before["misses"] + 1
                assert after["failures"] == before["failures"] == 0

            @settings(max_examples=examples)
            @given(junk())
            def attack(spoil: Callable[[bytes], bytes]) -> None:
                asyncio.run_coroutine_threadsafe(look(spoil(good)), loop).result(60)

            for at in range(good.index(b"\n")):  # each byte of the header, as no text in UTF-8
                await look(_flipped(good, at, 7))
            await asyncio.to_thread(attack)
            assert tier.stats()["bad_values"] > examples / 6
            raw.set(key, good)
            assert await value_of(tier, request) == VALUE


async def test_a_message_that_cannot_be_understood_means_everything(make: Make, raw: redis.Redis, caplog):
    """It is logged once, and the feed goes on."""
    tier = make()

    @AgentCache("order:{id}", remote_cache=tier)
    async def get_order(id: int) -> str:
        return "old"

    await get_order(7)
    assert await tier.caught_up()
    for number, said in enumerate([b"x", b"p B", b"\xff" * 9, b" ", b"x" * (2 << 20)], 1):
        await get_order(7)
        hits = tier.stats()["hits"]
        raw.xadd("{agent_cache}:f", {"m": said}, id=f"{raw.incr('{agent_cache}:n')}-0")
        assert await tier.caught_up()
        assert tier.stats()["losses"] == number
        await get_order(7)
        assert tier.stats()["hits"] == hits + 1, said[:40]  # the local copy had gone
    assert [record.name for record in caplog.records] == ["agent_cache"]
    assert "a message cannot be read" in caplog.text


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
@pytest.mark.parametrize("others", [{"tenant": "evil"}, {"session": "other"}, {"key": "8"}])
async def test_a_value_that_was_copied_to_another_key_is_a_miss(
    make: Make, raw: redis.Redis, codec: Codec, others: dict[str, Any]
):
    """Even under the victim's own cells: what was written for one entry is unreadable as another."""
    tier = make(codec=codec)
    mine, theirs = read("order:7"), read("order:7", **others)
    await load(tier, mine, "mine")
    (own,) = raw.keys("{agent_cache}:v:*")
    await load(tier, theirs, "theirs")
    (other,) = [key for key in raw.keys("{agent_cache}:v:*") if key != own]
    head, payload = raw.get(own).partition(b"\n")[0], raw.get(other).partition(b"\n")[2]
    for forged in (raw.get(other), head + b"\n" + payload):
        raw.set(own, forged)
        assert await value_of(tier, mine) == "nothing"
    assert tier.stats()["bad_values"] >= 1
    assert await value_of(tier, theirs) == "theirs"


@pytest.mark.parametrize("codec", GUARDED, ids=lambda codec: codec.name)
async def test_a_header_is_signed_too(make: Make, raw: redis.Redis, codec: Codec):
    """Who cannot sign can neither make a value live longer, nor have it depend on other cells, nor name other tags."""
    tier = make(codec=codec)
    request = read(late=("order",))
    await load(tier, request, VALUE, "order:7")
    assert await value_of(tier, request) == VALUE
    key = only_value(raw)
    good = raw.get(key)
    raw_head, _, payload = good.partition(b"\n")
    head = open_head(raw_head)
    assert head is not None
    fewer = {cell: version for cell, version in head.versions.items() if "::" not in cell}
    forged = [
        msgspec.structs.replace(head, **change).encode() + b"\n" + payload
        for change in (
            {"ttl": head.ttl * 100},
            {"loaded": head.loaded - 1.0},
            {"grace": 1e6},
            {"versions": fewer},
            {"late": b""},
        )
    ]
    for number, data in enumerate(forged, 1):
        raw.set(key, data)
        assert await value_of(tier, request) == "nothing", number
        assert tier.stats()["bad_values"] == number
    raw.set(key, good)
    assert await value_of(tier, request) == VALUE


class Broken:
    """A codec that somebody wrote in a hurry."""

    name = "broken"
    max_size = LIMIT

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        if value == "good":
            return b"good"
        raise KeyError("secret")

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        raise KeyError("secret")


async def test_a_codec_that_raises_anything_is_no_error_of_the_tool(make: Make, caplog: pytest.LogCaptureFixture):
    """Its messages may hold data, so only the type is logged; and once."""
    reset()
    tier = make(codec=Broken())
    runs = []

    async def get_order(id: str) -> Any:
        runs.append(id)
        return "good" if id == "7" else object

    tool = AgentCache("order:{id}", remote_cache=tier)(get_order)
    for _ in range(3):
        for id in ("7", "8"):
            assert await tool(id) is not None
            tool.clear()
    assert runs == ["7", "8"] * 3
    assert tier.stats()["bad_values"] == 2
    assert tier.stats()["unencodable"] == 3
    assert len([record for record in caplog.records if "cannot be encoded" in record.getMessage()]) == 1
    assert "secret" not in caplog.text
    reset()
