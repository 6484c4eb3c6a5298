"""`DriftDetector`: tells of a run that goes on what is certain of its drift, and judges it at its end."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.api import observe
from agent_cache.recording.drift import Baseline, Finding, Rule
from agent_cache.recording.drift_events import OF_NUMBER, DriftEvent, DriftReport, DriftSeverity, Tolerance, outcome_of
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.pairing import Run, Step, child_chain, fingerprint

__all__ = ["DriftDetector"]

_LOG = logging.getLogger("agent_cache")


class DriftDetector:
    """Compares a run with a baseline while it goes on: ``AgentCacheSession(drift=detector)``.

    Without a session, it is a listener: ``with observe(detector)``. It serves one run after another; its drifts are
    those of the latest.

    Args:
        baseline: the approved runs, or the path of one.
        tolerance: what is accepted.
        on_drift: is called with each drift, once, in the thread that makes the call, which waits meanwhile. If it
            raises, the error is logged, it is not called again, and the run goes on.

    Attributes:
        redaction, http: those of the baseline, which `observe` applies, so that calls are the same.

    Raises:
        CassetteError: if the baseline cannot be read.
        ConfigurationError: if an argument cannot work.
    """

    def __init__(
        self,
        baseline: Baseline | str | os.PathLike[str],
        *,
        tolerance: Tolerance | None = None,
        on_drift: Callable[[DriftEvent], object] | None = None,
    ) -> None:
        if on_drift is not None and not callable(on_drift):
            raise ConfigurationError(f"DriftDetector: on_drift must be a function, got {on_drift!r}")
        if tolerance is not None and not isinstance(tolerance, Tolerance):
            raise ConfigurationError(f"DriftDetector: tolerance must be a Tolerance, got {tolerance!r}")
        self._baseline = baseline if isinstance(baseline, Baseline) else Baseline.load(baseline)
        self._rule = Rule(self._baseline, Tolerance() if tolerance is None else tolerance, is_lenient=True)
        self._on_drift = on_drift
        self._latest = _Watch(self._rule, None)
        self._is_listening = False
        self.redaction = self._baseline.redaction
        self.http = self._baseline.http

    @property
    def drifts(self) -> list[DriftEvent]:
        """The drifts so far, as far as they are certain; at the end of the run what `Baseline.compare` gives."""
        return list(self._latest.drifts)

    def report(self) -> DriftReport:
        """The drifts with their counts.

        Raises:
            CassetteError: if the run has ended and has nothing in common with the baseline, so nothing can be said.
        """
        watch = self._latest
        if watch.problem is not None:
            raise watch.problem.with_traceback(None)
        return DriftReport(tuple(watch.drifts), watch.count, dict(watch.omitted))

    def attach(self, session_id: str) -> AbstractContextManager[Any]:  # noqa: ARG002 - whatever the name of the run is
        """The block around a session."""
        self._latest = _Watch(self._rule, self._on_drift)
        return observe(self._latest)

    def on_start(self, call: RecordedCall) -> None:
        """A call starts."""
        if not self._is_listening:
            self._latest = _Watch(self._rule, self._on_drift)
            self._is_listening = True
        self._latest.on_start(call)

    def on_end(self, call: RecordedCall) -> None:
        """A call has ended."""
        self._latest.on_end(call)

    def on_close(self, error: BaseException | None) -> None:
        """The run has ended."""
        if not self._is_listening:  # it has made no calls
            self._latest = _Watch(self._rule, self._on_drift)
        self._is_listening = False
        self._latest.on_close(error)


_MORE = 1_000
"""Calls beside those of the baseline that are kept."""


class _Watch:
    """One run that is observed: says at once what is certain of a call, and at the end what the whole run shows.

    It is certain that a call is new if the baseline has none of its arguments that was not made yet, and that its
    outcome is another one if no call of the baseline with its arguments has it. What is missing, or was moved, is known
    at the end. It keeps a step for each call that the baseline has, too, and for as many others, and `_MORE`.

    Attributes:
        drifts: those found so far; at the end, those of the run.
        omitted: by severity, those that are not kept.
        count: number of calls.
        problem: why the run could not be compared, if so.
    """

    def __init__(self, rule: Rule, on_drift: Callable[[DriftEvent], object] | None) -> None:
        self._rule = rule
        self._on_drift = on_drift
        self.redaction = rule.baseline.redaction
        self.http = rule.baseline.http
        self.drifts: list[DriftEvent] = []
        self.omitted: Counter[DriftSeverity] = Counter()
        self.count = 0
        self.problem: CassetteError | None = None
        self._limit = 2 * len(rule.steps) + _MORE
        self._run = Run()
        self._position = 0
        self._inside: dict[int, int] = {}
        self._open: dict[int, Step] = {}
        self._made: Counter[Hashable] = Counter()  # calls by key
        self._unmade: dict[tuple[int, str], list[Step]] = {}  # of the baseline, that no new call was shown beside
        self._others = 0
        self._told: set[tuple[Any, ...]] = set()
        self._few = 0
        self._withheld: list[DriftEvent] = []
        for step in reversed(rule.steps):
            self._unmade.setdefault((step.chain, step.name), []).append(step)

    def on_start(self, call: RecordedCall) -> None:
        """Count a call, and tell if it is new."""
        self._position += 1
        lane = self._run.lane_of(call.lane, call.forked, self._limit)
        if call.kind == "env":
            return
        self.count += 1
        chains, inside = self._rule.baseline._chains, self._inside
        chain = 0 if call.parent is None else inside.get(call.parent, -1)
        inner = child_chain(chains, chain, call.name, learn=False)
        if inner >= 0:
            inside[call.id] = inner
            if len(inside) > self._limit:
                del inside[next(iter(inside))]
        step = Step.of(self.count, call.id - 1, call, chain, lane, self._position)
        step.digest = self._rule.digest(call)
        self._open[call.id] = step
        if step.key in self._rule.asked or len(self._made) < self._limit:
            self._made[step.key] += 1
        if step.kind != "tool" or step.name in self._rule.names:  # else its end says if it is a write
            self._tell_new(step, call)

    def on_end(self, call: RecordedCall) -> None:
        """Compare the outcome of a call."""
        self._position += 1
        if call.kind == "env":
            return
        rule, step = self._rule, self._open.pop(call.id)
        step.end = self._position
        was_told = step.kind != "tool" or step.name in rule.names
        step.is_write = call.is_write
        step.outcome = fingerprint(call.outcome)
        self._run.tokens += call.input_tokens + call.output_tokens
        self._run.forms.add(call.form)
        if not was_told:
            self._tell_new(step, call)
        same = rule.asked.get(step.key, ())
        twin = next((one for one in same if one.outcome == step.outcome), None)
        if twin is not None and not rule.patterns(step.name).of_arguments:
            step.twin = twin.number
        else:
            step.call = call
        if twin is None:
            self._tell_outcome(step, same, call)
        self._others += not same
        if same or self._others <= len(rule.steps) + _MORE:
            self._run.steps.append(step)

    def on_close(self, error: BaseException | None) -> None:  # noqa: ARG002 - however it ended
        """Judge the whole run."""
        run, rule = self._run, self._rule
        run.steps.sort(key=lambda step: step.start)
        for number, step in enumerate(run.steps):
            step.number = number
        certain, self.drifts = self.drifts, []
        try:
            findings, pairing = rule.findings(run, self._fetch)
            rule.check_comparable(run, pairing, "")
        except CassetteError as problem:
            self.problem, self.drifts = problem, certain
            return
        for event in rule.events(findings, run, self._fetch):
            self.drifts.append(event)
            self._show(event)
        self._run = Run()

    def _fetch(self, step: Step) -> RecordedCall:
        return step.call if step.call is not None else self._rule.baseline._call(self._rule.steps[step.twin])

    def _tell_new(self, step: Step, call: RecordedCall) -> None:
        """Tell of a call that the baseline does not make, or less often."""
        rule, asked = self._rule, self._rule.asked.get(step.key)
        if asked is not None:
            if self._made[step.key] > len(asked):
                self._tell(Finding("repeated", None, step), call)
            return
        unmade = self._unmade.get((step.chain, step.name), [])
        while unmade and self._made[unmade[-1].key] >= len(rule.asked[unmade[-1].key]):
            unmade.pop()
        if not unmade:
            self._tell(Finding("extra", None, step), call)
            return
        where = rule.changes(unmade[-1], rule.baseline._call(unmade[-1]), call)
        found = unmade.pop()
        if where:
            self._tell(Finding("arguments", found, step, where), call)

    def _tell_outcome(self, step: Step, same: Sequence[Step], call: RecordedCall) -> None:
        found = [self._rule.outcome(one, call, step) for one in same]
        if same and len(found) == len(list(filter(None, found))) and found[0] is not None:
            self._tell(found[0], call)
        elif not same and (error := outcome_of(call.outcome))[0] == "error":
            self._tell(Finding("error", None, step, {("error",): (None, error[1])}), call)

    def _tell(self, finding: Finding, call: RecordedCall) -> None:
        event = self._rule.event(finding, lambda _: call)
        accepted = self._rule.tolerance.calls
        if accepted and finding.kind in OF_NUMBER and not self._rule.is_write(finding.shown):
            self._few += 1
            if self._few <= accepted:
                self._withheld.append(event)
                return
        events, self._withheld = [*self._withheld, event], []
        for one in events:
            if finding.step is None and self._others >= len(self._rule.steps) + _MORE:
                self.omitted[one.severity] += 1
                self._call_back(one)
            else:
                self.drifts.append(one)
                self._show(one)

    def _show(self, event: DriftEvent) -> None:
        """Pass an event on, unless it was."""
        identity = event.severity, event.kind, event.name, event.call_id, event.path, event.description
        if identity not in self._told:
            self._told.add(identity)
            self._call_back(event)

    def _call_back(self, event: DriftEvent) -> None:
        if self._on_drift is None:
            return
        try:
            self._on_drift(event)
        except Exception:  # noqa: BLE001 - the user's; a detector changes nothing for the run
            self._on_drift = None
            _LOG.exception("on_drift raised, and is not called again in this run")
