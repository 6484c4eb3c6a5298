"""Recorded runs of real agents, made again through decorated tools: nothing they see may change, or be out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recorded_runs import RETAIL_SETS, Run, data_directory, load_retail_runs, load_runs
from benchmarks.retail.policies import (
    CLEAR_EVERYTHING,
    NO_INVALIDATION,
    TAGS_FROM_ARGUMENTS,
    WHOLE_RESOURCE,
    WRITES_FROM_RESULTS_TOO,
    Policy,
    tags_from_results,
)
from benchmarks.retail.replay import SharedStoreOutcome, by_customer, replay, share_store
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.retail.tools import some_turns
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def data() -> Path:
    return data_directory()


@pytest.fixture(scope="module")
def store(data: Path) -> RetailStore:
    return load_store(data)


@pytest.fixture(scope="module")
def all_runs(data: Path) -> list[Run]:
    return load_retail_runs(data)


@pytest.fixture(scope="module", params=[11, *slow(4)])
def runs(all_runs: list[Run], request: pytest.FixtureRequest) -> list[Run]:
    """Every eleventh or fourth run: enough that agents meet over the same users, orders and products."""
    return all_runs[:: request.param]


def assert_every_read_is_accounted_for(outcome: SharedStoreOutcome) -> None:
    """What the cache counts and what the store counts must add up to what the agents asked."""
    assert outcome.hits + outcome.shared + outcome.executions == outcome.reads


@pytest.mark.parametrize("run_set", RETAIL_SETS)
def test_the_store_alone_answers_every_recorded_call_as_it_was_recorded(
    data: Path, store: RetailStore, run_set: str
) -> None:
    for run in load_runs(data, run_set):
        fresh = store.copy()
        for call in run.calls:
            assert call.is_oddity or fresh.answer(call.tool, call.arguments) == call.result, (run.id, call)


@pytest.mark.parametrize("every", [9, *slow(4)])
@pytest.mark.parametrize("run_set", RETAIL_SETS)
async def test_a_run_sees_through_the_cache_what_it_saw_without_one(
    data: Path, store: RetailStore, run_set: str, every: int
) -> None:
    outcome = await replay(run_set, load_runs(data, run_set)[::every], store)
    assert outcome.differences == []
    assert outcome.equal + outcome.oddities == outcome.calls
    assert outcome.hits > 0


@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
@pytest.mark.parametrize("sessions", [1, *slow(16), 64])
async def test_no_answer_is_stale_when_many_runs_share_one_store(
    store: RetailStore, runs: list[Run], sessions: int, seed: int
) -> None:
    policy = tags_from_results(store.owner_of)
    outcome = await share_store(runs, store, policy=policy, sessions=sessions, seed=seed, latency=some_turns)
    assert outcome.stale == []
    assert_every_read_is_accounted_for(outcome)


@pytest.mark.parametrize("every", [4, *slow(1)])
@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
@pytest.mark.parametrize("sessions", [8, *slow(32)])
async def test_no_answer_is_stale_when_agents_crowd_around_one_customer(
    store: RetailStore, all_runs: list[Run], sessions: int, seed: int, every: int
) -> None:
    outcome = await share_store(
        all_runs[::every],
        store,
        policy=tags_from_results(store.owner_of),
        sessions=sessions,
        seed=seed,
        latency=some_turns,
        arrival=by_customer,
    )
    assert outcome.stale == []
    assert_every_read_is_accounted_for(outcome)


@pytest.mark.slow
async def test_two_in_five_reads_are_hits_when_all_runs_share_one_store_at_16_sessions(
    store: RetailStore, all_runs: list[Run]
) -> None:
    policy = tags_from_results(store.owner_of)
    outcome = await share_store(all_runs, store, policy=policy, sessions=16, seed=0, latency=some_turns)
    assert outcome.stale == []
    assert outcome.hit_rate >= 0.4
    assert_every_read_is_accounted_for(outcome)


@pytest.mark.parametrize("policy", [WRITES_FROM_RESULTS_TOO, WHOLE_RESOURCE, CLEAR_EVERYTHING], ids=lambda p: p.name)
async def test_no_answer_is_stale_under_other_tags_that_name_every_change(
    store: RetailStore, runs: list[Run], policy: Policy
) -> None:
    outcome = await share_store(
        runs, store, policy=policy, sessions=16, seed=0, latency=some_turns, arrival=by_customer
    )
    assert outcome.stale == []
    assert_every_read_is_accounted_for(outcome)


@pytest.mark.parametrize("policy", [TAGS_FROM_ARGUMENTS, NO_INVALIDATION], ids=lambda p: p.name)
async def test_the_judge_sees_stale_answers_where_tags_leave_a_change_out(
    store: RetailStore, runs: list[Run], policy: Policy
) -> None:
    outcome = await share_store(runs, store, policy=policy, sessions=16, seed=0, latency=some_turns)
    assert outcome.stale
