"""The file of a recording: its lines, and how they are read. JSON Lines, version 2.

    {"agent_cache_cassette": 2, "recorded_at": "2026-01-01T12:00:00Z", "model": null, "redact": {}}
    {"id": 1, "kind": "tool", "name": "shop:get_order", "arguments": {"order_id": "7"}, "digest": "5f1c...", ...}
    {"trailer": {"calls": 1, "duration_ms": 12.5, "ended": "returned"}, "times": [[120, 11950]]}

What depends on how long calls took is in the header and the trailer alone, so that a run that does the same again has
the same lines. The forms of an outcome are in `outcomes`.

A recording writes a *log* to ``PATH.partial``: each call as it ends, with its times. At the end its calls are put in
their order (`Cassette.lines`) and take the place of ``PATH`` in one step.
"""

from __future__ import annotations

import os
import weakref
from array import array
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


# Lines


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The first line."""

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
    """The last line. It is missing if the process was killed."""

    calls: int = 0
    duration_ms: float = 0.0
    ended: str = "returned"


class TrailerLine(msgspec.Struct, frozen=True):
    """The last line, with what depends on how long calls took."""

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
        after: in a log, id of the call on the last line when this one started, 0 if there was none: that call, and
            those above it, had ended.
        lane: number of what made it: one task, or one context that a thread runs in; 0 is the task that entered the
            recording, the others are in the order of their first lines. A strict replay demands the order of each.
        forked: the lane that this lane was forked from: the one that started the task or copied the context.
        outcome: see `outcomes`.
        source: how a tool's cache answered: ``hit``, ``miss``, ``shared``, ``uncached``, ``write`` or ``blocked``.
        tags: of a call of a write tool, what it invalidates, redacted. A tag that only the result gives is as long as
            the redacted outcome shows it.
        started_ms, duration_ms: its start, from the beginning of the recording, and its duration; of a stream, until
            it was closed. In a finished file the trailer has them.
        input_tokens, output_tokens: of an LLM call, 0 if unknown. `input_tokens` is all input.
        cache_read_tokens, cache_write_tokens: the parts of it that were read from the provider's prompt cache, and
            written to it.
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


Prefixes: TypeAlias = dict[str, tuple[int, int]]
"""By the JSON Pointer (RFC 6901) of a list in a call, ``/arguments/messages``: the id of an earlier call, and how many
first elements of its list come first here."""


class CallLine(RecordedCall, frozen=True, kw_only=True, omit_defaults=True):
    """The line of a call, with its arguments and its outcome as they are written."""

    arguments: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]  # the same, before it is decoded
    outcome: msgspec.Raw  # type: ignore[assignment]  # as above
    prefix: Prefixes = {}


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Hexadecimal: TypeAlias = Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{2})*$")]


class CallHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a call by which a replay or a resumed run finds it. The rest is only checked to be JSON."""

    id: _Number
    parent: _Number | None = None
    kind: str
    name: str
    arguments: dict[str, msgspec.Raw] = {}
    digest: _Hexadecimal = ""
    asker: str = ""
    after: _Number = 0
    lane: _Number = 0
    forked: _Number = 0
    outcome: dict[str, msgspec.Raw]
    form: str = ""
    prefix: Prefixes = {}
    source: str = ""
    started_ms: float = 0.0
    duration_ms: float = 0.0
    place: _Hexadecimal = ""
    hidden: bool = False


class OpenCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In a journal, where a call is that had begun. Its fields are those of a `RecordedCall`."""

    id: int
    parent: int | None = None
    place: str
    after: int = 0
    lane: int = 0
    forked: int = 0


class Intent(OpenCall, frozen=True, kw_only=True, omit_defaults=True):
    """In a journal, a write that begins."""

    kind: str
    name: str
    arguments: dict[str, Any] = {}
    key: str
    tags: list[str] = []


class OtherLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a journal that is no call. Exactly one field is set."""

    intent: Intent | None = None
    open: OpenCall | None = None
    checkpoint: msgspec.Raw = msgspec.Raw()
    resumed: dict[str, Any] | None = None


