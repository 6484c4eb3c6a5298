"""Connections of a tier: batches, the circuit breaker, and which server has which slot.

Each event loop has one connection to each server. The lookups of one iteration of the loop are one ``MGET`` (in a
cluster one a slot), and everything else joins the same write. Nothing is retried that might stall a caller.

redis-py reads URLs and clients' settings, makes TLS contexts, fetches credentials and computes slots.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any, Final, TypeVar

from redis.crc import key_slot

from agent_cache.remote.redis.connection import (
    INFO,
    NEVER,
    SLOTS,
    Commands,
    Connection,
    Counters,
    Expired,
    Interrupted,
    Log,
    Moving,
    NotAsked,
    Refused,
    ReplyError,
    Unreachable,
    boottime,
    bulk,
    ignore_replies,
    into_future,
    pack,
    replication_id_of,
)
from agent_cache.remote.redis.deployments import Address, Deployment
from agent_cache.remote.redis.scripts import Script, sharded

__all__ = [
    "KEPT_ALIVE",
    "Client",
    "Fetched",
    "Server",
    "Transport",
]

_T = TypeVar("_T")

_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"

_DISCOVER: Final = frozenset({"CLUSTERDOWN", "READONLY"})
"""Codes of errors that mean: another server has the keys, or will have them soon. Which one is to be discovered."""

_MAX_DISCOVERY = 1 << 24

_MAX_REDIRECTS = 5

_SCRIPT_ERRORS: Final = frozenset({"NOSCRIPT", "ERR", "WRONGTYPE"})

# Servers


class Server:
    """A server that has slots, or had some.

    Attributes:
        failure: why it is not asked; None while it is. One failed request sets it (the breaker opens), and a heartbeat
            that got through resets it, once all pending invalidations have been delivered: no read pays for a probe.
        replication_id: as last learned. Values of another id are invalid: a server that was demoted and promoted again
            has an earlier state and a new id (its run id stays the same).
        generation: changes when connections that were made before must not be used any more.
        heard_at: reading of `boottime` at which the latest answered heartbeat was sent.
        clock_offsets: the least and the most that its time of day may differ from the local `boottime`, in seconds:
            it has read its clock at some moment while the reply was waited for.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.failure: str | None = None
        self.replication_id: bytes | None = None
        self.generation = 0
        self.clock_offsets: tuple[float, float] | None = None
        self.heard_at = NEVER

    def __repr__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}" if self.address[1] else self.address[0]

    def not_asked(self) -> NotAsked:
        """The error for callers while its breaker is open."""
        return NotAsked(f"{self} is not asked: {self.failure}")

    def set_clock(self, sent: float, reply: list[bytes]) -> None:
        """Note its clock from a reply to `TIME` that was asked for at `sent`."""
        told = int(reply[0]) + int(reply[1]) / 1e6
        self.clock_offsets = told - boottime(), told - sent


