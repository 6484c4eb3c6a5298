"""Any program, forked at any of its calls in a sandbox and without edits, does what the original did. One that makes
its calls in turn does what the page says, in any world and with any edits.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from agent_cache import ConfigurationError
from agent_cache.recording import (
    Cassette,
    Raised,
    Saved,
    WorldMovedError,
    diff_cassettes,
    fork,
    intercept,
    record,
    replay,
)
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


# Calls in turn, in any world, with any edit


@dataclass
class Order:
    id: str
    status: str


class Shop:
    """A world, which may begin as another one is, and an agent that makes calls in it whatever it hears."""

    def __init__(self, cancelled: Collection[str] = ()) -> None:
        self.cancelled = {*cancelled}
        self.made: list[tuple[str, str]] = []

    def call(self, kind: str, order_id: str) -> Any:
        self.made.append((kind, order_id))
        if kind == "get":
            return Order(order_id, "cancelled" if order_id in self.cancelled else "pending")
        if kind == "cancel":
            self.cancelled.add(order_id)
        return f"{kind} {order_id}"

    def run(self, calls: list[tuple[str, str]], block: Any) -> list[Any]:
        def get(order_id: str) -> Order:
            return self.call("get", order_id)  # type: ignore[no-any-return]

        functions = {
            "get": intercept(get, name="get", kind="tool"),
            "think": intercept(lambda order_id: self.call("think", order_id), name="think", kind="llm"),
            "cancel": intercept(lambda order_id: self.call("cancel", order_id), name="cancel", kind="write"),
        }
        heard: list[Any] = []
        with block as self.tape:
            for kind, order_id in calls:
                try:
                    heard.append(functions[kind](order_id))
                except ValueError as error:
                    heard.append(repr(error))
        return heard


def edited(calls: list[tuple[str, str]], at: int, kind: str) -> tuple[Any, Any]:
    """An edit of this kind of a call, and what the agent hears then."""
    if kind == "raised":
        return Raised(ValueError("edited")), "ValueError('edited')"
    if calls[at][0] != "get":
        return "edited", "edited"
    order = Order("W9", "lost")
    return (order if kind == "object" else {"id": "W9", "status": "lost"}), order


CALLS = st.lists(
    st.tuples(st.sampled_from(["get", "think", "cancel"]), st.sampled_from(["W1", "W2"])), min_size=1, max_size=6
)
EDITS = st.dictionaries(st.integers(1, 6), st.sampled_from(["object", "data", "raised"]), max_size=2)
WORLDS = st.sampled_from(["refuse", "sandbox", "as_is"])


@searched(20, 500, CALLS, st.none() | st.integers(1, 6), EDITS, WORLDS)
def test_calls_in_turn_are_answered_edited_made_again_or_live(calls, at, edits, world):
    at = None if at is None else min(at, len(calls))
    edits = {number: kind for number, kind in edits.items() if number <= len(calls)}
    cut = len(calls) if at is None else at - 1
    with tempfile.TemporaryDirectory() as folder:
        path, to = Path(folder) / "run.jsonl", Path(folder) / "branch.jsonl"
        before = Shop()
        recorded, origin = before.run(calls, record(path)), Cassette.load(path)
        given = {number: edited(calls, number - 1, kind) for number, kind in edits.items()}

        def forked() -> fork:
            return fork(path, at=at, to=to, world=world, edits={number: edit for number, (edit, _) in given.items()})

        if any(number > cut for number in edits):
            with pytest.raises(ConfigurationError, match="can have no effect"):
                forked()
            return
        writes = [number for number, (kind, _) in enumerate(calls, 1) if kind == "cancel"]
        if world == "refuse" and (later := [number for number in writes if number > cut]):
            with pytest.raises(WorldMovedError) as caught:
                forked()
            assert [one["id"] for one in caught.value.writes] == later
            assert not to.exists()
            return

        # What the page says, call by call.
        cancelled = set() if world == "sandbox" else before.cancelled
        shop, expected = Shop(cancelled), Shop(cancelled)
        repeats = [number for number in writes if number <= cut and number not in edits and world == "sandbox"]
        hears = [
            given[number][1] if number in given
            else expected.call(*call) if number > cut or number in repeats
            else recorded[number - 1]
            for number, call in enumerate(calls, 1)
        ]  # fmt: skip
        block = forked()
        assert block.counts == {"answered": cut - len(repeats), "edited": len(edits), "repeated": len(repeats)}
        heard = shop.run(calls, block)
        assert (heard, shop.made) == (hears, expected.made)
        assert not any(one is edit for one in heard for edit, _ in given.values() if type(edit) is Order)
        kept = [call for number, call in enumerate(origin, 1) if number <= cut and number not in repeats]
        saved = Saved(len(kept), pytest.approx(sum(call.duration_ms for call in kept) / 1000), 0, 0)
        assert (shop.tape.live_from, shop.tape.saved) == (at, saved)
        branch = Cassette.load(to)
        assert [(call.name, *call.arguments.values()) for call in branch] == calls
        assert branch.header.forked_from == {
            "path": "run.jsonl", "recorded_at": origin.recorded_at, "at": at, "edits": sorted(edits)
        }  # fmt: skip
        if not edits and world == "sandbox":
            assert diff_cassettes(path, to).identical
        nobody = Shop()
        assert (nobody.run(calls, replay(to, strict=True)), nobody.made) == (hears, [])
