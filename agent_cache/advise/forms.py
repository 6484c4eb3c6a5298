"""Turns the records of a log into calls, whatever form they have.

A reader turns one record into calls: of our recordings, of spans, of trajectories (ATIF), of plain calls, of messages.
What several forms have in common (times, arguments, answers) is read by `Reader._moment`, `_arguments`, `_answer`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from agent_cache.advise.calls import UNKNOWN, LoggedCall

__all__ = ["FORMS", "Form", "Found", "Problems", "Reader"]

Form = Literal["recording", "spans", "messages", "atif", "calls"]
FORMS: Final = get_args(Form)
Record = Mapping[str, Any]

_RUNS = ("run", "run_id", "session", "session_id", "sessionId", "conversation_id", "thread_id", "trace_id")
_TIMES = ("time", "timestamp", "ts", "@timestamp", "created_at", "createdAt", "created", "date")
_NAMES = ("tool", "tool_name", "toolName", "name", "function_name", "function")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "params", "kwargs")
_RESULTS = ("result", "output", "content", "response", "answer", "observation")
_IDS = ("call_id", "tool_call_id", "tool_use_id", "toolCallId", "id")


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


_decode = msgspec.json.Decoder().decode


def _decoded(text: bytes | str) -> Any:
    """The JSON value, also with what Python writes and JSON does not have (NaN); None if it is none."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        plain = text.decode(errors="replace") if isinstance(text, bytes) else text
        value = json.loads(plain, strict=False, parse_constant=str)
        return _decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))  # halves of surrogate pairs
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


