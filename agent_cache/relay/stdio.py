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
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from agent_cache.relay.messages import (
    ENVELOPE,
    INVALID_REQUEST,
    MODERN,
    ConnectionLost,
    Message,
    Response,
    RpcError,
    by_name,
    data_of,
    error_line,
    listed,
    parsed,
    refusal_of,
    request_line,
)
from agent_cache.relay.relay import HostRequest, Relay

_PATIENCE_FOR_CALLS: Final = 30.0
"""Seconds that calls may take on after the host has closed its side: a script that pipes its requests in has closed it
before the server has started. A host that does not want to wait sends a signal."""
_PATIENCE_FOR_SERVER: Final = 2.0
"""Seconds that the server has to end by itself, and again after a signal."""


async def serve(relay: Relay, command: Sequence[str], *, vary: str) -> int:
    """Carry the messages between the host and the server of a command until one of them ends, or a signal ends this
    process. `vary` distinguishes the entries of this process from those of others. Returns the exit code of the server;
    128 and the number of a signal that has ended the server or this process.
    """
    relay.identity = vary
    link = _Link(relay)
    try:
        async with relay:
            await link.run(command)
    finally:
        await link.close()
    return link.exit_code


class _Request(HostRequest):
    """A request of the host, `line`. `cancellation` is what tells the server that it is cancelled."""

    def __init__(self, link: _Link, message: Message, line: bytes) -> None:
        super().__init__(message)
        self.cancellation = request_line(None, "notifications/cancelled", {"requestId": message.id})
        self._line, self._link = line, link

    async def forward(self) -> Response:
        link = self._link
        link.forwarded.add(self)
        try:
            return await link.exchange(self.id, self._line)
        except asyncio.CancelledError:
            link.pass_on(self.cancellation)
            raise
        finally:
            link.forwarded.discard(self)

    async def ask(self, method: str, params: dict[str, Any]) -> Response:
        id = f"agent-cache:{next(self._link.numbers)}"  # noqa: A001 - the protocol's name
        return await self._link.exchange(id, request_line(id, method, params))

    def reply(self, line: bytes) -> None:
        self._link.write(line)


