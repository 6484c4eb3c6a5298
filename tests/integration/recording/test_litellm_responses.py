"""Functions around the real litellm under `cached_llm_call`: a replay gives back the classes of litellm."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache.errors import CassetteError
from agent_cache.recording import cached_llm_call, record, replay
from tests.harness.page_examples import examples

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network for prices
litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pydantic")  # of litellm's own types

MODEL = "gpt-4o"
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"
CALLS = [{"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "1"}'}}]


def ask_for(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@cached_llm_call(name="litellm_completion")
async def complete(text: str, **options: Any) -> Any:
    return await litellm.acompletion(model=MODEL, messages=ask_for(text), **options)


@cached_llm_call(name="litellm_annotated")
async def annotated(text: str, **options: Any) -> litellm.ModelResponse:
    return await litellm.acompletion(model=MODEL, messages=ask_for(text), **options)


@cached_llm_call(name="litellm_plain")
def complete_now(text: str, **options: Any) -> Any:
    return litellm.completion(model=MODEL, messages=ask_for(text), **options)


@cached_llm_call(name="litellm_chunks")
async def chunks(text: str, **options: Any) -> AsyncIterator[Any]:
    async for chunk in await litellm.acompletion(model=MODEL, messages=ask_for(text), stream=True, **options):
        yield chunk


@cached_llm_call(name="litellm_embedding")
async def embed(text: str, **options: Any) -> Any:
    return await litellm.aembedding(model="text-embedding-3-small", input=[text], **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


async def answers() -> list[Any]:
    return [
        await complete("plain", mock_response="hello"),
        await annotated("annotated", mock_response="hello"),
        complete_now("now", mock_response="hello"),
        await complete("tools", mock_response="", mock_tool_calls=CALLS),
        await embed("vector", mock_response=[0.1, 0.2]),
        *[one async for one in chunks("stream", mock_response="hello there friend")],
        *[one async for one in await complete("as stream", mock_response="one two", stream=True)],
        *complete_now("stream now", mock_response="one two", stream=True),
    ]


async def test_what_a_replay_returns_is_what_litellm_returned(path, caplog, monkeypatch):
    async with record(path):
        live = await answers()
    assert "plain data" not in caplog.text
    monkeypatch.setattr(litellm, "acompletion", None)
    monkeypatch.setattr(litellm, "completion", None)
    monkeypatch.setattr(litellm, "aembedding", None)
    async with replay(path):
        replayed = await answers()
    assert [type(one) for one in replayed] == [type(one) for one in live]
    assert [one.model_dump() for one in replayed] == [one.model_dump() for one in live]
    assert replayed[0].choices[0].message.content == "hello"
    assert replayed[0].usage.total_tokens == live[0].usage.total_tokens > 0
    assert replayed[3].choices[0].message.tool_calls[0].function.name == "get_order"
    assert isinstance(replayed[5], litellm.ModelResponseStream)


async def test_replayed_chunks_are_joined_by_litellm(path):
    async with record(path):
        [_ async for _ in chunks("hi", mock_response="hello there friend")]
    async with replay(path):
        joined = litellm.stream_chunk_builder([one async for one in chunks("hi", mock_response="hello there friend")])
    assert joined.choices[0].message.content == "hello there friend"


async def test_what_comes_of_a_secret_is_a_response_without_it(path):
    async with record(path):
        await complete("hi", mock_response=f"your key is {SECRET}")
        async for _ in chunks("hi", mock_response=f"your key is {SECRET}"):
            pass
    assert SECRET not in path.read_text("utf-8")
    async with replay(path):
        replayed = await complete("hi", mock_response=f"your key is {SECRET}")
    assert isinstance(replayed, litellm.ModelResponse)
    assert replayed.choices[0].message.content.startswith("your key is ")


@pytest.mark.parametrize(
    ("field", "value"), [("made", "os:system"), ("made", 5), ("value", 5)], ids=["another class", "no text", "no dict"]
)
async def test_a_file_that_was_edited_makes_nothing_else(path, field, value):
    async with record(path):
        await complete("hi", mock_response="hello")
    header, line, *rest = path.read_text("utf-8").splitlines()
    call = json.loads(line)
    call["outcome"][field] = value
    path.write_text("\n".join([header, json.dumps(call), *rest, ""]), "utf-8")
    with pytest.raises(CassetteError):
        async with replay(path):
            await complete("hi", mock_response="hello")


def test_the_example_of_the_page_prints_what_stands_below_it(capsys):
    [(code, printed)] = examples("how-to/use-litellm.md", "litellm")
    exec(compile(code, "use-litellm.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed
