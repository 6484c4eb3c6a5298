"""What is read from a log, and what is said of one that is broken, incomplete or of no known form."""

import gzip
import io
import json
import re
from pathlib import Path

import pytest

from tests.harness.advice import UNKNOWN, read_log

GET = {"tool": "get", "arguments": {"id": "a1"}, "result": {"n": 1}, "time": "2026-01-01T10:00:00Z"}
LINE = json.dumps(GET)


@pytest.fixture
def write(tmp_path):
    """Write a file of the test's folder: a text, bytes, or records as JSON Lines."""

    def write(content, name="log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{json.dumps(one)}\n" for one in content) if isinstance(content, list) else content
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def read(write, tmp_path):
    """Read a file with this content. Returns its calls, its notes, and its problems without the test's directory."""

    def read(content):
        log = read_log(write(content))
        return log.calls, log.notes, [problem.replace(f"{tmp_path}/", "") for problem in log.problems]

    return read


# Broken files


@pytest.mark.parametrize(
    ("content", "calls", "problem"),
    [
        (f"{LINE}\n{{oops\n{LINE}\nnot json\n", 2, "what is no JSON was left out: 2 (first: log, line 2)"),
        (f"oops\n{LINE}\n", 1, "what is no JSON was left out: 1 (first: log, line 1)"),
        (f'{LINE}\n{{"tool": "ge', 1, "what is no JSON was left out: 1 (first: log, line 2)"),
        ('{"some": "thing"}\n{"other": 1}\n', 0, "records of no known form were left out: 2 (first: log, line 1)"),
        (
            gzip.compress(LINE.encode(), mtime=0)[:-9],
            0,
            "files that cannot be read (its content breaks off) were left out: 1",
        ),
        (
            '{"agent_cache_cassette": 99}\n',
            0,
            "recordings that cannot be read were left out: line 1: has format",
        ),
    ],
)
def test_what_is_broken_is_left_out_and_said_with_its_place(read, content, calls, problem):
    found, _, problems = read(content)
    assert len(found) == calls
    assert any(one.startswith(problem) for one in problems), problems


@pytest.mark.parametrize(
    "content",
    [
        f"[{LINE}, {LINE}]",
        f"[\n{LINE},\n{LINE}\n]\n",
        json.dumps([GET, GET], indent=1),
        json.dumps({"id": "run", "calls": [GET, GET]}),
        gzip.compress(f"{LINE}\n{LINE}\n".encode(), mtime=0),
        f"\ufeff{LINE}\n\n{LINE}",
        LINE.replace("1}", "NaN}") + "\n" + LINE,
        '{"name": "get", "input": {"id": 1}, "output": 1}\n' + LINE,
    ],
)
def test_lines_and_documents_compressed_or_not_are_read(read, content):
    assert [call.tool for call in read(content)[0]] == ["get", "get"]


def test_folders_files_the_standard_input_and_what_is_not_there(write, tmp_path, monkeypatch):
    path = write([GET], "logs/one.jsonl")
    write(b"\x1f\x8bno gzip", "logs/bad")
    write(gzip.compress(bytes(2000)), "logs/large")
    write([GET], "logs/.hidden")
    monkeypatch.setattr("agent_cache.advise.logs._LARGEST", 1000)
    log = read_log([path, tmp_path / "logs"])
    assert (len(log.calls), len(log.problems), "unpack it first" in log.problems[1]) == (1, 2, True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))
    assert len(read_log("-").calls) == 1
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(FileNotFoundError, match=r"^standard input is closed$"):
        read_log("-")
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(FileNotFoundError, match=r"^there is no file [^\n]*$"):
            read_log(missing)


