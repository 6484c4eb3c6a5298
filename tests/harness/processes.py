"""Programs that are run as processes of their own, and waiting for what they do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence


def run_python(code: str, *options: str, arguments: Sequence[str] = ()) -> str:
    """Run a program, which may import what the tests may, and give what it prints."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def until(condition: Callable[[], object], seconds: float = 100.0) -> None:
    """Wait for what another thread or a server is about to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.005)
