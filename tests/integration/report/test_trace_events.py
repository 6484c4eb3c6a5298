"""A trace follows the rules of the Trace Event Format, as Perfetto's importer reads it: nothing is drawn elsewhere."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from agent_cache.recording import Cassette
from agent_cache.report.chrome_trace import trace_lines
from agent_cache.report.timeline import Timeline, read_timeline
from tests.harness.timed_runs import TimedRun, shop_run


def timeline_of(run: TimedRun, path: Path) -> Timeline:
    return read_timeline(Cassette.load(run.save(path)))


def document_of(timeline: Timeline) -> dict[str, Any]:
    return json.loads("\n".join(trace_lines(timeline)))


def check(events: list[dict[str, Any]]) -> None:
    """Each slice is on a thread that has a name, and no two of a thread overlap: the format would nest them."""
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    ends: dict[int, int] = defaultdict(int)
    slices = [event for event in events if event["ph"] == "X"]
    for event in sorted(slices, key=lambda event: event["ts"]):  # stable: a file's order among equals
        assert type(event["ts"]) is type(event["dur"]) is int
        assert event["dur"] >= 0
        assert event["tid"] in named
        assert event["ts"] >= ends[event["tid"]]
        ends[event["tid"]] = event["ts"] + event["dur"]


def test_calls_are_below_those_that_enclose_them(tmp_path: Path):
    timeline = timeline_of(shop_run(), tmp_path / "run.jsonl")
    document = document_of(timeline)
    events = document["traceEvents"]
    check(events)
    rows = {event["args"]["id"]: event["tid"] for event in events if event["ph"] == "X"}
    for call in timeline.calls:
        assert call.parent < 0 or rows[timeline.calls[call.parent].id] < rows[call.id]
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads[0] == "main task"
    assert len(threads) == timeline.rows
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"]["run"] == "run.jsonl"


def test_a_slice_says_what_the_call_was(tmp_path: Path):
    run = shop_run()
    events = document_of(timeline_of(run, tmp_path / "run.jsonl"))["traceEvents"]
    refund = next(event for event in events if event["name"] == "refund" and event["args"].get("state") == "raised")
    assert refund["cat"] == "write"
    assert (refund["ts"], refund["dur"]) == (700_000, 150_000)
    assert refund["args"]["arguments"] == "order_id='W2', amount=40"
    assert refund["args"]["outcome"] == "raised PermissionError: too much"
    assert refund["args"]["tags"] == "order:W2"
    assert [event["name"] for event in events if event["ph"] == "i"] == [
        "loop: repeat: notice",
        "loop: repeat: answered by a notice",
    ]
