"""Random schedules of reads that are made of others, of writes and of dying writers, on tiers in memory.

What a tier gives must not be older than the last write that has returned, for anything that it is made of. Local copies
are as old as they like: the messages that would drop them have not come.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_cache.testing import FakeClock, MemoryServer, MemoryTier
from tests.contract.workbench import commit, read, store_over, write
from tests.harness.slow import slow

ENTITIES = ("order:1", "order:2", "user:1")
Seen = dict[str, int]
"""A value: the version of each entity when the load looked at it."""
Answer = tuple[Seen, tuple[str, ...], Any]
"""A value, its tags, and the versions that a tier gave its load."""


@dataclass(frozen=True)
class Tool:
    """A read: what it looks at itself, which tags it has, and which reads its load makes."""

    request: Any
    looks_at: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()


def tool(name: str, *tags: str, late: tuple[str, ...] = (), looks_at: tuple[str, ...] = (), inner: str = "") -> Tool:
    roots = tuple(sorted({tag.partition(":")[0] for tag in late}))
    return Tool(read(*tags, tool=name, key=name, late=roots), looks_at, late, tuple(inner.split()))


TOOLS = {
    "first": tool("first", "order:1", looks_at=("order:1",)),
    "second": tool("second", "order:2", looks_at=("order:2",)),
    "user": tool("user", "user:1", looks_at=("user:1",)),
    "all": tool("all", "order", looks_at=("order:1", "order:2")),
    "found": tool("found", late=("order:1",), looks_at=("order:1",)),
    "report": tool("report", "report", inner="first user"),
    "twice": tool("twice", "report", inner="first all"),
    "over_found": tool("over_found", "report", inner="found user found"),
    "own": tool("own", "order:1", looks_at=("order:1",), inner="first all"),
    "own_late": tool("own_late", late=("order:1",), looks_at=("order:1",), inner="found second"),
    "mail": tool("mail", "mail", inner="report over_found"),
    "mail_late": tool("mail_late", late=("user:1",), looks_at=("user:1",), inner="report own"),
}


@dataclass
class Schedule:
    """Two processes, and everything that they do, one step after the other in a random order."""

    random: random.Random
    make: Callable[[MemoryServer], MemoryTier]
    clock: FakeClock
    truth: Seen = field(default_factory=lambda: dict.fromkeys(ENTITIES, 0))
    least: Seen = field(default_factory=lambda: dict.fromkeys(ENTITIES, 0))
    stored: int = 0
    found: int = 0
    stale: list[str] = field(default_factory=list)

    async def run(self, steps: int = 150) -> None:
        server = MemoryServer()
        self.tiers = [self.make(server), self.make(server)]
        self.copies: list[dict[str, Answer]] = [{}, {}]
        self.writers: dict[object, bool] = {}
        self.dead: dict[str, int] = {}
        running: list[AsyncIterator[None]] = []
        for _ in range(steps):
            if len(running) < 4:
                process = self.random.randrange(2)
                is_write = self.random.random() < 0.3
                running.append(self._write(process) if is_write else self._read_alone(process))
            one = self.random.choice(running)
            if await anext(one, self) is self:
                running.remove(one)
            if self.random.random() < 0.03:
                await self._pass_a_lease()

    async def _pass_a_lease(self) -> None:
        """Running writes renew theirs; those that are dead lose it."""
        for _ in range(2):
            self.clock.advance(6.0)
            for intent in self.writers:
                await self.tiers[0].renew(intent)
        for entity, version in self.dead.items():
            self.least[entity] = max(self.least[entity], version)
        self.dead.clear()

    # Writes

    async def _write(self, process: int) -> AsyncIterator[None]:
        tier, entity = self.tiers[process], self.random.choice(ENTITIES)
        root = entity.partition(":")[0]
        kind = self.random.choice(("entity", "root", "result"))
        intent = write(late=(root,)) if kind == "result" else write(entity if kind == "entity" else root)
        await tier.begin(intent)
        self.writers[intent] = True
        yield
        self.truth[entity] += 1
        version = self.truth[entity]
        yield
        del self.writers[intent]
        if self.random.random() < 0.2:  # it dies
            if kind == "result":
                self.dead[entity] = max(version, self.dead.get(entity, 0))
            else:
                self.least[entity] = max(self.least[entity], version)
            return
        failed = kind == "result" and self.random.random() < 0.3
        await commit(tier, intent, *((entity,) if kind == "result" and not failed else ()), failed=failed)
        self.least[entity] = max(self.least[entity], version)
        for copies in (self.copies[process],):  # its own copies are dropped at once
            for name in [name for name, (seen, _, _) in copies.items() if entity in seen]:
                del copies[name]

    # Reads

    async def _read_alone(self, process: int) -> AsyncIterator[None]:
        result: list[Answer] = []
        async for _ in self._read(process, self.random.choice([*TOOLS]), result):
            yield

    async def _read(self, process: int, name: str, result: list[Answer]) -> AsyncIterator[None]:
        tier, one = self.tiers[process], TOOLS[name]
        if name in self.copies[process] and self.random.random() < 0.4:
            result.append(self.copies[process][name])
            return
        found, ticket = await tier.lookup(one.request)
        if found is not None:
            self.found += 1
            self._check(name, found.value)
            self._keep(process, name, found.value, found.tags, ticket, result)
            return
        yield
        seen = {entity: self.truth[entity] for entity in one.looks_at}
        tags, inherited = [*one.request.tags, *one.late], []
        for inner in one.inner:
            yield
            inside: list[Answer] = []
            async for _ in self._read(process, inner, inside):
                yield
            ((value, inner_tags, versions),) = inside
            for entity, version in value.items():
                seen[entity] = min(version, seen.get(entity, version))
            tags += inner_tags
            inherited.append(versions)
        yield
        await store_over(tier, ticket, seen, tuple(dict.fromkeys(tags)), *inherited)
        self.stored += ticket.versions is not None
        self._keep(process, name, seen, tuple(dict.fromkeys(tags)), ticket, result)

    def _keep(
        self, process: int, name: str, seen: Seen, tags: tuple[str, ...], ticket: Any, result: list[Answer]
    ) -> None:
        answer = seen, tags, ticket.versions
        if ticket.is_clean():
            self.copies[process][name] = answer
        result.append(answer)

    def _check(self, name: str, seen: Seen) -> None:
        self.stale += [
            f"{name}: {entity} {version} < {self.least[entity]}"
            for entity, version in seen.items()
            if version < self.least[entity]
        ]


async def play(seeds: range, make: Callable[[MemoryServer], MemoryTier]) -> list[Schedule]:
    played = []
    for seed in seeds:
        with FakeClock() as clock:
            schedule = Schedule(random.Random(seed), make, clock)
            await schedule.run()
        played.append(schedule)
    return played


@pytest.mark.parametrize("schedules", [90, *slow(300)])
async def test_nothing_is_found_that_is_older_than_a_write_that_has_returned(schedules):
    played = await play(range(schedules), MemoryTier)
    assert [(seed, each.stale) for seed, each in enumerate(played) if each.stale] == []
    assert sum(each.found for each in played) > schedules * 10 / 3
    assert sum(each.stored for each in played) > schedules * 10 / 3
