"""Tokens of model calls that were recorded as requests, and what a replay of them saves."""

import pytest

from agent_cache.recording import cached_llm_call, record, replay
from tests.harness.model_api import model_api

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")


@pytest.fixture
def api():
    with model_api() as api:
        yield api


def chat(api, prompt="hi"):
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="x") as client:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])


def message(api):
    with anthropic.Anthropic(base_url=api.url, api_key="x") as client:
        messages = [{"role": "user", "content": "hi"}]
        with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
            return list(stream)


@pytest.mark.parametrize("ask", [chat, message])
def test_tokens_of_a_request_are_recorded_and_saved_by_its_replay(ask, api, path):
    with record(path, http=True) as recorder:
        ask(api)
    [call] = recorder.steps
    assert (call.kind, call.model, call.input_tokens, call.output_tokens) == ("llm", "large-1", 3, 2)
    with replay(path) as player:
        ask(api)
    found = player.savings
    assert (found.calls, found.input_tokens, found.output_tokens, found.cost, found.unpriced) == (1, 3, 2, None, 1)
    assert len(api.requests) == 1


def test_a_refused_request_costs_nothing(api, path):
    def ask():
        client = openai.OpenAI(base_url=f"{api.url}/v1", api_key="x", max_retries=0)
        with client, pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="limited", messages=[])

    with record(path, http=True):
        ask()
    with replay(path) as player:
        ask()
    assert (player.savings.calls, player.savings.cost, player.savings.unpriced) == (1, 0, 0)


def test_a_recorded_function_has_the_tokens_of_all_requests_that_it_makes(api, path):
    @cached_llm_call(name="ask")
    def ask() -> str:
        return f"{chat(api).model} {chat(api).model}"

    with record(path, http=True) as recorder:
        ask()
    [call] = recorder.steps
    assert (call.name, call.model, call.input_tokens, call.output_tokens) == ("ask", "large-1", 6, 4)
