"""The relay over stdio: the host at this process's standard input and output, the server a child process.

Lines go both ways as they come. Nothing is awaited between a line and its way on, so that a server which asks the host
something during a call gets its answer. What is written to the host never blocks the event loop: a host that writes
before it reads would wait for this process, and this process for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol

from agent_cache.relay.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ConnectionLost,
    LineSplitter,
    Message,
    Response,
    batch_of,
    data_of,
    error_line,
    has_one_meaning,
    is_id,
    message_line,
    parsed,
    request_line,
)
from agent_cache.relay.relay import HostRequest, Relay

__all__ = ["Connect", "Server", "connected", "serve"]

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

LineHandler = Callable[[bytes], None]


class Server(Protocol):
    """The other end, whatever carries its lines."""

    has_closed: bool

    def write(self, line: bytes) -> None:
        """Send it a line."""

    async def end(self, *, at_once: bool = False) -> int:
        """End it, and return its exit code."""


Connect = Callable[[LineHandler, Callable[[Any, ConnectionLost], None]], Server]
"""Connects to a server. What it gets: what handles a line of the server, and what takes a request without answer."""
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


async def serve(
    relay: Relay, server: Sequence[str] | Connect, *, vary: str | None = None, reads_in_thread: bool = False
) -> int:
    """Carry the messages between the host and a server until one of them ends, or a signal ends this process.

    Args:
        relay: what is done with them.
        server: the command that starts it, or what connects to it. Neither is used for a replay.
        vary: what distinguishes the entries of this process from those of others: see `Relay.identity`.
        reads_in_thread: read the host's lines in a thread, as on Windows, also where the event loop could.

    Returns:
        The exit code of the server; 128 and the number of a signal that has ended the server or this process.

    Raises:
        ConfigurationError, CassetteError: as on entering the relay; the server was not started.
        OSError: if the server cannot be started.
    """
    relay.identity = vary
    link = _Link(relay, reads_in_thread=reads_in_thread)
    try:
        async with relay:
            await link.run(None if relay.is_replay else server)
    finally:
        await link.close()
    return link.exit_code


class _Request(HostRequest):
    """A request of the host.

    Args:
        link: both ends.
        message: the request.
        line: what is sent to the server.
        sent_id: the id in it: another one where that of the message was in use.
        batch: the batch that it came in.
    """

    def __init__(self, link: _Link, message: Message, line: bytes, sent_id: Any, batch: _Batch | None) -> None:
        params = data_of(message.params)
        super().__init__(message.id, message.method, params if isinstance(params, dict) else {})
        self.line = line
        self.sent_id = sent_id
        self.cancellation = b""
        self._link = link
        self._batch = batch

    async def forward(self) -> Response:
        return await self._link.forward(self)

    async def ask(self, method: str, params: dict[str, Any]) -> Response:
        return await self._link.ask(method, params)

    def reply(self, line: bytes) -> None:
        self._link.settle()
        if self._batch is None:
            self._link.write(line)
        else:
            self._batch.add(self.id, line)

    def leave(self) -> None:
        """It was cancelled, and gets no response."""
        if not self.is_answered:
            self._link.settle()
            if self._batch is not None:
                self._batch.leave(self.id)


class _Batch:
    """The responses to the requests of a batch, which the host gets together (protocol 2025-03-26)."""

    def __init__(self, write: LineHandler, ids: Iterable[Any]) -> None:
        self._write = write
        self._open = set(ids)
        self._lines: list[bytes] = []

    def add(self, id: Any, line: bytes) -> None:  # noqa: A002 - the protocol's name
        self._lines.append(line.strip())
        self.leave(id)

    def leave(self, id: Any) -> None:  # noqa: A002 - as above
        self._open.discard(id)
        if not self._open and self._lines:
            self._write(b"[" + b",".join(self._lines) + b"]\n")
            self._lines = []


class _Passed(NamedTuple):
    """A request of the host that was passed on.

    Attributes:
        id: its id, under which the host waits for the response.
        learns: the request, if the relay learns from its response.
        batch: the batch that it came in.
    """

    id: Any
    learns: Message | None = None
    batch: _Batch | None = None


class _Link:
    """Both ends, and what is under way between them."""

    def __init__(self, relay: Relay, *, reads_in_thread: bool) -> None:
        self.exit_code = 0
        self._relay = relay
        self._input = _Input(self._from_host, self._end_host, in_thread=reads_in_thread)
        self._output = _Output(self._end_host)
        self._server: Server | None = None
        self._waiting: dict[Any, asyncio.Future[Response]] = {}
        self._forwarded: set[_Request] = set()
        self._tasks: dict[Any, tuple[_Request, asyncio.Task[None]]] = {}
        self._unanswered = 0
        self._background: set[asyncio.Task[Any]] = set()
        self._passed: dict[Any, _Passed] = {}
        self._asked = 0
        self._change = asyncio.Event()
        self._host_has_ended = False
        self._signal: int | None = None

    # Life

    async def run(self, server: Sequence[str] | Connect | None) -> None:
        """Carry messages until there are no more. Calls that a signal has interrupted are left under way."""
        with _signals(self._stop):
            if callable(server):
                self._server = server(self._from_server, self._lose)
            elif server is not None:
                self._server = await _Server.start(server, self._from_server, self._end_server, self._input)
            self._input.start()
            while not (self._host_has_ended or self._has_lost_server or self._signal):
                await self._wait()
            self._input.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_FOR_CALLS):
                    while self._unanswered and not self._signal:
                        await self._wait()

    @property
    def _has_lost_server(self) -> bool:
        return self._server is not None and self._server.has_closed

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

    def _end_server(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost("the server has ended before it answered"))
        self._relay.lose_server()
        self._change.set()

    def _lose(self, id: Any, error: ConnectionLost) -> None:  # noqa: A002 - the protocol's name
        """One request gets no answer of the server any more."""
        future = self._waiting.get(id)
        if future is None:
            name = self._passed.pop(id, _Passed(id)).id
            self.write(error_line(name, {"code": INTERNAL_ERROR, "message": f"agent-cache: {error}"}))
        elif not future.done():
            future.set_exception(error)

    # From the host

    def _from_host(self, line: bytes, batch: _Batch | None = None) -> None:
        message = parsed(line)
        if message is None:
            parts = batch_of(line) if batch is None else None
            if parts:
                self._batch_from_host(line, parts)
            elif line.strip():
                self._pass_unread(line, PARSE_ERROR, "this is no JSON")
            return
        has_id = is_id(message.id)
        if not has_one_meaning(line, message) or (message.method == "tools/call" and not has_id):
            if self._is_in_use(message.id):
                self._refuse(message.id, "this cannot be read, and its id is in use", batch=batch)
            else:
                if has_id:
                    self._passed[message.id] = _Passed(message.id, batch=batch)
                self._pass_unread(line, INVALID_REQUEST, "this is no request that can be read", message.id, batch)
            return
        if message.is_request:
            self._request_from_host(line, message, batch)
        elif message.method != "notifications/cancelled" or not self._has_cancelled(data_of(message.params), line):
            self._pass_on(line)

    def _request_from_host(self, line: bytes, message: Message, batch: _Batch | None) -> None:
        sent_id = message.id
        if self._is_in_use(sent_id):  # two responses with this id could not be told apart
            sent_id = self._own_id()
            line = message_line(message, sent_id)
        if self._relay.answers(message.method) and is_id(message.id):
            self._start(_Request(self, message, line, sent_id, batch))
            return
        if self._relay.is_replay and not is_id(message.id):
            self._refuse(None, "an id is a text or a whole number")
            return
        if isinstance(sent_id, str | int | float):
            self._passed[sent_id] = _Passed(message.id, message if self._relay.learns(message.method) else None, batch)
        self._pass_on(line)

    def _is_in_use(self, id: Any) -> bool:  # noqa: A002 - the protocol's name
        """Whether a response with this id could be that of another request."""
        if not isinstance(id, str | int | float):
            return False
        return id in self._tasks or id in self._passed or (isinstance(id, str) and id.startswith(_OWN))

    def _own_id(self) -> str:
        self._asked += 1
        return f"{_OWN}{self._asked}"

    def _refuse(
        self,
        id: Any,  # noqa: A002 - as above
        why: str,
        code: int = INVALID_REQUEST,
        batch: _Batch | None = None,
    ) -> None:
        line = error_line(id, {"code": code, "message": f"agent-cache: {why}"})
        if batch is None:
            self.write(line)
        else:
            batch.add(id, line)

    def _pass_unread(
        self,
        line: bytes,
        code: int,
        why: str,
        id: Any = None,  # noqa: A002 - as above
        batch: _Batch | None = None,
    ) -> None:
        """Pass on a line which may be a call of any tool. Without a server, nobody can take it for one."""
        if self._relay.is_replay:
            self._refuse(id if is_id(id) else None, why, code, batch)
            return

        async def send() -> None:
            self._to_server(line)

        self._unanswered += 1
        task = self._relay.start_unread(send)
        task.add_done_callback(lambda _: self.settle())
        self._keep(task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Let a task run in the background."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _batch_from_host(self, line: bytes, parts: list[bytes]) -> None:
        messages = [(part, parsed(part)) for part in parts]
        requests = [each for _, each in messages if each is not None and each.is_request and is_id(each.id)]
        is_read = all(each is not None and has_one_meaning(part, each) for part, each in messages)
        if is_read and any(each is not None and self._relay.answers(each.method) for _, each in messages):
            batch = _Batch(self.write, [each.id for each in requests])
            for part in parts:
                self._from_host(part, batch)
            return
        if any(self._is_in_use(each.id) for each in requests):
            self._refuse(None, "an id in this batch is in use")
            return
        for each in requests:
            self._passed[each.id] = _Passed(each.id, each if self._relay.learns(each.method) else None)
        if is_read:
            self._pass_on(line)
        else:
            self._pass_unread(line, INVALID_REQUEST, "this batch cannot be read")

    def _start(self, request: _Request) -> None:
        self._unanswered += 1
        task = self._relay.start(request)
        self._tasks[request.sent_id] = request, task
        task.add_done_callback(lambda _: self._end_task(request))

    def _end_task(self, request: _Request) -> None:
        self._tasks.pop(request.sent_id, None)
        request.leave()

    def settle(self) -> None:
        """A request has got its response, or will get none."""
        self._unanswered -= 1
        self._change.set()

    def _has_cancelled(self, params: Any, line: bytes) -> bool:
        """Cancel a request that the relay answers. False if it is none, and the server's affair."""
        id = params.get("requestId") if isinstance(params, dict) else None  # noqa: A001 - the protocol's name
        if not is_id(id):
            return False
        found = self._tasks.get(id)
        if found is None or found[0].is_answered:
            self._passed.pop(id, None)  # it may get no response
            return False
        request, task = found
        request.cancellation = line
        task.cancel()
        return True

    def _pass_on(self, line: bytes) -> None:
        if not self._relay.is_replay:
            with contextlib.suppress(ConnectionLost):  # the end of the server ends this process too
                self._to_server(line)

    def _to_server(self, line: bytes) -> None:
        if self._server is None or self._server.has_closed:
            raise ConnectionLost("the server has ended")
        self._server.write(line)

    async def forward(self, request: _Request) -> Response:
        """Send a request of the host to the server, and wait for the response."""
        self._forwarded.add(request)
        try:
            response = await self._exchange(request.sent_id, request.line)
        except asyncio.CancelledError:
            cancelled = {"requestId": request.sent_id}
            self._pass_on(request.cancellation or request_line(None, "notifications/cancelled", cancelled))
            raise
        finally:
            self._forwarded.discard(request)
        return response if request.sent_id == request.id else response.under(request.id)

    async def ask(self, method: str, params: dict[str, Any]) -> Response:
        """Make a request of the relay's own."""
        id = self._own_id()  # noqa: A001 - the protocol's name
        return await self._exchange(id, request_line(id, method, params))

    async def _exchange(self, id: Any, line: bytes) -> Response:  # noqa: A002 - as above
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        try:
            self._to_server(line)
            return await future
        finally:
            if self._waiting.get(id) is future:
                del self._waiting[id]

    # From the server

    def _from_server(self, line: bytes) -> None:
        message = parsed(line)
        if message is None:
            parts = batch_of(line)
            messages = [parsed(part) for part in parts or ()]
            if not parts or None in messages:
                if line.lstrip()[:1] in (b"{", b"[") and b'"jsonrpc"' in line:
                    self.write(line)  # a message that is broken: the host's affair
                else:
                    _show_noise(line)
                return
            rest = [part for part, each in zip(parts, messages, strict=True) if not self._has_taken(part, each)]
            if rest:
                self.write(line if len(rest) == len(parts) else b"[" + b",".join(map(bytes.strip, rest)) + b"]\n")
        elif not self._has_taken(line, message):
            self.write(line)

    def _has_taken(self, line: bytes, message: Message | None) -> bool:
        """Whether a message of the server goes another way than straight to the host."""
        assert message is not None
        id, method = message.id, message.method  # noqa: A001 - the protocol's name
        if method:
            if id is not None and method != "ping":
                for request in self._forwarded:
                    request.asked_host = True
            elif method in self._relay.observed:
                self._keep(asyncio.get_running_loop().create_task(self._observe(message, line)))
                return True
            return False
        if not isinstance(id, str | int | float) or isinstance(id, bool):
            return False
        future = self._waiting.get(id)
        if future is not None:
            if not future.done():
                future.set_result(Response(line, message))
            return True
        passed = self._passed.pop(id, None)
        if passed is None:
            return isinstance(id, str) and id.startswith(_OWN)  # one that was given up
        if passed.learns is not None and message.result:
            self._relay.learn(passed.learns.method, data_of(passed.learns.params), data_of(message.result))
        if passed.id == id and passed.batch is None:
            return False
        if passed.id != id:
            line = message_line(message, passed.id)
        if passed.batch is None:
            self.write(line)
        else:
            passed.batch.add(passed.id, line)
        return True

    async def _observe(self, message: Message, line: bytes) -> None:
        try:
            await self._relay.observe(message.method, data_of(message.params))
        finally:
            self.write(line)

    def write(self, line: bytes) -> None:
        """Send a line to the host."""
        self._output.write(line)


