"""Drift: where a run differs from the runs that were approved, and how much that matters.

A `Baseline` is one approved recording or several. `Baseline.compare` judges another recording by it, a `DriftDetector`
a run that goes on. Both are one rule (`pairing` finds which call is which): `docs/explanation/drift.md` describes it.
"""

from __future__ import annotations

import copy
import enum
import logging
import math
import os
import re
import threading
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec

from agent_cache.core.tags import meet
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.accepted_runs import accepted_runs
from agent_cache.recording.api import recorded_http
from agent_cache.recording.cassette import Cassette, recorded_rules, redact_call
from agent_cache.recording.cassette_file import EARLIER, RecordedCall
from agent_cache.recording.differences import changes
from agent_cache.recording.observer import observe
from agent_cache.recording.pairing import (
    Chains,
    Difference,
    Order,
    Pairing,
    Patterns,
    Place,
    Run,
    Step,
    child_chain,
    differences,
    fingerprint,
    moved_steps,
    pair_runs,
    parsed_path,
    pruned,
    read_run,
    shown_path,
)
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.tagged import encode_sorted

__all__ = ["Baseline", "DriftDetector", "DriftEvent", "DriftReport", "DriftSeverity", "Tolerance"]

_LOG = logging.getLogger("agent_cache")


class DriftSeverity(enum.IntEnum):
    """How much a drift matters: `INFO`, `WARNING` or `CRITICAL`. They compare as numbers do."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @classmethod
    def of(cls, given: Any, caller: str = "severity") -> DriftSeverity:
        """The severity of this name, in any case, or this severity.

        Raises:
            ConfigurationError: if there is none, with the name of the argument.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str) and given.upper() in cls.__members__:
            return cls[given.upper()]
        raise ConfigurationError(f"{caller} must be 'info', 'warning' or 'critical', got {given!r}")


@dataclass(frozen=True, slots=True)
class DriftEvent:
    """One difference of a run from its baseline.

    Attributes:
        severity: how much it matters.
        kind: ``arguments``, ``missing``, ``extra``, ``repeated``, ``order``, ``result``, ``error`` or ``tokens``.
        name: name of the function that was called; empty for the tokens of the run.
        description: one sentence for people.
        original_value: the value in the baseline: of the one place that differs, or of several by their paths.
        restored_value: the value in the new run, likewise.
        event_type: kind of the call: ``tool``, ``llm``, ``call``, ``http`` or ``write``; ``run`` for the run's tokens.
        call_id: id of the call in the new run, of one that is missing in the baseline; None for the tokens of the run.
        path: where they differ, such as ``arguments.order_id`` or ``result.items[*].price``; several with commas.
        provisional: whether the run goes on, so that what follows may change this.
    """

    severity: DriftSeverity
    kind: str
    name: str
    description: str
    original_value: Any = None
    restored_value: Any = None
    event_type: str = "call"
    call_id: int | None = None
    path: str = ""
    provisional: bool = False

    @property
    def expected(self) -> Any:
        """The same as `original_value`."""
        return self.original_value

    @property
    def actual(self) -> Any:
        """The same as `restored_value`."""
        return self.restored_value

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with the severity in lower case."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"severity": self.severity.name.lower()}

    def __str__(self) -> str:
        return f"{self.severity.name}: {self.description}"


# Tolerance

