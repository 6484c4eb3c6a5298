"""Turns the records of a log into calls, whatever form they have.

A reader turns one record into calls: of our recordings, of spans, of trajectories (ATIF), of plain calls, of messages.
What the forms have in common (times, arguments, answers) is read by `_moment`, `_arguments` and `_answer`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from agent_cache.advise.calls import LoggedCall
from agent_cache.errors import CassetteError
from agent_cache.recording import Cassette

__all__ = ["FORMS", "Form", "Found", "Problems", "Reader"]

Form = Literal["recording", "spans", "messages", "atif", "calls"]
FORMS: Final = get_args(Form)
Record = Mapping[str, Any]
Fields = dict[str, Any]
"""Some of the fields of a `LoggedCall`."""

_RUNS: Final = ("run", "run_id", "session", "session_id", "sessionId", "conversation_id", "thread_id", "trace_id")
_TIMES: Final = ("time", "timestamp", "ts", "@timestamp", "created_at", "createdAt", "created", "date")
_NAMES: Final = ("tool", "tool_name", "toolName", "name", "function_name", "function")
_ARGUMENTS: Final = ("arguments", "args", "input", "parameters", "params", "kwargs")
_RESULTS: Final = ("result", "output", "content", "response", "answer", "observation")
_ERRORS: Final = ("error", "exception", "is_error", "isError", "failed")
_IDS: Final = ("call_id", "tool_call_id", "tool_use_id", "toolCallId", "id")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_OF_SPANS: Final = {
    "tool": ("agent_cache.tool", "gen_ai.tool.name", "tool.name", "traceloop.entity.name"),
    "arguments": ("gen_ai.tool.call.arguments", "tool_arguments", "input.value", "traceloop.entity.input"),
    "result": ("gen_ai.tool.call.result", "tool_response", "output.value", "traceloop.entity.output"),
}
_NAMELESS: Final = "calls without the name of a tool were left out"
_BROKEN: Final = (AttributeError, TypeError, ValueError, LookupError, RecursionError)


class Problems:
    """How often each problem occurs, and where first."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, str]] = {}

    def add(self, text: str, place: str) -> None:
        """Count one more."""
        number, first = self._counts.get(text, (0, place))
        self._counts[text] = number + 1, first

    def sentences(self) -> list[str]:
        """A sentence each."""
        return [f"{text}: {number:,} (first: {first})" for text, (number, first) in self._counts.items()]


class Found(NamedTuple):
    """A call, and by what it is known again if another record has it, too."""

    call: LoggedCall
    identity: str = ""


class _Event(NamedTuple):
    """A call in a message, or its answer."""

    tool: str
    id: str
    arguments: Any = None
    is_answer: bool = False
    output: Any = None
    has_failed: bool = False


