"""`agent-cache cassette show`, `diff` and `verify`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_cache
from agent_cache.__main__ import main
from agent_cache.recording import Cassette, cached_llm_call, record
from tests.harness.processes import python
from tests.harness.slow import slow_rows

SECRET = "sk-" + "a1b2c3d4" * 4
VALUE = '{"value":{"answer":"X"}}'


def edited(path: Path, *changes: tuple[str, str]) -> Path:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)
    return path


# show


def test_show_is_a_timeline(cassette, command):
    code, out, err = command("show", cassette("a.jsonl", "outer:x", "broken", "model:hi", "stream:3", model="label"))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert "label" in lines[0]
    calls = lines[2:-2]
    assert [line.split()[0] for line in calls] == ["1", "2", "3", "4", "5"]  # in the order they were started
    assert "shop:outer(question='x') -> {'answer': 'X'}" in calls[0]
    assert calls[1].index("shop:ask") == calls[0].index("shop:outer") + 2  # nested
    assert "raised TimeoutError: no answer" in calls[2]
    assert calls[3].endswith("(m-1, 120+30 tokens)")
    assert calls[4].endswith("-> 3 chunks")
    assert lines[-2].startswith("1 model call, 120+30 tokens, ")
    assert "5 calls in " in lines[-1]
    assert lines[-1].endswith(", 120+30 tokens, 1 error")


def test_show_has_the_last_message_of_a_call_of_a_model(tmp_path, command):
    think = cached_llm_call(name="model")(lambda messages: {"message": {"content": "At noon"}})
    with record(tmp_path / "a.jsonl"):
        think([{"role": "system", "content": "Be kind. " * 20}, {"role": "user", "content": "When?"}])
    assert "model(...='When?') -> " in command("show", tmp_path / "a.jsonl")[1]


def test_show_as_json_has_everything(cassette, document):
    path = cassette("a.jsonl", "outer:x", "broken", "model:hi")
    code, shown = document("show", path)
    assert code == 0
    assert shown["totals"] == {"calls": 4, "errors": 1, "input_tokens": 120, "output_tokens": 30}
    assert [(call["id"], call["depth"], call["name"]) for call in shown["calls"]] == [
        (1, 0, "shop:outer"),
        (2, 1, "shop:ask"),
        (3, 0, "shop:ask"),
        (4, 0, "model"),
    ]
    assert shown["calls"][2]["outcome"]["error"]["type"] == "builtins:TimeoutError"
    assert shown["trailer"]["calls"] == 4


def test_show_picks_calls(cassette, document, command):
    path = cassette("a.jsonl", "x", "broken", "model:hi", "y")
    pick = lambda *options: [call["id"] for call in document("show", path, *options)[1]["calls"]]
    assert pick("--name", "shop:*") == [1, 2, 4]
    assert pick("--errors") == [2]
    assert pick("--limit", "2") == [1, 2]
    assert document("show", path, "--errors")[1]["totals"]["calls"] == 4
    assert "2 more calls are not shown" in command("show", path, "--limit", 2)[1]


def test_show_says_that_a_run_was_killed_or_raised(cassette, command):
    path = cassette("a.jsonl", "x")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert "The recording was killed" in command("show", path)[1]
    path.write_text("".join(lines).replace('"ended":"returned"', '"ended":"raised ValueError"'))
    assert "The run raised ValueError." in command("show", path)[1]


# diff


def test_diff_says_what_is_new_dropped_changed_and_moved(cassette, command, document):
    a = cassette("a.jsonl", "first", "gone", "x", "last", "model:hi")
    b = cassette("b.jsonl", "model:new", "last", "first", "x", "model:ho")
    code, out, _ = command("diff", a, b)
    assert code == 1
    assert "prompt: hi -> ho" in out
    assert "outcome.value.text: hi -> ho" in out
    assert any(line.startswith(">") and "is now call" in line for line in out.splitlines())
    assert "-     2  shop:ask(question='gone') -> {'answer': 'GONE'}" in out
    assert any(line.startswith("+     1  ") and "prompt='new'" in line for line in out.splitlines())
    code, data = document("diff", a, b)
    assert (code, data["identical"], data["step_delta"], data["token_delta"]) == (1, False, 0, 150)
    assert data["changed_calls"][-1]["a"]["arguments"] == {"prompt": "hi"}


# verify


@pytest.mark.parametrize(
    ("old", "new", "kind", "line", "message"),
    [
        ('"question":"x"', '"question":"z"', "digest", 2, "the digest does not match the name and the arguments"),
        ('"outcome":{"value"', '"outcome":{"valeu"', "structure", 2, "the outcome has no known form: valeu"),
        (VALUE, '{"response":{"status":200,"json":1,"spelling":"wide"}}', "structure", 2, "the response is malformed"),
        ('{"calls":2', '{"calls":3', "structure", 0, "the trailer counts 3 calls, but the file has 2"),
        ('{"id":2', '<<<<<<< HEAD\n{"id":2', "structure", 3, "has a merge conflict"),
        (VALUE, '{"unencodable":"m:C"}', "replay", 2, "returned a m:C, which cannot be"),
        (VALUE, '{"error":"timeout"}', "structure", 2, "line is broken: Expected `object`, got `str` - at `$.error`"),
        (VALUE, '{"stream":{"chunks":[{"error":5}],"end":{}}}', "structure", 2, "this line is broken"),
        ('"answer":"X"', f'"answer":"{SECRET}"', "secret", 2, "outcome.value.answer contains a secret"),
    ],
)
def test_verify_finds(cassette, document, command, old, new, kind, line, message):
    path = edited(cassette("a.jsonl", "x", "y"), (old, new))
    code, data = document("verify", path)
    (finding,) = data["cassettes"][0]["findings"]
    assert (code, data["findings"], finding["kind"], finding["line"]) == (1, 1, kind, line)
    assert message in finding["message"]
    out = command("verify", path)[1]
    assert SECRET not in out
    assert str(path) in out


AGENT = """
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from agent_cache import AgentCache
from agent_cache.recording import cached_llm_call, intercept

