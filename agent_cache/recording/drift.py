"""Drift: where a run differs from the runs that were approved, and how much that matters.

A `Baseline` is one approved recording or several. `Baseline.compare` judges another recording by it;
`drift_detector.DriftDetector` says of a run that goes on what is certain, and judges it at its end. Both follow one
`Rule` (`pairing` finds which call is which): `docs/explanation/drift.md` describes it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from agent_cache.core.tags import meet
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.accepted_runs import accepted_runs
from agent_cache.recording.api import recorded_http
from agent_cache.recording.cassette import Cassette, recorded_rules, redact_call
from agent_cache.recording.drift_events import (
    IGNORED,
    MAX_PLACES,
    MAX_SHOWN,
    OF_NUMBER,
    DriftEvent,
    DriftSeverity,
    Tolerance,
    error_of,
    is_named,
    listed,
    outcome_of,
    shown_call,
    shown_error,
    shown_places,
    shown_value,
    type_of,
    values_of,
)  # fmt: skip
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import encode_sorted
from agent_cache.recording.pairing import (
    Chains,
    Difference,
    Pairing,
    Patterns,
    Position,
    Run,
    Step,
    differences,
    moved_steps,
    pair_runs,
    parsed_path,
    pruned,
    read_run,
    shown_path,
)
from agent_cache.recording.redaction import Redaction

__all__ = ["Baseline", "Finding", "Rule"]

_LOG = logging.getLogger("agent_cache")


# The rule


@dataclass(slots=True)
class _Learned:
    """What varies between the recordings of a baseline.

    Attributes:
        places: by name of a function, places in its arguments, results and errors.
        optional: numbers of the calls that not all of them make.
        any_outcome: numbers of the calls that raise in some and not in others.
        free: numbers of the calls that are not always in one order.
    """

    places: dict[str, set[Position]] = field(default_factory=dict)
    optional: set[int] = field(default_factory=set)
    any_outcome: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Finding:
    """A drift, with the calls that show it.

    Attributes:
        kind: as in `DriftEvent`.
        step: of the baseline.
        other: of the new run.
        where: the places that differ.
        over: the calls of the baseline that one was moved over.
    """

    kind: str
    step: Step | None = None
    other: Step | None = None
    where: Mapping[Position, Difference] = field(default_factory=dict)
    over: Sequence[Step] = ()

    @property
    def shown(self) -> Step:
        """The call that people are shown: of the new run, if it has one."""
        found = self.step if self.other is None else self.other
        assert found is not None
        return found


class Rule:
    """The rule, for one baseline and one tolerance: it finds the drifts of a run, and says how much they matter.

    Args:
        baseline, tolerance: these two.
        is_lenient: a function of `same_arguments` that raises is logged and not asked again, since a run goes on.
    """

    def __init__(self, baseline: Baseline, tolerance: Tolerance, *, is_lenient: bool = False) -> None:
        self.baseline = baseline
        self.tolerance = tolerance
        self.learned = baseline._learned
        self.names = {step.name for step in baseline._run.steps}
        self.writes = {step.name for step in baseline._run.steps if step.is_write}
        self._is_lenient = is_lenient
        self._ignored: list[tuple[str, Position]] = []
        for one in tolerance.ignore:
            parts = IGNORED.fullmatch(one)
            assert parts is not None
            self._ignored.append((parts["tool"], parsed_path(parts["path"])))
        self._patterns: dict[str, Patterns] = {}
        self._same: dict[str, Callable[[dict[str, Any], dict[str, Any]], bool] | None] = {}
        self.steps = [self._keyed(step) for step in baseline._run.steps]
        self.asked: dict[Hashable, list[Step]] = {}
        for step in self.steps:
            self.asked.setdefault(step.key, []).append(step)

    # What counts

    def patterns(self, name: str) -> Patterns:
        """The places that may differ in the calls of a function."""
        found = self._patterns.get(name)
        if found is None:
            places = list(self.learned.places.get(name, ()))
            places += [place for pattern, place in self._ignored if is_named(name, pattern)]
            found = self._patterns[name] = Patterns(places)
        return found

    def digest(self, call: RecordedCall) -> Hashable:
        """What identifies a call beside its chain."""
        if call.name not in self.names or call.key is not None:  # of other names there may be any number
            return call.digest + call.asker
        patterns = self.patterns(call.name)
        if not patterns.of_arguments:
            return call.digest + call.asker
        identity = [call.name, pruned(call.arguments, ("arguments",), patterns), call.asker]
        return blake2b(encode_sorted(identity)).digest()

    def _keyed(self, step: Step) -> Step:
        if not self.patterns(step.name).of_arguments:
            return step
        return replace(step, digest=self.digest(self.baseline._call(step)))

    def is_write(self, step: Step) -> bool:
        """Whether a call is a write, also one that has not ended, or was refused."""
        return step.is_write or step.name in self.writes

    def changes(self, step: Step, was: RecordedCall, now: RecordedCall) -> dict[Position, Difference]:
        """Where the arguments of two calls of one function differ; nowhere if they are the same call."""
        same = self._same_arguments(step.name)
        if same is not None:
            try:
                if was.asker == now.asker and same(was.arguments, now.arguments):
                    return {}
            except Exception as error:
                if not self._is_lenient:
                    raise ConfigurationError(f"Tolerance: same_arguments of {step.name!r} raised {error!r}") from error
                self._same[step.name] = None
                _LOG.exception("same_arguments of %s raised, and is not asked again", step.name)
        found = differences(was.arguments, now.arguments, "arguments", MAX_PLACES)
        if was.key != now.key and not found:
            found["arguments",] = was.key, now.key
        if was.asker != now.asker:
            found["asker",] = was.asker or None, now.asker or None
        patterns = self.patterns(step.name)
        return {place: one for place, one in found.items() if not patterns.have(place)} if patterns else found

    def _same_arguments(self, name: str) -> Callable[[dict[str, Any], dict[str, Any]], bool] | None:
        if name not in self._same:
            functions = self.tolerance.same_arguments
            self._same[name] = next((functions[one] for one in functions if is_named(name, one)), None)
        return self._same[name]

    # The drifts of a run

    def findings(self, run: Run, fetch: Callable[[Step], RecordedCall]) -> tuple[list[Finding], Pairing]:
        """All drifts of a run that has ended, in its order; what is missing comes last.

        Args:
            run: its calls.
            fetch: gives the call of a step of the run.

        Raises:
            ConfigurationError: if a function of `same_arguments` raises.
        """
        call_of = self.baseline._call
        base = Run(self.steps, self.baseline._run.parents)
        pairing = pair_runs(base, run, lambda step, other: self.changes(step, call_of(step), fetch(other)))
        found: list[Finding] = []
        for step, other, where in pairing.changed:
            found.append(Finding("arguments", step, other, where))
            if (finding := self.outcome(step, fetch(other), other)) is not None and finding.kind == "error":
                found.append(finding)
        for other in pairing.right:
            found.append(Finding("repeated" if other.key in self.asked else "extra", None, other))
            if (error := outcome_of(fetch(other).outcome))[0] == "error":
                found.append(Finding("error", None, other, {("error",): (None, error[1])}))
        for step, other in pairing.matched:
            if step.outcome != other.outcome and (finding := self.outcome(step, fetch(other), other)) is not None:
                found.append(finding)
        for step, other, over in moved_steps(pairing, self.learned.free):
            found.append(Finding("order", step, other, {}, over))
        found.sort(key=lambda one: -1 if one.other is None else one.other.number)
        found += [Finding("missing", step) for step in pairing.left if step.number not in self.learned.optional]
        return found, pairing

    def outcome(self, step: Step, call: RecordedCall, other: Step) -> Finding | None:
        """How the outcome of a call differs."""
        if step.number in self.learned.any_outcome:
            return None
        was_state, was = outcome_of(self.baseline._call(step).outcome)
        state, now = outcome_of(call.outcome)
        if was_state == "unfinished":
            return None
        patterns = self.patterns(step.name)
        if "error" in (state, was_state) and (state != was_state or type_of(was) != type_of(now)):
            if patterns.have(("error",)):
                return None
            return Finding("error", step, other, {("error",): (error_of(was_state, was), error_of(state, now))})
        if state != was_state:
            where: dict[Position, Difference] = {("result",): (was_state, state)}
        else:
            where = differences(was, now, "error" if state == "error" else "result")
        where = {place: one for place, one in where.items() if not patterns.have(place)}
        return Finding("result", step, other, where) if where else None

    def check_comparable(self, run: Run, pairing: Pairing, path: object) -> None:
        """Find out whether the two runs can be compared.

        Raises:
            CassetteError: if they cannot.
        """
        base = self.baseline._run
        if ("agentcassette" in base.forms) != ("agentcassette" in run.forms) and run.steps:
            raise CassetteError(
                "cannot be compared with its baseline: one of them is of agentcassette, which gives calls other names "
                "and arguments. Record both with agent_cache",
                path,
            )
        if run.steps and not pairing.matched and all(step.kind == "llm" for step, _, _ in pairing.changed):
            names = {step.name for step in self.steps if step.kind != "llm"}
            others = {step.name for step in run.steps if step.kind != "llm"}
            if names.isdisjoint(others) and ((names and others) or not pairing.changed):
                raise CassetteError(
                    "has no call in common with its baseline, so it is of another agent: it calls "
                    f"{listed(step.name for step in run.steps)}, and the baseline "
                    f"{listed(step.name for step in self.steps)}",
                    path,
                )

    # What people are told

    def event(self, finding: Finding, fetch: Callable[[Step], RecordedCall], *, again: bool = False) -> DriftEvent:
        """The event of a finding.

        Args:
            finding: the drift.
            fetch: gives the call of a step of the new run.
            again: whether the new run makes a call that is missing another time.
        """
        step, other, shown_step = finding.step, finding.other, finding.shown
        call = fetch(other) if other is not None else self.baseline._call(shown_step)
        shown = shown_call(call)
        is_write = self.is_write(shown_step) or (step is not None and self.is_write(step))
        of_write = DriftSeverity.CRITICAL if is_write else DriftSeverity.WARNING
        was, now = values_of(finding.where)
        path = ", ".join(shown_path(place) for place in list(finding.where)[:MAX_SHOWN])
        severity = of_write
        match finding.kind:
            case "arguments":
                text = f"{shown} was called with other arguments: {shown_places(finding.where)}"
            case "missing":
                severity = DriftSeverity.INFO if again and not is_write else of_write
                text = f"{shown} was {'made less often' if again else 'not made'}"
                was = call.arguments
            case "extra":
                text = f"{shown} was made, and is not in the baseline"
                now = call.arguments
            case "repeated":
                severity = of_write if is_write else DriftSeverity.INFO
                text = f"{shown} was made more often than in the baseline"
                now = call.arguments
            case "order":
                assert step is not None
                severity = max(self._order_severity(step, one) for one in finding.over)
                first = finding.over[0]
                over = shown_call(self.baseline._call(first))
                was, now = (f"before {over}", f"after {over}") if step.number < first.number else (
                    f"after {over}", f"before {over}")  # fmt: skip
                text = f"{shown} came {now}, and in the baseline {was.partition(' ')[0]} it"
            case "error":
                if now is not None:
                    severity = DriftSeverity.CRITICAL
                    text = f"{shown} raised {shown_value(now)}, and in the baseline {shown_error(was)}"
                else:
                    text = f"{shown} no longer raises {shown_value(was)}"
            case _:
                text = f"{shown} had another outcome: {shown_places(finding.where)}"
        return DriftEvent(severity, finding.kind, call.name, text, was, now, call.kind, shown_step.id, path)

    def _order_severity(self, one: Step, other: Step) -> DriftSeverity:
        if one.is_write and other.is_write:
            tags, others = self.baseline._call(one).tags, self.baseline._call(other).tags
            if not tags or not others or any(meet(tag, tag2) for tag in tags for tag2 in others):
                return DriftSeverity.CRITICAL
            return DriftSeverity.INFO
        return DriftSeverity.WARNING if one.is_write or other.is_write else DriftSeverity.INFO

    def events(
        self, findings: Sequence[Finding], run: Run, fetch: Callable[[Step], RecordedCall]
    ) -> Iterator[DriftEvent]:
        """The events of a whole run, with those of its tokens."""
        made = {step.key for step in run.steps}
        few = {id(one) for one in findings if one.kind in OF_NUMBER and not self.is_write(one.shown)}
        accepted = few if len(few) <= self.tolerance.calls else set()
        for one in findings:
            if id(one) not in accepted:
                yield self.event(one, fetch, again=one.step is not None and one.step.key in made)
        if (tokens := self.tokens_event(run.tokens)) is not None:
            yield tokens

    def tokens_event(self, tokens: int) -> DriftEvent | None:
        """The drift of the number of tokens."""
        accepted, (least, most) = self.tolerance.tokens, self.baseline._tokens
        if accepted is None or not tokens or not least:
            return None
        if least * (1 - accepted) <= tokens <= most * (1 + accepted):
            return None
        was = most if tokens > most else least
        text = (
            f"the model calls of the run took {tokens:,} tokens, and in the baseline {was:,}: {tokens / was - 1:+.0%}, "
            f"of which {accepted:.0%} are accepted"
        )
        severity = DriftSeverity.WARNING if tokens > was else DriftSeverity.INFO
        return DriftEvent(severity, "tokens", "", text, was, tokens, "run")


# Baselines


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
        for cassette in cassettes:
            if not isinstance(cassette, Cassette):
                raise ConfigurationError(f"Baseline: takes cassettes, got {cassette!r}; Baseline.load takes paths")
            if cassette.is_partial:
                raise CassetteError("is partial, so calls may be missing in it; record it again", cassette.path)
        self._cassettes = cassettes
        self._lock = threading.Lock()
        self.redaction = _joined_rules(cassettes)
        self.http = next(filter(None, map(recorded_http, cassettes)), None)
        self._changes = [_change_of(cassette, self.redaction) for cassette in cassettes]
        self._chains: Chains = {}
        runs = [
            read_run(cassette, self._chains, learn=True, change=change)
            for cassette, change in zip(cassettes, self._changes, strict=True)
        ]
        for cassette, run in zip(cassettes, runs, strict=True):
            if not run.steps:
                raise CassetteError("has no calls, so nothing can be compared with it", cassette.path)
        for source, run in enumerate(runs):
            for step in run.steps:
                step.source = source
        first = runs[0]
        self._run = Run(list(first.steps), list(first.parents), first.tokens, first.forms)
        counts = [run.tokens for run in runs]
        self._tokens = min(counts), max(counts)
        self._learned = _Learned()
        if len(runs) > 1:
            self._learn(runs)
        self._rule: Rule | None = None

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
        """The drifts of another recording, as `compare` gives them, and which of its calls is which.

        Returns:
            The drifts, and pairs of indices: of a call in the first recording of the baseline, and of the same call in
            `new`, with the same arguments or with others.

        Raises:
            CassetteError: as `compare`.
            ConfigurationError: as `compare`.
        """
        other = new if isinstance(new, Cassette) else Cassette.load(new)
        rule = self._rule_of(tolerance)
        change = _change_of(other, self.redaction)
        run = read_run(other, self._chains, learn=False, change=change)

        def fetch(step: Step) -> RecordedCall:
            return change(other.steps[step.index])

        for step in run.steps:
            if step.name in rule.names and rule.patterns(step.name).of_arguments:
                step.digest = rule.digest(fetch(step))
        findings, pairing = rule.findings(run, fetch)
        rule.check_comparable(run, pairing, other.path)
        both = [*pairing.matched, *((step, mine) for step, mine, _ in pairing.changed)]
        pairs = sorted((step.index, mine.index) for step, mine in both if step.source == 0)
        return list(rule.events(findings, run, fetch)), pairs

    def _rule_of(self, tolerance: Tolerance | None) -> Rule:
        tolerance = Tolerance() if tolerance is None else tolerance
        if self._rule is None or self._rule.tolerance is not tolerance:
            self._rule = Rule(self, tolerance)
        return self._rule

    def _call(self, step: Step) -> RecordedCall:
        with self._lock:  # runs in several threads may have one baseline
            call = self._cassettes[step.source].steps[step.index]
        return self._changes[step.source](call)

    def _learn(self, runs: Sequence[Run]) -> None:
        """Accept what varies: judge each recording, and accept what is found, until nothing is."""
        for _ in range(_PASSES):
            is_settled = True
            for source, run in enumerate(runs):
                rule = Rule(self, Tolerance(tokens=None))
                other = Run([rule._keyed(step) for step in run.steps], run.parents)
                findings, pairing = rule.findings(other, self._call)
                path = self._cassettes[source].path
                try:
                    rule.check_comparable(other, pairing, path)
                except CassetteError as error:
                    text = f"cannot be a baseline together with the others: it {error.reason}"
                    raise CassetteError(text, path) from error
                is_settled &= not findings
                for finding in findings:
                    self._accept(finding, pairing, source)
            if is_settled:
                break

    def _accept(self, finding: Finding, pairing: Pairing, source: int) -> None:
        learned, step, other = self._learned, finding.step, finding.other
        if finding.kind == "arguments":
            assert step is not None
            assert other is not None
            varying = [place for place in finding.where if not self._is_constant(step.name, place, pairing)]
            if len(varying) == len(finding.where):
                learned.places.setdefault(step.name, set()).update(varying)
            else:
                learned.optional.add(step.number)
                self._add(other, source, pairing)
        elif finding.kind == "missing":
            assert step is not None
            learned.optional.add(step.number)
        elif finding.kind in ("extra", "repeated"):
            assert other is not None
            self._add(other, source, pairing)
        elif finding.kind == "order":
            assert step is not None
            learned.free.add(step.number)
        elif finding.kind == "error" and step is not None:
            learned.any_outcome.add(step.number)
        elif step is not None:
            learned.places.setdefault(step.name, set()).update(finding.where)

    def _is_constant(self, name: str, place: Position, pairing: Pairing) -> bool:
        """Whether another call of the function has the same value there in both runs: then it is no volatile field."""
        return any(
            step.name == name and _has_place(self._call(step).arguments, place[1:]) for step, _ in pairing.matched
        )

    def _add(self, other: Step, source: int, pairing: Pairing) -> None:
        """Accept a call that only a later recording makes."""
        lanes = {mine.lane: step.lane for step, mine in pairing.matched}
        if other.lane not in lanes:
            lanes[other.lane] = len(self._run.parents)
            self._run.parents.append(-1)
        digest = self._call(other).digest + self._call(other).asker
        added = replace(other, number=len(self._run.steps), digest=digest, source=source, lane=lanes[other.lane])
        self._run.steps.append(added)
        self._learned.optional.add(added.number)
        self._learned.free.add(added.number)

    def __len__(self) -> int:
        return len(self._cassettes)

    def __repr__(self) -> str:
        return f"<Baseline of {', '.join(cassette.path or repr(cassette) for cassette in self._cassettes)}>"


_PASSES = 6


def _has_place(value: Any, place: Position) -> bool:
    for part in place:
        if isinstance(part, int):
            if not isinstance(value, list) or not value:
                return False
            value = value[0]
        else:
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
    return True


def _joined_rules(cassettes: Sequence[Cassette]) -> Redaction:
    rules = Redaction()
    for cassette in cassettes:
        rules = rules.joined(recorded_rules(cassette))
    return rules


def _change_of(cassette: Cassette, rules: Redaction) -> Callable[[RecordedCall], RecordedCall]:
    """What redacts the calls of a cassette that was recorded with fewer rules, and leaves those of others alone."""
    own = Redaction().joined(recorded_rules(cassette))
    both = rules.joined(recorded_rules(cassette))
    is_same = both.describe() == own.describe()
    return lambda call: call if is_same else redact_call(call, both)