class Reader:
    """Reads one file. What it cannot read is counted in `problems`."""

    def __init__(self, name: str, form: Form | None, problems: Problems) -> None:
        self._name, self._form, self._problems = name, form, problems
        self._place, self._mark = "", b"\0"
        self._hints: dict[str, dict[str, bool]] = {}
        self._runs = self._count = 0
        self._open: dict[tuple[str, str], list[tuple[Fields, float | None, int]]] = {}
        self._known: set[tuple[str, str]] = set()
        self._wholes: dict[bytes, str] = {}

    def _note(self, text: str) -> None:
        self._problems.add(text, f"{self._name}, {self._place}" if self._place else self._name)

    def calls(self, data: bytes) -> Iterator[Found]:
        """The calls of the file, in its order."""
        data = data.removeprefix(b"\xef\xbb\xbf")
        if data.startswith((b'{"agent_cache_cassette"', b'{"agent_cache_journal"')):
            yield from self._recording(data)
            return
        if not data.strip():
            self._note("files without content")
        for record in self._records(data):
            try:
                yield from self._read(record)
            except _BROKEN:
                self._note("records that are not as their form says were left out")
        for waiting in self._open.values():
            yield from (self._made(asked | self._unanswered(), at, None) for asked, at, _ in waiting)

    def _made(self, fields: Fields, began: float | None, ended: float | None, identity: str = "") -> Found:
        if began is not None and ended is not None:
            began, ended = min(began, ended), max(began, ended)
            fields = {"duration": round(ended - began, 6), **fields}
        fields["hints"] = fields.get("hints") or self._hints.get(fields["tool"].rpartition(":")[2], {})
        return Found(LoggedCall(**fields, started=began, ended=ended), identity)

    def _records(self, data: bytes) -> Iterator[Any]:
        """The records of JSON Lines, or of documents one after the other: the elements of an array, or the document."""
        lines = data.splitlines(keepends=True)
        if len(lines) < 2 or not any(_decoded(line) is not None for line in lines[:2]):
            yield from self._documents(data.decode(errors="replace").strip())
            return
        for number, line in enumerate(lines, 1):
            self._place, text = f"line {number}", line.strip(b" \t\r\n\x00\x1e")
            if isinstance(value := _decoded(text), dict | list):
                yield value
            elif text:
                is_torn = not line.endswith(b"\n")
                self._note("the last line is torn" if is_torn else "lines that are no JSON were left out")

    def _documents(self, text: str) -> Iterator[Any]:
        decoder, at = json.JSONDecoder(strict=False, parse_constant=str), 0
        while at < len(text):
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                self._note("files that are no JSON, or not to their end, were left out from there on")
                return
            while at < len(text) and text[at].isspace():
                at += 1
            yield from value if isinstance(value, list) and not any(map(_is_message, value[:20])) else [value]

    def _read(self, record: Any) -> Iterator[Found]:
        form, is_object = self._form, isinstance(record, dict)
        if form in (None, "spans") and (spans := _spans_of(record)) is not None:
            parents = {_text(_first(span, ("parentSpanId", "parent_span_id", "parent_id"))) for span in spans}
            for span in spans:
                yield from self._of_span(span, parents)
        elif form in (None, "atif") and is_object and "ATIF" in str(record.get("schema_version")):
            yield from self._trajectory(record)
        elif form in (None, "calls") and is_object and _is_call(record):
            yield self._plain(record, self._name)
        elif form in (None, "calls") and (inside := _calls_inside(record)) is not None:
            self._runs += 1
            run = _text(_first(record, (*_RUNS, "id"))) or f"{self._name}, run {self._runs}"
            for one in inside:
                if _text(_first(one, _NAMES)):
                    yield self._plain(one, run)
                else:
                    self._note(_NAMELESS)
        elif form in (None, "messages") and (messages := _messages_of(record)):
            yield from self._conversation(record if is_object else {}, messages)
        elif isinstance(inner := record if isinstance(record, list) else _first(record, _HOLDERS), list):
            for one in inner:
                yield from self._read(one)
        elif is_object and isinstance(record.get("tools"), list):
            self._learn(record["tools"])
        elif record != {}:
            self._note("records of no known form were left out")

    def _learn(self, tools: Any) -> None:
        """The annotations of the tools that a server of MCP has listed."""
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(_first(tool, ("annotations",)), dict) and "name" in tool:
                self._hints[str(tool["name"])] = _hints_of(tool["annotations"])

    # Our own recordings

    def _recording(self, data: bytes) -> Iterator[Found]:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as copy:  # it may have been compressed, or no file at all
            copy.write(data)
            copy.flush()
            try:
                yield from self._recorded(Cassette.load(copy.name), data)
            except CassetteError as error:
                line = "" if error.line is None else f", line {error.line}"
                self._note(f"recordings that cannot be read were left out: it {error.reason}{line}")
            except _BROKEN:
                self._note("recordings that are not as a recorder writes them")

    def _recorded(self, cassette: Cassette, data: bytes) -> Iterator[Found]:
        self._mark = str(cassette.header.redact.get("replacement") or "\0").encode()
        base = began = self._moment(cassette.recorded_at)
        resumes = [(int(number), self._moment(at.decode())) for at, number in _RESUMED.findall(data)]
        enclosing, last = {call.parent for call in cassette.steps}, 0.0
        for position, call in enumerate(cassette.steps):
            self._place = f"call {call.id}"
            while base is not None and resumes and resumes[0][0] <= position:
                began = max(began or base, (resumes.pop(0)[1] or base) - last)
            starts, duration = max(0.0, call.started_ms) / 1e3, max(0.0, call.duration_ms) / 1e3
            last = max(last, starts + duration)
            value, error = _outcome(call.outcome)
            if call.name.startswith("mcp:") and isinstance(value, dict):
                self._learn((value.get("result") or value).get("tools"))
            is_call = call.kind in ("tool", "write", "call") and call.name not in ("mcp:request", "mcp:tools")
            if not is_call or call.source == "blocked":
                continue
            answer = self._of_cache() if call.source == "hit" and error is None else self._answer(value, error=error)
            fields: Fields = {"tool": call.name, "run": self._name} | self._arguments(call.arguments) | answer
            fields["kind"] = "write" if "write" in (call.kind, call.source) else "read" if call.source else None
            fields["encloses"] = call.kind == "call" and call.id in enclosing
            fields["duration"] = duration or None
            began_at = None if began is None else began + starts
            yield self._made(fields, began_at, None if began_at is None else began_at + duration)

    # Spans: the GenAI conventions of OpenTelemetry, as OTLP or as the console exporter prints them

    def _of_span(self, span: Record, parents: set[str]) -> Iterator[Found]:
        attributes, name = _attributes_of(span), str(span.get("name", ""))
        source = attributes.get("agent_cache.source")
        kinds = [
            attributes.get("openinference.span.kind"),
            attributes.get("traceloop.span.kind"),
            span.get("span_kind"),
        ]
        is_tool = attributes.get("gen_ai.operation.name") == "execute_tool" or name.startswith("execute_tool ")
        if source == "blocked" or not (is_tool or "tool" in [str(one).lower() for one in kinds]):
            return
        context = span["context"] if isinstance(span.get("context"), dict) else span
        trace = _text(_first(context, ("trace_id", "traceId", "context.trace_id")))
        own = _text(_first(context, ("span_id", "spanId", "context.span_id")))
        tool = _text(_first(attributes, _OF_SPANS["tool"])) or name.removeprefix("execute_tool ")
        if not tool:
            self._note(_NAMELESS)
            return
        error = _error_of_span(span, attributes)
        if error is None and (attributes.get("gen_ai.tool.cache.hit") is True or source == "hit"):
            answer = self._of_cache()
        else:
            answer = self._answer(_of_message(_first(attributes, _OF_SPANS["result"])), error=error, may_be_cut=True)
        run = _text(_first(attributes, ("gen_ai.conversation.id", "session.id"))) or trace
        fields: Fields = (
            {"tool": tool, "run": run} | self._arguments(_first(attributes, _OF_SPANS["arguments"])) | answer
        )
        fields["kind"] = "write" if source == "write" else "read" if source else None
        fields["encloses"] = own in parents and source is None
        began, ended = (
            self._moment(_first(span, (f"{when}TimeUnixNano", f"{when}_time_unix_nano", f"{when}_time")))
            for when in ("start", "end")
        )
        yield self._made(fields, began, ended, f"{trace}/{own}" if own else "")

    # Trajectories: ATIF-v1.7 of Harbor

    def _trajectory(self, record: Record) -> Iterator[Found]:
        run = _text(_first(record, ("session_id", "trajectory_id"))) or self._name
        for step in record.get("steps") or ():
            results = (step.get("observation") or {}).get("results") or ()
            answers = {one.get("source_call_id"): one for one in results}
            for one in step.get("tool_calls") or ():
                if not (tool := _text(one.get("function_name"))):
                    self._note(_NAMELESS)
                    continue
                result = answers.get(one.get("tool_call_id"))
                answer = self._unanswered() if result is None else self._answer(result.get("content"))
                fields = {"tool": tool, "run": run} | self._arguments(_first(one, _ARGUMENTS)) | answer
                yield self._made(fields, None, self._moment(step.get("timestamp")))

    # One call a record

    def _plain(self, record: Record, run: str) -> Found:
        error, result = _first(record, _ERRORS), _first(record, _RESULTS)
        if error not in (None, False, 0, "", "false", "0", "null", "none", "ok"):
            is_flag = error in (True, 1, "true", "1", "yes")
            answer = self._answer(None, error=_error_text(result if is_flag else error))
        elif record.get("source") == "hit" or record.get("hit") is True:
            answer = self._of_cache()
        else:
            answer = self._answer(result) if any(name in record for name in _RESULTS) else self._unanswered()
        began = self._moment(_first(record, ("started", "start", "start_time", "started_at")))
        ended = self._moment(_first(record, ("ended", "end", "end_time", "ended_at", *_TIMES)))
        ms = _number(_first(record, ("duration_ms", "elapsed_ms", "latency_ms")))
        duration = _number(_first(record, ("duration", "elapsed"))) if ms is None else ms / 1e3
        if duration is not None and (began is None) != (ended is None):
            began, ended = (began, began + duration) if began is not None else ((ended or 0.0) - duration, ended)
        asked = _first(record, _ARGUMENTS)
        asked = {} if asked is None and any(name in record for name in _ARGUMENTS) else asked
        kind = {True: "read", False: "write"}.get(record["read_only"]) if "read_only" in record else record.get("kind")
        fields: Fields = {"tool": _text(_first(record, _NAMES)), "run": _text(_first(record, _RUNS)) or run}
        fields |= self._arguments(asked) | answer | ({} if duration is None else {"duration": duration})
        fields["kind"] = kind if kind in ("read", "write") else None
        fields["hints"] = _hints_of(_first(record, ("hints", "annotations")) or record)
        call_id = _text(_first(record, _IDS))
        return self._made(fields, began, ended, f"{fields['run']}/{call_id}" if call_id else "")

    # Messages: Chat Completions, Responses, Messages of Anthropic

    def _conversation(self, record: Record, messages: list[Record]) -> Iterator[Found]:
        self._count += 1
        run = _text(_first(record, _RUNS))
        if not run and not _is_message(record):
            run = " ".join(filter(None, (_text(_first(record, ("id", "custom_id"))), _text(record.get("task_id")))))
            if not run and len(messages) > 1:
                self._runs += 1
                run = f"{self._name}, run {self._runs}"
        self._learn(record.get("tools"))
        holders = [record, *(record[name] for name in ("response", "body") if isinstance(record.get(name), dict))]
        general = self._moment(next(filter(None, (_first(one, _TIMES) for one in holders)), None))
        messages, run = self._new_messages(messages, run or self._name)
        latest = 0.0
        for message in messages:
            own = self._moment(_first(message, _TIMES))
            if (at := general if own is None else own) is not None:
                at = latest = max(at, latest)
            for event in _events_of(message):
                is_unique = len(event.id) >= 16 and len(re.findall(r"\d+", event.id)) > 1  # `call_1` is counted up
                key = ("" if is_unique else run, event.id)
                waiting = self._open.setdefault(key, [])
                if not event.is_answer:
                    if not event.tool:
                        self._note(_NAMELESS)
                    elif not is_unique or key not in self._known:
                        arguments = self._arguments({} if event.arguments is None else event.arguments)
                        waiting.append(({"tool": event.tool, "run": run} | arguments, at, self._count))
                    self._known.add(key)
                    continue
                fits = [one for one in waiting if event.id or event.tool in ("", one[0]["tool"])]
                if fits:
                    waiting.remove(fits[0])
                    asked, began, in_record = fits[0]
                    # One time of a whole record is no beginning of its calls.
                    began = began if own is not None or in_record != self._count else None
                    fields = asked | self._answer(event.output, failed=event.has_failed)
                    yield self._made(fields, began, at, f"{event.id}/{asked['tool']}" if is_unique else "")
                elif key not in self._known:
                    self._note("answers without a call were left out")

    def _new_messages(self, messages: list[Record], run: str) -> tuple[list[Record], str]:
        """Those that an earlier record, whose conversation this one continues, did not have; and the run of that."""
        digest, found, owner = b"", 0, run
        for number, message in enumerate(messages, 1):
            shown = [message.get(name) for name in ("role", "type", "tool_calls", "content", "parts", "output")]
            content = msgspec.json.encode([digest.hex(), *map(str, shown), str(_first(message, ("call_id", "name")))])
            digest = blake2b(content, digest_size=16).digest()
            if digest in self._wholes and number < len(messages):
                found, owner = number, self._wholes[digest]
        if len(messages) > 1:
            self._wholes[digest] = owner
        return messages[found:], owner

    # What the forms have in common

    def _moment(self, value: Any) -> float | None:
        """A time as Unix seconds: of a number, whose size tells its unit, or of a text of ISO 8601; else None."""
        if value is None or value == "":
            return None
        number = _number(value)
        if number is None:
            try:
                when = datetime.fromisoformat(str(value).strip().removesuffix(" UTC"))
            except ValueError:
                self._note("times that cannot be read")
                return None
            number = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        number /= next((unit for unit, least in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11)) if number >= least), 1.0)
        if number < 946_684_800:  # 2000-01-01
            self._note("times that are relative, or before the year 2000, were passed over")
            return None
        return round(number, 6)

    def _arguments(self, value: Any) -> Fields:
        """Arguments by name, and whether they tell the call from others: not if they are missing, cut or redacted."""
        if isinstance(value, str) and value.strip()[:1] in ("{", "["):
            value = _decoded(value)
        if value is None:
            self._note("calls without arguments, or with some that are cut off, are equal to no other")
            return {"arguments": {}, "is_keyed": False}
        if isinstance(value, dict) and value.keys() == {"args", "kwargs"} and isinstance(value["kwargs"], dict):
            value = {**value["kwargs"], **({"args": value["args"]} if value["args"] else {})}
        named = value if isinstance(value, dict) else {"args" if isinstance(value, list) else "input": value}
        if value == "" or not self._is_marked(named):
            return {"arguments": {} if value == "" else named}
        self._note("calls with redacted arguments are equal to no other")
        return {"arguments": self._cleared(named), "is_keyed": False}

    def _answer(
        self, value: Any, *, error: str | None = None, failed: bool = False, may_be_cut: bool = False
    ) -> Fields:
        """What a call answered: of blocks of text their text, of text that is a JSON object or list its value."""
        is_mcp = isinstance(value, dict) and isinstance(value.get("content"), list)
        if is_mcp and {"isError", "structuredContent"} & {*value}:
            failed, value = failed or value.get("isError") is True, value["content"]
        text = _text_of_blocks(value)
        error = _error_text(value if text is None else text) if failed else error
        if error is not None:  # of one that was cancelled, the effect is not known
            return {} if _CANCELLED.match(error) else {"error": error[:500]}
        if value is None and may_be_cut:
            return self._unanswered()
        fields: Fields = {"result": value}
        if text is not None:
            if may_be_cut and text[:1] == '"' and isinstance(inner := _decoded(text), str):  # a text as JSON
                text = inner
            parsed = _decoded(text) if text.strip()[:1] in ("{", "[") else None
            if parsed is None and may_be_cut and text.strip()[:1] in ("{", "[", '"'):
                self._note("answers that are cut off")
                return {}
            fields = {"result": text if parsed is None else parsed, "is_parsed": parsed is not None}
            if may_be_cut and parsed is None and len(text) >= 128 and len(text).bit_count() == 1:
                fields["is_whole"] = False  # the limits of exporters are powers of two
        if not self._is_marked(fields["result"]):
            return fields
        self._note("answers with redacted parts: an equal one shows nothing")
        cleared = self._cleared(fields["result"])
        return {} if cleared is None else fields | {"result": cleared, "is_whole": False}

    def _unanswered(self) -> Fields:
        self._note("calls without an answer")
        return {}

    def _of_cache(self) -> Fields:
        self._note("answers that came from a cache: they show nothing of the world")
        return {"is_from_cache": True}

    def _is_marked(self, value: Any) -> bool:
        raw = msgspec.json.encode(value)
        return self._mark in raw or _MARK.search(raw) is not None

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
_HOLDERS: Final = ("data", "results", "items", "runs", "traces")
_MARK: Final = re.compile(
    rb"""[\[<](?:redacted|filtered|scrubbed|masked|truncated)\b[^\]>"]{0,80}[\]>]
    |__REDACTED__|"(?:REDACTED|x{6,40}|\*{3,}[^"]{0,8})\"""",
    re.IGNORECASE | re.VERBOSE,
)
_decode = msgspec.json.Decoder().decode


