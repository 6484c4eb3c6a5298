"""Which classes are of the user's own program."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

__all__ = ["is_own", "is_standard", "note_program"]

_OWN: Final[set[str]] = set()


def note_program(module: str) -> None:
    """Take a package for the user's own, wherever it is installed: a tool of it is decorated."""
    package = module.partition(".")[0]
    if package not in _OWN:
        _OWN.add(package)
        is_own.cache_clear()


def is_standard(kind: Any) -> bool:
    """Whether a class is of the standard library."""
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


@lru_cache(maxsize=1024)
def is_own(kind: Any) -> bool:
    """Whether a class is of the user's program: neither of the standard library nor of an installed package."""
    package = kind.__module__.partition(".")[0]
    if is_standard(kind) or package == "agent_cache":
        return False
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return package in _OWN or path is None or not _is_installed(package, path)


def _is_installed(package: str, path: str) -> bool:
    """Whether a module lies where packages are installed, or beside a record of its package."""
    folder, *inside = re.split(rf"[\\/]{re.escape(package)}(?=[\\/.])", path)
    if not inside:
        return False
    if {"site-packages", "dist-packages"}.intersection(re.split(r"[\\/]", folder)):
        return True
    records = Path(folder).glob("*.dist-info/RECORD")
    return any(re.search(rf"^{re.escape(package)}[/.]", one.read_text("utf-8"), re.MULTILINE) for one in records)
