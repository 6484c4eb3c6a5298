"""`agent-cache report`, as a page and in other forms: what they write, and one clear line for what they cannot."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.advice import read_log
from tests.harness.cassettes import TimedRun, shop_run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def needs_bokeh() -> None:
    pytest.importorskip("bokeh", reason='a report needs pip install "agent-cache[report]"')
    pytest.importorskip("jinja2", reason='a report needs pip install "agent-cache[report]"')


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shop_run().save(tmp_path / "run.jsonl")


@pytest.mark.usefixtures("needs_bokeh")
def test_a_report_is_written(run: Path, tmp_path: Path, command: Command):
    target = tmp_path / "out.html"
    code, out, err = command("report", run, "-o", target)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"{target}  15 calls, 5\d\d(\.\d)? kB\n", out)
    text = target.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert not re.search("https?://", text.replace("http://www.w3.org", ""))
    assert list(tmp_path.glob(".*")) == []
    later = shop_run(amount=41).save(tmp_path / "later.jsonl")
    code, out, err = command("report", run, later, "-o", target)
    assert (code, err) == (0, "")
    assert "30 calls, 2 drifts, " in out


def test_a_trace_is_written(run: Path, tmp_path: Path, command: Command):
    target = tmp_path / "out.json"
    code, out, err = command("report", run, "--trace", target)
    assert (code, err) == (0, "")
    assert out.startswith(f"{target}  15 calls, ")
    events = json.loads(target.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 15
    code, out, err = command("report", run, "--trace", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["traceEvents"] == events


def test_a_trajectory_is_what_advise_reads(tmp_path: Path, command: Command):
    run = TimedRun()
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "Where is W1?"}]
    answer = {"choices": [{"message": {"role": "assistant", "content": "I look."}}]}
    run.add("agent:ask", 0, 5, kind="llm", arguments={"messages": messages}, outcome={"value": answer},
            input_tokens=10, output_tokens=2)  # fmt: skip
    run.add("shop:get", 5, 2, source="miss", arguments={"id": "W1"}, outcome={"value": {"status": "late"}})
    path, target = run.save(tmp_path / "run.jsonl"), tmp_path / "out.json"
    assert command("report", path, "--atif", target)[0] == 0
    found = json.loads(target.read_text())
    assert found["schema_version"] == "ATIF-v1.7"
    [step] = found["steps"]
    assert (step["message"], step["metrics"]["prompt_tokens"]) == ("I look.", 10)
    [call] = read_log(target).calls
    assert (call.tool, call.arguments, call.result) == ("shop:get", {"id": "W1"}, {"status": "late"})
    for time in ("last year", "9999-12-31T23:59:59.999Z"):
        path.write_text(re.sub('"recorded_at":"[^"]*"', f'"recorded_at":"{time}"', path.read_text()))
        assert command("report", path, "--atif", target)[0] == 0
        assert "timestamp" not in json.loads(target.read_text())["steps"][0], "its time is unknown"
    code, _, err = command("report", path, path, "--atif", target)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.jsonl", b"", "is empty; delete it, or record it again"),
        ("newer.jsonl", b'{"agent_cache_cassette":9}\n', "has format version 9"),
        ("binary.jsonl", b"\x89PNG\r\n\x1a\n\x00\xff" * 50, "is no cassette"),
        ("missing.jsonl", None, "there is no cassette"),
        ("", None, "cannot be read: "),
        *((path, None, "cannot be read: it is not a regular file") for path in (".", "/")),
    ],
)
def test_what_is_no_run_is_said_in_one_line(
    name: str, content: bytes | None, reason: str, tmp_path: Path, command: Command
):
    path, options = (name, []) if name in (".", "/") else (tmp_path / name, ["--trace", tmp_path / "out"])
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, err = command("report", path, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(path) in err
    assert reason in err
    assert not (tmp_path / "out").exists()


def test_a_link_that_another_user_has_put_beside_the_file_is_not_followed(run: Path, tmp_path: Path, command: Command):
    """In a folder that all may write to; its name can be guessed."""
    target, victim = tmp_path / "out.json", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".out.json.{os.getpid()}").symlink_to(victim)
    assert command("report", run, "--trace", target)[0] == 0
    assert (victim.read_text(), target.is_symlink()) == ("mine", False)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert command("report", run, "--trace", tmp_path / "loop")[0] == 0
    assert (tmp_path / "loop").read_text() == target.read_text()


def test_what_cannot_be_written_is_said_in_one_line(run: Path, tmp_path: Path, command: Command):
    before = run.read_bytes()
    link = tmp_path / "same.jsonl"
    link.hardlink_to(run)
    for target, reason in (
        (run, "is a run that is read"),
        (link, "is a run that is read"),
        (tmp_path, "cannot be written: Is a directory"),
        (tmp_path / "no" / "such" / "out.json", "cannot be written: No such file or directory"),
    ):
        code, out, err = command("report", run, "--trace", target)
        assert (code, out, err.count("\n")) == (2, "", 1), (target, err)
        assert reason in err
    assert run.read_bytes() == before


def test_a_torn_run_and_an_empty_one_are_written_and_said(run: Path, tmp_path: Path, command: Command):
    run.write_text("".join(run.read_text().splitlines(keepends=True)[:4])[:-20])
    code, _, err = command("report", run, "--trace", tmp_path / "out.json")
    lines = err.splitlines()
    assert lines[0] == f"{run}: The recording was killed: calls may be missing."
    assert lines[1].startswith(f"{run}: The recording has no times")  # they were in the line that is missing
    assert (code, len(lines)) == (0, 2)
    empty = TimedRun().save(tmp_path / "empty.jsonl")
    code, out, err = command("report", empty, "--trace", tmp_path / "out.json")
    assert (code, err) == (0, f"{empty}: The run has no calls.\n")
    assert "0 calls" in out


@pytest.mark.usefixtures("needs_bokeh")
def test_runs_that_cannot_be_compared_are_written_and_said(run: Path, tmp_path: Path, command: Command):
    other = TimedRun()
    other.add("bank:pay", 0, 1, source="write")
    path = other.save(tmp_path / "other.jsonl")
    code, _, err = command("report", run, path, "-o", tmp_path / "out.html")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(f"{path}: has no call in common with its baseline")


def test_without_bokeh_it_says_what_to_install(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    for name in ("bokeh", "bokeh.embed"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, err = command("report", run, "-o", tmp_path / "out.html")
    assert (code, err) == (2, 'a report needs Bokeh and Jinja2: pip install "agent-cache[report]"\n')
    assert command("report", run, "--trace", tmp_path / "out.json")[0] == 0  # needs nothing
