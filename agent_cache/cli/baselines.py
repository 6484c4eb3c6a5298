"""`agent-cache drift check` compares a run with accepted ones, for CI; `drift accept` accepts a run.

Exit codes of `drift check`: 0 the same, 1 drift at or above `--fail-on`, 2 it cannot be told: wrong usage, a file that
cannot be read, the run of another agent, a recording that was killed.

Exit codes of `drift accept`: 0 accepted, 1 the run contains secrets, 2 usage, or a run or a file that is not fit.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_cache.cli.cassettes import load_cassette, redaction_rules, secrets_in
from agent_cache.cli.output import Printer, escaped, plural, print_json, shortened
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording import Baseline, Cassette, DriftEvent, DriftSeverity, Tolerance
from agent_cache.recording.accepted_runs import accepted_runs, is_folder_of_runs, store_run
from agent_cache.recording.drift_events import DriftReport

__all__ = ["add_accept_options", "add_drift_options", "run_baseline", "run_drift"]

_SEVERITIES = ("critical", "warning", "info")
_STYLES = {"critical": "red", "warning": "yellow", "info": "cyan"}
_SHORT = 200
_WHOLE_RUN = "(run)"


# drift


def add_drift_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache drift check`."""
    parser.description = (
        "Compare a run with the accepted runs of a baseline. What varies between these is tolerated. Exit codes: 0 the "
        "same, 1 drift at or above --fail-on, 2 it cannot be told, such as for an unreadable file or another agent."
    )
    parser.add_argument(
        "bases", type=Path, nargs="+", metavar="BASE", help="accepted runs: recordings, or folders of them"
    )
    parser.add_argument("new", type=Path, metavar="NEW", help="the recording of the run to compare")
    parser.add_argument(
        "--fail-on", choices=_SEVERITIES, help="the least severity for exit code 1 (default: warning, or the file's)"
    )
    parser.add_argument("--tolerance", type=Path, metavar="FILE", help="what is no drift, as TOML or JSON")
    parser.add_argument("--format", choices=("text", "json", "junit"), default="text", help="of what is printed")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run compared with a baseline.

    Attributes:
        bases: paths of the baseline, as they were given.
        runs: its runs.
        new: the new run.
        names: of all calls, sorted.
        drifts: the differences that are not tolerated.
        tolerance: what is tolerated, and the least severity that fails.
    """

    bases: list[Path]
    runs: list[Cassette]
    new: Cassette
    names: list[str]
    drifts: list[DriftEvent]
    tolerance: Tolerance

    @property
    def has_failed(self) -> bool:
        """Whether there is drift at or above the least severity that fails."""
        return self.tolerance.fails(self.drifts)

    @property
    def fail_on(self) -> str:
        """The name of the least severity that fails."""
        return DriftSeverity.of(self.tolerance.fail_on).name.lower()


def run_drift(options: argparse.Namespace) -> int:
    """Print how a run differs from a baseline. Returns 1 if that is drift, and 2 if it cannot be told."""
    try:
        comparison = _compared(options)
    except (CassetteError, ConfigurationError) as error:
        print(escaped(error, keep="\n"), file=sys.stderr)
        if options.format == "json":
            print_json({"error": str(error)})
        elif options.format == "junit":
            _print_junit(_junit_of_error(options.bases, options.new, error))
        return 2
    if options.format == "json":
        print_json(_document(comparison))
    elif options.format == "junit":
        _print_junit(_junit(comparison))
    else:
        _print_drifts(comparison)
    return 1 if comparison.has_failed else 0


def _compared(options: argparse.Namespace) -> Comparison:
    """Compare a run with the baseline.

    Raises:
        CassetteError: if a recording cannot be read, or cannot be compared.
        ConfigurationError: if the arguments cannot work.
    """
    bases, path = options.bases, options.new
    tolerance = Tolerance() if options.tolerance is None else Tolerance.load(options.tolerance)
    if options.fail_on is not None:
        tolerance = replace(tolerance, fail_on=options.fail_on)
    runs = [load_cassette(one) for one in dict.fromkeys(one for base in bases for one in accepted_runs(base))]
    if path.is_dir():
        raise CassetteError("is a folder; the last argument is the recording of one run", path)
    new = load_cassette(path)
    if new.is_partial:
        raise CassetteError("the run was killed while it was recorded, so calls may be missing; run it again", path)
    drifts = Baseline(*runs).compare(new, tolerance)
    if (ending := _ending_drift(runs, new)) is not None:
        drifts.append(ending)
    names = sorted({name for run in (*runs, new) for name in run.outline.names})
    return Comparison(bases, runs, new, names, drifts, tolerance)


def _ending_drift(runs: list[Cassette], new: Cassette) -> DriftEvent | None:
    """A run that ended by an error drifts from accepted ones, none of which did, whatever its calls were."""
    endings = {_ending(run) for run in runs}
    if _ending(new) in endings:
        return None
    accepted = " or ".join(sorted(endings))
    text = f"the run {_ending(new)}, and the baseline {accepted}"
    severity = DriftSeverity.WARNING if _ending(new) == "returned" else DriftSeverity.CRITICAL
    return DriftEvent(severity, "error", "", text, accepted, _ending(new), event_type="run")


def _ending(run: Cassette) -> str:
    return "returned" if run.trailer is None else run.trailer.ended


def _severity(drift: DriftEvent) -> str:
    return drift.severity.name.lower()


def _counts(drifts: Iterable[DriftEvent]) -> dict[str, int]:
    """How many drifts there are of each severity, the worst first."""
    found = Counter(map(_severity, drifts))
    return {severity: found[severity] for severity in _SEVERITIES}


def _print_drifts(comparison: Comparison) -> None:
    printer, drifts = Printer(), comparison.drifts
    for base in comparison.bases:
        count = plural(len(accepted_runs(base)), "run")
        printer.line(("--- ", "red"), f"{base}  {count}")
    printer.line(("+++ ", "green"), f"{comparison.new.path}  {plural(len(comparison.new), 'call')}")
    for drift in drifts:
        _print_drift(printer, drift)
    if not drifts:
        printer.line(("The run does as the baseline.", "green"))
        return
    counts = ", ".join(f"{number} {severity}" for severity, number in _counts(drifts).items())
    verdict = "drift" if comparison.has_failed else "no drift that fails"
    printer.line((f"{verdict}: {counts} (fails on {comparison.fail_on})", "red" if comparison.has_failed else "green"))


def _print_drift(printer: Printer, drift: DriftEvent) -> None:
    severity = _severity(drift)
    printer.line((f"{severity:<8}", _STYLES[severity]), f"  {drift.description}")


def _document(comparison: Comparison) -> dict[str, Any]:
    """The result of a comparison, as docs/reference/drift-cli.md describes it."""
    return {
        "baseline": [run.path for run in comparison.runs],
        "new": comparison.new.path,
        "fail_on": comparison.fail_on,
        "has_drifted": comparison.has_failed,
        **DriftReport(tuple(comparison.drifts), len(comparison.new)).to_dict(),
    }


# JUnit: one test case for each name of a call, so that a CI system shows for how many runs that has drifted, and which
# have not. There is no standard; GitLab takes one failure of each test case, with `message` as its title.


def _print_junit(suite: ET.Element) -> None:
    root = ET.Element("testsuites", {name: suite.attrib[name] for name in ("name", "tests", "failures", "errors")})
    root.append(suite)
    ET.indent(root)
    text = ET.tostring(root, encoding="us-ascii", xml_declaration=True)  # so that any encoding of stdout takes it
    sys.stdout.write(f"{text.decode()}\n")


def _suite(bases: list[Path], new: Path, tests: int, failures: int = 0, errors: int = 0) -> ET.Element:
    numbers = {"tests": tests, "failures": failures, "errors": errors, "skipped": 0}
    suite = ET.Element(
        "testsuite", {"name": "agent-cache drift", **{name: str(number) for name, number in numbers.items()}}
    )
    properties = ET.SubElement(suite, "properties")
    for base in bases:
        ET.SubElement(properties, "property", name="baseline", value=escaped(base))
    ET.SubElement(properties, "property", name="new", value=escaped(new))
    return suite


def _junit(comparison: Comparison) -> ET.Element:
    by_name: dict[str, list[DriftEvent]] = {name: [] for name in comparison.names}
    for drift in comparison.drifts:
        by_name.setdefault(drift.name or _WHOLE_RUN, []).append(drift)
    failing = {name for name, drifts in by_name.items() if comparison.tolerance.fails(drifts)}
    suite = _suite(comparison.bases, Path(comparison.new.path), len(by_name), failures=len(failing))
    for name, drifts in by_name.items():
        case = _case(suite, comparison.bases[0], name)
        text = "\n".join(f"{_severity(drift)}: {drift.description}" for drift in drifts)
        if name in failing:
            worst = max(drifts, key=lambda drift: drift.severity)
            message = shortened(escaped(worst.description), _SHORT)
            ET.SubElement(case, "failure", type=f"{_severity(worst)} {worst.kind}", message=message).text = _clean(text)
        elif drifts:
            ET.SubElement(case, "system-out").text = _clean(text)
    return suite


def _junit_of_error(bases: list[Path], new: Path, error: Exception) -> ET.Element:
    suite = _suite(bases, new, 1, errors=1)
    case = _case(suite, bases[0], _WHOLE_RUN)
    message = shortened(escaped(error), _SHORT)
    ET.SubElement(case, "error", type=type(error).__name__, message=message).text = _clean(str(error))
    return suite


def _case(suite: ET.Element, base: Path, name: str) -> ET.Element:
    """A test case. Its class is the baseline, whose path is the same in every run of a CI system."""
    return ET.SubElement(suite, "testcase", classname=escaped(base), name=escaped(name), time="0")


def _clean(text: str) -> str:
    """Text for XML, which has no character to stand for a control character."""
    return escaped(text, keep="\n")


# baseline


def add_accept_options(command: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache drift accept`."""
    command.description = (
        "Accept recordings as a baseline. Several accepted runs of one agent are one baseline, and what varies between "
        "them is tolerated. Exit codes: 0 accepted, 1 a run contains secrets, 2 a run or a file that is not fit."
    )
    command.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="recordings")
    command.add_argument(
        "--as", type=Path, dest="target", metavar="PATH", required=True,
        help="the baseline: a folder of runs, or a file for one run if it is named *.jsonl",
    )  # fmt: skip
    how = command.add_mutually_exclusive_group()
    how.add_argument("--add", action="store_true", help="beside the runs that it has already")
    how.add_argument("--replace", action="store_true", help="instead of the runs that it has")
    command.add_argument("--failed", action="store_true", help="also runs that ended by an error")
    command.add_argument("--json", action="store_true", help="JSON on stdout")