def _show_noise(line: bytes) -> None:
    """What is no message does not belong on the host's side: it would end some hosts."""
    sys.stderr.buffer.write(line)
    sys.stderr.flush()


@contextlib.contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
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


# The host: standard input and output


class _Input:
    """The lines of the host.

    The event loop watches a pipe, a socket or a terminal. It can watch no file, and on Windows nothing of these: there
    a thread reads.
    """

    def __init__(self, on_line: LineHandler, on_end: Callable[[], None], *, in_thread: bool) -> None:
        self._descriptor = 0
        self._on_line = on_line
        self._on_end = on_end
        self._in_thread = in_thread
        self._is_watched = False
        self._lines = LineSplitter()
        self._is_open = True
        self._may_read = threading.Event()
        self._may_read.set()
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to read."""
        if not self._in_thread:
            try:
                self._loop.add_reader(self._descriptor, self._read)
                self._is_watched = True
                return
            except (NotImplementedError, OSError):
                pass
        if sys.platform == "win32":
            import msvcrt

            msvcrt.setmode(self._descriptor, os.O_BINARY)
        threading.Thread(target=self._read_in_thread, daemon=True, name="agent-cache mcp: stdin").start()

    def pause(self) -> None:
        """Read no more: the server does not take it."""
        self._may_read.clear()
        if self._is_watched:
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Go on."""
        self._may_read.set()
        if self._is_watched and self._is_open:
            self._loop.add_reader(self._descriptor, self._read)

    def stop(self) -> None:
        """Read no more, for good."""
        self._is_open = False
        self.pause()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except OSError:
            data = b""
        self._feed(data)

    def _read_in_thread(self) -> None:
        data = b"-"
        while data:
            self._may_read.wait()
            try:
                data = os.read(self._descriptor, _CHUNK)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._feed, data)
            except RuntimeError:  # the event loop has ended
                return

    def _feed(self, data: bytes) -> None:
        if not self._is_open:
            return
        for line in self._lines.feed(data):
            self._on_line(line)
        if not data:
            if rest := self._lines.rest():
                self._on_line(rest + b"\n")
            self.stop()
            self._on_end()


