"""Runs of real agents, forked at random calls: in a sandbox each branch is its original again."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.forks import WAYS, WORLDS, Ways, fork_all
from benchmarks.recorded_runs import Run, data_directory, load_retail_runs
from benchmarks.retail.store import RetailStore, load_store
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def data() -> Path:
    return data_directory()


@pytest.fixture(scope="module")
def store(data: Path) -> RetailStore:
    return load_store(data)


@pytest.fixture(scope="module")
def runs(data: Path) -> list[Run]:
    return load_retail_runs(data)


def nothing() -> None:
    """Nobody waits for progress."""


@pytest.mark.parametrize("share", [45, *slow(1)])
@pytest.mark.parametrize("way", WAYS)
async def test_a_fork_in_a_sandbox_equals_the_original_and_reads_nothing_again(
    store: RetailStore, runs: list[Run], way: Ways, share: int
) -> None:
    outcome = await fork_all(runs[::share], store, way, WORLDS[0], nothing)
    assert outcome.is_perfect, outcome
    assert outcome.equal == outcome.forks >= 450 // share
    assert outcome.reads_before == 0
    assert outcome.writes_again > 0
    assert outcome.answered > 0


@pytest.mark.slow
@pytest.mark.parametrize("share", [40, *slow(10)])
@pytest.mark.parametrize("world", WORLDS[1:])
async def test_in_another_world_some_branches_are_different(
    store: RetailStore, runs: list[Run], world: str, share: int
) -> None:
    """So the comparison can fail, and a world matters."""
    outcome = await fork_all(runs[::share], store, WAYS[0], world, nothing)
    assert outcome.equal_with_writes < outcome.with_writes
    assert outcome.equal - outcome.equal_with_writes == outcome.forks - outcome.with_writes
    assert outcome.reads_before == 0
