"""Any tier, with faults: to see what a tool does when its cache fails, hangs or refuses."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Literal

from agent_cache.remote.protocol import Found, Listener, Request, Ticket, Tier, WriteIntent

__all__ = ["FaultyTier", "Order"]

Order = Literal["lookup", "store", "discard", "begin", "renew", "commit", "aclose"]


class FaultyTier:
    """Stands before another tier and does as the test says.

    Faults of one order are used up one by one, first come first served; without one the order goes through.

    Attributes:
        orders: what was asked, in order, by name.

    Example: ``tier.fail("lookup", OSError("gone"))``, ``tier.hang("commit", until=event)``.
    """

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.orders: list[Order] = []
        self._faults: defaultdict[Order, deque[BaseException | asyncio.Event]] = defaultdict(deque)

    def fail(self, order: Order, error: BaseException, *, times: int = 1) -> None:
        """Raise an error instead of obeying, the next few times."""
        self._faults[order].extend([error] * times)

    def hang(self, order: Order, until: asyncio.Event) -> None:
        """Obey only when the event is set, the next time."""
        self._faults[order].append(until)

    async def _obey(self, order: Order) -> None:
        self.orders.append(order)
        faults = self._faults[order]
        if faults:
            fault = faults.popleft()
            if isinstance(fault, BaseException):
                raise fault
            await fault.wait()

    @property
    def lease(self) -> float:
        """The other tier's."""
        return self.tier.lease

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """As `Tier.lookup`, or a fault."""
        await self._obey("lookup")
        return await self.tier.lookup(request)

    async def store(self, ticket: Ticket, value: Any, tags: tuple[str, ...], cost: float, *, age: float) -> None:
        """As `Tier.store`, or a fault."""
        await self._obey("store")
        await self.tier.store(ticket, value, tags, cost, age=age)

    async def discard(self, request: Request) -> bool:
        """As `Tier.discard`, or a fault."""
        await self._obey("discard")
        return await self.tier.discard(request)

    async def begin(self, write: WriteIntent) -> None:
        """As `Tier.begin`, or a fault."""
        await self._obey("begin")
        await self.tier.begin(write)

    async def renew(self, write: WriteIntent) -> None:
        """As `Tier.renew`, or a fault."""
        await self._obey("renew")
        await self.tier.renew(write)

    async def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        """As `Tier.commit`, or a fault."""
        await self._obey("commit")
        await self.tier.commit(write, tags, failed=failed, hold=hold)

    def trusted_until(self) -> float:
        """The other tier's."""
        return self.tier.trusted_until()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """The other tier's."""
        return self.tier.subscribe(listener)

    async def aclose(self) -> None:
        """As `Tier.aclose`, or a fault."""
        await self._obey("aclose")
        await self.tier.aclose()
