"""The relay over stdio: the host at this process's standard input and output, the server a child process.

Lines go both ways as they come. Nothing is awaited between a line and its way on, so that a server which asks the host
something during a call gets its answer. No write blocks the event loop: a host that writes before it reads would wait
for this process, and this process for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from agent_cache.relay.messages import (
    INVALID_REQUEST,
    MODERN,
    PARSE_ERROR,
    ConnectionLost,
    Message,
    Response,
    RpcError,
    by_name,
    data_of,
    error_line,
    is_id,
    listed,
    parsed,
    refusal_of,
    request_line,
)
from agent_cache.relay.relay import HostRequest, Relay

_CHUNK: Final = 1 << 16
"""Bytes that are read at once: as many as a pipe holds. For 256 KB the allocator maps fresh pages, 70 us for a line."""
_ATOMIC: Final = 4096
"""Bytes that a pipe takes at once if it takes any: POSIX's PIPE_BUF, on Linux."""
_PATIENCE_FOR_CALLS: Final = 30.0
"""Seconds that calls may take on after the host has closed its side: a script that pipes its requests in has closed it
before the server has started. A host that does not want to wait sends a signal."""
_PATIENCE_FOR_SERVER: Final = 2.0
"""Seconds that the server has to end by itself, and again after a signal."""
_OWN: Final = "agent-cache:"
"""The identifiers of the relay's own requests begin so."""

OnLine = Callable[[bytes], None]
OnLost = Callable[[Any, ConnectionLost], None]
"""Takes the id of a request that gets no answer any more; None for all of them."""
Connect = Callable[[OnLine, OnLost], Any]
"""Connects to a server, by what handles its lines and what takes the loss of an answer. The server has `write(line)`,
`has_closed` (it takes no more of them), and ``await end(at_once=False)``, which returns its exit code."""


async def serve(relay: Relay, connect: Connect, *, vary: str | None = None) -> int:
    """Carry the messages between the host and a server until one of them ends, or a signal ends this process.

    Args:
        relay: what is done with them.
        connect: what connects to the server. It is not used for a replay.
        vary: what distinguishes the entries of this process from those of others: see `Relay.identity`.

    Returns:
        The exit code of the server; 128 and the number of a signal that has ended the server or this process.

    Raises:
        ConfigurationError, CassetteError: as on entering the relay; the server was not started.
        OSError: if the server cannot be started.
    """
    relay.identity = vary
    link = _Link(relay)
    try:
        async with relay:
            await link.run(connect)
    finally:
        await link.close()
    return link.exit_code


class _Request(HostRequest):
    """A request of the host, `line`. `cancellation` is what tells the server that it is cancelled."""

    def __init__(self, link: _Link, message: Message, line: bytes) -> None:
        super().__init__(message)
        self.line = line
        self.cancellation = request_line(None, "notifications/cancelled", {"requestId": message.id})
        self._link = link

    async def forward(self) -> Response:
        link = self._link
        link.forwarded.add(self)
        try:
            return await link.exchange(self.id, self.line)
        except asyncio.CancelledError:
            link.pass_on(self.cancellation)
            raise
        finally:
            link.forwarded.discard(self)

    async def ask(self, method: str, params: dict[str, Any]) -> Response:
        id = f"{_OWN}{next(self._link.numbers)}"  # noqa: A001 - the protocol's name
        return await self._link.exchange(id, request_line(id, method, params))

    def reply(self, line: bytes) -> None:
        self._link.settle()
        self._link.write(line)


