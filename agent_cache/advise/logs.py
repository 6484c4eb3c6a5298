"""Reads logs of tool calls into one time line: `read_log`.

The forms are our own recordings, OTel spans, messages of OpenAI and Anthropic, trajectories (ATIF-v1.7), and JSON with
one call a record. A method of `_Reader` for each turns a record into calls; what they share (times, arguments, answers)
stands below them. Everything is kept in memory.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording import Cassette

__all__ = ["Log", "files_of", "read_log"]

Record = Mapping[str, Any]
Fields = dict[str, Any]
"""Some of the fields of a `LoggedCall`."""

_RUNS: Final = ("run", "run_id", "session", "session_id", "sessionId", "conversation_id", "thread_id")
_TIMES: Final = ("time", "timestamp", "created_at", "created")
_NAMES: Final = ("tool", "tool_name", "name")
_ARGUMENTS: Final = ("arguments", "args", "input", "parameters")
_CACHED: Final = ("hit", "validated")
_RESULTS: Final = ("result", "output", "content")
_IDS: Final = ("call_id", "tool_call_id", "tool_use_id", "id")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_SPAN_TOOL: Final = ("agent_cache.tool", "gen_ai.tool.name", "tool.name")
_SPAN_ARGUMENTS: Final = ("gen_ai.tool.call.arguments", "tool_arguments", "input.value")  # the last of OpenInference
_SPAN_RESULT: Final = ("gen_ai.tool.call.result", "tool_response", "output.value")
_NAMELESS: Final = "calls without the name of a tool were left out"
_BROKEN: Final = (AttributeError, TypeError, ValueError, LookupError, RecursionError)


@dataclass(slots=True)
class Log:
    """The calls of some logs, in the order in which they ended; what they have and lack; what could not be read."""

    calls: list[LoggedCall]
    notes: list[str]
    problems: list[str]


def read_log(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, progress: Callable[[int], None] | None = None
) -> Log:
    """The calls of tools in some files and folders; `progress` is told how many bytes have been read."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ConfigurationError("read_log: no path was given")
    files, reader, done = files_of(given), _Reader(), 0
    found: list[tuple[float, int, int, LoggedCall]] = []
    for number, (name, path) in enumerate(files):
        reader.open(name)
        try:
            data = sys.stdin.buffer.read() if path is None else path.read_bytes()
            data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "its content breaks off"
            reader.note(f"files that cannot be read ({reason}) were left out")
            continue
        done += len(data)
        found += _placed(number, list(reader.calls(data, path)))
        if progress is not None:
            progress(done)
    calls = [call for *_, call in sorted(found, key=lambda one: one[:3])]
    return Log(calls, _facts(calls, len(files)), reader.problems())


def files_of(paths: Iterable[str | os.PathLike[str]]) -> list[tuple[str, Path | None]]:
    """The files that are meant, each once, in the order of their names; None for the standard input."""
    found: dict[str, tuple[str, Path | None]] = {}
    for given in paths:
        path = Path(given)
        if os.fspath(given) == "-":
            found["-"] = ("standard input", None)
            continue
        inside = [path] if path.is_file() else []
        if path.is_dir():
            parts = ((one, one.relative_to(path).parts) for one in path.rglob("*"))
            inside = [one for one, own in parts if one.is_file() and not any(name.startswith(".") for name in own)]
        if not inside:
            raise FileNotFoundError(f"there is no file {'in the directory ' if path.is_dir() else ''}{str(path)!r}")
        found.update({os.path.realpath(one): (str(one), one) for one in inside})
    return sorted(found.values(), key=lambda file: file[0])


def _placed(file: int, found: list[LoggedCall]) -> list[tuple[float, int, int, LoggedCall]]:
    """Calls with their place in the time line: one without a time stands behind the one above it, the first ones
    before the first with a time, and a file without any time behind all others.
    """
    latest = min((call.ended for call in found if call.ended is not None), default=float("inf"))
    placed = []
    for position, call in enumerate(found):
        latest = latest if call.ended is None else call.ended
        placed.append((latest, file, position, call))
    return placed


