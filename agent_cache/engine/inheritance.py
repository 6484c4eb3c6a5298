"""What a load inherits from the decorated reads that it makes: their tags, the end of their lives, and their doubts.

A cached read that calls cached reads depends on what they depend on, however they were answered: by a hit, a miss, a
load of another caller, or a tier. Its load keeps one `Inherited`; each of these reads adds an `Inherits` to it. From
the moment a tag is inherited, a write to it marks the load, as if the tag were its own. An inner load that a write
overlaps marks the outer one at once: see `engine.runtime.Flight.dependents`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from agent_cache.clock import CLOCK
from agent_cache.core.coherence import is_entry_tag
from agent_cache.core.store import NEVER, Entry
from agent_cache.core.tags import Tag, root_of
from agent_cache.remote.protocol import Tier, Versions

__all__ = ["Inherited", "Inherits", "Source"]

Trust = Callable[[], float]

_MAX_TAGS: Final = 256
"""How many inherited tags a load keeps apart. More of them count as their roots."""

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
        owners: the sessions that it belongs to; none for the global scope.
        tenants: the tenants that it belongs to.
        expires: the clock reading at which it expires.
        is_cached: False for an answer that no write has overlapped, and that was not cached all the same.
        trusts: functions that give the clock reading until which tiers are trusted, each with these tiers.
        source: knows its versions in the tiers; None without tiers.
        is_copy: whether it is a local copy, which may be as old as the tiers are trusted.
        is_strong: whether it keeps no local copy. Only its versions tell then whether a write is running.
    """

    tags: Sequence[Tag]
    owners: Set[object] = frozenset()
    tenants: Set[Hashable] = frozenset()
    expires: float = NEVER
    is_cached: bool = True
    trusts: Mapping[Trust, tuple[Tier, ...]] = MappingProxyType({})
    source: Source | None = None
    is_copy: bool = False
    is_strong: bool = False


class Inherited:
    """What a load has inherited so far.

    Attributes:
        tags: everything that the reads depend on.
        entries: the tags of single entries among it, which tiers know nothing of.
        expires: the clock reading at which the first of them expires.
        is_cached: whether all of them were cached.
        owners, tenants, trusts: those of all reads.
        hits: entries that have answered a read. Another hit of one of them adds nothing.
    """

    __slots__ = (
        "_copies",
        "_is_folded",
        "_sources",
        "_strong",
        "entries",
        "expires",
        "hits",
        "is_cached",
        "owners",
        "tags",
        "tenants",
        "trusts",
    )

    def __init__(self) -> None:
        self.tags: dict[Tag, None] = {}
        self.entries: dict[Tag, None] = {}
        self.hits: set[Entry] = set()
        self.expires = NEVER
        self.is_cached = True
        self.owners: set[object] = set()
        self.tenants: set[Hashable] = set()
        self.trusts: dict[Trust, tuple[Tier, ...]] = {}
        self._sources: dict[int, Source] | None = {}
        self._copies: dict[Trust, None] = {}
        self._is_folded = False
        self._strong: list[Source] = []

    def add(self, read: Inherits) -> list[Tag]:
        """Add a read. Returns the tags that are new."""
        self.expires = min(self.expires, read.expires)
        self.is_cached &= read.is_cached
        self.owners |= read.owners
        self.tenants |= read.tenants
        self.trusts.update(read.trusts)
        if read.is_strong and read.source is not None and len(self._strong) < _MAX_SOURCES:
            self._strong.append(read.source)
        if read.is_copy:
            self._copies.update(dict.fromkeys(read.trusts))
        if read.source is None or self._sources is None or len(self._sources) >= _MAX_SOURCES:
            self._sources = None
        else:
            self._sources[id(read.source)] = read.source
        return self.add_tags(read.tags)

    def note_hit(self, entry: Entry) -> None:
        """Remember an entry that was added."""
        if len(self.hits) < _MAX_SOURCES:
            self.hits.add(entry)

    def add_tags(self, tags: Sequence[Tag]) -> list[Tag]:
        """Add tags. Returns those that are new."""
        if not self._is_folded:
            new = [tag for tag in dict.fromkeys(tags) if tag not in self.tags and tag not in self.entries]
            if len(self.tags) + len(self.entries) + len(new) <= _MAX_TAGS:
                for tag in new:
                    (self.entries if is_entry_tag(tag) else self.tags)[tag] = None
                return new
            self._is_folded = True  # perhaps: from here on, tags may be covered by their roots
        self.tags, new = _add(self.tags, [tag for tag in tags if not is_entry_tag(tag)])
        self.entries, also = _add(self.entries, filter(is_entry_tag, tags))
        return new + also

    def beside(self, read: Inherits) -> Inherits:
        """What others inherit from a load that has read this, beside what it depends on itself."""
        return read._replace(
            tags=(*read.tags, *self.tags, *self.entries),
            owners=read.owners | self.owners,
            tenants=read.tenants | self.tenants,
            expires=min(read.expires, self.expires),
            trusts={**self.trusts, **read.trusts},
        )

    def belongs_to(self, owner: object | None, tenant: Hashable | None) -> bool:
        """Whether an answer that depends on these reads may be stored for this session and this tenant."""
        return self.owners <= {owner} and self.tenants <= {tenant}

    def is_undisturbed(self) -> bool:
        """Whether no write was running on a read that keeps no local copy."""
        return len(self._strong) < _MAX_SOURCES and all(None not in source.versions.values() for source in self._strong)

    def trust_beside(self, trust: Trust | None) -> Trust | None:
        """Gives the clock reading until which all tiers behind the reads are trusted, and those behind the load."""
        trusts = tuple(dict.fromkeys((*(() if trust is None else (trust,)), *self.trusts)))
        if len(trusts) < 2:
            return trusts[0] if trusts else None
        return lambda: min(each() for each in trusts)

    def is_trusted(self) -> bool:
        """Whether writes of other processes to what the reads depend on would be known by now."""
        now = CLOCK.now()
        return all(now < trust() for trust in self._copies)

    def versions_in(self, tier: Tier) -> list[Versions] | None:
        """The versions of the reads in a tier; None if they are not all known there."""
        if self._sources is None:
            return None
        versions = [source.versions.get(tier) for source in self._sources.values()]
        return None if None in versions else [one for one in versions if one is not None]


def _add(known: dict[Tag, None], tags: Iterable[Tag]) -> tuple[dict[Tag, None], list[Tag]]:
    """Add tags to those that are known. If they become too many, all count as their roots."""
    new = [tag for tag in dict.fromkeys(tags) if tag not in known and root_of(tag) not in known]
    if len(known) + len(new) <= _MAX_TAGS:
        known.update(dict.fromkeys(new))
        return known, new
    roots = dict.fromkeys(map(root_of, (*known, *new)))
    return roots, [root for root in roots if root not in known]
