"""The rules of coherence in one process: which load may be stored, and what a write does to loads and entries.

A load is stored only if, since it *started*, no write has touched one of its tags and none is in flight. There is no
table of versions: a write acts on the loads and entries that exist, in the partitions of the tools that share a root
with it. It acts twice, before it runs and when it has ended, however it ended. The second time is what makes "no read
that starts later sees the old value" true; the first keeps a value that was read during the write from being stored.

Every method of `Ledger` runs under its `lock`, which the caller takes around each of: {start a load, join or lead it},
{check, insert}, and {mark loads, drop entries, detach flights}. Time is an argument.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_cache.core.store import Store
from agent_cache.core.tags import Tag, meet, root_of

__all__ = ["Hold", "Ledger", "Load", "Partition", "Region"]


class Partition:
    """The store of one tool in one scope, with its tags and the loads in flight.

    Attributes:
        tool: the operation whose results it holds.
        owner: the session it belongs to; None for the global scope.
        static: tags that every entry depends on. They need no index.
        roots: roots that any of its entries may depend on.
        loads: the ledger's sets of loads in flight, one for each root.
        flights: loads in flight that a reader may join, by (key, event loop).
        requests: the requests that tiers were sent for calls, by key. Bounded.
        is_open: False once its session has ended: nothing is stored any more.
    """

    __slots__ = ("__weakref__", "flights", "is_open", "loads", "owner", "requests", "roots", "static", "store", "tool")

    def __init__(
        self, tool: Any, owner: object | None, static: tuple[Tag, ...], roots: tuple[str, ...], maxsize: int | None
    ) -> None:
        self.tool = tool
        self.owner = owner
        self.static = static
        self.roots = roots
        self.store = Store(maxsize)
        self.flights: dict[tuple[Hashable, object], Any] = {}
        self.loads: tuple[set[Any], ...] = ()
        self.requests: dict[Hashable, Any] = {}
        self.is_open = True


_MANY = 1_000
"""How many entries under one tag are dropped one by one, at 5 us each. If there are more, all entries of the tool are
dropped at once: that is always safe, and a write must not block the event loop for half a second."""

_MAX_WRITTEN = 64
"""How many writes a load remembers while its own tags are unknown. After more of them it is not stored."""


class Load:
    """One run of a read tool, from its start until its result is stored or discarded.

    Tags known before the load are compared when a write happens. While some of its tags are known only from the result,
    the regions written under their roots are remembered, and compared by `resolve`.

    Attributes:
        late_roots: roots of the tags that are known only from the result.
        written: the regions to compare with those tags.
        is_clean: whether no write has touched it, so that it may be stored.
        is_open: whether it has not ended.
    """

    __slots__ = ("is_clean", "is_open", "key", "late_roots", "partition", "tags", "written")

    def __init__(self, partition: Partition, key: Hashable, tags: tuple[Tag, ...], late_roots: tuple[str, ...]) -> None:
        self.partition = partition
        self.key = key
        self.tags = tags
        self.late_roots = late_roots
        self.written: list[Region] | None = None
        self.is_clean = True
        self.is_open = True

    def restart(self) -> None:
        """Start again with another run of the tool, which earlier writes do not concern."""
        self.written = None
        self.is_clean = True

    def mark_dirty(self) -> None:
        """Do not store this load, and let no reader join it any more."""
        self.is_clean = False
        self.detach()

    def detach(self) -> None:
        """Let no reader that starts later join. `engine.runtime.Flight` overrides it."""

    def resolve(self, tags: Sequence[Tag]) -> None:
        """Compare the writes that happened meanwhile with the tags that the result has given."""
        if self.written and any(region.touches(tags) for region in self.written):
            self.is_clean = False


@dataclass(frozen=True, slots=True)
class Region:
    """The tags and keys that a write touches, in every scope or in some sessions only.

    Attributes:
        paths: tags; everything that meets one of them is touched.
        keys: single entries, as (tool, key).
        owners: sessions that an invalidation with ``scope="session"`` reaches; None for every scope.
        bare: roots of which only entries that depend on the whole root are touched, because the write named no id.
    """

    paths: tuple[Tag, ...] = ()
    keys: tuple[tuple[Any, Hashable], ...] = ()
    owners: frozenset[object] | None = None
    bare: tuple[str, ...] = ()

    @property
    def roots(self) -> set[str]:
        return {root_of(path) for path in (*self.paths, *self.bare)}

    def reaches(self, partition: Partition) -> bool:
        return self.owners is None or partition.owner in self.owners

    def touches(self, tags: Sequence[Tag]) -> bool:
        """Whether a write to this region changes an entry with these tags."""
        return any(meet(tag, path) for path in self.paths for tag in tags) or any(root in tags for root in self.bare)


@dataclass(slots=True, eq=False)
class Hold:
    """A write in flight, or one that may still take effect: nothing in its region is stored until the release."""

    region: Region
    until: float = field(default=float("inf"))


class Ledger:
    """All loads in flight, all holds and all partitions of the process, by root."""

    def __init__(self) -> None:
        # Re-entrant: a garbage collection that starts inside may close an abandoned call, whose clean-up locks again.
        self.lock = threading.RLock()
        self._partitions: dict[str, weakref.WeakSet[Partition]] = {}
        self._loads: dict[str, set[Load]] = {}
        self._holds: dict[str, list[Hold]] = {}
        self._key_holds: list[Hold] = []
        self.timed_holds: list[Hold] = []
        os.register_at_fork(
            before=self.lock.acquire, after_in_parent=self.lock.release, after_in_child=self._reset_in_child
        )

    def _reset_in_child(self) -> None:
        """End the writes and loads of the parent process, which nothing would end in a forked child."""
        try:
            for hold in {*self._key_holds, *(hold for holds in self._holds.values() for hold in holds)}:
                if hold.until == float("inf"):
                    self.release(hold)
            for loads in self._loads.values():
                for load in loads:
                    load.mark_dirty()
                loads.clear()
        finally:
            self.lock.release()

    # Partitions

    def register(self, partition: Partition) -> None:
        """Let writes to its roots reach a partition, as long as it exists."""
        for root in partition.roots:
            self._partitions.setdefault(root, weakref.WeakSet()).add(partition)
        partition.loads = tuple(self._loads.setdefault(root, set()) for root in partition.roots)

    def unregister(self, partition: Partition) -> None:
        """Let no write reach a partition any more, since its session has ended."""
        for root in partition.roots:
            partitions = self._partitions.get(root)
            if partitions is not None:
                partitions.discard(partition)
                if not partitions:
                    del self._partitions[root]

    def partitions(self) -> list[Partition]:
        """Every partition that a write can reach."""
        return list({partition for partitions in self._partitions.values() for partition in partitions})

    def partitions_under(self, root: str) -> list[Partition]:
        """Every partition whose entries may depend on a root."""
        return list(self._partitions.get(root, ()))

    # Loads

    @staticmethod
    def start(load: Load) -> None:
        """Compare every write with this load, until it is discarded from its partition's `loads`."""
        load.is_open = True
        for loads in load.partition.loads:
            loads.add(load)

    def may_store(self, load: Load, tags: Sequence[Tag]) -> bool:
        """Whether the result of a load may be stored: no write since it started, none in flight, none in doubt.

        Args:
            tags: everything that the entry will depend on, the tags from the result included.
        """
        if not load.is_clean:
            return False
        if self._holds:
            for root in load.partition.roots:
                for hold in self._holds.get(root, ()):
                    if hold.region.reaches(load.partition) and hold.region.touches(tags):
                        return False
        return not self._key_holds or not any(
            hold.region.reaches(load.partition) and (load.partition.tool, load.key) in hold.region.keys
            for hold in self._key_holds
        )

    def clear(self, tool: object | None = None) -> list[Any]:
        """Drop all entries, of one tool or of all, and let none of their loads in flight be stored or joined."""
        for loads in list(self._loads.values()):
            for load in list(loads):
                if tool is None or load.partition.tool is tool:
                    load.mark_dirty()
        return [partition.store.drop_all() for partition in self.partitions() if tool is None or partition.tool is tool]

    def loads_in_flight(self) -> int:
        """The number of loads that have started and not ended. For diagnosis and tests."""
        return len({load for loads in self._loads.values() for load in loads})

    # Writes

    def hold(self, region: Region, until: float = float("inf")) -> Hold:
        """Let nothing in a region be stored, until the hold is released or until a clock reading."""
        hold = Hold(region, until)
        for root in region.roots:
            holds = None
            # Repeated if a garbage collection has released the last other hold, and its list with it, meanwhile.
            while holds is None or self._holds.get(root) is not holds:
                holds = self._holds.setdefault(root, [])
                holds.append(hold)
        if region.keys:
            self._key_holds.append(hold)
        if until != float("inf"):
            self.timed_holds.append(hold)
        return hold

    def release(self, hold: Hold) -> None:
        for root in hold.region.roots:
            holds = self._holds.get(root, [])
            if hold in holds:
                holds.remove(hold)
            if not holds:
                self._holds.pop(root, None)
        if hold in self._key_holds:
            self._key_holds.remove(hold)
        if hold in self.timed_holds:
            self.timed_holds.remove(hold)

    @property
    def holds_anything(self) -> bool:
        """Whether any write is in flight or in doubt."""
        return bool(self._holds or self._key_holds)

    def release_all(self) -> None:
        """Release every hold."""
        self._holds.clear()
        self._key_holds.clear()
        self.timed_holds.clear()

    def expire_holds(self, now: float) -> list[Any]:
        """Release the holds whose time is over, and invalidate their regions.

        A load that began during a hold, when the effect of the write may not have landed yet, is not stored and not
        joined after it.
        """
        over = [hold for hold in self.timed_holds if hold.until <= now]
        garbage: list[Any] = []
        for hold in over:
            self.release(hold)
            garbage += self.invalidate(hold.region)
        return garbage

    def invalidate(self, region: Region) -> list[Any]:
        """Mark and detach the loads that a region touches, and drop the entries.

        Returns:
            The dropped objects, for the caller to free outside the lock, in slices.
        """
        garbage: list[Any] = []
        for root in region.roots:
            for load in list(self._loads.get(root, ())):
                if region.reaches(load.partition):
                    self._mark_if_touched(load, region, root)
        for paths, exactly in ((region.paths, False), (region.bare, True)):
            for path in paths:
                for partition in self.partitions_under(root_of(path)):
                    if region.reaches(partition):
                        garbage += (_drop(partition, path, exactly=exactly),)
        for tool, key in region.keys:
            garbage.extend(self._invalidate_key(tool, key, region))
        return garbage

    @staticmethod
    def _mark_if_touched(load: Load, region: Region, root: str) -> None:
        if region.touches(load.tags):
            load.mark_dirty()
        elif root in load.late_roots:
            # Its tags are unknown, so nobody may join; whether it may be stored is decided when they are known.
            load.detach()
            if load.written is None:
                load.written = []
            if len(load.written) < _MAX_WRITTEN:
                load.written.append(region)
            else:
                load.is_clean = False

    def _invalidate_key(self, tool: object, key: Hashable, region: Region) -> Iterable[Any]:
        for loads in list(self._loads.values()):
            for load in list(loads):
                if load.partition.tool is tool and load.key == key and region.reaches(load.partition):
                    load.mark_dirty()
        for partition in self.partitions():
            if partition.tool is tool and region.reaches(partition):
                entry = partition.store.discard(key)
                if entry is not None:
                    yield [entry]


def _drop(partition: Partition, path: Tag, *, exactly: bool) -> Any:
    store = partition.store
    drops_all = (
        path in partition.static if exactly else ":" not in path or any(meet(tag, path) for tag in partition.static)
    )
    if drops_all or store.count_under(path) > _MANY:
        return store.drop_all()
    return store.drop_exactly(path) if exactly else store.drop_tag(path)
