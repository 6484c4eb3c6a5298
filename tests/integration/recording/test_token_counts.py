"""`cached_llm_call`: served from the recording, with the model and the tokens that it finds.

In what each provider answers, whole or as a stream, `input_tokens` are all input.
"""

import json
from pathlib import Path
from types import SimpleNamespace as Some

import pytest
from hypothesis import strategies as st

from agent_cache import ConfigurationError
from agent_cache.recording import Cassette, DivergenceError, cached_llm_call, record, replay
from tests.harness.cassettes import Tokens, Usage
from tests.harness.searches import searched

# Of 1000 input tokens 800 were read from the prompt cache and 100 written to it. The output has 50 tokens.
CACHED = Tokens(1000, 50, 800, 100)
READ = Tokens(1000, 50, 800)

KNOWN = json.loads(Path(__file__).with_name("token_counts.json").read_text("utf-8"))
ANSWERS, STREAMS = (
    {name: (Tokens(*tokens), answer) for name, (tokens, answer) in KNOWN[kind].items()}
    for kind in ("answers", "streams")
)


def as_object(data):
    if isinstance(data, dict):
        return Some(**{name: as_object(value) for name, value in data.items()})
    return [as_object(one) for one in data] if isinstance(data, list) else data


def tokens_of(call):
    return Tokens(
        call.input_tokens, call.output_tokens, call.cache_read_tokens, call.cache_write_tokens,
        call.cache_write_1h_tokens,
    )  # fmt: skip


def counted(*answers):
    usage = Usage()
    for one in answers:
        usage.add(one)
    return usage.tokens


@pytest.mark.parametrize("form", [lambda answer: answer, as_object], ids=["dict", "object"])
@pytest.mark.parametrize("shape", ANSWERS)
def test_all_input_is_counted_and_what_of_it_was_cached(shape, form, path):
    tokens, answer = ANSWERS[shape]
    answer = answer if isinstance(answer, list) else form(answer)  # an array is JSON

    @cached_llm_call()
    def ask(prompt: str):
        return answer

    with record(path) as recorder:
        ask("hi")
    for call in (recorder.steps[0], Cassette.load(path)[0]):
        assert (call.model, tokens_of(call)) == ("m", tokens)
    assert counted(iter([ANSWERS[shape][1]])) == tokens  # as the body of a request


@pytest.mark.parametrize("form", [lambda answer: answer, as_object], ids=["dict", "object"])
@pytest.mark.parametrize("shape", STREAMS)
def test_the_counts_of_a_stream_are_those_of_all_its_chunks_together(shape, form, path):
    tokens, chunks = STREAMS[shape]

    @cached_llm_call()
    def ask(prompt: str):
        yield from map(form, chunks)

    with record(path) as recorder:
        list(ask("hi"))
    [call] = recorder.steps
    assert (call.model, tokens_of(call)) == ("m", tokens)


# `cached_llm_call`

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
OPENAI = {"id": "x", "model": "gpt-x", "usage": USAGE}


async def test_the_model_that_was_asked_for_stands_where_the_answer_names_none(path):
    @cached_llm_call()
    async def ask(prompt: str, model: str) -> str:
        return "text"

    with record(path) as recorder:
        await ask("hi", model="claude-y")
    assert (recorder.steps[0].model, recorder.steps[0].input_tokens) == ("claude-y", 0)


def test_extractors_of_the_users_own_come_first(path):
    @cached_llm_call(
        extract_model=lambda call, answer: call["kwargs"]["m"],
        extract_tokens=lambda call, answer: (len(call["args"]), 9),
    )
    def ask(prompt: str, m: str) -> dict:
        return OPENAI

    with record(path) as recorder:
        ask("hi", m="mine")
    [call] = recorder.steps
    assert (call.model, call.input_tokens, call.output_tokens, call.cache_read_tokens) == ("mine", 1, 9, 0)


