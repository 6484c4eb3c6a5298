"""The coherence runs themselves: they find what is stale, and a fleet whose processes cannot hear each other is."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

from benchmarks.fleet import __main__ as command
from benchmarks.fleet.conductor import Fleet, run
from benchmarks.fleet.faults import FAULTS, Fault

BRIEF = Fleet(processes=2, operations=2_000, writes=0.05)


@pytest.mark.slow
def test_processes_without_a_server_between_them_are_caught():
    outcome = run(FAULTS["none"], Fleet(processes=2, operations=2_000, writes=0.05, in_memory=True))
    assert outcome.complaints == ()
    assert len(outcome.verdict.stale) > 10
    assert outcome.verdict.stale_reads <= len(outcome.verdict.stale)
    assert command.complaint("none", outcome, BRIEF) == "messages do not arrive"
    assert command.complaint("flushed", outcome, Fleet(max_staleness=0.0)) == "stale beyond the bound"
    assert command.complaint("flushed", outcome, Fleet(consistency="strong")) == "stale reads"


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["before", "after"])
def test_processes_die_in_their_last_write_and_are_replaced(dies):
    outcome = run(Fault(dies=dies), Fleet(processes=2, operations=1_200, in_memory=True))
    assert outcome.complaints == ()
    assert outcome.verdict.dead == outcome.struck == 6


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


def test_the_command_prints_a_row_of_each_run(capsys: pytest.CaptureFixture[str]):
    sizes = ["--processes", "1", "--operations", "500"]
    status = command.main(["--faults", "none", "--consistency", "bounded", "--in-memory", *sizes])
    *_, row = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert status == 0
    assert (cells[2], cells[5], cells[-1]) == ("500", "0", "ok")
