"""Any program, forked at any of its calls in a sandbox and without edits, does what the original did.

A program is a tree of steps: reads, writes, recorded functions that do several steps, in turn or at once, reads and
writes that do steps inside. What tasks that run at once read and write is their own, so that chance decides nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from agent_cache.recording import Cassette, diff_cassettes, fork, intercept, record, replay


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Attributes:
        kind: ``read``, ``write``, ``group`` (a recorded function), ``turn`` (steps one after another) or ``once`` (at
            once).
        name: tells it from others; two may have one.
        fails: whether it raises at its end.
        turns: of the event loop that it waits for, before and after what it does.
        inside: its steps.
    """

    kind: str
    name: int = 0
    fails: bool = False
    turns: int = 0
    inside: tuple[Step, ...] = ()


LEAVES = st.builds(
    Step, st.sampled_from(["read", "read", "write"]), st.integers(0, 2), st.booleans(), st.integers(0, 3)
)
PROGRAMS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        Step,
        st.sampled_from(["group", "turn", "turn", "once", "read", "write"]),
        st.integers(0, 2),
        st.booleans(),
        st.integers(0, 3),
        st.lists(inner, min_size=1, max_size=4).map(tuple),
    ),
    max_leaves=9,
)


class World:
    """Counters by place, and a program that runs in it."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.read: Counter[tuple[str, int]] = Counter()
        world = self

        @intercept(name="read", kind="tool", skip_args=1)
        async def read(step: Step, place: str, name: int) -> list[Any]:
            world.read[place, name] += 1
            seen = await world.do_inside(step, place)
            return [*seen, sum(count for key, count in world.counters.items() if key.startswith(place))]

        @intercept(name="write", kind="write", skip_args=1)
        async def write(step: Step, place: str, name: int) -> list[Any]:
            seen = await world.do_inside(step, place)
            world.counters[place] += name + 1
            return [*seen, world.counters[place]]

        @intercept(name="group", skip_args=1)
        async def group(step: Step, place: str, name: int) -> list[Any]:
            return await world.do_inside(step, place)

        self.functions = {"read": read, "write": write, "group": group}

    async def do_inside(self, step: Step, place: str) -> list[Any]:
        for _ in range(step.turns):
            await asyncio.sleep(0)
        seen = [await self.do(inner, place) for inner in step.inside]
        for _ in range(step.turns):
            await asyncio.sleep(0)
        if step.fails:
            raise ValueError(step.name, *seen)
        return seen

    async def do(self, step: Step, place: str) -> Any:
        """Do a step of the tree, and give what an agent sees of it."""
        if step.kind == "turn":
            return [await self.do(inner, place) for inner in step.inside]
        if step.kind == "once":
            # A dot after the number: else one place is the beginning of another.
            places = (f"{place}{number}." for number in itertools.count())
            return list(await asyncio.gather(*map(self.do, step.inside, places)))
        try:
            return await self.functions[step.kind](step, place, step.name)
        except ValueError as error:
            return ["raised", *error.args]


def make(program: Step, block: Any) -> tuple[Any, World]:
    """Run a program in a new world. Returns what its agent saw, and the world."""
    world = World()

    async def run() -> Any:
        with block:
            return await world.do(program, "")

    return asyncio.run(run()), world


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


# Two rounds of tasks that begin with the same call keep their places in the branch.
READ = Step("read")
ROUNDS = Step("group", inside=(READ, Step("once", inside=(READ, READ)), Step("once", inside=(READ,))))


@settings(max_examples=3)
@example(ROUNDS)
@given(PROGRAMS)
def test_a_fork_at_any_call_in_a_sandbox_equals_the_original(program):
    check_all_forks(program)


@pytest.mark.slow
@settings(max_examples=200)
@given(PROGRAMS)
def test_a_fork_at_any_call_of_many_programs_equals_the_original(program):
    check_all_forks(program)
