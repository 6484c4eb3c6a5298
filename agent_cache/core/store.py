"""Entries, and the bounded store that holds them.

An `Entry` is a value with its expiry, its load time, its tags and the version up to which it is known to count. A
`Store` holds the entries of one tool in one scope, the least recently used first. Nothing lists its entries by their
tags: whoever meets an entry asks `Store.is_current`, and a stale one is removed then. The rule: `core.versions`.

`insert`, `discard`, `evict`, `sweep` and `drop_all` are called under the lock of the versions. Hits
take none: `lookup`, `peek` and `touch` are bound C methods of the current mapping, each atomic. Dropping everything
swaps the mapping; the old one is returned, to be freed outside of the lock.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from agent_cache.core.lease import Lease
from agent_cache.core.tags import Tag
from agent_cache.core.versions import VERSIONS, EntryTag, Path, Versions, Written, paths_of
from agent_cache.values.canonical import MISSING, size_of
from agent_cache.values.copies import faster

__all__ = ["NEVER", "Entry", "Lookup", "Sizes", "Store", "UnsharedEntry", "entry_size"]

NEVER: Final = float("inf")

_NOTHING: Final[Mapping[Any, Any]] = {}


class Entry:
    """A cached value.

    Attributes:
        value: the value, if it may be given to every caller as it is; None if each gets a copy.
        fast: the clock reading before which a hit returns `value`, if its `lease` allows that; in the past if each
            gets a copy.
        expires: the clock reading at which it expires.
        cost: the load time that a hit saves, in seconds.
        tags: everything that it depends on.
        paths: the paths whose versions concern it; None until they are asked for.
        checked: the version up to which no write is known to concern it.
        size: its estimated size in bytes; 0 if sizes are not bounded.
        copy: makes a copy of the value for one caller; None if the value is immutable.
        lease: the trust in the tiers that it depends on; None without tiers.
        kept_for: seconds after its expiry in which it may still be served.
        versions: what each tier knows as the versions of the value.
        failure: the exception of a copy that failed, to be logged when the value is loaded again.
        copies: how many hits have got a copy, up to the second: from then on `copy` is the fastest one for its value.
        digest: what the loop guards of sessions compare it by; None until one does.
        loaded: the clock reading at which its tool was started. Set only where `validate=` and a `ttl` need it.
        etag: a digest of the value, of a tool with `validate=`; not set until one is asked for.
    """

    __slots__ = (
        "checked", "copies", "copy", "cost", "digest", "etag", "expires", "failure", "fast", "kept_for", "lease",
        "loaded", "paths", "size", "tags", "value", "versions",
    )  # fmt: skip

    loaded: float
    etag: str | None

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
        self.paths: tuple[Path, ...] | None = None
        self.checked = 0
        self.copy = copy
        self.size = size
        self.lease = lease
        self.kept_for = kept_for
        self.versions: Mapping[Any, Any] = _NOTHING
        self.failure: Exception | None = None
        self.copies = 0
        self.digest: Hashable | None = None

    def find_paths(self) -> tuple[Path, ...]:
        """Find its `paths`."""
        self.paths = found = paths_of(self.tags)
        return found

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
        lease = self.lease
        if now >= self.expires:
            return MISSING
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


def entry_size(stored: Any, key: Hashable, tags: tuple[Tag | EntryTag, ...]) -> int:
    """Estimate the bytes of an entry: what is stored (the value, or what makes its copies), its key, and its tags."""
    return size_of(key, tags, stored) + 100 * len(tags)


# The store

Lookup = Callable[[Hashable], "Entry | None"]


class Dropped(NamedTuple):
    """What an insertion has dropped: the entry that it replaced, the one that was evicted, and dead ones."""

    replaced: Entry | None
    evicted: Entry | None = None
    swept: Sequence[Entry] = ()


_NEWEST: Final = object()
"""The key of the newest entry in what was dropped."""


def _no_entry(_key: Hashable) -> None:
    """Takes the place of `Store.lookup` while the store is switched off."""


class Store:
    """Entries of one tool in one scope, and its loads that a reader may join.

    Args:
        maxsize: how many entries it holds at most; dead ones are dropped first, then the least recently used. None for
            no bound.
        tool: the operation whose results it holds: it has a `number`, and `is_named` says whether any of its entries
            was ever written by its key.
        owner: the session it belongs to; None for the global scope.
        static: tags that every entry depends on.
        versions: what its entries are checked by.

    Attributes:
        flights: loads in flight that a reader may join, by (key, event loop).
        is_open: False once its session has ended: nothing is stored any more.
        lookup: the entry under a key, or None: whether it is current is still to be asked.
        peek: the same, also while the store is switched off. Neither counts as a use.
        touch: makes a key the most recently used; raises KeyError if it is not there.
        newest: the entry that was used last.
        bytes: the sum of the sizes of the entries.
        sizes: the sum over several stores that this one counts in, None for a store on its own; `is_counted` there.
        stats: the counters of its tool.
        session: the id of the session that the entries belong to, by which tiers tell them apart; None without one.
    """

    __slots__ = (
        "__weakref__", "_data", "_gate", "_own", "_shown", "_unswept", "bytes", "flights", "is_counted", "is_open",
        "lookup", "maxsize", "most", "newest", "owner", "peek", "session", "sizes", "static",
        "stats", "tool", "touch", "versions",
    )  # fmt: skip

    lookup: Lookup
    peek: Lookup
    touch: Callable[[Hashable], None]

    def __init__(
        self,
        maxsize: int | None,
        tool: Any,
        owner: Any = None,
        static: tuple[Tag, ...] = (),
        versions: Versions = VERSIONS,
    ) -> None:
        self.maxsize, self.tool, self.owner, self.static, self.versions = maxsize, tool, owner, static, versions
        self.most = maxsize or 0  # entries that need no look at dead ones
        self._own: Written | None = None if owner is None else versions.of_session(owner)
        self.flights: dict[tuple[Hashable, object], Any] = {}
        self.is_open = True
        self._shown: tuple[dict[str, Any], str] | None = None
        self._gate: Callable[[Lookup], Lookup] | None = None
        self.sizes: Sizes | None = None
        self.is_counted = False
        self.stats: Any = None
        self.session: str | None = None if owner is None else owner.session_id
        self._renew(is_on=True)

    def _renew(self, *, is_on: bool) -> None:
        self._data: OrderedDict[Hashable, Entry] = OrderedDict()
        self._unswept: list[Hashable] = []  # keys that `sweep` has not come to yet
        self.bytes = 0
        self.peek = self._data.get
        self.touch = self._data.move_to_end
        self.newest: Entry | None = None
        self.switch(on=is_on)

    def __del__(self) -> None:
        if self.bytes and self.sizes is not None:
            self.sizes.lost.append(self.bytes)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._data

    def keys(self) -> list[Hashable]:
        """All keys, least recently used first."""
        return list(self._data)

    # Whether an entry counts

    def is_touched(self, key: Hashable, tags: Sequence[Tag | EntryTag], since: int) -> bool:
        """Whether a write that is newer than this version concerns a load with these tags."""
        return since != self.versions.now and self.is_written(key, paths_of(tags), since)

    def is_stale(self, key: Hashable, entry: Entry) -> bool:
        """Whether a write that is newer than ``entry.checked`` concerns an entry."""
        return self.is_written(key, entry.paths or entry.find_paths(), entry.checked)

    def is_written(self, key: Hashable, paths: tuple[Path, ...], since: int) -> bool:
        """Whether a write that is newer than this version concerns what has this key, or depends on these paths."""
        own, tool = self._own, self.tool
        if tool.is_named:
            paths = (*paths, *paths_of(((tool.number, key),)))
        return self.versions.touches(paths, since) or (own is not None and own.touches(paths, since))

    def is_held(self, key: Hashable, paths: tuple[Path, ...], beside: Any = None) -> bool:
        """Whether a write, but for that of the hold `beside`, keeps an entry with these paths from being stored, since
        it runs, or may still take effect.
        """
        own, tool = self._own, self.tool
        if tool.is_named:
            paths = (*paths, *paths_of(((tool.number, key),)))
        return self.versions.holds(paths, beside) or (own is not None and own.holds(paths, beside))

    def may_take(self, key: Hashable, entry: Entry, since: int) -> bool:
        """Whether the entry of a load that began with this version may be stored: no later write concerns it, and none
        that runs, or may still take effect. The caller holds the lock.
        """
        own, versions = self._own, self.versions
        is_new, is_held = since == versions.now, versions.held or (own is not None and own.held)
        if is_new and not is_held:
            return True
        paths = entry.paths or entry.find_paths()
        return (is_new or not self.is_written(key, paths, since)) and not (is_held and self.is_held(key, paths))

    def is_current(self, key: Hashable, entry: Entry) -> bool:
        """Whether an entry that was found under a key counts now. If not, it is removed."""
        now = self.versions.now  # first: a write that comes meanwhile is met the next time
        if entry.checked != now:
            if self.is_stale(key, entry):
                with self.versions.lock:
                    if self._data.get(key) is entry:
                        self.discard(key)
                return False
            entry.checked = now
        return True

    def find(self, key: Hashable) -> Entry | None:
        """The entry under a key, if it counts now. It may have expired."""
        entry = self.lookup(key)
        return entry if entry is not None and self.is_current(key, entry) else None

    def count_current(self, now: float) -> int:
        """How many entries would be answered at this clock reading."""
        data = list(self._data.items())
        return sum([now < entry.expires + entry.kept_for and self.is_current(key, entry) for key, entry in data])

    # Switches

    def switch(self, *, on: bool) -> None:
        """Switch lookups on or off. Entries stay, and can be dropped, either way."""
        self.lookup = self.peek if on else _no_entry
        if self._shown is not None:
            names, name = self._shown
            names[name] = self.lookup if self._gate is None else self._gate(self.lookup)

    def show_in(self, names: dict[str, Any], name: str) -> None:
        """Keep `lookup` among the global names of generated code, too, under this name."""
        self._shown = names, name
        self.switch(on=self.lookup is not _no_entry)

    def sample(self, gate: Callable[[Lookup], Lookup] | None) -> None:
        """Let generated code look up entries by what `gate` makes of `lookup`; None for `lookup` itself."""
        self._gate = gate
        self.switch(on=self.lookup is not _no_entry)

    # Changes

    def use(self, key: Hashable, entry: Entry) -> None:
        """Make an entry the most recently used. Not needed if it is `newest`, which the caller checks first."""
        try:
            self.touch(key)
        except KeyError:
            return  # dropped by another thread after this call looked it up
        self.newest = entry

    def insert(self, key: Hashable, entry: Entry, now: float) -> Dropped | None:
        """Insert or replace an entry at this clock reading. Returns what was dropped for it, None if nothing was."""
        data = self._data
        replaced = self.discard(key) if key in data else None
        data[key] = self.newest = entry
        if entry.size:
            self._resize(entry.size)
        if len(data) <= self.most:
            return None if replaced is None else Dropped(replaced)
        swept = self.sweep(now)
        is_full = self.maxsize is not None and len(data) > self.maxsize
        return Dropped(replaced, self.evict() if is_full else None, swept)

    def evict(self) -> Entry:
        """Remove the least recently used entry."""
        key = next(iter(self._data))
        entry = self.discard(key)
        assert entry is not None
        return entry

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
                or (entry.checked != self.versions.now and self.is_stale(key, entry))
            ):
                self.discard(key)
                swept.append(entry)
        return swept

    def drop_all(self) -> OrderedDict[Hashable, Entry]:
        """Empty the store in constant time. Returns its entries, to be freed outside of the lock."""
        dropped = self._data
        if self.newest is not None:  # perhaps not in the mapping: a hit may note an entry just as it is dropped
            dropped[_NEWEST] = self.newest
        if self.bytes:
            self._resize(-self.bytes)
        self._renew(is_on=self.lookup is not _no_entry)
        return dropped

    def close(self) -> OrderedDict[Hashable, Entry]:
        """Store nothing any more, since the session has ended. Returns what was dropped."""
        self.is_open = False
        return self.drop_all()

    def _resize(self, change: int) -> None:
        self.bytes += change
        if self.sizes is not None:
            self.sizes.change(self, change)


_SAMPLE: Final = 16
"""How many stores are compared for the largest one, as Redis compares keys for the one that is least used."""


class Sizes:
    """The sizes of several stores in sum, and which of the next few of them is the largest.

    Attributes:
        lost: sizes of stores that were freed with entries in them, still to be subtracted.
    """

    __slots__ = ("_limit", "_place", "_stores", "_total", "lost")

    def __init__(self) -> None:
        self._stores: list[weakref.ref[Store]] = []
        self._place = self._total = 0
        self._limit = 64
        self.lost: deque[int] = deque()  # appended to by the garbage collector, on any thread

    @property
    def total(self) -> int:
        """The sum of the sizes, of those that exist."""
        while self.lost:
            self._total -= self.lost.popleft()
        return self._total

    def change(self, store: Store, change: int) -> None:
        """Count a change of a store."""
        self._total += change
        if not store.is_counted:
            store.is_counted = True
            self._stores.append(weakref.ref(store))
            if len(self._stores) > self._limit:
                self._stores = [one for one in self._stores if one() is not None]
                self._limit = max(64, 2 * len(self._stores))

    def largest(self) -> Store | None:
        """The largest of the next 16 stores that are not empty, of all if there are no more; None if all are empty."""
        found: Store | None = None
        most = seen = 0
        stores = self._stores
        while seen < min(_SAMPLE, len(stores)):
            place = self._place % len(stores)
            store = stores[place]()
            size = 0 if store is None else store.bytes
            if store is None or not size:
                if store is not None:
                    store.is_counted = False
                stores[place] = stores[-1]
                stores.pop()
                continue
            if size > most:
                found, most = store, size
            self._place = place + 1
            seen += 1
        return found
