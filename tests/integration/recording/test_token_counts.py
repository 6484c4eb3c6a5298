"""`cached_llm_call`: served from the recording, with the model and the tokens that it finds.

In what each provider answers, whole or as a stream, `input_tokens` are all input.
"""

from types import SimpleNamespace as Some

import pytest
from hypothesis import strategies as st

from agent_cache import ConfigurationError
from agent_cache.recording import Cassette, DivergenceError, cached_llm_call, record, replay
from agent_cache.recording.prices import Tokens, Usage
from tests.harness.searches import searched

# Of 1000 input tokens 800 were read from the prompt cache and 100 written to it. The output has 50 tokens.
CACHED = Tokens(1000, 50, 800, 100)
READ = Tokens(1000, 50, 800)
PLAIN = Tokens(1000, 50)

ANSWERS = {
    "openai chat": (READ, {
        "model": "m",
        "usage": {
            "prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050,
            "prompt_tokens_details": {"cached_tokens": 800, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 20},
        },
    }),
    "openai responses": (READ, {
        "model": "m",
        "usage": {
            "input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050,
            "input_tokens_details": {"cached_tokens": 800}, "output_tokens_details": {"reasoning_tokens": 20},
        },
    }),
    "xai, whose reasoning is in the total only": (PLAIN, {
        "model": "m",
        "usage": {
            "prompt_tokens": 1000, "completion_tokens": 30, "total_tokens": 1050,
            "completion_tokens_details": {"reasoning_tokens": 20},
        },
    }),
    "deepseek": (READ, {
        "model": "m",
        "usage": {
            "prompt_tokens": 1000, "completion_tokens": 50, "prompt_cache_hit_tokens": 800,
            "prompt_cache_miss_tokens": 200,
        },
    }),
    "anthropic": (CACHED, {
        "model": "m",
        "usage": {
            "input_tokens": 100, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 800,
            "output_tokens": 50,
        },
    }),
    "gemini": (READ, {
        "modelVersion": "m",
        "usageMetadata": {
            "promptTokenCount": 900, "toolUsePromptTokenCount": 100, "cachedContentTokenCount": 800,
            "candidatesTokenCount": 20, "thoughtsTokenCount": 30, "totalTokenCount": 1050,
        },
    }),
    "gemini python": (READ, {
        "model_version": "m",
        "usage_metadata": {
            "prompt_token_count": 1000, "cached_content_token_count": 800, "candidates_token_count": 50,
        },
    }),
    "bedrock converse": (CACHED, {
        "model": "m",
        "usage": {
            "inputTokens": 100, "outputTokens": 50, "totalTokens": 1050, "cacheReadInputTokens": 800,
            "cacheWriteInputTokens": 100,
        },
    }),
    "bedrock converse, written for an hour": (Tokens(1000, 50, 800, 100, 60), {
        "model": "m",
        "usage": {
            "inputTokens": 100, "outputTokens": 50, "cacheReadInputTokens": 800, "cacheWriteInputTokens": 100,
            "cacheDetails": [{"ttl": "1h", "inputTokens": 60}, {"ttl": "5m", "inputTokens": 40}],
        },
    }),
    "cohere": (PLAIN, {
        "model": "m",
        "usage": {
            "billed_units": {"input_tokens": 1000.0, "output_tokens": 50.0},
            "tokens": {"input_tokens": 1400.0, "output_tokens": 52.0},
        },
    }),
    "cohere v1": (PLAIN, {
        "model": "m",
        "meta": {"api_version": {"version": "1"}, "billed_units": {"input_tokens": 1000, "output_tokens": 50}},
    }),
    "ollama": (PLAIN, {"model": "m", "prompt_eval_count": 1000, "eval_count": 50, "eval_duration": 7}),
    "litellm of anthropic": (CACHED, {
        "model": "m",
        "usage": {
            "prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050,
            "prompt_tokens_details": {"cached_tokens": 800, "cache_creation_tokens": 100},
            "cache_creation_input_tokens": 100, "cache_read_input_tokens": 800,
        },
    }),
    "langchain": (CACHED, {
        "usage_metadata": {
            "input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050,
            "input_token_details": {"cache_read": 800, "cache_creation": 100},
        },
        "response_metadata": {
            "model_name": "m",
            "usage": {
                "input_tokens": 100, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 800,
                "output_tokens": 50,
            },
        },
    }),
    "an array of chunks": (PLAIN, [
        {"modelVersion": "m", "usageMetadata": {"promptTokenCount": 1000}},
        {"modelVersion": "m", "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 50}},
    ]),
}  # fmt: skip

STREAMS = {
    "openai chat": (READ, [
        {"model": "m", "choices": [{"delta": {"content": "a"}}], "usage": None},
        {"model": "m", "choices": [], "usage": ANSWERS["openai chat"][1]["usage"]},
    ]),
    "anthropic": (CACHED, [
        {"type": "message_start", "message": {
            "model": "m",
            "usage": {
                "input_tokens": 100, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 800,
                "output_tokens": 1,
            },
        }},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50}},
    ]),
    "openai responses": (READ, [
        {"type": "response.created", "response": {"model": "m", "usage": None}},
        {"type": "response.completed", "response": ANSWERS["openai responses"][1]},
    ]),
    "bedrock converse, as boto3 gives it": (CACHED, [
        {"messageStart": {"role": "assistant"}},
        {"metadata": {"usage": ANSWERS["bedrock converse"][1]["usage"], "metrics": {}, "model": "m"}},
    ]),
    "cohere v1": (PLAIN, [
        {"event_type": "text-generation", "text": "a"},
        {"event_type": "stream-end", "response": ANSWERS["cohere v1"][1]},
    ]),
}  # fmt: skip


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


@pytest.mark.parametrize(
    ("shape", "is_object"),
    [
        (shape, is_object)
        for shape, (_, answer) in ANSWERS.items()
        for is_object in ([False] if isinstance(answer, list) else [False, True])  # an array is JSON
    ],
)
def test_all_input_is_counted_and_what_of_it_was_cached(shape, is_object, path):
    tokens, answer = ANSWERS[shape]

    @cached_llm_call()
    def ask(prompt: str):
        return as_object(answer) if is_object else answer

    with record(path) as recorder:
        ask("hi")
    [call] = recorder.steps
    assert (call.model, tokens_of(call)) == ("m", tokens)
    [call] = Cassette.load(path)
    assert tokens_of(call) == tokens


@pytest.mark.parametrize("shape", STREAMS)
@pytest.mark.parametrize("form", [lambda answer: answer, as_object], ids=["dict", "object"])
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
    deepseek = ChatCompletion.construct(**{**whole, "usage": ANSWERS["deepseek"][1]["usage"]})
    assert counted(deepseek) == READ


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
    found = counted(litellm.ModelResponse(model="m", usage=litellm.Usage(**usage)))
    assert found == CACHED


# Requests inside of a call


def test_the_requests_of_a_call_are_summed_and_its_own_answer_is_not_counted_again():
    call = Usage()
    for _ in range(2):
        request = Usage()
        request.add(ANSWERS["anthropic"][1])
        call.join(request)
    assert (call.model, call.tokens) == ("m", Tokens(2000, 100, 1600, 200))
    call.add(ANSWERS["anthropic"][1])
    assert call.tokens == Tokens(2000, 100, 1600, 200)


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
