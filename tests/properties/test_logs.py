"""The same calls, written in each form of a log, are read back as the same calls in the same order."""

import json
import random
import re
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.harness.advice import UNKNOWN, LoggedCall, read_log
from tests.harness.searches import searched

BASE = 1_780_000_000_000  # milliseconds

names = st.sampled_from(["get_order", "get_user", "cancel_order", "find-user", "shop:list"])
MARKS = re.compile("redacted|filtered|scrubbed|masked|truncated|xxxxxx|[*]{3}", re.IGNORECASE)
WRAPPERS = {"content", "data", "value"}  # of dicts that have an answer inside
# Hypothesis also tries the constants of the code under test.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12).filter(
    lambda text: text.lstrip()[:1] not in ("{", "[", '"') and not MARKS.search(text)
)
leaves = st.one_of(texts, st.integers(-(10**20), 10**20), st.booleans(), st.none(), st.sampled_from([0.5, 1e-7, -3.25]))
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
arguments = st.dictionaries(st.sampled_from(["order_id", "user", "n", "deep"]), values, min_size=1, max_size=3)
answers = st.one_of(
    st.dictionaries(texts, values, max_size=3).filter(lambda value: not WRAPPERS & value.keys()),
    st.lists(values, max_size=3).filter(lambda value: not any(isinstance(one, dict) for one in value)),
    texts.filter(str.strip),
)
errors = texts.map(lambda text: f"ShopError: {text.strip()}".strip() if text.strip() else "ShopError: no")


@st.composite
def histories(draw):
    """Calls of several runs, in the order in which they ended, at different times. Those of two runs may overlap."""
    tick, calls, latest = 0, [], {}
    for run in draw(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=8)):
        begins = draw(st.integers(latest.get(run, 0) + 1, tick + 2)) if latest.get(run, 0) < tick + 2 else tick + 1
        tick = max(tick, begins) + draw(st.integers(1, 3))
        latest[run] = tick
        error = draw(st.none() | errors)
        made = LoggedCall(draw(names), draw(arguments), UNKNOWN if error else draw(answers), error, run=run)
        calls.append(replace(made, started=(BASE + begins) / 1000, ended=(BASE + tick) / 1000))
    return calls


def shown(calls):
    """What every form can say of calls, as text, so that True is not 1."""
    return [
        (
            call.tool, json.dumps(call.arguments, sort_keys=True),
            "?" if call.result is UNKNOWN else json.dumps(call.result, sort_keys=True), call.error, call.run,
        )
        for call in calls
    ]  # fmt: skip


def as_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def iso(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def by_run(calls):
    found = {}
    for number, call in enumerate(calls):
        found.setdefault(call.run, []).append((number, call))
    return found


def lines(records):
    return "".join(f"{json.dumps(record)}\n" for record in records)


# Writers: text of a file that has these calls


def rows(calls):
    return lines(
        {"tool": call.tool, "arguments": call.arguments, "run": call.run, "started": call.started, "ended": call.ended}
        | ({"error": call.error} if call.error else {"result": call.result, "error": None})
        for call in calls
    )


def trajectories(calls):
    """ATIF has one time for a step, so a call is a step that ends at it."""
    documents = []
    for run, inside in by_run(calls).items():
        steps = []
        for number, call in inside:
            asked = {"tool_call_id": f"c{number}", "function_name": call.tool, "arguments": call.arguments}
            answer = {"source_call_id": f"c{number}", "content": as_text(call.error or call.result)}
            steps.append({"step_id": number, "timestamp": iso(call.ended), "source": "agent", "tool_calls": [asked],
                          "observation": {"results": [answer]}})  # fmt: skip
        documents.append({"schema_version": "ATIF-v1.7", "session_id": run, "steps": steps})
    return lines(documents)


def unique_id(number):
    return f"call_{random.Random(number).getrandbits(120):030x}9z9"


def chat_messages(number, call):
    function = {"name": call.tool, "arguments": json.dumps(call.arguments)}
    request = {"id": unique_id(number), "type": "function", "function": function}
    answer = {"role": "tool", "tool_call_id": unique_id(number), "content": as_text(call.error or call.result)}
    if call.error:
        answer["status"] = "error"
    return [
        {"role": "assistant", "content": None, "tool_calls": [request], "timestamp": iso(call.started)},
        answer | {"timestamp": iso(call.ended)},
    ]


def conversations(calls):
    return lines(
        {"id": run, "messages": [{"role": "user", "content": "hello"}]
         + [message for pair in inside for message in chat_messages(*pair)]}
        for run, inside in by_run(calls).items()
    )  # fmt: skip


def response_items(calls):
    records = []
    for run, inside in by_run(calls).items():
        items = []
        for number, call in inside:
            asked = {"name": call.tool, "arguments": json.dumps(call.arguments)}
            own, ended = unique_id(number), {"created_at": iso(call.ended)}
            if call.error:
                items.append({"type": "mcp_call", "id": own, "error": call.error, "output": None} | asked | ended)
                continue
            began = {"created_at": iso(call.started)}
            items += [
                {"type": "function_call", "call_id": own, "id": f"fc_{number}"} | asked | began,
                {"type": "function_call_output", "call_id": own, "output": as_text(call.result)} | ended,
            ]
        records.append({"conversation_id": run, "input": items})
    return lines(records)


def anthropic_messages(calls):
    records = []
    for run, inside in by_run(calls).items():
        messages = []
        for number, call in inside:
            use = {"type": "tool_use", "id": f"toolu_{number}", "name": call.tool, "input": call.arguments}
            text = [{"type": "text", "text": as_text(call.error or call.result)}]
            result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}
            asked = {"role": "assistant", "content": [{"type": "text", "text": "..."}, use]}
            answer = {"role": "user", "content": [result | ({"is_error": True} if call.error else {})]}
            messages += [asked | {"timestamp": iso(call.started)}, answer | {"timestamp": iso(call.ended)}]
        records.append({"id": run, "system": "...", "messages": messages})
    return lines(records)


