"""Drift: where a run differs from those that were approved, and how much that matters, by docs/explanation/drift.md."""

from __future__ import annotations

import enum
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec

from agent_cache.core.options import checked_function
from agent_cache.core.versions import all_paths, paths_of
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording.api import observe, recorded_http
from agent_cache.recording.call_text import described, function_in
from agent_cache.recording.cassette import Cassette, recorded_rules
from agent_cache.recording.differences import (
    KEY,
    Match,
    Places,
    Step,
    changes,
    digest_of,
    joined,
    pair_runs,
    places_of,
    read_json,
    read_run,
    step_of,
)
from agent_cache.recording.file import Header, RecordedCall
from agent_cache.recording.outcomes import encode_sorted
from agent_cache.recording.partial_file import replace_file
from agent_cache.recording.redaction import Redaction
from agent_cache.values.compare import plural, shortened

_LOG = logging.getLogger("agent_cache")

_IGNORED = re.compile(r"(.+?):((?:arguments|result|error)(?:[.\[].*)?)")
_NOWHERE = re.compile(r"(?!)")
_NUMBERS = ("missing", "extra", "repeated")
_MAX_PLACES = 20  # of arguments that have changed, up to which they are counted
_PASSES = 6


class DriftSeverity(enum.IntEnum):
    """How much a drift matters: `INFO`, `WARNING` or `CRITICAL`. They compare as numbers do."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3


_INFO, _WARNING, _CRITICAL = DriftSeverity


class DriftEvent(msgspec.Struct, frozen=True):
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

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with the severity in lower case."""
        return msgspec.structs.asdict(self) | {"severity": self.severity.name.lower()}

    def __str__(self) -> str:
        return f"{self.severity.name}: {self.description}"


