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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

from agent_cache.relay.messages import (
    ENVELOPE,
    INVALID_REQUEST,
    MODERN,
    ConnectionLost,
    Message,
    RpcError,
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
    """A request of the host. `cancellation` is what tells the server that it is cancelled."""

    def __init__(self, link: _Link, message: Message) -> None:
        super().__init__(message)
        self.cancellation = request_line(None, "notifications/cancelled", {"requestId": message.id})
        self._link = link

    async def forward(self) -> Message:
        self._link.forwarded.add(self)
        try:
            return await self._link.exchange(self.id, self.message.line)
        except asyncio.CancelledError:
            self._link.pass_on(self.cancellation)
            raise
        finally:
            self._link.forwarded.discard(self)

    async def ask(self, method: str, params: dict[str, Any]) -> Message:
        name = f"agent-cache:{next(self._link.numbers)}"
        return await self._link.exchange(name, request_line(name, method, params))

    def reply(self, line: bytes) -> None:
        self._link.write(line)


class _Link:
    """Both ends, and what is under way between them, by the ids of requests: `_calls` are those that the relay answers,
    `_open` what was sent to the server, with what waits for the response; None if that passes as it comes.
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
        self._open: dict[Any, asyncio.Future[Message] | None] = {}
        self._calls: dict[Any, tuple[_Request, asyncio.Task[None]]] = {}
        self._running: list[asyncio.Task[Any]] = []
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
            if not self._relay.is_replay:
                self._server = await started(command)
                self._start(self._read_server(self._server))
            host = self._start(self._read_host())
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if host in done:
                answered = asyncio.gather(*(task for _, task in self._calls.values()), return_exceptions=True)
                await asyncio.wait({end, answered}, timeout=_PATIENCE_FOR_CALLS, return_when=asyncio.FIRST_COMPLETED)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        self._running.append(asyncio.create_task(work))
        return self._running[-1]

    async def close(self) -> None:
        """End the server and what is still under way, and write what is left to be written."""
        if self._server is not None:
            code = await ended(self._server, at_once=bool(self._signal))
            self.exit_code = code if code >= 0 else 128 - code
        if self._signal:
            self.exit_code = 128 + self._signal
        tasks = [*self._running, *(task for _, task in self._calls.values())]
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
            elif message is not None and message.is_request:
                self._request_from_host(message)
            elif message is None or message.method != "notifications/cancelled" or not self._has_cancelled(message):
                self.pass_on(line)

    def _request_from_host(self, message: Message) -> None:
        name = message.id
        known = self._calls.get(name)
        if (known is not None and not known[0].is_answered) or name in self._open:
            self.write(error_line(name, "another request has this id", INVALID_REQUEST))
        elif self._relay.answers(message):
            request = _Request(self, message)
            task = self._relay.start(request)
            self._calls[name] = own = request, task
            # The host may use the id again as soon as it is answered: then it is the next request's.
            task.add_done_callback(lambda _: self._calls.get(name) is own and self._calls.pop(name))
        else:
            self._open[name] = None
            self.pass_on(message.line)

    def _has_cancelled(self, message: Message) -> bool:
        """Cancel a request that the relay answers. False if it is none, and the server's affair."""
        name = message.params_by_name().get("requestId")
        request, task = self._calls.get(name, (None, None)) if isinstance(name, str | int) else (None, None)
        if request is None or task is None or request.is_answered:
            return False
        request.cancellation = message.line
        task.cancel()
        return True

    def pass_on(self, line: bytes) -> None:
        """Send a line to the server as it came. The end of the server ends this process too."""
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.write(line)

    async def exchange(self, name: Any, line: bytes) -> Message:
        """Send a request under this id, and wait for the response."""
        if self._server is None or self._server.stdout is None or self._server.stdout.at_eof():
            raise ConnectionLost("the server has ended")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._open[name] = future
        try:
            self.pass_on(line)
            return await future
        finally:
            self._open.pop(name, None)

    # From the server

    async def _read_server(self, server: asyncio.subprocess.Process) -> None:
        assert server.stdout is not None
        async for line in server.stdout:
            await self._from_server(line)
        for name, future in list(self._open.items()):
            lost = ConnectionLost("the server has ended before it answered")
            if future is None:
                self.write(error_line(name, str(lost)))
            elif not future.done():
                future.set_exception(lost)
        self._relay.lose_server()
        await asyncio.gather(*(task for _, task in self._calls.values()), return_exceptions=True)

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
        elif (future := self._open.pop(message.id, None)) is not None:
            if not future.done():
                future.set_result(message)
        elif not str(message.id).startswith("agent-cache:"):  # else the relay has given it up
            self.write(line)


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
    """Let a server end, or end it. Returns its exit code; 0 if it had to be ended."""
    assert server.stdin is not None
    server.stdin.close()
    is_forced = False
    for patience, end in (
        (0 if at_once else _PATIENCE_FOR_SERVER, server.terminate),
        (_PATIENCE_FOR_SERVER, server.kill),
    ):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                code = await server.wait()
                return 0 if is_forced else code
        is_forced = True
        with contextlib.suppress(ProcessLookupError):
            end()
    await server.wait()
    return 0


_CLIENT: Final = {"name": "agent-cache", "version": "1"}
_HELLO: Final = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT}
_MODERN: Final = {
    f"{ENVELOPE}protocolVersion": MODERN, f"{ENVELOPE}clientInfo": _CLIENT, f"{ENVELOPE}clientCapabilities": {},
}  # fmt: skip

Ask = Callable[[str, dict[str, Any]], Any]
"""Makes a request of a server; of a notification it awaits no answer."""


async def introduced(ask: Ask) -> tuple[str, list[Any]]:
    """The name of a server, and its tools. Raises `OSError` if it ends, `RpcError` if it refuses."""
    more: dict[str, Any] = {}
    try:
        info = (await ask("initialize", _HELLO)).get("serverInfo")
        await ask("notifications/initialized", {})
    except RpcError:  # a server that knows only the protocol without a handshake
        more = {"_meta": _MODERN}
        info = ((await ask("server/discover", more)).get("_meta") or {}).get(f"{ENVELOPE}serverInfo")
    tools = await listed(lambda params: ask("tools/list", {**more, **params}))
    return str((info or {}).get("name") or "mcp"), tools


async def introduced_by_command(command: Sequence[str]) -> tuple[str, list[Any]]:
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
                return message.answer()
        return None

    try:
        return await introduced(ask)
    finally:
        await ended(server)
