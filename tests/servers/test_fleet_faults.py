"""A fleet on a real server while something goes wrong, every read checked: a cut of `python -m benchmarks.fleet`."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("redis")

from benchmarks.fleet import parts, promises
from benchmarks.fleet.amputations import CASES
from benchmarks.fleet.conductor import Fleet, Outcome, run
from benchmarks.fleet.faults import FAULTS
from tests.harness.binaries import ServerUnavailableError
from tests.harness.processes import run_python
from tests.harness.slow import slow
from tests.properties.fleet.configurations import (
    AMPUTATIONS,
    AMPUTATIONS_OF_MIXING,
    AMPUTATIONS_OF_STUTTER,
    AMPUTATIONS_OF_TRUST,
)

BRIEF = Fleet(processes=2, operations=4_000, writes=0.05, lease=0.5, lives=2)


def played(name: str, fleet: Fleet) -> Outcome:
    try:
        return run(FAULTS[name], fleet)
    except ServerUnavailableError as absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize("consistency", ["bounded", "strong"])
@pytest.mark.parametrize(
    "name",
    [
        *slow(
            "flushed",
            "none",
            "subscriptions killed",
            "restarted empty",
            "stutter",
            "writer dies after its effect",
            "slot resharded",
        ),
    ],
)
def test_every_promise_is_kept(name: str, consistency):
    fleet = replace(BRIEF, consistency=consistency)
    if name == "stutter":  # on a busy machine it may take long until such a server answers in time
        fleet = replace(fleet, operations=12_000)
    outcome = played(name, fleet)
    assert outcome.complaints == ()
    # How many reads are stale within the bound is the benchmark's matter: on a busy machine messages take longer.
    assert promises.beyond(name, outcome.verdict, fleet) == []
    assert outcome.verdict.own == []
    assert outcome.verdict.hits > 0
    assert outcome.struck > 0 or name == "none"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["subscriptions killed, busy root", "busy root, an earlier version"])
def test_every_promise_is_kept_by_processes_that_listen_to_parts(name: str):
    fleet = replace(BRIEF, pace=0.005)
    outcome = played(name, fleet)
    assert outcome.complaints == ()
    assert promises.beyond(name, outcome.verdict, fleet) == []
    assert outcome.verdict.own == []
    assert outcome.verdict.hits > 0


@pytest.mark.slow
def test_without_a_begin_a_writer_that_dies_leaves_what_is_stale():
    """Of the seven deaths that somebody lives to see, most are seen, whatever is read and written at random."""
    case = CASES["begin"]
    fleet = replace(BRIEF, **case.fleet, lives=8, without="begin")
    outcome = played(case.fault, fleet)
    assert promises.beyond(case.fault, outcome.verdict, fleet)
    assert promises.complaint(case.fault, outcome, fleet) == "stale reads"


@pytest.mark.slow
def test_every_part_can_still_be_taken_out():
    """In a process of its own, which is never whole again."""
    run_python(
        "from benchmarks.fleet.parts import PARTS, earlier_version, split_early\n"
        "for change in (split_early, earlier_version, *PARTS.values()): change()"
    )


def test_every_part_has_its_fault_and_its_model():
    assert CASES.keys() == parts.PARTS.keys()
    for case in CASES.values():
        assert case.fault in FAULTS
        others = (AMPUTATIONS_OF_TRUST, AMPUTATIONS_OF_STUTTER, AMPUTATIONS_OF_MIXING)
        assert case.model in AMPUTATIONS.keys() | {name for each in others for name in each}
