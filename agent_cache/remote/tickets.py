"""Tickets: what a lookup in a `versioned.VersionedTier` has seen, for the store after it and for local copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_cache.clock import CLOCK, boottime
from agent_cache.remote.backend import HELD, IDLE, State
from agent_cache.remote.cells import Cell
from agent_cache.remote.protocol import Request, Ticket, Versions

__all__ = ["VersionedTicket"]


class VersionedTicket:
    """The cells that a lookup saw.

    Attributes:
        seen: these cells, or those of the value that was found; empty if the store could not be asked.
        known: the tags and roots known so far: for messages.
        asked, started: when the lookup began; `started` by a clock that runs while the machine is suspended.
        ahead: seconds that the clock of the backend is ahead of this process's, at the least.
        since: the version of the feed before it.
        former_cost: seconds that the load of a value took that is there, and counts no more.
        claim: name and claimant of the claim to the load, if this process has it.
    """

    __slots__ = (
        "ahead", "asked", "claim", "former_cost", "known", "lease", "may_refresh", "place", "request", "seen", "since",
        "started", "tier", "versions",
    )  # fmt: skip

    def __init__(self, tier: Any, request: Request) -> None:
        self.tier = tier
        self.request = request
        self.place = place = tier.cells.place_of(request)
        self.seen: Mapping[Cell, State] = {}
        self.known: tuple[str, ...] = request.tags + request.late_roots
        if place.address is not None:
            self.known += (place.address,)
        self.lease = tier.trust
        self.asked = CLOCK.now()
        self.started = boottime()
        self.ahead = 0.0
        self.since = tier.feed.versions.now
        self.versions: Versions | None = None
        self.former_cost: float | None = None
        self.claim: tuple[str, str] | None = None
        self.may_refresh = True

    @property
    def refreshes_early(self) -> bool:
        """Whether values of this tier are loaded again before they end."""
        return bool(self.tier.reloads_early)

    @property
    def has_claim(self) -> bool:
        """Whether this process leads the load."""
        return self.claim is not None

    @property
    def lasts(self) -> float | None:
        own, most = self.request.ttl, self.tier.remote_ttl
        if self.tier.copies_outlive_values:
            return own
        return most if own is None or (most is not None and most < own) else own

    def is_clean(self) -> bool:
        """See `Ticket`. Under an armed root a value may be stored in the tier, where it ends with its writer's lease. A
        local copy would not.
        """
        if not self.seen or self.request.strong or not self.is_idle() or not self.tier.trust.is_valid():
            return False
        return not self.tier.feed.is_touched(self.known, self.since)

    def is_joinable(self) -> bool:
        if self.request.strong or self.is_held() or self.tier.feed.is_touched(self.known, self.since):
            return False
        bound: float = self.tier.max_staleness
        is_young = CLOCK.now() < self.asked + bound and boottime() < self.started + bound
        return is_young or bool(self.seen and self.tier.trust.is_valid())

    def is_idle(self) -> bool:
        """Whether nothing was being written."""
        return all([mode == IDLE for _, mode in self.seen.values()])  # noqa: C419 - a generator takes twice as long

    def is_held(self) -> bool:
        """Whether a write was running on something."""
        return any([mode == HELD for _, mode in self.seen.values()])  # noqa: C419 - likewise

    def agrees_with(self, other: Ticket) -> bool:
        return bool(self.seen) and self.is_idle() and self.seen == getattr(other, "seen", None)