_IGNORED = re.compile(
    r"(?P<tool>.+?):(?P<path>(?:arguments|result|error)(?:\.(?:[^\s.:\[\]\"]+)|\[\*\]|\[\"(?:[^\"\\]|\\.)*\"\])*)"
)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What of a drift is accepted.

    Args:
        ignore: places that may differ, as ``"get_order:result.request_id"``: the name of a function, or a pattern as
            ``"*"``, and a path as events have it. It begins with ``arguments``, ``result`` or ``error``; ``[*]`` is
            each element of a list, ``.*`` each key of an object, and what is below a path is ignored, too.
        same_arguments: by name of a function, ``same(expected, actual)``, which gets the arguments of two calls as
            plain data and says whether they are the same call.
        tokens: by what part the tokens of a run's model calls, sent and received together, may be more or fewer than
            those of the baseline: 0.2 is a fifth. Not judged where one of the two has none, or if this is None.
        calls: how many reads and model calls may be missing, extra or repeated, taken together. More than that are all
            reported. Writes always are.
        fail_on: the least severity for which `fails` is true.

    Raises:
        ConfigurationError: if an argument cannot work, with its name.
    """

    ignore: Sequence[str] = ()
    same_arguments: Mapping[str, Callable[[dict[str, Any], dict[str, Any]], bool]] = field(default_factory=dict)
    tokens: float | None = 0.2
    calls: int = 0
    fail_on: DriftSeverity | str = DriftSeverity.WARNING

    def __post_init__(self) -> None:
        if isinstance(self.ignore, str) or not isinstance(self.ignore, Iterable):
            raise ConfigurationError(f"Tolerance: ignore takes a list of texts as 'TOOL:PATH', got {self.ignore!r}")
        ignore = tuple(self.ignore)
        for one in ignore:
            if not isinstance(one, str) or _IGNORED.fullmatch(one) is None:
                raise ConfigurationError(
                    f"Tolerance: ignore: {one!r} is not a function and a path, as 'get_order:result.request_id' or "
                    "'*:arguments.items[*].id'"
                )
        object.__setattr__(self, "ignore", ignore)
        if not isinstance(self.same_arguments, Mapping) or not all(
            isinstance(name, str) and callable(same) for name, same in self.same_arguments.items()
        ):
            raise ConfigurationError(
                "Tolerance: same_arguments takes a function of (expected, actual) by name of a function, got "
                f"{self.same_arguments!r}"
            )
        object.__setattr__(self, "same_arguments", dict(self.same_arguments))
        tokens: Any = self.tokens
        if tokens is not None and (
            isinstance(tokens, bool) or not isinstance(tokens, int | float) or not math.isfinite(tokens) or tokens < 0
        ):
            raise ConfigurationError(
                f"Tolerance: tokens must be a part of the whole such as 0.2, or None, got {tokens!r}"
            )
        calls: Any = self.calls
        if isinstance(calls, bool) or not isinstance(calls, int) or calls < 0:
            raise ConfigurationError(f"Tolerance: calls must be a number of calls from 0, got {calls!r}")
        object.__setattr__(self, "fail_on", DriftSeverity.of(self.fail_on, "Tolerance: fail_on"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of TOML, or of JSON if its name ends so, with these arguments but for `same_arguments`.

        Raises:
            ConfigurationError: if it cannot be read, or an argument cannot work, with its name.
        """
        source = Path(path)
        try:
            content = source.read_bytes()
            is_json = source.suffix.lower() == ".json"
            data = msgspec.json.decode(content) if is_json else tomllib.loads(content.decode())
        except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"Tolerance: {source} cannot be read: {reason}") from error
        if not isinstance(data, dict):
            raise ConfigurationError(f"Tolerance: {source} must have the arguments by name, got {type(data).__name__}")
        known = ("ignore", "tokens", "calls", "fail_on")
        for name in data:
            if name == "same_arguments":
                raise ConfigurationError(f"Tolerance: {source}: same_arguments are functions, which a file cannot have")
            if name not in known:
                raise ConfigurationError(f"Tolerance: {source}: there is no {name!r}, only {', '.join(known)}")
        try:
            return cls(**data)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (in {source})") from error

    def fails(self, drifts: Iterable[DriftEvent]) -> bool:
        """Whether one of them is as severe as `fail_on`."""
        return any(one.severity >= DriftSeverity.of(self.fail_on) for one in drifts)


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The drifts of a run.

    Attributes:
        drifts: each of them, in the order of the run; what is missing comes last.
        calls: number of calls of the run.
        omitted: by severity, how many drifts are counted and not kept: a run that makes calls for ever must not fill
            the memory.
    """

    drifts: tuple[DriftEvent, ...] = ()
    calls: int = 0
    omitted: Mapping[DriftSeverity, int] = field(default_factory=dict)

    @property
    def worst(self) -> DriftSeverity | None:
        """The greatest severity; None without drifts."""
        return max((severity for severity, count in self.counts.items() if count), default=None)

    @property
    def counts(self) -> dict[DriftSeverity, int]:
        """How many drifts there are of each severity."""
        found = Counter(one.severity for one in self.drifts) + Counter(dict(self.omitted))
        return {severity: found[severity] for severity in reversed(DriftSeverity)}

    def to_dict(self) -> dict[str, Any]:
        """As plain data: ``calls``, ``worst``, ``counts`` by severity and ``drifts``."""
        return {
            "calls": self.calls,
            "worst": None if self.worst is None else self.worst.name.lower(),
            "counts": {severity.name.lower(): count for severity, count in self.counts.items()},
            "drifts": [one.to_dict() for one in self.drifts],
        }

    def __str__(self) -> str:
        counts = self.counts
        number, run = sum(counts.values()), f"{self.calls} call{'' if self.calls == 1 else 's'}"
        if not number:
            return f"no drift in {run}"
        total = ", ".join(f"{count} {severity.name.lower()}" for severity, count in counts.items() if count)
        head = f"{number} drift{'' if number == 1 else 's'} in {run}: {total}"
        return "\n".join([head, *map(str, self.drifts)])


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

    places: dict[str, set[Place]] = field(default_factory=dict)
    optional: set[int] = field(default_factory=set)
    any_outcome: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Finding:
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
    where: Mapping[Place, Difference] = field(default_factory=dict)
    over: Sequence[Step] = ()

    @property
    def shown(self) -> Step:
        """The call that people are shown: of the new run, if it has one."""
        found = self.step if self.other is None else self.other
        assert found is not None
        return found


class _Rule:
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
        self._ignored: list[tuple[str, Place]] = []
        for one in tolerance.ignore:
            parts = _IGNORED.fullmatch(one)
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
            places += [place for pattern, place in self._ignored if _is_named(name, pattern)]
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
        step = copy.copy(step)
        step.digest = self.digest(self.baseline._call(step))
        return step

    def is_write(self, step: Step) -> bool:
        """Whether a call is a write, also one that has not ended, or was refused."""
        return step.is_write or step.name in self.writes

    def changes(self, step: Step, was: RecordedCall, now: RecordedCall) -> dict[Place, Difference]:
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
        found = differences(was.arguments, now.arguments, "arguments", _MAX_PLACES)
        if was.key != now.key and not found:
            found["arguments",] = was.key, now.key
        if was.asker != now.asker:
            found["asker",] = was.asker or None, now.asker or None
        patterns = self.patterns(step.name)
        return {place: one for place, one in found.items() if not patterns.have(place)} if patterns else found

    def _same_arguments(self, name: str) -> Callable[[dict[str, Any], dict[str, Any]], bool] | None:
        if name not in self._same:
            functions = self.tolerance.same_arguments
            self._same[name] = next((functions[one] for one in functions if _is_named(name, one)), None)
        return self._same[name]

    # The drifts of a run

    def findings(self, run: Run, fetch: Callable[[Step], RecordedCall]) -> tuple[list[_Finding], Pairing]:
        """All drifts of a run that has ended, in its order; what is missing comes last.

        Args:
            run: its calls.
            fetch: gives the call of a step of the run.

        Raises:
            ConfigurationError: if a function of `same_arguments` raises.
        """
        base, call_of = self.baseline._run, self.baseline._call
        pairing = pair_runs(
            self.steps,
            run.steps,
            base.parents,
            run.parents,
            lambda step, other: self.changes(step, call_of(step), fetch(other)),
        )
        found: list[_Finding] = []
        for step, other, where in pairing.changed:
            found.append(_Finding("arguments", step, other, where))
            if (finding := self.outcome(step, fetch(other), other)) is not None and finding.kind == "error":
                found.append(finding)
        for other in pairing.right:
            found.append(_Finding("repeated" if other.key in self.asked else "extra", None, other))
            if (error := _outcome(fetch(other).outcome))[0] == "error":
                found.append(_Finding("error", None, other, {("error",): (None, error[1])}))
        for step, other in pairing.matched:
            if step.outcome != other.outcome and (finding := self.outcome(step, fetch(other), other)) is not None:
                found.append(finding)
        for step, other, over in moved_steps(self.baseline._order, pairing.matched, self.learned.free):
            found.append(_Finding("order", step, other, {}, over))
        found.sort(key=lambda one: -1 if one.other is None else one.other.number)
        found += [_Finding("missing", step) for step in pairing.left if step.number not in self.learned.optional]
        return found, pairing

    def outcome(self, step: Step, call: RecordedCall, other: Step) -> _Finding | None:
        """How the outcome of a call differs."""
        if step.number in self.learned.any_outcome:
            return None
        was_state, was = _outcome(self.baseline._call(step).outcome)
        state, now = _outcome(call.outcome)
        if was_state == "unfinished":
            return None
        patterns = self.patterns(step.name)
        if "error" in (state, was_state) and (state != was_state or _type_of(was) != _type_of(now)):
            if patterns.have(("error",)):
                return None
            return _Finding("error", step, other, {("error",): (_error(was_state, was), _error(state, now))})
        if state != was_state:
            where: dict[Place, Difference] = {("result",): (was_state, state)}
        else:
            where = differences(was, now, "error" if state == "error" else "result")
        where = {place: one for place, one in where.items() if not patterns.have(place)}
        return _Finding("result", step, other, where) if where else None

    def check_comparable(self, run: Run, pairing: Pairing, findings: Sequence[_Finding], path: object) -> None:
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
        if (EARLIER in base.forms) != (EARLIER in run.forms) and any(
            one.kind in ("arguments", "missing", "extra", "repeated") for one in findings
        ):
            raise CassetteError(
                "cannot be compared with its baseline: one of them is of version 1 of the format, which writes some "
                "arguments in another way. Record that one again",
                path,
            )
        if run.steps and not pairing.matched and all(step.kind == "llm" for step, _, _ in pairing.changed):
            names = {step.name for step in self.steps if step.kind != "llm"}
            others = {step.name for step in run.steps if step.kind != "llm"}
            if names.isdisjoint(others) and ((names and others) or not pairing.changed):
                raise CassetteError(
                    "has no call in common with its baseline, so it is of another agent: it calls "
                    f"{_listed(step.name for step in run.steps)}, and the baseline "
                    f"{_listed(step.name for step in self.steps)}",
                    path,
                )

    # What people are told

    def event(self, finding: _Finding, fetch: Callable[[Step], RecordedCall], *, again: bool = False) -> DriftEvent:
        """The event of a finding.

        Args:
            finding: the drift.
            fetch: gives the call of a step of the new run.
            again: whether the new run makes a call that is missing another time.
        """
        step, other, shown_step = finding.step, finding.other, finding.shown
        call = fetch(other) if other is not None else self.baseline._call(shown_step)
        shown = _shown_call(call)
        is_write = self.is_write(shown_step) or (step is not None and self.is_write(step))
        of_write = DriftSeverity.CRITICAL if is_write else DriftSeverity.WARNING
        was, now = _values(finding.where)
        path = ", ".join(shown_path(place) for place in list(finding.where)[:_MAX_SHOWN])
        severity = of_write
        match finding.kind:
            case "arguments":
                text = f"{shown} was called with other arguments: {_shown_places(finding.where)}"
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
                over = _shown_call(self.baseline._call(first))
                was, now = (f"before {over}", f"after {over}") if step.number < first.number else (
                    f"after {over}", f"before {over}")  # fmt: skip
                text = f"{shown} came {now}, and in the baseline {was.partition(' ')[0]} it"
            case "error":
                if now is not None:
                    severity = DriftSeverity.CRITICAL
                    text = f"{shown} raised {_shown(now)}, and in the baseline {_shown_error(was)}"
                else:
                    text = f"{shown} no longer raises {_shown(was)}"
            case _:
                text = f"{shown} had another outcome: {_shown_places(finding.where)}"
        return DriftEvent(severity, finding.kind, call.name, text, was, now, call.kind, shown_step.id, path)

    def _order_severity(self, one: Step, other: Step) -> DriftSeverity:
        if one.is_write and other.is_write:
            tags, others = self.baseline._call(one).tags, self.baseline._call(other).tags
            if not tags or not others or any(meet(tag, tag2) for tag in tags for tag2 in others):
                return DriftSeverity.CRITICAL
            return DriftSeverity.INFO
        return DriftSeverity.WARNING if one.is_write or other.is_write else DriftSeverity.INFO

    def events(
        self, findings: Sequence[_Finding], run: Run, fetch: Callable[[Step], RecordedCall]
    ) -> Iterator[DriftEvent]:
        """The events of a whole run, with those of its tokens."""
        made = {step.key for step in run.steps}
        few = {id(one) for one in findings if one.kind in _OF_NUMBER and not self.is_write(one.shown)}
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


_OF_NUMBER = ("missing", "extra", "repeated")
_MAX_PLACES = 20
"""Changed places of arguments up to which they are counted."""
_MAX_SHOWN = 5
_LONG = 80


def _is_named(name: str, pattern: str) -> bool:
    """Whether a pattern is for the function of this name, with or without its module."""
    return fnmatchcase(name, pattern) or fnmatchcase(_short_name(name), pattern)


def _short_name(name: str) -> str:
    return name if " " in name else name.rpartition(":")[2]


def _outcome(outcome: Mapping[str, Any]) -> tuple[str, Any]:
    """How a call ended, ``ok``, ``error``, ``cancelled`` or ``unfinished``, and with what.

    Of a response, the status and the body count; one of a status from 400 is an error. Headers do not: most change with
    each request.
    """
    if "error" in outcome:
        return "error", outcome["error"]
    if "response" in outcome:
        response = {name: one for name, one in outcome["response"].items() if name not in _OF_TRANSPORT}
        end = _outcome(response.pop("end", {"value": None}))
        if end[0] == "error":
            return end
        status = response.get("status")
        if isinstance(status, int) and status >= 400:  # RFC 9110, 15.5
            return "error", {"type": f"HTTP {status}", **response}
        return end[0], response
    if "stream" in outcome:
        stream = outcome["stream"]
        state, end = _outcome(stream.get("end", {"value": None}))
        if state == "error":
            return state, end
        return state, {"chunks": [_outcome(chunk)[1] for chunk in stream.get("chunks", ())], "end": end}
    for name in ("cancelled", "unfinished"):
        if name in outcome:
            return name, None
    for name in ("value", "typed", "any", "object", "unencodable"):
        if name in outcome:
            return "ok", outcome[name]
    return "ok", {name: one for name, one in outcome.items() if name not in ("instead", "loops", "awaited")}


_OF_TRANSPORT = frozenset({"headers", "spelling", "reason", "charset"})


def _type_of(error: Any) -> Any:
    return error.get("type") if isinstance(error, dict) else None


def _error(state: str, value: Any) -> Any:
    return value if state == "error" else None


def _values(where: Mapping[Place, Difference]) -> Difference:
    if len(where) == 1:
        return next(iter(where.values()))
    if not where:
        return None, None
    return {shown_path(at): was for at, (was, _) in where.items()}, {
        shown_path(at): now for at, (_, now) in where.items()
    }


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "type" in value and ("message" in value or str(value["type"]).startswith("HTTP ")):
        text = f"{_short_name(str(value['type']))}"
        if value.get("message"):
            text += f"({value['message']!r})"
    else:
        text = repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def _shown_error(was: Any) -> str:
    return "did not" if was is None else _shown(was)


def _shown_places(where: Mapping[Place, Difference]) -> str:
    parts = [_shown_change(shown_path(at), was, now) for at, (was, now) in list(where.items())[:3]]
    more = len(where) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


def _shown_change(path: str, was: Any, now: Any) -> str:
    if isinstance(was, str) and isinstance(now, str) and max(len(was), len(now)) > _LONG:  # a prompt: where it differs
        return "; ".join(changes(was, now, path))
    return f"{path} was {_shown(was)} and is {_shown(now)}"


def _shown_call(call: RecordedCall) -> str:
    name = _short_name(call.name)
    if call.kind == "http" or " " in name:
        return name
    text = ", ".join(f"{one}={value!r}" for one, value in call.arguments.items())
    return f"{name}({text if len(text) <= _LONG else text[: _LONG - 3] + '...'})"


def _listed(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(map(_short_name, names)))
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


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
        self._run = Run(list(first.steps), first.parents, first.lane_starts, first.tokens, first.forms)
        self._order = Order(first)
        counts = [run.tokens for run in runs]
        self._tokens = min(counts), max(counts)
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
        rule.check_comparable(run, pairing, findings, other.path)
        both = [*pairing.matched, *((step, mine) for step, mine, _ in pairing.changed)]
        pairs = sorted((step.index, mine.index) for step, mine in both if step.source == 0)
        return list(rule.events(findings, run, fetch)), pairs

    def _rule_of(self, tolerance: Tolerance | None) -> _Rule:
        tolerance = Tolerance() if tolerance is None else tolerance
        if self._rule is None or self._rule.tolerance is not tolerance:
            self._rule = _Rule(self, tolerance)
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
                rule = _Rule(self, Tolerance(tokens=None))
                other = Run([rule._keyed(step) for step in run.steps], run.parents, run.lane_starts)
                findings, pairing = rule.findings(other, self._call)
                path = self._cassettes[source].path
                try:
                    rule.check_comparable(other, pairing, findings, path)
                except CassetteError as error:
                    text = f"cannot be a baseline together with the others: it {error.reason}"
                    raise CassetteError(text, path) from error
                is_settled &= not findings
                for finding in findings:
                    self._accept(finding, pairing, source)
            if is_settled:
                break

    def _accept(self, finding: _Finding, pairing: Pairing, source: int) -> None:
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

    def _is_constant(self, name: str, place: Place, pairing: Pairing) -> bool:
        """Whether another call of the function has the same value there in both runs: then it is no volatile field."""
        return any(
            step.name == name and _has_place(self._call(step).arguments, place[1:]) for step, _ in pairing.matched
        )

    def _add(self, other: Step, source: int, pairing: Pairing) -> None:
        """Accept a call that only a later recording makes."""
        lanes = {mine.lane: step.lane for step, mine in pairing.matched}
        added = copy.copy(other)
        added.number = len(self._run.steps)
        added.digest = self._call(other).digest + self._call(other).asker
        added.source = source
        if other.lane not in lanes:
            lanes[other.lane] = len(self._run.parents)
            self._run.parents.append(-1)
            self._run.lane_starts.append(other.start)
        added.lane = lanes[other.lane]
        self._run.steps.append(added)
        self._learned.optional.add(added.number)
        self._learned.free.add(added.number)

    def __len__(self) -> int:
        return len(self._cassettes)

    def __repr__(self) -> str:
        return f"<Baseline of {', '.join(cassette.path or repr(cassette) for cassette in self._cassettes)}>"


_PASSES = 6


def _has_place(value: Any, place: Place) -> bool:
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


# Runs that go on


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
        self._rule = _Rule(self._baseline, Tolerance() if tolerance is None else tolerance, is_lenient=True)
        self._on_drift = on_drift
        self._latest = _Watch(self._rule, None)
        self._is_listening = False
        self.redaction = self._baseline.redaction
        self.http = self._baseline.http

    @property
    def drifts(self) -> list[DriftEvent]:
        """The drifts so far, of which the end of the run may change some; after it, what `Baseline.compare` gives."""
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


_FREE, _TAKEN, _CHANGED = 0, 1, 2
_MORE = 1_000
"""Calls beside those of the baseline that are kept."""
_MAX_SCANNED = 16


class _Watch:
    """One run that is observed: says at once what a call shows, and at the end what the whole run shows.

    It keeps a step for each call that the baseline has, too, and for as many others, and `_MORE`.

    Attributes:
        drifts: those found so far; at the end, those of the run.
        omitted: by severity, those that are not kept.
        count: number of calls.
        problem: why the run could not be compared, if so.
    """

    def __init__(self, rule: _Rule, on_drift: Callable[[DriftEvent], object] | None) -> None:
        self._rule = rule
        self._on_drift = on_drift
        self.redaction = rule.baseline.redaction
        self.http = rule.baseline.http
        self.drifts: list[DriftEvent] = []
        self.omitted: Counter[DriftSeverity] = Counter()
        self.count = 0
        self.problem: CassetteError | None = None
        self._order = rule.baseline._order
        self._limit = 2 * len(rule.steps) + _MORE
        self._run = Run()
        self._position = 0
        self._inside: dict[int, int] = {}
        self._open: dict[int, tuple[Step, Step | None]] = {}
        self._state = bytearray(len(rule.steps))
        self._others = 0
        self._first: dict[Hashable, int] = {}  # by key, how many of its calls need not be looked at any more
        self._named: dict[tuple[int, str], deque[Step]] = {}
        self._twins: dict[int, int] = {}
        self._mine: dict[int, int] = {}
        self._is_cleared = bytearray(self._order.nodes)
        self._overtaken: dict[int, Step] = {}
        self._told: set[tuple[Any, ...]] = set()
        self._few = 0
        self._withheld: list[DriftEvent] = []
        for step in rule.steps:
            self._named.setdefault((step.chain, step.name), deque()).append(step)

    # Calls

    def on_start(self, call: RecordedCall) -> None:
        """Find the call of the baseline that a call is."""
        self._position += 1
        lane = self._run.lane_of(call.lane, call.forked, self._position, self._limit)
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
        step = Step(self.count, call.id - 1, call, chain, lane, self._position)
        step.digest = self._rule.digest(call)
        found = self._same(step)
        if found is None and step.key not in self._rule.asked:
            found = self._changed(step, call)
        elif found is not None:
            self._state[found.number] = _TAKEN
        self._open[call.id] = step, found
        if self._can_tell_write(step):
            self._tell_start(step, found, call)

    def on_end(self, call: RecordedCall) -> None:
        """Compare the outcome of a call, and find what should have come before it."""
        self._position += 1
        if call.kind == "env":
            return
        step, found = self._open.pop(call.id)
        is_told = self._can_tell_write(step)
        step.end = self._position
        step.is_write = call.is_write
        step.outcome = fingerprint(call.outcome)
        self._run.tokens += call.input_tokens + call.output_tokens
        self._run.forms.add(call.form)
        rule = self._rule
        if not is_told:
            self._tell_start(step, found, call)
        if found is None:
            step.call = call
            if (error := _outcome(call.outcome))[0] == "error":
                self._tell(_Finding("error", None, step, {("error",): (None, error[1])}), call)
            self._others += 1
        else:
            is_same = step.key == found.key
            if step.outcome == found.outcome and is_same and not rule.patterns(step.name).of_arguments:
                step.twin = found.number
            else:
                step.call = call
                finding = rule.outcome(found, call, step)
                if finding is not None and (is_same or finding.kind == "error"):
                    self._tell(finding, call)
            if found.number < self._order.calls:
                self._clear(found)
        if found is not None or self._others <= len(rule.steps) + _MORE:
            self._run.steps.append(step)

    def on_close(self, error: BaseException | None) -> None:  # noqa: ARG002 - however it ended
        """Judge the whole run."""
        run, rule = self._run, self._rule
        run.steps.sort(key=lambda step: step.start)
        for number, step in enumerate(run.steps):
            step.number = number
        provisional, self.drifts = self.drifts, []
        try:
            findings, pairing = rule.findings(run, self._fetch)
            rule.check_comparable(run, pairing, findings, "")
        except CassetteError as problem:
            self.problem, self.drifts = problem, provisional
            return
        for event in rule.events(findings, run, self._fetch):
            self.drifts.append(event)
            self._show(event)
        self._run = Run()

    def _fetch(self, step: Step) -> RecordedCall:
        return step.call if step.call is not None else self._rule.baseline._call(self._rule.steps[step.twin])

    # Pairs, as far as they can be known now

    def _same(self, step: Step) -> Step | None:
        """The call of the baseline that this one is, which was not made yet: in its lane if there is one."""
        asked = self._rule.asked.get(step.key)
        if asked is None:
            return None
        if len(asked) > 1:
            found = self._next(step, asked)
        else:
            found = asked[0] if self._state[asked[0].number] != _TAKEN else None
        if found is None:
            return None
        if found.lane not in self._twins and step.lane not in self._mine:
            self._twins[found.lane] = step.lane
            self._mine[step.lane] = found.lane
        return found

    def _next(self, step: Step, asked: list[Step]) -> Step | None:
        """The next of several calls that are the same."""
        first = self._first.get(step.key, 0)
        while first < len(asked) and self._state[asked[first].number] == _TAKEN:
            first += 1
        self._first[step.key] = first
        free = [one for one in asked[first : first + _MAX_SCANNED] if self._state[one.number] != _TAKEN]
        if not free:
            return None
        twin = self._mine.get(step.lane)
        fits = [one for one in free if (one.lane not in self._twins if twin is None else one.lane == twin)]
        found = (fits or free)[0]
        if first and not self._is_due(found):
            return None  # it was made already, and is not due yet: it is one more
        return found

    def _changed(self, step: Step, call: RecordedCall) -> Step | None:
        """The call of the baseline that is due now, and that this one is with the fewest changes."""
        rule, found, least = self._rule, None, 0
        named = self._named.get((step.chain, step.name), deque())
        while named and self._state[named[0].number] != _FREE:
            named.popleft()
        for one in islice(named, _MAX_SCANNED):
            if self._state[one.number] != _FREE or not self._is_due(one):
                continue
            count = len(rule.changes(one, rule.baseline._call(one), call))
            if found is None or count < least:
                found, least = one, count
        if found is not None:
            self._state[found.number] = _CHANGED if least else _TAKEN
        return found

    def _is_due(self, step: Step) -> bool:
        """Whether all was made that comes before a call of the baseline."""
        if step.number >= self._order.calls:
            return True
        stack, looked = [step.number], 0
        while stack and looked < _MAX_SCANNED:
            for node in self._order.before(stack.pop()):
                if self._is_cleared[node]:
                    continue
                looked += 1
                if node >= self._order.calls:
                    stack.append(node)
                elif self._state[node] == _FREE and node not in self._rule.learned.optional:
                    return False
        return not stack

    def _clear(self, step: Step) -> None:
        """Tell of the calls that come before this one and were not made. Each call is looked at once."""
        stack = [step.number]
        optional, free = self._rule.learned.optional, self._rule.learned.free
        while stack:
            for node in self._order.before(stack.pop()):
                if self._is_cleared[node]:
                    continue
                self._is_cleared[node] = 1
                stack.append(node)
                if node < self._order.calls and not self._state[node] and node not in optional and node not in free:
                    missing = self._rule.steps[node]
                    self._overtaken[node] = step
                    self._tell(_Finding("missing", missing), None)

    # Telling

    def _can_tell_write(self, step: Step) -> bool:
        """Whether it is known before the end of a call if it is a write."""
        return step.kind != "tool" or step.name in self._rule.names

    def _tell_start(self, step: Step, found: Step | None, call: RecordedCall) -> None:
        rule = self._rule
        if found is None:
            self._tell(_Finding("repeated" if step.key in rule.asked else "extra", None, step), call)
        elif step.key != found.key:
            where = rule.changes(found, rule.baseline._call(found), call)
            if where:
                self._tell(_Finding("arguments", found, step, where), call)
        elif (over := self._overtaken.pop(found.number, None)) is not None:
            self._tell(_Finding("order", found, step, {}, [over]), call)

    def _tell(self, finding: _Finding, call: RecordedCall | None) -> None:
        fetch = self._fetch if call is None else lambda _: call
        is_again = (
            finding.step is not None and finding.kind == "missing" and len(self._rule.asked[finding.step.key]) > 1
        )
        event = replace(self._rule.event(finding, fetch, again=is_again), provisional=True)
        accepted = self._rule.tolerance.calls
        if accepted and finding.kind in _OF_NUMBER and not self._rule.is_write(finding.shown):
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
