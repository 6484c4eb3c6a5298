"""Where the cassette of a test is: `<folder of the test file>/cassettes/<module>/<Class.test>.jsonl`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from agent_cache.pytest_plugin.markers import Marked

__all__ = ["SUFFIX", "cassette_path", "folder_of"]

SUFFIX = ".jsonl"

# The rest is not safe on every file system, or not in every shell. `\w` alone would let letters through that some file
# systems store in another form than they were given.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+@\[\]-]+")
_LONGEST = 120


def folder_of(config: pytest.Config, file: Path) -> Path:
    """Where the cassettes of all tests in the same folder are."""
    return file.parent / str(config.getini("agent_cassette_dir"))


def cassette_path(item: pytest.Item, mark: Marked | None) -> Path:
    """The path of a test's cassette."""
    if mark is not None and mark.path is not None:
        return item.path.parent / mark.path
    folder = folder_of(item.config, item.path) / item.path.stem
    if mark is not None and mark.name is not None:
        return folder / (mark.name if mark.name.endswith((SUFFIX, ".json")) else mark.name + SUFFIX)
    return folder / (_safe(_name_of(item)) + SUFFIX)


def _name_of(item: pytest.Item) -> str:
    """The test with its classes and parameters, without its module."""
    classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    return ".".join((*classes, item.name))


def _safe(name: str) -> str:
    """The same as a file name. Two names never become one: what had to be changed is told apart by a digest."""
    safe = _UNSAFE.sub("-", name)
    if safe == name and len(name) <= _LONGEST:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST]}-{digest}"
