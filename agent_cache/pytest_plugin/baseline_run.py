"""Compares the run of one test with its baseline, or accepts it. Imported by the first test that has one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_cache.engine.scope import PLACE
from agent_cache.engine.state import clear_everything
from agent_cache.errors import CassetteNotFound, ConfigurationError, MissingFixture
from agent_cache.pytest_plugin.cassette_run import command, shown, tapes_of
from agent_cache.pytest_plugin.markers import Settings, baseline_path, others_with
from agent_cache.recording import Baseline, Cassette, DriftReport, Tolerance, record
from agent_cache.recording.drift import accepted_runs, is_folder_of_runs, store_run
from agent_cache.recording.redaction import redaction_of


class BaselineRun:
    """The run of one test, recorded to a temporary file and compared with accepted ones when the test has passed.

    It is recorded inside of the test's cassette, if there is one, which may answer its calls. Otherwise it is live, and
    `--agent-block-live` refuses it as it would without a baseline.
    """

    def __init__(self, settings: Settings, item: pytest.Item, options: dict[str, Any], folder: Path) -> None:
        self._path, self._settings, self._item = baseline_path(item, options), settings, item
        self._mode = item.config.getoption("agent_baseline")
        given = options.get("tolerance") or Tolerance()
        self._tolerance = given if isinstance(given, Tolerance) else Tolerance.load(item.path.parent / given)
        if "fail_on" in options:
            self._tolerance = msgspec.structs.replace(self._tolerance, fail_on=options["fail_on"])
        self._new = folder / "run.jsonl"
        self.accepted: list[str] = []
        if self._mode != "compare":
            self._check_mode(others_with(item, self._path))
        runs = list(map(Cassette.load, self._accepted_runs()))
        self._baseline = Baseline(*runs) if runs else None
        redaction, http = redaction_of(settings.redact), settings.http
        for tape in tapes_of(PLACE.get().scope):  # the cassette's, which knows what it was recorded with
            redaction = redaction.joined(tape.redaction.without_hook().describe())
            http = http or tape.http
        if self._baseline is not None:  # so that a call of the test is the same as one of these
            redaction = redaction.joined(self._baseline.redaction.describe())
            http = self._baseline.http or http
        self._record = record(self._new, redact=redaction, http=http)
        self._record.ends_refusal = False

    def _check_mode(self, sharing: list[str]) -> None:
        """Whether this run can be written to the baseline."""
        option, path = f"--agent-baseline={self._mode}", self._path
        if self._mode == "add" and not is_folder_of_runs(path):
            raise ConfigurationError(f"{option}: {path} is the file of one run; to keep several, name a folder")
        if self._mode != "add" and sharing:
            raise ConfigurationError(
                f"{option}: {path} is the baseline of {sharing[0]}, too, so that one would replace what the other has "
                "accepted; use --agent-baseline=add, or give each test its own"
            )

    def _accepted_runs(self) -> list[Path]:
        try:
            return list(accepted_runs(self._path))
        except CassetteNotFound as error:
            if self._mode != "compare":
                return []
            how = command(self._item, "once", "--agent-baseline")
            text = f"{error.reason}. To accept the next run as its baseline:\n    {how}"
            raise MissingFixture(text, error.path) from None

    def begin(self) -> None:
        """Start to record."""
        self._record.__enter__()
        if self._settings.empty_cache:
            clear_everything()

    def end_passed(self) -> None:
        """Compare the run of a test that has passed, or accept it."""
        self._record.end()
        new = Cassette.load(self._new)
        if self._baseline is not None and self._mode in ("compare", "once"):
            report = DriftReport(tuple(self._baseline.compare(new, self._tolerance)), len(new))
            if self._tolerance.fails(report.drifts):
                pytest.fail(self._text(report), pytrace=False)
        else:
            drifts = () if self._baseline is None else tuple(self._baseline.compare(new))
            if drifts or self._baseline is None:
                self._accept(new, DriftReport(drifts))
        self._new.unlink()

    def _accept(self, new: Cassette, report: DriftReport) -> None:
        stored, removed = store_run(new, self._path, replaces=self._mode == "accept")
        old = f", instead of {len(removed)}" if removed else ""
        counts = ", ".join(f"{number} {severity.name.lower()}" for severity, number in report.counts.items() if number)
        self.accepted.append(f"{shown(self._item, stored)}{old}{counts and f'; it differs by {counts}'}")

    def end_failed(self, _error: BaseException) -> str:
        """End the run of a test that has failed or was skipped: it is neither compared nor accepted."""
        self._record.drop()
        return ""

    def close(self) -> None:
        """Leave the recording. If the test was never called, nothing is kept."""
        self._record.drop()
        self._record.__exit__(None, None, None)

    def _text(self, report: DriftReport) -> str:
        path = shown(self._item, self._path)
        accept = f"    agent-cache drift accept {shlex.quote(str(self._new))} --as {shlex.quote(path)}"
        lines = [
            f"The run has drifted from its baseline {path} (the test fails on {self._tolerance.fail_on}):",
            f"{report}\nThe run is in {self._new}",
            f"If it is right, accept it instead of the baseline:\n{accept} --replace",
        ]
        if is_folder_of_runs(self._path):
            lines.append(f"or beside it, so that what varies between them is tolerated:\n{accept} --add")
        return "\n".join(lines)