class DriftReport(msgspec.Struct, frozen=True):
    """The drifts of a run.

    Attributes:
        drifts: each of them, in the order of the run; what is missing comes last.
        calls: number of calls of the run.
    """

    drifts: tuple[DriftEvent, ...] = ()
    calls: int = 0

    @property
    def worst(self) -> DriftSeverity | None:
        """The greatest severity; None without drifts."""
        return max((one.severity for one in self.drifts), default=None)

    @property
    def counts(self) -> dict[DriftSeverity, int]:
        """How many drifts there are of each severity."""
        return {one: sum(drift.severity is one for drift in self.drifts) for one in reversed(DriftSeverity)}

    def to_dict(self) -> dict[str, Any]:
        """As plain data: ``calls``, ``worst``, ``counts`` by severity and ``drifts``."""
        return {
            "calls": self.calls,
            "worst": None if self.worst is None else self.worst.name.lower(),
            "counts": {severity.name.lower(): number for severity, number in self.counts.items()},
            "drifts": [one.to_dict() for one in self.drifts],
        }

    def __str__(self) -> str:
        if not self.drifts:
            return f"no drift in {plural(self.calls, 'call')}"
        total = ", ".join(f"{number} {severity.name.lower()}" for severity, number in self.counts.items() if number)
        first = f"{plural(len(self.drifts), 'drift')} in {plural(self.calls, 'call')}: {total}"
        return "\n".join([first, *map(str, self.drifts)])


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    same_arguments: Mapping[str, Any] = {}
    tokens: Annotated[float, msgspec.Meta(ge=0)] | None = 0.2
    calls: Annotated[int, msgspec.Meta(ge=0)] = 0
    fail_on: Literal["info", "warning", "critical"] = "warning"

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            try:
                msgspec.convert(getattr(self, field.name), field.type)
            except msgspec.ValidationError as error:
                raise ConfigurationError(f"Tolerance: {field.name}: {error}") from error
        for place in self.ignore:
            if (found := _IGNORED.fullmatch(place)) is None or re.search(r"\[\d+\]", found[2]):
                text = "ignore takes a name and a path from arguments, result or error, [*] for each element of a list"
                raise ConfigurationError(f'Tolerance: {text}, as "get_order:result.items[*].id", and got {place!r}')
        for name, same in self.same_arguments.items():
            checked_function(same, f"Tolerance: same_arguments of {name}")
        msgspec.structs.force_setattr(self, "ignore", tuple(self.ignore))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of TOML, or of JSON if its name ends so, with these arguments but for `same_arguments`.

        Raises:
            ConfigurationError: if it cannot be read, or an argument cannot work, with its name.
        """
        decode = msgspec.json.decode if Path(path).suffix.lower() == ".json" else msgspec.toml.decode
        try:
            return decode(Path(path).read_bytes(), type=cls)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"Tolerance: {path} cannot be read: {reason}") from error

    def fails(self, drifts: Iterable[DriftEvent]) -> bool:
        """Whether one of them is as severe as `fail_on`."""
        return any(one.severity >= DriftSeverity[self.fail_on.upper()] for one in drifts)


# The rule


class _Finding(NamedTuple):
    """A drift, with the calls that show it, of the baseline and of the new run, and the places that differ."""

    event: DriftEvent
    step: Step | None
    other: Step | None
    where: Places


class _Rule:
    """Finds the drifts of a run from one baseline, with one tolerance, and says how much they matter."""

    def __init__(self, baseline: Baseline, tolerance: Tolerance) -> None:
        self.baseline, self.tolerance, self.learned = baseline, tolerance, baseline._learned
        self._writes = {step.call.name for step in baseline._steps if step.call.is_write}
        self._patterns: dict[str, re.Pattern[str] | None] = {}
        self.steps = list(map(self.read, baseline._steps))
        self.asked: dict[Hashable, list[Step]] = {}
        # Numbers of the writes that touch a path, of those without tags (None), and of all ("*").
        self._written: defaultdict[Any, set[int]] = defaultdict(set)
        for step in self.steps:
            self.asked.setdefault(step.key, []).append(step)
            for path in ("*", *(all_paths(step.call.tags, ()) or (None,))) if step.call.is_write else ():
                self._written[path].add(step.number)

    def read(self, step: Step) -> Step:
        """A call without the places that may differ."""
        call = step.call
        if call.name not in self._patterns:
            ignored = filter(None, map(_IGNORED.fullmatch, self.tolerance.ignore))
            paths = self.baseline._places[call.name] | {one[2] for one in ignored if _is_named(call.name, one[1])}
            texts = [re.escape(path).replace(r"\.\*", KEY) for path in sorted(paths)]
            self._patterns[call.name] = re.compile(rf"(?:{'|'.join(texts)})(?=[.\[]|$)") if texts else None
        if (places := self._patterns[call.name]) is None:
            return step
        identity, ended = (_pruned(one, "", places) for one in (step.identity, step.ended))
        key = step.key if identity == step.identity else (step.chain, digest_of([call.name, identity]))
        return replace(step, identity=identity, ended=ended, key=key, outcome=digest_of(ended))

    def changes(self, one: Step, other: Step) -> Places:
        """Where the arguments of two calls of one function differ; nowhere if they are the same call."""
        return {} if self.is_same(one.call, other.call) else places_of(one.identity, other.identity, _MAX_PLACES)

    def is_same(self, was: RecordedCall, now: RecordedCall) -> bool:
        """Whether the tolerance says that two calls of one function are the same."""
        functions = self.tolerance.same_arguments
        same = next((functions[name] for name in functions if _is_named(was.name, name)), None)
        return same is not None and was.asker == now.asker and bool(same(was.arguments, now.arguments))

    def findings(self, steps: Sequence[Step], path: object = "") -> tuple[list[_Finding], list[Match]]:
        """All drifts of a run that has ended, in its order; what is missing comes last."""
        run, learned, found = list(map(self.read, steps)), self.learned, list[_Finding]()
        made = {step.key for step in run}
        matches = pair_runs(self.steps, run, lambda one, other: len(self.changes(one, other)))
        if run and not any(one and other for one, other, _ in matches):
            names = (dict.fromkeys(function_in(step.call.name) for step in steps) for steps in (run, self.steps))
            ours, theirs = (", ".join(islice(each, 5)) for each in names)
            text = f"so it is of another agent: it calls {ours}, and the baseline {theirs}"
            raise CassetteError(f"has no call in common with its baseline, {text}", str(path))
        for one, other, over in matches:
            if one is None or other is None:
                if other is not None and ("extra", other.key) not in learned:
                    found += self.new(other, is_repeated=other.key in self.asked)
                elif one is not None and ("missing", one.number) not in learned:
                    text, least = ("made less often", _INFO) if one.key in made else ("not made", _WARNING)
                    where = {"": (one.call.arguments, None)}
                    found.append(self.finding("missing", f"was {text}", one, None, where, least))
                continue
            where = {} if one.key == other.key else self.changes(one, other)
            if where and {("extra", other.key), ("missing", one.number)} <= learned:
                continue
            if where:
                text = f"was called with other arguments: {_shown_places(where)}"
                found.append(self.finding("arguments", text, one, other, where, _WARNING))
            if one.outcome != other.outcome:
                found += (drift for drift in self.outcome(one, other) if not where or drift.event.kind == "error")
            judged = [step for step in over if ("order", step.number) not in learned]
            if judged and ("order", one.number) not in learned:
                found.append(self.order(one, other, judged))
        return sorted(found, key=lambda drift: (not drift.other, (drift.other or drift.step).number)), matches  # type: ignore[union-attr]

    def finding(
        self, kind: str, text: str, step: Step | None, other: Step | None, where: Places, least: DriftSeverity
    ) -> _Finding:
        """A drift that matters at `least` so much; that of a write is critical. `text` says what the call did."""
        call = (other or step).call  # type: ignore[union-attr]  # there is one of them
        severity = _CRITICAL if kind != "order" and (self.is_write(step) or self.is_write(other)) else least
        was, now = ({at: each[side] for at, each in where.items()} for side in (0, 1))
        if len(where) == 1:
            [(was, now)] = where.values()
        path, text = ", ".join(islice(where, 5)), f"{_shown_call(call)} {text}"
        event = DriftEvent(severity, kind, call.name, text, was, now, call.kind, call.id, path)
        return _Finding(event, step, other, where)

    def new(self, step: Step, *, is_repeated: bool) -> Iterator[_Finding]:
        """A call that the baseline does not have, or not so often."""
        where = {"": (None, step.call.arguments)}
        if is_repeated:
            yield self.finding("repeated", "was made more often than in the baseline", None, step, where, _INFO)
        else:
            yield self.finding("extra", "was made, and is not in the baseline", None, step, where, _WARNING)
        if "error" in step.ended:
            yield self.error(None, step, None, step.ended["error"])

    def outcome(self, step: Step, other: Step) -> Iterator[_Finding]:
        """How the outcome of a call differs."""
        if ("error", step.number) in self.learned or "unfinished" in step.ended:
            return
        was, now = step.ended.get("error"), other.ended.get("error")
        if _type_of(was) != _type_of(now):
            yield self.error(step, other, was, now)
        elif where := places_of(step.ended, other.ended):
            yield self.finding("result", f"had another outcome: {_shown_places(where)}", step, other, where, _WARNING)

    def error(self, step: Step | None, other: Step, was: Any, now: Any) -> _Finding:
        """A call that raises another error than in the baseline, or none."""
        where = {"error": (was, now)}
        if now is None:
            return self.finding("error", f"no longer raises {_shown_error(was)}", step, other, where, _WARNING)
        text = f"raised {_shown_error(now)}, and in the baseline {'did not' if was is None else _shown_error(was)}"
        return self.finding("error", text, step, other, where, _CRITICAL)

    def order(self, step: Step, other: Step, over: Sequence[Step]) -> _Finding:
        """A call that was moved over others in its task. The order of two writes counts if they share a tag."""
        call, written, numbers = other.call, self._written, {one.number for one in over}
        if call.is_write:
            met = set().union(*(written[path] for path in (None, *paths_of(call.tags)))) if call.tags else written["*"]
            severity = _CRITICAL if numbers & met else _WARNING if numbers - written["*"] else _INFO
        else:
            severity = _WARNING if numbers & written["*"] else _INFO
        sides = ("before", "after") if step.number < over[0].number else ("after", "before")
        was, now = (f"{side} {_shown_call(over[0].call)}" for side in sides)
        text = f"came {now}, and in the baseline {sides[0]} it"
        return self.finding("order", text, step, other, {"": (was, now)}, severity)

    def is_write(self, step: Step | None) -> bool:
        """Whether a call is a write, also one that has not ended, or was refused."""
        return step is not None and (step.call.is_write or step.call.name in self._writes)

    def is_number(self, finding: _Finding) -> bool:
        """Whether a drift is about how many reads or model calls there are."""
        return finding.event.kind in _NUMBERS and not self.is_write(finding.other or finding.step)

    def events(self, findings: Sequence[_Finding], run: Sequence[Step]) -> Iterator[DriftEvent]:
        """The events of a whole run, with those of its tokens."""
        few = sum(map(self.is_number, findings)) <= self.tolerance.calls
        yield from (one.event for one in findings if not (few and self.is_number(one)))
        part, tokens, (least, most) = self.tolerance.tokens, _tokens_of(run), self.baseline._tokens
        if part is None or not tokens or not least or least * (1 - part) <= tokens <= most * (1 + part):
            return
        was = most if tokens > most else least
        text = (
            f"the model calls of the run took {tokens:,} tokens, and in the baseline {was:,}: {tokens / was - 1:+.0%}, "
            f"of which {part:.0%} are accepted"
        )
        yield DriftEvent(_WARNING if tokens > was else _INFO, "tokens", "", text, was, tokens, "run")


def _is_named(name: str, pattern: str) -> bool:
    """Whether a pattern is for the function of this name, with or without its module."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(":")[2], pattern)