def test_calls_and_files_that_are_there_twice_are_counted_once(write, read):
    calls = [GET | {"run": "r", "id": f"c{n}", "result": n} for n in range(6)]
    log = read_log([write(calls[:4], "a"), write(calls[2:], "b")])
    assert [call.result for call in log.calls] == list(range(6))
    assert any(one.startswith("calls that are there twice were counted once: 2") for one in log.problems)
    assert len(read([GET, GET])[0]) == 2, "two equal calls without an id are two calls"
    assert len(read([span(1), span(2), span(1)])[0]) == 2


def test_the_examples_of_the_page_are_read_as_calls(read):
    page = (Path(__file__).parents[2] / "docs/reference/log-forms.md").read_text("utf-8")
    logs = [read(example) for example in re.findall(r"```(?:json|text)\n(.*?)```", page, re.DOTALL)]
    assert not any(problems for *_, problems in logs)
    rows, of_runs, messages = [[(one.tool, one.arguments["order_id"], one.result, one.error) for one in calls]
                               for calls, *_ in logs]  # fmt: skip
    assert rows == [
        ("get_order", "W1", {"status": "late"}, None),
        ("refund", "W1", "refunded", None),
        ("get_order", "W9", UNKNOWN, "LookupError: no such order"),
    ]
    assert of_runs == messages == [("get_order", "W1", "late", None)]


# Times


def at(value, **more):
    return {key: one for key, one in GET.items() if key != "time"} | {"time": value} | more


@pytest.mark.parametrize(
    "value",
    [
        1767261600, "1767261600", 1767261600000, 1767261600000000, "1767261600000000000", "2026-01-01T10:00:00",
        "2026-01-01 12:00:00+02:00", "2026-01-01T10:00:00.000000Z",
    ],
)  # fmt: skip
def test_times_are_read_in_any_unit_and_zone(read, value):
    calls, _, problems = read([at(value)])
    assert calls[0].ended == 1767261600
    assert not problems


def test_times_that_are_none_are_counted(read):
    calls, _, problems = read([at("yesterday"), at("2026-13-45"), at(-5), at(12.5), at(None), at("")])
    assert all(call.ended is None for call in calls)
    assert problems == ["times that cannot be read, or are relative, were passed over: 4 (first: log, line 1)"]


def test_calls_are_in_the_order_in_which_they_ended_and_those_without_a_time_behind_the_one_above(write, read):
    one = {"tool": "slow", "args": {}, "result": 1, "started": 1.7e9, "ended": 1.7e9 + 9}
    two = {"tool": "fast", "args": {}, "result": 1, "started": 1.7e9 + 1, "ended": 1.7e9 + 2}
    calls = read([one, two])[0]
    assert [call.tool for call in calls] == ["fast", "slow"]
    [call] = read([one | {"started": one["ended"], "ended": one["started"]}])[0]
    assert (call.started, call.ended) == (1.7e9, 1.7e9 + 9), "clocks differ"
    calls, *_ = read([at("", result=0), at(1.7e9, result=1), at("", result=2), at(1.7e9 + 1, result=3)])
    assert [call.result for call in calls] == [0, 1, 2, 3]
    bare = {"tool": "get", "args": {}}
    paths = [write([{**bare, "result": f"{name}{n}"} for n in range(2)], f"run-{name}") for name in ("2", "1")]
    log = read_log([*paths, write([at(1.7e9, result="timed")], "z")])
    assert [call.result for call in log.calls] == ["timed", "10", "11", "20", "21"]


# What is missing


def test_what_a_log_does_not_have_is_said(read):
    calls, notes, problems = read([{"tool": "get", "args": {"id": 1}}] * 3)
    assert all(call.result is UNKNOWN for call in calls)
    assert notes[1:] == [
        "the log does not say which tools write: that takes evidence or hints",
        "no call has a time: runs count as one after another",
    ]
    assert problems == ["calls without an answer: 3 (first: log, line 1)"]
    calls, *_ = read([{"tool": "get", "result": 1}] * 2)
    assert not any(call.is_keyed for call in calls)


ADK_WITHOUT = {"gcp.vertex.agent.tool_call_args": "{}", "gcp.vertex.agent.tool_response": "{}"}  # contents


