"""The ring of what a session remembers."""

from __future__ import annotations

import dataclasses

import pytest

from agent_cache import TraceRecord
from agent_cache.session.trace import Trace


def fields(number: int) -> tuple[object, ...]:
    return ("shop:get", f"k{number}", "read", "hit", "ok", float(number), 0.0, None, number)


def test_records_come_back_in_order_under_their_names():
    trace = Trace(10)
    for number in range(3):
        trace.add(fields(number))
    assert len(trace.records()) == 3
    records = trace.records()
    assert [record.number for record in records] == [0, 1, 2]
    assert records[1] == TraceRecord(
        tool="shop:get",
        key="k1",
        kind="read",
        source="hit",
        outcome="ok",
        started=1.0,
        duration=0.0,
        parent=None,
        number=1,
    )


def test_a_hit_is_told_by_what_differs_between_hits():
    trace = Trace(10)
    trace.add(fields(1))
    trace.add(("shop:get", "k1", 1.0, None, 1))
    assert trace.records()[0] == trace.records()[1]
    assert trace.recent_tools(5) == ("shop:get", "shop:get")


def test_a_call_of_an_inner_session_is_marked():
    trace = Trace(10)
    trace.add_inner(fields(1))
    trace.add_inner(("shop:get", "k1", 1.0, None, 1))
    trace.add(("shop:get", "k1", 1.0, None, 1))
    call, hit, own = trace.records()
    assert call == hit == dataclasses.replace(own, is_inner=True)
    assert trace.recent_tools(1) == ("shop:get",)


def test_the_oldest_records_make_room():
    trace = Trace(3)
    for number in range(10):
        trace.add(fields(number))
    assert [record.number for record in trace.records()] == [7, 8, 9]


def test_records_are_frozen_and_the_list_is_the_callers_own():
    trace = Trace(3)
    trace.add(fields(1))
    trace.records().clear()
    (record,) = trace.records()
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.outcome = "changed"  # type: ignore[misc]