class Reader:
    """Reads one file.

    Attributes:
        hints: the annotations of MCP that the file has, by tool.
    """

    def __init__(self, name: str, form: Form | None, problems: Problems) -> None:
        self.name = name
        self.form = form
        self.problems = problems
        self.place = ""
        self._line = 0
        self.hints: dict[str, dict[str, bool]] = {}
        self.marks: tuple[bytes, ...] = ()
        self._now = time.time()
        self._runs = self._count = 0
        self._open: dict[tuple[str, str], list[_Open]] = {}
        self._known: set[tuple[str, str]] = set()
        self._wholes: dict[bytes, str] = {}

    def note(self, text: str) -> None:
        """Count a problem."""
        self.problems.add(text, f"{self.name}, {self.place}" if self.place else self.name)

    def calls(self, data: bytes) -> Iterator[Found]:
        """The calls of the file, in its order."""
        records = self._records(data)
        first = next(records, None)
        if isinstance(first, dict) and ("agent_cache_cassette" in first or "agent_cache_journal" in first):
            try:
                yield from self._recording(first, [(self._line, one) for one in records if isinstance(one, dict)])
            except (AttributeError, TypeError, ValueError, LookupError):
                self.note("recordings that are not as a recorder writes them")
            return
        for record in () if first is None else chain([first], records):
            try:
                for found in self._read(record):
                    hints = found.call.hints or self.hints.get(found.call.tool, {})
                    yield found._replace(call=replace(found.call, hints=hints)) if hints else found
            except (AttributeError, TypeError, ValueError, LookupError, RecursionError):
                self.note("records that are not as their form says were left out")
        for calls in self._open.values():
            for call in calls:
                yield _found(call, self._unanswered(), call.time, None)

    def _records(self, data: bytes) -> Iterator[Any]:
        """The records of JSON Lines, or of a document: the elements of an array, or the document itself."""
        data = data.removeprefix(b"\xef\xbb\xbf")
        if not data.strip():
            self.note("files without content")
            return
        lines = data.splitlines(keepends=True)
        if len(lines) > 1 and not any(_decoded(line) is not None for line in lines[:2]):
            lines = [data]
        for number, line in enumerate(lines, 1):
            self._line, self.place = number, f"line {number}" if len(lines) > 1 else ""
            if not (text := line.strip(b" \t\r\n\x00\x1e")):
                continue
            value = _decoded(text)
            if value is None and len(lines) == 1 and text[:1] in (b"{", b"["):
                yield from self._documents(text.decode(errors="replace"))
            elif isinstance(value, list) and len(lines) == 1 and not _are_messages(value):
                yield from value
            elif isinstance(value, dict | list):
                yield value
            elif number == 1 and len(lines) == 1:
                self.note("files that are no JSON were left out")
            else:
                is_torn = not line.endswith(b"\n")
                self.note("the last line is torn" if is_torn else "lines that are no JSON were left out")

    def _documents(self, text: str) -> Iterator[Any]:
        """The documents of a file that has several, one after the other, or one that breaks off."""
        decoder, at = json.JSONDecoder(strict=False), 0
        while at < len(text):
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                self.note("a document is broken, and what is behind it was left out")
                return
            at += len(text[at:]) - len(text[at:].lstrip())
            yield from value if isinstance(value, list) and not _are_messages(value) else [value]

    def _read(self, record: Any) -> Iterator[Found]:
        form = self.form
        if form in (None, "spans") and ((spans := _spans_of(record)) or _has_spans(record)):
            yield from self._of_spans(spans)
        elif form in (None, "atif") and isinstance(record, dict) and "ATIF" in str(record.get("schema_version")):
            yield from self._trajectory(record)
        elif form in (None, "calls") and isinstance(record, dict) and _is_call(record):
            yield from self._plain(record, self.name)
        elif form in (None, "calls") and (inside := _calls_inside(record)) is not None:
            self._runs += 1
            run = _text(_first(record, (*_RUNS, "id"))) or f"{self.name}, run {self._runs}"
            for one in inside:
                yield from self._plain(one, run)
        elif form in (None, "messages") and (messages := _messages_of(record)):
            yield from self._conversation(record if isinstance(record, dict) else {}, messages)
        elif isinstance(record, list):
            for one in record:
                yield from self._read(one)
        elif isinstance(record, dict) and (inner := _first(record, ("data", "results", "items", "runs", "traces"))):
            yield from self._read(inner) if isinstance(inner, list) else ()
        elif isinstance(record, dict) and isinstance(record.get("tools"), list):
            self._learn(record["tools"])
        else:
            self.note("records of no known form were left out")

    def _learn(self, tools: Any) -> None:
        """The annotations of the tools that a server of MCP has listed."""
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(tool.get("annotations"), dict) and "name" in tool:
                self.hints[str(tool["name"])] = _hints_of(tool["annotations"])

    # Our own recordings: docs/reference/cassette-format.md, journal-format.md

    def _recording(self, header: Record, lines: list[tuple[int, dict[str, Any]]]) -> Iterator[Found]:
        self.place = ""
        version = header.get("agent_cache_cassette", header.get("agent_cache_journal", 0))
        if version > (2 if "agent_cache_cassette" in header else 1):
            self.note(f"recordings of format version {version}, which this version of agent-cache cannot read")
            return
        redact = header.get("redact")
        mark = redact.get("replacement") if isinstance(redact, dict) else None
        self.marks = (mark.encode(),) if isinstance(mark, str) else ()
        base = self._moment(header.get("recorded_at"))
        times: list[Any] = next((line["times"] for _, line in lines if isinstance(line.get("times"), list)), [])
        calls = [one for one in lines if isinstance(one[1].get("id"), int) and isinstance(one[1].get("outcome"), dict)]
        pauses = dict(_pauses(base or 0.0, lines)) if "agent_cache_journal" in header else {}
        enclosing = {line.get("parent") for _, line in calls}
        whole: dict[int, Record] = {}
        shift = 0.0
        for number, line in calls:
            self.place = f"line {number}"
            _restore_beginnings(line, whole)
            whole[line["id"]] = line
            shift += pauses.get(line["id"], 0.0)
            if number - 2 < len(times):  # the first line is the header
                started, duration = times[number - 2][0] / 1e6, times[number - 2][1] / 1e6
            else:
                started, duration = line.get("started_ms", 0) / 1e3, line.get("duration_ms", 0) / 1e3
            name, source = str(line.get("name")), line.get("source", "")
            value, error = _outcome(line["outcome"])
            if name.startswith("mcp:") and isinstance(value, dict):
                self._learn((value.get("result") or value).get("tools"))
            is_call = line.get("kind") in ("tool", "write", "call") and name not in ("mcp:request", "mcp:tools")
            if not is_call or source == "blocked":
                continue
            answer = self._failure(error) if error is not None else self._answer(value)
            answer = answer if source != "hit" or error is not None else self._of_cache()
            kinds = {"": None, "write": "write"}
            call = _Open(name, "", self._arguments(line.get("arguments", {})), None, self.name)
            kind = "write" if line["kind"] == "write" else kinds.get(source, "read")
            begin = None if base is None else base + shift + started
            found = _found(call, answer, begin, None if begin is None else begin + duration)
            yield found._replace(
                call=replace(
                    found.call,
                    kind=kind,  # type: ignore[arg-type]  # the table has no other words
                    duration=duration or None,
                    hints=self.hints.get(name.rpartition(":")[2], {}),
                    encloses=line["kind"] == "call" and line["id"] in enclosing,
                )
            )

    # Spans: the GenAI conventions of OpenTelemetry, as OTLP or as the console exporter prints them

    def _of_spans(self, spans: list[Record]) -> Iterator[Found]:
        parents = {_text(_first(span, ("parentSpanId", "parent_span_id", "parent_id"))) for span in spans}
        for span in spans:
            attributes = _attributes_of(span)
            name = str(span.get("name", ""))
            kinds = (
                attributes.get("openinference.span.kind"),
                attributes.get("traceloop.span.kind"),
                span.get("span_kind"),
            )
            kind = next((str(one).lower() for one in kinds if one), "")
            is_tool = attributes.get("gen_ai.operation.name") == "execute_tool" or kind == "tool"
            if not is_tool and not name.startswith("execute_tool "):
                continue
            source = attributes.get("agent_cache.source")
            if source == "blocked":
                continue
            context = span["context"] if isinstance(span.get("context"), dict) else span
            trace = _text(_first(context, ("trace_id", "traceId", "context.trace_id")))
            own = _text(_first(context, ("span_id", "spanId", "context.span_id")))
            tool = _first(attributes, ("agent_cache.tool", "gen_ai.tool.name", "tool.name", "traceloop.entity.name"))
            arguments = _first(
                attributes, ("gen_ai.tool.call.arguments", "tool_arguments", "input.value", "traceloop.entity.input")
            )
            output = _first(
                attributes, ("gen_ai.tool.call.result", "tool_response", "output.value", "traceloop.entity.output")
            )
            status = span.get("status", span.get("status_code"))
            code = _first(status, ("code", "status_code")) if isinstance(status, dict) else status
            if str(code).upper() in ("2", "ERROR", "STATUS_CODE_ERROR") or "error.type" in attributes:
                holder = status if isinstance(status, dict) else span
                error = _text(_first(holder, ("message", "description", "status_message")))
                kind = str(attributes.get("error.type", ""))
                for event in span.get("events") or ():
                    inner = _attributes_of(event) if isinstance(event, dict) else {}
                    kind = str(inner.get("exception.type", kind))
                    error = str(inner.get("exception.message", error))
                answer = self._failure(_error_text(error, kind))
            elif attributes.get("gen_ai.tool.cache.hit") is True or source == "hit":
                answer = self._of_cache()
            else:
                answer = self._answer(_content_of(output), may_be_cut=True)
            if not (tool := _text(tool) or name.removeprefix("execute_tool ")):
                self.note("calls without the name of a tool were left out")
                continue
            run = _text(_first(attributes, ("gen_ai.conversation.id", "session.id"))) or trace
            call = _Open(tool, own, self._arguments(arguments), None, run)
            began, ended = (
                self._moment(_first(span, (f"{when}TimeUnixNano", f"{when}_time_unix_nano", f"{when}_time")))
                for when in ("start", "end")
            )
            found = _found(call, answer, began, ended)
            role: Literal["read", "write"] | None = "write" if source == "write" else "read" if source else None
            encloses = own in parents and source is None
            yield Found(replace(found.call, kind=role, encloses=encloses), f"{trace}/{own}" if own else "")

    # Trajectories: ATIF-v1.7 of Harbor

    def _trajectory(self, record: Record) -> Iterator[Found]:
        run = _text(_first(record, ("session_id", "trajectory_id"))) or self.name
        for step in record.get("steps") or ():
            if not isinstance(step, dict):
                continue
            began = self._moment(step.get("timestamp"))
            observation = step.get("observation")
            results = observation.get("results") if isinstance(observation, dict) else None
            answers = {one.get("source_call_id"): one for one in results or () if isinstance(one, dict)}
            for one in step.get("tool_calls") or ():
                arguments = self._arguments(_first(one, _ARGUMENTS))
                call = _Open(_text(one.get("function_name")), "", arguments, None, run)
                result = answers.get(one.get("tool_call_id"))
                if not call.tool:
                    self.note("calls without the name of a tool were left out")
                    continue
                yield _found(call, _Answer() if result is None else self._answer(result.get("content")), None, began)

    # One call a record

    def _plain(self, record: Any, run: str) -> Iterator[Found]:
        name = _text(_first(record, _NAMES)) if isinstance(record, dict) else ""
        if not name:
            self.note("calls without the name of a tool were left out")
            return
        value, error = _first(record, _RESULTS), _first(record, ("error", "exception", "is_error", "isError", "failed"))
        if error in (None, False, 0, "", "false", "0", "null", "none", "ok"):
            is_hit = record.get("source") == "hit" or record.get("hit") is True
            has_result = any(result in record for result in _RESULTS)
            answer = self._of_cache() if is_hit else self._answer(value) if has_result else self._unanswered()
        else:
            answer = self._failure(_error_text(value if error in (True, 1, "true", "1", "yes") else error))
        began = self._moment(_first(record, ("started", "start", "start_time", "started_at")))
        ended = self._moment(_first(record, ("ended", "end", "end_time", "ended_at", *_TIMES)))
        duration = _number(_first(record, ("duration", "elapsed", "seconds")))
        if (
            duration is None
            and (ms := _number(_first(record, ("duration_ms", "elapsed_ms", "latency_ms")))) is not None
        ):
            duration = ms / 1e3
        if duration is not None and (began is None) != (ended is None):
            began, ended = (began, began + duration) if began is not None else ((ended or 0.0) - duration, ended)
        run = _text(_first(record, _RUNS)) or run
        kind = {True: "read", False: "write"}.get(record["read_only"]) if "read_only" in record else record.get("kind")
        asked = _first(record, _ARGUMENTS)
        if asked is None and any(one in record for one in _ARGUMENTS):
            asked = {}
        call = _Open(name, _text(_first(record, _IDS)), self._arguments(asked), None, run)
        found = _found(call, answer, began, ended).call
        more: dict[str, Any] = {"duration": duration} if duration is not None else {}
        more |= {"kind": kind} if kind in ("read", "write") else {}
        hints = _hints_of(_first(record, ("hints", "annotations")) or record) or self.hints.get(name, {})
        cost = _number(_first(record, ("cost", "cost_usd")))
        yield Found(replace(found, hints=hints, cost=cost, **more), f"{run}/{call.id}" if call.id else "")

    # Messages: Chat Completions, Responses, Messages of Anthropic

    def _conversation(self, record: Record, messages: list[Record]) -> Iterator[Found]:
        self._count += 1
        run = _text(_first(record, _RUNS))
        if not run and not _is_message(record):
            run = " ".join(filter(None, (_text(_first(record, ("id", "custom_id"))), _text(record.get("task_id")))))
            if not run and len(messages) > 1:
                self._runs += 1
                run = f"{self.name}, run {self._runs}"
        run = run or self.name
        self._learn(record.get("tools"))
        holders = [record, *(record[name] for name in ("response", "body") if isinstance(record.get(name), dict))]
        general = self._moment(next(filter(None, (_first(one, _TIMES) for one in holders)), None))
        messages, run = self._new_messages(messages, run)
        latest = 0.0
        for message in messages:
            own = self._moment(_first(message, _TIMES))
            at = own if own is not None else general
            if at is not None:
                at = latest = max(at, latest)
            for call, is_answer, output, failed in _events_of(message):
                key = ("" if _is_unique(call.id) else run, call.id)
                if not is_answer and not call.tool:
                    self.note("calls without the name of a tool were left out")
                elif not is_answer:
                    if _is_unique(call.id) and key in self._known:
                        continue
                    self._known.add(key)
                    arguments = self._arguments({} if call.arguments is None else call.arguments)
                    asked = call._replace(arguments=arguments, time=at, run=run, record=self._count)
                    self._open.setdefault(key, []).append(asked)
                if not is_answer:
                    continue
                waiting = self._open.get(key, [])
                index = next((i for i, one in enumerate(waiting) if call.id or call.tool in ("", one.tool)), None)
                if index is None:
                    if key not in self._known:
                        self.note("answers without a call were left out")
                    continue
                asked = waiting.pop(index)
                answer = self._answer(output, failed=failed)
                # One time of a whole record is no beginning of its calls.
                is_known = own is not None or asked.record != self._count
                found = _found(asked, answer, asked.time if is_known else None, at)
                yield found._replace(identity=f"{asked.id}/{asked.tool}" if _is_unique(asked.id) else "")

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
                self.note("times that cannot be read")
                return None
            number = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        for unit, largest in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11)):
            if abs(number) >= largest:
                number /= unit
                break
        if number < 946_684_800:  # 2000-01-01
            self.note("times that are relative, or before the year 2000, were passed over")
            return None
        if number > self._now + 86_400:
            self.note("times in the future")
        return round(number, 6)

    def _arguments(self, value: Any) -> tuple[dict[str, Any], bool]:
        """Arguments by name, and whether they tell the call from others: not if they are missing, cut or redacted."""
        if value is None:
            self.note("calls without arguments are equal to no other")
            return {}, False
        if isinstance(value, str):
            parsed = _decoded(value) if value.strip()[:1] in ("{", "[") else None
            if parsed is None and value.strip()[:1] in ("{", "["):
                self.note("arguments that are cut off")
                return {}, False
            value = value if parsed is None else parsed
        if value == "":
            return {}, True
        if isinstance(value, dict) and value.keys() == {"args", "kwargs"} and isinstance(value["kwargs"], dict):
            value = {**value["kwargs"], **({"args": value["args"]} if value["args"] else {})}
        named = value if isinstance(value, dict) else {"args" if isinstance(value, list) else "input": value}
        cleared, is_redacted = self._without_secrets(named)
        if is_redacted:
            self.note("calls with redacted arguments are equal to no other")
        return cleared, not is_redacted

    def _answer(self, value: Any, *, failed: bool = False, may_be_cut: bool = False) -> _Answer:
        """What a call answered: of blocks of text their text, of text that is a JSON object or list its value."""
        if (
            isinstance(value, dict)
            and isinstance(value.get("content"), list)
            and {"isError", "structuredContent"} & {*value}
        ):  # of MCP
            failed = failed or value.get("isError") is True
            text = _text_of_blocks(value["content"])
            is_data = text is not None and len(value["content"]) == 1 and text.strip()[:1] in ("{", "[")
            value = value["content"] if failed else text if is_data else value
        text = _text_of_blocks(value)
        if failed:
            return self._failure(_error_text(value if text is None else text))
        if value is None and may_be_cut:
            return self._unanswered()
        is_parsed = False
        if text is not None and may_be_cut and text[:1] == '"':  # a text as JSON
            inner = _decoded(text)
            text = inner if isinstance(inner, str) else text
        if text is not None:
            parsed = _decoded(text) if text.strip()[:1] in ("{", "[") else None
            if parsed is None and may_be_cut and text.strip()[:1] in ("{", "[", '"'):
                self.note("answers that are cut off")
                return _Answer()
            is_parsed, value = parsed is not None, text if parsed is None else parsed
        value, is_redacted = self._without_secrets(value)
        if is_redacted:
            self.note("answers with redacted parts: an equal one shows nothing")
            if value is None:
                return _Answer()
        is_cut = may_be_cut and isinstance(value, str) and len(value) >= 128 and len(value).bit_count() == 1
        return _Answer(value, None, is_parsed, not is_redacted and not is_cut)

    def _unanswered(self) -> _Answer:
        self.note("calls without an answer")
        return _Answer()

    def _of_cache(self) -> _Answer:
        self.note("answers that came from a cache: they show nothing of the world")
        return _Answer(is_from_cache=True)

    def _failure(self, text: str) -> _Answer:
        if re.match(r"(?:[\w.]+[.:])?(?:CancelledError|Cancelled|GeneratorExit|KeyboardInterrupt): ", text):
            return _Answer()  # a write may have taken effect
        return _Answer(error=text[:500])

    def _without_secrets(self, value: Any) -> tuple[Any, bool]:
        """The value with None in the place of each text that has a redacted part, and whether there was one."""
        return (self._cleared(value), True) if self._is_marked(value) else (value, False)

    def _is_marked(self, value: Any) -> bool:
        raw = msgspec.json.encode(value)
        return _MARK.search(raw) is not None or any(mark in raw for mark in self.marks)

    def _cleared(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._cleared(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._cleared(one) for one in value]
        return None if isinstance(value, str) and self._is_marked(value) else value


# Parts of records


@dataclass(frozen=True, slots=True)
class _Answer:
    result: Any = UNKNOWN
    error: str | None = None
    is_parsed: bool = False
    is_whole: bool = True
    is_from_cache: bool = False


class _Open(NamedTuple):
    """A call whose answer has not been read yet."""

    tool: str
    id: str
    arguments: Any
    time: float | None = None
    run: str = ""
    record: int = 0


def _found(call: _Open, answer: _Answer, began: float | None, ended: float | None) -> Found:
    values, is_keyed = call.arguments
    if began is not None and ended is not None and ended < began:
        began, ended = ended, began
    duration = None if began is None or ended is None else round(ended - began, 6)
    return Found(
        LoggedCall(
            call.tool, values, answer.result, answer.error, began, ended, call.run, duration=duration,
            is_parsed=answer.is_parsed, is_keyed=is_keyed, is_whole=answer.is_whole,
            is_from_cache=answer.is_from_cache,
        )
    )  # fmt: skip


def _first(record: Any, names: Iterable[str]) -> Any:
    """The value of the first of these names that the record has; None if it has none."""
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
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    return {name: value[name] for name in names if isinstance(value.get(name), bool)}


_MARK: Final = re.compile(
    rb"""[\[<](?:redacted|filtered|scrubbed|masked|truncated)\b[^\]>"]{0,80}[\]>]
    |__REDACTED__|"(?:REDACTED|x{6,40}|\*{3,}[^"]{0,8})\"""",
    re.IGNORECASE | re.VERBOSE,
)


def _text_of_blocks(value: Any) -> str | None:
    """The text that a value is: itself, or the texts of its blocks; None if it is something else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    blocks = [one for one in value if isinstance(one, dict) and "text" in str(one.get("type"))]
    texts = [one["text"] for one in blocks if isinstance(one.get("text"), str)]
    return "\n".join(texts) if len(texts) == len(value) else None


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
    """The value of an outcome in a recording, `UNKNOWN` if it has none; and its error."""
    for form in ("value", "typed", "any"):
        if form in outcome:
            return outcome[form], None
    if isinstance(outcome.get("object"), list):
        return outcome["object"][-1], None
    if isinstance(error := outcome.get("error"), dict):
        return UNKNOWN, _error_text(error.get("message", ""), str(error.get("type", "")).rpartition(":")[2])
    if isinstance(stream := outcome.get("stream"), dict):
        parts = [_outcome(chunk) for chunk in (*stream.get("chunks", ()), stream.get("end") or {"value": None})]
        failed = next((error for _, error in parts if error is not None), None)
        is_whole = all(value is not UNKNOWN for value, _ in parts)
        return ([value for value, _ in parts[:-1]], None) if is_whole else (UNKNOWN, failed)
    return UNKNOWN, None


def _restore_beginnings(line: dict[str, Any], known: Mapping[int, Record]) -> None:
    """Put the beginnings of lists back that a line of a recording shares with earlier ones."""
    for pointer, (owner, count) in (line.get("prefix") or {}).items():
        target, source = _at(line, pointer), _at(known.get(owner), pointer)
        if isinstance(target, list) and isinstance(source, list):
            target[:0] = source[:count]


def _at(value: Any, pointer: str) -> Any:
    """What a JSON pointer points at; None if there is nothing."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            value = value[int(name)] if name.isdecimal() and int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _pauses(began: float, lines: list[tuple[int, dict[str, Any]]]) -> Iterator[tuple[int, float]]:
    """Of a journal that was resumed: the first call after each pause, and how many seconds were lost before it."""
    last = lost = 0.0
    waiting: float | None = None
    for _, line in lines:
        if isinstance(line.get("resumed"), dict):
            at = line["resumed"].get("at")
            when = datetime.fromisoformat(at).timestamp() if isinstance(at, str) else at
            waiting = max(0.0, when - began - last - lost) if isinstance(when, float) else None
        elif "outcome" in line and isinstance(line.get("id"), int):
            if waiting:
                yield line["id"], waiting
                lost += waiting
            waiting = None
            last = max(last, (line.get("started_ms", 0) + line.get("duration_ms", 0)) / 1e3)


def _content_of(output: Any) -> Any:
    """What a tool has answered: of the message that LangChain makes of it, the content."""
    message = _decoded(output) if isinstance(output, str) and output[:1] == "{" else output
    if isinstance(message, dict) and message.get("type") == "tool":
        message = message["data"] if isinstance(message.get("data"), dict) else message
        return message.get("content", output) if "tool_call_id" in message else output
    return output


def _has_spans(record: Any) -> bool:
    return isinstance(record, dict) and any(str(name).lower().endswith("spans") for name in record)


def _spans_of(record: Any, depth: int = 0) -> list[Record]:
    """The spans of a record, however deep its containers are."""
    if not isinstance(record, dict) or depth > 6:
        return []
    context = record["context"] if isinstance(record.get("context"), dict) else record
    has_start = any(name in record for name in ("startTimeUnixNano", "start_time_unix_nano", "start_time"))
    if has_start and any(name in context for name in ("span_id", "spanId", "context.span_id")):
        return [record]
    found: list[Record] = []
    for name in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "batches", "data"):
        inner = record.get(name)
        for one in inner if isinstance(inner, list) else ():
            found += _spans_of(one, depth + 1)
    return found


