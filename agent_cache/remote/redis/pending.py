"""Invalidations that have not landed yet.

While one is pending, this process neither reads nor writes what is under it: it would find there what it has itself
overwritten. It is retried under its writer's id until it lands; a process that dies takes its pending ones along, and
others serve what they have up to its ttl.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from agent_cache.remote.redis.keyspace import CellKey, Names, RootNames
from agent_cache.remote.redis.leases import NEVER, boottime
from agent_cache.remote.redis.scripts import Script
from agent_cache.remote.redis.transport import Link, into
from agent_cache.remote.redis.wire import Refused, ReplyError, Unreachable, pack

__all__ = ["Order", "Pending", "deliver"]

_MAX = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """One command of a writer to one root.

    Attributes:
        cells: what it moves, or arms: what must not be read while it is pending.
        announces: it begins a write that has not ended, as far as it knows.
        until: reading of `boottime` to which it holds what it moves. None if what it holds counts from when it lands.
    """

    writer: str
    root: RootNames
    script: Script
    keys: list[bytes]
    arguments: list[bytes]
    cells: frozenset[CellKey] = field(default_factory=frozenset)
    announces: bool = False
    until: float | None = None

    def told(self) -> list[bytes]:
        """Its arguments as they are to be sent now. Tokens are made anew each time: others may have had those of an
        earlier attempt that has landed, and a token that came back would make what was stored under it count again.
        """
        arguments = self.arguments.copy()
        arguments[2] = os.urandom(12).hex().encode()
        if self.until is not None:
            arguments[4] = b"%d" % int(max(0.0, self.until - boottime()) * 1000)
        return arguments


OrderOfRoot = Callable[[RootNames, float], Order]
"""Root, reading of `boottime`: a command that moves all of the root and holds it until then."""


class Pending:
    """By root and writer; the latest command of a writer replaces its earlier one. What is on its way counts too.

    A garbage collection may come back in here from inside of itself. So what is looked through is a copy, and each
    change is one step of the interpreter.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._lock = threading.RLock()
        self._orders: dict[tuple[str, str], Order] = {}
        self._on_its_way: dict[Order, float] = {}
        self._version = object()
        self._owed: tuple[object, frozenset[CellKey]] = self._version, frozenset()

    def __len__(self) -> int:
        return len(self._orders) + len(self._on_its_way)

    @property
    def owed(self) -> int:
        """How many are owed; what is on its way has not failed yet."""
        return len(self._orders)

    def after_fork(self) -> None:
        """In the child, which owes the same: both may deliver it. What is on its way is so in the parent."""
        self._lock = threading.RLock()
        self._on_its_way = {}

    def blocks(self, cells: Collection[CellKey]) -> bool:
        """Whether any of these cells is owed a move."""
        if self._orders:
            version = self._version
            known, owed = self._owed
            if known is not version:
                owed = frozenset().union(*(order.cells for order in self.orders()))
                self._owed = version, owed
            if not owed.isdisjoint(cells):
                return True
        return bool(self._on_its_way) and any(not order.cells.isdisjoint(cells) for order in self._on_its_way.copy())

    def send(self, order: Order) -> None:
        """It is about to be told to the server. Whoever does that says how it went, or is never heard of again."""
        self._on_its_way[order] = boottime()

    def landed(self, order: Order) -> None:
        """It is not on its way any more."""
        self._on_its_way.pop(order, None)

    def add(self, order: Order, lease: float, commit_root: OrderOfRoot) -> None:
        """Owe a command.

        Args:
            lease: seconds that one which announces a write would hold what it names.
            commit_root: makes one that moves a whole root: too many paths are taken together so.
        """
        with self._lock:
            self._orders[order.root.root, order.writer] = order
            self._version = object()
            self.landed(order)
            if len(self._orders) > _MAX:
                until: dict[RootNames, float] = {}
                owed = self._orders.copy()
                for one in owed.values():
                    end = boottime() + lease if one.announces else one.until or NEVER
                    until[one.root] = max(end, until.get(one.root, NEVER))
                made = [commit_root(root, end) for root, end in until.items()]
                self._orders.update({(one.root.root, one.writer): one for one in made})
                for key, one in owed.items():
                    if self._orders.get(key) is one:
                        self._orders.pop(key, None)
                self._version = object()

    def replace(self, order: Order, by: Order) -> None:
        """Owe another command instead, if this is still owed."""
        with self._lock:
            if self.owes(order):
                self._orders[by.root.root, by.writer] = by
                self._version = object()
                self.landed(order)

    def done(self, order: Order) -> None:
        """It has landed, if it is still what its writer owes."""
        with self._lock:
            self.landed(order)
            if self._orders.get((order.root.root, order.writer)) is order:
                self._forget(order.root, order.writer)

    def settle(self, root: RootNames, writer: str) -> None:
        """A later command of this writer has landed, which makes up for what it owed."""
        if self._orders:
            with self._lock:
                self._forget(root, writer)

    def announced(self, order: Order) -> None:
        """A write has been announced after all: its begin is owed no more. Its commit would be."""
        if self._orders:
            with self._lock:
                owed = self._orders.get((order.root.root, order.writer))
                if owed is not None and owed.announces:
                    self._forget(order.root, order.writer)

    def owes(self, order: Order) -> bool:
        """Whether this is still what its writer owes: a begin that lands after its commit costs a lease."""
        return order in self._on_its_way or self._orders.get((order.root.root, order.writer)) is order

    def orders(self) -> list[Order]:
        """All that is owed."""
        return [*self._orders.copy().values()]

    def overdue(self, patience: float) -> list[Order]:
        """What has been on its way for longer than so many seconds: its loop may be over."""
        late = boottime() - patience
        return [order for order, since in self._on_its_way.copy().items() if since <= late]

    def _forget(self, root: RootNames, writer: str) -> None:
        self._orders.pop((root.root, writer), None)
        self._version = object()


async def deliver(order: Order, link: Link) -> None:
    """Have a command carried out.

    Raises:
        Refused: if the server is there, and this is what it does not take.
        Unreachable: if it is not known to have been.
    """
    tail = (b"%d" % len(order.keys), *order.keys, *order.told())
    loop = asyncio.get_running_loop()
    for command in ((b"EVALSHA", order.script.digest, *tail), (b"EVAL", order.script.source, *tail)):
        future: asyncio.Future[list[object]] = loop.create_future()
        link.send((pack(*command), 1, into(future), loop.time()))
        (reply,) = await future
        if not isinstance(reply, ReplyError):
            return
        if reply.is_of_command:
            raise Refused(str(reply))
        if reply.code != "NOSCRIPT":
            raise Unreachable(str(reply))
    raise Unreachable("the script is not known, although it was sent")
