"""What a run is shown as: rows, categories, money, what the cache saved, drifts, nothing that is secret; its trace."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.recording import Cassette, CassetteError, cached_llm_call, intercept, record
from agent_cache.resume import Journal
from tests.harness.cassettes import (
    Comparison,
    TimedRun,
    Timeline,
    compared,
    read_timeline,
    shop_run,
    text_limit,
    trace_lines,
)
from tests.harness.searches import searched


def timeline_of(run: TimedRun, path: Path) -> Timeline:
    return read_timeline(Cassette.load(run.save(path)))


@AgentCache("timeline-order:{order_id}")
async def get_order(order_id: str) -> dict[str, str]:
    return {"id": order_id}


@AgentCacheInvalidator("timeline-order:{order_id}")
async def cancel(order_id: str) -> str:
    if order_id == "W9":
        raise LookupError("no such order")
    return "cancelled"


@cached_llm_call()
async def ask(prompt: str) -> dict[str, object]:
    return {"model": "claude-sonnet-4-5", "usage": {"input_tokens": 1000, "output_tokens": 100}}


@intercept
async def look_up(order_id: str) -> None:
    await get_order(order_id)
    await get_order(order_id)
    try:
        await cancel(order_id)
    except LookupError:
        pass


async def test_a_real_recording_is_read_as_it_was_made(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    async with record(path, model="large-1"):
        await ask("Where is it?")
        await look_up("W9")
    timeline = read_timeline(Cassette.load(path))
    assert [(call.short_name, call.category, call.depth, call.state) for call in timeline.calls] == [
        ("ask", "model", 0, ""),
        ("look_up", "function", 0, ""),
        ("get_order", "miss", 1, ""),
        ("get_order", "hit", 1, ""),
        ("cancel", "write", 1, "raised"),
    ]
    assert (timeline.title, timeline.model, timeline.notes) == ("run.jsonl", "large-1", [])
    assert timeline.has_times
    assert [(track.label, track.rows) for track in timeline.tracks] == [("main task", 2)]
    assert timeline.calls[2].arguments == "order_id='W9'"
    assert timeline.calls[4].outcome == "raised LookupError: no such order"


async def test_a_journal_shows_its_writes_in_doubt_and_none_of_its_secrets(tmp_path: Path):
    journal = Journal(tmp_path)

    @intercept
    async def handle() -> None:
        await get_order("W1")
        await cancel_and_die("W1")

    with pytest.raises(KeyboardInterrupt):
        async with AgentCacheSession("job-1", journal=journal):
            await handle()
    path = journal.path("job-1")
    timeline = read_timeline(Cassette.load(path))
    (write,) = [call for call in timeline.calls if call.short_name == "cancel_and_die"]
    assert (write.category, write.state, write.outcome) == ("write", "in doubt", "not known")
    assert timeline.is_journal
    assert any("1 write in doubt" in note for note in timeline.notes)
    assert any("not sealed" in note for note in timeline.notes)


@AgentCacheInvalidator("timeline-order:{order_id}")
async def cancel_and_die(order_id: str) -> str:
    raise KeyboardInterrupt


def test_what_is_secret_by_the_rules_of_today_is_removed(tmp_path: Path):
    """A file may be older than a rule, or edited."""
    run = TimedRun()
    token = "sk-" + "proj-" + "a1B2c3D4" * 6
    arguments = {"password": "hunter2", "note": f"use {token}"}
    outcome = {"value": {"api_key": "hunter2"}, "loops": [["repeat", f"of {token}", 0]]}
    run.add(f"shop:login {token}", 0, 1, source="miss", arguments=arguments, outcome=outcome, tags=[f"user:{token}"])
    shown = repr(timeline_of(run, tmp_path / "run.jsonl"))
    assert "hunter2" not in shown
    assert token not in shown
    assert "[redacted]" in shown


def test_concurrent_calls_get_rows_of_their_own_below_the_call_around_them(tmp_path: Path):
    run = TimedRun()
    outer = run.add("shop:both", 0, 100)
    run.add("shop:one", 10, 50, source="miss", parent=outer, lane=1)
    run.add("shop:two", 20, 50, source="miss", parent=outer, lane=2)
    run.add("shop:three", 70, 20, source="miss", parent=outer, lane=1)
    run.add("shop:alone", 5, 10, source="miss", lane=3)
    timeline = timeline_of(run, tmp_path / "run.jsonl")
    rows = {call.short_name: call.row for call in timeline.calls}
    assert rows == {"both": 0, "one": 1, "two": 2, "three": 1, "alone": 3}
    assert [(track.label, track.first, track.rows) for track in timeline.tracks] == [
        ("main task", 0, 3),
        ("task 3", 3, 1),
    ]


@searched(8, 60, st.data())
def test_no_two_bars_overlap_and_each_is_below_what_encloses_it(data: st.DataObject):
    run = TimedRun()
    for number in range(1, data.draw(st.integers(1, 25)) + 1):
        parent = data.draw(st.one_of(st.none(), st.integers(1, number - 1)) if number > 1 else st.none())
        least = 0 if parent is None else int(run.calls[parent - 1].started_ms)
        start, duration = data.draw(st.integers(least, 40)), data.draw(st.integers(0, 30))
        run.add("f", start, duration, parent=parent, lane=data.draw(st.integers(0, 3)))
    with TemporaryDirectory() as folder:
        timeline = timeline_of(run, Path(folder, "run.jsonl"))
    for at, call in enumerate(timeline.calls):
        assert 0 <= call.row < timeline.rows
        assert call.parent < 0 or timeline.calls[call.parent].row < call.row
        for other in timeline.calls[at + 1 :]:
            if call.row == other.row:
                assert call.end <= other.start or other.end <= call.start


def test_the_price_of_model_calls_and_the_time_that_hits_saved_are_known(tmp_path: Path):
    """Of a model call around another one, one has the tokens of both."""
    pytest.importorskip("genai_prices")
    run = TimedRun()
    usage = {"model": "claude-sonnet-4-5", "input_tokens": 1000, "output_tokens": 100}
    load = run.add("shop:summary", 0, 500, source="miss", arguments={"topic": "late"})
    outer = run.add("shop:ask", 10, 400, kind="llm", parent=load, **usage)
    run.add("POST https://api.anthropic.com/v1/messages", 20, 300, kind="llm", parent=outer, **usage)
    for start, took, topic in ((600, 1, "late"), (610, 2, "late"), (620, 2, "never loaded here")):
        run.add("shop:summary", start, took, source="hit", arguments={"topic": topic})
    timeline = timeline_of(run, tmp_path / "run.jsonl")
    price = Decimal("0.0045")  # 3 and 15 dollars a million
    assert (timeline.models.calls, timeline.models.cost) == (1, price)
    assert sum(call.input_tokens for call in timeline.calls) == timeline.models.input_tokens == 1000
    saved = timeline.saved
    assert (saved.hits, saved.shared, saved.unknown) == (3, 0, 1)
    assert saved.seconds == pytest.approx(0.499 + 0.498)
    sums = {one.name: (one.calls, one.tokens, one.cost) for one in timeline.tools()}
    assert sums["shop:summary"] == (4, 0, None)
    assert sum(one[1] for one in sums.values()) == 1100
    assert {one[2] for one in sums.values()} == {None, price}


def test_a_run_without_times_is_drawn_in_its_order(tmp_path: Path):
    run = TimedRun()
    outer = run.add("shop:outer", 0, 0)
    run.add("shop:inner", 0, 0, parent=outer)
    run.add("shop:last", 0, 0)
    timeline = timeline_of(run, tmp_path / "run.jsonl")
    assert not timeline.has_times
    assert [(call.start, call.duration) for call in timeline.calls] == [(0, 3), (1, 1), (4, 1)]
    assert any("no times" in note for note in timeline.notes)


def test_long_texts_are_cut_and_counted(tmp_path: Path):
    run = TimedRun()
    run.add("shop:get", 0, 1, source="miss", arguments={"text": "x" * 90_000}, outcome={"value": "y" * 900_000})
    timeline = timeline_of(run, tmp_path / "run.jsonl")
    (call,) = timeline.calls
    assert len(call.arguments) == len(call.outcome) == timeline.cut == 2000
    assert timeline.cut_texts == 2
    assert [text_limit(number) for number in (1, 1000, 10_000, 10**6)] == [2000, 400, 40, 40]


def compared_runs(folder: Path, *runs: TimedRun) -> tuple[list[Timeline], Comparison]:
    cassettes = [Cassette.load(run.save(folder / f"{number}.jsonl")) for number, run in enumerate(runs)]
    timelines = [read_timeline(cassette) for cassette in cassettes]
    return timelines, compared(timelines, cassettes)


def test_drifts_are_marked_in_both_runs(tmp_path: Path):
    timelines, comparison = compared_runs(tmp_path, shop_run(), shop_run(amount=45, writes=False))
    assert comparison.refusal == ""
    marked = [[(call.short_name, drift.kind) for call in one.calls for drift in call.drifts] for one in timelines]
    assert marked == [[("refund", "missing")], [("refund", "arguments")]]
    assert {drift.severity.name for drift in comparison.drifts} == {"CRITICAL"}
    first, last = timelines
    names = [(first.calls[one].short_name, last.calls[other].short_name) for one, other in comparison.pairs]
    assert len(names) == len(last.calls)
    assert all(one == other for one, other in names)


def test_a_secret_that_differs_is_no_part_of_a_drift(tmp_path: Path):
    def run(user: str, secret: str) -> TimedRun:
        made = TimedRun()
        made.add("shop:login", 0, 1, source="write", arguments={"user": user, "password": secret})
        return made

    _, comparison = compared_runs(tmp_path, run("u1", "hunter2"), run("u2", "hunter3"))
    [drift] = comparison.drifts
    assert "hunter" not in drift.description


def test_what_was_edited_by_hand_is_shown_or_refused_by_its_number(tmp_path: Path):
    run = TimedRun()
    run.add("n" * 5000, -50, 1, source="miss", tags=["t" * 5000], model="m" * 5000, kind="llm")
    run.add("shop:get", 5, -7, source="unheard of", parent=99)
    path = run.save(tmp_path / "run.jsonl")
    timeline = read_timeline(Cassette.load(path))
    assert [call.category for call in timeline.calls] == ["miss", "uncached"]
    assert all(call.start >= 0 and call.duration >= 0 for call in timeline.calls)
    assert len(timeline.calls[0].name) == len(timeline.calls[0].tags[0]) == len(timeline.calls[0].model) == 200
    assert timeline.calls[1].parent == -1
    edited = Cassette.load(path)
    edited.steps = [replace(call, outcome={"value": 1, "instead": [1, 2, 3]}) for call in edited]
    with pytest.raises(CassetteError, match="call 1 is not as a recording writes it"):
        read_timeline(edited)


ANSWER = {"choices": [{"message": {"content": "Here."}}]}
CHUNKS = [{"value": {"delta": "He"}}, {"value": {"delta": "re."}}]


@pytest.mark.parametrize(
    ("arguments", "outcome", "shown"),
    [
        ({"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "Where?"}]},
         {"value": ANSWER}, ("Where?", "Here.")),
        ({"body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Where?"}]}]}},
         {"response": {"status": 200, "json": {"content": [{"type": "text", "text": "Here."}]}}}, ("Where?", "Here.")),
        ({"prompt": "Where?"}, {"stream": {"chunks": CHUNKS, "end": {"value": None}}}, ("Where?", "Here.")),
        ({"n": 1}, {"value": None}, ("n=1", "None")),
    ],
)  # fmt: skip
def test_a_model_call_shows_the_last_message_and_the_answer(
    arguments: dict[str, object], outcome: dict[str, object], shown: tuple[str, str], tmp_path: Path
):
    run = TimedRun()
    run.add("agent:ask", 0, 5, kind="llm", arguments=arguments, outcome=outcome)
    [call] = timeline_of(run, tmp_path / "run.jsonl").calls
    assert (call.arguments, call.outcome) == shown


def test_a_trace_has_a_slice_for_each_call_on_a_thread_with_a_name(tmp_path: Path):
    """By the rules of the Trace Event Format, as Perfetto's importer reads it: slices of a thread must not overlap."""
    timeline = timeline_of(shop_run(), tmp_path / "run.jsonl")
    document = json.loads("\n".join(trace_lines(timeline)))
    events = document["traceEvents"]
    assert (document["displayTimeUnit"], document["otherData"]["run"]) == ("ms", "run.jsonl")
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert (threads[1], len(threads)) == ("main task", timeline.rows)
    slices, ends = [event for event in events if event["ph"] == "X"], dict.fromkeys(threads, 0)
    for event in sorted(slices, key=lambda event: event["ts"]):  # stable: a file's order among equals
        assert type(event["ts"]) is type(event["dur"]) is int
        assert event["ts"] >= ends[event["tid"]]
        ends[event["tid"]] = event["ts"] + event["dur"]
    rows = {event["args"]["id"]: event["tid"] for event in slices}
    for call in timeline.calls:
        assert call.parent < 0 or rows[timeline.calls[call.parent].id] < rows[call.id]
    refund = next(event for event in slices if event["name"] == "refund" and event["args"].get("state") == "raised")
    assert (refund["cat"], refund["ts"], refund["dur"]) == ("write", 700_000, 150_000)
    shown = {name: refund["args"][name] for name in ("arguments", "outcome", "tags")}
    assert shown == {
        "arguments": "order_id='W2', amount=40", "outcome": "raised PermissionError: too much", "tags": "order:W2"
    }  # fmt: skip
    loops = [event["name"] for event in events if event["ph"] == "i"]
    assert loops == ["loop: repeat: notice", "loop: repeat: answered by a notice"]
