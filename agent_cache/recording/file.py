"""The file of a recording: its lines, and how they are read. JSON Lines, version 2.

    {"agent_cache_cassette": 2, "recorded_at": "2026-01-01T12:00:00Z", "model": null, "redact": {}}
    {"id": 1, "kind": "tool", "name": "shop:get_order", "arguments": {"order_id": "7"}, "digest": "5f1c...", ...}
    {"trailer": {"calls": 1, "duration_ms": 12.5, "ended": "returned"}, "times": [[120, 11950]]}

What depends on how long calls took is in the header and the trailer alone, so that a run that does the same again has
the same lines. An outcome is one of ``{"value": ...}`` (JSON itself), ``{"typed": ...}`` (read by the return
annotation), ``{"any": ...}`` (with tags), ``{"object": [...]}`` (of a registered class), ``{"error": ...}``,
``{"stream": {"chunks": [...], "end": ...}}``, ``{"cancelled": true}``, ``{"unencodable": "module:Class"}`` and
``{"unfinished": true}``.

A recording writes a *log* to ``PATH.partial``: each call as it ends, with its times. At the end its calls are put in
their order (`cassette.finished_lines`) and take the place of ``PATH`` in one step.
"""

from __future__ import annotations

import logging
import os
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeAlias, overload

import msgspec

from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.encryption import cipher_of, decrypted
from agent_cache.recording.outcomes import encode, encode_sorted
from agent_cache.recording.redaction import Redaction

VERSION = 2
JOURNAL_VERSION = 1
"""Of a journal (`resume.journal`), whose lines are a log, and others that a cassette does not have."""
CALLS_OF_LITELLM = ("litellm:acompletion", "litellm:aembedding")
"""The names of calls that are from fixtures of Reyn."""

NO_TIME: Final = 0.0
"""A time that is not written: msgspec omits the very object that is the default."""

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
        """Whether the lines are in the order in which the calls ended."""
        return self.log is True


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
        order: the id of each call where it started, and ``-id`` where it ended. Empty if they started in the order of
            their lines and overlapped only with those that enclose them.
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
            ``"reyn"`` if the call is from a fixture of Reyn, which only `litellm.LLMReplay` replays.
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
    started_ms: float = NO_TIME
    duration_ms: float = NO_TIME
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


_Pointer: TypeAlias = str
"""A place in a call, as a JSON Pointer (RFC 6901): ``/arguments/messages``."""

Prefixes: TypeAlias = dict[_Pointer, tuple[int, int]]
"""By the place of a list: the number of an earlier call, and how many first elements of its list come first here."""


class CallLine(RecordedCall, frozen=True, kw_only=True, omit_defaults=True):
    """The line of a call, with its arguments and its outcome as they are written.

    Attributes:
        prefix: the beginnings of its lists that are not written here, because an earlier call has them, too.
    """

    arguments: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]  # the same, before it is decoded
    outcome: msgspec.Raw  # type: ignore[assignment]  # as above
    prefix: Prefixes = {}


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class CallHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a call by which a replay or a resumed run finds it. The rest is only checked to be JSON.

    Attributes:
        place, hidden: of a call in a journal, see `resume.journal`.
    """

    id: _Number
    parent: _Number | None = None
    kind: str
    name: str
    arguments: dict[str, msgspec.Raw] = {}
    digest: Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{2})*$")] = ""
    asker: str = ""
    after: _Number = 0
    lane: _Number = 0
    forked: _Number = 0
    until: _Number = 0
    outcome: dict[str, msgspec.Raw]
    form: str = ""
    prefix: Prefixes = {}
    source: str = ""
    started_ms: float = 0.0
    duration_ms: float = 0.0
    place: Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{2})*$")] = ""
    hidden: bool = False


class OpenCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In a journal, where a call is that had begun. Its fields are those of a `RecordedCall`.

    Attributes:
        place: hexadecimal digest of the chain of enclosing calls, name, arguments before redaction, and occurrence.
    """

    id: int
    parent: int | None = None
    place: str
    after: int = 0
    lane: int = 0
    forked: int = 0


class Intent(OpenCall, frozen=True, kw_only=True, omit_defaults=True):
    """In a journal, a write that begins.

    Attributes:
        kind, name, arguments: as in `RecordedCall`.
        key: its idempotency key.
        tags: what it may invalidate, as far as that is known before it runs; a root where an id is not known, was
            redacted, or is nothing that UTF-8 can hold.
    """

    kind: str
    name: str
    arguments: dict[str, Any] = {}
    key: str
    tags: list[str] = []


class OtherLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a journal that is no call. Exactly one field is set, but for the trailer, which is a line of its own.

    Attributes:
        intent, open: a write, or another call, that begins.
        checkpoint: see `resume.checkpoints`. Its state is not decoded.
        resumed: when the run was taken up again.
    """

    intent: Intent | None = None
    open: OpenCall | None = None
    checkpoint: msgspec.Raw = msgspec.Raw()
    resumed: dict[str, Any] | None = None


def header_line(header: Header) -> bytes:
    """Encode the header."""
    return encode(header) + b"\n"


def call_line(call: RecordedCall) -> bytes:
    """Encode a call."""
    return encode(call) + b"\n"


def trailer_line(trailer: Trailer) -> bytes:
    """Encode the trailer."""
    return encode({"trailer": trailer}) + b"\n"


# Identity


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


def is_inside(number: int | None, others: Collection[int], parents: Mapping[int, int | None]) -> bool:
    """Whether the call of a number, or one that encloses it, is among others."""
    while number is not None:
        if number in others:
            return True
        number = parents.get(number)
    return False


# Shared beginnings: a conversation is sent to its model as a whole with every turn

LEAST_SHARED = 512
"""Bytes. A shorter beginning is written out, since it is easier to read."""
_LEAST_IN_OUTCOME = 4_096
"""Bytes. To put a beginning back takes 10 us, and results are often alike that are no conversations."""
_LEAST_ELEMENT = 32
"""Bytes on average. Lists of shorter elements, such as vectors, are not looked at: they are no conversations."""
_DEEPEST = 5
_LATEST = 8
"""Lists that are kept whole, so that reading a conversation in its order looks at each turn once."""

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class PrefixWriter:
    """Finds the longest beginning of each list of a call that an earlier call of the same name has in the same place.

    It keeps 16 bytes for each element that was new.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, int] = {}

    def share(
        self, number: int, name: str, pointer: _Pointer, data: bytes, found: Prefixes, depth: int = _DEEPEST
    ) -> bytes:
        """The same data with the beginnings of its lists left out.

        Args:
            number: the number of the call in the finished cassette.
            name: its name.
            pointer: where the data stand in the call.
            data: JSON.
            found: what was left out is added here.
            depth: how many objects are looked into.
        """
        least = LEAST_SHARED if pointer.startswith("/arguments") else _LEAST_IN_OUTCOME
        if data[:1] == b"[":
            return self._share_list(number, name, pointer, data, found, least)
        if data[:1] != b"{" or not depth:
            return data
        inside, is_changed = _object_decoder.decode(data), False
        for key, raw in inside.items():
            value = bytes(raw)
            if len(value) >= least and value[:1] in b"[{":
                place = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
                shared = self.share(number, name, place, value, found, depth - 1)
                if shared is not value:
                    inside[key], is_changed = msgspec.Raw(shared), True
        return encode(inside) if is_changed else data

    def _share_list(self, number: int, name: str, pointer: _Pointer, data: bytes, found: Prefixes, least: int) -> bytes:
        elements = _list_decoder.decode(data)
        if len(data) < _LEAST_ELEMENT * len(elements):
            return data
        hashed = blake2b(encode([name, pointer]), digest_size=16)
        digests: list[bytes] = []
        for element in elements:
            hashed.update(b"%d:%b" % (len(bytes(element)), element))
            digests.append(hashed.digest())
        count = len(digests)
        while count and digests[count - 1] not in self._owners:
            count -= 1
        owner = self._owners[digests[count - 1]] if count else 0
        for digest in digests[count:]:
            self._owners[digest] = number
        if sum(len(bytes(element)) for element in elements[:count]) < least:
            return data
        found[pointer] = owner, count
        return encode(elements[count:])


def _list_at(data: bytes, keys: list[str]) -> list[msgspec.Raw]:
    try:
        for key in keys:
            data = bytes(_object_decoder.decode(data)[key])
        return _list_decoder.decode(data)
    except (KeyError, msgspec.DecodeError):
        raise ValueError("there is no list where its beginning was left out") from None


