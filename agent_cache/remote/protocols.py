"""The `Tier` protocol: a cache behind the local one, in this process or shared by a fleet.

A tier must keep one promise: what `lookup` finds was loaded after the last write that `commit` has acknowledged for any of
its tags, and a value stored under a `Ticket` counts only if no `begin` and no `commit` came between the lookup that gave
the ticket and the `store`. How it does that (versions, tokens, locks) is its own business. `TierContract` in
`agent_cache.testing` tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["Found", "Listener", "Request", "Ticket", "Tier", "WriteIntent"]

Listener = Callable[[tuple[str, ...] | None], None]
"""Told the tags that another process has begun or ended writing; None means that anything may have changed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One read, as a tier sees it.

    Attributes:
        tool: identity of the tool, ``module:qualname`` or its `name=`.
        key: the canonical key of the call, ambient identity (tenant, `vary`) included. Hashable; opaque to a tier that
            stays in this process.
        arguments: parameter names and values that make up the identity, for a tier that needs a digest of its own.
        tags: what the answer depends on, as far as that is known before the load.
        late_roots: roots under which it will depend on what the result says.
        ttl: seconds the answer may live, counted from the start of its load; None for ever.
        session: id of the session that owns the entry, None for the global scope.
        tenant: whose entry it is, None without tenants.
        returns: return annotation of the tool, for codecs.
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


@dataclass(frozen=True, slots=True)
class Found:
    """A value that a tier holds and vouches for.

    Attributes:
        value: the decoded answer; the caller owns it.
        tags: everything it depends on, tags from its result included.
        age: seconds since its load started.
        cost: seconds its load took.
        ttl: seconds it may still live; None for ever.
    """

    value: Any
    tags: tuple[str, ...]
    age: float = 0.0
    cost: float = 0.0
    ttl: float | None = None


class Ticket(Protocol):
    """What a lookup leaves behind: the versions it saw, opaque to everybody but its tier."""

    def is_clean(self) -> bool:
        """Whether, as far as this process knows, nothing it depends on has been touched since; decides if the local
        store may keep the value. Synchronous: it is asked under a lock."""
        ...

    def is_joinable(self) -> bool:
        """Whether a reader that starts now may share the load that this ticket was taken for. Synchronous, likewise."""
        ...


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """One write, as a tier sees it.

    Attributes:
        id: unique; makes `begin` and `commit` idempotent.
        tags: what the write touches, as far as that is known before it runs: held from `begin` to `commit`.
        late_roots: roots under which its result will say what it has touched: armed from `begin` to `commit`.
        keys: single entries that it touches instead: (identity of the tool, key).
    """

    id: str
    tags: tuple[str, ...]
    late_roots: tuple[str, ...] = ()
    keys: tuple[tuple[str, Hashable], ...] = ()


@runtime_checkable
class Tier(Protocol):
    """A cache behind the local one. All methods may be called from several event loops and threads.

    None of them may fail because a server does: they degrade, count it and log it once. `begin` alone may raise
    `RemoteTierError`, for a tool that asked to be stopped when its write cannot be announced.
    """

    @property
    def lease(self) -> float:
        """Seconds that a `begin` lasts without `renew`."""
        ...

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """Find an answer that is current, and take a ticket for storing one if there is none."""
        ...

    async def store(self, ticket: Ticket, value: Any, tags: tuple[str, ...], cost: float) -> None:
        """Keep a value that was loaded after `ticket` was taken, unless something it depends on has been touched since.

        Args:
            tags: everything the value depends on, tags from its result included.
            cost: seconds its load took.
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

        Args:
            tags: all tags it touched, those from its result included.
            failed: what it touched under its `late_roots` is unknown: all of it is gone.
            hold: seconds during which nothing under its tags may be stored yet (a write in doubt, or `settle`).
        """
        ...

    def trusted_until(self) -> float:
        """Monotonic time up to which local copies of this tier's entries may be served without asking it."""
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have a listener told of invalidations by others. Returns what ends it. Called from any thread."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and tasks."""
        ...
