"""The files of a baseline: one recording, or a folder of accepted runs, whose differences a comparison tolerates.

A folder has its runs as ``1.jsonl``, ``2.jsonl`` and so on. A run is written before an old one is deleted, and never
over a run that another process has added meanwhile.
"""

from __future__ import annotations

import os
import secrets
from itertools import count
from pathlib import Path
from typing import NamedTuple

from agent_cache.errors import CassetteError, CassetteNotFound
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.partial_file import replace_file

__all__ = ["accepted_runs", "is_folder_of_runs", "store_run"]

_SUFFIX = ".jsonl"
_SUFFIXES = (_SUFFIX, ".json")


class StoredRun(NamedTuple):
    """A run that was accepted.

    Attributes:
        path: its file.
        removed: files of older runs that it has replaced. If its own is among them, that was overwritten.
    """

    path: Path
    removed: tuple[Path, ...]


def is_folder_of_runs(path: Path) -> bool:
    """Whether a baseline at this path is a folder of runs. One that does not exist yet is a file if it is named so."""
    return path.is_dir() or (not path.is_file() and path.suffix not in _SUFFIXES)


def accepted_runs(path: Path) -> list[Path]:
    """The recordings of a baseline: the file itself, or every ``*.jsonl`` directly in a folder, by number and name.

    Raises:
        CassetteNotFound: if there is no such file or folder, or no run in the folder.
    """
    if not is_folder_of_runs(path):
        if not path.exists():
            raise CassetteNotFound("there is no baseline", path)
        return [path]
    if not path.is_dir():
        raise CassetteNotFound("there is no baseline", path)
    found = [one for one in path.glob(f"*{_SUFFIX}") if not one.is_dir()]
    if not found:
        raise CassetteNotFound("there is no accepted run in this folder", path)
    return sorted(found, key=lambda one: (int(one.stem) if one.stem.isdecimal() else 0, one.name))


def store_run(run: Cassette, path: Path, *, replaces: bool = False) -> StoredRun:
    """Write an accepted run to a baseline.

    Args:
        run: the recording.
        path: the baseline, a file or a folder. Directories are created.
        replaces: whether it takes the place of all runs that are there; else it is one more, if it is a folder.

    Raises:
        CassetteError: if it cannot be written, or there is a run at the path of a file, and it replaces none.
    """
    if not is_folder_of_runs(path):
        is_old = path.exists()
        if is_old and not replaces:
            raise CassetteError("is the file of one run; to keep several, accept them to a folder", path)
        _write(run, path)
        return StoredRun(path, (path,) if is_old else ())
    old = accepted_runs(path) if replaces and any(path.glob(f"*{_SUFFIX}")) else []
    if not old:
        return StoredRun(_add(run, path), ())
    target = path / f"1{_SUFFIX}"
    _write(run, target)
    for one in old:
        if one != target:
            try:
                one.unlink(missing_ok=True)
            except OSError as error:
                raise CassetteError(f"cannot be deleted: {error.strerror}", one) from error
    return StoredRun(target, tuple(old))


def _write(run: Cassette, target: Path) -> None:
    """Write a file in one step, what is in both in the order of the old one, so that git shows what has changed."""
    replace_file(target, run.lines(like=target))


def _add(run: Cassette, folder: Path) -> Path:
    """Write a run under the first number that is free, also if other processes do so at the same time."""
    written = folder / f"{secrets.token_hex(8)}.adding"
    run.save(written)
    try:
        for number in count(1):
            target = folder / f"{number}{_SUFFIX}"
            try:
                os.link(written, target)
            except FileExistsError:
                continue
            except OSError as error:
                raise CassetteError(f"cannot be written: {error.strerror}", target) from error
            return target
    finally:
        written.unlink(missing_ok=True)
    raise AssertionError("there are infinitely many numbers")
