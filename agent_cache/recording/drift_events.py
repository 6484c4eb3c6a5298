"""What is said of a drift: its severity, its text, what of it is accepted, and the report of a run."""

from __future__ import annotations

import enum
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording.differences import changes
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.pairing import Difference, Position, shown_path

__all__ = [
    "IGNORED", "MAX_PLACES", "MAX_SHOWN", "OF_NUMBER", "DriftEvent", "DriftReport", "DriftSeverity", "Tolerance",
    "error_of", "is_named", "listed", "outcome_of", "shown_call", "shown_error", "shown_places", "shown_value",
    "type_of", "values_of",
]  # fmt: skip


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


# Tolerance

IGNORED = re.compile(
    r"(?P<tool>.+?):(?P<path>(?:arguments|result|error)(?:\.(?:[^\s.:\[\]\"]+)|\[\*\]|\[\"(?:[^\"\\]|\\.)*\"\])*)"
)


_NUMBERS: Final[dict[str, tuple[Any, str]]] = {
    "tokens": (Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None, "must be a part of the whole such as 0.2, or None"),
    "calls": (Annotated[int, msgspec.Meta(ge=0)], "must be a number of calls from 0"),
}


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
        object.__setattr__(self, "ignore", tuple(self.ignore))
        for one in self.ignore:
            if not isinstance(one, str) or IGNORED.fullmatch(one) is None:
                raise ConfigurationError(
                    f"Tolerance: ignore: {one!r} is not a function and a path, as 'get_order:result.request_id' or "
                    "'*:arguments.items[*].id'"
                )
        for name, (kind, takes) in _NUMBERS.items():
            try:
                msgspec.convert(getattr(self, name), kind)
            except msgspec.ValidationError as error:
                raise ConfigurationError(f"Tolerance: {name} {takes}, got {getattr(self, name)!r}") from error
        if not isinstance(self.same_arguments, Mapping) or not all(
            isinstance(name, str) and callable(same) for name, same in self.same_arguments.items()
        ):
            raise ConfigurationError(
                "Tolerance: same_arguments takes a function of (expected, actual) by name of a function, got "
                f"{self.same_arguments!r}"
            )
        object.__setattr__(self, "same_arguments", dict(self.same_arguments))
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


# Texts

OF_NUMBER = ("missing", "extra", "repeated")
MAX_PLACES = 20
"""Changed places of arguments up to which they are counted."""
MAX_SHOWN = 5
_LONG = 80


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern is for the function of this name, with or without its module."""
    return fnmatchcase(name, pattern) or fnmatchcase(_short_name(name), pattern)


def _short_name(name: str) -> str:
    return name if " " in name else name.rpartition(":")[2]


def outcome_of(outcome: Mapping[str, Any]) -> tuple[str, Any]:
    """How a call ended, ``ok``, ``error``, ``cancelled`` or ``unfinished``, and with what.

    Of a response, the status and the body count; one of a status from 400 is an error. Headers do not: most change with
    each request.
    """
    if "error" in outcome:
        return "error", outcome["error"]
    if "response" in outcome:
        response = {name: one for name, one in outcome["response"].items() if name not in _OF_TRANSPORT}
        end = outcome_of(response.pop("end", {"value": None}))
        if end[0] == "error":
            return end
        status = response.get("status")
        if isinstance(status, int) and status >= 400:  # RFC 9110, 15.5
            return "error", {"type": f"HTTP {status}", **response}
        return end[0], response
    if "stream" in outcome:
        stream = outcome["stream"]
        state, end = outcome_of(stream.get("end", {"value": None}))
        if state == "error":
            return state, end
        return state, {"chunks": [outcome_of(chunk)[1] for chunk in stream.get("chunks", ())], "end": end}
    for name in ("cancelled", "unfinished"):
        if name in outcome:
            return name, None
    for name in ("value", "typed", "any", "object", "unencodable"):
        if name in outcome:
            return "ok", outcome[name]
    return "ok", {name: one for name, one in outcome.items() if name not in ("instead", "loops", "awaited")}


_OF_TRANSPORT = frozenset({"headers", "spelling", "reason", "charset"})


def type_of(error: Any) -> Any:
    """The class of a recorded exception."""
    return error.get("type") if isinstance(error, dict) else None


def error_of(state: str, value: Any) -> Any:
    """The exception of an outcome; None if it has none."""
    return value if state == "error" else None


def values_of(where: Mapping[Position, Difference]) -> Difference:
    """Both values of the one place that differs, or of several by their paths."""
    if len(where) == 1:
        return next(iter(where.values()))
    if not where:
        return None, None
    return {shown_path(at): was for at, (was, _) in where.items()}, {
        shown_path(at): now for at, (_, now) in where.items()
    }


def shown_value(value: Any) -> str:
    """A value as text, shortened."""
    if isinstance(value, dict) and "type" in value and ("message" in value or str(value["type"]).startswith("HTTP ")):
        text = f"{_short_name(str(value['type']))}"
        if value.get("message"):
            text += f"({value['message']!r})"
    else:
        text = repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def shown_error(was: Any) -> str:
    """What the baseline raised, as text."""
    return "did not" if was is None else shown_value(was)


def shown_places(where: Mapping[Position, Difference]) -> str:
    """The first places that differ, as text."""
    parts = [_shown_change(shown_path(at), was, now) for at, (was, now) in list(where.items())[:3]]
    more = len(where) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


def _shown_change(path: str, was: Any, now: Any) -> str:
    if isinstance(was, str) and isinstance(now, str) and max(len(was), len(now)) > _LONG:  # a prompt: where it differs
        return "; ".join(changes(was, now, path))
    return f"{path} was {shown_value(was)} and is {shown_value(now)}"


def shown_call(call: RecordedCall) -> str:
    """A call as text, shortened."""
    name = _short_name(call.name)
    if call.kind == "http" or " " in name:
        return name
    text = ", ".join(f"{one}={value!r}" for one, value in call.arguments.items())
    return f"{name}({text if len(text) <= _LONG else text[: _LONG - 3] + '...'})"


def listed(names: Iterable[str]) -> str:
    """The first of some names of functions, as text."""
    found = list(dict.fromkeys(map(_short_name, names)))
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
