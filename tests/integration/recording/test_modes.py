"""The modes, as vcrpy has them."""

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import Cassette, CassetteNotFound, DivergenceError, intercept, record, replay


class Source:
    version = 1


@intercept(name="ask")
def ask(question: str) -> str:
    return f"{question} v{Source.version}"


@intercept(name="outer")
def outer(question: str) -> str:
    return ask(question) + "!"


@pytest.fixture(autouse=True)
def version():
    Source.version = 1


def questions(path) -> list[tuple[str, str]]:
    return [(call.arguments["question"], call.outcome["value"]) for call in Cassette.load(path)]


def recorded(path, *what: str) -> None:
    with record(path):
        for one in what:
            ask(one)
    Source.version = 2


def test_none_wants_a_file(path):
    with pytest.raises(CassetteNotFound, match="record it first"), record(path, mode="none"):
        pass
    assert not path.parent.exists()


def test_once_records_the_first_time_only(path):
    with record(path, mode="once"):
        assert ask("a") == "a v1"
    Source.version = 2
    with record(path, mode="once"):
        assert ask("a") == "a v1"
    with pytest.raises(DivergenceError), record(path, mode="once"):
        ask("b")


def test_new_episodes_replays_what_is_there_and_records_what_is_not(path):
    recorded(path, "a", "b")
    with record(path, mode="new_episodes"):
        assert [ask("a"), ask("c"), ask("b")] == ["a v1", "c v2", "b v1"]
    assert questions(path) == [("a", "a v1"), ("c", "c v2"), ("b", "b v1")]
    with replay(path, strict=True):
        assert [ask("a"), ask("c"), ask("b")] == ["a v1", "c v2", "b v1"]


def test_new_episodes_keeps_what_is_not_called_again(path):
    recorded(path, "a", "b")
    with record(path, mode="new_episodes"):
        ask("c")
    assert sorted(questions(path)) == [("a", "a v1"), ("b", "b v1"), ("c", "c v2")]


def test_new_episodes_keeps_what_a_replayed_call_encloses(path):
    with record(path):
        outer("a")
    Source.version = 2
    with record(path, mode="new_episodes"):
        assert [outer("a"), ask("z")] == ["a v1!", "z v2"]
    assert [(call.name, call.parent is None) for call in Cassette.load(path)] == [
        ("outer", True), ("ask", False), ("ask", True)
    ]  # fmt: skip
    with replay(path, strict=True, policy={"outer": "live"}):
        assert [outer("a"), ask("z")] == ["a v1!", "z v2"]


def test_all_runs_everything_and_keeps_what_is_not_called(path):
    recorded(path, "a", "b")
    with record(path, mode="all"):
        assert [ask("a"), ask("c")] == ["a v2", "c v2"]
    assert sorted(questions(path)) == [("a", "a v2"), ("b", "b v1"), ("c", "c v2")]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (record, {"mode": "onse"}),
        (record, {"redact": "token"}),
        (record, {"redact": 3}),
        (record, {"redact": [3]}),
        (record, {"policy": {"ask": "maybe"}}),
        (replay, {"policy": {"ask": "stubb"}}),
        (replay, {"policy": "stub"}),
        (replay, {"strict": "yes"}),
        (replay, {"redact": 5}),
    ],
)
def test_misspelt_options_are_refused_at_once(function, options, path):
    with pytest.raises(ConfigurationError):
        function(path, **options)


@pytest.mark.parametrize("function", [record, replay])
@pytest.mark.parametrize("given", ["", None, 3, "nul\0l.jsonl"])
def test_a_path_must_be_one(function, given):
    with pytest.raises(ConfigurationError):
        function(given)
