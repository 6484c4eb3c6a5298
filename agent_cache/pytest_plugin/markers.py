"""Reads which cassette and which baseline a test has and how they are used, from markers, the `agent_cache_config`
fixture and options.

A cassette is at ``<folder of the test file>/cassettes/<module>/<Class.test>.jsonl`` unless a marker gives its name or
path. No two tests have one by accident, also where a file system ignores case. Cassettes in such folders that no
collected test uses are *orphans*. A baseline is at ``<folder of the test file>/baselines/<module>/<Class.test>``, a
folder of accepted runs, unless the marker gives its paths.

Every test run of every project with this package installed imports this module: it imports nothing of the library.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = [
    "BASELINE_MODES",
    "MODES",
    "BaselineMarkers",
    "CassetteMarkers",
    "Settings",
    "baseline_markers",
    "baseline_paths",
    "cassette_markers",
    "cassette_path",
    "check_names",
    "find_orphans",
    "settings_of",
]

MODES = ("none", "once", "new_episodes", "all", "rewrite")

BASELINE_MODES = ("compare", "once", "add", "accept")

_MARKERS = ("agent_cassette", "replay")
_OPTIONS = ("mode", "strict", "allow_unplayed", "empty_cache", "redact", "policy", "model", "http")
_BASELINE_OPTIONS = ("tolerance", "fail_on", "redact", "http")
_SEVERITIES = ("info", "warning", "critical")
_FLAGS = frozenset({"strict", "allow_unplayed", "empty_cache"})
_SUFFIX = ".jsonl"

# Other characters are unsafe on some file system or in some shell. `\w` would allow letters that some file systems
# store in another form than they were given.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+@\[\]-]+")
_LONGEST = 120


class CassetteMarkers(NamedTuple):
    """The markers of one test, combined.

    Attributes:
        name: name of its cassette in the folder of its module, or None.
        path: path of its cassette from the folder of the test file, or None.
        options: those of `_OPTIONS` that were given.
    """

    name: str | None
    path: str | None
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a cassette is used.

    Attributes:
        mode: one of `MODES`.
        allow_unplayed: whether recorded calls may be left over.
        empty_cache: whether the test starts with an empty cache, so that its recording does not depend on other tests.
        strict, redact, policy, model, http: as `agent_cache.recording.record` takes them.
    """

    mode: str
    strict: bool
    allow_unplayed: bool
    empty_cache: bool
    redact: Any
    policy: Mapping[str, str] | None
    model: str | None
    http: Any


def cassette_markers(item: pytest.Item) -> CassetteMarkers | None:
    """Combine the markers of a test, of each option the closest one; None if there are none.

    Raises:
        pytest.UsageError: if one has wrong arguments.
    """
    found = [mark for mark in item.iter_markers() if mark.name in _MARKERS]
    if not found:
        return None
    name = path = None
    options: dict[str, Any] = {}
    for mark in found:
        mark_name, mark_path, mark_options = _read(mark, item.nodeid)
        if name is None and path is None:
            name, path = mark_name, mark_path
        options = {**mark_options, **options}
    return CassetteMarkers(name, path, options)


def _read(mark: pytest.Mark, test: str) -> CassetteMarkers:
    label = f"{test}: @pytest.mark.{mark.name}"
    options = dict(mark.kwargs)
    subject = "path" if mark.name == "replay" else "name"
    if len(mark.args) > 1 or (mark.args and subject in options):
        raise pytest.UsageError(f"{label} takes one {subject}")
    name = options.pop("name", None) if subject == "name" else None
    path = options.pop("path", None)
    if mark.args:
        name, path = (None, mark.args[0]) if subject == "path" else (mark.args[0], path)
    if mark.name == "replay" and path is None:
        raise pytest.UsageError(f'{label} needs the path of a cassette: @pytest.mark.replay("fixtures/x.jsonl")')
    if name is not None and path is not None:
        raise pytest.UsageError(f"{label} takes a name or a path, and was given both")
    if name is not None and (not isinstance(name, str) or not name.strip("./")):
        raise pytest.UsageError(f"{label}: the name of a cassette must be a text, got {name!r}")
    if path is not None and (not isinstance(path, str | os.PathLike) or not os.fspath(path)):
        raise pytest.UsageError(f"{label}: path must be the path of a cassette, got {path!r}")
    _check_options(options, label)
    return CassetteMarkers(name, None if path is None else os.fspath(path), options)


