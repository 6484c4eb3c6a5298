"""Tables of the loop measurements in Markdown, and the targets they are held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from benchmarks.loops.families import UNDECLARED_POLL
from benchmarks.loops.sessions import Measured, Reading
from benchmarks.loops.tally import Injection, Share, Tally
from benchmarks.table import markdown

_RECORDED: Final = (
    "data set", "runs", "successful runs stopped", "of these in a labelled loop", "successful runs noticed",
    "failing runs stopped", "labelled loops found", "of those that go on", "calls of failing runs saved",
    "stopped by",
)  # fmt: skip


class Target(NamedTuple):
    what: str
    target: str
    measured: str
    is_met: bool


def targets_of_recordings(measured: Iterable[Measured]) -> Iterator[Target]:
    for one in measured:
        tally = one.all
        if one.reading is Reading.RETAIL:
            yield Target("retail: successful runs stopped", "0", str(tally.harm), tally.harm.part == 0)
            yield _at_most("retail: successful runs noticed", 0.6, tally.notices)
            continue
        where = f"shell and code, {one.reading.value}"
        yield _at_least(f"{where}: labelled loops found", 90, tally.loops_found)
        yield _at_most(f"{where}: successful runs stopped", 0.3, tally.harm)
        yield _at_least(f"{where}: calls of failing runs saved", 24, tally.calls_saved)


def targets_of_loops(injections: Sequence[Injection]) -> Iterator[Target]:
    found = Share(sum(one.stopped.part for one in injections), sum(one.runs for one in injections))
    yield Target("ten-copy loops found", "100 %", str(found), found.part == found.whole)
    wasted = median_of(injections)
    yield Target("ten-copy loops: wasted calls, median", "at most 4", f"{wasted:g}", wasted <= 4)


def targets_of_honest(injections: Iterable[Injection]) -> Iterator[Target]:
    judged = [one for one in injections if one.name != UNDECLARED_POLL]
    stopped = Share(sum(one.stopped.part for one in judged), sum(one.runs for one in judged))
    what = "honest work stopped, but undeclared polling of an unchanged status"
    yield Target(what, "0", str(stopped), stopped.part == 0)


def median_of(injections: Iterable[Injection]) -> float:
    wasted = [calls for one in injections for calls in one.wasted]
    return median(wasted) if wasted else 0.0


def _at_most(what: str, percent: float, share: Share) -> Target:
    return Target(what, f"at most {percent:g} %", str(share), share.percent <= percent)


def _at_least(what: str, percent: float, share: Share) -> Target:
    return Target(what, f"at least {percent:g} %", str(share), share.percent >= percent)


def recorded_table(measured: Iterable[Measured]) -> str:
    """By data set; the shell sets once for each reading."""
    return markdown(_RECORDED, (row for one in measured for row in _recorded_rows(one)))


def harmed_list(measured: Iterable[Measured]) -> str:
    """Successful runs that were stopped, by name."""
    lines = [f"- {one.reading.value}: {run}" for one in measured for run in one.all.harmed]
    return "\n".join(["successful runs stopped:", *(lines or ["- none"])])


def loops_table(injections: Sequence[Injection]) -> str:
    rows = [
        (
            one.name,
            str(one.runs),
            _percent(one.stopped),
            f"{one.median_wasted:g}",
            str(one.most_wasted),
            ", ".join(sorted(one.kinds)),
        )
        for one in injections
    ]
    found = Share(sum(one.stopped.part for one in injections), sum(one.runs for one in injections))
    most = max((one.most_wasted for one in injections), default=0)
    rows.append(("all", str(found.whole), _percent(found), f"{median_of(injections):g}", str(most), ""))
    return markdown(("loop, ten copies", "runs", "found", "wasted calls, median", "most", "stopped by"), rows)


def honest_table(injections: Iterable[Injection]) -> str:
    rows = [(one.name, str(one.runs), _percent(one.stopped), _percent(one.notices)) for one in injections]
    return markdown(("honest work", "runs", "stopped", "noticed"), rows)


def target_table(targets: Iterable[Target]) -> str:
    rows = [(one.what, one.target, one.measured, "met" if one.is_met else "NOT MET") for one in targets]
    return markdown(("what", "target", "measured", ""), rows)


def _recorded_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    is_retail = measured.reading is Reading.RETAIL
    for name, tally in measured.sets.items():
        yield _recorded_row(name if is_retail else f"{name}, {measured.reading.value}", tally)
    yield _recorded_row("retail, all" if is_retail else f"shell and code, {measured.reading.value}", measured.all)


def _recorded_row(name: str, tally: Tally) -> tuple[str, ...]:
    figures = (
        tally.runs, tally.harm, tally.harmed_in_loops, tally.notices, tally.failures_stopped, tally.loops_found,
        tally.going_on_found, tally.calls_saved,
    )  # fmt: skip
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.kinds.items()))
    return (name, *map(str, figures), kinds)


def _percent(share: Share) -> str:
    return f"{share.percent:.2f} %" if share.whole else "-"
