"""Audits for every interleaving: they hold up no hit, never write, are one at a time a tool, and are right.

A machine starts reads and writes and lets them go on step by step. Every hit is audited (`audit=1.0`). The model knows
each change of the store and by whom it was made, so it knows which stale answers a write explains. What a tool returns
differs at each run; `outcome_key` names the part that is compared.
"""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent_cache import AgentCache, AgentCacheInvalidator, LoopHints, StaleHit, configure, get_metrics
from tests.harness import library
from tests.properties.scheduler import Scheduler

T = TypeVar("T")

KEYS = ("1", "2")
MANY_READS = 4
MANY_WRITES = 2
SECONDS = (1.0, 3.0, 6.0)  # two of them outlast the ttl, the last one also the doubt about a write

caller: ContextVar[Any] = ContextVar("caller", default=None)


@dataclass(eq=False)
class Actor:
    """A call of the agent, or one run of a tool, that stands at a gate."""

    kind: str
    key: str
    gate: asyncio.Future[None] | None = None
    is_over: bool = False
    was_contained: bool = False
    answer: Any = None


@dataclass
class Change:
    """One change of the store, in order: the version that it made, and whether a write with the tag has made it."""

    version: int
    has_tag: bool


@dataclass
class World:
    """The store behind the tools, and what has happened to it."""

    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    changes: dict[str, list[Change]] = field(default_factory=lambda: {key: [] for key in KEYS})
    last: int = 0

    def change(self, key: str, *, has_tag: bool) -> None:
        self.last += 1
        self.versions[key] = self.last
        self.changes[key].append(Change(self.last, has_tag))

    def between(self, key: str, one: int, other: int) -> list[Change]:
        """The changes that made the one version the other one."""
        return [change for change in self.changes[key] if one < change.version <= other]


