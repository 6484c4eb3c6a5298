"""`AsyncCache` by itself: what async-cache promises, on both classes; and bounds, time, keys and warmup, on ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from types import SimpleNamespace

import cache as upstream
import pytest

from agent_cache import AsyncCache, ConfigurationError
from agent_cache.testing import FakeClock
from tests.harness.gates import idle
from tests.harness.loads import HeldLoader, begun

# What async-cache promises: every test of this part passes on its class and on ours.


@pytest.fixture
def ours_and_theirs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A cache class, and a way to let its time pass."""
    if request.param == "ours":
        with FakeClock() as clock:
            yield SimpleNamespace(make=AsyncCache, wait=clock.advance)
        return
    time = SimpleNamespace(now=datetime(2024, 1, 1))  # noqa: DTZ001 - theirs is naive
    stub = SimpleNamespace(datetime=SimpleNamespace(now=lambda: time.now), timedelta=timedelta)
    monkeypatch.setattr("cache.async_cache.datetime", stub)

    def wait(seconds: float) -> None:
        time.now += timedelta(seconds=seconds)

    yield SimpleNamespace(make=upstream.AsyncCache, wait=wait)


both = pytest.mark.parametrize("ours_and_theirs", ["ours", "theirs"], indirect=True)


@both
async def test_clear_empties_the_cache_and_zeroes_the_counters(ours_and_theirs):
    cache = ours_and_theirs.make()
    cache.set("a", 1)
    await cache.get("a")
    await cache.get("b")
    assert cache.get_metrics() == {"hits": 1, "misses": 1, "size": 1, "hit_rate": 0.5}
    assert (cache.hits, cache.misses) == (1, 1)
    cache.clear()
    assert cache.get_metrics() == {"hits": 0, "misses": 0, "size": 0, "hit_rate": 0.0}
    assert len(cache.cache) == 0


@both
async def test_a_loaded_value_lives_for_the_ttl_of_the_get_and_else_for_the_default_one(ours_and_theirs):
    cache = ours_and_theirs.make(default_ttl=10)

    async def load():
        return "v"

    async def load_batch(keys):
        return dict.fromkeys(keys, "v")

    await cache.get("a", load)
    await cache.get("b", load, ttl=20)
    await cache.get("c", batch_loader=load_batch, ttl=20)
    ours_and_theirs.wait(11)
    assert [await cache.get(key) for key in "abc"] == [None, "v", "v"]
    ours_and_theirs.wait(10)
    assert [await cache.get(key) for key in "bc"] == [None, None]


@both
@pytest.mark.parametrize("outcome", ["value", ValueError("failed")])
async def test_concurrent_misses_of_one_key_share_one_load(ours_and_theirs, outcome):
    cache, gate = ours_and_theirs.make(), HeldLoader(outcome)
    gets = await begun(*(cache.get("k", loader=gate.load) for _ in range(10)))
    gate.open()
    assert await asyncio.gather(*gets, return_exceptions=True) == [outcome] * 10
    assert len(gate.calls) == 1
    expected = {"hits": 0, "misses": 10, "size": int(outcome == "value"), "hit_rate": 0.0}
    assert cache.get_metrics() == expected


@both
@pytest.mark.parametrize("shape", ["dict", "list", "tuple"])
async def test_gets_of_one_window_are_one_batch(ours_and_theirs, shape):
    cache, calls = ours_and_theirs.make(batch_window_ms=1, max_batch_size=10), []

    async def load(keys):
        calls.append(list(keys))
        values = [f"v{key}" for key in keys]
        return (
            dict(zip(keys, values, strict=True)) if shape == "dict" else tuple(values) if shape == "tuple" else values
        )

    assert await asyncio.gather(*(cache.get(key, batch_loader=load) for key in "abc")) == ["va", "vb", "vc"]
    assert calls == [["a", "b", "c"]]
    assert await cache.get("a", batch_loader=load) == "va"
    assert len(calls) == 1


@both
async def test_warmup_loads_what_is_not_there(ours_and_theirs):
    cache = ours_and_theirs.make()
    cache.set("old", "kept")

    async def load():
        return "new"

    await cache.warmup({"a": load, "b": load, "old": load})
    assert [await cache.get(key) for key in ("a", "b", "old")] == ["new", "new", "kept"]


# It is async-cache's


async def test_what_is_done_at_once_may_also_be_awaited_as_their_documentation_does():
    cache = AsyncCache()
    assert await cache.set("k", 1, ttl=60) is None
    assert await cache.get("k") == 1
    assert await cache.delete("k") is None
    assert await cache.clear() is None
    assert not cache.set("k", 1)
    assert list(cache.set("k", 1).__await__()) == []  # it waits for nothing, not for a turn of the loop either


# Bounds and time


