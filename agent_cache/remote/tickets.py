"""Tickets: what a lookup in a tier has seen, for the store after it and for local copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_cache.clock import CLOCK, boottime
from agent_cache.remote.backend import HELD, IDLE, State
from agent_cache.remote.cells import Cell
from agent_cache.remote.protocol import Request, Versions

__all__ = ["Ticket"]


class Ticket:
    """The cells that a lookup saw. Without any, the store could not be asked, and nothing is stored.

    Attributes:
        seen: these cells, or those of the value that was found.
        known: the tags and roots known so far: for messages.
        versions: of everything that the value depends on that was found or stored, for reads that depend on it. None if
            one is not known, or a write was running on one: nothing that depends on the value is stored then.
        asked, started: when the lookup began; `started` by a clock that runs while the machine is suspended.
        ahead: seconds that the clock of the backend is ahead of this process's, at the least.
        since: the version of the feed before it.
        claim: name and claimant of the claim to the load, if this process has it.
    """

    __slots__ = (
        "ahead", "asked", "claim", "known", "may_refresh", "place", "request", "seen", "since", "started", "tier",
        "versions",
    )  # fmt: skip

    def __init__(self, tier: Any, request: Request) -> None:
        self.tier = tier
        self.request = request
        self.place = place = tier.cells.place_of(request)
        self.seen: Mapping[Cell, State] = {}
        self.known: tuple[str, ...] = request.tags + request.late_roots
        if place.address is not None:
            self.known += (place.address,)
        self.asked = CLOCK.now()
        self.started = boottime()
        self.ahead = 0.0
        self.since = tier.feed.versions.now
        self.versions: Versions | None = None
        self.claim: tuple[str, str] | None = None
        self.may_refresh = True

    @property
    def lasts(self) -> float | None:
        """Seconds that a local copy may live; None for ever."""
        own, most = self.request.ttl, self.tier.remote_ttl
        if self.tier.copies_outlive_values:
            return own
        return most if own is None or (most is not None and most < own) else own

    def is_clean(self) -> bool:
        """Whether a local copy may be stored: no dependency was being written at the lookup, or has been since.

        Under an armed root a value may be stored in the tier, where it ends with its writer's lease. A copy would not.
        """
        if not self.seen or self.request.strong or not self.is_idle() or not self.tier.trust.is_valid():
            return False
        return not self.tier.feed.is_touched(self.known, self.since)

    def is_joinable(self) -> bool:
        """Whether a reader that starts now may share the load that this ticket was taken for."""
        if self.request.strong or self.is_held() or self.tier.feed.is_touched(self.known, self.since):
            return False
        bound: float = self.tier.max_staleness
        is_young = CLOCK.now() < self.asked + bound and boottime() < self.started + bound
        return is_young or bool(self.seen and self.tier.trust.is_valid())

    def agrees_with(self, other: Ticket) -> bool:
        """Whether both saw the same versions and no running write: readers with strong consistency share loads then."""
        return bool(self.seen) and self.is_idle() and self.seen == other.seen

    def is_idle(self) -> bool:
        """Whether nothing was being written."""
        return all([mode == IDLE for _, mode in self.seen.values()])  # noqa: C419 - a generator takes twice as long

    def is_held(self) -> bool:
        """Whether a write was running on something."""
        return any([mode == HELD for _, mode in self.seen.values()])  # noqa: C419 - likewise

    def give_up(self) -> None:
        """End the claim to the load, if there is one: it has ended, and was stored or will not be. It does not wait."""
        claim, self.claim = self.claim, None
        if claim is not None:
            self.tier.give_up(*claim)
