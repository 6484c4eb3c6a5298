"""Entries, and the bounded store that holds them.

An `Entry` is a value with its expiry and its load time; a store holds most of them as tuples (`Plain`). A `Store` holds
the entries of one tool in one scope: strict LRU, and an index from tag to keys. All of it is free of clocks and locks.

The owner of a store calls `insert`, `discard` and the ``drop_*`` methods under one lock. Hits take none: `lookup` and
`touch` are bound C methods of the current mapping, each atomic under the GIL. Dropping everything swaps the mapping, so
it takes the same time for ten entries as for a million; the old one is returned, to be freed in slices.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from types import MappingProxyType
from typing import Any, Final

from agent_cache.core.evidence import BY_NUMBER, BY_SIZE
from agent_cache.core.lease import Lease
from agent_cache.core.tags import Part, Tag, ancestors
from agent_cache.values.canonical import MISSING, size_of

__all__ = [
    "Dropped",
    "Entry",
    "GuardedEntry",
    "NEVER",
    "KeptEntry",
    "LeasedEntry",
    "Lookup",
    "Plain",
    "SizedEntry",
    "Sizes",
    "Store",
    "Stored",
    "UnsharedEntry",
    "entry_of",
    "entry_size",
    "expires_of",
    "expiring_by",
    "tags_of",
]


NEVER: Final = float("inf")


class Entry:
    """A cached value that may be returned as it is.

    Attributes:
        fast: the clock reading before which a hit returns `value` without further checks.
        cost: the load time that a hit saves, in seconds.
        tags: the tags it can be dropped by, beside the static tags of its tool.
        size: its estimated size in bytes; 0 if sizes are not bounded. Only `SizedEntry` and its subclasses have a slot
            for it, which saves 8 bytes of each entry where nothing is bounded.
    """

    __slots__ = ("cost", "fast", "tags", "value")

    size: int = 0

    def __init__(self, value: Any, fast: float, cost: float, tags: tuple[Tag, ...] = ()) -> None:
        self.value = value
        self.fast = fast
        self.cost = cost
        self.tags = tags

    @property
    def expires(self) -> float:
        """The clock reading at which the entry expires."""
        return self.fast

    @property
    def kept_until(self) -> float:
        """The clock reading at which the entry is of no more use, so that `Store.sweep` removes it."""
        return self.expires

    def expire_by(self, moment: float) -> None:
        """Let the entry expire no later than at this clock reading. Before it is inserted."""
        self.fast = min(self.fast, moment)

    def share(self) -> Any:
        """The value for a caller that has waited for its load, or `MISSING` if it cannot be copied."""
        return self.value

    def is_valid_at(self, now: float, grace: float = 0.0) -> bool:
        """Whether a call at this clock reading would be answered from the entry, up to so long after its expiry."""
        return now < self.fast + grace

    def value_at(self, now: float) -> Any:
        """The value for a hit at this clock reading, or `MISSING` if the entry has expired."""
        return self.value if now < self.fast else MISSING

    def expired_value(self) -> Any:
        """The value for one caller, whether the entry has expired or not; `MISSING` if it cannot be used otherwise."""
        return self.value


class SizedEntry(Entry):
    """An entry that counts against `configure(max_bytes=...)`."""

    __slots__ = ("size",)

    def __init__(self, value: Any, fast: float, cost: float, tags: tuple[Tag, ...], size: int) -> None:
        super().__init__(value, fast, cost, tags)
        self.size = size


class KeptEntry(SizedEntry):
    """An entry that may still be served for a while after it has expired.

    Attributes:
        kept_for: how long, in seconds.
    """

    __slots__ = ("kept_for",)

    def __init__(self, value: Any, fast: float, cost: float, tags: tuple[Tag, ...], size: int, kept_for: float) -> None:
        super().__init__(value, fast, cost, tags, size)
        self.kept_for = kept_for

    @property
    def kept_until(self) -> float:
        return self.fast + self.kept_for


NO_VERSIONS: Final[Mapping[Any, Any]] = MappingProxyType({})


class LeasedEntry(SizedEntry):
    """An immutable value that is served while a lease is valid.

    `fast` is when it expires. Whoever compares it has seen the class first, and tests the lease as well: the generated
    body, and `engine.plan`.

    Attributes:
        lease: the trust in the tiers that it depends on.
        kept_for: seconds after its expiry in which it may still be served.
        versions: what each tier knows as the versions of the value.
    """

    __slots__ = ("kept_for", "lease", "versions")

    def __init__(
        self,
        value: Any,
        fast: float,
        cost: float,
        tags: tuple[Tag, ...],
        size: int,
        lease: Lease,
        kept_for: float = 0.0,
    ) -> None:
        # As SizedEntry.__init__, without the call.
        self.value = value
        self.fast = fast
        self.cost = cost
        self.tags = tags
        self.size = size
        self.lease = lease
        self.kept_for = kept_for
        self.versions: Mapping[Any, Any] = NO_VERSIONS

    @property
    def kept_until(self) -> float:
        return self.fast + self.kept_for

    def is_valid_at(self, now: float, grace: float = 0.0) -> bool:
        return now < self.fast + grace and self.lease.is_valid()

    def value_at(self, now: float) -> Any:
        """The value for a hit, or `MISSING` if the entry has expired or its lease is not valid."""
        return self.value if now < self.fast and self.lease.is_valid() else MISSING

    def expired_value(self) -> Any:
        return self.value if self.lease.is_valid() else MISSING


class GuardedEntry(SizedEntry):
    """A mutable value, which is copied at each hit.

    Its `fast` lies in the past, so that the inline test of a hit fails and calls `value_at`; entries of the other kinds
    pay nothing for it.

    Attributes:
        copy: makes a copy for one caller.
        lease: the trust in the tiers that it depends on; None without tiers.
        failure: the exception of a copy that failed, to be logged when the value is loaded again.
        kept_for: seconds after its expiry in which it may still be served.
        versions: what each tier knows as the versions of the value; empty without tiers.
    """

    __slots__ = ("_expires", "copy", "failure", "kept_for", "lease", "versions")

    def __init__(
        self,
        cost: float,
        tags: tuple[Tag, ...],
        size: int,
        expires: float,
        copy: Callable[[], Any],
        lease: Lease | None = None,
        kept_for: float = 0.0,
    ) -> None:
        # As SizedEntry.__init__, without the call.
        self.value = None
        self.fast = -NEVER
        self.cost = cost
        self.tags = tags
        self.size = size
        self._expires = expires
        self.copy = copy
        self.lease = lease
        self.failure: Exception | None = None
        self.kept_for = kept_for
        self.versions: Mapping[Any, Any] = NO_VERSIONS

    @property
    def expires(self) -> float:
        return self._expires

    @property
    def kept_until(self) -> float:
        return self._expires + self.kept_for

    def is_valid_at(self, now: float, grace: float = 0.0) -> bool:
        return now < self._expires + grace and (self.lease is None or self.lease.is_valid())

    def value_at(self, now: float) -> Any:
        """A copy for one hit, or `MISSING` if the entry has expired or its lease is not valid."""
        if now >= self._expires:
            return MISSING
        lease = self.lease
        if lease is not None:  # as Lease.is_valid(), without the call
            term = lease.term
            is_valid = lease.page[0] == lease.stamp and (term is None or term.clock() < term.until)
            if not is_valid and not lease.renew():
                return MISSING
        try:
            return self.copy()  # repeats share() without a frame (benchmarks.budgets, "protection of a flat dict")
        except Exception as error:  # noqa: BLE001 - as in share()
            self.failure = error
            return MISSING

    def expire_by(self, moment: float) -> None:
        self._expires = min(self._expires, moment)

    def expired_value(self) -> Any:
        return self.share() if self.lease is None or self.lease.is_valid() else MISSING

    def share(self) -> Any:
        try:
            return self.copy()
        except Exception as error:  # noqa: BLE001 - the user's function; the value is loaded again
            self.failure = error
            return MISSING


class UnsharedEntry(Entry):
    """Takes the place of a result that cannot be copied: only the caller that ran the tool gets it."""

    __slots__ = ()

    def share(self) -> Any:
        return MISSING


Plain = tuple[Any, ...]
"""``(value, fast, cost, *tags)``: a stored entry that needs no more of `Entry` than these.

