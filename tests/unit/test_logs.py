"""What is read from a log, and what is said of one that is broken, incomplete or of no known form."""

import gzip
import io
import json
import os
import time

import pytest

from agent_cache import ConfigurationError
from agent_cache.advise import records
from agent_cache.advise.calls import UNKNOWN
from agent_cache.advise.logs import open_logs

GET = {"tool": "get", "arguments": {"id": "a1"}, "result": {"n": 1}, "time": "2026-01-01T10:00:00Z"}


@pytest.fixture
def write(tmp_path):
    def write(content, name="log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(one) + "\n" for one in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def read(write, tmp_path):
    """Read a file with this content. Returns its calls and its notes, without the directory of the test."""

    def read(content, **how):
        with open_logs(write(content), **how) as log:
            return list(log), [(note.level, str(note).replace(f"{tmp_path}/", "")) for note in log.notes]

    return read


def problems(notes):
    return [text for level, text in notes if level == "problem"]


def missing(notes):
    return [text for level, text in notes if level == "missing"]


# Broken files


def test_a_broken_line_is_left_out_and_the_first_one_is_named(read):
    calls, notes = read(json.dumps(GET) + "\n{oops\n" + json.dumps(GET) + "\nnot json\n" + json.dumps(GET) + "\n")
    assert len(calls) == 3
    assert problems(notes) == ["broken lines or records, left out: 2 (first: log, line 2)"]


def test_a_broken_first_line_does_not_make_the_file_unknown(read):
    calls, notes = read('{"tool": "get", "argu\n' + json.dumps(GET) + "\n" + json.dumps(GET) + "\n")
    assert len(calls) == 2
    assert problems(notes) == ["broken lines or records, left out: 1 (first: log, line 1)"]


def test_a_torn_last_line_is_left_out(read):
    calls, notes = read(json.dumps(GET) + "\n" + json.dumps(GET)[:-5])
    assert len(calls) == 1
    assert problems(notes) == ["files whose last record breaks off, which is left out: 1 (first: log, line 2)"]


def test_a_document_that_breaks_off_is_read_until_there(read):
    calls, notes = read(json.dumps([GET, GET, GET], indent=2)[:-60])
    assert len(calls) == 2
    assert problems(notes) == ["files whose last record breaks off, which is left out: 1 (first: log, behind record 2)"]


def test_a_document_that_is_broken_in_the_middle_says_that_the_rest_is_left_out(read):
    calls, notes = read(
        json.dumps([GET, GET, GET], indent=2).replace('"tool": "get"', '"tool": oops', 2).replace("oops", '"get"', 1)
    )
    assert len(calls) == 1
    assert problems(notes) == [
        "files that are broken in the middle; what follows is left out: 1 (first: log, behind record 1)"
    ]


def test_one_of_several_documents_may_be_broken(read):
    parts = [json.dumps(GET, indent=2) for _ in range(3)]
    calls, notes = read("\n".join([parts[0], parts[1].replace('"get"', "oops"), parts[2]]))
    assert len(calls) == 2
    assert problems(notes) == ["broken lines or records, left out: 1 (first: log, behind record 1)"]


def test_an_empty_file_and_one_of_spaces_are_named(read):
    for content in ("", " \n\n  \n"):
        calls, notes = read(content)
        assert calls == []
        assert notes == [
            ("missing", "no call of a tool was found: nothing can be concluded"),
            ("problem", "empty files: 1 (first: log)"),
        ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello\nworld\n", "it is no JSON"),
        (b"a,b,c\n1,2,3\n", "it is no JSON"),
        (b"PAR1....", "it is Parquet; export it as JSON Lines"),
        ("tool,id\nget,1\n".encode("utf-16"), "it is UTF-16; save it as UTF-8"),
        (b"PK\x03\x04....", "it is a zip archive; unpack it"),
        (b"\x28\xb5\x2f\xfd....", "it is compressed by zstd; decompress it"),
        (b"SQLite format 3\0", "it is a database of SQLite; export it as JSON Lines"),
        (bytes(range(128, 256)) * 20, "it is no JSON"),
    ],
)
def test_a_file_of_no_known_form_is_named_with_the_reason(read, content, reason):
    calls, notes = read(content)
    assert calls == []
    assert problems(notes) == [f"files of no known form, left out: 1 (first: log: {reason})"]


