"""Cassettes: `Cassette`, a recording to inspect, change and save; the order of its calls, and its lines.

While a recording runs its lines are a *log*: in the order in which calls ended, numbered by the order in which they
started. Both depend on how long each call took. In a finished cassette they do not: the calls of one lane stand in
their order, and a lane stands behind the call after which it was forked (`Outline.order_of_lines`), so that the same
run gives the same lines however its tasks were interleaved. How they were interleaved is a table in the trailer, the
*events*: the index of a call where it started, and its complement ``~index`` where it ended.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from agent_cache.errors import CassetteError
from agent_cache.recording.encryption import is_encrypted
from agent_cache.recording.file import (
    NO_TIME,
    VERSION,
    CallHead,
    CallLine,
    Header,
    Intent,
    Lines,
    Note,
    Prefixes,
    PrefixWriter,
    RecordedCall,
    StoredCalls,
    Trailer,
    call_line,
    digest_of,
    digest_of_key,
    read_file,
    with_asker,
)
from agent_cache.recording.outcomes import encode, redact_call_outcome
from agent_cache.recording.partial_file import replace_file
from agent_cache.recording.redaction import Redaction, redact_key


class Cassette:
    """A recording: each `RecordedCall`, in the order of their numbers; of one that was killed, as they ended.

    A loaded cassette decodes each call when it is accessed.

    Args:
        steps: the calls.
        model: a label.
        recorded_at: start of the recording, in UTC.
        duration_ms: duration of the recording.
        path: the file it was loaded from, for messages.

    Attributes:
        steps, model, recorded_at, duration_ms, path: the same.
        header: the first line of the file.
        trailer: the last line; None if the recording was killed.
        is_partial: whether the recording was killed, so that calls may be missing.
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
        self._order: Sequence[int] = ()
        self._outline: Outline | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None) -> Self:
        """Read a cassette, of agent_cache or agentcassette, and check every line.

        Args:
            path: the file.
            progress: is called with the number of bytes read so far.

        Raises:
            CassetteNotFound: if there is no such file.
            CassetteError: if it is broken, in conflict, of another version, or another file, with the line.
        """
        found = cls.of_lines(path, lambda note: read_file(Path(path), note, progress))
        if is_encrypted(path):  # it is as the run has seen it
            apply_rules(found, Redaction().joined(recorded_rules(found)))
        return found

    @classmethod
    def of_lines(cls, path: str | os.PathLike[str], read: Callable[[Note], Lines | bytes]) -> Self:
        """The cassette that is in a file.

        Args:
            path: of the file.
            read: `read_file` or `read_lines`, but for their `note`.

        Raises:
            CassetteError: as `load`.
        """
        outline = Outline()
        found = read(outline.add)
        if isinstance(found, bytes):
            try:
                document = msgspec.json.decode(found)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise CassetteError(f"is no cassette, and no JSON document either: {error}", path, 1) from error
            return cls._converted(document, path)
        header, calls, trailer = found
        cassette = cls._of(header, calls, trailer, path)
        cassette._order = outline.order = calls.order or ()
        outline.is_log = header.is_log
        cassette._outline = outline
        return cassette

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cassette in one step. Directories are created.

        Raises:
            CassetteError: if it cannot be written, or the path is being recorded.
        """
        replace_file(Path(path), self.lines())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """A cassette from the result of `to_dict`, or from a document of agentcassette.

        Raises:
            CassetteError: if it is neither.
        """
        if isinstance(data, dict) and "steps" in data and "agent_cache_cassette" not in data:
            return cls._converted(data)
        try:
            if data["agent_cache_cassette"] != VERSION:
                raise CassetteError(f"has format version {data['agent_cache_cassette']!r}; this one reads {VERSION}")
            calls = msgspec.convert(data.get("calls", []), list[RecordedCall])
            trailer = msgspec.convert(data.get("trailer"), Trailer | None)
            cassette = cls._of(msgspec.convert(data, Header), calls, trailer)
            cassette._order = msgspec.convert(data.get("order", []), list[int])
        except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise CassetteError(f"is not a result of Cassette.to_dict: {error}") from error
        return cassette

    @classmethod
    def _of(
        cls, header: Header, calls: Sequence[RecordedCall], trailer: Trailer | None, path: str | os.PathLike[str] = ""
    ) -> Self:
        cassette = cls(calls, path=path)
        cassette.header, cassette.trailer = header, trailer
        cassette.is_partial = trailer is None
        return cassette

    @classmethod
    def _converted(cls, document: Any, path: str | os.PathLike[str] = "") -> Self:
        """The cassette that a document of agentcassette is: one JSON document, version 1.

        Its arguments are ``args`` and ``kwargs`` as the caller wrote them, its names have no module. A replay binds
        them to the signature of the function that is called.

        Raises:
            CassetteError: if it is not such a document.
        """
        try:
            found = msgspec.convert(document, _Document)
        except msgspec.ValidationError as error:
            raise CassetteError(
                f"is JSON, but no cassette of agent-cache or agentcassette: {error}", path, 1
            ) from error
        calls = [
            RecordedCall(
                id=number,
                kind=step.type or "call",
                name=step.name,
                arguments=msgspec.to_builtins(step.arguments),
                digest=digest_of(step.name, msgspec.to_builtins(step.arguments)).hex(),
                after=number - 1,  # it does not record concurrency: calls are in the order in which they ended
                outcome={"value": step.result},
                duration_ms=step.duration_ms or 0.0,
                input_tokens=int(step.input_tokens or 0),
                output_tokens=int(step.output_tokens or 0),
                form="agentcassette",
            )
            for number, step in enumerate(found.steps, 1)
        ]
        header = Header(recorded_at=found.recorded_at, model=found.model, log=True)
        return cls._of(header, calls, Trailer(calls=len(calls), duration_ms=found.duration_ms or 0.0), path)

    def to_dict(self) -> dict[str, Any]:
        """The whole cassette as plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(self.header)
        data["calls"] = [msgspec.to_builtins(call) for call in self.steps]
        data["trailer"] = None if self.trailer is None else msgspec.to_builtins(self.trailer)
        if self._order:
            data["order"] = list(self._order)
        return data

    @property
    def outline(self) -> Outline:
        """The fields of all calls that a replay needs to find them.

        Raises:
            CassetteError: if a digest of a call is invalid.
        """
        if self._outline is not None and isinstance(self.steps, StoredCalls):
            return self._outline
        try:
            return Outline(self.steps, is_log=self.header.is_log, order=self._order)
        except (ValueError, OverflowError) as error:
            raise CassetteError(
                "the digest of a call is not a hexadecimal number, or a number too large", self.path
            ) from error

    @property
    def intents(self) -> list[Intent]:
        """Of a loaded journal, the writes that have begun, in their order.

        Raises:
            CassetteError: if the line of one is broken.
        """
        others = self.steps.others() if isinstance(self.steps, StoredCalls) else ()
        return [line.intent for _, line in others if line.intent is not None]

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

    def redact(self, *names: str, replacement: str = "[redacted]") -> Self:
        """Remove the values of these names from arguments and outcomes, at any depth. Returns the cassette.

        Digests change with the arguments, and the header keeps the names, so a replay still matches. The file changes
        by `save`.
        """
        apply_rules(self, Redaction(names, replacement=replacement).joined(recorded_rules(self)))
        return self

    def lines(self, *, like: str | os.PathLike[str] | None = None) -> Iterator[bytes]:
        """The lines of its file, one by one; of a recording that was killed, those of its log.

        Args:
            like: the file of an earlier recording. Tasks that both have are in its order, where only chance decides
                which of them was first.

        Raises:
            CassetteError: if a call cannot be read.
        """
        if self.trailer is None:
            yield call_line(msgspec.structs.replace(self.header, agent_cache_cassette=VERSION))
            yield from map(call_line, self.steps)
            return
        outline, earlier = self.outline, None
        if like is not None and any(outline.lanes):
            try:
                earlier = Cassette.load(like).outline
            except CassetteError:  # none, or broken: it is replaced anyway
                pass
        yield from _finished_lines(self, self.trailer, outline, earlier)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> RecordedCall:
        return self.steps[index]

    def __repr__(self) -> str:
        return f"<Cassette of {len(self)} calls{f' from {self.path}' if self.path else ''}>"