def run_baseline(options: argparse.Namespace) -> int:
    """Accept runs, after all of them were checked: a run that cannot be accepted changes nothing.

    Returns 1 if one contains secrets.

    Raises:
        CassetteError, ConfigurationError: for an error of a file or of usage.
    """
    target: Path = options.target
    _check_target(target, options)
    runs = [_fit_run(path, may_have_failed=options.failed) for path in options.runs]
    secrets = {
        str(path): dict(secrets_in(run, redaction_rules(run)).most_common())
        for path, run in zip(options.runs, runs, strict=True)
    }
    if any(secrets.values()):
        _print_secrets(secrets, options)
        return 1
    planned = _planned(runs, _old_runs(target, options), options)
    results: list[tuple[Path, _Planned, Path | None]] = []
    removed: tuple[Path, ...] = ()
    for path, one in zip(options.runs, planned, strict=True):
        stored = None
        if one.is_new:
            stored = store_run(one.run, target, replaces=options.replace and not results)
            removed = removed or stored.removed
        results.append((path, one, None if stored is None else stored.path))
    if options.json:
        print_json({
            "baseline": str(target),
            "removed": [str(path) for path in removed],
            "runs": [
                {
                    "run": str(path),
                    "accepted_as": None if written is None else str(written),
                    "drifts": [drift.to_dict() for drift in one.drifts],
                }
                for path, one, written in results
            ],
        })  # fmt: skip
    else:
        _print_accepted(results, removed)
    return 0