def _facts(calls: list[LoggedCall], files: int) -> list[str]:
    if not calls:
        return ["no call of a tool was found"]
    counts = {"call": len(calls), "tool": len({call.tool for call in calls}), "run": len({call.run for call in calls})}
    shown = [f"{number:,} {noun}{'' if number == 1 else 's'}" for noun, number in (counts | {"file": files}).items()]
    kinds = {call.kind for call in calls}
    facts = {
        "read {} of {} in {}, from {}".format(*shown): True,
        "no call has an answer: no rule can have evidence": all(call.result is UNKNOWN for call in calls),
        "no call has arguments: which calls are the same is not known": not any(call.is_keyed for call in calls),
        "the log does not say which tools write: that takes evidence or hints": kinds == {None},
        "no call has a time: runs count as one after another": all(call.ended is None for call in calls),
    }
    return [text for text, is_so in facts.items() if is_so]


class _Reader:
    """Reads files, one after the other. What it cannot read is counted, with the place of the first."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, str]] = {}
        self._known: dict[Any, str] = {}  # calls by their ids, and the run of each
        self._open: dict[tuple[str, str], list[tuple[tuple[str, str, Any], float | None, int]]] = {}
        self._count = 0
        self.open("")

    def open(self, name: str) -> None:
        """Go on with the next file."""
        self._name, self._place, self._runs = name, "", 0

    def note(self, text: str) -> None:
        """Count a problem."""
        place = f"{self._name}, {self._place}" if self._place else self._name
        number, first = self._counts.get(text, (0, place))
        self._counts[text] = number + 1, first

    def problems(self) -> list[str]:
        """A sentence each."""
        return [f"{text}: {number:,} (first: {first})" for text, (number, first) in self._counts.items()]

    def calls(self, data: bytes, path: Path | None) -> Iterator[LoggedCall]:
        """The calls of the file, in its order."""
        if path is not None and data.startswith((b'{"agent_cache_cassette"', b'{"agent_cache_journal"')):
            try:
                yield from self._recorded(Cassette.load(path), data)
            except CassetteError as error:
                line = "" if error.line is None else f", line {error.line}"
                self.note(f"recordings that cannot be read were left out: it {error.reason}{line}")
            except _BROKEN:
                self.note("recordings that are not as a recorder writes them")
            return
        for record in self._records(data.removeprefix(b"\xef\xbb\xbf")):
            try:
                yield from self._read(record)
            except _BROKEN:
                self.note("records that are not as their form says were left out")
        for waiting in self._open.values():
            yield from (self._call(*call, UNKNOWN, began=at) for call, at, _ in waiting)
            waiting.clear()

    def _is_new(self, *identity: str) -> bool:
        """Whether no record was seen with this id, if it has one."""
        if not identity[-1] or identity not in self._known:
            self._known[identity] = ""
            return True
        self.note("calls that are there twice were counted once")
        return False

    def _records(self, data: bytes) -> Iterator[Any]:
        """A whole document; or JSON Lines, or documents one after the other, each of which begins a line."""
        if not isinstance(whole := _decoded(data), dict | list):
            line = 1
            for part in re.split(rb"\n(?=[\[{])", data):
                for text in [part] if _decoded(part) is not None else part.splitlines():
                    self._place = f"line {line}"
                    line += text.count(b"\n") + 1
                    if isinstance(value := _decoded(text), dict | list):
                        yield value
                    elif text.strip():
                        self.note("what is no JSON was left out")
            return
        yield whole

    def _read(self, record: Any) -> Iterator[LoggedCall]:
        if isinstance(record, list) and not any(map(_is_message, record)):
            for one in record:
                yield from self._read(one)
        elif isinstance(record, list):
            yield from self._conversation({}, record)
        elif not isinstance(record, dict):
            self.note("records of no known form were left out")
        elif (spans := _spans_of(record)) is not None:
            parents = {_text(_first(span, ("parentSpanId", "parent_id"))) for span in spans}
            for span in spans:
                yield from self._of_span(span, parents)
        elif "ATIF" in str(record.get("schema_version")):
            yield from self._trajectory(record)
        elif isinstance(record.get("calls"), list):
            self._runs += 1
            run = _text(_first(record, (*_RUNS, "id"))) or f"{self._name}, run {self._runs}"
            for one in record["calls"]:
                yield from self._plain(one, run)
        elif not _is_message(record) and _first(record, _NAMES) and {*record} & {*_NAMES[:2], *_ARGUMENTS}:
            yield from self._plain(record, self._name)
        elif messages := _messages_of(record):
            yield from self._conversation(record, messages)
        else:
            self.note("records of no known form were left out")

    # Our own recordings

    def _recorded(self, cassette: Cassette, data: bytes) -> Iterator[LoggedCall]:
        base = began = self._moment(cassette.recorded_at)
        resumes = [(int(number), self._moment(at.decode())) for at, number in _RESUMED.findall(data)]
        enclosing, last, hints = {call.parent for call in cassette.steps}, 0.0, dict[str, dict[str, bool]]()
        for position, call in enumerate(cassette.steps):
            self._place = f"call {call.id}"
            while base is not None and resumes and resumes[0][0] <= position:
                began = max(began or base, (resumes.pop(0)[1] or base) - last)
            starts, duration = max(0.0, call.started_ms) / 1e3, max(0.0, call.duration_ms) / 1e3
            last = max(last, starts + duration)
            value, error = _outcome(call.outcome)
            if call.name.startswith("mcp:") and isinstance(value, dict):  # what the server says of its tools
                for tool in (value.get("result") or value).get("tools") or ():
                    hints[tool["name"]] = _hints_of(tool.get("annotations"))
            is_call = call.kind in ("tool", "write", "call") and call.name not in ("mcp:request", "mcp:tools")
            if not is_call or call.source == "blocked":
                continue
            at = None if began is None else began + starts
            yield self._call(
                call.name, self._name, call.arguments, value,
                error=error, is_hit=call.source in _CACHED, began=at, ended=None if at is None else at + duration,
                kind="write" if "write" in (call.kind, call.source) else "read" if call.source else None,
                encloses=call.kind == "call" and call.id in enclosing,
                hints=hints.get(call.name.rpartition(":")[2], {}),
            )  # fmt: skip

    # Spans: the GenAI conventions of OpenTelemetry, as OTLP or as the console exporter prints them

    def _of_span(self, span: Record, parents: set[str]) -> Iterator[LoggedCall]:
        attributes, name = _attributes_of(span), str(span.get("name", ""))
        source = attributes.get("agent_cache.source")
        is_tool = attributes.get("gen_ai.operation.name") == "execute_tool" or name.startswith("execute_tool ")
        if source == "blocked" or not (is_tool or attributes.get("openinference.span.kind") == "TOOL"):
            return
        context = span["context"] if isinstance(span.get("context"), dict) else span
        trace, own = _text(_first(context, ("trace_id", "traceId"))), _text(_first(context, ("span_id", "spanId")))
        if self._is_new(trace, own):
            result = _of_message(_first(attributes, _SPAN_RESULT))
            yield self._call(
                _text(_first(attributes, _SPAN_TOOL)) or name.removeprefix("execute_tool "),
                _text(_first(attributes, ("gen_ai.conversation.id", "session.id"))) or trace,
                _first(attributes, _SPAN_ARGUMENTS), UNKNOWN if result is None else result,
                error=_error_of_span(span, attributes), may_be_cut=True,
                is_hit=attributes.get("gen_ai.tool.cache.hit") is True or source in _CACHED,
                began=self._moment(_first(span, ("startTimeUnixNano", "start_time"))),
                ended=self._moment(_first(span, ("endTimeUnixNano", "end_time"))),
                kind="write" if source == "write" else "read" if source else None,
                encloses=own in parents and source is None,
            )  # fmt: skip

    # Trajectories: ATIF-v1.7 of Harbor

    def _trajectory(self, record: Record) -> Iterator[LoggedCall]:
        run = _text(_first(record, ("session_id", "trajectory_id"))) or self._name
        for step in record.get("steps") or ():
            results = (step.get("observation") or {}).get("results") or ()
            answers = {one.get("source_call_id"): one.get("content") for one in results}
            for one in step.get("tool_calls") or ():
                answer, at = answers.get(one.get("tool_call_id"), UNKNOWN), self._moment(step.get("timestamp"))
                yield self._call(str(one["function_name"]), run, one["arguments"], answer, ended=at)

    # One call a record

    def _plain(self, record: Any, run: str) -> Iterator[LoggedCall]:
        if not (tool := _text(_first(record, _NAMES))):
            self.note(_NAMELESS)
            return
        run = _text(_first(record, _RUNS)) or run
        if not self._is_new(run, tool, _text(_first(record, _IDS))):
            return
        error, result = _first(record, ("error", "is_error")), _first(record, _RESULTS)
        is_error = error not in (None, False, "")
        asked = _first(record, _ARGUMENTS)
        yield self._call(
            tool, run, {} if asked is None and any(name in record for name in _ARGUMENTS) else asked,
            result if any(name in record for name in _RESULTS) else UNKNOWN,
            error=_error_text(result if error is True else error) if is_error else None,
            is_hit=record.get("source") in _CACHED,
            began=self._moment(_first(record, ("started", "start_time"))),
            ended=self._moment(_first(record, ("ended", "end_time", *_TIMES))),
            kind=record["kind"] if record.get("kind") in ("read", "write") else None,
            hints=_hints_of(_first(record, ("hints", "annotations"))),
        )  # fmt: skip

    # Messages: Chat Completions, Responses, Messages of Anthropic

    def _conversation(self, record: Record, messages: list[Record]) -> Iterator[LoggedCall]:
        self._count += 1
        run = self._run_of(record, messages)
        holders = [record, *(record[name] for name in ("response", "body") if isinstance(record.get(name), dict))]
        general = self._moment(next(filter(None, (_first(one, _TIMES) for one in holders)), None))
        latest = 0.0
        for message in messages:
            own = self._moment(_first(message, _TIMES))
            if (at := general if own is None else own) is not None:
                at = latest = max(at, latest)
            for tool, call_id, asked in _calls_in(message):
                key = _key_of(run, call_id)
                if key in self._known and not key[0]:
                    continue
                self._known[key] = run
                if tool:
                    call = tool, run, {} if asked is None else asked
                    self._open.setdefault(key, []).append((call, at, self._count))
                else:
                    self.note(_NAMELESS)
            for call_id, output, has_failed in _answers_in(message):
                key = _key_of(run, call_id)
                if waiting := self._open.get(key):
                    call, began, in_record = waiting.pop(0)
                    # One time of a whole record is no beginning of its calls.
                    began = began if own is not None or in_record != self._count else None
                    yield self._call(*call, output, failed=has_failed, began=began, ended=at)
                elif key not in self._known:
                    self.note("answers without a call were left out")

    def _run_of(self, record: Record, messages: list[Record]) -> str:
        """The run that a record names; or that of an earlier record, a call of which this one repeats."""
        if run := _text(_first(record, _RUNS if _is_message(record) else (*_RUNS, "id"))):
            return run
        ids = [call_id for message in messages for _, call_id, _ in _calls_in(message)]
        if found := [self._known[key] for one in ids if (key := _key_of("", one)) in self._known]:
            return found[0]
        self._runs += len(messages) > 1
        return f"{self._name}, run {self._runs}" if len(messages) > 1 else self._name

    # What the forms have in common

    def _call(
        self, tool: str, run: str, asked: Any, result: Any, *,
        error: str | None = None, failed: bool = False, is_hit: bool = False, may_be_cut: bool = False,
        began: float | None = None, ended: float | None = None, **fields: Any,
    ) -> LoggedCall:  # fmt: skip
        """A call: its arguments and its answer as they stand in a log, other fields as they are."""
        if began is not None and ended is not None:
            began, ended = min(began, ended), max(began, ended)
        answer: Fields = {"is_from_cache": True}
        if error is not None or not is_hit:
            answer = self._answer(result, error=error, failed=failed, may_be_cut=may_be_cut)
        else:
            self.note("answers that came from a cache: they show nothing of the world")
        return LoggedCall(tool=tool, run=run, started=began, ended=ended, **self._arguments(asked), **answer, **fields)

    def _moment(self, value: Any) -> float | None:
        """A time as Unix seconds: of a number, whose size tells its unit, or of a text of ISO 8601; else None."""
        if value is None or value == "":
            return None
        if (number := _number(value)) is None:
            try:
                when = datetime.fromisoformat(str(value))
                number = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
            except ValueError:
                number = 0.0
        number /= next((unit for unit, least in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11)) if number >= least), 1.0)
        if number < 946_684_800:  # 2000-01-01
            self.note("times that cannot be read, or are relative, were passed over")
            return None
        return round(number, 6)

    def _arguments(self, value: Any) -> Fields:
        """Arguments by name, and whether they tell the call from others: not if they are missing, cut or redacted."""
        if isinstance(value, str) and value.strip()[:1] in ("{", "["):
            value = _decoded(value)
        if value is None:
            self.note("calls without arguments, or with some that are cut off, are equal to no other")
            return {"arguments": {}, "is_keyed": False}
        named = value if isinstance(value, dict) else {"args" if isinstance(value, list) else "input": value}
        if value == "" or not self._is_marked(named):
            return {"arguments": {} if value == "" else named}
        self.note("calls with redacted arguments are equal to no other")
        return {"arguments": self._cleared(named), "is_keyed": False}

    def _answer(self, value: Any, *, error: str | None, failed: bool, may_be_cut: bool) -> Fields:
        """What a call answered: of blocks of text their text, of text that is a JSON object or list its value."""
        if error is None and value is UNKNOWN:
            self.note("calls without an answer")
            return {}
        is_mcp = isinstance(value, dict) and isinstance(value.get("content"), list)
        if is_mcp and {"isError", "structuredContent"} & {*value}:
            failed, value = failed or value.get("isError") is True, value["content"]
        text = _text_of_blocks(value)
        error = _error_text(value if text is None else text) if failed else error
        if error is not None:  # of one that was cancelled, the effect is not known
            return {} if _CANCELLED.match(error) else {"error": error[:500]}
        fields: Fields = {"result": value}
        if text is not None:
            if may_be_cut and text[:1] == '"' and isinstance(inner := _decoded(text), str):  # a text as JSON
                text = inner
            parsed = _decoded(text) if text.strip()[:1] in ("{", "[") else None
            if parsed is None and may_be_cut and text.strip()[:1] in ("{", "[", '"'):
                self.note("answers that are cut off")
                return {}
            if isinstance(parsed, dict) and {"tool_call_id", "content"} <= {*parsed}:  # the message of LangChain
                return self._answer(parsed["content"], error=None, failed=False, may_be_cut=False)
            fields = {"result": text if parsed is None else parsed, "is_parsed": parsed is not None}
            if may_be_cut and parsed is None and len(text) >= 128 and len(text).bit_count() == 1:
                fields["is_whole"] = False  # the limits of exporters are powers of two
        if not self._is_marked(fields["result"]):
            return fields
        self.note("answers with redacted parts: an equal one shows nothing")
        cleared = self._cleared(fields["result"])
        return {} if cleared is None else fields | {"result": cleared, "is_whole": False}

    def _is_marked(self, value: Any) -> bool:
        raw = msgspec.json.encode(value)
        return _MARK.search(raw) is not None

    def _cleared(self, value: Any) -> Any:
        """The value with None in the place of each text that has a redacted part."""
        if isinstance(value, dict):
            return {name: self._cleared(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._cleared(one) for one in value]
        return None if isinstance(value, str) and self._is_marked(value) else value


# Parts of records

_RESUMED: Final = re.compile(rb'^\{"resumed":\{"at":"?([^",}]+)"?,"calls":(\d+)', re.MULTILINE)
_CANCELLED: Final = re.compile(r"(?:[\w.]+[.:])?(?:CancelledError|Cancelled|GeneratorExit|KeyboardInterrupt): ")
_MARK: Final = re.compile(
    rb"""[\[<](?:redacted|filtered|scrubbed|masked|truncated)\b[^\]>"]{0,80}[\]>]
    |__REDACTED__|"(?:REDACTED|x{6,40}|\*{3,}[^"]{0,8})\"""",
    re.IGNORECASE | re.VERBOSE,
)


def _decoded(text: bytes | str) -> Any:
    """The JSON value, also with what Python writes and JSON does not have (NaN); None if it is none."""
    try:
        return json.loads(text, strict=False, parse_constant=str)
    except (ValueError, RecursionError):
        return None


def _first(record: Any, names: Iterable[str]) -> Any:
    """The value of the first of these names that the record has; None if it has none."""
    if not isinstance(record, dict):
        return None
    return next((record[name] for name in names if record.get(name) is not None), None)


def _text(value: Any) -> str:
    """A name or a number as a text; empty for anything else."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _number(value: Any) -> float | None:
    """A number, also one that is a text; None if it is none."""
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -1e300 < number < 1e300 else None