def test_extractors_and_keys_that_raise_are_a_warning_and_the_default(path, caplog):
    def broken(*_, **__):
        raise RuntimeError("oops")

    @cached_llm_call(extract_model=broken, extract_tokens=broken, cache_key=broken)
    def ask(prompt: str) -> dict:
        return OPENAI

    with record(path) as recorder:
        assert ask("hi") == OPENAI
    [call] = recorder.steps
    assert (call.model, call.input_tokens, call.key) == ("gpt-x", 11, None)
    for what in ("extract_model", "extract_tokens", "cache_key"):
        assert any(what in message for message in caplog.messages)
    with replay(path):
        assert ask("hi") == OPENAI


def test_the_cache_key_alone_is_the_identity(path):
    runs = []

    @cached_llm_call(cache_key=lambda prompt, **_: prompt.lower())
    def ask(prompt: str, temperature: float = 0.0) -> str:
        runs.append(prompt)
        return prompt

    with record(path):
        ask("Hi")
    with replay(path, strict=True):
        assert ask("HI", temperature=0.7) == "Hi"
    assert runs == ["Hi"]
    with pytest.raises(DivergenceError), replay(path):
        ask("other")


@pytest.mark.parametrize("option", ["extract_model", "extract_tokens", "cache_key"])
@pytest.mark.parametrize("given", [3, "x"])
def test_what_is_no_function_is_refused_at_once(option, given):
    with pytest.raises(ConfigurationError, match=option):
        cached_llm_call(**{option: given})
    with pytest.raises(ConfigurationError):
        cached_llm_call(name="")


# What real clients give


def test_real_answers_of_openai():
    pytest.importorskip("openai")
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import ResponseUsage

    usage = ANSWERS["openai chat"][1]["usage"]
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [], "usage": usage}
    assert counted(ChatCompletion.model_validate(whole)) == READ
    assert counted(ChatCompletionChunk.model_validate({**whole, "object": "chat.completion.chunk"})) == READ
    details = {"input_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 100}}
    found = ResponseUsage.model_validate({**ANSWERS["openai responses"][1]["usage"], **details})
    assert counted(Some(usage=found)) == CACHED
    # DeepSeek's counts are no fields of the type; the client keeps them all the same.
    assert counted(ChatCompletion.construct(**{**whole, "usage": ANSWERS["deepseek"][1]["usage"]})) == READ


def test_real_answers_of_anthropic():
    pytest.importorskip("anthropic")
    from anthropic.types import Message, RawMessageDeltaEvent, RawMessageStartEvent

    usage = ANSWERS["anthropic"][1]["usage"]
    message = Message.model_validate({
        "id": "x", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": usage,
    })  # fmt: skip
    assert counted(message) == CACHED
    message.usage.output_tokens = 1
    start = RawMessageStartEvent(type="message_start", message=message)
    end = RawMessageDeltaEvent.model_validate({
        "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 50},
    })  # fmt: skip
    assert counted(start, end) == CACHED


@pytest.mark.filterwarnings("ignore")  # of its own dependencies
def test_real_answers_of_litellm(monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network at import
    litellm = pytest.importorskip("litellm")
    usage = ANSWERS["litellm of anthropic"][1]["usage"]
    assert counted(litellm.ModelResponse(model="m", usage=litellm.Usage(**usage))) == CACHED


# Any report


counts = st.integers(0, 10**6) | st.none() | st.just(-1) | st.floats(allow_nan=True) | st.text(max_size=2)


@searched(30, 100, st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_providers_that_count_apart_and_those_that_count_together_are_told_the_same(fresh, read, written, output):
    tokens = Tokens(fresh + read + written, output, read, written)
    apart = {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    details = {"cached_tokens": read, "cache_write_tokens": written}
    assert counted({"usage": {"input_tokens": fresh, "output_tokens": output, **apart}}) == tokens
    for name, output_name in (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")):
        usage = {name: tokens.input, output_name: output, f"{name}_details": details}
        assert counted({"usage": usage}) == tokens
    bedrock = {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}
    assert counted({"usage": {"inputTokens": fresh, "outputTokens": output, **bedrock}}) == tokens
