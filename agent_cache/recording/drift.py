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
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from agent_cache.core.tags import meet
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.accepted_runs import accepted_runs
from agent_cache.recording.api import observe, recorded_http
from agent_cache.recording.cassette import Cassette, recorded_rules
from agent_cache.recording.differences import changes
from agent_cache.recording.drift_events import (
    DriftEvent,
    DriftReport,
    DriftSeverity,
    Places,
    Tolerance,
    is_named,
    outcome_of,
    places_of,
    places_pattern,
    pruned,
)
from agent_cache.recording.file import Header, RecordedCall
from agent_cache.recording.match import described
from agent_cache.recording.outcomes import encode_sorted
from agent_cache.recording.pairing import Pairing, Step, pair_runs, read_run, step_of
from agent_cache.recording.redaction import Redaction

_LOG = logging.getLogger("agent_cache")

_INFO, _WARNING, _CRITICAL = DriftSeverity
_SEVERITIES = {
    "arguments": (_WARNING, _CRITICAL),
    "missing": (_WARNING, _CRITICAL),
    "less often": (_INFO, _CRITICAL),
    "extra": (_WARNING, _CRITICAL),
    "repeated": (_INFO, _CRITICAL),
    "result": (_WARNING, _CRITICAL),
    "error": (_CRITICAL, _CRITICAL),
    "no error": (_WARNING, _CRITICAL),
}
"""How much a drift matters: of a read or a model call, and of a write."""
_NUMBERS = ("missing", "less often", "extra", "repeated")
_MAX_PLACES = 20
"""Changed places of arguments up to which they are counted."""
_PASSES = 6
_LONG = 80


class _Finding(NamedTuple):
    """A drift, with the calls that show it: of the baseline and of the new run, and those that one was moved over."""

    kind: str
    step: Step | None
    other: Step | None
    where: Places = {}  # noqa: RUF012 - never changed
    over: Sequence[Step] = ()

    @property
    def shown(self) -> Step:
        return self.other or self.step  # type: ignore[return-value]  # there is one of them


@dataclass(slots=True)
class _Learned:
    """What varies between the recordings of a baseline: places by name of a function; calls by their numbers."""

    places: dict[str, set[str]] = field(default_factory=dict)
    optional: set[int] = field(default_factory=set)
    any_outcome: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)  # of any order
    extra: set[Hashable] = field(default_factory=set)  # keys of calls that only others than the first have


