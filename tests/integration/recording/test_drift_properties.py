"""Properties of the drift rule, on runs of tasks that are interleaved in every way.

A *program* is a tree: calls, and groups of tasks that run at the same time and are waited for. It is run by a scheduler
that picks which task makes the next step, so that two runs of one program differ in nothing else.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from agent_cache.recording import (
    Baseline,
    Cassette,
    CassetteError,
    DriftDetector,
    DriftEvent,
    RecordedCall,
)
from agent_cache.recording.file import digest_of
from tests.harness.slow import slow

KINDS = ("read", "write", "model")


@dataclass
class Call:
    """One call of a program: ``inside`` is what it does itself."""

    kind: str
    number: int
    inside: list[Any] = field(default_factory=list)
    result: str = ""
    raises: bool = False


@dataclass
class Group:
    """Tasks that run at the same time."""

    tasks: list[list[Any]]


calls = st.builds(Call, st.sampled_from(KINDS), st.integers(0, 5))


def programs(depth: int = 2, least: int = 1) -> st.SearchStrategy[list[Any]]:
    if not depth:
        return st.lists(calls, min_size=least, max_size=4)
    inner = programs(depth - 1)
    groups = st.builds(Group, st.lists(inner, min_size=1, max_size=3))
    outer = st.builds(Call, st.sampled_from(("read", "write")), st.integers(0, 5), inner)
    return st.lists(st.one_of(calls, calls, groups, outer), min_size=least, max_size=5)


class Scheduler:
    """Runs a program, one step of one task after another, and writes the log that a recording of it has."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.calls: list[RecordedCall] = []
        self.events: list[tuple[str, RecordedCall]] = []
        self._lanes = 0
        self._ids = 0
        self._last = 0
        self._waiting: list[Iterator[Any]] = []

    def run(self, program: list[Any]) -> Cassette:
        running = [self._task(program, None, None)]
        while running:
            task = self.chance.choice(running)
            try:
                started = next(task)
            except StopIteration:
                running.remove(task)
            else:
                running += started
        return Cassette.from_dict(
            {
                "agent_cache_cassette": 2,
                "log": True,
                "calls": [_plain(call) for call in self.calls],
                "trailer": {"calls": len(self.calls), "duration_ms": 1.0, "ended": "returned"},
            }
        )

    def _task(self, program: list[Any], forked: dict[str, int] | None, parent: int | None) -> Iterator[Any]:
        lane = {} if forked is not None else {"number": 0, "forked": 0}  # numbered at its first call
        if forked is None:
            self._lanes = 1
        yield from self._steps(program, lane, forked, parent)

    def _steps(
        self, program: list[Any], lane: dict[str, int], forked: dict[str, int] | None, parent: int | None
    ) -> Iterator[Any]:
        for item in program:
            if isinstance(item, Group):
                left = [1] * len(item.tasks)

                def child(number: int, tasks: Group = item, left: list[int] = left) -> Iterator[Any]:
                    origin = lane or forked
                    yield from self._task(tasks.tasks[number], origin, parent)
                    left[number] = 0

                yield [child(number) for number in range(len(item.tasks))]
                while any(left):
                    yield []
                continue
            if not lane:
                assert forked is not None
                lane.update(number=self._lanes, forked=forked.get("number", 0))
                self._lanes += 1
            self._ids += 1
            name = f"shop:{item.kind}{item.number % 2}"
            arguments = {"n": item.number}
            call = RecordedCall(
                id=self._ids,
                parent=parent,
                kind="llm" if item.kind == "model" else "tool",
                name=name,
                arguments=arguments,
                digest=digest_of(name, arguments).hex(),
                after=self._last,
                lane=lane["number"],
                forked=lane["forked"],
                outcome={"unfinished": True},
                tags=[f"order:{item.number}"] if item.kind == "write" else [],
                source={"read": "miss", "write": "write", "model": ""}[item.kind],
            )
            self.events.append(("start", call))
            yield []
            yield from self._steps(item.inside, lane, forked, call.id)
            value = {"error": {"type": "builtins:OSError", "message": ""}} if item.raises else {"value": item.result}
            ended = _replaced(call, outcome=value)
            self.calls.append(ended)
            self.events.append(("end", ended))
            self._last = call.id
            yield []


def _plain(call: RecordedCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__struct_fields__}


def _replaced(call: RecordedCall, **changes: Any) -> RecordedCall:
    return RecordedCall(**{**_plain(call), **changes})


def run(program: list[Any], seed: int) -> Cassette:
    return Scheduler(random.Random(seed)).run(program)


def observed(program: list[Any], seed: int, detector: DriftDetector) -> Cassette:
    """Run a program under a detector, as `observe` shows it."""
    scheduler = Scheduler(random.Random(seed))
    cassette = scheduler.run(program)
    for what, call in scheduler.events:
        (detector.on_start if what == "start" else detector.on_end)(call)
    detector.on_close(None)
    return cassette


