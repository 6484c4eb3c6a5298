"""A run that has come to its end is not run again because its program is: it has to be asked for."""

import asyncio
import logging
from collections import Counter

import pytest

from agent_cache import AgentCacheInvalidator, AgentCacheSession
from agent_cache.recording import Cassette, CassetteError
from agent_cache.resume import Journal, JournalEnded, JournalError

WRITES = Counter()


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def no_writes():
    WRITES.clear()


@AgentCacheInvalidator("order:{order}", name="ended:pay")
async def pay(order: str) -> str:
    WRITES[order] += 1
    return f"paid {order}"


@AgentCacheInvalidator("order:{order}", name="ended:ship")
def ship(order: str) -> str:
    WRITES[order] += 1
    return f"shipped {order}"


async def run(directory, *, restart=False, dies=False, tool=pay):
    async with AgentCacheSession("job", journal=Journal(directory, restart=restart)):
        found = tool("W1")
        found = found if isinstance(found, str) else await found
        if dies:
            raise Killed
        return found


@pytest.mark.parametrize("tool", [pay, ship])
async def test_a_session_whose_run_has_ended_raises_and_runs_nothing(tmp_path, tool):
    await run(tmp_path, tool=tool)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for _ in range(3):
        with pytest.raises(JournalEnded) as caught:
            await run(tmp_path, tool=tool)
    assert WRITES == {"W1": 1}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    error = caught.value
    assert isinstance(error, JournalError)
    assert isinstance(error, CassetteError)
    assert (error.session_id, error.calls) == ("job", 1)
    assert error.recorded_at
    assert error.path == str(tmp_path / "job.jsonl")
    assert "restart=True" in str(error)
    assert "'job'" in str(error)


async def test_restart_begins_a_new_run_and_keeps_the_old_journal(tmp_path):
    await run(tmp_path)
    first = (tmp_path / "job.jsonl").read_bytes()
    assert await run(tmp_path, restart=True) == "paid W1"
    assert WRITES == {"W1": 2}
    assert len(list(tmp_path.iterdir())) == 2
    assert first in [path.read_bytes() for path in tmp_path.iterdir()]
    with pytest.raises(JournalEnded):
        await run(tmp_path)


async def test_restart_resumes_a_run_that_has_not_ended(tmp_path):
    """A job that runs each day under one id is resumed after a crash, and not begun anew."""
    with pytest.raises(Killed):
        await run(tmp_path, restart=True, dies=True)
    assert await run(tmp_path, restart=True) == "paid W1"
    assert WRITES == {"W1": 1}
    assert len(list(tmp_path.iterdir())) == 1


async def test_the_ended_journal_can_be_read_and_another_session_may_have_its_turn(tmp_path, caplog):
    """The refusal holds no lock, and warns of nothing."""
    caplog.set_level(logging.WARNING, "agent_cache")
    await run(tmp_path)
    results = await asyncio.gather(*[run(tmp_path) for _ in range(4)], return_exceptions=True)
    assert [type(result) for result in results] == [JournalEnded] * 4
    assert [call.name for call in Cassette.load(tmp_path / "job.jsonl")] == ["ended:pay"]
    assert not caplog.messages
