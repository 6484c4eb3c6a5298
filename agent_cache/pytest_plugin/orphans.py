"""Cassettes that no test uses any more."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from agent_cache.pytest_plugin.places import SUFFIX, folder_of

__all__ = ["orphans"]


def orphans(config: pytest.Config, used: Iterable[Path], files: Iterable[Path]) -> list[Path]:
    """Cassettes under the folders of these test files that no collected test uses, in order.

    Judged is only what was collected as a whole: a folder, or a file without ``::``.

    Args:
        config: of the run.
        used: cassettes of every test that was collected, deselected ones included.
        files: files that tests were collected from.
    """
    taken = {path.resolve() for path in used}
    collected = {file.resolve() for file in files}
    arguments = [config.invocation_params.dir / str(one).partition("::")[0] for one in config.args]
    if any("::" in str(one) for one in config.args):
        return []
    roots = [path.resolve() for path in arguments if path.is_dir()]
    found: set[Path] = set()
    for folder in {folder_of(config, file) for file in collected} | set(_cassette_folders(config, roots)):
        for path in folder.rglob(f"*{SUFFIX}") if folder.is_dir() else ():
            if path.resolve() not in taken and _is_judged(path, folder, collected, roots):
                found.add(path)
    return sorted(found)


def _is_judged(path: Path, folder: Path, collected: set[Path], roots: list[Path]) -> bool:
    parts = path.relative_to(folder).parts
    if len(parts) < 2:
        return False  # not where the plugin puts one: somebody's own
    in_reach = any(folder.is_relative_to(root) for root in roots)
    module = folder.parent / f"{parts[0]}.py"
    return in_reach or module.resolve() in collected


def _cassette_folders(config: pytest.Config, roots: list[Path]) -> Iterator[Path]:
    """Also of folders whose last test file is gone."""
    name = str(config.getini("agent_cassette_dir"))
    if Path(name).is_absolute() or len(Path(name).parts) != 1:
        return
    skipped = config.getini("norecursedirs")
    for root in roots:
        waiting = [root]
        while waiting:
            here = waiting.pop()
            for entry in here.iterdir():
                if entry.name == name and entry.is_dir():
                    yield entry
                elif (
                    entry.is_dir()
                    and not entry.is_symlink()
                    and not any(fnmatch.fnmatch(entry.name, pattern) for pattern in skipped)
                    and not (entry / "pyvenv.cfg").exists()
                ):
                    waiting.append(entry)
