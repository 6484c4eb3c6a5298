"""A fleet on a real server while something goes wrong, every read checked: a cut of `python -m benchmarks.fleet`."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("redis")

from benchmarks.fleet import promises
from benchmarks.fleet.conductor import Fleet, Outcome, run
from benchmarks.fleet.faults import FAULTS
from tests.harness.binaries import ServerUnavailableError
from tests.harness.slow import slow

BRIEF = Fleet(processes=2, operations=4_000, writes=0.05, lease=0.5, lives=2)


def played(name: str, fleet: Fleet) -> Outcome:
    try:
        return run(FAULTS[name], fleet)
    except ServerUnavailableError as absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize("consistency", ["bounded", "strong"])
@pytest.mark.parametrize("name", slow(
    "flushed", "none", "connections killed", "restarted empty", "stutter", "writer dies after its effect",
    "slot resharded",
))  # fmt: skip
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
