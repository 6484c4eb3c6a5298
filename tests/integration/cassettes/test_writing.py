"""`agent-cache cassette redact` and `convert`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_cache.recording import Cassette, intercept, record, replay
from agent_cache.recording.litellm import read_fixture

SECRET = "sk-" + "a1b2c3d4" * 4


@intercept(name="shop:pay")
def pay(order: str, code: str) -> str:
    return f"paid with {code}"


def paid(path: Path, code: str, **options) -> Path:
    with record(path, **options):
        pay("W1", code)
    return path


def with_secret(path: Path) -> Path:
    """A cassette that was recorded by something that did not redact."""
    paid(path, "PLACEHOLDER")
    path.write_text(path.read_text().replace("PLACEHOLDER", SECRET))
    return path


# redact


def test_redact_takes_secrets_out_and_the_replay_still_matches(tmp_path, document, command):
    path = with_secret(tmp_path / "a.jsonl")
    before = path.read_bytes()
    code, out, _ = command("redact", "--check", path)
    assert (code, path.read_bytes(), "2 to redact" in out, SECRET in out) == (1, before, True, False)
    with record(path):
        assert command("redact", path)[0] == 2, "it is being recorded"
        pay("W1", "PLACEHOLDER")
    path.write_bytes(before)
    code, data = document("redact", path)
    redacted = {"shop:pay arguments.code": 1, "shop:pay outcome.value": 1}
    assert (code, data["cassettes"]) == (0, [{"path": str(path), "redacted": redacted, "is_written": True}])
    assert SECRET not in path.read_text()
    assert command("verify", path)[0] == 0
    with replay(path, strict=True):
        assert pay("W1", "sk-" + "another0" * 4) == "paid with [redacted]"


def test_redact_by_name_and_by_pattern_is_remembered(tmp_path, command, document):
    path = paid(tmp_path / "a.jsonl", "code-77")
    assert command("redact", path, "--name", "order", "--pattern", r"code-\d+")[0] == 0
    cassette = Cassette.load(path)
    assert cassette[0].arguments == {"order": "[redacted]", "code": "[redacted]"}
    assert cassette.header.redact == {"names": ["order"], "patterns": [r"code-\d+"]}
    with replay(path, strict=True):
        assert pay("W2", "code-99") == "paid with [redacted]"
    before = path.read_bytes()
    assert document("redact", path)[1]["findings"] == 0
    assert path.read_bytes() == before
    code, _, err = command("redact", path, "--pattern", "(")
    assert (code, "no regular expression" in err) == (2, True)


def test_redact_goes_through_a_folder(tmp_path, command):
    paths = [with_secret(tmp_path / name) for name in ("deep/a.jsonl", "b.jsonl")]
    assert command("redact", tmp_path)[0] == 0
    assert not any(SECRET in path.read_text() for path in paths)


# convert


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A cassette of agentcassette."""
    step = {
        "index": 0, "type": "tool", "name": "pay", "arguments": {"args": ["W1"], "kwargs": {"code": SECRET}},
        "result": f"paid with {SECRET}", "input_tokens": 3, "output_tokens": 4, "duration_ms": 5.0,
    }  # fmt: skip
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"version": 1, "model": "m", "duration_ms": 12.5, "steps": [step]}, indent=2))
    return path


def test_convert_writes_ours_redacted_and_it_replays(theirs, command):
    assert "pay(args=['W1']" in command("show", theirs)[1]
    assert command("verify", theirs)[0] == 1  # it has a secret
    code, _, err = command("redact", theirs)
    assert (code, "convert" in err) == (2, True)
    code, out, _ = command("convert", theirs)
    target = theirs.with_suffix(".jsonl")
    assert (code, out.splitlines()[0]) == (0, f"{theirs} -> {target}  1 calls")
    assert SECRET not in target.read_text()
    cassette = Cassette.load(target)
    assert (cassette.model, cassette.duration_ms, cassette.total_tokens) == ("m", 12.5, 7)
    assert command("verify", target)[0] == 0
    with replay(target, strict=True):
        assert pay("W1", SECRET) == "paid with [redacted]"


def test_convert_overwrites_nothing_by_accident(theirs, command, tmp_path):
    target = paid(tmp_path / "old.jsonl", "1")
    before = target.read_bytes()
    code, _, err = command("convert", theirs)
    assert (code, target.read_bytes(), "--force" in err) == (2, before, True)
    assert command("convert", theirs, "--output", tmp_path / "new" / "x.jsonl")[0] == 0
    assert command("convert", theirs, "--force")[0] == 0
    assert len(Cassette.load(target)) == 1
    assert command("convert", target)[0] == 2  # ours already
    assert command("convert", theirs, theirs, "-o", target)[0] == 2


def test_a_fixture_of_reyn_is_converted_redacted(command, tmp_path):
    message = {"role": "assistant", "content": f"the key is {SECRET}"}
    response = {"id": "a", "model": "m", "choices": [{"index": 0, "message": message}], "usage": {"prompt_tokens": 3}}
    entry = {"key": "0a", "model": "m", "prompt_preview": "hi", "response": response}
    of_reyn, ours = (tmp_path / f"{name}.jsonl" for name in ("fixture", "ours"))
    of_reyn.write_text(f"{json.dumps(entry)}\n", "utf-8")
    assert command("convert", of_reyn)[0] == 2  # to its own path
    code, out, _ = command("convert", of_reyn, "-o", ours)
    assert (code, out.splitlines()[0]) == (0, f"{of_reyn} -> {ours}  1 calls")
    assert command("verify", ours)[0] == 0
    [call] = Cassette.load(ours)
    assert (call.name, call.key, call.input_tokens) == ("litellm:acompletion", "0a", 3)
    assert read_fixture(ours) == [json.loads(json.dumps(entry).replace(SECRET, "[redacted]"))]
