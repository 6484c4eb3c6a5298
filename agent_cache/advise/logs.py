"""Logs of tool calls, read as one time line: `open_logs`.

The calls of all files come in the order in which they ended. They are kept in memory as compact bytes: 100,000 calls
with results of a kilobyte take 130 MB.
"""

from __future__ import annotations

import marshal
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from hashlib import blake2b, file_digest
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Self

import msgspec

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.advise.fields import Found
from agent_cache.advise.forms import FORMS, Form, calls_of_file
from agent_cache.advise.records import LogFile, Problem, Problems, Scratch, files_of
from agent_cache.errors import ConfigurationError

__all__ = ["CallLog", "Note", "open_logs"]

_SKEW = 1e-3


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence about a log.

    Attributes:
        text: the sentence, without values of the log except for names of files, tools and numbers of lines.
        level: ``"read"`` for what was read, ``"missing"`` for what the log does not have and what follows from that,
            ``"problem"`` for what is wrong with it.
    """

    text: str
    level: Literal["read", "missing", "problem"]

    def __str__(self) -> str:
        return self.text


def open_logs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    form: Form | None = None,
    progress: Callable[[int], None] | None = None,
) -> CallLog:
    """The calls of tools in some logs. Nothing is read yet, except for the standard input.

    Args:
        paths: files, directories, patterns such as ``logs/*.jsonl``, and ``-`` for the standard input. Compressed
            files (gzip) are read, too. What a file is decides its content.
        form: what the records are, if their content does not tell: ``"recording"``, ``"messages"``, ``"spans"`` or
            ``"calls"``.
        progress: is called with the number of bytes that `CallLog.inspect` has read so far, of `CallLog.size`.

    Raises:
        FileNotFoundError: if a path is not there. The text says which.
        ConfigurationError: if `form` is none of these, or there is no path.
    """
    if form is not None and form not in FORMS:
        raise ConfigurationError(f"open_logs: form must be one of {', '.join(map(repr, FORMS))}, got {form!r}")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ConfigurationError("open_logs: no path was given")
    scratch = Scratch()
    return CallLog(files_of(given, scratch), scratch, form, progress)


class _Entry(NamedTuple):
    """A call in its place of the time line. Entries are compared by their first fields."""

    time: float
    file: int
    position: int
    run: str
    call: bytes
    mark: bytes
    has_identity: bool


class CallLog:
    """The calls of some logs, in the order of one time line. It can be iterated over again and again.

    Calls are in the order of `LoggedCall.ended`, or of `started` where the log has no end. A call without a time stands
    behind the one above it in its file. Files without any time come last, each as a whole, in the order of their names.

    Args:
        files: the files.
        scratch: a place for what came from the standard input, and for recordings that are compressed.
        form: what their records are; None to decide by their content.
        progress: as in `open_logs`.

    Attributes:
        size: bytes of all files.
    """

    def __init__(
        self,
        files: list[LogFile],
        scratch: Scratch,
        form: Form | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.size = sum(file.size for file in files)
        self._files = files
        self._scratch = scratch
        self._form = form
        self._progress = progress
        self._problems = Problems()
        self._entries: list[_Entry] | None = None
        self._facts: list[Note] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was written to the temporary directory. Otherwise this happens with the end of the object."""
        self._scratch.close()

    @property
    def count(self) -> int:
        """The number of calls."""
        return len(self._read())

    @property
    def is_timed(self) -> bool:
        """Whether every call has a time."""
        return all(_moment(call) is not None for call in self)

    def inspect(self) -> None:
        """Read all of it. Does nothing if that was done."""
        self._read()

    def __iter__(self) -> Iterator[LoggedCall]:
        for entry in self._read():
            yield _unpacked(entry.call)

    @property
    def notes(self) -> list[Note]:
        """What was read, what is missing, and what is wrong, a sentence each. The log is read for it."""
        self._read()
        found = list(self._facts)
        for problem in self._problems:
            number, first = self._problems.number(problem), self._problems.first(problem)
            if problem is not Problem.WHOLE_SECONDS or number > 1:
                found.append(Note(f"{problem.text}: {number:,} (first: {first})", problem.level))
        order = ("read", "missing", "problem")
        return sorted(found, key=lambda note: order.index(note.level))

    def _read(self) -> list[_Entry]:
        if self._entries is None:
            self._leave_out_unreadable()
            figures = _Figures()
            entries: list[_Entry] = []
            done = 0
            for number, file in enumerate(self._files):
                if not file.reason and file.shape != "empty":
                    entries += self._entries_of(file, number, done, figures)
                    done += file.size
            entries.sort()
            self._entries = list(self._without_duplicates(entries))
            self._facts = figures.notes(len(self._entries))
            if self._progress is not None:
                self._progress(self.size)
        return self._entries

    def _leave_out_unreadable(self) -> None:
        """Decide what each file is, and which are left out."""
        seen: set[bytes] = set()
        sizes = [file.size for file in self._files]
        for file in self._files:
            file.examine()
            if file.reason:
                problem = Problem.UNREADABLE if "read" in file.reason else Problem.UNKNOWN_FILE
                self._problems.add(problem, f"{file.name}: {file.reason}")
            elif file.shape == "empty":
                self._problems.add(Problem.EMPTY, file.name)
            elif sizes.count(file.size) > 1:
                with file.path.open("rb") as content:
                    digest = file_digest(content, "blake2b").digest()
                if digest in seen:
                    file.reason = "it is the same as another"
                    self._problems.add(Problem.DUPLICATE_FILE, file.name)
                seen.add(digest)

    def _entries_of(self, file: LogFile, number: int, done: int, figures: _Figures) -> list[_Entry]:
        """The entries of a file; its calls and problems are counted. A call without a time has that of the one above
        it, the first ones the earliest of the file.
        """
        report, problems, name = self._progress, self._problems, file.name
        progress = None if report is None else lambda position: report(done + min(position, file.size))
        entries: list[_Entry] = []
        began_of_run: dict[str, float] = {}
        first = last = latest = None
        calls = calls_of_file(file, self._form, problems, self._scratch, time.time(), progress)
        for position, found in enumerate(calls):
            call = found.call
            figures.add(call, number)
            moment = _moment(call)
            if moment is not None:
                if last is not None and moment < last and file.shape != "recording":
                    problems.add(Problem.UNSORTED, f"{name}, {found.place}")
                first = moment if first is None else min(first, moment)
                last = moment if last is None else max(last, moment)
                latest = moment
                began = moment if call.started is None else call.started
                before = began_of_run.get(call.run)
                if before is not None and moment < before - _SKEW and found.is_in_order:
                    problems.add(Problem.RUN_BACKWARDS, f"{name}, {found.place}")
                began_of_run[call.run] = began if before is None else max(before, began)
            when = -math.inf if latest is None else latest
            entries.append(_Entry(when, number, position, call.run, _packed(call), _mark(found), bool(found.identity)))
        start = math.inf if first is None else first
        return [entry._replace(time=start) if entry.time == -math.inf else entry for entry in entries]

    def _without_duplicates(self, entries: list[_Entry]) -> Iterator[_Entry]:
        """The entries without those that are there twice: with one id, or the same at the same time in two files."""
        known: set[bytes] = set()
        latest = math.nan
        counts: dict[tuple[bytes, int], int] = {}
        shown: dict[bytes, int] = {}
        for entry in entries:
            if entry.has_identity:
                is_double = entry.mark in known
                known.add(entry.mark)
            elif math.isinf(entry.time):
                is_double = False
            else:
                if entry.time != latest:
                    latest = entry.time
                    counts.clear()
                    shown.clear()
                # Two equal calls of one file are two calls.
                key = entry.mark, entry.file
                counts[key] = counts.get(key, 0) + 1
                is_double = counts[key] <= shown.get(entry.mark, 0)
                shown[entry.mark] = max(counts[key], shown.get(entry.mark, 0))
            if is_double:
                self._problems.add(Problem.DUPLICATE, self._files[entry.file].name)
            else:
                yield entry


class _Figures:
    """Counts what the calls of a log have."""

    def __init__(self) -> None:
        self.calls = self.answers = self.keyed = 0
        self.times: list[float] = []
        self.kinds: set[str | None] = set()
        self.tools: set[str] = set()
        self.runs: set[str] = set()
        self.files: set[int] = set()

    def add(self, call: LoggedCall, file: int) -> None:
        """Count a call."""
        self.calls += 1
        self.answers += call.result is not UNKNOWN
        self.keyed += call.is_keyed
        if (moment := _moment(call)) is not None:
            self.times.append(moment)
        self.kinds.add(call.kind)
        self.tools.add(call.tool)
        self.runs.add(call.run)
        self.files.add(file)

    def notes(self, count: int) -> list[Note]:
        """What was read, and what is missing in it."""
        if not self.calls:
            return [Note("no call of a tool was found: nothing can be concluded", "missing")]
        span = f", from {_date_text(min(self.times))} to {_date_text(max(self.times))}" if self.times else ""
        tools, runs, files = len(self.tools), len(self.runs), len(self.files)
        read = f"read {_plural(count, 'call')} of {_plural(tools, 'tool')} in {_plural(runs, 'run')}"
        found = [Note(f"{read}, from {_plural(files, 'file')}{span}", "read")]
        missing = []
        if not self.answers:
            missing.append("no call has an answer: no change can be seen, so no rule can have evidence")
        if not self.keyed:
            missing.append("no call has arguments: which calls are the same is not known")
        if self.kinds == {None}:
            missing.append("the log does not say which tools write: that takes evidence or hints")
        elif None not in self.kinds and "write" not in self.kinds:
            missing.append("no call is a write: what changes answers cannot be seen")
        untimed = self.calls - len(self.times)
        if not self.times:
            missing.append("no call has a time: runs are taken one after another, in the order of the files")
        elif untimed:
            missing.append(
                f"{_plural(untimed, 'call')} without a time: each counts as made behind the one above it in its file; "
                "files without any time come last"
            )
        return found + [Note(text, "missing") for text in missing]


def _moment(call: LoggedCall) -> float | None:
    return call.started if call.ended is None else call.ended


def _mark(found: Found) -> bytes:
    """By what a call is known again: its id and what it did; without an id also its times."""
    call = found.call
    result = "" if call.result is UNKNOWN else [call.result]
    parts: list[Any] = [found.identity, call.tool, call.arguments, result, call.error]
    if not found.identity:
        parts += [call.started, call.ended]
    return blake2b(msgspec.json.encode(parts, order="deterministic"), digest_size=16).digest()


_NAMES = [one.name for one in fields(LoggedCall)]
_RESULT, _HINTS = _NAMES.index("result"), _NAMES.index("hints")
_fields_of = attrgetter(*_NAMES)


def _packed(call: LoggedCall) -> bytes:
    """A call as bytes: a third of the time that pickle takes."""
    parts = list(_fields_of(call))
    if call.result is UNKNOWN:
        parts[_RESULT] = ...
    parts[_HINTS] = dict(call.hints)
    return marshal.dumps(parts)


def _unpacked(data: bytes) -> LoggedCall:
    parts = marshal.loads(data)  # noqa: S302 - written by this process, into its own memory
    if parts[_RESULT] is ...:
        parts[_RESULT] = UNKNOWN
    return LoggedCall(*parts)


def _date_text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