class _Link:
    """Both ends, and what is under way between them, by the ids of requests: `_tasks` are those that the relay answers,
    `_open` what takes the response, or the loss, of what was sent to the server.
    """

    def __init__(self, relay: Relay) -> None:
        self.exit_code = 0
        self.forwarded: set[_Request] = set()
        self.numbers = itertools.count(1)
        self._relay = relay
        sys.stdout.flush()
        self._output = _Output(os.dup(1))
        self.write = self._output.write
        os.dup2(2, 1)  # from here on, what any code prints goes to standard error
        self._server: asyncio.subprocess.Process | None = None
        self._open: dict[Any, Callable[[Response | ConnectionLost], None]] = {}
        self._tasks: dict[Any, tuple[_Request, asyncio.Task[None]]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._signal: int | None = None

    # Life

    async def run(self, command: Sequence[str]) -> None:
        """Carry messages until there are no more. Calls that a signal has interrupted are left under way."""
        stopped = asyncio.Event()

        def stop(number: int) -> None:
            self._signal = number
            stopped.set()

        with signals(stop):
            end = self._start(stopped.wait())
            ends = {end}
            if not self._relay.is_replay:
                self._server = await started(command)
                ends.add(self._start(self._read_server(self._server)))
            host = self._start(self._read_host())
            done, _ = await asyncio.wait({host, *ends}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {end}:
                task.result()
            if host in done:
                calls = [task for _, task in self._tasks.values()]
                answered = asyncio.gather(*calls, return_exceptions=True)
                await asyncio.wait({end, answered}, timeout=_PATIENCE_FOR_CALLS, return_when=asyncio.FIRST_COMPLETED)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """End the server and what is still under way, and write what is left to be written."""
        if self._server is not None:
            code = await ended(self._server, at_once=bool(self._signal))
            self.exit_code = code if code >= 0 else 128 - code
        if self._signal:
            self.exit_code = 128 + self._signal
        tasks = [task for _, task in self._tasks.values()] + list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._output.close)

    # From the host

    async def _read_host(self) -> None:
        async for line in _input():
            message = parsed(line)
            if refusal := refusal_of(line, message):
                self.write(refusal)
            elif message is None:
                self.pass_on(line)
            elif message.is_request:
                self._request_from_host(line, message)
            elif message.method != "notifications/cancelled" or not self._has_cancelled(data_of(message.params), line):
                self.pass_on(line)

    def _request_from_host(self, line: bytes, message: Message) -> None:
        id = message.id  # noqa: A001 - the protocol's name
        known = self._tasks.get(id)
        if (known is not None and not known[0].is_answered) or id in self._open:
            self.write(error_line(id, "another request has this id", INVALID_REQUEST))
        elif self._relay.answers(message):
            request = _Request(self, message, line)
            task = self._relay.start(request)
            self._tasks[id] = own = request, task
            # The host may use the id again as soon as it is answered: then it is the next request's.
            task.add_done_callback(lambda _: self._tasks.get(id) is own and self._tasks.pop(id))
        else:
            self._open[id] = partial(self._pass_back, message)
            self.pass_on(line)

    def _has_cancelled(self, params: Any, line: bytes) -> bool:
        """Cancel a request that the relay answers. False if it is none, and the server's affair."""
        id = params.get("requestId") if isinstance(params, dict) else None  # noqa: A001 - the protocol's name
        request, task = self._tasks.get(id, (None, None)) if isinstance(id, str | int) else (None, None)
        if request is None or task is None or request.is_answered:
            return False
        request.cancellation = line
        task.cancel()
        return True

    def pass_on(self, line: bytes) -> None:
        """Send a line to the server as it came. The end of the server ends this process too."""
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.write(line)

    async def exchange(self, id: Any, line: bytes) -> Response:  # noqa: A002 - the protocol's name
        """Send a request under this id, and wait for the response."""
        if self._server is None or self._server.stdout is None or self._server.stdout.at_eof():
            raise ConnectionLost("the server has ended")
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._open[id] = partial(_settle, future)
        try:
            self.pass_on(line)
            return await future
        finally:
            self._open.pop(id, None)

    # From the server

    async def _read_server(self, server: asyncio.subprocess.Process) -> None:
        assert server.stdout is not None
        async for line in server.stdout:
            await self._from_server(line)
        lost = ConnectionLost("the server has ended before it answered")
        for take in [self._open.pop(each) for each in list(self._open)]:
            take(lost)
        self._relay.lose_server()
        await asyncio.gather(*(task for _, task in self._tasks.values()), return_exceptions=True)

    async def _from_server(self, line: bytes) -> None:
        message = parsed(line)
        if message is None:
            # What is no message does not belong on the host's side: it would end some hosts
            (self.write if b'"jsonrpc"' in line else _show_noise)(line)
        elif message.method:
            if message.id is not None and message.method != "ping":
                for request in self.forwarded:
                    request.asked_host = True
            elif message.method in self._relay.observed:
                await self._relay.observe(message.method, data_of(message.params))
            self.write(line)
        elif (take := self._open.pop(message.id, None)) is not None:
            take(Response(line, message))
        elif not str(message.id).startswith("agent-cache:"):  # else the relay has given it up
            self.write(line)

    def _pass_back(self, asked: Message, found: Response | ConnectionLost) -> None:
        """The response to a request that was passed on."""
        if isinstance(found, ConnectionLost):
            self.write(error_line(asked.id, str(found)))
            return
        if found.message.result and self._relay.learns(asked.method):
            self._relay.learn(asked, data_of(found.message.result))
        self.write(found.line)


def _settle(future: asyncio.Future[Response], found: Response | ConnectionLost) -> None:
    if not future.done():
        if isinstance(found, ConnectionLost):
            future.set_exception(found)
        else:
            future.set_result(found)


def _show_noise(line: bytes) -> None:
    sys.stderr.buffer.write(line)
    sys.stderr.flush()


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


async def _input() -> AsyncIterator[bytes]:
    """The lines of standard input. A thread reads: an event loop can watch no file, and on Windows no pipe."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=sys.maxsize)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            while data := os.read(0, 1 << 16):
                loop.call_soon_threadsafe(reader.feed_data, data)
            loop.call_soon_threadsafe(reader.feed_eof)

    threading.Thread(target=read, daemon=True, name="agent-cache mcp: input").start()
    async for line in reader:
        yield line if line.endswith(b"\n") else line + b"\n"


class _Output:
    """Writes lines to a descriptor, in order, in a thread: nobody waits for who reads them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.write = self._queue.put
        self._thread = threading.Thread(target=self._write, daemon=True, name="agent-cache mcp: output")
        self._thread.start()

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            rest = memoryview(line)
            with contextlib.suppress(OSError):  # who reads has gone, and the input will end
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Wait a little until all is written, and close the descriptor."""
        self._queue.put(None)
        self._thread.join(_PATIENCE_FOR_SERVER)
        os.close(self._descriptor)


# The server


async def started(command: Sequence[str]) -> asyncio.subprocess.Process:
    """Start a server as a child process. Its standard error is this process's own."""
    program = shutil.which(command[0])  # on Windows also `npx.cmd`
    if program is None:
        raise FileNotFoundError(2, f"there is no command {command[0]!r}; the server is started by what follows --")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(program, *command[1:], stdin=pipe, stdout=pipe, limit=1 << 40)


async def ended(server: asyncio.subprocess.Process, *, at_once: bool = False) -> int:
    """Let a server end, or end it. Returns its exit code; 0 if it had to be ended although it was not asked to go on,
    1 if it had stopped to answer.
    """
    assert server.stdin is not None
    assert server.stdout is not None
    had_closed = server.stdout.at_eof()
    server.stdin.close()
    ends = [server.terminate, server.kill]
    for end in ends if at_once else [lambda: None, *ends]:
        with contextlib.suppress(ProcessLookupError):
            end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_FOR_SERVER):
                code = await server.wait()
                return int(had_closed) if end in ends else code
    return 1


