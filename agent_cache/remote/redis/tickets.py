"""What a lookup saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_cache._clock import CLOCK
from agent_cache.remote.protocols import Request, Ticket
from agent_cache.remote.redis.names import CellKey, RootNames
from agent_cache.remote.redis.values import Seen, is_held, is_idle, version_of

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["RedisTicket"]


class RedisTicket:
    """The cells of one read before its load.

    Attributes:
        digest: of the entry; None if it has no identity outside of this process: nothing is found, nothing is stored.
        depends_on: cells that an answer will depend on whatever it is, the entry's own among them.
        watches: S and D of the roots under which the result will name entities.
        seen: all of them as they were; empty if the server could not be asked.
        asked: when the lookup began.
        epoch: sequence number of this process at that time.
        is_live: whether messages about all of it arrived then.
    """

    __slots__ = (
        "asked", "core", "depends_on", "digest", "epoch", "is_live", "lasts", "request", "seen", "watches",
    )  # fmt: skip

    def __init__(self, core: Core, request: Request) -> None:
        self.core = core
        self.request = request
        names = core.names
        digest = self.digest = names.digest(request)
        depends_on: dict[CellKey, RootNames] = {}
        if digest is not None:
            home = names.home(request)
            depends_on[home.prefix + b"K" + digest] = home
            core.memo.keep_call(digest, request, home)
        for tag in request.tags:
            depends_on |= names.read_by(tag)
        watches: dict[CellKey, RootNames] = {}
        for late in request.late_roots:
            root = names.root(late)
            watches[root.s] = watches[root.d] = root
        self.depends_on = depends_on
        self.watches = watches
        self.seen: dict[CellKey, Seen] = {}
        self.asked = CLOCK.now()
        self.epoch = core.epochs.now
        self.is_live = False
        self.lasts = core.options.remote_ttl if request.ttl is None else request.ttl

    @property
    def cells(self) -> dict[CellKey, RootNames]:
        """All cells that concern it."""
        return self.depends_on | self.watches if self.watches else self.depends_on

    @property
    def roots(self) -> list[RootNames]:
        """Their roots."""
        return list(dict.fromkeys([*self.depends_on.values(), *self.watches.values()]))

    def is_untouched(self) -> bool:
        """Whether nothing that it saw has been written since, as far as this process knows."""
        epochs = self.core.epochs
        return epochs.is_untouched(self.seen or self.cells, self.epoch)

    def is_clean(self) -> bool:
        """See `Ticket`. Under an armed root a value may be stored on the server, where it dies with its writer's lease;
        a local copy would not. What must be asked for at every hit is never kept here.
        """
        return (
            self.is_live
            and not self.request.strong
            and bool(self.seen)
            and all(map(is_idle, self.seen.values()))
            and self.is_untouched()
        )

    def is_joinable(self) -> bool:
        """See `Ticket`."""
        if self.request.strong or not self.is_untouched() or any(map(is_held, self.seen.values())):
            return False
        now = CLOCK.now()
        return now < self.asked + self.core.max_staleness or now < self.core.trusted_until()

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
