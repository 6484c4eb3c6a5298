"""The `Tier` protocol: a cache behind the local one, in this process or shared by a fleet.

A tier must keep one promise: a value that `lookup` finds was loaded after the last write that `commit` acknowledged for
any of its tags, and a value stored under a `Ticket` counts only if no `begin` and no `commit` came between the lookup
that gave the ticket and the `store`. By which means (versions, tokens, locks) is up to the tier.

A value whose load made other reads depends on everything that these depend on, as it was for them. So it is stored
together with their versions (`Ticket.versions`). Versions fetched at its store could be newer than what one of the
reads has seen, in a local copy for example, and it would be found although a write came in between.
`TierContract` in the checkout (`tests/contract`) tests it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

from agent_cache.core.lease import Lease, Term

__all__ = [
    "Found",
    "Lease",
    "Listener",
    "LoaderWait",
    "Request",
    "SentCommit",
    "SharedLoads",
    "SharedTtls",
    "Term",
    "Ticket",
    "Tier",
    "Touched",
    "Versions",
    "WriteIntent",
]


@dataclass(frozen=True, slots=True)
class Touched:
    """An invalidation: another process has begun or ended writing these.

    Attributes:
        tags: as in `WriteIntent`. A tier that knows an entity by a digest alone, and has seen no tag for it in this
            process, names any tag below the root: entries that depend on the whole root are dropped, and no other can
            depend on the entity.
        keys: single entries: (identity of the tool, key).
    """

    tags: tuple[str, ...] = ()
    keys: tuple[tuple[str, Hashable], ...] = ()


Listener = Callable[[Touched | None], None]
"""Called with each invalidation of another process, in any thread. None: any number of them may have been lost."""


@dataclass(frozen=True, slots=True)
class Request:
    """One read, as a tier sees it.

    Attributes:
        tool: identity of the tool, ``module:qualname`` or its `name=`.
        key: the canonical key of the call, ambient identity (tenant, `vary`) included. Hashable; opaque to a tier that
            stays in this process.
        arguments: names and values that the key was made of, for a tier that needs a digest of its own: a key names
            classes by serial numbers of this process. `key=` and `vary=` appear in it with the values they returned,
            and the default of a parameter as a `Default` of `values.canonical` if it is a sentinel. A value that the
            tier cannot encode has no identity outside of the process: nothing is found or stored.
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
        shares_load: of all processes that miss the answer one loads it, and the others wait: see `SharedLoads`.
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
    """The versions that a lookup saw. Opaque to everything but its tier.

    It may have an attribute `lease`: a `Lease` in the copies that are made under it. It stands in place of
    `Tier.trusted_until` for tools with this tier alone, and hits compare what it refers to instead of calling anything.
    So a tier on several servers can trust some copies longer than others. A value whose load has made many reads is
    served while the leases of all of them are valid, and each hit asks that. So a tier whose tickets have leases may
    have a method ``merge_leases(leases)``. It is given such leases, those of other tiers included, and returns fewer
    that are valid at the same times.

    It may have a method `note_tags`, which is called with all tags of a local copy right before the `is_clean` that
    decides whether it is stored, for a tier whose messages name tags by digests.
    """

    @property
    def lasts(self) -> float | None:
        """Seconds that a copy loaded under this ticket may live; None for ever.

        A tier that may miss a write altogether limits the effect by it.
        """
        ...

    @property
    def versions(self) -> Versions | None:
        """The versions of everything that the value depends on, for the reads that depend on it: see `Tier.store`.

        After a lookup that found a value, those that this was stored under. After a `store`, those of the value that
        was loaded, also if it was too large for the tier; what was loaded and not given to `store` has none. None if a
        version is not known or changed during the load, or if a write was running on one: then nothing that depends on
        the value can be stored in the tier.

        It is not changed any more, and can be kept with a local copy: nothing large is referenced by it.
        """
        ...

    def is_clean(self) -> bool:
        """Whether the value may be stored locally.

        None of its dependencies was being written at the lookup or, as far as this process knows, has been since.
        Called under a lock: it neither waits nor takes a lock that is held while a listener is called.
        """
        ...

    def is_joinable(self) -> bool:
        """Whether a reader that starts now may share the load that this ticket was taken for.

        No dependency was held at the lookup or written since, and the lookup is younger than the tier's bound of
        staleness, or local copies are trusted now. Called under a lock, as `is_clean`.
        """
        ...

    def agrees_with(self, other: Ticket) -> bool:
        """Whether a reader that has just taken this ticket may share the load that the other one was taken for.

        Both saw the same versions and no running write, so no write ended in between. Readers with strong consistency
        share loads by this, instead of by `is_joinable`.
        """
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


class SentCommit(ABC):
    """A commit that is on its way, of a write that may return before it lands: until then nobody finds what the write
    has replaced, because all that it touches has been held since its begin, and lookups of the own process wait.

    It can be awaited all the same.
    """

    __slots__ = ()

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, None]:
        """Wait until it has landed, or is delivered later."""


