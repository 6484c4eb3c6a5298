"""The file of a cassette: its lines, reading it, and writing it under a lock. JSON Lines, version 2.

    {"agent_cache_cassette": 2, "recorded_at": "2026-01-01T12:00:00Z", "model": null, "redact": {}}
    {"id": 1, "kind": "tool", "name": "shop:get_order", "arguments": {"order_id": "7"}, "digest": "5f1c...", ...}
    {"trailer": {"calls": 1, "duration_ms": 12.5, "ended": "returned"}, "times": [[120, 11950]]}

What depends on how long calls took is in the header and the trailer alone, so that a run that does the same again has
the same lines. An outcome is one of ``{"value": ...}`` (JSON itself), ``{"typed": ...}`` (read by the return
annotation), ``{"any": ...}`` (with tags), ``{"object": [...]}`` (of a registered class), ``{"error": ...}``,
``{"stream": {"chunks": [...], "end": ...}}``, ``{"cancelled": true}``, ``{"unencodable": "module:Class"}`` and
``{"unfinished": true}``.

A recording writes a *log* to ``PATH.partial``: each call as it ends, with its times. At the end its calls are put in
their order (`cassette_layout`) and take the place of ``PATH`` in one step. A file of version 1 is a log with a trailer.
Reading checks every line once and keeps only what a replay needs to find a call; the call itself is read when it is
needed.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from itertools import islice, zip_longest
from operator import lt, ne
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar, overload

import msgspec

from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.cassette_layout import (
    LEAST_SHARED,
    Prefixes,
    PrefixReader,
    PrefixWriter,
    events_of_log,
    last_overlapping,
    nested_events,
    order_of_lines,
)
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.tagged import encode, encode_sorted

try:
    import fcntl
except ImportError:  # Windows: only recorders and sessions of one process exclude each other there
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "CALLS_OF_LITELLM",
    "EARLIER",
    "JOURNAL_VERSION",
    "VERSION",
    "CallLine",
    "Header",
    "Outline",
    "PartialFile",
    "RecordedCall",
    "StoredCalls",
    "Trailer",
    "TrailerLine",
    "call_line",
    "check_version",
    "converted",
    "digest_of",
    "UNKNOWN_ASKER",
    "digest_of_asker",
    "digest_of_key",
    "finished_lines",
    "header_line",
    "is_being_recorded",
    "is_idle",
    "is_inside",
    "lock_file",
    "log_lines",
    "now_text",
    "partial_of",
    "read_file",
    "replace_file",
    "trailer_line",
    "with_asker",
    "write_whole",
]

VERSION = 2
JOURNAL_VERSION = 1
"""Of a journal (`resume.journal`), whose lines are a log, and others that a cassette does not have."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_LOG = logging.getLogger("agent_cache")


# Lines


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The first line.

    Attributes:
        agent_cache_cassette: version of the format.
        recorded_at: start of the recording, in UTC.
        model: label of the recording.
        redact: redaction rules beside the defaults, so that a replay applies the same.
        http: what of the run's HTTP was recorded (`http.exchange.Http`), if any was, so that a replay answers the same.
        forked_from: of a branch, the run that it left: ``path`` (the name of the file), ``recorded_at``, ``at`` (id of
            the first call that ran, None if all were answered) and ``edits`` (ids), all of the original.
        log: true if the lines are in the order in which the calls ended, as a running recording writes them.
    """

    agent_cache_cassette: int = VERSION
    recorded_at: str | None = None
    model: str | None = None
    redact: dict[str, Any] = {}
    http: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    forked_from: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    log: Literal[True] | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_log(self) -> bool:
        """Whether the lines are in the order in which the calls ended. In version 1 they always were."""
        return self.agent_cache_cassette == 1 or self.log is True


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line. It is missing if the process was killed.

    Attributes:
        calls: number of calls.
        duration_ms: duration of the recording.
        ended: ``"returned"``, or ``"raised ..."`` with the name of the exception that left the block.
    """

    calls: int = 0
    duration_ms: float = 0.0
    ended: str = "returned"