def call_line(call: RecordedCall | Header) -> bytes:
    """Encode a call, or a header."""
    return encode(call) + b"\n"


header_line = call_line


def trailer_line(trailer: Trailer) -> bytes:
    """Encode the trailer."""
    return encode({"trailer": trailer}) + b"\n"


# Identity

UNKNOWN_ASKER = "unknown"
"""The asker of a call whose context may say who makes it, in a form that cannot be compared: it is no recorded call."""


def digest_of(name: str, arguments: dict[str, Any]) -> bytes:
    """Digest of a call by its redacted arguments."""
    return blake2b(encode_sorted([name, arguments]), digest_size=12).digest()


def digest_of_key(name: str, key: str) -> bytes:
    """Digest of a call by the redacted key that ``cache_key=`` returned."""
    return blake2b(encode_sorted([name, key]), digest_size=12, person=b"key").digest()


def digest_of_asker(parts: Mapping[str, Any]) -> str:
    """Digest of who asks, from each thing that tells callers apart, by name. Empty without any."""
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
_LEAST_ELEMENT = 32
"""Bytes on average. Lists of shorter elements, such as vectors, are not looked at: they are no conversations."""
_DEEPEST = 4
"""Objects around a list: the arguments of a request have the messages in their ``json``."""

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class PrefixWriter:
    """Finds the longest beginning of each list of a call that an earlier call of the same name has in the same place.

    It keeps 16 bytes for each element that was new.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, int] = {}

    def share(
        self, number: int, name: str, data: bytes, found: Prefixes, pointer: str = "/arguments", depth: int = _DEEPEST
    ) -> bytes:
        """The arguments of a call with the beginnings of their lists left out."""
        if len(data) < LEAST_SHARED or data[:1] not in b"[{" or not depth:
            return data
        if data[:1] == b"[":
            return self._share_list(number, name, data, found, pointer)
        inside, is_changed = _object_decoder.decode(data), False
        for key, raw in inside.items():
            value = bytes(raw)
            place = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            shared = self.share(number, name, value, found, place, depth - 1)
            if shared is not value:
                inside[key], is_changed = msgspec.Raw(shared), True
        return encode(inside) if is_changed else data

    def _share_list(self, number: int, name: str, data: bytes, found: Prefixes, pointer: str) -> bytes:
        elements = _list_decoder.decode(data)
        if len(data) < _LEAST_ELEMENT * len(elements):
            return data
        hashed, digests = blake2b(encode([name, pointer]), digest_size=16), []
        for element in elements:
            hashed.update(b"%d:%b" % (len(bytes(element)), element))
            digests.append(hashed.digest())
        count = len(digests)
        while count and digests[count - 1] not in self._owners:
            count -= 1
        owner = self._owners[digests[count - 1]] if count else 0
        self._owners |= dict.fromkeys(digests[count:], number)
        if sum(len(bytes(element)) for element in elements[:count]) < LEAST_SHARED:
            return data
        found[pointer] = owner, count
        return encode(elements[count:])


def _list_at(data: bytes, pointer: str) -> list[msgspec.Raw]:
    """The list at a place of the arguments. Raises KeyError or DecodeError if there is none."""
    for key in _keys_of(pointer):
        data = bytes(_object_decoder.decode(data)[key])
    return _list_decoder.decode(data)


def _replaced(data: bytes, keys: list[str], new: bytes) -> bytes:
    if not keys:
        return new
    inside = _object_decoder.decode(data)
    inside[keys[0]] = msgspec.Raw(_replaced(bytes(inside[keys[0]]), keys[1:], new))
    return encode(inside)


def _keys_of(pointer: str) -> list[str]:
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[2:]]


# Calls of a file

LARGEST_IN_MEMORY = 1024 * 1024
"""Bytes. The calls of a longer file are read from the disk when they are asked for."""

_call_decoder = msgspec.json.Decoder(RecordedCall)
_line_decoder = msgspec.json.Decoder(CallLine)
_set = msgspec.structs.force_setattr  # of lines that were just decoded, and that nobody else has


class StoredCalls(Sequence[RecordedCall]):
    """The calls of a file, each read and decoded when it is accessed."""

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
        self._index_of: dict[int, int] = {}
        self._prefixed: list[int] = []  # the calls that begin as others, in the order of their lines
        self._whole: dict[tuple[int, str], list[msgspec.Raw]] = {}  # their lists, by id and pointer
        self._count_whole = 0  # of how many of them these are

    def add(self, head: CallHead, number: int, begin: int, end: int) -> None:
        """Add the next call, which is on the line of this number, between these bytes of the file."""
        if head.id in self._index_of:
            raise ValueError(f"an earlier line has the id {head.id}, too")
        for pointer, (owner, _) in head.prefix.items():
            if not pointer.startswith("/arguments/") or owner not in self._index_of:
                raise ValueError(f"{pointer} begins as that of call {owner}, which is on no earlier line")
        if head.prefix:
            self._prefixed.append(len(self))
        self._index_of[head.id] = len(self)
        self._begins.append(begin)
        self._ends.append(end)
        self._numbers.append(number)

    def add_other(self, number: int, begin: int, end: int) -> None:
        """Add a line of a journal that is no call."""
        self._others.append((number, begin, end))

    def others(self) -> Iterator[tuple[int, OtherLine]]:
        """The lines of a journal that are no calls, with their numbers."""
        for number, begin, end in self._others:
            yield number, _decoded(Path(self.path), number, self._text(begin, end), _other_decoder)

    def table_problems(self) -> Iterator[str]:
        """What the trailer says about calls that are not these, which a replay ignores."""
        if self.times is not None and len(self.times) != len(self):
            yield f"the trailer has the times of {len(self.times)} calls, but the file has {len(self)}"
        if self.order and sorted(self.order) != sorted((*self._index_of, *(-each for each in self._index_of))):
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
        if self._prefixed:
            return _call_decoder.decode(encode(self.line(range(len(self))[index])))
        call: RecordedCall = self._decoded(index, _call_decoder)
        return call

    def line(self, index: int) -> CallLine:
        """The line of a call, with the beginnings of its lists."""
        line: CallLine = self._decoded(index, _line_decoder)
        if not line.prefix:
            return line
        while self._count_whole < len(self._prefixed) and self._prefixed[self._count_whole] <= index:
            self._join_lists(self._prefixed[self._count_whole])  # in their order: one may begin as another one
            self._count_whole += 1
        for pointer in line.prefix:
            whole = encode(self._whole[line.id, pointer])
            _set(line, "arguments", msgspec.Raw(_replaced(bytes(line.arguments), _keys_of(pointer), whole)))
        _set(line, "prefix", {})
        return line

    def _join_lists(self, index: int) -> None:
        line: CallLine = self._decoded(index, _line_decoder)
        for pointer, (owner, count) in line.prefix.items():
            try:
                if (first := self._whole.get((owner, pointer))) is None:
                    earlier: CallLine = self._decoded(self._index_of[owner], _line_decoder)
                    first = _list_at(bytes(earlier.arguments), pointer)
                if not 0 <= count <= len(first):
                    raise ValueError(  # noqa: TRY301 - one way for all that is wrong with a line
                        f"it begins with {count} elements of call {owner}, which has {len(first)}"
                    )
                self._whole[line.id, pointer] = first[:count] + _list_at(bytes(line.arguments), pointer)
            except (KeyError, ValueError, msgspec.DecodeError) as error:
                raise CassetteError(f"this line is broken: {error}", self.path, self._numbers[index]) from error

    def _decoded(self, index: int, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            call = decoder.decode(self._text(self._begins[index], self._ends[index]))
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


# Reading

_CONFLICT = (b"<<<<<<< ", b"=======", b">>>>>>> ", b"||||||| ")
_TRAILER = b'{"trailer":'
_LINES_OF_JOURNALS = (b'{"intent":', b'{"open":', b'{"checkpoint":', b'{"resumed":')

_header_decoder = msgspec.json.Decoder(Header)
_head_decoder = msgspec.json.Decoder(CallHead)
_trailer_decoder = msgspec.json.Decoder(TrailerLine)
_other_decoder = msgspec.json.Decoder(OtherLine)

Note: TypeAlias = Callable[[CallHead], object]
Lines: TypeAlias = tuple[Header, StoredCalls, Trailer | None]


def read_file(path: Path, note: Note, progress: Callable[[int], None] | None = None) -> Lines | bytes:
    """Check every line of a file. Returns its header, its calls and its trailer, None if the recording was killed.

    Of a file that is a JSON document and no cassette of ours, the content.
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
        reason, partial = "there is no cassette", partial_of(path)
        if partial.exists():
            reason += f", but {partial.name}, written by a recording that was killed; rename it to replay that far"
        raise CassetteNotFound(f"{reason}; record it first", path) from None
    except (OSError, ValueError) as error:  # the latter for a name that has a null in it
        raise CassetteError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error