@pytest.mark.parametrize(
    ("fields", "arguments", "is_keyed", "result", "is_whole"),
    [
        ({"args": {"id": "7", "email": "[redacted]"}, "result": {"mail": "[REDACTED]", "n": 1}},
         {"id": "7", "email": None}, False, {"mail": None, "n": 1}, False),
        ({"args": {"card": "****2478"}, "result": "token is <redacted>."}, {"card": None}, False, UNKNOWN, True),
        ({"args": {"q": "x"}, "result": {"a": ["__REDACTED__"]}}, {"q": "x"}, True, {"a": [None]}, False),
        ({"args": {"q": "the **bold** word"}, "result": "**** four stars"},
         {"q": "the **bold** word"}, True, "**** four stars", True),
        ({"args": {"q": "x"}, "result": "head\n... [120 lines truncated] ...\ntail"}, {"q": "x"}, True, UNKNOWN, True),
        ({"spanId": "s", "name": "execute_tool get", "attributes": ADK_WITHOUT}, {}, False, UNKNOWN, True),
    ],
)  # fmt: skip
def test_what_is_redacted_is_neither_equal_nor_complete(read, fields, arguments, is_keyed, result, is_whole):
    [call] = read([{"tool": "get"} | fields])[0]
    assert (call.arguments, call.is_keyed, call.result, call.is_whole) == (arguments, is_keyed, result, is_whole)


# Answers, arguments, kinds


@pytest.mark.parametrize(
    ("fields", "result", "error"),
    [
        ({"result": "Error: not found"}, "Error: not found", None),
        ({"result": "no", "error": True}, UNKNOWN, "Error: no"),
        ({"result": None, "error": "ValueError: no"}, UNKNOWN, "ValueError: no"),
        ({"result": 1, "error": False}, 1, None),
        ({"result": None, "error": None}, None, None),
        ({"error": {"type": "KeyError", "message": "'x'"}}, UNKNOWN, "KeyError: 'x'"),
        ({"error": "asyncio.exceptions.CancelledError: "}, UNKNOWN, None),
        ({"result": '{"a": 1}'}, {"a": 1}, None),
        ({"result": "7733"}, "7733", None),
        ({"result": "[not a list"}, "[not a list", None),
        ({"result": [{"type": "text", "text": '{"a": 1}'}]}, {"a": 1}, None),
        ({"result": {"content": [{"type": "text", "text": "bad"}], "isError": True}}, UNKNOWN, "Error: bad"),
        ({"result": {"content": [{"type": "text", "text": '{"a":1}'}], "isError": False}}, {"a": 1}, None),
        ({"result": {"content": [1, 2], "id": 3}}, {"content": [1, 2], "id": 3}, None),
    ],
)
def test_only_the_form_makes_an_answer_an_error(read, fields, result, error):
    [call] = read([{"tool": "get", "args": {}} | fields])[0]
    assert (call.result, call.error) == (result, error)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ([1, 2], {"args": [1, 2]}),
        ("plain text", {"input": "plain text"}),
    ],
)  # fmt: skip
def test_arguments_are_read_from_what_there_is(read, given, arguments):
    [call] = read([{"tool": "get", "args": given, "result": 1}])[0]
    assert (call.arguments, call.is_keyed) == (arguments, True)


def test_kinds_hints_and_parsed_texts(read):
    more = [{"kind": "read"}, {"kind": "write"}, {"kind": "tool"}, {"hints": {"readOnlyHint": True, "other": 1}},
            {"result": '{"n": 1}'}]  # fmt: skip
    calls, *_ = read([GET | one for one in more])
    assert [(call.kind, dict(call.hints), call.is_parsed) for call in calls] == [
        ("read", {}, False), ("write", {}, False), (None, {}, False), (None, {"readOnlyHint": True}, False),
        (None, {}, True),
    ]  # fmt: skip


# Messages


