"""Runs of real agents: a repeat has no drift, and a changed run has some."""

from __future__ import annotations

import pytest

from benchmarks.drift.measure import Measurement
from benchmarks.drift.runs import SHAPES
from benchmarks.recorded_runs import Run, data_directory, load_retail_runs
from benchmarks.retail.store import RetailStore, load_store
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def store() -> RetailStore:
    return load_store(data_directory())


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return load_retail_runs(data_directory())


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
async def test_repeats_have_no_drift_and_changes_have(store: RetailStore, runs: list[Run], shape: str) -> None:
    measured = Measurement(store, runs[::9])
    counts = await measured.shape(shape, repeats=2)
    measured.close()
    assert (counts.examples, counts.alarms, counts.missed) == ([], 0, 0)
    assert counts.found.total() > 0.75 * counts.injected.total()


@pytest.mark.parametrize("every", [600, *slow(5)])
async def test_volatile_fields_alarm_with_one_recording_and_not_with_two(store, runs, every: int) -> None:
    measured = Measurement(store, runs[::every])
    one, two = await measured.volatile(len(measured))
    measured.close()
    assert one.alarms == one.repeats > 0
    assert (two.examples, two.alarms, two.missed) == ([], 0, 0)
