"""Synchronous streaming tools: each caller has a run of its own, in its thread, until a whole stream is stored."""

from __future__ import annotations

import contextvars
import gc
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    bypass,
    get_metrics,
    invalidate_sync,
)
from tests.harness import library
from tests.harness.slow import slow

pytestmark = pytest.mark.usefixtures("nothing_left")

PATIENCE = 30.0  # Seconds until something that waits for another thread counts as hung.


class Broken(Exception):
    """What a tool raises."""


class Source:
    """A streaming tool that yields some numbers, and notes what its runs do.

    Attributes:
        runs: how far each run has come: the number of chunks that it was asked for.
        ends: how the runs that have ended did so.
    """

    def __init__(self, length: int = 3, chunk: Callable[[int], Any] = lambda number: number, **options: Any) -> None:
        self.runs: list[int] = []
        self.ends: list[str] = []
        self.error: BaseException | None = None
        options = {"resource": "doc:{id}", **options}

        @AgentCache(**options)
        def numbers(id: int) -> Iterator[Any]:
            run = len(self.runs)
            self.runs.append(0)
            end = "closed"
            try:
                for number in range(length):
                    self.runs[run] += 1
                    yield chunk(number)
                if self.error is not None:
                    end = "raised"
                    raise self.error
                end = "ended"
            finally:
                self.ends.append(end)

        self.numbers: Any = numbers


@pytest.fixture
def source() -> Source:
    return Source()


# -- What a caller gets --------------------------------------------------------------------------------------


def test_chunks_pass_as_they_come_and_a_hit_runs_nothing(source: Source):
    stream = source.numbers(1)
    for number in range(3):
        assert next(stream) == number
        assert source.runs == [number + 1]
        assert not source.numbers.contains(1)
    assert list(stream) == []
    assert source.numbers.contains(1)
    assert list(source.numbers(1)) == [0, 1, 2]
    assert source.runs == [3]
    metrics = get_metrics()
    assert (metrics["misses"], metrics["hits"]) == (1, 1)


@pytest.mark.parametrize("taken", range(1, 4))
@pytest.mark.parametrize("way", ["break", "close", "throw"])
def test_an_abandoned_stream_is_closed_at_once_and_not_stored(way: str, taken: int, source: Source):
    stream = source.numbers(1)
    for _ in range(taken):
        next(stream)
    if way == "throw":
        with pytest.raises(Broken):
            stream.throw(Broken())
    elif way == "close":
        stream.close()
    else:
        del stream
        gc.collect()
    assert source.ends == ["closed"]
    assert not source.numbers.contains(1)
    assert library.nothing_in_flight()


def test_callers_have_runs_of_their_own_in_their_threads_until_one_is_stored(source: Source):
    first, second = source.numbers(1), source.numbers(1)
    assert [next(first), next(second), next(first)] == [0, 0, 1]
    assert source.runs == [2, 1]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(list, source.numbers(1)).result(PATIENCE) == [0, 1, 2]
    assert [list(first), list(second)] == [[2], [1, 2]]
    assert source.ends == ["ended"] * 3
    assert list(source.numbers(1)) == [0, 1, 2]
    assert len(source.runs) == 3


@pytest.mark.parametrize("error", [Broken(), KeyboardInterrupt()], ids=repr)
def test_what_a_run_raises_reaches_its_caller_after_its_chunks(error: BaseException, source: Source):
    source.error = error
    stream = source.numbers(1)
    assert [next(stream), next(stream), next(stream)] == [0, 1, 2]
    with pytest.raises(type(error)) as caught:
        next(stream)
    assert caught.value is error
    assert not source.numbers.contains(1)
    source.error = None
    assert list(source.numbers(1)) == [0, 1, 2]


def test_a_generator_has_one_context():
    variable = contextvars.ContextVar("variable", default="outside")

    @AgentCache("doc")
    def words() -> Iterator[str]:
        token = variable.set("inside")
        try:
            yield variable.get()
            yield variable.get()
        finally:
            variable.reset(token)

    stream = words()
    assert next(stream) == "inside"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, stream).result(PATIENCE) == "inside"
    assert list(stream) == []
    assert variable.get() == "outside"


# -- Threads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [40, *slow(100)])
def test_tools_that_stream_each_other_neither_wait_for_each_other_nor_lose_a_chunk(streams: int):
    """Under threads that leave early, writes that overlap, and streams that grow too long to be joined."""

    @AgentCache("left", max_stream_bytes=200)
    def left(depth: int) -> Iterator[Any]:
        yield 1
        if depth:
            yield from right(depth - 1)
        yield "x" * 100
        yield "y" * 100

    @AgentCache("right")
    def right(depth: int) -> Iterator[Any]:
        yield 2
        if depth:
            yield from left(depth - 1)
        yield "z" * 100

    def expected(*, is_left: bool, depth: int) -> list[Any]:
        inner = expected(is_left=not is_left, depth=depth - 1) if depth else []
        return [1, *inner, "x" * 100, "y" * 100] if is_left else [2, *inner, "z" * 100]

    def work(seed: int) -> None:
        choices = random.Random(seed)
        for _ in range(streams):
            is_left, depth, most = choices.random() < 0.5, choices.randrange(4), choices.randrange(12)
            stream = (left if is_left else right)(depth)
            found = list(itertools.islice(stream, most) if most else stream)
            stream.close()
            whole = expected(is_left=is_left, depth=depth)
            assert found == (whole[:most] if most else whole)
            if choices.random() < 0.2:
                invalidate_sync(choices.choice(["left", "right"]))

    with ThreadPoolExecutor(12) as pool:
        for call in [pool.submit(work, seed) for seed in range(12)]:
            call.result(PATIENCE)
    assert library.nothing_in_flight()


def test_threads_never_read_what_a_write_has_replaced():
    """Whoever begins after a write has ended reads nothing from before it, and no stream has two versions."""
    version = 0

    @AgentCache("versions")
    def versions() -> Iterator[int]:
        seen = version
        for _ in range(5):
            yield seen

    @AgentCacheInvalidator("versions")
    def change() -> Iterator[int]:
        nonlocal version
        yield version
        version += 1
        yield version

    def read() -> None:
        for _ in range(200):
            before = version_written[0]
            found = list(versions())
            assert len(set(found)) == 1
            assert found[0] >= before

    def write() -> None:
        for _ in range(200):
            version_written[0] = list(change())[-1]

    version_written = [0]
    with ThreadPoolExecutor(5) as pool:
        for call in [*(pool.submit(read) for _ in range(4)), pool.submit(write)]:
            call.result(PATIENCE)


# -- Writes --------------------------------------------------------------------------------------------------


# -- Copies and options --------------------------------------------------------------------------------------


def test_the_attributes_of_a_tool_work_on_streams(source: Source):
    numbers = source.numbers
    assert numbers.set([7, 8], 1)
    assert list(numbers(1)) == [7, 8]
    assert list(numbers.fresh(1)) == [0, 1, 2]
    assert list(numbers(1)) == [0, 1, 2]
    assert source.runs == [3]
    assert numbers.invalidate(1)
    assert not numbers.contains(1)
    with bypass():
        assert list(numbers(1)) == [0, 1, 2]
    assert not numbers.contains(1)
    with pytest.raises(TypeError):
        numbers()
    with pytest.raises(TypeError):
        numbers.set("text", 1)
