"""Lanes: what one task does in order, or one context that a thread runs in. A strict replay compares order in them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_cache.recording import Cassette, DivergenceError, intercept, record, replay

is_live = True


@pytest.fixture(autouse=True)
def live():
    global is_live
    is_live = True
    yield
    is_live = True


def off():
    global is_live
    is_live = False


@intercept(name="look")
def look(number: int) -> int:
    assert is_live, "ran in a replay"
    return number


@intercept(name="fetch")
async def fetch(number: int) -> int:
    assert is_live, "ran in a replay"
    await asyncio.sleep(0)
    return number


def lanes(path) -> dict[int, tuple[int, int]]:
    """Lane, and the lane that this was forked from, of the call with each number."""
    return {call.arguments["number"]: (call.lane, call.forked) for call in Cassette.load(path)}


# What a lane is


async def test_the_task_of_the_block_is_lane_0_and_a_task_knows_which_one_has_started_it(path):
    async def inner() -> None:
        await fetch(3)

    async def outer() -> None:
        await fetch(1)
        await asyncio.gather(inner(), fetch(2))

    async with record(path):
        await asyncio.create_task(outer())
        await fetch(0)
    found = lanes(path)
    assert (found[0], found[1]) == ((0, 0), (1, 0))
    assert {found[2], found[3]} == {(2, 1), (3, 1)}


async def test_a_lane_belongs_to_a_context_and_not_to_the_thread_of_a_pool(path):
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        with record(path):
            await asyncio.gather(*(asyncio.to_thread(look, number) for number in (1, 2, 3)))
            look(0)
        found = lanes(path)
        assert found.pop(0) == (0, 0)
        assert sorted(found.values()) == [(1, 0), (2, 0), (3, 0)]
        off()
        with replay(path, strict=True):
            assert await asyncio.gather(*(asyncio.to_thread(look, number) for number in (3, 2, 1))) == [3, 2, 1]
            look(0)


# Order


async def test_agents_at_once_are_judged_each_by_its_own_order(path):
    async def agent(*numbers: int) -> None:
        for number in numbers:
            await fetch(number)

    with record(path):
        await asyncio.gather(agent(1, 2, 3), agent(4, 5, 6))
        await fetch(7)
    off()
    with replay(path, strict=True):
        await asyncio.gather(agent(4, 5, 6), agent(1, 2, 3))
        await fetch(7)
    early = r"fetch\(number=6\) was called too early: call \d, fetch\(number=5\)"
    with pytest.raises(DivergenceError, match=early), replay(path, strict=True):
        await asyncio.gather(agent(1, 2, 3), agent(4, 6, 5))
        await fetch(7)


async def test_calls_that_did_not_overlap_are_answered_in_their_order_if_they_do_now(path):
    async def late(number: int) -> int:
        for _ in range(10 * number if is_live else 1):
            await asyncio.sleep(0)
        return await fetch(number)

    async def agent(*numbers: int) -> list[int]:
        tasks = [asyncio.create_task(late(number)) for number in numbers]
        return [await each for each in asyncio.as_completed(tasks)]

    with record(path):
        assert await agent(0, 1, 2) == [0, 1, 2]
    off()
    with replay(path):
        assert await agent(2, 1, 0) == [0, 1, 2]


# A divergence in another task


async def through_a_task(number: int) -> None:
    await asyncio.gather(asyncio.create_task(fetch(number)))


async def test_a_divergence_that_somebody_waits_for_takes_its_own_way(path):
    async with record(path):
        await fetch(1)
    off()
    caught = None
    with pytest.raises(DivergenceError, match="number=2"):
        async with replay(path):
            try:
                await asyncio.create_task(through_a_task(2))
            except DivergenceError as error:
                caught = error
    assert caught is not None
    with pytest.raises(ExceptionGroup) as group:
        async with replay(path), asyncio.TaskGroup() as tasks:
            tasks.create_task(fetch(2))
            tasks.create_task(asyncio.Event().wait())
    assert group.group_contains(DivergenceError)
    for _ in range(50):
        await asyncio.sleep(0)  # nothing is cancelled afterwards


async def test_tasks_that_make_the_same_calls_may_be_anywhere_in_a_strict_replay(tmp_path: Path):
    """Which of them is given which of two equal answers says nothing about the order of its calls."""

    @intercept(name="ask")
    async def ask(what: str) -> str:
        return what

    async def work(may_go_on: asyncio.Event) -> str:
        first = await ask("p")
        await may_go_on.wait()
        return first + await ask("q") + await ask("p")

    done = asyncio.Event()
    done.set()
    async with record(tmp_path / "run.jsonl"):
        for _ in range(2):
            await asyncio.create_task(work(done))
    waits = asyncio.Event()
    async with replay(tmp_path / "run.jsonl", strict=True):
        one = asyncio.create_task(work(waits))
        await asyncio.sleep(0)
        assert await asyncio.create_task(work(done)) == "pqp"
        waits.set()
        assert await one == "pqp"