def _hints_of(value: Any) -> dict[str, bool]:
    return {name: value[name] for name in _HINTS if isinstance(_first(value, (name,)), bool)}


def _text_of_blocks(value: Any) -> str | None:
    """The text that a value is: itself, or the texts of its blocks; None if it is something else."""
    if isinstance(value, str) or not isinstance(value, list) or not value:
        return value if isinstance(value, str) else None
    texts = [_first(one, ("text",)) for one in value if "text" in str(_first(one, ("type",)))]
    return "\n".join(texts) if len(texts) == len(value) and all(isinstance(one, str) for one in texts) else None


def _error_text(value: Any, name: str = "") -> str:
    """An error as ``"TypeName: text"``."""
    if isinstance(value, Mapping):
        name = _text(_first(value, ("type", "name", "code"))) or name
        value = _first(value, ("message", "text", "error", "content")) or value
    text = _text_of_blocks(value) or ("" if value is None else str(value))
    if name:
        return text if text.startswith(f"{name}:") else f"{name}: {text}"
    return text if re.match(r"[A-Za-z_][\w.:]*: ", text) else f"Error: {text}"


def _outcome(outcome: Record) -> tuple[Any, str | None]:
    """The value of an outcome in a recording, None if it has none; and its error."""
    if isinstance(error := outcome.get("error"), dict):
        return None, _error_text(error.get("message", ""), str(error.get("type", "")).rpartition(":")[2])
    if isinstance(stream := outcome.get("stream"), dict):
        end = _outcome(stream.get("end") or {"value": None})
        return [_outcome(chunk)[0] for chunk in stream.get("chunks", ())], end[1]
    if isinstance(outcome.get("object"), list):
        return outcome["object"][-1], None
    known = [outcome[form] for form in ("value", "typed", "any") if form in outcome]
    return (known[0], None) if known else (None, "Cancelled: ")