def _replaced(data: bytes, keys: list[str], new: bytes) -> bytes:
    if not keys:
        return new
    inside: dict[str, Any] = _object_decoder.decode(data)
    inside[keys[0]] = msgspec.Raw(_replaced(bytes(inside[keys[0]]), keys[1:], new))
    return encode(inside)


# Calls of a file

LARGEST_IN_MEMORY = 1024 * 1024
"""Bytes. The calls of a longer file are read from the disk when they are asked for."""

_call_decoder = msgspec.json.Decoder(RecordedCall)
_line_decoder = msgspec.json.Decoder(CallLine)
_set = msgspec.structs.force_setattr  # of lines that were just decoded, and that nobody else has


class StoredCalls(Sequence[RecordedCall]):
    """The calls of a file, each read and decoded when it is accessed.

    Args:
        path: of the file, for messages.
        file: it, in memory or on the disk. The latter stays open until nobody has the calls any more.

    Attributes:
        order, times: as in `TrailerLine`; both None if there is no trailer with tables.
        size: bytes of its whole lines.
        is_torn: whether a line without its end follows, of a process that was killed while it wrote it.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path = path
        self.size = 0
        self.is_torn = False
        self.order: list[int] | None = None
        self.times: list[tuple[int, int]] | None = None
        self._content: bytes | None = None
        if isinstance(file, BytesIO):
            self._content = file.getvalue()
        else:
            self._descriptor = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._descriptor)
        self._begins, self._ends, self._numbers = array("Q"), array("Q"), array("Q")  # of the lines, by call
        self._others: list[tuple[int, int, int]] = []  # of a journal, lines that are no calls: number, begin and end
        self._prefixed: set[int] = set()  # the calls that begin as others
        self._index_of: dict[int, int] = {}
        self._latest: OrderedDict[tuple[int, _Pointer], list[msgspec.Raw]] = OrderedDict()

    def add(self, head: CallHead, number: int, begin: int, end: int) -> None:
        """Add the next call, which is on the line of this number, between these bytes of the file."""
        index = self._index_of[head.id] = len(self)
        if head.prefix:
            self._prefixed.add(index)
        self._begins.append(begin)
        self._ends.append(end)
        self._numbers.append(number)

    def add_other(self, number: int, begin: int, end: int) -> None:
        """Add a line of a journal that is no call."""
        self._others.append((number, begin, end))

    def others(self) -> Iterator[tuple[int, OtherLine]]:
        """The lines of a journal that are no calls, with their numbers.

        Raises:
            CassetteError: if one is broken.
        """
        for number, begin, end in self._others:
            yield number, _decoded(Path(self.path), number, self._text(begin, end), _other_decoder)

    def table_problems(self) -> Iterator[str]:
        """What the trailer says about calls that are not these, which a replay ignores."""
        if self.times is not None and len(self.times) != len(self):
            yield f"the trailer has the times of {len(self.times)} calls, but the file has {len(self)}"
        if self.order:
            ids = self._index_of.keys()
            if missing := {abs(event) for event in self.order} - ids:
                yield f"the order in the trailer names call {min(missing)}, which is missing"
            elif sorted(self.order) != [*(-each for each in sorted(ids, reverse=True)), *sorted(ids)]:
                yield "the order in the trailer does not have the start and the end of each call once"

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, index: int) -> RecordedCall: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordedCall]: ...
    def __getitem__(self, index: int | slice) -> RecordedCall | list[RecordedCall]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        is_prefixed = self._prefixed and range(len(self))[index] in self._prefixed
        line = encode(self.line(index)) if is_prefixed else None
        call: RecordedCall = self._decoded(index, _call_decoder, line)
        return call

    def line(self, index: int) -> CallLine:
        """The line of a call, with the beginnings of its lists.

        Raises:
            CassetteError: if it is broken.
        """
        line: CallLine = self._decoded(index, _line_decoder)
        for pointer, prefix in line.prefix.items():
            part, *keys = _keys_of(pointer)
            try:
                both = self._beginning(line.id, pointer, prefix) + _list_at(bytes(getattr(line, part)), keys)
                _set(line, part, msgspec.Raw(_replaced(bytes(getattr(line, part)), keys, encode(both))))
            except ValueError as error:
                raise CassetteError(f"this line is broken: {error}", self.path, self._numbers[index]) from error
            self._latest[line.id, pointer] = both
            if len(self._latest) > _LATEST:
                self._latest.popitem(last=False)
        if line.prefix:
            _set(line, "prefix", {})
        return line

    def _beginning(self, number: int, pointer: _Pointer, prefix: tuple[int, int] | None) -> list[msgspec.Raw]:
        """The first elements of the list of an earlier call, which may refer to another one for its own beginning."""
        part, *keys = _keys_of(pointer)
        owner, count = prefix or (0, 0)
        pieces: list[list[msgspec.Raw]] = []
        while count > 0:
            if owner >= number:
                raise ValueError(f"it begins as call {owner}, which does not come before it")
            if (known := self._latest.get((owner, pointer))) is not None:
                own, prefix = known, None
            else:
                line = self._decoded(self._index_of[owner], _line_decoder)
                own, prefix = _list_at(bytes(getattr(line, part)), keys), line.prefix.get(pointer)
            before = 0 if prefix is None else prefix[1]
            if count > before + len(own):
                raise ValueError(f"it begins with {count} elements of call {owner}, which has {before + len(own)}")
            pieces.append(own[: max(0, count - before)])
            number, count = owner, min(count, before)
            owner = 0 if prefix is None else prefix[0]
        return [element for piece in reversed(pieces) for element in piece]

    def _decoded(self, index: int, decoder: msgspec.json.Decoder[Any], line: bytes | None = None) -> Any:
        try:
            if line is None:  # as `_text`: a replay asks for each call
                begin, end, content = self._begins[index], self._ends[index], self._content
                line = os.pread(self._descriptor, end - begin, begin) if content is None else content[begin:end]
            call = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise CassetteError(f"this line is broken: {error}", self.path, self._numbers[index]) from error
        if self.times is not None and len(self.times) == len(self._begins):
            started, duration = self.times[index]
            _set(call, "started_ms", started / 1000)
            _set(call, "duration_ms", duration / 1000)
        return call

    def _text(self, begin: int, end: int) -> bytes:
        if self._content is not None:
            return self._content[begin:end]
        return os.pread(self._descriptor, end - begin, begin)


def _keys_of(pointer: _Pointer) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]


# Reading

_CONFLICT = (b"<<<<<<< ", b"=======", b">>>>>>> ", b"||||||| ")
_TRAILER = b'{"trailer":'
_LINES_OF_JOURNALS = (b'{"intent":', b'{"open":', b'{"checkpoint":', b'{"resumed":')

_header_decoder = msgspec.json.Decoder(Header)
_head_decoder = msgspec.json.Decoder(CallHead)
_trailer_decoder = msgspec.json.Decoder(TrailerLine)
_other_decoder = msgspec.json.Decoder(OtherLine)


def read_file(
    path: Path, note: Callable[[CallHead], object], progress: Callable[[int], None] | None = None
) -> tuple[Header, StoredCalls, Trailer | None] | bytes:
    """Check every line of a file. Returns its header, its calls and its trailer, None if the recording was killed.

    Of a file that is a JSON document and no cassette of ours, the content.

    Args:
        path: a cassette or a journal, or a cassette of agentcassette.
        note: is given each call of it.
        progress: is called with the number of bytes read so far.

    Raises:
        CassetteNotFound: if there is no such file.
        CassetteError: if it cannot be read, or is not a cassette of a known version, with the line.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise CassetteError("cannot be read: it is not a regular file", path)
        cipher = cipher_of(path)
        with path.open("rb") as file:
            is_long = cipher is None and hasattr(os, "pread") and os.fstat(file.fileno()).st_size > LARGEST_IN_MEMORY
            text = file if is_long else BytesIO(file.read())
            return read_lines(path, decrypted(path, text, cipher), note, progress)
    except FileNotFoundError:
        raise _not_found(path) from None
    except (OSError, ValueError) as error:
        raise CassetteError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error


