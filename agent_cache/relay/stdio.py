"""The relay over stdio: the host at this process's standard input and output, the server a child process.

Lines go both ways as they come. Nothing is awaited between a line and its way on, so that a server which asks the host
something during a call gets its answer. No write blocks the event loop: a host that writes before it reads would wait
for this process, and this process for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

from agent_cache.recording.credentials import kind_of_name
from agent_cache.relay import messages
from agent_cache.relay.messages import ENVELOPE, MODERN, ConnectionLost, Message, RpcError, object_in
from agent_cache.relay.relay import HostRequest, Relay

_PATIENCE_FOR_CALLS: Final = 30.0
"""Seconds that calls may take on after the host has closed its side: a script that pipes its requests in has closed it
before the server has started. A host that does not want to wait sends a signal."""
_PATIENCE_FOR_SERVER: Final = 2.0
"""Seconds that the server has to end by itself, and again after a signal."""
_AT_ONCE: Final = getattr(select, "PIPE_BUF", 0)
"""Bytes that a pipe takes without blocking, once it is ready; none on Windows, where nothing tells that."""


async def serve(relay: Relay, command: Sequence[str]) -> int:
    """Carry the messages between the host and the server of a command until one of them ends, or a signal ends this
    process. Returns the exit code of the server; 128 and the number of a signal that has ended the server or this
    process.
    """
    secrets = {name: value for name, value in os.environ.items() if kind_of_name(name) and name != "PWD"}
    started_by = json.dumps([*command, str(Path.cwd()), secrets if relay.settings.vary is None else None])
    relay.identity = hashlib.sha256(started_by.encode("utf-8", "surrogatepass")).hexdigest()  # others may share a tier
    link = _Link(relay)
    try:
        async with relay:
            await link.run(command)
    finally:
        await link.close()
    return link.exit_code


class _Request(HostRequest):
    """A request of the host, and the task that answers it."""

    def __init__(self, link: _Link, message: Message) -> None:
        super().__init__(message)
        self._link = link
        self.task = link.relay.start(self)

    async def forward(self) -> Message:
        try:
            return await self._link.exchange(self.id, self.message.line)
        except asyncio.CancelledError:
            self._link.pass_on(messages.request_line(None, "notifications/cancelled", {"requestId": self.id}))
            raise

    async def ask(self, method: str, params: dict[str, Any]) -> Message:
        name = f"agent-cache:{next(self._link.numbers)}"
        return await self._link.exchange(name, messages.request_line(name, method, params))

    def reply(self, line: bytes) -> None:
        self._link.calls.pop(self.id, None)
        self._link.write(line)


class _Link:
    """Both ends, and what is under way between them, by the ids of requests: `calls` are those that the relay is to
    answer, `_open` what was sent to the server, with what waits for the response; None if that passes as it comes.
    """

    def __init__(self, relay: Relay) -> None:
        self.exit_code = self._signal = 0
        self.numbers = itertools.count(1)
        self.relay = relay
        sys.stdout.flush()
        self._to_host = LineWriter(os.fdopen(os.dup(1), "wb", buffering=0))
        self.write = self._to_host.write
        os.dup2(2, 1)  # from here on, what any code prints goes to standard error
        self._server: subprocess.Popen[bytes] | None = None
        self._to_server: LineWriter | None = None
        self._is_connected = False  # whether the server may still answer
        self._open: dict[Any, asyncio.Future[Message] | None] = {}
        self.calls: dict[Any, _Request] = {}
        self._running: set[asyncio.Task[None]] = set()

    # Life

    async def run(self, command: Sequence[str]) -> None:
        """Carry messages until there are no more. Calls that a signal has interrupted are left under way."""
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[None] = loop.create_future()
        server_end: asyncio.Future[None] = loop.create_future()

        def stop(number: int) -> None:
            self._signal = number
            if not stopped.done():
                stopped.set_result(None)

        with signals(stop):
            if not self.relay.is_replay:
                self._server = started(command)
                self._to_server, self._is_connected = LineWriter(self._server.stdin), True
                server_end = asyncio.ensure_future(self._read_server(self._server.stdout))
            host_end = read_lines(0, self._from_host)
            await asyncio.wait({stopped, server_end, host_end}, return_when=asyncio.FIRST_COMPLETED)
            if host_end.done():
                ends: set[asyncio.Future[Any]] = {stopped, self._answered()}
                await asyncio.wait(ends, timeout=_PATIENCE_FOR_CALLS, return_when=asyncio.FIRST_COMPLETED)
        for end in (server_end, host_end):
            end.cancel()

    def _answered(self) -> asyncio.Future[Any]:
        return asyncio.gather(*self._running, return_exceptions=True)

    def _run(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End the server and what is still under way, and write what is left to be written."""
        if self._server is not None and self._to_server is not None:
            self._to_server.close()
            code = await ended(self._server, at_once=bool(self._signal))
            self.exit_code = code if code >= 0 else 128 - code
        if self._signal:
            self.exit_code = 128 + self._signal
        for task in self._running:
            task.cancel()
        await self._answered()
        await asyncio.to_thread(self._to_host.close, _PATIENCE_FOR_SERVER)

    # From the host

    def _from_host(self, line: bytes) -> None:
        message = messages.parsed(line)
        if messages.is_unjudged(line, message):
            self._run(asyncio.create_task(self._pass_unjudged(line)))
        elif message is not None and message.is_request:
            self._request_from_host(message)
        elif message is None or message.method != "notifications/cancelled" or not self._has_cancelled(message):
            self.pass_on(line)

    def _request_from_host(self, message: Message) -> None:
        name, known = message.id, self.calls.get(message.id)
        if known is not None or name in self._open:
            if known is not None:
                known.asked_host = True  # which of the two a response is for, nobody knows
            self._run(asyncio.create_task(self._pass_unjudged(message.line)))
        elif self.relay.answers(message):
            request = self.calls[name] = _Request(self, message)
            self._run(request.task)
        else:
            self._open[name] = None
            self.pass_on(message.line)

    async def _pass_unjudged(self, line: bytes) -> None:
        async with self.relay.unjudged():
            self.pass_on(line)
        if self.relay.is_replay:
            self.write(messages.error_line(None, "what is no request with an id of its own is not recorded"))

    def _has_cancelled(self, message: Message) -> bool:
        """Cancel a request that the relay answers. False if it is none, and the server's affair."""
        name = message.params_by_name.get("requestId")
        request = self.calls.pop(name, None) if isinstance(name, str | int) else None
        return request is not None and request.task.cancel()

    def pass_on(self, line: bytes) -> None:
        """Send a line to the server as it came. The end of the server ends this process too."""
        if self._to_server is not None:
            self._to_server.write(line)

    async def exchange(self, name: Any, line: bytes) -> Message:
        """Send a request under this id, and wait for the response."""
        if not self._is_connected:
            raise ConnectionLost("the server has ended")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._open[name] = future
        try:
            self.pass_on(line)
            return await future
        finally:
            self._open.pop(name, None)

    # From the server

    async def _read_server(self, output: Any) -> None:
        await read_lines(output.fileno(), self._from_server)
        self._is_connected = False
        for name, future in list(self._open.items()):
            lost = ConnectionLost("the server has ended before it answered")
            if future is None:
                self.write(messages.error_line(name, str(lost)))
            elif not future.done():
                future.set_exception(lost)
        self.relay.lose_server()
        await self._answered()

    def _from_server(self, line: bytes) -> None:
        message = messages.parsed(line)
        if message is None or not (message.method or message.id is not None or message.error):
            # What is no message, such as a line of a log, does not belong on the host's side: it would end some hosts
            (self.write if b'"jsonrpc"' in line else functools.partial(os.write, 2))(line)
        elif message.method in self.relay.observed and message.id is None:
            self._run(asyncio.create_task(self._observe(message)))
        elif message.method:
            if message.id is not None and message.method != "ping":
                for request in self.calls.values():
                    request.asked_host |= request.is_sent
            self.write(line)
        elif (future := self._open.pop(self._asked(message.id), None)) is not None:
            if not future.done():
                future.set_result(message)
        elif not str(message.id).startswith("agent-cache:"):  # else the relay has given it up
            self.write(line)

    def _asked(self, name: Any) -> Any:
        """The id of the request that a response is for: some servers make a text of a number."""
        return int(name) if name not in self._open and str(name).isdecimal() else name

    async def _observe(self, message: Message) -> None:
        """Pass a notification on once the relay has taken note of it. What comes after it does not wait."""
        try:
            await self.relay.observe(message.method, message.content)
        finally:
            self.write(message.line)


