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

from agent_cache.recording import Cassette, DivergenceError, diff_cassettes, fork, intercept, record, replay


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


# A run that changes


@dataclass(frozen=True)
class Agents:
    """Agents that write at the same time, and one call of one of them that is another one in the fork.

    Attributes:
        turns: of the event loop that each agent waits for before each of its writes.
        changed: agent and number of the write that is another one.
    """

    turns: tuple[tuple[int, ...], ...]
    changed: tuple[int, int]

    async def run(self, write: Any, *, is_changed: bool) -> None:
        async def agent(number: int) -> None:
            for at, turns in enumerate(self.turns[number]):
                for _ in range(turns):
                    await asyncio.sleep(0)
                is_other = is_changed and (number, at) == self.changed
                await write(number, at + 100 if is_other else at)

        await asyncio.gather(*map(agent, range(len(self.turns))))


@st.composite
def agents(draw: st.DrawFn) -> Agents:
    turns = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=3))
    number = draw(st.integers(0, len(turns) - 1))
    return Agents(tuple(turns), (number, draw(st.integers(0, len(turns[number]) - 1))))


@settings(max_examples=3)
@given(agents())
def test_what_changes_before_the_fork_is_refused_and_what_changes_after_it_runs(agents):
    check_changed(agents)


@pytest.mark.slow
@settings(max_examples=250)
@given(agents())
def test_many_runs_that_change_are_refused_before_the_fork_only(agents):
    check_changed(agents)


def check_changed(agents: Agents) -> None:
    made: list[tuple[int, int]] = []

    @intercept(name="write", kind="write")
    async def write(agent: int, number: int) -> None:
        made.append((agent, number))
        await asyncio.sleep(0)

    async def run(block: Any, *, is_changed: bool) -> None:
        with block:
            await agents.run(write, is_changed=is_changed)

    with tempfile.TemporaryDirectory() as folder:
        original, branch = Path(folder) / "run.jsonl", Path(folder) / "branch.jsonl"
        asyncio.run(run(record(original), is_changed=False))
        cassette = Cassette.load(original)
        order = [cassette[index] for index in cassette.outline.starts()]
        for cut, first in enumerate(order):
            before = {(call.arguments["agent"], call.arguments["number"]) for call in order[:cut]}
            made.clear()
            refused = False
            try:
                asyncio.run(run(fork(original, at=first.id, to=branch, world="as_is"), is_changed=True))
            except DivergenceError:
                refused = True
            branch.unlink()
            agent, number = agents.changed
            assert before.isdisjoint(made), "nothing that was answered runs"
            if agents.changed in before:
                assert refused
                assert (agent, number + 100) not in made
                assert all(one[0] != agent for one in made), "nor does what comes after it in its task"
            elif number:  # else its task was not known by anything, and may have been another one
                assert not refused
                assert len(made) == len(order) - cut
