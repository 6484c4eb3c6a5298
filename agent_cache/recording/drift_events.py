"""Drifts as a user sees them: events with a severity, the report of a run, what is accepted, and their texts."""

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
from agent_cache.recording.differences import ABSENT, changes, differences, joined, read_json
from agent_cache.recording.file import RecordedCall

Places: TypeAlias = dict[str, tuple[Any, Any]]
"""By path, ``result.items[*].price``: the value in the baseline and in the new run; None if it is not there."""

_ELEMENT = re.compile(r"\[\d+\](?: \([^)]*\))?")
_KEY = r'(?:\.[^\s.:\[\]"]+|\["(?:[^"\\]|\\.)*"\])'
_IGNORED = re.compile(rf"(.+?):((?:arguments|result|error)(?:{_KEY}|\[\*\])*)")
_LONG = 80
_MAX_SHOWN = 5


class DriftSeverity(enum.IntEnum):
    """How much a drift matters: `INFO`, `WARNING` or `CRITICAL`. They compare as numbers do."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @classmethod
    def of(cls, given: Any, caller: str = "severity") -> DriftSeverity:
        """The severity of this name, in any case, or this severity."""
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
    fail_on: DriftSeverity | str = DriftSeverity.WARNING

    def __post_init__(self) -> None:
        object.__setattr__(self, "fail_on", DriftSeverity.of(self.fail_on, "Tolerance: fail_on"))
        same = self.same_arguments
        if not isinstance(same, Mapping) or not all(isinstance(one, str) and callable(same[one]) for one in same):
            raise ConfigurationError(f"Tolerance: same_arguments takes functions by name of a function, got {same!r}")
        try:
            given = {"ignore": self.ignore, "tokens": self.tokens, "calls": self.calls}
            checked = msgspec.convert(given, _Checked)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"Tolerance: {error}") from error
        for one in checked.ignore:
            if _IGNORED.fullmatch(one) is None:
                raise ConfigurationError(
                    f"Tolerance: ignore: {one!r} is not a function and a path, as 'get_order:result.request_id' or "
                    "'*:arguments.items[*].id'"
                )
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
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"Tolerance: {source} cannot be read: {reason}") from error

    def fails(self, drifts: Iterable[DriftEvent]) -> bool:
        """Whether one of them is as severe as `fail_on`."""
        return any(one.severity >= DriftSeverity.of(self.fail_on) for one in drifts)

    def ignored(self, name: str) -> list[str]:
        """The places that may differ in calls of a function."""
        found = filter(None, map(_IGNORED.fullmatch, self.ignore))
        return [one[2] for one in found if is_named(name, one[1])]


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


# Places


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


# Outcomes


def outcome_of(outcome: Mapping[str, Any]) -> tuple[str, Any]:
    """How a call ended, ``ok``, ``error``, ``cancelled`` or ``unfinished``, and with what.

    Of a response, the status and the body count; one of a status from 400 is an error. Headers do not: most change with
    each request.
    """
    if "response" in outcome:
        without = ("headers", "spelling", "reason", "charset")
        response = {name: one for name, one in outcome["response"].items() if name not in without}
        end = outcome_of(response.pop("end", {"value": None}))
        status = response.get("status")
        if end[0] != "error" and isinstance(status, int) and status >= 400:  # RFC 9110, 15.5
            return "error", {"type": f"HTTP {status}", **response}
        return end if end[0] == "error" else (end[0], response)
    if "stream" in outcome:
        stream = outcome["stream"]
        state, end = outcome_of(stream.get("end", {"value": None}))
        chunks = [outcome_of(chunk)[1] for chunk in stream.get("chunks", ())]
        return (state, end) if state == "error" else (state, {"chunks": chunks, "end": end})
    for name in ("error", "cancelled", "unfinished"):
        if name in outcome:
            return name, outcome["error"] if name == "error" else None
    for name in ("value", "typed", "any", "object", "unencodable"):
        if name in outcome:
            return "ok", outcome[name]
    return "ok", {name: one for name, one in outcome.items() if name not in ("instead", "loops", "awaited")}


# Texts


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern is for the function of this name, with or without its module."""
    return fnmatchcase(name, pattern) or fnmatchcase(_short_name(name), pattern)


def _short_name(name: str) -> str:
    return name if " " in name else name.rpartition(":")[2]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def shown_value(value: Any) -> str:
    """A value as text, shortened; an error as it would be raised."""
    if isinstance(value, dict) and "type" in value and ("message" in value or str(value["type"]).startswith("HTTP ")):
        message = f"({value['message']!r})" if value.get("message") else ""
        return _shortened(f"{_short_name(str(value['type']))}{message}")
    return _shortened(repr(value))


def shown_places(where: Places) -> str:
    """The first places that differ, as text."""
    parts: list[str] = []
    for path, (was, now) in islice(where.items(), 3):
        if isinstance(was, str) and isinstance(now, str) and max(len(was), len(now)) > _LONG:  # a prompt
            parts += changes(was, now, path)
        else:
            parts.append(f"{path} was {shown_value(was)} and is {shown_value(now)}")
    return "; ".join(parts) + (f"; and {len(where) - 3} more" if len(where) > 3 else "")


def shown_paths(where: Places) -> str:
    """The first paths, as text."""
    return ", ".join(islice(where, _MAX_SHOWN))


def shown_call(call: RecordedCall) -> str:
    """A call as text, shortened."""
    name = _short_name(call.name)
    if call.kind == "http" or " " in name:
        return name
    return f"{name}({_shortened(', '.join(f'{one}={value!r}' for one, value in call.arguments.items()))})"


def listed(names: Iterable[str]) -> str:
    """The first of some names of functions, as text."""
    found = list(dict.fromkeys(map(_short_name, names)))
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
