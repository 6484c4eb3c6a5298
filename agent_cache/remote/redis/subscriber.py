"""Receives invalidations, and decides for how long local copies are trusted.

A daemon thread, one for each tier and process, has a subscription to each server. It sends the heartbeats, which are
also the probes of servers that have failed, and delivers pending invalidations.

The rules of trust, each of which has a counterexample: the PING goes over the connection of the messages, its PONG is
handled in their order, and the term counts from the *sending* of the heartbeat that had been answered before that
PING. An interrupted subscription is a loss, even if nothing seems to have happened meanwhile. A term that runs out is
none: on one connection no message is lost, so local copies are valid again with the next PONG.

A server that stops and goes on executes what has arrived over its connections meanwhile, in any order, and only then
what comes later. So a write that it does not answer hands its invalidations over before it returns: they are sent over
a connection that the server has accepted, and whoever gets an answer to a heartbeat that was sent later, and then one
more, gets it after them.

A local copy is bound to the terms of the servers that have its roots, and to no other server. With the connection its
term ends for good, and so do the copies under it. Roots that nothing was read of for a while, and that no copy depends
on, are unsubscribed from.

A busy root is *split*: a process whose copies depend on few of its entities listens to their parts instead of all of
it. It leaves the channel of the root when those of all parts that its copies depend on are confirmed, so that no
message is missed in between. Processes of an earlier version publish on the channel of the root alone. Their scripts
also delete a mark from the server, which each heartbeat looks for: where it was deleted, the root is listened to again.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from itertools import count
from typing import Any

from redis.crc import key_slot

from agent_cache.clock import CLOCK
from agent_cache.core.lease import ENDED, Lease, Term
from agent_cache.remote.redis.connection import (
    INFO,
    NEVER,
    Connection,
    Interrupted,
    ReplyError,
    Unreachable,
    asleep,
    boottime,
    replication_id_of,
)
from agent_cache.remote.redis.keyspace import LISTENED_TO, Invalidations, Keyspace, Root, parse_message, whole_of
from agent_cache.remote.redis.scripts import MARK
from agent_cache.remote.redis.transport import KEPT_ALIVE, Server, Transport
from agent_cache.remote.redis.ttl_hash import TtlHash
from agent_cache.remote.redis.writes import Call, Waiter, Writer, release, set_done
from agent_cache.remote.reports import report_text

__all__ = ["Report", "Subscriber", "Subscription", "Trust"]

_MAX_MESSAGE = 1 << 20
_REPORT_PERIOD = 2.0
_RECONNECT_PAUSE = 0.02
_MAX_PAUSE = 1.0
_MAX_RECENT = 10_000
"""Trusts that are kept without a copy, each of some 500 bytes. Their roots may be unsubscribed from a little early."""
_IDLE_PERIOD = 60.0
"""Seconds after which roots are unsubscribed from that nothing was read of in this period and the one before."""
_MAX_MOVING_KEYS = 3
"""Of heartbeats, each in another slot. A migration moves few slots at a time."""


_BUSY = 200.0
"""Messages a second about one root from which it is split: a hundred writes."""
_MAX_PARTS = 512
"""Parts of a root that a process listens to; with more of them, to all of it: an eighth of this is a few messages."""
_WHOLE_PERIOD = 60.0
"""Seconds for which a root is not split after a process of an earlier version has written to it."""


_ENDED = Term(boottime)
_ENDED.end()


class Trust(Lease):
    """The trust in local copies that depend on the same channels: while the terms of all their servers run, and
    somebody is told of invalidations.

    With one server, as nearly always, a hit tests that inline.

    Attributes:
        channels: the channels.
        terms: those of the connections that the messages arrive over.
        is_used: set by each lookup.
        parts: of a trust in a copy of many reads, those in each. They have the channels.
    """

    __slots__ = ("channels", "invalidations", "is_used", "parts", "terms")

    def __init__(
        self,
        channels: frozenset[bytes],
        terms: tuple[Term, ...],
        invalidations: Invalidations,
        parts: tuple[Trust, ...] = (),
    ) -> None:
        is_one = len(terms) == 1
        super().__init__(invalidations.page, LISTENED_TO if is_one else ENDED, terms[0] if is_one else None)
        self.channels = channels
        self.terms = terms
        self.is_used = True
        self.invalidations = invalidations
        self.parts = parts

    @property
    def is_over(self) -> bool:
        """Whether messages may have been missed since."""
        terms = self.terms
        return terms[0].is_over if len(terms) == 1 else any(term.is_over for term in terms)

    def end(self) -> None:
        """End it for good, though the terms go on: messages of one of its channels may be missed."""
        self.terms = (_ENDED,)
        self.stamp = ENDED

    def renew(self) -> bool:
        """See `Lease`. Of a copy from several servers every hit asks it. The test is never set anew: `end` is final."""
        return self.page[0] == LISTENED_TO and all([term.clock() < term.until for term in self.terms])  # noqa: C419 - faster


class Subscriber:
    """The thread of a tier, with an event loop of its own: no blocked loop of the user's delays a message.

    Attributes:
        channels: channels whose messages arrive.
        moving: channels of roots whose slot moves to another server. Nothing is kept locally under these.
        until: reading of `boottime` up to which all local copies are trusted: the earliest of all servers.
        ttls: those that were set at run time.
        was_forked: local copies may come from the parent process.
    """

    def __init__(
        self, transport: Transport, keyspace: Keyspace, invalidations: Invalidations, writer: Writer, ttls: TtlHash
    ) -> None:
        self.ttls = ttls
        self._transport = transport
        self._keyspace = keyspace
        self._invalidations = invalidations
        self._writer = writer
        self.was_forked = False
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._roots: dict[bytes, Root] = {}  # by channel
        self._waiters: dict[bytes, list[Waiter]] = {}  # by channel
        self._unconfirmed: set[bytes] = set()  # channels of roots whose messages were waited for in vain
        self._terms: dict[bytes, Term] = {}  # by channel: of the connection that its messages arrive over
        self._trusts: weakref.WeakValueDictionary[frozenset[bytes], Trust] = weakref.WeakValueDictionary()
        self._merged: weakref.WeakValueDictionary[int, Trust] = weakref.WeakValueDictionary()  # each after its parts
        self._merges = count()
        self._recent: set[Trust] = set()  # those that lookups have used lately, whether or not a copy was kept
        self._next_idle = boottime() + _IDLE_PERIOD
        self._keeps_whole = False
        self._subscriptions: dict[Server, tuple[Subscription, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_up: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self.channels: frozenset[bytes] = frozenset()
        self.moving: frozenset[bytes] = frozenset()
        self.until = NEVER

    def after_fork(self) -> None:
        """In the child: there is no thread, and no copy is valid that was kept under the parent's."""
        KEPT_ALIVE.append((self._subscriptions, self._loop, self._main))
        self._end_terms()
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
        self._end_terms()
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

    def _end_terms(self) -> None:
        self.until = NEVER
        for subscription, _ in self._subscriptions.copy().values():
            subscription.term.end()

    def trust(self, channels: frozenset[bytes]) -> Trust | None:
        """The trust in copies that depend on these channels; None unless messages of all of them arrive."""
        trust = self._trusts.get(channels)
        if trust is not None and not trust.is_over:
            trust.is_used = True
            return trust
        with self._lock:
            trust = self._trusts.get(channels)  # again: of two for the same channels only one would keep them
            if trust is not None and not trust.is_over:
                return trust
            terms = [self._term_of(channel) for channel in channels]
            known = tuple(dict.fromkeys(term for term in terms if term is not None and not term.is_over))
            if not known or None in terms or any(term.is_over for term in terms if term is not None):
                return None
            trust = self._trusts[channels] = Trust(channels, known, self._invalidations)
            if len(self._recent) >= _MAX_RECENT:
                self._recent.clear()
            self._recent.add(trust)
        return trust

    def merge(self, leases: Iterable[Lease]) -> list[Lease]:
        """Replace several trusts by one that asks for each term once."""
        merged: list[Lease] = []
        trusts: dict[Trust, None] = {}
        for each in leases:
            if isinstance(each, Trust) and each.invalidations is self._invalidations:
                trusts[each] = None
            else:
                merged.append(each)
        if trusts:
            whole, *others = trusts
            if others:
                with self._lock:  # of the terms, too: one of the parts may be ended meanwhile
                    terms = tuple(dict.fromkeys(term for trust in trusts for term in trust.terms))
                    whole = Trust(frozenset(), terms, self._invalidations, tuple(trusts))
                    self._merged[next(self._merges)] = whole
            merged.append(whole)
        return merged

    def _term_of(self, topic: bytes) -> Term | None:
        """That of the connection over which all messages arrive that a copy under this channel needs."""
        terms, whole = self._terms, whole_of(topic)
        return terms.get(whole) or (terms.get(topic) if whole + b":*" in terms else None)

    def hears(self, topic: bytes) -> bool:
        """Whether all messages arrive that a copy under this channel needs."""
        return self._term_of(topic) is not None

    def trusted_whole_until(self) -> float:
        """Clock reading up to which copies may be served that are not known by their channels: none while a root is
        split. From the first call on, no root is split any more.
        """
        if not self._keeps_whole:
            self._keeps_whole = True
            self.wake()
        return NEVER if self._splits() else self.trusted_until()

    def _splits(self) -> bool:
        return any(subscription.split for subscription, _ in self._subscriptions.copy().values())

    def trusted_until(self) -> float:
        """Clock reading up to which all local copies may be served."""
        if self._thread is None or not self._invalidations.listeners:
            return NEVER
        now = CLOCK.now()  # first: a thread that is suspended between the two clocks trusts for less, not for more
        left = self.until - boottime()
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

    def exchange_ttls(self) -> None:
        """Send a heartbeat to the server that has the ttls now, since some of them are to be sent to it."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._exchange_ttls)
            except RuntimeError:
                pass

    def _exchange_ttls(self) -> None:
        for subscription, _ in self._subscriptions.values():
            if subscription.has_ttls:
                subscription.hurry()

    async def subscribe(self, topics: Mapping[bytes, Root], until: float) -> None:
        """Return when all messages arrive that copies under these channels need, or it is known that they will not.

        Args:
            topics: the channels, with their roots.
            until: reading of the loop's clock at which the caller waits no longer.
        """
        loop = asyncio.get_running_loop()
        waiting: dict[bytes, Waiter] = {}
        with self._lock:
            for channel, root in topics.items():
                self._roots[root.channel] = root
                if not self.hears(channel) and root.channel not in self._unconfirmed and not self.has_failed(root):
                    waiter = waiting[channel] = loop, loop.create_future()
                    self._waiters.setdefault(channel, []).append(waiter)
                if self._loop is not None:
                    try:
                        self._loop.call_soon_threadsafe(self._subscribe, root, channel)
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

    def _give_up(self, waiting: dict[bytes, Waiter]) -> None:
        """Stop waiting. The next caller does not wait at all for messages about these roots, whatever their part,
        because a subscription may be refused for good.
        """
        missing = {whole_of(channel) for channel, (_, future) in waiting.items() if not future.done()}
        self._unconfirmed = self._unconfirmed | missing  # a new one: the thread may be looking at the other
        for _, future in waiting.values():
            set_done(future)

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
                if self.has_failed(self._roots[whole_of(channel)])
                for waiter in waiters
            ]
        release(released)
        self.wake()

    def identity_changed(self, server: Server) -> None:
        """End what was kept under a server that has turned out to be another one, or to have lost data."""
        with self._lock:
            subscription, _ = self._subscriptions.get(server, (None, None))
            roots = list(self._roots.values()) if subscription is None else subscription.renew_term()
            self._list_terms()
        self.lose(roots)

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

    async def hand_over(self, calls: list[Call]) -> None:
        """Send calls once more that were not answered, over connections that their servers have accepted, and return
        when they are on their way. Where there is no such connection, nothing is sent.

        A caller that is cancelled waits all the same, at most a timeout: its write returns then.
        """
        loop, own = asyncio.get_running_loop(), self._loop
        if own is None:
            return
        waiter = loop, loop.create_future()
        try:
            own.call_soon_threadsafe(self._hand_over, calls, waiter)
        except RuntimeError:  # that loop is closed
            return
        timer = loop.call_later(self._transport.timeout, set_done, waiter[1], context=Context())
        cancelled: asyncio.CancelledError | None = None
        try:
            while not waiter[1].done():
                try:
                    await asyncio.wait([waiter[1]])
                except asyncio.CancelledError as error:
                    cancelled = error
        finally:
            timer.cancel()
        if cancelled is not None:
            raise cancelled

    # In the thread

    def _hand_over(self, calls: list[Call], waiter: Waiter) -> None:
        for call in calls:
            server = self._transport.topology.server_of(call.root.slot)
            subscription, _ = self._subscriptions.get(server, (None, None)) if server is not None else (None, None)
            if subscription is not None:
                subscription.hand_over(call)
        release([waiter])

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        finally:
            self._end_terms()
            self.channels, self.moving = frozenset(), frozenset()

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
        for server in [server for server in self._subscriptions if server not in servers]:
            former, former_task = self._subscriptions.pop(server)
            former_task.cancel()
            self.lose(former.renew_term())
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
                    server, roots, self._transport, self._keyspace, self._invalidations, self._writer, self,
                    was_forked=self.was_forked,
                )  # fmt: skip
                task = asyncio.get_running_loop().create_task(
                    subscription.run(), name=f"agent_cache listens to {server}"
                )
                self._subscriptions[server] = subscription, task
            else:
                subscription.assign(roots)
        self.changed()

    def lose(self, roots: list[Root]) -> None:
        """Drop what depends on these roots of one server. If there are no others, that is everything.

        It may have lost its data as well, with what running writes hold.
        """
        self._writer.forget_announced()
        self._invalidations.lose(roots if self._transport.topology.is_cluster else None, self._keyspace)

    def end_trust(self, roots: list[Root]) -> None:
        """Drop what depends on these roots, because messages about them may be missed, though their server is well."""
        channels = {root.channel for root in roots}
        with self._lock:
            trusts = self._known_trusts()
            ended = {trust for trust in trusts if not channels.isdisjoint(map(whole_of, trust.channels))}
            for known in self._merged.valuerefs():  # once each: of many that share their parts there are many paths
                whole = known()
                if whole is not None and not ended.isdisjoint(whole.parts):
                    ended.add(whole)
            for trust in ended:
                trust.end()
            self._list_terms()
        self._invalidations.lose(roots, self._keyspace, is_loss=False)

    def unsubscribe_idle(self) -> None:
        """Unsubscribe from the roots that no copy depends on, and that nothing was read of in two periods."""
        if boottime() < self._next_idle:
            return
        self._next_idle = boottime() + _IDLE_PERIOD
        with self._lock:
            self._forget_unused()
            topics = self._topics()
            used = set(map(whole_of, topics))
            for subscription, _ in self._subscriptions.values():
                subscription.leave_parts(topics)
            self._list_terms()
            heard = self._terms.keys() | {whole for each, _ in self._subscriptions.values() for whole in each.split}
            idle = [root for channel, root in self._roots.items() if channel in heard and channel not in used]
            if self._keyspace.calls_under(idle) is None:
                return  # what depends on them alone cannot be told from the rest
            for root in idle:
                del self._roots[root.channel]
            for subscription, _ in self._subscriptions.values():
                subscription.remove(idle)
            self._list_terms()
        if idle:  # a nearer tier may have values under them, and is not asked about its use
            self._invalidations.lose(idle, self._keyspace, is_loss=False)
            self.changed()

    def _forget_unused(self) -> None:
        """Keep the trusts that lookups have used since the last time. With the lock held."""
        trusts = self._known_trusts()
        self._recent = {trust for trust in trusts if trust.is_used and not trust.is_over}
        for trust in trusts:
            trust.is_used = False

    def _topics(self) -> set[bytes]:
        """The channels that copies and running lookups depend on. With the lock held."""
        return set(self._waiters).union(*(trust.channels for trust in self._known_trusts() if not trust.is_over))

    def _known_trusts(self) -> list[Trust]:
        """All that somebody uses. In one step of the interpreter: other threads look for them without the lock."""
        return [trust for known in self._trusts.valuerefs() if (trust := known()) is not None]

    def split_busy(self, subscription: Subscription, busy: set[bytes]) -> None:
        """Split roots of a server that many messages come about, and end splits that are not possible any more."""
        if self._keeps_whole:
            busy = set()
        if not busy and not subscription.parts:
            return
        with self._lock:
            used: dict[bytes, set[bytes]] = {}
            for topic in self._topics():
                used.setdefault(whole_of(topic), set()).add(topic)
            for whole in busy | subscription.parts.keys():
                topics = used.get(whole, set())
                may_split = subscription.may_split(whole) and not self._keeps_whole
                if not may_split or whole in topics or len(topics) > _MAX_PARTS:
                    subscription.add_whole(whole)
                else:
                    subscription.listen_to_parts(whole, topics)
            self._list_terms()

    def _subscribe(self, root: Root, topic: bytes) -> None:
        server = self._transport.topology.server_of(root.slot)
        subscription, _ = self._subscriptions.get(server, (None, None)) if server is not None else (None, None)
        if subscription is None:
            return
        if root.channel not in subscription.split:
            subscription.add(root)
        elif topic == root.channel or len(subscription.parts.get(root.channel, ())) > _MAX_PARTS:
            subscription.add_whole(root.channel)
        else:
            subscription.add_parts(root.channel, {topic})

    def _list_terms(self) -> None:
        """Note which channels are heard, and over which connection. With the lock held."""
        subscriptions = self._subscriptions.copy().values()  # copies: also called outside of the thread
        live = [each for each, _ in subscriptions if each.is_live and not self._is_stopped]
        self._terms = {
            channel: each.term
            for each in live
            for channel in each.confirmed.copy()
            if not each.moving or whole_of(channel) not in each.moving
        }
        self.channels = frozenset(self._terms)

    def changed(self, *, is_about_channels: bool = True) -> None:
        """Update `channels` and `until`, after a subscription was confirmed, answered or lost."""
        subscriptions = [subscription for subscription, _ in self._subscriptions.values()]
        if is_about_channels:
            self.moving = frozenset().union(*(each.moving for each in subscriptions))
            with self._lock:
                self._list_terms()
        self.until = NEVER if self._is_stopped else min((each.term.until for each in subscriptions), default=NEVER)
        if self._unconfirmed:
            self._unconfirmed = {whole for whole in self._unconfirmed if not self.hears(whole + b":*")}
        if self._waiters:
            with self._lock:
                ready = [self._waiters.pop(channel) for channel in list(self._waiters) if self.hears(channel)]
            release(waiter for waiters in ready for waiter in waiters)

    async def _catch_up(self) -> None:
        async with asyncio.timeout(self._transport.timeout * 4):
            while True:
                subscriptions = [subscription for subscription, _ in self._subscriptions.values()]
                if subscriptions and all(each.is_live for each in subscriptions):
                    await asyncio.gather(*(each.ping() for each in subscriptions))
                    if self.until > NEVER:
                        return
                await asyncio.sleep(0.005)


class Subscription:
    """Messages and heartbeats of one server: a connection that receives, and one for commands.

    Attributes:
        confirmed: channels whose messages arrive.
        moving: channels of roots whose slot this server hands over, or has handed over: writes may not be executed.
        parts: channels of parts that were subscribed to, by the channel of their root.
        split: channels of roots that only parts are listened to of.
        marks: of the roots that are split, or will be: see `MARK`.
        is_live: whether all channels that were wanted when it connected have been confirmed.
        term: how long no message of this server can have been missed: messages arrive, and the server takes writes. It
            ends with the connection.
    """

    def __init__(
        self,
        server: Server,
        roots: dict[bytes, Root],
        transport: Transport,
        keyspace: Keyspace,
        invalidations: Invalidations,
        writer: Writer,
        subscriber: Subscriber,
        *,
        was_forked: bool = False,
    ) -> None:
        self.server = server
        self.is_live = False
        self.confirmed: set[bytes] = set()
        self.term = Term(boottime)
        self.moving: set[bytes] = set()
        self.parts: dict[bytes, set[bytes]] = {}
        self.split: set[bytes] = set()
        self.marks: dict[bytes, bytes] = {}  # by the channel of the root
        self._whole_until: dict[bytes, float] = {}
        self._roots = roots  # by channel
        self._heard: dict[bytes, int] = {}  # number of messages since the latest heartbeat, by the channel of a root
        self._counted_at = boottime()
        self._transport = transport
        self._keyspace = keyspace
        self._invalidations = invalidations
        self._writer = writer
        self._subscriber = subscriber
        self._awaited: set[bytes] = set()  # channels to be confirmed before it is live
        self._may_leave = True
        self._leaving: list[bytes] = []  # channels that it has unsubscribed from, in this order
        self._connection: Connection | None = None
        self._commands: Connection | None = None  # the latest that the server has accepted
        self._formers: list[Connection] = []  # the ones before, while it may still execute what was sent over them
        self._connections = 0
        self._pings_sent = 0
        self._pings: dict[bytes, tuple[float, float, asyncio.Future[None]]] = {}  # when sent, and since when it counts
        self._beaten_at = NEVER  # when the latest answered heartbeat was sent
        self._answered_at = NEVER  # the same of the one that had been answered before the latest answered PING was sent
        self._was_forked = was_forked
        self._may_have_lost = False  # an earlier connection had received messages
        self._asleep = asleep()
        self._key: bytes | None = None
        self._is_refused = False
        self._report = Report()
        self._interrupted: asyncio.Event | None = None  # ends the pause between two heartbeats
        self._ttls_heard_over: Connection | None = None
        self._awaits_ttls = False  # it has asked for their messages, and has no answer yet
        self._asked_before_ttls: set[bytes] = set()  # channels whose answers come before that one
        self._may_hear_ttls = True

    @property
    def roots(self) -> list[Root]:
        """The roots that it subscribes to."""
        return list(self._roots.values())

    def renew_term(self) -> list[Root]:
        """End the term, and what was kept under it, and begin another. Returns the roots."""
        former, self.term = self.term, Term(boottime)
        self.term.until = former.until
        former.end()
        return self.roots

    def _extend_term(self) -> None:
        """After the answer to a PING or a heartbeat: both count from when they were sent."""
        if self.is_live:
            self.term.until = min(self._answered_at, self._beaten_at) + self._transport.max_staleness
        self._subscriber.changed(is_about_channels=False)

    async def run(self) -> None:
        """Connect, receive and send heartbeats until it is cancelled."""
        try:
            await self._run(self._transport.max_staleness / 3)
        finally:
            self._close_formers()
            if self._commands is not None:
                self._commands.close()

    def _close_formers(self) -> None:
        formers, self._formers = self._formers, []
        for former in formers:
            former.close()

    async def _run(self, interval: float) -> None:
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
        commands.is_patient = True  # it stays until the next one has delivered all: calls may be handed over meanwhile
        former, self._commands = self._commands, commands
        if former is not None:
            self._formers.append(former)
        for each in self._formers.copy():
            if not each.is_waiting:  # as those of a server that answers, and refuses the heartbeat
                self._formers.remove(each)
                each.close()
        closed = self._interrupted = asyncio.Event()
        while True:
            closed.clear()
            await self._beat(commands)
            self._close_formers()
            if self._connection is None or not self._connection.is_open:
                self._disconnect()
                await self._connect(closed.set)
            self._listen_for_ttls()
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

    async def _beat(self, commands: Connection) -> None:
        """Write a heartbeat and confirm the identity. A primary that is cut off from its replicas refuses the write, if
        it is configured to do so.

        In a cluster it also writes to the slot of each root, in vain: see `Root.absent`. A server that refuses this
        may refuse the writes that others announce under the root, too. Its copies are dropped, and the trust in them
        ends for good, before the term is extended, which counts from before the slot was opened.
        """
        transport, ttls, sent = self._transport, self._subscriber.ttls, boottime()
        period = b"%d" % max(1000, int(transport.max_staleness * 3000))
        roots = list(self._roots.values()) if transport.topology.is_cluster else []
        moving_keys: set[bytes] = set()
        while True:
            key = self._heartbeat_key(moving_keys)
            heartbeat = (b"SET", key, self._report.text(), b"PX", period)
            question = [ttls.question()] if self.has_ttls and ttls.is_asked(commands) else []
            written, info, clock, *replies = await commands.request(
                heartbeat, INFO, (b"TIME",), *question, *((b"DEL", root.absent) for root in roots)
            )
            version, refusals = replies[: len(question)], replies[len(question) :]
            if len(moving_keys) == _MAX_MOVING_KEYS or not self._is_redirected(written):
                break
            moving_keys.add(key)
        for reply in (written, info, clock):
            if isinstance(reply, ReplyError):
                raise Unreachable(str(reply))
        probed = zip(roots, refusals, strict=True)
        self._note_moving({root.channel for root, reply in probed if self._is_redirected(reply)})
        transport.identify(self.server, replication_id_of(info))
        await self._look_for_marks(commands)  # before the term counts from this heartbeat
        for each in version:  # likewise
            await ttls.exchange(commands, each)
        self.server.set_clock(sent, clock)
        self.server.heard_at = self._beaten_at = sent
        await self._writer.deliver_pending(self.server, commands)
        transport.recover(self.server)
        self._extend_term()
        self._subscriber.unsubscribe_idle()
        self._count_messages()

    # Ttls that are set at run time

    @property
    def has_ttls(self) -> bool:
        """Whether this server has the hash of them."""
        return self._transport.topology.server_of(self._subscriber.ttls.slot) is self.server

    def hurry(self) -> None:
        """Send the next heartbeat now."""
        if self._interrupted is not None:
            self._interrupted.set()

    def _listen_for_ttls(self) -> None:
        """Subscribe to their channel, if it is on this server: messages make them known at once."""
        if self._connection is self._ttls_heard_over or not self._may_hear_ttls or not self.has_ttls:
            return
        self._ttls_heard_over, self._awaits_ttls = self._connection, True
        self._asked_before_ttls = self._roots.keys() - self.confirmed - self.split
        self._subscribe(self._subscriber.ttls.channel)

    def _is_about_ttls(self) -> bool:
        """Whether a refused subscription is that to their channel. It is not tried again, nor is it needed.

        An error names no channel, but answers come in the order of the commands: it is that one if all that were asked
        for before have been confirmed.
        """
        if not self._awaits_ttls:
            return False
        self._awaits_ttls = self._may_hear_ttls = False
        return not (self._asked_before_ttls & self._roots.keys()) - self.confirmed - self.split

    def _count_messages(self) -> None:
        """Look for busy roots, a few times in a period of staleness."""
        heard, self._heard = self._heard, {}
        former, self._counted_at = self._counted_at, boottime()
        least = _BUSY * (self._counted_at - former)
        if self.is_live and self._may_leave:
            # Some of those that were heard of may have just been unsubscribed from, since nobody depends on them.
            busy = {whole for whole, count in heard.items() if count > least and whole in self._roots}
            self._subscriber.split_busy(self, busy)

    # Parts of busy roots

    async def _look_for_marks(self, commands: Connection) -> None:
        """Listen to all of a root again if a process of an earlier version has written to it since the last heartbeat,
        or the server has lost its data. Until now its messages were missed, so what depends on the root is dropped.
        """
        for whole in self.marks.keys() - self.parts.keys():
            del self.marks[whole]
        for whole in list(self.parts):
            root, mark = self._roots.get(whole), None
            if root is None or whole in self.moving:  # it was left meanwhile, or nothing is kept under it
                continue
            try:
                mark = await commands.run(
                    MARK, [root.registry], [os.urandom(12).hex().encode(), self._writer.calls.cell_ttl]
                )
            except Unreachable as error:
                if not commands.is_open:
                    raise
                self._transport.log.once("a busy root cannot be marked, so all of it is listened to", error)
            former = self.marks.pop(whole, mark)
            if mark is not None:
                self.marks[whole] = mark
                if mark == former:
                    continue
            self._whole_until[whole] = boottime() + _WHOLE_PERIOD
            if whole in self.split:
                self._invalidations.lose([root], self._keyspace)
            self.add_whole(whole)

    def may_split(self, whole: bytes) -> bool:
        """Whether all processes that have written to a root of late publish messages about its parts."""
        if boottime() < self._whole_until.get(whole, NEVER):
            return False
        self._whole_until.pop(whole, None)
        return True

    def add_parts(self, whole: bytes, topics: set[bytes]) -> None:
        """Subscribe to the channels of these parts, and to that of all parts."""
        known = self.parts.setdefault(whole, set())
        new = (topics | {whole + b":*"}) - known
        if new:
            known |= new
            self._subscribe(*new)

    def listen_to_parts(self, whole: bytes, topics: set[bytes]) -> None:
        """Listen to these parts of a root instead of all of it, as soon as they are confirmed."""
        self.add_parts(whole, topics)
        if whole in self.confirmed and whole in self.marks and self.parts[whole] <= self.confirmed:
            self.split.add(whole)
            self._unsubscribe([whole])

    def add_whole(self, whole: bytes) -> None:
        """Listen to all of a root again. Its parts are left when that is confirmed."""
        if whole in self.split:
            self._subscribe(whole)
        elif whole in self.parts:
            self._unsubscribe(self.parts.pop(whole))

    def leave_parts(self, topics: set[bytes]) -> None:
        """Unsubscribe from parts that are not among these channels."""
        for parts in self.parts.values():
            unused = {part for part in parts if part not in topics and not part.endswith(b":*")}
            parts.difference_update(unused)
            self._unsubscribe(unused)

    def hand_over(self, call: Call) -> None:
        """Send a call, whether or not the server answers now. It stays pending until it does."""

        def on_reply(replies: list[Any] | Unreachable) -> None:
            if isinstance(replies, list) and not isinstance(replies[0], ReplyError):
                self._invalidations.add(call.cells)
                self._writer.pending.acknowledge(call)

        if self._commands is not None and self._commands.is_open:
            self._commands.hand_over(call.script, call.keys, call.fresh_arguments(), on_reply)

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
        """Note which roots are moving. What depends on those that have begun to move is dropped."""
        former, self.moving = self.moving, moving & self._roots.keys()
        if begun := self.moving - former:
            self._subscriber.end_trust([self._roots[channel] for channel in begun])
        if self.moving != former:
            self._subscriber.changed()

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
        self._leaving.clear()
        for channel in list(self._roots):  # one by one: a cluster refuses a command with channels of several slots
            self._subscribe(channel)
        if not self._awaited:
            self._become_live()

    def add(self, root: Root) -> None:
        """Subscribe to one more channel. No message was missed: nothing was kept locally under this root before."""
        channel = root.channel
        self._roots[channel] = root
        if channel in self.split:
            return
        if self._connection is not None and channel not in self.confirmed and channel not in self._awaited:
            if not self.is_live:
                self._awaited.add(channel)
            self._subscribe(channel)

    def assign(self, roots: dict[bytes, Root]) -> None:
        """Subscribe to these channels only, since slots have moved. What depends on other roots is dropped."""
        if lost := self._roots.keys() - roots.keys():
            self._forget([self._roots[channel] for channel in lost])
            for channel in lost:
                del self._roots[channel]
        for root in roots.values():
            self.add(root)
        if self._connection is not None and not self.is_live and not self._awaited:
            self._become_live()

    def _forget(self, roots: list[Root]) -> None:
        """End what depends on these roots: their messages do not arrive any more."""
        for root in roots:
            channel = root.channel
            self.confirmed -= {channel, *self.parts.pop(channel, ())}
            self.split.discard(channel)
            self.moving.discard(channel)
            self._awaited.discard(channel)
        self._subscriber.end_trust(roots)

    def _redirect(self, reply: ReplyError) -> None:
        """A channel was subscribed to, or unsubscribed from, of a slot that has moved. The subscriber follows."""
        try:
            slot, _ = reply.target(self.server.address)
            self._transport.redirect(self.server, reply)
        except Unreachable as error:
            self._transport.log.once("a subscription got an unexpected reply, so it connects again", error)
            self._hang_up()
        else:
            self._leaving = [channel for channel in self._leaving if key_slot(channel) != slot]

    def remove(self, roots: Iterable[Root]) -> None:
        """Unsubscribe from the channels of these roots, as far as they are subscribed to here."""
        for root in roots:
            channel = root.channel
            self._roots.pop(channel, None)
            self._unsubscribe([*({channel} & self.confirmed), *self.parts.pop(channel, ())])
            self.split.discard(channel)

    def _unsubscribe(self, channels: Iterable[bytes]) -> None:
        channels = list(channels)
        self.confirmed.difference_update(channels)
        if channels and self._may_leave and self._connection is not None:
            self._leaving += channels
            is_cluster = self._transport.topology.is_cluster
            self._connection.push(b"SUNSUBSCRIBE" if is_cluster else b"UNSUBSCRIBE", *channels)

    def _subscribe(self, *channels: bytes) -> None:
        if self._connection is not None:
            is_cluster = self._transport.topology.is_cluster
            self._connection.push(b"SSUBSCRIBE" if is_cluster else b"SUBSCRIBE", *channels)

    def ping(self) -> asyncio.Future[None]:
        """Send a PING over the same connection. The future is done when all messages before its answer were handled.

        Its term counts from the heartbeat before. While the PING waits at a server that was stopped, so may the call
        of a write that has returned, and the PING may be answered first. Calls from before the heartbeat were executed.
        """
        self._pings_sent += 1
        nonce = b"%d.%d" % (self._connections, self._pings_sent)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings[nonce] = boottime(), self._beaten_at, future
        if self._connection is not None:
            self._connection.push(b"PING", nonce)
        return future

    def _disconnect(self) -> None:
        was_live, self.is_live = self.is_live, False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._answered_at = NEVER
        self.term.end()
        self.confirmed.clear()
        self.marks.clear()
        self.parts.clear()  # whole roots are subscribed to at first, and split again if they are still busy
        self.split.clear()
        if was_live:
            # Loads under way are invalid at once; local copies are dropped when there is trust again.
            self._invalidations.add_roots(self.roots)
        for *_, future in self._pings.values():
            future.cancel()
        self._pings.clear()
        self._subscriber.changed()

    def _become_live(self) -> None:
        if self._was_forked:
            self._invalidations.lose(None, self._keyspace)
        elif self._may_have_lost:
            self._subscriber.lose(self.roots)
        self._may_have_lost, self._was_forked = True, False
        self.term = Term(boottime)
        self.is_live = True
        self._is_refused = False
        self._subscriber.changed()

    # Messages, in order

    def _receive(self, reply: Any) -> None:
        match reply:
            case [b"message" | b"smessage", bytes(channel), _] if channel == self._subscriber.ttls.channel:
                self.hurry()
            case [b"message" | b"smessage", bytes(channel), text]:
                whole = whole_of(channel)
                root = self._roots.get(whole)
                if root is not None:
                    self._heard[whole] = self._heard.get(whole, 0) + 1
                    self._handle_message(root, text)
            case [b"pong", bytes(nonce)] | bytes(nonce):  # the latter without a subscription
                self._pong(nonce)
            case [b"subscribe" | b"ssubscribe", bytes(channel), _] if channel == self._subscriber.ttls.channel:
                self._awaits_ttls = False
            case [b"subscribe" | b"ssubscribe", bytes(channel), _]:
                self._confirm(channel)
            case ReplyError() if (self._leaving or not self._may_leave) and "unsubscribe" in str(reply):
                # An error of ACLs names the command. Several may come for commands that were sent at once.
                self._leaving.clear()
                self._may_leave = False  # an older set of rights: its messages are received, and not looked at
            case ReplyError() if reply.is_redirect:  # the slot of a channel has moved before this was known
                self._redirect(reply)
            case ReplyError() if self._is_about_ttls():
                self._transport.log.once("messages about ttls are refused, so heartbeats alone make them known", reply)
            case ReplyError():
                self._is_refused = True
                self._transport.log.once("a subscription was refused, so nothing is kept locally", reply)
                self._hang_up()
            case [b"sunsubscribe" | b"unsubscribe", bytes(channel), _] if self._leaving[:1] == [channel]:
                del self._leaving[0]
            case [b"sunsubscribe", bytes(channel), _]:  # by the server: its slot has moved, and messages with it
                if channel in self.confirmed:
                    self._forget([self._roots[whole_of(channel)]])
                    self._subscriber.changed()
                self._transport.topology.is_stale = True
                self._transport.on_move()
            case _:
                self._transport.log.once("a subscription got an unexpected reply, so it connects again")
                self._hang_up()

    def _handle_message(self, root: Root, text: Any) -> None:
        keyspace, log = self._keyspace, self._transport.log
        memory = keyspace.memory
        received = parse_message(keyspace, self._writer.process, root, text, log)
        if received is None:
            return
        if received[1] is None:
            self._invalidations.add_all()  # loads under way, too: they may depend on what was forgotten
        self._invalidations.receive(*received)
        if received[1] is None:
            keyspace.note_dropped(memory)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _confirm(self, channel: bytes) -> None:
        whole = whole_of(channel)
        is_wanted = whole in self._roots if channel == whole else channel in self.parts.get(whole, ())
        if not is_wanted or channel in self._leaving:
            return  # it was unsubscribed from since
        self.confirmed.add(channel)
        if channel in self.split:
            # Copies that are not known by their channels, such as those in a nearer tier, may have missed messages.
            self._invalidations.lose([self._roots[channel]], self._keyspace, is_loss=False)
            self.split.discard(channel)
            self._unsubscribe(self.parts.pop(channel, ()))
        self._awaited.discard(channel)
        if not self.is_live and not self._awaited:
            self._become_live()
        self._subscriber.changed()

    def _pong(self, nonce: bytes) -> None:
        ping = self._pings.pop(nonce, None)
        if ping is None or not self.is_live:
            return
        self._check_suspension()
        _, since, future = ping
        self._answered_at = max(self._answered_at, since)
        self._extend_term()
        set_done(future)

    def _check_suspension(self) -> None:
        """Drop local copies after the machine was suspended. None was served then, and none is until a PONG shows that
        no message was missed. But they are older than their own clock shows, and must not become valid again.
        """
        former, self._asleep = self._asleep, asleep()
        if self._asleep - former > self._transport.max_staleness:
            self._subscriber.lose(self.renew_term())
            self._subscriber.changed()


class Report:
    """The text of heartbeats: what this process tells operators. They are more frequent than its renewal."""

    def __init__(self) -> None:
        self._text = b""
        self._made_at = NEVER

    def text(self) -> bytes:
        """The report, at most two seconds old."""
        if boottime() - self._made_at > _REPORT_PERIOD:
            self._text, self._made_at = report_text().encode(), boottime()
        return self._text
