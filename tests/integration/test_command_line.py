"""`agent-cache` itself: its help has the commands in groups, and each command has an example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest

from agent_cache.__main__ import main

pytest.importorskip("redis", reason='the commands of tiers need pip install "agent-cache[redis]"')


COMMANDS = [
    *("report", "advise", "cassette", "drift check", "drift accept"),
    *("tier stats", "tier keys", "tier clear", "tier doctor", "demo", "mcp"),
]
OF_CASSETTES = [f"cassette {name}" for name in ("show", "text", "diff", "fork", "redact", "verify", "convert")]


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_commands_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of([], capsys)
    places = [text.index(f"\n{group}:\n") for group in ("see", "recordings", "tiers", "run")]
    assert places == sorted(places)
    assert re.findall(r"^  ((?:[a-z]+ )+) ", text, re.MULTILINE) == [f"{words} " for words in COMMANDS]
    listed = re.findall(r"^    (\w+)  ", help_of(["cassette"], capsys), re.MULTILINE)
    assert [f"cassette {name}" for name in listed] == OF_CASSETTES


@pytest.mark.parametrize("words", [*COMMANDS, *OF_CASSETTES])
def test_the_help_of_each_command_has_an_example(words, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of(words.split(), capsys).split())
    assert f"example: agent-cache {words} " in text
    assert f"usage: agent-cache {words.split()[0]}" in text


@pytest.mark.parametrize(
    "arguments",
    [["report"], ["advise"], ["drift", "check", "x"], ["tier"], ["nothing"], ["cassette", "nothing"],
     *(["cassette", "redact", ""], ["advise", "--check", "", "x"], ["mcp", "--config", "", "--", ""])],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: agent-cache" in capsys.readouterr().err


def test_no_command_is_a_usage_error_that_names_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(words in err for words in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"agent-cache {version('agent-cache')}\n"


@pytest.mark.parametrize("words", [["report"], ["advise"], ["drift", "accept", "--as", "x"], ["cassette", "show"]])
def test_a_file_that_is_no_run_is_said_in_one_line(
    words: list[str], tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("no run")
    assert main([*words, str(path)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "records" not in line]
    assert any("broken.jsonl" in line for line in lines)
    assert len(lines) <= 3


def test_what_memory_cannot_hold_and_what_an_extra_brings_is_said_in_one_line(monkeypatch, capsys) -> None:
    raised = Mock(side_effect=[MemoryError, RecursionError, ModuleNotFoundError("it needs an extra")])
    monkeypatch.setattr("agent_cache.recording.Cassette.load", raised)
    too_large = "agent-cache: not enough memory, or nested too deeply: give it fewer or smaller files"
    for said in (too_large, too_large, "it needs an extra"):
        assert main(["report", "run.jsonl"]) == 2
        assert capsys.readouterr().err == f"{said}\n"
    monkeypatch.setattr("importlib.import_module", Mock(side_effect=KeyboardInterrupt))  # while a command is loaded
    assert main(["report", "run.jsonl"]) == 130


@pytest.mark.parametrize(
    ("words", "environment", "code", "shown"),
    [
        ("cassette show run.jsonl", {"PYTHONIOENCODING": "ascii"}, 0, b"Zo\\xeb \\u6771"),
        ("cassette show run.jsonl", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, 0, b"Zo\xc3\xab"),
        ("cassette show run.jsonl >&-", {}, 0, b""),
        ("cassette show run.jsonl >/dev/full", {}, 2, b""),
        ("--version >/dev/full", {}, 2, b""),
        ("cassette show run.jsonl | head -c 1", {}, 0, b"r"),
        ("cassette text . 2>&1", {}, 2, b".: Is a directory\n"),
        ("cassette text . 2>&1", {"AGENT_CACHE_ENABLED": "disabled"}, 2, b"AGENT_CACHE_ENABLED must be 0 or 1"),
    ],
)
def test_output_goes_to_what_cannot_encode_it_is_closed_or_full_and_errors_name_their_file(
    words: str, environment: dict[str, str], code: int, shown: bytes, tmp_path: Path
) -> None:
    call = '{"id":1,"kind":"tool","name":"get","arguments":{"a":"Zoë 東"},"digest":"","outcome":{"value":1}}'
    (tmp_path / "run.jsonl").write_text(f'{{"agent_cache_cassette":2}}\n{call}\n', "utf-8")
    command = f"{sys.executable} -m agent_cache {words}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, timeout=300)
    assert (done.returncode, shown in done.stdout, b"Traceback" in done.stderr) == (code, True, False), done
