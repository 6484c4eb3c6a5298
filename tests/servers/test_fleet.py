"""The coherence runs themselves: they find what is stale, and a fleet whose processes cannot hear each other is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis")

from agent_cache.errors import RemoteTierError
from benchmarks.fleet import __main__ as command, worker
from benchmarks.fleet.conductor import Fleet, run
from benchmarks.fleet.faults import FAULTS, Fault, Scene

BRIEF = Fleet(processes=2, operations=2_000, writes=0.05)


@pytest.mark.slow
def test_processes_without_a_server_between_them_are_caught():
    outcome = run(FAULTS["none"], Fleet(processes=2, operations=2_000, writes=0.05, in_memory=True))
    assert outcome.complaints == ()
    assert len(outcome.verdict.stale) > 10
    assert command.complaint("none", outcome, BRIEF) is not None
    assert command.complaint("flushed", outcome, Fleet(max_staleness=0.0)) == "stale beyond the bound"
    assert command.complaint("flushed", outcome, Fleet(consistency="strong")) == "stale reads"


@pytest.mark.slow
def test_one_process_alone_has_nothing_to_be_stale_about():
    outcome = run(FAULTS["none"], Fleet(processes=1, operations=2_000, in_memory=True))
    assert outcome.complaints == ()
    assert outcome.verdict.stale == []
    assert outcome.verdict.operations == 2_000
    assert outcome.verdict.hits > 0


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["before", "after"])
def test_processes_die_in_their_last_write_and_are_replaced(dies):
    outcome = run(Fault(dies=dies), Fleet(processes=2, operations=1_200, in_memory=True))
    assert outcome.complaints == ()
    assert outcome.verdict.dead == outcome.struck == 6


async def test_a_process_whose_last_write_is_refused_dies_in_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A server that does not answer in time leaves it alive."""
    writes = []

    async def refused_twice(entity: int) -> None:
        writes.append(entity)
        if len(writes) < 3:
            raise RemoteTierError("no answer in time")
        raise SystemExit

    monkeypatch.setattr(worker, "Truth", lambda _: range(16))
    monkeypatch.setattr(worker, "decorated", lambda *_: ({}, {"put": refused_twice}))
    shares: dict[str, Any] = {"heat": 0.3, "tasks": 1, "operations": 0, "writes": 1.0, "pace": 0.0, "seed": 1}
    options: dict[str, Any] = {"namespace": "fleet", "max_staleness": 1.0, "lease": 1.0, "consistency": "bounded"}
    kinds: dict[str, Any] = {"read_kinds": {}, "write_kinds": {"put": 1}}
    job = worker.Job("1.0", str(tmp_path), None, cluster=False, dies="after", **shares, **options, **kinds)
    with pytest.raises(SystemExit):
        await worker.Worker(job).run()
    assert len(writes) == 3


def test_a_process_that_fails_is_a_complaint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_CACHE_ENABLED", "perhaps")
    fleet = Fleet(processes=1, operations=10, in_memory=True, max_staleness=-1.0, pace=0.0)
    outcome = run(FAULTS["none"], fleet)
    assert outcome.complaints
    assert command.complaint("none", outcome, fleet) == "a process failed"


@pytest.mark.slow
def test_half_of_the_processes_write_where_one_side_is_cut_off():
    outcome = run(Fault(cut_off="readers"), Fleet(processes=2, operations=1_000, writes=0.1, in_memory=True))
    assert outcome.complaints == ()
    assert 50 < outcome.verdict.writes < 200
    assert outcome.verdict.own == []


def test_every_fault_leaves_the_stage_as_soon_as_the_run_is_over():
    over = Scene()
    over.over.set()
    assert not over.wait(60)


def test_the_command_prints_a_row_of_each_run(capsys: pytest.CaptureFixture[str]):
    sizes = ["--processes", "1", "--operations", "500"]
    status = command.main(["--faults", "none", "--consistency", "bounded", "--in-memory", *sizes])
    *_, row = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert status == 0
    assert (cells[2], cells[5], cells[-1]) == ("500", "0", "ok")
