"""Leases: whether local copies of the values of a tier may be served without asking it.

A copy is served only while its tier knows of every write that could have changed it. A hit must not pay for that with a
call, so a `Lease` gives its answer as data, which the generated body of a tool compares inline (`engine.body`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["CombinedLease", "Lease", "Term"]


class Term:
    """The reading of a clock up to which copies may be served. It moves on while they may."""

    __slots__ = ("clock", "until")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.until = clock, float("-inf")

    def is_running(self) -> bool:
        """Whether the copies may be served now."""
        return self.clock() < self.until


class Lease:
    """The trust in all local copies of one tier.

    They may be served while ``page[0] == stamp`` and, if there is a `term`, while ``term.clock() < term.until``. A hit
    compares these itself, and calls `renew` if one of them fails.

    Args:
        owner: has ``is_complete()``. Referenced weakly: copies outlive a tier that nobody uses any more.
        page: a list, or a memory view of format ``Q`` on memory that processes share.
    """

    __slots__ = ("__weakref__", "_owner", "page", "stamp", "term")

    def __init__(self, owner: Any, page: Sequence[int] = (0,), stamp: int = -1, term: Term | None = None) -> None:
        self._owner = weakref.ref(owner)
        self.page, self.stamp, self.term = page, stamp, term

    def is_valid(self) -> bool:
        """Whether the copies may be served now."""
        term = self.term
        return (self.page[0] == self.stamp and (term is None or term.clock() < term.until)) or self.renew()

    def renew(self) -> bool:
        """Whether the copies may be served although the comparisons say no. Called in hits, in any thread, also
        under the lock of the versions: it neither waits nor raises.
        """
        owner = self._owner()
        return owner is not None and bool(owner.is_complete())


class CombinedLease(Lease):
    """The lease in copies that depend on several tiers: each hit asks all of them, by a call."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Lease]) -> None:
        self.page, self.stamp, self.term = (0,), -1, None
        self.parts = tuple(parts)

    def renew(self) -> bool:
        return all([part.is_valid() for part in self.parts])  # noqa: C419 - a generator takes twice as long

    @classmethod
    def of(cls, leases: Iterable[Lease]) -> Lease | None:
        """One lease for all of these; None without any."""
        parts = tuple(leases)
        return cls(parts) if len(parts) > 1 else parts[0] if parts else None
