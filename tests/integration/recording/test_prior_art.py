"""What goes wrong elsewhere: a test for each defect that was found in other recorders, if no other file here has one.

The first half is about decorators that replay by position through a server, the second about cassettes in a file.
"""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest

import agent_cache
from agent_cache.engine.scope import PLACE, ROOT
from agent_cache.recording import Cassette, cached_llm_call, intercept, record, replay


class World:
    runs: list[object]


@pytest.fixture(autouse=True)
def world():
    World.runs = []


@intercept(name="fetch")
async def fetch(name: str) -> str:
    World.runs.append(name)
    return f"answer {name}"


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


async def test_an_executor_belongs_to_the_run_if_it_is_given_the_context(path):
    work = intercept(lambda number: number * 2, name="work")
    loop = asyncio.get_running_loop()
    with record(path) as recorder, ThreadPoolExecutor() as pool:
        await loop.run_in_executor(pool, contextvars.copy_context().run, work, 4)
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


def test_a_name_that_is_redacted_is_not_that_of_the_call(path):
    with record(path, redact=["name", "value", "type", "args"]):
        intercept(lambda name: {"value": name}, name="f")("Ann")
    [call] = Cassette.load(path)
    assert (call.name, call.arguments, call.outcome) == (
        "f",
        {"name": "[redacted]"},
        {"value": {"value": "[redacted]"}},
    )


def test_a_save_that_fails_leaves_the_old_file(path, monkeypatch):
    with record(path):
        intercept(lambda: 1, name="f")()
    before = path.read_bytes()
    from agent_cache.recording.partial_file import PartialFile

    def fails(*_):
        raise OSError(28, "No space left on device")

    cassette = Cassette.load(path)
    monkeypatch.setattr(PartialFile, "append", fails)
    with pytest.raises(agent_cache.errors.CassetteError, match="No space left"):
        cassette.save(path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]
