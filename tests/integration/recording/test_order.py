"""Order: what one task or context does (a lane), what a strict replay demands of it, which answer comes first, and how
long a call waits that was cancelled.
"""

import asyncio
import contextvars
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent_cache import AgentCache, Read, Toolbox
from agent_cache.recording import Cassette, DivergenceError, cached_llm_call, intercept, record, replay
from agent_cache.testing import reset


@pytest.fixture
def fetch(stage):
    @intercept(name="fetch")
    async def fetch(number: int) -> int:
        stage.real()
        await asyncio.sleep(0)
        return number

    return fetch


@pytest.fixture(autouse=True)
def empty_caches():
    reset()


async def in_turn(function, *numbers: int) -> None:
    for number in numbers:
        await function(number)


# Lanes


async def test_the_task_of_the_block_is_lane_0_and_a_task_knows_which_one_has_started_it(fetch, path):
    async def outer() -> None:
        await fetch(1)
        await asyncio.gather(in_turn(fetch, 3), fetch(2))

    async with record(path):
        await asyncio.create_task(outer())
        await fetch(0)
    found = {call.arguments["number"]: (call.lane, call.forked) for call in Cassette.load(path)}
    assert (found[0], found[1]) == ((0, 0), (1, 0))
    assert {found[2], found[3]} == {(2, 1), (3, 1)}


async def test_a_lane_belongs_to_a_context_and_not_to_the_thread_of_a_pool(stage, path):
    @intercept(name="look")
    def look(number: int) -> int:
        stage.real()
        return number

    async def run(*numbers: int) -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            found = await asyncio.gather(*(asyncio.to_thread(look, number) for number in numbers))
            given = contextvars.copy_context().run, look, 4  # an executor must be given the context
            return sorted([*found, await asyncio.get_running_loop().run_in_executor(pool, *given), look(0)])

    await stage.twice(lambda: run(1, 2, 3), lambda: run(3, 2, 1))
    lanes = {call.arguments["number"]: (call.lane, call.forked) for call in Cassette.load(path)}
    assert (lanes.pop(0), sorted(lanes.values())) == ((0, 0), [(1, 0), (2, 0), (3, 0), (4, 0)])


async def test_agents_at_once_are_judged_each_by_its_own_order(fetch, stage):
    async def run(*agents: tuple[int, ...]) -> None:
        await asyncio.gather(*(in_turn(fetch, *numbers) for numbers in agents))
        await fetch(7)

    await stage.twice(lambda: run((1, 2, 3), (4, 5, 6)), lambda: run((4, 5, 6), (1, 2, 3)))
    early = r"fetch\(number=6\) was called too early: call \d, fetch\(number=5\)"
    with pytest.raises(DivergenceError, match=early), stage.replay(strict=True):
        await run((1, 2, 3), (4, 6, 5))