class TrailerLine(msgspec.Struct, frozen=True):
    """The last line, with what depends on how long calls took.

    Attributes:
        trailer: the trailer.
        order: as `Outline.order`.
        times: for each line, start and duration of its call in microseconds.
    """

    trailer: Trailer
    order: list[int] = []
    times: list[tuple[int, int]] = []


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call and its outcome.

    Attributes:
        id: its number, from 1: of its line, or in a log of its start.
        parent: id of the enclosing call, or None.
        kind: ``tool``, ``llm``, ``call``, ``write`` or ``env``; of a request, ``llm`` or ``http``.
        name: name of the function.
        arguments: arguments by name, as plain data, redacted.
        key: the key that ``cache_key=`` returned; it identifies the call instead of its arguments.
        digest: hexadecimal digest of name and arguments, or of name and key.
        asker: hexadecimal digest of who asks: of all that keeps the answers of callers apart in the cache. Empty if
            nothing does, and `UNKNOWN_ASKER` if that cannot be told. Calls of two askers are two calls.
        after: in a log, id of the last call that had been written when this one started, 0 if there was none: that
            call, and those on the lines above it, had ended. Otherwise 0.
        lane: number of what made it: one task, or one context that a thread runs in; 0 is the task that entered the
            recording, the others are in the order of their first lines. A strict replay demands the order of each.
        forked: the lane that this lane was forked from: the one that started the task or copied the context.
        until: id of the last call of its lane, other than those that it encloses, that was started before this one had
            ended; 0 if there was none. In a log it follows from `after`.
        outcome: see the top of this module.
        source: how a tool's cache answered: ``hit``, ``miss``, ``shared``, ``uncached``, ``write`` or ``blocked``.
        tags: of a call of a write tool, what it invalidates, redacted. A tag that only the result gives is as long as
            the redacted outcome shows it.
        started_ms: its start, from the beginning of the recording. In a finished file the trailer has it.
        duration_ms: its duration; of a stream, until it was closed. In a finished file the trailer has it.
        input_tokens, output_tokens: of an LLM call, 0 if unknown. `input_tokens` is all input.
        cache_read_tokens: the part of `input_tokens` that was read from the provider's prompt cache.
        cache_write_tokens: the part of `input_tokens` that was written to it.
        cache_write_1h_tokens: the part of `cache_write_tokens` that the provider keeps for one hour.
        model: of an LLM call, None if unknown.
        form: ``"agentcassette"`` if the arguments are ``args`` and ``kwargs``, from a cassette of that package;
            ``"1"`` if they are written as version 1 of the format writes them (`earlier_arguments`); ``"reyn"`` if the
            call is from a fixture of Reyn, which only `litellm.LLMReplay` replays.
    """

    id: int
    parent: int | None = None
    kind: str
    name: str
    arguments: dict[str, Any] = {}
    key: str | None = None
    digest: str = ""
    asker: str = ""
    after: int = 0
    lane: int = 0
    forked: int = 0
    until: int = 0
    outcome: dict[str, Any]
    source: str = ""
    tags: list[str] = []
    started_ms: float = 0.0
    duration_ms: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    model: str | None = None
    form: str = ""

    @property
    def is_write(self) -> bool:
        """Whether it has changed something outside: a write tool, or a request of another method than GET, HEAD and
        OPTIONS. Requests of models change nothing.
        """
        if self.kind == "http":
            return self.name.partition(" ")[0] not in _SAFE_METHODS
        return self.source == "write" or self.kind == "write"


class CallLine(RecordedCall, frozen=True, kw_only=True, omit_defaults=True):
    """The line of a call, with its arguments and its outcome as they are written.

    Attributes:
        prefix: the beginnings of its lists that are not written here, because an earlier call has them, too.
    """

    arguments: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]  # the same, before it is decoded
    outcome: msgspec.Raw  # type: ignore[assignment]  # as above
    prefix: Prefixes = {}


def header_line(header: Header) -> bytes:
    """Encode the header."""
    return encode(header) + b"\n"


def call_line(call: RecordedCall) -> bytes:
    """Encode a call."""
    return encode(call) + b"\n"


def trailer_line(trailer: Trailer) -> bytes:
    """Encode the trailer."""
    return encode({"trailer": trailer}) + b"\n"


def digest_of(name: str, arguments: dict[str, Any]) -> bytes:
    """Digest of a call by its redacted arguments."""
    return blake2b(encode_sorted([name, arguments]), digest_size=12).digest()


def digest_of_key(name: str, key: str) -> bytes:
    """Digest of a call by the redacted key that ``cache_key=`` returned."""
    return blake2b(encode_sorted([name, key]), digest_size=12, person=b"key").digest()


UNKNOWN_ASKER = "unknown"
"""The asker of a call whose context may say who makes it, in a form that cannot be compared: it is no recorded call."""


def digest_of_asker(parts: Mapping[str, Any]) -> str:
    """Digest of who asks, from each thing that tells callers apart, by name. Empty without any.

    Raises:
        UncacheableArgumentsError: if one of them has no identity.
    """
    if not parts:
        return ""
    return blake2b(encode_sorted(plain_arguments(parts)[0]), digest_size=8, person=b"asker").hexdigest()


def with_asker(digest: bytes, asker: str) -> bytes:
    """What makes a call equal to another one: the digest that its line has, and its asker."""
    return digest + asker.encode() if asker else digest


# Calls of a file

EARLIER = "1"
"""The `form` of calls that version 1 of the format has recorded."""
CALLS_OF_LITELLM = ("litellm:acompletion", "litellm:aembedding")
"""The names of calls that are from fixtures of Reyn."""

_C = TypeVar("_C", bound=RecordedCall)
_Unread: TypeAlias = dict[str, msgspec.Raw]


class _CallHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a call that an `Outline` needs. The rest is only checked to be there and to be JSON."""

    id: int
    parent: int | None = None
    kind: str
    name: str
    arguments: _Unread = {}
    digest: str = ""
    asker: str = ""
    after: int = 0
    lane: int = 0
    forked: int = 0
    until: int = 0
    outcome: _Unread
    form: str = ""
    prefix: Prefixes = {}


