"""Programs that are run as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code: str, *options: str) -> str:
    """Run a program, which may import what the tests may, and give what it prints."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
