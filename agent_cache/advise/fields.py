"""The parts of a call in a foreign log: its times, its arguments and its answer, in whatever form they are written.

What makes an answer an error: the form says so (``is_error``, ``isError`` of MCP, the status of a span, a column
``error``). A text such as ``Error: not found`` is an answer like any other, because a cache stores it like any other.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.advise.records import Problem, Problems, decoded

__all__ = [
    "ABSENT",
    "NO_ANSWER",
    "OF_CACHE",
    "Answer",
    "Arguments",
    "Found",
    "Source",
    "Times",
    "arguments_of",
    "answer_of",
    "call_of",
    "error_text",
    "failure",
    "first_of",
    "hints_of",
    "moment",
    "number_of",
    "number_text",
    "truth",
]

ABSENT: Final = object()
"""Stands for a field that a record does not have."""

HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_MAX_ERROR = 500
_LEAST_CUT = 128
"""Characters of the shortest text that may have been cut off."""


class Found(NamedTuple):
    """A call that a log has.

    Attributes:
        call: the call.
        identity: a text by which the same call is known again in another place of the log. Empty if there is none.
        place: where it is in its file, for messages.
        is_in_order: whether the calls of a run stand in the order in which they were made, if the clock is right.
    """

    call: LoggedCall
    identity: str
    place: str
    is_in_order: bool = False


@dataclass(slots=True)
class Source:
    """The file that is read, and what is known of it so far.

    Attributes:
        name: of the file.
        problems: is added to.
        hints: the annotations of MCP by the name of a tool.
        marks: texts that stand for a secret in this file, beside the usual ones.
        now: the current time in Unix seconds: later ones are in the future.
    """

    name: str
    problems: Problems
    now: float
    hints: dict[str, dict[str, bool]] = field(default_factory=dict)
    marks: tuple[bytes, ...] = ()

    def note(self, problem: Problem, place: str, number: int = 1) -> None:
        """Count a problem of this file."""
        self.problems.add(problem, f"{self.name}, {place}" if place else self.name, number)

    def learn(self, tools: Any) -> None:
        """Keep the annotations in a list of tools, which a server of MCP gives, or a request offers to a model."""
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and (hints := hints_of(tool.get("annotations"))):
                self.hints[number_text(tool.get("name"))] = hints


# Fields


def first_of(record: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The value of the first of these names that the record has; `ABSENT` if it has none."""
    for name in names:
        if name in record:
            return record[name]
    return ABSENT


def number_of(value: Any) -> float | None:
    """A number, also one that is a text; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -1e300 < number < 1e300 else None


def number_text(value: Any) -> str:
    """A name or a number as a text; empty for anything else."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


_FALSE = frozenset({"", "0", "false", "no", "n", "none", "null", "nan", "ok", "success"})
_TRUE = frozenset({"1", "true", "yes", "y"})


def truth(value: Any) -> bool | None:
    """Whether a flag is set, also one that is a text; None if it is none."""
    if isinstance(value, bool):
        return value
    if value is None or value is ABSENT:
        return False
    if isinstance(value, int | float):
        return bool(value)
    if isinstance(value, str):
        text = value.strip().lower()
        return False if text in _FALSE else True if text in _TRUE else None
    return None


def hints_of(value: Any) -> dict[str, bool]:
    """The annotations of MCP in a dict."""
    if not isinstance(value, Mapping):
        return {}
    return {name: value[name] for name in HINTS if isinstance(value.get(name), bool)}


# Times

_YEAR_2000 = 946_684_800.0
_DAY = 86_400.0
_MAX_YEAR_9999 = 253_402_300_800.0
_SKEW = 1e-3
_DATE = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_TIME_OF_DAY = re.compile(r"^(\d{4})/(\d{2})/(\d{2})")


