"""One process of a run: reads and writes by decorated tools, and checks each read when it returns."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.remote.file import FileTier
from benchmarks.onemachine.shared import ENTITIES, TASKS, Count, Flag, Shared
from tests.harness.file_steps import show_steps

WINDOW: Final = 1.0
"""Seconds in which a deleted file is noticed."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do.

    Attributes:
        process: its number, under which it counts.
        operations: that many, those of its former lives included.
        writes: share of them.
        dies_at: at which step of its only write it dies; None: it lives.
        kind: of that write.
        padding: bytes that the value of an entity has beside its number.
        forks: after every so many operations a child does some; 0: never.
    """

    folder: Path
    process: int
    operations: int
    seed: int
    lease: float = 0.3
    timeout: float = 0.1
    max_bytes: int = 268_435_456
    writes: float = 0.01
    hooked: bool = False
    dies_at: int | None = None
    kind: int = 0
    padding: int = 0
    forks: int = 0


@dataclass
class Worker:
    """A process at work."""

    job: Job
    shared: Shared = field(init=False)

    def __post_init__(self) -> None:
        self.shared = Shared(self.job.folder)
        self.random = random.Random(self.job.seed)
        self.process = self.job.process
        self.found = self.losses = 0
        self.steps = -1

    def run(self) -> None:
        job = self.job
        if job.hooked or job.dies_at is not None:
            show_steps(self.step)
        self.open()
        asyncio.run(self.die() if job.dies_at is not None else self.work())

    def open(self) -> None:
        job = self.job
        self.tier = FileTier(job.folder / "cache", lease=job.lease, timeout=job.timeout, max_bytes=job.max_bytes)
        self.decorate()

    def decorate(self) -> None:
        shared, tier, process = self.shared, self.tier, self.process

        padding = self.random.randbytes(self.job.padding // 2).hex()  # it cannot be compressed to nothing

        async def pause() -> None:
            await asyncio.sleep(0.001 if self.random.random() < 0.1 else 0)

        @AgentCache("order:{order}", name="get", ttl=30, remote_cache=tier)
        async def get(order: int) -> str:
            shared.count(self.process, Count.LOADS)
            await pause()
            number = shared.truth[order]
            await pause()
            return f"{number} {padding}"

        @AgentCache("order", name="overview", ttl=30, remote_cache=tier)
        async def overview() -> list[int]:
            shared.count(self.process, Count.LOADS)
            numbers = []
            for order in range(ENTITIES):
                numbers.append(shared.truth[order])
                if order % 8 == 0:
                    await pause()
            return numbers

        @AgentCache("order:{result[id]}", name="find", ttl=30, remote_cache=tier)
        async def find(label: str) -> dict[str, int]:
            shared.count(self.process, Count.LOADS)
            await pause()
            order = int(label[6:])
            number = shared.truth[order]
            await pause()
            return {"id": order, "number": number}

        @AgentCache("order:{order}", name="get_in_thread", ttl=30, remote_cache=tier)
        def get_in_thread(order: int) -> int:
            shared.count(self.process, Count.LOADS)
            return shared.truth[order]

        @AgentCacheInvalidator("order:{order}", name="put", remote_cache=tier)
        async def put(order: int, task: int) -> int:
            await pause()
            number = shared.effect(order, self.process, task)
            await pause()
            return number

        @AgentCacheInvalidator("order", name="reprice", remote_cache=tier)
        async def reprice(order: int, task: int) -> int:
            await pause()
            number = shared.effect(order, self.process, task)
            await pause()
            return number

        @AgentCacheInvalidator("order:{result[id]}", name="rename", remote_cache=tier)
        async def rename(label: str, task: int) -> dict[str, int]:
            await pause()
            order = int(label[6:])
            number = shared.effect(order, self.process, task)
            await pause()
            return {"id": order, "number": number}

        @AgentCacheInvalidator("order:{order}", name="put_in_thread", remote_cache=tier)
        def put_in_thread(order: int, task: int) -> int:
            return shared.effect(order, self.process, task)

        async def found(order: int) -> int:
            return (await find(f"label {order}"))["number"]

        async def renamed(order: int, task: int) -> int:
            return (await rename(f"label {order}", task))["number"]

        async def gotten(order: int) -> int:
            return int((await get(order)).split()[0])

        self.reads: list[Callable[[int], Awaitable[Any]]] = [gotten, gotten, found, lambda _: overview()]
        self.writings: list[Callable[[int, int], Awaitable[int]]] = [put, renamed, reprice]
        self.sync_tools = get_in_thread, put_in_thread
        self.tools = get, overview, find, get_in_thread, put, reprice, rename, put_in_thread, process

    # Operations

    def is_left(self) -> bool:
        self.shared.count(self.process, Count.OPERATIONS)
        is_over = self.shared.flags[Flag.IS_OVER]  # of a run that lasts for a time
        return not is_over and self.shared.counted(self.process, Count.OPERATIONS) <= self.job.operations

    async def work(self) -> None:
        thread = threading.Thread(target=self.work_in_thread, daemon=True)
        thread.start()
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS - 2):
                group.create_task(self.agent(task))
        await asyncio.to_thread(thread.join)
        while not self.shared.flags[Flag.IS_OVER]:  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.02)
        end = time.monotonic() + 5
        while not self.tier.stats()["trusted"] and time.monotonic() < end:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.05)
        await self.reads[0](0)
        if not self.tier.stats()["trusted"]:
            self.shared.count(self.process, Count.UNUSABLE)
        await self.tier.aclose()

    async def agent(self, task: int) -> None:
        done = 0
        while self.is_left():
            done += 1
            order = self.entity()
            if self.random.random() < self.job.writes:
                await self.write(self.random.choices(self.writings, (6, 3, 1))[0], order, task)
            else:
                await self.read(self.random.choice(self.reads), order)
            await asyncio.sleep(0)
            if done % 16 == 0:
                self.count_found()
            if self.job.forks and task == 0 and done % self.job.forks == 0:
                self.fork()

    def work_in_thread(self) -> None:
        """The tools that are no coroutine functions."""
        get, put = self.sync_tools
        rng = random.Random(self.job.seed + 1)
        while self.is_left():
            order = rng.randrange(ENTITIES)
            start = time.monotonic_ns()
            try:
                if rng.random() < self.job.writes:
                    number = put(order, TASKS - 1)
                    self.shared.end(order, number)
                    self.shared.forget(self.process, TASKS - 1)
                    self.shared.count(self.process, Count.WRITES)
                else:
                    floor = self.shared.ended[order]
                    self.check(order, get(order), floor, start, "get_in_thread")
            except Exception:  # noqa: BLE001 - counted: tools must not see faults
                self.note_error()
            self.shared.raise_to(self.process, Count.SLOWEST, time.monotonic_ns() - start)
            time.sleep(0.0005)

    def entity(self) -> int:
        return min(int(self.random.expovariate(0.25)), ENTITIES - 1)

    async def read(self, tool: Callable[[int], Awaitable[Any]], order: int) -> None:
        floors = self.shared.ended.tolist()
        start = time.monotonic_ns()
        try:
            result = await tool(order)
        except Exception:  # noqa: BLE001 - counted: tools must not see faults
            self.note_error()
            return
        self.shared.raise_to(self.process, Count.SLOWEST, time.monotonic_ns() - start)
        name = getattr(tool, "__name__", "tool")
        if isinstance(result, list):
            worst = max(range(ENTITIES), key=lambda one: floors[one] - result[one])
            self.check(worst, result[worst], floors[worst], start, "overview")
        else:
            self.check(order, result, floors[order], start, name)

    def check(self, order: int, number: int, floor: int, start: int, tool: str) -> None:
        self.shared.count(self.process, Count.READS)
        if number >= floor:
            return
        deleted = self.shared.flags[Flag.DELETED_AT]
        since = start - deleted
        is_excepted = deleted and since < WINDOW * 1e9
        self.shared.count(self.process, Count.STALE_IN_WINDOW if is_excepted else Count.STALE)
        self.complain(f"stale {tool} order={order} returned={number} ended={floor} since_deleted={since / 1e9:.3f}")

    async def write(self, tool: Callable[[int, int], Awaitable[int]], order: int, task: int) -> None:
        start = time.monotonic_ns()
        try:
            number = await tool(order, task)
        except Exception:  # noqa: BLE001 - counted: tools must not see faults
            self.note_error()
            return
        self.shared.raise_to(self.process, Count.SLOWEST, time.monotonic_ns() - start)
        self.shared.end(order, number)
        self.shared.forget(self.process, task)
        self.shared.count(self.process, Count.WRITES)

    def count_found(self) -> None:
        stats = self.tier.stats()
        deleted = self.shared.flags[Flag.DELETED_AT]
        if deleted and stats["losses"] > self.losses:
            self.shared.raise_to(self.process, Count.NOTICED, time.monotonic_ns() - deleted)
        self.losses = stats["losses"]
        hits = stats["hits"]
        self.shared.count(self.process, Count.FOUND, hits - self.found)
        self.found = hits

    def note_error(self) -> None:
        self.shared.count(self.process, Count.ERRORS)
        self.complain(traceback.format_exc())

    def complain(self, text: str) -> None:
        with (self.job.folder / "complaints").open("a") as file:
            file.write(f"{time.monotonic():.3f} process {self.process}: {text}\n")

    # Faults that a process does to itself

    def step(self, text: str) -> None:
        """Before each statement and each word of the page."""
        if self.steps >= 0 and self.job.dies_at is not None:
            if self.steps == self.job.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps += 1
        if text in ("BEGIN IMMEDIATE", "COMMIT") or text.startswith(("INSERT", "UPDATE", "DELETE")):
            code = (
                sqlite3.SQLITE_FULL if self.shared.flags[Flag.IS_FULL]
                else sqlite3.SQLITE_READONLY if self.shared.flags[Flag.IS_READ_ONLY]
                else 0
            )  # fmt: skip
            # A full disk fails somewhere in a transaction, one that is read-only in the first statement that writes.
            if code and (text[0] in "IUD" if code == sqlite3.SQLITE_READONLY else random.random() < 0.3):
                error = sqlite3.OperationalError("injected")
                error.sqlite_errorcode = code
                raise error

    async def die(self) -> None:
        """Write once, and die at a step of it. Ends with 0 if there were fewer steps."""
        order = self.entity()
        for tool in self.reads:
            await tool(order)
        self.steps = 0
        await self.write(self.writings[self.job.kind], order, 0)

    def fork(self) -> None:
        """Have a child do some operations, with what it has inherited."""
        sys.stdout.flush()
        with self.shared.alone():  # or the child would wait for a lock that a thread of its parent has
            child = os.fork()
        self.shared.count(self.process, Count.FORKS)
        if child:
            threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()
            return
        try:
            self.process += 16  # under another number, with its own count
            asyncio.events._set_running_loop(None)
            asyncio.run(self.work_as_child())
        finally:
            os._exit(0)

    async def work_as_child(self) -> None:
        for _ in range(40):
            order = self.entity()
            if self.random.random() < self.job.writes:
                await self.write(self.random.choices(self.writings, (6, 3, 1))[0], order, 0)
            else:
                await self.read(self.random.choice(self.reads), order)
            self.shared.count(self.process, Count.OPERATIONS)