def _attributes_of(span: Record) -> dict[str, Any]:
    """The attributes of a span by name, those of OTLP as plain values, nested ones under their joined names."""
    given = span.get("attributes")
    if isinstance(given, list):
        return {one["key"]: _plain_value(one.get("value")) for one in given if isinstance(one, dict) and "key" in one}
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
    if kind == "intValue":
        return int(inner)
    if kind == "arrayValue":
        return [_plain_value(one) for one in inner.get("values", ())]
    if kind == "kvlistValue":
        return {one.get("key", ""): _plain_value(one.get("value")) for one in inner.get("values", ())}
    return inner


def _is_call(record: Record) -> bool:
    if _is_message(record) or not _text(_first(record, _NAMES)):
        return False
    if any(name in record for name in ("tool", "tool_name", "toolName")):
        return True
    return any(name in record for name in _ARGUMENTS) and (
        any(name in record for name in (*_RESULTS, "error")) or "type" not in record
    )


def _calls_inside(record: Any) -> list[Any] | None:
    """The records of a run: ``{"id": ..., "calls": [...]}``."""
    for name in ("calls", "tool_calls", "actions", "events", "steps"):  # the last of agentcassette
        calls = record.get(name) if isinstance(record, dict) and not _is_message(record) else None
        if isinstance(calls, list) and (any(isinstance(one, dict) and _is_call(one) for one in calls) or not calls):
            return calls
    return None


