"""Receives invalidations, and decides for how long local copies are trusted.

A daemon thread, one for each tier and process, has a subscription to each server. It sends the heartbeats, which are
also the probes of servers that have failed, and delivers pending invalidations.

The rules of trust, each of which has a counterexample: the PING goes over the connection of the messages, its PONG is
handled in their order, and the lease counts from when that PING was *sent*. An interrupted subscription is a loss, even
if nothing seems to have happened meanwhile. A lease that runs out is none: on one connection no message is lost, so
local copies are valid again with the next PONG.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any

from redis.crc import key_slot

from agent_cache.clock import CLOCK
from agent_cache.metrics import METRICS
from agent_cache.remote.protocol import Touched
from agent_cache.remote.redis.keyspace import Invalidations, Keyspace, Root, parse_message
from agent_cache.remote.redis.transport import (
    INFO,
    NEVER,
    Connection,
    Interrupted,
    ReplyError,
    Server,
    Transport,
    Unreachable,
    asleep,
    boottime,
    replication_id_of,
)
from agent_cache.remote.redis.writes import Writer

__all__ = ["Report", "Subscriber", "Subscription"]

_MAX_MESSAGE = 1 << 20
_MAX_REPORTED_ROOTS = 100
_REPORT_PERIOD = 2.0
_RECONNECT_PAUSE = 0.02
_MAX_PAUSE = 1.0
_MAX_MOVING_KEYS = 3
"""Of heartbeats, each in another slot. A migration moves few slots at a time."""

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Subscriber:
    """The thread of a tier, with an event loop of its own: no blocked loop of the user's delays a message.

    Attributes:
        channels: channels whose messages arrive.
        moving: channels of roots whose slot moves to another server.
        lease: reading of `boottime` up to which local copies are trusted: the earliest of all servers.
        was_forked: local copies may come from the parent process.
    """

    def __init__(self, transport: Transport, keyspace: Keyspace, invalidations: Invalidations, writer: Writer) -> None:
        self._transport = transport
        self._keyspace = keyspace
        self._invalidations = invalidations
        self._writer = writer
        self.was_forked = False
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._roots: dict[bytes, Root] = {}  # by channel
        self._waiters: dict[bytes, list[_Waiter]] = {}  # by channel
        self._unconfirmed: set[bytes] = set()  # channels that were waited for in vain
        self._subscriptions: dict[Server, tuple[Subscription, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_up: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.channels: frozenset[bytes] = frozenset()
        self.moving: frozenset[bytes] = frozenset()
        self.lease = NEVER

    def after_fork(self) -> None:
        """In the child: there is no thread, and no copy is valid that was kept under the parent's."""
        _KEPT_ALIVE.append((self._subscriptions, self._loop, self._main))
        self.was_forked = True
        self._reset()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._thread is not None and not self._is_stopped

    def start(self) -> None:
        """Start the thread, once. If there are no more threads, the next call tries again."""
        if self._thread is not None or self._is_stopped:
            return
        with self._lock:
            if self._thread is not None or self._is_stopped:
                return
            # Noted before it runs: a garbage collection in here may come back to this function.
            self._thread = threading.Thread(target=self._work, name="agent_cache listens to Redis", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                event = "no thread could be started to listen, so nothing is kept locally"
                self._transport.log.once(event, error)

    def stop(self) -> None:
        """End the thread; nothing is trusted from now on. Called from any thread."""
        self._is_stopped = True
        self.lease = NEVER
        loop, main = self._loop, self._main
        if loop is not None and main is not None:
            try:
                loop.call_soon_threadsafe(main.cancel)
            except RuntimeError:  # that loop is closed already
                pass

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join(seconds)

    def trusted_until(self) -> float:
        """Clock reading up to which local copies may be served."""
        if self._thread is None or not self._invalidations.listeners:
            return NEVER
        now = CLOCK.now()  # first: a thread that is suspended between the two clocks trusts for less, not for more
        left = self.lease - boottime()
        return now + left if left > 0 else NEVER

    # Called from any thread

    def wake(self) -> None:
        """Look at the servers again, because something has changed."""
        loop, event = self._loop, self._wake_up
        if loop is not None and event is not None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                pass

    async def subscribe(self, roots: Iterable[Root], until: float) -> None:
        """Return when messages about these roots arrive, or as soon as it is known that they will not.

        Args:
            until: reading of the loop's clock at which the caller waits no longer.
        """
        loop = asyncio.get_running_loop()
        waiting: dict[bytes, _Waiter] = {}
        with self._lock:
            for root in roots:
                channel = root.channel
                self._roots[channel] = root
                if channel not in self.channels and channel not in self._unconfirmed and not self.has_failed(root):
                    waiter = waiting[channel] = loop, loop.create_future()
                    self._waiters.setdefault(channel, []).append(waiter)
                if self._loop is not None:
                    try:
                        self._loop.call_soon_threadsafe(self._subscribe, root)
                    except RuntimeError:
                        break
        if not waiting:
            return
        timer = loop.call_at(until, self._give_up, waiting, context=Context())
        try:
            for _, future in waiting.values():
                await future
        finally:
            timer.cancel()
            with self._lock:
                for channel, waiter in waiting.items():
                    left = [each for each in self._waiters.get(channel, ()) if each is not waiter]
                    self._waiters[channel] = left
                    if not left:
                        del self._waiters[channel]

    def _give_up(self, waiting: dict[bytes, _Waiter]) -> None:
        """Stop waiting. The next caller does not wait at all, because a subscription may be refused for good."""
        self._unconfirmed |= {channel for channel, (_, future) in waiting.items() if not future.done()}
        for _, future in waiting.values():
            _set_done(future)

    def has_failed(self, root: Root) -> bool:
        """Whether the server of a root cannot be listened to now."""
        if root.channel in self.moving:
            return True
        server = self._transport.topology.server_of(root.slot)
        return self._transport.topology.is_lost if server is None else server.failure is not None

    def server_failed(self) -> None:
        """Release the callers that wait for messages of a failed server."""
        with self._lock:
            released = [
                waiter
                for channel, waiters in self._waiters.items()
                if self.has_failed(self._roots[channel])
                for waiter in waiters
            ]
        _release(released)
        self.wake()

    async def catch_up(self) -> None:
        """Return when all messages that were published before have been handled.

        Raises:
            Unreachable: if that cannot be known.
        """
        deadline = boottime() + self._transport.timeout
        while (own := self._loop) is None and boottime() < deadline:  # noqa: ASYNC110 - a thread that is starting
            await asyncio.sleep(0.001)
        if own is None or self._is_stopped:
            raise Unreachable("no thread receives messages")
        future = asyncio.run_coroutine_threadsafe(self._catch_up(), own)
        try:
            async with asyncio.timeout(self._transport.timeout * 5):  # a loop that ends accepts what it never runs
                await asyncio.wrap_future(future)
        except (TimeoutError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unreachable("the subscription is interrupted") from error

    # In the thread

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        finally:
            self.lease, self.channels, self.moving = NEVER, frozenset(), frozenset()

    async def _run(self) -> None:
        self._wake_up = asyncio.Event()
        self._main = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        topology = self._transport.topology
        interval = min(_MAX_PAUSE, self._transport.max_staleness / 3)
        try:
            while not self._is_stopped:
                self._wake_up.clear()
                if self._is_incomplete():
                    try:
                        await topology.discover()
                    except Exception as error:  # noqa: BLE001 - this thread must go on, or nothing ever recovers
                        self._transport.log.once("the servers cannot be found", error)
                        self.server_failed()
                self._follow(topology.servers)
                is_incomplete = self._is_incomplete()
                try:
                    async with asyncio.timeout(interval if is_incomplete else None):
                        await self._wake_up.wait()
                    if is_incomplete:
                        await asyncio.sleep(interval / 4)
                except TimeoutError:
                    pass
        finally:
            for _, task in self._subscriptions.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._subscriptions.values()), return_exceptions=True)

    def _is_incomplete(self) -> bool:
        topology = self._transport.topology
        servers = topology.servers
        return topology.is_stale or not servers or any(server.failure is not None for server in servers)

    def _follow(self, servers: list[Server]) -> None:
        """Have one subscription for each server. If one has lost its slots, its earlier messages may be missing."""
        gone = [server for server in self._subscriptions if server not in servers]
        for server in gone:
            self._subscriptions.pop(server)[1].cancel()
        if gone:
            self._invalidations.lose()
        for server in servers:
            subscription, task = self._subscriptions.get(server, (None, None))
            with self._lock:
                roots = {
                    channel: root
                    for channel, root in self._roots.items()
                    if self._transport.topology.server_of(root.slot) is server
                }
            if subscription is None or task is None or task.done():
                subscription = Subscription(
                    server, roots, self._transport, self._keyspace, self._invalidations, self._writer, self._changed,
                    was_forked=self.was_forked,
                )  # fmt: skip
                task = asyncio.get_running_loop().create_task(
                    subscription.run(), name=f"agent_cache listens to {server}"
                )
                self._subscriptions[server] = subscription, task
            else:
                subscription.assign(roots)
        self._changed()

    def _subscribe(self, root: Root) -> None:
        server = self._transport.topology.server_of(root.slot)
        subscription, _ = self._subscriptions.get(server, (None, None)) if server is not None else (None, None)
        if subscription is not None:
            subscription.add(root)

    def _changed(self) -> None:
        """Update `channels` and `lease`, after a subscription was confirmed, answered or lost."""
        subscriptions = [subscription for subscription, _ in self._subscriptions.values()]
        self.channels = frozenset().union(*(each.confirmed - each.moving for each in subscriptions if each.is_live))
        self.moving = frozenset().union(*(each.moving for each in subscriptions))
        self.lease = NEVER if self._is_stopped else min((each.lease for each in subscriptions), default=NEVER)
        if self._unconfirmed:
            self._unconfirmed -= self.channels
        if self._waiters:
            with self._lock:
                ready = [self._waiters.pop(channel) for channel in list(self._waiters) if channel in self.channels]
            _release(waiter for waiters in ready for waiter in waiters)

    async def _catch_up(self) -> None:
        async with asyncio.timeout(self._transport.timeout * 4):
            while True:
                subscriptions = [subscription for subscription, _ in self._subscriptions.values()]
                if subscriptions and all(each.is_live for each in subscriptions):
                    await asyncio.gather(*(each.ping() for each in subscriptions))
                    if self.lease > NEVER:
                        return
                await asyncio.sleep(0.005)