def read_lines(
    path: Path, file: BinaryIO, note: Callable[[CallHead], object], progress: Callable[[int], None] | None = None
) -> tuple[Header, StoredCalls, Trailer | None] | bytes:
    """The same of an open file, which is read from its beginning. `note` may raise ValueError for a broken call.

    Raises:
        CassetteError: as `read_file`.
    """
    first = file.readline()
    header = _read_header(path, first.strip().removeprefix(b"\xef\xbb\xbf"))
    if header is None:
        content = first + file.read()
        if not content.strip():
            raise CassetteError("is empty; delete it, or record it again", path)
        for number, line in enumerate(content.splitlines(), 1):
            _check_conflict(path, number, line)
        return content
    calls, trailer, end = StoredCalls(str(path), file), None, len(first)
    calls.size = end
    for number, line in enumerate(file, 2):
        begin, end = end, end + len(line)
        is_whole, text = line.endswith(b"\n"), line.strip()
        if trailer is not None and text:
            raise CassetteError("a line follows the trailer", path, number)
        is_trailer = text.startswith(_TRAILER)
        if not is_whole and (header.is_log or (text and not is_trailer)):
            calls.is_torn = True  # the process was killed while it wrote this
            break
        if is_trailer:
            last: TrailerLine = _decoded(path, number, text, _trailer_decoder)
            trailer = last.trailer
            if not header.is_log:
                calls.order, calls.times = last.order, last.times
        elif text.startswith(_LINES_OF_JOURNALS):
            calls.add_other(number, begin, end)
        elif text:
            head = _checked_head(path, calls, number, text)
            calls.add(head, number, begin, end)
            try:
                note(head)
            except ValueError as error:
                raise CassetteError(f"this line is broken: {error}", path, number) from error
        calls.size = end
        if progress is not None:
            progress(end)
    return header, calls, trailer