def chat(call_id, number):
    function = {"name": "get", "arguments": json.dumps({"id": number})}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": call_id, "function": function}]},
        {"role": "tool", "tool_call_id": call_id, "content": str(number)},
    ]


def test_a_call_that_was_never_answered_and_an_answer_without_a_call(read):
    calls, _, problems = read([chat("c1", 1)[0] | {"timestamp": 1767261600}, chat("other", 2)[1]])
    assert [(call.tool, call.result, call.ended) for call in calls] == [("get", UNKNOWN, 1767261600)]
    said = [one.partition(":")[0] for one in problems]
    assert said == ["answers without a call were left out", "calls without an answer"]


UNIQUE = [chat(f"call_Zk3n9Qe81bXw0tRm5uP{n}x{n}", n) for n in range(4)]


@pytest.mark.parametrize(
    ("run", "records", "results", "runs"),
    [
        pytest.param({}, [chat("call_0", n) for n in (1, 2, 1)], ["1", "2", "1"], 3, id="ids that each run counts"),
        pytest.param({}, [UNIQUE[n] + UNIQUE[n + 1] for n in range(3)], ["0", "1", "2", "3"], 1,
                     id="a history that each request repeats, also without its beginning"),
        pytest.param({"id": "r"}, [(chat("call_0", 0) + chat("call_0", 1) * 2)[:end] for end in (2, 4, 6)],
                     ["0", "1", "1"], 1, id="the same in a run that is named, whose turns count anew"),
    ],
)  # fmt: skip
def test_a_call_is_counted_once(read, run, records, results, runs):
    calls, _, problems = read([run | {"messages": messages} for messages in records])
    assert [call.result for call in calls] == results
    assert len({call.run for call in calls}) == runs
    assert not problems


# Spans


def span(number=1, **more):
    attributes = {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get",
        "gen_ai.tool.call.arguments": '{"id": 1}', "gen_ai.tool.call.result": '{"n": 1}',
    } | more.pop("attributes", {})  # fmt: skip
    return {
        "traceId": f"t{number}", "spanId": f"s{number}", "name": "execute_tool get",
        "startTimeUnixNano": 1_700_000_000_000_000_000 + number, "endTimeUnixNano": 1_700_000_000_500_000_000 + number,
        "attributes": {key: value for key, value in attributes.items() if value is not None},
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("content", "result", "is_whole"),
    [
        (None, UNKNOWN, True), ('{"n": [', UNKNOWN, True), ('"as JSON"', "as JSON", True),
        ('"{\\"n\\": 1}"', {"n": 1}, True), ('"cut' + "x" * 300, UNKNOWN, True), ("y" * 1024, "y" * 1024, False),
        ("z" * 1023, "z" * 1023, True), ("w" * 4095, "w" * 4095, False),
    ],
    ids=["none", "cut JSON", "a text as JSON", "JSON in it", "a cut text", "a limit", "shorter", "none is longer"],
)  # fmt: skip
def test_what_the_content_of_a_span_shows(read, content, result, is_whole):
    asked = None if content is None else '{"id": "lo' if "[" in content else '{"id": 1}'
    content_of = {"gen_ai.tool.call.arguments": asked, "gen_ai.tool.call.result": content}
    call, longest = read([span(attributes=content_of), span(2, attributes={"gen_ai.tool.call.result": "v" * 4095})])[0]
    assert (call.result, call.is_whole, longest.is_whole) == (result, is_whole, False)
    assert (call.arguments, call.is_keyed) == (({"id": 1}, True) if asked == '{"id": 1}' else ({}, False))


