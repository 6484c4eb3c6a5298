"""One connection to a server: RESP, version 2, replies matched to commands, deadlines; and what can go wrong with it.

Replies are matched to commands in order, so that no caller waits for another's reply. A command that is not answered in
time ends the connection, since the replies after it could not be matched.

Sockets are asyncio's, and replies are parsed here, because no client library keeps two promises by its public names: a
reply longer than any value that the tier stores is skipped as it arrives (redis-py, hiredis and coredis read 512 MB
into memory), and a connection ends at once, in the middle of TLS, from a loop that ends, or from another thread. It is
also faster: redis.asyncio's connections cost 1.24x to 1.7x of a raw GET a hit (here 1.17x) and 3.4x to 3.9x a write
(here 3.0x); coredis over twice that. The figures are in docs/benchmarks.md, "The transport".
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from redis.asyncio.connection import SSLConnection
from redis.credentials import UsernamePasswordCredentialProvider

from agent_cache.clock import boottime
from agent_cache.remote.redis.deployments import Address, Deployment
from agent_cache.remote.redis.scripts import Script
from agent_cache.remote.reports import Log

__all__ = [
    "INFO",
    "NEVER",
    "OVERSIZED",
    "SLOTS",
    "Commands",
    "Connection",
    "Counters",
    "Expired",
    "Interrupted",
    "Log",
    "Moving",
    "NotAsked",
    "Refused",
    "Replies",
    "ReplyError",
    "Unreachable",
    "asleep",
    "boottime",
    "bulk",
    "ignore_replies",
    "into_future",
    "pack",
    "replication_id_of",
]

NEVER = float("-inf")

OVERSIZED: Final = object()
"""Stands for a value that was longer than the limit and was skipped."""

INFO = (b"INFO", b"replication")


_REDIRECTS: Final = frozenset({"MOVED", "ASK", "TRYAGAIN"})
"""Codes of errors that say so of one slot: the server is well. See "Redirection" in the specification of clusters."""


SLOTS = 16_384
_MAX_LINE = 65_536
_MAX_DEPTH = 32
_SHORT = 65_536
"""Bytes. Of longer replies little is gained, and much may be copied twice."""
_MAX_REASON = 300
_NOT_DUE = float("inf")
_MAX_UNSENT = 1 << 22


def asleep() -> float:
    """Seconds that the machine has been suspended, from an arbitrary origin: the clock of local copies misses them."""
    return boottime() - time.monotonic()


# Errors


class Unreachable(Exception):
    """A server did not answer in time, not at all, or not as the owner of the data. Never leaves the tier."""

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


class Interrupted(Unreachable):
    """A connection has ended, or its server has another identity now. The server may be asked again at once."""


class Expired(Unreachable):
    """A caller has used up its timeout, maybe with other waits: no fault of the server."""


class Refused(Unreachable):
    """A server has answered that it does not execute this command. Other commands are not affected."""


class Moving(Unreachable):
    """The slot of these keys moves to another server. Nothing was executed, and other slots are not affected.

    Attributes:
        reply: of the server, if it is to be followed still.
    """

    def __init__(self, reason: ReplyError | str) -> None:
        super().__init__(str(reason))
        self.reply = reason if isinstance(reason, ReplyError) else None


class NotAsked(Unreachable):
    """Nothing was sent, because the breaker is open or the connection was given up: no failure of its own."""


class ReplyError(Exception):
    """An error reply. `code` is its first word: ``NOSCRIPT``, ``MOVED``, ``READONLY``..."""

    def __init__(self, text: str) -> None:
        super().__init__(_shortened(text))
        self.code = text.partition(" ")[0]

    @property
    def is_redirect(self) -> bool:
        """Whether it is about the slot of the keys alone."""
        return self.code in _REDIRECTS

    def target(self, asked: Address) -> tuple[int, Address]:
        """The slot, and the server that a ``MOVED`` or ``ASK`` names. Without a host, that is the one that was asked.

        Raises:
            Unreachable: if it is malformed.
        """
        _, slot, address = [*str(self).split(" ")[:3], "", ""][:3]
        host, _, port = address.rpartition(":")
        if not (slot.isdecimal() and int(slot) < SLOTS and port.isdecimal()):
            raise Unreachable(str(self))
        return int(slot), (host or asked[0], int(port))

    @property
    def is_about_command(self) -> bool:
        """Whether it is about the command, and not about the state of the server."""
        return self.code in ("ERR", "WRONGTYPE")


def _shortened(text: str) -> str:
    """An agent may read this text, and it may come from the server."""
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


# Counters and log


@dataclass(slots=True)
class Counters:
    """Events since the tier was made.

    Attributes:
        hits: values found and current.
        misses: lookups that found none.
        batches: reads that went over a connection, whatever number of lookups shared them.
        stores: values written.
        unencodable: values that could not be encoded, or were too large.
        bad_values: values that could not be read: forged, damaged, of another version or too large.
        failures: requests that a server did not answer, or refused.
        skipped: lookups and stores that were not sent, since an invalidation under their tags is pending.
        losses: times that messages may have been missed.
        invalidations: writes of other processes that were received.
        unannounced: writes that ended when the tier was closed: no other process learns of them.
    """

    hits: int = 0
    misses: int = 0
    batches: int = 0
    stores: int = 0
    unencodable: int = 0
    bad_values: int = 0
    failures: int = 0
    skipped: int = 0
    losses: int = 0
    invalidations: int = 0
    unannounced: int = 0

    def as_dict(self) -> dict[str, int]:
        """A plain copy."""
        return asdict(self)


# The protocol: RESP, version 2


def bulk(part: bytes) -> bytes:
    """One part of a command."""
    return b"$%d\r\n%b\r\n" % (len(part), part)


def pack(*parts: bytes) -> bytes:
    """One command."""
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))


class Replies:
    """Parser of replies: takes bytes as they arrive and returns the replies that are complete.

    Args:
        limit: bytes of the longest value that is kept; a longer one becomes `OVERSIZED`, and is skipped as it arrives.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._skip = 0
        self._open: list[tuple[int, list[Any]]] = []  # lists that are not complete: length, items

    def feed(self, data: bytes) -> list[Any]:
        """Return the complete replies: `bytes`, `int`, None, `ReplyError`, and lists of these.

        Raises:
            ValueError: if this is not the protocol.
        """
        buffer: bytes | bytearray = data  # itself, unless something was left over: its slices are the values
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        complete: list[Any] = []
        at = 0
        while True:
            if self._skip:
                at = min(len(buffer), self._skip)
                self._skip -= at
                buffer, at = buffer[at:], 0
                if self._skip:
                    break
                value: Any = OVERSIZED
            else:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    if len(buffer) - at > _MAX_LINE:
                        raise ValueError("a line without an end")
                    break
                kind, line = buffer[at], bytes(buffer[at + 1 : end])
                end += 2
                if kind == 36:  # $
                    size = int(line)
                    if size > self._limit:
                        buffer, at = buffer[end:], 0
                        self._skip = size + 2
                        continue
                    if size < 0:
                        value = None
                    elif len(buffer) < end + size + 2:
                        break
                    else:
                        value = bytes(buffer[end : end + size])
                        end += size + 2
                elif kind == 58:  # :
                    value = int(line)
                elif kind == 43:  # +
                    value = line
                elif kind == 45:  # -
                    value = ReplyError(line.decode("utf-8", "replace"))
                elif kind == 42:  # *
                    size = int(line)
                    if size > 0:
                        if len(self._open) >= _MAX_DEPTH:
                            raise ValueError("lists nested too deeply")
                        items: list[Any] = []
                        self._open.append((size, items))
                        at = self._read_texts(buffer, end, size - 1, items)
                        continue
                    value = None if size < 0 else []
                else:
                    raise ValueError(f"a reply of unknown kind {chr(kind)!r}")
                at = end
            self._add(value, complete)
        if at or buffer is not self._buffer:  # nothing is copied of a long value whose rest is still to come
            self._buffer = bytearray(buffer[at:])
        return complete

    def _read_texts(self, buffer: bytes | bytearray, at: int, count: int, items: list[Any]) -> int:
        """What stands next in nearly all lists, in half of the steps: texts that have arrived, up to so many of them.
        Returns where anything else begins.
        """
        if type(buffer) is bytes and len(buffer) <= min(_SHORT, self._limit):
            # Where no text has a line of its own, each is the whole line behind its length: 0.2 us a text, and not 0.5.
            lines = buffer[at:].split(b"\r\n", 2 * min(count, len(buffer)))
            rest = lines.pop()
            texts = lines[1::2]
            if len(texts) == count and [b"$%d" % len(text) for text in texts] == lines[::2]:
                items += texts
                return len(buffer) - len(rest)
        find, append, limit, arrived = buffer.find, items.append, self._limit, len(buffer) - 2
        for _ in range(count):
            end = find(b"\r\n", at)
            if end < 0 or buffer[at] != 36:
                break
            start = end + 2
            stop = start + int(buffer[at + 1 : end])
            if not start <= stop <= arrived or stop - start > limit:
                break
            append(buffer[start:stop])
            at = stop + 2
        if type(buffer) is bytearray:
            items[:] = map(bytes, items)
        return at

    def _add(self, value: Any, complete: list[Any]) -> None:
        while self._open:
            size, items = self._open[-1]
            items.append(value)
            if len(items) < size:
                return
            self._open.pop()
            value = items
        complete.append(value)


