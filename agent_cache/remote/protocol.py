"""The `Tier` protocol: a cache behind the local one, in this process or shared by a fleet.

A tier must keep one promise: what `lookup` finds was loaded after the last write that `commit` has acknowledged for
any of its tags, and a value stored under a `Ticket` counts only if no `begin` and no `commit` came between the
lookup that gave the ticket and the `store`. How it does that (versions, tokens, locks) is its own business.
`TierContract` in the checkout (`tests/contract`) tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["Found", "Listener", "Request", "Ticket", "Tier", "Touched", "WriteIntent"]


@dataclass(frozen=True, slots=True)
class Touched:
    """What another process has begun or ended writing.

    Attributes:
        tags: as in `WriteIntent`. A tier that knows an entity by a digest alone, and has met no tag for it here,
            names any tag below the root: what depends on the whole root goes, and nothing else can depend on it.
        keys: single entries: (identity of the tool, key).
    """

    tags: tuple[str, ...] = ()
    keys: tuple[tuple[str, Hashable], ...] = ()


Listener = Callable[[Touched | None], None]
"""Told of writes elsewhere; None means that any number of them may have been missed. Called in any thread."""


@dataclass(frozen=True, slots=True)
class Request:
    """One read, as a tier sees it.

    Attributes:
        tool: identity of the tool, ``module:qualname`` or its `name=`.
        key: the canonical key of the call, ambient identity (tenant, `vary`) included. Hashable; opaque to a tier that
            stays in this process.
        arguments: names and values that the key was made of, for a tier that needs a digest of its own: a key names
            classes by serial numbers of this process. `key=` and `vary=` stand in it by what they returned. A value
            that the tier cannot write down has no identity outside: nothing is found and nothing is stored.
        tags: what the answer depends on, as far as that is known before the load.
        late_roots: roots under which it will depend on what the result says.
        ttl: seconds the answer may live, counted from the start of its load; None for ever.
        session: id of the session that owns the entry, None for the global scope.
        tenant: whose entry it is, None without tenants.
        returns: return annotation of the tool, for codecs.
        roots: every root that an answer may depend on; empty stands for those of `tags` and `late_roots`.
        grace: seconds beyond its ttl that an answer may be served while it is loaded anew.
        strong: an answer counts only if its versions are asked for now: it is never kept locally.
    """

    tool: str
    key: Hashable
    arguments: tuple[tuple[str, Any], ...]
    tags: tuple[str, ...]
    late_roots: tuple[str, ...]
    ttl: float | None
    session: str | None
    tenant: Hashable | None
    returns: Any
    roots: tuple[str, ...] = ()
    grace: float = 0.0
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A value that a tier holds and vouches for.

    Attributes:
        value: the decoded answer; the caller owns it.
        tags: everything it depends on, tags from its result included.
        age: seconds since its load started.
        cost: seconds its load took.
        ttl: seconds it may still live; None for ever. None or less are left only of what is within its grace.
        is_to_refresh: it is, and this process is the one that is to load it anew.
    """

    value: Any
    tags: tuple[str, ...]
    age: float = 0.0
    cost: float = 0.0
    ttl: float | None = None
    is_to_refresh: bool = False


class Ticket(Protocol):
    """What a lookup leaves behind: the versions it saw, opaque to everybody but its tier."""

    @property
    def lasts(self) -> float | None:
        """Seconds that a copy may live which was loaded under this ticket; None for ever.

        A tier that may miss a write for good bounds by it for how long that matters.
        """
        ...

    def is_clean(self) -> bool:
        """Whether the local store may keep the value.

        Nothing it depends on was being written at the lookup or, as far as this process knows, has been touched since.
        Asked under a lock: it neither waits nor takes a lock that is held while a listener is called.
        """
        ...

    def is_joinable(self) -> bool:
        """Whether a reader that starts now may share the load that this ticket was taken for.

        Nothing was held at the lookup or touched since, and the lookup is younger than the tier's bound of staleness or
        local copies are trusted now. Asked under a lock, likewise.
        """
        ...

    def agrees_with(self, other: Ticket) -> bool:
        """Whether a reader that has just taken this ticket may share the load that the other one was taken for.

        Both saw the same versions and no write at work, so that none has ended in between. It is how readers share
        that ask for the versions each time; `is_joinable` is False to them.
        """
        ...


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """One write, as a tier sees it.

    Attributes:
        id: unique; makes `begin` and `commit` idempotent.
        tags: what the write touches, as far as that is known before it runs: held from `begin` to `commit`.
        late_roots: roots under which its result will say what it has touched: armed from `begin` to `commit`.
        keys: single entries that it touches instead: (identity of the tool, key).
        entries: the same as requests, for a tier that calls entries by digests of its own. Those that only another tier
            has told of are not among them.
        on_unreachable: what `begin` does if the write cannot be announced: ``"run"`` returns and makes up for it,
            ``"refuse"`` raises `RemoteTierError`.
    """

    id: str
    tags: tuple[str, ...]
    late_roots: tuple[str, ...] = ()
    keys: tuple[tuple[str, Hashable], ...] = ()
    entries: tuple[Request, ...] = ()
    on_unreachable: Literal["run", "refuse"] = "run"


@runtime_checkable
class Tier(Protocol):
    """A cache behind the local one. All methods may be called from several event loops and threads.

    A tier is hashable and can be referred to weakly: it is gone when nobody has it any more.

    None of them may fail because a server does: they degrade, count it and log it once. `begin` alone may raise
    `RemoteTierError`, for a tool that asked to be stopped when its write cannot be announced.
    """

    @property
    def lease(self) -> float:
        """Seconds that a `begin` lasts without `renew`."""
        ...

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """Find an answer that is current, and take a ticket for storing one if there is none.

        Readers join a lookup that is under way, so it gives up, by a timeout of its own, within the bound of staleness.
        """
        ...

    async def store(self, ticket: Ticket, value: Any, tags: tuple[str, ...], cost: float, *, age: float) -> None:
        """Keep a value that was loaded after `ticket` was taken, unless something it depends on has been touched since.

        Args:
            tags: everything the value depends on, tags from its result included.
            cost: seconds its load took.
            age: seconds since its load started. Its ttl counts from there, also if the value comes from a farther tier.
        """
        ...

    async def discard(self, request: Request) -> bool:
        """Forget one answer; whether there was one."""
        ...

    async def begin(self, write: WriteIntent) -> None:
        """Announce a write before its side effect: from now on nothing it touches is stored."""
        ...

    async def renew(self, write: WriteIntent) -> None:
        """Extend the lease of a write that is still running."""
        ...

    async def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> None:
        """End a write: everything it touched is gone when this returns, or is as soon as the tier can be reached.

        Called in the very step in which the write ends. A loop may be over before what this returns takes its first
        step: a tier that can be reached from elsewhere does in the call itself, as a plain method that returns a
        coroutine, what lets it make up for that.

        Args:
            tags: all tags it touched, those from its result included.
            failed: what it touched under its `late_roots` is unknown: all of it is gone.
            hold: seconds during which nothing under its tags may be stored yet (a write in doubt, or `settle`).
        """
        ...

    def trusted_until(self) -> float:
        """Clock reading up to which local copies of this tier's entries may be served without asking it.

        Called in a hit: it neither waits nor raises. A deadline once given stands; what ends it early is a loss,
        told to the listeners as None. Without a listener nothing is trusted, for nobody could be told.
        """
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have a listener told of invalidations by others. Returns what ends it. Called from any thread."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and tasks."""
        ...
