"""A tier in memory whose lease a test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_cache.testing import FaultyTier, MemoryServer, MemoryTier


class Term:
    """The reading of a clock up to which copies may be served."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.until = clock, float("-inf")


class Renewable:
    """A lease, as hits read it, that counts how often it is asked, and takes the page as it is if it may."""

    def __init__(self, page: Any) -> None:
        self.page, self.stamp = page, 1
        self.term: Term | None = None
        self.may_renew = False
        self.asked = 0

    def is_valid(self) -> bool:
        """Whether the copies may be served now."""
        is_running = self.term is None or self.term.clock() < self.term.until
        return (self.page[0] == self.stamp and is_running) or self.renew()

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
        memory.trust = self.own = self.trust = Renewable(self.page)

    def with_term(self, clock: Callable[[], float]) -> Term:
        """Let the lease end with a term of this clock."""
        self.own.term = Term(clock)
        return self.own.term

    @property
    def lookups(self) -> int:
        """How often it was asked."""
        return self.orders.count("lookup")
