"""What a replay has saved: model calls, tokens, money at the prices of the day of the recording, seconds."""

from decimal import Decimal

import pytest
from hypothesis import strategies as st

from agent_cache.recording import RecordedCall, Savings, cached_llm_call, intercept, record, replay
from tests.harness.cassettes import digest_of, model_calls, savings_of
from tests.harness.searches import searched

DAY = "2026-01-01T12:00:00Z"


@pytest.fixture
def priced():
    """Prices are installed."""
    pytest.importorskip("genai_prices")


def model_call(model="gpt-4o", input_tokens=1000, output_tokens=50, *, name="ask", **fields):
    tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    given = {"id": 1, "outcome": {"value": ""}, **tokens, **fields}
    return RecordedCall(kind="llm", name=name, digest=digest_of(name, {}).hex(), model=model, **given)


def cost(*calls, recorded_at=DAY):
    return savings_of(calls, recorded_at).cost


# Prices


@pytest.mark.usefixtures("priced")
def test_the_price_is_that_of_the_day_of_the_recording_and_less_for_tokens_from_the_prompt_cache():
    assert cost(model_call(cache_read_tokens=800)) == Decimal("0.0020")
    assert cost(model_call()) == Decimal("0.0030")
    call = model_call("o3", 1_000_000, 0)
    assert cost(call, recorded_at="2025-06-01T00:00:00Z") == 10
    assert cost(call, recorded_at="2025-06-30T00:00:00Z") == 2
    midnight = model_call("o3", 1_000_000, 0, started_ms=30 * 24 * 3600 * 1000)
    assert cost(midnight, recorded_at="2025-06-01T00:00:00Z") == 2


SAME = {
    "openai/gpt-4o": "gpt-4o",
    "azure/gpt-4o": "gpt-4o",
    "openrouter/openai/gpt-4o": "gpt-4o",
    "anthropic/claude-sonnet-4-20250514": "claude-sonnet-4-20250514",
    "vertex_ai/claude-sonnet-4@20250514": "claude-sonnet-4-20250514",
    "bedrock/converse/us.anthropic.claude-sonnet-4-20250514-v1:0": "anthropic.claude-sonnet-4-20250514-v1:0",
    "us.anthropic.claude-sonnet-4-20250514-v1:0": "anthropic.claude-sonnet-4-20250514-v1:0",
    "models/gemini-2.5-flash": "gemini-2.5-flash",
    "cohere_chat/command-r-plus": "command-r-plus",
    **dict.fromkeys(("groq/llama-3.3-70b-versatile", "text-embedding-3-small", "ft:gpt-4o-mini-2024-07-18:acme::id")),
}
LLAMA, NOVA = "llama-3.3-70b-versatile", "amazon.nova-pro-v1:0"
CONVERSE = "POST https://bedrock-runtime.us-east-1.amazonaws.com/model/x/converse"
FORM = [{"name": "file"}, {"name": "model", "text": "gpt-4o-transcribe"}]


@pytest.mark.usefixtures("priced")
@pytest.mark.parametrize(
    ("call", "same"),
    [
        # The answer names the version: that of May 2024 costs twice as much.
        (model_call("gpt-4o-2024-05-13", arguments={"model": "openai/gpt-4o"}), "gpt-4o-2024-05-13"),
        # The name of a deployment is nobody else's.
        (model_call("gpt-4o-2024-08-06", arguments={"model": "azure/our-deployment"}), "gpt-4o-2024-08-06"),
        *((model_call(model), same) for model, same in SAME.items()),
        # The answer does not say who ran it: what was asked does, or the host.
        (model_call(LLAMA, arguments={"model": f"groq/{LLAMA}"}), f"groq/{LLAMA}"),
        (model_call(NOVA, name=CONVERSE), f"bedrock/{NOVA}"),
        (model_call("gpt-4o", name="POST http://127.0.0.1/v1/chat/completions"), "gpt-4o"),
        (model_call(None, arguments={"multipart": FORM}), "gpt-4o-transcribe"),
        (model_call(LLAMA, name="POST https://api.groq.com/openai/v1/chat/completions"), f"groq/{LLAMA}"),
    ],
)
def test_a_call_has_the_price_of_its_model_by_names_with_prefixes_and_what_was_asked_and_where(call, same):
    assert cost(call)
    assert same is None or cost(call) == cost(model_call(same))