@runtime_checkable
class SharedLoads(Protocol):
    """What a tier has beside the methods of `Tier` if processes share loads through it: otherwise each that misses a
    value loads it.

    Its tickets have an attribute `has_claim`: whether the load that the ticket was taken for is claimed. They may have
    another one, `refreshes_early`, that is True: shortly before a value expires the tier lets one process reload it
    (`Found.is_to_refresh`), so local copies of its values expire a little earlier, at random.
    """

    async def claim(
        self, request: Request, ticket: Ticket, *, may_wait: Callable[[], bool] | None = None
    ) -> tuple[Found | None, Ticket]:
        """Lead the load of an answer that `lookup` has not found, or wait for the process that leads it.

        If the request says ``shares_load``, every load is claimed: for `lease` seconds, and longer while `renew_claim`
        is called. It is waited for until its value is there, or its claim has ended; then one of those that wait leads.
        Who has seen two loads end without a value loads itself, so a tool that fails is not run by one process after
        the other. Otherwise it is up to the tier which loads it shares, and who waits does so for a limited time.

        A claim proves nothing: what is found is found by a whole lookup. It is made under the versions that the ticket
        has seen, so nobody waits for a load that a write has overtaken. Under what a write holds nothing is claimed. A
        failure, or a leader that has died, costs a load more, and never an answer.

        Args:
            may_wait: called before each pause, in the thread of this coroutine. Where it returns False, the caller
                loads itself: what it would wait for may be waiting for it. Only passed if the request says
                ``shares_load``; None always allows it.

        Returns:
            What another process has loaded meanwhile, found by a lookup of its own, and the ticket of that; else None,
            and a ticket for storing the own load.
        """
        ...

    def renew_claim(self, ticket: Ticket) -> None:
        """Let a claim last for another `lease`, if it is still one's own. It does not wait."""
        ...

    def give_up(self, ticket: Ticket) -> None:
        """End what `claim` has claimed: the load has ended, and was stored or will not be. It does not wait."""
        ...


_SHORTEST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.1
_MAX_LOADERS: Final = 2
"""The second one replaces a process that has died."""


class LoaderWait:
    """How a reader waits for a load of another process, in a tier that looks again and again: see `SharedLoads.claim`.

    Args:
        may_wait: see there.
    """

    __slots__ = ("_loaders", "_may_wait", "_pause")

    def __init__(self, may_wait: Callable[[], bool] | None = None) -> None:
        self._may_wait = may_wait
        self._pause = _SHORTEST_PAUSE
        self._loaders: set[object] = set()

    async def pause(self, loader: object | None) -> bool:
        """Wait for a moment, which grows from 5 ms to 100 ms.

        Args:
            loader: identifies the claim that is waited for; None if it is the end of a write.

        Returns:
            Whether it has waited; False if the reader is to load the value itself, and at once.
        """
        if loader is not None:
            self._loaders.add(loader)
        if len(self._loaders) > _MAX_LOADERS or not (self._may_wait is None or self._may_wait()):
            return False
        await asyncio.sleep(self._pause)
        self._pause = min(1.5 * self._pause, _LONGEST_PAUSE)
        return True


@runtime_checkable
class SharedTtls(Protocol):
    """What a tier has beside the methods of `Tier` if the ttls that are set at run time reach all processes through it:
    those that use it now, those that were disconnected, and those that are started later.
    """

    def publish_ttl(self, tool: str, ttl: float | None) -> None:
        """Set the ttl of a tool for the whole fleet, in seconds; None takes it back. It does not wait: it is delivered
        as soon as it can be. Of several for one tool the last one counts that has arrived.
        """
        ...

    def follow_ttls(self, listener: Callable[[Mapping[str, float]], None]) -> Callable[[], None]:
        """Call a listener with all ttls that are set, by the names of the tools, when they are known and after each
        change, in any thread. What was published here counts at once. Returns a function that ends this.
        """
        ...


@runtime_checkable
class Tier(Protocol):
    """A cache behind the local one. All methods may be called from several event loops and threads.

    A tier is hashable and can be referenced weakly; it is freed when nothing else references it.

    No method fails because a server does: it degrades, counts it and logs it once. Only `begin` may raise
    `RemoteTierError`, for a tool with ``on_unreachable="refuse"``.
    """

    @property
    def lease(self) -> float:
        """Seconds that a `begin` lasts without `renew`."""
        ...

    async def lookup(self, request: Request) -> tuple[Found | None, Ticket]:
        """Find a current answer, and take a ticket for storing one if there is none.

        Readers join a running lookup, so it ends within the bound of staleness, by a timeout of its own.
        """
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
            tags: all dependencies of the value: those of its result and of the reads that its load made included. One
                that is neither in the request, nor under its `late_roots`, nor covered by `inherited` is not known to
                be current, so the value is not stored. A root stands for any of its entities in `inherited`.
            cost: seconds its load took.
            age: seconds since its load started. Its ttl counts from there, also if the value comes from a farther tier.
            ttl: seconds that this very value may live, from the start of its load, if that is less than the ticket
                `lasts`: computed from the result, or shortened at random. Only passed then.
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

        Called in the very step in which the write ends. The event loop may end before the returned coroutine takes its
        first step, so a tier that other processes use notes the commit in the call itself, as a plain method that
        returns a coroutine, or a `SentCommit`, whose end the caller of the write need not wait for.

        Args:
            tags: all tags it touched, those from its result included.
            failed: its tags under `late_roots` are unknown, so everything under these roots is dropped.
            hold: seconds during which nothing under its tags may be stored yet (a write in doubt, or `settle`).
        """
        ...

    def trusted_until(self) -> float:
        """Clock reading up to which local copies of this tier's entries may be served without asking it.

        Called in a hit: it neither waits nor raises. A deadline once given stands, unless the tier reports a loss of
        messages to the listeners: as None, or as the roots and the keys that the lost messages may have named. Without
        a listener no copy is trusted.

        Each hit pays for the call of it. A tier whose tickets have a `Lease` is asked only for the copies of tools that
        have several tiers, and whether a nearer tier may be used: see `Ticket`.
        """
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with invalidations of other processes. Returns a function that ends this. For any thread."""
        ...

    async def aclose(self) -> None:
        """Close connections and end tasks."""
        ...
