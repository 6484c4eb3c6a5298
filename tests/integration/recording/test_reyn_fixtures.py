"""Fixtures of Reyn: their keys, their lines, and their conversion. Nothing here needs litellm."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from agent_cache.errors import CassetteError, UncacheableArgumentsError
from agent_cache.recording import Cassette, record, replay
from agent_cache.recording.litellm import LLMReplay, from_cassette, is_fixture, read_fixture, to_cassette

MODEL = "gemini-2.5-flash-lite"
HELLO = [{"role": "user", "content": "hi"}]


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": f"It is {name}", "parameters": {}}}


def answer(text: str, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "a-1",
        "created": 1,
        "model": MODEL,
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 26, "completion_tokens": 10, "total_tokens": 36},
        **more,
    }


ENTRIES: list[dict[str, Any]] = [
    {"kind": "environment", "name": "catalog", "value": {"server": [{"name": "chunk"}]}},
    {"key": "0a", "model": MODEL, "prompt_preview": "hi", "response": answer("of an old Reyn")},
    {
        "key": "0b",
        "kind": "completion",
        "model": MODEL,
        "prompt_preview": "hi",
        "preconditions": {"catalog": {"servers": []}},
        "key_components": {"model": MODEL, "tool_choice": "auto", "messages": ["user:855daefc1e26"], "tools": {}},
        "response": answer("of a new Reyn"),
    },
    {
        "key": "0c",
        "kind": "embedding",
        "model": "small",
        "prompt_preview": "a",
        "response": {"data": [], "usage": None},
    },
    {"key": "0d", "kind": "exception", "cause": "rate_limit", "message": "slow down"},
]


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), "utf-8")
    return path


# Keys


def test_the_keys_are_those_that_reyn_has_written():
    schema = {"type": "object", "properties": {}}
    tools = [
        {"type": "function", "function": {"name": "run_skill", "description": "run a skill", "parameters": schema}}
    ]
    required = [{"role": "user", "content": "call the run_skill tool with skill=hello"}]
    assert LLMReplay.key(MODEL, HELLO, tools, "auto") == (
        "a45afc2cb2e15b9d8d410472d6450511e43b77918ec6f005e6d4834d9b9de2ea"
    )
    assert LLMReplay.key(MODEL, required, tools, "required") == (
        "d2cea64df9cbb7df24b92b0b37193ef1b122f9c839ea45c02d0cb5a53b1b516c"
    )


def test_the_key_of_a_call_without_tools_is_the_hash_of_the_model_and_the_messages():
    plain = MODEL + json.dumps(HELLO, sort_keys=True, ensure_ascii=False)
    expected = hashlib.sha256(plain.encode()).hexdigest()
    assert LLMReplay.key(MODEL, HELLO) == expected
    for tools, choice in (([], None), (None, ""), ([], "")):
        assert LLMReplay.key(MODEL, HELLO, tools=tools, tool_choice=choice) == expected


def test_an_argument_without_identity_is_refused():
    with pytest.raises(UncacheableArgumentsError, match="contains a object"):
        LLMReplay.key(MODEL, [{"role": "user", "content": object()}])


# Lines


def test_a_fixture_is_told_from_other_files(tmp_path):
    assert is_fixture(write(tmp_path / "a.jsonl", ENTRIES[0]))
    assert is_fixture(write(tmp_path / "b.jsonl", ENTRIES[1]))
    assert is_fixture(write(tmp_path / "c.jsonl", ENTRIES[4]))
    to_cassette(ENTRIES).save(tmp_path / "converted.jsonl")
    assert is_fixture(tmp_path / "converted.jsonl")
    assert not is_fixture(write(tmp_path / "d.jsonl", {"agent_cache_cassette": 2}))
    assert not is_fixture(write(tmp_path / "e.jsonl"))
    assert not is_fixture(tmp_path / "missing.jsonl")
    assert not is_fixture(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no entry"),
        ("<<<<<<< ours", "no entry"),
        ("[1]", "no entry"),
        ('{"key": "a"}', "'response'"),
        ('{"key": 7, "response": {}}', "'key'"),
        ('{"kind": "environment", "name": "a"}', "'value'"),
        ('{"kind": "tomorrow", "key": "a"}', "'tomorrow'"),
    ],
)
def test_a_broken_line_is_an_error_with_its_number(line, reason, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(ENTRIES[1])}\n\n{line}\n", "utf-8")
    with pytest.raises(CassetteError, match=reason) as caught:
        LLMReplay(path, "replay")
    assert caught.value.line == 3


# Conversion


def test_a_fixture_becomes_a_cassette_and_a_fixture_again(tmp_path):
    path = write(tmp_path / "a.jsonl", *ENTRIES)
    cassette = to_cassette(read_fixture(path), path)
    cassette.save(tmp_path / "ours.jsonl")
    assert from_cassette(Cassette.load(tmp_path / "ours.jsonl")) == ENTRIES
    assert read_fixture(tmp_path / "ours.jsonl") == ENTRIES


def test_its_calls_are_model_calls_with_their_key_and_their_tokens():
    calls = to_cassette(ENTRIES)
    assert [(call.kind, call.name, call.key) for call in calls] == [
        ("env", "litellm:environment", "catalog"),
        ("llm", "litellm:acompletion", "0a"),
        ("llm", "litellm:acompletion", "0b"),
        ("llm", "litellm:aembedding", "0c"),
        ("llm", "litellm:acompletion", "0d"),
    ]
    assert {call.form for call in calls} == {"reyn"}
    assert (calls[1].model, calls[1].input_tokens, calls[1].output_tokens) == (MODEL, 26, 10)
    assert calls.total_tokens == 72


def test_no_other_replay_takes_such_a_cassette_since_it_would_call_the_model(tmp_path):
    to_cassette(ENTRIES).save(path := tmp_path / "ours.jsonl")
    for block in (replay(path), record(path, mode="none"), record(path, mode="new_episodes")):
        with pytest.raises(CassetteError, match=r"only recording\.litellm\.LLMReplay"), block:
            pass
