"""The files of a log as records, one at a time: JSON Lines and JSON documents, also compressed by gzip.

What a file is decides its content. A line that is no JSON, in a file of JSON Lines, is left out and counted. The
elements of an array are records of their own.
"""

from __future__ import annotations

import glob
import gzip
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
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

__all__ = [
    "MAX_RECORD", "NAMES_OF_TOOLS", "LogFile", "Problem", "Problems", "Record", "Scratch", "decoded", "files_of",
]  # fmt: skip

MAX_RECORD = 64 * 1024 * 1024
"""Bytes of the largest line that is read as a record."""
_CHUNK = 256 * 1024
_BOM = b"\xef\xbb\xbf"
_SNIFFED_LINES = 100

NAMES_OF_TOOLS: Final = ("tool", "tool_name", "toolName", "name", "function")
"""Keys of a record that has the name of the tool; the first that is there."""


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
        value: a JSON value.
        place: of the record in the file: ``"line 7"``.
        group: the number of the document that it is a part of. Records of JSON Lines are in one group.
    """

    value: Any
    place: str
    group: int = 0


Shape: TypeAlias = Literal["lines", "document", "recording", "unknown", "empty"]

_MAGIC = (
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd; decompress it"),
    (b"PK\x03\x04", "it is a zip archive; unpack it"),
    (b"BZh", "it is compressed by bzip2; decompress it"),
    (b"\xfd7zXZ\x00", "it is compressed by xz; decompress it"),
    (b"PAR1", "it is Parquet; export it as JSON Lines"),
    (b"SQLite format 3", "it is a database of SQLite; export it as JSON Lines"),
    (b"\xff\xfe", "it is UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "it is UTF-16; save it as UTF-8"),
)
_RECORDINGS = (b'{"agent_cache_cassette"', b'{"agent_cache_journal"')


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

    def __post_init__(self) -> None:
        """Look how large it is."""
        try:
            self.size = self.path.stat().st_size
        except OSError:
            pass  # `examine` says so

    def examine(self) -> None:
        """Find out what it is: `shape`, and the `reason` if it cannot be read. Nothing is raised."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                self.reason = "it is not a regular file"
                return
            with self._opened() as (file, _):
                head = file.read(16)
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
        with self._opened() as (file, raw):
            return self.path if file is raw else scratch.spooled(parts_of(file))

    @contextmanager
    def _opened(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Its content, decompressed and without a byte order mark, and the file under that, which has the position."""
        with self.path.open("rb") as raw:
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
        with self._opened() as (file, raw):

            def done() -> None:
                if progress is not None:
                    progress(min(self.size, raw.tell()))

            try:
                if self.shape == "lines":
                    yield from self._lines(file, problems, done)
                else:
                    yield from _records_of_documents(self.name, _text_of(file, self.name, problems), problems)
                    done()
            except (OSError, EOFError, zlib.error) as error:
                problems.add(Problem.LOST_REST, f"{self.name}: {_reason(error)}")

    def _sniff(self) -> None:
        with self._opened() as (file, _):
            lines: list[bytes] = []
            while len(lines) < _SNIFFED_LINES and (line := file.readline(MAX_RECORD if not lines else _CHUNK)):
                if line.strip():
                    lines.append(line)
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
        elif any(isinstance(decoded(line), dict) for line in lines if line.lstrip()[:1] == b"{"):
            self.shape = "lines"
        else:
            self.reason = "it is no JSON"

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


# Documents


def _text_of(file: BinaryIO, name: str, problems: Problems) -> str:
    """The whole text of a file; of one whose compressed content breaks off, what comes before."""
    parts: list[bytes] = []
    try:
        parts.extend(parts_of(file))
    except (OSError, EOFError, zlib.error) as error:
        problems.add(Problem.LOST_REST, f"{name}: {_reason(error)}")
    return b"".join(parts).decode(errors="replace")


_SPACE = re.compile(r"[\s,\x1e]*")
_NEXT = re.compile(r"\n(?=\{)")


def _records_of_documents(name: str, text: str, problems: Problems) -> Iterator[Record]:
    """The records of JSON documents, one after the other: the elements of an array, or the document itself."""
    at = group = count = 0
    is_array = False
    while (at := cast("re.Match[str]", _SPACE.match(text, at)).end()) < len(text) or is_array:
        character = text[at : at + 1]
        if character == ("]" if is_array else "["):
            is_array, at = not is_array, at + 1
            group += is_array
            continue
        try:
            value, end = _python_decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            place = f"{name}, behind record {count}"
            is_torn = isinstance(error, json.JSONDecodeError) and (
                error.msg.startswith("Unterminated") or error.pos >= len(text) - 8
            )
            after = None if is_torn or is_array else _NEXT.search(text, at + 1)
            problem = Problem.TORN if is_torn else Problem.BROKEN if after else Problem.LOST_REST
            problems.add(problem, place)
            if after is None:
                return
            at = after.end()
            continue
        group += not is_array
        count += 1
        yield Record(_without_surrogates(value, text[at:end]), f"record {count}", group)
        at = end
