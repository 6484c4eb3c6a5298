"""Programs that are run as processes of their own, and waiting for what they do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def python(
    *arguments: object, folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, with these arguments and nothing to read. It may import what the tests may."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def run_python(code: str, *options: str, arguments: Sequence[str] = ()) -> str:
    """Run a program, and give what it prints."""
    done = python(*options, "-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def until(condition: Callable[[], object], seconds: float = 100.0) -> None:
    """Wait for what another thread or a server is about to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.005)