def moment(value: Any, source: Source, place: str) -> float | None:
    """A time as Unix seconds; None if it is none.

    Args:
        value: a number of seconds, milliseconds, microseconds or nanoseconds since 1970, which its size tells; a text
            of one; or a date and time of ISO 8601 or RFC 5322. Without a zone it is UTC.
        source: problems are counted there.
        place: where it stands.
    """
    if value is None or value is ABSENT or value == "":
        return None
    number = number_of(value)
    if number is not None and not (isinstance(value, str) and len(value) == 8 and _DATE.match(value)):
        size = abs(number)
        seconds = (
            number
            if size < 1e11
            else number / 1e3
            if size < 1e14
            else number / 1e6
            if size < 1e17
            else int(value) / 1e9
            if isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
            else number / 1e9
        )
    else:
        when = _date(value) if isinstance(value, str) else None
        if when is None:
            source.note(Problem.BAD_TIME, place)
            return None
        if when.tzinfo is None:
            source.note(Problem.NO_ZONE, place)
            when = when.replace(tzinfo=UTC)
        seconds = (when - _EPOCH).total_seconds()
    seconds = round(seconds, 6)
    if seconds < _YEAR_2000:
        source.note(Problem.RELATIVE, place)
        return None
    if seconds > source.now + _DAY:
        source.note(Problem.FUTURE, place)
        if seconds > _MAX_YEAR_9999:
            return None
    return seconds


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _date(text: str) -> datetime | None:
    text = _TIME_OF_DAY.sub(r"\1-\2-\3", text.strip().removesuffix(" UTC").removesuffix(" GMT"))
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text)
    except ValueError:
        return None


class Times(NamedTuple):
    """When a call ran, in Unix seconds, and how many seconds it took; None where the log does not say."""

    started: float | None = None
    ended: float | None = None
    duration: float | None = None

    def checked(self, source: Source, place: str) -> Times:
        """The same with what follows from it, and with `started` not behind `ended`."""
        started, ended, duration = self
        if duration is not None and not 0 <= duration < 1e9:
            duration = None
        if started is not None and ended is not None:
            if ended < started - _SKEW:
                source.note(Problem.BACKWARDS, place)
                return Times(ended, started, duration)
            if duration is None:
                duration = max(0.0, round(ended - started, 6))
            return Times(started, max(started, ended), duration)
        if duration is not None and started is not None:
            ended = round(started + duration, 6)
        elif duration is not None and ended is not None:
            started = round(ended - duration, 6)
        return Times(started, ended, duration)


# Arguments


class Arguments(NamedTuple):
    """The arguments of a call, and whether they tell it from others."""

    values: dict[str, Any]
    is_keyed: bool = True


def arguments_of(value: Any, source: Source, place: str) -> Arguments:
    """Arguments by name.

    A list is the argument ``args``, and a text that is no JSON object is the argument ``input``.

    Args:
        value: a JSON value, or a text with one, or with a dict of Python; `ABSENT` if the log has none.
        source: problems are counted there.
        place: where they stand.
    """
    if value is ABSENT:
        source.note(Problem.NO_ARGUMENTS, place)
        return Arguments({}, is_keyed=False)
    is_cut = False
    if isinstance(value, str):
        parsed = _structured(value)
        if parsed is None:
            parsed = _python_value(value)
        is_cut = parsed is None and value.lstrip()[:1] in ("{", "[")
        value = value if parsed is None else parsed
    if is_cut:
        source.note(Problem.CUT_ARGUMENTS, place)
        return Arguments({}, is_keyed=False)
    if value is None or value == "":
        return Arguments({})
    if isinstance(value, dict):
        arguments = value
    else:
        source.note(Problem.UNNAMED_ARGUMENTS, place)
        arguments = {"args" if isinstance(value, list) else "input": value}
    arguments, is_redacted = _without_secrets(arguments, source)
    if is_redacted:
        source.note(Problem.REDACTED_ARGUMENTS, place)
    return Arguments(arguments, not is_redacted)


def _structured(text: str) -> Any:
    """The object or list that a text is; None if it is none."""
    text = text.strip()
    return decoded(text.encode()) if text[:1] in ("{", "[") else None


