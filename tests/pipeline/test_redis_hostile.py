"""What stands on a server is hostile until it is proved otherwise: anything but a value of ours is a counted miss."""

from __future__ import annotations

import asyncio
import pickle
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("redis")

import redis
from hypothesis import given, settings, strategies as st

from agent_cache import AgentCache
from agent_cache.remote.codecs import Codec, EncryptedCodec, JsonCodec, MessagePackCodec, SignedCodec
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.redis.connection import OVERSIZED
from agent_cache.remote.redis.subscriber import Subscription
from agent_cache.testing import reset
from tests.contract.workbench import commit, load, read, value_of, write
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


class Exploit:
    """Runs code when it is unpickled."""

    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Exploit, "ran", True)


@pytest.fixture
async def make(valkey: Server) -> AsyncIterator[Make]:
    async with making(max_value_size=LIMIT, timeout=1.5, max_staleness=3.0) as make:
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
    (key,) = raw.keys("v:*")
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

            await asyncio.to_thread(attack)
            assert tier.stats()["bad_values"] > examples / 6
            raw.set(key, good)
            assert await value_of(tier, request) == VALUE


MESSAGES = [b"", b"x", b"p B", b"p B T\xff", b"p Z *", b"p B Q1", b"\xff" * 9, b" ", b"p B T" + b"0" * (2 << 20)]


async def test_a_message_that_cannot_be_understood_means_all_of_its_root(make: Make, raw: redis.Redis, caplog):
    """It is logged once, and the subscription it came by goes on."""
    tier = make(max_staleness=5.0)
    truth = ["old"]

    @AgentCache("order:{id}", remote_cache=tier)
    async def get_order(id: int) -> str:
        return truth[0]

    @AgentCache("other:{id}", remote_cache=tier)
    async def get_other(id: int) -> str:
        return truth[0]

    await get_order(7)
    await get_other(7)
    assert await tier.caught_up()
    before = tier.stats()
    for number, said in enumerate(MESSAGES, 1):
        await get_order(7)
        hits = tier.stats()["hits"]
        assert raw.publish("c:{agent_cache:order}", said) == 1, said[:40]
        assert await tier.caught_up()
        assert tier.stats()["invalidations"] == before["invalidations"] + number, said[:40]
        await get_order(7)
        assert tier.stats()["hits"] == hits + 1, said[:40]  # the local copy had gone
    assert tier.stats()["losses"] == before["losses"]
    hits = tier.stats()["hits"]
    await get_other(7)
    assert tier.stats()["hits"] == hits
    assert [record.name for record in caplog.records] == ["agent_cache"]
    assert "cannot be understood" in caplog.text


@pytest.mark.parametrize("nonsense", [OVERSIZED, None, 5, [], [b"pong"], [b"message", b"c"], [b"pong", []], [[], 1]])
def test_an_answer_that_is_no_message_ends_a_subscription_and_raises_nothing(nonsense):
    tier = RedisTier.from_url("redis://h")  # it connects to nothing
    parts = tier._transport, tier._writer.keyspace, tier._invalidations, tier._writer
    subscription = Subscription(tier._transport.topology.servers[0], {}, *parts, tier._subscriber)
    ends = []
    subscription._connection = SimpleNamespace(close=lambda: ends.append(True))
    subscription._receive(nonsense)
    assert ends == [True]


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
async def test_payloads_that_run_code_elsewhere_run_none_here(make: Make, raw: redis.Redis, codec: Codec):
    """Behind a true header: whoever may write to the server can read the cells."""
    tier = make(codec=codec)
    request = replace(read("order:7"), returns=dict[str, Any])
    await load(tier, request, VALUE)
    key = only_value(raw)
    good = raw.get(key)
    head = good[: -len(_payload(good))]
    bombs = [
        *(pickle.dumps(Exploit(), protocol) for protocol in range(6)),
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\xc7\x04\x01boom",  # an extension type
        b"\x91" * 5_000 + b"\x01",  # nested
        b"[" * 5_000 + b"]" * 5_000,
        b"\xdd\xff\xff\xff\xff",  # a list of 4 G, of which nothing follows
        b"\xdb\xff\xff\xff\xff",
        b"x" * (LIMIT * 2),
    ]
    for number, bomb in enumerate(bombs, 1):
        raw.set(key, head + bomb)
        assert await value_of(tier, request) == "nothing", bomb[:40]
        assert tier.stats()["bad_values"] == number, bomb[:40]
    assert not Exploit.ran
    assert tier.stats()["failures"] == 0


def _payload(data: bytes) -> bytes:
    fixed = struct.Struct(">BddddII")
    *_, cells, late = fixed.unpack_from(data)
    return data[fixed.size + cells + late :]


async def test_data_that_is_right_for_another_type_is_a_miss(make: Make, raw: redis.Redis):
    """Values of the tool's former self are not read as what it returns now."""
    tier = make()
    as_dict, as_order = (replace(read("order:7"), returns=returns) for returns in (dict[str, Any], Order))
    await load(tier, as_dict, VALUE)
    assert await value_of(tier, as_order) == "nothing"
    assert tier.stats()["bad_values"] == 1
    await load(tier, as_order, Order(7, ["a"]))
    assert await value_of(tier, as_order) == Order(7, ["a"])
    assert await value_of(tier, as_dict) == "nothing"


