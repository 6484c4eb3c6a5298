"""`AutoReplayManager`: only what came after a checkpoint is replayed, by its place and never by its time."""

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache.errors import CheckpointError, ConfigurationError
from agent_cache.recording import RecordedCall
from agent_cache.resume import AutoReplayManager, Checkpoint
from agent_cache.resume.event_replay import importance_of
from agent_cache.resume.journal import read_journal
from tests.harness.cassettes import checkpoint_line, line_of


def call(number: int, after: int = 0, **fields: Any) -> RecordedCall:
    about = {"kind": "tool", "name": f"t{number}", "outcome": {"value": 1}, "place": "00", **fields}
    return RecordedCall(id=number, after=after, **about)


def checkpoint(sequence: int = 1, after: int = 0, **fields: Any) -> Checkpoint:
    return Checkpoint(**{"session_id": "s", "state": {}, **fields}, sequence=sequence, after=after)


def numbers(events: Any) -> list[Any]:
    return [event.id if isinstance(event, RecordedCall) else f"c{event.sequence}" for event in events]


CALLS = [call(number, number - 1) for number in range(1, 6)]


@pytest.fixture
def replay(tmp_path: Path) -> Callable[..., AutoReplayManager]:
    """The replay of a journal with these events after its first checkpoint."""

    def made(*events: RecordedCall | Checkpoint, **options: Any) -> AutoReplayManager:
        header = {"agent_cache_journal": 1, "session_id": "s", "run": "00", "secret": "00"}
        lines = [line_of(one) if isinstance(one, RecordedCall) else checkpoint_line(one) for one in events]
        (tmp_path / "s.jsonl").write_bytes(b"".join([json.dumps(header).encode() + b"\n", *lines]))
        stored = read_journal(tmp_path / "s.jsonl")
        return AutoReplayManager(stored, **{"after": stored.checkpoints[0], **options})

    return made


async def test_the_events_after_a_checkpoint_are_replayed_in_order(replay):
    seen: list[Any] = []
    events = [*CALLS[:2], checkpoint(1, 2), *CALLS[2:4], checkpoint(2, 4), CALLS[4]]
    report = await replay(*events, on_event=seen.append).run()
    assert numbers(report.replayed) == numbers(seen) == [3, 4, "c2", 5]
    assert (report.filtered, report.cancelled_at) == ((), None)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_stops_before_an_event_and_others_are_left_out_by_a_function_and_by_their_importance(
    replay, is_async
):
    def is_not(number):
        async def later(event):
            await asyncio.sleep(0)
            return event.id != number

        return later if is_async else lambda event: event.id != number

    manager = replay(CALLS[0], checkpoint(after=1), *CALLS[1:], on_event=is_not(4))
    report = await manager.run()
    assert numbers(report.replayed) == numbers(manager.replayed) == [2, 3]
    assert report.cancelled_at == CALLS[3]
    calls = [call(1), call(2, 1, kind="llm"), call(3, 2, source="write"), call(4, 3, outcome={"error": {}})]
    report = await replay(checkpoint(), *calls, where=is_not(2), min_importance=0.6).run()
    assert (numbers(report.replayed), numbers(report.filtered)) == ([3, 4], [1, 2])


def test_importance():
    assert importance_of(checkpoint(importance=0.3)) == 0.3
    assert importance_of(call(1, outcome={"unfinished": True}, kind="env")) == 0.9
    assert importance_of(call(1, kind="http", name="POST http://a")) == 0.8
    assert importance_of(call(1, kind="llm")) == 0.7
    assert importance_of(call(1)) == importance_of(call(1, kind="http", name="GET http://a")) == 0.5
    assert importance_of(call(1, kind="env")) == 0.2


async def test_what_was_under_way_at_the_checkpoint_is_replayed_and_what_had_ended_is_not(replay):
    # 1 and 2 start; 3 starts and ends, 2 ends; two checkpoints; 1 ends.
    calls = [call(3), call(2), checkpoint(1, 2), checkpoint(2, 2), call(1), call(4, 1), checkpoint(3, 4)]
    assert numbers((await replay(*calls).run()).replayed) == ["c2", 1, 4, "c3"]


@pytest.mark.parametrize(
    "options", [{"after": None}, {"where": 3}, {"on_event": "x"}, {"min_importance": 2}, {"min_importance": math.nan}]
)
def test_bad_arguments_are_refused(replay, options):
    with pytest.raises(ConfigurationError):
        replay(checkpoint(), **options)
    with pytest.raises(ConfigurationError, match="events are a journal, or its calls and checkpoints"):
        AutoReplayManager([{"event": 1}], after=checkpoint())
    with pytest.raises(CheckpointError, match="of another run"):
        replay(checkpoint(), after=checkpoint())


async def test_calls_and_checkpoints_in_a_list_are_events_too():
    made = [checkpoint(1, 2), checkpoint(2, 2)]
    assert numbers((await AutoReplayManager([*CALLS, *made], after=made[0]).run()).replayed) == ["c2", 3, 4, 5]
    for events, after in (CALLS, checkpoint(after=9)), ([*CALLS, checkpoint(2, session_id="other")], checkpoint()):
        with pytest.raises(CheckpointError):
            AutoReplayManager(events, after=after)
