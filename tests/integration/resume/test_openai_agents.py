"""Checkpoints of OpenAI Agents, restored into the real package's sessions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from agent_cache.errors import CheckpointError, RestoreError
from agent_cache.resume import OpenAIAgentsState, restore
from tests.harness.cassettes import stored_checkpoint as checkpoint

QUIET = RunConfig(tracing_disabled=True)
ITEMS: list[Any] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def agent() -> tuple[Agent, ScriptedModel]:
    @function_tool
    async def look(name: str) -> str:
        return f"found {name}"

    messages = [[assistant_message(text)] for text in ("here is a", "anything else?", "good bye")]
    model = ScriptedModel([[function_call("look", {"name": "a"}, call_id="c1")], *messages])
    return Agent(name="finder", model=model, tools=[look]), model


@pytest.fixture
def session(tmp_path: Path):
    made = SQLiteSession("s", tmp_path / "sessions.db")
    yield made
    made.close()


async def test_the_result_of_a_run_is_a_state_that_the_next_run_goes_on_from():
    finder, model = agent()
    result = await Runner.run(finder, "where is a?", run_config=QUIET)
    state = checkpoint(result).state
    assert isinstance(state, OpenAIAgentsState)
    assert (state.last_agent, state.last_response_id) == ("finder", result.last_response_id)
    assert state.items == result.to_input_list()
    listed: list[Any] = []
    await restore(checkpoint(result), listed)
    await Runner.run(finder, [*listed, {"role": "user", "content": "thanks"}], run_config=QUIET)
    assert len(model.last_call.input) == len(state.items) + 1


async def test_a_session_goes_back_to_its_checkpoint_and_on_from_there(session):
    finder, model = agent()
    await Runner.run(finder, "where is a?", session=session, run_config=QUIET)
    items = await session.get_items()
    made = checkpoint(OpenAIAgentsState(items=items))
    await Runner.run(finder, "and b?", session=session, run_config=QUIET)
    assert len(await session.get_items()) == len(items) + 2
    assert await restore(made, session) is session
    assert await session.get_items() == items
    await Runner.run(finder, "bye", session=session, run_config=QUIET)
    assert len(model.last_call.input) == len(items) + 1


class Failing(SQLiteSession):
    """A session whose database fails once, or waits, in the middle of adding items."""

    action = ""

    async def add_items(self, items: list[Any]) -> None:
        action, self.action = self.action, ""
        if action:
            await super().add_items(items[:1])
        if action == "waits":
            self.is_waiting.set()
            await asyncio.Event().wait()
        if action == "fails":
            raise OSError("the disk is full")
        await super().add_items(items)


@pytest.mark.parametrize("action", ["fails", "waits"])
async def test_a_session_whose_database_fails_or_whose_restore_is_cancelled_is_as_it_was(tmp_path, action):
    session = Failing("s", tmp_path / "sessions.db")
    session.is_waiting = asyncio.Event()
    await session.add_items([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "other"}])
    before = await session.get_items()
    session.action = action
    task = asyncio.create_task(restore(checkpoint(OpenAIAgentsState(items=ITEMS)), session))
    if action == "waits":
        await session.is_waiting.wait()
        task.cancel()
    with pytest.raises(RestoreError if action == "fails" else asyncio.CancelledError):
        await task
    assert await session.get_items() == before
    session.close()


async def test_a_result_that_is_still_streaming_is_refused():
    finder, _ = agent()
    result = Runner.run_streamed(finder, "where is a?", run_config=QUIET)
    with pytest.raises(CheckpointError, match="still streaming"):
        checkpoint(result)
    async for _ in result.stream_events():
        pass
    assert len(checkpoint(result).state.items) == 4