def test_values_of_otlp_are_read_in_each_of_their_forms_also_without_one(read):
    asked = {"kvlistValue": {"values": [
        {"key": "id", "value": {"intValue": "1"}}, {"key": "names", "value": {"arrayValue": {"values": [{}]}}},
    ]}}  # fmt: skip
    forms = {"gen_ai.operation.name": {"stringValue": "execute_tool"}, "gen_ai.tool.call.arguments": asked, "x": {},
             "gen_ai.tool.call.result": {"boolValue": True}}  # fmt: skip
    attributes = [{"key": "y"}, *({"key": key, "value": value} for key, value in forms.items())]
    [call] = read([span() | {"attributes": attributes}])[0]
    assert (call.tool, call.arguments, call.result) == ("get", {"id": 1, "names": [None]}, True)


def test_a_call_on_its_way_to_a_server_is_one_and_a_request_inside_of_a_tool_makes_it_no_handler(read):
    other = {"gen_ai.operation.name": None}
    calls, _, problems = read([one | {"traceId": "t"} for one in (
        span(1), span(2, parentSpanId="s1"), span(3, parentSpanId="s2", name="GET", attributes=other),
        span(4, attributes={"gen_ai.tool.name": "ask"}), span(6, parentSpanId="s5"),
        span(5, parentSpanId="s4", name="invoke_agent", attributes=other),
    )])  # fmt: skip
    assert [(call.tool, call.encloses) for call in calls] == [("get", False), ("ask", True), ("get", False)]
    assert problems == ["spans that are no calls of tools were left out: 2 (first: log, line 3)"]
    above = {"parent_run_id": "r2"}, {"id": "r2", "parent_run_id": "r3", "run_type": "chain"}, {"id": "r3", "name": "a"}
    assert [call.encloses for call in read([LANGSMITH | {"inputs": {}} | one for one in above])[0]] == [False, True]


def test_answers_that_came_from_a_cache_show_nothing(read):
    sources = [
        span(n, attributes={"agent_cache.source": one}) for n, one in enumerate(("miss", "hit", "write", "blocked"))
    ]
    hit = span(5, attributes={"gen_ai.tool.cache.hit": True})
    no_rule = {"agent_cache.source": "write", "agent_cache.tool": "shop:get", "agent_cache.tags": ["shop"]}
    calls, _, problems = read([*sources, hit, {**GET, "source": "hit", "time": 1.8e9}, span(6, attributes=no_rule)])
    assert [(call.kind, call.result) for call in calls] == [
        ("read", {"n": 1}), ("read", UNKNOWN), ("write", {"n": 1}), (None, UNKNOWN), (None, {"n": 1}), (None, UNKNOWN)
    ]  # fmt: skip
    assert "answers that came from a cache: they show nothing of the world: 3 (first: log, line 2)" in problems


# Forms of others


def codex(at, kind, **item):
    item |= {"type": kind, "call_id": "call_a1b2c3"}
    return {"timestamp": f"2026-01-01T10:00:0{at}Z", "type": "response_item", "payload": item}


OUTAGE = "An error occurred while running the tool. Error: Connection timed out"
LANGSMITH = {
    "id": "r1", "name": "get", "run_type": "tool", "trace_id": "t1", "session_id": "the project",
    "start_time": "2026-01-01T10:00:00", "end_time": "2026-01-01T10:00:01",
}  # fmt: skip
LANGFUSE = {
    "id": "o1", "name": "get", "type": "TOOL", "traceId": "t1", "input": {"id": 1}, "level": "DEFAULT",
    "startTime": "2026-01-01T10:00:00Z", "endTime": "2026-01-01T10:00:01Z",
}  # fmt: skip


PHOENIX = {
    "name": "get", "context": {"trace_id": "t1", "span_id": "s1"}, "span_kind": "TOOL", "parent_id": None,
    "start_time": "2026-01-01T10:00:00Z", "end_time": "2026-01-01T10:00:01Z", "status_code": "OK",
    "attributes": {"tool.name": "get", "input.value": '{"id": 1}', "output.value": '{"n": 1}'},
}  # fmt: skip


