"""Where a table was measured, in terms that another reader can compare."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib import metadata


def described(distributions: Sequence[str]) -> str:
    """One paragraph: interpreter, system, cores, date, and the versions of what took part."""
    versions = ", ".join(f"{name} {version(name)}" for name in distributions)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {today}; {versions}."
    )


def version(distribution: str) -> str:
    """The installed version, or a word that says there is none (a source tree that was never installed)."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(source tree)"
