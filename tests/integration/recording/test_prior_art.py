"""What goes wrong elsewhere: a test for each defect that was found in other recorders, if no other file here has one.

The first half is about decorators that replay by position through a server, the second about cassettes in a file.
"""

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.engine.scope import PLACE, ROOT
from agent_cache.recording import Cassette, DivergenceError, cached_llm_call, intercept, record, replay
from tests.harness.slow import slow


class World:
    runs: list[object]


@pytest.fixture(autouse=True)
def world():
    World.runs = []


@AgentCacheInvalidator(resource="refund", name="refund")
async def refund(order_id: str, amount: int) -> str:
    World.runs.append(("refund", order_id, amount))
    return f"refunded {amount}"


@intercept(name="fetch")
async def fetch(name: str) -> str:
    World.runs.append(name)
    for _ in range({"a": 30, "b": 20, "c": 10}.get(name, 0)):
        await asyncio.sleep(0)
    return f"answer {name}"


@pytest.mark.parametrize("strict", [False, True])
async def test_a_write_with_other_arguments_never_runs_in_a_replay(strict, path):
    with record(path):
        await refund("7", 10)
    World.runs.clear()
    with pytest.raises(DivergenceError, match="amount: 10 -> 1000"), replay(path, strict=strict):
        await refund("7", 1000)
    assert World.runs == []


@pytest.mark.parametrize("strict", [False, True])
async def test_an_unchanged_agent_that_gathers_is_replayed_right(strict, path):
    with record(path) as recorder:
        recorded = await asyncio.gather(fetch("a"), fetch("b"), fetch("c"))
        assert [call.arguments["name"] for call in recorder.steps] == ["c", "b", "a"], "they end in the other order"
    with replay(path, strict=strict):
        assert await asyncio.gather(fetch("a"), fetch("b"), fetch("c")) == recorded


async def test_one_call_that_passes_two_decorators_is_one_answer(path):
    @cached_llm_call(name="model")
    async def model(prompt: str) -> str:
        World.runs.append(prompt)
        return prompt.upper()

    @intercept(name="step")
    async def step(prompt: str) -> str:
        return await model(prompt)

    with record(path):
        assert [await step("a"), await step("b")] == ["A", "B"]
    World.runs.clear()
    with replay(path, strict=True):
        assert [await step("a"), await step("b")] == ["A", "B"]
    assert World.runs == []


@pytest.mark.parametrize("block", [record, replay])
async def test_nothing_stays_bound_after_the_block(block, path):
    with record(path):
        await fetch("x")
    with pytest.raises(KeyError), block(path):
        raise KeyError
    assert PLACE.get().scope is ROOT


async def test_what_cannot_be_recorded_does_not_stop_the_agent(path):
    class Hostile:
        def __getattribute__(self, name):
            raise RuntimeError("no")

    @intercept(name="odd")
    async def odd(value: object) -> object:
        return value

    with record(path) as recorder:
        value = Hostile()
        assert await odd(value) is value
    assert len(recorder.steps) == 1


async def test_a_cancelled_run_leaves_a_whole_cassette(path):
    async def agent() -> None:
        with record(path):
            await fetch("x")
            fetched.set()
            await asyncio.Event().wait()

    fetched = asyncio.Event()
    task = asyncio.create_task(agent())
    await fetched.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cassette = Cassette.load(path)
    assert (cassette.num_steps, cassette.trailer.ended) == (1, "raised CancelledError")


async def test_ten_concurrent_identical_reads_run_once_while_they_are_recorded(path):
    @AgentCache(resource="thing", name="thing")
    async def thing() -> int:
        World.runs.append("thing")
        await asyncio.sleep(0)
        return 1

    with record(path) as recorder:
        assert await asyncio.gather(*(thing() for _ in range(10))) == [1] * 10
    assert World.runs == ["thing"]
    assert len(recorder.steps) == 10
    with replay(path, strict=True):
        assert await asyncio.gather(*(thing() for _ in range(10))) == [1] * 10


@pytest.mark.slow
@pytest.mark.parametrize("seeds", ["12", *slow("1234")])
def test_digests_are_the_same_in_every_process(tmp_path, seeds):
    script = """
        import sys
        from agent_cache.recording import Cassette, intercept, record
        f = intercept(lambda value: 1, name="f")
        with record(sys.argv[1]):
            f({"b", "a", "c", ("x", frozenset({"p", "q", "r"}))})
        print(Cassette.load(sys.argv[1])[0].digest)
    """
    root = str(Path(agent_cache.__file__).parents[1])
    digests = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / seed)],
            env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=100,
        ).stdout
        for seed in seeds
    }  # fmt: skip
    assert len(digests) == 1