async def test_the_least_recently_used_makes_room_and_what_has_expired_is_gone():
    with FakeClock() as clock:
        cache = AsyncCache(maxsize=2)
        cache.set("a", 1, ttl=10)
        cache.set("b", 2)
        assert await cache.get("a") == 1
        assert list(cache.cache) == ["b", "a"]
        cache.set("c", 3, ttl=0)
        assert list(cache.cache) == ["b", "a"]
        cache.set("c", 3)
        assert list(cache.cache) == ["a", "c"]
        clock.advance(10)
        assert "a" not in cache.cache
        assert await cache.get("a") is None
        assert await cache.get("c") == 3


async def test_maxsize_0_keeps_nothing_and_still_shares_loads():
    cache, gate = AsyncCache(maxsize=0), HeldLoader()
    cache.set("k", 1)
    assert await cache.get("k") is None
    gets = await begun(*(cache.get("k", gate.load) for _ in range(3)))
    gate.open()
    assert await asyncio.gather(*gets) == ["loaded"] * 3
    assert len(gate.calls) == 1
    assert len(cache.cache) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"maxsize": -1},
        {"maxsize": True},
        {"maxsize": 1.5},
        {"default_ttl": "60"},
        {"default_ttl": float("nan")},
        {"default_ttl": True},
        {"batch_window_ms": -1},
        {"batch_window_ms": float("inf")},
        {"max_batch_size": 0},
        {"max_batch_size": 2.5},
    ],
    ids=str,
)
def test_an_argument_that_cannot_work_is_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        AsyncCache(**wrong)


# Keys


@dataclass(frozen=True)
class Point:
    x: int


@dataclass(frozen=True)
class Spot:
    x: int


@dataclass(eq=False)
class Node:
    """Known by which one it is, not by what is in it."""

    name: str


class Digit(IntEnum):
    ONE = 1


class Caseless(str):
    """Equal to itself in any case."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


DIFFERENT = [
    (1, True),
    (1, 1.0),
    (True, 1.0),
    (0, False),
    (1, "1"),
    ("x", b"x"),
    (None, "None"),
    ((1,), (True,)),
    ((1, (2,)), (1, (2.0,))),
    (frozenset({1}), frozenset({True})),
    ((1,), frozenset({1})),
    ((1,), 1),
    ((tuple, 1), (1,)),
    ((Point, Point(1)), Point(1)),
    (Point(1), Spot(1)),
    (Node("a"), Node("a")),
    ((Node("a"), 1), (Node("a"), 1)),
    (int, "int"),
    (Caseless("a"), "a"),
    (Digit.ONE, 1),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=repr)
async def test_different_keys_never_share_an_entry(one, other):
    cache = AsyncCache()
    cache.set(one, "one")
    assert await cache.get(other) is None
    cache.set(other, "other")
    assert (await cache.get(one), await cache.get(other)) == ("one", "other")
    cache.delete(one)
    assert (await cache.get(one), await cache.get(other)) == (None, "other")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Point(1), Point(1)),
        (Caseless("Key"), Caseless("kEY")),
        ((1, "a", (Point(2), 3.5)), (1, "a", (Point(2), 3.5))),
        (frozenset({1, 9}), frozenset({9, 1})),  # of one hash to a small set: the order in which they came is seen
        (datetime(2024, 1, 1), datetime(2024, 1, 1)),  # noqa: DTZ001 - a key like any other
    ],
    ids=repr,
)
async def test_equal_keys_of_one_class_are_one_key(one, other):
    cache = AsyncCache()
    cache.set(one, "v")
    assert await cache.get(other) == "v"


async def test_keys_that_a_dict_would_fold_go_in_different_batches():
    cache, calls = AsyncCache(batch_window_ms=0), []

    async def load(keys):
        calls.append(list(keys))
        return {key: type(key).__name__ for key in keys}

    gets = [cache.get(key, batch_loader=load) for key in (1, "a", True, 2)]
    assert await asyncio.gather(*gets) == ["int", "str", "bool", "int"]
    assert calls == [[1, "a"], [True, 2]]


# Warmup


async def test_a_loader_that_fails_does_not_keep_the_others_cold():
    cache, gate = AsyncCache(), HeldLoader()

    async def fail(error):
        raise error

    first = ValueError("first in order")
    (warmup,) = await begun(
        cache.warmup({"a": gate.load, "b": lambda: fail(first), "c": lambda: fail(KeyError()), "d": gate.load})
    )
    await idle()
    assert not warmup.done()
    gate.open()
    with pytest.raises(ValueError, match="first in order") as caught:
        await warmup
    assert caught.value is first
    assert set(cache.cache) == {"a", "d"}


@both
async def test_a_full_batch_does_not_wait_for_its_window(ours_and_theirs):
    cache, calls = ours_and_theirs.make(batch_window_ms=50, max_batch_size=3), []

    async def load(keys):
        calls.append(len(keys))
        return [key * 2 for key in keys]

    got = await asyncio.gather(*(cache.get(key, batch_loader=load) for key in range(7)))
    assert got == [key * 2 for key in range(7)]
    assert calls == [3, 3, 1]
