"""The modes, as vcrpy has them."""

from pathlib import Path

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


def a_recording(path: Path, *questions: str) -> None:
    """What is asked later has other answers."""
    with record(path):
        for one in questions:
            ask(one)
    Source.version = 2


def answers(path: Path) -> list[str]:
    return [call.outcome["value"] for call in Cassette.load(path)]


def test_none_wants_a_file(path):
    with pytest.raises(CassetteNotFound, match="record it first"), record(path, mode="none"):
        pass
    assert not path.parent.exists()


def test_once_records_the_first_time_only(path):
    for version in (1, 2):
        Source.version = version
        with record(path, mode="once"):
            assert ask("a") == "a v1"
    with pytest.raises(DivergenceError), record(path, mode="once"):
        ask("b")


@pytest.mark.parametrize(
    ("mode", "asked", "heard", "kept"),
    [
        ("new_episodes", "acb", ["a v1", "c v2", "b v1"], ["a v1", "c v2", "b v1"]),
        ("new_episodes", "c", ["c v2"], ["c v2", "a v1", "b v1"]),
        ("all", "ac", ["a v2", "c v2"], ["a v2", "c v2", "b v1"]),
        ("rewrite", "c", ["c v2"], ["c v2"]),
    ],
)
def test_what_a_mode_runs_and_what_it_keeps(mode, asked, heard, kept, path):
    a_recording(path, "a", "b")
    with record(path, mode=mode):
        assert [ask(one) for one in asked] == heard
    assert answers(path) == kept
    with replay(path, strict=True):
        assert [ask(one[0]) for one in kept] == kept


def test_new_episodes_keeps_what_a_replayed_call_encloses(path):
    with record(path):
        outer("a")
    Source.version = 2
    with record(path, mode="new_episodes"):
        assert [outer("a"), ask("z")] == ["a v1!", "z v2"]
    assert [(call.name, call.parent) for call in Cassette.load(path)] == [("outer", None), ("ask", 1), ("ask", None)]
    with replay(path, strict=True, policy={"outer": "live"}):
        assert [outer("a"), ask("z")] == ["a v1!", "z v2"]


@pytest.mark.parametrize(
    ("function", "given", "options"),
    [
        (record, "a.jsonl", {"mode": "onse"}),
        *((record, "a.jsonl", {"redact": wrong}) for wrong in ("token", 3, [3])),
        (record, "a.jsonl", {"policy": {"ask": "maybe"}}),
        (replay, "a.jsonl", {"policy": "stub"}),
        (replay, "a.jsonl", {"strict": "yes"}),
        *((record, wrong, {}) for wrong in ("", None, 3, "nul\0l.jsonl")),
    ],
)
def test_wrong_options_are_refused_at_once(function, given, options):
    with pytest.raises(ConfigurationError):
        function(given, **options)
