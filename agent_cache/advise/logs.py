"""Reads logs of tool calls into one time line: `read_log`.

The forms are our own recordings, OTel spans, messages of OpenAI and Anthropic, trajectories (ATIF-v1.7), and JSON
with one call a record. A method of `_Reader` for each of the first four makes records of the last of it, and
`_Reader.call` makes a call of each of these. Everything is kept in memory.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from agent_cache.advise.calls import UNKNOWN, LoggedCall, says_outage
from agent_cache.errors import CassetteError
from agent_cache.recording import Cassette
from agent_cache.recording.encryption import is_encrypted
from agent_cache.values.compare import plural

__all__ = ["Log", "read_log"]

Record = Mapping[str, Any]
Fields = dict[str, Any]
"""Some of the fields of a `LoggedCall`."""

_RUNS: Final = ("run", "run_id", "session", "session_id", "sessionId", "conversation_id", "thread_id", "traceId")
_TIMES: Final = ("time", "timestamp", "created_at", "created")
_NAMES: Final = ("tool", "tool_name", "name")
_ARGUMENTS: Final = ("arguments", "args", "input", "inputs", "parameters")
_CACHED: Final = ("hit", "validated")
_RESULTS: Final = ("result", "output", "outputs", "content")
_IDS: Final = ("call_id", "tool_call_id", "tool_use_id", "id")
_PARENTS: Final = frozenset({"parentObservationId", "parent_run_id"})  # of Langfuse and LangSmith
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_SPAN_KINDS: Final = {
    "gen_ai.operation.name": "execute_tool", "openinference.span.kind": "TOOL", "traceloop.span.kind": "tool",
    "langfuse.observation.type": "tool", "mlflow.spanType": '"TOOL"', "ai.operationId": "ai.toolCall",
}  # fmt: skip
_SPAN_TOOL: Final = ("agent_cache.tool", "gen_ai.tool.name", "tool.name", "traceloop.entity.name", "ai.toolCall.name")
_SPAN_CONTENTS: Final = {  # arguments, and what was answered
    "gen_ai.tool.call.arguments": "gen_ai.tool.call.result", "tool_arguments": "tool_response",
    "input.value": "output.value", "gcp.vertex.agent.tool_call_args": "gcp.vertex.agent.tool_response",
    "traceloop.entity.input": "traceloop.entity.output", "mlflow.spanInputs": "mlflow.spanOutputs",
    "langfuse.observation.input": "langfuse.observation.output", "ai.toolCall.args": "ai.toolCall.result",
    "gen_ai.prompt": "gen_ai.completion",
}  # fmt: skip
_NO_TOOLS: Final = ("llm", "generation", "embedding", "chain", "agent", "prompt", "parser", "evaluator", "guardrail")
_LARGEST: Final = 1 << 30  # bytes of a file that is unpacked
_LEAST_LIMIT: Final = 128  # characters of an answer, from which on an exporter may have cut it
_BROKEN: Final = (AttributeError, TypeError, ValueError, LookupError, RecursionError)


@dataclass(slots=True)
class Log:
    """The calls of some logs, in the order in which they ended; what they have and lack; what could not be read."""

    calls: list[LoggedCall]
    notes: list[str]
    problems: list[str]


def read_log(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Log:
    """The calls of tools in some files and folders."""
    files, reader = _files_of([paths] if isinstance(paths, str | os.PathLike) else paths), _Reader()
    found: list[tuple[float, int, int, LoggedCall]] = []
    for number, (name, path) in enumerate(files):
        reader.open(name)
        try:
            data = sys.stdin.buffer.read() if path is None else path.read_bytes()
            data = _unpacked(data) if data.startswith(b"\x1f\x8b") else data
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "its content breaks off"
            reader.note(f"files that cannot be read ({reason}) were left out")
            continue
        found += _placed(number, list(reader.calls(data, path)))
    calls = reader.unnested(call for *_, call in sorted(found, key=lambda one: one[:3]))
    return Log(calls, _facts(calls, len(files)), reader.problems())


def _unpacked(data: bytes) -> bytes:
    found = io.BytesIO()
    with gzip.open(io.BytesIO(data)) as file:
        while found.write(file.read(1 << 20)):
            if found.tell() > _LARGEST:
                raise OSError(0, "it unpacks to more than 1 GB: unpack it first")
    return found.getvalue()


def _files_of(paths: Iterable[str | os.PathLike[str]]) -> list[tuple[str, Path | None]]:
    """The files that are meant, each once, in the order of their names; None for the standard input."""
    found: dict[str, tuple[str, Path | None]] = {}
    for given in paths:
        path = Path(given)
        if os.fspath(given) == "-":
            if sys.stdin is None:
                raise FileNotFoundError("standard input is closed")
            found["-"] = ("standard input", None)
            continue
        inside = [path] if path.exists() else []  # a pipe is one, too
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
    tools, runs = len({call.tool for call in calls}), len({call.run for call in calls})
    read = f"read {plural(len(calls), 'call')} of {plural(tools, 'tool')} in {plural(runs, 'run')}"
    facts = {
        f"{read}, from {plural(files, 'file')}": True,
        "the log does not say which tools write: that takes evidence or hints": not any(call.kind for call in calls),
        "no call has a time: runs count as one after another": all(call.ended is None for call in calls),
    }
    return [text for text, is_so in facts.items() if is_so]


class _Reader:
    """Reads files, one after the other. What it cannot read is counted, with the place of the first."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._places: dict[str, str] = {}
        self._seen: set[tuple[str, ...]] = set()  # calls by their ids
        self._runs_of: dict[tuple[str, str], str] = {}  # of calls that messages ask for
        self._asked: dict[tuple[str, str], list[Fields]] = {}  # such calls that have no answer yet
        self._parents: dict[str, str] = {}  # of calls and spans, by their ids
        self._nested: dict[str, LoggedCall] = {}
        self._cut: set[int] = set()  # calls whose answer may be as long as its exporter lets it be
        self.open("")

    def open(self, name: str) -> None:
        """Go on with the next file."""
        self._name, self._place, self._runs = name, "", 0

    def note(self, text: str) -> None:
        """Count a problem."""
        self._places.setdefault(text, f"{self._name}, {self._place}" if self._place else self._name)
        self._counts[text] += 1

    def problems(self) -> list[str]:
        """A sentence each."""
        return [f"{text}: {number:,} (first: {self._places[text]})" for text, number in self._counts.items()]

    def calls(self, data: bytes, path: Path | None) -> Iterator[LoggedCall]:
        """The calls of the file, in its order."""
        data = data.removeprefix(b"\xef\xbb\xbf")
        if _RECORDING.match(data):
            for number, part in enumerate(_RECORDING.split(data)[1:]):
                yield from self._recording(part, path, self._name if number == 0 else f"{self._name}, run {number + 1}")
            return
        texts = defaultdict[int, list[int]](list)  # calls by the length of a text that they have answered
        for record in self._records(data):
            try:
                for call in self._read(record):
                    if isinstance(call.result, str):
                        texts[len(call.result)].append(id(call))
                    yield call
            except _BROKEN:
                self.note("records that are not as their form says were left out")
        if (longest := max(texts, default=0)) >= _LEAST_LIMIT:
            self._cut.update(texts[longest])
        for waiting in self._asked.values():  # what was interrupted stands where it began
            yield from (call for asked in waiting for call in self.call(asked | {"ended": asked["started"]}))
            waiting.clear()

    def _records(self, data: bytes) -> Iterator[Any]:
        """A whole document; or JSON Lines, or documents one after the other, each of which begins a line."""
        if isinstance(whole := _decoded(data), dict | list):
            yield whole
            return
        line = 1
        for part in re.split(rb"\n(?=[\[{])", data):
            whole = _decoded(part)
            for text in part.splitlines() if whole is None else [part]:
                self._place = f"line {line}"
                line += text.count(b"\n") + 1
                if isinstance(value := _decoded(text) if whole is None else whole, dict | list):
                    yield value
                elif text.strip():
                    self.note("what is no JSON was left out")

    def _read(self, record: Any) -> Iterator[LoggedCall]:
        if isinstance(record, list) and not any(map(_is_message, record)):
            for one in record:
                yield from self._read(one)
        elif isinstance(record, list):
            yield from self._conversation({}, record)
        elif not isinstance(record, dict):
            self.note("records of no known form were left out")
        elif (spans := _spans_of(record)) is not None:
            for span in spans:
                yield from self._of_span(span)
        elif "ATIF" in str(record.get("schema_version")):
            yield from self._trajectory(record)
        elif isinstance(record.get("data"), list):  # a page of an API
            yield from self._read(record["data"])
        elif isinstance(record.get("calls"), list):
            self._runs += 1
            run = _text(_first(record, (*_RUNS, "id"))) or f"{self._name}, run {self._runs}"
            for one in record["calls"]:
                yield from self.call(one, run)
        elif not _is_message(record) and _first(record, _NAMES) and {*record} & {*_NAMES[:2], *_ARGUMENTS}:
            yield from self.call(record)
        elif messages := _messages_of(record):
            yield from self._conversation(record, messages)
        else:
            self.note("records of no known form were left out")

    # Our own recordings, of which standard input may have several

    def _recording(self, data: bytes, path: Path | None, run: str) -> Iterator[LoggedCall]:
        try:
            cassette = Cassette.load(path) if path and is_encrypted(data) else Cassette.read(Path(run), data)
            yield from self._recorded(cassette, data, run)
        except CassetteError as error:
            line = "it" if error.line is None else f"line {error.line}:"
            self.note(f"recordings that cannot be read were left out: {line} {error.reason}")
        except _BROKEN:
            self.note("recordings that are not as a recorder writes them")

    def _recorded(self, cassette: Cassette, data: bytes, run: str) -> Iterator[LoggedCall]:
        base = began = self._moment(cassette.recorded_at)
        resumes = [(int(number), self._moment(at.decode())) for at, number in _RESUMED.findall(data)]
        enclosing, last, hints = {call.parent for call in cassette.steps}, 0.0, dict[str, Any]()
        roots = defaultdict[str, set[str]](set)  # of what is written, by namespace
        for call in cassette.steps:
            if call.source == "write":
                roots[call.name.partition(":")[0]].update(tag.partition(":")[0] for tag in call.tags)
        for position, call in enumerate(cassette.steps):
            self._place, own = f"call {call.id}", call.name.partition(":")[0]
            while base is not None and resumes and resumes[0][0] <= position:
                began = max(began or base, (resumes.pop(0)[1] or base) - last)
            starts, duration = max(0.0, call.started_ms) / 1e3, max(0.0, call.duration_ms) / 1e3
            last = max(last, starts + duration)
            value, error = _outcome(call.outcome)
            if call.name.startswith("mcp:") and isinstance(value, dict):  # what the server says of its tools
                listed = (value.get("result") or value).get("tools") or ()
                hints |= {one["name"]: one.get("annotations") for one in listed}
            is_call = call.kind in ("tool", "write", "call") and call.name not in ("mcp:request", "mcp:tools")
            every = roots[own] if len(roots[own]) > 1 else {own}  # what a tool without a rule is taken to write
            said = "" if call.source == "write" and {*call.tags} == every else call.source
            if is_call and call.source != "blocked":
                yield from self.call({
                    "tool": call.name, "arguments": _plain(call.arguments), "result": value, "error": error,
                    "source": call.source, "hints": hints.get(call.name.rpartition(":")[2]),
                    "kind": "write" if "write" in (call.kind, said) else "read" if said else None,
                    "started": began and began + starts, "ended": began and began + starts + duration,
                    "encloses": call.kind == "call" and call.id in enclosing,
                }, run)  # fmt: skip

    # Spans: the GenAI conventions of OpenTelemetry, as OTLP or as the console exporter prints them

    def _of_span(self, span: Record) -> Iterator[LoggedCall]:
        context = span["context"] if isinstance(span.get("context"), dict) else span
        trace, own = _text(_first(context, ("trace_id", "traceId"))), _text(_first(context, ("span_id", "spanId")))
        self._parents[f"{trace} {own}"] = f"{trace} {_text(_first(span, ('parentSpanId', 'parent_id')))}"
        attributes, name = _attributes_of(span), str(span.get("name", ""))
        source = attributes.get("agent_cache.source")
        is_tool = name.startswith("execute_tool ") or span.get("span_kind") == "TOOL"  # the latter of Phoenix
        is_tool |= any(attributes.get(key) == kind for key, kind in _SPAN_KINDS.items())
        if not is_tool and "gen_ai.operation.name" not in attributes:  # else of a model or an agent
            self.note("spans that are no calls of tools were left out")
        if not is_tool or source == "blocked" or name == "execute_tool (merged tools)":  # ADK has one for each as well
            return
        no_rule = [str(attributes.get("agent_cache.tool")).partition(":")[0]]  # the tags of a toolbox without rules
        said = None if attributes.get("agent_cache.tags") == no_rule else source
        asked, result = _first(attributes, _SPAN_CONTENTS), _of_message(_first(attributes, _SPAN_CONTENTS.values()))
        if source is not None:  # ours, which says what is a text
            asked, result = (one if (value := _decoded(one)) is None else _plain(value) for one in (asked, result))
        if attributes.get("gcp.vertex.agent.tool_response") == "{}":  # of ADK, without contents
            asked, result = None, UNKNOWN
        if "langsmith.span.kind" in attributes:
            whole = [one if (value := _decoded(one)) is None else value for one in (asked, result)]  # or a plain text
            asked, result = _only(whole[0], "input"), _only(whole[1], "output")
        known = {"arguments": asked, "result": result, "started": _first(span, ("startTimeUnixNano", "start_time"))}
        known["ended"] = _first(span, ("endTimeUnixNano", "end_time"))
        yield from self.call({name: value for name, value in known.items() if value is not None} | {
            "tool": _text(_first(attributes, _SPAN_TOOL)) or name.removeprefix("execute_tool "),
            "run": _first(attributes, ("gen_ai.conversation.id", "session.id")) or trace,
            "id": f"{trace} {own}" if own else "", "error": _error_of_span(span, attributes),
            "source": "hit" if attributes.get("gen_ai.tool.cache.hit") is True else source,
            "kind": "write" if said == "write" else "read" if said else None, "may_be_cut": True,
        })  # fmt: skip

    def unnested(self, calls: Iterable[LoggedCall]) -> list[LoggedCall]:
        """The calls, marked if they enclose others, without those inside of an equal one, on its way to a server."""
        repeated, enclosing = set[int](), set[int]()
        for own, call in self._nested.items():
            above = self._parents.get(own, "")
            for _ in range(100):  # a log may have a span inside of itself
                if above in self._nested or above not in self._parents:
                    break
                above = self._parents[above]
            if (outer := self._nested.get(above)) is not None and outer is not call:
                is_same = (outer.tool, outer.arguments) == (call.tool, call.arguments)
                (repeated if is_same else enclosing).add(id(call if is_same else outer))
        changed = {one: Fields(is_whole=False) for one in self._cut} | {one: Fields(encloses=True) for one in enclosing}
        kept = (one for one in calls if id(one) not in repeated)
        return [replace(one, **changed[id(one)]) if id(one) in changed else one for one in kept]

    # Trajectories: ATIF-v1.7 of Harbor

    def _trajectory(self, record: Record) -> Iterator[LoggedCall]:
        run = _text(_first(record, ("session_id", "trajectory_id"))) or self._name
        for step in record.get("steps") or ():
            results = (step.get("observation") or {}).get("results") or ()
            answers = {
                one.get("source_call_id"): {"result": one.get("content"), "error": says_outage(one.get("content"))}
                for one in results
            }
            for one in step.get("tool_calls") or ():
                asked = {"tool": one["function_name"], "arguments": one["arguments"], "ended": step.get("timestamp")}
                yield from self.call(asked | answers.get(one.get("tool_call_id"), {}), run)

    # Messages: Chat Completions, Responses, Messages of Anthropic

    def _conversation(self, record: Record, messages: list[Record]) -> Iterator[LoggedCall]:
        run = self._run_of(record, messages)
        holders = [record, *(record[name] for name in ("response", "body") if isinstance(record.get(name), dict))]
        general = next(filter(None, (_first(one, _TIMES) for one in holders)), None)
        counts = Counter[tuple[str, ...]]()
        for message in messages:
            at = _first(message, _TIMES) or general
            for tool, call_id, asked in _calls_in(message):
                key = _key_of(run, call_id)
                counts[same := (*key, tool, str(asked))] += 1
                is_repeated = (*same, str(counts[same])) in self._seen  # by a request that has the history, too
                if len(messages) > 1:
                    self._seen.add((*same, str(counts[same])))
                if key not in self._runs_of or (key[0] and not is_repeated):
                    self._runs_of[key] = run
                    self._asked.setdefault(key, []).append(
                        {"tool": tool, "run": run, "arguments": asked, "started": at}
                    )
            for call_id, output, has_failed in _answers_in(message):
                key = _key_of(run, call_id)
                if waiting := self._asked.get(key):
                    call = waiting.pop(0) | {"result": output, "error": has_failed, "ended": at}
                    if call["started"] == at:  # one time of a whole record is no beginning of its calls
                        del call["started"]
                    yield from self.call(call)
                elif key not in self._runs_of:
                    self.note("answers without a call were left out")

    def _run_of(self, record: Record, messages: list[Record]) -> str:
        """The run that a record names; or that of an earlier record, a call of which this one repeats."""
        if run := _text(_first(record, _RUNS if _is_message(record) else (*_RUNS, "id"))):
            return run
        ids = [call_id for message in messages for _, call_id, _ in _calls_in(message)]
        if found := [self._runs_of[key] for one in ids if (key := _key_of("", one)) in self._runs_of]:
            return found[0]
        self._runs += len(messages) > 1
        return f"{self._name}, run {self._runs}" if len(messages) > 1 else self._name

    # One call a record

    def call(self, record: Any, run: str = "") -> Iterator[LoggedCall]:
        """The call of a record, if it has one that was not seen before."""
        if not (tool := _text(_first(record, _NAMES))):
            self.note("calls without the name of a tool were left out")
            return
        if _PARENTS & {*record}:
            self._parents[_text(record.get("id"))] = _text(_first(record, _PARENTS))
        if str(_first(record, ("run_type", "type"))).lower() in _NO_TOOLS:
            self.note("calls of models and chains were left out")
            return
        run = _text(_first(record, ("trace_id",) if "run_type" in record else _RUNS)) or run or self._name
        if own := _text(_first(record, _IDS)):
            if (run, tool, own) in self._seen:
                self.note("calls that are there twice were counted once")
                return
            self._seen.add((run, tool, own))
        asked = _first(record, _ARGUMENTS)
        asked = {} if asked is None and any(name in record for name in _ARGUMENTS) else asked
        error, result = _first(record, ("error", "is_error")), _first(record, _RESULTS)
        if record.get("level") == "ERROR":  # of Langfuse
            error = _first(record, ("statusMessage",)) or True
        error = None if error in (False, "") else error
        result = result if any(name in record for name in _RESULTS) else UNKNOWN
        if "run_type" in record:  # of LangSmith
            asked, result = _only(asked, "input"), _of_message(_only(result, "output"))
        began = self._moment(_first(record, ("started", "start_time", "startTime")))
        ended = self._moment(_first(record, ("ended", "end_time", "endTime", *_TIMES)))
        if began is not None and ended is not None:  # clocks differ
            began, ended = min(began, ended), max(began, ended)
        if error is None and record.get("source") in _CACHED:
            self.note("answers that came from a cache: they show nothing of the world")
            answer: Fields = {}
        else:
            answer = self._answer(result, error, may_be_cut=record.get("may_be_cut") is True)
        kind, hints = record.get("kind"), _first(record, ("hints", "annotations"))
        call = LoggedCall(
            tool=tool, run=run, started=began, ended=ended, kind=kind if kind in ("read", "write") else None,
            hints={name: hints[name] for name in _HINTS if isinstance(_first(hints, (name,)), bool)},
            encloses=record.get("encloses") is True, **self._arguments(asked), **answer,
        )  # fmt: skip
        if own:
            self._nested[own] = call
        yield call

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
        if isinstance(value, dict) and {*value} == {"args", "kwargs"} and isinstance(value["kwargs"], dict):
            value = ({"args": value["args"]} if value["args"] else {}) | value["kwargs"]  # of a decorator
        if value is None:
            self.note("calls without arguments, or with some that are cut off, are equal to no other")
            return {"arguments": {}, "is_keyed": False}
        named = value if isinstance(value, dict) else {"args" if isinstance(value, list) else "input": value}
        if value == "" or not _is_marked(named):
            return {"arguments": {} if value == "" else named}
        self.note("calls with redacted arguments are equal to no other")
        return {"arguments": self._cleared(named), "is_keyed": False}

    def _answer(self, value: Any, error: Any, *, may_be_cut: bool) -> Fields:
        """What a call answered: of blocks of text their text, of text that is a JSON object or list its value.

        An error that is True has its text in the value.
        """
        if error is None and value is UNKNOWN:
            self.note("calls without an answer")
            return {}
        of_mcp = {"isError", "structuredContent"} & {*value} if isinstance(value, dict) else ()
        if of_mcp and isinstance(value.get("content"), list):
            error, value = error or value.get("isError") or None, value["content"]
        text = _text_of_blocks(value)
        if error is not None:  # of one that was cancelled, the effect is not known
            said = _error_text((value if text is None else text) if error is True else error)
            return {} if _CANCELLED.match(said) else {"error": said[:500]}
        fields: Fields = {"result": value}
        if text is not None:
            if may_be_cut and text[:1] == '"' and isinstance(inner := _decoded(text), str):  # a text as JSON
                text = inner
            parsed = _decoded(text) if text.strip()[:1] in ("{", "[") else None
            if parsed is None and may_be_cut and text.strip()[:1] in ("{", "[", '"'):
                self.note("answers that are cut off")
                return {}
            fields = {"result": text if parsed is None else parsed, "is_parsed": parsed is not None}
            if may_be_cut and parsed is None and len(text) >= _LEAST_LIMIT and len(text).bit_count() == 1:
                fields["is_whole"] = False  # the limits of exporters are powers of two
        if not _is_marked(fields["result"]):
            return fields
        self.note("answers with redacted parts: an equal one shows nothing")
        cleared = self._cleared(fields["result"])
        return {} if cleared is None else fields | {"result": cleared, "is_whole": False}

    def _cleared(self, value: Any) -> Any:
        """The value with None in the place of each text that has a redacted part."""
        if isinstance(value, dict):
            return {name: self._cleared(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._cleared(one) for one in value]
        return None if isinstance(value, str) and _is_marked(value) else value


# Parts of records

_RECORDING: Final = re.compile(rb'^(?=\{"agent_cache_(?:cassette|journal)")', re.MULTILINE)
_RESUMED: Final = re.compile(rb'^\{"resumed":\{"at":"?([^",}]+)"?,"calls":(\d+)', re.MULTILINE)
_CANCELLED: Final = re.compile(r"(?:[\w.]+[.:])?(?:CancelledError|Cancelled|GeneratorExit|KeyboardInterrupt): ")
_MARK: Final = re.compile(
    r"""[\[<](?:redacted|filtered|scrubbed|masked|truncated|not\ serializable)\b[^\]>"]{0,80}[\]>]
    |\d\ (?:more\ )?(?:lines|char(?:acter)?s|tokens|bytes)\ (?:were\ )?(?:truncated|omitted)|\bomitted\ \d+\ of\ \d
    |__REDACTED__|"(?:REDACTED|x{6,40}|\*{3,}[^"]{0,8})\"""",
    re.IGNORECASE | re.VERBOSE,
)


def _is_marked(value: Any) -> bool:
    return _MARK.search(json.dumps(value)) is not None


def _decoded(text: bytes | str) -> Any:
    """The JSON value, also with what Python writes and JSON does not have (NaN); None if it is none."""
    try:
        return json.loads(text, strict=False, parse_constant=str)
    except (TypeError, ValueError, RecursionError):
        return None


def _first(record: Any, names: Iterable[str]) -> Any:
    """The value of the first of these names that the record has; None if it has none."""
    given = record if isinstance(record, dict) else {}
    return next((given[name] for name in names if given.get(name) is not None), None)


def _only(value: Any, name: str) -> Any:
    """What an object has by this name, if it has nothing else."""
    return value[name] if isinstance(value, dict) and {*value} == {name} else value


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


def _plain(value: Any) -> Any:
    """What is written of a value that JSON has not, ``{"$UUID": "..."}``, as tags take it: fields, items or a text."""
    if isinstance(value, list):
        return [*map(_plain, value)]
    if not isinstance(value, dict):
        return value
    form, inner = next(iter(value.items()), ("", None))
    if len(value) == 1 and form[:1] == "$":
        return _plain(inner[1] if form in ("$object", "$URL") and isinstance(inner, list) else inner)
    return {name: _plain(one) for name, one in value.items()}


def _outcome(outcome: Record) -> tuple[Any, str | None]:
    """The value of an outcome in a recording, None if it has none; and its error."""
    if isinstance(error := outcome.get("error"), dict):
        return None, _error_text(error.get("message", ""), str(error.get("type", "")).rpartition(":")[2])
    if isinstance(stream := outcome.get("stream"), dict):
        end = _outcome(stream.get("end") or {"value": None})
        return [_outcome(chunk)[0] for chunk in stream.get("chunks", ())], end[1]
    if isinstance(outcome.get("object"), list):
        return _plain(outcome["object"][-1]), None
    known = [outcome[form] for form in ("value", "typed") if form in outcome]
    known += [_plain(outcome["any"])] if "any" in outcome else []
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
    return {one["key"]: _of_otlp(one.get("value")) for one in given} if isinstance(given, list) else given


def _of_otlp(value: Any) -> Any:
    """A value of OTLP, without its type."""
    inner: Any
    kind, inner = next(iter((value or {}).items()), ("", None))
    if kind == "arrayValue":
        return [_of_otlp(one) for one in inner.get("values") or ()]
    if kind == "kvlistValue":
        return {str(one["key"]): _of_otlp(one.get("value")) for one in inner.get("values") or ()}
    return int(inner) if kind == "intValue" else inner


def _of_message(output: Any) -> Any:
    """What a tool has answered: of the message that LangChain makes of it, the content."""
    message = _decoded(output) if isinstance(output, str) and output[:1] == "{" else output
    if _first(message, ("type",)) == "tool" and isinstance(_first(message, ("data",)), dict):
        message = message["data"]
    return message["content"] if isinstance(message, dict) and {"tool_call_id", "content"} <= {*message} else output


def _error_of_span(span: Record, attributes: Record) -> str | None:
    status = span.get("status") or {"code": span.get("status_code"), "message": span.get("status_message")}
    code = _first(status, ("code", "status_code"))
    if str(code) not in ("2", "ERROR", "STATUS_CODE_ERROR") and "error.type" not in attributes:
        return None
    text, kind = _first(status, ("message", "description")), attributes.get("error.type", "")
    for event in span.get("events") or ():
        inner = _attributes_of(event)
        kind, text = inner.get("exception.type", kind), inner.get("exception.message", text)
    return _error_text(_text(text), str(kind))


_CALLS: Final = {"tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"}
_ANSWERS: Final = {"tool_result", "mcp_tool_result", "function_call_output", "custom_tool_call_output", "mcp_call"}
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
    for name in ("request", "body", "payload", "messages", "input", "message", "response", "output"):
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
        answer = message.get("content")
        yield _text(message.get("tool_call_id")), answer, message.get("status") == "error" or says_outage(answer)
    for one in blocks:
        error = _first(one, ("error",)) if one["type"] == "mcp_call" else None
        answer = _first(one, _RESULTS)
        yield _text(_first(one, _IDS)), error or answer, bool(error or one.get("is_error")) or says_outage(answer)