class _Passed(msgspec.Struct, omit_defaults=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _Step(msgspec.Struct):
    """One call in a document of agentcassette."""

    name: str
    arguments: _Passed
    type: str | None = None
    result: Any = None
    duration_ms: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None


class _Document(msgspec.Struct):
    """A cassette of agentcassette."""

    steps: list[_Step]
    recorded_at: str | None = None
    model: str | None = None
    duration_ms: float | None = None
    version: int = 1

    def __post_init__(self) -> None:
        if self.version != 1:
            raise ValueError(f"version {self.version}, where only 1 is known")


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
    return msgspec.structs.replace(
        call,
        name=redacted_name(call.name, rules),
        arguments=arguments,
        key=key,
        digest=digest.hex(),
        model=None if call.model is None else rules.labelled("model", call.model),
        outcome=redact_call_outcome(call.outcome, rules),
    )


def redacted_name(name: str, rules: Redaction) -> str:
    """The name of a call; of a request, without the secrets of its URL."""
    return rules.request_name(name) if "://" in name else name


def redacted_identity(call: RecordedCall, rules: Redaction) -> tuple[Any, str | None, bytes]:
    """The arguments of a call and its key without their secrets, and the digest that it has then."""
    arguments = rules.apply(call.arguments)
    key = None if call.key is None else redact_key(call.key, call.arguments, arguments, rules)
    name = redacted_name(call.name, rules)
    return arguments, key, digest_of(name, arguments) if key is None else digest_of_key(name, key)


# Order


class Outline:
    """The order of the calls of a cassette, and the fields by which a replay finds them."""

    def __init__(
        self, calls: Iterable[RecordedCall | CallHead] = (), *, is_log: bool = False, order: Sequence[int] = ()
    ) -> None:
        self.ids, self.parents, self.after, self.lanes, self.forked = (array("q") for _ in range(5))
        self.digests: list[bytes] = []
        self.names: dict[str, list[int]] = {}
        self.foreign: dict[str, list[int]] = {}
        self.of_models: list[int] = []
        self.is_log = is_log
        self.order = order
        for call in calls:
            self.add(call)

    def add(self, call: RecordedCall | CallHead) -> None:
        """Add the next call."""
        index = len(self.ids)
        self.ids.append(call.id)
        self.parents.append(-1 if call.parent is None else call.parent)
        self.after.append(call.after)
        self.lanes.append(call.lane)
        self.forked.append(call.forked)
        self.digests.append(with_asker(bytes.fromhex(call.digest), call.asker))
        self.names.setdefault(call.name, []).append(index)
        if call.kind == "llm":
            self.of_models.append(index)
        if call.form:
            self.foreign.setdefault(call.name, []).append(index)

    def index_of(self) -> Callable[[int], int]:
        """A function that gives the index of the call of a number, -2 if there is none."""
        found = {number: index for index, number in enumerate(self.ids)}
        return lambda number: found.get(number, -2)

    def enclosing(self) -> list[int]:
        """For each call, the index of the call that encloses it: -1 if none does.

        -2 if that call is not there, or began later than the call: such a call cannot be reached.
        """
        index_of = self.index_of()
        return [
            -1 if parent == -1 else index_of(parent) if parent < number else -2
            for number, parent in zip(self.ids, self.parents, strict=True)
        ]

    def starts(self) -> Sequence[int]:
        """Indices of the calls in the order in which they started."""
        if self.order and not self.is_log:
            return [event for event in self.events() if event >= 0]
        return sorted(range(len(self)), key=self.ids.__getitem__)

    def events(self) -> list[int]:
        """The index of each call where it started, and ``~index`` where it ended."""
        index_of = self.index_of()
        if self.is_log:
            begun: dict[int, list[int]] = {}  # by the index of the last call that had ended then
            for index in sorted(range(len(self)), key=self.ids.__getitem__):
                begun.setdefault(max(-1, index_of(self.after[index])), []).append(index)
            found = begun.get(-1, [])
            for index in range(len(self)):
                found += (~index, *begun.get(index, ()))
            return found
        if not self.order:
            return _nested_events(self.starts(), self.enclosing())
        events: dict[int, None] = {}  # each at its first place
        for event in self.order:
            if (index := index_of(abs(event))) >= 0 and (event > 0 or index in events):
                events[index if event > 0 else ~index] = None
        for index in range(len(self)):  # of calls that were added by hand
            events.setdefault(index)
            events.setdefault(~index)
        return list(events)

    def places(self) -> list[int]:
        """The positions of calls among all starts and ends: by index that of its start, by ``~index`` of its end."""
        found = [0] * (2 * len(self))
        for place, event in enumerate(self.events()):
            found[event] = place
        return found

    def order_of_lines(self, like: Outline | None = None) -> Sequence[int]:
        """Indices of the calls in the order in which a finished cassette has them.

        The calls of a lane keep their order. The calls of another lane that was forked from it stand behind the last
        call that it had started by then; several such lanes in the order of their first calls.
        """
        starts = self.starts()
        if len(set(self.lanes)) < 2:
            return starts
        firsts: dict[bytes, list[int]] = {}  # places of the first calls of the earlier lanes, the first one at the end
        seen = set[int]()
        for place, index in enumerate([] if like is None else like.order_of_lines()):
            assert like is not None
            if like.lanes[index] not in seen:
                seen.add(like.lanes[index])
                firsts.setdefault(like.digests[index], []).insert(0, place)
        calls: dict[int, list[int]] = {}
        forks: dict[int, list[int]] = {-1: []}  # lanes, by the call behind which they stand
        for index in starts:
            lane = self.lanes[index]
            if lane not in calls:
                before = calls.get(self.forked[index], [-1])[-1] if self.forked[index] != lane else -1
                forks.setdefault(before, []).append(lane)
                calls[lane] = []
            calls[lane].append(index)

        def rank(lane: int) -> int:
            first = calls[lane][0]
            if not self.is_log:
                return first  # a finished file keeps its order
            places = firsts.get(self.digests[first])
            return places.pop() if places else len(starts)

        found: list[int] = []
        rest = [iter([-1])]
        while rest:
            call = next(rest[-1], None)
            if call is None:
                rest.pop()
                continue
            found += [call] if call >= 0 else []
            rest += [iter(calls[lane]) for lane in sorted(forks.get(call, ()), key=rank)[::-1]]
        places = {index: place for place, index in enumerate(found)}
        # A call stands behind the one that encloses it, wherever its lane came from.
        if any(parent >= 0 and places[parent] > places[index] for index, parent in enumerate(self.enclosing())):
            return starts
        return found

    @property
    def is_concurrent(self) -> bool:
        """Whether calls may have been in flight at the same time: in several lanes, or one before another's end."""
        return self.is_log or bool(self.order) or len(set(self.lanes)) > 1

    def __len__(self) -> int:
        return len(self.ids)


def _nested_events(starts: Iterable[int], parents: Sequence[int]) -> list[int]:
    """The events of calls that do not overlap, except with those that enclose them."""
    found: list[int] = []
    running: list[int] = []
    for index in starts:
        while running and running[-1] != parents[index]:
            found.append(~running.pop())
        found.append(index)
        running.append(index)
    return found + [~index for index in reversed(running)]


# Lines

_line_decoder = msgspec.json.Decoder(CallLine)


def _finished_lines(cassette: Cassette, trailer: Trailer, outline: Outline, like: Outline | None) -> Iterator[bytes]:
    """The lines of a finished cassette, one by one."""
    enclosing, events, indices = outline.enclosing(), outline.events(), outline.order_of_lines(like)
    numbers = {index: number for number, index in enumerate(indices, 1)}
    lanes = {0: 0}
    for index in indices:
        lanes.setdefault(outline.lanes[index], len(lanes))
    yield call_line(msgspec.structs.replace(cassette.header, agent_cache_cassette=VERSION, log=msgspec.UNSET))
    writer, times, calls = PrefixWriter(), [], cassette.steps
    for index in indices:
        line = calls.line(index) if isinstance(calls, StoredCalls) else _line_decoder.decode(encode(calls[index]))
        times.append((round(line.started_ms * 1000), round(line.duration_ms * 1000)))
        prefix = Prefixes()
        line = msgspec.structs.replace(
            line,
            id=numbers[index],
            parent=None if line.parent is None else numbers.get(enclosing[index], 0),
            lane=lanes[line.lane],
            forked=lanes.get(line.forked, 0) if line.lane else line.forked,
            after=0,
            started_ms=NO_TIME,
            duration_ms=NO_TIME,
            arguments=msgspec.Raw(writer.share(numbers[index], line.name, bytes(line.arguments), prefix)),
            prefix=prefix,
        )
        yield call_line(line)
    last: dict[str, Any] = {"trailer": msgspec.structs.replace(trailer, calls=len(indices))}
    if events != _nested_events(indices, enclosing):
        last["order"] = [numbers[event] if event >= 0 else -numbers[~event] for event in events]
    yield encode({**last, "times": times}) + b"\n"
