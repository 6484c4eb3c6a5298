"""`agent-cache drift check` compares a run with accepted ones, for CI; `drift accept` accepts a run."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent_cache.cli.cassettes import redaction_rules, secrets_in
from agent_cache.cli.output import Printer, escaped, plural, print_json
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording import Baseline, Cassette, DriftEvent, DriftReport, DriftSeverity, Tolerance
from agent_cache.recording.drift import accepted_runs, is_folder_of_runs, store_run

_STYLES = {"critical": "red", "warning": "yellow", "info": "cyan"}


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
        "--fail-on", choices=_STYLES, help="the least severity for exit code 1 (default: warning, or the file's)"
    )
    parser.add_argument("--tolerance", type=Path, metavar="FILE", help="what is no drift, as TOML or JSON")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of what is printed")


def run_drift(options: argparse.Namespace) -> int:
    """Print how a run differs from a baseline. Returns 1 if that is drift, and 2 if it cannot be told."""
    try:
        return _check(options)
    except (CassetteError, ConfigurationError) as error:
        print(escaped(error, keep="\n"), file=sys.stderr)
        if options.format == "json":
            print_json({"error": str(error)})
        return 2


def _check(options: argparse.Namespace) -> int:
    tolerance = Tolerance() if options.tolerance is None else Tolerance.load(options.tolerance)
    if options.fail_on is not None:
        tolerance = msgspec.structs.replace(tolerance, fail_on=options.fail_on)
    try:
        found = {base: accepted_runs(base) for base in options.bases}
    except CassetteNotFound as error:
        text = f"{error.reason}; `agent-cache drift accept RUN --as {shlex.quote(str(error.path))}` makes one"
        raise CassetteNotFound(text, error.path) from None
    runs = [Cassette.load(one) for one in dict.fromkeys(one for paths in found.values() for one in paths)]
    new = Cassette.load(options.new)
    if new.is_partial:
        raise CassetteError("was killed while it was recorded, so calls may be missing; run it again", options.new)
    drifts = Baseline(*runs).compare(new, tolerance)
    endings = {_ending(run) for run in runs}
    if _ending(new) not in endings:  # whatever its calls were
        accepted = " or ".join(sorted(endings))
        severity = DriftSeverity.WARNING if _ending(new) == "returned" else DriftSeverity.CRITICAL
        text = f"the run {_ending(new)}, and the baseline {accepted}"
        drifts.append(DriftEvent(severity, "error", "", text, accepted, _ending(new), event_type="run"))
    has_failed, fail_on, report = tolerance.fails(drifts), tolerance.fail_on, DriftReport(tuple(drifts), len(new))
    if options.format == "json":
        about = {"baseline": [run.path for run in runs], "new": new.path, "fail_on": fail_on, "has_drifted": has_failed}
        print_json(about | report.to_dict())
        return int(has_failed)
    printer = Printer()
    for base, paths in found.items():
        printer.line(("--- ", "red"), f"{base}  {plural(len(paths), 'run')}")
    printer.line(("+++ ", "green"), f"{new.path}  {plural(len(new), 'call')}")
    _print_drifts(printer, drifts)
    counts = ", ".join(f"{number} {severity.name.lower()}" for severity, number in report.counts.items())
    verdict = f"{'drift' if has_failed else 'no drift that fails'}: {counts} (fails on {fail_on})"
    printer.line((verdict if drifts else "The run does as the baseline.", "red" if has_failed else "green"))
    return int(has_failed)


def _ending(run: Cassette) -> str:
    return "returned" if run.trailer is None else run.trailer.ended


def _print_drifts(printer: Printer, drifts: Iterable[DriftEvent]) -> None:
    for drift in drifts:
        name = drift.severity.name.lower()
        printer.line((f"{name:<8}", _STYLES[name]), f"  {drift.description}")


# accept


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


def run_baseline(options: argparse.Namespace) -> int:
    """Accept runs, after all of them were checked: a run that cannot be accepted changes nothing.

    Returns 1 if one contains secrets.
    """
    old, printer = _old_runs(options), Printer()
    runs = {path: _fit_run(path, may_have_failed=options.failed) for path in options.runs}
    secrets = {path: secrets_in(run, redaction_rules(run)).most_common() for path, run in runs.items()}
    for path, found in secrets.items():
        for place, number in found:
            printer.line(("secret", "red"), f"  {path}: {number} x {place}")
    if any(secrets.values()):
        paths = " ".join(shlex.quote(str(path)) for path, found in secrets.items() if found)
        printer.line(f"Nothing was accepted. To remove them: agent-cache cassette redact {paths}")
        return 1
    Baseline(*([] if options.replace else old), *runs.values())  # they are of one agent
    for number, (path, run) in enumerate(runs.items()):
        is_first = options.replace and not number
        try:
            drifts = Baseline(*old).compare(run) if old else []
        except CassetteError:  # another agent takes the place of all
            drifts = []
        if old and not drifts and not is_first:
            printer.line(("unchanged", "green"), f"  {path} does as the baseline")
            continue
        stored, replaced = store_run(run, options.target, replaces=is_first)
        what = f", instead of {plural(len(replaced), 'run')}" if replaced else ""
        printer.line(("accepted", "green"), f"  {path} -> {stored}  {plural(len(run), 'call')}{what}")
        if drifts:
            printer.line("It differs from the old baseline:" if replaced else "Tolerated from now on:")
        _print_drifts(printer, drifts)
        old = [run] if is_first else [*old, run]
    return 0


def _old_runs(options: argparse.Namespace) -> list[Cassette]:
    """The runs of the baseline. Those that are to be replaced need not be readable."""
    target = options.target
    if not is_folder_of_runs(target) and (options.add or len(options.runs) > 1):
        raise ConfigurationError(f"{target} is the file of one run; to keep several, accept them to a folder")
    if not (target.is_file() or any(target.glob("*.jsonl"))):
        return []
    if not (options.add or options.replace):
        raise ConfigurationError(
            f"{target} has {plural(len(accepted_runs(target)), 'accepted run')}: with --add, in a folder, this is one "
            "more, and what varies between them is tolerated; with --replace it takes their place"
        )
    try:
        return list(map(Cassette.load, accepted_runs(target)))
    except CassetteError:
        if options.replace:
            return []
        raise


def _fit_run(path: Path, *, may_have_failed: bool) -> Cassette:
    """Load a run that is fit to be compared with."""
    run = Cassette.load(path)
    if not may_have_failed and (ending := _ending(run)) != "returned":
        raise CassetteError(f"is no run to compare with: it {ending}; --failed accepts it all the same", path)
    Baseline(run)
    return run
