"""Checkpoints in the journal of a session: made, read by another program, restored, and what came after them."""

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import CheckpointError, ConfigurationError
from agent_cache.recording import RecordedCall
from agent_cache.resume import AutoReplayManager, Checkpoint, Journal, register_state, restore
from agent_cache.resume.journal import read_journal


@AgentCache("order:{order_id}")
async def look(order_id: int) -> int:
    await asyncio.sleep(0)
    return order_id


@AgentCacheInvalidator("order:{order_id}")
async def cancel(order_id: int) -> str:
    await asyncio.sleep(0)
    return f"cancelled {order_id}"


class Killed(BaseException):
    """Ends a run as a signal would."""


@register_state
@dataclasses.dataclass
class Plan:
    steps: list[str]
    done: set[int]


async def agent(journal: Journal, *, until: int = 9) -> list[Checkpoint]:
    made = []
    async with AgentCacheSession("run/7", journal=journal) as session:
        for number in range(3):
            await asyncio.gather(look(number), look(number + 10))
            made.append(await session.checkpoint(f"looked {number}", Plan(["look"], {number}), importance=0.1 * number))
            if number == until:
                raise Killed
            await cancel(number)
    return made


def events(report: Any) -> list[str]:
    return [
        f"{event.name.rpartition(':')[2]} {event.arguments['order_id']}"
        if isinstance(event, RecordedCall)
        else event.label
        for event in report.replayed
    ]


@pytest.mark.parametrize("killed_at", [None, 0, 1, 2])
async def test_what_came_after_a_checkpoint_is_found_in_the_journal_also_of_a_run_that_was_resumed(tmp_path, killed_at):
    journal = Journal(tmp_path)
    if killed_at is not None:
        with pytest.raises(Killed):
            await agent(journal, until=killed_at)
    made = await agent(journal)
    stored = read_journal(journal.path("run/7"))
    assert [each.id for each in stored.checkpoints] == [each.id for each in made]
    assert [each.sequence for each in stored.checkpoints] == [1, 2, 3]
    reports = [await AutoReplayManager(stored, after=each).run() for each in stored.checkpoints]
    assert [sorted(events(report)) for report in reports] == [
        sorted(["cancel 0", "look 1", "look 11", "looked 1", "cancel 1", "look 2", "look 12", "looked 2", "cancel 2"]),
        sorted(["cancel 1", "look 2", "look 12", "looked 2", "cancel 2"]),
        ["cancel 2"],
    ]
    writes = await AutoReplayManager(stored, after=stored.checkpoints[0], min_importance=0.8).run()
    assert events(writes) == ["cancel 0", "cancel 1", "cancel 2"]


async def test_a_checkpoint_from_a_journal_is_restored(tmp_path):
    journal = Journal(tmp_path)
    await agent(journal)
    made = read_journal(journal.path("run/7")).checkpoints[1]
    assert made.state == Plan(["look"], {1})
    target = SimpleNamespace(steps=[], done=None)
    await restore(made, target)
    assert vars(target) == {"steps": ["look"], "done": {1}}


async def test_a_state_that_cannot_be_written_leaves_the_journal_and_the_run_as_they_were(tmp_path):
    journal = Journal(tmp_path)
    async with AgentCacheSession("run/7", journal=journal) as session:
        await look(1)
        with pytest.raises(CheckpointError) as caught:
            await session.checkpoint("bad", {"connection": object()})
        assert caught.value.field == "connection"
        with pytest.raises(CheckpointError) as caught:
            await session.checkpoint("x" * 201, {})
        assert caught.value.field == "label"
        made = await session.checkpoint("good", {"a": (1,)})
        assert made.sequence == 1
    [found] = read_journal(journal.path("run/7")).checkpoints
    assert found == made


async def test_a_checkpoint_of_an_earlier_run_of_the_session_is_refused(tmp_path):
    journal = Journal(tmp_path, restart=True)
    [earlier, *_] = await agent(journal)
    await agent(journal)
    with pytest.raises(CheckpointError) as caught:
        AutoReplayManager(read_journal(journal.path("run/7")), after=earlier)
    assert caught.value.field == "id"


async def test_a_checkpoint_needs_a_journal():
    async with AgentCacheSession("run/7") as session:
        with pytest.raises(ConfigurationError, match="no journal"):
            await session.checkpoint("x", {})