def _spans_of(record: Record) -> list[Any] | None:
    """The spans of a record of OTLP, or the span that it is itself; None if it is neither."""
    context = record["context"] if isinstance(record.get("context"), dict) else record
    if "spanId" in context or "span_id" in context:
        return [record]
    if not isinstance(record.get("resourceSpans"), list):
        return None
    scopes = [scope for one in record["resourceSpans"] for scope in one.get("scopeSpans") or ()]
    return [span for scope in scopes for span in scope.get("spans") or ()]


def _attributes_of(span: Any) -> dict[str, Any]:
    """The attributes of a span by name; those of OTLP have their type around each value."""
    given = span.get("attributes") or {}
    return {one["key"]: next(iter(one["value"].values())) for one in given} if isinstance(given, list) else given


def _of_message(output: Any) -> Any:
    """What a tool has answered: of the message that LangChain makes of it, the content."""
    message = _decoded(output) if isinstance(output, str) and output[:1] == "{" else output
    if isinstance(message, dict) and message.get("type") == "tool" and isinstance(message.get("data"), dict):
        return message["data"].get("content", output)
    return output


def _error_of_span(span: Record, attributes: Record) -> str | None:
    status = span.get("status") or {}
    code = _first(status, ("code", "status_code"))
    if str(code) not in ("2", "ERROR", "STATUS_CODE_ERROR") and "error.type" not in attributes:
        return None
    text, kind = _first(status, ("message", "description")), attributes.get("error.type", "")
    for event in span.get("events") or ():
        inner = _attributes_of(event)
        kind, text = inner.get("exception.type", kind), inner.get("exception.message", text)
    return _error_text(_text(text), str(kind))