def test_records_of_no_known_form_are_counted(read):
    calls, notes = read([{"event": "start"}, GET, {"event": "end", "level": 3}, [1, 2], "text", 7])
    assert len(calls) == 1
    assert problems(notes) == ["records of no known form, left out: 6 (first: log, line 1)"]


def test_a_compressed_file_that_breaks_off_is_read_until_there(read):
    lines = b"".join(json.dumps({**GET, "noise": os.urandom(40).hex()}).encode() + b"\n" for _ in range(5000))
    calls, notes = read(gzip.compress(lines)[:-60_000])
    assert 0 < len(calls) < 5000
    assert any("its compressed content breaks off or is broken" in text for text in problems(notes))


def test_a_file_that_only_begins_as_gzip_is_named(read):
    calls, notes = read(b"\x1f\x8bnothing")
    assert calls == []
    assert len(problems(notes)) == 1


def test_a_file_that_cannot_be_opened_is_named(write, monkeypatch):
    good, bad = write([GET], "good"), write([GET], "bad")
    bad.unlink()
    os.mkfifo(bad)
    with open_logs([good, bad]) as log:
        assert len(list(log)) == 1
        assert any("it is not a regular file" in note.text for note in log.notes)


def test_lines_that_are_not_utf8_are_read_and_counted(read):
    old = json.dumps({**GET, "result": "Café"}, ensure_ascii=False).encode("cp1252")
    calls, notes = read(json.dumps(GET).encode() + b"\n" + old + b"\n")
    assert calls[1].result == "Café"
    assert problems(notes) == ["lines that are not UTF-8, read as Windows-1252: 1 (first: log, line 2)"]


def test_a_byte_order_mark_in_the_middle_of_a_file_that_was_joined_of_two_is_passed_over(read):
    line = b"\xef\xbb\xbf" + json.dumps(GET).encode() + b"\n"
    calls, notes = read(line + line)
    assert len(calls) == 2
    assert not problems(notes)


def test_what_python_writes_and_json_does_not_have_is_read(read):
    calls, notes = read('{"tool": "get", "args": {"n": NaN, "m": -Infinity}, "result": "\\ud800x"}\n' * 2)
    assert calls[0].arguments == {"n": "NaN", "m": "-Infinity"}
    assert calls[0].result == "\ufffdx"
    assert not problems(notes)


@pytest.mark.parametrize("half", ["\\ud800", "\\udbff", "\\udc00", "\\uDE90", "\\uDFFF"])
def test_half_a_pair_of_surrogates_is_replaced_wherever_it_stands(read, half):
    line = '{"role": "assistant", "tool_calls": [{"id": "c1", "name": "HALF", "args": {"HALF": ["HALF"]}}]}'
    answer = '{"role": "tool", "tool_call_id": "c1", "content": "{\\"n\\": \\"HALF\\"}"}'
    for text in (f"{line}\n{answer}\n", f"[{line},\n{answer}]", f'{{"messages": [{line}, {answer}]}}'):
        calls, notes = read(text.replace("HALF", half))
        assert [(call.tool, call.arguments) for call in calls] == [("\ufffd", {"\ufffd": ["\ufffd"]})]
        assert not problems(notes)


def test_a_line_that_is_too_large_is_left_out(read, monkeypatch):
    monkeypatch.setattr(records, "MAX_RECORD", 2000)
    calls, notes = read([GET, {**GET, "result": "x" * 5000}, GET])
    assert len(calls) == 2
    assert problems(notes) == ["records larger than 64 MiB, left out: 1 (first: log, line 2)"]


def test_deep_values_are_kept(read):
    deep = {}
    for _ in range(200):
        deep = {"in": [deep]}
    calls, _ = read([{**GET, "result": deep}])
    assert calls[0].result == deep


