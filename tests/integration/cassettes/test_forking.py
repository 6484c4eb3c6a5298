"""`agent-cache cassette fork`, `fork.from_env`, and what the other commands say of a branch."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import Cassette, fork, intercept, record


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


def test_it_prints_how_to_run_a_fork_and_the_program_does(original, to, command, document, monkeypatch):
    options = ("--at", 3, "--to", to, "--edit", "1=\"no 'a'\"", "--world", "sandbox")
    assert document("fork", original, *options)[1]["answered"] == 1
    code, out, err = command("fork", original, *options)
    assert (code, err) == (0, "")
    assert out.startswith(
        "1 call, 1 edited, will be answered; call 3 and what follows will run. Made again: 1 write before it."
    )
    assert not to.exists(), "it runs nothing"
    [line] = [line for line in out.splitlines() if "AGENT_CACHE_FORK" in line]
    name, _, value = shlex.split(line)[0].partition("=")
    monkeypatch.delenv(name, raising=False)
    assert fork.from_env() is None
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


@pytest.mark.parametrize("edit", ["1", "1=x", "a=1"])
def test_an_edit_is_an_id_and_json(original, to, command, capsys, edit):
    with pytest.raises(SystemExit):
        command("fork", original, "--at", 2, "--to", to, "--edit", edit)
    assert "is not of the form ID=JSON" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["{", '{"cassette": "a"}', '{"cassette": "a", "to": "b", "at": 1, "more": 2}'])
def test_a_variable_with_something_else_in_it_is_an_error(monkeypatch, value):
    monkeypatch.setenv("AGENT_CACHE_FORK", value)
    with pytest.raises(ConfigurationError, match="AGENT_CACHE_FORK must be what `agent-cache cassette fork` prints"):
        fork.from_env()


def test_a_branch_is_a_cassette_like_any_other(original, to, command, document):
    with fork(original, at=3, to=to, edits={1: "no"}, world="as_is"):
        say("a")
        pay("W1")
        say("c")
    recorded_at, text = Cassette.load(original).recorded_at, command("show", to)[1]
    assert f"A branch of run.jsonl, recorded {recorded_at}, which it left at call 3; edited: call 1." in text
    assert document("show", to)[1]["header"]["forked_from"]["edits"] == [1]
    code, out, _ = command("diff", original, to)
    assert (code, f"{to}: A branch of run.jsonl" in out, "shop:say: outcome" in out) == (1, True, True)
    assert command("verify", to)[0] == 0
    assert command("redact", to, "--name", "order_id")[0] == 0
    cassette = Cassette.load(to)
    assert (cassette[1].arguments, cassette.header.forked_from["at"]) == ({"order_id": "[redacted]"}, 3)
