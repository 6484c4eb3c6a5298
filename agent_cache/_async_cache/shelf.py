"""What an `AsyncCache` holds: its entries, and the loads that are about to become entries.

A load is kept only if nothing was set, deleted or cleared under its key since it began. As in the ledger of the tools,
{check, insert} and {spoil, drop} are one step each, under the same lock; hits take none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Protocol
from uuid import UUID

from agent_cache.clock import CLOCK
from agent_cache.core.coherence import Load, Partition
from agent_cache.core.keys import PLAIN, Part, key_part
from agent_cache.core.store import NEVER, Entry
from agent_cache.engine.state import LEDGER, free
from agent_cache.errors import AgentLoopDetectedError

__all__ = ["Contents", "Kept", "Loads", "Shelf", "Work", "identity"]

_BY_VALUE: Final[frozenset[type]] = frozenset(
    {bool, float, complex, bytes, range, date, datetime, time, timedelta, timezone, Decimal, Fraction, UUID}
)
"""Types whose own equality says less than their value does: ``1 == True == 1.0``, ``0.0 == -0.0``."""


def identity(key: Hashable) -> Part:
    """What a key is known by: type-exact where Python's equality folds values of several types together.

    Python calls ``1``, ``True`` and ``1.0`` equal, and so ``(1,)`` and ``(True,)``; here they are different keys, at
    any depth of tuples and frozensets. An object of any other class is equal to what its class says, of the same class
    only.
    """
    kind = type(key)
    if kind in PLAIN:
        return key
    if kind in _BY_VALUE:
        return key_part(key)
    if isinstance(key, tuple) and kind is tuple:
        return (tuple, *map(identity, key))
    if isinstance(key, frozenset) and kind is frozenset:
        return (frozenset, frozenset(map(identity, key)))
    return (kind, key)


class Kept(Entry):
    """An entry that knows the key it was given, as `Contents` shows it."""

    __slots__ = ("key",)

    def __init__(self, key: Hashable, value: Any, expires: float) -> None:
        Entry.__init__(self, value, expires, 0.0)
        self.key = key


class Work(Protocol):
    """What goes on for a flight outside of the task that leads it, and ends with the flight at the latest."""

    def abandon(self) -> None:
        """Nobody waits for it any more. May be called on any thread."""
        ...


class Finishing(Protocol):
    """A load that has ended: a flight that was led by its loader, or one key of a batch."""

    key: Hashable
    is_clean: bool

    def finish(self) -> None: ...


class Loads(set[Load]):
    """The loads in flight of one cache: where they enter themselves and leave, with an index by key.

    A flight that is over takes its work with it: nobody is left to wait for that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_key: dict[Hashable, list[Load]] = {}
        self.works: dict[Load, Work] = {}

    def add(self, load: Load, /) -> None:
        """A load begins, or is begun again by another caller."""
        with LEDGER.lock:
            if load not in self:
                super().add(load)
                self._by_key.setdefault(load.key, []).append(load)

    def discard(self, load: Any, /) -> None:
        """A load is over."""
        with LEDGER.lock:
            if load in self:
                super().discard(load)
                present = self._by_key[load.key]
                present.remove(load)
                if not present:
                    del self._by_key[load.key]
            work = self.works.pop(load, None)
        if work is not None:
            work.abandon()

    def spoil(self, key: Hashable) -> None:
        """What loads under this key is neither kept nor joined."""
        for load in self._by_key.get(key, ()):
            load.spoil()


