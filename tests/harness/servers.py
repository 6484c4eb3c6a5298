"""A real Valkey or Redis on loopback, which a test starts, stops, kills, freezes and brings back.

Each server stands on a free port with a folder of its own and writes nothing to disk unless it is asked to. It is
gone when the process that started it is, also after a SIGKILL.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.harness.binaries import Kind, program

if TYPE_CHECKING:
    from redis import Redis

PATIENCE = 20.0  # seconds that a server gets for what it must do: a shared machine with two cores stalls
ATTEMPTS = 5
WATCHDOG = ["sh", "-c", 'read _; kill -9 "$0"']
"""Kills a process when its own input ends: when nobody holds the other end any more."""
HOST = "127.0.0.1"
PORTS = (10_000, 32_000)


class Server:
    """One server process. `start` it; as a context manager it is stopped at the end.

    Attributes:
        kind: whose program it runs.
        port: on loopback; the same after a restart.
        folder: where its log is, and what it saves.
    """

    def __init__(self, kind: Kind, folder: Path | None, options: Mapping[str, object]) -> None:
        self.kind = kind
        self.program = program(kind)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=folder))
        self.port = 0
        self._owns_folder = folder is None
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, kind: Kind = "valkey", /, *, folder: Path | None = None, **options: object) -> Self:
        """Start one, and return when it answers.

        Args:
            folder: where to make its folder; by default among the system's temporary ones. It is removed by `stop`
                only in the latter case, so a test run's folder keeps the logs.
            options: as in its configuration file, with ``_`` for ``-``: ``maxmemory_policy="allkeys-lru"``. A list is
                one line each.

        Raises:
            ServerUnavailableError: this machine has none of this kind.
        """
        server = cls(kind, folder, options)
        try:
            server._launch()
        except BaseException:
            server.stop()
            raise
        return server

    # What it is

    @property
    def url(self) -> str:
        """For a client of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Its process, which must run."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process is there, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has written so far, from all its starts."""
        path = self.folder / "log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def client(self, **options: Any) -> Redis:
        """Connect a blocking client that neither retries nor waits for long; the caller closes it."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # Not protocol 3, the default of newer clients: answers to raw commands would have another shape with those.
        settings: dict[str, Any] = {"protocol": 2, "socket_timeout": 5.0, "decode_responses": True}
        return Redis(host=HOST, port=self.port, retry=Retry(NoBackoff(), 0), **{**settings, **options})

    def command(self, *words: object) -> Any:
        """Say one command on a connection of its own, and return the plain answer."""
        with closing(self.client()) as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def info(self, section: str) -> dict[str, Any]:
        """One section of INFO, parsed."""
        with closing(self.client()) as client:
            found: dict[str, Any] = client.info(section)
            return found

    def config_set(self, **options: object) -> None:
        """Change options while it runs. They are gone after a restart."""
        for name, value in options.items():
            self.command("CONFIG", "SET", name.replace("_", "-"), str(value))

    # What happens to it

    def stop(self) -> None:
        """End it in good order, or by force where it does not go; forget its folder unless a test run owns that."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap()
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL: connections break and memory is gone. `restart` brings it back."""
        assert self._process is not None, "the server is not running"
        self._process.kill()
        self._reap()

    def snapshot(self) -> Path:
        """Save what it holds now, for a later `restart`."""
        self.command("SAVE")
        saved = self.folder / f"snapshot-{time.monotonic_ns()}.rdb"
        shutil.copyfile(self._dump, saved)
        return saved

    def restart(self, *, empty: bool = False, snapshot: Path | None = None) -> None:
        """Kill it if it runs, and start it on the same port.

        Args:
            empty: without data.
            snapshot: with what it held then.
        """
        if empty == (snapshot is not None):
            raise ValueError("say what it comes back with: empty=True, or snapshot=")
        if self.is_running:
            self.kill()
        self._dump.unlink(missing_ok=True)
        if snapshot is not None:
            shutil.copyfile(snapshot, self._dump)
        self._launch()

    def pause(self) -> None:
        """SIGSTOP: the system still accepts connections and bytes, and nobody answers."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it answers all that has piled up."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # How it runs

    @property
    def _dump(self) -> Path:
        return self.folder / "dump.rdb"

    def settings(self) -> dict[str, object]:
        """What stands in its configuration file, `options` aside."""
        return {
            "bind": HOST,
            "port": self.port,
            "dir": self.folder,
            "logfile": self.folder / "log",
            "dbfilename": self._dump.name,
            "save": '""',
            "appendonly": "no",
        }

    def choose_ports(self) -> None:
        """Choose where to listen: what is free now may be taken a moment later."""
        self.port = free_port()

    def command_line(self) -> list[str]:
        """Write the configuration file, and say how to start with it."""
        given = {**self.settings(), **{name.replace("_", "-"): value for name, value in self._options.items()}}
        path = self.folder / "server.conf"
        path.write_text(
            "".join(f"{name} {each}\n" for name, value in given.items() for each in each_of(value)), "utf-8"
        )
        return [str(self.program), str(path)]

    def _launch(self) -> None:
        """Start on its port, the first time on any that is free and stays so until the server has it."""
        is_new = self.port == 0
        for _ in range(ATTEMPTS):
            if is_new:
                self.choose_ports()
            self._process = subprocess.Popen(
                self.command_line(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the test run, which then ends its servers in order
            )
            watched = [*WATCHDOG, str(self._process.pid)]
            self._watchdog = subprocess.Popen(watched, stdin=subprocess.PIPE, start_new_session=True)
            if self._comes_up():
                return
            self._process.kill()
            self._reap()
            if "in use" not in self.log:
                break
        raise RuntimeError(f"{self.program} did not start on port {self.port}:\n{self.log}")

    def _comes_up(self) -> bool:
        from redis.exceptions import RedisError

        deadline = time.monotonic() + PATIENCE
        while self.is_running and time.monotonic() < deadline:
            try:
                # Whoever took the port first answers as well. Ours ends then, and says that the port is in use.
                is_ours = self.info("server")["process_id"] == self.pid
                if is_ours and not self.info("persistence").get("loading"):  # a sentinel has nothing to load
                    return True
            except RedisError:
                pass
            time.sleep(0.01)
        return False

    def _reap(self) -> None:
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None
        if self._process is not None:
            self._process.wait()


class Deployment:
    """As a context manager it is stopped at the end."""

    def __init__(self, servers: Iterable[Server]) -> None:
        self.servers = tuple(servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End them all, whatever one of them does."""
        with ExitStack() as exits:
            for server in self.servers:
                exits.callback(server.stop)


def free_port() -> int:
    """Find a port that nobody listens on now.

    By chance, so that test runs beside this one choose others, and below the ports that a system gives to outgoing
    connections: one that a killed server leaves is still free when it comes back.
    """
    while True:
        port = random.SystemRandom().randrange(*PORTS)  # a property test seeds the plain one
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port


def wait_until(what: str, happened: Callable[[], object], patience: float = PATIENCE) -> None:
    """Poll for something that a server does in its own time. A server gives no event to wait for."""
    deadline = time.monotonic() + patience
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s in vain until {what}")
        time.sleep(0.01)


def each_of(value: object) -> Iterable[object]:
    """Give the lines of an option: one, or one for each in a list."""
    return value if isinstance(value, list | tuple) else (value,)