def test_nesting_without_end_is_a_broken_line(read):
    calls, notes = read(json.dumps(GET) + "\n" + '{"tool":' + "[" * 200_000 + "\n" + json.dumps(GET) + "\n")
    assert len(calls) == 2
    assert problems(notes) == ["broken lines or records, left out: 1 (first: log, line 2)"]


# Paths


def test_a_directory_is_read_with_what_is_below_it_and_hidden_files_are_not(write, tmp_path):
    write([GET], "logs/a.jsonl")
    write([{**GET, "result": 2}], "logs/deep/b.json.gz")
    write([GET], "logs/.hidden/c.jsonl")
    write([GET], "logs/.d.jsonl")
    with open_logs(tmp_path / "logs") as log:
        assert log.count == 2


def test_patterns_and_the_same_file_twice(write, tmp_path):
    path = write([GET, {**GET, "result": 2}], "logs/a.jsonl")
    with open_logs([path, str(tmp_path / "logs" / "*.jsonl"), tmp_path / "logs" / ".." / "logs"]) as log:
        assert log.count == 2


def test_the_standard_input(monkeypatch):
    content = gzip.compress(json.dumps(GET).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    with open_logs("-") as log:
        assert [call.tool for call in log] == ["get"]
        assert [call.tool for call in log] == ["get"]
        assert log.size == len(content)


@pytest.mark.parametrize(
    ("path", "text"),
    [("nothing", "no file 'nothing'"), ("no/*.x", "no file fits the pattern 'no/*.x'"), ("a\0b", "no file 'a\\x00b'")],
)
def test_a_path_that_is_not_there_is_refused_with_one_sentence(path, text):
    with pytest.raises(FileNotFoundError, match="no file") as raised:
        open_logs(path)
    assert str(raised.value) == text


def test_an_empty_directory_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file in the directory"):
        open_logs(tmp_path)


def test_wrong_arguments_are_refused(write):
    with pytest.raises(ConfigurationError, match="form must be one of 'recording', 'messages', 'spans', 'calls'"):
        open_logs(write([GET]), form="yaml")
    with pytest.raises(ConfigurationError, match="no path"):
        open_logs([])


def test_a_form_that_is_given_is_not_guessed(read):
    record = {"name": "get", "input": {"id": "1"}, "output": "x", "messages": [{"role": "user", "content": "hi"}]}
    assert len(read([record])[0]) == 1
    assert len(read([record], form="messages")[0]) == 0


def test_the_temporary_directory_goes_with_the_log(write, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(GET).encode())))
    log = open_logs("-")
    assert list(log)
    assert list((tmp_path / "temporary").iterdir())
    del log
    assert not list((tmp_path / "temporary").iterdir())


def test_progress_counts_bytes_up_to_the_size(write):
    paths = [write([GET] * 50, "a"), write(gzip.compress(json.dumps([GET] * 50).encode()), "b")]
    seen = []
    with open_logs(paths, progress=seen.append) as log:
        list(log)
    assert seen == sorted(seen)
    assert seen[-1] == log.size == sum(path.stat().st_size for path in paths)


# Duplicates


def test_a_file_with_the_content_of_another_is_left_out(write):
    with open_logs([write([GET], "a"), write([GET], "b")]) as log:
        assert log.count == 1
        assert any("files with the same content as another, left out: 1" in note.text for note in log.notes)


def test_calls_that_two_exports_have_are_counted_once(write):
    calls = [{**GET, "time": f"2026-01-01T10:00:0{n}Z", "result": n} for n in range(6)]
    with open_logs([write(calls[:4], "a"), write(calls[2:], "b")]) as log:
        assert [call.result for call in log] == list(range(6))
        assert log.count == 6
        assert any("calls that the log has twice, counted once: 2" in note.text for note in log.notes)


def test_two_equal_calls_of_one_file_are_two_calls(read):
    assert len(read([GET, GET])[0]) == 2


def test_spans_that_were_exported_twice_are_counted_once(read):
    calls, notes = read([span(1), span(2), span(1)])
    assert len(calls) == 2
    assert "calls that the log has twice, counted once: 1 (first: log)" in problems(notes)


