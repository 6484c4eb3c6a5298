"""Drift of any program: none in a repeat, however its tasks are interleaved, and some in a run with any one change."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from agent_cache.recording import Baseline, Cassette, CassetteError, DriftDetector, DriftEvent, observe, record
from tests.harness.programs import PROGRAMS, Step, make
from tests.harness.searches import searched

CHANGES = ("arguments", "missing", "extra", "repeated", "error", "swapped")
CALLS = ("read", "write", "group")
chances = st.randoms(use_true_random=False)


def recorded(program: Step, *observers: DriftDetector) -> Cassette:
    """Record a run of a program, which these observe."""

    @contextmanager
    def block() -> Iterator[None]:
        with record(path), observe(*observers):
            yield

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        make(program, block() if observers else record(path))
        return Cassette.load(path)


def retimed(step: Step, chance: random.Random) -> Step:
    """The same program, whose tasks are interleaved in another way."""
    return replace(step, turns=chance.randrange(4), inside=tuple(retimed(one, chance) for one in step.inside))


def places(step: Step, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Step]]:
    yield path, step
    for number, inner in enumerate(step.inside):
        yield from places(inner, (*path, number))


def edited(step: Step, path: tuple[int, ...], steps: Any) -> Step:
    """The program with other steps at a place: what `steps` makes of those around it and of their number."""
    first, *rest = path
    if not rest:
        return replace(step, inside=tuple(steps(list(step.inside), first)))
    inner = edited(step.inside[first], tuple(rest), steps)
    return replace(step, inside=(*step.inside[:first], inner, *step.inside[first + 1 :]))


def changed(program: Step, what: str, chance: random.Random) -> Step | None:
    """The program with one change of its calls; None if it has no place for it."""

    def steps(inside: list[Step], at: int) -> list[Step]:
        one = inside[at]
        found = {
            "arguments": [replace(one, name=one.name + 100)],
            "missing": [],
            "extra": [one, Step(chance.choice(CALLS), 50)],
            "repeated": [one, one],
            "error": [replace(one, fails=not one.fails)],
            "swapped": [*inside[at + 1 : at + 2], one],
        }[what]
        return [*inside[:at], *found, *inside[at + (2 if what == "swapped" else 1) :]]

    whole = Step("turn", inside=(program,))
    by_path = dict(places(whole))
    fit = [path for path, step in by_path.items() if path and step.kind in CALLS]
    # Beside steps at once, another one would move the places of those that follow: that is no single change.
    fit = [path for path in fit if by_path[path[:-1]].kind != "once"]
    if what == "swapped":
        fit = [path for path in fit if is_other_call(by_path[path], by_path.get((*path[:-1], path[-1] + 1)))]
    return edited(whole, chance.choice(fit), steps) if fit else None


def is_other_call(one: Step, other: Step | None) -> bool:
    return other is not None and other.kind in CALLS and (one.kind, one.name) != (other.kind, other.name)


def compared(baseline: Baseline, cassette: Cassette) -> list[DriftEvent] | None:
    """The drifts; None if the two have nothing in common, as runs of a call or two may have after a change."""
    try:
        return baseline.compare(cassette)
    except CassetteError as error:
        if "in common" not in str(error):
            raise
        return None


@searched(6, 150, PROGRAMS, chances)
def test_a_run_that_does_the_same_has_no_drift_however_its_tasks_are_interleaved(program, chance) -> None:
    first = recorded(program)
    if len(first):
        assert Baseline(first).compare(recorded(retimed(program, chance))) == []


@pytest.mark.parametrize("what", CHANGES)
@searched(5, 50, PROGRAMS, chances)
def test_a_single_change_is_found(what: str, program: Step, chance: random.Random) -> None:
    first, altered = recorded(program), changed(retimed(program, chance), what, chance)
    if altered is not None and len(first):
        new = recorded(altered)
        assert len(new) == 0 or compared(Baseline(first), new) != []


@searched(6, 100, PROGRAMS, st.lists(st.sampled_from(CHANGES), max_size=3), chances)
def test_at_its_end_an_observed_run_has_the_drifts_of_its_recording(program, whats, chance) -> None:
    first, altered = recorded(program), program
    if not len(first):
        return
    for what in whats:
        altered = changed(altered, what, chance) or altered
    told: list[DriftEvent] = []
    detector = DriftDetector(Baseline(first), on_drift=told.append)
    drifts = compared(Baseline(first), recorded(altered, detector))
    if drifts is not None:
        assert list(map(shown, detector.drifts)) == list(map(shown, drifts))
        assert len(set(map(heard, told))) == len(told)
        assert set(map(heard, told)) >= set(map(heard, detector.drifts))


def shown(drift: DriftEvent) -> tuple[Any, ...]:
    """A drift without the id of its call, which in a run is by starts, and in a file by lines."""
    return drift.severity, drift.kind, drift.name, drift.description, drift.path


def heard(drift: DriftEvent) -> tuple[Any, ...]:
    """What a listener is told once. Whether a call is new, or another one was changed, is known at the end."""
    is_new = drift.kind in ("extra", "arguments")
    return ("extra", drift.call_id) if is_new else (drift.kind, drift.call_id, drift.path)


@searched(6, 60, PROGRAMS, st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3), chances)
def test_no_recording_of_a_baseline_drifts_from_it(program, whats, chance) -> None:
    runs = [recorded(program)]
    for what in whats if len(runs[0]) else ():
        new = recorded(changed(program, what, chance) or program)
        if len(new) and compared(Baseline(runs[0]), new) is not None:
            runs.append(new)
    if len(runs[0]):
        baseline = Baseline(*runs)
        for run in runs:
            assert baseline.compare(run) == []
