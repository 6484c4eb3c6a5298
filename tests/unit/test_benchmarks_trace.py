"""The benchmark on recorded runs: its figures come from what was run, and wrong answers are found."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded_runs import RETAIL_SETS, data_directory, load_runs
from benchmarks.retail.store import RetailStore, load_store
from benchmarks.timing import Effort
from benchmarks.trace import __main__ as command, runs
from benchmarks.trace.contenders import BARE, IN_SESSIONS, OURS, PEERS, PLAIN, Contender
from benchmarks.trace.runs import judge, rows, time_contenders
from benchmarks.trace.workload import READS, WRITES, Tools, TraceRun, as_text, count_calls, from_text, load_trace
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
def test_every_call_of_the_recorded_runs_that_reads_or_writes_a_record_is_made(
    data: Path, trace: Sequence[TraceRun]
) -> None:
    recorded = [call for name in RETAIL_SETS for run in load_runs(data, name) for call in run.calls]
    wanted = [call for call in recorded if call.tool in READS + WRITES]
    made = [call for run in trace for call in run]
    assert [(call.tool, call.arguments) for call in made] == [(call.tool, call.arguments) for call in wanted]
    assert all(as_text(call.result) == known.result for call, known in zip(made, wanted, strict=True))
    assert {type(call.result) for call in made} == {dict, str}


def test_records_become_dicts_and_other_text_stays_text() -> None:
    assert from_text('{"order_id": "#W1"}') == {"order_id": "#W1"}
    assert from_text("sara_doe_496") == "sara_doe_496"


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


async def test_the_bare_tools_are_right_and_run_every_time(trace: Sequence[TraceRun], store: RetailStore) -> None:
    judgement = await judge(BARE, trace[::12], store, agents=16)
    assert judgement.is_right
    assert judgement.reads == judgement.executions


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


@pytest.mark.slow
async def test_the_budget_rows_are_those_of_both_ways(
    trace: Sequence[TraceRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "load_trace", lambda directory: trace[::100])
    in_sessions, plain = await rows(Effort(rounds=3))
    assert (in_sessions.limit, plain.limit) == (IN_SESSIONS.limit, PLAIN.limit)
    assert in_sessions.what.endswith("in sessions")
    assert in_sessions.measured.median > 0


@pytest.mark.slow
def test_the_command_names_missing_caches_and_writes_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PEERS", (NEVER_TOLD,))
    assert command.main(["--limit", "12", "--rounds", "1"]) in (0, 1)
    shown = capsys.readouterr()
    assert "never told is not installed and is left out" in shown.err
    assert "WRONG" not in shown.err
    rows = [line for line in shown.out.splitlines() if line.startswith("| agent_cache")]
    assert len(rows) == len(OURS)
    assert all("| 0 of " in row for row in rows)


@pytest.mark.slow
def test_a_wrong_answer_of_ours_fails_the_command(
    trace: Sequence[TraceRun],
    store: RetailStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "load_trace", lambda directory, limit: trace[:limit])
    monkeypatch.setattr(command, "load_store", lambda directory: store)
    monkeypatch.setattr(command, "OURS", (NEVER_TOLD,))
    monkeypatch.setattr(command, "PEERS", ())
    assert command.main(["--limit", "60", "--rounds", "1"]) == 1
    assert "WRONG ANSWERS: never told" in capsys.readouterr().err
