"""The `Tier` protocol: a cache behind the local one, in this process or shared by a fleet.

A tier must keep one promise: a value that `lookup` finds was loaded after the last write that `commit` acknowledged for
any of its tags, and a value stored under a `Ticket` counts only if no `begin` and no `commit` came between the lookup
that gave the ticket and the `store`.

A value whose load made other reads depends on everything that these depend on, as it was for them. So it is stored
together with their versions (`Ticket.versions`): those that were fetched at its store could be newer than what it read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["Found", "Listener", "Request", "SentCommit", "Ticket", "Tier", "Touched", "Versions", "WriteIntent"]


@dataclass(frozen=True, slots=True)
class Touched:
    """What another process has begun or ended writing: tags, and entries as (identity of the tool, key)."""

    tags: tuple[str, ...] = ()
    keys: tuple[tuple[str, Hashable], ...] = ()


Listener = Callable[[Touched | None], None]
"""Called with each invalidation of another process, in any thread. None: any number of them may have been lost."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Request:
    """One read, as a tier sees it.

    Attributes:
        tool: identity of the tool, ``module:qualname`` or its `name=`.
        key: the canonical key of the call, tenant and `vary` included. Hashable; it means something in this process.
        arguments: names and values that the key was made of, for a tier that needs a digest of its own. A value that
            the tier cannot encode has no identity outside of the process: nothing is found or stored.
        tags: dependencies of the answer, as far as they are known before the load.
        late_roots: roots of the dependencies that come from the result.
        ttl: seconds the answer may live, counted from the start of its load; None for ever, or if that is known only
            from the result: see `Tier.store`.
        session: id of the session that owns the entry, None for the global scope.
        tenant: owner of the entry, None without tenants.
        returns: return annotation of the tool, for codecs.
        roots: every root that an answer may depend on; empty stands for those of `tags` and `late_roots`.
        grace: seconds beyond its ttl that an answer may be served while it is reloaded.
        strong: an answer counts only if its versions were checked for this call; no local copy of it is stored.
        shares_load: of all processes that miss the answer one loads it, and the others wait: see `VersionedTier.claim`.
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
    shares_load: bool = False


@dataclass(slots=True)  # a frozen one takes 0.5 us more to make, of each hit
class Found:
    """A value that a tier holds and that is valid now.

    Attributes:
        value: the decoded answer; the caller owns it.
        tags: all its dependencies, tags from its result included.
        age: seconds since its load started.
        cost: seconds its load took.
        ttl: seconds it may still live; None for ever. Zero or less only within its grace period.
        is_to_refresh: it is within its grace period, or about to expire, and this process is the one that reloads it.
    """

    value: Any
    tags: tuple[str, ...]
    age: float = 0.0
    cost: float = 0.0
    ttl: float | None = None
    is_to_refresh: bool = False


Versions = Mapping[Any, Any]
"""The version of each thing that a value depends on. Opaque to everything but the tier that it comes from."""


class Ticket(Protocol):
    """The versions that a lookup saw. Opaque to everything but its tier. No method waits.

    It may have an attribute `lease`: the `Lease` in copies that are made under it, in place of `Tier.trusted_until`.

    Attributes:
        lasts: seconds that a copy loaded under this ticket may live; None for ever.
        versions: of everything that the value depends on that was found or stored, for reads that depend on it. None if
            one is not known, or a write was running on one: nothing that depends on the value can be stored then.
    """

    @property
    def lasts(self) -> float | None: ...

    @property
    def versions(self) -> Versions | None: ...

    def is_clean(self) -> bool:
        """Whether the value may be stored locally: no dependency was being written at the lookup, or has been since."""
        ...

    def is_joinable(self) -> bool:
        """Whether a reader that starts now may share the load that this ticket was taken for."""
        ...

    def agrees_with(self, other: Ticket) -> bool:
        """Whether both saw the same versions and no running write: readers with strong consistency share loads then."""
        ...


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """One write, as a tier sees it.

    Attributes:
        id: unique; makes `begin` and `commit` idempotent.
        tags: tags that the write touches, as far as they are known before it runs: held from `begin` to `commit`.
        late_roots: roots of the tags that come from its result: armed from `begin` to `commit`.
        keys: single entries that it touches instead: (identity of the tool, key).
        entries: the same as requests, for a tier that names entries by digests of its own. Entries that are known from
            another tier's invalidations only are not among them.
        on_unreachable: if the write cannot be announced, `begin` returns (``"run"``) and the tier commits it as soon
            as it can, or `begin` raises `RemoteTierError` (``"refuse"``).
    """

    id: str
    tags: tuple[str, ...]
    late_roots: tuple[str, ...] = ()
    keys: tuple[tuple[str, Hashable], ...] = ()
    entries: tuple[Request, ...] = ()
    on_unreachable: Literal["run", "refuse"] = "run"


class SentCommit:
    """A commit that has landed (`landing` is None), or is on its way and need not be waited for: all that the write
    touches has been held since its begin, and lookups of the own process wait. Who awaits it waits until it has landed.
    """

    __slots__ = ("_landing",)

    def __init__(self, landing: Awaitable[None] | None = None) -> None:
        self._landing = landing

    def __await__(self) -> Generator[Any, Any, None]:
        if self._landing is not None:
            yield from self._landing.__await__()


@runtime_checkable
class Tier(Protocol):
    """A cache behind the local one. All methods may be called from several event loops and threads.

    A tier is hashable and can be referenced weakly. No method fails because a server does: it degrades, counts it and
    logs it once. Only `begin` may raise `RemoteTierError`, for a tool with ``on_unreachable="refuse"``. A tier may have
    ``claim``, ``renew_claim``, ``give_up``, ``publish_ttl`` and ``follow_ttls`` as well: see `VersionedTier`.
    """

    @property
    def lease(self) -> float:
        """Seconds that a `begin` lasts without `renew`."""
        ...

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """Find a current answer, and take a ticket for storing one. It ends within the bound of staleness."""
        ...

    async def store(
        self,
        ticket: Ticket,
        value: Any,
        tags: tuple[str, ...],
        cost: float,
        *,
        age: float,
        ttl: float | None = None,
        inherited: Sequence[Versions] = (),
    ) -> None:
        """Store a value that was loaded after `ticket` was taken, unless a dependency was written since.

        Args:
            tags: all dependencies of the value. One that is neither in the request, nor under its `late_roots`, nor
                covered by `inherited`, where a root stands for its entities, is not known to be current, so the value
                is not stored.
            cost: seconds its load took.
            age: seconds since its load started: its ttl counts from there.
            ttl: seconds that this very value may live, if that is less than the ticket `lasts`.
            inherited: `Ticket.versions` of *every* read that the load made, through this same tier: the value is found
                only while all of them are current. If two of them differ, it is of two times and not stored.
        """
        ...

    async def discard(self, request: Request) -> bool:
        """Drop one answer. Returns whether there was one."""
        ...

    async def begin(self, write: WriteIntent) -> None:
        """Announce a write before its side effect. From now until `commit`, nothing it touches is stored."""
        ...

    async def renew(self, write: WriteIntent) -> None:
        """Extend the lease of a write that is still running."""
        ...

    def commit(self, write: WriteIntent, tags: tuple[str, ...], *, failed: bool, hold: float) -> Awaitable[None]:
        """End a write: everything it touched is dropped when this has run, or as soon as the tier can be reached.

        A tier that other processes use notes the commit in the call itself, not in the first step of a coroutine: the
        event loop may end before. It may return a `SentCommit`, whose end the caller of the write need not wait for.

        Args:
            tags: all tags it touched, those from its result included.
            failed: its tags under `late_roots` are unknown, so everything under these roots is dropped.
            hold: seconds during which nothing under its tags may be stored yet (a write in doubt, or `settle`).
        """
        ...

    def trusted_until(self) -> float:
        """Clock reading up to which local copies of this tier's entries may be served without asking it.

        Called in a hit, unless the tier's tickets have a lease: it neither waits nor raises. A deadline once given
        stands, unless the tier reports a loss to the listeners. Without a listener no copy is trusted.
        """
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with the writes of other processes. Returns a function that ends this. For any thread."""
        ...

    async def aclose(self) -> None:
        """Close connections and end tasks."""
        ...
