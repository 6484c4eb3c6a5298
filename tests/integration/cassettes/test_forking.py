"""What the commands say of a branch."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_a_branch_is_a_cassette_like_any_other(original, tmp_path, command, document):
    to = tmp_path / "a branch.jsonl"
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
