"""`LLMReplay` with the real litellm, whose `mock_response` answers without a network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_cache.errors import CassetteError
from agent_cache.recording import Cassette, MissingFixture
from agent_cache.recording.litellm import LLMReplay, _stream, read_fixture, to_cassette
from tests.harness.http_server import http_server
from tests.integration.recording.test_reyn_fixtures import answer, tool, write

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network for prices
litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pydantic")  # of litellm's own types

MODEL = "gpt-4o"
HELLO = [{"role": "user", "content": "hi"}]
KEY = "sk-abcdefghijklmnopqrstuvwxyz0123"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fixtures" / "chat.jsonl"


@pytest.fixture(autouse=True)
def untouched():
    """Every test leaves the functions as it found them."""
    before = litellm.acompletion, litellm.aembedding
    yield
    assert (litellm.acompletion, litellm.aembedding) == before


async def ask(text: Any = "hi", reply: str | None = "hello there", **more: Any) -> Any:
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return await litellm.acompletion(model=MODEL, messages=messages, mock_response=reply, **more)


async def recorded(path: Path, *texts: str, **more: Any) -> None:
    with LLMReplay(path, "record"):
        for text in texts:
            await ask(text, f"answer to {text}", **more)


def content(response: Any) -> Any:
    return response.choices[0].message.content


def call_of(name: str, arguments: str, number: int) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def with_calls(*arguments: str) -> Any:
    calls = [call_of("read_file", each, number) for number, each in enumerate(arguments)]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return litellm.ModelResponse(**answer("", choices=[choice]))


# Recording and replaying


async def test_what_was_recorded_is_answered_without_the_model(path):
    with LLMReplay(path, "record"):
        live = await ask()
    with LLMReplay(path):
        replayed = await litellm.acompletion(MODEL, HELLO)
        again = await litellm.acompletion(model=MODEL, messages=HELLO)
    assert type(replayed) is type(live)
    assert replayed.model_dump() == again.model_dump() == live.model_dump()


async def test_a_real_client_is_recorded_and_replayed_after_its_server_has_gone(path):
    with http_server() as server:
        api = server.model_api
        options = {"api_base": f"{api.url}/v1", "api_key": KEY, "num_retries": 0}
        with LLMReplay(path, "record"):
            live = await litellm.acompletion(model="openai/large-1", messages=HELLO, **options)
        requests = len(api.requests)
    with LLMReplay(path):
        replayed = await litellm.acompletion(model="openai/large-1", messages=HELLO, **options)
    assert (content(replayed), requests) == (content(live), 1)
    assert replayed.usage.prompt_tokens == live.usage.prompt_tokens == 3
    assert KEY not in path.read_text()


async def test_embeddings_are_recorded_and_replayed(path):
    with LLMReplay(path, "record"):
        live = await litellm.aembedding(model="text-embedding-3-small", input=["a", "b"], mock_response=[0.1, 0.2])
        await litellm.aembedding(model="text-embedding-3-small", input="one text", mock_response=[0.3])
    with LLMReplay(path):
        replayed = await litellm.aembedding(model="text-embedding-3-small", input=["a", "b"])
        one = await litellm.aembedding("text-embedding-3-small", input="one text")
        with pytest.raises(MissingFixture, match="No embedding of the fixture answers"):
            await litellm.aembedding(model="text-embedding-3-small", input=["c"])
    assert replayed.model_dump() == live.model_dump()
    assert one.data[0]["embedding"] == [0.3]


async def test_the_lines_are_those_of_reyn(path):
    await recorded(path, "hi", tools=[tool("run_skill")], tool_choice="auto")
    [entry] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert list(entry) == ["key", "kind", "model", "prompt_preview", "response"]
    assert entry["key"] == LLMReplay.key(MODEL, HELLO, [tool("run_skill")], "auto")
    assert (entry["kind"], entry["model"], entry["prompt_preview"]) == ("completion", MODEL, "hi")
    assert litellm.ModelResponse(**entry["response"]).choices[0].message.content == "answer to hi"


async def test_a_cassette_that_was_made_of_a_fixture_is_replayed_and_not_recorded_to(path, tmp_path):
    await recorded(path, "hi", "ho")
    to_cassette(read_fixture(path)).save(ours := tmp_path / "ours.jsonl")
    with LLMReplay(ours):
        assert content(await ask("ho")) == "answer to ho"
    with pytest.raises(CassetteError, match="is a cassette"), LLMReplay(ours, "record"):
        pass
    assert len(Cassette.load(ours)) == 2


async def test_what_was_not_asked_is_counted(path):
    response = answer("ok", model=MODEL)
    write(path, {"key": LLMReplay.key(MODEL, HELLO), "model": MODEL, "prompt_preview": "hi", "response": response})
    with LLMReplay(path) as replay:
        assert replay.savings.calls == 0
        await ask()
        await ask()
    assert (replay.savings.calls, replay.savings.input_tokens, replay.savings.output_tokens) == (2, 52, 20)


# Streams


async def test_a_stream_is_recorded_whole_and_comes_in_pieces(path):
    async def streamed() -> list[Any]:
        return [chunk async for chunk in await ask(stream=True, stream_options={"include_usage": True})]

    with LLMReplay(path, "record"):
        live = await streamed()
    with LLMReplay(path):
        chunks = await streamed()
        whole = await litellm.acompletion(model=MODEL, messages=HELLO)
    assert [chunk.model_dump() for chunk in chunks] == [chunk.model_dump() for chunk in live]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["hello there", None]
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert content(rebuilt) == content(whole) == "hello there"
    assert rebuilt.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("arguments", [('{"path": "/a"}', '{"path": "/b"}'), ("{}", "7"), ("{}",)])
async def test_each_of_several_parallel_tool_calls_has_its_own_index(arguments):
    whole = with_calls(*arguments)
    chunks = [chunk async for chunk in _stream(whole)]
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO).choices[0]
    calls = rebuilt.message.tool_calls
    assert [(one.id, one.function.name, one.function.arguments) for one in calls] == [
        (f"call_{number}", "read_file", each) for number, each in enumerate(arguments)
    ]
    assert rebuilt.finish_reason == "tool_calls"


# Misses


async def test_a_call_that_no_entry_answers_names_the_model_the_prompt_the_file_and_the_way_out(path):
    await recorded(path, "hi")
    question = "x" * 300
    with LLMReplay(path), pytest.raises(MissingFixture) as caught:
        await ask([{"role": "user", "content": question}, {"role": "assistant", "content": "a later message"}])
    text = str(caught.value)
    assert "Nearest: 'hi'" in text
    assert f"model={MODEL!r}" in text
    assert "x" * 200 in text
    assert "x" * 201 not in text
    assert str(path) in text
    assert 'LLMReplay(path, mode="record")' in text


def test_a_missing_file_fails_before_the_body(path):
    with pytest.raises(MissingFixture, match="there is no such fixture"), LLMReplay(path):
        pytest.fail("the body ran")


@pytest.mark.parametrize(
    ("cause", "error", "status"),
    [
        ("rate_limit", "RateLimitError", 429),
        ("context_overflow", "ContextWindowExceededError", 400),
        ("byte_limit", "BadRequestError", 413),
    ],
)
async def test_an_entry_of_an_exception_raises_that_of_litellm(cause, error, status, path):
    write(path, {"key": LLMReplay.key(MODEL, HELLO), "kind": "exception", "cause": cause, "message": "slow down"})
    with LLMReplay(path):
        for _ in range(2):
            with pytest.raises(getattr(litellm, error), match="slow down") as caught:
                await ask()
            assert caught.value.status_code == status


# Recording again


async def test_recording_again_replaces_a_call_by_its_key_and_keeps_the_others(path):
    await recorded(path, "hi", "ho")
    with LLMReplay(path, "record"):
        await ask("hi", "another answer")
    with LLMReplay(path):
        assert content(await ask("hi")) == "another answer"
        assert content(await ask("ho")) == "answer to ho"
    assert len(read_fixture(path)) == 2


async def test_a_broken_fixture_is_not_overwritten_and_what_was_recorded_is_not_lost(path):
    replay = LLMReplay(path, "record")
    replay.install()
    await ask()
    replay.restore()
    write(path).write_text("<<<<<<< ours\n", "utf-8")
    with pytest.raises(CassetteError) as caught:
        replay.flush()
    assert (caught.value.line, path.read_text("utf-8")) == (1, "<<<<<<< ours\n")
    path.unlink()
    replay.flush()
    with LLMReplay(path):
        assert content(await ask()) == "hello there"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


async def test_new_episodes_are_asked_and_kept_and_the_others_answered(path):
    with LLMReplay(path, "new_episodes"):
        await ask("hi", "recorded")
        await litellm.aembedding(model="text-embedding-3-small", input=["a"], mock_response=[0.1])
    with LLMReplay(path, "new_episodes") as replay:
        assert content(await ask("hi", "live")) == "recorded"
        assert content(await ask("ho", "live")) == "live"
        assert (await litellm.aembedding(model="text-embedding-3-small", input=["a"])).data[0]["embedding"] == [0.1]
    assert len(replay.consumed_keys()) == 2
    with LLMReplay(path):
        assert [content(await ask(text)) for text in ("hi", "ho")] == ["recorded", "live"]


async def test_secrets_are_in_no_line_and_the_call_is_found_with_another_one(path):
    secret = f"my key is {KEY}"
    await recorded(path, secret)
    assert KEY not in path.read_text("utf-8")
    assert read_fixture(path)[0]["key"] == LLMReplay.key(MODEL, [{"role": "user", "content": "my key is [redacted]"}])
    with LLMReplay(path):
        assert "answer to" in content(await ask(secret))
        assert "answer to" in content(await ask(secret.replace("abc", "xyz")))
    raw = LLMReplay.key(MODEL, [{"role": "user", "content": secret}])
    write(path, {"key": raw, "model": MODEL, "prompt_preview": "", "response": answer("of Reyn")})
    with LLMReplay(path):
        assert content(await ask(secret)) == "of Reyn"
