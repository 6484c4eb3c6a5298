"""Reading a cassette's file: every line checked once, and found again when it is needed."""

from __future__ import annotations

import os
import stat
import weakref
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import msgspec

from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording.format import VERSION, Header, RecordedCall, Trailer
from agent_cache.recording.outline import CallHead, Outline
from agent_cache.recording.partial import partial_of
from agent_cache.recording.redaction import Redaction

__all__ = ["CassetteFile", "Lines", "read_file"]

_CONFLICT = (b"<<<<<<< ", b"=======", b">>>>>>> ", b"||||||| ")
_TRAILER = b'{"trailer":'
_header = msgspec.json.Decoder(Header)
_call = msgspec.json.Decoder(RecordedCall)
_head = msgspec.json.Decoder(CallHead)
_AHEAD = 16 * 1024


class _TrailerLine(msgspec.Struct, frozen=True):
    trailer: Trailer


_trailer = msgspec.json.Decoder(_TrailerLine)


class Lines(Sequence[RecordedCall]):
    """The calls of a file, each read when it is asked for.

    The file stays open, so what is read is what was checked, also after another recording has taken its place. Some
    150 bytes a call are kept.

    Attributes:
        outline: what is known of all calls without reading them.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.outline = Outline()
        self._descriptor = descriptor
        self._starts = array("Q")
        self._sizes = array("L")
        self._numbers = array("L")
        self._ahead: tuple[int, bytes] = (0, b"")
        weakref.finalize(self, os.close, descriptor)

    def add(self, call: CallHead, start: int, size: int, number: int) -> None:
        """Note the next call, where it stands, and the number of its line.

        Raises:
            ValueError: if its digest is none.
        """
        self.outline.add(call)
        self._starts.append(start)
        self._sizes.append(size)
        self._numbers.append(number)

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
        try:
            found: RecordedCall = _call.decode(self.raw(index))
        except msgspec.DecodeError as error:
            raise CassetteError(f"this line is broken: {error}", self.path, self._numbers[index]) from error
        return found

    def raw(self, index: int) -> bytes:
        """The line of a call."""
        start, size = self._starts[index], self._sizes[index]
        first, block = self._ahead
        if not first <= start <= start + size <= first + len(block):
            # Calls are asked for in about the order in which they stand.
            first, block = start, os.pread(self._descriptor, max(size, _AHEAD), start)
            self._ahead = (first, block)
        return block[start - first : start - first + size]


class CassetteFile:
    """What a file has in it, beside its calls.

    Attributes:
        header: its first line.
        trailer: its last line; None if the recording was killed.
        lines: its calls.
        foreign: the JSON document, if it is one of another package.
    """

    def __init__(self, header: Header, lines: Lines) -> None:
        self.header = header
        self.lines = lines
        self.trailer: Trailer | None = None
        self.foreign: Any = None


def read_file(path: Path, progress: Callable[[int], None] | None = None) -> CassetteFile:
    """Check every line of a file.

    Raises:
        CassetteNotFound: if there is none.
        CassetteError: if it cannot be read, or is no cassette of a version known here, with the line.
    """
    try:
        # Of a pipe, opening would wait for somebody who writes.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise _not_found(path) from None
    except (OSError, ValueError) as error:
        raise CassetteError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CassetteError("cannot be read: it is no regular file", path)
    lines = Lines(str(path), descriptor)
    try:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return _read(path, file, lines, progress)
    except OSError as error:
        raise CassetteError(f"cannot be read: {error.strerror}", path) from error


def _read(path: Path, file: Any, lines: Lines, progress: Callable[[int], None] | None) -> CassetteFile:
    first = file.readline()
    if not first.strip() and not file.read().strip():
        raise CassetteError("is empty; delete it, or record it again", path)
    header = _header_of(path, first)
    found = CassetteFile(header or Header(), lines)
    if header is None:
        file.seek(0)
        found.foreign = _foreign(path, file.read())
        return found
    position = len(first)
    seen: set[int] = set()
    for number, line in enumerate(file, 2):
        content = line.strip()
        if found.trailer is not None and content:
            raise CassetteError("something stands after the trailer", path, number)
        if content.startswith(_TRAILER):
            found.trailer = _decoded(path, number, content, _trailer).trailer
        elif content and not line.endswith(b"\n"):
            break  # the process was killed while it wrote this
        elif content:
            call = _decoded(path, number, content, _head)
            if call.id in seen:
                raise CassetteError(f"the id {call.id} stands on an earlier line, too", path, number)
            seen.add(call.id)
            try:
                lines.add(call, position, len(line), number)
            except ValueError as error:
                raise CassetteError(str(error), path, number) from error
        position += len(line)
        if progress is not None:
            progress(position)
    return found


def _decoded(path: Path, number: int, content: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if content.startswith(_CONFLICT):
        raise CassetteError("has a merge conflict; resolve it, or record it again", path, number)
    try:
        if not content.isascii():
            content.decode()  # what is not read now is not looked at, either
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CassetteError(f"this line is broken: {error}", path, number) from error


def _header_of(path: Path, line: bytes) -> Header | None:
    """The header; None if this is the beginning of a JSON document that is no cassette of ours."""
    content = line.strip().removeprefix(b"\xef\xbb\xbf")
    if content.startswith(_CONFLICT):
        raise CassetteError("has a merge conflict; resolve it, or record it again", path, 1)
    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    version = data.get("agent_cache_cassette") if isinstance(data, dict) else None
    if version is None:
        if content.startswith(b'{"agent_cache_cassette"'):
            raise CassetteError("breaks off in its header; record it again", path, 1)
        if not content or content[:1] == b"{":
            return None
        raise CassetteError('is no cassette: it does not begin with {"agent_cache_cassette": 1, ...}', path, 1)
    if type(version) is not int or version < 1:
        raise CassetteError(f"has the format version {version!r}, which is none", path, 1)
    if version > VERSION:
        raise CassetteError(
            f"has format version {version}, and this agent-cache reads up to {VERSION}; update agent-cache", path, 1
        )
    header: Header = _decoded(path, 1, content, _header)
    try:
        Redaction().joined({**header.redact, "hook": False})
    except (ConfigurationError, TypeError, AttributeError) as error:
        raise CassetteError(f"its header redacts what cannot be: {error}", path, 1) from error
    return header


def _foreign(path: Path, content: bytes) -> Any:
    for number, line in enumerate(content.splitlines(), 1):
        if line.startswith(_CONFLICT):
            raise CassetteError("has a merge conflict; resolve it, or record it again", path, number)
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CassetteError(f"is no cassette, and no JSON document either: {error}", path, 1) from error


def _not_found(path: Path) -> CassetteNotFound:
    reason = "there is no cassette"
    partial = partial_of(path)
    if partial.exists():
        reason += f", but {partial.name}, what a recording wrote that was killed; rename it to replay that far"
    return CassetteNotFound(f"{reason}; record it first", path)
