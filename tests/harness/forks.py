"""Programs in processes of their own, each forked from one that has imported what they need.

Python and its imports take most of the time of a command that reads a small file, and a fork takes next to none. What
runs is as alone as in a new process: modules, folder, environment and standard streams are its own. It is not for tests
of imports, of what Python reads at its start (``PYTHONHASHSEED``), of signals, or of a terminal.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["forks"]

ROOT = Path(__file__).parents[2]
STREAMS = 3


@functools.cache
def forks() -> Forks:
    """The one process that forks for these tests, until they end."""
    running = Forks()
    atexit.register(running.close)
    return running


class Forks:
    """A process that forks, with warnings as errors as in the tests. It ends with `close`."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.harness.forks", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(
        self,
        module: str,
        *arguments: object,
        folder: Path,
        environment: Mapping[str, str],
        imports: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m module arguments`` in a folder, where `imports` were imported before."""
        command = [module, *map(str, arguments)]
        request = {"command": command, "folder": str(folder), "environment": dict(environment), "imports": imports}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
            streams = [file.fileno() for file in (nothing, out, err)]
            socket.send_fds(self._connection, [json.dumps(request).encode()], streams)
            answer = self._connection.recv(100)
            assert answer, "the process that forks has ended"
            written = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
        return subprocess.CompletedProcess(command, int(answer), *written)

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._process.wait()


def _forked(connection: socket.socket) -> list[str] | None:
    """Fork for each request. Returns what a fork is to run, and nothing where there is no further request."""
    while True:
        message, streams, *_ = socket.recv_fds(connection, 1 << 20, STREAMS)
        if not message:
            return None
        request = json.loads(message)
        for name in request["imports"]:
            importlib.import_module(name)
        gc.freeze()
        process = os.fork()
        if process == 0:
            connection.close()
            _become(request, streams)
            return request["command"]
        for stream in streams:
            os.close(stream)
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())


def _become(request: Mapping[str, object], streams: Sequence[int]) -> None:
    """Put folder, environment and standard streams in the place of those of the process that forked."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = str(Path.cwd())  # as `python -m` does


if __name__ == "__main__":
    command = _forked(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        sys.argv[:] = command
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
