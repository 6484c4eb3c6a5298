"""A TCP proxy of our own on loopback, between a client and a server: it delays, cuts, refuses and half-opens.

It moves bytes in a thread with an event loop of its own, so that a test may block and still be served. Its switches
may be used from any thread; each acts on the connections that are open and on those to come.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from tests.harness.servers import HOST

Direction = Literal["to_server", "to_client"]
BOTH: tuple[Direction, Direction] = ("to_server", "to_client")
CHUNK = 65536
PATIENCE = 10.0


class Proxy:
    """Stands before a port. `start` it; as a context manager it is stopped at the end.

    Attributes:
        port: where clients connect; the same for its whole life.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy of {target}", daemon=True)
        self._listener: socket.socket | None = None
        self._links: set[_Link] = set()
        self._road = _Road()

    @classmethod
    def start(cls, target: int) -> Self:
        """Stand before the port `target` of this machine, which need not be there yet."""
        proxy = cls(target)
        proxy._thread.start()
        proxy._call(proxy._listen)
        return proxy

    @property
    def url(self) -> str:
        """For a client of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many clients are connected through it, as far as they know."""
        return len(self._links)

    # Its switches

    def delay(self, *, to_server: float = 0.0, to_client: float = 0.0) -> None:
        """Have all bytes take so many seconds longer from now on, in order."""
        self._road.delays = {"to_server": to_server, "to_client": to_client}

    def half_open(self, *directions: Direction) -> None:
        """Let nothing through, in one direction or both, while connections stay open and new ones are accepted.

        Neither side is told anything, also not that the other has closed. As with a broken cable, nothing is lost:
        after `heal` the bytes arrive, if anybody still wants them.
        """
        for each in directions or BOTH:
            self._call(self._road.close, each)

    def delay_news(self, seconds: float) -> None:
        """Have what followers of a stream are sent take so much longer from now on, and nothing else."""
        self._road.news_delay = seconds

    def lose_news(self) -> None:
        """Swallow what followers of a stream are sent from now on. Neither side is told."""
        self._road.loses_news = True

    def cut_at(self, *words: bytes) -> None:
        """Reset a connection, from now on, when a client says one of these on it: the server does not hear of it."""
        self._road.taboos = words

    def heal(self) -> None:
        """Undo `delay`, `half_open`, `refuse`, `cut_at` and what was done to news. What was cut or lost stays so."""
        self.delay()
        self.cut_at()
        self._road.news_delay, self._road.loses_news = 0.0, False
        self._call(self._road.open)
        self._call(self._listen)

    def cut(self) -> None:
        """Reset all connections; new ones are let through."""
        self._call(self._cut)

    def cut_followers(self) -> None:
        """Reset the connections that follow a stream; new ones are let through."""
        self._call(partial(self._cut, only_followers=True))

    def refuse(self) -> None:
        """Cut all connections and refuse new ones, as if nobody listened on the port."""
        self._call(self._stop_listening)
        self._call(self._cut)

    def stop(self) -> None:
        """End it and its connections."""
        if not self._thread.is_alive():
            return
        self._call(self._road.open)
        self._call(self._stop_listening)
        self._call(self._cut)
        self._call(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # In its thread

    def _call(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        asyncio.run_coroutine_threadsafe(work(*arguments), self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port))
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        # asyncio's own server forgets a connection that comes while it is closed. This one is known at once.
        try:
            client, _ = listener.accept()
        except OSError:  # it has gone again
            return
        link = _Link(self._road, client, self.target)
        self._links.add(link)
        link.task.add_done_callback(lambda _: self._links.discard(link))

    async def _cut(self, *, only_followers: bool = False) -> None:
        links = [link for link in self._links if link.follows or not only_followers]
        for link in links:
            link.cut()
        for link in links:
            await link.ended.wait()

    async def _end(self) -> None:
        # One that was accepted a moment ago has not begun.
        late = asyncio.all_tasks() - {asyncio.current_task()}
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


class _Road:
    """What all connections of a proxy have to go through."""

    def __init__(self) -> None:
        self.delays: dict[Direction, float] = dict.fromkeys(BOTH, 0.0)
        self.news_delay = 0.0
        self.loses_news = False
        self.taboos: tuple[bytes, ...] = ()
        self.passable: dict[Direction, asyncio.Event] = {each: asyncio.Event() for each in BOTH}
        for event in self.passable.values():
            event.set()

    async def close(self, direction: Direction) -> None:
        self.passable[direction].clear()

    async def open(self) -> None:
        for event in self.passable.values():
            event.set()


class _Link:
    """One connection: from a client to the proxy, and on to the server."""

    def __init__(self, road: _Road, peer: socket.socket, target: int) -> None:
        self._road = road
        self._peer = peer
        self._writers: list[asyncio.StreamWriter] = []
        self.follows = False
        self.ended = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._carry(target))
        self.task.add_done_callback(self._reset)

    async def _carry(self, target: int) -> None:
        """Move bytes both ways until both sides have ended, one breaks, or it is cut."""
        try:
            client, to_client = await asyncio.open_connection(sock=self._peer)
            self._writers.append(to_client)
            server, to_server = await asyncio.open_connection(HOST, target)
            self._writers.append(to_server)
            async with asyncio.TaskGroup() as group:
                for source, sink, direction in zip((client, server), self._writers[::-1], BOTH, strict=True):
                    # With a queue between them: a delay must not slow down what comes behind it.
                    queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
                    group.create_task(self._take(source, queue, direction))
                    group.create_task(self._give(queue, sink, direction))
        except* OSError:
            pass  # nobody is behind the proxy, or one side has gone: so has the connection
        except* asyncio.CancelledError:
            pass  # cut

    async def _take(
        self, source: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes | None]], direction: Direction
    ) -> None:
        chunk: bytes | None = b"more"
        while chunk:
            try:
                chunk = await source.read(CHUNK)
            except OSError:
                chunk = None  # a reset waits behind what was sent before it
            if chunk and direction == "to_server":
                self.follows |= b"XREAD" in chunk
                if any(word in chunk for word in self._road.taboos):
                    raise ConnectionResetError
            queue.put_nowait((_now(), chunk))

    async def _give(
        self, queue: asyncio.Queue[tuple[float, bytes | None]], sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        while True:
            came, chunk = await queue.get()
            while (left := came + self._delay(direction) - _now()) > 0:
                await asyncio.sleep(min(left, 0.05))  # in short naps: the delay may be changed meanwhile
            await self._road.passable[direction].wait()
            if chunk is None:
                raise ConnectionResetError
            if not chunk:
                sink.write_eof()
                return
            if self._road.loses_news and self.follows and direction == "to_client":
                continue
            sink.write(chunk)
            await sink.drain()

    def _delay(self, direction: Direction) -> float:
        is_news = self.follows and direction == "to_client"
        return self._road.delays[direction] + (self._road.news_delay if is_news else 0.0)

    def cut(self) -> None:
        """End it at once."""
        self.task.cancel()

    def _reset(self, _task: asyncio.Task[None]) -> None:
        """Close both sides by a reset, which is no news to one that has ended in good order."""
        if not self._writers:
            self._peer.close()
        for writer in self._writers:
            peer = writer.get_extra_info("socket")
            if peer is not None and peer.fileno() >= 0:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self.ended.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
