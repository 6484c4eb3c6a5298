"""Runs of real agents, made again through the real retail tools: recorded, and replayed with nobody behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recorded_runs import RETAIL_SETS, Run, data_directory, load_runs
from benchmarks.recording.credentials import FORMS
from benchmarks.recording.replayed import at_once, in_turn, with_credentials
from benchmarks.retail.store import RetailStore, load_store
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def data() -> Path:
    return data_directory()


@pytest.fixture(scope="module")
def store(data: Path) -> RetailStore:
    return load_store(data)


@pytest.fixture(scope="module")
def all_runs(data: Path) -> list[list[Run]]:
    return [load_runs(data, name) for name in RETAIL_SETS]


@pytest.fixture(scope="module", params=[80, *slow(8)])
def every(request: pytest.FixtureRequest) -> int:
    """Only each such run of a set is made."""
    return request.param


@pytest.fixture(scope="module")
def runs(all_runs: list[list[Run]], every: int) -> list[Run]:
    return [run for of_set in all_runs for run in of_set[::every]]


def nothing() -> None:
    """Nobody waits for progress."""


async def test_every_call_of_a_replay_gets_what_it_got_and_nothing_runs(
    store: RetailStore, runs: list[Run], every: int
) -> None:
    outcome = await in_turn("all", runs, store, nothing)
    assert outcome.is_perfect, outcome
    assert outcome.faithful == outcome.calls > 3200 // every


async def test_rounds_that_are_made_at_once_are_replayed_in_any_order(
    store: RetailStore, runs: list[Run], every: int
) -> None:
    outcome = await at_once("all", runs[::3], store, nothing, seeds=range(3))
    assert outcome.is_perfect, outcome
    assert outcome.calls > 3200 // every


async def test_no_credential_that_was_passed_to_a_tool_is_in_any_file(
    store: RetailStore, runs: list[Run], every: int
) -> None:
    outcome = await with_credentials("all", runs, store, nothing)
    assert outcome.is_perfect, outcome
    assert outcome.credentials == outcome.calls > 80 * len(FORMS) // every


async def test_a_tool_that_gives_another_answer_in_the_replay_is_a_difference(
    store: RetailStore, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the comparison can fail."""
    monkeypatch.setattr("agent_cache.recording.tape.Tape.read", lambda *_: "something else")
    outcome = await in_turn("all", runs[:5], store, nothing)
    assert len(outcome.differences) == 5
    assert outcome.equal == 0
