"""How a test's cassette is used: what the command line, the `agent_cache_config` fixture, markers and the ini file say.

Cheap to import, as all of this package but `agent_cache.pytest_plugin.cassette_run`: every test run of whoever has agent_cache
installed loads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["MARKERS", "MODES", "Marked", "Settings", "marked", "settings_of"]

MODES = ("none", "once", "new_episodes", "all", "rewrite")
MARKERS = ("agent_cassette", "replay")

_OPTIONS = ("mode", "strict", "allow_unplayed", "redact", "policy", "model")


@dataclass(frozen=True, slots=True)
class Marked:
    """What the markers of a test say.

    Attributes:
        name: name of its cassette, in the folder of its module; None if none was given.
        path: path of it, from the folder of the test file; None likewise.
        options: of `_OPTIONS`, those that were given.
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
        strict, redact, policy, model: as `agent_cache.recording.record` takes them.
    """

    mode: str
    strict: bool
    allow_unplayed: bool
    redact: Any
    policy: Mapping[str, str] | None
    model: str | None


def marked(item: pytest.Item) -> Marked | None:
    """What the markers of a test say, the closest first; None if it has none.

    Raises:
        pytest.UsageError: if one cannot work.
    """
    found = [mark for mark in item.iter_markers() if mark.name in MARKERS]
    if not found:
        return None
    name = path = None
    options: dict[str, Any] = {}
    for mark in found:
        mark_name, mark_path, mark_options = _read(mark, item.nodeid)
        if name is None and path is None:
            name, path = mark_name, mark_path
        options = {**mark_options, **options}
    return Marked(name, path, options)


def settings_of(config: pytest.Config, fixture: Any, mark: Marked | None) -> Settings:
    """All of it together: the command line before the fixture, that before the markers, these before the ini file.

    Raises:
        pytest.UsageError: if the fixture returned something that cannot work.
    """
    if not isinstance(fixture, Mapping):
        raise pytest.UsageError(f"the fixture agent_cache_config must return a dict, got {fixture!r}")
    _check_options(fixture, "the fixture agent_cache_config")
    options: dict[str, Any] = {
        "mode": config.getini("agent_record_mode"),
        "strict": config.getini("agent_cassette_strict"),
        "allow_unplayed": config.getini("agent_allow_unplayed"),
        "redact": config.getini("agent_cassette_redact") or None,
        **({} if mark is None else mark.options),
        **fixture,
    }
    if (mode := config.getoption("agent_record_mode")) is not None:
        options["mode"] = mode
    return Settings(**{name: options.get(name) for name in _OPTIONS})  # type: ignore[arg-type]  # checked one by one


def _read(mark: pytest.Mark, where: str) -> tuple[str | None, str | None, dict[str, Any]]:
    who = f"{where}: @pytest.mark.{mark.name}"
    options = dict(mark.kwargs)
    place = "path" if mark.name == "replay" else "name"
    if len(mark.args) > 1 or (mark.args and place in options):
        raise pytest.UsageError(f"{who} takes one {place}")
    name = options.pop("name", None) if place == "name" else None
    path = options.pop("path", None)
    if mark.args:
        name, path = (None, mark.args[0]) if place == "path" else (mark.args[0], path)
    if mark.name == "replay" and path is None:
        raise pytest.UsageError(f'{who} needs the path of a cassette: @pytest.mark.replay("fixtures/x.jsonl")')
    if name is not None and path is not None:
        raise pytest.UsageError(f"{who} takes a name or a path, and was given both")
    if name is not None and (not isinstance(name, str) or not name.strip("./")):
        raise pytest.UsageError(f"{who}: the name of a cassette must be a text, got {name!r}")
    if path is not None and (not isinstance(path, str | os.PathLike) or not os.fspath(path)):
        raise pytest.UsageError(f"{who}: path must be the path of a cassette, got {path!r}")
    _check_options(options, who)
    return name, None if path is None else os.fspath(path), options


def _check_options(options: Mapping[Any, Any], who: str) -> None:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise pytest.UsageError(f"{who} does not know {name!r}; it knows {', '.join(_OPTIONS)}")
        if name == "mode" and value not in MODES:
            raise pytest.UsageError(f"{who}: mode must be one of {', '.join(MODES)}, got {value!r}")
        if name in ("strict", "allow_unplayed") and not isinstance(value, bool):
            raise pytest.UsageError(f"{who}: {name} must be True or False, got {value!r}")