def _check_options(options: Mapping[Any, Any], label: str) -> None:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise pytest.UsageError(f"{label} does not know {name!r}; it knows {', '.join(_OPTIONS)}")
        if name == "mode" and value not in MODES:
            raise pytest.UsageError(f"{label}: mode must be one of {', '.join(MODES)}, got {value!r}")
        if name in _FLAGS and not isinstance(value, bool):
            raise pytest.UsageError(f"{label}: {name} must be True or False, got {value!r}")


def settings_of(config: pytest.Config, fixture: Any, markers: CassetteMarkers | None) -> Settings:
    """Combine all sources: the command line before the fixture, that before markers, these before the ini file.

    Raises:
        pytest.UsageError: if the fixture returned something that is no dict of options.
    """
    label = "the fixture agent_cache_config"
    if not isinstance(fixture, Mapping):
        raise pytest.UsageError(f"{label} must return a dict, got {fixture!r}")
    _check_options(fixture, label)
    options: dict[str, Any] = {
        "mode": config.getini("agent_record_mode"),
        "strict": config.getini("agent_cassette_strict"),
        "allow_unplayed": config.getini("agent_allow_unplayed"),
        "empty_cache": config.getini("agent_empty_cache"),
        "redact": config.getini("agent_cassette_redact") or None,
        "http": config.getini("agent_http") or None,
        **({} if markers is None else markers.options),
        **fixture,
    }
    if (mode := config.getoption("agent_record_mode")) is not None:
        options["mode"] = mode
    return Settings(**{name: options.get(name) for name in _OPTIONS})  # type: ignore[arg-type]  # checked one by one


# Paths of cassettes


def _cassette_folder(config: pytest.Config, file: Path) -> Path:
    """The folder for the cassettes of all test files in the same folder."""
    return file.parent / str(config.getini("agent_cassette_dir"))


def cassette_path(item: pytest.Item, markers: CassetteMarkers | None) -> Path:
    """Return the path of a test's cassette."""
    name, path, _ = markers or (None, None, None)
    if path is not None:
        return item.path.parent / path
    folder = _cassette_folder(item.config, item.path) / item.path.stem
    if name is None:
        before = _file_name(_name_of(item)) + _SUFFIX
        name = _file_name(_name_of(item), has_digest=item.name != item.name.lower()) + _SUFFIX
        if name != before and _exists(folder / before):  # recorded when this name had no digest
            name = before
    elif not name.endswith((_SUFFIX, ".json")):
        name += _SUFFIX
    return folder / name


def _name_of(item: pytest.Item) -> str:
    """The name of a test in its module."""
    classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    return ".".join((*classes, item.name))


def check_names(tests_by_cassette: Mapping[Path, list[str]]) -> None:
    """Refuse names of cassettes that differ by case alone.

    Both may be there already: then this file system tells them apart.

    Raises:
        pytest.UsageError: if there are any.
    """
    found: dict[str, Path] = {}
    for path, tests in tests_by_cassette.items():
        other = found.setdefault(str(path).casefold(), path)
        if other != path and not (_exists(path) and _exists(other)):
            raise pytest.UsageError(
                f"{tests_by_cassette[other][0]} and {tests[0]}: their cassettes {other.name} and {path.name} are one "
                "file where the file system ignores case; give one of them another name"
            )


def _exists(path: Path) -> bool:
    """Whether there is a file of exactly this name, also if the file system ignores case."""
    return path.exists() and any(one.name == path.name for one in path.parent.iterdir())


def _file_name(name: str, *, has_digest: bool = False) -> str:
    """Replace what is unsafe in a file name, and add a digest, so that two names never become one."""
    safe = _UNSAFE.sub("-", name)
    if safe == name and len(name) <= _LONGEST and not has_digest:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST]}-{digest}"


# Baselines


