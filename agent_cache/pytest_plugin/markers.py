"""Reads which cassette and which baseline a test has and how they are used, from markers, the `agent_cache_config`
fixture and options.

A cassette is at ``<folder of the test file>/cassettes/<module>/<Class.test>.jsonl`` unless a marker gives its name or
path. A baseline is a folder of accepted runs at ``<folder of the test file>/baselines/<module>/<Class.test>``, too.

Every test run of every project with this package installed imports this module: it imports nothing of the library.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODES = ("none", "once", "new_episodes", "all", "rewrite")
BASELINE_MODES = ("compare", "once", "add", "accept")

OPTIONS = ("mode", "strict", "allow_unplayed", "empty_cache", "redact", "policy", "model", "http")
_PARAMETERS = {
    "agent_cassette": ("name", "path", *OPTIONS),
    "replay": ("path", *OPTIONS),
    "agent_baseline": ("path", "tolerance", "fail_on", "redact", "http"),
}
"""Of each marker; the first may be positional."""
_VALUES = {
    "mode": MODES,
    "fail_on": ("info", "warning", "critical"),
    **dict.fromkeys(("strict", "allow_unplayed", "empty_cache"), (True, False)),
}
_SUFFIX = ".jsonl"
TESTS_BY_PATH: pytest.StashKey[dict[Path, list[str]]] = pytest.StashKey()
"""Tests, by their cassettes and baselines."""

# Other characters are unsafe on some file system or in some shell. `\w` would allow letters that some file systems
# store in another form than they were given.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+@\[\]-]+")
_LONGEST = 120


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


def cassette_markers(item: pytest.Item) -> dict[str, Any] | None:
    """What the markers say of a test's cassette, by parameter; None if there are none."""
    return _combined(item, "agent_cassette", "replay")


def baseline_markers(item: pytest.Item) -> dict[str, Any] | None:
    """What the markers say of a test's baseline, by parameter; None if there are none."""
    return _combined(item, "agent_baseline")


def _combined(item: pytest.Item, *names: str) -> dict[str, Any] | None:
    """The arguments of the markers of these names, of each parameter those of the closest marker."""
    found: dict[str, Any] = {}
    markers = [mark for mark in item.iter_markers() if mark.name in names]
    for mark in markers:
        label = f"{item.nodeid}: @pytest.mark.{mark.name}"
        parameters = _PARAMETERS[mark.name]
        given: dict[str, Any] = {**dict(zip(parameters, mark.args[:1], strict=False)), **mark.kwargs}
        places = given.keys() & {"name", "path"}
        is_twice = len(mark.args) > 1 or (mark.args and parameters[0] in mark.kwargs) or len(places) > 1
        if is_twice or (mark.name == "replay" and not places):
            raise pytest.UsageError(f'{label} takes one name or path, as @pytest.mark.replay("fixtures/x.jsonl")')
        _check_options(given, parameters, label)
        if found.keys() & {"name", "path"}:
            given = {name: value for name, value in given.items() if name not in places}
        found = given | found
    is_skipped = getattr(getattr(item, "obj", None), "__unittest_skip__", False)  # when it is called
    return found if markers and not is_skipped else None


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value).strip("./")) and "\0" not in str(value)


def _check_options(options: Mapping[Any, Any], known: tuple[str, ...], label: str) -> None:
    for name, value in options.items():
        if name not in known:
            raise pytest.UsageError(f"{label} does not know {name!r}; it knows {', '.join(known)}")
        if name in ("name", "path") and not _is_path(value):
            raise pytest.UsageError(f"{label}: {name} must be a text, got {value!r}")
        if name == "tolerance" and not (_is_path(value) or type(value).__name__ == "Tolerance"):
            raise pytest.UsageError(f"{label}: tolerance must be a Tolerance, or the path of a file, got {value!r}")
        allowed = _VALUES.get(name, (value,))
        if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
            raise pytest.UsageError(f"{label}: {name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def settings_of(config: pytest.Config, fixture: Any, options: Mapping[str, Any]) -> Settings:
    """Combine all sources: the command line before the fixture, that before markers, these before the ini file."""
    label = "the fixture agent_cache_config"
    if not isinstance(fixture, Mapping):
        raise pytest.UsageError(f"{label} must return a dict, got {fixture!r}")
    _check_options(fixture, OPTIONS, label)
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
    return Settings(**{name: found.get(name) for name in OPTIONS})  # type: ignore[arg-type]  # checked one by one


def others_with(item: pytest.Item, path: Path) -> list[str]:
    """Other tests with this cassette or baseline."""
    return [one for one in item.config.stash[TESTS_BY_PATH].get(path, ()) if one != item.nodeid]


# Paths


def cassette_path(item: pytest.Item, markers: Mapping[str, Any] | None) -> Path:
    """The path of a test's cassette."""
    if markers and "path" in markers:
        return item.path.parent / str(markers["path"])
    name = str((markers or {}).get("name") or _file_name(item))
    folder = item.path.parent / str(item.config.getini("agent_cassette_dir")) / item.path.stem
    return folder / (name if name.endswith((_SUFFIX, ".json")) else f"{name}{_SUFFIX}")


def baseline_path(item: pytest.Item, markers: Mapping[str, Any]) -> Path:
    """The path of a test's baseline."""
    if "path" in markers:
        return item.path.parent / str(markers["path"])
    return item.path.parent / str(item.config.getini("agent_baseline_dir")) / item.path.stem / _file_name(item)


def _file_name(item: pytest.Item) -> str:
    """The name of a test in its module, with a digest where another test's could become the same file."""
    name = ".".join((*(node.name for node in item.listchain() if isinstance(node, pytest.Class)), item.name))
    safe = _UNSAFE.sub("-", name)
    if safe == name and len(name) <= _LONGEST and item.name == item.name.lower():
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST]}-{digest}"
