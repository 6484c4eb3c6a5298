"""Streams under random interleavings with writes, cancellations and early ends, against a model of what may be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from agent_cache import AgentCache, AgentCacheInvalidator
from tests.harness import library
from tests.harness.gates import idle
from tests.harness.searches import searched

CHUNKS = 3
"""Of each stream."""


@dataclass
class Consumer:
    """A caller of a stream, and what it has got.

    Attributes:
        stream: the stream.
        oldest: the version that the last write had made which had ended before the call began.
        step: the chunk that it waits for.
    """

    stream: Any
    oldest: int
    chunks: list[int] = field(default_factory=list)
    step: asyncio.Task[Any] | None = None
    is_over: bool = False
    is_cancelled: bool = False

    def take(self) -> None:
        """Note the chunk that has come."""
        if self.step is None or not self.step.done():
            return
        step, self.step = self.step, None
        if step.cancelled():
            assert self.is_cancelled, "nobody has cancelled it"
            self.is_over = True
        elif isinstance(step.exception(), StopAsyncIteration):
            self.is_over = True
            assert len(self.chunks) == CHUNKS
        else:
            self.chunks.append(step.result())


async def _next(stream: Any) -> Any:
    return await anext(stream)


class World:
    """A thing with a version, tools that stream it and change it, and the consumers of both."""

    def __init__(self) -> None:
        self.version = 0
        self.committed = 0
        self.runs = 0
        self.readers: list[Consumer] = []
        self.writers: list[Consumer] = []

        @AgentCache("thing")
        async def read() -> AsyncIterator[int]:
            self.runs += 1
            seen = self.version
            for _ in range(CHUNKS):
                await asyncio.sleep(0)
                yield seen

        @AgentCacheInvalidator("thing", doubt=0.0)
        async def write() -> AsyncIterator[int]:
            yield 0
            await asyncio.sleep(0)
            self.version += 1
            yield self.version
            await asyncio.sleep(0)
            yield self.version

        self.read, self.write = read, write

    async def do(self, action: str, number: int, turns: int) -> None:
        """Do one step of a schedule."""
        readers, writers = self.readers, self.writers
        if action == "read":
            readers.append(Consumer(self.read(), -1))
        elif action == "write":
            writers.append(Consumer(self.write(), 0))
        elif consumers := (readers if action.endswith("reader") else writers):
            consumer = consumers[number % len(consumers)]
            if action.startswith("advance"):
                if consumer.step is None and not consumer.is_over:
                    if consumer.oldest == -1:
                        consumer.oldest = self.committed
                    consumer.step = asyncio.ensure_future(_next(consumer.stream))
            elif consumer.step is not None:
                consumer.is_cancelled = True
                consumer.step.cancel()
            else:
                await consumer.stream.aclose()
                consumer.is_over = True
        for _ in range(turns):
            await asyncio.sleep(0)
        self.look()

    def look(self) -> None:
        """Note what has come, and compare it."""
        for consumer in self.writers:
            if not consumer.is_over:
                consumer.take()
                if consumer.is_over:  # its end was seen by its caller: what it has changed counts from now on
                    self.committed = max(self.committed, *consumer.chunks, 0)
        for consumer in self.readers:
            consumer.take()
            assert len(set(consumer.chunks)) <= 1
            assert all(chunk >= consumer.oldest for chunk in consumer.chunks)

    async def finish(self) -> None:
        """End everything, and compare what is stored."""
        for consumer in (*self.readers, *self.writers):
            if consumer.step is not None:
                consumer.step.cancel()
                await asyncio.wait([consumer.step])
            await consumer.stream.aclose()
        await idle()
        assert library.nothing_in_flight()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [chunk async for chunk in self.read()] == [self.version] * CHUNKS
        runs = self.runs
        assert [chunk async for chunk in self.read()] == [self.version] * CHUNKS
        assert self.runs == runs, "without a write it is stored"


ACTIONS = ("read", "advance reader", "advance reader", "leave reader", "write", "advance writer", "leave writer")

SCHEDULES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.integers(0, 6)), min_size=5, max_size=60)


async def _play(schedule: list[tuple[str, int, int]]) -> None:
    world = World()
    for step in schedule:
        await world.do(*step)
    await world.finish()


@searched(15, 150, SCHEDULES)
def test_no_interleaving_gives_a_reader_what_a_write_has_replaced(schedule: list[tuple[str, int, int]]):
    """Nor parts of two runs; and whatever happens, nothing is left over and what is stored is right."""
    with library.fresh_library():
        asyncio.run(_play(schedule))