class _Rule:
    """Finds the drifts of a run from one baseline, with one tolerance, and says how much they matter."""

    def __init__(self, baseline: Baseline, tolerance: Tolerance) -> None:
        self.tolerance, self.learned, self._tokens = tolerance, baseline._learned, baseline._tokens
        self._names = {step.call.name for step in baseline._steps}
        self._writes = {step.call.name for step in baseline._steps if step.call.is_write}
        self._patterns: dict[str, re.Pattern[str] | None] = {}
        self.steps = self._keyed(baseline._steps)
        self.asked: dict[Hashable, list[Step]] = {}
        for step in self.steps:
            self.asked.setdefault(step.key, []).append(step)

    def _free_places(self, name: str) -> re.Pattern[str] | None:
        """Matches the places that may differ in the calls of a function."""
        if name not in self._names:  # of other names there may be any number
            return None
        if name not in self._patterns:
            paths = [*self.learned.places.get(name, ()), *self.tolerance.ignored(name)]
            self._patterns[name] = places_pattern(paths)
        return self._patterns[name]

    def key(self, step: Step) -> Hashable:
        """What makes a call the same call as another, where only places differ that may."""
        call, places = step.call, self._free_places(step.call.name)
        if places is None or call.key is not None or "arguments" not in places.pattern:
            return step.key
        identity = [call.name, pruned(call.arguments, "arguments", places), call.asker]
        return step.chain, blake2b(encode_sorted(identity)).digest()

    def _keyed(self, steps: Sequence[Step]) -> list[Step]:
        return [replace(step, key=self.key(step)) for step in steps]

    def is_write(self, step: Step | None) -> bool:
        """Whether a call is a write, also one that has not ended, or was refused."""
        return step is not None and (step.call.is_write or step.call.name in self._writes)

    def changes(self, was: RecordedCall, now: RecordedCall) -> Places:
        """Where the arguments of two calls of one function differ; nowhere if they are the same call."""
        same = next((one for name, one in self.tolerance.same_arguments.items() if is_named(was.name, name)), None)
        if same is not None and was.asker == now.asker and same(was.arguments, now.arguments):
            return {}
        found = places_of(was.arguments, now.arguments, "arguments", _MAX_PLACES)
        if was.key != now.key and not found:
            found["arguments"] = was.key, now.key
        if was.asker != now.asker:
            found["asker"] = was.asker or None, now.asker or None
        return self._counted(was.name, found)

    def _counted(self, name: str, where: Places) -> Places:
        places = self._free_places(name)
        return where if places is None else {at: one for at, one in where.items() if not places.match(at)}

    # The drifts of a run

    def findings(self, steps: Sequence[Step], path: object = "") -> tuple[list[_Finding], Pairing]:
        """All drifts of a run that has ended, in its order; what is missing comes last."""
        run = self._keyed(steps)
        pairing = pair_runs(self.steps, run, lambda one, other: len(self.changes(one.call, other.call)))
        if run and not pairing.same and not pairing.changed:
            text = (
                "has no call in common with its baseline, so it is of another agent: it calls {}, and the baseline {}"
            )
            raise CassetteError(text.format(_listed(run), _listed(self.steps)), str(path))
        learned, found = self.learned, list[_Finding]()
        for one, other in pairing.changed:
            if other.key in learned.extra and one.number in learned.optional:
                continue
            found.append(_Finding("arguments", one, other, self.changes(one.call, other.call)))
            found += [finding for finding in self.outcome(one, other) if "error" in finding.kind]
        for other in pairing.right:
            if other.key not in learned.extra:
                found += self.new("repeated" if other.key in self.asked else "extra", other)
        for one, other in pairing.same:
            if one.outcome != other.outcome:
                found += self.outcome(one, other)
        for one, other, over in pairing.moved:
            judged = [step for step in over if step.number not in learned.free]
            if judged and one.number not in learned.free:
                found.append(_Finding("order", one, other, {}, judged))
        found.sort(key=lambda finding: finding.shown.number)
        made = {step.key for step in run}
        for one in pairing.left:
            if one.number not in learned.optional:
                found.append(_Finding("less often" if one.key in made else "missing", one, None))
        return found, pairing

    def new(self, kind: str, step: Step) -> Iterator[_Finding]:
        """A call that the baseline does not have, or not so often."""
        yield _Finding(kind, None, step)
        state, error = outcome_of(step.call.outcome)
        if state == "error":
            yield _Finding("error", None, step, {"error": (None, error)})

    def outcome(self, step: Step, other: Step) -> Iterator[_Finding]:
        """How the outcome of a call differs."""
        was_state, was = outcome_of(step.call.outcome)
        state, now = outcome_of(other.call.outcome)
        if step.number in self.learned.any_outcome or was_state == "unfinished":
            return
        kind = "result"
        if "error" in (state, was_state) and (state != was_state or _type_of(was) != _type_of(now)):
            kind = "error" if state == "error" else "no error"
            where = {"error": (was if was_state == "error" else None, now if state == "error" else None)}
        elif state != was_state:
            where = {"result": (was_state, state)}
        else:
            where = places_of(was, now, "error" if state == "error" else "result")
        if where := self._counted(step.call.name, where):
            yield _Finding(kind, step, other, where)

    # Events

    def event(self, finding: _Finding) -> DriftEvent:
        """The event of a finding."""
        kind, step, _, where, over = finding
        call = finding.shown.call
        shown = _shown_call(call)
        is_write = self.is_write(finding.shown) or self.is_write(step)
        severity = max(_of_order(call, one.call) for one in over) if over else _SEVERITIES[kind][is_write]
        was: Any = {at: one for at, (one, _) in where.items()}
        now: Any = {at: one for at, (_, one) in where.items()}
        if len(where) < 2:
            was, now = next(iter(where.values()), (None, None))
        match kind:
            case "arguments":
                text = f"{shown} was called with other arguments: {_shown_places(where)}"
            case "missing" | "less often":
                text = f"{shown} was {'not made' if kind == 'missing' else 'made less often'}"
                was, kind = call.arguments, "missing"
            case "extra" | "repeated":
                text = f"{shown} was made{', and is not in' if kind == 'extra' else ' more often than in'} the baseline"
                now = call.arguments
            case "order":
                assert step is not None
                sides = ("before", "after") if step.number < over[0].number else ("after", "before")
                was, now = (f"{side} {_shown_call(over[0].call)}" for side in sides)
                text = f"{shown} came {now}, and in the baseline {sides[0]} it"
            case "no error":
                text, kind = f"{shown} no longer raises {_shown_error(was)}", "error"
            case "error":
                before = "did not" if was is None else _shown_error(was)
                text = f"{shown} raised {_shown_error(now)}, and in the baseline {before}"
            case _:
                text = f"{shown} had another outcome: {_shown_places(where)}"
        return DriftEvent(severity, kind, call.name, text, was, now, call.kind, call.id, ", ".join(islice(where, 5)))

    def events(self, findings: Sequence[_Finding], run: Sequence[Step]) -> Iterator[DriftEvent]:
        """The events of a whole run, with those of its tokens."""
        few = [one for one in findings if one.kind in _NUMBERS and not self.is_write(one.shown)]
        accepted = few if len(few) <= self.tolerance.calls else []
        yield from (self.event(one) for one in findings if not any(one is other for other in accepted))
        part, tokens, (least, most) = self.tolerance.tokens, _tokens_of(run), self._tokens
        if part is None or not tokens or not least or least * (1 - part) <= tokens <= most * (1 + part):
            return
        was = most if tokens > most else least
        text = (
            f"the model calls of the run took {tokens:,} tokens, and in the baseline {was:,}: {tokens / was - 1:+.0%}, "
            f"of which {part:.0%} are accepted"
        )
        yield DriftEvent(_WARNING if tokens > was else _INFO, "tokens", "", text, was, tokens, "run")