class Outline:
    """The fields of the calls of a cassette that a replay needs to find them, in the order of the cassette.

    Attributes:
        ids, parents, after, lanes, forked: as in `RecordedCall`; -1 for no parent.
        until: likewise, by index, where there is one.
        digests: likewise, as bytes, each with the asker (`with_asker`).
        names: indices by name.
        foreign: indices of the calls from a cassette of another package, by name.
        earlier: for each call, 1 if it is from a cassette of version 1.
        of_models: indices of the calls of kind ``llm``.
        is_log: whether the calls are in the order in which they ended.
        order: of a finished cassette, the id of each call where it started, and ``-id`` where it ended. Empty if they
            started in this order and overlapped only with those that enclose them.
    """

    def __init__(self, calls: Iterable[RecordedCall] = (), *, is_log: bool = False, order: Sequence[int] = ()) -> None:
        self.ids = array("q")
        self.parents = array("q")
        self.after = array("q")
        self.lanes = array("q")
        self.forked = array("q")
        self.until: dict[int, int] = {}
        self.digests: list[bytes] = []
        self.names: dict[str, array[int]] = {}
        self.foreign: dict[str, array[int]] = {}
        self.earlier = bytearray()
        self.of_models = array("q")
        self.is_log = is_log
        self.order = order
        for call in calls:
            self.add(call)

    def add(self, call: RecordedCall | _CallHead) -> None:
        """Add the next call.

        Raises:
            ValueError: if its digest is not hexadecimal, or a number does not fit into 64 bits.
        """
        index = len(self.digests)
        try:
            digest = bytes.fromhex(call.digest)
        except ValueError:
            raise ValueError("its digest is not a hexadecimal number") from None
        try:
            self.ids.append(call.id)
            self.parents.append(-1 if call.parent is None else call.parent)
            self.after.append(call.after)
            self.lanes.append(call.lane)
            self.forked.append(call.forked)
        except OverflowError:
            raise ValueError("one of its numbers is out of range") from None
        if call.until:
            self.until[index] = call.until
        self.digests.append(with_asker(digest, call.asker))
        if call.name not in self.names:
            self.names[call.name] = array("q")
        self.names[call.name].append(index)
        self.earlier.append(call.form == EARLIER)
        if call.kind == "llm":
            self.of_models.append(index)
        if call.form and call.form != EARLIER:
            self.foreign.setdefault(call.name, array("q")).append(index)

    def index_of(self) -> Callable[[int], int]:
        """A function that gives the index of the call of a number, -2 if there is none."""
        ids = self.ids
        if ids == array("q", range(1, len(ids) + 1)):  # as in a finished cassette
            return lambda number: number - 1 if 0 < number <= len(ids) else -2
        found = {number: index for index, number in enumerate(ids)}
        return lambda number: found.get(number, -2)

    def enclosing(self) -> array[int]:
        """For each call, the index of the call that encloses it: -1 if none does.

        -2 if that call is not there, or began later than the call: such a call cannot be reached.
        """
        index_of, found = self.index_of(), array("q", self.parents)
        for index, parent in enumerate(found):
            if parent != -1:
                found[index] = index_of(parent) if parent < self.ids[index] else -2
        return found

    def starts(self) -> Sequence[int]:
        """Indices of the calls in the order in which they started."""
        if self.order and not self.is_log:
            return array("q", (event for event in self.events() if event >= 0))
        ids = self.ids
        is_sorted = all(map(lt, ids, islice(ids, 1, None)))
        return range(len(ids)) if is_sorted else sorted(range(len(ids)), key=ids.__getitem__)

    def events(self) -> Sequence[int]:
        """The index of each call where it started, and ``~index`` where it ended."""
        if self.is_log:
            return events_of_log(self.ids, self.after)
        if not self.order:
            return array("q", nested_events(self.starts(), self.enclosing()))
        index_of = self.index_of()
        events: dict[int, None] = {}  # each at its first place
        for event in self.order:
            if (index := index_of(abs(event))) >= 0 and (event > 0 or index in events):
                events[index if event > 0 else ~index] = None
        for index in range(len(self)):  # of calls that were added by hand
            events.setdefault(index)
            events.setdefault(~index)
        return array("q", events)

    def places(self) -> array[int]:
        """The positions of calls among all starts and ends: by index that of its start, by ``~index`` of its end."""
        found = array("q", bytes(16 * len(self)))
        for place, event in enumerate(self.events()):
            found[event] = place
        return found

    def order_of_lines(self, like: Outline | None = None) -> Sequence[int]:
        """Indices of the calls in the order in which a finished cassette has them: see `cassette_layout`.

        Args:
            like: of an earlier recording. Lanes that both have are in its order, if nothing else determines that.
        """
        firsts: dict[bytes, deque[int]] = {}  # of the first calls of lanes: several tasks may begin with the same call
        ranks: dict[bytes, int] = {}
        if like is not None:
            lanes: set[int] = set()
            for place, index in enumerate(like.order_of_lines()):
                ranks.setdefault(like.digests[index], place)
                if like.lanes[index] not in lanes:
                    lanes.add(like.lanes[index])
                    firsts.setdefault(like.digests[index], deque()).append(place)

        def rank(index: int) -> int:
            if not self.is_log:
                return index  # a finished file keeps its order
            if places := firsts.get(self.digests[index]):
                return places.popleft()
            return ranks.get(self.digests[index], len(ranks))

        return order_of_lines(self.enclosing(), self.lanes, self.forked, self.events(), rank)

    @property
    def is_concurrent(self) -> bool:
        """Whether calls may have been in flight at the same time: in several lanes, or one before another's end."""
        lanes = self.lanes
        return self.is_log or bool(self.order) or any(map(ne, lanes, islice(lanes, 1, None)))

    def last_overlapping(self) -> dict[int, int]:
        """By index, the index of the call that `RecordedCall.until` names."""
        if self.is_log:
            return last_overlapping(self.enclosing(), self.lanes, self.events())
        index_of = self.index_of() if self.until else int
        return {index: found for index, number in self.until.items() if (found := index_of(number)) >= 0}

    def __len__(self) -> int:
        return len(self.digests)


