"""What the parts of one tier share in one process, whatever loop or thread they run in."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from redis.crc import key_slot

from agent_cache.clock import CLOCK
from agent_cache.remote.protocol import Listener, Touched
from agent_cache.remote.redis.clients import LoopClient
from agent_cache.remote.redis.connections import Deployment
from agent_cache.remote.redis.counters import Counters, Log
from agent_cache.remote.redis.epochs import Epochs
from agent_cache.remote.redis.identity import introduced
from agent_cache.remote.redis.keyspace import Names
from agent_cache.remote.redis.leases import NEVER, boottime
from agent_cache.remote.redis.memo import Memo
from agent_cache.remote.redis.options import Options
from agent_cache.remote.redis.orders import Orders
from agent_cache.remote.redis.pending import Order, Pending, deliver
from agent_cache.remote.redis.places import Places
from agent_cache.remote.redis.scripts import Script, sharded
from agent_cache.remote.redis.topology import Node, Topology
from agent_cache.remote.redis.transport import Link
from agent_cache.remote.redis.values import MAX_HEAD
from agent_cache.remote.redis.wire import Refused, Unreachable

if TYPE_CHECKING:
    from agent_cache.remote.redis.subscriber import Attendant

__all__ = ["Core"]


class Core:
    """State of a tier.

    Attributes:
        process: who this is, in messages. Another one after a fork.
        attendant: the thread that listens and beats; None until something is asked for, and when the tier is closed.
        claims: by digest, what this process has claimed to load anew, and under which name.
        was_forked: local copies may have come from the parent.
        is_closed: nothing is asked any more.
    """

    def __init__(self, deployment: Deployment, options: Options) -> None:
        self.options = options
        self.max_staleness = options.max_staleness
        self.timeout = options.timeout
        self.max_reply_size = options.max_value_size + MAX_HEAD
        self.names = Names(options.namespace)
        self.topology = Topology(deployment, options.timeout)
        self.counters = Counters()
        self.log = Log(f"RedisTier({', '.join(map(str, _addresses(deployment)))})")
        self.epochs = Epochs()
        self.memo = Memo()
        self.places = Places(self.names, self.memo, self.slot)
        self.pending = Pending(self.names)
        self.claims: dict[bytes, bytes] = {}
        self.listeners: tuple[Listener, ...] = ()
        self.is_closed = False
        self.was_forked = False
        self._begin_process()

    def _begin_process(self) -> None:
        self.process = os.urandom(8).hex().encode()
        self.orders = Orders(self)
        self.lock = threading.RLock()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopClient] = weakref.WeakKeyDictionary()
        self._latest: LoopClient | None = None
        self.attendant: Attendant | None = None

    def after_fork(self) -> None:
        """In the child: nothing of the parent's connections, and nothing is trusted that was kept under them."""
        _GRAVES.append((self._clients, self.attendant, self.topology))  # not collected: that would close what is shared
        self.topology = Topology(self.topology.deployment, self.timeout)
        self.epochs.after_fork()
        self.was_forked = True
        self.pending.after_fork()
        self._begin_process()

    def slot(self, key: bytes) -> int:
        """Where a key is. Computed for a cluster alone: elsewhere nobody looks at it."""
        return key_slot(key) if self.topology.is_cluster else 0

    def script(self, script: Script) -> Script:
        """A script as this deployment needs it."""
        return sharded(script) if self.topology.is_cluster else script

    @property
    def deletes(self) -> bool:
        """Whether a script may delete a value: in a cluster it is elsewhere, and its cell says all that counts."""
        return not self.topology.is_cluster

    def trusted_until(self) -> float:
        """Clock reading up to which local copies may be served."""
        attendant = self.attendant
        if attendant is None or not self.listeners:
            return NEVER
        now = CLOCK.now()  # first: a thread that is stopped between the two clocks trusts for less, not for more
        left = attendant.lease - boottime()
        return now + left if left > 0 else NEVER

    # Connections

    def client(self) -> LoopClient:
        """The connections of the loop that is running.

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
            with self.lock:
                for other in [other for other in self._clients if other.is_closed()]:
                    del self._clients[other]  # closed without ending its tasks
                client = self._clients[loop] = LoopClient(self)
        self._latest = client
        return client

    def forget_client(self, loop: asyncio.AbstractEventLoop) -> None:
        """A loop ends."""
        with self.lock:
            client = self._clients.pop(loop, None)
            if self._latest is client:
                self._latest = None

    def clients(self) -> list[tuple[asyncio.AbstractEventLoop, LoopClient]]:
        """All loops that have connections."""
        with self.lock:
            return list(self._clients.items())

    def failed(self, node: Node, reason: str) -> None:
        """A server has not answered. It is left alone until a heartbeat has got through."""
        if self.is_closed:
            return
        self.counters.failures += 1
        if node.breaker.trip(reason):
            self.log.once(f"{node} cannot be used; tools run without it until it answers", reason)
            if self.attendant is not None:
                self.attendant.release()
                self.attendant.wake()

    def state_of(self, node: Node) -> str:
        """How it stands with a server: ``"ok"``, or why it is not asked."""
        if self.is_closed:
            return "the tier was closed"
        return node.breaker.reason or "it failed" if node.breaker.is_open else "ok"

    def recovered(self, node: Node) -> None:
        """It answers, and is owed nothing."""
        if node.breaker.is_open:
            node.breaker.reset()
            self.log.again(f"{node} cannot be used; tools run without it until it answers")

    def met(self, node: Node, ident: bytes) -> None:
        """A server has said who it is. If that is news, it has lost or forgotten something."""
        with self.lock:
            former, node.ident = node.ident, ident
            if former is None or former == ident:
                return
            node.generation += 1
        self.lost()

    def owe(self, order: Order) -> None:
        """It is not known to have landed."""
        self.pending.add(
            order,
            self.options.lease,
            lambda root, until: self.orders.commit_of_root(root, os.urandom(16).hex(), until),
        )

    async def settle_up(self, node: Node, link: Link, patience: float | None = None) -> None:
        """Deliver what is owed to a server. What it refuses, whatever its state, is asked of the whole root instead.

        Args:
            patience: seconds that what is on its way is left to whoever has sent it. None is twice the timeout.

        Raises:
            Unreachable: if it takes nothing.
        """
        for order in self.pending.overdue(2 * self.timeout if patience is None else patience):
            self.owe(order)
        for order in self.pending.orders():
            if self.topology.of(order.root.slot) is not node or not self.pending.owes(order):
                continue
            try:
                await deliver(order, link)
            except Refused as error:
                self.log.once("an invalidation was refused; all of its root is invalidated instead", error)
                self.pending.replace(order, self.orders.of_whole_root(order))  # by the next heartbeat
            else:
                self.epochs.touch(order.cells)
                self.pending.done(order)

    async def settle_all(self) -> None:
        """Try once to deliver what is owed to any server, within one timeout."""
        await asyncio.gather(*(self._settle_at_last(node) for node in self.topology.nodes))

    async def _settle_at_last(self, node: Node) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                link, _ = await introduced(self, node)
                try:
                    await self.settle_up(node, link, 0.0)
                    await self.settle_up(node, link, 0.0)  # what was refused is another order now
                finally:
                    link.close()
        except Exception as error:  # noqa: BLE001 - closing goes on
            self.log.once("what is owed could not be delivered before closing", str(error) or "no answer in time")

    # News

    def lost(self) -> None:
        """Any number of messages may have been missed: nothing that was kept counts."""
        self.counters.losses += 1
        self.epochs.lose()
        self.tell(None)

    def tell(self, touched: Touched | None) -> None:
        """Tell the listeners."""
        for listener in self.listeners:
            try:
                listener(touched)
            except Exception as error:  # noqa: BLE001 - somebody else's function, in the thread that all depend on
                self.log.once("a listener raised", error)

    def heard(self, cells: Iterable[bytes], touched: Touched) -> None:
        """Somebody else has begun or ended a write."""
        self.counters.invalidations += 1
        self.epochs.touch(cells)
        self.tell(touched)


_GRAVES: list[object] = []


def _addresses(deployment: Deployment) -> list[str]:
    return [f"{host}:{port}" if port else host for host, port in deployment.seeds]