def _pruned(value: Any, path: str, places: re.Pattern[str]) -> Any:
    """A value without the places that may differ."""
    if type(value) is str and (read := read_json(value)) is not None:
        value = read
    if type(value) is dict:
        inner = {key: joined(path, key) for key in value}
        return {key: _pruned(value[key], at, places) for key, at in inner.items() if not places.match(at)}
    if type(value) is list:
        at = f"{path}[*]"
        return [] if places.match(at) else [_pruned(one, at, places) for one in value]
    return value


def _said(value: Any) -> bytes:
    """The same for values between which `places_of` finds no difference."""
    return encode_sorted(_pruned(value, "", _NOWHERE))


def _meaning(step: Step) -> Hashable:
    return step.chain, step.call.name, _said(step.identity)


def _type_of(error: Any) -> Any:
    return error.get("type") if isinstance(error, dict) else None


def _tokens_of(run: Sequence[Step]) -> int:
    return sum(step.call.input_tokens + step.call.output_tokens for step in run)


def _shown_call(call: RecordedCall) -> str:
    return call.name if " " in call.name else described(function_in(call.name), call.arguments)


def _shown_error(error: Any) -> str:
    """An error as it would be raised."""
    text = repr(error)
    if _type_of(error) is not None:
        text = function_in(str(error["type"])) + (f"({error['message']!r})" if error.get("message") else "")
    return shortened(text, 80)


