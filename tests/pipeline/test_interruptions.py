"""A `KeyboardInterrupt` may be raised in a synchronous call wherever a function is entered, or a built-in one returns.

Wherever it is, the next caller is served, and stores what it has read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, invalidate_sync, writing
from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness import library
from tests.harness.interruptions import LIBRARY, interrupted
from tests.harness.threads import Call, until


@AgentCache("interrupted:{item}")
def read_item(item: int) -> list[int]:
    return [item]


@AgentCache("interrupted:{item}")
def stream_item(item: int) -> Any:
    yield [item]
    yield [item + 1]


@AgentCacheInvalidator("interrupted:{item}")
def write_item(item: int) -> list[int]:
    return [item]


@pytest.fixture(autouse=True)
def _nothing_is_held() -> Iterator[None]:
    """Writes of other tests may still be in doubt, and what a failed one has left must not concern the next."""
    library.forget_writes()
    yield
    library.forget_writes(held=True)
    for tool in (read_item, stream_item):
        tool.__agent_cache__.store.flights.clear()


def read_stream(item: int) -> list[Any]:
    stream: Any = stream_item(item)
    try:
        return list(stream)
    finally:
        stream.close()


# What is interrupted may be a coroutine before its first step.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.skipif(
        sys.version_info >= (3, 14),
        reason="profilers are shown the step between taking a lock and its block, where only 3.14 can be interrupted",
    ),
]

ASYNCIO = str(Path(asyncio.__file__).parent)


@pytest.mark.parametrize("function", [read_item, read_stream])
def test_a_call_that_is_interrupted_anywhere_holds_up_nobody(function: Any):
    left: list[str] = []
    for stop in count(1):
        where = interrupted(partial(function, stop), stop)
        if where is None:
            assert stop > 20, "the call came through the library without being seen"
            break
        assert Call(function, stop).result() in ([stop], [[stop], [stop + 1]]), where
        for tool in (read_item, stream_item):
            flights = tool.__agent_cache__.store.flights
            if flights:
                left.append(where)
                flights.clear()
    assert not left, "a load that nobody makes is found by readers"
    assert not library.forget_writes()


def in_a_block(item: int) -> list[int]:
    with writing(f"interrupted:{item}"):
        return [item]


def given(item: int) -> list[int]:
    assert read_item.set([item], item)
    return [item]


def told(item: int) -> list[int]:
    invalidate_sync(f"interrupted:{item}")
    return [item]


@pytest.mark.parametrize("write", [write_item, in_a_block, given, told])
def test_a_write_that_is_interrupted_anywhere_ends(write: Any):
    left: list[str] = []
    for stop in count(1):
        where = interrupted(partial(write, stop), stop)
        if where is None:
            assert stop > 20, "the call came through the library without being seen"
            break
        # Nothing can be done about an interrupt before the first line of `_Writing.__exit__`.
        if library.writes_that_run() and not where.startswith("_Writing.__exit__"):
            left.append(where)
        if library.forget_writes(held=True):  # what is in doubt does not count
            left.append(where)
        assert Call(write, stop).result() == [stop], where
        Call(read_item, stop).result()
        assert read_item.contains(stop), where
    assert not left, "a write that nobody ends is held"


def test_a_write_that_is_interrupted_anywhere_ends_in_its_tier():
    """Also while the loop in which the tier works is being told of it: others store again what the write touches."""
    server = MemoryServer()

    def write(item: int) -> list[int]:
        return [item]

    def read(item: int) -> list[int]:
        return [item]

    here, there = MemoryTier(server, lease=60.0), MemoryTier(server, lease=60.0)
    write = AgentCacheInvalidator("told:{item}", name="interruptions:write", remote_cache=here, doubt=0)(write)
    elsewhere = AgentCache("told:{item}", name="interruptions:read", remote_cache=there)(read)
    for stop in count(1):
        where = interrupted(partial(write, stop), stop, (*LIBRARY, ASYNCIO))
        library.forget_writes()
        if where is None:
            assert stop > 50, "the call came through the library without being seen"
            break
        elsewhere(stop)
        try:
            until(lambda item=stop: elsewhere(item) and elsewhere.contains(item))
        except AssertionError:
            pytest.fail(f"it is still announced: {where}")