@pytest.mark.usefixtures("priced")
@pytest.mark.parametrize("model", [
    "large-1", "gpt-99", "claude-99", "", None, "/", "ollama/llama3", "ollama/mistral-nemo", "deepseek-r1:8b",
    "hosted_vllm/gpt-4o", "lm_studio/gpt-4o", "whisper-1", "openai/whisper-1",
])  # fmt: skip
def test_a_call_of_an_unknown_model_is_counted_and_never_free(model):
    """So is one of a model on a machine of one's own, or one that is not paid by tokens."""
    found = savings_of([model_call(model)], DAY)
    assert (found.calls, found.unpriced, found.cost) == (1, 1, None)
    both = savings_of([model_call(), model_call(model)], DAY)
    assert (both.calls, both.unpriced, both.cost) == (2, 1, Decimal("0.0030"))


@pytest.mark.usefixtures("priced")
def test_a_call_without_tokens_has_no_price_unless_the_server_has_refused_it():
    unknown = model_call(input_tokens=0, output_tokens=0)
    assert savings_of([unknown], DAY).unpriced == 1
    answered = model_call(input_tokens=0, output_tokens=0, outcome={"response": {"status": 200}})
    assert savings_of([answered], DAY).unpriced == 1
    refused = model_call(input_tokens=0, output_tokens=0, outcome={"response": {"status": 429}})
    counted = model_call(
        input_tokens=0, output_tokens=0, name="POST https://api.anthropic.com/v1/messages/count_tokens"
    )
    assert savings_of([refused], DAY) == savings_of([counted], DAY) == Savings(calls=1)


@pytest.mark.parametrize(
    ("savings", "text"),
    [
        (Savings(), "0 model calls"),
        (Savings(1, 120, 8, Decimal("0.00038")), "1 model call, 120+8 tokens, $0.0004"),
        (Savings(1, 1, 0, Decimal("0.0000025")), "1 model call, 1+0 tokens, less than $0.0001"),
        (Savings(3, 9, 9, Decimal("12.5"), 1), "3 model calls, 9+9 tokens, $12.5000, 1 of unknown price"),
        (Savings(2, 9, 9, None, 2), "2 model calls, 9+9 tokens, 2 of unknown price"),
        (Savings(2), "2 model calls, $0.0000"),
    ],
)
@pytest.mark.usefixtures("priced")
def test_savings_as_text(savings, text):
    assert str(savings) == text


# Which calls


@st.composite
def trees(draw):
    """Calls, each inside of an earlier one or of none, some of models, some of which know their tokens."""
    number = draw(st.integers(1, 8))
    parents = [draw(st.integers(-1, index - 1)) for index in range(number)]
    kinds = [draw(st.sampled_from(["tool", "llm", "llm with tokens"])) for _ in range(number)]
    return parents, kinds


@searched(30, 100, trees())
def test_the_tokens_of_each_model_call_are_counted_once(tree):
    """Above each model call, itself included, at most one counts; and each path to one has one that does."""
    parents, kinds = tree
    steps = [model_call(input_tokens=index + 1 if "with" in kind else 0, output_tokens=0, id=index + 1)
             for index, kind in enumerate(kinds)]  # fmt: skip
    chosen = [index for index, kind in enumerate(kinds) if kind != "tool"]
    counted = {call.id - 1 for call in model_calls(steps, chosen, parents.__getitem__)}

    def path(index):
        while index >= 0:
            yield index
            index = parents[index]

    for index in chosen:
        above = [at for at in path(index) if at in counted]
        assert len(above) <= 1
        if "with" in kinds[index]:
            assert above
            assert above == [at for at in path(index) if "with" in kinds[at]][-1:]
        elif not above:  # what it has called counts instead
            assert any(index in path(at) for at in counted)


@cached_llm_call(name="ask")
def ask(prompt: str):
    return {"model": "gpt-4o", "usage": {"prompt_tokens": 1000, "completion_tokens": 50}}


@intercept(name="agent", kind="tool")
def agent(prompt: str) -> str:
    ask(f"{prompt} once")
    ask(f"{prompt} again")
    return "done"


@intercept(name="wrapper", kind="llm")
def wrapper(prompt: str) -> str:
    return str(ask(prompt))


def saved(player):
    found = player.savings
    return found.calls, found.input_tokens, found.output_tokens


def test_a_call_that_is_answered_spares_the_model_calls_inside_of_it(path):
    with record(path):
        agent("plan")
        wrapper("write")
        ask("last")
    with replay(path) as player:
        agent("plan")
        assert saved(player) == (2, 2000, 100)
        wrapper("write")
        assert saved(player) == (3, 3000, 150)


def test_calls_that_run_again_save_nothing_and_those_inside_of_them_do(path):
    with record(path):
        agent("plan")
        ask("last")
    with record(path, mode="new_episodes", policy={"agent": "live"}) as recorder:
        agent("plan")
        ask("new")
    assert saved(recorder) == (2, 2000, 100)