_CALLS: Final = {"tool_use", "function_call", "mcp_call"}
_ANSWERS: Final = {"tool_result", "function_call_output", "mcp_call"}
_ROLES: Final = {"system", "developer", "user", "assistant", "tool", "human", "ai"}


def _is_message(value: Any) -> bool:
    """Whether a value is a message, or an item of the Responses API."""
    kind = str(_first(value, ("type",)))
    if str(_first(value, ("role",))) in _ROLES or kind in _ROLES:  # the latter are LangChain's
        return "content" in value or "tool_calls" in value
    return kind in _CALLS | _ANSWERS


def _messages_of(record: Any) -> list[Record]:
    """The messages of a record: a list of them, an object that has one, or a request with its response."""
    if isinstance(record, list):
        return [one for one in record if isinstance(one, dict)] if any(map(_is_message, record)) else []
    if not isinstance(record, dict) or _is_message(record):
        return [record] if isinstance(record, dict) else []
    found: list[Record] = []
    for name in ("request", "body", "messages", "input", "message", "response", "output"):
        found += _messages_of(record.get(name))
    for choice in record["choices"][:1] if isinstance(record.get("choices"), list) else ():
        found += _messages_of(_first(choice, ("message",)))
    return found


def _key_of(run: str, call_id: str) -> tuple[str, str]:
    """By what an answer finds its call: an id that occurs once, or one like ``call_1`` and its run."""
    is_unique = len(call_id) >= 13 and len(re.findall(r"\d+", call_id)) > 1
    return "" if is_unique else run, call_id


def _blocks_of(message: Record) -> list[Any]:
    content = message.get("content")
    return [message, *(content if isinstance(content, list) else ())]


def _calls_in(message: Record) -> Iterator[tuple[str, str, Any]]:
    """The name, id and arguments of each call that a message asks for."""
    for one in message.get("tool_calls") or [one for one in _blocks_of(message) if _first(one, ("type",)) in _CALLS]:
        inner = _first(one, ("function",)) or one
        yield _text(_first(inner, ("name",))), _text(_first(one, _IDS)), _first(inner, _ARGUMENTS)


def _answers_in(message: Record) -> Iterator[tuple[str, Any, bool]]:
    """The id of the call, the output, and whether it failed, of each answer in a message."""
    blocks = [one for one in _blocks_of(message) if _first(one, ("type",)) in _ANSWERS]
    if not blocks and "tool" in (message.get("role"), message.get("type")):
        yield _text(message.get("tool_call_id")), message.get("content"), message.get("status") == "error"
    for one in blocks:
        error = _first(one, ("error",)) if one["type"] == "mcp_call" else None
        yield _text(_first(one, _IDS)), error or _first(one, _RESULTS), bool(error or one.get("is_error"))