class _Topology:
    """The servers, and which of them has which slot, as last discovered.

    Attributes:
        is_stale: a reply has shown that slots have moved.
        is_lost: the latest discovery got no answer. Only the thread of the tier goes on trying then.
    """

    def __init__(self, deployment: Deployment, timeout: float) -> None:
        self.deployment = deployment
        self.is_stale = False
        self.is_lost = False
        self.is_cluster = deployment.kind == "cluster"
        self._timeout = timeout
        self._named: Address | None = None  # by the latest MOVED: asked first, others may not know of the move yet
        self._servers: dict[Address, Server] = {}
        self._slots: list[Server | None] = [None]
        self._lock = threading.RLock()
        self._discoveries: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
            weakref.WeakKeyDictionary()
        )
        if deployment.kind == "single":
            self.set_primary(deployment.seeds[0])

    def server_of(self, slot: int) -> Server | None:
        """The server that has a slot; None if that is unknown."""
        slots = self._slots
        return slots[slot] if len(slots) > 1 else slots[0]

    @property
    def servers(self) -> list[Server]:
        """All servers that have slots."""
        return list(dict.fromkeys(server for server in self._slots if server is not None))

    async def find(self, slot: int, waiting_since: float) -> Server:
        """The server that has a slot, discovered if need be.

        Args:
            waiting_since: when the caller began to wait, by the loop's clock.

        Raises:
            Unreachable: if no server answers within the timeout, or none has the slot.
        """
        server = self.server_of(slot)
        if server is None:
            if self.is_lost:
                raise Unreachable("the servers of these keys are unknown")
            await self.discover_within(waiting_since)
            server = self.server_of(slot)
        if server is None:
            raise Unreachable("no known server has these keys")
        return server

    async def discover_within(self, waiting_since: float) -> None:
        """Discover the servers within the timeout of a caller that has waited since then, by the loop's clock.

        Raises:
            Unreachable: if none answers.
        """
        try:
            async with asyncio.timeout_at(waiting_since + self._timeout):
                await self.discover()
        except TimeoutError:
            self.is_lost = not self.servers
            raise Unreachable(f"no server named the servers of these keys within {self._timeout:g} s") from None

    async def discover(self) -> None:
        """Ask for the servers. Concurrent callers of one loop share one request.

        Raises:
            Unreachable: if none answers.
        """
        if self.deployment.kind == "single":
            self.is_stale = False
            return
        loop = asyncio.get_running_loop()
        task = self._discoveries.get(loop)
        if task is None or task.done():
            task = self._discoveries[loop] = loop.create_task(self._discover(), name="agent_cache looks for servers")
            task.add_done_callback(_retrieve_exception)
        await asyncio.shield(task)

    async def _discover(self) -> None:
        is_sentinel = self.deployment.kind == "sentinel"
        known = [] if is_sentinel else [server.address for server in self.servers]
        if self._named is not None:
            known.insert(0, self._named)
        reasons = []
        for address in dict.fromkeys([*known, *self.deployment.seeds]):
            try:
                connection = await Connection.open(
                    self.deployment, address, limit=_MAX_DISCOVERY, timeout=self._timeout, to_sentinel=is_sentinel
                )
                try:
                    if is_sentinel:
                        service = self.deployment.service.encode()
                        (reply,) = await connection.ask((b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service))
                        if reply is None:
                            reasons.append(f"{address[0]}:{address[1]} knows no group {self.deployment.service!r}")
                            continue
                        self.set_primary((reply[0].decode(), int(reply[1])))
                    else:
                        (reply,) = await connection.ask((b"CLUSTER", b"SLOTS"))
                        self._set_slots(reply, address)
                finally:
                    connection.close()
            except (Unreachable, ValueError, IndexError, TypeError) as error:
                reasons.append(str(error))
                continue
            self.is_stale = False
            return
        self.is_lost = True
        raise Unreachable("; ".join(reasons))

    def set_primary(self, address: Address) -> None:
        """Give all slots to one server."""
        with self._lock:
            server = self._servers.get(address) or Server(address)
            self._servers, self._slots, self.is_lost = {address: server}, [server], False

    def server_at(self, address: Address) -> Server:
        """The server at an address, which may have no slots yet."""
        with self._lock:
            return self._servers.setdefault(address, Server(address))

    def move(self, slot: int, address: Address) -> None:
        """Give one slot to another server, as a ``MOVED`` has said. What else has moved is to be discovered."""
        with self._lock:
            slots = self._slots.copy()
            if slot < len(slots):
                slots[slot] = self.server_at(address)
            self._slots, self._named, self.is_stale = slots, address, True

    def _set_slots(self, reply: Any, asked: Address) -> None:
        slots: list[Server | None] = [None] * SLOTS
        with self._lock:
            servers: dict[Address, Server] = {}
            for first, last, primary, *_ in reply:
                address = (primary[0].decode() if primary[0] else asked[0], int(primary[1]))
                server = servers[address] = servers.get(address) or self._servers.get(address) or Server(address)
                slots[first : last + 1] = [server] * (last + 1 - first)
            self._servers, self._slots, self.is_lost = servers, slots, False


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Keep asyncio from logging an exception whose callers were cancelled."""
    if not task.cancelled():
        task.exception()


class Transport:
    """All connections of a tier, whatever loop or thread they belong to.

    Attributes:
        on_failure: called when a server has failed, once until it recovers.
        on_new_identity: called with a server that has turned out to be another one, or to have lost data.
        on_move: called when a slot has turned out to be on another server.
    """

    def __init__(self, deployment: Deployment, timeout: float, max_staleness: float, max_reply_size: int) -> None:
        self.timeout = timeout
        self.max_staleness = max_staleness
        self.max_reply_size = max_reply_size
        self.topology = _Topology(deployment, timeout)
        self.counters = Counters()
        addresses = [f"{host}:{port}" if port else host for host, port in deployment.seeds]
        self.log = Log(f"RedisTier({', '.join(addresses)})")
        self.is_closed = False
        self.on_failure: Callable[[], None] = lambda: None
        self.on_new_identity: Callable[[Server], None] = lambda _: None
        self.on_move: Callable[[], None] = lambda: None
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = weakref.WeakKeyDictionary()
        self._latest: Client | None = None

    def after_fork(self) -> None:
        """In the child: use nothing of the parent's connections."""
        KEPT_ALIVE.append((self._clients, self.topology))
        self.topology = _Topology(self.topology.deployment, self.timeout)
        self._reset()

    def slot(self, key: bytes) -> int:
        """The slot of a key; 0 without a cluster, where nothing depends on it."""
        return key_slot(key) if self.topology.is_cluster else 0

    def script(self, script: Script) -> Script:
        """A script in the form for this deployment."""
        return sharded(script) if self.topology.is_cluster else script

    def whole_slot(self, absent: bytes) -> tuple[bytes, ...]:
        """What a command names in addition, to be executed only by a server that has the whole slot. See `Root`."""
        return (absent,) if self.topology.is_cluster else ()

    def client(self) -> Client:
        """The connections of the running loop.

        Raises:
            Unreachable: if the tier was closed, maybe while its caller waited for something else.
        """
        if self.is_closed:
            raise Unreachable("the tier was closed")
        loop = asyncio.get_running_loop()
        latest = self._latest
        if latest is not None and latest.loop is loop:
            return latest
        client = self._clients.get(loop)
        if client is None:
            with self._lock:
                for other in [other for other in self._clients if other.is_closed()]:
                    del self._clients[other]  # closed without having ended its tasks
                client = self._clients[loop] = Client(self)
        self._latest = client
        return client

    def forget_client(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drop the connections of a loop that ends."""
        with self._lock:
            client = self._clients.pop(loop, None)
            if self._latest is client:
                self._latest = None

    def clients(self) -> list[Client]:
        """The connections of all loops."""
        with self._lock:
            return list(self._clients.values())

    def close(self) -> None:
        """Close all connections, those of other loops too. Called in a loop."""
        self.is_closed = True
        for client in self.clients():
            if client.loop is asyncio.get_running_loop():
                client.close()
            else:
                try:
                    client.loop.call_soon_threadsafe(client.close)
                except RuntimeError:  # that loop is closed
                    pass
                if not client.loop.is_running():
                    client.shut_down()

    async def connect(self, server: Server) -> tuple[Connection, bytes]:
        """A new connection to a server that is a primary now, and its replication id.

        Raises:
            Unreachable: if there is none.
        """
        generation = server.generation
        connection = await Connection.open(
            self.topology.deployment, server.address, limit=self.max_reply_size, timeout=self.timeout
        )
        try:
            sent = boottime()
            info, clock = await connection.ask(INFO, (b"TIME",))
            server.set_clock(sent, clock)
            identity = replication_id_of(info)
        except BaseException:
            connection.close()
            raise
        self.identify(server, identity)
        if generation != server.generation:
            connection.close()
            raise Interrupted("the server has changed its identity meanwhile")
        return connection, identity

    def identify(self, server: Server, identity: bytes) -> None:
        """Note the replication id of a server. A new one means that it has lost data or was replaced."""
        with self._lock:
            former, server.replication_id = server.replication_id, identity
            if former is None or former == identity:
                return
            server.generation += 1
        self.on_new_identity(server)

    def redirect(self, server: Server, reply: ReplyError) -> Server | None:
        """Follow a redirection of one slot: the server to send the command to after ``ASKING``, if it is to be asked.

        Raises:
            Unreachable: if the redirection is malformed.
        """
        if reply.code == "TRYAGAIN":
            return None
        slot, address = reply.target(server.address)
        if reply.code == "ASK":
            return self.topology.server_at(address)
        self.topology.move(slot, address)
        self.on_move()
        return None

    def fail(self, server: Server, reason: str) -> None:
        """Open the breaker of a server that has not answered, until a heartbeat has got through."""
        if self.is_closed:
            return
        self.counters.failures += 1
        if server.failure is None:
            server.failure = reason or "it failed"
            self.log.once(_unusable(server), reason)
            self.on_failure()

    def recover(self, server: Server) -> None:
        """Close the breaker of a server that answers, and to which no invalidation is pending."""
        if server.failure is not None:
            server.failure = None
            self.log.allow_again(_unusable(server))

    def state_of(self, server: Server) -> str:
        """``"ok"``, or why a server is not asked."""
        return "the tier was closed" if self.is_closed else server.failure or "ok"


KEPT_ALIVE: list[object] = []
"""Connections, loops and tasks of a parent process: their collection would close sockets that it still uses."""


def _unusable(server: Server) -> str:
    return f"{server} cannot be used; tools run without it until it answers"


# Batches


Fetched = tuple[dict[bytes, Any], "bytes | dict[bytes, bytes]"]
"""Values by key, and the replication id of the server that has them; in a cluster, that of each key."""

_Values = tuple[list[Any], bytes]
"""Values in the order of the keys, and the replication id of the server that has them."""


_Read = tuple[bytes, tuple[int, ...], list[asyncio.Future[_Values]]]
"""Keys that are read with the next write: packed, their slots in a cluster, and the callers that wait for them."""


class _Batcher:
    """Batches the commands of one event loop to one server."""

    def __init__(self, transport: Transport, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._server = server
        self._loop = loop
        self._connection: Connection | None = None
        self._generation = -1
        self._opening: asyncio.Task[None] | None = None
        self._is_scheduled = False
        self._commands: list[Commands] = []
        self._reads: dict[tuple[bytes, ...], _Read] = {}
        self._reads_since = 0.0
        self._wants_identity = False
        self._identified_at = NEVER
        self.identity = b""

    def read(
        self,
        keys: tuple[bytes, ...],
        packed: bytes,
        slots: tuple[int, ...],
        strong: bool,  # noqa: FBT001 - private, and on the path of every hit
        waiting_since: float,
    ) -> asyncio.Future[_Values]:
        """Read keys with the next write.

        Callers that read the same keys share one read. Keys that only some share are read again, which costs less than
        to find out. A batch is closed when it is handed to the socket: a later lookup that joined a read under way
        would be answered from before a write that has ended in between.
        """
        future: asyncio.Future[_Values] = self._loop.create_future()
        read = self._reads.get(keys)
        if read is None:
            if self._reads:
                self._reads_since = min(self._reads_since, waiting_since)
            else:
                self._reads_since = waiting_since
                self._schedule()
            self._reads[keys] = packed, slots, [future]
        else:
            read[2].append(future)
        if strong:
            self._wants_identity = True
        return future

    def put(self, commands: Commands) -> None:
        """Send commands: at once if they are the first of this iteration of the loop, else with the next write."""
        self._commands.append(commands)
        if not self._is_scheduled:
            self._schedule()
            if self._connection is not None and self.is_connected:
                waiting, self._commands = self._commands, []
                self._connection.send(*waiting)

    @property
    def is_connected(self) -> bool:
        """Whether a command is sent at once, as far as is known, to a server that has lost nothing meanwhile."""
        connection = self._connection
        return connection is not None and self._is_current(connection) and self._server.failure is None

    def prepare(self) -> None:
        """Connect if there is no connection: a command will follow."""
        is_open = self._connection is not None and self._connection.is_open
        if not is_open and self._server.failure is None and not self._transport.is_closed:
            self._connect(self._loop.time())

    def close(self) -> None:
        """End the connection. All callers that wait get an error."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._fail(NotAsked("the connection was closed"))

    def shut_down(self) -> None:
        """End the connection of a loop that does not run. Called from any thread."""
        connection = self._connection
        if connection is not None:
            connection.shut_down()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        if not (self._commands or self._reads):
            return
        if self._transport.is_closed:
            self._fail(NotAsked("the tier was closed"))
            return
        if self._server.failure is not None:
            self._fail(self._server.not_asked())
            return
        connection = self._connection
        if connection is None or not self._is_current(connection) or (self._reads and not self._is_known()):
            if connection is not None:
                connection.close()
                self._connection = None
            waiting = [each.waiting_since for each in self._commands]
            self._connect(min([self._reads_since, *waiting] if self._reads else waiting))
            return
        commands, self._commands = self._commands, []
        if self._reads:
            commands.append(self._batch())
        connection.send(*commands)

    def _is_current(self, connection: Connection) -> bool:
        return connection.is_open and self._generation == self._server.generation

    def _is_known(self) -> bool:
        """Whether the server has answered lately, to a heartbeat or as the connection was made: with its identity, and
        after it had executed what it had been sent before. Without that, what is read now may be from before a write
        that has ended long ago, and waits at a server that was stopped.
        """
        return boottime() - max(self._identified_at, self._server.heard_at) <= self._transport.max_staleness

    def _connect(self, waiting_since: float) -> None:
        if self._opening is None:
            timeout = self._transport.timeout
            due = max(waiting_since + timeout, self._loop.time() + timeout / 4)
            # In an empty context: the transport of a connection keeps the one it was made in.
            self._opening = self._loop.create_task(self._open(due), name="agent_cache connects", context=Context())
            self._opening.add_done_callback(self._opened, context=Context())

    async def _open(self, due: float) -> None:
        try:
            self._generation = self._server.generation
            asked = boottime()
            async with asyncio.timeout_at(due):
                self._connection, self.identity = await self._transport.connect(self._server)
            self._identified_at = asked
        except Exception as error:  # noqa: BLE001 - callers wait, whatever it is
            reason = str(error) or "no connection within the timeout"
            was_busy = self._loop.time() - due > self._transport.timeout / 4  # the loop, not the server
            if self._generation == self._server.generation and not was_busy:
                self._transport.fail(self._server, reason)
            self._fail(NotAsked(reason))

    def _opened(self, _: asyncio.Task[None]) -> None:
        """Send what waits for the connection, also if a loop that ends has cancelled it: a commit may wait."""
        self._opening = None
        self._flush()

    def _batch(self) -> Commands:
        """One command that reads all wanted keys (in a cluster one a slot), and gives the callers their values."""
        reads, self._reads = self._reads, {}
        strong, self._wants_identity = self._wants_identity, False
        keys_of: list[Iterable[bytes]] = []  # of each command
        if self._transport.topology.is_cluster:
            by_slot: dict[int, dict[bytes, None]] = {}
            for keys, (_, slots, _) in reads.items():
                for key, slot in zip(keys, slots, strict=True):
                    by_slot.setdefault(slot, {})[key] = None
            keys_of += by_slot.values()
            sizes = list(map(len, by_slot.values()))
            commands = [pack(b"MGET", *wanted) for wanted in by_slot.values()]
        else:
            sizes = [sum(map(len, reads))]
            head = b"*%d\r\n$4\r\nMGET\r\n" % (1 + sizes[0])
            commands = [b"".join([head, *[packed for packed, _, _ in reads.values()]])]
        if strong:
            commands.append(pack(*INFO))
        sent = boottime()

        def on_reply(replies: list[Any] | Unreachable) -> None:
            try:
                if isinstance(replies, Unreachable):
                    raise replies
                if strong:
                    self._confirm_identity(replication_id_of(replies.pop()), sent)
                for reply, size in zip(replies, sizes, strict=True):
                    if type(reply) is not list or len(reply) != size:
                        is_error = type(reply) is ReplyError
                        if is_error and reply.is_redirect and self._transport.topology.is_cluster:
                            self._transport.redirect(self._server, reply)
                            continue
                        self._transport.topology.is_stale |= is_error and reply.code in _DISCOVER
                        reason = str(reply) if is_error else "the server's reply is malformed"
                        raise Unreachable(reason)  # noqa: TRY301 - one place that answers all callers
            except Unreachable as error:
                if not isinstance(error, Interrupted):
                    self._transport.fail(self._server, str(error))
                _fail_all(reads, error)
                return
            by_key: dict[bytes, Any] = {}
            for wanted, reply in zip(keys_of, replies, strict=False):
                is_redirected = type(reply) is ReplyError
                by_key.update(dict.fromkeys(wanted, reply) if is_redirected else zip(wanted, reply, strict=True))
            at = 0
            for keys, (_, _, futures) in reads.items():
                values = [by_key[key] for key in keys] if by_key else replies[0][at : at + len(keys)]
                at += len(keys)
                for future in futures:
                    if not future.done():
                        future.set_result((values, self.identity))

        self._transport.counters.batches += 1
        return Commands(b"".join(commands), len(commands), on_reply, self._reads_since)

    def _confirm_identity(self, identity: bytes, sent: float) -> None:
        self._identified_at = sent
        if identity != self.identity:
            self._transport.identify(self._server, identity)
            raise Interrupted("the server has another identity than before")

    def _fail(self, error: Unreachable) -> None:
        commands, self._commands = self._commands, []
        for each in commands:
            each.on_reply(error)
        reads, self._reads = self._reads, {}
        _fail_all(reads, error)


def _fail_all(reads: dict[tuple[bytes, ...], _Read], error: Unreachable) -> None:
    for _, _, futures in reads.values():
        for future in futures:
            if not future.done():
                future.set_exception(error)


class Client:
    """The connections of one event loop: one to each server, made when it is first needed, closed with the loop."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.loop = asyncio.get_running_loop()
        self._batchers: dict[Server, _Batcher] = {}
        self._posted = 0  # scripts that nobody waits for, and that have not been answered yet
        self._all_answered: asyncio.Future[None] | None = None
        self._context = Context()  # an empty one: a timer keeps its context, also after it was cancelled
        # A loop that ends closes its generators after its tasks were cancelled and have ended: a write that was
        # cancelled so is still committed over these connections.
        self._until_loop_ends: AsyncGenerator[None, None] | None = self._close_with_loop()
        _step(self._until_loop_ends.asend(None))

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._until_loop_ends = None
            try:
                if self._posted:  # else they would count as undelivered: some programs run a loop for each call
                    self._all_answered = self.loop.create_future()
                    await asyncio.wait([self._all_answered], timeout=self._transport.timeout)
            finally:
                self.close()

    def close(self) -> None:
        """Close the connections. Called in the loop."""
        for batcher in self._batchers.values():
            batcher.close()
        self._batchers.clear()
        self._transport.forget_client(self.loop)
        generator, self._until_loop_ends = self._until_loop_ends, None
        if generator is not None:
            _step(generator.aclose())

    def shut_down(self) -> None:
        """End the connections of a loop that does not run. Called from any thread."""
        for batcher in list(self._batchers.values()):
            batcher.shut_down()

    def _batcher(self, server: Server) -> _Batcher:
        """The batcher of a server.

        Raises:
            NotAsked: while the breaker of the server is open.
        """
        if server.failure is not None:
            raise server.not_asked()
        batcher = self._batchers.get(server)
        if batcher is None:
            servers = self._transport.topology.servers
            for gone in [known for known in self._batchers if known not in servers]:
                self._batchers.pop(gone).close()
            batcher = self._batchers[server] = _Batcher(self._transport, server, self.loop)
        return batcher

    def prepare(self, server: Server) -> None:
        """Connect to a server that a command will follow to."""
        if server.failure is None:
            self._batcher(server).prepare()

    async def fetch(
        self,
        keys: Iterable[tuple[bytes, int]],
        *,
        strong: bool = False,
        started_at: float | None = None,
        waiting_since: float | None = None,
    ) -> Fetched:
        """Read keys, given with their slots, together with what others read in this iteration of the loop.

        Args:
            strong: ask for the identity of the server after its values.
            started_at: when the caller began to wait, by the loop's clock: it gives up a timeout later.
            waiting_since: the server's own timeout counts from there; None is now.

        Raises:
            Unreachable: if a server does not answer, or its breaker is open.
        """
        topology, now = self._transport.topology, self.loop.time()
        since, start = waiting_since or now, started_at or waiting_since or now
        by_server: dict[Server, dict[bytes, int]] = {}
        for key, slot in keys:
            server = topology.server_of(slot) or await topology.find(slot, start)
            by_server.setdefault(server, {})[key] = slot
        batchers = [self._batcher(server) for server in by_server]
        futures = [
            batcher.read(tuple(wanted), b"".join(map(bulk, wanted)), tuple(wanted.values()), strong, since)
            for batcher, wanted in zip(batchers, by_server.values(), strict=True)
        ]
        values: dict[bytes, Any] = {}
        identities: dict[bytes, bytes] = {}
        identity = b""
        try:
            for wanted, future in zip(by_server.values(), futures, strict=True):
                found, identity = await self._within(future, started_at)
                values.update(zip(wanted, found, strict=True))
                if topology.is_cluster:
                    identities.update(dict.fromkeys(wanted, identity))
                    elsewhere: dict[int, list[bytes]] = {}
                    for key, value in zip(wanted, found, strict=True):
                        if type(value) is ReplyError:
                            elsewhere.setdefault(wanted[key], []).append(key)
                    for slot, moved in elsewhere.items():
                        if strong:
                            raise Moving("the keys are on another server, whose identity was not asked for")
                        reply, identity = await self.call(slot, b"MGET", *moved, started_at=start)
                        if type(reply) is not list or len(reply) != len(moved):
                            raise Unreachable("the server's reply is malformed")
                        values.update(zip(moved, reply, strict=True))
                        identities.update(dict.fromkeys(moved, identity))
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()
        return values, identities if topology.is_cluster else identity

    def read(self, keys: tuple[bytes, ...], packed: bytes, *, strong: bool, waiting_since: float) -> Awaitable[_Values]:
        """Read keys where there is no cluster: `fetch` in fewer steps, for the most common lookup.

        Args:
            packed: the same keys, each as `bulk`.

        Raises:
            Unreachable: as `fetch`.
        """
        server = self._transport.topology.server_of(0)
        if server is None:
            return self._read_when_found(keys, packed, strong=strong, waiting_since=waiting_since)
        return self._batcher(server).read(keys, packed, (), strong, waiting_since)

    async def _read_when_found(
        self,
        keys: tuple[bytes, ...],
        packed: bytes,
        *,
        strong: bool,
        waiting_since: float,
    ) -> _Values:
        server = await self._transport.topology.find(0, waiting_since)
        return await self._batcher(server).read(keys, packed, (), strong, waiting_since)

    async def run(
        self, script: Script, slot: int, keys: list[bytes], arguments: list[bytes], *, started_at: float | None = None
    ) -> tuple[Any, bytes]:
        """Run a script; its reply, and the replication id of the server. Loads it where it is not known yet.

        Raises:
            Refused: if the server answers, and does not execute it.
            Unreachable: if it is not known to have run. It may have.
        """
        tail = (b"%d" % len(keys), *keys, *arguments)
        now = self.loop.time()
        reply, identity = await self.call(
            slot, b"EVALSHA", script.digest, *tail, errors=_SCRIPT_ERRORS, started_at=started_at
        )
        if isinstance(reply, ReplyError) and not reply.is_about_command:
            reply, identity = await self.call(
                slot, b"EVAL", script.source, *tail, errors=_SCRIPT_ERRORS, started_at=started_at or now
            )
        if isinstance(reply, ReplyError):
            self._transport.counters.failures += 1
            raise Refused(str(reply))
        return reply, identity

    def is_connected(self, slot: int) -> bool:
        """Whether the server of a slot is sent commands at once, as far as is known, and has lost nothing meanwhile.

        Raises:
            NotAsked: while its breaker is open.
        """
        server = self._transport.topology.server_of(slot)
        return server is not None and self._batcher(server).is_connected

    def post(
        self,
        script: Script,
        slot: int,
        keys: list[bytes],
        arguments: list[bytes],
        on_end: Callable[[Unreachable | None], None],
    ) -> None:
        """Run a script that nobody waits for, and load it where it is not known yet. Redirections are not followed.

        Args:
            on_end: called once, in the loop, with None if it has run.

        Raises:
            Unreachable: if it was not sent.
        """
        server = self._transport.topology.server_of(slot)
        if server is None:
            raise NotAsked("the servers of these keys are unknown")
        batcher, tail = self._batcher(server), (b"%d" % len(keys), *keys, *arguments)

        def end(failure: Unreachable | None) -> None:
            on_end(failure)
            self._posted -= 1
            if not self._posted and self._all_answered is not None and not self._all_answered.done():
                self._all_answered.set_result(None)

        def on_reply(replies: list[Any] | Unreachable) -> None:
            if isinstance(replies, Unreachable):
                if not isinstance(replies, Interrupted | NotAsked):
                    self._transport.fail(server, str(replies))
                end(replies)
            elif not isinstance(reply := replies[0], ReplyError):
                end(None)
            elif reply.code == "NOSCRIPT":
                send(b"EVAL", script.source)
            elif reply.is_redirect:
                end(Moving(reply))
            else:
                self._transport.counters.failures += 1
                end(Refused(str(reply)))

        def send(*head: bytes) -> None:
            batcher.put(Commands(pack(*head, *tail), 1, on_reply, self.loop.time()))

        self._posted += 1
        send(b"EVALSHA", script.digest)

    async def call(
        self, slot: int, *parts: bytes, errors: frozenset[str] = frozenset(), started_at: float | None = None
    ) -> tuple[Any, bytes]:
        """One command for the server of a slot. Error replies other than `errors` mean that it cannot be used.

        Args:
            started_at: when the caller began to wait, by the loop's clock: it gives up a timeout later. None is now.

        Raises:
            Unreachable: as `run`.
        """
        packed, now, topology = pack(*parts), self.loop.time(), self._transport.topology
        asking: Server | None = None
        has_discovered = topology.deployment.kind == "single"
        for _ in range(_MAX_REDIRECTS):
            server = asking or topology.server_of(slot) or await topology.find(slot, started_at or now)
            batcher = self._batcher(server)
            future: asyncio.Future[list[Any]] = self.loop.create_future()
            commands = (packed, 1) if asking is None else (_ASKING + packed, 2)
            batcher.put(Commands(*commands, into_future(future), now))
            try:
                reply = (await self._within(future, started_at))[-1]
            except Unreachable as error:
                if not isinstance(error, Interrupted | Expired | NotAsked):
                    self._transport.fail(server, str(error))
                raise
            if not isinstance(reply, ReplyError) or reply.code in errors:
                return reply, batcher.identity
            if reply.is_redirect and topology.is_cluster:
                asking = self._transport.redirect(server, reply)
                if reply.code == "TRYAGAIN":
                    raise Moving(str(reply))
                continue
            if reply.code in _DISCOVER and not has_discovered:
                has_discovered, topology.is_stale = True, True
                await topology.discover_within(started_at or now)
                continue
            self._transport.fail(server, str(reply))
            raise Unreachable(str(reply))
        raise Moving("the servers do not agree on which of them has these keys")

    def push(self, slot: int, *parts: bytes) -> None:
        """Send a command whose reply nobody needs, if the server of a slot is asked now."""
        server = self._transport.topology.server_of(slot)
        if server is not None and server.failure is None and not self._transport.is_closed:
            self._batcher(server).put(Commands(pack(*parts), 1, ignore_replies, self.loop.time()))

    async def _within(self, future: asyncio.Future[_T], started_at: float | None) -> _T:
        """Wait for an answer until a timeout after that moment; None sets no limit besides the server's own."""
        if started_at is None:
            return await future
        due = started_at + self._transport.timeout
        timer = self.loop.call_at(due, _expire, future, context=self._context)
        try:
            return await future
        finally:
            timer.cancel()


def _step(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        pass


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(Expired("no answer within what was left of the timeout"))
