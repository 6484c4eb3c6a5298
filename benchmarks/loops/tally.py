"""Results of guarded runs, their sums, and the label that says in hindsight whether a recorded run loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, TypeAlias

from agent_cache import AgentLoopDetectedError
from benchmarks.recorded_runs import RecordedCall, Run

Triple: TypeAlias = tuple[str, str, str]

LONGEST_PERIOD = 10
TIMES_IN_A_ROW = 3
TIMES_IN_ALL = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one guarded run.

    Attributes:
        stopped: position of the first refused call; None if none was refused.
        loop: the loop that the session found, also if no call was left to refuse.
        noticed: whether there was a loop or a notice.
    """

    stopped: int | None
    loop: AgentLoopDetectedError | None
    noticed: bool


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
        harmed: successful runs that were stopped, with the kind of loop.
        harmed_in_loops: how many of them have a labelled loop.
        labelled, found: runs with a labelled loop, and those of them in which the session found one, also with their
            last call.
        going_on, found_going_on: those that continue for a call or more after the label is complete; the others have
            nothing to save.
        calls: of failing runs.
        saved: those of them from the refused one on.
        kinds: the checks that stopped runs.
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


@dataclass(slots=True)
class Injection:
    """Result of appending one family of calls to all runs.

    Attributes:
        name: of the family.
        length: calls in one round of the loop; 0 for work that is no loop.
        noticed: runs with a loop or a notice.
        wasted: for each stopped run, the appended calls that were answered before the first refusal, less one round,
            which was useful. A loop that is found with the last of the ten copies counts as stopped.
        kinds: the checks that stopped them.
    """

    name: str
    length: int = 0
    runs: int = 0
    noticed: int = 0
    wasted: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def stopped(self) -> Share:
        return Share(len(self.wasted), self.runs)

    @property
    def notices(self) -> Share:
        return Share(self.noticed, self.runs)

    @property
    def median_wasted(self) -> float:
        return median(self.wasted) if self.wasted else 0.0

    @property
    def most_wasted(self) -> int:
        return max(self.wasted, default=0)


def loop_start(run: Run) -> int | None:
    """Position of the call that completes the first labelled loop, None if there is none.

    The label is given in hindsight, by another rule than the library's: a block of (tool, arguments, result) of period
    1 to 10 occurs at least three times in a row, or one such triple at least four times without a new successful write
    in between.
    """
    triples = [_triple(call) for call in run.calls]
    in_epoch: dict[Triple, int] = {}
    written: set[Triple] = set()
    matching = [0] * (LONGEST_PERIOD + 1)  # by period: how many calls in a row equal the one a period before
    for at, (call, triple) in enumerate(zip(run.calls, triples, strict=True)):
        if call.is_write and not call.error and triple not in written:
            written.add(triple)
            in_epoch.clear()
        in_epoch[triple] = in_epoch.get(triple, 0) + 1
        for period in range(1, LONGEST_PERIOD + 1):
            is_match = at >= period and triple == triples[at - period]
            matching[period] = matching[period] + 1 if is_match else 0
            if matching[period] >= period * (TIMES_IN_A_ROW - 1):
                return at
        if in_epoch[triple] >= TIMES_IN_ALL:
            return at
    return None


def _triple(call: RecordedCall) -> Triple:
    return call.tool, call.identity, call.result
