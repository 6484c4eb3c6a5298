"""Any tree of concurrent recorded calls, replayed under any scheduling, gives each call its own outcome.

A plan is a list of functions, some of which call those further down. Leaves return what nobody can guess, raise,
stream, or hang until they are cancelled; nodes call others, in turn or at once, and give back all that they saw. An
agent calls some of them from several tasks. Which task goes on next is a choice at every step, made by Hypothesis, once
for the recording and once more for each replay.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from agent_cache.recording import intercept, record, replay
from tests.harness.searches import searched
from tests.properties.scheduler import Scheduler

FIRST_LEAF = 4


@dataclass(frozen=True)
class Leaf:
    kind: str  # returns raises hangs plain streams
    chunks: int = 0
    taken: int = 0
    ends: str = "returns"


@dataclass(frozen=True)
class Node:
    calls: tuple[int, ...]
    at_once: bool


LEAVES = st.builds(
    Leaf,
    st.sampled_from(["returns", "returns", "raises", "hangs", "plain", "streams"]),
    st.integers(0, 3),
    st.integers(0, 4),
    st.sampled_from(["returns", "raises"]),
)


@st.composite
def plans(draw: st.DrawFn) -> list[Leaf | Node]:
    leaves = draw(st.lists(LEAVES, min_size=1, max_size=4))
    last = FIRST_LEAF + len(leaves) - 1
    nodes: list[Leaf | Node] = []
    for key in range(FIRST_LEAF):
        at_once = draw(st.booleans())
        # Identical calls that one node makes at once would be interchangeable.
        calls = draw(st.lists(st.integers(key + 1, last), max_size=3, unique=at_once))
        nodes.append(Node(tuple(calls), at_once))
    return nodes + leaves


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Leaf | Node], list[list[int]]]:
    plan = draw(plans())
    keys = st.integers(0, len(plan) - 1)
    return plan, draw(st.lists(st.lists(keys, min_size=1, max_size=4), min_size=1, max_size=4))


CHOICES = st.lists(st.integers(0, 7), max_size=60)


class Stage:
    """One run of an agent over a plan, step by step."""

    def __init__(self, plan: list[Leaf | Node], choices: list[int], *, is_live: bool) -> None:
        self.plan = plan
        self.scheduler = Scheduler()
        self.choices: Iterator[int] = itertools.chain(choices, itertools.repeat(0))
        self.waiting: list[asyncio.Future[None]] = []
        self.is_live = is_live
        self.secrets = itertools.count(1000)
        self.leaf_runs = 0
        stage = self

        @intercept(name="node")
        async def node(key: int) -> list[Any]:
            spec = stage.plan[key]
            assert isinstance(spec, Node)
            await stage.turn()
            if spec.at_once:
                return list(await asyncio.gather(*map(stage.call, spec.calls)))
            return [await stage.call(inner) for inner in spec.calls]

        @intercept(name="leaf")
        async def leaf(key: int) -> int:
            stage.real()
            secret = next(stage.secrets)
            await stage.turn()
            if stage.spec(key).kind == "raises":
                raise ValueError(secret)
            if stage.spec(key).kind == "hangs":
                await asyncio.Event().wait()
            return secret

        @intercept(name="plain")
        def plain(key: int) -> int:
            stage.real()
            return next(stage.secrets)

        @intercept(name="stream")
        async def stream(key: int):
            stage.real()
            for _ in range(stage.spec(key).chunks):
                await stage.turn()
                yield next(stage.secrets)
            if stage.spec(key).ends == "raises":
                raise KeyError(next(stage.secrets))

        self.node, self.leaf, self.plain, self.stream = node, leaf, plain, stream

    def spec(self, key: int) -> Leaf:
        spec = self.plan[key]
        assert isinstance(spec, Leaf)
        return spec

    def real(self) -> None:
        self.leaf_runs += 1
        assert self.is_live, "the real function ran in a replay"

    async def turn(self) -> None:
        gate = self.scheduler.gate()
        self.waiting.append(gate)
        await gate

    async def call(self, key: int) -> Any:
        """Make one call as an agent does, and give what was seen of it as plain data."""
        spec = self.plan[key]
        if isinstance(spec, Node):
            return await self.node(key)
        if spec.kind == "plain":
            return self.plain(key)
        if spec.kind == "streams":
            return await self.read(key, spec)
        task = asyncio.ensure_future(self.leaf(key))
        if spec.kind == "hangs":
            await self.turn()
            await self.turn()
            task.cancel()
        try:
            return await task
        except ValueError as error:
            return ["raised", *error.args]
        except asyncio.CancelledError:
            return ["cancelled"]

    async def read(self, key: int, spec: Leaf) -> list[Any]:
        seen: list[Any] = []
        stream = self.stream(key)
        try:
            while len(seen) < spec.taken:
                await self.turn()
                try:
                    seen.append(await anext(stream))
                except StopAsyncIteration:
                    return [*seen, "end"]
                except KeyError as error:
                    return [*seen, "raised", *error.args]
            return [*seen, "closed"]
        finally:
            await stream.aclose()

    def run(self, tasks: list[list[int]], block: Any, *, workers: int = 0) -> list[list[Any]]:
        """Run the agent inside of `block`; what each of its tasks saw, in order.

        With `workers` these do the tasks, which they take from a queue.
        """

        async def work(keys: list[int]) -> list[Any]:
            seen = []
            for key in keys:
                await self.turn()
                seen.append(await self.call(key))
            return seen

        async def agent() -> None:
            queue = iter(tasks)

            async def worker() -> None:
                for keys in queue:
                    await work(keys)

            with block:
                if workers:
                    await asyncio.gather(*(worker() for _ in range(workers)))
                else:
                    result.extend(await asyncio.gather(*map(work, tasks)))

        result: list[list[Any]] = []
        main = self.scheduler.spawn(agent(), Context())
        try:
            while True:
                self.scheduler.drain()
                self.waiting = [gate for gate in self.waiting if not gate.done()]
                if not self.waiting:
                    break
                self.waiting.pop(next(self.choices) % len(self.waiting)).set_result(None)
            assert main.done(), "the run is stuck"
            main.result()
        finally:
            self.scheduler.close()
        assert self.scheduler.complaints == []
        return result


def shared_keys(tasks: list[list[int]]) -> set[int]:
    """What more than one task calls: these calls are interchangeable."""
    owners: dict[int, set[int]] = defaultdict(set)
    for number, keys in enumerate(tasks):
        for key in keys:
            owners[key].add(number)
    return {key for key, found in owners.items() if len(found) > 1}


def sorted_answers(tasks: list[list[int]], seen: list[list[Any]], keys: set[int]) -> dict[int, list[str]]:
    answers: dict[int, list[str]] = defaultdict(list)
    for called, answered in zip(tasks, seen, strict=True):
        for key, answer in zip(called, answered, strict=True):
            if key in keys:
                answers[key].append(repr(answer))
    return {key: sorted(found) for key, found in answers.items()}


def own_answers(tasks: list[list[int]], seen: list[list[Any]], shared: set[int]) -> list[list[Any]]:
    return [
        [answer for key, answer in zip(called, answered, strict=True) if key not in shared]
        for called, answered in zip(tasks, seen, strict=True)
    ]


@searched(13, 150, runs(), CHOICES, CHOICES, CHOICES)
def test_every_call_gets_its_own_outcome_however_it_is_scheduled(run, first, second, third):
    plan, tasks = run
    shared = shared_keys(tasks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        recorded = Stage(plan, first, is_live=True).run(tasks, record(path))
        for choices, policy in ((first, {}), (second, {}), (third, {"node": "live"})):
            stage = Stage(plan, choices, is_live=False)
            block = replay(path, policy=policy)
            replayed = stage.run(tasks, block)
            assert stage.leaf_runs == 0
            assert own_answers(tasks, replayed, shared) == own_answers(tasks, recorded, shared)
            assert sorted_answers(tasks, replayed, shared) == sorted_answers(tasks, recorded, shared)


@searched(10, 100, runs(), CHOICES, CHOICES, st.integers(0, 3))
def test_no_schedule_is_a_divergence_for_a_strict_replay(run, first, second, workers):
    """Neither of tasks at once, nor of workers on a queue, which get other work each time."""
    plan, tasks = run
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        Stage(plan, first, is_live=True).run(tasks, record(path), workers=workers)
        for policy in ({}, {"node": "live"}):
            Stage(plan, second, is_live=False).run(tasks, replay(path, strict=True, policy=policy), workers=workers)
