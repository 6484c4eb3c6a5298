"""A run is recorded and replayed under asyncio and trio alike. A replay needs no event loop of asyncio."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agent_cache import AgentCache, AgentCacheSession
from agent_cache.recording import Cassette, DivergenceError, cached_llm_call, intercept, now, record, replay

anyio = pytest.importorskip("anyio", reason="the agents of these tests run under asyncio and trio by way of anyio")
trio = pytest.importorskip("trio", reason="trio is not installed")

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


def under(library: str, agent: Callable[[], Awaitable[object]]) -> object:
    return trio.run(agent) if library == "trio" else asyncio.run(agent())


def real() -> None:
    assert is_live, "ran in a replay"


@intercept(name="fetch")
async def fetch(number: int) -> int:
    real()
    await anyio.sleep(0)
    if number == 13:
        raise LookupError(number)
    return number


@AgentCache("order:{order_id}")
async def get_order(order_id: str) -> str:
    real()
    return f"order {order_id}"


@cached_llm_call(name="ask")
async def ask(prompt: str):
    real()
    for word in prompt.split():
        await anyio.sleep(0)
        yield word


@intercept(name="look")
def look(number: int) -> int:
    real()
    return -number


@intercept(name="hang")
async def hang() -> None:
    real()
    await anyio.sleep_forever()


async def use_functions() -> object:
    seen: dict[int, object] = {}

    async def agent(first: int) -> None:
        for number in range(first, first + 3):
            seen[number] = await fetch(number)

    async with anyio.create_task_group() as group:
        group.start_soon(agent, 0)
        group.start_soon(agent, 10)
    with pytest.raises(LookupError, match="13"):
        await fetch(13)
    threads = [await anyio.to_thread.run_sync(look, number) for number in range(3)]
    words = [word async for word in ask("Where is it?")]
    return seen, threads, words, now()


async def give_up() -> object:
    with anyio.move_on_after(0.01) as scope:
        await hang()
    stream = ask("one two three")
    first = await anext(stream)
    await stream.aclose()
    return scope.cancelled_caught, first


async def use_tools() -> object:
    async with AgentCacheSession() as session:
        found = [await get_order("W1"), await get_order("W2"), await get_order("W1")]
    return found, [entry.tool.rpartition(":")[2] for entry in session.get_execution_trace()]


@pytest.mark.parametrize("is_strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("replayed", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("recorded", "agent"),
    [
        ("asyncio", use_functions),
        ("trio", use_functions),
        ("asyncio", give_up),
        ("trio", give_up),
        ("asyncio", use_tools),  # outside of a replay cached tools need asyncio
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_run_of_one_is_replayed_by_the_other(recorded, agent, replayed, is_strict, path):
    async def in_recording() -> object:
        async with record(path):
            return await agent()

    async def in_replay() -> object:
        async with replay(path, strict=is_strict) as player:
            answer = await agent()
            assert player.remaining == 0
            return answer

    expected = under(recorded, in_recording)
    assert [call.outcome for call in Cassette.load(path) if call.name == "hang"] in ([], [{"cancelled": True}])
    off()
    assert under(replayed, in_replay) == expected


def test_tasks_of_trio_have_lanes_and_may_share_the_work_of_a_channel(path):
    gate: dict[int, object] = {}

    @intercept(name="step")
    async def step(number: int) -> int:
        real()
        gate[number].set()
        if number == 0:
            await gate[5].wait()  # the other worker does everything else meanwhile
        return number

    async def agent() -> None:
        gate.update({number: trio.Event() for number in range(6)})
        send, receive = trio.open_memory_channel(6)

        async def worker(items) -> None:
            async with items:
                async for item in items:
                    await step(item)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(worker, receive.clone())
            receive.close()
            async with send:
                for number in range(6):
                    await send.send(number)

    async def in_recording() -> None:
        with record(path):
            await agent()

    async def in_replay() -> None:
        with replay(path, strict=True):
            await agent()

    trio.run(in_recording)
    assert {call.arguments["number"]: call.lane for call in Cassette.load(path)} in (
        {0: 1, 1: 2, 2: 2, 3: 2, 4: 2, 5: 2},
        {0: 2, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1},
    )
    off()
    trio.run(in_replay)


def test_another_order_in_a_task_of_trio_is_a_divergence(path):
    async def run(block, *numbers: int) -> None:
        async def agent() -> None:
            for number in numbers:
                await fetch(number)

        with block:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent)
                nursery.start_soon(fetch, 3)

    trio.run(run, record(path), 1, 2)
    off()
    with pytest.raises(DivergenceError, match="too early"):
        trio.run(run, replay(path, strict=True), 2, 1)


def test_a_divergence_in_a_task_of_trio_ends_the_block(path):
    """Nurseries see to that."""

    async def run(block, number: int) -> None:
        async with trio.open_nursery() as nursery:
            with block:
                await fetch(1)
                nursery.start_soon(fetch, number)
                if not is_live:
                    await trio.sleep_forever()

    trio.run(run, record(path), 2)
    off()
    with pytest.raises(ExceptionGroup) as caught:
        trio.run(run, replay(path), 3)
    assert caught.group_contains(DivergenceError, match="number=3")