class _Link:
    """Both ends, and what is under way between them.

    A request that was sent to the server has an entry in `_open`, under its id: what takes its response, or the loss of
    it. The requests that the relay answers have one in `_tasks`.
    """

    def __init__(self, relay: Relay) -> None:
        self.exit_code = 0
        self.forwarded: set[_Request] = set()
        self.numbers = itertools.count(1)
        self._relay = relay
        self._input = _Reader(0, self._from_host, self._end_host)
        sys.stdout.flush()
        self._output = _Writer(os.dup(1), self._end_host)
        self.write = self._output.write
        os.dup2(2, 1)  # from here on, what any code prints goes to standard error
        self._server: Any = None
        self._open: dict[Any, Callable[[Response | ConnectionLost], None]] = {}
        self._tasks: dict[Any, tuple[_Request, asyncio.Task[None]]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._unanswered = 0
        self._change = asyncio.Event()
        self._host_has_ended = False
        self._signal: int | None = None

    # Life

    async def run(self, connect: Connect) -> None:
        """Carry messages until there are no more. Calls that a signal has interrupted are left under way."""
        with signals(self._stop):
            if not self._relay.is_replay:
                self._server = connect(self._from_server, self._lose)
            self._input.start()
            while not (self._host_has_ended or self._signal or (self._server is not None and self._server.has_closed)):
                await self._wait()
            self._input.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_FOR_CALLS):
                    while self._unanswered and not self._signal:
                        await self._wait()

    async def _wait(self) -> None:
        self._change.clear()
        await self._change.wait()

    async def close(self) -> None:
        """End the server and what is still under way, and write what is left to be written."""
        self._input.stop()
        if self._server is not None:
            code = await self._server.end(at_once=bool(self._signal))
            self.exit_code = code if code >= 0 else 128 - code
        if self._signal:
            self.exit_code = 128 + self._signal
        tasks = [task for _, task in self._tasks.values()] + list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._output.close()

    def _stop(self, number: int) -> None:
        self._signal = number
        self._change.set()

    def _end_host(self) -> None:
        self._host_has_ended = True
        self._change.set()

    def _lose(self, id: Any, error: ConnectionLost) -> None:  # noqa: A002 - the protocol's name
        for each in list(self._open) if id is None else [id]:
            if each in self._open:
                self._open.pop(each)(error)
        if id is None:
            self._relay.lose_server()
        self._change.set()

    # From the host

    def _from_host(self, line: bytes) -> None:
        message = parsed(line)
        if refusal := refusal_of(line, message):
            self.write(refusal)
        elif message is None and self._relay.is_replay and line.strip():
            self.write(error_line(None, "this is no JSON, or a batch", PARSE_ERROR))
        elif message is None:
            self.pass_on(line)
        elif message.is_request:
            self._request_from_host(line, message)
        elif message.method != "notifications/cancelled" or not self._has_cancelled(data_of(message.params), line):
            self.pass_on(line)

    def _request_from_host(self, line: bytes, message: Message) -> None:
        id = message.id  # noqa: A001 - the protocol's name
        if _names(id) and (id in self._tasks or id in self._open or str(id).startswith(_OWN)):
            self.write(error_line(id, "another request has this id", INVALID_REQUEST))
        elif self._relay.answers(message) and is_id(id):
            request = _Request(self, message, line)
            self._unanswered += 1
            task = self._relay.start(request)
            self._tasks[id] = request, task
            task.add_done_callback(lambda _: self._end_task(request))
        elif self._relay.is_replay:
            self.write(error_line(None, "an id is a text or a whole number", INVALID_REQUEST))
        else:
            if _names(id):
                self._open[id] = partial(self._pass_back, message)
            self.pass_on(line)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Let a task run in the background."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _end_task(self, request: _Request) -> None:
        self._tasks.pop(request.id, None)
        if not request.is_answered:  # it was cancelled
            self.settle()

    def settle(self) -> None:
        """A request has got its response, or will get none."""
        self._unanswered -= 1
        self._change.set()

    def _has_cancelled(self, params: Any, line: bytes) -> bool:
        """Cancel a request that the relay answers. False if it is none, and the server's affair."""
        id = params.get("requestId") if isinstance(params, dict) else None  # noqa: A001 - the protocol's name
        if not is_id(id):
            return False
        request, task = self._tasks.get(id, (None, None))
        if request is None or task is None:
            if not str(id).startswith(_OWN):
                self._open.pop(id, None)  # it may get no response
        elif not request.is_answered:
            request.cancellation = line
            task.cancel()
            return True
        return False

    def pass_on(self, line: bytes) -> None:
        """Send a line to the server as it came."""
        if not self._relay.is_replay:
            with contextlib.suppress(ConnectionLost):  # the end of the server ends this process too
                self._to_server(line)

    def _to_server(self, line: bytes) -> None:
        if self._server is None or self._server.has_closed:
            raise ConnectionLost("the server has ended")
        self._server.write(line)

    async def exchange(self, id: Any, line: bytes) -> Response:  # noqa: A002 - the protocol's name
        """Send a request under this id, and wait for the response."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._open[id] = partial(_settle, future)
        try:
            self._to_server(line)
            return await future
        finally:
            self._open.pop(id, None)

    # From the server

    def _from_server(self, line: bytes) -> None:
        message = parsed(line)
        if message is None:
            if line.lstrip()[:1] in (b"{", b"[") and b'"jsonrpc"' in line:
                self.write(line)  # a batch, or a message that is broken: the host's affair
            else:
                _show_noise(line)
        elif message.method:
            if message.id is not None and message.method != "ping":
                for request in self.forwarded:
                    request.asked_host = True
            if message.id is None and message.method in self._relay.observed:
                self._keep(asyncio.get_running_loop().create_task(self._observe(message, line)))
            else:
                self.write(line)
        else:
            take = self._open.pop(message.id, None) if _names(message.id) else None
            if take is not None:
                take(Response(line, message))
            elif not str(message.id).startswith(_OWN):  # else it was given up
                self.write(line)

    def _pass_back(self, asked: Message, found: Response | ConnectionLost) -> None:
        """The response to a request that was passed on."""
        if isinstance(found, ConnectionLost):
            self.write(error_line(asked.id, str(found)))
            return
        if found.message.result and self._relay.learns(asked.method):
            self._relay.learn(asked, data_of(found.message.result))
        self.write(found.line)

    async def _observe(self, message: Message, line: bytes) -> None:
        try:
            await self._relay.observe(message.method, data_of(message.params))
        finally:
            self.write(line)


def _names(id: Any) -> bool:  # noqa: A002 - the protocol's name
    """Whether a server may answer under this id."""
    return isinstance(id, str | int | float) and not isinstance(id, bool)


def _settle(future: asyncio.Future[Response], found: Response | ConnectionLost) -> None:
    if not future.done():
        if isinstance(found, ConnectionLost):
            future.set_exception(found)
        else:
            future.set_result(found)


def _show_noise(line: bytes) -> None:
    """What is no message does not belong on the host's side: it would end some hosts."""
    sys.stderr.buffer.write(line)
    sys.stderr.flush()