Nearly all entries of immutable values are kept so. The garbage collector forgets an exact tuple as soon as it has seen
that nothing in it can be part of a cycle, whereas it visits every object with slots in each full collection, and starts
one whenever a quarter more of these have come: with 1.5 million entries, for 0.3 s. A tuple of the tags in the tuple
would be seen too late: so long, that full collections came as often as before.
"""

Stored = Entry | Plain
"""What a store holds. Its identity is that of the entry.

Hot code tells the two apart by ``type(entry) is tuple``, since `isinstance` takes 60 ns to say no. Type checkers do not
conclude from it what else an entry is.
"""


def entry_of(stored: Stored) -> Entry:
    """A stored entry with attributes and methods: itself, or a new object for a plain one."""
    return Entry(stored[0], stored[1], stored[2], stored[3:]) if isinstance(stored, tuple) else stored


def tags_of(stored: Stored) -> tuple[Tag, ...]:
    """`Entry.tags` of a stored entry."""
    return stored[3:] if isinstance(stored, tuple) else stored.tags


def expires_of(stored: Stored) -> float:
    """`Entry.expires` of a stored entry."""
    return stored[1] if isinstance(stored, tuple) else stored.expires


def expiring_by(stored: Stored, moment: float) -> Stored:
    """An entry that is still to be inserted, so that it expires no later than at this clock reading."""
    if isinstance(stored, tuple):
        return (stored[0], min(stored[1], moment), *stored[2:])
    stored.expire_by(moment)
    return stored


# The store

Key = Hashable
Lookup = Callable[[Key], Stored | None]


class _Keys(set[Key]):
    """Several keys under one tag. A single key is stored without a set, which saves 200 bytes an entry."""

    __slots__ = ()


def _no_entry(_key: Key) -> None:
    """Takes the place of `Store.lookup` while the store is switched off."""


_NO_LOADS: Final[Mapping[Hashable, Any]] = MappingProxyType({})

_TAGS_OF_ENTRY = 8
"""How many tags are removed from the index in the time of an entry."""

_TAG_SIZE = 70
_LOWER_TAG_SIZE = 150
"""What the index of a store takes for a tag, and for each level below the second."""


def entry_size(stored: Any, key: Key, tags: tuple[Tag, ...]) -> int:
    """Estimate the bytes of an entry: what is stored (the value, or what makes its copies), its key, and its tags."""
    size = size_of(key, tags, stored)
    for tag in tags:
        size += _TAG_SIZE + _LOWER_TAG_SIZE * max(tag.count(":") - 1, 0)
    return size


class Dropped(tuple[Any, ...]):
    """The containers of a store that was emptied. A class of its own, since an entry may be a tuple."""

    __slots__ = ()


class Store:
    """Entries of one tool in one scope.

    Args:
        maxsize: how many entries it holds at most; the least recently used is evicted first. None for no bound.
        guard: makes the function that looks up entries, from the one that does so unconditionally.

    Attributes:
        lookup: the entry under a key, or None.
        touch: makes a key the most recently used; raises KeyError if it is not there.
        newest: the entry that was used last.
        bytes: the sum of the sizes of the entries.
        sizes: the sum over several stores that this one counts in; None for a store on its own.
        recorded: what `sizes` has on record for it: at least `bytes`.
        stats: the counters of its owner.
        latest: the latest loads that its owner remembers, to be told of evictions: see `core.evidence`.
        session: the id of the session that the entries belong to, which is a part of the keys there; None without one.
    """

    __slots__ = (
        "__weakref__",
        "_below",
        "_data",
        "_exact",
        "_find",
        "_gate",
        "_guard",
        "_shown",
        "_unswept",
        "bytes",
        "latest",
        "lookup",
        "maxsize",
        "newest",
        "recorded",
        "session",
        "sizes",
        "stats",
        "touch",
    )

    lookup: Lookup
    touch: Callable[[Key], None]

    def __init__(self, maxsize: int | None, guard: Callable[[Lookup], Lookup] | None = None) -> None:
        self.maxsize = maxsize
        self._guard = guard
        self._shown: tuple[dict[str, Any], str] | None = None
        self._gate: Callable[[Lookup], Lookup] | None = None
        self.sizes: Sizes | None = None
        self.recorded = 0
        self.stats: Any = None
        self.latest: Mapping[Hashable, Any] = _NO_LOADS
        self.session: str | None = None
        self._renew()

    def _renew(self) -> None:
        self._data: OrderedDict[Key, Stored] = OrderedDict()
        self._exact: dict[Tag, Key | _Keys] = {}
        # Keys whose tag lies strictly below a tag other than the root: only tags of three segments and more need it.
        self._below: dict[Tag, Key | _Keys] = {}
        # Keys that `sweep` has not come to yet.
        self._unswept: list[Any] = []
        self.bytes = 0
        # Guarded once, while it is empty: a new guard, at `switch`, would let entries be found that this one hides.
        find = self._data.get
        self._find: Lookup = find if self._guard is None else self._guard(find)
        self.switch(on=True)
        self.touch = self._data.move_to_end
        self.newest: Stored | None = None

    def __del__(self) -> None:
        if self.bytes and self.sizes is not None:
            self.sizes.lost.append(self.bytes)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: Key) -> bool:
        return key in self._data

    def peek(self, key: Key) -> Stored | None:
        """The entry under a key, also while the store is switched off, without counting as a use."""
        return self._data.get(key)

    def keys(self) -> list[Key]:
        """All keys, least recently used first."""
        return list(self._data)

    def items(self) -> list[tuple[Key, Stored]]:
        """All keys and entries, least recently used first."""
        return list(self._data.items())

    def switch(self, *, on: bool) -> None:
        """Switch lookups on or off. Entries stay, and can be dropped, either way."""
        self.lookup = self._find if on else _no_entry
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

    def use(self, key: Key, entry: Stored) -> None:
        """Make an entry the most recently used. Not needed if it is `newest`, which the caller checks first."""
        try:
            self.touch(key)
        except KeyError:
            return  # dropped by another thread after this call looked it up
        self.newest = entry

    def insert(self, key: Key, entry: Stored) -> Stored | None:
        """Insert or replace an entry. Returns the entry that was evicted for it, if one was."""
        data = self._data
        if key in data:
            self.discard(key)
        data[key] = entry
        self.newest = entry
        if type(entry) is tuple:
            tags = entry[3:] if len(entry) > 3 else ()
        else:
            full: Entry = entry  # type: ignore[assignment]  # see `Stored`
            tags = full.tags
            if type(full) is not Entry and full.size:  # the size of an `Entry` is 0, and reading it takes 40 ns
                self._resize(full.size)
        if tags:
            exact = self._exact
            for tag in tags:
                if tag in exact:
                    _link(exact, tag, key)
                else:
                    exact[tag] = key
                if tag.count(":") > 1:
                    for above in ancestors(tag)[1:]:
                        _link(self._below, above, key)
        if self.maxsize is None or len(data) <= self.maxsize:
            return None
        key, entry = data.popitem(last=False)
        if self.latest:
            self._note_evicted(key, BY_NUMBER)
        if type(entry) is not tuple:
            self._forget(key, entry)
        elif len(entry) > 3:
            self._unindex(key, entry[3:])
        return entry

    def evict(self) -> Stored:
        """Remove the least recently used entry."""
        key = next(iter(self._data))
        self._note_evicted(key, BY_SIZE)
        entry = self.discard(key)
        assert entry is not None
        return entry

    def _note_evicted(self, key: Key, why: int) -> None:
        load = self.latest.get(key if self.session is None else (self.session, key))
        if load is not None:
            load.evicted = why

    def shorten(self, keys: Iterable[Key], former: float | None, life: float) -> list[Stored]:
        """Let entries expire no later than `life` seconds after their loads began.

        When that was is not noted in an entry. It is known to be no earlier than `former` seconds before the entry
        expires, so none expires too late. Where that is not known either, the entry is dropped.

        Args:
            keys: of the entries, as far as there are any.
            former: seconds that no entry may have lived so far; None if there was no bound.

        Returns:
            What is not stored any more: entries that were dropped or replaced.
        """
        garbage: list[Stored] = []
        data = self._data
        for key in keys:
            entry = data.get(key)
            if entry is None:
                continue
            if former is None:
                self.discard(key)
            elif isinstance(entry, tuple):
                shorter = expiring_by(entry, entry[1] - former + life)
                data[key] = shorter
                if entry is self.newest:
                    self.newest = shorter
            else:
                entry.expire_by(entry.expires - former + life)
                continue
            garbage.append(entry)
        return garbage

    def discard(self, key: Key) -> Stored | None:
        """Remove the entry under a key, if there is one."""
        entry = self._data.pop(key, None)
        if entry is not None:
            self._forget(key, entry)
            if entry is self.newest:
                self.newest = None
        return entry

    def _forget(self, key: Key, entry: Stored) -> None:
        """Undo what `insert` has noted of an entry."""
        if type(entry) is tuple:
            if len(entry) > 3:
                self._unindex(key, entry[3:])
            return
        full: Entry = entry  # type: ignore[assignment]  # see `Stored`
        if self.bytes and full.size:
            self._resize(-full.size)
        if full.tags:
            self._unindex(key, full.tags)

    def may_meet(self, part: Part) -> bool:
        """Whether `drop_meeting` may find something: most writes touch nothing in most stores."""
        below = self._below
        return (
            part.is_whole
            or not self._exact.keys().isdisjoint(part.names)
            or bool(below and not below.keys().isdisjoint(part.paths))
        )

    def drop_meeting(self, part: Part, limit: int) -> list[Stored] | None:
        """Remove the entries with a tag that a part of a write touches. None, with nothing removed, if there are more
        than `limit`. Tags count as well, eight as an entry.
        """
        exact, below = self._exact, self._below
        found: list[Any] = []
        if part.is_whole:
            if len(exact) > limit:
                return None
            present = [exact[tag] for tag in exact if part.touches(tag)]
        else:
            present = [exact[tag] for tag in exact.keys() & part.names]
            if below:
                present += [below[tag] for tag in below.keys() & part.paths]
        for one in present:
            if type(one) is not _Keys:
                found.append(one)
            elif len(found) + len(one) <= limit:
                found += one
            else:
                return None
        if len(found) > 1:
            found = list(dict.fromkeys(found))
        if found and len(found) > limit:  # the limit may be used up
            return None
        tags = sum([len(tags_of(entry)) for key in found if (entry := self._data.get(key))])
        if tags > _TAGS_OF_ENTRY * max(limit, 0):
            return None
        return [entry for key in found if (entry := self.discard(key)) is not None]

    def sweep(self, now: float) -> list[Stored]:
        """Remove a few entries that are of no more use: called at each insertion into a store without a bound.

        Two keys are examined. So all have been after half as many insertions as there were entries, and the store holds
        at most about twice as many entries as have been in use at one time.
        """
        swept: list[Stored] = []
        for _ in range(2):
            if not self._unswept:
                # Rare, and less than the growth of the mapping: 10 ms for a million entries, in no particular order.
                self._unswept = list(dict.__iter__(self._data))
                if not self._unswept:
                    break
            key = self._unswept.pop()
            entry = self._data.get(key)
            if entry is not None and (entry[1] if isinstance(entry, tuple) else entry.kept_until) <= now:
                self.discard(key)
                swept.append(entry)
        return swept

    def drop_all(self) -> Dropped:
        """Empty the store in constant time. Returns its containers, the entries first, to be freed in slices."""
        was_on = self.lookup is not _no_entry
        dropped = Dropped((self._data, self._exact, self._below, self._unswept))
        if self.newest is not None:  # perhaps not in the mapping: a hit may note an entry just as it is dropped
            self._unswept.append(self.newest)
        if self.bytes:
            self._resize(-self.bytes)
        self._renew()
        self.switch(on=was_on)
        return dropped

    def _resize(self, change: int) -> None:
        self.bytes += change
        if self.sizes is not None:
            self.sizes.change(self, change)

    def _unindex(self, key: Key, tags: tuple[Tag, ...]) -> None:
        exact, below = self._exact, self._below
        for tag in tags:
            present = exact.get(tag, _ABSENT)
            if present is not key and type(present) is not _Keys and present == key:
                key = present  # the same object under all tags: equal keys may take long to compare
            if present is key:
                del exact[tag]
            else:
                _unlink(exact, tag, key)
            if below and tag.count(":") > 1:
                for above in ancestors(tag)[1:]:
                    _unlink(below, above, key)


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


_ABSENT: Any = object()  # None is a key like any other: that of a call whose only argument is None


def _link(index: dict[Tag, Any], tag: Tag, key: Key) -> None:
    present = index.get(tag, _ABSENT)
    if present is _ABSENT:
        index[tag] = key
    elif type(present) is _Keys:
        present.add(key)
    elif present != key:
        index[tag] = _Keys((present, key))


def _unlink(index: dict[Tag, Any], tag: Tag, key: Key) -> None:
    present = index.get(tag, _ABSENT)
    if type(present) is _Keys:
        present.discard(key)
        if not present:
            del index[tag]
    elif present is not _ABSENT and present == key:
        del index[tag]
