"""A trace follows the rules of the Trace Event Format, as Perfetto's importer reads it: nothing is drawn elsewhere."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from agent_cache.recording import Cassette
from agent_cache.report.chrome_trace import trace_lines
from agent_cache.report.timeline import Timeline, read_timeline
from tests.harness.searches import searched
from tests.harness.timed_runs import TimedRun, shop_run


def timeline_of(run: TimedRun, path: Path) -> Timeline:
    return read_timeline(Cassette.load(run.save(path)))


def document_of(timeline: Timeline) -> dict[str, Any]:
    return json.loads("\n".join(trace_lines(timeline)))


def nesting(events: list[dict[str, Any]]) -> dict[int, int | None]:
    """By the id of each call, that of the slice it is drawn inside of. Fails where the format's rules are broken.

    Perfetto sorts events by time, keeps a stack for each thread, and closes what has ended by the start of the next
    one. A slice that ends after the one below it on the stack is drawn wrong.
    """
    found: dict[int, int | None] = {}
    stacks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    for event in sorted(slices, key=lambda event: event["ts"]):  # stable: a file's order among equals
        assert type(event["ts"]) is int
        assert type(event["dur"]) is int
        assert event["dur"] >= 0
        place = event["pid"], event["tid"]
        assert place in named
        stack = stacks[place]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            stack.pop()
        if stack:
            assert event["ts"] + event["dur"] <= stack[-1]["ts"] + stack[-1]["dur"]
        found[event["args"]["id"]] = stack[-1]["args"]["id"] if stack else None
        stack.append(event)
    return found


def check_arrows(events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Pairs of calls that arrows connect. Both ends of each are on a slice."""
    slices = [event for event in events if event["ph"] == "X"]
    ends: dict[int, dict[str, list[int]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in ("s", "f"):
            assert event["ph"] == "s" or event["bp"] == "e"
            on = [
                one for one in slices
                if one["tid"] == event["tid"] and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]
            ]  # fmt: skip
            assert on
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = [one["args"]["id"] for one in on]
    assert all(set(both) == {"s", "f"} for both in ends.values())
    return {(source, target) for both in ends.values() for source in both["s"] for target in both["f"]}


def test_calls_are_inside_of_those_that_enclose_them(tmp_path: Path):
    timeline = timeline_of(shop_run(), tmp_path / "run.jsonl")
    document = document_of(timeline)
    events = document["traceEvents"]
    inside = nesting(events)
    assert inside == {call.id: timeline.calls[call.parent].id if call.parent >= 0 else None for call in timeline.calls}
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads == ["main task", "task 1", "task 2"]
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
    counters = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "tokens"]
    assert counters == [{"input": 1000 * number, "output": 100 * number} for number in (1, 2, 3)]


def test_calls_at_the_same_time_are_beside_each_other_and_connected_with_what_encloses_them(tmp_path: Path):
    run = TimedRun()
    outer = run.add("shop:both", 0, 100)
    run.add("shop:one", 10, 50, source="miss", parent=outer, lane=1)
    run.add("shop:two", 20, 50, source="miss", parent=outer, lane=2)
    run.add("shop:inside_two", 30, 10, source="miss", parent=3, lane=2)
    events = document_of(timeline_of(run, tmp_path / "run.jsonl"))["traceEvents"]
    assert nesting(events) == {1: None, 2: 1, 3: None, 4: 3}
    assert (1, 3) in check_arrows(events)


def test_names_are_text_whatever_they_are(tmp_path: Path):
    run = TimedRun()
    run.add('größe</script>"\\\u202e', 0, 1, source="miss", arguments={"x": "\x00\u2028"})
    text = "\n".join(trace_lines(timeline_of(run, tmp_path / "run.jsonl")))
    assert text.isascii()
    (event,) = (one for one in json.loads(text)["traceEvents"] if one["ph"] == "X")
    assert event["args"]["name"] == r'größe</script>"\\u202e'


def test_an_empty_run_is_a_document_too(tmp_path: Path):
    document = document_of(timeline_of(TimedRun(), tmp_path / "run.jsonl"))
    assert [event["name"] for event in document["traceEvents"]] == ["process_name"]
    assert document["otherData"]["notes"] == ["The run has no calls."]


@searched(10, 100, st.data())
def test_any_run_is_drawn_right(data: st.DataObject):
    run = TimedRun()
    times = st.one_of(st.integers(0, 40), st.floats(0, 40))
    for number in range(1, data.draw(st.integers(1, 25)) + 1):
        parent = data.draw(st.one_of(st.none(), st.integers(1, number - 1)) if number > 1 else st.none())
        run.add("f", data.draw(times), data.draw(times), parent=parent, lane=data.draw(st.integers(0, 3)))
    with TemporaryDirectory() as folder:
        timeline = timeline_of(run, Path(folder, "run.jsonl"))
    events = document_of(timeline)["traceEvents"]
    inside = nesting(events)
    parents = {call.id: timeline.calls[call.parent].id if call.parent >= 0 else None for call in timeline.calls}
    assert inside.keys() == parents.keys()
    for call, outer in inside.items():
        assert outer is None or outer == parents[call]
    check_arrows(events)
