"""One connection, shared by all that one event loop has to say to one server.

redis-py opens it (TCP, TLS, unix socket, ACL, HELLO) and hands it over. From then on commands are written as they come
and replies are matched to them in order: nobody waits for another's reply, and a command that is not answered in time
ends the connection, for nothing that comes after it could be told apart.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from agent_cache.remote.redis.connections import Address, Deployment
from agent_cache.remote.redis.wire import Interrupted, Replies, ReplyError, Unreachable, pack

__all__ = ["Answered", "Link", "Sent", "into"]

Answered = Callable[["list[Any] | Unreachable"], None]
"""Is given the replies, `ReplyError` among them, or why there are none. Called in the loop; must not raise."""

Sent = tuple[bytes, int, Answered, float]
"""One or more commands, ready to be written; how many replies they have, and who is given these; since when that one
waits, by the loop's clock. Whatever else it has waited for until it is sent, the server has a quarter of the timeout.
"""

_NEVER_DUE = float("inf")


class Link(asyncio.Protocol):
    """A connection that is open, or was.

    Args:
        limit: bytes of the longest value that is kept.
        timeout: seconds that a server may take for a reply.
        receive: is given every reply in the order of arrival, instead of those who asked: a subscription.
    """

    def __init__(self, limit: int, timeout: float, receive: Callable[[Any], None] | None = None) -> None:
        self.is_open = False
        self.on_close: Callable[[], None] | None = None
        self._timeout = timeout
        self._receive = receive
        self._replies = Replies(limit)
        self._waiting: deque[tuple[int, Answered, float]] = deque()
        self._got: list[Any] = []
        self._transport: asyncio.Transport | None = None
        self._writer: Any = None
        self._watch: asyncio.TimerHandle | None = None
        self._next_look = _NEVER_DUE
        self._nobody = Context()  # a timer keeps the context that it was made in, also after it was cancelled
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        deployment: Deployment,
        address: Address,
        *,
        limit: int,
        timeout: float,  # noqa: ASYNC109 - it goes to the connection as well
        receive: Callable[[Any], None] | None = None,
        to_sentinel: bool = False,
    ) -> Link:
        """Connect and log in.

        Raises:
            Unreachable: whatever went wrong.
        """
        link = cls(limit, timeout, receive)
        connection = None
        try:
            connection = deployment.connection(address, timeout, to_sentinel=to_sentinel, log_in=link._log_in)
            async with asyncio.timeout(timeout):
                await connection.connect()
        except Exception as error:
            reason = str(error) or f"no connection within {timeout:g} s"
            raise Unreachable(f"{address[0]}:{address[1]}: {reason}") from error
        else:
            link._take_over(connection)
            return link
        finally:
            if not link.is_open:  # interrupted half way
                link._abandon(connection)

    async def _log_in(self, connection: Any) -> None:
        # The writer is kept, since it would close the transport when it is collected, and since redis-py forgets it
        # when it is interrupted: over TLS, it only begins to say goodbye then.
        self._writer = connection._writer
        await connection.on_connect()

    def _take_over(self, connection: Any) -> None:
        # redis-py forgets it, since its connection would complain that it was never closed.
        connection._writer = connection._reader = None
        transport: asyncio.Transport = self._writer.transport
        transport.set_protocol(self)
        self._transport = transport
        self.is_open = not transport.is_closing()

    def _abandon(self, connection: Any) -> None:
        if connection is not None and connection._writer is not None:
            self._writer, connection._writer, connection._reader = connection._writer, None, None
        if self._writer is not None:
            self._writer.transport.abort()

    def send(self, *commands: Sent) -> None:
        """Write commands, all at once."""
        if not self.is_open or self._transport is None:
            for _, _, answered, _ in commands:
                answered(Interrupted("the connection is closed"))
            return
        now = self._loop.time()
        for _, count, answered, since in commands:
            due = max(since + self._timeout, now + self._timeout / 4)
            self._waiting.append((count, answered, due))
            if due < self._next_look:
                if self._watch is not None:
                    self._watch.cancel()
                self._look_at(due)
        self._transport.write(commands[0][0] if len(commands) == 1 else b"".join([packed for packed, *_ in commands]))

    async def ask(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """Send commands and wait for the replies.

        Raises:
            Unreachable: if they do not come in time, or one is an error.
        """
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        packed = b"".join([pack(*command) for command in commands])
        self.send((packed, len(commands), into(future), self._loop.time()))
        replies = await future
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise Unreachable(str(reply))
        return replies

    def push(self, *parts: bytes) -> None:
        """Send a command whose reply goes to `receive`."""
        if self.is_open and self._transport is not None:
            self._transport.write(pack(*parts))

    def close(self) -> None:
        """End it now. Whoever waits is told."""
        if self._transport is not None:
            self._transport.abort()
        self._end(Interrupted("the connection was closed"))

    def cut(self) -> None:
        """Tell the other side that it is over; the transport is closed when its loop runs again. From any thread."""
        transport = self._transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except (OSError, TypeError):  # it is over already, or belongs to a loop that lets nobody at it
                pass

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Replies have arrived."""
        try:
            replies = self._replies.feed(data)
        except ValueError:
            self.close()
            return
        if self._receive is not None:
            for reply in replies:
                self._receive(reply)
            return
        for reply in replies:
            self._got.append(reply)
            if self._waiting and len(self._got) == self._waiting[0][0]:
                _, answered, _ = self._waiting.popleft()
                got, self._got = self._got, []
                answered(got)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side, or the network, has ended it."""
        self._end(Interrupted(f"the connection was lost: {exc}" if exc else "the connection was lost"))

    def _end(self, error: Unreachable) -> None:
        was_open, self.is_open = self.is_open, False
        if self._watch is not None:
            self._watch.cancel()
            self._watch, self._next_look = None, _NEVER_DUE
        while self._waiting:
            self._waiting.popleft()[1](error)
        if was_open and self.on_close is not None:
            self.on_close()

    def _look_for_delays(self) -> None:
        """One timer for all: each reply would otherwise cost one."""
        self._watch, self._next_look = None, _NEVER_DUE
        if not self._waiting:
            return
        due = min(due for _, _, due in self._waiting)
        if due <= self._loop.time():
            if self._transport is not None:
                self._transport.abort()
            self._end(Unreachable(f"no answer within {self._timeout:g} s"))
        else:
            self._look_at(due)

    def _look_at(self, due: float) -> None:
        self._watch, self._next_look = self._loop.call_at(due, self._look_for_delays, context=self._nobody), due


def into(future: asyncio.Future[list[Any]]) -> Answered:
    """Have the replies put into a future."""

    def answered(replies: list[Any] | Unreachable) -> None:
        if future.done():
            return
        if isinstance(replies, Unreachable):
            future.set_exception(replies)
        else:
            future.set_result(replies)

    return answered
