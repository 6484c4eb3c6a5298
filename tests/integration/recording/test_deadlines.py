"""A recorded cancellation in a replay: the call waits for the caller's own timeout, and nobody waits for ever."""

import asyncio

import pytest

from agent_cache.recording import DivergenceError, intercept, record, replay


@pytest.fixture
def is_live():
    return [True]


@pytest.fixture
def slow(is_live):
    @intercept(name="slow")
    async def slow(seconds: float = 60.0) -> str:
        assert is_live[0], "ran in a replay"
        await asyncio.sleep(seconds)
        return "done"

    return slow


async def by_wait_for(slow, seconds):
    return await asyncio.wait_for(slow(), seconds)


async def by_timeout_of_a_group(slow, seconds):
    async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
        group.create_task(slow(1.0))
        group.create_task(slow(2.0))


WAYS = [by_wait_for, by_timeout_of_a_group]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_call_that_timed_out_waits_for_the_timeout_again(way, slow, is_live, path):
    with record(path) as recorder, pytest.raises(TimeoutError):
        await way(slow, 0.01)
    assert all(call.outcome == {"cancelled": True} for call in recorder.steps)
    is_live[0] = False
    with replay(path, strict=True), pytest.raises(TimeoutError):
        await way(slow, 0.05)


async def test_a_stream_that_timed_out_waits_for_the_timeout_again(is_live, path):
    @intercept(name="stream")
    async def stream():
        assert is_live[0]
        yield 1
        await asyncio.sleep(60)

    async def read(seconds):
        seen = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                async for each in stream():
                    seen.append(each)
        return seen

    with record(path):
        assert await read(0.01) == [1]
    is_live[0] = False
    with replay(path):
        assert await read(0.01) == [1]


async def test_a_call_that_nobody_cancels_this_time_is_a_divergence(slow, is_live, path, monkeypatch):
    monkeypatch.setattr("agent_cache.recording.tape._PATIENCE", 0.05)
    with record(path), pytest.raises(TimeoutError):
        await asyncio.wait_for(slow(), 0.01)
    is_live[0] = False
    block = replay(path)
    with pytest.raises(DivergenceError, match="nobody has cancelled it") as caught, block:
        try:
            await slow()
        except DivergenceError:
            pass  # raised again at the end
    assert caught.value.call_id == 1
    assert caught.value.expected == {"name": "slow", "arguments": {"seconds": 60.0}}
