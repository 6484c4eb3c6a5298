"""Recorded runs of real agents in guarded sessions: loops are found, and nobody else is stopped or lied to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.loops import injected, recorded, report
from benchmarks.loops.audit import Audit, Ledger
from benchmarks.loops.families import HONEST, LOOPS, UNDECLARED_POLL, Loop
from benchmarks.loops.injected import Injection
from benchmarks.loops.labels import loop_start
from benchmarks.loops.measure import AUDITED, Recordings, loops_unsaid
from benchmarks.loops.recorded import Reading
from benchmarks.loops.runs import RecordedCall, Run, data_directory
from benchmarks.loops.tally import Tally
from benchmarks.loops.targets import median_of
from benchmarks.loops.tools import Step
from benchmarks.retail.data import DataAbsentError


@pytest.fixture(scope="module")
def recordings() -> Recordings:
    try:
        return Recordings.load(data_directory())
    except DataAbsentError as absent:
        pytest.skip(str(absent))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with loops_unsaid():
        yield


async def tally_of(recordings: Recordings, reading: Reading, every: int = 1) -> Tally:
    agent, tally = recorded.agent_for(reading, recordings.store), Tally()
    for runs in recordings.of(reading).values():
        for run in runs[::every]:
            tally.add(run, await recorded.guarded(agent, run, reading))
    return tally


async def injection_of(recordings: Recordings, name: str, loop: Loop) -> Injection:
    """One family, appended to every eighth successful retail run."""
    agent, injection = injected.agent_with(recordings.store), Injection(name, loop.length)
    for run, calls in injected.over(loop.family, recordings.successful_retail[::8]):
        await injected.guarded(agent, run, calls, injection)
    assert injection.runs > 5
    return injection


async def test_no_successful_retail_run_is_stopped_and_next_to_none_is_noticed(recordings: Recordings) -> None:
    tally = await tally_of(recordings, Reading.RETAIL)
    assert (tally.runs, tally.succeeded) == (1032, 859)
    assert tally.harmed == []
    assert tally.notices.percent <= 0.6


async def test_shell_runs_that_loop_are_stopped_and_those_that_succeed_are_let_be(recordings: Recordings) -> None:
    """The floor is below what the whole data gives (docs/explanation/loops.md), for a third of it and for rounding."""
    as_recorded = await tally_of(recordings, Reading.SHELL, every=3)
    as_read = await tally_of(recordings, Reading.SHELL_AS_READ, every=3)
    assert as_recorded.going_on_found.percent >= 70
    assert as_read.going_on_found.percent >= 85
    assert as_recorded.harm.percent <= 1.0
    assert as_read.harm.percent <= 1.5
    assert as_recorded.stopped_failures > 100


async def test_every_kind_of_ten_copy_loop_is_found_soon(recordings: Recordings) -> None:
    injections = [await injection_of(recordings, name, loop) for name, loop in LOOPS.items()]
    for one in injections:
        assert one.stopped.part == one.runs, one.name
    assert median_of(injections) <= 4


@pytest.mark.parametrize("name", [name for name in HONEST if name != UNDECLARED_POLL])
async def test_honest_work_is_not_stopped(recordings: Recordings, name: str) -> None:
    assert (await injection_of(recordings, name, HONEST[name])).stopped.part == 0


async def test_a_poll_that_nobody_has_declared_is_taken_for_a_loop_while_it_brings_nothing_new(
    recordings: Recordings,
) -> None:
    injection = await injection_of(recordings, UNDECLARED_POLL, HONEST[UNDECLARED_POLL])
    assert injection.stopped.part == injection.runs


@pytest.mark.parametrize("reading", AUDITED)
async def test_short_circuit_skips_no_write_and_invents_no_answer(recordings: Recordings, reading: Reading) -> None:
    agent = recorded.agent_for(reading, recordings.store)
    for runs in recordings.of(reading).values():
        for run in runs[::3]:
            await recorded.audited(agent, run, reading)
    assert (agent.audit.skipped, agent.audit.invented) == (0, 0)
    assert agent.audit.calls > 1000
    assert agent.audit.refused > 0 or reading is Reading.RETAIL


async def test_short_circuit_skips_no_write_and_invents_no_answer_in_loops_either(recordings: Recordings) -> None:
    agent = injected.agent_with(recordings.store)
    for loop in (*LOOPS.values(), *HONEST.values()):
        for run, calls in injected.over(loop.family, recordings.successful_retail[::40]):
            await injected.audited(agent, run, calls)
    assert (agent.audit.skipped, agent.audit.invented) == (0, 0)
    assert agent.audit.refused > 0
    assert agent.audit.repeated > 0


# What judges must be able to say no


def audit_of(step: Step, answer: object, *, ran: object = None, latest: object = None) -> Audit:
    audit, ledger, call = Audit(), Ledger(), (step.tool, step.identity)
    if latest is not None:
        ledger.gave(call, latest)
    ledger.start_round()
    if ran is not None:
        ledger.ran(call)
        ledger.gave(call, ran)
    audit.check([step], [answer], ledger)
    return audit


def test_the_audit_sees_a_write_that_was_answered_and_never_ran() -> None:
    write = Step("set", "7", "ok", is_write=True)
    assert audit_of(write, "ok", latest="ok").skipped == 1
    assert audit_of(write, "ok", ran="ok").skipped == 0


def test_the_audit_sees_an_answer_that_the_tool_never_gave() -> None:
    read = Step("get", "7", "seven")
    assert audit_of(read, None).invented == 1
    assert audit_of(read, None, latest="seven").invented == 1
    assert audit_of(read, "seven", ran="eight", latest="seven").invented == 1
    assert audit_of(read, "seven", latest="seven").invented == 0
    assert audit_of(read, "seven", ran="seven").invented == 0


def run_of(text: str) -> Run:
    """One call for each letter, by which it is told from others; a capital one is a write."""
    calls = (
        RecordedCall(
            "tool", {}, letter, "", error=False, kind="write" if letter.isupper() else "read", turn=None, batch=n
        )
        for n, letter in enumerate(text)
    )
    return Run("", success=True, calls=tuple(calls))


@pytest.mark.parametrize(
    ("calls", "start"),
    [
        ("aa", None),
        ("aaa", 2),
        ("ababab", 5),
        ("xabcabcabcx", 9),
        ("abcabcab", None),
        ("acabadaxa", 6),
        ("acaBadaxa", None),
        ("aBacadaxa", 8),
        ("BaBacaBa", 7),
        ("abcdefghijkabcdefghijkabcdefghijk", None),
    ],
)
def test_the_label_in_hindsight(calls: str, start: int | None) -> None:
    assert loop_start(run_of(calls)) == start


def test_a_table_goes_between_its_markers_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- loops: recorded -->\nold\n<!-- /loops: recorded -->\nafter\n", encoding="utf-8")
    report.put("recorded", "new", page)
    report.put("recorded", "newer", page)
    assert page.read_text(encoding="utf-8") == (
        "before\n<!-- loops: recorded -->\n\nnewer\n\n<!-- /loops: recorded -->\nafter\n"
    )
    with pytest.raises(SystemExit, match="no place for 'frontier'"):
        report.put("frontier", "new", page)