@contextlib.contextmanager
def signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` for the signals by which a host, or a terminal, ends this process."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before: list[Any] = []
    try:
        for number in numbers:
            loop.add_signal_handler(number, stop, int(number))
    except NotImplementedError:  # Windows
        before = [signal.signal(each, lambda got, _: loop.call_soon_threadsafe(stop, got)) for each in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=False):
            signal.signal(number, handler)


# Pipes: those of this process, and those of the server's


class _Reader:
    """The lines of a descriptor.

    The event loop watches a pipe, a socket or a terminal. It can watch no file, and on Windows nothing of these: there
    a thread reads.
    """

    def __init__(self, descriptor: int, on_line: OnLine, on_end: Callable[[], None]) -> None:
        self._descriptor, self._on_line, self._on_end = descriptor, on_line, on_end
        self._is_open = True
        self._is_watched = False
        self._rest: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to read."""
        with contextlib.suppress(NotImplementedError, OSError):
            self._loop.add_reader(self._descriptor, lambda: self._feed(self._read()))
            self._is_watched = True
            return
        if sys.platform == "win32":
            import msvcrt

            msvcrt.setmode(self._descriptor, os.O_BINARY)
        threading.Thread(target=self._read_in_thread, daemon=True, name="agent-cache mcp: input").start()

    def stop(self) -> None:
        """Read no more."""
        self._is_open = False
        if self._is_watched:
            self._loop.remove_reader(self._descriptor)

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK)
        except OSError:
            return b""

    def _read_in_thread(self) -> None:
        data = b"-"
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            while data and self._is_open:
                data = self._read()
                self._loop.call_soon_threadsafe(self._feed, data)

    def _feed(self, data: bytes) -> None:
        if not self._is_open:
            return
        if not data and self._rest:
            data = b"\n"
            self._loop.call_soon(self._feed, b"")
        *ended, rest = data.split(b"\n") if data else [b""]
        for line in ended:
            whole = b"".join((*self._rest, line, b"\n"))
            self._rest.clear()
            self._on_line(whole)
        if rest:
            self._rest.append(rest)
        if not data:
            self.stop()
            self._on_end()


class _Writer:
    """Writes lines to a descriptor, in order, without waiting for who reads them.

    A short line is written at once where the descriptor takes that much. The others wait in a thread.
    """

    def __init__(self, descriptor: int, on_lost: Callable[[], None]) -> None:
        self._descriptor, self._on_lost = descriptor, on_lost
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unwritten = 0  # in the queue; only the event loop adds to it, and only the thread takes
        self._written = 0
        self._thread: threading.Thread | None = None
        self._poll: Any = None
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLOUT)

    def write(self, line: bytes) -> None:
        """Write a line, now or as soon as it is taken."""
        if self._unwritten == self._written and self._poll is not None and len(line) <= _ATOMIC:
            found = self._poll.poll(0)
            if found and found[0][1] & select.POLLOUT:
                self._write(line)
                return
        self._unwritten += 1
        self._queue.put(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_in_thread, daemon=True, name="agent-cache mcp: output")
            self._thread.start()

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # who reads has gone
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_lost)

    def _write_in_thread(self) -> None:
        while (line := self._queue.get()) is not None:
            self._write(line)
            self._written += 1
        os.close(self._descriptor)

    async def close(self) -> None:
        """Close the descriptor when all is written, and wait for that a little."""
        if self._thread is None:
            os.close(self._descriptor)
        else:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join, _PATIENCE_FOR_SERVER)


class Process:
    """A server as a child process. Its standard error is this process's own.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(self, command: Sequence[str], on_line: OnLine, on_lost: OnLost) -> None:
        program = shutil.which(command[0])  # on Windows also `npx.cmd`
        if program is None:
            raise FileNotFoundError(2, f"there is no command {command[0]!r}; the server is started by what follows --")
        self.has_closed = False
        self._on_lost = on_lost
        whole = [program, *command[1:]]
        self._process = subprocess.Popen(whole, stdin=-1, stdout=-1, bufsize=0)  # noqa: S603 - the user's own command
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._output = _Reader(self._process.stdout.fileno(), on_line, self._end)
        self._input = _Writer(os.dup(self._process.stdin.fileno()), lambda: None)
        self.write = self._input.write
        self._process.stdin.close()
        self._output.start()

    def _end(self) -> None:
        self.has_closed = True
        self._on_lost(None, ConnectionLost("the server has ended before it answered"))

    async def end(self, *, at_once: bool = False) -> int:
        """Let it end, or end it.

        Returns:
            Its exit code; 0 if it had to be ended although it was not asked to go on, 1 if it had stopped to answer.
        """
        had_closed = self.has_closed
        try:
            await self._input.close()
            if not at_once and await self._exits():
                return self._process.returncode
            for end in (self._process.terminate, self._process.kill):
                end()
                if await self._exits():
                    break
            return int(had_closed)
        finally:
            self._output.stop()  # a child of the server may keep it open

    async def _exits(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _PATIENCE_FOR_SERVER)
            return True
        return False


# What a server says of itself

_CLIENT: Final = {"name": "agent-cache", "version": "1"}
_HELLO: Final = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT}
_PREFIX: Final = "io.modelcontextprotocol/"
_ENVELOPE: Final = {
    f"{_PREFIX}protocolVersion": MODERN, f"{_PREFIX}clientInfo": _CLIENT, f"{_PREFIX}clientCapabilities": {},
}  # fmt: skip


async def introduced(connect: Connect) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Make the acquaintance of a server: its name, and its tools by name.

    Raises:
        OSError: if the server cannot be started, ends, or cannot be reached.
        RpcError: if it refuses.
    """
    waiting: dict[Any, asyncio.Future[Response]] = {}

    def on_line(line: bytes) -> None:
        message = parsed(line)
        if message is None:
            _show_noise(line)
        elif message.is_request:
            server.write(error_line(message.id, {"code": -32601, "message": "there is no host"}))
        elif is_id(message.id) and message.id in waiting:
            _settle(waiting[message.id], Response(line, message))

    def on_lost(id: Any, error: ConnectionLost) -> None:  # noqa: A002 - the protocol's name
        for each in waiting if id is None else [id]:
            _settle(waiting[each], error)

    async def ask(method: str, params: dict[str, Any]) -> Any:
        if server.has_closed:
            raise ConnectionLost("the server has ended")
        number = len(waiting)
        waiting[number] = asyncio.get_running_loop().create_future()
        server.write(request_line(number, method, params))
        return (await waiting[number]).result()

    server = connect(on_line, on_lost)
    envelope: dict[str, Any] = {}
    try:
        try:
            found = (await ask("initialize", _HELLO)).get("serverInfo")
            server.write(request_line(None, "notifications/initialized", {}))
        except RpcError:  # a server that knows only the protocol without a handshake
            envelope = {"_meta": _ENVELOPE}
            found = ((await ask("server/discover", envelope)).get("_meta") or {}).get(f"{_PREFIX}serverInfo")
        tools = by_name(await listed(lambda params: ask("tools/list", {**envelope, **params})))
        return str((found or {}).get("name") or "mcp"), tools
    finally:
        await server.end()
