"""Audits for every interleaving: they hold up no hit, never write, are one at a time a tool, and are right.

A machine starts reads and writes and lets them go on step by step. Every hit is audited (`audit=1.0`). The model knows
each change of the store and by whom it was made, so it knows which stale answers a write explains. What a tool returns
differs at each run; `outcome_key` names the part that is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, LoopHints, StaleHit, configure, get_metrics
from tests.harness import library
from tests.properties.machine import Machine, searches
from tests.properties.scheduler import Scheduler

KEYS = ("1", "2")
MANY_READS = 4
MANY_WRITES = 2
SECONDS = (1.0, 3.0, 6.0)  # two of them outlast the ttl, the last one also the doubt about a write

machine: ContextVar[Audits] = ContextVar("machine")
caller: ContextVar[Any] = ContextVar("caller", default=None)


@dataclass(eq=False)
class Actor:
    """A call of the agent, or one run of a tool, that stands at a gate."""

    kind: str
    key: str
    gate: asyncio.Future[None] | None = None
    is_over: bool = False
    answer: Any = None


async def load(key: str) -> dict[str, int]:
    return await machine.get().load(key)


async def load_by_another(key: str) -> dict[str, int]:
    return await machine.get().load(key, by=look)


@AgentCache("audited:{key}", audit=0.0)
async def look(key: str) -> int:
    return machine.get().versions[key]


@AgentCacheInvalidator("audited:{key}")
async def write(key: str) -> None:
    await machine.get().write(key, has_tag=True)


@AgentCacheInvalidator("audited:{result}")
async def write_late(key: str) -> str:
    await machine.get().write(key, has_tag=True)
    return key


@AgentCacheInvalidator("misspelt:{key}")
async def plant(key: str) -> None:
    await machine.get().write(key, has_tag=False)


AUDITED: dict[str, Any] = {"audit": 1.0, "loop": LoopHints(outcome_key=lambda result: result["version"])}
READS = {
    "plain": AgentCache("audited:{key}", name="audits: plain", **AUDITED)(load),
    "brief": AgentCache("audited:{key}", name="audits: brief", ttl=5.0, **AUDITED)(load),
    "outer": AgentCache("summary", name="audits: outer", **AUDITED)(load_by_another),
}


class Audits(Machine):
    """Reads that are audited, beside writes that have the tag and writes that lack it."""

    read_name = "plain"
    plants = True  # whether there are writes without the tag
    steps = 30

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.exits.callback(self.scheduler.close)
        self.versions = dict.fromkeys(KEYS, 0)
        self.changes: list[tuple[str, int, bool]] = []  # key, version, and whether a write with the tag has made it
        self.runs: list[Actor] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.loads_before = library.loads_in_flight()
        self.loads = self.writes_called = self.writes_run = self.noise = 0
        self.broken: list[str] = []
        self.found: list[StaleHit] = []
        self.get: Any = READS[self.read_name]
        configure(on_stale=self.note_stale)

    # The tools

    async def load(self, key: str, by: Any = None) -> dict[str, int]:
        run = Actor("audit" if caller.get().is_over else "load", key)
        self.loads += run.kind == "load"
        if run.kind == "audit" and any(one.kind == "audit" for one in self.runs):
            self.broken.append("two audits run at once")
        self.runs.append(run)
        try:
            await self.stand(run)
            version = self.versions[key] if by is None else await by(key)
            await self.stand(run)
        finally:
            self.runs.remove(run)
        self.noise += 1
        return {"version": version, "noise": self.noise}

    async def write(self, key: str, *, has_tag: bool) -> None:
        run = Actor("write", key)
        self.writes_run += 1
        self.runs.append(run)
        try:
            await self.stand(run)
            self.change(key, has_tag=has_tag)
            await self.stand(run)
        finally:
            self.runs.remove(run)

    async def stand(self, actor: Actor) -> None:
        actor.gate = self.scheduler.gate()
        await actor.gate

    def change(self, key: str, *, has_tag: bool) -> None:
        self.versions[key] = version = len(self.changes) + 1
        self.changes.append((key, version, has_tag))

    def note_stale(self, hit: StaleHit) -> None:
        self.found.append(hit)
        key, cached, fresh = hit.arguments["key"], hit.cached["version"], hit.fresh["version"]
        between = [has_tag for name, version, has_tag in self.changes if name == key and cached < version <= fresh]
        if not between or any(between):
            self.broken.append(f"{cached} -> {fresh} of {key} was counted, and is explained: {between}")
        if self.get.contains(key):
            self.broken.append(f"{hit} was reported and is still there")

    # The moves

    def running(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.tasks if not task.done()]

    def standing(self) -> list[Actor]:
        return [run for run in self.runs if run.gate is not None and not run.gate.done()]

    def moves(self) -> Iterator[str]:
        if len(self.running()) < MANY_READS:
            yield from ["start_a_read"] * 5
        if self.standing():
            yield from ["let_a_run_go_on"] * 6
            yield "fail_a_run"
        if self.writes_called - sum(run.kind == "write" for run in self.runs) < MANY_WRITES:
            yield "start_a_write"
        if self.running():
            yield "cancel_a_call"
        yield from ("invalidate", "let_time_pass")
        if self.plants:
            yield "change_it_from_outside"

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        context = Context()
        context.run(machine.set, self)
        self.tasks.append(self.scheduler.spawn(work, context))

    async def read(self, call: Actor) -> None:
        caller.set(call)
        was_contained = call.kind == "read" and self.get.contains(call.key)
        before, turns = self.loads, self.scheduler.loop.turns
        try:
            call.answer = await (self.get if call.kind == "read" else self.get.fresh)(call.key)
        except OSError:
            pass
        finally:
            call.is_over = True
        if was_contained and (self.scheduler.loop.turns != turns or self.loads != before):
            self.broken.append(f"a hit of {call.key} waited")

    def start_a_read(self) -> None:
        call = Actor(self.choose("kind", ("read", "read", "read", "fresh read")), self.choose("key", KEYS))
        self.spawn(self.read(call))
        self.choose_turns(self.scheduler, patience=3)

    def start_a_write(self) -> None:
        tool: Any = self.choose("writer", (write, write_late, *([plant] if self.plants else [])))
        key = self.choose("key", KEYS)
        self.writes_called += 1

        async def call() -> None:
            try:
                await tool(key)
            except OSError:
                pass

        self.spawn(call())
        self.scheduler.drain()

    def let_a_run_go_on(self) -> None:
        gate = self.choose("run", self.standing()).gate
        assert gate is not None
        gate.set_result(None)
        self.choose_turns(self.scheduler, patience=3)

    def fail_a_run(self) -> None:
        gate = self.choose("run", self.standing()).gate
        assert gate is not None
        gate.set_exception(OSError("failed"))
        self.choose_turns(self.scheduler, patience=3)

    def cancel_a_call(self) -> None:
        self.choose("call", self.running()).cancel()
        self.choose_turns(self.scheduler, patience=3)

    def invalidate(self) -> None:
        self.spawn(self.get.invalidate(self.choose("key", KEYS)))
        self.scheduler.drain()

    def let_time_pass(self) -> None:
        seconds = self.choose("seconds", SECONDS)
        self.clock.advance(seconds)
        self.scheduler.loop.now += seconds

    def change_it_from_outside(self) -> None:
        self.change(self.choose("key", KEYS), has_tag=False)

    # What holds

    def check(self) -> None:
        assert not self.broken, self.broken
        assert not self.scheduler.complaints, self.scheduler.complaints
        assert self.writes_run <= self.writes_called
        assert self.plants or not self.found, "no tag is missing"

    def finish(self) -> None:
        self.run_to_the_end()
        self.clock.advance(10.0)  # what was in doubt is not any more
        for key in KEYS:
            self.check_at_rest(key)
        counts = get_metrics()
        assert counts["stale_found"] == len(self.found) <= counts["audits"] <= counts["hits"]
        assert counts["misses"] <= self.loads + len(KEYS) * self.loads * (self.read_name == "outer")
        self.check()
        assert not self.running()
        assert library.loads_in_flight() <= self.loads_before

    def run_to_the_end(self) -> None:
        self.scheduler.drain()
        for _ in range(100):
            if not self.standing():
                return
            for run in self.standing():
                assert run.gate is not None
                run.gate.set_result(None)
            self.scheduler.drain()
        raise AssertionError("it does not come to an end")

    def check_at_rest(self, key: str) -> None:
        """A planted missing tag is found at the next hit, and a right answer is left alone."""
        if not self.get.contains(key):
            return
        found, truth = len(self.found), self.versions[key]
        call = Actor("read", key)
        self.spawn(self.read(call))
        self.run_to_the_end()
        assert call.answer is not None
        is_stale = call.answer["version"] != truth
        assert is_stale == (len(self.found) > found), (call.answer, truth)
        assert self.get.contains(key) != is_stale


FEW, MANY = 40, 1_000
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "of_brief_answers": {"read_name": "brief"},
    "of_outer_reads": {"read_name": "outer"},
    "of_right_tags": {"plants": False},
}
for variant, attributes in VARIANTS.items():
    globals().update(searches(Audits, FEW, MANY, variant, **attributes))