def _checked_head(path: Path, calls: StoredCalls, number: int, text: bytes) -> CallHead:
    head: CallHead = _decoded(path, number, text, _head_decoder)
    if head.id in calls._index_of:
        raise CassetteError(f"an earlier line has the id {head.id}, too", path, number)
    for pointer, (owner, _) in head.prefix.items():
        if not pointer.startswith(("/arguments/", "/outcome/")):
            raise CassetteError(f"the prefix {pointer!r} is no place in arguments or outcome", path, number)
        if owner not in calls._index_of:
            raise CassetteError(f"it begins as call {owner}, which is on no earlier line", path, number)
    return head


def _check_conflict(path: Path, number: int, line: bytes) -> None:
    if line.startswith(_CONFLICT):
        raise CassetteError("has a merge conflict; resolve it, or record it again", path, number)


def _decoded(path: Path, number: int, text: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    _check_conflict(path, number, text)
    try:
        text.decode()  # msgspec does not check the parts that it leaves unread
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CassetteError(f"this line is broken: {error}", path, number) from error


def _read_header(path: Path, text: bytes) -> Header | None:
    """The header; None if this is the beginning of another JSON document."""
    _check_conflict(path, 1, text)
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    if isinstance(data, dict) and "agent_cache_journal" in data:  # its calls are a log
        check_version(path, data["agent_cache_journal"], JOURNAL_VERSION)
        fields = {name: data[name] for name in ("recorded_at", "redact", "http") if name in data}
        text = encode({**fields, "log": True})
    elif isinstance(data, dict) and data.get("agent_cache_cassette") is not None:
        version = data["agent_cache_cassette"]
        if version == 1:
            raise CassetteError("has format version 1, which is not read any more; record it again", path, 1)
        check_version(path, version, VERSION)
    elif text.startswith(b'{"agent_cache_cassette"'):
        raise CassetteError("breaks off in its header; record it again", path, 1)
    elif not text or text[:1] == b"{":
        return None
    else:
        raise CassetteError('is no cassette: it does not begin with {"agent_cache_cassette": 2, ...}', path, 1)
    header: Header = _decoded(path, 1, text, _header_decoder)
    try:
        Redaction().joined({**header.redact, "hook": False})
    except (ConfigurationError, TypeError, AttributeError) as error:
        raise CassetteError(f"its header has invalid redaction rules: {error}", path, 1) from error
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


def _not_found(path: Path) -> CassetteNotFound:
    reason = "there is no cassette"
    partial = partial_of(path)
    if partial.exists():
        reason += f", but {partial.name}, written by a recording that was killed; rename it to replay that far"
    return CassetteNotFound(f"{reason}; record it first", path)


def now_text() -> str:
    """The time in UTC, as headers have it: runs that follow each other within a millisecond keep their order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def partial_of(path: Path) -> Path:
    """The file that a recording to this path writes to until it ends."""
    return Path(os.path.realpath(path) + ".partial")
