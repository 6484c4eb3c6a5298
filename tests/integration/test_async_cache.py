"""`AsyncCache`: what async-cache promises, on both classes; bounds, time, keys, batches and shared loads, on ours."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import cache as upstream
import pytest

from agent_cache import AgentLoopDetectedError, AsyncCache, ConfigurationError
from agent_cache.testing import FakeClock
from tests.harness.gates import idle, until
from tests.harness.threads import in_threads


async def turn() -> None:
    """One turn of the event loop: every task that was created before has run up to its first wait."""
    await asyncio.sleep(0)


async def begun(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Start them in this order, each up to its first wait."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    await turn()
    return tasks


class HeldLoader:
    """A loader that is held until `open`, and that notes how it was called."""

    def __init__(self, value: Any = "loaded") -> None:
        self.value = value
        self._opened = asyncio.Event()
        self.open = self._opened.set
        self.calls: list[Any] = []

    async def load(self) -> Any:
        return await self._called()

    async def load_batch(self, keys: list[Any]) -> Any:
        value = await self._called(*keys)
        return {key: (value, key) for key in keys}

    async def _called(self, *keys: Any) -> Any:
        self.calls.append([*keys])
        await self._opened.wait()
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def nothing_is_left(cache: AsyncCache) -> bool:
    """Whether no load, flight or batch of a cache is under way."""
    return not (cache._loads or cache._batches)


async def one_by_one(cache: AsyncCache, gate: HeldLoader, key: Any = "k") -> Any:
    """Get a key with the loader of one."""
    return await cache.get(key, loader=gate.load)


async def in_batches(cache: AsyncCache, gate: HeldLoader, key: Any = "k") -> Any:
    """Get a key with the loader of many."""
    found = await cache.get(key, batch_loader=gate.load_batch)
    assert found[1] == key
    return found[0]


Get = Callable[..., Coroutine[Any, Any, Any]]
single_and_batched = pytest.mark.parametrize("get", [one_by_one, in_batches])


async def calls_of(gate: HeldLoader, number: int) -> None:
    """Wait until the loader has been called this often: a window of 0 ms takes a few turns of the loop."""
    await until(lambda: len(gate.calls) >= number)


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


SHAPES = [dict, list, tuple, deque, lambda values: dict(enumerate(values)).values()]
"""What a batch loader may return: a mapping, or values in the order of the keys. Theirs does not know the last two."""


@pytest.mark.parametrize(
    ("ours_and_theirs", "shape"),
    [*(("ours", shape) for shape in SHAPES), *(("theirs", shape) for shape in SHAPES[:3])],
    indirect=["ours_and_theirs"],
)
async def test_gets_of_one_window_are_one_batch(ours_and_theirs, shape):
    cache, calls = ours_and_theirs.make(batch_window_ms=1, max_batch_size=10), []

    async def load(keys):
        calls.append(list(keys))
        values = [f"v{key}" for key in keys]
        return dict(zip(keys, values, strict=True)) if shape is dict else shape(values)

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


WRONG: list[dict[str, Any]] = [
    *({"maxsize": given} for given in (-1, True, 1.5)),
    *({"default_ttl": given} for given in ("60", float("nan"), True)),
    *({"batch_window_ms": given} for given in (-1, float("inf"))),
    *({"max_batch_size": given} for given in (0, 2.5)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
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
    *((1, True), (1, 1.0), (0, False), ("x", b"x"), (None, "None"), (int, "int"), (Digit.ONE, 1)),
    *(((1,), (True,)), ((1, (2,)), (1, (2.0,))), (frozenset({1}), frozenset({True})), ((1,), frozenset({1}))),
    *(((1,), 1), ((tuple, 1), (1,)), ((Point, Point(1)), Point(1)), (Point(1), Spot(1)), (Caseless("a"), "a")),
    *((Node("a"), Node("a")), ((Node("a"), 1), (Node("a"), 1))),
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


EQUAL = [
    *((Point(1), Point(1)), (Caseless("Key"), Caseless("kEY")), ((1, "a", (Point(2), 3.5)), (1, "a", (Point(2), 3.5)))),
    (frozenset({1, 9}), frozenset({9, 1})),  # of one hash to a small set: the order in which they came is seen
    (datetime(2024, 1, 1), datetime(2024, 1, 1)),  # noqa: DTZ001 - a key like any other
]


async def test_equal_keys_of_one_class_are_one_key():
    cache = AsyncCache()
    for one, other in EQUAL:
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


# Batches


async def test_one_key_is_loaded_once_in_a_window_and_while_its_batch_runs():
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    gets = await begun(*(in_batches(cache, gate, key) for key in "aba"))
    await calls_of(gate, 1)
    gets += await begun(in_batches(cache, gate, "a"), cache.get("a", loader=HeldLoader("not called").load))
    gate.open()
    *batched, single = await asyncio.gather(*gets)
    assert batched == ["loaded"] * 4
    assert single == ("loaded", "a")
    assert gate.calls == [["a", "b"]]


async def test_a_cancelled_caller_disturbs_no_other_one():
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    gone, *others = await begun(*(in_batches(cache, gate, key) for key in "abc"))
    gone.cancel()
    await asyncio.wait([gone])
    gate.open()
    assert await asyncio.gather(*others) == ["loaded"] * 2
    assert nothing_is_left(cache)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda keys: ["v"] * (len(keys) - 1), ValueError, r"load\(\) returned 2 values for 3 keys"),
        (lambda keys: ["v"] * (len(keys) + 1), ValueError, r"load\(\) returned 4 values for 3 keys"),
        (lambda keys: [], ValueError, "0 values"),
        (lambda keys: None, TypeError, "it returned NoneType"),
        (lambda keys: "abc", TypeError, "it returned str"),
        (lambda keys: set(keys), TypeError, "it returned set"),
        (lambda keys: 3, TypeError, "it returned int"),
        (type("Series", (list,), {"keys": list}), TypeError, "it returned Series"),  # pandas has an order of its own
    ],
)
async def test_an_answer_that_cannot_be_matched_with_the_keys_is_an_error_and_not_a_guess(answer, error, words):
    cache = AsyncCache(batch_window_ms=0)

    async def load(keys):
        return answer(keys)

    outcomes = await asyncio.gather(*(cache.get(key, batch_loader=load) for key in "abc"), return_exceptions=True)
    for outcome in outcomes:
        with pytest.raises(error, match=words):
            raise outcome
    assert len(cache.cache) == 0
    assert nothing_is_left(cache)


async def test_a_key_that_the_mapping_lacks_is_none_and_asked_for_again():
    cache, calls = AsyncCache(batch_window_ms=0), []

    async def load(keys):
        calls.append(list(keys))
        return {"a": 1, "none": None}

    for _ in range(2):
        gets = (cache.get(key, batch_loader=load) for key in ("a", "lacking", "none", "lacking"))
        assert await asyncio.gather(*gets) == [1, None, None, None]
    assert calls == [["a", "lacking", "none"], ["lacking"]]
    assert list(cache.cache) == ["a", "none"]


# Cancellation


@single_and_batched
async def test_a_waiter_takes_over_from_a_leader_that_is_cancelled(get: Get):
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    leader, *waiters = await begun(*(get(cache, gate) for _ in range(4)))
    await calls_of(gate, 1)
    leader.cancel()
    await turn()
    gate.open()
    assert await asyncio.gather(*waiters) == ["loaded"] * 3
    assert leader.cancelled()
    assert len(gate.calls) == 2
    assert cache.get_metrics()["size"] == 1
    assert nothing_is_left(cache)


# Re-entrance


@pytest.mark.parametrize("batched", [False, True])
async def test_a_loader_that_asks_for_its_own_key_does_not_wait_for_itself(batched):
    cache, depth = AsyncCache(batch_window_ms=0), []

    async def load(keys=None):
        depth.append(len(depth))
        value = "inner" if len(depth) == 2 else f"outer of {await again()}"
        return value if keys is None else [value] * len(keys)

    async def again():
        return await (cache.get("k", batch_loader=load) if batched else cache.get("k", loader=load))

    async with asyncio.timeout(100):
        assert await again() == "outer of inner"
    assert nothing_is_left(cache)


# Changes during a load

CHANGES: dict[str, tuple[Callable[[AsyncCache], Any], Any]] = {
    "set": (lambda cache: cache.set("k", "set"), "set"),
    "delete": (lambda cache: cache.delete("k"), None),
    "clear": (AsyncCache.clear, None),
    "set for no time": (lambda cache: cache.set("k", "gone at once", ttl=0), None),
}


@single_and_batched
@pytest.mark.parametrize(("change", "after"), CHANGES.values(), ids=CHANGES)
async def test_a_load_does_not_undo_what_was_done_while_it_ran(get: Get, change, after):
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    gets = await begun(get(cache, gate), get(cache, gate))
    await calls_of(gate, 1)
    change(cache)
    assert await cache.get("k") == after
    gate.open()
    assert await asyncio.gather(*gets) == ["loaded"] * 2
    assert await cache.get("k") == after
    assert nothing_is_left(cache)


# Event loops and threads


def test_threads_that_read_write_and_cancel_at_once_leave_nothing_behind():
    cache = AsyncCache(maxsize=5, batch_window_ms=0, max_batch_size=3)
    gets = [0] * 4

    async def load_batch(keys):
        await turn()
        return [("v", key) for key in keys]

    async def run(number: int) -> None:
        chance = random.Random(number)

        async def work() -> None:
            for _ in range(100):
                key = chance.randrange(8)

                async def load(key=key):
                    await turn()
                    return ("v", key)

                step = chance.randrange(10)
                if step == 0:
                    cache.delete(key)
                elif step == 1:
                    cache.set(key, ("v", key))
                else:
                    gets[number] += 1
                    loaders = {"loader": load} if step < 6 else {"batch_loader": load_batch}
                    task = asyncio.create_task(cache.get(key, **loaders))
                    if step == 9:
                        await turn()
                        task.cancel()
                    (outcome,) = await asyncio.gather(task, return_exceptions=True)
                    assert outcome == ("v", key) or isinstance(outcome, asyncio.CancelledError)

        async with asyncio.timeout(100):
            await asyncio.gather(*(work() for _ in range(5)))

    in_threads(4, lambda number: asyncio.run(run(number)))
    assert nothing_is_left(cache)
    assert len(cache.cache) <= 5
    metrics = cache.get_metrics()
    assert metrics["hits"] + metrics["misses"] == sum(gets)


async def test_a_run_that_is_stopped_while_it_loads_stops_nobody_else():
    cache, gate = AsyncCache(), HeldLoader(AgentLoopDetectedError("a tool", "depth", 200))
    leader, waiter = await begun(*(one_by_one(cache, gate) for _ in range(2)))
    await calls_of(gate, 1)
    gate.open()
    with pytest.raises(AgentLoopDetectedError):
        await leader
    with pytest.raises(AgentLoopDetectedError):
        await waiter
    assert len(gate.calls) == 2  # each in its own run
    assert nothing_is_left(cache)
