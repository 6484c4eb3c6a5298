"""Programs in processes of their own, each forked from one that has imported what they need.

Python and its imports take most of the time of a program that does little, and a fork takes next to none. What runs is
as alone as in a new process: modules, folder, environment and standard streams are its own. It is not for tests of
imports, of a terminal, or of what Python reads at its start; of that, ``PYTHONWARNINGS=error`` alone has an effect.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import pytest

__all__ = ["Piped", "Spoken", "forks"]

ROOT = Path(__file__).parents[2]


@functools.cache
def forks() -> Forks:
    """The one process that forks for these tests, until they end. Systems other than Linux skip them."""
    if sys.platform != "linux":
        pytest.skip("programs are forked, which is done on Linux alone")
    running = Forks()
    atexit.register(running.close)
    return running


class Forks:
    """A process that forks. It ends with `close`."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.forks", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._lock = threading.Lock()

    def start(self, *command: object, **options: Any) -> Forked:
        """Start Python, as `begin` does."""
        return Forked(self, self.begin(*command, **options))

    def begin(
        self,
        *command: object,
        streams: Sequence[IO[Any]],
        imports: Sequence[str] = (),
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start Python with the arguments `command`, and give the number of its process.

        Args:
            command: those arguments: ``-m`` and a module, ``-c`` and code, or the path of a file, and what is for that.
            streams: what the program reads, what it prints to, and what its errors go to.
            imports: modules that are imported before.
            folder: where it runs; here if it is None.
            environment: its variables; those of this process if it is None.
        """
        request = {
            "command": [str(part) for part in command],
            "imports": list(imports),
            "folder": str(folder or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
        }
        return self.ask(request, streams)

    def run(self, *command: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run it to its end, with nothing to read. The arguments are those of `start`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
            code = self.start(*command, streams=(nothing, out, err), **options).wait()
            printed = []
            for file in (out, err):
                file.seek(0)
                printed.append(file.read().decode())
        return subprocess.CompletedProcess(command, code, *printed)

    def ask(self, request: Mapping[str, object], streams: Sequence[IO[Any]] = ()) -> int:
        """Send a request. Returns the number that answers it."""
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(request).encode()], [each.fileno() for each in streams])
            answer = self._connection.recv(100)
        assert answer, "the process that forks has ended"
        return int(answer)

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._process.wait()


class Forked:
    """A program that was started, with what tests use of `subprocess.Popen`.

    Attributes:
        pid: the number of its process.
        ended: a file that can be read when it has ended.
    """

    def __init__(self, parent: Forks, pid: int) -> None:
        self._parent, self._code = parent, None
        self.pid, self.ended = pid, os.fdopen(os.pidfd_open(pid), "rb", buffering=0)

    def poll(self) -> int | None:
        """How it has ended; None as long as it runs."""
        return self._code if self._code is not None or not self._has_ended(0) else self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self._code is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
            self._code: int | None = self._parent.ask({"wait": self.pid})
            self.ended.close()
        return self._code or 0

    def wait_until_stopped(self) -> None:
        """Wait until SIGSTOP has stopped it."""
        self._parent.ask({"stopped": self.pid})

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        return bool(select.select([self.ended], [], [], timeout)[0])


class Spoken(Forked):
    """A program that was started with pipes for its text. Its errors go to where those of this process go.

    Attributes:
        stdin: what it reads.
        stdout: what it prints.
    """

    def __init__(self, *command: object, imports: Sequence[str] = ()) -> None:
        stdin, stdout = os.pipe(), os.pipe()
        ends = [os.fdopen(stdin[0], "rb"), os.fdopen(stdout[1], "wb"), os.fdopen(os.dup(2), "wb")]
        super().__init__(forks(), forks().begin(*command, streams=ends, imports=imports))
        for end in ends:
            end.close()
        self.stdin, self.stdout = os.fdopen(stdin[1], "w"), os.fdopen(stdout[0])


class Piped:
    """A program that was started with pipes, as `asyncio.create_subprocess_exec` gives it."""

    pid: int
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    @classmethod
    async def start(cls, *command: object, limit: int, **options: Any) -> Self:
        """Start it. The arguments are those of `Forks.start`, and `limit` is that of a line."""
        self, loop, (stdin, stdout, stderr) = cls(), asyncio.get_running_loop(), (os.pipe(), os.pipe(), os.pipe())
        ends = [os.fdopen(stdin[0], "rb"), os.fdopen(stdout[1], "wb"), os.fdopen(stderr[1], "wb")]
        self._forked = forks().start(*command, streams=ends, **options)
        for end in ends:
            end.close()
        self.pid = self._forked.pid
        flow = functools.partial(asyncio.streams.FlowControlMixin, loop=loop)
        writing, protocol = await loop.connect_write_pipe(flow, os.fdopen(stdin[1], "wb"))
        self.stdin = asyncio.StreamWriter(writing, protocol, None, loop)
        self._transports: list[asyncio.BaseTransport] = [writing]
        for name, (end, _) in {"stdout": stdout, "stderr": stderr}.items():
            reader = asyncio.StreamReader(limit, loop)
            make = functools.partial(asyncio.StreamReaderProtocol, reader, loop=loop)
            self._transports.append((await loop.connect_read_pipe(make, os.fdopen(end, "rb")))[0])
            setattr(self, name, reader)
        return self

    @property
    def returncode(self) -> int | None:
        """How it has ended; None as long as it runs."""
        return self._forked.poll()

    async def wait(self) -> int:
        """Wait for its end."""
        if self.returncode is None:
            loop, has_ended = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self._forked.ended, has_ended.set)
            await has_ended.wait()
            loop.remove_reader(self._forked.ended)
        return self._forked.wait()

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        self._forked.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self._forked.kill()

    def close(self) -> None:
        """Leave no pipe open."""
        for transport in self._transports:
            transport.close()


def _serve(connection: socket.socket) -> list[str] | None:
    """Answer requests. Returns, in a fork, the command that it is to run; and None where no further request comes."""
    while True:
        message, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return None
        request = json.loads(message)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif "stopped" in request:
            os.waitid(os.P_PID, request["stopped"], os.WSTOPPED | os.WNOWAIT)
            answer = 0
        else:
            for name in request["imports"]:
                importlib.import_module(name)
            gc.freeze()
            answer = os.fork()
            if answer == 0:
                connection.close()
                _become(request, streams)
                command: list[str] = request["command"]
                return command
        for stream in streams:
            os.close(stream)
        connection.send(str(answer).encode())


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Put streams, folder and environment of a request in the place of those of the process that forked."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the former ones know what kind of file they wrote to
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["environment"].get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")


def _run(command: list[str]) -> None:
    """Do what Python does that is started with these arguments."""
    match command:
        case "-m", module, *_:
            sys.argv[:], sys.path[0] = command[1:], str(Path.cwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case "-c", code, *arguments:
            sys.argv[:], sys.path[0] = ["-c", *arguments], ""
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case path, *_:
            sys.argv[:], sys.path[0] = command, str(Path(path).parent.absolute())
            runpy.run_path(path, run_name="__main__")


def _end(code: int) -> None:
    """End as Python does, but leave out that it clears every module, which takes longer than most programs."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        try:
            _run(found)
        except SystemExit as exit:
            if exit.code is not None and not isinstance(exit.code, int):
                raise
            _end(exit.code or 0)
        _end(0)
