"""Any program, forked at any of its calls in a sandbox and without edits, does what the original did."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from agent_cache.recording import Cassette, diff_cassettes, fork, record, replay
from tests.harness.programs import PROGRAMS, Step, make
from tests.harness.searches import searched


def reads_before(cassette: Cassette, at: int) -> Counter[tuple[str, int]]:
    """The reads that had started before a call and do not enclose it."""
    by_id = {call.id: call for call in cassette}
    enclosing, parent = set(), by_id[at].parent
    while parent is not None:
        enclosing.add(parent)
        parent = by_id[parent].parent
    events = list(cassette.outline.events())
    cut = events.index(at - 1)
    return Counter(
        (call.arguments["place"], call.arguments["name"])
        for index, call in enumerate(cassette)
        if call.name == "read" and events.index(index) < cut and call.id not in enclosing
    )


def check_all_forks(program: Step) -> None:
    with tempfile.TemporaryDirectory() as folder:
        original, branch = Path(folder) / "run.jsonl", Path(folder) / "branch.jsonl"
        seen, world = make(program, record(original))
        cassette = Cassette.load(original)
        encloses_write = {call.id for call in cassette if call.name == "read" and writes_inside(cassette, call.id)}
        for at in [*range(1, len(cassette) + 1), None]:
            again, sandbox = make(program, fork(original, at=at, to=branch, world="sandbox"))
            assert again == seen, at
            assert sandbox.counters == world.counters, at
            assert diff_cassettes(original, branch).identical, at
            if at is not None and not encloses_write:
                assert sandbox.read + reads_before(cassette, at) <= world.read, at
            replayed, untouched = make(program, replay(branch, strict=True))
            assert replayed == seen
            assert not untouched.counters
            assert not untouched.read
            branch.unlink()


def writes_inside(cassette: Cassette, number: int) -> bool:
    inside = [call for call in cassette if call.parent == number]
    return any(call.is_write or writes_inside(cassette, call.id) for call in inside)


@searched(3, 200, PROGRAMS)
def test_a_fork_at_any_call_in_a_sandbox_equals_the_original(program):
    check_all_forks(program)


def test_two_rounds_of_tasks_that_begin_with_the_same_call_keep_their_places_in_the_branch():
    read = Step("read")
    check_all_forks(Step("group", inside=(read, Step("once", inside=(read, read)), Step("once", inside=(read,)))))
