"""Entries, and the bounded store that holds them.

An `Entry` is a value with its expiry, its load time, its tags and the version up to which it is known to count. A
`Store` holds the entries of one tool in one scope, the least recently used first. Nothing lists its entries by their
tags: whoever meets an entry asks `Store.is_current`, and a stale one is removed then. The rule: `core.versions`.

The owner of a store calls `insert`, `discard`, `evict`, `sweep`, `shorten` and `drop_all` under the lock of the
versions. Hits take none: `lookup` and `touch` are bound C methods of the current mapping, each atomic. Dropping
everything swaps the mapping; the old one is returned, to be freed outside of the lock.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from types import MappingProxyType
from typing import Any, Final, Protocol

from agent_cache.core.evidence import BY_NUMBER, BY_SIZE
from agent_cache.core.lease import Lease
from agent_cache.core.tags import Tag
from agent_cache.core.versions import VERSIONS, EntryTag, Versions, Written
from agent_cache.values.canonical import MISSING, size_of
from agent_cache.values.copies import faster

__all__ = ["NEVER", "Entry", "Lookup", "Sizes", "Store", "Tool", "UnsharedEntry", "entry_size"]

NEVER: Final = float("inf")

NO_VERSIONS: Final[Mapping[Any, Any]] = MappingProxyType({})


class Entry:
    """A cached value.

    Attributes:
        value: the value, if it may be given to every caller as it is; None if each gets a copy.
        fast: the clock reading before which a hit returns `value`, if there is no `lease`; in the past if each gets a
            copy.
        expires: the clock reading at which it expires.
        cost: the load time that a hit saves, in seconds.
        tags: everything that it depends on.
        checked: the version up to which no write is known to concern it.
        size: its estimated size in bytes; 0 if sizes are not bounded.
        copy: makes a copy of the value for one caller; None if the value is immutable.
        lease: the trust in the tiers that it depends on; None without tiers.
        kept_for: seconds after its expiry in which it may still be served.
        versions: what each tier knows as the versions of the value.
        failure: the exception of a copy that failed, to be logged when the value is loaded again.
        copies: how many hits have got a copy, up to the second: from then on `copy` is the fastest one for its value.
    """

    __slots__ = (
        "checked", "copies", "copy", "cost", "expires", "failure", "fast", "kept_for", "lease", "size", "tags", "value",
        "versions",
    )  # fmt: skip

    def __init__(
        self,
        value: Any,
        expires: float,
        cost: float,
        tags: tuple[Tag | EntryTag, ...] = (),
        *,
        copy: Callable[[], Any] | None = None,
        size: int = 0,
        lease: Lease | None = None,
        kept_for: float = 0.0,
    ) -> None:
        self.value = value
        self.expires = expires
        self.fast = expires if copy is None else -NEVER
        self.cost = cost
        self.tags = tags
        self.checked = 0
        self.copy = copy
        self.size = size
        self.lease = lease
        self.kept_for = kept_for
        self.versions: Mapping[Any, Any] = NO_VERSIONS
        self.failure: Exception | None = None
        self.copies = 0

    @property
    def kept_until(self) -> float:
        """The clock reading at which it is of no more use."""
        return self.expires + self.kept_for

    def expire_by(self, moment: float) -> None:
        """Let it expire no later than at this clock reading."""
        self.expires = min(self.expires, moment)
        self.fast = min(self.fast, moment)

    def share(self) -> Any:
        """The value for one caller, or `MISSING` if it cannot be copied."""
        if self.copy is None:
            return self.value
        try:
            return self.copy()
        except Exception as error:  # noqa: BLE001 - the user's function; the value is loaded again
            self.failure = error
            return MISSING

    def is_valid_at(self, now: float, grace: float = 0.0) -> bool:
        """Whether a call at this clock reading would be answered from it, up to so long after its expiry."""
        return now < self.expires + grace and (self.lease is None or self.lease.is_valid())

    def value_at(self, now: float) -> Any:
        """The value for a hit at this clock reading; `MISSING` if it has expired, or its tiers are not trusted now."""
        if now >= self.expires:
            return MISSING
        lease = self.lease
        if lease is not None:  # as Lease.is_valid(), without the call
            term = lease.term
            is_valid = lease.page[0] == lease.stamp and (term is None or term.clock() < term.until)
            if not is_valid and not lease.renew():
                return MISSING
        if self.copy is None:
            return self.value
        if self.copies < 2:
            self.copies += 1
            if self.copies == 2:
                self.copy = faster(self.copy)
        try:
            return self.copy()  # repeats share() without a frame (benchmarks.budgets, "protection of a flat dict")
        except Exception as error:  # noqa: BLE001 - as in share()
            self.failure = error
            return MISSING

    def expired_value(self) -> Any:
        """The value for one caller, whether it has expired or not; `MISSING` if it cannot be used otherwise."""
        return self.share() if self.lease is None or self.lease.is_valid() else MISSING


class UnsharedEntry(Entry):
    """Takes the place of a result that cannot be copied: only the caller that ran the tool gets it."""

    __slots__ = ()

    def share(self) -> Any:
        return MISSING


_TAG_SIZE: Final = 100
"""Bytes of one tag of an entry, its text and its place in a tuple."""


def entry_size(stored: Any, key: Hashable, tags: tuple[Tag | EntryTag, ...]) -> int:
    """Estimate the bytes of an entry: what is stored (the value, or what makes its copies), its key, and its tags."""
    return size_of(key, tags, stored) + _TAG_SIZE * len(tags)


# The store

Lookup = Callable[[Hashable], "Entry | None"]


class Tool(Protocol):
    """What a store knows of its tool.

    Attributes:
        number: its number in the tags of its entries.
        is_named: whether any of its entries was ever written by its key. Until then none is asked for.
    """

    number: int
    is_named: bool


def _no_entry(_key: Hashable) -> None:
    """Takes the place of `Store.lookup` while the store is switched off."""


_NO_LOADS: Final[Mapping[Hashable, Any]] = MappingProxyType({})


_NEWEST: Final = object()
"""The key of the newest entry in what was dropped."""


def _let_go(_entry: Entry) -> None:
    """Nobody is told of an entry that is gone."""


class Store:
    """Entries of one tool in one scope, and its loads that a reader may join.

    Args:
        maxsize: how many entries it holds at most; dead ones are dropped first, then the least recently used. None for
            no bound.
        tool: the operation whose results it holds.
        owner: the session it belongs to; None for the global scope.
        static: tags that every entry depends on.
        versions: what its entries are checked by.

    Attributes:
        flights: loads in flight that a reader may join, by (key, event loop).
        requests: the requests that tiers were sent for calls, by key. Bounded.
        is_open: False once its session has ended: nothing is stored any more.
        lookup: the entry under a key, or None: whether it is current is still to be asked.
        touch: makes a key the most recently used; raises KeyError if it is not there.
        newest: the entry that was used last.
        bytes: the sum of the sizes of the entries.
        sizes: the sum over several stores that this one counts in; None for a store on its own.
        recorded: what `sizes` has on record for it: at least `bytes`.
        stats: the counters of its tool.
        latest: the latest loads that its owner remembers, to be told of evictions: see `core.evidence`.
        session: the id of the session that the entries belong to, which is a part of the keys there; None without one.
        let_go: told of each entry that was found stale.
    """

    __slots__ = (
        "__weakref__", "_data", "_gate", "_own", "_shown", "_unswept", "bytes", "flights", "is_open", "latest",
        "let_go", "lookup", "maxsize", "newest", "owner", "recorded", "requests", "session", "sizes", "static", "stats",
        "tool", "touch", "versions",
    )  # fmt: skip

    lookup: Lookup
    touch: Callable[[Hashable], None]

    def __init__(
        self,
        maxsize: int | None,
        tool: Any,
        owner: Any = None,
        static: tuple[Tag, ...] = (),
        versions: Versions = VERSIONS,
    ) -> None:
        self.maxsize = maxsize
        self.versions = versions
        self.tool = tool
        self.owner = owner
        self.static = static
        self._own: Written | None = None if owner is None else versions.of_session(owner)
        self.flights: dict[tuple[Hashable, object], Any] = {}
        self.requests: dict[Hashable, Any] = {}
        self.is_open = True
        self._shown: tuple[dict[str, Any], str] | None = None
        self._gate: Callable[[Lookup], Lookup] | None = None
        self.sizes: Sizes | None = None
        self.recorded = 0
        self.stats: Any = None
        self.latest: Mapping[Hashable, Any] = _NO_LOADS
        self.session: str | None = None if owner is None else owner.session_id
        self.let_go: Callable[[Entry], object] = _let_go
        self._renew()

    def _renew(self) -> None:
        self._data: OrderedDict[Hashable, Entry] = OrderedDict()
        self._unswept: list[Hashable] = []  # keys that `sweep` has not come to yet
        self.bytes = 0
        self.switch(on=True)
        self.touch = self._data.move_to_end
        self.newest: Entry | None = None

    def __del__(self) -> None:
        if self.bytes and self.sizes is not None:
            self.sizes.lost.append(self.bytes)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._data

    def peek(self, key: Hashable) -> Entry | None:
        """The entry under a key, also while the store is switched off, without counting as a use."""
        return self._data.get(key)

    def keys(self) -> list[Hashable]:
        """All keys, least recently used first."""
        return list(self._data)

    # Whether an entry counts

    def tags_of(self, key: Hashable, tags: tuple[Tag | EntryTag, ...]) -> tuple[Tag | EntryTag, ...]:
        """What the entry under a key depends on: these tags, and its own if any entry was ever written by its key."""
        tool = self.tool
        return (*tags, (tool.number, key)) if tool.is_named else tags

    def is_touched(self, key: Hashable, tags: tuple[Tag | EntryTag, ...], since: int) -> bool:
        """Whether a write that is newer than this version concerns an entry or a load with these tags."""
        if since == self.versions.now:
            return False
        tags = self.tags_of(key, tags)
        return self.versions.touches(tags, since) or (self._own is not None and self._own.touches(tags, since))

    def is_held(self, key: Hashable, tags: tuple[Tag | EntryTag, ...]) -> bool:
        """Whether a write that runs, or may still take effect, keeps an entry with these tags from being stored."""
        own = self._own
        if not self.versions.held and (own is None or not own.held):
            return False
        tags = self.tags_of(key, tags)
        return self.versions.holds(tags) or (own is not None and own.holds(tags))

    def may_take(self, key: Hashable, tags: tuple[Tag | EntryTag, ...], since: int) -> bool:
        """Whether a load with these tags, which began with this version, may be stored: no later write concerns it, and
        none that runs, or may still take effect. The caller holds the lock.
        """
        own, versions = self._own, self.versions
        if since == versions.now and not versions.held and (own is None or not own.held):  # nearly always
            return True
        return not (self.is_touched(key, tags, since) or self.is_held(key, tags))

    def is_held_beside(self, hold: Any, key: Hashable, tags: tuple[Tag | EntryTag, ...]) -> bool:
        """The same for another write than the one that has this hold."""
        return self.versions.is_held_beside(hold, self.tags_of(key, tags), self._own)

    def is_current(self, key: Hashable, entry: Entry) -> bool:
        """Whether an entry that was found under a key counts now. If not, it is removed."""
        now = self.versions.now  # first: a write that comes meanwhile is met the next time
        if entry.checked == now:
            return True
        if self.is_touched(key, entry.tags, entry.checked):
            with self.versions.lock:
                if self._data.get(key) is entry:
                    self.discard(key)
            self.let_go(entry)
            return False
        entry.checked = now
        return True

    def find(self, key: Hashable) -> Entry | None:
        """The entry under a key, if it counts now. It may have expired."""
        entry = self.lookup(key)
        return entry if entry is not None and self.is_current(key, entry) else None

    def count_current(self, now: float) -> int:
        """How many entries would be answered at this clock reading."""
        return sum([now < entry.kept_until and self.is_current(key, entry) for key, entry in list(self._data.items())])

    # Switches

    def switch(self, *, on: bool) -> None:
        """Switch lookups on or off. Entries stay, and can be dropped, either way."""
        self.lookup = self._data.get if on else _no_entry
        self._show()

    def show_in(self, names: dict[str, Any], name: str) -> None:
        """Keep `lookup` among the global names of generated code, too, under this name."""
        self._shown = names, name
        self._show()

    def sample(self, gate: Callable[[Lookup], Lookup] | None) -> None:
        """Let generated code look up entries by what `gate` makes of `lookup`; None for `lookup` itself."""
        self._gate = gate
        self._show()

    def _show(self) -> None:
        if self._shown is not None:
            names, name = self._shown
            names[name] = self.lookup if self._gate is None else self._gate(self.lookup)

    # Changes

    def use(self, key: Hashable, entry: Entry) -> None:
        """Make an entry the most recently used. Not needed if it is `newest`, which the caller checks first."""
        try:
            self.touch(key)
        except KeyError:
            return  # dropped by another thread after this call looked it up
        self.newest = entry

    def insert(self, key: Hashable, entry: Entry, now: float) -> tuple[Entry | None, list[Entry]]:
        """Insert or replace an entry.

        Args:
            now: the clock reading.

        Returns:
            The entry that was evicted for it, if one was, and the dead ones that were dropped.
        """
        data = self._data
        if key in data:
            self.discard(key)
        data[key] = entry
        self.newest = entry
        if entry.size:
            self._resize(entry.size)
        if self.maxsize is None:
            return None, self.sweep(now)
        if len(data) <= self.maxsize:
            return None, []
        swept = self.sweep(now)
        if len(data) <= self.maxsize:
            return None, swept
        key, oldest = data.popitem(last=False)
        if self.latest:
            self._note_evicted(key, BY_NUMBER)
        if oldest.size:
            self._resize(-oldest.size)
        return oldest, swept

    def evict(self) -> Entry:
        """Remove the least recently used entry."""
        key = next(iter(self._data))
        self._note_evicted(key, BY_SIZE)
        entry = self.discard(key)
        assert entry is not None
        return entry

    def _note_evicted(self, key: Hashable, why: int) -> None:
        load = self.latest.get(key if self.session is None else (self.session, key))
        if load is not None:
            load.evicted = why

    def discard(self, key: Hashable) -> Entry | None:
        """Remove the entry under a key, if there is one."""
        entry = self._data.pop(key, None)
        if entry is not None:
            if entry.size:
                self._resize(-entry.size)
            if entry is self.newest:
                self.newest = None
        return entry

    def sweep(self, now: float, most: int = 2) -> list[Entry]:
        """Remove a few entries that are of no more use: called at each insertion into a full store, or one without a
        bound.

        Args:
            most: how many keys are examined. With two, all have been after half as many insertions as there were
                entries, and a store without a bound holds at most about twice as many as have been in use at one time.
        """
        swept: list[Entry] = []
        for _ in range(most):
            if not self._unswept:
                # Rare, and less than the growth of the mapping: 10 ms for a million entries, in no particular order.
                self._unswept = list(dict.__iter__(self._data))
                if not self._unswept:
                    break
            key = self._unswept.pop()
            entry = self._data.get(key)
            if entry is not None and (
                entry.expires + entry.kept_for <= now
                or (entry.checked != self.versions.now and self.is_touched(key, entry.tags, entry.checked))
            ):
                self.discard(key)
                swept.append(entry)
        return swept

    def drop_all(self) -> OrderedDict[Hashable, Entry]:
        """Empty the store in constant time. Returns its entries, to be freed outside of the lock."""
        was_on = self.lookup is not _no_entry
        dropped = self._data
        if self.newest is not None:  # perhaps not in the mapping: a hit may note an entry just as it is dropped
            dropped[_NEWEST] = self.newest
        if self.bytes:
            self._resize(-self.bytes)
        self._renew()
        self.switch(on=was_on)
        return dropped

    def close(self) -> OrderedDict[Hashable, Entry]:
        """Store nothing any more, since the session has ended. Returns what was dropped."""
        self.is_open = False
        return self.drop_all()

    def _resize(self, change: int) -> None:
        self.bytes += change
        if self.sizes is not None:
            self.sizes.change(self, change)


class Sizes:
    """The sizes of several stores in sum, and which of them is the largest.

    The stores are in a heap, by the figure that was recorded for each when it last grew. A store that has shrunk since
    is put in its place when it comes to the top, so an insertion takes O(log n) for n stores, and finding the largest
    as much on average.

    Attributes:
        lost: sizes of stores that were freed with entries in them, still to be subtracted.
    """

    __slots__ = ("_heap", "_limit", "_serial", "_total", "lost")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, weakref.ref[Store]]] = []
        self._limit = 64
        self._serial = itertools.count()
        self._total = 0
        self.lost: deque[int] = deque()  # appended to by the garbage collector, on any thread

    @property
    def total(self) -> int:
        """The sum of the sizes, of those that exist."""
        while self.lost:
            self._total -= self.lost.popleft()
        return self._total

    def change(self, store: Store, change: int) -> None:
        """Count a change of a store, and record the store if it has grown."""
        self._total += change
        if store.bytes > store.recorded:
            store.recorded = store.bytes
            heappush(self._heap, (-store.bytes, next(self._serial), weakref.ref(store)))
            if len(self._heap) > self._limit:
                self._compact()

    def largest(self) -> Store | None:
        """The store of the largest size; None if all are empty."""
        heap = self._heap
        while heap:
            size, _, reference = heap[0]
            store = reference()
            if store is None or store.recorded != -size:  # freed, or recorded again since
                heappop(heap)
            elif store.bytes == store.recorded:
                return store if store.bytes else None
            else:
                store.recorded = store.bytes
                heapreplace(heap, (-store.bytes, next(self._serial), reference))
        return None

    def _compact(self) -> None:
        """Remove the records that are out of date. The heap has doubled since it was last done."""
        stores = [(record, record[2]()) for record in self._heap]
        self._heap = [record for record, store in stores if store is not None and store.recorded == -record[0]]
        heapify(self._heap)
        self._limit = max(64, 2 * len(self._heap))
