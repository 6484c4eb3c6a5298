"""Streams under random interleavings with writes, cancellations and early ends, against a model of what may be read.

No reader is given what a write has replaced, nor parts of two runs. Whatever happens, nothing is left over, and what is
stored is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator
from tests.harness import library
from tests.properties.machine import Machine, searches
from tests.properties.scheduler import Scheduler

CHUNKS = 3
"""Of each stream."""

machine: ContextVar[Streams] = ContextVar("machine")


@dataclass(eq=False)
class Consumer:
    """A caller of a stream, and what it has got.

    Attributes:
        stream: the stream.
        oldest: the version that the last write had made which had ended before the call began; None before.
        step: the chunk that it waits for; `is_asked` once the stream was asked for it.
    """

    stream: Any
    oldest: int | None = None
    chunks: list[int] = field(default_factory=list)
    step: asyncio.Task[Any] | None = None
    is_asked: bool = False
    is_over: bool = False
    is_cancelled: bool = False

    async def next(self) -> Any:
        self.is_asked = True
        return await anext(self.stream)

    def take(self) -> None:
        """Note the chunk that has come."""
        if self.step is None or not self.step.done():
            return
        step, self.step = self.step, None
        if step.cancelled():
            assert self.is_cancelled, "nobody has cancelled it"
            self.is_over = self.is_asked  # else the task was cancelled before its first step
        elif isinstance(step.exception(), StopAsyncIteration):
            self.is_over = True
            assert len(self.chunks) == CHUNKS
        else:
            self.chunks.append(step.result())


async def chunks(seen: int) -> AsyncIterator[int]:
    for _ in range(CHUNKS):
        await asyncio.sleep(0)
        yield seen


@AgentCache("stream")
async def read() -> AsyncIterator[int]:
    here = machine.get()
    here.runs += 1
    async for chunk in chunks(here.version):
        yield chunk


@AgentCache("summary")
async def read_another() -> AsyncIterator[int]:
    seen = [chunk async for chunk in read()]
    async for chunk in chunks(seen[-1]):
        yield chunk


@AgentCache("summary")
async def read_its_beginning() -> AsyncIterator[int]:
    async with aclosing(read()) as stream:  # type: ignore[type-var]
        first = await anext(stream)
    async for chunk in chunks(first):
        yield chunk


@AgentCacheInvalidator("stream", doubt=0.0)
async def write() -> AsyncIterator[int]:
    here = machine.get()
    yield 0
    await asyncio.sleep(0)
    here.version += 1
    yield here.version
    await asyncio.sleep(0)
    yield here.version


class Streams(Machine):
    """A thing with a version, tools that stream it and change it, and the consumers of both."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.exits.callback(self.scheduler.close)
        self.context = Context()
        self.context.run(machine.set, self)
        self.version = self.committed = self.runs = 0
        self.loads_before = library.loads_in_flight()
        self.readers: list[Consumer] = []
        self.writers: list[Consumer] = []

    # The moves

    def waiting(self, *, is_over: bool = False) -> list[Consumer]:
        every = (*self.readers, *self.writers)
        return [one for one in every if one.step is None and one.is_over is is_over]

    def moves(self) -> Iterator[str]:
        if len(self.waiting()) < 8:
            yield from ("start_a_read", "start_a_read", "start_a_write")
        if self.waiting():
            yield from ["ask_for_a_chunk"] * 6
            yield "leave"
        if any(one.step is not None for one in (*self.readers, *self.writers)):
            yield "cancel"

    def start_a_read(self) -> None:
        reader = self.choose("reader", (read, read, read_another, read_its_beginning, read_its_beginning))
        self.readers.append(Consumer(self.context.run(reader)))

    def start_a_write(self) -> None:
        self.writers.append(Consumer(self.context.run(write)))

    def ask_for_a_chunk(self) -> None:
        one = self.choose("consumer", self.waiting())
        if one.oldest is None:
            one.oldest = self.committed
        one.is_asked = one.is_cancelled = False
        one.step = self.scheduler.spawn(one.next(), self.context)
        for _ in range(self.choose("turns", (0, 1, 2, 3, 4, 6))):
            self.scheduler.turn()

    def leave(self) -> None:
        one = self.choose("consumer", self.waiting())
        one.is_over = True
        self.spawn(one.stream.aclose())

    def cancel(self) -> None:
        one = self.choose("consumer", [one for one in (*self.readers, *self.writers) if one.step is not None])
        one.is_cancelled = True
        assert one.step is not None
        one.step.cancel()
        self.scheduler.turn()

    def spawn(self, work: Any) -> Any:
        """Run it to its end."""
        task: asyncio.Task[Any] = self.scheduler.spawn(work, self.context)
        self.scheduler.drain()
        assert task.done(), "it hangs"
        return task.result()

    # What holds

    def check(self) -> None:
        for writer in self.writers:
            if not writer.is_over:
                writer.take()
                if writer.is_over:  # its end was seen by its caller: what it has changed counts from now on
                    self.committed = max(self.committed, *writer.chunks, 0)
        for reader in self.readers:
            reader.take()
            assert len(set(reader.chunks)) <= 1, f"parts of two runs: {reader.chunks}"
            assert all(chunk >= (reader.oldest or 0) for chunk in reader.chunks), f"{reader.oldest}: {reader.chunks}"

    def finish(self) -> None:
        self.scheduler.drain()
        self.check()
        for consumer in (*self.readers, *self.writers):
            self.spawn(consumer.stream.aclose())
        assert library.loads_in_flight() <= self.loads_before
        assert not asyncio.all_tasks(self.scheduler.loop)

        async def whole(stream: Any) -> list[int]:
            return [chunk async for chunk in stream()]

        for stream in (read_another, read_its_beginning, read):
            assert self.spawn(whole(stream)) == [self.version] * CHUNKS
        runs = self.runs
        assert self.spawn(whole(read)) == [self.version] * CHUNKS
        assert self.runs == runs, "without a write it is stored"


FEW, MANY = 60, 2_000
MACHINES = (Streams,)
globals().update(searches(Streams, FEW, MANY))
