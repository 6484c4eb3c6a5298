"""A tier in memory whose lease a test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_cache.core.lease import Lease, Term
from agent_cache.testing import FaultyTier, MemoryServer, MemoryTier


class Renewable(Lease):
    """A lease that counts how often it is asked, and takes the page as it is if it may."""

    def __init__(self, owner: Any, page: Any) -> None:
        super().__init__(owner, page, 1)
        self.may_renew = False
        self.asked = 0

    def renew(self) -> bool:
        self.asked += 1
        if self.may_renew:
            self.stamp = self.page[0]
        return self.may_renew


class LeasingTier(FaultyTier):
    """A tier whose copies are served while this lease is valid.

    Attributes:
        page: what the lease reads.
        own: the lease.
    """

    def __init__(self, page: Any = None) -> None:
        memory = MemoryTier(MemoryServer())
        super().__init__(memory)
        self.page = [1] if page is None else page
        memory.trust = self.own = self.trust = Renewable(self, self.page)

    def with_term(self, clock: Callable[[], float]) -> Term:
        """Let the lease end with a term of this clock."""
        self.own.term = Term(clock)
        return self.own.term

    @property
    def lookups(self) -> int:
        """How often it was asked."""
        return self.orders.count("lookup")
