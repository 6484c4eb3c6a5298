"""Programs of agents, drawn at random: trees of reads, writes and recorded functions, in turn or at once.

What tasks that run at once read and write is their own, so that chance decides nothing but how they are interleaved.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from agent_cache.recording import intercept


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
