"""Clock, identifiers and chance are part of a recording where they are asked for by name."""

import uuid
from datetime import UTC, datetime

from agent_cache import recording


def look():
    return recording.now(), recording.uuid4(), recording.random(), recording.now(None), recording.random()


def test_outside_of_a_recording_they_are_what_they_are():
    moment, identifier, number, local, other = look()
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    assert local.tzinfo is None
    assert type(identifier) is uuid.UUID
    assert 0 <= number < 1
    assert number != other


def test_a_replay_gives_them_back(path):
    with recording.record(path) as recorder:
        recorded = look()
    assert {call.kind for call in recorder.steps} == {"env"}
    with recording.replay(path, strict=True):
        assert look() == recorded
    assert look() != recorded


def test_nothing_global_is_patched(path):
    import random
    import time

    before = time.time, random.random, uuid.uuid4, datetime.now
    with recording.record(path):
        assert (time.time, random.random, uuid.uuid4) == before[:3]
        random.random()
    assert recording.Cassette.load(path).num_steps == 0