def every_sequence(program: list[Any]) -> Iterator[list[Any]]:
    yield program
    for item in program:
        if isinstance(item, Group):
            for task in item.tasks:
                yield from every_sequence(task)
        elif item.inside:
            yield from every_sequence(item.inside)


def changed(program: list[Any], what: str, chance: random.Random) -> list[Any] | None:
    """The program with one change; None if it has no place for it."""
    program = copy.deepcopy(program)
    sequences = list(every_sequence(program))
    places = [(one, at) for one in sequences for at, item in enumerate(one) if isinstance(item, Call)]
    if what == "swapped":
        places = [
            (one, at)
            for one, at in places
            if at + 1 < len(one) and isinstance(one[at + 1], Call) and _text(one[at]) != _text(one[at + 1])
        ]
    if not places:
        return None
    sequence, at = chance.choice(places)
    item = sequence[at]
    match what:
        case "arguments":
            item.number += 100
        case "missing":
            del sequence[at]
        case "extra":
            sequence.insert(chance.randrange(len(sequence) + 1), Call(chance.choice(KINDS), 50))
        case "repeated":
            sequence.insert(at + 1, Call(item.kind, item.number))
        case "result":
            item.result = "changed"
        case "error":
            item.raises = True
        case _:
            sequence[at], sequence[at + 1] = sequence[at + 1], sequence[at]
    return program


def _text(call: Call) -> tuple[str, int]:
    return call.kind, call.number


def shown(drifts: list[DriftEvent]) -> list[tuple[Any, ...]]:
    """Drifts without the index, which is that of the start in a run and that of the line in a recording."""
    return [(one.severity, one.kind, one.name, one.description, one.path) for one in drifts]


def identity(drift: DriftEvent) -> tuple[Any, ...]:
    """What makes two events the same one."""
    return drift.severity, drift.kind, drift.name, drift.call_id, drift.path, drift.description


def heard(drift: DriftEvent) -> tuple[Any, ...]:
    """What a listener is told once. Whether a call is new, or another one was changed, is known at the end."""
    is_new = drift.kind in ("extra", "arguments")
    return ("extra", drift.call_id) if is_new else (drift.kind, drift.call_id, drift.path)


CHANGES = ("arguments", "missing", "extra", "repeated", "result", "error", "swapped")


def compared(baseline: Baseline, cassette: Cassette) -> list[DriftEvent] | None:
    """The drifts; None if the two have nothing in common, as runs of a call or two may have after a change."""
    try:
        return baseline.compare(cassette)
    except CassetteError as error:
        if "in common" not in str(error):
            raise
        return None


examples = pytest.mark.parametrize("examples", [6, *slow(500)])
seeds = st.integers(0, 999)
chances = st.randoms(use_true_random=False)


@examples
def test_a_run_that_does_the_same_has_no_drift_however_its_tasks_are_interleaved(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(programs(), seeds, seeds)
    def check(program: list[Any], seed: int, other: int) -> None:
        assert Baseline(run(program, seed)).compare(run(program, other)) == []

    check()


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("examples", [5, *slow(150)])
def test_a_single_change_is_found(what: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(programs(), seeds, seeds, chances)
    def check(program: list[Any], seed: int, other: int, chance: random.Random) -> None:
        altered = changed(program, what, chance)
        assume(altered is not None and run(altered, other).steps)
        assert altered is not None
        drifts = compared(Baseline(run(program, seed)), run(altered, other))
        assert drifts is None or drifts

    check()


@examples
def test_at_its_end_an_observed_run_has_the_drifts_of_its_recording(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(programs(), seeds, seeds, st.lists(st.sampled_from(CHANGES), max_size=3), chances)
    def check(program: list[Any], seed: int, other: int, whats: list[str], chance: random.Random) -> None:
        altered = program
        for what in whats:
            altered = changed(altered, what, chance) or altered
        told: list[DriftEvent] = []
        baseline = Baseline(run(program, seed))
        detector = DriftDetector(baseline, on_drift=told.append)
        drifts = compared(baseline, observed(altered, other, detector))
        if drifts is not None:
            assert shown(detector.drifts) == shown(drifts)
            assert len(set(map(identity, told))) == len(told)
            assert set(map(heard, told)) >= set(map(heard, detector.drifts))

    check()


@examples
def test_no_recording_of_a_baseline_drifts_from_it(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(programs(), st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3), chances)
    def check(program: list[Any], whats: list[str], chance: random.Random) -> None:
        first = run(program, 0)
        recordings = [first]
        for number, what in enumerate(whats):
            cassette = run(changed(program, what, chance) or program, number)
            if len(cassette) and compared(Baseline(first), cassette) is not None:
                recordings.append(cassette)
        baseline = Baseline(*recordings)
        for cassette in recordings:
            assert baseline.compare(cassette) == []

    check()