# Times


def at(value, **more):
    return {key: one for key, one in GET.items() if key != "time"} | {"time": value} | more


@pytest.mark.parametrize(
    "value",
    [
        1767261600, 1767261600.0, "1767261600", 1767261600000, 1767261600000000, 1767261600000000000,
        "1767261600000000000", "2026-01-01T10:00:00Z", "2026-01-01T10:00:00+00:00", "2026-01-01 12:00:00+02:00",
        "2026-01-01T10:00:00.000000000Z", "20260101T100000Z", "2026/01/01 10:00:00Z", "2026-01-01 10:00:00 UTC",
        "2026-01-01 10:00:00,000", "Thu, 01 Jan 2026 10:00:00 GMT", "Thu, 01 Jan 2026 11:00:00 +0100",
    ],
)  # fmt: skip
def test_times_are_read_in_any_unit_and_zone(read, value):
    calls, notes = read([at(value)])
    assert calls[0].ended == 1767261600
    assert not problems(notes)


def test_a_time_without_a_zone_is_utc_and_that_is_said(read):
    calls, notes = read([at("2026-01-01T10:00:00")])
    assert calls[0].ended == 1767261600
    assert "times without a zone, read as UTC: 1 (first: log, line 1)" in missing(notes)


def test_times_that_are_none_are_counted(read):
    calls, notes = read([at("yesterday"), at("2026-13-45"), at(-5), at(12.5), at(None), at(""), at([1])])
    assert all(call.ended is None for call in calls)
    assert problems(notes) == ["times that cannot be read: 3 (first: log, line 1)"]
    assert "times before 2000, which are no dates: they count as none: 2 (first: log, line 3)" in missing(notes)


def test_a_time_in_the_future_is_said(read):
    soon, far = time.time() + 10, time.time() + 10**6
    calls, notes = read([at(soon), at(far)])
    assert len(calls) == 2
    assert problems(notes) == ["times in the future: a clock is wrong, or the unit of time is: 1 (first: log, line 2)"]


def test_an_end_before_its_start_makes_the_call_run_between_both(read):
    calls, notes = read([{"tool": "get", "args": {}, "result": 1, "started": 1.7e9 + 5, "ended": 1.7e9}])
    assert (calls[0].started, calls[0].ended) == (1.7e9, 1.7e9 + 5)
    assert problems(notes) == [
        "calls whose end is before their start: they count as running between the two times: 1 (first: log, line 1)"
    ]


def test_a_run_that_goes_back_in_time_is_said(read):
    calls, notes = read([at(1.7e9 + 9, run="a"), at(1.7e9, run="b"), at(1.7e9 + 10, run="a"), at(1.7e9 + 5, run="a")])
    assert [call.ended - 1.7e9 for call in calls] == [0, 5, 9, 10]
    [text] = problems(notes)
    assert text.startswith("calls that are earlier than one above them in their run: ")
    assert text.endswith(": 1 (first: log, line 4)")


def test_a_log_in_the_order_in_which_parallel_calls_started_is_no_problem(read):
    one = {"tool": "slow", "args": {}, "result": 1, "started": 1.7e9, "ended": 1.7e9 + 9, "run": "a"}
    two = {"tool": "fast", "args": {}, "result": 1, "started": 1.7e9 + 1, "ended": 1.7e9 + 2, "run": "a"}
    calls, notes = read([one, two])
    assert [call.tool for call in calls] == ["fast", "slow"]
    assert (calls[1].started, calls[1].ended) == (1.7e9, 1.7e9 + 9)
    assert not problems(notes)


def test_durations_complete_the_times(read):
    calls, _ = read([
        {"tool": "a", "args": {}, "result": 1, "time": 1.7e9, "duration_ms": 1500},
        {"tool": "b", "args": {}, "result": 1, "started": 1.7e9, "duration": 2, "cost": "0.25"},
        {"tool": "c", "args": {}, "result": 1, "duration": -1},
    ])  # fmt: skip
    assert [(one.started, one.ended, one.duration, one.cost) for one in calls] == [
        (1.7e9 - 1.5, 1.7e9, 1.5, None), (1.7e9, 1.7e9 + 2, 2.0, 0.25), (None, None, None, None),
    ]  # fmt: skip


