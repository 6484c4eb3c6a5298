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
