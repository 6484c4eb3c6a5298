"""What the loop guard is to hold on these runs, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.loops.audit import Audit
from benchmarks.loops.families import UNDECLARED_POLL
from benchmarks.loops.injected import Injection
from benchmarks.loops.measure import Measured
from benchmarks.loops.recorded import Reading
from benchmarks.loops.tally import Share


class Target(NamedTuple):
    what: str
    target: str
    measured: str
    is_met: bool


def of_recordings(measured: Iterable[Measured]) -> Iterator[Target]:
    for one in measured:
        tally = one.all
        if one.reading is Reading.RETAIL:
            yield Target("retail: successful runs stopped", "0", str(tally.harm), tally.harm.part == 0)
            yield _at_most("retail: successful runs noticed", 0.6, tally.notices)
            continue
        where = f"shell and code, {one.reading.value}"
        yield _at_least(f"{where}: labelled loops found", 90, tally.loops_found)
        yield _at_most(f"{where}: successful runs stopped", 0.3, tally.harm)
        saved = _at_least(f"{where}: calls of failing runs saved", 24, tally.calls_saved)
        yield saved._replace(
            measured=f"{saved.measured}; one that knows the labels: {tally.oracle_saves.percent:.2f} %"
        )


def of_loops(injections: Sequence[Injection]) -> Iterator[Target]:
    found = Share(sum(one.stopped.part for one in injections), sum(one.runs for one in injections))
    yield Target("ten-copy loops found", "100 %", str(found), found.part == found.whole)
    wasted = median_of(injections)
    yield Target("ten-copy loops: wasted calls, median", "at most 4", f"{wasted:g}", wasted <= 4)


def of_honest(injections: Iterable[Injection]) -> Iterator[Target]:
    told = [one for one in injections if one.name != UNDECLARED_POLL]
    stopped = Share(sum(one.stopped.part for one in told), sum(one.runs for one in told))
    what = "honest work stopped, but undeclared polling of an unchanged status"
    yield Target(what, "0", str(stopped), stopped.part == 0)


def of_audits(audits: Mapping[str, Audit]) -> Iterator[Target]:
    calls = sum(audit.calls for audit in audits.values())
    for what in ("skipped", "invented"):
        count = sum(getattr(audit, what) for audit in audits.values())
        name = "writes skipped" if what == "skipped" else "answers invented"
        yield Target(f"short_circuit: {name}", "0", f"{count} of {calls:,} calls", count == 0)


def median_of(injections: Iterable[Injection]) -> float:
    wasted = [calls for one in injections for calls in one.wasted]
    return median(wasted) if wasted else 0.0


def _at_most(what: str, percent: float, share: Share) -> Target:
    return Target(what, f"at most {percent:g} %", str(share), share.percent <= percent)


def _at_least(what: str, percent: float, share: Share) -> Target:
    return Target(what, f"at least {percent:g} %", str(share), share.percent >= percent)
