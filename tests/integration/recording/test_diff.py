"""Two recordings side by side: what is new, gone, changed, moved."""

import pytest

from agent_cache.recording import Cassette, cached_llm_call, diff_cassettes, intercept, record


@intercept(name="get")
def get(key: str) -> str:
    return key


@intercept(name="put")
def put(key: str) -> None: ...


@cached_llm_call(name="ask")
def ask(prompt: str) -> dict:
    return {"usage": {"input_tokens": len(prompt), "output_tokens": 2 * len(prompt)}}


def run(path, *steps):
    with record(path):
        for function, argument in steps:
            function(argument)
    return Cassette.load(path)


BASE = [(get, "a"), (get, "b"), (put, "c"), *((get, key) for key in "defghij")]


def test_the_same_run_twice_is_identical(tmp_path):
    diff = diff_cassettes(run(tmp_path / "a", *BASE), run(tmp_path / "b", *BASE))
    assert diff.identical
    assert (diff.token_delta, diff.step_delta, diff.changed_calls, diff.new_calls) == (0, 0, [], [])


@pytest.mark.parametrize("at", [0, 3, 10])
def test_an_inserted_call_is_one_difference(at, tmp_path):
    other = [*BASE[:at], (put, "new"), *BASE[at:]]
    diff = diff_cassettes(run(tmp_path / "a", *BASE), run(tmp_path / "b", *other))
    assert (diff.new_calls, diff.new_ids, diff.changed_calls, diff.moved_calls) == (["put"], [at + 1], [], [])
    assert (diff.step_delta, diff.identical) == (1, False)
    back = diff_cassettes(tmp_path / "b", tmp_path / "a")
    assert (back.dropped_calls, back.dropped_ids, back.step_delta) == (["put"], [at + 1], -1)


def test_a_call_with_other_arguments_is_changed(tmp_path):
    other = [*BASE[:4], (get, "E"), *BASE[5:]]
    diff = diff_cassettes(run(tmp_path / "a", *BASE), run(tmp_path / "b", *other))
    [change] = diff.changed_calls
    assert (change["id"], change["id_b"], change["name"]) == (5, 5, "get")
    assert change["changed"] == ["arguments", "outcome"]
    assert (change["a"].arguments, change["b"].arguments) == ({"key": "e"}, {"key": "E"})
    assert (diff.new_calls, diff.dropped_calls) == ([], [])


def test_what_moved_is_neither_new_nor_dropped(tmp_path):
    other = [*BASE[1:], BASE[0]]
    diff = diff_cassettes(run(tmp_path / "a", *BASE), run(tmp_path / "b", *other))
    assert diff.moved_calls == [{"id": 1, "id_b": 10, "name": "get"}]
    assert (diff.new_calls, diff.dropped_calls, diff.changed_calls, diff.identical) == ([], [], [], False)


def test_tokens_are_compared(tmp_path):
    diff = diff_cassettes(run(tmp_path / "a", (ask, "abc")), run(tmp_path / "b", (ask, "abc"), (ask, "de")))
    assert (diff.input_token_delta, diff.output_token_delta, diff.token_delta) == (2, 4, 6)