ID, KWARGS, N = '{"id": 1}', '{"args": [], "kwargs": {"id": 1}}', '{"n": 1}'
OTHER_SPANS = [  # one of each: Traceloop, Langfuse, MLflow, Vercel, LangSmith, ADK
    {"traceloop.span.kind": "tool", "traceloop.entity.input": KWARGS, "traceloop.entity.output": N},
    {"langfuse.observation.type": "tool", "langfuse.observation.input": KWARGS, "langfuse.observation.output": N},
    {"mlflow.spanType": '"TOOL"', "mlflow.spanInputs": ID, "mlflow.spanOutputs": N},
    {"ai.operationId": "ai.toolCall", "ai.toolCall.args": ID, "ai.toolCall.result": N},
    {"gen_ai.operation.name": "execute_tool", "langsmith.span.kind": "tool", "gen_ai.prompt": '{"input": {"id": 1}}',
     "gen_ai.completion": '{"output": {"n": 1}}'},
    {"gen_ai.operation.name": "execute_tool", **dict(zip(ADK_WITHOUT, (ID, N), strict=True))},
]  # fmt: skip


@pytest.mark.parametrize(
    ("records", "result", "error"),
    [
        *(([span(name="get") | {"attributes": one}], {"n": 1}, None) for one in OTHER_SPANS),
        ([span(name="get") | {"attributes": OTHER_SPANS[4] | {"gen_ai.completion": "no JSON"}}], "no JSON", None),
        ([{"type": "session_meta", "payload": {"id": "s", "cwd": "/"}},
          codex(1, "function_call", name="get", arguments='{"id": 1}'),
          codex(2, "function_call_output", output='{"n": 1}')], {"n": 1}, None),
        ([codex(1, "custom_tool_call", name="get", input='{"id": 1}'),
          codex(2, "custom_tool_call_output", output="done")], "done", None),
        ([{"data": [PHOENIX], "next_cursor": None}], {"n": 1}, None),
        ([PHOENIX | {"status_code": "ERROR", "status_message": "no such thing"}], UNKNOWN, "Error: no such thing"),
        ([{"data": [LANGFUSE | {"output": "half of an emoji: \ud83d"}], "meta": {"page": 1}}],
         "half of an emoji: \ud83d", None),
        ([LANGSMITH | {"inputs": {"id": 1}, "outputs": {"output": {"n": 1}}, "error": None}], {"n": 1}, None),
        ([LANGSMITH | {"inputs": {"input": '{"id": 1}'},
                       "outputs": {"output": {"type": "tool", "tool_call_id": "c", "content": '{"n": 1}'}}}],
         {"n": 1}, None),
        ([LANGSMITH | {"inputs": {"id": 1}, "outputs": None, "error": "KeyError: 1"}], UNKNOWN, "KeyError: 1"),
        ([LANGFUSE | {"output": {"n": 1}}, LANGFUSE | {"id": "o2", "type": "GUARDRAIL"}], {"n": 1}, None),
        ([LANGFUSE | {"output": None, "level": "ERROR", "statusMessage": "gone"}], UNKNOWN, "Error: gone"),
        ([{"messages": [chat("c", 1)[0], {"role": "tool", "tool_call_id": "c", "content": OUTAGE}]}],
         UNKNOWN, OUTAGE.replace("An", "Error: An", 1)),
        ([{"messages": [chat("c", 1)[0], {"role": "tool", "tool_call_id": "c", "content": "Error: none"}]}],
         "Error: none", None),
        ([{"messages": [chat("c", 1)[0], {"role": "tool", "tool_call_id": "c", "content": "The rate limit is 500."}]}],
         "The rate limit is 500.", None),
    ],
)  # fmt: skip
def test_sessions_of_coding_agents_exports_of_traces_and_texts_of_outages(read, records, result, error):
    [call] = read(records)[0]
    assert (call.tool, call.arguments, call.result, call.error) == ("get", {"id": 1}, result, error)
    assert (call.ended is None) == ("messages" in records[0])
    assert (call.run == "t1") == bool({"name", "data"} & {*records[0]}), "not the session, a project there"