class Shelf:
    """Entries and loads of one cache.

    Attributes:
        home: what single flight asks for: the store, and the flights that may be joined.
        loads: every load in flight, the ones that nobody may join included.
        partition, late_roots: what single flight reads of the plan and the operation of a tool; there are no tags here.
            So it does with `has_refused`.
    """

    __slots__ = ("home", "late_roots", "loads", "partition")

    def __init__(self, maxsize: int | None) -> None:
        self.loads = Loads()
        # Not registered with the ledger: no write of a tool, no `configure` and no `max_bytes` reaches in here.
        self.home = self.partition = Partition(None, None, (), (), maxsize)
        self.home.loads = (self.loads,)
        self.late_roots: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.home.store)

    def has_refused(self, error: Exception) -> bool:
        """Whether the run that loads was stopped, which says nothing of the key."""
        return isinstance(error, AgentLoopDetectedError)

    def find(self, part: Part) -> Kept | None:
        """The entry under a key, without counting as a use. One that has expired is taken out, and is not there."""
        store = self.home.store
        entry = store.lookup(part)
        if entry is None or CLOCK.now() < entry.fast:
            return entry  # type: ignore[return-value]  # only `Kept` is ever put in
        with LEDGER.lock:
            if store.peek(part) is entry:
                store.discard(part)
        return None

    def use(self, part: Part, entry: Entry) -> None:
        """Make an entry the most recently used."""
        store = self.home.store
        if store.newest is not entry:
            store.use(part, entry)

    def keep(self, load: Finishing, key: Hashable, value: Any, ttl: float) -> Kept:
        """A load has ended: make its entry, and keep it if nothing was done to its key since the load began."""
        entry = Kept(key, value, NEVER if ttl == NEVER else CLOCK.now() + ttl)
        with LEDGER.lock:
            load.finish()
            if load.is_clean and ttl > 0:
                self.home.store.insert(load.key, entry)
        return entry

    def put(self, key: Hashable, value: Any, ttl: float) -> None:
        """Set a value: it wins over what is there and over every load under way."""
        part = identity(key)
        entry = Kept(key, value, NEVER if ttl == NEVER else CLOCK.now() + ttl)
        with LEDGER.lock:
            self.loads.spoil(part)
            if ttl > 0:
                self.home.store.insert(part, entry)
            else:
                self.home.store.discard(part)

    def drop(self, key: Hashable) -> Entry | None:
        """Delete a value, and let no load under way bring it back. What was there."""
        part = identity(key)
        with LEDGER.lock:
            self.loads.spoil(part)
            return self.home.store.discard(part)

    def drop_all(self) -> None:
        """Delete everything, and let no load under way bring any of it back."""
        with LEDGER.lock:
            for load in list(self.loads):
                load.spoil()
            garbage: list[Any] = [self.home.store.drop_all()]
        free(garbage)

    def keys(self) -> Iterator[Hashable]:
        """The keys of what has not expired, as they were given, least recently used first."""
        parts = self.home.store.keys()
        for part in parts:
            entry = self.find(part)
            if entry is not None:
                yield entry.key


class Contents(MutableMapping[Hashable, Any]):
    """The entries of an `AsyncCache` as a mapping: a view that is always current, under the same rules.

    Reading a value counts as a use of it and is counted nowhere; ``in`` and iteration count as none. An entry that has
    expired is not in it, though `len` counts it until somebody asks for its key.
    """

    __slots__ = ("_cache", "_shelf")

    def __init__(self, cache: Setter, shelf: Shelf) -> None:
        self._cache = cache
        self._shelf = shelf

    def __getitem__(self, key: Hashable) -> Any:
        part = identity(key)
        entry = self._shelf.find(part)
        if entry is None:
            raise KeyError(key)
        self._shelf.use(part, entry)
        return entry.value

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self._cache.set(key, value)

    def __delitem__(self, key: Hashable) -> None:
        if self._shelf.drop(key) is None:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._shelf.find(identity(key)) is not None

    def __iter__(self) -> Iterator[Hashable]:
        return self._shelf.keys()

    def __len__(self) -> int:
        return len(self._shelf)

    def __repr__(self) -> str:
        return repr(dict(self))

    def clear(self) -> None:
        """Delete everything. Unlike `AsyncCache.clear`, the counters go on."""
        self._shelf.drop_all()


class Setter(Protocol):
    """Whatever knows how long a value lives that is set without a word on that."""

    def set(self, key: Hashable, value: Any) -> object: ...
