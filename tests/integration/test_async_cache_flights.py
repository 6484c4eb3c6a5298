"""Sharing a load of an `AsyncCache` is safe: from cancellation, re-entrance, changes meanwhile and other threads."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from agent_cache import AgentLoopDetectedError, AsyncCache
from tests.harness.loads import (
    Get,
    HeldLoader,
    begun,
    calls_of,
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


# Event loops and threads


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