def _type_of(error: Any) -> Any:
    return error.get("type") if isinstance(error, dict) else None


def _tokens_of(run: Sequence[Step]) -> int:
    return sum(step.call.input_tokens + step.call.output_tokens for step in run)


def _of_order(one: RecordedCall, other: RecordedCall) -> DriftSeverity:
    if one.is_write and other.is_write:
        are_apart = one.tags and other.tags and not any(meet(tag, tag2) for tag in one.tags for tag2 in other.tags)
        return _INFO if are_apart else _CRITICAL
    return _WARNING if one.is_write or other.is_write else _INFO


# Texts


def _shortened(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def _short_name(name: str) -> str:
    return name if " " in name else name.rpartition(":")[2]


def _listed(steps: Sequence[Step]) -> str:
    return ", ".join(islice(dict.fromkeys(_short_name(step.call.name) for step in steps), 5))


def _shown_call(call: RecordedCall) -> str:
    return call.name if " " in call.name else described(_short_name(call.name), call.arguments)  # a request


def _shown_error(error: Any) -> str:
    """An error as it would be raised."""
    if not isinstance(error, dict) or "type" not in error:
        return _shortened(repr(error))
    message = f"({error['message']!r})" if error.get("message") else ""
    return _shortened(f"{_short_name(str(error['type']))}{message}")


def _shown_places(where: Places) -> str:
    lines = [line for path, (was, now) in islice(where.items(), 3) for line in changes(was, now, path)]
    return "; ".join(lines) + (f"; and {len(where) - 3} more" if len(where) > 3 else "")


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
        if not cassettes or not all(isinstance(cassette, Cassette) for cassette in cassettes):
            raise ConfigurationError(f"Baseline takes cassettes, and Baseline.load paths; got {cassettes!r}")
        self._paths = [cassette.path for cassette in cassettes]
        self.redaction = Redaction()
        for cassette in cassettes:
            if cassette.is_partial:
                raise CassetteError("is partial, so calls may be missing in it; record it again", cassette.path)
            self.redaction = self.redaction.joined(recorded_rules(cassette))
        self.http = next(filter(None, map(recorded_http, cassettes)), None)
        runs = [_counting(cassette) for cassette in cassettes]
        for run, path in zip(runs, self._paths, strict=True):
            if not run:
                raise CassetteError("has no calls, so nothing can be compared with it", path)
        self._steps = [replace(step, number=number) for number, step in enumerate(runs[0])]
        self._tokens = min(map(_tokens_of, runs)), max(map(_tokens_of, runs))
        self._learned = _Learned()
        if len(runs) > 1:
            self._learn(runs)

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
        rule, run = _Rule(self, tolerance or Tolerance()), _counting(other)
        findings, pairing = rule.findings(run, other.path)
        pairs = sorted((step.index, mine.index) for step, mine in (*pairing.same, *pairing.changed))
        return list(rule.events(findings, run)), pairs

    def _learn(self, runs: Sequence[Sequence[Step]]) -> None:
        """Accept what varies: judge each recording, and accept what is found, until nothing is."""
        for _ in range(_PASSES):
            is_settled = True
            for run, path in zip(runs, self._paths, strict=True):
                findings, pairing = _Rule(self, Tolerance(tokens=None)).findings(run, path)
                is_settled &= not findings
                for finding in findings:
                    self._accept(finding, pairing)
            if is_settled:
                break

    def _accept(self, finding: _Finding, pairing: Pairing) -> None:
        learned, (kind, step, other, where, _) = self._learned, finding
        is_another = kind == "arguments" and any(one.call.name == finding.shown.call.name for one, _ in pairing.same)
        if other is not None and (is_another or kind in _NUMBERS):
            learned.extra.add(other.key)
        if step is None:
            return
        if is_another or kind in _NUMBERS:  # of a function that is called with the same arguments, too
            learned.optional.add(step.number)
        elif kind == "order":
            learned.free.add(step.number)
        elif "error" in kind:
            learned.any_outcome.add(step.number)
        else:
            learned.places.setdefault(step.call.name, set()).update(where)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<Baseline of {', '.join(path or 'a cassette' for path in self._paths)}>"


def _counting(cassette: Cassette) -> list[Step]:
    """The calls that count: times and random values do not."""
    return [step for step in read_run(cassette) if step.call.kind != "env"]


class DriftDetector:
    """Compares a run with a baseline while it goes on: ``AgentCacheSession(drift=detector)``.

    Without a session, it is a listener: ``with observe(detector)``. It serves one run after another; its drifts are
    those of the latest. It is certain that a call is new if the baseline has none of its arguments that was not made
    yet, and that its outcome is another one if no call of the baseline with its arguments has it. The rest is known at
    the end of the run, up to which it keeps the calls.

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
        self._rule = _Rule(found, tolerance or Tolerance())
        self._given_on_drift = on_drift
        self.redaction, self.http = found.redaction, found.http
        self._begin()
        self._is_running = False

    def _begin(self) -> None:
        self._latest = self
        self._is_running = True
        self._on_drift = self._given_on_drift
        self._drifts: list[DriftEvent] = []
        self._problem: Exception | None = None
        self._count = 0
        self._calls: list[RecordedCall] = []
        self._chains: dict[int | None, tuple[str, ...]] = {None: ()}
        self._made: Counter[Hashable] = Counter()
        self._shown: set[tuple[Any, ...]] = set()

    @property
    def drifts(self) -> list[DriftEvent]:
        """The drifts so far, as far as they are certain; at the end of the run what `Baseline.compare` gives."""
        return list(self._latest._drifts)

    def report(self) -> DriftReport:
        """The drifts with their counts.

        Raises:
            CassetteError: if the run has ended and has nothing in common with the baseline, so nothing can be said. If
                a function of the tolerance has raised, its error is raised.
        """
        run = self._latest
        if run._problem is not None:
            raise run._problem.with_traceback(None)
        return DriftReport(tuple(run._drifts), run._count)

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
            self._chains[call.id] = (*self._chains.get(call.parent, ("",)), call.name)

    def on_end(self, call: RecordedCall) -> None:
        """A call has ended: tell what is certain of it."""
        if call.kind == "env":
            return
        self._calls.append(call)
        try:
            for finding in self._certain(step_of(call, self._chains.pop(call.id, ("",))[:-1])):
                self._tell(finding)
        except Exception as problem:
            self._problem = problem
            raise

    def on_close(self, error: BaseException | None) -> None:  # noqa: ARG002 - however it ended
        """The run has ended: judge all of it, as its recording would be."""
        if not self._is_running:
            self._begin()
        self._is_running = False
        cassette = Cassette(self._calls)
        cassette.header = Header(log=True)
        run, self._calls = read_run(cassette), []
        try:
            findings, _ = self._rule.findings(run)
        except Exception as problem:  # noqa: BLE001 - `report` raises it
            self._problem = problem
            return
        self._drifts = list(self._rule.events(findings, run))
        for event in self._drifts:
            self._show(event)

    def _certain(self, step: Step) -> Iterator[_Finding]:
        rule, key = self._rule, self._rule.key(step)
        same = rule.asked.get(key, [])
        self._made[key] += 1
        if not same and key not in rule.learned.extra:
            others = [one for one in rule.steps if one.call.name == step.call.name and one.chain == step.chain]
            if all(rule.changes(one.call, step.call) for one in others):
                yield from rule.new("extra", step)
        elif self._made[key] > len(same):
            yield from rule.new("repeated", step)
        elif not any(one.outcome == step.outcome for one in same):
            found = [list(rule.outcome(one, step)) for one in same]
            yield from found[0] if all(found) else ()

    def _tell(self, finding: _Finding) -> None:
        if finding.kind in _NUMBERS and self._rule.tolerance.calls and not self._rule.is_write(finding.shown):
            return  # the end says whether they are too many
        event = self._rule.event(finding)
        self._drifts.append(event)
        self._show(event)

    def _show(self, event: DriftEvent) -> None:
        """Pass an event on, unless it was."""
        kind = "extra" if event.kind == "arguments" else event.kind  # which of the two is known at the end
        identity = kind, event.call_id, event.path if kind != "extra" else ""
        if self._on_drift is None or identity in self._shown:
            return
        self._shown.add(identity)
        try:
            self._on_drift(event)
        except Exception:  # noqa: BLE001 - the user's; a detector changes nothing for the run
            self._on_drift = None
            _LOG.exception("on_drift raised, and is not called again in this run")