@dataclass
class Order:
    {fields}

@intercept
def get(number: int) -> list[Order]:
    return [Order(number)]

class Shop:
    @cached_llm_call(name="ask")
    def ask(self, prompt: str) -> Iterator[Order]:
        yield Order(1)

@AgentCache("order:{{number}}")
async def find(number: int) -> Order:
    return Order(number)

@intercept
def make(kind: type) -> Any:
    return kind(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "said"), [("number: int", None), ("number: int; name: str", "name"), *slow_rows(("number: str", "int"))]
)
def test_verify_reads_what_the_functions_of_a_module_returned(fields, said, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    module = tmp_path / "shop_agent.py"
    module.write_text(AGENT.format(fields="number: int"))
    run = "import sys; sys.dont_write_bytecode = True\n"
    run += "import asyncio, shop_agent as s; from agent_cache.recording import record\n"
    run += "with record('a.jsonl', strict=True):\n    s.get(1); list(s.Shop().ask('a')); asyncio.run(s.find(1))\n"
    run += "    s.make(s.Order)"
    python("-c", run).check_returncode()
    module.write_text(AGENT.format(fields=fields))
    monkeypatch.delitem(sys.modules, "shop_agent", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert command("verify", "a.jsonl")[0] == 0
    assert "shop_agent" not in sys.modules
    code, out, _ = command("verify", "a.jsonl", "--import", "shop_agent")
    monkeypatch.delitem(sys.modules, "shop_agent")
    assert code == (said is not None)
    assert out.count("does not fit the return annotation") == (3 if said else 0)
    assert said is None or out.count(said) >= 3


def test_verify_finds_a_recording_that_was_killed_and_an_empty_file(cassette, document, tmp_path):
    path = cassette("a.jsonl", "x")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    (tmp_path / "b.jsonl").touch()
    code, data = document("verify", tmp_path)
    messages = [one["findings"][0]["message"] for one in data["cassettes"]]
    assert (code, "killed" in messages[0], "is empty" in messages[1]) == (1, True, True)


def test_secrets_that_the_recording_was_told_of_count_as_secrets(cassette, document):
    path = cassette("a.jsonl", "x", redact=["question"])
    assert Cassette.load(path)[0].arguments == {"question": "[redacted]"}
    assert document("verify", path)[0] == 0
    edited(path, ('"[redacted]"', '"in the clear"'))
    code, data = document("verify", path)
    assert code == 1
    assert {one["kind"] for one in data["cassettes"][0]["findings"]} == {"digest", "secret"}


# Exit codes


@pytest.mark.parametrize("name", ["show", "verify", "redact", "convert"])
def test_a_missing_file_is_2(command, tmp_path, name):
    code, out, err = command(name, tmp_path / "nothing.jsonl")
    assert (code, out) == (2, "")
    assert "there is no cassette" in err


def test_a_broken_file_is_2_for_what_needs_its_calls(cassette, command):
    good, bad = cassette("a.jsonl", "x"), cassette("b.jsonl", "x")
    edited(bad, ('"kind"', "kind"))
    for arguments in (("show", bad), ("diff", good, bad), ("redact", bad)):
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert f"{bad}:2: this line is broken" in err


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["show"], ["diff", "a"], ["show", "a", "--limit", "x"]])
def test_a_wrong_usage_is_2(arguments, capsys):
    with pytest.raises(SystemExit) as exited:
        main(["cassette", *arguments])
    assert exited.value.code == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_process_of_its_own_that_has_no_rich_and_a_reader_that_stops(cassette, tmp_path):
    path = cassette("a.jsonl", *[f"q{at}" for at in range(1500)])
    (tmp_path / "rich.py").write_text("raise ImportError")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(agent_cache.__file__).parents[1])])
    }
    command = [sys.executable, "-m", "agent_cache", "cassette", "show", str(path)]
    whole = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=100)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert len(json.loads(whole.stdout)["calls"]) == 1500
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(100) == 141


@pytest.mark.parametrize("command", [["show"], ["show", "--json"], ["diff"], ["diff", "--json"], ["verify"]])
def test_what_a_terminal_would_obey_is_escaped(command, tmp_path, capsys):
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\r\n"

    @cached_llm_call(name=f"ask{evil}")
    def ask(question: str) -> dict[str, str]:
        if question == "broken":
            raise ValueError(evil)
        return {"model": evil, "text": evil}

    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, questions in zip(paths, (["x", "broken", evil], ["y", evil]), strict=True):
        with record(path, model=evil):
            for question in questions:
                try:
                    ask(question)
                except ValueError:
                    pass
    main(["cassette", *command, *map(str, paths[: 2 if command[0] == "diff" else 1])])
    shown = capsys.readouterr()
    assert not set("\x1b\x07\x9b\u202e\r") & set(shown.out + shown.err)
    if command[0] == "show":
        assert "owned" in shown.out
