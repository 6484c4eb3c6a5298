"""Two processes over one store whose operations fail at random, before or after they were done: nobody finds what was
replaced by a write of its own, or by one that has landed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import Any, Literal

from hypothesis import given, settings, strategies as st

from agent_cache.remote import VersionedTier, WriteIntent
from agent_cache.testing import FakeClock, MemoryServer
from agent_cache.testing.tier_contract import FlakyBackend
from tests.contract.workbench import read

_numbers = itertools.count()

Step = Literal["read", "look", "store", "begin", "effect", "commit", "renew", "discard", "wait"]
STEPS: tuple[Step, ...] = ("read", "look", "store", "begin", "effect", "commit", "renew", "discard", "wait")
FAULTS = st.sampled_from([False, False, False, True, "after"])


class Process:
    """A tier, and what its tools are about to do.

    Attributes:
        floor: for each order, the version that its own writes have left.
        owed: versions of its writes that are not known to have landed.
    """

    def __init__(self, server: MemoryServer, faults: Any) -> None:
        self.backend: Any = FlakyBackend(server)
        self.backend.faults = lambda _: next(faults, False)
        self.tier = VersionedTier(self.backend, lease=10.0, max_staleness=1_000.0)
        self.tier.keeper = None  # a thread would take some of the faults
        self.tier.subscribe(lambda _: None)
        self.floor: dict[str, int] = defaultdict(int)
        self.owed: dict[str, int] = {}
        self.loads: list[tuple[str, Any, int]] = []
        self.writes: dict[str, tuple[WriteIntent, bool]] = {}


class World:
    def __init__(self, faults: list[bool | str]) -> None:
        server, given_faults = MemoryServer(), iter(faults)
        self.processes = [Process(server, given_faults) for _ in range(2)]
        self.truth: dict[str, int] = defaultdict(int)
        self.landed: dict[str, int] = defaultdict(int)

    def has_landed(self, process: Process) -> None:
        """Called after each step: without anything pending, all that a process owes has landed."""
        if not process.tier.pending:
            for order, version in process.owed.items():
                self.landed[order] = max(self.landed[order], version)
            process.owed.clear()

    async def look_up(self, process: Process, order: str) -> Any:
        request = read(f"order:{order}", key=order)
        found, ticket = await process.tier.lookup(request)
        if found is None:
            return ticket
        assert found.value >= max(self.landed[order], process.floor[order])
        return None

    async def take(self, step: Step, process: Process, order: str, clock: FakeClock) -> None:
        tier, tag = process.tier, f"order:{order}"
        match step:
            case "read" | "look":
                ticket = await self.look_up(process, order)
                if ticket is not None:
                    process.loads.append((order, ticket, self.truth[order]))
                    if step == "read":
                        await self.take("store", process, order, clock)
            case "store" if process.loads:
                name, ticket, value = process.loads.pop()
                await tier.store(ticket, value, (f"order:{name}",), 0.1, age=0.0)
            case "begin" if order not in process.writes:
                intent = WriteIntent(f"w{next(_numbers)}", (tag,))
                await tier.begin(intent)
                process.writes[order] = intent, False
            case "effect" if order in process.writes and not process.writes[order][1]:
                self.truth[order] += 1
                process.writes[order] = process.writes[order][0], True
            case "renew" if order in process.writes:
                await tier.renew(process.writes[order][0])
            case "commit" if order in process.writes and process.writes[order][1]:
                intent, _ = process.writes.pop(order)
                process.floor[order] = process.owed[order] = self.truth[order]
                await tier.commit(intent, intent.tags, failed=False, hold=0.0)
            case "discard":
                await tier.discard(read(tag, key=order))
            case "wait":
                clock.advance(4.0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.sampled_from("78")), min_size=10, max_size=40),
    st.lists(FAULTS, max_size=120),
)
def test_nobody_finds_what_was_replaced(steps: list[tuple[Step, int, str]], faults: list[bool | str]):
    async def run() -> None:
        with FakeClock() as clock:
            world = World(faults)
            for step, number, order in steps:
                process = world.processes[number]
                await world.take(step, process, order, clock)
                world.has_landed(process)

    asyncio.run(run())