def _check_target(target: Path, options: argparse.Namespace) -> None:
    """Refuse a baseline that does not take these runs.

    Raises:
        ConfigurationError: with what to do.
    """
    if is_folder_of_runs(target):
        if target.is_dir() and any(target.glob("*.jsonl")) and not (options.add or options.replace):
            raise ConfigurationError(
                f"{target} has {plural(len(accepted_runs(target)), 'accepted run')}: with --add this is one more, and "
                "what varies between them is tolerated; with --replace it takes their place"
            )
        return
    if options.add or len(options.runs) > 1:
        raise ConfigurationError(f"{target} is the file of one run; to keep several, accept them to a folder")
    if target.exists() and not options.replace:
        raise ConfigurationError(f"{target} exists already; with --replace the run takes its place")


def _fit_run(path: Path, *, may_have_failed: bool) -> Cassette:
    """Load a run that is fit to be compared with.

    Raises:
        CassetteError: if it is not.
    """
    if path.is_dir():
        raise CassetteError("is a folder, and not the recording of a run", path)
    run = load_cassette(path)
    if not may_have_failed and (ending := _ending(run)) != "returned":
        raise CassetteError(f"is no run to compare with: it {ending}; --failed accepts it all the same", path)
    Baseline(run)
    return run


def _print_secrets(secrets: dict[str, dict[str, int]], options: argparse.Namespace) -> None:
    if options.json:
        print_json({"baseline": str(options.target), "secrets": secrets})
        return
    printer = Printer()
    for path, found in secrets.items():
        for place, number in found.items():
            printer.line(("secret", "red"), f"  {path}: {number} x {place}")
    paths = " ".join(shlex.quote(path) for path, found in secrets.items() if found)
    printer.line(f"Nothing was accepted. To remove them: agent-cache cassette redact {paths}")


