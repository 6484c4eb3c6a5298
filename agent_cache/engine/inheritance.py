"""What a load inherits from the decorated reads that it makes: their tags, the end of their lives, and their doubts.

A cached read that calls cached reads depends on what they depend on, however they were answered: by a hit, a miss, a
load of another caller, or a tier. Its load keeps one `Inherited`; each of these reads adds its tags when it begins, and
an `Inherits` when it has ended. An inherited tag is asked for like one of its own, since the outer load began.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from agent_cache.core.lease import CombinedLease, Lease
from agent_cache.core.store import NEVER, Entry
from agent_cache.core.tags import Tag, root_of
from agent_cache.core.versions import EntryTag

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Versions
    from agent_cache.remote.versioned import Tier

__all__ = ["NO_LEASES", "Inherited", "Inherits", "Source"]

NO_LEASES: Final[Mapping[Lease, tuple[Tier, ...]]] = MappingProxyType({})

_MAX_TAGS: Final = 256
"""How many inherited tags a load keeps apart. More of them count as their roots, more entries as all of their tools."""

_MAX_SOURCES: Final = 512
"""How many reads a value in a tier may depend on."""


class Source(Protocol):
    """An entry or a load that knows the versions of its value in the tiers that have it."""

    @property
    def versions(self) -> Mapping[Tier, Versions | None]: ...


class Inherits(NamedTuple):
    """What a load inherits from one read.

    Attributes:
        tags: everything that the answer depends on.
        owners, tenants: the sessions and the tenants that it belongs to; none if it belongs to all.
        expires: the clock reading at which it expires.
        is_cached: False for an answer that was not cached.
        leases: the trust in the tiers that it depends on, each with these tiers.
        source: knows its versions in the tiers; None without tiers.
        is_copy: whether it is a local copy, which may be as old as the tiers are trusted.
        is_doubted: whether a tier knows of a write that has overlapped it: who has read it is not stored.
    """

    tags: Sequence[Tag | EntryTag]
    owners: Set[object] = frozenset()
    tenants: Set[Hashable] = frozenset()
    expires: float = NEVER
    is_cached: bool = True
    leases: Mapping[Lease, tuple[Tier, ...]] = NO_LEASES
    source: Source | None = None
    is_copy: bool = False
    is_doubted: bool = False


class Inherited:
    """What a load has inherited so far.

    Attributes:
        tags: everything that the reads depend on.
        entries: the tags of single entries among it, which tiers know nothing of.
        expires: the clock reading at which the first of them expires.
        is_cached: whether all of them were cached.
        is_doubted: whether one of them is in doubt.
        owners, tenants, leases: those of all reads.
        hits: entries that have answered a read, by their id. Another hit of one of them adds nothing.
    """

    __slots__ = (
        "_copies", "_is_folded", "_most_entries", "_sources", "entries", "expires", "hits", "is_cached", "is_doubted",
        "leases", "owners", "tags", "tenants",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tags: dict[Tag, None] = {}
        self.entries: dict[EntryTag, None] = {}
        self.hits: dict[int, Entry] = {}
        self.expires, self.is_cached, self.is_doubted = NEVER, True, False
        self.owners: Set[object] = frozenset()
        self.tenants: Set[Hashable] = frozenset()
        self.leases: dict[Lease, tuple[Tier, ...]] = {}
        self._sources: dict[int, Source] | None = {}  # None: one is not known, or there are too many
        self._copies: dict[Lease, None] = {}
        self._is_folded = False
        self._most_entries = _MAX_TAGS

    def add(self, read: Inherits, hit: Entry | None = None) -> list[Tag | EntryTag]:
        """Add a read, which this entry has answered. Returns the tags that are new."""
        if hit is not None and len(self.hits) < _MAX_SOURCES:
            self.hits[id(hit)] = hit
        self.expires = min(self.expires, read.expires)
        self.is_cached = self.is_cached and read.is_cached
        self.is_doubted = self.is_doubted or read.is_doubted
        self.owners |= read.owners
        self.tenants |= read.tenants
        self.leases.update(read.leases)
        if read.is_copy:
            self._copies.update(dict.fromkeys(read.leases))
        if read.source is None or self._sources is None or len(self._sources) >= _MAX_SOURCES:
            self._sources = None
        else:
            self._sources[id(read.source)] = read.source
        return self.add_tags(read.tags)

    def add_tags(self, tags: Sequence[Tag | EntryTag]) -> list[Tag | EntryTag]:
        """Add tags. Returns those that are new."""
        new: list[Tag | EntryTag] = []
        for tag in tags:
            known: dict[Any, None] = self.entries if type(tag) is tuple else self.tags
            if tag not in known and not (self._is_folded and _wider(tag) in known):
                known[tag] = None
                new.append(tag)
        if len(self.tags) > _MAX_TAGS:
            self.tags = self._fold(self.tags, new)
        if len(self.entries) > self._most_entries:
            self.entries = self._fold(self.entries, new)
            self._most_entries = max(_MAX_TAGS, 2 * len(self.entries))  # there may be as many tools
        return new

    def _fold(self, tags: dict[Any, None], new: list[Any]) -> dict[Any, None]:
        """What tags that are too many count as. Adds it to what is new."""
        folded = dict.fromkeys(map(_wider, tags))
        new += [tag for tag in folded if tag not in tags]
        self._is_folded = True
        return folded

    def beside(self, read: Inherits) -> Inherits:
        """What others inherit from a load that has read this, beside what it depends on itself."""
        return read._replace(
            tags=(*read.tags, *self.tags, *self.entries),
            owners=read.owners | self.owners,
            tenants=read.tenants | self.tenants,
            expires=min(read.expires, self.expires),
            leases={**self.leases, **read.leases},
        )

    def belongs_to(self, owner: object | None, tenant: Hashable | None) -> bool:
        """Whether an answer that depends on these reads may be stored for this session and this tenant."""
        return self.owners <= {owner} and self.tenants <= {tenant}

    def lease_beside(self, lease: Lease | None) -> Lease | None:
        """One lease for all tiers behind the reads, and those behind the load."""
        return CombinedLease.of(dict.fromkeys((*(() if lease is None else (lease,)), *self.leases)))

    def is_trusted(self) -> bool:
        """Whether writes of other processes to what the reads depend on would be known by now."""
        return all(lease.is_valid() for lease in self._copies)

    def versions_in(self, tier: Tier) -> list[Versions] | None:
        """The versions of the reads in a tier; None if they are not all known there."""
        known = None if self._sources is None else [source.versions.get(tier) for source in self._sources.values()]
        return None if known is None or None in known else [one for one in known if one is not None]


def _wider(tag: Tag | EntryTag) -> Tag | EntryTag:
    """The root of a tag; for the tag of an entry, that of all entries of its tool."""
    return tag[:1] if isinstance(tag, tuple) else root_of(tag)
