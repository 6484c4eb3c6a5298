"""Invalidations that have not landed yet.

While one is pending, this process neither reads nor writes what is under it: it would find there what it has itself
overwritten. It is retried under its writer's id until it lands; a process that dies takes its pending ones along, and
others serve what they have up to its ttl.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agent_cache.remote.redis.links import Link, into
from agent_cache.remote.redis.names import CellKey, Names, RootNames
from agent_cache.remote.redis.scripts import Script
from agent_cache.remote.redis.wire import ReplyError, Unreachable, pack

__all__ = ["Order", "Pending", "deliver"]

_MAX = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """One command of a writer to one root.

    Attributes:
        cells: what it moves, or arms: what must not be read while it is pending.
        announces: it begins a write that has not ended, as far as it knows.
    """

    writer: str
    root: RootNames
    script: Script
    keys: list[bytes]
    arguments: list[bytes]
    cells: frozenset[CellKey] = field(default_factory=frozenset)
    announces: bool = False


OrderOfRoot = Callable[[RootNames, str, frozenset[CellKey]], Order]
"""Root, writer, cells: a command that moves all of the root."""


class Pending:
    """By root and writer; the latest command of a writer replaces its earlier one."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._orders: dict[tuple[str, str], Order] = {}
        self._cells: dict[CellKey, int] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def after_fork(self) -> None:
        """In the child, which owes the same: both may deliver it."""
        self._lock = threading.Lock()

    def blocks(self, cells: Iterable[CellKey]) -> bool:
        """Whether any of these cells is owed a move."""
        return bool(self._orders) and not self._cells.keys().isdisjoint(cells)

    def add(self, order: Order, commit_root: OrderOfRoot) -> None:
        """Owe a command.

        Args:
            commit_root: makes one that moves a whole root: too many paths are taken together so.
        """
        with self._lock:
            self._orders[order.root.root, order.writer] = order
            if len(self._orders) > _MAX:
                roots = {one.root.root: one.root for one in self._orders.values()}  # by name: objects are made anew
                self._orders = {
                    (root.root, made.writer): made
                    for root in roots.values()
                    for made in [commit_root(root, os.urandom(16).hex(), self._owed_under(root))]
                }
            self._count()

    def done(self, order: Order) -> None:
        """It has landed, if it is still what its writer owes."""
        with self._lock:
            if self._orders.get((order.root.root, order.writer)) is order:
                del self._orders[order.root.root, order.writer]
                self._count()

    def settle(self, root: RootNames, writer: str) -> None:
        """A later command of this writer has landed, which makes up for what it owed."""
        if self._orders:
            with self._lock:
                if self._orders.pop((root.root, writer), None) is not None:
                    self._count()

    def announced(self, order: Order) -> None:
        """A write has been announced after all: its begin is owed no more. Its commit would be."""
        if self._orders:
            with self._lock:
                owed = self._orders.get((order.root.root, order.writer))
                if owed is not None and owed.announces:
                    del self._orders[order.root.root, order.writer]
                    self._count()

    def owes(self, order: Order) -> bool:
        """Whether this is still what its writer owes: a begin that lands after its commit costs a lease."""
        return self._orders.get((order.root.root, order.writer)) is order

    def orders(self) -> list[Order]:
        """All that is owed."""
        with self._lock:
            return list(self._orders.values())

    def _owed_under(self, root: RootNames) -> frozenset[CellKey]:
        return frozenset().union(*(one.cells for one in self._orders.values() if one.root.root == root.root))

    def _count(self) -> None:
        self._cells = {cell: 1 for order in self._orders.values() for cell in order.cells}


async def deliver(order: Order, link: Link) -> None:
    """Have a command carried out.

    Raises:
        Unreachable: if it is not known to have been.
    """
    tail = (b"%d" % len(order.keys), *order.keys, *order.arguments)
    loop = asyncio.get_running_loop()
    for command in ((b"EVALSHA", order.script.digest, *tail), (b"EVAL", order.script.source, *tail)):
        future: asyncio.Future[list[object]] = loop.create_future()
        link.send(pack(*command), 1, into(future), loop.time())
        (reply,) = await future
        if not isinstance(reply, ReplyError):
            return
        if reply.code != "NOSCRIPT":
            raise Unreachable(str(reply))
    raise Unreachable("the script is not known, although it was sent")
