"""Pending calls and calls in flight: both block their cells, whichever thread changes them meanwhile."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest

pytest.importorskip("redis")

from agent_cache.remote.redis.keyspace import Keyspace
from agent_cache.remote.redis.scripts import COMMIT
from agent_cache.remote.redis.writes import Call, PendingInvalidations

KEYSPACE = Keyspace("pending")
ROOT = KEYSPACE.root("order")


def call(writer: str, entity: str = "7") -> Call:
    return Call(writer, ROOT, COMMIT, [], [b""] * 5, frozenset([KEYSPACE.entity(ROOT, entity)]))


def of_nothing(*_: object) -> Call:
    raise AssertionError("these are not taken together")


@pytest.fixture
def pending() -> PendingInvalidations:
    return PendingInvalidations()


@pytest.fixture
def in_a_hurry() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_what_is_owed_or_on_its_way_blocks_its_cells_alone(pending: PendingInvalidations):
    sent, failed = call("a", "7"), call("b", "8")
    seven, eight, nine = ([KEYSPACE.entity(ROOT, entity)] for entity in "789")

    def blocked() -> list[bool]:
        return [pending.blocks(cells) for cells in (seven, eight, nine)]

    assert blocked() == [False, False, False]
    pending.send(sent)
    assert blocked() == [True, False, False]
    pending.add(failed, 1.0, of_nothing)
    assert blocked() == [True, True, False]
    pending.acknowledge(sent)
    assert blocked() == [False, True, False]
    other = call("b", "9")
    pending.replace(failed, other)
    assert blocked() == [False, False, True]
    pending.acknowledge(failed)
    assert blocked() == [False, False, True]
    pending.acknowledge(other)
    assert blocked() == [False, False, False]
    assert len(pending) == 0


def test_what_is_never_heard_of_again_is_overdue(pending: PendingInvalidations):
    sent = call("a")
    pending.send(sent)
    assert pending.overdue(60.0) == []
    assert pending.overdue(0.0) == [sent]
    pending.add(sent, 1.0, of_nothing)  # as whoever delivers it does: from now on it is pending
    assert pending.overdue(0.0) == []
    assert pending.calls() == [sent]


@pytest.mark.usefixtures("in_a_hurry")
def test_it_is_looked_through_while_other_threads_write(pending: PendingInvalidations):
    """A tier's thread does at each heartbeat. It must not take that for a server that has failed."""
    is_over = threading.Event()

    def churn(name: str) -> None:
        under_way: deque[Call] = deque()
        for number in range(1_000_000):
            under_way.append(call(f"{name}{number}"))
            pending.send(under_way[-1])
            if number % 7 == 0:
                pending.add(under_way[-1], 1.0, of_nothing)
            if len(under_way) > 300:
                pending.acknowledge(under_way.popleft())
            if is_over.is_set():
                return

    threads = [threading.Thread(target=churn, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    try:
        for _ in range(1_000):
            pending.overdue(60.0)
            pending.calls()
            pending.blocks([KEYSPACE.entity(ROOT, "8")])
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
