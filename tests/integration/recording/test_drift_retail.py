"""Drift of recorded retail runs: none in a repeat, in any shape of concurrency, and every change that a tape knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from benchmarks.drift.measure import Measurement
from benchmarks.drift.runs import SHAPES
from benchmarks.recorded_runs import data_directory, load_retail_runs
from benchmarks.retail.store import RetailStore, load_store
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def store() -> RetailStore:
    return load_store(data_directory())


@contextlib.contextmanager
def measurement(store: RetailStore, every: int) -> Iterator[Measurement]:
    runs = load_retail_runs(data_directory())
    found = Measurement(store, runs[::every])
    try:
        yield found
    finally:
        found.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "every"),
    [
        ("task per call", 500),
        pytest.param("two agents", 500, marks=pytest.mark.slow),
        *(pytest.param(shape, 9, marks=pytest.mark.slow) for shape in SHAPES),
    ],
)
async def test_repeats_have_no_drift_and_changes_have(store: RetailStore, shape: str, every: int) -> None:
    with measurement(store, every) as measured:
        counts = await measured.shape(shape, repeats=2)
    assert counts.examples == []
    assert (counts.alarms, counts.missed) == (0, 0)
    assert counts.found.total() > 0.75 * counts.injected.total()
    if shape in ("in sequence", "two agents"):
        assert not counts.in_hole


@pytest.mark.parametrize("every", [600, *slow(5)])
async def test_volatile_fields_alarm_with_one_recording_and_not_with_two(store: RetailStore, every: int) -> None:
    with measurement(store, every) as measured:
        one, two = await measured.volatile(len(measured))
    assert one.alarms == one.repeats > 0
    assert two.examples == []
    assert (two.alarms, two.missed) == (0, 0)
