"""Reads logs of tool calls into one time line, by `agent_cache.advise.forms`.

Everything is kept in memory: 100,000 calls with results of a kilobyte take about half a gigabyte.
"""

from __future__ import annotations

import glob
import gzip
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.advise.calls import UNKNOWN, LoggedCall
from agent_cache.advise.forms import FORMS, Form, Found, Problems, Reader
from agent_cache.errors import ConfigurationError

__all__ = ["Log", "files_of", "read_log"]


@dataclass(slots=True)
class Log:
    """The calls of some logs, in the order in which they ended."""

    calls: list[LoggedCall]
    notes: list[str]
    problems: list[str]


def read_log(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    form: Form | None = None,
    progress: Callable[[int], None] | None = None,
) -> Log:
    """The calls of tools in some logs."""
    if form is not None and form not in FORMS:
        raise ConfigurationError(f"read_log: form must be one of {', '.join(map(repr, FORMS))}, got {form!r}")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ConfigurationError("read_log: no path was given")
    files, problems, contents, done = files_of(given), Problems(), set[bytes](), 0
    found: list[tuple[float, int, int, Found]] = []
    for number, (name, path) in enumerate(files):
        try:
            data = sys.stdin.buffer.read() if path is None else path.read_bytes()
            data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "its content breaks off"
            problems.add(f"files that cannot be read ({reason}) were left out", name)
            continue
        done += len(data)
        digest = blake2b(data, digest_size=16).digest()
        if data and digest in contents:
            problems.add("files that are the same as another were left out", name)
        else:
            contents.add(digest)
            found += _placed(number, list(Reader(name, form, problems).calls(data)))
        if progress is not None:
            progress(done)
    found.sort(key=lambda one: one[:3])
    calls = [one.call for one in _without_doubles(found, problems)]
    return Log(calls, _facts(calls, len(files)), problems.sentences())


def files_of(paths: Iterable[str | os.PathLike[str]]) -> list[tuple[str, Path | None]]:
    """The files that are meant, each once, in the order of their names; None for the standard input."""
    found: dict[str, tuple[str, Path | None]] = {}
    for given in paths:
        text = os.fspath(given)
        if text == "-":
            found["-"] = ("standard input", None)
            continue
        path = Path(text)
        inside = [path] if path.exists() else [Path(one) for one in glob.glob(text, recursive=True)]  # noqa: PTH207 - a pattern may be absolute
        if path.is_dir():
            parts = ((one, one.relative_to(path).parts) for one in path.rglob("*"))
            inside = [one for one, own in parts if one.is_file() and not any(name.startswith(".") for name in own)]
        if not inside:
            what = "file in the directory" if path.is_dir() else "file fits" if glob.has_magic(text) else "file"
            raise FileNotFoundError(f"there is no {what} {text!r}")
        for one in inside:
            if not one.is_dir():
                found.setdefault(os.path.realpath(one), (str(one), one))
    return sorted(found.values(), key=lambda file: (_natural(file[0]), file[0]))


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which ``run-2`` stands before ``run-10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _moment_of(call: LoggedCall) -> float | None:
    return call.started if call.ended is None else call.ended


def _placed(file: int, found: list[Found]) -> list[tuple[float, int, int, Found]]:
    """Calls with their place in the time line: one without a time stands behind the one above it, the first ones
    before the first with a time, and a file without any time behind all others.
    """
    moments = [_moment_of(one.call) for one in found]
    latest = min((moment for moment in moments if moment is not None), default=float("inf"))
    placed = []
    for position, (one, moment) in enumerate(zip(found, moments, strict=True)):
        latest = latest if moment is None else moment
        placed.append((latest, file, position, one))
    return placed


def _without_doubles(found: list[tuple[float, int, int, Found]], problems: Problems) -> Iterator[Found]:
    """The calls without those that are there twice: with one id, or the same at the same time in two files."""
    known: dict[Any, int] = {}
    for _, file, position, one in found:
        call = one.call
        if one.identity or call.ended is not None:
            answer = None if call.result is UNKNOWN else call.result
            when = one.identity or (call.started, call.ended)
            key = when, call.tool, call.error, msgspec.json.encode([call.arguments, answer])
            first = known.get(key)
            if first is not None and (one.identity or first != file):  # two equal calls of one file are two calls
                problems.add("calls that are there twice were counted once", f"file {file + 1}, call {position + 1}")
                continue
            known[key] = file
        yield one


def _facts(calls: list[LoggedCall], files: int) -> list[str]:
    if not calls:
        return ["no call of a tool was found: nothing can be concluded"]
    tools, runs = len({call.tool for call in calls}), len({call.run for call in calls})
    counts = [
        f"{number:,} {noun}{'' if number == 1 else 's'}"
        for number, noun in ((len(calls), "call"), (tools, "tool"), (runs, "run"), (files, "file"))
    ]
    kinds = {call.kind for call in calls}
    facts = {
        "read {} of {} in {}, from {}".format(*counts): True,
        "no call has an answer: no change can be seen, so no rule can have evidence": all(
            call.result is UNKNOWN for call in calls
        ),
        "no call has arguments: which calls are the same is not known": not any(call.is_keyed for call in calls),
        "the log does not say which tools write: that takes evidence or hints": kinds == {None},
        "no call is a write: what changes answers cannot be seen": kinds == {"read"},
        "no call is a read: there is nothing to cache": kinds == {"write"},
        "no call has a time: runs are taken one after another, in the order of the files": all(
            _moment_of(call) is None for call in calls
        ),
    }
    return [text for text, is_so in facts.items() if is_so]
