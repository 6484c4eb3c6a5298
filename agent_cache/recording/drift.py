"""Drift: where a run differs from the runs that were approved, and how much that matters.

A `Baseline` is one approved recording or several, and judges another recording; a `DriftDetector` says of a run that
goes on what is certain, and judges it at its end. Both follow one rule, which `docs/explanation/drift.md` describes.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self

from agent_cache.core.tags import meet
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.accepted_runs import accepted_runs
from agent_cache.recording.api import observe, recorded_http
from agent_cache.recording.cassette import Cassette, recorded_rules, redact_call
from agent_cache.recording.drift_events import (
    DriftEvent,
    DriftReport,
    DriftSeverity,
    Places,
    Tolerance,
    is_named,
    listed,
    outcome_of,
    places_of,
    places_pattern,
    pruned,
    shown_call,
    shown_paths,
    shown_places,
    shown_value,
)
from agent_cache.recording.file import Header, RecordedCall
from agent_cache.recording.outcomes import encode_sorted
from agent_cache.recording.pairing import Pairing, Step, fingerprint, pair_runs, read_run
from agent_cache.recording.redaction import Redaction

_LOG = logging.getLogger("agent_cache")

_MAX_PLACES = 20
"""Changed places of arguments up to which they are counted."""
_PASSES = 6
_MORE = 1_000
"""Calls and drifts beside those of the baseline that a detector keeps."""


@dataclass(slots=True)
class _Learned:
    """What varies between the recordings of a baseline.

    Attributes:
        places: by name of a function, places in its arguments, results and errors.
        optional: numbers of the calls that not all of them make.
        any_outcome: numbers of the calls that raise in some and not in others.
        free: numbers of the calls that are not always in one order.
    """

    places: dict[str, set[str]] = field(default_factory=dict)
    optional: set[int] = field(default_factory=set)
    any_outcome: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)


class _Finding(NamedTuple):
    """A drift, with the calls that show it: of the baseline and of the new run, and those that one was moved over."""

    kind: str
    step: Step | None
    other: Step | None
    where: Places = {}  # noqa: RUF012 - never changed
    over: Sequence[Step] = ()

    @property
    def shown(self) -> Step:
        found = self.other or self.step
        assert found is not None
        return found

    @property
    def is_of_number(self) -> bool:
        return self.kind in ("missing", "extra", "repeated")


class _Rule:
    """Finds the drifts of a run from one baseline, with one tolerance, and says how much they matter.

    Args:
        baseline, tolerance: these two.
        is_lenient: a function of `same_arguments` that raises is logged and not asked again, since a run goes on.
    """

    def __init__(self, baseline: Baseline, tolerance: Tolerance, *, is_lenient: bool = False) -> None:
        self.baseline = baseline
        self.tolerance = tolerance
        self.learned = baseline._learned
        self.names = {step.call.name for step in baseline._steps}
        self.writes = {step.call.name for step in baseline._steps if step.call.is_write}
        self._is_lenient = is_lenient
        self._patterns: dict[str, re.Pattern[str] | None] = {}
        self._same = dict(tolerance.same_arguments)
        self.steps = self.keyed(baseline._steps)
        self.asked: dict[Hashable, list[Step]] = {}
        for step in self.steps:
            self.asked.setdefault(step.key, []).append(step)

    def free_places(self, name: str) -> re.Pattern[str] | None:
        """Matches the places that may differ in the calls of a function."""
        if name not in self.names:  # of other names there may be any number
            return None
        if name not in self._patterns:
            paths = [*self.learned.places.get(name, ()), *self.tolerance.ignored(name)]
            self._patterns[name] = places_pattern(paths)
        return self._patterns[name]

    def digest(self, call: RecordedCall) -> Hashable:
        """What identifies a call beside its chain."""
        places = self.free_places(call.name)
        if places is None or call.key is not None or "arguments" not in places.pattern:
            return call.digest + call.asker
        identity = [call.name, pruned(call.arguments, "arguments", places), call.asker]
        return blake2b(encode_sorted(identity)).digest()

    def keyed(self, steps: Sequence[Step]) -> list[Step]:
        """Copies of these steps that are the same call where only places differ that may."""
        return [replace(step, key=(step.chain, self.digest(step.call))) for step in steps]

    def is_write(self, step: Step) -> bool:
        """Whether a call is a write, also one that has not ended, or was refused."""
        return step.call.is_write or step.call.name in self.writes

    def changes(self, was: RecordedCall, now: RecordedCall) -> Places:
        """Where the arguments of two calls of one function differ; nowhere if they are the same call."""
        pattern = next((one for one in self._same if is_named(was.name, one)), None)
        if pattern is not None and was.asker == now.asker:
            try:
                if self._same[pattern](was.arguments, now.arguments):
                    return {}
            except Exception as error:
                if not self._is_lenient:
                    raise ConfigurationError(f"Tolerance: same_arguments of {was.name!r} raised {error!r}") from error
                del self._same[pattern]
                _LOG.exception("same_arguments of %s raised, and is not asked again", was.name)
        found = places_of(was.arguments, now.arguments, "arguments", _MAX_PLACES)
        if was.key != now.key and not found:
            found["arguments"] = was.key, now.key
        if was.asker != now.asker:
            found["asker"] = was.asker or None, now.asker or None
        return self._counted(was.name, found)

    def _counted(self, name: str, where: Places) -> Places:
        places = self.free_places(name)
        return where if places is None else {at: one for at, one in where.items() if not places.match(at)}

    # The drifts of a run

    def findings(self, steps: Sequence[Step], path: object = "") -> tuple[list[_Finding], Pairing]:
        """All drifts of a run that has ended, in its order; what is missing comes last."""
        names = {step.call.name for step in steps}
        has_own_keys = any("arguments" in places.pattern for places in map(self.free_places, names) if places)
        run = self.keyed(steps) if has_own_keys else steps
        pairing = pair_runs(self.steps, run, lambda one, other: len(self.changes(one.call, other.call)))
        self._check_comparable(run, pairing, path)
        learned, found = self.learned, list[_Finding]()
        for one, other in pairing.changed:
            found.append(_Finding("arguments", one, other, self.changes(one.call, other.call)))
            if (finding := self.outcome(one, other)) is not None and finding.kind == "error":
                found.append(finding)
        for other in pairing.right:
            found.append(_Finding("repeated" if other.key in self.asked else "extra", None, other))
            if (error := outcome_of(other.call.outcome))[0] == "error":
                found.append(_Finding("error", None, other, {"error": (None, error[1])}))
        for one, other in pairing.same:
            if one.outcome != other.outcome and (finding := self.outcome(one, other)) is not None:
                found.append(finding)
        for one, other, over in pairing.moved:
            judged = [step for step in over if step.number not in learned.free]
            if judged and one.number not in learned.free:
                found.append(_Finding("order", one, other, {}, judged))
        found.sort(key=lambda finding: finding.shown.number)
        found += [_Finding("missing", one, None) for one in pairing.left if one.number not in learned.optional]
        return found, pairing

    def outcome(self, step: Step, other: Step) -> _Finding | None:
        """How the outcome of a call differs."""
        was_state, was = outcome_of(step.call.outcome)
        state, now = outcome_of(other.call.outcome)
        if step.number in self.learned.any_outcome or was_state == "unfinished":
            return None
        if "error" in (state, was_state) and (state != was_state or _type_of(was) != _type_of(now)):
            both = was if was_state == "error" else None, now if state == "error" else None
            where = self._counted(step.call.name, {"error": both})
            return _Finding("error", step, other, where) if where else None
        if state != was_state:
            where = {"result": (was_state, state)}
        else:
            where = places_of(was, now, "error" if state == "error" else "result")
        where = self._counted(step.call.name, where)
        return _Finding("result", step, other, where) if where else None

    def _check_comparable(self, run: Sequence[Step], pairing: Pairing, path: object) -> None:
        if run and not pairing.same and all(one.call.kind == "llm" for one, _ in pairing.changed):
            names = {step.call.name for step in self.steps if step.call.kind != "llm"}
            names_new = {step.call.name for step in run if step.call.kind != "llm"}
            if names.isdisjoint(names_new) and ((names and names_new) or not pairing.changed):
                raise CassetteError(
                    "has no call in common with its baseline, so it is of another agent: it calls "
                    f"{listed(step.call.name for step in run)}, and the baseline "
                    f"{listed(step.call.name for step in self.steps)}",
                    str(path),
                )

    # Events

    def event(self, finding: _Finding, *, again: bool = False) -> DriftEvent:
        """The event of a finding; `again`: the new run makes a call that is missing another time."""
        kind, step, _, where, over = finding
        call = finding.shown.call
        shown = shown_call(call)
        is_write = self.is_write(finding.shown) or (step is not None and self.is_write(step))
        severity = DriftSeverity.CRITICAL if is_write else DriftSeverity.WARNING
        was: Any = {at: one for at, (one, _) in where.items()}
        now: Any = {at: one for at, (_, one) in where.items()}
        if len(where) < 2:
            was, now = next(iter(where.values()), (None, None))
        match kind:
            case "arguments":
                text = f"{shown} was called with other arguments: {shown_places(where)}"
            case "missing":
                severity = DriftSeverity.INFO if again and not is_write else severity
                text = f"{shown} was {'made less often' if again else 'not made'}"
                was = call.arguments
            case "extra":
                text = f"{shown} was made, and is not in the baseline"
                now = call.arguments
            case "repeated":
                severity = severity if is_write else DriftSeverity.INFO
                text = f"{shown} was made more often than in the baseline"
                now = call.arguments
            case "order":
                assert step is not None
                severity = max(_severity_of_order(step.call, one.call) for one in over)
                sides = ("before", "after") if step.number < over[0].number else ("after", "before")
                was, now = (f"{side} {shown_call(over[0].call)}" for side in sides)
                text = f"{shown} came {now}, and in the baseline {sides[0]} it"
            case "error" if now is None:
                text = f"{shown} no longer raises {shown_value(was)}"
            case "error":
                severity = DriftSeverity.CRITICAL
                before = "did not" if was is None else shown_value(was)
                text = f"{shown} raised {shown_value(now)}, and in the baseline {before}"
            case _:
                text = f"{shown} had another outcome: {shown_places(where)}"
        return DriftEvent(severity, kind, call.name, text, was, now, call.kind, call.id, shown_paths(where))

    def events(self, findings: Sequence[_Finding], run: Sequence[Step]) -> Iterator[DriftEvent]:
        """The events of a whole run, with those of its tokens."""
        has_missing = any(one.kind == "missing" for one in findings)
        made = {(step.chain, self.digest(step.call)) for step in run} if has_missing else set()
        few = [one for one in findings if one.is_of_number and not self.is_write(one.shown)]
        accepted = {id(one) for one in few} if len(few) <= self.tolerance.calls else set()
        for one in findings:
            if id(one) not in accepted:
                yield self.event(one, again=one.step is not None and one.step.key in made)
        part, tokens, (least, most) = self.tolerance.tokens, _tokens_of(run), self.baseline._tokens
        if part is None or not tokens or not least or least * (1 - part) <= tokens <= most * (1 + part):
            return
        was = most if tokens > most else least
        text = (
            f"the model calls of the run took {tokens:,} tokens, and in the baseline {was:,}: {tokens / was - 1:+.0%}, "
            f"of which {part:.0%} are accepted"
        )
        severity = DriftSeverity.WARNING if tokens > was else DriftSeverity.INFO
        yield DriftEvent(severity, "tokens", "", text, was, tokens, "run")


def _type_of(error: Any) -> Any:
    return error.get("type") if isinstance(error, dict) else None


def _tokens_of(run: Sequence[Step]) -> int:
    return sum(step.call.input_tokens + step.call.output_tokens for step in run)


def _severity_of_order(one: RecordedCall, other: RecordedCall) -> DriftSeverity:
    if one.is_write and other.is_write:
        if not one.tags or not other.tags or any(meet(tag, tag2) for tag in one.tags for tag2 in other.tags):
            return DriftSeverity.CRITICAL
        return DriftSeverity.INFO
    return DriftSeverity.WARNING if one.is_write or other.is_write else DriftSeverity.INFO


class Baseline:
    """The approved recordings of a run. What varies between several of them is accepted.

    Args:
        cassettes: recordings of the same task.

    Attributes:
        redaction: the rules that all of them were recorded with, together.
        http: what of the run's HTTP they have, or None.

    Raises:
        CassetteError: if one cannot serve as a baseline, with the reason.
        ConfigurationError: if there is none.
    """

    def __init__(self, *cassettes: Cassette) -> None:
        if not cassettes:
            raise ConfigurationError("Baseline: needs a recording")
        self._paths: list[str] = []
        self.redaction = Redaction()
        for cassette in cassettes:
            if not isinstance(cassette, Cassette):
                raise ConfigurationError(f"Baseline: takes cassettes, got {cassette!r}; Baseline.load takes paths")
            if cassette.is_partial:
                raise CassetteError("is partial, so calls may be missing in it; record it again", cassette.path)
            self._paths.append(cassette.path)
            self.redaction = self.redaction.joined(recorded_rules(cassette))
        self.http = next(filter(None, map(recorded_http, cassettes)), None)
        runs = [self._read(cassette) for cassette in cassettes]
        for run, path in zip(runs, self._paths, strict=True):
            if not run:
                raise CassetteError("has no calls, so nothing can be compared with it", path)
        self._steps = [replace(step, number=number) for number, step in enumerate(runs[0])]
        self._first = len(self._steps)
        self._tokens = min(map(_tokens_of, runs)), max(map(_tokens_of, runs))
        self._learned = _Learned()
        if len(runs) > 1:
            self._learn(runs)
        self._rule: _Rule | None = None

    @classmethod
    def load(cls, *paths: str | os.PathLike[str]) -> Self:
        """Load recordings.

        Args:
            paths: their files, or folders, of which every ``*.jsonl`` directly in it is one: the accepted runs.

        Raises:
            CassetteError: if one cannot be read, or cannot serve as a baseline.
        """
        return cls(*(Cassette.load(run) for path in paths for run in accepted_runs(Path(path))))

    def compare(self, new: Cassette | str | os.PathLike[str], tolerance: Tolerance | None = None) -> list[DriftEvent]:
        """The drifts of another recording, in its order; what is missing in it comes last.

        Raises:
            CassetteError: if the two have nothing in common, or cannot be compared for another reason.
            ConfigurationError: if a function of the tolerance raises.
        """
        return self.compare_calls(new, tolerance)[0]

    def compare_calls(
        self, new: Cassette | str | os.PathLike[str], tolerance: Tolerance | None = None
    ) -> tuple[list[DriftEvent], list[tuple[int, int]]]:
        """The drifts of another recording, as `compare` gives them, and which of its calls is which."""
        other = new if isinstance(new, Cassette) else Cassette.load(new)
        rule = self._rule
        if rule is None or (tolerance is not None and rule.tolerance is not tolerance):
            rule = self._rule = _Rule(self, tolerance or Tolerance())
        run = self._read(other)
        findings, pairing = rule.findings(run, other.path)
        both = [*pairing.same, *pairing.changed]
        pairs = sorted((step.index, mine.index) for step, mine in both if step.number < self._first)
        return list(rule.events(findings, run)), pairs

    def _read(self, cassette: Cassette) -> list[Step]:
        """The calls that count, redacted as the baseline is if they were recorded with fewer rules."""
        own = Redaction().joined(recorded_rules(cassette))
        rules = self.redaction.joined(recorded_rules(cassette))
        is_same = rules.describe() == own.describe()
        steps = read_run(cassette, (lambda call: call) if is_same else (lambda call: redact_call(call, rules)))
        return [step for step in steps if step.call.kind != "env"]

    def _learn(self, runs: Sequence[Sequence[Step]]) -> None:
        """Accept what varies: judge each recording, and accept what is found, until nothing is."""
        for _ in range(_PASSES):
            is_settled = True
            for run, path in zip(runs, self._paths, strict=True):
                try:
                    findings, pairing = _Rule(self, Tolerance(tokens=None)).findings(run)
                except CassetteError as error:
                    text = f"cannot be a baseline together with the others: it {error.reason}"
                    raise CassetteError(text, path) from error
                is_settled &= not findings
                for finding in findings:
                    self._accept(finding, pairing)
            if is_settled:
                break

    def _accept(self, finding: _Finding, pairing: Pairing) -> None:
        learned, (kind, step, other, where, _) = self._learned, finding
        if step is None:
            if kind != "error":
                assert other is not None
                self._add(other, pairing)
        elif kind == "missing":
            learned.optional.add(step.number)
        elif kind == "order":
            learned.free.add(step.number)
        elif kind == "error":
            learned.any_outcome.add(step.number)
        elif kind == "arguments" and any(_is_constant(step.call.name, place, pairing) for place in where):
            assert other is not None
            learned.optional.add(step.number)
            self._add(other, pairing)
        else:
            learned.places.setdefault(step.call.name, set()).update(where)

    def _add(self, other: Step, pairing: Pairing) -> None:
        """Accept a call that only a later recording makes."""
        lanes = {mine.lane: step.lane for step, mine in pairing.same}
        number = len(self._steps)
        self._steps.append(replace(other, number=number, lane=lanes.get(other.lane, -1 - number)))
        self._learned.optional.add(number)
        self._learned.free.add(number)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<Baseline of {', '.join(path or 'a cassette' for path in self._paths)}>"


def _is_constant(name: str, place: str, pairing: Pairing) -> bool:
    """Whether another call of the function has the same value there in both runs: then it is no volatile field."""
    pattern, none = places_pattern([place]), re.compile(r"(?!)")
    assert pattern is not None
    calls = (step.call.arguments for step, _ in pairing.same if step.call.name == name)
    return any(pruned(one, "arguments", pattern) != pruned(one, "arguments", none) for one in calls)


# Runs that go on


class DriftDetector:
    """Compares a run with a baseline while it goes on: ``AgentCacheSession(drift=detector)``.

    Without a session, it is a listener: ``with observe(detector)``. It serves one run after another; its drifts are
    those of the latest. It is certain that a call is new if the baseline has none of its arguments that was not made
    yet, and that its outcome is another one if no call of the baseline with its arguments has it. The rest is known at
    the end of the run. Of calls that are new, and of their drifts, it keeps as many as the baseline has, and 1,000.

    Args:
        baseline: the approved runs, or the path of one.
        tolerance: what is accepted.
        on_drift: is called with each drift, once, in the thread that makes the call, which waits meanwhile. If it
            raises, the error is logged, it is not called again in this run, and the run goes on.

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
        found = baseline if isinstance(baseline, Baseline) else Baseline.load(baseline)
        self._rule = _Rule(found, tolerance or Tolerance(), is_lenient=True)
        self._limit = len(self._rule.steps) + _MORE
        self._given_on_drift = on_drift
        self.redaction, self.http = found.redaction, found.http
        self._begin()
        self._is_running = False

    def _begin(self) -> None:
        self._latest = self
        self._is_running = True
        self._on_drift = self._given_on_drift
        self._drifts: list[DriftEvent] = []
        self._omitted: Counter[DriftSeverity] = Counter()
        self._problem: CassetteError | None = None
        self._count = self._new = self._few = 0
        self._calls: list[RecordedCall] = []
        self._chains: dict[int, tuple[str, ...]] = {}
        self._made: Counter[Hashable] = Counter()
        self._told: set[tuple[Any, ...]] = set()
        self._unmade: dict[Hashable, list[Step]] = {}  # calls of the baseline that no new one was shown beside
        for step in reversed(self._rule.steps):
            self._unmade.setdefault((step.chain, step.call.name), []).append(step)

    @property
    def drifts(self) -> list[DriftEvent]:
        """The drifts so far, as far as they are certain; at the end of the run what `Baseline.compare` gives."""
        return list(self._latest._drifts)

    def report(self) -> DriftReport:
        """The drifts with their counts.

        Raises:
            CassetteError: if the run has ended and has nothing in common with the baseline, so nothing can be said.
        """
        run = self._latest
        if run._problem is not None:
            raise run._problem.with_traceback(None)
        return DriftReport(tuple(run._drifts), run._count, dict(run._omitted))

    def attach(self, session_id: str) -> AbstractContextManager[Any]:  # noqa: ARG002 - whatever the name of the run is
        """The block around a session."""
        self._latest = run = copy(self)  # several sessions may run at once
        run._begin()
        return observe(run)

    def on_start(self, call: RecordedCall) -> None:
        """A call starts."""
        if not self._is_running:
            self._begin()
        if call.kind != "env":
            self._count += 1
            chain = () if call.parent is None else self._chains.get(call.parent, ("",))
            self._chains[call.id] = (*chain, call.name)
            if len(self._chains) > 2 * self._limit:
                del self._chains[next(iter(self._chains))]

    def on_end(self, call: RecordedCall) -> None:
        """A call has ended: tell what is certain of it."""
        if call.kind == "env":
            return
        rule, chain = self._rule, self._chains.get(call.id, ("",))[:-1]
        key = chain, rule.digest(call)
        step = Step(call, self._count, 0, chain, key, call.lane, 0, 0, fingerprint(call.outcome))
        same = rule.asked.get(key, [])
        self._made[key] += bool(same)
        is_new = self._made[key] > len(same) or not same
        self._new += is_new
        if not same:
            self._tell_new(step)
        elif is_new:
            self._tell(_Finding("repeated", None, step))
        if not any(one.outcome == step.outcome for one in same):
            found = [rule.outcome(one, step) for one in same]
            if same and all(found) and found[0] is not None:
                self._tell(found[0])
            elif not same and (error := outcome_of(call.outcome))[0] == "error":
                self._tell(_Finding("error", None, step, {"error": (None, error[1])}))
        if not is_new or self._new <= self._limit:
            self._calls.append(call)

    def on_close(self, error: BaseException | None) -> None:  # noqa: ARG002 - however it ended
        """The run has ended: judge all of it, as its recording would be."""
        if not self._is_running:
            self._begin()
        self._is_running = False
        cassette = Cassette(self._calls)
        cassette.header = Header(log=True)
        run = read_run(cassette)
        self._calls = []
        try:
            findings, _ = self._rule.findings(run)
        except CassetteError as problem:
            self._problem = problem
            return
        self._drifts = list(self._rule.events(findings, run))
        for event in self._drifts:
            self._show(event)

    def _tell_new(self, step: Step) -> None:
        rule, call = self._rule, step.call
        unmade = self._unmade.get((step.chain, call.name), [])
        while unmade and self._made[unmade[-1].key] >= len(rule.asked[unmade[-1].key]):
            unmade.pop()
        if not unmade:
            self._tell(_Finding("extra", None, step))
            return
        other = unmade.pop()
        if where := rule.changes(other.call, call):
            self._tell(_Finding("arguments", other, step, where))

    def _tell(self, finding: _Finding) -> None:
        if finding.is_of_number and not self._rule.is_write(finding.shown):
            self._few += 1
            if self._few <= self._rule.tolerance.calls:  # the end says whether they are too many
                return
        event = self._rule.event(finding)
        if finding.step is None and self._new > self._limit:
            self._omitted[event.severity] += 1
        else:
            self._drifts.append(event)
        self._show(event)

    def _show(self, event: DriftEvent) -> None:
        """Pass an event on, unless it was."""
        identity = event.severity, event.kind, event.name, event.call_id, event.path, event.description
        if self._on_drift is None or identity in self._told:
            return
        if len(self._told) < 2 * self._limit:
            self._told.add(identity)
        try:
            self._on_drift(event)
        except Exception:  # noqa: BLE001 - the user's; a detector changes nothing for the run
            self._on_drift = None
            _LOG.exception("on_drift raised, and is not called again in this run")
