"""What a lookup saw."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_cache.clock import CLOCK
from agent_cache.remote.protocol import Request, Ticket
from agent_cache.remote.redis.keyspace import CellKey
from agent_cache.remote.redis.leases import boottime
from agent_cache.remote.redis.values import Seen, is_held, is_idle, version_of

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["RedisTicket"]


class RedisTicket:
    """The cells of one read before its load.

    Attributes:
        place: where the entry is, and what it depends on.
        asked: reading of `boottime` when the lookup began.
        epoch: sequence number of this process at that time.
        is_live: whether messages about all of it arrived then.
        since: the same as `asked`, by the clock of the event loop: what the timeout counts from.
        waited: seconds of the timeout that the lookup has used up.
    """

    __slots__ = (
        "_idle", "_seen", "asked", "core", "epoch", "is_live", "lasts", "place", "request", "since",
        "waited",
    )  # fmt: skip

    def __init__(self, core: Core, request: Request) -> None:
        self.core = core
        self.request = request
        self.place = core.places.of(request)
        self._seen: dict[CellKey, Seen] = {}
        self._idle: tuple[list[bytes], bytes] | None = None
        self.asked = boottime()
        self.epoch = core.epochs.now
        self.is_live = False
        self.since = 0.0
        self.waited = 0.0
        self.lasts = core.options.remote_ttl if request.ttl is None else request.ttl

    @property
    def seen(self) -> dict[CellKey, Seen]:
        """The cells as they were; empty if the server could not be asked."""
        if self._idle is not None:
            cells, ident = self._idle
            return {key: (cell, ident) for key, cell in zip(self.place.cells, cells, strict=True)}
        return self._seen

    @seen.setter
    def seen(self, seen: dict[CellKey, Seen]) -> None:
        self._seen, self._idle = seen, None

    def saw_idle(self, cells: list[bytes], ident: bytes) -> None:
        """All cells of its place, in their order, and no write at work on any: few hits need more than to know that."""
        self._idle = cells, ident

    def is_young(self) -> bool:
        """Whether the lookup began within the bound of staleness. Its timeout is less, but a loop may be blocked."""
        return boottime() < self.asked + self.core.max_staleness

    def rest(self) -> None:
        """The lookup is over, and its tool runs. A store has what is left of the timeout."""
        if self.since:
            self.waited = asyncio.get_running_loop().time() - self.since

    def resume(self) -> float:
        """Since when the store counts its timeout."""
        return asyncio.get_running_loop().time() - self.waited

    def is_untouched(self) -> bool:
        """Whether nothing that it saw has been written since, as far as this process knows."""
        return self.core.epochs.is_untouched(self._seen or self.place.cells, self.epoch)

    def is_clean(self) -> bool:
        """See `Ticket`. Under an armed root a value may be stored on the server, where it dies with its writer's lease;
        a local copy would not. What must be asked for at every hit is never kept here.
        """
        return (
            self.is_live
            and not self.request.strong
            and (self._idle is not None or (bool(self._seen) and all(map(is_idle, self._seen.values()))))
            and (self.epoch == self.core.epochs.now or self.is_untouched())
        )

    def is_joinable(self) -> bool:
        """See `Ticket`."""
        if self.request.strong or not self.is_untouched() or any(map(is_held, self.seen.values())):
            return False
        return self.is_young() or CLOCK.now() < self.core.trusted_until()

    def agrees_with(self, other: Ticket) -> bool:
        """Whether another lookup saw the same versions with no write at work on them: then none has ended in between.
        One that had armed a cell may have died after its effect, and left it as it was.
        """
        return (
            isinstance(other, RedisTicket)
            and bool(self.seen)
            and all(map(is_idle, self.seen.values()))
            and _versions(self) == _versions(other)
        )


def _versions(ticket: RedisTicket) -> Mapping[CellKey, bytes]:
    return {key: version_of(cell) for key, cell in ticket.seen.items()}