def _shown_places(where: Places) -> str:
    lines = [line for path, (was, now) in islice(where.items(), 3) for line in changes(was, now, path)]
    return "; ".join(lines) + (f"; and {len(where) - 3} more" if len(where) > 3 else "")


# What a run is compared with, and how


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
        runs = [_counting(cassette) for cassette in cassettes]
        for cassette, run in zip(cassettes, runs, strict=True):
            if cassette.is_partial:
                raise CassetteError("is partial, so calls may be missing in it; record it again", cassette.path)
            if not run:
                raise CassetteError("has no calls, so nothing can be compared with it", cassette.path)
            self.redaction = self.redaction.joined(recorded_rules(cassette))
        self.http = next(filter(None, map(recorded_http, cassettes)), None)
        self._steps = [replace(step, number=number) for number, step in enumerate(runs[0])]
        self._tokens = min(map(_tokens_of, runs)), max(map(_tokens_of, runs))
        # What varies: places by name of a function; kinds of drift with the number of a call, or the key of a new one.
        self._places: defaultdict[str, set[str]] = defaultdict(set)
        self._learned: set[tuple[str, Hashable]] = set()
        for _ in range(_PASSES if len(runs) > 1 else 0):  # a place that is learned changes which call is which
            is_settled = True
            for run, path in zip(runs, self._paths, strict=True):
                findings, matches = _Rule(self, Tolerance()).findings(run, path)
                is_settled &= not findings
                same = {one.call.name for one, other, _ in matches if one and other and one.key == other.key}
                for finding in findings:
                    self._accept(finding, same)
            if is_settled:
                break

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
        cassette = new if isinstance(new, Cassette) else Cassette.load(new)
        rule, run = _Rule(self, tolerance or Tolerance()), _counting(cassette)
        return list(rule.events(rule.findings(run, cassette.path)[0], run))

    def _accept(self, finding: _Finding, same: set[str]) -> None:
        event, step, other, where = finding
        # Of a function that both call with the same arguments, too, it is another call; else its arguments vary.
        if event.kind in _NUMBERS or (event.kind == "arguments" and event.name in same):
            self._learned |= {("extra", other.key)} if other is not None else set()
            self._learned |= {("missing", step.number)} if step is not None else set()
        elif step is not None and event.kind in ("order", "error"):
            self._learned.add((event.kind, step.number))
        elif step is not None:
            self._places[event.name].update(where)


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
        if tolerance is not None and not isinstance(tolerance, Tolerance):
            raise ConfigurationError(f"DriftDetector: tolerance must be a Tolerance, got {tolerance!r}")
        found = baseline if isinstance(baseline, Baseline) else Baseline.load(baseline)
        self._rule = _Rule(found, tolerance or Tolerance())
        self._given_on_drift = checked_function(on_drift, "DriftDetector: on_drift")
        self.redaction, self.http = found.redaction, found.http
        self._meanings = set(map(_meaning, self._rule.steps))
        self._endings = {
            key: {_said(one.ended) for one in same}
            for key, same in self._rule.asked.items()
            if not any(("error", one.number) in self._rule.learned or "unfinished" in one.ended for one in same)
        }
        self._begin()
        self._is_running = False

    def _begin(self) -> None:
        self._latest, self._is_running, self._on_drift = self, True, self._given_on_drift
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
        tolerance, step = self._rule.tolerance, step_of(call, self._chains.pop(call.id, ("",))[:-1])
        try:
            for finding in self._certain(self._rule.read(step)):
                # Of how many may be more or fewer, the end says whether they are too many.
                if not (tolerance.calls and self._rule.is_number(finding)):
                    self._drifts.append(finding.event)
                    self._show(finding.event)
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
            self._drifts = list(self._rule.events(self._rule.findings(run)[0], run))
        except Exception as problem:  # noqa: BLE001 - `report` raises it
            self._problem = problem
            return
        for event in self._drifts:
            self._show(event)

    def _certain(self, step: Step) -> Iterator[_Finding]:
        rule, key = self._rule, step.key
        same = rule.asked.get(key, [])
        self._made[key] += 1
        is_new = self._made[key] > len(same)
        if is_new and ("extra", key) not in rule.learned and (same or not self._has(step)):
            yield from rule.new(step, is_repeated=bool(same))
        elif not is_new and _said(step.ended) not in self._endings.get(key, {_said(step.ended)}):
            yield from rule.outcome(same[0], step)

    def _has(self, step: Step) -> bool:
        """Whether the baseline has a call with these arguments; texts that are JSON count as what they say."""
        rule, call = self._rule, step.call
        others = (one.call for one in rule.steps if one.call.name == call.name and one.chain == step.chain)
        are_same = rule.tolerance.same_arguments and any(rule.is_same(one, call) for one in others)
        return _meaning(step) in self._meanings or bool(are_same)

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


