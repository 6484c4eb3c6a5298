"""Drift: where a run differs from the runs that were approved, and how much that matters.

A `Baseline` is one approved recording or several. `Baseline.compare` judges another recording by it, a `DriftDetector`
a run that goes on. Both are one rule (`pairing` finds which call is which): `docs/explanation/drift.md` describes it.
"""

from __future__ import annotations

import enum
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import msgspec

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.cassette_file import RecordedCall
from agent_cache.recording.http.exchange import Http
from agent_cache.recording.observer import observe
from agent_cache.recording.redaction import Redaction

__all__ = ["Baseline", "DriftDetector", "DriftEvent", "DriftReport", "DriftSeverity", "Tolerance"]


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
        index: index of the call in the new run, of one that is missing in the baseline; -1 for the tokens of the run.
            In a recording it is that of `Cassette.steps`, in an observed run that of its starts.
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
    index: int = -1
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
_PART = re.compile(r"\.([^.\[\]\"]+)|(\[\*\])|\[(\"(?:[^\"\\]|\\.)*\")\]")


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
        omitted: drifts that are counted, and not kept: a run that makes calls for ever does not fill the memory.
    """

    drifts: tuple[DriftEvent, ...] = ()
    calls: int = 0
    omitted: tuple[DriftSeverity, ...] = ()

    @property
    def worst(self) -> DriftSeverity | None:
        """The greatest severity; None without drifts."""
        return max((severity for severity, count in self.counts.items() if count), default=None)

    @property
    def counts(self) -> dict[DriftSeverity, int]:
        """How many drifts there are of each severity."""
        found = Counter(one.severity for one in self.drifts) + Counter(self.omitted)
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
        if not any(counts.values()):
            return f"no drift in {self.calls} calls"
        total = ", ".join(f"{count} {severity.name.lower()}" for severity, count in counts.items() if count)
        return "\n".join([f"{sum(counts.values())} drifts in {self.calls} calls: {total}", *map(str, self.drifts)])


class Baseline:
    """The approved recordings of a run. What varies between several of them is accepted.

    Args:
        cassettes: recordings of the same task.

    Raises:
        CassetteError: if one cannot serve as a baseline, with the reason.
        ConfigurationError: if there is none.
    """

    def __init__(self, *cassettes: Cassette) -> None:
        if not cassettes:
            raise ConfigurationError("Baseline: needs a recording")
        for cassette in cassettes:
            if not len(cassette):
                raise CassetteError("has no calls, so nothing can be compared with it", cassette.path)
            if cassette.is_partial:
                raise CassetteError("is partial, so calls may be missing in it; record it again", cassette.path)
        self._cassettes = cassettes

    @classmethod
    def load(cls, *paths: str | os.PathLike[str]) -> Self:
        """Load recordings from these files.

        Raises:
            CassetteError: if one cannot be read, or cannot serve as a baseline.
        """
        return cls(*map(Cassette.load, paths))

    def compare(self, new: Cassette | str | os.PathLike[str], tolerance: Tolerance | None = None) -> list[DriftEvent]:
        """The drifts of another recording, in its order; what is missing in it comes last.

        Raises:
            CassetteError: if the two have nothing in common, or cannot be compared for another reason.
        """
        other = new if isinstance(new, Cassette) else Cassette.load(new)
        del tolerance
        first = self._cassettes[0]
        if len(other) and {call.name for call in first}.isdisjoint(call.name for call in other):
            raise CassetteError("has no function in common with its baseline: it is of another agent", other.path)
        before = Counter((call.name, call.digest) for call in first)
        found: list[DriftEvent] = []
        for index, call in enumerate(other):
            before[call.name, call.digest] -= 1
            if before[call.name, call.digest] < 0:
                severity = DriftSeverity.CRITICAL if call.is_write else DriftSeverity.WARNING
                found.append(
                    DriftEvent(severity, "extra", call.name, f"{call.name} was called, which is new", None,
                               call.arguments, call.kind, index)
                )  # fmt: skip
        for index, call in enumerate(first):
            if before[call.name, call.digest] > 0:
                before[call.name, call.digest] -= 1
                severity = DriftSeverity.CRITICAL if call.is_write else DriftSeverity.WARNING
                found.append(
                    DriftEvent(severity, "missing", call.name, f"{call.name} was not called", call.arguments, None,
                               call.kind, index)
                )  # fmt: skip
        return found

    def __repr__(self) -> str:
        return f"<Baseline of {', '.join(cassette.path or repr(cassette) for cassette in self._cassettes)}>"


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
        self._baseline = baseline if isinstance(baseline, Baseline) else Baseline.load(baseline)
        self._tolerance = Tolerance() if tolerance is None else tolerance
        self._on_drift = on_drift
        self._calls: list[RecordedCall] = []
        self._report = DriftReport()
        self.redaction: Redaction | None = None
        self.http: Http | None = None

    @property
    def drifts(self) -> list[DriftEvent]:
        """The drifts so far, of which the end of the run may change some; after it, what `Baseline.compare` gives."""
        return list(self._report.drifts)

    def report(self) -> DriftReport:
        """The drifts with their counts.

        Raises:
            CassetteError: if the run has ended and has nothing in common with the baseline, so nothing can be said.
        """
        return self._report

    def attach(self, session_id: str) -> AbstractContextManager[Any]:  # noqa: ARG002 - one for each run, whatever its name
        """The block that a session is entered in."""
        return observe(self)

    def on_start(self, call: RecordedCall) -> None:
        """A call starts."""

    def on_end(self, call: RecordedCall) -> None:
        """A call has ended."""
        self._calls.append(call)

    def on_close(self, error: BaseException | None) -> None:  # noqa: ARG002 - it does not matter how the run ended
        """The run has ended."""
        calls, self._calls = sorted(self._calls, key=lambda call: call.id), []
        drifts = self._baseline.compare(Cassette(calls), self._tolerance)
        self._report = DriftReport(tuple(drifts), len(calls))
        for drift in drifts:
            if self._on_drift is not None:
                self._on_drift(drift)