def attributes_of(call):
    found = {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.tool, "gen_ai.conversation.id": call.run,
        "gen_ai.tool.call.arguments": json.dumps(call.arguments),
    }  # fmt: skip
    return found if call.error else found | {"gen_ai.tool.call.result": as_text(call.result)}


def exception_of(call):
    return dict(zip(("exception.type", "exception.message"), call.error.split(": ", 1), strict=True))


def otlp(attributes):
    return [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]


def otlp_spans(calls):
    spans = []
    for call in calls:
        identity = round(call.ended * 1000)  # also among the files that a history is divided into
        span = {
            "traceId": f"{identity:032x}", "spanId": f"{identity:016x}", "name": f"execute_tool {call.tool}",
            "startTimeUnixNano": str(round(call.started * 1000) * 10**6),
            "endTimeUnixNano": str(round(call.ended * 1000) * 10**6),
            "attributes": otlp(attributes_of(call)), "status": {},
        }  # fmt: skip
        if call.error:
            span["status"] = {"code": 2}
            span["events"] = [{"name": "exception", "attributes": otlp(exception_of(call))}]
        spans.append(span)
    half = len(spans) // 2
    return lines(
        {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": part}]}]}
        for part in (spans[:half], spans[half:])
    )


def console_spans(calls):
    spans = []
    for number, call in enumerate(calls):
        span = {
            "name": f"execute_tool {call.tool}",
            "context": {"trace_id": f"0x{number:032x}", "span_id": f"0x{number:016x}", "trace_state": "[]"},
            "parent_id": None, "start_time": iso(call.started), "end_time": iso(call.ended),
            "status": {"status_code": "ERROR" if call.error else "UNSET"}, "attributes": attributes_of(call),
            "events": [{"name": "exception", "attributes": exception_of(call)}] if call.error else [],
        }  # fmt: skip
        spans.append(json.dumps(span, indent=4))
    return "\n".join(spans) + "\n"


def read(text, name="log"):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_log(path)


FORMS = [rows, conversations, response_items, anthropic_messages, otlp_spans, console_spans, trajectories]


@pytest.mark.parametrize("write", FORMS, ids=lambda write: write.__name__)
@searched(3, 40, histories())
def test_every_form_gives_the_same_calls(write, calls):
    if write is trajectories:  # which have no errors
        calls = [call for call in calls if call.error is None]
    log = read(write(calls))
    assert shown(log.calls) == shown(calls)
    assert [call.ended for call in log.calls] == [call.ended for call in calls]
    if write not in (trajectories, response_items):  # of which an error has one time
        assert [call.started for call in log.calls] == [call.started for call in calls]
    assert not log.problems


@searched(5, 40, histories(), st.randoms(use_true_random=False), st.booleans())
def test_the_time_line_does_not_depend_on_the_order_of_files(calls, chance, is_shuffled):
    parts = [[], [], []]
    for call in calls:
        chance.choice(parts).append(call)
    if is_shuffled:
        for part in parts:
            chance.shuffle(part)
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for number, part in enumerate(parts):
            path = Path(directory) / f"{number}"
            path.write_text(chance.choice([rows, otlp_spans])(part), "utf-8")
            paths.append(path)
        for _ in range(2):
            chance.shuffle(paths)
            assert shown(read_log(paths).calls) == shown(calls)


@searched(
    15,
    100,
    histories(),
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=6), st.integers(0, 30)), min_size=1, max_size=5),
)
def test_nothing_that_a_file_may_have_raises(calls, write, changes):
    text = write(calls).encode()
    for place, put, removed in changes:
        at = place % (len(text) + 1)
        text = text[:at] + put + text[at + removed :]
    log = read(text)
    assert log.notes
    assert all(len(note.splitlines()) == 1 for note in (*log.notes, *log.problems))
    for call in log.calls:
        assert call.tool
        json.dumps([call.arguments, None if call.result is UNKNOWN else call.result])
        assert call.started is None or call.ended is None or call.started <= call.ended
