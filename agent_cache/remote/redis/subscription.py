"""Listening to one server: messages, and the lease that local copies are trusted under.

The rules, each of which has a counterexample: the PING goes over the connection that the messages come by, its PONG is
handled in their order, and the lease counts from when that PING was *sent*. A subscription that was interrupted is a
loss, whatever the client library says. A lapse is none: on one connection nothing is lost, so what is kept counts again
with the next PONG.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis.crc import key_slot

from agent_cache.remote.redis.identity import INFO, identity_in, introduced
from agent_cache.remote.redis.keyspace import RootNames
from agent_cache.remote.redis.leases import NEVER, asleep, boottime
from agent_cache.remote.redis.messages import understood
from agent_cache.remote.redis.reports import Report
from agent_cache.remote.redis.topology import Node
from agent_cache.remote.redis.transport import Link
from agent_cache.remote.redis.wire import Interrupted, ReplyError, Unreachable

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["Subscription"]

_LIMIT = 1 << 20


class Subscription:
    """One server: a connection that listens and one that beats.

    Attributes:
        heard: channels whose messages arrive.
        lease: reading of `boottime` up to which nothing that was said here can have been missed.
        is_live: whether all channels that were wanted when it connected have been confirmed.
    """

    def __init__(self, core: Core, node: Node, channels: dict[bytes, RootNames], on_change: Callable[[], None]) -> None:
        self._core = core
        self.node = node
        self._channels = channels
        self._on_change = on_change
        self._sharded = core.topology.is_cluster
        self._unconfirmed: set[bytes] = set()
        self._link: Link | None = None
        self._connections = 0
        self._number = 0
        self._pings: dict[bytes, tuple[float, asyncio.Future[None]]] = {}
        self._answered = self._beaten = NEVER
        self._was_live = False
        self._asleep = asleep()
        self._key: bytes | None = None
        self._is_refused = False
        self._report = Report()
        self.is_live = False
        self.heard: set[bytes] = set()

    @property
    def lease(self) -> float:
        """The earlier of two: messages arrive, and the server takes writes."""
        return min(self._answered, self._beaten) + self._core.max_staleness if self.is_live else NEVER

    async def run(self) -> None:
        """Connect, listen and beat, for ever."""
        interval = self._core.max_staleness / 3
        while True:
            pause = min(interval, 1.0)
            try:
                await self._live(interval)
            except Interrupted as error:
                if self._beaten > NEVER:  # it did answer: no outage until it cannot be reached again
                    pause = 0.02
                else:
                    self._core.failed(self.node, str(error))
            except Unreachable as error:
                self._core.failed(self.node, str(error))
            except Exception as error:  # noqa: BLE001 - somebody must go on listening
                self._core.failed(self.node, f"{type(error).__name__}: {error}")
            finally:
                self._beaten = NEVER
                self._down()
            await asyncio.sleep(pause)

    async def _live(self, interval: float) -> None:
        data, _ = await introduced(self._core, self.node)
        closed = asyncio.Event()
        try:
            while True:
                await self._beat(data)
                if self._link is None or not self._link.is_open:
                    self._down()
                    closed.clear()
                    await self._connect(closed.set)
                started = boottime()
                oldest = next(iter(self._pings.values()), None)
                if oldest is not None and started - oldest[0] > self._core.max_staleness + self._core.timeout:
                    raise Unreachable("PINGs go unanswered")
                self.ping()
                try:
                    async with asyncio.timeout(interval):
                        await closed.wait()
                    await asyncio.sleep(interval if self._is_refused else 0.02)  # one that is cut at once each time
                except TimeoutError:
                    pass
        finally:
            data.close()

    async def _beat(self, data: Link) -> None:
        """Write something, and ask who it is. A master that is cut off from its replicas refuses, if told to."""
        core, sent = self._core, boottime()
        period = b"%d" % max(1000, int(core.max_staleness * 3000))
        _, info, now = await data.ask((b"SET", self._own_key(), self._report.text(), b"PX", period), INFO, (b"TIME",))
        core.met(self.node, identity_in(info))
        self.node.clock_offset = int(now[0]) + int(now[1]) / 1e6 - (sent + boottime()) / 2
        self.node.checked = self._beaten = sent
        await self._core.settle_up(self.node, data)
        self._core.recovered(self.node)
        self._on_change()

    def _own_key(self) -> bytes:
        """A key of this process that this server has the slot of."""
        topology = self._core.topology
        if self._key is None or topology.of(key_slot(self._key)) is not self.node:
            keys = self._core.names.heartbeats(self._core.process)
            self._key = next((key for key in keys if topology.of(key_slot(key)) is self.node), None)
            if self._key is None:
                raise Unreachable("the server has no slots")
        return self._key

    async def _connect(self, on_close: Callable[[], None]) -> None:
        self._connections += 1
        self._pings.clear()
        self._answered = NEVER
        self._link = await Link.open(
            self._core.topology.deployment, self.node.address,
            limit=_LIMIT, timeout=self._core.timeout, receive=self._receive,
        )  # fmt: skip
        self._link.on_close = on_close
        self._unconfirmed = set(self._channels)
        for channel in list(self._channels):
            self._subscribe(channel)
        if not self._unconfirmed:
            self._become_live()

    def listen(self, root: RootNames) -> None:
        """Subscribe to one more channel. That is no loss: nothing was kept that it would have told of."""
        channel = root.channel
        self._channels[channel] = root
        if self._link is not None and channel not in self.heard and channel not in self._unconfirmed:
            if not self.is_live:
                self._unconfirmed.add(channel)
            self._subscribe(channel)

    def assign(self, channels: dict[bytes, RootNames]) -> bool:
        """Slots have moved: listen to these. Whether it has listened to others until now."""
        lost = self._channels.keys() - channels.keys()
        for channel in lost:
            del self._channels[channel]
            self.heard.discard(channel)
        for root in channels.values():
            self.listen(root)
        return bool(lost)

    def _subscribe(self, channel: bytes) -> None:
        if self._link is not None:
            self._link.push(b"SSUBSCRIBE" if self._sharded else b"SUBSCRIBE", channel)

    def ping(self) -> asyncio.Future[None]:
        """Ask for an answer over the same connection. The future is done when everything before it was heard."""
        self._number += 1
        nonce = b"%d.%d" % (self._connections, self._number)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings[nonce] = boottime(), future
        if self._link is not None:
            self._link.push(b"PING", nonce)
        return future

    def _down(self) -> None:
        was_live, self.is_live = self.is_live, False
        if self._link is not None:
            self._link.close()
            self._link = None
        self._answered = NEVER
        self.heard.clear()
        if was_live:
            self._core.epochs.lose()  # loads under way are lost at once, what is kept when there is trust again
        for _, future in self._pings.values():
            future.cancel()
        self._pings.clear()
        self._on_change()

    def _become_live(self) -> None:
        self.is_live = True
        self._is_refused = False
        if self._was_live or self._core.was_forked:
            self._core.lost()
        self._was_live = True
        self._on_change()

    # What arrives, in order

    def _receive(self, reply: Any) -> None:
        match reply:
            case [b"message" | b"smessage", bytes(channel), said]:
                self._hear(channel, said)
            case [b"pong", bytes(nonce)] | bytes(nonce):  # the latter outside of subscriptions
                self._pong(nonce)
            case [b"subscribe" | b"ssubscribe", bytes(channel), _]:
                self._confirm(channel)
            case ReplyError():
                self._is_refused = True
                self._core.log.once("a subscription was refused, so nothing is kept locally", reply)
                self._hang_up()
            case [b"sunsubscribe" | b"unsubscribe", *_]:  # not asked for: the slot has moved, and messages with it
                self._core.topology.is_stale = True
                self._hang_up()
            case _:
                self._core.log.once("a subscription was answered with nonsense, so it begins anew")
                self._hang_up()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()

    def _confirm(self, channel: bytes) -> None:
        self.heard.add(channel)
        self._unconfirmed.discard(channel)
        if not self.is_live and not self._unconfirmed:
            self._become_live()
        self._on_change()

    def _pong(self, nonce: bytes) -> None:
        sent = self._pings.pop(nonce, None)
        if sent is None or not self.is_live:
            return
        self._wake_up()
        self._answered = max(self._answered, sent[0])
        if not sent[1].done():
            sent[1].set_result(None)
        self._on_change()

    def _wake_up(self) -> None:
        """Nothing was served while the machine slept, and nothing is until a PONG says that all was heard. But what is
        kept has grown older than its own clock says, and does not count again.
        """
        former, self._asleep = self._asleep, asleep()
        if self._asleep - former > self._core.max_staleness:
            self._core.lost()

    def _hear(self, channel: bytes, message: Any) -> None:
        root = self._channels.get(channel)
        news = None if root is None else understood(self._core, root, message)
        if news is not None:
            self._core.heard(*news)
