"""Reads which cassette and which baseline a test has and how they are used, from markers, the `agent_cache_config`
fixture and options.

A cassette is at ``<folder of the test file>/cassettes/<module>/<Class.test>.jsonl`` unless a marker gives its name or
path. A baseline is at ``<folder of the test file>/baselines/<module>/<Class.test>``, a
folder of accepted runs, unless the marker gives its path.

Every test run of every project with this package installed imports this module: it imports nothing of the library.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MODES = ("none", "once", "new_episodes", "all", "rewrite")
BASELINE_MODES = ("compare", "once", "add", "accept")

_OPTIONS = ("mode", "strict", "allow_unplayed", "empty_cache", "redact", "policy", "model", "http")
_BASELINE_OPTIONS = ("tolerance", "fail_on", "redact", "http")
_VALUES = {
    "mode": MODES,
    "fail_on": ("info", "warning", "critical"),
    **dict.fromkeys(("strict", "allow_unplayed", "empty_cache"), (True, False)),
}
_SUFFIX = ".jsonl"

# Other characters are unsafe on some file system or in some shell. `\w` would allow letters that some file systems
# store in another form than they were given.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+@\[\]-]+")
_LONGEST = 120


class CassetteMarkers(NamedTuple):
    """The markers of one test, combined: name of its cassette in the folder of its module, its path from the folder of
    the test file, and those of `_OPTIONS` that were given.
    """

    name: str | None
    path: str | None
    options: dict[str, Any]


class BaselineMarkers(NamedTuple):
    """The `agent_baseline` markers of one test, combined: path of its baseline from the folder of the test file, none
    for the test's own, and those of `_BASELINE_OPTIONS` that were given.
    """

    path: str | None
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a cassette is used."""

    mode: str
    strict: bool
    allow_unplayed: bool
    empty_cache: bool
    redact: Any
    policy: Mapping[str, str] | None
    model: str | None
    http: Any


def cassette_markers(item: pytest.Item) -> CassetteMarkers | None:
    """Combine the markers of a test, of each option the closest one; None if there are none."""
    found = [mark for mark in item.iter_markers() if mark.name in ("agent_cassette", "replay")]
    name = path = None
    options: dict[str, Any] = {}
    for mark in found:
        label = f"{item.nodeid}: @pytest.mark.{mark.name}"
        subject = "path" if mark.name == "replay" else "name"
        given = dict(mark.kwargs)
        if mark.args:
            given = {subject: mark.args[0], **given}
        places = [given.pop(one) for one in dict.fromkeys((subject, "path")) if one in given]
        if len(mark.args) + len(places) - bool(mark.args) > 1 or (mark.name == "replay" and not places):
            raise pytest.UsageError(f'{label} takes one name or path, as @pytest.mark.replay("fixtures/x.jsonl")')
        if places and not (_is_path(places[0]) and os.fspath(places[0]).strip("./")):
            raise pytest.UsageError(f"{label}: the name or path of a cassette must be a text, got {places[0]!r}")
        _check_options(given, _OPTIONS, label)
        if places and name is None and path is None:
            is_name = subject == "name" and "path" not in mark.kwargs
            name, path = (places[0], None) if is_name else (None, os.fspath(places[0]))
        options = {**given, **options}
    return CassetteMarkers(name, path, options) if found else None


def baseline_markers(item: pytest.Item) -> BaselineMarkers | None:
    """Combine the `agent_baseline` markers of a test, of each option the closest one; None if there are none."""
    path: str | None = None
    options: dict[str, Any] = {}
    found = list(item.iter_markers("agent_baseline"))
    for mark in found:
        label = f"{item.nodeid}: @pytest.mark.agent_baseline"
        if len(mark.args) > 1 or not all(map(_is_path, mark.args)):
            raise pytest.UsageError(f"{label} takes the path of a baseline, got {', '.join(map(repr, mark.args))}")
        _check_options(mark.kwargs, _BASELINE_OPTIONS, label)
        tolerance = mark.kwargs.get("tolerance", "none")
        if not _is_path(tolerance) and type(tolerance).__name__ != "Tolerance":
            raise pytest.UsageError(
                f"{label}: tolerance must be a Tolerance, or the path of a file of one, got {tolerance!r}"
            )
        path = path or next(map(os.fspath, mark.args), None)
        options = {**mark.kwargs, **options}
    return BaselineMarkers(path, options) if found else None


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value)) and "\0" not in str(value)


def _check_options(options: Mapping[Any, Any], known: tuple[str, ...], label: str) -> None:
    for name, value in options.items():
        if name not in known:
            raise pytest.UsageError(f"{label} does not know {name!r}; it knows {', '.join(known)}")
        allowed = _VALUES.get(name)
        if allowed is not None and not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
            raise pytest.UsageError(f"{label}: {name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def settings_of(config: pytest.Config, fixture: Any, options: Mapping[str, Any]) -> Settings:
    """Combine all sources: the command line before the fixture, that before markers, these before the ini file."""
    label = "the fixture agent_cache_config"
    if not isinstance(fixture, Mapping):
        raise pytest.UsageError(f"{label} must return a dict, got {fixture!r}")
    _check_options(fixture, _OPTIONS, label)
    mode = config.getoption("agent_record_mode")
    found: dict[str, Any] = {
        "mode": config.getini("agent_record_mode"),
        "strict": config.getini("agent_cassette_strict"),
        "allow_unplayed": config.getini("agent_allow_unplayed"),
        "empty_cache": config.getini("agent_empty_cache"),
        "redact": config.getini("agent_cassette_redact") or None,
        "http": config.getini("agent_http") or None,
        **options,
        **fixture,
        **({} if mode is None else {"mode": mode}),
    }
    return Settings(**{name: found.get(name) for name in _OPTIONS})  # type: ignore[arg-type]  # checked one by one


# Paths


def cassette_path(item: pytest.Item, markers: CassetteMarkers | None) -> Path:
    """Return the path of a test's cassette."""
    name, path, _ = markers or (None, None, None)
    if path is not None:
        return item.path.parent / path
    name = _file_name(item) if name is None else name
    folder = item.path.parent / str(item.config.getini("agent_cassette_dir")) / item.path.stem
    return folder / (name if name.endswith((_SUFFIX, ".json")) else f"{name}{_SUFFIX}")


def baseline_path(item: pytest.Item, markers: BaselineMarkers) -> Path:
    """Return the path of a test's baseline."""
    if markers.path is not None:
        return item.path.parent / markers.path
    return item.path.parent / str(item.config.getini("agent_baseline_dir")) / item.path.stem / _file_name(item)


def _file_name(item: pytest.Item) -> str:
    """The name of a test in its module, with a digest where another test's could become the same file."""
    name = ".".join((*(node.name for node in item.listchain() if isinstance(node, pytest.Class)), item.name))
    safe = _UNSAFE.sub("-", name)
    if safe == name and len(name) <= _LONGEST and item.name == item.name.lower():
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST]}-{digest}"
