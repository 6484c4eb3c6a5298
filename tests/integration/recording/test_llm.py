"""`cached_llm_call`: served from the recording, tokens and model found."""

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import DivergenceError, cached_llm_call, record, replay

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


def test_outside_of_a_recording_it_just_runs():
    runs = []

    @cached_llm_call()
    def ask(prompt: str) -> str:
        runs.append(prompt)
        return prompt

    assert [ask("a"), ask("a")] == runs == ["a", "a"]


@pytest.mark.parametrize("option", ["extract_model", "extract_tokens", "cache_key"])
@pytest.mark.parametrize("given", [3, "x"])
def test_what_is_no_function_is_refused_at_once(option, given):
    with pytest.raises(ConfigurationError, match=option):
        cached_llm_call(**{option: given})
    with pytest.raises(ConfigurationError):
        cached_llm_call(name="")
