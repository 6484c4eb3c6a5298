"""The benchmark on recorded runs: its figures come from what was run, and wrong answers are found."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded_runs import data_directory
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.trace import runs
from benchmarks.trace.contenders import BARE, OURS, PEERS, Contender
from benchmarks.trace.runs import judge, time_contenders
from benchmarks.trace.workload import READS, Tools, TraceRun, count_calls, load_trace
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def data() -> Path:
    return data_directory()


@pytest.fixture(scope="module")
def store(data: Path) -> RetailStore:
    return load_store(data)


@pytest.fixture(scope="module")
def trace(data: Path) -> list[TraceRun]:
    return load_trace(data)


def never_told(tools: Tools) -> Tools:
    """A cache that no write reaches."""

    def cached(tool: Any) -> Any:
        results: dict[str, Any] = {}

        @functools.wraps(tool)
        async def call(**arguments: Any) -> Any:
            key = json.dumps(arguments)
            if key not in results:
                results[key] = await tool(**arguments)
            return results[key]

        return call

    return {name: cached(tool) if name in READS else tool for name, tool in tools.items()}


NEVER_TOLD = Contender("never told", "no-such-distribution", never_told)


@pytest.mark.slow
@pytest.mark.parametrize("contender", [OURS[0], *slow(*OURS[1:])], ids=lambda one: one.name)
async def test_no_answer_of_ours_is_wrong(contender: Contender, trace: Sequence[TraceRun], store: RetailStore) -> None:
    judgement = await judge(contender, trace[::12], store, agents=16)
    assert judgement.is_right
    assert judgement.calls == count_calls(trace[::12])
    assert 0.0 < judgement.hit_rate < 1.0


@pytest.mark.parametrize("peer", PEERS, ids=lambda one: one.name)
async def test_a_peer_is_told_what_each_write_changed(peer: Contender, trace: Sequence[TraceRun]) -> None:
    """Else its figures would be those of a cache that forgets nothing."""
    if peer.version is None:
        pytest.skip(f"{peer.distribution} is not installed")
    judgement = runs.Judgement()
    await runs._judge_alone(peer, trace[::3], judgement)
    assert (judgement.calls, judgement.different) == (count_calls(trace[::3]), 0)


@pytest.mark.slow
async def test_wrong_answers_are_found(trace: Sequence[TraceRun], store: RetailStore) -> None:
    judgement = await judge(NEVER_TOLD, trace[::3], store, agents=16)
    assert judgement.different > 0
    assert judgement.stale > 0
    assert not judgement.is_right


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
async def test_the_figure_is_the_time_over_the_bare_tools_of_the_same_round(
    trace: Sequence[TraceRun], monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Every call of a decorated tool takes 0.003 s of this clock; nothing else takes any."""
    now, made = 0.0, 0

    def slow(tools: Tools) -> Tools:
        def taking(tool: Any) -> Any:
            async def call(**arguments: Any) -> Any:
                nonlocal now, made
                now += 0.003
                made += 1
                return await tool(**arguments)

            return call

        return {name: taking(tool) for name, tool in tools.items()}

    monkeypatch.setattr(runs, "process_time", lambda: now)
    part = trace[::50]
    costs = await time_contenders([Contender("slow", "", slow), BARE], part, rounds, agents=4)
    assert made == rounds * count_calls(part)
    assert costs["slow"].over.seconds == pytest.approx([0.003] * rounds)
    assert costs["slow"].per_thousand.median == pytest.approx(3_000.0)
    assert costs["bare"].over.seconds == (0.0,) * rounds