class BaselineMarkers(NamedTuple):
    """The `agent_baseline` markers of one test, combined.

    Attributes:
        paths: of its baselines, from the folder of the test file; empty for the test's own.
        options: those of `_BASELINE_OPTIONS` that were given.
    """

    paths: tuple[str, ...]
    options: dict[str, Any]


def baseline_markers(item: pytest.Item) -> BaselineMarkers | None:
    """Combine the `agent_baseline` markers of a test, of each option the closest one; None if there are none.

    Raises:
        pytest.UsageError: if one has wrong arguments.
    """
    paths: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    found = list(item.iter_markers("agent_baseline"))
    for mark in found:
        label = f"{item.nodeid}: @pytest.mark.agent_baseline"
        for path in mark.args:
            if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(path):
                raise pytest.UsageError(f"{label} takes paths of baselines, got {path!r}")
        for name, value in mark.kwargs.items():
            _check_baseline_option(name, value, label)
        paths = paths or tuple(map(os.fspath, mark.args))
        options = {**mark.kwargs, **options}
    return BaselineMarkers(paths, options) if found else None


def _check_baseline_option(name: str, value: Any, label: str) -> None:
    if name not in _BASELINE_OPTIONS:
        raise pytest.UsageError(
            f"{label} does not know {name!r}; it takes paths, and knows {', '.join(_BASELINE_OPTIONS)}"
        )
    if name == "fail_on" and value not in _SEVERITIES:
        raise pytest.UsageError(f"{label}: fail_on must be one of {', '.join(_SEVERITIES)}, got {value!r}")
    is_path = isinstance(value, str | os.PathLike) and bool(os.fspath(value))
    if name == "tolerance" and not is_path and type(value).__name__ != "Tolerance":
        raise pytest.UsageError(f"{label}: tolerance must be a Tolerance, or the path of a file of one, got {value!r}")


def baseline_paths(item: pytest.Item, markers: BaselineMarkers) -> list[Path]:
    """Return the paths of a test's baselines."""
    if markers.paths:
        return [item.path.parent / path for path in markers.paths]
    folder = item.path.parent / str(item.config.getini("agent_baseline_dir")) / item.path.stem
    return [folder / _file_name(_name_of(item), has_digest=item.name != item.name.lower())]


# Orphans


def find_orphans(config: pytest.Config, used: Iterable[Path], files: Iterable[Path]) -> list[Path]:
    """List the cassettes that no collected test uses.

    Only complete collections count: those of a folder, or of a file without ``::``.

    Args:
        config: of the run.
        used: cassettes of every collected test, deselected ones included.
        files: files that tests were collected from.
    """
    if any("::" in str(one) for one in config.args):
        return []
    used = {path.resolve() for path in used}
    collected = {file.resolve() for file in files}
    arguments = [config.invocation_params.dir / str(one) for one in config.args]
    roots = [path.resolve() for path in arguments if path.is_dir()]
    found: set[Path] = set()
    for folder in {_cassette_folder(config, file) for file in collected} | set(_folders_below(roots, config)):
        is_complete = any(folder.is_relative_to(root) for root in roots)
        for path in folder.rglob(f"*{_SUFFIX}") if folder.is_dir() else ():
            module, *below = path.relative_to(folder).parts
            is_collected = is_complete or (folder.parent / f"{module}.py").resolve() in collected
            if below and is_collected and path.resolve() not in used:  # a file directly in the folder is not ours
                found.add(path)
    return sorted(found)


def _folders_below(roots: list[Path], config: pytest.Config) -> Iterator[Path]:
    """Yield folders of cassettes, those included whose last test file was deleted."""
    name = str(config.getini("agent_cassette_dir"))
    if Path(name).is_absolute() or len(Path(name).parts) != 1:
        return
    skipped = config.getini("norecursedirs")
    pending = list(roots)
    while pending:
        for entry in pending.pop().iterdir():
            if not entry.is_dir():
                continue
            if entry.name == name:
                yield entry
            elif not (
                entry.is_symlink()
                or any(fnmatch.fnmatch(entry.name, pattern) for pattern in skipped)
                or (entry / "pyvenv.cfg").exists()
            ):
                pending.append(entry)