def test_a_call_without_a_time_stands_behind_the_one_above_it(read):
    calls, notes = read([at("", result=0), at(1.7e9, result=1), at("", result=2), at(1.7e9 + 1, result=3)])
    assert [call.result for call in calls] == [0, 1, 2, 3]
    assert any(text.startswith("2 calls without a time: each counts as made behind") for text in missing(notes))


def test_files_without_times_come_last_each_as_a_whole_in_natural_order(write):
    bare = {"tool": "get", "args": {}, "result": 0}
    paths = [
        write([{**bare, "result": f"{name}{n}"} for n in range(2)], f"run-{name}") for name in ("10", "2")
    ]  # fmt: skip
    with open_logs([*paths, write([at(1.7e9, result="timed")], "z")]) as log:
        assert [call.result for call in log] == ["timed", "20", "21", "100", "101"]
        assert not log.is_timed


def test_messages_whose_times_contradict_their_order_keep_their_order(read):
    messages = [
        {"role": "assistant", "tool_calls": [chat_call("c1", "get", {})], "timestamp": 1.7e9 + 10},
        {"role": "tool", "tool_call_id": "c1", "content": "one", "timestamp": 1.7e9 + 5},
    ]
    calls, notes = read([{"messages": messages}])
    assert (calls[0].started, calls[0].ended) == (1.7e9 + 10, 1.7e9 + 10)
    assert problems(notes) == [
        "calls whose time contradicts the order of their conversation, which counts: 1 (first: log, line 1)"
    ]