def _python_value(text: str) -> Any:
    """The dict or list of Python that a text is, as LangChain gives inputs to its callbacks; None if it is none."""
    try:
        value = ast.literal_eval(text.strip()) if len(text) < 1_000_000 else None
        return msgspec.json.decode(msgspec.json.encode(value)) if isinstance(value, dict | list) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, msgspec.MsgspecError):
        return None


# Answers


class Answer(NamedTuple):
    """What a call answered.

    Attributes:
        result: as in `LoggedCall`.
        error: likewise.
        is_parsed: likewise.
        is_whole: likewise.
        is_from_cache: likewise.
    """

    result: Any = UNKNOWN
    error: str | None = None
    is_parsed: bool = False
    is_whole: bool = True
    is_from_cache: bool = False


NO_ANSWER: Final = Answer()
"""Of a call that shows nothing."""
OF_CACHE: Final = Answer(is_from_cache=True)
"""Of a call that a cache answered, which shows nothing of the world."""
_TEXTS = frozenset({"text", "input_text", "output_text"})
_ERROR_NAME = re.compile(r"[A-Za-z_][\w.:]*: ")
_CLASS = re.compile(r"[\w.:]*(?:Error|Exception|Exit|Interrupt|Timeout|Cancelled)")


def error_text(value: Any, name: str = "") -> str:
    """An error as ``"TypeName: text"``, at most 500 characters of it.

    Args:
        value: what the log has of it.
        name: of its class, if that stands elsewhere.
    """
    if isinstance(value, Mapping):
        name = name or number_text(first_of(value, ("type", "name", "class", "code")))
        message = first_of(value, ("message", "msg", "text", "error", "description", "content"))
        value = message if message is not ABSENT else value
    value = _text_of(value) or value
    text = value if isinstance(value, str) else "" if value is None or value is True else _json(value)
    text = text.strip()[:_MAX_ERROR]
    if name:
        return text if text.startswith(f"{name}:") else f"{name}: {text}" if text else f"{name}: "
    if _ERROR_NAME.match(text):
        return text
    return f"{text}: " if text and _CLASS.fullmatch(text) else f"Error: {text}"


_CANCELLED = re.compile(r"(?:[\w.]+[.:])?(?:CancelledError|Cancelled|GeneratorExit|KeyboardInterrupt): ")