_READ_AHEAD = 16 * 1024
_call_decoder = msgspec.json.Decoder(RecordedCall)
_line_decoder = msgspec.json.Decoder(CallLine)
_set = msgspec.structs.force_setattr  # of lines that were just decoded, and that nobody else has
_SHARED_PARTS = ("arguments", "outcome")


class StoredCalls(Sequence[RecordedCall]):
    """The calls of a file, each read when it is accessed.

    The file stays open, so that a recording which replaces it changes nothing here. About 150 bytes a call are kept.

    Attributes:
        outline: the fields of the calls that a replay needs to find them.
        is_earlier: whether version 1 of the format has written them.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.is_earlier = False
        self.outline = Outline()
        self._descriptor = descriptor
        self._starts = array("Q")
        self._sizes = array("L")
        self._line_numbers = array("L")
        self._started_ms = array("d")
        self._duration_ms = array("d")
        self._has_tables = False
        self._time_count = 0
        self._with_prefix: set[int] = set()
        self._index_of: Callable[[int], int] | None = None
        self._prefixes = PrefixReader()
        self._block: tuple[int, bytes] = (0, b"")
        weakref.finalize(self, os.close, descriptor)

    def add(self, call: _CallHead, start: int, size: int, line_number: int) -> None:
        """Add the next call and its place in the file.

        Raises:
            ValueError: as `Outline.add`.
        """
        if self.is_earlier and not call.form:
            _set(call, "form", EARLIER)
        self.outline.add(call)
        if call.prefix:
            self._with_prefix.add(len(self._starts))
        self._starts.append(start)
        self._sizes.append(size)
        self._line_numbers.append(line_number)

    def add_tables(self, order: list[int], times: list[tuple[int, int]]) -> None:
        """Add what the trailer says about the calls. Times that are not those of these calls are left out.

        Raises:
            ValueError: if a number does not fit into 64 bits.
        """
        self._has_tables, self._time_count = True, len(times)
        try:
            self.outline.order = array("q", order)
            if len(times) == len(self):
                self._started_ms = array("d", [started / 1000 for started, _ in times])
                self._duration_ms = array("d", [duration / 1000 for _, duration in times])
        except OverflowError:
            raise ValueError("one of its numbers is out of range") from None

    def table_problems(self) -> Iterator[str]:
        """What the trailer says about calls that are not these, which a replay ignores."""
        if not self._has_tables or self.is_earlier or self.outline.is_log:
            return
        if self._time_count != len(self):
            yield f"the trailer has the times of {self._time_count} calls, but the file has {len(self)}"
        events, ids = self.outline.order, frozenset(self.outline.ids)
        if not events:
            return
        running: set[int] = set()
        ended: set[int] = set()
        for event in events:
            if abs(event) not in ids:
                yield f"the order in the trailer names call {abs(event)}, which is missing"
            elif event in running or event in ended or (event < 0 and -event not in running):
                yield f"the order in the trailer has call {abs(event)} twice, or its end before its start"
            elif event > 0:
                running.add(event)
            else:
                running.remove(-event)
                ended.add(-event)
        if len(ended) < len(ids):
            yield f"the order in the trailer is without the end of call {min(ids - ended)}"

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> RecordedCall: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordedCall]: ...
    def __getitem__(self, index: int | slice) -> RecordedCall | list[RecordedCall]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        if index < 0:
            index += len(self)
        line = encode(self.line(index)) if index in self._with_prefix else self._raw(index)
        return self._decoded(index, line, _call_decoder)

    def line(self, index: int) -> CallLine:
        """The line of a call, with the beginnings of its lists.

        Raises:
            CassetteError: if it is broken.
        """
        line = self._decoded(index, self._raw(index), _line_decoder)
        for pointer, prefix in line.prefix.items():
            part = pointer.split("/")[1]
            data = bytes(getattr(line, part))
            try:
                data = self._prefixes.whole(line.id, pointer, data, prefix, partial(self._part, part))
            except ValueError as error:
                raise CassetteError(f"this line is broken: {error}", self.path, self._line_numbers[index]) from error
            _set(line, part, msgspec.Raw(data))
        if line.prefix:
            _set(line, "prefix", {})
        return line

    def _part(self, part: str, number: int) -> tuple[bytes, Prefixes]:
        """A part of a call as it is written."""
        if self._index_of is None:
            self._index_of = self.outline.index_of()
        index = self._index_of(number)
        if index < 0:
            raise KeyError(number)
        line = self._decoded(index, self._raw(index), _line_decoder)
        return bytes(getattr(line, part)), line.prefix

    def _decoded(self, index: int, line: bytes, decoder: msgspec.json.Decoder[_C]) -> _C:
        try:
            call = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise CassetteError(f"this line is broken: {error}", self.path, self._line_numbers[index]) from error
        if self._started_ms:
            _set(call, "started_ms", self._started_ms[index])
            _set(call, "duration_ms", self._duration_ms[index])
        elif self.is_earlier and not call.form:
            _set(call, "form", EARLIER)
        return call

    def _raw(self, index: int) -> bytes:
        start, size = self._starts[index], self._sizes[index]
        first, block = self._block
        if not first <= start <= start + size <= first + len(block):
            # Calls are accessed in about the order of their lines.
            first, block = start, os.pread(self._descriptor, max(size, _READ_AHEAD), start)
            self._block = (first, block)
        return block[start - first : start - first + size]


# Reading

_CONFLICT = (b"<<<<<<< ", b"=======", b">>>>>>> ", b"||||||| ")
_TRAILER = b'{"trailer":'
_OF_JOURNAL = b'{"agent_cache_journal":'
_LINES_OF_JOURNALS = (b'{"intent":', b'{"open":', b'{"checkpoint":', b'{"resumed":')


_header_decoder = msgspec.json.Decoder(Header)
_head_decoder = msgspec.json.Decoder(_CallHead)
_trailer_decoder = msgspec.json.Decoder(TrailerLine)


def read_file(
    path: Path, progress: Callable[[int], None] | None = None
) -> tuple[Header, Sequence[RecordedCall], Trailer | None]:
    """Check every line of a file. Returns its header, its calls and its trailer, None if the recording was killed.

    Args:
        path: a cassette, of agent_cache or agentcassette.
        progress: is called with the number of bytes read so far.

    Raises:
        CassetteNotFound: if there is no such file.
        CassetteError: if it cannot be read, or is not a cassette of a known version, with the line.
    """
    try:
        # Opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise _not_found(path) from None
    except (OSError, ValueError) as error:
        raise CassetteError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CassetteError("cannot be read: it is not a regular file", path)
    calls = StoredCalls(str(path), descriptor)
    try:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            first = file.readline()
            if not first.strip() and not file.read().strip():
                raise CassetteError("is empty; delete it, or record it again", path)
            header = _read_header(path, first)
            if header is not None:
                calls.outline.is_log = header.is_log
                calls.is_earlier = header.agent_cache_cassette == 1
                return header, calls, _read_calls(path, file, calls, progress)
            file.seek(0)
            return converted(_read_document(path, file.read()), path)
    except OSError as error:
        raise CassetteError(f"cannot be read: {error.strerror}", path) from error


def _read_calls(
    path: Path, file: BinaryIO, calls: StoredCalls, progress: Callable[[int], None] | None
) -> Trailer | None:
    """Check the lines after the header, and add the calls. Returns the trailer."""
    trailer: Trailer | None = None
    position = file.tell()
    seen: set[int] = set()
    for number, line in enumerate(file, 2):
        content = line.strip()
        if trailer is not None and content:
            raise CassetteError("a line follows the trailer", path, number)
        if content.startswith(_TRAILER):
            last: TrailerLine = _decoded(path, number, content, _trailer_decoder)
            trailer = last.trailer
            try:
                calls.add_tables(last.order, last.times)
            except ValueError as error:
                raise CassetteError(str(error), path, number) from error
        elif content and not line.endswith(b"\n"):
            break  # the process was killed while it wrote this
        elif content.startswith(_LINES_OF_JOURNALS):
            pass
        elif content:
            call = _decoded(path, number, content, _head_decoder)
            if call.id in seen:
                raise CassetteError(f"an earlier line has the id {call.id}, too", path, number)
            _check_prefixes(path, number, call.prefix, seen)
            seen.add(call.id)
            try:
                calls.add(call, position, len(line), number)
            except ValueError as error:
                raise CassetteError(str(error), path, number) from error
        position += len(line)
        if progress is not None:
            progress(position)
    return trailer


def _check_prefixes(path: Path, number: int, prefixes: Prefixes, seen: set[int]) -> None:
    for pointer, (owner, _) in prefixes.items():
        if not pointer.startswith(("/arguments/", "/outcome/")):
            raise CassetteError(f"the prefix {pointer!r} is no place in arguments or outcome", path, number)
        if owner not in seen:
            raise CassetteError(f"it begins as call {owner}, which is on no earlier line", path, number)


def _decoded(path: Path, number: int, content: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if content.startswith(_CONFLICT):
        raise CassetteError("has a merge conflict; resolve it, or record it again", path, number)
    try:
        if not content.isascii():
            content.decode()  # msgspec does not check the parts that it leaves unread
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CassetteError(f"this line is broken: {error}", path, number) from error


def _read_header(path: Path, line: bytes) -> Header | None:
    """The header; None if this is the beginning of another JSON document."""
    content = line.strip().removeprefix(b"\xef\xbb\xbf")
    if content.startswith(_CONFLICT):
        raise CassetteError("has a merge conflict; resolve it, or record it again", path, 1)
    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    if isinstance(data, dict) and "agent_cache_journal" in data:
        return _read_journal_header(path, data)
    version = data.get("agent_cache_cassette") if isinstance(data, dict) else None
    if version is None:
        if content.startswith(b'{"agent_cache_cassette"'):
            raise CassetteError("breaks off in its header; record it again", path, 1)
        if not content or content[:1] == b"{":
            return None
        raise CassetteError('is no cassette: it does not begin with {"agent_cache_cassette": 1, ...}', path, 1)
    check_version(path, version, VERSION)
    header: Header = _decoded(path, 1, content, _header_decoder)
    _check_redaction(path, header)
    return header


def _read_journal_header(path: Path, data: dict[str, Any]) -> Header:
    """What the header of a journal says about its calls, which are a log."""
    check_version(path, data["agent_cache_journal"], JOURNAL_VERSION)
    fields: dict[str, Any] = {name: data[name] for name in ("recorded_at", "redact", "http") if name in data}
    fields["log"] = True
    try:
        header = msgspec.convert(fields, Header)
    except msgspec.ValidationError as error:
        raise CassetteError(f"this line is broken: {error}", path, 1) from error
    _check_redaction(path, header)
    return header


def check_version(path: Path, version: Any, newest: int, kind: type[CassetteError] = CassetteError) -> None:
    """Check that a file is of a version that can be read.

    Raises:
        CassetteError: of the class `kind`, if it is not.
    """
    if type(version) is not int or version < 1:
        raise kind(f"has the invalid format version {version!r}", path, 1)
    if version > newest:
        raise kind(
            f"has format version {version}, and this agent-cache reads up to {newest}; update agent-cache", path, 1
        )


def _check_redaction(path: Path, header: Header) -> None:
    try:
        Redaction().joined({**header.redact, "hook": False})
    except (ConfigurationError, TypeError, AttributeError) as error:
        raise CassetteError(f"its header has invalid redaction rules: {error}", path, 1) from error


def _not_found(path: Path) -> CassetteNotFound:
    reason = "there is no cassette"
    partial = partial_of(path)
    if partial.exists():
        reason += f", but {partial.name}, written by a recording that was killed; rename it to replay that far"
    return CassetteNotFound(f"{reason}; record it first", path)


# Cassettes of agentcassette: one JSON document, version 1


def _read_document(path: Path, content: bytes) -> Any:
    for number, line in enumerate(content.splitlines(), 1):
        if line.startswith(_CONFLICT):
            raise CassetteError("has a merge conflict; resolve it, or record it again", path, number)
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CassetteError(f"is no cassette, and no JSON document either: {error}", path, 1) from error


def converted(document: Any, path: Path | str = "") -> tuple[Header, list[RecordedCall], Trailer]:
    """Header, calls and trailer of a document of agentcassette.

    Its arguments are ``args`` and ``kwargs`` as the caller wrote them, its names have no module. A replay binds them
    to the signature of the function that is called.

    Raises:
        CassetteError: if it is not such a document, or of a version that was never published.
    """
    if not isinstance(document, dict) or not isinstance(document.get("steps"), list):
        raise CassetteError("is JSON, but no cassette of agent-cache or agentcassette", path, 1)
    if document.get("version", 1) != 1:
        raise CassetteError(
            f"is a cassette of agentcassette of version {document['version']!r}; only 1 is known", path, 1
        )
    calls = [_converted_step(step, index, path) for index, step in enumerate(document["steps"])]
    header = Header(recorded_at=_text(document.get("recorded_at")), model=_text(document.get("model")), log=True)
    return header, calls, Trailer(calls=len(calls), duration_ms=_number(document.get("duration_ms")))


def _converted_step(step: Any, index: int, path: Path | str) -> RecordedCall:
    arguments = step.get("arguments") if isinstance(step, dict) else None
    if not isinstance(step, dict) or not isinstance(step.get("name"), str) or not isinstance(arguments, dict):
        raise CassetteError(f"step {index + 1} has no name or no arguments", path)
    if not isinstance(arguments.get("args", []), list) or not isinstance(arguments.get("kwargs", {}), dict):
        raise CassetteError(f"the arguments of step {index + 1} are not args and kwargs", path)
    return RecordedCall(
        id=index + 1,
        kind=_text(step.get("type")) or "call",
        name=step["name"],
        arguments=arguments,
        digest=digest_of(step["name"], arguments).hex(),
        after=index,  # it does not record concurrency: calls are in the order in which they ended
        outcome={"value": step.get("result")},
        duration_ms=_number(step.get("duration_ms")),
        input_tokens=int(_number(step.get("input_tokens"))),
        output_tokens=int(_number(step.get("output_tokens"))),
        form="agentcassette",
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


# Lines of whole cassettes


def log_lines(header: Header, calls: Iterable[RecordedCall]) -> Iterator[bytes]:
    """The lines of a recording that was killed: as they are, without a trailer."""
    yield header_line(msgspec.structs.replace(header, agent_cache_cassette=VERSION, log=header.is_log or msgspec.UNSET))
    for call in calls:
        yield call_line(call)


def finished_lines(
    header: Header, calls: Sequence[RecordedCall], outline: Outline, trailer: Trailer, like: Outline | None = None
) -> Iterator[bytes]:
    """The lines of a finished cassette, one by one, so that a large one is never in memory as a whole.

    Args:
        header, trailer: are written with the numbers of this version and of these calls.
        calls: the calls in any order.
        outline: of the calls.
        like: as `Outline.order_of_lines`.
    """
    enclosing, events, until = outline.enclosing(), outline.events(), outline.last_overlapping()
    indices = outline.order_of_lines(like)
    numbers = array("q", bytes(8 * len(indices)))
    lanes = {0: 0}
    for number, index in enumerate(indices, 1):
        numbers[index] = number
        lanes.setdefault(outline.lanes[index], len(lanes))
    yield header_line(msgspec.structs.replace(header, agent_cache_cassette=VERSION, log=msgspec.UNSET))
    writer = PrefixWriter()
    times = bytearray()
    for index in indices:
        line = calls.line(index) if isinstance(calls, StoredCalls) else _line_decoder.decode(encode(calls[index]))
        times += b",[%d,%d]" % (round(line.started_ms * 1000), round(line.duration_ms * 1000))
        parent, prefix = enclosing[index], Prefixes()
        _set(line, "id", numbers[index])
        if line.parent is not None:
            _set(line, "parent", numbers[parent] if parent >= 0 else 0)
        if line.lane:
            _set(line, "lane", lanes[line.lane])
            _set(line, "forked", lanes.get(line.forked, 0))
        _set(line, "until", numbers[until[index]] if index in until else 0)
        for part in _SHARED_PARTS:
            data = bytes(getattr(line, part))
            if len(data) >= LEAST_SHARED:
                shared = writer.share(line.id, line.name, f"/{part}", data, prefix)
                _set(line, part, msgspec.Raw(shared))
        _set(line, "prefix", prefix)
        for name, default in (("after", 0), ("started_ms", 0.0), ("duration_ms", 0.0)):
            _set(line, name, default)
        yield call_line(line)
    last: dict[str, Any] = {"trailer": msgspec.structs.replace(trailer, calls=len(indices))}
    if any(map(ne, events, nested_events(indices, enclosing))):
        order = (numbers[event] if event >= 0 else -numbers[~event] for event in events)
        last["order"] = msgspec.Raw(b"[%b]" % b",".join(b"%d" % event for event in order))
    last["times"] = msgspec.Raw(b"[%b]" % bytes(times[1:]))
    yield encode(last) + b"\n"


def _without_times(line: bytes) -> Any:
    """What a line says, other than when and how long a run was."""
    try:
        if line.startswith(_TRAILER):
            trailer = _trailer_decoder.decode(line).trailer
            return msgspec.structs.replace(trailer, duration_ms=0.0)
        if line.startswith(b'{"agent_cache_cassette"'):
            return msgspec.structs.replace(_header_decoder.decode(line), recorded_at=None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return line


def _has_same_calls(path: Path, other: Path) -> bool:
    """Whether two files differ in times at most."""
    try:
        with path.open("rb") as one, other.open("rb") as two:
            return all(
                mine == theirs or (mine and theirs and _without_times(mine) == _without_times(theirs))
                for mine, theirs in zip_longest(one, two)
            )
    except FileNotFoundError:
        return False


# Writing

_open_paths: set[str] = set()
_lock = threading.RLock()


class PartialFile:
    """A file that is written line by line and takes the place of another file when it is finished.

    Each line is handed to the operating system at once, so that it survives a killed process. A forked child writes
    nothing to the file. If the path is a symbolic link, the file that it leads to is written.

    Raises:
        CassetteError: if the path is being recorded, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._name = os.path.realpath(path)
            self._target = Path(self._name)
            self.partial = partial_of(path)
            if self._target.exists() and not self._target.is_file():
                kind = "a directory" if self._target.is_dir() else "not a regular file"
                raise CassetteError(f"cannot be written: it is {kind}", path)
        except (OSError, ValueError) as error:  # a name that is too long, or has a null in it
            raise CassetteError(f"cannot be written: {getattr(error, 'strerror', None) or error}", path) from error
        self._process = os.getpid()
        with _lock:
            if self._name in _open_paths:
                raise _taken(path)
            _open_paths.add(self._name)
        try:
            self._descriptor = self._open()
        except BaseException:
            _open_paths.discard(self._name)
            raise

    def append(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OSError: if it cannot be written, such as on a full disk.
        """
        if os.getpid() != self._process:
            return
        write_whole(self._descriptor, line)

    def finish(self) -> None:
        """Replace the old file.

        Raises:
            CassetteError: if that is not possible. The lines remain in the partial file.
        """
        with self._closing():
            if self._is_own_process():
                os.fsync(self._descriptor)
                self.partial.replace(self._target)

    def finish_as(self, lines: Callable[[], Iterable[bytes]]) -> None:
        """Replace the old file by these lines in the place of the written ones.

        An old file that has the same calls stays as it is, with its times.

        Raises:
            CassetteError: if that is not possible. The written lines remain in the partial file.
        """
        with self._closing():
            if not self._is_own_process():
                return
            finished = self.partial.with_name(self.partial.name + ".sorted")
            finished.unlink(missing_ok=True)  # of a process that was killed here
            try:
                with open(finished, "xb", opener=partial(os.open, mode=0o644)) as file:
                    file.writelines(lines())
                    file.flush()
                    os.fsync(file.fileno())
                if not _has_same_calls(finished, self._target):
                    finished.replace(self._target)
            finally:
                finished.unlink(missing_ok=True)
            self.partial.unlink()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CassetteError(
                f"cannot be written: {error.strerror}; the recording is in {self.partial.name}", self.path
            ) from error
        finally:
            self._close()

    def discard(self) -> None:
        """Delete the lines and leave the old file as it is."""
        try:
            if self._is_own_process():
                self.partial.unlink(missing_ok=True)
        finally:
            self._close()

    def leave(self) -> None:
        """Leave the lines beside the old file, as a killed process does."""
        self._close()

    def _is_own_process(self) -> bool:
        return os.getpid() == self._process

    def _close(self) -> None:
        try:
            os.close(self._descriptor)
        finally:
            _open_paths.discard(self._name)

    def _open(self) -> int:
        try:
            self.partial.parent.mkdir(parents=True, exist_ok=True)
            if self._target.exists():
                self._check_replaceable()
            while True:
                descriptor = self._open_partial()
                try:
                    is_locked = lock_file(descriptor, self.partial)
                    if is_locked and not os.fstat(descriptor).st_size:
                        return descriptor
                    if is_locked and fcntl is not None:
                        self._keep_remains()
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
                if is_locked and fcntl is None:  # Windows does not rename an open file
                    self._keep_remains()
        except BlockingIOError:
            raise _taken(self.path) from None
        except OSError as error:
            raise CassetteError(f"cannot be written: {error.strerror}", self.path) from error

    def _check_replaceable(self) -> None:
        if not os.access(self._target, os.W_OK):
            raise CassetteError("cannot be written: it is read-only", self.path)
        with self._target.open("rb") as file:
            if file.read(len(_OF_JOURNAL)) == _OF_JOURNAL:
                raise CassetteError("cannot be written: it is a journal, by which a run is resumed", self.path)

    def _open_partial(self) -> int:
        """Open the partial file, and never a link or device in its place."""
        if self.partial.is_symlink():
            raise CassetteError(f"cannot be written: {self.partial.name} is a symbolic link; remove it", self.path)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.partial, flags | getattr(os, "O_NONBLOCK", 0), 0o644)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CassetteError(f"cannot be written: {self.partial.name} is not a regular file; remove it", self.path)
        return descriptor

    def _keep_remains(self) -> None:
        """Move the file of a killed recording aside. Only the latest is kept."""
        remains = self.partial.with_name(self.partial.name + ".old")
        self.partial.replace(remains)
        _LOG.warning("%s was left by a recording that was killed; it is kept as %s", self.partial, remains.name)


def lock_file(descriptor: int, path: Path) -> bool:
    """Take the lock of a file without waiting. False if its owner has renamed it since it was opened by this path.

    Raises:
        BlockingIOError: if another process has it. Any other error is of a file system without locks.
    """
    if fcntl is None:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of the data: `os.write` may write a part of it."""
    done = os.write(descriptor, data)
    while done < len(data):
        done += os.write(descriptor, data[done:])


def now_text() -> str:
    """The time in UTC, as headers have it: runs that follow each other within a millisecond keep their order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def partial_of(path: Path) -> Path:
    """The file that a recording to this path writes to until it ends."""
    return Path(os.path.realpath(path) + ".partial")


def is_inside(number: int | None, others: Collection[int], parents: Mapping[int, int | None]) -> bool:
    """Whether the call of a number, or one that encloses it, is among others."""
    while number is not None:
        if number in others:
            return True
        number = parents.get(number)
    return False


def is_being_recorded(path: Path) -> bool:
    """Whether a recorder of this process is writing this path."""
    return os.path.realpath(path) in _open_paths


def is_idle(partial: Path) -> bool:
    """Whether no recorder of any process is writing this partial file. Always True on Windows."""
    if fcntl is None:
        return True
    descriptor = os.open(partial, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file in one step: a reader sees the old one or the new one.

    Raises:
        CassetteError: if it cannot be written, or is being recorded.
    """
    file = PartialFile(path)
    try:
        for line in lines:
            file.append(line)
    except BaseException as error:
        file.discard()
        if isinstance(error, OSError):
            raise CassetteError(f"cannot be written: {error.strerror}", path) from error
        raise
    file.finish()


def _taken(path: Path) -> CassetteError:
    return CassetteError("is being recorded by another recorder; only one at a time can record to a path", path)
