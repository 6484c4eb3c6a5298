"""`agent-cache cassette fork`, `fork.from_env`, and what the other commands say of a branch."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import Cassette, fork, intercept, record
from agent_cache.recording.branch import FORK_VARIABLE


@intercept(name="shop:say", kind="llm")
def say(prompt: str) -> str:
    return f"yes, {prompt}"


@intercept(name="shop:pay", kind="write")
def pay(order_id: str) -> str:
    return f"paid {order_id}"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with record(path):
        say("a")
        pay("W1")
        say("b")
        pay("W2")
    return path


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "a branch.jsonl"


def test_it_prints_how_to_run_a_fork_and_the_program_does(original, to, command, monkeypatch):
    code, out, err = command("fork", original, "--at", 3, "--to", to, "--edit", "1=\"no 'a'\"", "--world", "sandbox")
    assert (code, err) == (0, "")
    assert out.startswith(
        "1 call, 1 edited, will be answered; call 3 and what follows will run. Made again: 1 write before it."
    )
    assert not to.exists(), "it runs nothing"
    [line] = [line for line in out.splitlines() if FORK_VARIABLE in line]
    [setting] = shlex.split(line)
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    with fork.from_env() or record(to):
        assert say("a") == "no 'a'"
        assert pay("W1") == "paid W1"
        assert say("c") == "yes, c"
    assert Cassette.load(to).header.forked_from["at"] == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--at", "3"], "the original made a write, which the world has already:\n    call 4: shop:pay(order_id='W2')"),
        (["--at", "9"], "there is no call 9"),
        (["--at", "4", "--edit", '1="a"', "--edit", '1="b"', "--world", "as_is"], "a call was edited twice"),
    ],
)
def test_a_fork_that_cannot_work_is_an_error_at_once(original, to, command, options, text):
    code, out, err = command("fork", original, "--to", to, *options)
    assert (code, out) == (2, "")
    assert text in err


@pytest.mark.parametrize(
    "value",
    ["1", "{", '{"cassette": "a"}', '{"cassette": "a", "to": "b", "at": 1, "more": 2}', '{"edits": {"x": 1}}'],
)
def test_a_variable_with_something_else_in_it_is_an_error(monkeypatch, value):
    monkeypatch.setenv(FORK_VARIABLE, value)
    with pytest.raises(ConfigurationError, match=f"{FORK_VARIABLE} must be what `agent-cache cassette fork` prints"):
        fork.from_env()


@pytest.fixture
def branch(original: Path, to: Path) -> Path:
    with fork(original, at=3, to=to, edits={1: "no"}, world="as_is"):
        say("a")
        pay("W1")
        say("c")
    return to


def test_show_says_that_it_is_a_branch_and_has_the_ids_of_its_calls(branch, original, command, document):
    _, out, _ = command("show", branch)
    recorded_at = Cassette.load(original).recorded_at
    assert f"A branch of run.jsonl, recorded {recorded_at}, which it left at call 3; edited: call 1." in out
    assert [line.split()[0] for line in out.splitlines()[3:6]] == ["1", "2", "3"]
    _, shown = document("show", branch)
    assert shown["header"]["forked_from"]["edits"] == [1]


def test_a_branch_is_a_cassette_like_any_other(branch, command):
    code, out, _ = command("verify", branch)
    assert code == 0, out
    assert command("redact", branch, "--name", "order_id")[0] == 0
    cassette = Cassette.load(branch)
    assert cassette[1].arguments == {"order_id": "[redacted]"}
    assert cassette.header.forked_from["at"] == 3
    assert Cassette.from_dict(cassette.to_dict()).header == cassette.header