def _old_runs(target: Path, options: argparse.Namespace) -> list[Cassette]:
    """The runs of the baseline. Those that are to be replaced need not be readable.

    Raises:
        CassetteError: if one cannot be read, and is to stay.
    """
    try:
        return [load_cassette(path) for path in accepted_runs(target)]
    except CassetteError as error:
        if options.replace or isinstance(error, CassetteNotFound):
            return []
        raise


@dataclass(frozen=True, slots=True)
class _Planned:
    """A run to accept: what it does otherwise than the runs before it, and whether it is worth to be kept."""

    run: Cassette
    drifts: list[DriftEvent]
    is_new: bool


def _planned(runs: list[Cassette], old: list[Cassette], options: argparse.Namespace) -> list[_Planned]:
    """Compare each run with the baseline as it is before it.

    Raises:
        CassetteError: if one is the run of another agent than those that stay.
    """
    planned: list[_Planned] = []
    for run in runs:
        drifts: list[DriftEvent] = []
        if old:
            try:
                drifts = Baseline(*old).compare(run)
            except CassetteError:
                if not options.replace or planned:
                    raise
        is_first = options.replace and not planned
        planned.append(_Planned(run, drifts, is_new=is_first or not old or bool(drifts)))
        old = [run] if is_first else [*old, run]
    return planned


def _print_accepted(results: list[tuple[Path, _Planned, Path | None]], removed: tuple[Path, ...]) -> None:
    printer = Printer()
    for path, one, written in results:
        if written is None:
            printer.line(("unchanged", "green"), f"  {path} does as the baseline")
            continue
        replaced, removed = removed, ()
        what = f", instead of {plural(len(replaced), 'run')}" if replaced else ""
        printer.line(("accepted", "green"), f"  {path} -> {written}  {plural(len(one.run), 'call')}{what}")
        if one.drifts:
            printer.line("It differs from the old baseline:" if replaced else "Tolerated from now on:")
        for drift in one.drifts:
            _print_drift(printer, drift)
