"""The tables, for people in Markdown and for machines in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from benchmarks.loops.audit import Audit
from benchmarks.loops.injected import Injection
from benchmarks.loops.measure import Measured
from benchmarks.loops.recorded import Reading
from benchmarks.loops.tally import Share, Tally
from benchmarks.loops.targets import Target, median_of
from benchmarks.table import markdown

_RECORDED: Final = (
    "data set",
    "runs",
    "successful runs stopped",
    "of these in a labelled loop",
    "successful runs noticed",
    "failing runs stopped",
    "labelled loops found",
    "of those that go on",
    "calls of failing runs saved",
    "with the labels known",
    "stopped by",
)
_FRONTIER: Final = (
    "policy",
    "tools",
    "labelled loops found",
    "of those that go on",
    "successful runs stopped",
    "not in a labelled loop",
    "calls of failing runs saved",
    "retail: successful runs stopped",
)
_AUDITS: Final = ("made through", "calls", "refused", "answered without a run", "writes skipped", "answers invented")


def recorded_table(measured: Iterable[Measured]) -> str:
    """By data set, and the readings of the shell sets one after the other."""
    return markdown(_RECORDED, (row for one in measured for row in _recorded_rows(one)))


def harmed_list(measured: Iterable[Measured]) -> str:
    """Successful runs that were stopped, by name."""
    lines = [f"- {one.reading.value}: {run}" for one in measured for run in one.all.harmed]
    return "\n".join(["successful runs stopped:", *(lines or ["- none"])])


def frontier_table(rows: Iterable[tuple[Mapping[str, Any], Sequence[Measured]]]) -> str:
    return markdown(_FRONTIER, (row for levels, measured in rows for row in _frontier_rows(levels, measured)))


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


def audit_table(audits: Mapping[str, Audit]) -> str:
    rows = [
        (name, *(f"{count:,}" for count in (one.calls, one.refused, one.repeated, one.skipped, one.invented)))
        for name, one in audits.items()
    ]
    return markdown(_AUDITS, rows)


def target_table(targets: Iterable[Target]) -> str:
    rows = [(one.what, one.target, one.measured, "met" if one.is_met else "NOT MET") for one in targets]
    return markdown(("what", "target", "measured", ""), rows)


def fields_of(counts: Tally | Injection | Audit) -> dict[str, Any]:
    """For `--json`. Not `asdict`, which makes a count of counts of a `Counter`."""
    return {one.name: getattr(counts, one.name) for one in fields(counts)}


def facts(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """Likewise, by data set."""
    return [
        {"tools": one.reading.value, "data_set": name} | fields_of(tally)
        for one in measured
        for name, tally in (*one.sets.items(), ("all", one.all))
    ]


def _recorded_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    is_retail = measured.reading is Reading.RETAIL
    for name, tally in measured.sets.items():
        yield _recorded_row(name if is_retail else f"{name}, {measured.reading.value}", tally)
    yield _recorded_row("retail, all" if is_retail else f"shell and code, {measured.reading.value}", measured.all)


def _recorded_row(name: str, tally: Tally) -> tuple[str, ...]:
    return (
        name,
        str(tally.runs),
        str(tally.harm),
        str(tally.harmed_in_loops),
        str(tally.notices),
        str(tally.failures_stopped),
        str(tally.loops_found),
        str(tally.going_on_found),
        str(tally.calls_saved),
        _percent(tally.oracle_saves),
        ", ".join(f"{kind} {count}" for kind, count in sorted(tally.kinds.items())),
    )


def _frontier_rows(levels: Mapping[str, Any], measured: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    policy = ", ".join(f"{name}={level}" for name, level in levels.items()) or "default"
    harmed = next(str(one.all.harm) for one in measured if one.reading is Reading.RETAIL)
    for one in measured:
        if one.reading is Reading.RETAIL:
            continue
        tally = one.all
        shares = (tally.loops_found, tally.going_on_found, tally.harm, tally.harm_outside_loops, tally.calls_saved)
        yield (policy, one.reading.value, *map(_percent, shares), harmed)


def _percent(share: Share) -> str:
    return f"{share.percent:.2f} %" if share.whole else "-"
