"""Streaming tools: chunks pass while the tool runs, equal calls follow one run, and whole streams are stored."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, get_metrics
from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness import library
from tests.harness.gates import cancelled, idle

pytestmark = pytest.mark.usefixtures("nothing_left")


class Broken(Exception):
    """What a tool raises."""


class Run:
    """One run of a generator that yields what the test lets it yield.

    Attributes:
        end: how it has ended: ``"ended"``, ``"closed"``, ``"cancelled"`` or ``"raised"``; None while it runs.
    """

    def __init__(self) -> None:
        self.end: str | None = None
        self._steps: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def yields(self, *chunks: Any) -> None:
        for chunk in chunks:
            self._steps.put_nowait(("yield", chunk))
        await idle()

    async def ends(self) -> None:
        self._steps.put_nowait(("end", None))
        await idle()

    async def raises(self, error: BaseException) -> None:
        self._steps.put_nowait(("raise", error))
        await idle()

    async def chunks(self) -> AsyncIterator[Any]:
        try:
            while True:
                step, value = await self._steps.get()
                if step == "end":
                    self.end = "ended"
                    return
                if step == "raise":
                    self.end = "raised"
                    raise value
                yield value
        except GeneratorExit:
            self.end = "closed"
            raise
        except asyncio.CancelledError:
            self.end = "cancelled"
            raise


class Source:
    """A streaming tool whose runs the test conducts."""

    def __init__(self, **options: Any) -> None:
        self.runs: list[Run] = []
        options = {"resource": "doc:{id}", **options}

        @AgentCache(**options)
        async def words(id: int) -> AsyncIterator[Any]:
            run = Run()
            self.runs.append(run)
            async with aclosing(run.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk

        self.words: Any = words

    @property
    def last(self) -> Run:
        return self.runs[-1]


class Listener:
    """A consumer in a task of its own, which may be told to stop after some chunks."""

    def __init__(self, stream: AsyncGenerator[Any, None], most: int | None = None) -> None:
        self.chunks: list[Any] = []
        self.task = asyncio.ensure_future(self._listen(stream, most))

    async def _listen(self, stream: AsyncGenerator[Any, None], most: int | None) -> list[Any]:
        async with aclosing(stream):
            async for chunk in stream:
                self.chunks.append(chunk)
                if len(self.chunks) == most:
                    break
        return self.chunks


async def listening(stream: AsyncGenerator[Any, None], most: int | None = None) -> Listener:
    listener = Listener(stream, most)
    await idle()
    return listener


async def collected(stream: AsyncGenerator[Any, None]) -> list[Any]:
    return [chunk async for chunk in stream]


def running_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


@pytest.fixture
def source() -> Source:
    return Source()


# -- What a caller gets --------------------------------------------------------------------------------------


async def test_chunks_pass_as_they_come_and_a_hit_has_them_all_at_once(source: Source):
    listener = await listening(source.words(1))
    await source.last.yields("a")
    assert listener.chunks == ["a"]
    await source.last.yields("b")
    assert listener.chunks == ["a", "b"]
    assert not source.words.contains(1)
    await source.last.ends()
    assert await listener.task == ["a", "b"]
    assert source.words.contains(1)

    stream = source.words(1)
    for expected in ("a", "b"):
        with pytest.raises(StopIteration) as step:
            anext(stream).__await__().send(None)  # it waits for nothing
        assert step.value.value == expected
    with pytest.raises(StopAsyncIteration):
        anext(stream).__await__().send(None)
    assert len(source.runs) == 1


async def test_callers_follow_one_run_from_its_first_chunk(source: Source):
    first = await listening(source.words(1))
    await source.last.yields("a")
    second = await listening(source.words(1))
    assert second.chunks == ["a"]
    await source.last.yields("b")
    third = await listening(source.words(id=1))
    assert first.chunks == second.chunks == third.chunks == ["a", "b"]
    await source.last.ends()
    assert await asyncio.gather(first.task, second.task, third.task) == [["a", "b"]] * 3
    assert len(source.runs) == 1
    metrics = get_metrics()
    assert (metrics["misses"], metrics["shared"], metrics["hits"]) == (1, 2, 0)
    assert await collected(source.words(1)) == ["a", "b"]
    assert get_metrics()["hits"] == 1


async def test_the_time_that_a_hit_saves_is_that_of_the_generator(clock: library.Clock):
    @AgentCache("doc")
    async def slow() -> AsyncIterator[int]:
        for number in range(3):
            clock.advance(1.0)
            yield number

    async for _ in slow():
        clock.advance(10.0)
    await collected(slow())
    assert get_metrics()["time_saved"] == 3.0


# -- How it ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["cancelled before its first chunk", "cancelled", "closed", "thrown into"])
async def test_an_abandoned_stream_is_closed_at_once_and_not_stored(way: str, source: Source):
    stream = source.words(1)
    step = asyncio.ensure_future(anext(stream))
    await idle()
    if way != "cancelled before its first chunk":
        await source.last.yields("a", "b")
        assert [await step, await anext(stream)] == ["a", "b"]
        step = asyncio.ensure_future(anext(stream)) if way == "cancelled" else step
        await idle()
    if way.startswith("cancelled"):
        await cancelled(step)
    elif way == "closed":
        await stream.aclose()
    else:
        with pytest.raises(Broken):
            await stream.athrow(Broken())
    await idle()
    assert source.last.end == ("cancelled" if way.startswith("cancelled") else "closed")
    assert running_tasks() == set()
    assert not source.words.contains(1)
    again = await listening(source.words(1))
    assert len(source.runs) == 2
    await cancelled(again.task)


async def test_followers_of_a_failing_stream_get_its_chunks_and_then_the_error(source: Source):
    first = await listening(source.words(1))
    await source.last.yields("a", "b")
    second = await listening(source.words(1))
    slow = source.words(1)
    assert await anext(slow) == "a"
    error = Broken()
    await source.last.raises(error)
    for listener in (first, second):
        with pytest.raises(Broken) as caught:
            await listener.task
        assert caught.value is error
        assert listener.chunks == ["a", "b"]
    assert await anext(slow) == "b"
    with pytest.raises(Broken):
        await anext(slow)
    assert not source.words.contains(1)
    assert get_metrics()["errors"] == 1
    again = await listening(source.words(1))
    assert len(source.runs) == 2
    await cancelled(again.task)


@pytest.mark.parametrize("taken", [0, 1])
async def test_who_has_no_chunk_of_a_run_that_is_interrupted_runs_it_alone_and_others_are_told(
    taken: int, source: Source
):
    first, second = await listening(source.words(1)), await listening(source.words(1))
    await source.last.yields(*"a"[:taken])
    await source.last.raises(asyncio.CancelledError())
    assert first.task.cancelled()
    if taken:
        with pytest.raises(RuntimeError, match="interrupted"):
            await second.task
    else:
        await source.last.yields("new")
        await source.last.ends()
        assert await second.task == ["new"]
    assert len(source.runs) == 2 - taken
    assert library.nothing_in_flight()


async def test_no_stale_answer_goes_on_where_a_stream_has_failed(clock: library.Clock):
    source = Source(ttl=10, stale_if_error=30)
    first = await listening(source.words(1))
    await source.last.yields("old", "older")
    await source.last.ends()
    assert await first.task == ["old", "older"]
    clock.advance(10)
    second, empty = await listening(source.words(1)), await listening(source.words(2), most=1)
    await source.runs[1].yields("new")
    await source.runs[1].raises(Broken())
    with pytest.raises(Broken):
        await second.task
    assert second.chunks == ["new"]
    await cancelled(empty.task)


async def test_a_generator_stays_in_one_task_and_one_context():
    """So it may have timeouts and context variables, whatever task reads it."""
    variable = contextvars.ContextVar("variable", default="outside")
    tasks: list[Any] = []

    @AgentCache("doc")
    async def words() -> AsyncIterator[str]:
        token = variable.set("inside")
        try:
            async with asyncio.timeout(60):
                for letter in "abc":
                    tasks.append(asyncio.current_task())
                    yield letter + variable.get()
        finally:
            variable.reset(token)

    stream = words()
    for letter in "abc":
        assert await asyncio.create_task(anext(stream)) == f"{letter}inside"  # type: ignore[arg-type]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert len(set(tasks)) == 1
    assert variable.get() == "outside"


# -- Bounds --------------------------------------------------------------------------------------------------

BIG = "x" * 1_000


async def test_a_stream_beyond_the_bound_reaches_its_callers_and_is_not_stored(caplog: pytest.LogCaptureFixture):
    source = Source(max_stream_bytes=5_000)
    caplog.set_level(logging.WARNING, "agent_cache")
    first, second = await listening(source.words(1)), await listening(source.words(1))
    await source.last.yields(*[BIG] * 10)
    late = await listening(source.words(1))
    assert len(source.runs) == 2, "it is too late to join"
    await source.runs[0].ends()
    assert await asyncio.gather(first.task, second.task) == [[BIG] * 10] * 2
    assert not source.words.contains(1)
    assert "max_stream_bytes" in caplog.text
    await cancelled(late.task)


class Chunk:
    """A chunk that can be watched."""


async def test_no_more_of_a_long_stream_is_kept_than_its_readers_have_to_take():
    source = Source(max_stream_bytes=1, copy="never")
    stream = source.words(1)
    step = asyncio.ensure_future(anext(stream))
    await idle()
    kept: list[weakref.ref[Chunk]] = []
    for _ in range(5):
        chunk = Chunk()
        kept.append(weakref.ref(chunk))
        await source.last.yields(chunk)
        del chunk
        await step
        step = asyncio.ensure_future(anext(stream))
        await idle()
    gc.collect()
    assert [one() for one in kept[:4]] == [None] * 4
    await cancelled(step)


@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_a_stream_that_was_left_or_has_ended_is_freed_without_a_garbage_collection(taken: int):
    """Its chunks may be large, and the next collection far."""
    kept: list[weakref.ref[Chunk]] = []

    def words() -> Iterator[Chunk]:
        for _ in range(2):
            kept.append(weakref.ref(chunk := Chunk()))
            yield chunk

    async def later() -> AsyncIterator[Chunk]:
        for chunk in words():
            yield chunk
            del chunk

    reads = AgentCache("doc", copy="never")(words), AgentCache("doc", copy="never")(later)
    gc.disable()
    try:
        for _ in zip(range(taken), stream := reads[0](), strict=False):
            pass
        stream.close()
        async with aclosing(reads[1]()) as following:
            for _ in range(taken):
                await anext(following, None)
        del stream, following, _
        for read in reads:
            read.clear()
        assert [one() for one in kept] == [None] * len(kept)
    finally:
        gc.enable()


# -- Writes --------------------------------------------------------------------------------------------------


class Writer:
    """A write that streams, and a read of the same thing."""

    def __init__(self, **options: Any) -> None:
        self.runs: list[Run] = []

        @AgentCache("doc:{id}")
        async def get(id: int) -> int:
            return id

        @AgentCacheInvalidator("doc:{id}", **options)
        async def change(id: int) -> AsyncIterator[Any]:
            run = Run()
            self.runs.append(run)
            async with aclosing(run.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk

        self.get, self.change = get, change

    async def is_kept(self) -> bool:
        """Whether a read is stored now."""
        await self.get(1)
        return self.get.contains(1)


async def test_a_write_begins_with_the_iteration_and_ends_with_the_stream():
    writer = Writer()
    assert await writer.is_kept()
    stream = writer.change(1)
    assert await writer.is_kept()
    listener = await listening(stream)
    assert not writer.get.contains(1)
    assert not await writer.is_kept()
    await writer.runs[0].yields("half", "done")
    assert listener.chunks == ["half", "done"]
    assert not await writer.is_kept()
    await writer.runs[0].ends()
    assert await listener.task == ["half", "done"]
    assert await writer.is_kept()


@pytest.mark.parametrize("way", ["cancelled", "closed"])
async def test_an_abandoned_write_is_in_doubt(way: str, clock: library.Clock):
    writer = Writer(doubt=5.0)
    stream = writer.change(1)
    step = asyncio.ensure_future(anext(stream))
    await idle()
    await writer.runs[0].yields("half")
    assert await step == "half"
    if way == "cancelled":
        step = asyncio.ensure_future(anext(stream))
        await idle()
        await cancelled(step)
    else:
        await stream.aclose()
    assert writer.runs[0].end == way
    assert not await writer.is_kept()
    clock.advance(6.0)
    assert await writer.is_kept()


async def test_nothing_is_sent_into_a_read(source: Source):
    """Other callers may have the same stream. The caller is told, and the stream is left."""
    stream = source.words(1)
    step = asyncio.ensure_future(anext(stream))
    await idle()
    await source.last.yields("a", "b")
    await step
    with pytest.raises(TypeError, match="argument of the tool"):
        await stream.asend("value")
    assert source.last.end == "closed"


# -- Copies --------------------------------------------------------------------------------------------------


async def test_who_changes_a_chunk_changes_no_one_elses(source: Source):
    first, second = await listening(source.words(1)), await listening(source.words(1))
    chunk = {"words": ["a"]}
    await source.last.yields(chunk)
    assert first.chunks[0] is chunk
    assert second.chunks == [{"words": ["a"]}]
    first.chunks[0]["words"].append("changed")
    second.chunks[0]["words"].clear()
    third = await listening(source.words(1))
    assert third.chunks == [{"words": ["a"]}]
    await source.last.ends()
    hit = await collected(source.words(1))
    assert hit == [{"words": ["a"]}]
    hit[0]["words"].clear()
    assert await collected(source.words(1)) == [{"words": ["a"]}]


async def test_a_later_chunk_that_cannot_be_copied_is_an_error_for_who_has_the_first_ones(source: Source):
    first, second = await listening(source.words(1)), await listening(source.words(1))
    await source.last.yields("a", iter("abc"))
    assert second.chunks == ["a"]
    with pytest.raises(RuntimeError, match="cannot be copied"):
        await second.task
    await source.last.ends()
    assert len(await first.task) == 2


# -- Options -------------------------------------------------------------------------------------------------


async def test_the_attributes_of_a_tool_work_on_streams(source: Source):
    words = source.words
    assert await words.set(["a", "b"], 1)
    assert await collected(words(1)) == ["a", "b"]
    assert source.runs == []
    fresh = await listening(words.fresh(1))
    await source.last.yields("c")
    await source.last.ends()
    assert await fresh.task == ["c"]
    assert await collected(words(1)) == ["c"]
    assert words.cache_key(1) == words.cache_key(id=1)
    assert await words.invalidate(1)
    assert not words.contains(1)
    await words.set(("d",), 1)
    assert words.clear() == 1
    assert words.cache_info().currsize == 0


# -- Sessions ----------------------------------------------------------------------------------------------------


async def test_what_belongs_to_a_session_does_not_reach_others():
    """A caller of another session that has no chunk yet runs the tool itself; one that has some is told."""
    proceed = asyncio.Event()

    @AgentCache("user", scope="session")
    async def who(name: str) -> str:
        return name

    @AgentCache("page")
    async def early() -> AsyncIterator[str]:
        await proceed.wait()
        yield await who(current.get())

    @AgentCache("page")
    async def late() -> AsyncIterator[str]:
        yield "public"
        await proceed.wait()
        yield await who(current.get())

    current = contextvars.ContextVar("current", default="")

    async def in_session(tool: Callable[[], Any], name: str) -> Listener:
        current.set(name)
        async with AgentCacheSession():
            listener = await listening(tool())
            await asyncio.wait([listener.task])
        return listener

    for tool in (early, late):
        proceed.clear()
        tasks = [asyncio.ensure_future(in_session(tool, name)) for name in ("ann", "bob")]
        await idle()
        proceed.set()
        ann, bob = await asyncio.gather(*tasks)
        assert ann.chunks[-1] == "ann"
        if tool is early:
            assert bob.chunks == ["bob"]
        else:
            assert bob.chunks == ["public"]
            with pytest.raises(RuntimeError, match="session"):
                await bob.task


# -- Tiers and event loops -----------------------------------------------------------------------------------


async def test_another_process_gets_the_chunks_from_the_tier(server: MemoryServer):
    runs: list[int] = []

    def process() -> tuple[Any, Any]:
        @AgentCache("doc:{id}", name="streams:tiered", remote_cache=MemoryTier(server))
        async def words(id: int) -> AsyncIterator[tuple[int, str]]:
            runs.append(id)
            yield (id, "a")
            yield (id, "b")

        @AgentCacheInvalidator("doc:{id}", name="streams:tiered_change")
        async def change(id: int) -> AsyncIterator[str]:
            yield "done"

        return words, change

    (here, _), (there, change_there) = process(), process()
    assert await collected(here(1)) == [(1, "a"), (1, "b")]
    assert await asyncio.gather(collected(there(1)), collected(there(1))) == [[(1, "a"), (1, "b")]] * 2
    assert runs == [1]
    await collected(change_there(1))
    await idle()
    assert await collected(here(1)) == [(1, "a"), (1, "b")]
    assert runs == [1, 1]
