"""Recorded runs of real agents in guarded sessions: loops are found, and nobody else is stopped or lied to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.loops.agent import Agent
from benchmarks.loops.families import HONEST, LOOPS, UNDECLARED_POLL, UNSEEN, Loop
from benchmarks.loops.report import median_of
from benchmarks.loops.sessions import (
    AUDITED,
    Reading,
    Recordings,
    agent_for,
    applicable,
    inject_audited,
    inject_guarded,
    make_audited,
    make_guarded,
    muted_loop_warnings,
    scripted_agent,
)
from benchmarks.loops.tally import Injection, Tally
from benchmarks.recorded_runs import data_directory
from tests.harness.slow import slow


@pytest.fixture(scope="module")
def recordings() -> Recordings:
    return Recordings.load(data_directory())


@pytest.fixture(scope="module")
def agent(recordings: Recordings) -> Agent:
    """The one that more calls are appended with. Its world is new in each run, its tools are decorated once."""
    return scripted_agent(recordings.store)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with muted_loop_warnings():
        yield


async def tally_of(recordings: Recordings, reading: Reading, every: int = 1) -> Tally:
    agent, tally = agent_for(reading, recordings.store), Tally()
    for runs in recordings.of(reading).values():
        for run in runs[::every]:
            tally.add(run, await make_guarded(agent, run, reading))
    return tally


@pytest.fixture(params=[80, *slow(16)])
def every(request: pytest.FixtureRequest) -> int:
    """Loops are appended to each such successful retail run."""
    return request.param


async def injection_of(agent: Agent, recordings: Recordings, name: str, loop: Loop, every: int) -> Injection:
    """One family, appended to some of the successful retail runs."""
    injection = Injection(name, loop.length)
    for run, calls in applicable(loop.family, recordings.successful_retail[::every]):
        await inject_guarded(agent, run, calls, injection)
    assert injection.runs >= 80 // every
    return injection


@pytest.mark.parametrize("every", [24, *slow(8)])
async def test_no_successful_one_of_some_retail_runs_is_stopped(recordings: Recordings, every: int) -> None:
    tally = await tally_of(recordings, Reading.RETAIL, every=every)
    assert tally.succeeded > 800 // every
    assert tally.harmed == []


@pytest.mark.slow
async def test_no_successful_retail_run_is_stopped_and_next_to_none_is_noticed(recordings: Recordings) -> None:
    tally = await tally_of(recordings, Reading.RETAIL)
    assert (tally.runs, tally.succeeded) == (1032, 859)
    assert tally.harmed == []
    assert tally.notices.percent <= 0.6


@pytest.mark.slow
async def test_shell_runs_that_loop_are_stopped_and_those_that_succeed_are_let_be(recordings: Recordings) -> None:
    """The floor is below what the whole data gives (docs/explanation/loops.md), for a third of it and for rounding."""
    as_recorded = await tally_of(recordings, Reading.SHELL, every=3)
    as_read = await tally_of(recordings, Reading.SHELL_AS_READ, every=3)
    assert as_recorded.going_on_found.percent >= 70
    assert as_read.going_on_found.percent >= 85
    assert as_recorded.harm.percent <= 1.0
    assert as_read.harm.percent <= 1.5
    assert as_recorded.stopped_failures > 100


async def test_every_kind_of_ten_copy_loop_is_found_soon(agent: Agent, recordings: Recordings, every: int) -> None:
    injections = [await injection_of(agent, recordings, name, loop, every) for name, loop in LOOPS.items()]
    for one in injections:
        assert one.stopped.part == one.runs, one.name
    assert median_of(injections) <= 4
    kinds = {one.name: set(one.kinds) for one in injections}
    assert kinds["period 1, through the store's tools"] == {"repeat"}
    assert kinds["period 4, through the store's tools"] == {"cycle"}
    assert kinds["one call, same error"] == {"error"}
    assert kinds["creative retry of a read"] == {"any_error"}
    assert kinds["one call, its argument has no key"] == {"repeat"}
    assert kinds["two reads, and a call without a key"] == {"cycle"}


DECLARED = [name for name in HONEST if name != UNDECLARED_POLL]


@pytest.mark.parametrize("name", [*DECLARED[::2], *slow(*DECLARED[1::2])])
async def test_honest_work_is_not_stopped(agent: Agent, recordings: Recordings, name: str, every: int) -> None:
    assert (await injection_of(agent, recordings, name, HONEST[name], every)).stopped.part == 0


@pytest.mark.parametrize("name", UNSEEN)
async def test_a_loop_with_something_new_in_each_round_is_not_found(
    agent: Agent, recordings: Recordings, name: str, every: int
) -> None:
    """It is that of a batch, unless what is new is declared: the row of LOOPS with the clock that is off."""
    assert (await injection_of(agent, recordings, name, UNSEEN[name], every)).stopped.part == 0


async def test_a_poll_that_nobody_has_declared_is_taken_for_a_loop_while_it_brings_nothing_new(
    agent: Agent, recordings: Recordings, every: int
) -> None:
    injection = await injection_of(agent, recordings, UNDECLARED_POLL, HONEST[UNDECLARED_POLL], every)
    assert injection.stopped.part == injection.runs


@pytest.mark.parametrize("part", [25, *slow(5)])
@pytest.mark.parametrize("reading", AUDITED)
async def test_short_circuit_skips_no_write_and_invents_no_answer(
    agent: Agent, recordings: Recordings, reading: Reading, part: int
) -> None:
    """In recorded runs, and in the loops that are appended to them."""
    of_runs = agent_for(reading, recordings.store)
    for runs in recordings.of(reading).values():
        for run in runs[::part]:
            await make_audited(of_runs, run, reading)
    for loop in (*LOOPS.values(), *HONEST.values()) if reading is Reading.RETAIL else ():
        for run, calls in applicable(loop.family, recordings.successful_retail[:: part * 12]):
            await inject_audited(agent, run, calls)
    for one in (of_runs, agent):
        assert (one.audit.skipped, one.audit.invented) == (0, 0)
    assert of_runs.audit.calls > 2500 // part
    assert of_runs.audit.refused > 0 or (agent.audit.refused > 0 and agent.audit.repeated > 0)