async def test_tasks_that_make_the_same_calls_may_be_anywhere_in_a_strict_replay(fetch, stage):
    """Which of them is given which of two equal answers says nothing about the order of its calls."""

    async def cycles(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def work(before: int, between: int) -> None:
        await cycles(before)
        await fetch(1)
        await cycles(between)
        await in_turn(fetch, 2, 1)

    await stage.twice(lambda: asyncio.gather(work(0, 0), work(50, 0)), lambda: asyncio.gather(work(0, 50), work(0, 0)))


async def test_a_divergence_that_somebody_waits_for_takes_its_own_way(fetch, stage, path):
    async with record(path):
        await fetch(1)
    with pytest.raises(DivergenceError, match="number=2"):  # at the end
        async with stage.replay():
            with pytest.raises(DivergenceError):
                await asyncio.create_task(in_turn(fetch, 2))
    with pytest.raises(ExceptionGroup) as group:
        async with replay(path), asyncio.TaskGroup() as tasks:
            tasks.create_task(fetch(2))
            tasks.create_task(asyncio.Event().wait())
    assert group.group_contains(DivergenceError)
    for _ in range(50):
        await asyncio.sleep(0)  # nothing is cancelled afterwards


# Answers


COUNT = 8
GATES: list[asyncio.Event] = []  # let call after call end: each when the agent has had the answer before


async def work(n):
    await GATES[n].wait()
    return n


async def serve(reader, writer):
    """Answer one request."""
    number = int((await reader.readuntil(b"\r\n\r\n")).split()[1].strip(b"/"))
    await GATES[number].wait()
    body = b'{"n": %d}' % number
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
    writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
    await writer.drain()
    writer.close()


async def through_toolbox(n):
    return await BOX.call("get", {"n": n}, lambda: work(n))


BOX = Toolbox({"get": Read("n:{n}")}, namespace="order")
FUNCTION = intercept(work, name="order:function")
TOOLS = {
    "model": cached_llm_call(name="order:model")(work),
    "tool": AgentCache("n:{n}", name="order:tool")(work),
    "toolbox": through_toolbox,
}


async def agent(makers):
    """Start all calls at once, and take the answers as they come: the last call ends first."""
    GATES[:] = [asyncio.Event() for _ in range(COUNT)]
    tasks = [asyncio.ensure_future(makers[n % len(makers)](n)) for n in range(COUNT)]
    GATES[-1].set()
    got = []
    for task in asyncio.as_completed(tasks):
        got.append(await task)
        GATES[got[-1] - 1].set()
    return got


@pytest.mark.parametrize("library", ["httpx", "aiohttp"])
async def test_requests_and_tools_are_answered_in_one_order(library, path):
    module = pytest.importorskip(library)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = "http://{}:{}".format(*server.sockets[0].getsockname())

    async def run():
        async with module.AsyncClient() if library == "httpx" else module.ClientSession() as client:

            async def ask(n):
                if library == "httpx":
                    return (await client.get(f"{url}/{n}", timeout=60)).json()["n"]
                async with client.get(f"{url}/{n}") as response:
                    return (await response.json())["n"]

            return await agent([ask, FUNCTION, TOOLS["tool"]])

    async with server:
        with record(path, http=True):
            recorded = await run()
    with replay(path, strict=True):
        assert await run() == recorded == list(range(COUNT))[::-1]


@pytest.mark.parametrize("other", TOOLS)
async def test_tools_are_answered_in_one_order_however_many_tasks_wait_for_them(other, stage):
    assert await stage.twice(lambda: agent([TOOLS[other], FUNCTION])) == list(range(COUNT))[::-1]


async def test_answers_of_the_cache_come_in_their_order_whichever_task_asks_first(stage, path):
    """`asyncio.as_completed` starts coroutines in an order of its own, which is another one in each run."""
    get = AgentCache("n:{n}", name="order:hit")(FUNCTION.__wrapped__)

    async def run(*numbers: int) -> list[int]:
        tasks = [asyncio.create_task(get(number)) for number in numbers]
        return [await each for each in asyncio.as_completed(tasks)]

    GATES[:] = [asyncio.Event() for _ in range(4)]
    for gate in GATES:
        gate.set()
    await run(0, 1, 2)  # the last one is a miss
    await stage.twice(lambda: run(1, 3, 0, 2), lambda: run(3, 1, 0, 2))
    assert [call.source for call in Cassette.load(path)].count("hit") == 3


async def test_calls_that_did_not_overlap_are_answered_in_their_order_if_they_do_now(fetch, stage):
    async def late(number: int) -> int:
        for _ in range(10 * number if stage.is_live else 1):
            await asyncio.sleep(0)
        return await fetch(number)

    async def run(*numbers: int) -> list[int]:
        tasks = [asyncio.create_task(late(number)) for number in numbers]
        return [await each for each in asyncio.as_completed(tasks)]

    assert await stage.twice(lambda: run(0, 1, 2), lambda: run(2, 1, 0)) == [0, 1, 2]


async def test_an_answer_lets_a_call_go_first_that_begins_a_little_later_and_had_ended_before(stage):
    """As a client may look at its settings before it sends a request."""

    @intercept(name="answer")
    async def answer(number: int, *, cycles: int) -> int:
        stage.real()
        return await later(cycles, number)

    async def later(cycles: int, value: Any) -> Any:
        for _ in range(cycles):
            await asyncio.sleep(0)
        return await value if inspect.isawaitable(value) else value

    async def run() -> list[int]:
        tasks = [asyncio.create_task(later(5, answer(1, cycles=1))), asyncio.create_task(answer(2, cycles=20))]
        return [await each for each in asyncio.as_completed(tasks)]

    assert await stage.twice(run) == [1, 2]


async def test_a_program_that_waits_for_its_calls_in_another_way_is_not_held_up(path):
    """A call is left alone until others have their answers, although it had ended before them; or nobody waits for it
    any more.
    """
    with record(path):
        await agent([FUNCTION])
    with replay(path):
        later = [asyncio.ensure_future(FUNCTION(n)) for n in range(COUNT - 1)]
        await asyncio.wait(later)
        assert await FUNCTION(COUNT - 1) == COUNT - 1
    with replay(path):
        first, last = (asyncio.ensure_future(FUNCTION(n)) for n in (COUNT - 1, 0))
        await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(30):
            assert await last == 0


# Cancelled calls: each waits for the caller's own timeout, and nobody waits for ever


@pytest.fixture
def slow(stage):
    @intercept(name="slow")
    async def slow(seconds: float = 60.0) -> str:
        stage.real()
        await asyncio.sleep(seconds)
        return "done"

    return slow


async def by_wait_for(slow, seconds):
    return await asyncio.wait_for(slow(), seconds)


async def by_timeout_of_a_group(slow, seconds):
    async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
        group.create_task(slow(1.0))
        group.create_task(slow(2.0))


async def by_timeout_in_a_stream(slow, seconds):
    @intercept(name="stream")
    async def stream():
        yield 1
        await slow()

    seen = []
    try:
        async with asyncio.timeout(seconds):
            async for each in stream():
                seen.append(each)
    finally:
        assert seen == [1]


@pytest.mark.parametrize("way", [by_wait_for, by_timeout_of_a_group, by_timeout_in_a_stream])
async def test_a_call_that_timed_out_waits_for_the_timeout_again(way, slow, stage, path):
    with record(path) as recorder, pytest.raises(TimeoutError):
        await way(slow, 0.01)
    assert all(call.outcome == {"cancelled": True} for call in recorder.steps if call.name == "slow")
    with stage.replay(strict=True), pytest.raises(TimeoutError):
        await way(slow, 0.05)


async def test_a_call_that_nobody_cancels_this_time_is_a_divergence(slow, stage, path, monkeypatch):
    monkeypatch.setattr("agent_cache.recording.tape._PATIENCE", 0.05)
    with record(path), pytest.raises(TimeoutError):
        await asyncio.wait_for(slow(), 0.01)
    with pytest.raises(DivergenceError, match="nobody has cancelled it") as caught, stage.replay():
        try:
            await slow()
        except DivergenceError:
            pass  # raised again at the end
    assert caught.value.call_id == 1
    assert caught.value.expected == {"name": "slow", "arguments": {"seconds": 60.0}}
