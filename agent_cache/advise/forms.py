"""The calls in a file of any known form: decides for each record what it is.

Plain records, one a call, are read here, and so are our own recordings. The messages of conversations are read by
`conversations`, spans by `spans`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from agent_cache.advise.calls import UNKNOWN
from agent_cache.advise.conversations import RUN_KEYS, TIME_KEYS, Conversations, is_message, messages_of
from agent_cache.advise.fields import (
    ABSENT,
    NO_ANSWER,
    OF_CACHE,
    Answer,
    Arguments,
    Found,
    Source,
    Times,
    answer_of,
    arguments_of,
    call_of,
    error_text,
    failure,
    first_of,
    hints_of,
    moment,
    number_of,
    number_text,
    truth,
)
from agent_cache.advise.records import NAMES_OF_TOOLS, LogFile, Problem, Problems, Scratch, decoded
from agent_cache.advise.spans import calls_of_spans, spans_of
from agent_cache.errors import CassetteError
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.cassette_file import RecordedCall
from agent_cache.recording.redaction import REDACTED

__all__ = ["FORMS", "Form", "calls_of_file"]

Form: TypeAlias = Literal["recording", "messages", "spans", "calls"]
"""Our own recordings; messages of conversations; spans; and records of one call each, or of runs of them."""
FORMS: Final = get_args(Form)


def calls_of_file(
    file: LogFile,
    form: Form | None,
    problems: Problems,
    scratch: Scratch,
    now: float,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Found]:
    """The calls of a file, in its order. What cannot be read is counted.

    Args:
        file: the file, examined.
        form: what its records are; None to decide by their content.
        problems: is added to.
        scratch: for what does not fit into memory.
        now: the current time in Unix seconds.
        progress: is called with the number of bytes read so far.
    """
    source = Source(file.name, problems, now)
    if file.shape == "recording":
        if form in (None, "recording"):
            yield from _Recording(file, source, scratch, progress).calls()
        else:
            problems.add(Problem.UNKNOWN_FILE, f"{file.name}: it is a recording")
        return
    records = _Records(source, form)
    for record in file.records(problems, progress):
        run = f"{file.name}#{record.group}" if record.group else file.name
        yield from records.read(record.value, record.place, run)
    yield from records.conversations.rest()


# Records

_TOOLS_ALONE = NAMES_OF_TOOLS[:3]
_ARGUMENTS = ("arguments", "args", "input", "parameters", "params", "kwargs", "tool_input", "tool_args")
_RESULTS = ("result", "output", "response", "tool_output", "answer", "observation")
_ERRORS = ("error", "exception", "is_error", "isError", "failed")
_STARTS = ("started", "start", "start_time", "started_at", "startTime", "begin")
_ENDS = ("ended", "end", "end_time", "ended_at", "finished_at", "finished", "endTime")
_IDS = ("call_id", "tool_call_id", "span_id", "id")
_DURATIONS = (
    ("duration", 1.0),
    ("duration_s", 1.0),
    ("seconds", 1.0),
    ("elapsed", 1.0),
    ("duration_ms", 1e-3),
    ("elapsed_ms", 1e-3),
    ("latency_ms", 1e-3),
    ("ms", 1e-3),
)
_COSTS = ("cost", "cost_usd", "dollars")
_LISTS_OF_CALLS = ("calls", "tool_calls", "actions", "events", "rows", "records")
_LISTS_OF_RECORDS = ("data", "results", "items", "entries", "logs", "runs", "sessions", "conversations", "traces")
_KINDS: dict[str, Literal["read", "write"]] = {"read": "read", "write": "write"}


class _Records:
    """Reads the records of a file.

    Args:
        source: the file.
        form: what the records are; None to decide by their content.
    """

    def __init__(self, source: Source, form: Form | None) -> None:
        self._source = source
        self._form = form
        self._runs = 0
        self.conversations = Conversations(source)

    def read(self, record: Any, place: str, run: str) -> Iterator[Found]:
        """The calls of a record."""
        form = self._form
        if form in (None, "calls") and isinstance(record, dict) and "tool" in record and _is_call(record):
            yield from self._call(record, place, run)
        elif form in (None, "spans") and (spans := spans_of(record)) is not None:
            yield from calls_of_spans(spans, self._source, place)
        elif form in (None, "calls") and isinstance(record, dict) and _is_call(record):
            yield from self._call(record, place, run)
        elif form in (None, "calls") and (calls := _calls_inside(record)) is not None:
            self._runs += 1
            given = number_text(first_of(record, (*RUN_KEYS, "id", "task_id"))) or f"{run}, run {self._runs}"
            for call_record in calls:
                yield from self._call(call_record, place, given)
        elif form in (None, "messages") and (messages := messages_of(record)) is not None:
            if not is_message(record) and len(messages) > 1:
                self._runs += 1
                run = f"{run}, run {self._runs}"
            yield from self.conversations.read(record, messages, place, run)
        elif isinstance(record, list):
            for one in record:
                if isinstance(one, dict | list):
                    yield from self.read(one, place, run)
                else:
                    self._source.note(Problem.UNKNOWN_RECORD, place)
        elif isinstance(record, dict) and (inside := _list_inside(record)) is not None:
            yield from self.read(inside, place, run)
        elif isinstance(record, dict) and isinstance(record.get("tools"), list):
            self._source.learn(record["tools"])
        else:
            self._source.note(Problem.UNKNOWN_RECORD, place)

    def _call(self, record: Any, place: str, run: str) -> Iterator[Found]:
        source = self._source
        if not isinstance(record, dict):
            source.note(Problem.UNKNOWN_RECORD, place)
            return
        tool = number_text(first_of(record, NAMES_OF_TOOLS))
        if not tool:
            source.note(Problem.NO_TOOL, place)
            return
        arguments = arguments_of(first_of(record, _ARGUMENTS), source, place)
        call = call_of(
            tool,
            arguments,
            self._answer(record, place),
            self._times(record, place),
            source,
            run=number_text(first_of(record, RUN_KEYS)) or run,
            kind=_kind_of(record),
            hints=_hints_of_record(record),
            cost=number_of(first_of(record, _COSTS)),
        )
        identity = number_text(first_of(record, _IDS))
        yield Found(call, f"{call.run}\0{identity}" if identity else "", place, is_in_order=True)

    def _answer(self, record: dict[str, Any], place: str) -> Answer:
        value = first_of(record, _RESULTS)
        error = first_of(record, _ERRORS)
        failed = truth(error)
        if failed is False and (record.get("source") == "hit" or record.get("hit") is True):
            self._source.note(Problem.FROM_CACHE, place)
            return OF_CACHE
        if failed is False:
            return answer_of(value, self._source, place)
        if failed is True:
            return failure(None if value is ABSENT else value, self._source, place)
        return failure(error, self._source, place)

    def _times(self, record: dict[str, Any], place: str) -> Times:
        source = self._source
        started = moment(first_of(record, _STARTS), source, place)
        ended = moment(first_of(record, _ENDS), source, place)
        if started is None and ended is None:
            ended = moment(first_of(record, TIME_KEYS), source, place)
        duration = None
        for name, unit in _DURATIONS:
            if name in record and (number := number_of(record[name])) is not None:
                duration = number * unit
                break
        return Times(started, ended, duration).checked(source, place)


def _is_call(record: dict[str, Any]) -> bool:
    if any(name in record for name in _TOOLS_ALONE):
        return not is_message(record)
    has_name = isinstance(first_of(record, NAMES_OF_TOOLS), str)
    has_parts = any(name in record for name in _ARGUMENTS) and (
        any(name in record for name in (*_RESULTS, *_ERRORS)) or "type" not in record
    )
    return has_name and has_parts and not is_message(record)


def _calls_inside(record: Any) -> list[Any] | None:
    """The records of a run: ``{"id": ..., "calls": [...]}``."""
    if not isinstance(record, dict) or is_message(record):
        return None
    for name in _LISTS_OF_CALLS:
        calls = record.get(name)
        if not isinstance(calls, list):
            continue
        if any(isinstance(one, dict) and _is_call(one) for one in calls[:20]) or (not calls and name == "calls"):
            return calls
    return None


def _list_inside(record: dict[str, Any]) -> list[Any] | None:
    """The records of a document that has them under a name."""
    lists = (record[name] for name in _LISTS_OF_RECORDS if isinstance(record.get(name), list))
    return next((found for found in lists if found and isinstance(found[0], dict | list)), None)


def _kind_of(record: Mapping[str, Any]) -> Literal["read", "write"] | None:
    kind = record.get("kind")
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind]
    is_read = record.get("read_only")
    return None if is_read in (None, "") else {True: "read", False: "write"}.get(truth(is_read))  # type: ignore[arg-type,return-value]  # None gives None


def _hints_of_record(record: Mapping[str, Any]) -> dict[str, bool]:
    given = first_of(record, ("hints", "annotations"))
    return hints_of(given) or hints_of(record)


# Our own recordings

_KINDS_OF_CALLS: dict[str, Literal["read", "write"]] = {
    "write": "write",
    "hit": "read",
    "miss": "read",
    "shared": "read",
    "uncached": "read",
}
_NO_CALL = b'{"id":%d,"kind":"env","name":"","outcome":{"unfinished":true}}\n'
_IDS_OF_FILLERS = 1 << 60


class _Recording:
    """Reads a cassette or a journal, by the reader of cassettes."""

    def __init__(self, file: LogFile, source: Source, scratch: Scratch, progress: Callable[[int], None] | None) -> None:
        self._file = file
        self._source = source
        self._scratch = scratch
        self._progress = progress

    def calls(self) -> Iterator[Found]:
        """Its calls of tools, in the order in which they ended."""
        cassette = self._loaded()
        if cassette is None:
            return
        source = self._source
        source.marks = (str(cassette.header.redact.get("replacement", REDACTED)).encode(),)
        base = None
        if cassette.recorded_at:
            base = moment(cassette.recorded_at, source, "line 1")
            if "." not in cassette.recorded_at:
                source.note(Problem.WHOLE_SECONDS, "line 1")
        pauses = _pauses(self._plain) if base is not None and cassette.header.is_log else []
        others = 0
        elapsed = 0.0
        has_times = False
        for event in cassette.outline.events():
            if event >= 0:
                continue
            try:
                call = cassette.steps[~event]
            except CassetteError as error:
                source.note(Problem.BROKEN_RECORDING, f"line {error.line}")
                continue
            if call.form == "agentcassette":  # it has durations only
                call = msgspec.structs.replace(call, started_ms=elapsed)
                elapsed += call.duration_ms
            has_times = has_times or bool(call.started_ms or call.duration_ms)
            found = self._call(call, base if has_times else None, pauses)
            if found is None:
                others += 1
            else:
                yield found
        if others:
            source.note(Problem.NOT_OF_TOOLS, "", others)

    def _loaded(self) -> Cassette | None:
        source = self._source
        try:
            self._plain = self._file.plain_path(self._scratch)
            try:
                cassette = Cassette.load(self._plain, progress=self._progress)
            except CassetteError as error:
                if error.line is None or error.line < 2:
                    raise
                self._plain = self._mended()
                cassette = Cassette.load(self._plain, progress=self._progress)
        except CassetteError as error:
            place = "" if error.line is None else f", line {error.line}"
            source.problems.add(Problem.UNREADABLE, f"{source.name}{place}: {error.reason}")
            return None
        except (OSError, EOFError, zlib.error) as error:
            source.problems.add(Problem.UNREADABLE, f"{source.name}: {error}")
            return None
        return cassette

    def _mended(self) -> Path:
        """A copy with a call that is none in the place of each broken line, so that the times fit the others."""

        def lines() -> Iterator[bytes]:
            seen: set[int] = set()
            is_log = False
            with self._plain.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if number == 1:
                        is_log = b'"agent_cache_journal"' in line or b'"log":true' in line
                    elif line.endswith(b"\n") and line.strip() and not _is_good(line, seen):
                        self._source.note(Problem.BROKEN_RECORDING, f"line {number}")
                        own = _IDS_OF_FILLERS + number if is_log or number - 1 in seen else number - 1
                        seen.add(own)
                        yield _NO_CALL % own
                        continue
                    yield line

        return self._scratch.spooled(lines())

    def _call(self, call: RecordedCall, base: float | None, pauses: list[tuple[float, float]]) -> Found | None:
        source = self._source
        place = f"call {call.id}"
        if call.name in ("mcp:request", "mcp:tools"):
            self._learn(call.outcome.get("value"))
            return None
        if call.kind not in ("tool", "write", "call"):
            return None
        if call.source == "blocked":
            source.note(Problem.REFUSED, place)
            return None
        kind: Literal["read", "write"] | None = "write" if call.kind == "write" else _KINDS_OF_CALLS.get(call.source)
        if base is None:
            times = Times(duration=call.duration_ms / 1e3 or None)
        else:
            started = base + call.started_ms / 1e3
            started += sum(pause for after, pause in pauses if call.started_ms / 1e3 >= after)
            times = Times(started, started + call.duration_ms / 1e3, call.duration_ms / 1e3)
        hints = source.hints.get(call.name.rpartition(":")[2])
        logged = call_of(
            call.name,
            self._arguments(call, place),
            self._answer(call, place),
            times,
            source,
            run=self._file.name,
            kind=kind,
            hints=hints,
        )
        return Found(logged, "", place)

    def _arguments(self, call: RecordedCall, place: str) -> Arguments:
        values = dict(call.arguments)
        if call.form == "agentcassette":
            values = {**call.arguments.get("kwargs", {})}
            if call.arguments.get("args"):
                values["args"] = call.arguments["args"]
        return arguments_of(values, self._source, place)

    def _answer(self, call: RecordedCall, place: str) -> Answer:
        source = self._source
        value, error, is_over = _outcome(call.outcome)
        if not is_over:
            source.note(Problem.UNFINISHED, place)
            return NO_ANSWER
        if error is None and call.source == "hit":
            source.note(Problem.FROM_CACHE, place)
            return OF_CACHE
        return failure(error, source, place) if error is not None else answer_of(value, source, place)

    def _learn(self, value: Any) -> None:
        """The annotations of the tools that a server of MCP has listed."""
        for inner in (value, value.get("result") if isinstance(value, dict) else None):
            if isinstance(inner, dict):
                self._source.learn(inner.get("tools"))


class _Line(msgspec.Struct):
    """The parts of a line that decide whether the reader of cassettes takes it."""

    id: int
    kind: str
    name: str
    outcome: dict[str, Any]
    parent: int | None = None
    arguments: dict[str, Any] = {}
    digest: str = ""
    after: int = 0
    lane: int = 0
    forked: int = 0
    until: int = 0
    form: str = ""
    prefix: dict[str, tuple[int, int]] = {}


_OTHER_LINES = ("trailer", "intent", "open", "checkpoint", "resumed")


def _is_good(line: bytes, seen: set[int]) -> bool:
    """Whether the reader of cassettes takes a line behind those with these ids."""
    try:
        content = msgspec.json.decode(line)
        if "outcome" not in content:
            return any(name in content for name in _OTHER_LINES)
        call = msgspec.convert(content, _Line)
        bytes.fromhex(call.digest)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, TypeError, RecursionError):
        return False
    if call.id in seen or any(owner not in seen for owner, _ in call.prefix.values()):
        return False
    seen.add(call.id)
    return True


def _outcome(outcome: dict[str, Any]) -> tuple[Any, str | None, bool]:
    """The value of an outcome, or its error, and whether the call has come to its end."""
    for form in ("value", "typed", "any"):
        if form in outcome:
            return outcome[form], None, True
    if "object" in outcome:
        return outcome["object"][1], None, True
    if "error" in outcome:
        error = outcome["error"]
        return None, error_text(error.get("message", ""), str(error.get("type", "")).rpartition(":")[2]), True
    if "stream" in outcome:
        stream = outcome["stream"]
        _, error, is_over = _outcome(stream.get("end", {"value": None}))
        parts = [_outcome(chunk) for chunk in stream.get("chunks", ())]
        if error is not None or not is_over or not all(is_known for _, _, is_known in parts):
            return UNKNOWN, error, is_over and error is not None
        return [value for value, _, _ in parts], None, True
    return UNKNOWN, None, False


def _pauses(path: Path) -> list[tuple[float, float]]:
    """Of a journal that was resumed: from which second of the run on how many seconds were lost before it."""
    found: list[tuple[float, float]] = []
    began: float | None = None
    last = lost = 0.0
    source = Source("", Problems(), 1e18)
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == 0:
                if b'"agent_cache_journal"' not in line:
                    return []
                began = moment(decoded(line).get("recorded_at"), source, "")
            elif line.startswith(b'{"resumed":') and line.endswith(b"\n") and began is not None:
                at = moment(decoded(line)["resumed"].get("at"), source, "")
                pause = 0.0 if at is None else at - began - last - lost
                if pause > 0:
                    found.append((last, pause))
                    lost += pause
            elif line.startswith(b'{"id":') and line.endswith(b"\n"):
                times = msgspec.json.decode(line, type=_TimesOfLine)
                last = max(last, (times.started_ms + times.duration_ms) / 1e3)
    return found


class _TimesOfLine(msgspec.Struct):
    started_ms: float = 0.0
    duration_ms: float = 0.0