_CLIENT: Final = {"name": "agent-cache", "version": "1"}
_HELLO: Final = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT}
_MODERN: Final = {
    f"{ENVELOPE}protocolVersion": MODERN, f"{ENVELOPE}clientInfo": _CLIENT, f"{ENVELOPE}clientCapabilities": {},
}  # fmt: skip

Ask = Callable[[str, dict[str, Any]], Any]
"""Makes a request of a server; of a notification it awaits no answer."""


async def introduced(ask: Ask) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """The name of a server, and its tools by name. Raises `OSError` if it ends, `RpcError` if it refuses."""
    more: dict[str, Any] = {}
    try:
        info = (await ask("initialize", _HELLO)).get("serverInfo")
        await ask("notifications/initialized", {})
    except RpcError:  # a server that knows only the protocol without a handshake
        more = {"_meta": _MODERN}
        info = ((await ask("server/discover", more)).get("_meta") or {}).get(f"{ENVELOPE}serverInfo")
    tools = by_name(await listed(lambda params: ask("tools/list", {**more, **params})))
    return str((info or {}).get("name") or "mcp"), tools


async def introduced_by_command(command: Sequence[str]) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """The same of a server that a command starts."""
    server = await started(command)
    assert server.stdin is not None
    output = server.stdout
    assert output is not None
    numbers = itertools.count(1)

    async def ask(method: str, params: dict[str, Any]) -> Any:
        number = None if method.startswith("notifications/") else next(numbers)
        assert server.stdin is not None
        server.stdin.write(request_line(number, method, params))
        while number is not None:
            if not (line := await output.readline()):
                raise ConnectionLost("the server has ended")
            message = parsed(line)
            if message is None:
                _show_noise(line)
            elif message.id == number and not message.method:
                return Response(line, message).result()
        return None

    try:
        return await introduced(ask)
    finally:
        await ended(server)