_CALLS: Final = frozenset(
    {"tool_use", "server_tool_use", "function_call", "custom_tool_call", "tool_call", "tool-call"}
)
_ANSWERS: Final = frozenset({
    "function_call_output", "custom_tool_call_output", "tool_call_response", "tool_result", "tool-return",
})  # fmt: skip
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function", "model", "human", "ai"})


def _is_message(value: Any) -> bool:
    """Whether a value is a message, or an item of the Responses API."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if value.get("role") in _ROLES or kind in _ROLES or kind == "message":
        return any(name in value for name in ("content", "tool_calls", "parts", "function_call"))
    return (kind in _CALLS | _ANSWERS | {"mcp_call", "reasoning"} and any(name in value for name in _IDS)) or (
        value.get("kind") in ("request", "response") and isinstance(value.get("parts"), list)
    )


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and any(map(_is_message, value[:20]))


def _messages_of(record: Any) -> list[Record]:
    """The messages of a record: a list of them, an object that has one, or a request with its response."""
    if _are_messages(record):
        return [one for one in record if isinstance(one, dict)]
    if not isinstance(record, dict):
        return []
    if _is_message(record):
        return [record]
    found: list[Record] = []
    for name in ("request", "body", "messages", "input", "history", "traj", "message", "response", "output"):
        inner = record.get(name)
        if isinstance(inner, dict | list):
            found += _messages_of(inner)
    for choice in record["choices"][:1] if isinstance(record.get("choices"), list) else ():
        found += [choice["message"]] if isinstance(choice, dict) and _is_message(choice.get("message")) else []
    return found


def _is_unique(call_id: str) -> bool:
    """Whether an id looks random, so that no other call has it: one that is counted up is ``call_1``."""
    return len(call_id) >= 16 and len(re.findall(r"\d+", call_id)) > 1


def _events_of(message: Record) -> Iterator[tuple[_Open, bool, Any, bool]]:
    """The calls and answers in a message: the call, whether it is an answer, the answer, whether it failed."""
    kind, role = message.get("type"), message.get("role")
    calls = message.get("tool_calls")
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [message["function_call"]]
    for one in calls if isinstance(calls, list) else ():
        inner = one.get("function") or one.get("custom") or one
        name = _text(_first(inner, ("name", "tool_name")))
        yield _Open(name, _text(_first(one, _IDS)), _first(inner, _ARGUMENTS)), False, None, False
    content = message.get("parts", message.get("content"))
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    has_answers = False
    for block in [message, *blocks]:
        what = block.get("type") or block.get("part_kind") or ""
        call = _Open(_text(_first(block, ("name", "tool_name"))), _text(_first(block, _IDS)), _first(block, _ARGUMENTS))
        output = _first(block, _RESULTS)
        failed = bool(block.get("is_error") or block.get("error"))
        if what in _CALLS and not calls:
            yield call, False, None, False
        elif what in _ANSWERS or str(what).endswith("_tool_result"):
            has_answers = True
            yield call, True, output, failed
        elif what == "mcp_call":
            yield call, False, None, False
            yield call, True, block.get("error") or output, failed
    if (role in ("tool", "function") or kind == "tool") and not has_answers:
        call = _Open(_text(message.get("name")), _text(_first(message, ("tool_call_id", "call_id"))), None)
        yield call, True, message.get("content"), message.get("status") == "error" or bool(message.get("is_error"))