@contextlib.contextmanager
def signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` for the signals by which a host, or a terminal, ends this process; not on Windows."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    with contextlib.suppress(NotImplementedError):
        for number in numbers:
            loop.add_signal_handler(number, stop, int(number))
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)


# Pipes


def read_lines(descriptor: int, take: Callable[[bytes], object]) -> asyncio.Future[None]:
    """Show `take` each line that comes. The future is done at the end of them; to cancel it ends the reading."""
    loop, rest = asyncio.get_running_loop(), bytearray()
    end: asyncio.Future[None] = loop.create_future()

    def feed(data: bytes) -> None:
        if end.done():
            return
        rest.extend(data)
        lines = bytes(rest).split(b"\n") if b"\n" in data else []
        if lines:
            rest[:] = lines.pop()
        if not data:
            lines += [bytes(rest)] if rest else []
            end.set_result(None)
        for line in lines:
            take(line + b"\n")

    def read() -> bytes:
        with contextlib.suppress(OSError):  # a terminal that has gone
            return os.read(descriptor, 1 << 16)
        return b""

    def read_in_thread() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            while data := read():
                loop.call_soon_threadsafe(feed, data)
            loop.call_soon_threadsafe(feed, b"")

    try:
        loop.add_reader(descriptor, lambda: feed(read()))
        end.add_done_callback(lambda _: loop.remove_reader(descriptor))
    except (NotImplementedError, OSError):  # an event loop can watch no file, and on Windows no pipe
        threading.Thread(target=read_in_thread, daemon=True, name="agent-cache mcp: input").start()
    return end


class LineWriter:
    """Writes lines to a pipe or a file, in order, and blocks nobody: a thread writes what has no room at once."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._queue: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._queued = self._written = 0
        self._room = select.poll() if _AT_ONCE else None
        if self._room is not None:
            self._room.register(file, select.POLLOUT)

    def write(self, line: bytes) -> None:
        """Write a line after those before it. Of what nobody reads any more nothing is said: the input will end."""
        rest = memoryview(line)
        try:
            while rest and self._queued == self._written and self._room is not None and self._room.poll(0):
                rest = rest[self._file.write(rest[:_AT_ONCE]) or 0 :]
        except (OSError, ValueError):  # the latter if it is closed
            return
        if rest:
            self._queued += 1
            self._queue.put(rest)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, daemon=True, name="agent-cache mcp: output")
                self._thread.start()

    def _write(self) -> None:
        while (rest := self._queue.get()) is not None:
            with contextlib.suppress(OSError):
                while rest:
                    written = self._file.write(rest)
                    rest = rest[written or 0 :]
                    if written is None and self._room is not None:  # the host's pipe does not block, and is full
                        self._room.poll()
            self._written += 1
        self._file.close()

    def close(self, patience: float = 0.0) -> None:
        """Close the file when all is written; wait for that a little."""
        if self._thread is None:
            self._file.close()
        else:
            self._queue.put(None)
            self._thread.join(patience)


# The server


def started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a server as a child process. Its standard error is this process's own."""
    program = shutil.which(command[0])  # on Windows also `npx.cmd`
    if program is None:
        raise FileNotFoundError(2, f"there is no command {command[0]!r}; the server is started by what follows --")
    pipe = subprocess.PIPE
    return subprocess.Popen([program, *command[1:]], stdin=pipe, stdout=pipe, bufsize=0)  # noqa: S603 - the user's own


async def ended(server: subprocess.Popen[bytes], *, at_once: bool = False) -> int:
    """Let a server whose input is closed end, or end it. Returns its exit code; 0 if it had to be ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return await asyncio.to_thread(server.wait, 0 if at_once else _PATIENCE_FOR_SERVER)
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(server.wait, _PATIENCE_FOR_SERVER)
    server.kill()  # unless it has ended
    await asyncio.to_thread(server.wait)
    return 0


_CLIENT: Final = {"name": "agent-cache", "version": "1"}
_HELLO: Final = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT}
_MODERN: Final = {
    f"{ENVELOPE}protocolVersion": MODERN, f"{ENVELOPE}clientInfo": _CLIENT, f"{ENVELOPE}clientCapabilities": {},
}  # fmt: skip


async def introduced(ask: Callable[[str, dict[str, Any]], Any]) -> tuple[str, list[Any]]:
    """The name of a server, and its tools. `ask` makes a request of it, or sends a notification. Raises `OSError` if it
    ends, `RpcError` if it refuses.
    """
    more: dict[str, Any] = {}
    try:
        said = object_in(await ask("initialize", _HELLO))
        await ask("notifications/initialized", {})
    except RpcError:  # a server that knows only the protocol without a handshake
        more = {"_meta": _MODERN}
        meta = object_in(object_in(await ask("server/discover", more)).get("_meta"))
        said = {"serverInfo": meta.get(f"{ENVELOPE}serverInfo")}
    tools = await messages.listed(lambda params: ask("tools/list", {**more, **params}))
    return str(object_in(said.get("serverInfo")).get("name") or "mcp"), tools


async def introduced_by_command(command: Sequence[str]) -> tuple[str, list[Any]]:
    """The same of a server that a command starts."""
    numbers, lines = itertools.count(1), asyncio.Queue[bytes]()
    with started(command) as server:
        to_server, from_server = cast("tuple[Any, Any]", (server.stdin, server.stdout))
        end = read_lines(from_server.fileno(), lines.put_nowait)
        end.add_done_callback(lambda _: lines.put_nowait(b""))

        async def ask(method: str, params: dict[str, Any]) -> Any:
            number = None if method.startswith("notifications/") else next(numbers)
            with contextlib.suppress(BrokenPipeError):  # nothing comes then
                to_server.write(messages.request_line(number, method, params))
            while number is not None:
                if not (line := await lines.get()):
                    raise ConnectionLost("the server has ended")
                message = messages.parsed(line)
                if message is None:
                    os.write(2, line)
                elif message.id == number and not message.method:
                    return message.answer()
            return None

        try:
            return await introduced(ask)
        finally:
            end.cancel()
            to_server.close()
            await ended(server)
