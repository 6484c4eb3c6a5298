"""`Cassette`: to look at, to change and to save; ours and agentcassette's."""

import copy
import json
import pickle

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import (
    Cassette,
    CassetteError,
    DivergenceError,
    RecordedCall,
    RecordedError,
    Redaction,
    ReplayExhausted,
    intercept,
    record,
    replay,
)
from tests.harness.cassettes import digest_of

LEGACY = {
    "version": 1,
    "recorded_at": "2026-06-30T12:00:00Z",
    "model": "claude-x",
    "duration_ms": 5.5,
    "steps": [
        {"index": 0, "type": "llm", "name": "ask", "arguments": {"args": ["hi"], "kwargs": {"loud": True}},
         "result": {"text": "HI"}, "input_tokens": 4, "output_tokens": 2, "duration_ms": 1.5},
        {"index": 1, "type": "call", "name": "add", "arguments": {"args": [1, 2], "kwargs": {}}, "result": 3,
         "input_tokens": 1, "output_tokens": 1, "duration_ms": 0.1},
        {"index": 2, "name": "add", "arguments": {"args": [], "kwargs": {"b": 2, "a": 1}}, "result": 33},
    ],
}  # fmt: skip


@intercept(kind="llm")
async def ask(prompt: str, loud: bool = False) -> dict:
    raise AssertionError("the real function ran")


@intercept
def add(a: int, b: int) -> int:
    raise AssertionError("the real function ran")


@pytest.fixture
def legacy(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps(LEGACY, indent=2))
    return path


@pytest.mark.parametrize("is_converted", [False, True])
async def test_a_cassette_of_agentcassette_loads_and_is_replayed_in_any_spelling_and_order(is_converted, legacy):
    cassette = Cassette.load(legacy)
    assert (cassette.num_steps, cassette.model, cassette.recorded_at) == (3, "claude-x", LEGACY["recorded_at"])
    assert (cassette.total_input_tokens, cassette.total_output_tokens, cassette.total_tokens) == (5, 3, 8)
    assert cassette.duration_ms == 5.5
    assert [call.kind for call in cassette] == ["llm", "call", "call"]
    if is_converted:
        cassette.save(legacy)
        assert legacy.read_bytes().startswith(b'{"agent_cache_cassette":2')
    with replay(legacy) as player:
        assert [add(b=2, a=1), add(1, 2)] == [3, 33]
        assert await ask("hi", True) == {"text": "HI"}
    assert player.remaining == 0
    with replay(legacy, strict=True):
        assert await ask(loud=True, prompt="hi") == {"text": "HI"}
        assert [add(1, 2), add(1, 2)] == [3, 33]
    with pytest.raises(DivergenceError), replay(legacy):
        add(1, 3)
    with pytest.raises((ReplayExhausted, DivergenceError)), replay(legacy):
        for _ in range(3):
            add(1, 2)


@pytest.mark.parametrize(
    "error",
    [
        CassetteError("is broken", "run.jsonl", 3),
        DivergenceError(3, {"name": "a"}, None, "was not made", "run.jsonl"),
        ReplayExhausted(-1, None, {"name": "a"}),
        RecordedError("shop:Closed", "until Monday"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_being_pickled_and_copied(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (again.args, str(again), vars(again)) == (error.args, str(error), vars(error))


def test_a_cassette_of_ones_own_calls_can_be_replayed(path):
    name = add.__agent_cache_recorded__.name
    arguments = {"a": 1, "b": 2}
    call = RecordedCall(
        id=1, kind="call", name=name, arguments=arguments, digest=digest_of(name, arguments).hex(), outcome={"value": 9}
    )
    Cassette([call]).save(path)
    with replay(path, strict=True):
        assert add(1, 2) == 9


def test_a_hook_of_redaction_runs_once_over_what_it_has_made_and_no_name_of_a_field_is_that_of_a_part(path):
    def shout(data):
        return {name: f"{value}!" for name, value in data.items()} if isinstance(data, dict) else data

    say = intercept(lambda text, name: {"value": name}, name="say")
    rules = Redaction(["name", "value", "type", "args"], hook=shout)
    with record(path, redact=rules):
        say("a", "Ann")
    [call] = Cassette.load(path)
    assert (call.name, call.arguments) == ("say", {"text": "a!", "name": "[redacted]!"})
    assert call.outcome == {"value": {"value": "[redacted]!"}}
    with replay(path, redact=rules):
        assert say("a", "Eve") == {"value": "[redacted]!"}
    Cassette.load(path).redact("other").save(path)  # which it still needs
    with pytest.raises(ConfigurationError, match="hook"), replay(path):
        pass


@pytest.mark.parametrize(("hook", "runs"), [(lambda data: {**data}, 1), (lambda data: data[0], 0)])
@pytest.mark.parametrize("what", ["value", "error", "stream"])
def test_a_hook_of_redaction_that_fails_is_an_error_of_the_end_and_no_call_is_made_again(what, hook, runs, path):
    """An agent would make a call once more that has failed."""
    made = []

    def pay(amount):
        made.append(amount)
        if what == "error":
            raise LookupError("gone")
        return iter([amount]) if what == "stream" else [amount]

    pay = intercept(pay, name="pay", kind="write")
    with pytest.raises(CassetteError, match=r"pay: the redaction hook,.* raised") as caught, record(path, redact=hook):
        try:
            assert list(pay(1)) == [1]
        except (LookupError, CassetteError):
            pass
    assert isinstance(caught.value.__cause__, TypeError | KeyError)
    assert (len(made), len(Cassette.load(path))) == (runs, runs)
    with pytest.raises(CassetteError, match="redaction of a value nested so deeply raised"), record(path):
        pay(json.loads('{"a":' * 400 + '{"password": "hunter2"}' + "}" * 400))