class Audits(RuleBasedStateMachine):
    """Reads that are audited, beside writes that have the tag and writes that lack it."""

    options: dict[str, Any] = {}
    is_nested = False
    plants = True  # whether there are writes without the tag

    def __init__(self) -> None:
        super().__init__()
        self.exits = ExitStack()
        self.clock = self.exits.enter_context(library.fresh_library())
        self.scheduler = Scheduler()
        self.exits.callback(self.scheduler.close)
        self.world = World()
        self.runs: list[Actor] = []
        self.calls: list[Actor] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.loads = self.writes_called = self.writes_run = self.noise = 0
        self.broken: list[str] = []
        self.found: list[StaleHit] = []
        configure(on_stale=self.note_stale)
        self.make_tools()

    def make_tools(self) -> None:
        async def inner(key: str) -> int:
            return self.world.versions[key]

        async def get(key: str) -> dict[str, int]:
            call = caller.get()
            run = Actor("audit" if call.is_over else "load", key)
            self.loads += run.kind == "load"
            if run.kind == "audit" and any(one.kind == "audit" for one in self.runs):
                self.broken.append("two audits run at once")
            self.runs.append(run)
            try:
                await self.stand(run)
                version = await self.inner(key) if self.is_nested else self.world.versions[key]
                await self.stand(run)
            finally:
                self.runs.remove(run)
            self.noise += 1
            return {"version": version, "noise": self.noise}

        async def write(key: str) -> None:
            await self.write(key, has_tag=True)

        async def write_late(key: str) -> str:
            await self.write(key, has_tag=True)
            return key

        async def plant(key: str) -> None:
            await self.write(key, has_tag=False)

        hints = LoopHints(outcome_key=lambda result: result["version"])
        own = {"resource": "summary"} if self.is_nested else {"resource": "thing:{key}"}
        self.inner = AgentCache("thing:{key}", audit=0.0, name="inner")(inner)
        self.get = AgentCache(**own, audit=1.0, loop=hints, name="get", **self.options)(get)
        self.tagged = AgentCacheInvalidator("thing:{key}", name="write")(write)
        self.late = AgentCacheInvalidator("thing:{result}", name="write_late")(write_late)
        self.planted = AgentCacheInvalidator("thign:{key}", name="plant")(plant)

    async def stand(self, actor: Actor) -> None:
        actor.gate = self.scheduler.gate()
        try:
            await actor.gate
        finally:
            actor.gate = None

    async def write(self, key: str, *, has_tag: bool) -> None:
        run = Actor("write", key)
        self.writes_run += 1
        self.runs.append(run)
        try:
            await self.stand(run)
            self.world.change(key, has_tag=has_tag)
            await self.stand(run)
        finally:
            self.runs.remove(run)

    def note_stale(self, hit: StaleHit) -> None:
        self.found.append(hit)
        key, cached, fresh = hit.arguments["key"], hit.cached["version"], hit.fresh["version"]
        between = self.world.between(key, cached, fresh)
        if not between or any(change.has_tag for change in between):
            self.broken.append(f"{cached} -> {fresh} of {key} was counted, and is explained: {between}")
        if self.get.contains(key):
            self.broken.append(f"{hit} was reported and is still there")

    # The moves

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        self.data = data
        getattr(self, self.choose("move", list(self.moves())))()

    def choose(self, what: str, among: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(among), label=what)

    def moves(self) -> Iterator[str]:
        if sum(not task.done() for task in self.tasks) < MANY_READS:
            yield from ["start_a_read"] * 5
        if self.runs:
            yield from ["let_a_run_go_on"] * 6
            yield "fail_a_run"
        if self.writes_called - self.count_of("write") < MANY_WRITES:
            yield "start_a_write"
        if [task for task in self.tasks if not task.done()]:
            yield "cancel_a_call"
        yield from ("invalidate", "let_time_pass")
        if self.plants:
            yield "change_it_from_outside"

    def count_of(self, kind: str) -> int:
        return sum(run.kind == kind for run in self.runs)

    def choose_turns(self) -> None:
        turns = self.choose("turns", ("until idle", "until idle", "until idle", "none", "one", "two"))
        if turns == "until idle":
            self.scheduler.drain()
        for _ in range({"one": 1, "two": 2}.get(turns, 0)):
            self.scheduler.turn()

    def spawn(self, work: Callable[[], Any]) -> asyncio.Task[None]:
        task = self.scheduler.spawn(work(), Context())
        self.tasks.append(task)
        return task

    async def read(self, call: Actor) -> None:
        caller.set(call)
        call.was_contained = call.kind == "read" and self.get.contains(call.key)
        before = self.loads
        turns = self.scheduler.loop.turns
        try:
            call.answer = await (self.get if call.kind == "read" else self.get.fresh)(call.key)
        except OSError:
            pass
        finally:
            call.is_over = True
        if call.was_contained and (self.scheduler.loop.turns != turns or self.loads != before):
            self.broken.append(f"a hit of {call.key} waited")

    def start_a_read(self) -> None:
        call = Actor(self.choose("kind", ("read", "read", "read", "fresh read")), self.choose("key", KEYS))
        self.calls.append(call)
        self.spawn(lambda: self.read(call))
        self.choose_turns()

    async def call_write(self, tool: Any, key: str) -> None:
        try:
            await tool(key)
        except OSError:
            pass

    def start_a_write(self) -> None:
        writers = self.tagged, self.late, *((self.planted,) if self.plants else ())
        tool = self.choose("writer", writers)
        key = self.choose("key", KEYS)
        self.writes_called += 1
        self.spawn(lambda: self.call_write(tool, key))
        self.scheduler.drain()

    def let_a_run_go_on(self) -> None:
        standing = [run for run in self.runs if run.gate is not None and not run.gate.done()]
        if standing:
            self.choose("run", standing).gate.set_result(None)
        self.choose_turns()

    def fail_a_run(self) -> None:
        standing = [run for run in self.runs if run.gate is not None and not run.gate.done()]
        if standing:
            self.choose("run", standing).gate.set_exception(OSError("failed"))
        self.choose_turns()

    def cancel_a_call(self) -> None:
        self.choose("call", [task for task in self.tasks if not task.done()]).cancel()
        self.choose_turns()

    def invalidate(self) -> None:
        key = self.choose("key", KEYS)

        async def drop() -> None:
            await self.get.invalidate(key)

        self.spawn(drop)
        self.scheduler.drain()

    def let_time_pass(self) -> None:
        seconds = self.choose("seconds", SECONDS)
        self.clock.advance(seconds)
        self.scheduler.loop.now += seconds

    def change_it_from_outside(self) -> None:
        self.world.change(self.choose("key", KEYS), has_tag=False)

    # What holds

    @invariant()
    def nothing_went_wrong(self) -> None:
        assert not self.broken, self.broken
        assert not self.scheduler.complaints, self.scheduler.complaints
        assert self.writes_run <= self.writes_called

    def teardown(self) -> None:
        with self.exits:
            self.run_to_the_end()
            self.clock.advance(10.0)  # what was in doubt is not any more
            for key in KEYS:
                self.check_at_rest(key)
            counts = get_metrics()
            assert counts["stale_found"] == len(self.found) <= counts["audits"] <= counts["hits"]
            assert counts["tools"].get("get", {"misses": 0})["misses"] <= self.loads
            self.nothing_went_wrong()
            assert all(task.done() for task in self.tasks)
            assert library.nothing_in_flight()

    def run_to_the_end(self) -> None:
        self.scheduler.drain()
        for _ in range(100):
            standing = [run for run in self.runs if run.gate is not None and not run.gate.done()]
            if not standing:
                return
            for run in standing:
                assert run.gate is not None
                run.gate.set_result(None)
            self.scheduler.drain()
        raise AssertionError("it does not come to an end")

    def check_at_rest(self, key: str) -> None:
        """A planted missing tag is found at the next hit, and a right answer is left alone."""
        if not self.get.contains(key):
            return
        found, truth = len(self.found), self.world.versions[key]
        call = Actor("read", key)
        self.spawn(lambda: self.read(call))
        self.run_to_the_end()
        assert call.answer is not None
        is_stale = call.answer["version"] != truth
        assert is_stale == (len(self.found) > found), (call.answer, truth)
        assert self.get.contains(key) != is_stale
        if not self.plants:
            assert not is_stale


class AuditsWithExpiry(Audits):
    """Entries expire while they are audited."""

    options = {"ttl": 5.0}


class AuditsOfOuterReads(Audits):
    """The tool reads by another tool, and depends on what that depends on."""

    is_nested = True


class AuditsOfRightTags(Audits):
    """No tag is missing, so nothing is ever found."""

    plants = False

    @invariant()
    def nothing_was_found(self) -> None:
        assert self.found == []


SEARCH = settings(
    max_examples=max(1, settings.default.max_examples * 4 // 100),
    stateful_step_count=30,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LONG_SEARCH = settings(SEARCH, max_examples=3 * settings.default.max_examples)
pytestmark = pytest.mark.timeout(600)


def case(machine: type[Audits], search: settings) -> type[unittest.TestCase]:
    """Make a class that pytest collects."""
    made = type(machine.__name__, (machine,), {}).TestCase
    made.settings = search
    return made


for machine in (Audits, AuditsWithExpiry, AuditsOfOuterReads, AuditsOfRightTags):
    globals()[f"Test{machine.__name__}"] = case(machine, SEARCH)
    globals()[f"Test{machine.__name__}Longer"] = pytest.mark.slow(case(machine, LONG_SEARCH))
del machine
