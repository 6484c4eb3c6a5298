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


def run(path, steps):
    with record(path):
        for function, argument in steps:
            function(argument)
    return Cassette.load(path)


BASE = [(get, "a"), (get, "b"), (put, "c"), *((get, key) for key in "defghij")]
INSERTED = {at: [*BASE[: at - 1], (put, "new"), *BASE[at - 1 :]] for at in (1, 4, 11)}
NOTHING = {
    name: [] for name in ("new_calls", "new_ids", "dropped_calls", "dropped_ids", "changed_calls", "moved_calls")
}
NUMBERS = dict.fromkeys(("step_delta", "token_delta", "input_token_delta", "output_token_delta"), 0)


@pytest.mark.parametrize(
    ("was", "now", "found"),
    [
        (BASE, BASE, {}),
        *((BASE, one, {"new_calls": ["put"], "new_ids": [at], "step_delta": 1}) for at, one in INSERTED.items()),
        (INSERTED[4], BASE, {"dropped_calls": ["put"], "dropped_ids": [4], "step_delta": -1}),
        (BASE, [*BASE[1:], BASE[0]], {"moved_calls": [{"id": 1, "id_b": 10, "name": "get"}]}),
        (
            [(ask, "abc")], [(ask, "abc"), (ask, "de")],
            {"new_calls": ["ask"], "new_ids": [2], "step_delta": 1}
            | {"token_delta": 6, "input_token_delta": 2, "output_token_delta": 4},
        ),
    ],
)  # fmt: skip
def test_each_difference_is_one_and_nothing_else(was, now, found, tmp_path):
    run(tmp_path / "a", was)
    diff = diff_cassettes(tmp_path / "a", run(tmp_path / "b", now))
    assert {name: getattr(diff, name) for name in NOTHING | NUMBERS} == NOTHING | NUMBERS | found
    assert diff.identical is not bool(found)


def test_a_call_with_other_arguments_is_changed(tmp_path):
    diff = diff_cassettes(run(tmp_path / "a", BASE), run(tmp_path / "b", [*BASE[:4], (get, "E"), *BASE[5:]]))
    [change] = diff.changed_calls
    assert (change["id"], change["id_b"], change["name"]) == (5, 5, "get")
    assert change["changed"] == ["arguments", "outcome"]
    assert (change["a"].arguments, change["b"].arguments) == ({"key": "e"}, {"key": "E"})
    assert (diff.new_calls, diff.dropped_calls) == ([], [])
