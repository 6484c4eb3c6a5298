"""A tier in memory whose tickets have leases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_cache.core.lease import Lease
from agent_cache.remote import Found, Request
from agent_cache.remote.protocol import Ticket
from agent_cache.testing import FaultyTier, MemoryServer, MemoryTier


class Renewable(Lease):
    """A lease that counts how often it is asked, and takes the page as it is if it may."""

    def __init__(self, page: Any, stamp: int, term: Any = None) -> None:
        super().__init__(page, stamp, term)
        self.may_renew = False
        self.asked = 0

    def renew(self) -> bool:
        self.asked += 1
        if self.may_renew:
            self.stamp = self.page[0]
        return self.may_renew


class LeasedTicket:
    """A ticket of a tier in memory, and a lease."""

    def __init__(self, ticket: Ticket, lease: Lease) -> None:
        self.ticket = ticket
        self.lease = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ticket, name)

    def agrees_with(self, other: Any) -> bool:
        return self.ticket.agrees_with(other.ticket)


class LeasingTier(FaultyTier):
    """All of its tickets have one lease. The tier itself is trusted for nothing.

    Attributes:
        page: what the lease reads.
        own: the lease.
        merged: what `merge_leases` was given.
    """

    def __init__(self, page: Any = None) -> None:
        super().__init__(MemoryTier(MemoryServer()))
        self.page = [1] if page is None else page
        self.own = Renewable(self.page, 1)
        self.merged: list[list[Lease]] = []

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        found, ticket = await super().lookup(request)
        return found, LeasedTicket(ticket, self.own)

    async def store(self, ticket: Any, *arguments: Any, **options: Any) -> None:
        await super().store(ticket.ticket, *arguments, **options)

    def trusted_until(self) -> float:
        return float("-inf")

    def merge_leases(self, leases: Iterable[Lease]) -> list[Lease]:
        self.merged.append(list(leases))
        return self.merged[-1]

    @property
    def lookups(self) -> int:
        """How often it was asked."""
        return self.orders.count("lookup")