def test_a_conversation_with_one_time_stands_together_at_it(read):
    messages = [
        message
        for n in range(2)
        for message in (
            {"role": "assistant", "tool_calls": [chat_call(f"c{n}", "get", {})]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": "x"},
        )
    ]
    calls, notes = read([{"id": "a", "created_at": 1.7e9, "messages": messages}])
    assert [(call.started, call.ended) for call in calls] == [(None, 1.7e9)] * 2
    assert any("has one time for all of them" in text for text in missing(notes))


# What is missing


def test_a_log_without_answers_says_so(read):
    calls, notes = read([{"tool": "get", "args": {"id": 1}}] * 3)
    assert all(call.result is UNKNOWN for call in calls)
    assert missing(notes) == [
        "no call has an answer: no change can be seen, so no rule can have evidence",
        "the log does not say which tools write: that takes evidence or hints",
        "no call has a time: runs are taken one after another, in the order of the files",
        "calls without a result: they show no answer: 3 (first: log, line 1)",
    ]


def test_a_log_without_writes_says_so(read):
    _, notes = read([{**GET, "kind": "read"}] * 2)
    assert missing(notes) == ["no call is a write: what changes answers cannot be seen"]


def test_a_log_without_arguments_says_so(read):
    calls, notes = read([{"tool": "get", "result": 1}] * 2)
    assert not any(call.is_keyed for call in calls)
    assert "no call has arguments: which calls are the same is not known" in missing(notes)


def test_calls_without_the_name_of_a_tool_are_counted(read):
    calls, notes = read([GET, {"tool": None, "args": {}}, {"tool": "", "args": {}}])
    assert len(calls) == 1
    assert problems(notes) == ["calls without the name of a tool, left out: 2 (first: log, line 2)"]


def test_redacted_arguments_make_a_call_equal_to_no_other(read):
    calls, notes = read([
        {"tool": "get", "args": {"id": "7", "email": "[redacted]"}, "result": {"mail": "[REDACTED]", "n": 1}},
        {"tool": "get", "args": {"card": "****2478"}, "result": "token is <redacted>."},
        {"tool": "get", "args": {"q": "x"}, "result": {"a": ["__REDACTED__"], "[Filtered]": 1}},
        {"tool": "get", "args": {"q": "the **bold** word"}, "result": "**** four stars"},
    ])  # fmt: skip
    assert [(call.arguments, call.is_keyed) for call in calls] == [
        ({"id": "7", "email": None}, False), ({"card": None}, False), ({"q": "x"}, True),
        ({"q": "the **bold** word"}, True),
    ]  # fmt: skip
    assert [(call.result, call.is_whole) for call in calls] == [
        ({"mail": None, "n": 1}, False), (UNKNOWN, True), ({"a": [None]}, False), ("**** four stars", True),
    ]  # fmt: skip
    assert "calls with redacted arguments: they are never a repeat of another: 2 (first: log, line 1)" in missing(notes)


# Answers and errors


@pytest.mark.parametrize(
    ("fields", "result", "error"),
    [
        ({"result": "Error: not found"}, "Error: not found", None),
        ({"result": "no", "error": True}, UNKNOWN, "Error: no"),
        ({"result": None, "error": "ValueError: no"}, UNKNOWN, "ValueError: no"),
        ({"result": 1, "error": False}, 1, None),
        ({"result": 1, "error": ""}, 1, None),
        ({"result": 1, "error": "false"}, 1, None),
        ({"result": None, "error": None}, None, None),
        ({"error": {"type": "KeyError", "message": "'x'"}}, UNKNOWN, "KeyError: 'x'"),
        ({"error": "TimeoutError"}, UNKNOWN, "TimeoutError: "),
        ({"error": "asyncio.exceptions.CancelledError"}, UNKNOWN, None),
        ({"error": {"type": "CancelledError", "message": ""}}, UNKNOWN, None),
        ({"result": "no", "is_error": True}, UNKNOWN, "Error: no"),
        ({"result": '{"a": 1}'}, {"a": 1}, None),
        ({"result": "7733"}, "7733", None),
        ({"result": "[not a list"}, "[not a list", None),
        ({"result": [{"type": "text", "text": '{"a": 1}'}]}, {"a": 1}, None),
        ({"result": {"content": [{"type": "text", "text": "bad"}], "isError": True}}, UNKNOWN, "Error: bad"),
        ({"result": {"content": [{"type": "text", "text": '{"a":1}'}], "isError": False}}, {"a": 1}, None),
        (
            {"result": {"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": 1}}},
            {"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": 1}},
            None,
        ),
        ({"result": {"content": [1, 2], "id": 3}}, {"content": [1, 2], "id": 3}, None),
    ],
)  # fmt: skip
def test_only_the_form_makes_an_answer_an_error(read, fields, result, error):
    calls, _ = read([{"tool": "get", "args": {}} | fields])
    assert (calls[0].result, calls[0].error) == (result, error)


def test_an_error_is_at_most_500_characters(read):
    assert len(read([{"tool": "get", "args": {}, "error": "x" * 10**6}])[0][0].error) < 520


def test_texts_of_json_are_marked(read):
    calls, _ = read([{"tool": "a", "args": {}, "result": '{"n": 1}'}, {"tool": "b", "args": {}, "result": {"n": 1}}])
    assert [(call.result, call.is_parsed) for call in calls] == [({"n": 1}, True), ({"n": 1}, False)]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), ("{'a': 1, 'b': None}", {"a": 1, "b": None}), ("", {}),
        (None, {}),
        ([1, 2], {"args": [1, 2]}), ("plain text", {"input": "plain text"}), (7, {"input": 7}),
    ],
)  # fmt: skip
def test_arguments_are_read_from_what_there_is(read, given, arguments):
    assert read([{"tool": "get", "args": given, "result": 1}])[0][0].arguments == arguments


def test_kinds_hints_and_costs(read):
    calls, _ = read([
        {**GET, "kind": "read"}, {**GET, "kind": "write"}, {**GET, "kind": "tool"}, {**GET, "read_only": False},
        {**GET, "hints": {"readOnlyHint": True, "other": 1}}, {**GET, "annotations": {"destructiveHint": False}},
    ])  # fmt: skip
    assert [call.kind for call in calls] == ["read", "write", None, "write", None, None]
    assert [dict(call.hints) for call in calls[4:]] == [{"readOnlyHint": True}, {"destructiveHint": False}]