_KEPT_ALIVE: list[object] = []
"""Loops and tasks of a parent process: their collection would close sockets that it still uses."""


def _release(waiters: Iterable[_Waiter]) -> None:
    for loop, waiter in waiters:
        try:
            loop.call_soon_threadsafe(_set_done, waiter)
        except RuntimeError:  # that loop is closed
            pass


def _set_done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Subscription:
    """Messages and heartbeats of one server: a connection that receives, and one for commands.

    Attributes:
        confirmed: channels whose messages arrive.
        moving: channels of roots whose slot this server hands over, or has handed over: writes may not be executed.
        is_live: whether all channels that were wanted when it connected have been confirmed.
    """

    def __init__(
        self,
        server: Server,
        roots: dict[bytes, Root],
        transport: Transport,
        keyspace: Keyspace,
        invalidations: Invalidations,
        writer: Writer,
        on_change: Callable[[], None],
        *,
        was_forked: bool = False,
    ) -> None:
        self.server = server
        self.is_live = False
        self.confirmed: set[bytes] = set()
        self.moving: set[bytes] = set()
        self._roots = roots  # by channel
        self._transport = transport
        self._keyspace = keyspace
        self._invalidations = invalidations
        self._writer = writer
        self._on_change = on_change
        self._awaited: set[bytes] = set()  # channels to be confirmed before it is live
        self._connection: Connection | None = None
        self._connections = 0
        self._pings_sent = 0
        self._pings: dict[bytes, tuple[float, asyncio.Future[None]]] = {}
        self._answered_at = self._beaten_at = NEVER  # when the latest answered PING and heartbeat were sent
        self._may_have_lost = was_forked  # an earlier connection, or the parent process, had received messages
        self._asleep = asleep()
        self._key: bytes | None = None
        self._is_refused = False
        self._report = Report()

    @property
    def lease(self) -> float:
        """Reading of `boottime` up to which no message of this server can have been missed: messages arrive, and the
        server takes writes.
        """
        return min(self._answered_at, self._beaten_at) + self._transport.max_staleness if self.is_live else NEVER

    async def run(self) -> None:
        """Connect, receive and send heartbeats until it is cancelled."""
        interval = self._transport.max_staleness / 3
        while True:
            pause = min(interval, _MAX_PAUSE)
            try:
                await self._run_connected(interval)
            except Interrupted as error:
                if self._beaten_at > NEVER:  # it did answer: no failure until it cannot be reached again
                    pause = _RECONNECT_PAUSE
                else:
                    self._transport.fail(self.server, str(error))
            except Unreachable as error:
                self._transport.fail(self.server, str(error))
            except Exception as error:  # noqa: BLE001 - the tier must go on receiving
                self._transport.fail(self.server, f"{type(error).__name__}: {error}")
            finally:
                self._beaten_at = NEVER
                self._disconnect()
            await asyncio.sleep(pause)

    async def _run_connected(self, interval: float) -> None:
        commands, _ = await self._transport.connect(self.server)
        closed = asyncio.Event()
        try:
            while True:
                await self._beat(commands)
                if self._connection is None or not self._connection.is_open:
                    self._disconnect()
                    closed.clear()
                    await self._connect(closed.set)
                oldest = next(iter(self._pings.values()), None)
                patience = self._transport.max_staleness + self._transport.timeout
                if oldest is not None and boottime() - oldest[0] > patience:
                    raise Unreachable("PINGs go unanswered")
                self.ping()
                try:
                    async with asyncio.timeout(interval):
                        await closed.wait()
                    await asyncio.sleep(interval if self._is_refused else _RECONNECT_PAUSE)
                except TimeoutError:
                    pass
        finally:
            commands.close()

    async def _beat(self, commands: Connection) -> None:
        """Write a heartbeat and confirm the identity. A primary that is cut off from its replicas refuses the write, if
        it is configured to do so.

        In a cluster it also writes to the slot of each root, in vain: see `Root.absent`. A server that refuses this
        may refuse the writes that others announce under the root, too. Its copies are dropped before the lease is
        extended, which counts from before the slot was opened.
        """
        transport, sent = self._transport, boottime()
        period = b"%d" % max(1000, int(transport.max_staleness * 3000))
        roots = list(self._roots.values()) if transport.topology.is_cluster else []
        moving_keys: set[bytes] = set()
        while True:
            key = self._heartbeat_key(moving_keys)
            heartbeat = (b"SET", key, self._report.text(), b"PX", period)
            written, info, clock, *refusals = await commands.request(
                heartbeat, INFO, (b"TIME",), *((b"DEL", root.absent) for root in roots)
            )
            if len(moving_keys) == _MAX_MOVING_KEYS or not self._is_redirected(written):
                break
            moving_keys.add(key)
        for reply in (written, info, clock):
            if isinstance(reply, ReplyError):
                raise Unreachable(str(reply))
        probed = zip(roots, refusals, strict=True)
        self._note_moving({root.channel for root, reply in probed if self._is_redirected(reply)})
        transport.identify(self.server, replication_id_of(info))
        self.server.set_clock(sent, clock)
        self.server.heard_at = self._beaten_at = sent
        await self._writer.deliver_pending(self.server, commands)
        transport.recover(self.server)
        self._on_change()

    def _heartbeat_key(self, moving: set[bytes]) -> bytes:
        """A key of this process that this server has the slot of, and none of these, whose slots are moving."""
        topology = self._transport.topology
        if self._key is None or self._key in moving or topology.server_of(key_slot(self._key)) is not self.server:
            keys = self._keyspace.heartbeats(self._writer.process)
            own = (key for key in keys if topology.server_of(key_slot(key)) is self.server)
            self._key = next((key for key in own if key not in moving), None)
            if self._key is None:
                raise Unreachable("the server has no slots")
        return self._key

    def _is_redirected(self, reply: Any) -> bool:
        """Whether the slot of a key moves, or has moved, to another server.

        Raises:
            Unreachable: if the server has refused the command for another reason.
        """
        if not isinstance(reply, ReplyError):
            return False
        if not reply.is_redirect:
            raise Unreachable(str(reply))
        self._transport.redirect(self.server, reply)
        return True

    def _note_moving(self, moving: set[bytes]) -> None:
        """Note which roots are moving. Local copies under those that have begun to move are dropped."""
        begun = moving - self.moving
        self.moving = moving & self._roots.keys()
        for channel in begun & self.moving:
            self._drop(self._roots[channel])

    def _drop(self, root: Root) -> None:
        """Drop all local copies under a root, because messages about it may have been missed."""
        self._invalidations.receive([root.s, root.d], Touched((root.name,)))

    async def _connect(self, on_close: Callable[[], None]) -> None:
        self._connections += 1
        self._pings.clear()
        self._answered_at = NEVER
        self._connection = await Connection.open(
            self._transport.topology.deployment, self.server.address,
            limit=_MAX_MESSAGE, timeout=self._transport.timeout, receive=self._receive,
        )  # fmt: skip
        self._connection.on_close = on_close
        self._awaited = set(self._roots)
        for channel in list(self._roots):
            self._subscribe(channel)
        if not self._awaited:
            self._become_live()

    def add(self, root: Root) -> None:
        """Subscribe to one more channel. No message was missed: nothing was kept locally under this root before."""
        channel = root.channel
        self._roots[channel] = root
        if self._connection is not None and channel not in self.confirmed and channel not in self._awaited:
            if not self.is_live:
                self._awaited.add(channel)
            self._subscribe(channel)

    def assign(self, roots: dict[bytes, Root]) -> None:
        """Subscribe to these channels only, since slots have moved. Local copies under other roots are dropped."""
        for channel in self._roots.keys() - roots.keys():
            self._forget(channel)
            del self._roots[channel]
        for root in roots.values():
            self.add(root)
        if self._connection is not None and not self.is_live and not self._awaited:
            self._become_live()

    def _forget(self, channel: bytes) -> None:
        """Messages of a channel do not arrive any more."""
        self.confirmed.discard(channel)
        self._awaited.discard(channel)
        self.moving.discard(channel)
        self._drop(self._roots[channel])

    def _subscribe(self, channel: bytes) -> None:
        if self._connection is not None:
            self._connection.push(b"SSUBSCRIBE" if self._transport.topology.is_cluster else b"SUBSCRIBE", channel)

    def ping(self) -> asyncio.Future[None]:
        """Send a PING over the same connection. The future is done when all messages before its answer were handled."""
        self._pings_sent += 1
        nonce = b"%d.%d" % (self._connections, self._pings_sent)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings[nonce] = boottime(), future
        if self._connection is not None:
            self._connection.push(b"PING", nonce)
        return future

    def _disconnect(self) -> None:
        was_live, self.is_live = self.is_live, False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._answered_at = NEVER
        self.confirmed.clear()
        if was_live:
            # Loads under way are invalid at once; local copies are dropped when there is trust again.
            self._invalidations.add_all()
        for _, future in self._pings.values():
            future.cancel()
        self._pings.clear()
        self._on_change()

    def _become_live(self) -> None:
        self.is_live = True
        self._is_refused = False
        if self._may_have_lost:
            self._invalidations.lose()
        self._may_have_lost = True
        self._on_change()

    # Messages, in order

    def _receive(self, reply: Any) -> None:
        match reply:
            case [b"message" | b"smessage", bytes(channel), text]:
                root = self._roots.get(channel)
                if root is not None:
                    log, process = self._transport.log, self._writer.process
                    received = parse_message(self._keyspace, process, root, text, log)
                    if received is not None:
                        self._invalidations.receive(*received)
            case [b"pong", bytes(nonce)] | bytes(nonce):  # the latter without a subscription
                self._pong(nonce)
            case [b"subscribe" | b"ssubscribe", bytes(channel), _]:
                self._confirm(channel)
            case ReplyError() if reply.is_redirect:  # the slot of a channel has moved before this was known
                self._transport.redirect(self.server, reply)
            case ReplyError():
                self._is_refused = True
                self._transport.log.once("a subscription was refused, so nothing is kept locally", reply)
                self._hang_up()
            case [b"sunsubscribe", bytes(channel), _] if channel in self._roots:  # by the server: its slot has moved
                self._forget(channel)
                self._on_change()
                self._transport.topology.is_stale = True
                self._transport.on_move()
            case _:
                self._transport.log.once("a subscription got an unexpected reply, so it connects again")
                self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _confirm(self, channel: bytes) -> None:
        self.confirmed.add(channel)
        self._awaited.discard(channel)
        if not self.is_live and not self._awaited:
            self._become_live()
        self._on_change()

    def _pong(self, nonce: bytes) -> None:
        sent = self._pings.pop(nonce, None)
        if sent is None or not self.is_live:
            return
        self._check_suspension()
        self._answered_at = max(self._answered_at, sent[0])
        _set_done(sent[1])
        self._on_change()

    def _check_suspension(self) -> None:
        """Drop local copies after the machine was suspended. None was served then, and none is until a PONG shows that
        no message was missed. But they are older than their own clock shows, and must not become valid again.
        """
        former, self._asleep = self._asleep, asleep()
        if self._asleep - former > self._transport.max_staleness:
            self._invalidations.lose()


class Report:
    """The text of heartbeats: ``{root: [hits, misses, shared]}`` of this process as JSON, for operators.

    Heartbeats are more frequent than its renewal. Roots that nothing was read of are left out: tools are often
    decorated in every process and used in a few.
    """

    def __init__(self) -> None:
        self._text = b""
        self._made_at = NEVER

    def text(self) -> bytes:
        """The report, at most two seconds old."""
        if boottime() - self._made_at > _REPORT_PERIOD:
            resources = METRICS.snapshot()["resources"].items()
            counts = {root: [calls[name] for name in ("hits", "misses", "shared")] for root, calls in resources}
            busiest = sorted((root for root in counts if any(counts[root])), key=lambda root: -sum(counts[root]))
            published = {root: counts[root] for root in busiest[:_MAX_REPORTED_ROOTS]}
            self._text, self._made_at = json.dumps(published, separators=(",", ":")).encode(), boottime()
        return self._text
