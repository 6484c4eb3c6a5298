"""P1 and P3 for calls in threads: synchronous tools, beside asynchronous ones of a loop in another thread.

A machine starts reads and writes, each in a thread or a task of its own, and lets their tools go on one by one. Between
two moves everything stands still: each call is over, at the gate of its tool, or waits for the load of another one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, configure
from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness import library
from tests.harness.threads import PATIENCE, Call, until
from tests.properties.machine import Machine, searches

KEYS = ("1", "2")
MANY_READS = 6
MANY_WRITES = 2


@dataclass(eq=False)
class Run:
    """One run of a tool, which stands at a gate until it is told how to end.

    Attributes:
        has_met_a_write: whether a write of its key was running at any time since it began.
    """

    kind: str
    key: str
    gate: Future[BaseException | None] = field(default_factory=Future)
    has_met_a_write: bool = False


@dataclass(eq=False)
class Reading:
    """One call of a read tool, and the version that it may not fall behind."""

    key: str
    at_least: int
    end: Any


class World:
    """The store behind the tools: a version of each key."""

    def __init__(self) -> None:
        self.versions = dict.fromkeys(KEYS, 0)
        self.ended = dict.fromkeys(KEYS, 0)  # the version that the last write that is over has left
        self.runs: list[Run] = []
        self.broken: list[str] = []
        self.handed_over: set[tuple[str, str]] = set()  # loads that no reader joins, and that a follower may lead now
        self.lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    # The tools

    def begin(self, kind: str, key: str) -> Run:
        run = Run(kind, key)
        with self.lock:
            others = [other for other in self.runs if other.key == key]
            writes = [other for other in others if other.kind == "write"]
            if kind == "write":
                for other in others:
                    other.has_met_a_write = True
            else:
                run.has_met_a_write = bool(writes) or (kind, key) in self.handed_over
                self.handed_over.discard((kind, key))
                if any(other.kind == kind and not other.has_met_a_write for other in others):
                    self.broken.append(f"{kind} of {key} has run twice at once, and no write was in between")
            self.runs.append(run)
        return run

    def look(self, run: Run, error: BaseException | None) -> int:
        with self.lock:
            if error is not None:
                raise error
            return self.versions[run.key]

    def land(self, run: Run, error: BaseException | None) -> None:
        with self.lock:
            self.versions[run.key] += 1
            if error is not None:
                raise error

    # Their callers

    def start(self, tool: Any, key: str) -> Any:
        if inspect.iscoroutinefunction(tool):
            return Awaited(asyncio.run_coroutine_threadsafe(tool(key), self.loop))
        return Call(tool, key)

    def hand_over(self, run: Run) -> None:
        """Note that a run dies. A write has detached its load if they have met: the next run may be beside others."""
        if run.has_met_a_write:
            self.handed_over.add((run.kind, run.key))
            for other in self.runs:
                other.has_met_a_write |= (other.kind, other.key) == (run.kind, run.key)

    def let_go(self, run: Run, error: BaseException | None) -> None:
        with self.lock:
            self.runs.remove(run)
        run.gate.set_result(error)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()


world: ContextVar[World] = ContextVar("world")


def get(key: str) -> int:
    here = world.get()
    run = here.begin("read", key)
    return here.look(run, run.gate.result(PATIENCE))


async def get_async(key: str) -> int:
    here = world.get()
    run = here.begin("async read", key)
    return here.look(run, await asyncio.wrap_future(run.gate))


def change(key: str) -> None:
    here = world.get()
    run = here.begin("write", key)
    here.land(run, run.gate.result(PATIENCE))


async def change_async(key: str) -> None:
    here = world.get()
    run = here.begin("write", key)
    here.land(run, await asyncio.wrap_future(run.gate))


READS = [AgentCache("thread:{key}")(tool) for tool in (get, get_async)]
WRITES = [AgentCacheInvalidator("thread:{key}", doubt=0)(tool) for tool in (change, change_async)]


class Awaited:
    """A call in the loop, as a `Call`."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def is_over(self) -> bool:
        return self._future.done()

    def result(self) -> Any:
        return self._future.result(PATIENCE)


class Threads(Machine):
    """Reads and writes of both kinds, on two keys."""

    is_tiered = False

    def __init__(self) -> None:
        super().__init__()
        if self.is_tiered:
            configure(remote=MemoryTier(MemoryServer()))
        self.world = World()
        self.exits.callback(self.world.close)
        world.set(self.world)
        self.reads: list[Reading] = []
        self.writes: list[Reading] = []
        self.deaths = 0
        self.loads_before = library.loads_in_flight()

    def moves(self) -> Iterator[str]:
        if len(self.reads) < MANY_READS:
            yield from ["start_a_read"] * 4
        if len(self.writes) < MANY_WRITES:
            yield "start_a_write"
        if self.world.runs:
            yield from ["let_a_tool_end"] * 3

    def start_a_read(self) -> None:
        tool, key = self.choose("tool", READS), self.choose("key", KEYS)
        self.reads.append(Reading(key, self.world.ended[key], self.world.start(tool, key)))

    def start_a_write(self) -> None:
        tool, key = self.choose("tool", WRITES), self.choose("key", KEYS)
        self.writes.append(Reading(key, 0, self.world.start(tool, key)))

    def let_a_tool_end(self) -> None:
        run = self.choose("run", list(self.world.runs))
        how = self.choose("how", ("returns", "returns", "fails", "dies"))
        if how == "dies" and run.kind == "read":
            self.deaths += 1
            self.world.hand_over(run)
            self.world.let_go(run, KeyboardInterrupt())
        else:
            self.world.let_go(run, LookupError() if how == "fails" else None)

    def check(self) -> None:
        """Wait until all stands still; judge what has ended."""

        def stands_still() -> bool:
            live = sum(not one.end.is_over() for one in (*self.reads, *self.writes))
            return live == len(self.world.runs) + library.calls_waiting()

        until(lambda: stands_still() and stands_still())
        for one in [one for one in self.writes if one.end.is_over()]:
            self.writes.remove(one)
            self.world.ended[one.key] = self.world.versions[one.key]
        for one in [one for one in self.reads if one.end.is_over()]:
            self.reads.remove(one)
            try:
                version = one.end.result()
            except LookupError:
                continue
            except KeyboardInterrupt:
                self.deaths -= 1
                continue
            assert version >= one.at_least, f"version {version} of {one.key}, and a write had left {one.at_least}"
        assert self.deaths >= 0, "who waited for a load that died has died with it"
        assert not self.world.broken, self.world.broken

    def finish(self) -> None:
        while self.reads or self.writes:
            for run in list(self.world.runs):
                self.world.let_go(run, None)
            self.check()
        assert library.loads_in_flight() <= self.loads_before


class ThreadsOverATier(Threads):
    """The same behind a tier."""

    is_tiered = True


FEW, MANY = 15, 400
MACHINES = (Threads, ThreadsOverATier)
for machine in MACHINES:
    globals().update(searches(machine, FEW, MANY))
del machine