# The files of a baseline: one recording, or a folder of accepted runs, as 1.jsonl, 2.jsonl and so on


def is_folder_of_runs(path: Path) -> bool:
    """Whether a baseline at this path is a folder of runs. One that does not exist yet is a file if it is named so."""
    return path.is_dir() or (not path.is_file() and path.suffix not in (".jsonl", ".json"))


def accepted_runs(path: Path) -> list[Path]:
    """The recordings of a baseline: the file itself, or every ``*.jsonl`` directly in a folder, by number and name."""
    if path.is_file():
        return [path]
    found = [one for one in path.glob("*.jsonl") if one.is_file()]
    if not found:
        raise CassetteNotFound("there is no baseline" if not path.is_dir() else "has no accepted run", path)
    return sorted(found, key=lambda one: (int(one.stem) if one.stem.isdecimal() else 0, one.name))


def store_run(run: Cassette, path: Path, *, replaces: bool = False) -> tuple[Path, list[Path]]:
    """Write an accepted run to a baseline, and return its path and those of the runs that it has replaced.

    It is written before an old one is deleted. A run that cannot serve as a baseline raises CassetteError.
    """
    Baseline(run)
    is_folder = is_folder_of_runs(path)
    old = accepted_runs(path) if path.is_file() or any(path.glob("*.jsonl")) else []
    if old and not is_folder and not replaces:
        raise CassetteError("is the file of one run; to keep several, accept them to a folder", path)
    replaced = old if replaces else []
    last = 0 if replaces else max((int(one.stem) for one in old if one.stem.isdecimal()), default=0)
    target = path / f"{last + 1}.jsonl" if is_folder else path
    replace_file(target, run.lines())
    for one in {*replaced} - {target}:
        one.unlink(missing_ok=True)
    return target, replaced
