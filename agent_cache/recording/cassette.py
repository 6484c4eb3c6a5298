"""Cassettes: `Cassette`, a recording to inspect, change and save; the order of its calls, and its lines.

While a recording runs its lines are a *log*: in the order in which calls ended, numbered by the order in which they
started. Both depend on how long each call took. In a finished cassette they do not: the calls of one lane stand in
their order, and a lane stands behind the call after which it was forked (`Outline.order_of_lines`), so that the same
run gives the same lines however its tasks were interleaved. How they were, their times say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.encryption import decrypted, is_encrypted
from agent_cache.recording.file import (
    JOURNAL_VERSION,
    NO_TIME,
    VERSION,
    Header,
    Intent,
    OtherLine,
    RecordedCall,
    Trailer,
    check_version,
    digest_of,
    line_of,
    read_bytes,
    with_asker,
)
from agent_cache.recording.outcomes import check_outcome, encode, redact_call_outcome
from agent_cache.recording.partial_file import replace_file
from agent_cache.recording.redaction import Redaction, redact_key


class Cassette:
    """A recording: each `RecordedCall`, in the order of their numbers; of one that was killed, as they ended.

    Args:
        steps: the calls.
        model: a label.
        recorded_at: start of the recording, in UTC.
        duration_ms: duration of the recording.
        path: the file it was loaded from, for messages.

    Attributes:
        header, trailer: the first and the last line of the file; no trailer if the recording was killed.
        is_partial: whether the recording was killed, so that calls may be missing.
        others: of a journal, its lines that are no calls, with their numbers.
    """

    def __init__(
        self,
        steps: Sequence[RecordedCall] | None = None,
        *,
        model: str | None = None,
        recorded_at: str | None = None,
        duration_ms: float = 0.0,
        path: str | os.PathLike[str] = "",
    ) -> None:
        self.steps: Sequence[RecordedCall] = [] if steps is None else steps
        self.header = Header(model=model, recorded_at=recorded_at)
        self.trailer: Trailer | None = Trailer(calls=len(self.steps), duration_ms=duration_ms)
        self.path = os.fspath(path)
        self.is_partial = False
        self.others: list[tuple[int, OtherLine]] = []

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a cassette, of agent_cache or agentcassette, and check every line.

        Raises:
            CassetteNotFound: if there is no such file.
            CassetteError: if it is broken, in conflict, of another version, or another file, with the line.
        """
        data = read_bytes(Path(path))
        found = cls.read(Path(path), decrypted(Path(path), data))
        if is_encrypted(data):  # it is as the run has seen it
            apply_rules(found, Redaction().joined(recorded_rules(found)))
        return found

    @classmethod
    def read(cls, path: Path, text: bytes) -> Self:
        """The cassette that a file of this text is. Checks every line, as `load` does."""
        text = text.removeprefix(b"\xef\xbb\xbf")
        *lines, last = text.split(b"\n")
        header = _read_header(path, (lines[0] if lines else last).strip())
        if header is None:
            return cls._converted(path, text)
        if not last or (last.startswith(_TRAILER) and header.log is not True):  # else it was killed while it wrote this
            lines.append(last)
        calls: list[RecordedCall] = []
        found, end, ids = cls(calls, path=path), OtherLine(), set[int]()
        for number, line in enumerate(map(bytes.strip, lines[1:]), 2):
            if not line:
                continue
            if end.trailer is not None or line.startswith(b'{"agent_cache_cassette"'):
                what = "a second header, or a line that follows the trailer: use one of the recordings that were merged"
                raise CassetteError(what, path, number)
            if line.startswith(_OTHERS):
                end = _decoded(path, number, line, _decode_other)
                found.others += [(number, end)] if end.trailer is None else []
            else:
                call: RecordedCall = _decoded(path, number, line, _decode_call)
                if call.id in ids:
                    raise CassetteError(f"an earlier line has the id {call.id}, too; record it again", path, number)
                ids.add(call.id)
                calls.append(call)
        found.header, found.trailer, found.is_partial = header, end.trailer, end.trailer is None
        if header.log is not True and len(end.times) == len(calls):
            for call, (started, duration) in zip(calls, end.times, strict=True):
                _set(call, "started_ms", started / 1000)
                _set(call, "duration_ms", duration / 1000)
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cassette in one step. Directories are created.

        Raises:
            CassetteError: if it cannot be written, or the path is being recorded.
        """
        replace_file(Path(path), self.lines())

    @classmethod
    def _converted(cls, path: Path, text: bytes) -> Self:
        """The calls of agentcassette, whose files are one JSON document, version 1.

        Its arguments are ``args`` and ``kwargs`` as the caller wrote them, its names have no module. A replay binds
        them to the signature of the function that is called.
        """
        if not text.strip():
            raise CassetteError("is empty; delete it, or record it again", path)
        try:
            document = msgspec.json.decode(text, type=_Document)
        except msgspec.ValidationError as error:
            reason = f"is JSON, but no cassette of agent-cache or agentcassette: {error}"
            if b'"agent_cache_cassette"' in text or text.startswith(b'{"id":'):
                reason = "has no header in its first line: it was edited or formatted; restore it, or record it again"
            raise CassetteError(reason, path, 1) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CassetteError(f"is no cassette, and no JSON document either: {error}", path, 1) from error
        calls = [
            RecordedCall(
                id=number, kind=step.type or "call", name=step.name, arguments=step.arguments,
                digest=digest_of(step.name, step.arguments).hex(),
                after=number - 1,  # it does not record concurrency: calls are in the order in which they ended
                outcome={"value": step.result}, duration_ms=step.duration_ms or 0.0,
                input_tokens=step.input_tokens or 0, output_tokens=step.output_tokens or 0, form="agentcassette",
            )
            for number, step in enumerate(document.steps, 1)
        ]  # fmt: skip
        found = cls(calls, duration_ms=document.duration_ms or 0.0, path=path)
        found.header = Header(recorded_at=document.recorded_at, model=document.model, log=True)
        return found

    @property
    def intents(self) -> list[Intent]:
        """Of a journal, the writes that have begun and were not refused then, in their order."""
        begun = {line.intent.id: line.intent for _, line in self.others if line.intent is not None}
        return [one for one in begun.values() if not one.refused]

    @property
    def outline(self) -> Outline:
        """The order of its calls, and the fields by which a replay finds them."""
        return Outline(self.steps)

    @property
    def model(self) -> str | None:
        """The label of the recording."""
        return self.header.model

    @property
    def recorded_at(self) -> str | None:
        """The start of the recording, in UTC."""
        return self.header.recorded_at

    @property
    def duration_ms(self) -> float:
        """The duration of the recording; of one that was killed, until the end of its last known call."""
        if self.trailer is not None:
            return self.trailer.duration_ms
        return max((call.started_ms + call.duration_ms for call in self.steps), default=0.0)

    @property
    def num_steps(self) -> int:
        """The number of calls."""
        return len(self.steps)

    @property
    def total_input_tokens(self) -> int:
        """Tokens sent to models, as far as they are known."""
        return sum(call.input_tokens for call in self.steps)

    @property
    def total_output_tokens(self) -> int:
        """Tokens received from models, as far as they are known."""
        return sum(call.output_tokens for call in self.steps)

    @property
    def total_tokens(self) -> int:
        """Tokens sent and received, as far as they are known."""
        return self.total_input_tokens + self.total_output_tokens

    def redact(self, *names: str) -> Self:
        """Remove the values of these names from arguments and outcomes, at any depth. Returns the cassette.

        Digests change with the arguments, and the header keeps the names, so a replay still matches. The file changes
        by `save`.
        """
        apply_rules(self, Redaction(names).joined(recorded_rules(self)))
        return self

    def lines(self) -> Iterator[bytes]:
        """The lines of its file, one by one; of a recording that was killed, those of its log."""
        if self.trailer is None:
            yield line_of(msgspec.structs.replace(self.header, agent_cache_cassette=VERSION))
            yield from map(line_of, self.steps)
            return
        outline = self.outline
        indices: Sequence[int] = outline.order_of_lines() if self.header.log is True else range(len(self))
        numbers = {index: number for number, index in enumerate(indices, 1)}
        lanes = {lane: number for number, lane in enumerate(dict.fromkeys([0, *(outline.lanes[at] for at in indices)]))}
        enclosing, times = outline.enclosing(), []
        yield line_of(msgspec.structs.replace(self.header, agent_cache_cassette=VERSION, log=msgspec.UNSET))
        for index in indices:
            call = self.steps[index]
            times.append((round(call.started_ms * 1000), round(call.duration_ms * 1000)))
            parent = None if call.parent is None else numbers.get(enclosing[index], 0)
            forked = lanes.get(call.forked, 0) if call.lane else call.forked
            yield line_of(
                msgspec.structs.replace(
                    call, id=numbers[index], parent=parent, lane=lanes[call.lane], forked=forked, after=0,
                    started_ms=NO_TIME, duration_ms=NO_TIME, place="", hidden=False,
                )
            )  # fmt: skip
        yield encode({"trailer": msgspec.structs.replace(self.trailer, calls=len(indices)), "times": times}) + b"\n"

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> RecordedCall:
        return self.steps[index]

    def __repr__(self) -> str:
        return f"<Cassette of {len(self)} calls{f' from {self.path}' if self.path else ''}>"


# Documents of agentcassette


class _Step(msgspec.Struct):
    name: str
    arguments: dict[str, Any]
    type: str | None = None
    result: Any = None
    duration_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Document(msgspec.Struct):
    steps: list[_Step]
    recorded_at: str | None = None
    model: str | None = None
    duration_ms: float | None = None
    version: Literal[1] = 1


# Reading

_CONFLICT = (b"<<<<<<< ", b"=======", b">>>>>>> ", b"||||||| ")
_TRAILER = b'{"trailer":'
_OTHERS = (_TRAILER, b'{"times":', b'{"intent":', b'{"open":', b'{"checkpoint":', b'{"resumed":')

_call_decoder = msgspec.json.Decoder(RecordedCall)
_decode_other = msgspec.json.Decoder(OtherLine).decode
_set = msgspec.structs.force_setattr  # of calls that were just decoded, and that nobody else has


def _decode_call(line: bytes) -> RecordedCall:
    call = _call_decoder.decode(line)
    check_outcome(call.outcome)
    return call


def _decoded(path: Path, number: int, text: bytes, decode: Callable[[bytes], Any]) -> Any:
    if text.startswith(_CONFLICT):
        raise CassetteError("has a merge conflict; resolve it, or record it again", path, number)
    try:
        return decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CassetteError(f"this line is broken: {error}", path, number) from error


def _read_header(path: Path, text: bytes) -> Header | None:
    """The header; None if this is the beginning of another JSON document."""
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    if isinstance(data, dict) and "agent_cache_journal" in data:  # its calls are a log
        check_version(path, data["agent_cache_journal"], JOURNAL_VERSION)
        text = encode({**{name: data[name] for name in ("recorded_at", "redact", "http") if name in data}, "log": True})
    elif isinstance(data, dict) and "agent_cache_cassette" in data:
        check_version(path, data["agent_cache_cassette"], VERSION)
    elif not text or text[:1] == b"{":
        return None
    elif not text.startswith(_CONFLICT):
        raise CassetteError('is no cassette; "agent-cache cassette convert" makes one of those of vcrpy', path, 1)
    header: Header = _decoded(path, 1, text, msgspec.json.Decoder(Header).decode)
    try:
        Redaction().joined({**header.redact, "hook": False})
    except (ConfigurationError, TypeError, AttributeError) as error:
        raise CassetteError(f"its header has invalid redaction rules: {error}", path, 1) from error
    return header


# Redaction


def recorded_rules(cassette: Cassette) -> dict[str, Any]:
    """The redaction rules in the header, except for a hook: its code is not in the file, and it has run."""
    return {name: value for name, value in cassette.header.redact.items() if name != "hook"}


def apply_rules(cassette: Cassette, rules: Redaction) -> None:
    """Redact every call by these rules, and note them in the header. The note of a hook stays there."""
    cassette.steps = [redact_call(call, rules) for call in cassette.steps]
    described = rules.describe()
    if cassette.header.redact.get("hook"):
        described["hook"] = True
    cassette.header = redacted_header(cassette.header, rules, described)


def redacted_header(header: Header, rules: Redaction, described: dict[str, Any]) -> Header:
    """A header without secrets, with these rules."""
    model = None if header.model is None else rules.labelled("model", header.model)
    return msgspec.structs.replace(header, redact=described, model=model)


def redact_call(call: RecordedCall, rules: Redaction) -> RecordedCall:
    """The same call without its secrets, with the digest of its new arguments or key."""
    arguments, key, digest = redacted_identity(call, rules)
    name, outcome = redacted_name(call.name, rules), redact_call_outcome(call.outcome, rules)
    model = None if call.model is None else rules.labelled("model", call.model)
    return msgspec.structs.replace(
        call, name=name, arguments=arguments, key=key, digest=digest.hex(), model=model, outcome=outcome
    )


def redacted_name(name: str, rules: Redaction) -> str:
    """The name of a call; of a request, without the secrets of its URL."""
    return rules.request_name(name) if "://" in name else name


def redacted_identity(call: RecordedCall, rules: Redaction) -> tuple[Any, str | None, bytes]:
    """The arguments of a call and its key without their secrets, and the digest that it has then."""
    arguments = rules.apply(call.arguments)
    key = None if call.key is None else redact_key(call.key, call.arguments, arguments, rules)
    return arguments, key, digest_of(redacted_name(call.name, rules), arguments, key)


# Order


class Outline:
    """The order of the calls of a cassette, and the fields by which a replay finds them, each by index."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._calls = calls
        self.ids = [call.id for call in calls]
        self.index_of = {number: index for index, number in enumerate(self.ids)}
        self.lanes = [call.lane for call in calls]
        self.digests = [with_asker(bytes.fromhex(call.digest), call.asker) for call in calls]
        self.of_models = [index for index, call in enumerate(calls) if call.kind == "llm"]
        self.foreign = [index for index, call in enumerate(calls) if call.form]  # of other packages

    def enclosing(self) -> list[int]:
        """For each call, the index of the call that encloses it: -1 if none does.

        -2 if that call is not there, or began later than the call: such a call cannot be reached.
        """
        return [
            -1 if call.parent is None else self.index_of.get(call.parent, -2) if call.parent < call.id else -2
            for call in self._calls
        ]

    def starts(self) -> list[int]:
        """Indices of the calls in the order in which they started."""
        return sorted(range(len(self)), key=lambda index: (self._calls[index].started_ms, self.ids[index]))

    def events(self) -> list[int]:
        """The index of each call where it started, and ``~index`` where it ended.

        Calls without times do not overlap, except with those that enclose them.
        """
        found: list[int] = []
        if any(call.started_ms for call in self._calls):
            times = {}
            for index, call in enumerate(self._calls):
                times[index] = call.started_ms, call.id, False
                times[~index] = round(call.started_ms + call.duration_ms, 3), call.id, True
            return sorted(times, key=times.__getitem__)
        running: list[int] = []
        enclosing = self.enclosing()
        for index in self.starts():
            while running and running[-1] != enclosing[index]:
                found.append(~running.pop())
            found.append(index)
            running.append(index)
        return found + [~index for index in reversed(running)]

    @cached_property
    def positions(self) -> list[int]:
        """The positions of calls among all starts and ends: by index that of its start, by ``~index`` of its end."""
        found = [0] * (2 * len(self))
        for position, event in enumerate(self.events()):
            found[event] = position
        return found

    def order_of_lines(self) -> list[int]:
        """Indices of the calls of a log in the order in which a finished cassette has them.

        The calls of a lane keep their order. The calls of another lane that was forked from it stand behind the last
        call that it had started by then; several such lanes in the order of what they called, which chance does not
        change.
        """
        starts = self.starts()
        calls: dict[int, list[int]] = {}
        forks: dict[int, list[int]] = {-1: []}  # lanes, by the call behind which they stand
        for index in starts:
            lane, forked = self.lanes[index], self._calls[index].forked
            if lane not in calls:
                before = calls.get(forked, [-1])[-1] if forked != lane else -1
                forks.setdefault(before, []).append(lane)
                calls[lane] = []
            calls[lane].append(index)
        found: list[int] = []
        rest = [-1]
        while rest:
            index = rest.pop()
            found += [index] if index >= 0 else []
            for lane in sorted(forks.get(index, ()), key=lambda lane: [self.digests[one] for one in calls[lane]])[::-1]:
                rest += calls[lane][::-1]
        places = {index: place for place, index in enumerate(found)}
        # A call stands behind the one that encloses it, wherever its lane came from.
        if any(parent >= 0 and places[parent] > places[index] for index, parent in enumerate(self.enclosing())):
            return starts
        return found

    @property
    def is_concurrent(self) -> bool:
        """Whether calls may be in flight at once in a replay: several lanes made them, or one before another's end."""
        enclosing, running = self.enclosing(), [-1]
        for event in self.events():
            if (running.pop() != ~event) if event < 0 else (running[-1] != enclosing[event]):
                return True
            running += [event] if event >= 0 else []
        return len(set(self.lanes)) > 1

    def __len__(self) -> int:
        return len(self.ids)
