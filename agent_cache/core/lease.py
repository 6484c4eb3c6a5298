"""Leases: until when local copies of the values of tiers may be served.

A copy is served only while its tier knows of every write that could have changed it. Each hit has to ask that, and must
not pay for it with a call. So a `Lease` gives its answer as data, which the generated body of a tool reads inline
(`engine.body`): a word to compare, and maybe a `Term`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

__all__ = ["ENDED", "UNTRUSTED", "CombinedLease", "Lease", "Page", "Term"]

ENDED: Final = -1
"""A stamp that no page holds."""

_NEVER: Final = float("-inf")
_AFTER_EVERY_TERM: Final[Callable[[], float]] = float("inf").__pos__  # in C


class Page(Protocol):
    """What a lease reads at each hit: a list of a number, or a memory view of format ``Q`` on memory that processes
    share. A number that has meant that copies are not valid does not come back to mean that they are.
    """

    def __getitem__(self, index: int, /) -> int: ...


class Term:
    """A reading of a clock, which moves on while copies may be served. All leases of one connection share it.

    Attributes:
        clock: gives the present reading. It also runs while the machine is suspended, if the tier learns of writes by
            messages: these are missed then.
        until: the reading at which the copies are no longer served, unless it has moved on by then.
    """

    __slots__ = ("clock", "until")

    def __init__(self, clock: Callable[[], float], until: float = _NEVER) -> None:
        self.clock = clock
        self.until = until

    @property
    def is_over(self) -> bool:
        """Whether it was ended. It does not come back then."""
        return self.clock is _AFTER_EVERY_TERM

    def is_running(self) -> bool:
        """Whether the copies may be served now."""
        return self.clock() < self.until

    def end(self) -> None:
        """End it for good, from any thread. Another thread may be moving `until` at this moment, hence the clock."""
        self.clock = _AFTER_EVERY_TERM
        self.until = _NEVER


class Lease:
    """The trust in local copies of a tier's values.

    They may be served while ``page[0] == stamp`` and, if there is a `term`, while ``term.clock() < term.until``. A hit
    makes these two comparisons itself, and calls `renew` if one of them fails. Without arguments, it lets no copy be
    served.
    """

    __slots__ = ("__weakref__", "page", "stamp", "term")

    def __init__(self, page: Page = (0,), stamp: int = ENDED, term: Term | None = None) -> None:
        self.page = page
        self.stamp = stamp
        self.term = term

    def is_valid(self) -> bool:
        """Whether the copies may be served now."""
        term = self.term
        return (self.page[0] == self.stamp and (term is None or term.clock() < term.until)) or self.renew()

    def renew(self) -> bool:
        """Whether the copies may be served although the comparisons say no, or cannot say it. If so, and if it can, it
        sets `stamp` to what the page held *before* this was found out, so that the next hits need not ask.

        Called in a hit, in any thread, and under a lock: it neither waits nor raises, and takes no lock that is held
        while a listener is called.
        """
        return False


UNTRUSTED: Final = Lease()
"""The lease in copies of a tier that cannot be listened to."""


class CombinedLease(Lease):
    """The lease in copies that depend on several: each hit asks all of them, by a call."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Lease]) -> None:
        super().__init__()
        self.parts = tuple(parts)

    def renew(self) -> bool:
        return all([part.is_valid() for part in self.parts])  # noqa: C419 - a generator takes twice as long

    @classmethod
    def of(cls, leases: Iterable[Lease]) -> Lease | None:
        """One lease for all of these; None without any."""
        parts = tuple(leases)
        return cls(parts) if len(parts) > 1 else parts[0] if parts else None
