"""Shares over many runs: who was stopped, what was found, and how many calls that saved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.loops.labels import loop_start
from benchmarks.loops.recorded import Outcome
from benchmarks.loops.runs import Run


class Share(NamedTuple):
    part: int
    whole: int

    @property
    def percent(self) -> float:
        return 100 * self.part / self.whole if self.whole else 0.0

    def __str__(self) -> str:
        return f"{self.part}/{self.whole} = {self.percent:.2f} %" if self.whole else "-"


@dataclass(slots=True)
class Tally:
    """Counts over the runs of one data set, or of several.

    Attributes:
        harmed: successful runs that were stopped, with the kind.
        harmed_in_loops: how many of them stand in a labelled loop.
        labelled, found: runs with a labelled loop, and those of them in which the session found one, also with their
            last call.
        going_on, found_going_on: those that go on for a call or more after the label is complete; the others have
            nothing to save.
        calls: of failing runs.
        saved: those of them from the refused one on.
        oracle: what one saves that knows the labels, and stops a run right after the call that completes one.
        kinds: the checks that runs were stopped by.
    """

    runs: int = 0
    succeeded: int = 0
    noticed: int = 0
    harmed_in_loops: int = 0
    failed: int = 0
    stopped_failures: int = 0
    labelled: int = 0
    found: int = 0
    going_on: int = 0
    found_going_on: int = 0
    calls: int = 0
    saved: int = 0
    oracle: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    harmed: list[str] = field(default_factory=list)

    def add(self, run: Run, outcome: Outcome) -> None:
        label, stopped, loop = loop_start(run), outcome.stopped, outcome.loop
        self.runs += 1
        if run.success:
            self.succeeded += 1
            self.noticed += outcome.noticed
        else:
            self.failed += 1
            self.calls += len(run.calls)
            self.oracle += 0 if label is None else len(run.calls) - label - 1
        if stopped is not None and loop is not None:
            self.kinds[loop.kind] += 1
            if run.success:
                self.harmed.append(f"{run.id} ({loop.kind}{', in a labelled loop' if label is not None else ''})")
                self.harmed_in_loops += label is not None
            else:
                self.stopped_failures += 1
                self.saved += len(run.calls) - stopped
        if label is not None:
            goes_on = label < len(run.calls) - 1
            self.labelled += 1
            self.found += loop is not None
            self.going_on += goes_on
            self.found_going_on += goes_on and loop is not None

    @property
    def harm(self) -> Share:
        return Share(len(self.harmed), self.succeeded)

    @property
    def harm_outside_loops(self) -> Share:
        return Share(len(self.harmed) - self.harmed_in_loops, self.succeeded)

    @property
    def notices(self) -> Share:
        return Share(self.noticed, self.succeeded)

    @property
    def failures_stopped(self) -> Share:
        return Share(self.stopped_failures, self.failed)

    @property
    def loops_found(self) -> Share:
        return Share(self.found, self.labelled)

    @property
    def going_on_found(self) -> Share:
        return Share(self.found_going_on, self.going_on)

    @property
    def calls_saved(self) -> Share:
        return Share(self.saved, self.calls)

    @property
    def oracle_saves(self) -> Share:
        return Share(self.oracle, self.calls)
