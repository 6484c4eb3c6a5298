"""The thread of a tier: one per process. It listens, beats, probes, and delivers what is owed."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING

from agent_cache.remote.redis.keyspace import RootNames
from agent_cache.remote.redis.leases import NEVER, boottime
from agent_cache.remote.redis.subscription import Subscription
from agent_cache.remote.redis.wire import Unreachable

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core
    from agent_cache.remote.redis.topology import Node

__all__ = ["Attendant"]

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Attendant:
    """A daemon thread with an event loop of its own, so that no blocked loop of the user's delays a message.

    Attributes:
        lease: reading of `boottime` up to which local copies may be served: the earliest of all servers'.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.RLock()
        self._channels: dict[bytes, RootNames] = {}
        self._waiters: dict[bytes, list[Waiter]] = {}
        self._given_up: set[bytes] = set()
        self._subscriptions: dict[Node, tuple[Subscription, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None
        self._is_ended = False
        self.heard: frozenset[bytes] = frozenset()
        self.lease = NEVER
        self._thread = threading.Thread(target=self._work, name="agent_cache listens to Redis", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self, wait: float = 0.0) -> None:
        """End it; nothing is trusted from now on."""
        self._is_ended = True
        self.lease = NEVER
        loop, main = self._loop, self._main
        if loop is not None and main is not None:
            try:
                loop.call_soon_threadsafe(main.cancel)
            except RuntimeError:  # it is over already
                pass
        if wait and self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(wait)

    # Called from any thread

    def wake(self) -> None:
        """Something has changed: look at the servers again."""
        loop, event = self._loop, self._wake
        if loop is not None and event is not None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                pass

    def is_heard(self, root: RootNames) -> bool:
        """Whether messages about a root arrive."""
        return root.channel in self.heard

    async def hear(self, roots: Iterable[RootNames], until: float) -> None:
        """Return when messages about these roots arrive, or as soon as it is known that they will not.

        Args:
            until: reading of the loop's clock at which the caller waits no longer.
        """
        loop = asyncio.get_running_loop()
        waiting: dict[bytes, Waiter] = {}
        with self._lock:
            for root in roots:
                self._channels[root.channel] = root
                if root.channel not in self.heard and root.channel not in self._given_up and not self.fails(root):
                    waiter = waiting[root.channel] = loop, loop.create_future()
                    self._waiters.setdefault(root.channel, []).append(waiter)
                own = self._loop
                if own is not None:
                    try:
                        own.call_soon_threadsafe(self._listen, root)
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
                    left = [one for one in self._waiters.get(channel, ()) if one is not waiter]
                    self._waiters[channel] = left
                    if not left:
                        del self._waiters[channel]

    def _give_up(self, waiting: dict[bytes, Waiter]) -> None:
        """The next one does not wait: a subscription may be refused for good."""
        self._given_up |= {channel for channel, (_, future) in waiting.items() if not future.done()}
        for _, future in waiting.values():
            _done(future)

    def fails(self, root: RootNames) -> bool:
        """Whether nobody can be listened to about a root now."""
        node = self._core.topology.of(root.slot)
        return self._core.topology.is_lost if node is None else node.breaker.is_open

    def release(self) -> None:
        """A server has failed: who waits for its messages goes on without."""
        with self._lock:
            released = [
                each
                for channel, waiters in self._waiters.items()
                if self.fails(self._channels[channel])
                for each in waiters
            ]
        _wake(released)

    async def catch_up(self) -> None:
        """Return when everything that was said until now has been heard.

        Raises:
            Unreachable: if that cannot be known.
        """
        deadline = boottime() + self._core.timeout
        while (own := self._loop) is None and boottime() < deadline:  # noqa: ASYNC110 - a thread that is starting
            await asyncio.sleep(0.001)
        if own is None or self._is_ended:
            raise Unreachable("nobody listens")
        future = asyncio.run_coroutine_threadsafe(self._catch_up(), own)
        try:
            async with asyncio.timeout(self._core.timeout * 5):  # a loop that is ending takes what it never runs
                await asyncio.wrap_future(future)
        except (TimeoutError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unreachable("the subscription is interrupted") from error

    # In the thread

    def _work(self) -> None:
        try:
            asyncio.run(self._attend())
        except asyncio.CancelledError:
            pass
        finally:
            self.lease, self.heard = NEVER, frozenset()

    async def _attend(self) -> None:
        self._wake = asyncio.Event()
        self._main = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        interval = min(1.0, self._core.max_staleness / 3)
        try:
            while not self._is_ended:
                self._wake.clear()
                topology = self._core.topology
                down = any(node.breaker.is_open for node in topology.nodes)
                if topology.is_stale or down or not topology.nodes:
                    try:
                        await topology.look()
                    except Exception as error:  # noqa: BLE001 - this thread must go on, or nothing ever recovers
                        self._core.log.once("the servers cannot be found", error)
                        self.release()
                self._follow(topology.nodes)
                busy = topology.is_stale or not topology.nodes or any(node.breaker.is_open for node in topology.nodes)
                try:
                    async with asyncio.timeout(interval if busy else None):
                        await self._wake.wait()
                    if busy:
                        await asyncio.sleep(interval / 4)
                except TimeoutError:
                    pass
        finally:
            for _, task in self._subscriptions.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._subscriptions.values()), return_exceptions=True)

    def _follow(self, nodes: list[Node]) -> None:
        """One subscription for each server. One that has lost its slots takes what it has said with it."""
        gone = [node for node in self._subscriptions if node not in nodes]
        for node in gone:
            self._subscriptions.pop(node)[1].cancel()
        if gone:
            self._core.lost()
        for node in nodes:
            subscription, task = self._subscriptions.get(node, (None, None))
            channels = self._channels_of(node)
            if subscription is None or task is None or task.done():
                subscription = Subscription(self._core, node, channels, self._changed)
                task = asyncio.get_running_loop().create_task(subscription.run(), name=f"agent_cache listens to {node}")
                self._subscriptions[node] = subscription, task
            elif subscription.assign(channels):
                self._core.lost()
        self._changed()

    def _channels_of(self, node: Node) -> dict[bytes, RootNames]:
        with self._lock:
            channels = dict(self._channels)
        return {channel: root for channel, root in channels.items() if self._core.topology.of(root.slot) is node}

    def _listen(self, root: RootNames) -> None:
        node = self._core.topology.of(root.slot)
        subscription, _ = self._subscriptions.get(node, (None, None)) if node is not None else (None, None)
        if subscription is not None:
            subscription.listen(root)

    def _changed(self) -> None:
        """A confirmation, a PONG, a loss: what is heard and trusted follows."""
        subscriptions = [subscription for subscription, _ in self._subscriptions.values()]
        self.heard = frozenset().union(*(one.heard for one in subscriptions if one.is_live))
        self.lease = NEVER if self._is_ended else min((one.lease for one in subscriptions), default=NEVER)
        if self._given_up:
            self._given_up -= self.heard
        if self._waiters:
            with self._lock:
                ready = [self._waiters.pop(channel) for channel in list(self._waiters) if channel in self.heard]
            _wake(each for waiters in ready for each in waiters)

    async def _catch_up(self) -> None:
        async with asyncio.timeout(self._core.timeout * 4):
            while True:
                subscriptions = [subscription for subscription, _ in self._subscriptions.values()]
                if subscriptions and all(one.is_live for one in subscriptions):
                    await asyncio.gather(*(one.ping() for one in subscriptions))
                    if self.lease > NEVER:
                        return
                await asyncio.sleep(0.005)


def _wake(waiters: Iterable[Waiter]) -> None:
    for loop, waiter in waiters:
        try:
            loop.call_soon_threadsafe(_done, waiter)
        except RuntimeError:  # that loop is over
            pass


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def stop_with(owner: object, core: Core) -> None:
    """End the thread when its tier is no longer used."""
    weakref.finalize(owner, _stop, core)


def _stop(core: Core) -> None:
    if core.attendant is not None:
        core.attendant.stop()