# Messages


def chat_call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def test_a_call_that_was_never_answered_and_an_answer_without_a_call(read):
    calls, notes = read([
        {"role": "assistant", "tool_calls": [chat_call("c1", "get", {"id": 1})]},
        {"role": "tool", "tool_call_id": "other", "content": "x"},
    ])  # fmt: skip
    assert [(call.tool, call.result) for call in calls] == [("get", UNKNOWN)]
    assert problems(notes) == ["results of calls that the log does not have, left out: 1 (first: log, line 2)"]
    assert "calls without a result: they show no answer: 1 (first: log, line 1)" in missing(notes)


def test_calls_without_ids_are_paired_by_their_names(read):
    calls, notes = read([[
        {"role": "assistant", "function_call": {"name": "get", "arguments": '{"id": 1}'}},
        {"role": "function", "name": "get", "content": "one"},
        {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in ("a", "b")]},
        {"role": "user", "parts": [{"functionResponse": {"name": "b", "response": {"n": 2}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {"n": 1}}}]},
    ]])  # fmt: skip
    assert [(call.tool, call.result) for call in calls] == [("get", "one"), ("b", {"n": 2}), ("a", {"n": 1})]
    assert not problems(notes)


def test_counted_ids_that_occur_in_every_run_are_kept_apart(read):
    def run(number):
        return {"messages": [
            {"role": "assistant", "tool_calls": [chat_call("call_0", "get", {"id": number})]},
            {"role": "tool", "tool_call_id": "call_0", "content": str(number)},
        ]}  # fmt: skip

    calls, notes = read([run(1), run(2), run(1)])
    assert [(call.arguments["id"], call.result) for call in calls] == [(1, "1"), (2, "2"), (1, "1")]
    assert len({call.run for call in calls}) == 3
    assert not problems(notes)