def failure(value: Any, source: Source, place: str, name: str = "") -> Answer:
    """The answer of a call that failed. One that was cancelled has none: a write may have taken effect.

    Args:
        value: what the log has of the error.
        source: problems are counted there.
        place: where it stands.
        name: of its class, if that stands elsewhere.
    """
    text = error_text(value, name)
    if _CANCELLED.match(text):
        source.note(Problem.UNFINISHED, place)
        return NO_ANSWER
    return Answer(error=text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def answer_of(value: Any, source: Source, place: str, *, is_error: bool = False, may_be_cut: bool = False) -> Answer:
    """The answer of a call.

    Args:
        value: a JSON value; `ABSENT` if the log has none. A list of text blocks is their text, and a result of MCP
            with one text that is JSON is this text.
        source: problems are counted there.
        place: where it stands.
        is_error: whether the log says that it is an error.
        may_be_cut: whether texts of this form are cut off at some length, so that one that begins as JSON and is none
            shows nothing.
    """
    if value is ABSENT:
        if not is_error:
            source.note(Problem.NO_RESULT, place)
            return NO_ANSWER
        return failure(None, source, place)
    if isinstance(value, dict):
        value, is_failed = _inner(value)
        is_error = is_error or is_failed
    text = _text_of(value)
    if is_error:
        return failure(value if text is None else text, source, place)
    is_parsed = False
    if text is not None:
        if may_be_cut and text[:1] == '"':  # a text as JSON
            inner_text = decoded(text.encode())
            if isinstance(inner_text, str):
                text = inner_text
            elif len(text) >= _LEAST_CUT:
                source.note(Problem.CUT_RESULT, place)
                return NO_ANSWER
        parsed = _structured(text)
        is_parsed = parsed is not None
        if not is_parsed and may_be_cut and text.lstrip()[:1] in ("{", "["):
            source.note(Problem.CUT_RESULT, place)
            return NO_ANSWER
        value = parsed if is_parsed else text
        if isinstance(value, dict):
            inner, is_failed = _inner(value)
            if inner is not value:
                return answer_of(inner, source, place, is_error=is_failed)
    value, is_redacted = _without_secrets(value, source)
    if is_redacted:
        source.note(Problem.REDACTED_RESULT, place)
        if value is None:
            return NO_ANSWER
    is_cut = may_be_cut and isinstance(value, str) and len(value) >= _LEAST_CUT and len(value).bit_count() == 1
    if is_cut:
        source.note(Problem.CUT_TEXT, place)
    return Answer(value, None, is_parsed, not is_redacted and not is_cut)


def _inner(value: dict[str, Any]) -> tuple[Any, bool]:
    """What a result is of that is wrapped, and whether the wrapper says that it is an error."""
    if isinstance(value.get("content"), list) and ("isError" in value or "structuredContent" in value):  # MCP
        content = value["content"]
        if value.get("isError") is True:
            return content, True
        text = _text_of(content) if len(content) == 1 else None
        return (value if text is None or _structured(text) is None else text), False  # as `parse="json"` of a rule does
    if value.get("type") == "tool" and isinstance(data := value.get("data"), dict) and "content" in data:  # LangChain
        return data["content"], data.get("status") == "error"
    if value.keys() == {"type", "value"} and value["type"] in ("json", "text", "error-text", "error-json"):  # AI SDK
        return value["value"], str(value["type"]).startswith("error")
    return value, False


def _text_of(value: Any) -> str | None:
    """The text that a value is: itself, or the texts of its blocks; None if it is something else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        texts = [
            one["text"]
            for one in value
            if isinstance(one, dict) and one.get("type") in _TEXTS and isinstance(one.get("text"), str)
        ]
        if len(texts) == len(value):
            return "\n".join(texts)
    return None


# Secrets

_MARK = re.compile(
    rb"""[\[<](?:redacted|filtered|scrubbed|masked|truncated)\b[^\]>"]{0,80}[\]>]
    |__REDACTED__|"(?:REDACTED|x{6,40}|\*{3,}[^"]{0,8})\"""",
    re.IGNORECASE | re.VERBOSE,
)


def _without_secrets(value: Any, source: Source) -> tuple[Any, bool]:
    """The value with None in the place of each text that has a redacted part, and whether there was one."""
    raw = msgspec.json.encode(value)
    if not _is_marked(raw, source):
        return value, False
    return _cleared(value, source), True


def _is_marked(raw: bytes, source: Source) -> bool:
    return _MARK.search(raw) is not None or any(mark in raw for mark in source.marks)


def _cleared(value: Any, source: Source) -> Any:
    if isinstance(value, dict):
        return {
            name: _cleared(one, source)
            for name, one in value.items()
            if not _is_marked(msgspec.json.encode(name), source)
        }
    if isinstance(value, list):
        return [_cleared(one, source) for one in value]
    if isinstance(value, str) and _is_marked(msgspec.json.encode(value), source):
        return None
    return value


# The call


def call_of(
    tool: str,
    arguments: Arguments,
    answer: Answer,
    times: Times,
    source: Source,
    *,
    run: str,
    kind: Literal["read", "write"] | None = None,
    hints: Mapping[str, bool] | None = None,
    cost: float | None = None,
) -> LoggedCall:
    """A call of these parts."""
    return LoggedCall(
        tool=tool,
        arguments=arguments.values,
        result=answer.result,
        error=answer.error,
        started=times.started,
        ended=times.ended,
        run=run,
        kind=kind,
        hints=hints or source.hints.get(tool, {}),
        duration=times.duration,
        cost=cost,
        is_parsed=answer.is_parsed,
        is_keyed=arguments.is_keyed,
        is_whole=answer.is_whole,
        is_from_cache=answer.is_from_cache,
    )
