"""Compares the run of one test with its baseline, or accepts it. Imported by the first test that has one."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_cache.engine.scope import PLACE
from agent_cache.engine.state import clear_everything
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError, MissingFixture
from agent_cache.pytest_plugin.cassette_run import tapes_of
from agent_cache.pytest_plugin.markers import Settings
from agent_cache.recording import Baseline, Cassette, DriftSeverity, Tolerance, record
from agent_cache.recording.accepted_runs import accepted_runs, is_folder_of_runs, store_run
from agent_cache.recording.drift_events import DriftReport
from agent_cache.recording.redaction import redaction_of

__all__ = ["BaselineRun"]


class BaselineRun:
    """The run of one test, recorded to a temporary file and compared with accepted ones when the test has passed.

    It is recorded inside of the test's cassette, if there is one, which may answer its calls. Otherwise it is live, and
    `--agent-block-live` refuses it as it would without a baseline.

    Args:
        paths: of the baselines.
        mode: one of `markers.BASELINE_MODES`.
        settings: of which `redact`, `http` and `empty_cache` count.
        item: the test.
        sharing: other tests with one of these baselines.
        tolerance: a `Tolerance`, or the path of one from the folder of the test file.
        fail_on: the least severity that fails the test, instead of that of the tolerance.
        folder: for the recording of the run.

    Attributes:
        accepted: lines about what was written to the baseline.

    Raises:
        MissingFixture: if there is no baseline, and the mode is to compare.
        CassetteError: if a baseline cannot be read.
        ConfigurationError: if the settings cannot work.
    """

    def __init__(
        self,
        paths: list[Path],
        mode: str,
        settings: Settings,
        item: pytest.Item,
        sharing: list[str],
        *,
        tolerance: Any,
        fail_on: str | None,
        folder: Path,
    ) -> None:
        self._paths = paths
        self._mode = mode
        self._item = item
        self._settings = settings
        self._tolerance = _tolerance_of(tolerance, fail_on, item.path.parent)
        self._new = folder / "run.jsonl"
        self.accepted: list[str] = []
        if mode != "compare":
            self._check_mode(sharing)
        runs = list(map(Cassette.load, self._accepted_runs()))
        self._baseline = Baseline(*runs) if runs else None
        redaction, http = redaction_of(settings.redact), settings.http
        for tape in tapes_of(PLACE.get().scope):  # the cassette's, which knows what it was recorded with
            redaction = redaction.joined(tape.redaction.without_hook().describe())
            http = http or tape.http
        for run in runs:  # so that a call of the test is the same as one of these
            redaction = redaction.joined(run.header.redact)
        if self._baseline is not None and self._baseline.http is not None:
            http = self._baseline.http
        self._record = record(self._new, redact=redaction, http=http)
        self._record.ends_refusal = False

    def _check_mode(self, sharing: list[str]) -> None:
        """Whether this run can be written to the baseline."""
        option = f"--agent-baseline={self._mode}"
        if len(self._paths) > 1:
            raise ConfigurationError(
                f"{option}: the test has {len(self._paths)} baselines, and it is not known which of them is meant; "
                "accept a run by `agent-cache drift accept RUN --as PATH`"
            )
        path = self._paths[0]
        if self._mode == "add" and not is_folder_of_runs(path):
            raise ConfigurationError(f"{option}: {path} is the file of one run; to keep several, name a folder")
        if self._mode != "add" and sharing:
            raise ConfigurationError(
                f"{option}: {path} is the baseline of {sharing[0]}, too, so that one would replace what the other has "
                "accepted; use --agent-baseline=add, or give each test its own"
            )

    def _accepted_runs(self) -> list[Path]:
        try:
            return [one for path in self._paths for one in accepted_runs(path)]
        except CassetteNotFound as error:
            if self._mode != "compare":
                return []
            how = "To accept the next run as its baseline:"
            if len(self._paths) > 1:
                text = f"{error.reason}. {how}\n    agent-cache drift accept RUN --as {_quoted(error.path)}"
            else:
                text = f"{error.reason}. {how}\n    {self._command('once')}"
            raise MissingFixture(text, error.path) from None

    def begin(self) -> None:
        """Start to record.

        Raises:
            CassetteError: as `record`.
        """
        self._record.__enter__()
        if self._settings.empty_cache:
            clear_everything()

    def end_passed(self) -> None:
        """Compare the run of a test that has passed, or accept it.

        Raises:
            pytest.fail.Exception: if it has drifted.
            CassetteError: if it could not be recorded, or the baseline cannot be written.
        """
        self._record.end()
        new = Cassette.load(self._new)
        if self._baseline is not None and self._mode in ("compare", "once"):
            report = self._compared(self._baseline, new)
            if self._tolerance.fails(report.drifts):
                pytest.fail(self._text(report), pytrace=False)
        else:
            drifts = () if self._baseline is None else tuple(self._baseline.compare(new))
            if drifts or self._baseline is None:
                self._accept(new, DriftReport(drifts))
        self._new.unlink()

    def _accept(self, new: Cassette, report: DriftReport) -> None:
        stored, removed = store_run(new, self._paths[0], replaces=self._mode == "accept")
        old = f", instead of {len(removed)}" if removed else ""
        counts = ", ".join(f"{number} {severity.name.lower()}" for severity, number in report.counts.items() if number)
        self.accepted.append(f"{self._shown(stored)}{old}{counts and f'; it differs by {counts}'}")

    def end_failed(self, error: BaseException) -> str:
        """End the run of a test that has failed or was skipped. Returns a section of its report."""
        if isinstance(error, pytest.skip.Exception) or self._baseline is None:
            self._record.drop()
            return ""
        try:
            self._record.end(error)
            report = self._compared(self._baseline, Cassette.load(self._new))
        except CassetteError as failure:
            return str(failure)
        return self._text(report) if report.drifts else f"no drift from its {self._title}"

    def _compared(self, baseline: Baseline, new: Cassette) -> DriftReport:
        return DriftReport(tuple(baseline.compare(new, self._tolerance)), len(new))

    def close(self) -> None:
        """Leave the recording. If the test was never called, nothing is kept."""
        self._record.drop()
        self._record.__exit__(None, None, None)

    @property
    def _title(self) -> str:
        return f"baseline {', '.join(map(self._shown, self._paths))}"

    def _text(self, report: DriftReport) -> str:
        fail_on = DriftSeverity.of(self._tolerance.fail_on).name.lower()
        lines = [
            f"The run has drifted from its {self._title} (the test fails on {fail_on}):",
            str(report),
            f"The run is in {self._new}",
        ]
        if len(self._paths) == 1:
            accept = f"agent-cache drift accept {_quoted(self._new)} --as {_quoted(self._shown(self._paths[0]))}"
            lines += ["If it is right, accept it instead of the baseline:", f"    {accept} --replace"]
            if is_folder_of_runs(self._paths[0]):
                lines += ["or beside it, so that what varies between them is tolerated:", f"    {accept} --add"]
        return "\n".join(lines)

    def _shown(self, path: Path) -> str:
        """A path as the commands that are shown take it, from where pytest was started."""
        start = self._item.config.invocation_params.dir
        return str(path.relative_to(start) if path.is_relative_to(start) else path)

    def _command(self, mode: str) -> str:
        record_mode = self._item.config.getoption("agent_record_mode")  # else that of the cassette would be missing
        first = f"--agent-record-mode={record_mode} " if record_mode else ""
        return f"pytest {first}--agent-baseline={mode} {shlex.quote(self._item.nodeid)}"


def _quoted(path: object) -> str:
    return shlex.quote(str(path))


def _tolerance_of(given: Any, fail_on: str | None, folder: Path) -> Tolerance:
    """The tolerance of a marker.

    Raises:
        ConfigurationError: if it is none.
    """
    if given is None:
        tolerance = Tolerance()
    else:
        tolerance = given if isinstance(given, Tolerance) else Tolerance.load(folder / given)
    return tolerance if fail_on is None else replace(tolerance, fail_on=fail_on)