def read_lines(path: Path, file: BinaryIO, note: Note, progress: Callable[[int], None] | None = None) -> Lines | bytes:
    """The same of an open file, which is read from its beginning. `note` may raise ValueError for a broken call."""
    first = file.readline()
    header = _read_header(path, first.strip().removeprefix(b"\xef\xbb\xbf"))
    if header is None:
        content = first + file.read()
        if not content.strip():
            raise CassetteError("is empty; delete it, or record it again", path)
        return content
    calls, trailer, end = StoredCalls(str(path), file), None, len(first)
    calls.size = end
    for number, line in enumerate(file, 2):
        begin, end = end, end + len(line)
        text = line.strip()
        if trailer is not None and text:
            raise CassetteError("a line follows the trailer", path, number)
        is_trailer = text.startswith(_TRAILER)
        if not line.endswith(b"\n") and (header.is_log or (text and not is_trailer)):
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
            head: CallHead = _decoded(path, number, text, _head_decoder)
            try:
                calls.add(head, number, begin, end)
                note(head)
            except ValueError as error:
                raise CassetteError(f"this line is broken: {error}", path, number) from error
        calls.size = end
        if progress is not None:
            progress(end)
    return header, calls, trailer


def _decoded(path: Path, number: int, text: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if text.startswith(_CONFLICT):
        raise CassetteError("has a merge conflict; resolve it, or record it again", path, number)
    try:
        text.decode()  # msgspec does not check the parts that it leaves unread
        return decoder.decode(text)
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
        fields = {name: data[name] for name in ("recorded_at", "redact", "http") if name in data}
        text = encode({**fields, "log": True})
    elif isinstance(data, dict) and data.get("agent_cache_cassette") is not None:
        check_version(path, data["agent_cache_cassette"], VERSION)
    elif text.startswith(b'{"agent_cache_cassette"'):
        raise CassetteError("breaks off in its header; record it again", path, 1)
    elif not text or text[:1] == b"{":
        return None
    elif not text.startswith(_CONFLICT):
        raise CassetteError('is no cassette: it does not begin with {"agent_cache_cassette": 2, ...}', path, 1)
    header: Header = _decoded(path, 1, text, _header_decoder)
    try:
        Redaction().joined({**header.redact, "hook": False})
    except (ConfigurationError, TypeError, AttributeError) as error:
        raise CassetteError(f"its header has invalid redaction rules: {error}", path, 1) from error
    return header


def check_version(path: Path, version: Any, known: int, kind: type[CassetteError] = CassetteError) -> None:
    """Check that a file is of the version that can be read."""
    if type(version) is not int or version != known:
        advice = "; update agent-cache" if type(version) is int and version > known else ""
        raise kind(f"has format version {version!r}, and this agent-cache reads {known}{advice}", path, 1)


def now_text() -> str:
    """The time in UTC, as headers have it: runs that follow each other within a millisecond keep their order."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def partial_of(path: Path) -> Path:
    """The file that a recording to this path writes to until it ends."""
    return Path(os.path.realpath(path) + ".partial")
