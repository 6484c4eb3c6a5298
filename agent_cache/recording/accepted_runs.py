"""The files of a baseline: one recording, or a folder of accepted runs, whose differences a comparison tolerates.

A folder has its runs as ``1.jsonl``, ``2.jsonl`` and so on. A run is written before an old one is deleted, and never
over a run that another process has added meanwhile.
"""

from __future__ import annotations

import os
import secrets
from itertools import count
from pathlib import Path

from agent_cache.errors import CassetteError, CassetteNotFound
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.partial_file import replace_file


def is_folder_of_runs(path: Path) -> bool:
    """Whether a baseline at this path is a folder of runs. One that does not exist yet is a file if it is named so."""
    return path.is_dir() or (not path.is_file() and path.suffix not in (".jsonl", ".json"))


def accepted_runs(path: Path) -> list[Path]:
    """The recordings of a baseline: the file itself, or every ``*.jsonl`` directly in a folder, by number and name."""
    if path.is_file():
        return [path]
    found = [one for one in path.glob("*.jsonl") if one.is_file()]
    if not found:
        raise CassetteNotFound("there is no baseline" if not path.is_dir() else "has no accepted run", path)
    return sorted(found, key=lambda one: (int(one.stem) if one.stem.isdecimal() else 0, one.name))


def store_run(run: Cassette, path: Path, *, replaces: bool = False) -> tuple[Path, list[Path]]:
    """Write an accepted run to a baseline, and return its path and those of the runs that it has replaced."""
    is_folder = is_folder_of_runs(path)
    old = accepted_runs(path) if path.is_file() or any(path.glob("*.jsonl")) else []
    if old and not is_folder and not replaces:
        raise CassetteError("is the file of one run; to keep several, accept them to a folder", path)
    if is_folder and not (old and replaces):
        return _add(run, path), []
    target = path / "1.jsonl" if is_folder else path
    replace_file(target, run.lines(like=target))  # in the order of the old one, so that git shows what has changed
    for one in old:
        if one != target:
            one.unlink(missing_ok=True)
    return target, old


def _add(run: Cassette, folder: Path) -> Path:
    """Write a run under the first number that is free, also if other processes do so at the same time."""
    written = folder / f"{secrets.token_hex(8)}.adding"
    run.save(written)
    try:
        for number in count(1):
            try:
                os.link(written, folder / f"{number}.jsonl")
            except FileExistsError:
                continue
            return folder / f"{number}.jsonl"
        raise AssertionError
    finally:
        written.unlink()
