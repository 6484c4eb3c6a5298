"""The files of a log as records, one at a time: JSON Lines, JSON documents and CSV, also compressed.

What a file is decides its content. A line that is no JSON, in a file of JSON Lines, is left out and counted. A document
of any size is read element by element: an array by its elements, and an object that is larger than `MAX_RECORD` by the
elements of its arrays. So the memory that it takes depends on one record, and not on the file.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

__all__ = [
    "COLUMNS_OF_TOOLS",
    "MAX_RECORD",
    "LogFile",
    "Problem",
    "Problems",
    "Record",
    "Scratch",
    "decoded",
    "files_of",
]

MAX_RECORD = 64 * 1024 * 1024
"""Bytes of the largest line, and of the largest element of a document, that is read as one record."""
_CHUNK = 256 * 1024
_BOM = b"\xef\xbb\xbf"
_SNIFFED_LINES = 100

COLUMNS_OF_TOOLS: Final = ("tool", "tool_name", "toolName", "name", "function")
"""Names of the column, or of the key of a record, that has the name of the tool; the first that is there."""


# What is wrong with a log


class Problem(Enum):
    """Something in a log that could not be used, or that limits what it shows: its level, and a text for people."""

    BROKEN = ("problem", "broken lines or records, left out")
    TORN = ("problem", "files whose last record breaks off, which is left out")
    LOST_REST = ("problem", "files that are broken in the middle; what follows is left out")
    TOO_LARGE = ("problem", "records larger than 64 MiB, left out")
    ENCODING = ("problem", "lines that are not UTF-8, read as Windows-1252")
    UNKNOWN_RECORD = ("problem", "records of no known form, left out")
    UNKNOWN_FILE = ("problem", "files of no known form, left out")
    EMPTY = ("problem", "empty files")
    UNREADABLE = ("problem", "files that cannot be read")
    BROKEN_RECORDING = ("problem", "broken lines of recordings, left out")
    DUPLICATE_FILE = ("problem", "files with the same content as another, left out")
    DUPLICATE = ("problem", "calls that the log has twice, counted once")
    NO_TOOL = ("problem", "calls without the name of a tool, left out")
    NO_CALL = ("problem", "results of calls that the log does not have, left out")
    BAD_TIME = ("problem", "times that cannot be read")
    BACKWARDS = ("problem", "calls whose end is before their start: they count as running between the two times")
    RUN_BACKWARDS = (
        "problem",
        "calls that are earlier than one above them in their run: the file is not sorted, or a clock was set back",
    )
    AGAINST_ORDER = ("problem", "calls whose time contradicts the order of their conversation, which counts")
    BEFORE_PARENT = ("problem", "spans outside of the span that encloses them: clocks of different machines disagree")
    FUTURE = ("problem", "times in the future: a clock is wrong, or the unit of time is")
    RELATIVE = ("missing", "times before 2000, which are no dates: they count as none")
    NO_ZONE = ("missing", "times without a zone, read as UTC")
    WHOLE_SECONDS = (
        "missing",
        "recordings whose start is known to a second only: calls of several may stand in the wrong order within it",
    )
    NO_ARGUMENTS = ("missing", "calls without arguments: they are never a repeat of another, and name nothing")
    UNNAMED_ARGUMENTS = (
        "missing",
        "calls whose arguments are one text or list without names: they count as the argument `input` or `args`",
    )
    CUT_ARGUMENTS = ("missing", "calls whose arguments are cut off or are not those of one call")
    REDACTED_ARGUMENTS = ("missing", "calls with redacted arguments: they are never a repeat of another")
    NO_RESULT = ("missing", "calls without a result: they show no answer")
    CUT_RESULT = ("missing", "results that are cut off: they show no answer")
    CUT_TEXT = (
        "missing",
        "texts whose length is a power of two, probably cut off: equal ones do not show that nothing has changed",
    )
    REDACTED_RESULT = ("missing", "results with redacted parts: equal ones do not show that nothing has changed")
    FROM_CACHE = ("missing", "answers that came from a cache: they show nothing of the world")
    UNFINISHED = ("missing", "calls that did not end, or were cancelled: they show no answer")
    REFUSED = ("missing", "calls that a loop guard refused, left out")
    ONE_TIME = (
        "missing",
        "calls whose conversation has one time for all of them: where others stood between them is not known",
    )
    UNSORTED = ("read", "calls that stand behind later ones in their file: the log is read in the order of time")
    REPEATED_TURN = ("read", "messages that a later record repeats, counted once")
    NOT_OF_TOOLS = ("read", "records that are no calls of tools (models, agents, requests), left out")

    def __init__(self, level: Literal["read", "missing", "problem"], text: str) -> None:
        self.level = level
        self.text = text


@dataclass(slots=True)
class _Count:
    number: int = 0
    first: str = ""


class Problems:
    """How often each problem occurs, and where first."""

    def __init__(self) -> None:
        self._counts: dict[Problem, _Count] = {}

    def add(self, problem: Problem, place: str, number: int = 1) -> None:
        """Count a problem.

        Args:
            problem: which.
            place: where it is, such as ``"run.jsonl, line 7"``.
            number: how many.
        """
        count = self._counts.setdefault(problem, _Count(0, place))
        count.number += number

    def number(self, problem: Problem) -> int:
        """How often it occurs."""
        return self._counts[problem].number if problem in self._counts else 0

    def first(self, problem: Problem) -> str:
        """Where it occurs first; empty if it does not."""
        return self._counts[problem].first if problem in self._counts else ""

    def __iter__(self) -> Iterator[Problem]:
        """Those that occur, in the order of `Problem`."""
        return (problem for problem in Problem if problem in self._counts)


# Files


class Scratch:
    """A directory for what does not fit into memory. It is removed with this object."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._finalizer: weakref.finalize[[str, bool], Scratch] | None = None

    def directory(self) -> Path:
        """The directory, made when it is first needed."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="agent-cache-"))
            self._finalizer = weakref.finalize(self, shutil.rmtree, str(self._path), True)  # noqa: FBT003 - its own
        return self._path

    def spooled(self, parts: Iterable[bytes]) -> Path:
        """A file with this content."""
        descriptor, name = tempfile.mkstemp(dir=self.directory())
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
        return Path(name)

    def close(self) -> None:
        """Remove it."""
        if self._finalizer is not None:
            self._finalizer()
        self._path = None


def files_of(paths: Iterable[str | os.PathLike[str]], scratch: Scratch) -> list[LogFile]:
    """The files that are meant, each once, in the order of their names.

    Args:
        paths: files, directories (all files below them whose names do not begin with a dot), patterns such as
            ``logs/*.jsonl``, and ``-`` for the standard input.
        scratch: for the content of the standard input.

    Raises:
        FileNotFoundError: if a path is not there, or a pattern has no file. The text says which.
    """
    found: dict[str, LogFile] = {}
    for given in paths:
        text = os.fspath(given)
        if text == "-":
            found.setdefault("-", LogFile("standard input", scratch.spooled(parts_of(sys.stdin.buffer))))
            continue
        path = Path(text)
        if path.is_dir():
            inside = _below(path)
            if not inside:
                raise FileNotFoundError(f"there is no file in the directory {text!r}")
        elif _is_there(path):
            inside = [path]
        else:
            inside = [Path(one) for one in glob.glob(text, recursive=True) if not Path(one).is_dir()]  # noqa: PTH207
            if not inside:
                is_pattern = glob.has_magic(text)
                raise FileNotFoundError(f"no file fits the pattern {text!r}" if is_pattern else f"no file {text!r}")
        for one in inside:
            found.setdefault(os.path.realpath(one), LogFile(str(one), one))
    return sorted(found.values(), key=lambda file: (_natural(file.name), file.name))


def parts_of(file: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream, in parts."""
    return iter(partial(file.read, _CHUNK), b"")


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:
        return True  # it is said where it is read
    except (OSError, ValueError):
        return False
    return True


def _below(directory: Path) -> list[Path]:
    return [
        path
        for path in directory.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which ``run-2`` stands before ``run-10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


class Record(NamedTuple):
    """One record of a file.

    Attributes:
        value: a JSON value; of a CSV file a dict of texts.
        place: of the record in the file: ``"line 7"``.
        group: the number of the array that it is an element of. Records of JSON Lines and CSV are in one group.
    """

    value: Any
    place: str
    group: int = 0


Shape: TypeAlias = Literal["lines", "document", "csv", "recording", "unknown", "empty"]

_MAGIC = (
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd; decompress it"),
    (b"PK\x03\x04", "it is a zip archive; unpack it"),
    (b"BZh", "it is compressed by bzip2; decompress it"),
    (b"\xfd7zXZ\x00", "it is compressed by xz; decompress it"),
    (b"PAR1", "it is Parquet; export it as JSON Lines or CSV"),
    (b"SQLite format 3", "it is a database of SQLite; export it as JSON Lines or CSV"),
)
_RECORDINGS = (b'{"agent_cache_cassette"', b'{"agent_cache_journal"')
_ENCODINGS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


@dataclass(slots=True)
class LogFile:
    """A file of a log.

    Attributes:
        name: for people.
        path: where it is.
        size: bytes.
        reason: why it is left out; empty if it is read.
    """

    name: str
    path: Path
    size: int = 0
    reason: str = ""
    shape: Shape = "unknown"
    is_compressed: bool = False
    delimiter: str = ","
    _plain: Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Look how large it is."""
        try:
            self.size = self.path.stat().st_size
        except OSError:
            pass  # `examine` says so

    def examine(self, scratch: Scratch) -> None:
        """Find out what it is: `shape`, and the `reason` if it cannot be read. Nothing is raised.

        Args:
            scratch: for its text, if that is UTF-16 or UTF-32.
        """
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                self.reason = "it is not a regular file"
                return
            with self.opened() as (file, raw):
                head = file.read(16)
                self.is_compressed = file is not raw
            encoding = next((name for magic, name in _ENCODINGS if head.startswith(magic)), None)
            if encoding is None and len(head) > 1 and 0 in head[:2] and head[:2] != b"\0\0":
                encoding = "utf-16-be" if head[0] == 0 else "utf-16-le"
            if encoding is not None:
                with self.opened() as (file, _):
                    text = io.TextIOWrapper(file, encoding, errors="replace", newline="")
                    parts = iter(partial(text.read, _CHUNK), "")
                    self._plain = scratch.spooled(part.removeprefix("\ufeff").encode() for part in parts)
                    text.detach()
            self.reason = next((reason for magic, reason in _MAGIC if head.startswith(magic)), "")
            if not self.reason:
                self._sniff()
        except (OSError, EOFError, zlib.error, ValueError) as error:
            self.reason = _reason(error)

    def plain_path(self, scratch: Scratch) -> Path:
        """The path of the same file without compression, for those that read no other.

        Raises:
            OSError, EOFError, zlib.error: if it cannot be decompressed.
        """
        if self._plain is None:
            if not self.is_compressed:
                return self.path
            with self.opened() as (file, _):
                self._plain = scratch.spooled(parts_of(file))
        return self._plain

    @contextmanager
    def opened(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Its content, decompressed and without a byte order mark, and the file under that, which has the position."""
        with (self._plain or self.path).open("rb") as raw:
            is_compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_compressed else raw
            with closing(file):
                if file.read(3) != _BOM:
                    file.seek(0)
                yield file, raw

    def records(self, problems: Problems, progress: Callable[[int], None] | None = None) -> Iterator[Record]:
        """Its records, in their order. What cannot be read is counted.

        Args:
            problems: is added to.
            progress: is called with the number of bytes read so far.
        """
        with self.opened() as (file, raw):

            def done() -> None:
                if progress is not None:
                    progress(min(self.size, raw.tell()))

            try:
                if self.shape == "lines":
                    yield from self._lines(file, problems, done)
                elif self.shape == "csv":
                    yield from self._rows(file, problems, done)
                else:
                    yield from _Document(self.name, file, problems, done).records()
            except (OSError, EOFError, zlib.error) as error:
                problems.add(Problem.LOST_REST, f"{self.name}: {_reason(error)}")

    def _sniff(self) -> None:
        with self.opened() as (file, _):
            lines: list[bytes] = []
            is_whole = True
            while len(lines) < _SNIFFED_LINES and (line := file.readline(MAX_RECORD if not lines else _CHUNK)):
                if line.strip():
                    lines.append(line)
                    is_whole = is_whole and line.endswith(b"\n")
        if not lines:
            self.shape = "empty"
            return
        first = lines[0].lstrip()
        kinds = [decoded(line) if line.lstrip()[:1] in (b"{", b"[") else None for line in lines[:2]]
        if first.startswith(_RECORDINGS) or (isinstance(kinds[0], dict) and _is_recording(kinds[0])):
            self.shape = "recording"
        elif first[:1] in (b"{", b"["):
            is_lines = kinds[0] is not None or (first[:1] == b"{" and len(kinds) > 1 and isinstance(kinds[1], dict))
            self.shape = "lines" if is_lines else "document"
            if self.shape == "document" and _is_document_of_agentcassette(b"".join(lines)):
                self.shape = "recording"
        elif (delimiter := _delimiter_of(first)) is not None:
            self.shape, self.delimiter = "csv", delimiter
        elif any(isinstance(decoded(line), dict) for line in lines if line.lstrip()[:1] == b"{"):
            self.shape = "lines"
        else:
            self.shape = "unknown"
            self.reason = "it is neither JSON nor CSV with a column for the tool"

    def _lines(self, file: BinaryIO, problems: Problems, done: Callable[[], None]) -> Iterator[Record]:
        number = 0
        while line := file.readline(MAX_RECORD):
            number += 1
            place = f"line {number}"
            if not line.endswith(b"\n") and len(line) == MAX_RECORD:
                problems.add(Problem.TOO_LARGE, f"{self.name}, {place}")
                while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                    pass
                continue
            # 1e stands before a record in JSON text sequences (RFC 7464).
            content = line.removeprefix(_BOM).strip(b" \t\r\n\x00\x1e")
            if content:
                value = decoded(content)
                if value is None:
                    value = self._legacy(content, problems, place)
                if value is not None:
                    yield Record(value, place)
                elif content != b"null":
                    is_torn = not line.endswith(b"\n")
                    problems.add(Problem.TORN if is_torn else Problem.BROKEN, f"{self.name}, {place}")
            done()

    def _legacy(self, content: bytes, problems: Problems, place: str) -> Any:
        """The value of a line that is not UTF-8."""
        try:
            content.decode()
        except UnicodeDecodeError:
            value = decoded(content.decode("cp1252", "replace").encode())
            if value is not None:
                problems.add(Problem.ENCODING, f"{self.name}, {place}")
            return value
        return None

    def _rows(self, file: BinaryIO, problems: Problems, done: Callable[[], None]) -> Iterator[Record]:
        reader = csv.reader(self._texts(file, problems, done), delimiter=self.delimiter, strict=True)
        names: list[str] | None = None
        while True:
            limit = csv.field_size_limit(MAX_RECORD)
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                is_torn = "unexpected end" in str(error)
                problems.add(Problem.TORN if is_torn else Problem.BROKEN, f"{self.name}, line {reader.line_num}")
                continue
            finally:
                csv.field_size_limit(limit)  # the setting is the program's
            place = f"line {reader.line_num}"
            if not any(row):
                continue
            if names is None:
                names = [name.strip() for name in row]
            elif len(row) != len(names):
                problems.add(Problem.BROKEN, f"{self.name}, {place}")
            else:
                yield Record(dict(zip(names, row, strict=True)), place)

    def _texts(self, file: BinaryIO, problems: Problems, done: Callable[[], None]) -> Iterator[str]:
        number = 0
        while line := file.readline(MAX_RECORD):
            number += 1
            line = line.replace(b"\0", b"")
            try:
                yield line.decode()
            except UnicodeDecodeError:
                problems.add(Problem.ENCODING, f"{self.name}, line {number}")
                yield line.decode("cp1252", "replace")
            done()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be read: {error.strerror}"
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return "its compressed content breaks off or is broken"
    return f"it cannot be read: {error}"


# Decoding

_decode = msgspec.json.Decoder().decode
_python_decoder = json.JSONDecoder(strict=False, parse_constant=str)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decoded(content: bytes) -> Any:
    """The JSON value; None if it is none."""
    try:
        return _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # What Python's json writes and JSON does not have: NaN, half a pair of surrogates, control characters in texts.
    try:
        text = content.decode().strip()
        value, end = _python_decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return _without_surrogates(value, text) if end == len(text) else None


def _without_surrogates(value: Any, text: str) -> Any:
    return _clean(value) if _SURROGATE.search(text) else value


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(one) for name, one in value.items()}
    return value


def _is_recording(value: dict[str, Any]) -> bool:
    return (
        "agent_cache_cassette" in value
        or "agent_cache_journal" in value
        or (isinstance(value.get("steps"), list) and "version" in value and "recorded_at" in value)
    )


def _is_document_of_agentcassette(head: bytes) -> bool:
    return b'"steps"' in head and b'"recorded_at"' in head and b'"version"' in head and b'"kwargs"' in head


def _delimiter_of(line: bytes) -> str | None:
    """What separates the columns of a CSV file, if one of them is that of the tool."""
    text = line.decode("cp1252", "replace").strip()
    for delimiter in ",;\t|":
        try:
            names = next(csv.reader([text], delimiter=delimiter, strict=True), [])
        except csv.Error:
            continue
        if len(names) > 1 and {name.strip() for name in names} & set(COLUMNS_OF_TOOLS):
            return delimiter
    return None


class _TooLargeError(Exception):
    """An element is larger than `MAX_RECORD`."""


class _BrokenError(Exception):
    """The text is no JSON from here on. `is_torn` if it breaks off."""

    def __init__(self, *, is_torn: bool) -> None:
        super().__init__(is_torn)
        self.is_torn = is_torn


_SPACE = re.compile(r"[\s,\x1e]*")
_NEXT = re.compile(r"\n(?=\{)")


class _Document:
    """A reader of JSON documents, one after the other, by their elements."""

    def __init__(self, name: str, file: BinaryIO, problems: Problems, done: Callable[[], None]) -> None:
        self._name = name
        self._text = ""
        self._at = 0
        self._file = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
        self._is_over = False
        self._problems = problems
        self._done = done
        self._count = 0
        self._group = 0

    def records(self) -> Iterator[Record]:
        """The records of all documents."""
        try:
            while self._peek():
                self._group += 1
                try:
                    yield from self._array(0) if self._peek() == "[" else self._element(0)
                except _BrokenError as error:
                    place = f"{self._name}, behind record {self._count}"
                    if error.is_torn:
                        self._problems.add(Problem.TORN, place)
                    elif self._skip():
                        self._problems.add(Problem.BROKEN, place)
                        continue
                    else:
                        self._problems.add(Problem.LOST_REST, place)
                    return
        finally:
            self._file.detach()  # whose it is closes it

    def _element(self, depth: int) -> Iterator[Record]:
        try:
            value = self._value()
        except _TooLargeError:
            if depth > 8:
                raise _BrokenError(is_torn=False) from None
            yield from self._array(depth + 1) if self._peek() == "[" else self._object(depth + 1)
            return
        self._count += 1
        yield Record(value, f"record {self._count}", self._group)

    def _array(self, depth: int) -> Iterator[Record]:
        self._at += 1
        while (char := self._peek()) != "]":
            if not char:
                raise _BrokenError(is_torn=True)
            yield from self._element(depth)
        self._at += 1

    def _object(self, depth: int) -> Iterator[Record]:
        """The elements of the arrays of an object; its other members are left out."""
        self._at += 1
        while (char := self._peek()) != "}":
            if char != '"':
                raise _BrokenError(is_torn=not char)
            self._value()
            if self._peek() != ":":
                raise _BrokenError(is_torn=not self._peek())
            self._at += 1
            if self._peek() == "[":
                yield from self._array(depth)
            else:
                try:
                    self._value()
                except _TooLargeError:
                    yield from self._object(depth + 1)
        self._at += 1

    def _value(self) -> Any:
        """The value that begins here."""
        while True:
            try:
                value, end = _python_decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - 8
                if self._is_over or not is_cut:
                    raise _BrokenError(is_torn=self._is_over and is_cut) from None
            except RecursionError:
                raise _BrokenError(is_torn=False) from None
            else:
                if end < len(self._text) or self._is_over:
                    text = self._text[self._at : end]
                    self._at = end
                    return _without_surrogates(value, text)
            if len(self._text) - self._at > MAX_RECORD:
                raise _TooLargeError
            self._more(len(self._text) - self._at)

    def _peek(self) -> str:
        """The next character that is no space and no comma; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_over:
                return ""
            self._more(0)

    def _more(self, size: int) -> None:
        part = self._file.read(max(size, _CHUNK))
        self._is_over = not part
        self._text = self._text[self._at :] + part
        self._at = 0
        self._done()

    def _skip(self) -> bool:
        """Go to the next line that begins an object. False if there is none."""
        while (found := _NEXT.search(self._text, self._at + 1)) is None:
            self._at = max(0, len(self._text) - 1)
            if self._is_over:
                return False
            self._more(0)
        self._at = found.end()
        return True