# Connections


_OnReply = Callable[["list[Any] | Unreachable"], None]
"""Takes the replies, `ReplyError` among them, or the reason why there are none. Called in the loop; must not raise."""


class Commands(NamedTuple):
    """One or more commands, packed together.

    Attributes:
        replies: number of them.
        waiting_since: reading of the loop's clock from which the timeout counts. Whatever else its caller has waited
            for, the server has a quarter of the timeout.
    """

    packed: bytes
    replies: int
    on_reply: _OnReply
    waiting_since: float


class Connection(asyncio.Protocol):
    """One connection, shared by all callers of its event loop.

    Args:
        limit: bytes of the longest value that is kept.
        timeout: seconds that the server may take for a reply.

    Attributes:
        is_patient: a reply that is overdue fails its caller alone, and the connection stays: a server that was stopped
            executes what was sent over it. Else it ends.
    """

    def __init__(self, limit: int, timeout: float) -> None:
        self.is_open = False
        self.is_patient = False
        self.on_close: Callable[[], None] | None = None
        self._timeout = timeout
        self._receive: Callable[[Any], None] | None = None
        self._replies = Replies(limit)
        self._waiting: deque[tuple[int, _OnReply, float]] = deque()  # number of replies, who takes them, when due
        self._arrived: list[Any] = []
        self._sent_scripts: set[Script] = set()  # with their source
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_check = _NOT_DUE
        self._context = Context()  # an empty one: a timer keeps its context, also after it was cancelled
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        deployment: Deployment,
        address: Address,
        *,
        limit: int,
        timeout: float,  # noqa: ASYNC109 - also the timeout of its commands
        receive: Callable[[Any], None] | None = None,
        to_sentinel: bool = False,
    ) -> Connection:
        """Connect and log in.

        Args:
            receive: takes every reply in the order of arrival, instead of the callers: for a subscription.

        Raises:
            Unreachable: for whatever reason.
        """
        connection = cls(limit, timeout)
        is_ready = False
        try:
            settings = deployment.sentinel_settings if to_sentinel else deployment.settings
            transport = deployment.sentinel_transport if to_sentinel else deployment.transport
            async with asyncio.timeout(timeout):
                await connection._connect(address, transport, settings)
                await connection._log_in(settings)
            is_ready = True
        except Exception as error:
            reason = str(error) or f"no connection within {timeout:g} s"
            raise Unreachable(f"{address[0]}:{address[1]}: {reason}") from error
        finally:
            if not is_ready:  # also when it was cancelled
                connection.close()
        connection._receive = receive
        return connection

    async def _connect(self, address: Address, transport: str, settings: Mapping[str, Any]) -> None:
        if transport == "unix":
            await self._loop.create_unix_connection(lambda: self, address[0])
            return
        context = None
        if transport == "tls":
            tls = {name: value for name, value in settings.items() if name.startswith("ssl_")}
            context = SSLConnection(**tls).ssl_context.get()
        family = settings.get("socket_type", 0)
        await self._loop.create_connection(lambda: self, address[0], address[1], ssl=context, family=family)
        if settings.get("socket_keepalive") and self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            options = settings.get("socket_keepalive_options")
            for option, value in options.items() if isinstance(options, Mapping) else ():  # redis-py has a placeholder
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    async def _log_in(self, settings: Mapping[str, Any]) -> None:
        commands: list[tuple[bytes, ...]] = []
        provider = settings.get("credential_provider")
        if provider is None and (settings.get("username") or settings.get("password")):
            provider = UsernamePasswordCredentialProvider(settings.get("username"), settings.get("password"))
        if provider is not None:
            commands.append((b"AUTH", *map(_encoded, await provider.get_credentials_async())))
        if settings.get("client_name"):
            commands.append((b"CLIENT", b"SETNAME", _encoded(settings["client_name"])))
        if settings.get("db"):
            commands.append((b"SELECT", _encoded(settings["db"])))
        if commands:
            await self.ask(*commands)

    def send(self, *commands: Commands) -> None:
        """Write commands, all at once."""
        if not self.is_open or self._transport is None:
            for each in commands:
                each.on_reply(Interrupted("the connection is closed"))
            return
        now = self._loop.time()
        for _, count, on_reply, waiting_since in commands:
            due = max(waiting_since + self._timeout, now + self._timeout / 4)
            self._waiting.append((count, on_reply, due))
            if due < self._next_check:
                if self._timer is not None:
                    self._timer.cancel()
                self._check_at(due)
        self._transport.write(commands[0][0] if len(commands) == 1 else b"".join([each[0] for each in commands]))

    async def request(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """Send commands and wait for the replies, `ReplyError` among them.

        Raises:
            Unreachable: if they do not come in time.
        """
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        packed = b"".join([pack(*command) for command in commands])
        self.send(Commands(packed, len(commands), into_future(future), self._loop.time()))
        return await future

    async def ask(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """Send commands and wait for the replies.

        Raises:
            Unreachable: if they do not come in time, or one is an error.
        """
        replies = await self.request(*commands)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise Unreachable(str(reply))
        return replies

    async def run(self, script: Script, keys: list[bytes], arguments: list[bytes]) -> Any:
        """Run a script, and load it where the server does not have it.

        Raises:
            Refused: if the server answers, and does not execute it.
            Moving: if the slot of the keys moves to another server, or has moved.
            Unreachable: if it is not known to have run.
        """
        tail = (b"%d" % len(keys), *keys, *arguments)
        for command in ((b"EVALSHA", script.digest, *tail), (b"EVAL", script.source, *tail)):
            (reply,) = await self.request(command)
            if not isinstance(reply, ReplyError):
                return reply
            if reply.is_redirect:
                raise Moving(reply)
            if reply.is_about_command:
                raise Refused(str(reply))
            if reply.code != "NOSCRIPT":
                raise Unreachable(str(reply))
        raise Unreachable("the server does not know the script, although it was sent")

    def hand_over(self, script: Script, keys: list[bytes], arguments: list[bytes], on_reply: _OnReply) -> None:
        """Send a script call that nobody waits for, the first time with the source of the script: there is no second
        attempt. Nothing is sent over a connection that has not even taken what was sent before.
        """
        if self._transport is not None and self._transport.get_write_buffer_size() < _MAX_UNSENT:
            script_parts = (b"EVALSHA", script.digest) if script in self._sent_scripts else (b"EVAL", script.source)
            self._sent_scripts.add(script)
            self.send(Commands(pack(*script_parts, b"%d" % len(keys), *keys, *arguments), 1, on_reply, _NOT_DUE))

    def push(self, *parts: bytes) -> None:
        """Send a command whose reply goes to `receive`."""
        if self.is_open and self._transport is not None:
            self._transport.write(pack(*parts))

    @property
    def is_waiting(self) -> bool:
        """Whether something was sent that has not been answered, if only too late for its caller."""
        return bool(self._waiting)

    def close(self) -> None:
        """Abort the connection. All callers that wait get an error."""
        if self._transport is not None:
            self._transport.abort()
        self._end(Interrupted("the connection was closed"))

    def shut_down(self) -> None:
        """End the socket; the transport is closed when its loop runs again. Called from any thread."""
        transport = self._transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except (OSError, TypeError):  # it has ended already, or belongs to a loop that gives no access to it
                pass

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connected transport, TLS included."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        """Parse replies, and pass them to the callers or to `receive`."""
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
            self._arrived.append(reply)
            if self._waiting and len(self._arrived) == self._waiting[0][0]:
                _, on_reply, _ = self._waiting.popleft()
                arrived, self._arrived = self._arrived, []
                on_reply(arrived)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the callers that wait: the server or the network has ended the connection."""
        self._end(Interrupted(f"the connection was lost: {exc}" if exc else "the connection was lost"))

    def _end(self, error: Unreachable) -> None:
        was_open, self.is_open = self.is_open, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._next_check = None, _NOT_DUE
        while self._waiting:
            self._waiting.popleft()[1](error)
        if was_open and self.on_close is not None:
            self.on_close()

    def _check_deadlines(self) -> None:
        """End the connection if a reply is overdue. One timer serves all callers, or each reply would cost one."""
        self._timer, self._next_check = None, _NOT_DUE
        if not self._waiting:
            return
        now = self._loop.time()
        if min(due for _, _, due in self._waiting) <= now:
            error = Unreachable(f"no answer within {self._timeout:g} s")
            if not self.is_patient:
                if self._transport is not None:
                    self._transport.abort()
                self._end(error)
                return
            overdue = [on_reply for _, on_reply, due in self._waiting if due <= now]
            self._waiting = deque(
                [each if each[2] > now else (each[0], ignore_replies, _NOT_DUE) for each in self._waiting]
            )
            for on_reply in overdue:
                on_reply(error)
        due = min((due for _, _, due in self._waiting), default=_NOT_DUE)
        if due < _NOT_DUE:
            self._check_at(due)

    def _check_at(self, due: float) -> None:
        self._timer = self._loop.call_at(due, self._check_deadlines, context=self._context)
        self._next_check = due


def ignore_replies(_: list[Any] | Unreachable) -> None:
    """Take replies that nobody needs, or that come too late."""


def into_future(future: asyncio.Future[list[Any]]) -> _OnReply:
    """Put the replies into a future."""

    def on_reply(replies: list[Any] | Unreachable) -> None:
        if future.done():
            return
        if isinstance(replies, Unreachable):
            future.set_exception(replies)
        else:
            future.set_result(replies)

    return on_reply


def _encoded(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def replication_id_of(info: object) -> bytes:
    """The replication id in a reply to `INFO`: the identity of a server and its data.

    Raises:
        Unreachable: if this is no primary. A replica has its primary's id, and may lag behind it.
    """
    fields = dict(line.partition(b":")[::2] for line in info.splitlines()) if isinstance(info, bytes) else {}
    if fields.get(b"role") != b"master" or not fields.get(b"master_replid"):
        raise Unreachable("the server is not a master")
    return fields[b"master_replid"].strip()