def test_a_history_with_counted_ids_that_each_request_repeats_is_counted_once(read):
    history, records = [{"role": "user", "content": "hi"}], []
    for number in range(3):
        history += [
            {"role": "assistant", "content": "", "tool_calls": [chat_call(f"call_{number}", "get", {"id": number})]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": str(number)},
        ]
        records.append({"model": "m", "messages": list(history)})
    calls, _ = read(records)
    assert [call.result for call in calls] == ["0", "1", "2"]
    assert len({call.run for call in calls}) == 1


def test_calls_with_ids_of_their_own_are_counted_once_also_where_the_beginning_was_cut_away(read):
    turns = [
        [
            {"role": "assistant", "tool_calls": [chat_call(f"call_Zk3n9Qe81bXw0tRm5uP{n}x{n}", "get", {"id": n})]},
            {"role": "tool", "tool_call_id": f"call_Zk3n9Qe81bXw0tRm5uP{n}x{n}", "content": str(n)},
        ]
        for n in range(4)
    ]
    calls, notes = read([{"messages": turns[n] + turns[n + 1]} for n in range(3)])
    assert [call.result for call in calls] == ["0", "1", "2", "3"]
    assert not problems(notes)


def test_hints_from_the_tools_of_a_request_or_a_list_of_tools(read):
    tools = [{"name": "get", "annotations": {"readOnlyHint": True}}]
    messages = [
        {"role": "assistant", "tool_calls": [chat_call("c", "get", {})]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    for content in ([{"tools": tools, "messages": messages}], [{"tools": tools}, {"messages": messages}]):
        assert read(content)[0][0].hints == {"readOnlyHint": True}


# Spans


def span(number=1, **more):
    attributes = {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get",
        "gen_ai.tool.call.arguments": '{"id": 1}', "gen_ai.tool.call.result": '{"n": 1}',
    } | more.pop("attributes", {})  # fmt: skip
    return {
        "traceId": f"t{more.pop('trace', number)}", "spanId": f"s{number}", "name": "execute_tool get",
        "startTimeUnixNano": 1_700_000_000_000_000_000 + number, "endTimeUnixNano": 1_700_000_000_500_000_000 + number,
        "attributes": {key: value for key, value in attributes.items() if value is not None},
    } | more  # fmt: skip


def test_spans_without_content_are_evidence_of_nothing(read):
    calls, notes = read(
        [span(n, attributes={"gen_ai.tool.call.arguments": None, "gen_ai.tool.call.result": None}) for n in range(2)]
    )
    assert [(call.arguments, call.is_keyed, call.result) for call in calls] == [({}, False, UNKNOWN)] * 2
    assert (
        "calls without arguments: they are never a repeat of another, and name nothing: 2 (first: log, line 1)"
        in missing(notes)
    )


def test_attributes_that_were_cut_off_are_evidence_of_nothing(read):
    calls, _ = read(
        [span(attributes={"gen_ai.tool.call.arguments": '{"id": "lo', "gen_ai.tool.call.result": '{"n": ['})]
    )
    assert (calls[0].arguments, calls[0].is_keyed, calls[0].result) == ({}, False, UNKNOWN)


def test_a_text_of_a_span_may_be_json_or_cut_off(read):
    results = ['"as JSON"', '"{\\"n\\": 1}"', '"cut' + "x" * 300, "y" * 1024, "z" * 1023]
    calls, notes = read([span(n, attributes={"gen_ai.tool.call.result": one}) for n, one in enumerate(results)])
    assert [(call.result, call.is_whole) for call in calls] == [
        ("as JSON", True), ({"n": 1}, True), (UNKNOWN, True), ("y" * 1024, False), ("z" * 1023, True),
    ]  # fmt: skip
    assert "results that are cut off: they show no answer: 1 (first: log, line 3)" in missing(notes)


def test_answers_that_came_from_a_cache_show_nothing(read):
    calls, notes = read([
        span(1, attributes={"agent_cache.source": "miss"}), span(2, attributes={"agent_cache.source": "hit"}),
        span(3, attributes={"agent_cache.source": "write"}), span(4, attributes={"agent_cache.source": "blocked"}),
    ])  # fmt: skip
    assert [(call.kind, call.result) for call in calls] == [("read", {"n": 1}), ("read", UNKNOWN), ("write", {"n": 1})]
    assert "answers that came from a cache: they show nothing of the world: 1 (first: log, line 2)" in missing(notes)
    assert "calls that a loop guard refused, left out: 1 (first: log, line 4)" in missing(notes)


def test_a_span_that_begins_before_the_one_around_it_shows_that_clocks_disagree(read):
    outer = span(1, trace="t", attributes={"gen_ai.operation.name": "invoke_agent"}, name="agent")
    inner = span(2, trace="t", parentSpanId="s1", startTimeUnixNano=1_699_999_999_000_000_000)
    calls, notes = read([{"resourceSpans": [{"scopeSpans": [{"spans": [outer, inner]}]}]}])
    assert len(calls) == 1
    assert problems(notes) == [
        "spans outside of the span that encloses them: clocks of different machines disagree: 1 (first: log, line 1)"
    ]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"status": {"code": 2, "message": "no"}}, "Error: no"),
        ({"status": {"code": "STATUS_CODE_ERROR"}, "attributes": {"error.type": "KeyError"}}, "KeyError: "),
        ({"status_code": "ERROR", "status_message": "ValueError: bad"}, "ValueError: bad"),
        ({"status": {"status_code": "OK"}}, None),
    ],
)
def test_the_status_of_a_span_makes_an_error(read, more, error):
    assert read([span(**more)])[0][0].error == error


def test_spans_of_openllmetry(read):
    calls, _ = read([span(attributes={
        "gen_ai.operation.name": None, "gen_ai.tool.name": None, "traceloop.span.kind": "tool",
        "traceloop.entity.name": "find", "traceloop.entity.input": '{"input_str": "x", "inputs": {"q": 1}}',
        "traceloop.entity.output": '{"n": 2}', "gen_ai.tool.call.arguments": None, "gen_ai.tool.call.result": None,
    }, name="find.tool")])  # fmt: skip
    assert (calls[0].tool, calls[0].arguments, calls[0].result) == ("find", {"q": 1}, {"n": 2})
