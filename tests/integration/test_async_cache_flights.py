"""Sharing a load of an `AsyncCache` is safe: from cancellation, re-entrance, changes meanwhile and other threads."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheSession, AgentLoopDetectedError, AsyncCache
from tests.harness.gates import until
from tests.harness.loads import (
    Get,
    HeldLoader,
    begun,
    calls_of,
    in_batches,
    nothing_is_left,
    one_by_one,
    single_and_batched,
    turn,
)

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


@single_and_batched
async def test_a_waiter_that_is_cancelled_disturbs_nobody(get: Get):
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    leader, waiter, other = await begun(*(get(cache, gate) for _ in range(3)))
    await calls_of(gate, 1)
    waiter.cancel()
    await turn()
    gate.open()
    assert await asyncio.gather(leader, other) == ["loaded"] * 2
    assert waiter.cancelled()
    assert len(gate.calls) == 1
    assert nothing_is_left(cache)


@single_and_batched
async def test_a_promoted_waiter_that_is_cancelled_before_it_wakes_hands_on(get: Get):
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()

    async def lead():
        try:
            return await get(cache, gate)
        finally:
            promoted.cancel()  # its wake-up is due, and has not come yet

    leader, promoted, last = await begun(lead(), get(cache, gate), get(cache, gate))
    await calls_of(gate, 1)
    leader.cancel()
    await asyncio.wait([leader, promoted])
    gate.open()
    assert await last == "loaded"
    assert promoted.cancelled()
    assert len(gate.calls) == 2
    assert nothing_is_left(cache)


@single_and_batched
async def test_random_cancellations_leave_nothing_behind(get: Get):
    for seed in range(150):
        chance = random.Random(seed)
        cache, gate = AsyncCache(batch_window_ms=0, max_batch_size=3), HeldLoader()
        tasks = [asyncio.create_task(get(cache, gate, chance.randrange(3))) for _ in range(12)]
        victims = chance.sample(tasks, chance.randrange(len(tasks)))
        for victim in victims:
            for _ in range(chance.randrange(3)):
                await turn()
            victim.cancel()
        gate.open()
        async with asyncio.timeout(100):
            await asyncio.wait(tasks)
        for task in tasks:
            assert task.cancelled() or task.result() == "loaded"
            assert task in victims or not task.cancelled()
        await until(lambda cache=cache: nothing_is_left(cache))


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


async def test_a_trace_sees_through_a_load_to_the_tool_that_asked():
    cache = AsyncCache(batch_window_ms=0)

    @AgentCache(resource="r")
    async def inner(x: int) -> int:
        return x

    @AgentCache(resource="r")
    async def outer(x: int) -> int:
        return await cache.get(("one", x), lambda: inner(x)) + await cache.get(("many", x), batch_loader=sums)

    async def sums(keys: list[Any]) -> list[int]:
        return [await inner(10 * key[1]) for key in keys]

    async with AgentCacheSession() as session:
        assert await outer(1) == 11
        await cache.get("outside", lambda: inner(5))
    tools, parents = zip(*((record.tool[-5:], record.parent) for record in session.get_execution_trace()), strict=True)
    assert tools == ("inner", "inner", "outer", "inner")
    assert parents[0] == parents[1] != None  # noqa: E711 - the chain reads best so
    assert parents[2] is parents[3] is None


# Changes during a load

changes = pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda cache: cache.set("k", "set"), "set"),
        (lambda cache: cache.delete("k"), None),
        (lambda cache: cache.clear(), None),
        (lambda cache: cache.set("k", "gone at once", ttl=0), None),
    ],
    ids=["set", "delete", "clear", "set for no time"],
)


@single_and_batched
@changes
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


@single_and_batched
async def test_who_asks_after_a_delete_does_not_get_what_was_loaded_before_it(get: Get):
    cache, before, after = AsyncCache(batch_window_ms=0), HeldLoader("before"), HeldLoader("after")
    early = await begun(get(cache, before), get(cache, before))
    await calls_of(before, 1)
    cache.delete("k")
    early[0].cancel()  # also not while the flight is being handed over
    (late,) = await begun(get(cache, after))
    after.open()
    assert await late == "after"
    assert await early[1] == "after"  # it had to begin again, after the delete
    before.open()
    assert await get(cache, before) == "after"
    await until(lambda: nothing_is_left(cache))


async def test_a_delete_before_a_batch_starts_lets_later_gets_be_kept():
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    gate.open()
    (early,) = await begun(in_batches(cache, gate))
    cache.delete("k")
    (late,) = await begun(in_batches(cache, gate))
    assert await asyncio.gather(early, late) == ["loaded"] * 2
    assert gate.calls == [["k"]]
    assert await cache.get("k") == ("loaded", "k")


# Event loops and threads


@single_and_batched
def test_one_cache_serves_one_loop_after_the_other(get: Get):
    cache = AsyncCache(batch_window_ms=0)

    async def run(key: str) -> Any:
        gate = HeldLoader()
        gate.open()
        return await asyncio.gather(*(get(cache, gate, key) for _ in range(3)))

    assert asyncio.run(run("a")) == asyncio.run(run("b")) == ["loaded"] * 3
    assert asyncio.run(run("a")) == ["loaded"] * 3
    assert nothing_is_left(cache)


def test_threads_that_read_write_and_cancel_at_once_leave_nothing_behind():
    cache = AsyncCache(maxsize=5, batch_window_ms=0, max_batch_size=3)
    errors: list[BaseException] = []
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

    def thread(number: int) -> None:
        try:
            asyncio.run(run(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(100)
    assert errors == []
    assert nothing_is_left(cache)
    assert len(cache.cache) <= 5
    metrics = cache.get_metrics()
    assert metrics["hits"] + metrics["misses"] == sum(gets)


def test_a_loop_that_stops_in_the_middle_of_a_window_does_not_wedge_the_next():
    cache, loop = AsyncCache(batch_window_ms=60_000, max_batch_size=2), asyncio.new_event_loop()

    async def load(keys: list[Any]) -> list[Any]:
        return keys

    task = loop.create_task(cache.get("k", batch_loader=load))
    loop.call_soon(loop.call_soon, loop.stop)
    loop.run_forever()
    task._log_destroy_pending = False
    loop.close()

    async def run() -> list[Any]:
        return await asyncio.gather(*(cache.get(key, batch_loader=load) for key in ("k", "l")))

    assert asyncio.run(run()) == ["k", "l"]
    assert not cache._batches


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


# Errors


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses to have its traceback and its context set."""

    reason: str


@single_and_batched
async def test_an_error_that_refuses_changes_reaches_every_caller_unchanged(get: Get):
    error = Frozen("no")
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader(error)
    callers = await begun(*(get(cache, gate) for _ in range(3)))
    await calls_of(gate, 1)
    gate.open()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [one is error for one in found] == [True] * 3
    assert nothing_is_left(cache)