def _decoded(text: bytes | str) -> Any:
    """The JSON value, also with what Python writes and JSON does not have (NaN); None if it is none."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
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
    return {name: value[name] for name in _HINTS if isinstance(value.get(name), bool)}


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
    if re.match(r"[A-Za-z_][\w.:]*: ", text):
        return text
    is_class = re.fullmatch(r"[\w.:]*(?:Error|Exception|Exit|Interrupt|Timeout|Cancelled)", text)
    return f"{text}: " if is_class else f"Error: {text}"


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


def _error_of_span(span: Record, attributes: Record) -> str | None:
    status = span.get("status", span.get("status_code"))
    code = _first(status, ("code", "status_code")) if isinstance(status, dict) else status
    if str(code).upper() not in ("2", "ERROR", "STATUS_CODE_ERROR") and "error.type" not in attributes:
        return None
    holder = status if isinstance(status, dict) else span
    text, kind = _first(holder, ("message", "description", "status_message")), attributes.get("error.type", "")
    for event in span.get("events") or ():
        inner = _attributes_of(event)
        kind, text = inner.get("exception.type", kind), inner.get("exception.message", text)
    return _error_text(_text(text), str(kind))


def _of_message(output: Any) -> Any:
    """What a tool has answered: of the message that LangChain makes of it, the content."""
    message = _decoded(output) if isinstance(output, str) and output[:1] == "{" else output
    if isinstance(message, dict) and message.get("type") == "tool":
        message = message["data"] if isinstance(message.get("data"), dict) else message
        return message.get("content", output) if "tool_call_id" in message else output
    return output


def _spans_of(record: Any, depth: int = 0) -> list[Record] | None:
    """The spans of a record, however deep its containers are; None if it is neither a span nor a container."""
    if not isinstance(record, dict) or depth > 6:
        return None
    context = record["context"] if isinstance(record.get("context"), dict) else record
    has_start = any(name in record for name in ("startTimeUnixNano", "start_time_unix_nano", "start_time"))
    if has_start and any(name in context for name in ("span_id", "spanId", "context.span_id")):
        return [record]
    names = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "batches", "data")
    lists = {name: record[name] for name in names if isinstance(record.get(name), list)}
    below = [spans for inner in lists.values() for one in inner if (spans := _spans_of(one, depth + 1)) is not None]
    return [span for spans in below for span in spans] if below or lists.keys() - {"data"} else None


def _attributes_of(span: Any) -> dict[str, Any]:
    """The attributes of a span by name, those of OTLP as plain values, nested ones under their joined names."""
    given = _first(span, ("attributes",))
    if isinstance(given, list):
        return {one["key"]: _plain_value(one.get("value")) for one in given if "key" in one}
    flat: dict[str, Any] = {name[11:]: value for name, value in span.items() if name.startswith("attributes.")}
    waiting = [("", given)] if isinstance(given, dict) else []
    while waiting:
        above, inner = waiting.pop()
        for name, value in inner.items():
            flat[above + name] = value
            if isinstance(value, dict):
                waiting.append((f"{above}{name}.", value))
    return flat


def _plain_value(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(kind, inner)] = value.items()
    if kind == "arrayValue":
        return [_plain_value(one) for one in inner.get("values", ())]
    if kind == "kvlistValue":
        return {one.get("key", ""): _plain_value(one.get("value")) for one in inner.get("values", ())}
    return int(inner) if kind == "intValue" else inner


def _is_call(record: Any) -> bool:
    if _is_message(record) or not _text(_first(record, _NAMES)):
        return False
    is_answered = any(name in record for name in (*_RESULTS, "error")) or "type" not in record
    has_arguments = any(name in record for name in _ARGUMENTS)
    return any(name in record for name in _NAMES[:3]) or (has_arguments and is_answered)


def _calls_inside(record: Any) -> list[Any] | None:
    """The records of a run: ``{"id": ..., "calls": [...]}``."""
    for name in ("calls", "tool_calls", "actions", "events", "steps"):  # the last of agentcassette
        calls = record.get(name) if isinstance(record, dict) and not _is_message(record) else None
        if isinstance(calls, list) and (any(map(_is_call, calls)) or not calls):
            return calls
    return None


_CALLS: Final = {"tool_use", "server_tool_use", "function_call", "custom_tool_call", "tool_call", "tool-call"}
_ANSWERS: Final = {
    "function_call_output", "custom_tool_call_output", "tool_call_response", "tool_result", "tool-return",
}  # fmt: skip
_ROLES: Final = {"system", "developer", "user", "assistant", "tool", "function", "model", "human", "ai"}


def _is_message(value: Any) -> bool:
    """Whether a value is a message, or an item of the Responses API."""
    if not isinstance(value, dict):
        return False
    kind = str(value.get("type"))
    if str(value.get("role")) in _ROLES or kind in _ROLES or kind == "message":
        return any(name in value for name in ("content", "tool_calls", "parts", "function_call"))
    return (kind in _CALLS | _ANSWERS | {"mcp_call", "reasoning"} and any(name in value for name in _IDS)) or (
        value.get("kind") in ("request", "response") and isinstance(value.get("parts"), list)
    )


def _messages_of(record: Any) -> list[Record]:
    """The messages of a record: a list of them, an object that has one, or a request with its response."""
    if isinstance(record, list):
        return [one for one in record if isinstance(one, dict)] if any(map(_is_message, record[:20])) else []
    if not isinstance(record, dict) or _is_message(record):
        return [record] if isinstance(record, dict) else []
    found: list[Record] = []
    for name in ("request", "body", "messages", "input", "history", "traj", "message", "response", "output"):
        found += _messages_of(record.get(name))
    for choice in record["choices"][:1] if isinstance(record.get("choices"), list) else ():
        found += _messages_of(_first(choice, ("message",)))
    return found


def _events_of(message: Record) -> Iterator[_Event]:
    """The calls and answers in a message."""
    calls = message.get("tool_calls")
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [message["function_call"]]
    for one in calls if isinstance(calls, list) else ():
        inner = _first(one, ("function", "custom")) or one
        yield _Event(_text(_first(inner, ("name", "tool_name"))), _text(_first(one, _IDS)), _first(inner, _ARGUMENTS))
    content = message.get("parts", message.get("content"))
    has_answers = False
    for block in [message, *(content if isinstance(content, list) else ())]:
        what = str(_first(block, ("type", "part_kind")))
        name, call_id, error = _first(block, ("name", "tool_name")), _first(block, _IDS), _first(block, ("error",))
        call = _Event(_text(name), _text(call_id), _first(block, _ARGUMENTS))
        if what == "mcp_call" or (what in _CALLS and not calls):
            yield call
        if what in _ANSWERS or what.endswith("_tool_result") or what == "mcp_call":
            has_answers = True
            output = error if what == "mcp_call" and error else _first(block, _RESULTS)
            failed = bool(_first(block, ("is_error",)) or error)
            yield call._replace(is_answer=True, output=output, has_failed=failed)
    if (message.get("role") in ("tool", "function") or message.get("type") == "tool") and not has_answers:
        failed = message.get("status") == "error" or bool(message.get("is_error"))
        call = _Event(_text(message.get("name")), _text(_first(message, ("tool_call_id", "call_id"))))
        yield call._replace(is_answer=True, output=message.get("content"), has_failed=failed)
