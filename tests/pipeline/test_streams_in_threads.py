"""Synchronous streaming tools: each caller has a run of its own, in its thread, until a whole stream is stored."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent_cache import AgentCache, get_metrics
from tests.harness import library

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