@pytest.mark.parametrize("kind", ["list", "hash", "empty"])
@pytest.mark.parametrize("pattern", ["v:*", "t:*T*", "t:*S", "w:*}", "w:*:D", "w:*:T*"])
async def test_keys_that_somebody_else_has_used_are_misses_and_then_ours_again(
    make: Make, raw: redis.Redis, pattern: str, kind: str
):
    """Whatever kind of data it is: a cell and a registry are made anew, and the server is not taken for broken."""
    tier = make()
    await load(tier, read("order:7"), VALUE)
    intent = write("order:7")
    await tier.begin(intent)
    key = raw.keys(pattern)[0]
    raw.delete(key)
    {"hash": lambda: raw.hset(key, "a", "b"), "list": lambda: raw.rpush(key, "x"), "empty": lambda: raw.set(key, "")}[
        kind
    ]()
    assert await value_of(tier, read("order:7")) == "nothing"
    await commit(tier, intent)
    await load(tier, read("order:7"), "new")
    assert await value_of(tier, read("order:7")) == "new"
    assert tier.stats()["failures"] == tier.stats()["pending"] == 0


async def test_a_value_of_another_schema_is_a_miss(make: Make, raw: redis.Redis):
    tier = make()
    await load(tier, read("order:7"), VALUE)
    key = only_value(raw)
    good = raw.get(key)
    raw.set(key, bytes([good[0] + 1]) + good[1:])
    assert await value_of(tier, read("order:7")) == "nothing"
    assert tier.stats()["bad_values"] == 1


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
@pytest.mark.parametrize("others", [{"tenant": "evil"}, {"session": "other"}, {"key": "8"}])
async def test_a_value_that_was_copied_to_another_key_is_a_miss(
    make: Make, raw: redis.Redis, codec: Codec, others: dict[str, Any]
):
    """Even under the victim's own cells: what was written for one entry is unreadable as another."""
    tier = make(codec=codec)
    mine, theirs = read("order:7"), read("order:7", **others)
    await load(tier, mine, "mine")
    (own,) = raw.keys("v:*")
    await load(tier, theirs, "theirs")
    (other,) = [key for key in raw.keys("v:*") if key != own]
    own_head, payload = raw.get(own), _payload(raw.get(other))
    for forged in (raw.get(other), own_head[: -len(_payload(own_head))] + payload):
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
    fixed = struct.Struct(">BddddII")
    schema, loaded, ttl, grace, cost, cells, late = fixed.unpack_from(good)
    behind = good[fixed.size :]
    lines = behind[:cells].split(b"\n")
    fewer = b"\n".join(lines[:-1])
    forged = [
        fixed.pack(schema, loaded, ttl * 100, grace, cost, cells, late) + behind,
        fixed.pack(schema, loaded + 1000, ttl, grace, cost, cells, late) + behind,
        fixed.pack(schema, loaded, ttl, 1e6, cost, cells, late) + behind,
        fixed.pack(schema, loaded, ttl, grace, cost, len(fewer), late) + fewer + behind[cells:],
        fixed.pack(schema, loaded, ttl, grace, cost, cells, 0) + behind[:cells] + behind[cells + late :],
    ]
    for number, data in enumerate(forged, 1):
        raw.set(key, data)
        assert await value_of(tier, request) == "nothing", number
        assert tier.stats()["bad_values"] == number
    raw.set(key, good)
    assert await value_of(tier, request) == VALUE


async def test_a_value_that_is_too_large_costs_no_memory(make: Make, raw: redis.Redis):
    """It is skipped as it streams in, and so are a hundred of them."""
    tier = make()
    requests = [read(f"order:{number}", key=str(number)) for number in range(100)]
    for request in requests:
        await load(tier, request, VALUE)
    raw.set(only := next(iter(raw.keys("v:*"))), b"x" * 20_000_000)
    for key in raw.keys("v:*"):
        if key != only:
            raw.set(key, b"x" * 1_000_000)
    tracemalloc.start()
    found = await asyncio.gather(*(value_of(tier, request) for request in requests))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == ["nothing"] * 100
    assert tier.stats()["bad_values"] == 100
    assert peak < 5_000_000


async def test_a_cell_that_is_too_large_is_replaced(make: Make, raw: redis.Redis):
    """As one of another type is. What was stored under the former one is dead."""
    tier = make()
    await load(tier, read("order:7"), VALUE)
    raw.set(cell := "t:{agent_cache:order}:S", b"x" * 3_000_000)
    assert await value_of(tier, read("order:7")) == "nothing"
    assert raw.strlen(cell) < 256
    await load(tier, read("order:7"), VALUE)
    assert await value_of(tier, read("order:7")) == VALUE


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


async def test_a_result_that_cannot_be_written_down_is_kept_in_this_process(make: Make):
    reset()
    tier = make()
    runs = []

    async def get_order(id: str) -> Any:
        runs.append(id)
        return Exploit

    tool = AgentCache("order:{id}", remote_cache=tier)(get_order)
    assert await tool("7") is Exploit
    while not await tier.caught_up():
        await asyncio.sleep(0.01)
    assert await tool("7") is Exploit
    assert runs == ["7"]
    assert tier.stats()["unencodable"] == 1
    reset()
