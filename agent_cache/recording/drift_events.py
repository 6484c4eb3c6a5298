"""Drifts as a user sees them: events with a severity, the report of a run, what is accepted; and places in values."""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording.differences import ABSENT, differences, joined, read_json

Places: TypeAlias = dict[str, tuple[Any, Any]]
"""By path, ``result.items[*].price``: the value in the baseline and in the new run; None if it is not there."""

_ELEMENT = re.compile(r"\[\d+\](?: \([^)]*\))?")
_KEY = r'(?:\.[^\s.:\[\]"]+|\["(?:[^"\\]|\\.)*"\])'
_IGNORED = rf"(.+?):((?:arguments|result|error)(?:{_KEY}|\[\*\])*)"


class DriftSeverity(enum.IntEnum):
    """How much a drift matters: `INFO`, `WARNING` or `CRITICAL`. They compare as numbers do."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3


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
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"severity": self.severity.name.lower()}

    def __str__(self) -> str:
        return f"{self.severity.name}: {self.description}"


class _Checked(msgspec.Struct, forbid_unknown_fields=True):
    """What a tolerance may have, but for functions."""

    ignore: list[str] = []
    tokens: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = 0.2
    calls: Annotated[int, msgspec.Meta(ge=0)] = 0
    fail_on: Literal["info", "warning", "critical"] = "warning"


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
    fail_on: Literal["info", "warning", "critical"] = "warning"

    def __post_init__(self) -> None:
        same = self.same_arguments
        if not isinstance(same, Mapping) or not all(isinstance(one, str) and callable(same[one]) for one in same):
            raise ConfigurationError(f"Tolerance: same_arguments takes functions by name of a function, got {same!r}")
        given = {"ignore": self.ignore, "tokens": self.tokens, "calls": self.calls, "fail_on": self.fail_on}
        try:
            checked = msgspec.convert(given, _Checked)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"Tolerance: {error}") from error
        for one in checked.ignore:
            if re.fullmatch(_IGNORED, one) is None:
                raise ConfigurationError(f"Tolerance: ignore: {one!r} is not as 'get_order:result.items[*].id'")
        object.__setattr__(self, "ignore", tuple(checked.ignore))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of TOML, or of JSON if its name ends so, with these arguments but for `same_arguments`.

        Raises:
            ConfigurationError: if it cannot be read, or an argument cannot work, with its name.
        """
        source = Path(path)
        decode = msgspec.json.decode if source.suffix.lower() == ".json" else msgspec.toml.decode
        try:
            return cls(**msgspec.structs.asdict(decode(source.read_bytes(), type=_Checked)))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"Tolerance: {source} cannot be read: {reason}") from error

    def fails(self, drifts: Iterable[DriftEvent]) -> bool:
        """Whether one of them is as severe as `fail_on`."""
        return any(one.severity >= DriftSeverity[self.fail_on.upper()] for one in drifts)

    def ignored(self, name: str) -> list[str]:
        """The places that may differ in calls of a function."""
        found = filter(None, (re.fullmatch(_IGNORED, one) for one in self.ignore))
        return [one[2] for one in found if is_named(name, one[1])]


@dataclass(frozen=True, slots=True)
class DriftReport:
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
        found = Counter(one.severity for one in self.drifts)
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
        number, run = len(self.drifts), f"{self.calls} call{'' if self.calls == 1 else 's'}"
        if not number:
            return f"no drift in {run}"
        total = ", ".join(f"{count} {severity.name.lower()}" for severity, count in self.counts.items() if count)
        head = f"{number} drift{'' if number == 1 else 's'} in {run}: {total}"
        return "\n".join([head, *map(str, self.drifts)])


# Places in arguments and outcomes


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern is for the function of this name, with or without its module."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(":")[2], pattern)


def places_of(was: Any, now: Any, root: str, most: int = 1_000) -> Places:
    """Where two values differ, with the first two values at each place; lists are one place for all elements."""
    found: Places = {}
    for path, one, other in islice(differences(was, now, root), most):
        place = _ELEMENT.sub("[*]", path)
        found.setdefault(place, (None if one is ABSENT else one, None if other is ABSENT else other))
    return found


def places_pattern(paths: Iterable[str]) -> re.Pattern[str] | None:
    """Matches these paths and what is below them; None without paths."""
    texts = [re.escape(path).replace(r"\.\*", _KEY) for path in sorted(set(paths))]
    return re.compile(rf"(?:{'|'.join(texts)})(?=[.\[]|$)") if texts else None


def pruned(value: Any, path: str, places: re.Pattern[str]) -> Any:
    """A value without the places that may differ."""
    if type(value) is str and (read := read_json(value)) is not None:
        value = read
    if type(value) is dict:
        inner = {key: joined(path, key) for key in value}
        return {key: pruned(value[key], at, places) for key, at in inner.items() if not places.match(at)}
    if type(value) is list:
        at = f"{path}[*]"
        return [] if places.match(at) else [pruned(one, at, places) for one in value]
    return value


def outcome_of(outcome: Mapping[str, Any]) -> tuple[str, Any]:
    """How a call ended, ``ok``, ``error``, ``cancelled`` or ``unfinished``, and with what.

    Of a response, the status and the body count; one of a status from 400 is an error (RFC 9110, 15.5). Headers do not:
    most change with each request.
    """
    inner = outcome.get("stream") or outcome.get("response")
    if inner is not None:
        shown = {name: one for name, one in inner.items() if name not in ("headers", "spelling", "reason", "charset")}
        state, end = outcome_of(shown.pop("end", None) or {"value": None})
        status = shown.get("status")
        if state != "error" and isinstance(status, int) and status >= 400:
            return "error", {"type": f"HTTP {status}", **shown}
        if "stream" in outcome:
            shown = {"chunks": [outcome_of(chunk)[1] for chunk in inner.get("chunks", ())], "end": end}
        return state, end if state == "error" else shown
    for name in ("error", "cancelled", "unfinished"):
        if name in outcome:
            return name, outcome["error"] if name == "error" else None
    for name in ("value", "typed", "any", "object", "unencodable"):
        if name in outcome:
            return "ok", outcome[name]
    return "ok", {name: one for name, one in outcome.items() if name not in ("instead", "loops", "awaited")}