class _Output:
    """The lines for the host, in order, without waiting for it.

    A short line is written at once where the descriptor takes that much. The others wait in a thread.

    From here on, what any code prints goes to standard error.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unwritten = 0  # in the queue; only the event loop adds to it, and only the thread takes
        self._written = 0
        self._thread: threading.Thread | None = None
        self._poll: Any = None
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLOUT)

    def write(self, line: bytes) -> None:
        """Write a line, now or as soon as the host takes it."""
        is_idle = self._unwritten == self._written
        if is_idle and self._poll is not None and len(line) <= _ATOMIC:
            found = self._poll.poll(0)
            if found and found[0][1] & select.POLLOUT:
                self._write(line)
                return
        self._unwritten += 1
        self._queue.put(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_in_thread, daemon=True, name="agent-cache mcp: stdout")
            self._thread.start()

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # the host has gone
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_lost)

    def _write_in_thread(self) -> None:
        while (line := self._queue.get()) is not None:
            self._write(line)
            self._written += 1

    async def close(self) -> None:
        """Wait until the host has taken what it is to get."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join, _PATIENCE_FOR_SERVER)


# The server: a child process


class _Server(asyncio.SubprocessProtocol):
    """The server's process. Its standard error is this process's own."""

    _transport: asyncio.SubprocessTransport

    def __init__(self, on_line: LineHandler, on_end: Callable[[], None], source: _Input | None) -> None:
        self.has_closed = False
        self._on_line = on_line
        self._on_end = on_end
        self._source = source
        self._lines = LineSplitter()
        self._has_exited = asyncio.Event()
        self._stdin: Any = None
        self._output: int | None = None

    @classmethod
    async def start(
        cls, command: Sequence[str], on_line: LineHandler, on_end: Callable[[], None], source: _Input | None = None
    ) -> _Server:
        """Start it.

        Args:
            on_line: called with each line of its standard output.
            on_end: called when that has ended.
            source: what is paused while the server takes no more input.

        Raises:
            OSError: if it cannot be started.
        """
        program = shutil.which(command[0])  # on Windows also `npx.cmd`
        if program is None:
            raise FileNotFoundError(2, f"there is no command {command[0]!r}; the server is started by what follows --")
        loop = asyncio.get_running_loop()
        output: int | None = None
        stdout = asyncio.subprocess.PIPE
        if sys.platform != "win32":  # asyncio reads 256 KB at once: see _CHUNK
            output, stdout = os.pipe()
        try:
            transport, server = await loop.subprocess_exec(
                lambda: cls(on_line, on_end, source), program, *command[1:], stdout=stdout, stderr=None
            )
        except BaseException:
            if output is not None:
                os.close(output)
            raise
        finally:
            if output is not None:
                os.close(stdout)
        server._transport = transport
        server._stdin = transport.get_pipe_transport(0)
        if output is not None:
            server._output = output
            loop.add_reader(output, server._read)
        return server

    def write(self, line: bytes) -> None:
        """Send it a line."""
        self._stdin.write(line)

    def _read(self) -> None:
        assert self._output is not None
        data = os.read(self._output, _CHUNK)
        if data:
            self.pipe_data_received(1, data)
        else:
            self._close_output()
            self.pipe_connection_lost(1, None)

    def _close_output(self) -> None:
        if self._output is not None:
            asyncio.get_running_loop().remove_reader(self._output)
            os.close(self._output)
            self._output = None

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - it is standard output
        for line in self._lines.feed(data):
            self._on_line(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's names
        if fd == 1:
            if rest := self._lines.rest():
                self._on_line(rest + b"\n")
            self.has_closed = True
            self._on_end()

    def process_exited(self) -> None:
        self._has_exited.set()

    def pause_writing(self) -> None:
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        if self._source is not None:
            self._source.resume()

    async def end(self, *, at_once: bool = False) -> int:
        """Let it end, or end it.

        Returns:
            Its exit code; 0 if it had to be ended although it was not asked to go on, 1 if it had stopped to answer.
        """
        try:
            return await self._end(at_once=at_once)
        finally:
            self._close_output()  # a child of the server may keep it open

    async def _end(self, *, at_once: bool) -> int:
        had_closed = self.has_closed
        self._stdin.close()
        if not at_once and await self._exits():
            return self._transport.get_returncode() or 0
        for end in (self._transport.terminate, self._transport.kill):
            with contextlib.suppress(ProcessLookupError):
                end()
            if await self._exits():
                break
        self._transport.close()
        return int(had_closed)

    async def _exits(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_FOR_SERVER):
                await self._has_exited.wait()
        return self._has_exited.is_set()


@asynccontextmanager
async def connected(command: Sequence[str]) -> AsyncIterator[Ask]:
    """Start a server, and yield a function that makes requests of it: ``await ask(method, params)`` is the result.

    A method that begins with ``notifications/`` is a notification, which has no result.

    Raises:
        OSError: if the server cannot be started; by `ask`, if it ends.
        RpcError: by `ask`, if the server answers by an error.
    """
    waiting: dict[int, asyncio.Future[Response]] = {}

    def on_line(line: bytes) -> None:
        message = parsed(line)
        if message is None:
            _show_noise(line)
        elif message.is_request:
            server.write(error_line(message.id, {"code": -32601, "message": "there is no host"}))
        elif is_id(message.id) and message.id in waiting and not waiting[message.id].done():
            waiting[message.id].set_result(Response(line, message))

    def on_end() -> None:
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost("the server has ended"))

    async def ask(method: str, params: dict[str, Any]) -> Any:
        if method.startswith("notifications/"):
            server.write(request_line(None, method, params))
            return None
        if server.has_closed:
            raise ConnectionLost("the server has ended")
        number = len(waiting)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        waiting[number] = future
        server.write(request_line(number, method, params))
        return (await future).result()

    server = await _Server.start(command, on_line, on_end)
    try:
        yield ask
    finally:
        await server.end()
