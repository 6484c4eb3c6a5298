"""A finished cassette says about the order of its calls what its log said, in lines that do not depend on time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st
from msgspec.structs import replace

from agent_cache.recording import Cassette, RecordedCall
from tests.harness.cassettes import Trailer, line_of
from tests.harness.searches import searched


@dataclass
class Lane:
    """A task: calls that follow each other, some left open, and tasks that it has started."""

    number: int
    forked: int
    names: list[str] = field(default_factory=list)
    stack: list[RecordedCall] = field(default_factory=list)


def log_of(choices: list[int]) -> tuple[list[RecordedCall], list[str]]:
    """A log of some tasks that start and end calls as `choices` say, and its events by name of the call."""
    chooser = random.Random(repr(choices))
    lanes = [Lane(0, 0)]
    log: list[RecordedCall] = []
    events: list[str] = []
    started = last = 0
    for choice in choices:
        lane = lanes[choice % len(lanes)]
        what = chooser.randrange(8)
        if what < 4:
            started += 1
            name = f"lane {lane.number} call {len(lane.names)}"
            lane.names.append(name)
            parent = lane.stack[-1].id if lane.stack and chooser.random() < 0.6 else None
            lane.stack.append(
                RecordedCall(
                    id=started, parent=parent, kind="call", name=name, digest=f"{started:024x}", after=last,
                    lane=lane.number, forked=lane.forked, outcome={"value": started}, started_ms=float(1 + len(events)),
                )
            )  # fmt: skip
            events.append(f"+{name}")
        elif what < 7 and lane.stack:
            call = lane.stack.pop(chooser.randrange(len(lane.stack)) if what == 6 else -1)
            log.append(ended(call, 1 + len(events)))
            last = call.id
            events.append(f"-{call.name}")
        elif lane.names:
            lanes.append(Lane(len(lanes), lane.number))
    for lane in lanes:
        for call in reversed(lane.stack):
            log.append(ended(call, 1 + len(events)))
            events.append(f"-{call.name}")
    return log, events


def ended(call: RecordedCall, time: int) -> RecordedCall:
    return replace(call, duration_ms=time - call.started_ms)


def facts(cassette: Cassette) -> tuple[list[str], dict[str, str]]:
    """Events, and the enclosing calls by name."""
    outline = cassette.outline
    names = [call.name for call in cassette]
    events = [f"+{names[event]}" if event >= 0 else f"-{names[~event]}" for event in outline.events()]
    return events, {names[index]: names[parent] for index, parent in enumerate(outline.enclosing()) if parent >= 0}


@searched(10, 60, st.lists(st.integers(0, 7), max_size=60))
def test_a_log_becomes_a_file_that_says_the_same(choices):
    log, events = log_of(choices)
    with TemporaryDirectory() as folder:
        old, new, again = (Path(folder, name) for name in ("old.jsonl", "new.jsonl", "again.jsonl"))
        trailer = line_of({"trailer": Trailer(calls=len(log))})
        old.write_bytes(b'{"agent_cache_cassette":2,"log":true}\n' + b"".join(map(line_of, log)) + trailer)
        before = Cassette.load(old)
        assert facts(before)[0] == events
        before.save(new)
        after = Cassette.load(new)
        assert facts(after) == facts(before)
        assert [call.id for call in after] == list(range(1, len(log) + 1))
        assert {call.name: call.started_ms for call in after} == {call.name: call.started_ms for call in log}
        lanes = {call.name.split()[1]: call.lane for call in after}
        assert len(set(lanes.values())) == len(lanes), "no two lanes became one"
        assert all(lanes.get("0", 0) == 0 for _ in lanes)
        after.save(again)
        assert again.read_bytes() == new.read_bytes()
