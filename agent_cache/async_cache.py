"""`AsyncCache`: async-cache's interface over this library's store, single flight and batches.

The class derives from async-cache's class of that name, so that it goes wherever one is expected. None of the inherited
code runs: upstream blocks its waiters for ever when a leader is cancelled, and treats distinct keys as one.

A loaded value is stored only if nothing was set, deleted or cleared under its key since the load began. As with the
tools, {check, insert} and {mark loads dirty, drop entries} are one step each, under the ledger's lock; hits take none.

With a batch loader, too, each key has a flight of its own, so that its callers share it, take over from each other and
never deadlock. The flights of one window wait for a `Batch`, which runs the loader in a task that belongs to none of
them. A cancelled caller removes its key unless another caller wants it, and the last one cancels the task.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict
from uuid import UUID

from agent_cache.clock import CLOCK
from agent_cache.core.keys import PLAIN, Part, key_part
from agent_cache.core.store import NEVER, Entry, Store
from agent_cache.core.versions import Versions
from agent_cache.engine.call import load
from agent_cache.engine.flight import Failure, Flight
from agent_cache.engine.scope import PLACE, Call
from agent_cache.engine.state import free, keep
from agent_cache.errors import AgentLoopDetectedError, ConfigurationError

__all__ = ["AsyncCache", "Metrics"]

Seconds = float | timedelta
Loader = Callable[[], Awaitable[Any]]
BatchLoader = Callable[[list[Any]], Awaitable[Any]]
Place = tuple[asyncio.AbstractEventLoop, Hashable]
"""Event loop and loader of a batch."""


class NoUpstream:
    """Base class of `AsyncCache` where async-cache is not installed, or without its metadata."""


def upstream_class() -> type:
    """Import async-cache's class, or return `NoUpstream`.

    Its top-level module is called ``cache``, a name that many projects give to a file of their own. Therefore a file is
    run only if the metadata of async-cache beside it lists it (read here, since `importlib.metadata` alone takes 15 ms
    to import), and it is imported as ``cache`` only if ``import cache`` means that file.
    """
    for folder in sys.path:
        spec = PathFinder.find_spec("cache", [folder])
        if spec is not None and spec.origin is not None:
            path = Path(spec.origin)
            records = [record.read_text("utf-8") for record in Path(folder).glob("async_cache-*.dist-info/RECORD")]
            if any(f"\n{path.parent.name}/{path.name}," in f"\n{record}" for record in records):
                break
    else:
        return NoUpstream
    if "cache" in sys.modules:
        present = getattr(sys.modules["cache"], "__file__", None)
    else:
        present = getattr(importlib.util.find_spec("cache"), "origin", None)
    if present is not None and os.path.realpath(present) == os.path.realpath(path):
        module = importlib.import_module("cache")
    else:
        private: Any = importlib.util.spec_from_file_location(f"{__name__}.cache", path)
        module = sys.modules[private.name] = importlib.util.module_from_spec(private)
        private.loader.exec_module(module)
    found = getattr(module, "AsyncCache", None)
    return found if isinstance(found, type) else NoUpstream


if TYPE_CHECKING:
    from cache import AsyncCache as Upstream
else:
    Upstream = upstream_class()


class Metrics(TypedDict):
    """The result of `AsyncCache.get_metrics`."""

    hits: int
    misses: int
    size: int
    hit_rate: float


class CompletedAwaitable:
    """Result of the methods that upstream's documentation awaits and its code does not: awaiting it is optional."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield

    def __bool__(self) -> bool:
        return False


_DONE: Final = CompletedAwaitable()
_DEFAULT: Final[Any] = object()


class AsyncCache(Upstream):  # type: ignore[misc]  # async-cache ships no hints
    """A local cache with loaders, single flight and batches: a subclass of async-cache's class of this name.

    Concurrent misses of one key run one loader and share its value or its exception. Cancelling one of the callers
    never hangs, fails or cancels another: a waiter takes over. Errors are never cached, None is. A `set`, `delete` or
    `clear` during a load is final: the load's value goes to the callers that wait for it and is not stored. One cache
    serves several event loops and threads.

    Keys are type-exact: ``1``, ``True`` and ``1.0`` are three keys, ``(1,)`` and ``(True,)`` two. Values are returned
    as they are, not copied.

    Args:
        maxsize: the largest number of entries, least recently used first out; None for no bound, 0 to store nothing
            (loads are still shared and batched).
        default_ttl: lifetime of a value that is stored without a ttl of its own, in seconds or as a `timedelta`; None
            for ever. A value with a lifetime of 0 seconds or less is not stored.
        batch_window_ms: how long a batch waits for more keys, in milliseconds. May be changed later.
        max_batch_size: the number of keys at which a batch starts at once. May be changed later.

    Attributes:
        hits, misses: how many gets were answered from an entry, and how many were not, whether they had to load, joined
            a load under way, or had no loader.
        cache: the entries as a mapping.

    Raises:
        ConfigurationError: if any of these is out of range.
    """

    default_ttl: Seconds | None
    batch_window_ms: float
    max_batch_size: int
    hits: int
    misses: int

    def __init__(
        self,
        maxsize: int | None = 128,
        default_ttl: Seconds | None = None,
        batch_window_ms: float = 5,
        max_batch_size: int = 100,
    ) -> None:
        # Not super().__init__(): it would set up the storage and the locks that this class replaces.
        if maxsize is not None:
            _require_int(0, maxsize, "maxsize must be a number of entries, 0 or more, or None for no bound")
        _lifetime(default_ttl, "default_ttl")
        window = batch_window_ms
        if isinstance(window, bool) or not isinstance(window, int | float) or not 0 <= window < NEVER:
            raise ConfigurationError(f"AsyncCache: batch_window_ms must be milliseconds, 0 or more, got {window!r}")
        _require_int(1, max_batch_size, "max_batch_size must be a number of keys, 1 or more")
        self.default_ttl = default_ttl
        self.batch_window_ms = batch_window_ms
        self.max_batch_size = max_batch_size
        self.hits = 0
        self.misses = 0
        self._storage = Storage(maxsize)
        self._open_batches: dict[Place, Batch] = {}

    @property
    def maxsize(self) -> int | None:
        """The largest number of entries; None for no bound."""
        return self._storage.store.maxsize

    @property
    def cache(self) -> MutableMapping[Hashable, Any]:
        """The entries as a mapping from key to value: a view, always current."""
        return EntriesView(self, self._storage)

    async def get(
        self,
        key: Hashable,
        loader: Loader | None = None,
        batch_loader: BatchLoader | None = None,
        ttl: Seconds | None = None,
    ) -> Any:
        """Return the value under a key; on a miss load and store it, or return None if there is no loader.

        Args:
            key: any hashable value.
            loader: takes nothing, returns an awaitable of the value. It runs in the caller's own task, and once however
                many callers there are.
            batch_loader: takes a list of keys, in the order in which they were asked for, each once; returns a mapping
                from key to value, or one value for each key in their order. It runs in a task of its own, in the
                context of the first caller, and is cancelled when no caller waits for any of its keys any more. A key
                that is missing from the mapping is answered with None, which is not stored. Not used if there is a
                loader.
            ttl: lifetime of the value from when it is stored, in seconds or as a `timedelta`; None for `default_ttl`.

        Raises:
            TypeError: if the key cannot be hashed, or the batch loader returned neither a mapping nor a sequence.
            ValueError: if the batch loader's list is shorter or longer than its keys. All of its callers get this,
                since any of the values might belong to another key.
            RuntimeError: if the batch loader's task was cancelled, though none of its callers was the reason.
            Exception: the loader's own, unchanged, to every caller that waits for it.
        """
        storage = self._storage
        part = key if type(key) in PLAIN else storage.identity(key)
        found = storage.find(part)
        if found is not None:
            storage.mark_used(part, found)
            self.hits += 1
            return found.value
        self.misses += 1
        if loader is None and batch_loader is None:
            return None
        lifetime = _lifetime(self.default_ttl if ttl is None else ttl, "ttl")
        call = LoadingCall(storage, part, key, lifetime, loader, batch_loader)
        call.cache = self
        return await load(call)

    def set(self, key: Hashable, value: Any, ttl: Seconds | None = _DEFAULT) -> Awaitable[None]:
        """Store a value, in place of the present one and of the result of any load under way.

        It is done when the call returns. Awaiting the result, as async-cache's documentation does, takes no time.

        Args:
            key: any hashable value.
            value: anything. It is returned as it is.
            ttl: its lifetime, in seconds or as a `timedelta`; None for ever; if it is left out, `default_ttl`.
        """
        self._storage.set(key, value, _lifetime(self.default_ttl if ttl is _DEFAULT else ttl, "ttl"))
        return _DONE

    def delete(self, key: Hashable) -> Awaitable[None]:
        """Delete a key, if it is there. No load under way restores it. Like `set`, it may be awaited."""
        self._storage.delete(key)
        return _DONE

    def clear(self) -> Awaitable[None]:
        """Delete all entries and reset the counters. No load under way restores an entry. It may be awaited."""
        self._storage.delete_all()
        self.hits = self.misses = 0
        return _DONE

    def get_metrics(self) -> Metrics:
        """``hits``, ``misses``, ``size`` and ``hit_rate``, since the beginning or the last `clear`.

        ``size`` counts an expired entry until its key is asked for, it is evicted, or, without a `maxsize`, insertions
        remove it. ``hit_rate`` is 0.0 before the first get.
        """
        hits, misses = self.hits, self.misses
        total = hits + misses
        size = len(self._storage.store)
        return {"hits": hits, "misses": misses, "size": size, "hit_rate": hits / total if total else 0.0}

    async def warmup(self, keys_with_loaders: Mapping[Hashable, Loader]) -> None:
        """Load many keys at once. Keys with an entry are not loaded again.

        Args:
            keys_with_loaders: key -> loader, as `get` takes it.

        Raises:
            Exception: of the first loader, in this order, that raised one; after all have ended, so that the others
                are cached.
        """
        outcomes = await asyncio.gather(
            *(self.get(key, loader=loader) for key, loader in keys_with_loaders.items()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _load(self, call: LoadingCall) -> Any:
        """Load as the leader of a flight."""
        flight, storage = call.flight, self._storage
        item = storage.batch_items.get(flight)  # of a former leader
        if item is None and call.loader is None:
            item = self._join_batch(call)
        if item is not None:
            await item.answered.wait()
            if isinstance(item.outcome, Failure):
                item.outcome.raise_again()
            flight.result = item.outcome
            return item.outcome.value
        assert call.loader is not None
        token = PLACE.set(call)
        try:
            value = await call.loader()
        finally:
            call.depth = 0
            with suppress(ValueError):  # closed by the garbage collector, in another context than it ran in
                PLACE.reset(token)
        entry = KeyedEntry(flight.key, call.raw_key, value, call.ttl)
        garbage: tuple[Any, ...] = ()
        with storage.versions.lock:
            flight.finish()
            if call.ttl > 0 and not storage.was_written(flight.key, flight.since):
                garbage = storage.insert(entry)
        del garbage  # outside of the lock
        flight.result = entry
        return value

    def _join_batch(self, call: LoadingCall) -> BatchItem:
        """Add a key to the open batch of its loader, or to a new one."""
        assert call.batch_loader is not None
        loop, loader = asyncio.get_running_loop(), call.batch_loader
        place = loop, _loader_identity(loader)
        batch = self._open_batches.get(place)
        if batch is None or not batch.accepts(call):
            for other in list(self._open_batches):
                if other[0].is_closed():  # it was stopped within a window, and the callers have gone with it
                    self._open_batches.pop(other, None)
            batch = self._open_batches[place] = Batch(self._storage, self._open_batches, place, loader)
            batch.timer = loop.call_later(self.batch_window_ms / 1000, batch.start)
        item = batch.add(call)
        if len(batch.items) >= self.max_batch_size:
            batch.start()
        return item


def _require_int(least: int, value: Any, rule: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"AsyncCache: {rule}, got {value!r}")


def _lifetime(ttl: Any, option: str) -> float:
    """Seconds, `timedelta` or None as seconds."""
    if ttl is None:
        return NEVER
    number = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise ConfigurationError(f"AsyncCache: {option} must be seconds, a timedelta or None, got {ttl!r}")
    return number


# Storage

_EQUAL_ACROSS_TYPES: Final[frozenset[type]] = frozenset(
    {bool, float, complex, bytes, range, date, datetime, time, timedelta, timezone, Decimal, Fraction, UUID}
)
"""Types whose equality is coarser than their canonical encoding: ``1 == True == 1.0``, ``0.0 == -0.0``."""


_PLAIN_PARTS: Final[frozenset[type]] = PLAIN | {bytes}
"""Types of identities whose comparison runs no code of a user's."""


def key_identity(key: Hashable) -> Part:
    """Return the identity under which a key is stored: type-exact where Python's equality is not.

    Python calls ``1``, ``True`` and ``1.0`` equal, and so ``(1,)`` and ``(True,)``; here they are different keys, at
    any depth of tuples and frozensets. An object of any other class equals the objects of its class that its own
    ``__eq__`` accepts.
    """
    kind = type(key)
    if kind in PLAIN:
        return key
    if kind in _EQUAL_ACROSS_TYPES:
        return key_part(key)
    if isinstance(key, tuple) and kind is tuple:
        return (tuple, *map(key_identity, key))
    if isinstance(key, frozenset) and kind is frozenset:
        return (frozenset, frozenset(map(key_identity, key)))
    return (kind, key)


class ObjectKey:
    """Stands for all equal keys that are not plain: it is compared and hashed by its address.

    So no `__eq__` and `__hash__` of a user's runs under the ledger's lock. It is freed with the last entry and load
    that is known by it.
    """

    __slots__ = ("__weakref__",)


class KeyedEntry(Entry):
    """An entry with its identity and its original key.

    The identity keeps an `ObjectKey` alive until the entry is freed, outside of the lock; the key is for the mapping
    view.
    """

    __slots__ = ("key", "part")

    def __init__(self, part: Part, key: Hashable, value: Any, ttl: float) -> None:
        Entry.__init__(self, value, NEVER if ttl == NEVER else CLOCK.now() + ttl, 0.0)
        self.part = part
        self.key = key


class KeyFlight(Flight):
    """The flight of one key, which may wait for a batch."""

    __slots__ = ()

    def finish(self) -> None:
        super().finish()
        self.store.tool.withdraw(self)


class Storage:
    """Entries and loads of one cache. It has versions of its own: no write of a tool, no `configure` and no `max_bytes`
    reaches it.

    Attributes:
        batch_items: the batch item that a flight waits for.
        store: the entries, and the flights that may be joined.
        number, is_named, is_sync, flight_class, late_roots, has_refused, own_load, name, setup, store: read by
            `engine.call.load` and by the store, as of a tool. There are neither tags nor tiers here.
    """

    __slots__ = ("_objects", "batch_items", "late_roots", "store", "versions")

    name = "AsyncCache"
    number = 0
    is_named = True
    is_sync = False
    flight_class = KeyFlight
    tiers = ()

    @property
    def setup(self) -> Storage:
        """Itself: it has no tiers."""
        return self

    @staticmethod
    def own_load(call: LoadingCall) -> Awaitable[Any]:
        """Run a load as the leader of its flight."""
        return call.cache._load(call)

    def __init__(self, maxsize: int | None) -> None:
        self.batch_items: dict[Flight, BatchItem] = {}
        self.versions = Versions()
        self.store = Store(maxsize, self, versions=self.versions)
        self.late_roots: tuple[str, ...] = ()
        self._objects: dict[Hashable, weakref.ref[ObjectKey]] = {}

    def withdraw(self, flight: Flight) -> None:
        """End a load: withdraw its key from a batch that has not answered it."""
        item = self.batch_items.pop(flight, None)
        if item is not None and not item.answered.is_set():
            item.is_clean = False  # it may still be answered before `withdraw` runs
            # An abandoned call is closed by the garbage collector, on whatever thread that runs.
            with suppress(RuntimeError):  # the loop is closed, and the batch with it
                item.batch.loop.call_soon_threadsafe(item.batch.withdraw, item)

    def was_written(self, key: Hashable, since: int) -> bool:
        """Whether a key was set or deleted after this version."""
        return self.store.is_touched(key, (), since)

    def identity(self, key: Hashable) -> Part:
        """What a key is stored and compared by."""
        if type(key) in PLAIN:
            return key
        part = key_identity(key)
        if type(part) in _PLAIN_PARTS or (
            type(part) is tuple and part[0] is tuple and _PLAIN_PARTS.issuperset(map(type, part[1:]))
        ):
            return part
        return self._object_key(part)

    def _object_key(self, part: Part) -> ObjectKey:
        objects = self._objects

        def forget(reference: weakref.ref[ObjectKey]) -> None:
            if objects.get(part) is reference:
                objects.pop(part, None)

        made = ObjectKey()
        while True:
            # `setdefault` is atomic, also if an `__eq__` runs in it. No lock is held here.
            found = objects.setdefault(part, weakref.ref(made, forget))()
            if found is not None:
                return found
            objects.pop(part, None)  # it is being freed

    def insert(self, entry: KeyedEntry) -> tuple[Any, ...]:
        """Insert an entry, under the lock. Returns what it replaces, for the caller to free after the lock."""
        store, part = self.store, entry.part
        newest, replaced = store.newest, store.peek(part)
        entry.checked = self.versions.now
        return newest, replaced, store.insert(part, entry, CLOCK.now())

    def has_refused(self, error: Exception) -> bool:
        """Whether the leader's run was stopped, which does not concern the other callers."""
        return isinstance(error, AgentLoopDetectedError)

    def find(self, part: Part) -> KeyedEntry | None:
        """Return the entry under a key, and delete it if it has expired. Does not count as a use."""
        store = self.store
        entry: KeyedEntry | None = store.lookup(part)  # type: ignore[assignment]  # nothing else is ever inserted
        if entry is None or CLOCK.now() < entry.fast:
            return entry
        with self.versions.lock:
            if store.peek(part) is entry:
                store.discard(part)
        return None

    def identities(self) -> list[Part]:
        """Identities of all keys, least recently used first."""
        return self.store.keys()

    def mark_used(self, part: Part, entry: Entry) -> None:
        """Make an entry the most recently used."""
        if self.store.newest is not entry:
            self.store.use(part, entry)

    def set(self, key: Hashable, value: Any, ttl: float) -> None:
        """Store a value. It replaces the present one and the result of every load under way."""
        part = key if type(key) in PLAIN else self.identity(key)
        entry = KeyedEntry(part, key, value, ttl)
        with self.versions.lock:  # what is replaced is assigned, so that it is freed after the lock
            self.versions.write(((0, part),))
            _garbage = self.insert(entry) if ttl > 0 else self.store.discard(part)

    def delete(self, key: Hashable) -> Entry | None:
        """Delete an entry and return it. No load under way restores it."""
        part = self.identity(key)
        with self.versions.lock:
            self.versions.write(((0, part),))
            return self.store.discard(part)

    def delete_all(self) -> None:
        """Delete all entries. No load under way restores one."""
        with self.versions.lock:
            self.versions.write(((0,),))
            garbage: list[Any] = [self.store.drop_all()]
        free(garbage)


class EntriesView(MutableMapping[Hashable, Any]):
    """The entries of an `AsyncCache` as a mapping, always current, under the same rules.

    Reading a value counts as a use and in no counter; ``in`` and iteration (least recently used first) do not count as
    one. An expired entry is not in the mapping, though `len` counts it as `AsyncCache.get_metrics` does.
    """

    __slots__ = ("_cache", "_storage")

    def __init__(self, cache: AsyncCache, storage: Storage) -> None:
        self._cache = cache
        self._storage = storage

    def __getitem__(self, key: Hashable) -> Any:
        part = self._storage.identity(key)
        entry = self._storage.find(part)
        if entry is None:
            raise KeyError(key)
        self._storage.mark_used(part, entry)
        return entry.value

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self._cache.set(key, value)

    def __delitem__(self, key: Hashable) -> None:
        if self._storage.delete(key) is None:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._storage.find(self._storage.identity(key)) is not None

    def __iter__(self) -> Iterator[Hashable]:
        for part in self._storage.identities():
            entry = self._storage.find(part)
            if entry is not None:
                yield entry.key

    def __len__(self) -> int:
        return len(self._storage.store)

    def __repr__(self) -> str:
        return repr(dict(self))

    def clear(self) -> None:
        """Delete all entries. Unlike `AsyncCache.clear`, it keeps the counters."""
        self._storage.delete_all()


class LoadingCall(Call):
    """A `get` that missed, in the form that single flight takes.

    Calls made under it see the call that it was made from: it is part of the wait-for graph and of no trace.
    """

    __slots__ = ("batch_loader", "cache", "loader", "raw_key", "ttl")

    is_dependency = False
    cache: AsyncCache

    def __init__(
        self, storage: Any, part: Part, raw_key: Hashable, ttl: float, loader: Any, batch_loader: BatchLoader | None
    ) -> None:
        Call.__init__(self, storage, storage, part, (), {}, "miss")
        if self.parent is not None:
            self.numbers = self.parent.numbers
        self.raw_key = raw_key
        self.ttl = ttl
        self.loader: Loader | None = loader
        self.batch_loader = batch_loader


# Batches


@dataclass(slots=True, eq=False)
class BatchItem:
    """One flight's key in a batch.

    A follower that takes the flight over waits for the same item, so the value is stored only if its key was not
    changed since it entered the *batch*, at the version `since`.

    Attributes:
        is_clean: False if its load was given up.
    """

    batch: Batch
    call: LoadingCall
    since: int
    is_clean: bool = True
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: KeyedEntry | Failure = field(init=False)


class Batch:
    """The keys that one run of a batch loader loads.

    A batch belongs to one event loop and one loader. It accepts no more keys when its window is over, when it is full,
    or when a key comes that a dict cannot tell from one in it; the next key opens the next batch, so that a slow loader
    delays no other key.

    Attributes:
        open_batches: the batches of its cache that accept keys, by place (event loop and identity of the loader).
        items: the items that wait for each key. No two keys are equal: ``1`` and ``True`` would be one in a loader's
            dict.
        flight: its node in the wait-for graph: the flights of its items wait for it, and it for what its loader calls.
    """

    def __init__(self, storage: Storage, open_batches: dict[Place, Batch], place: Place, loader: BatchLoader) -> None:
        self.storage = storage
        self.open_batches = open_batches
        self.place = place
        self.loop = place[0]
        self.loader = loader
        self.items: dict[Hashable, list[BatchItem]] = {}
        self.timer: asyncio.TimerHandle
        self.task: asyncio.Task[None] | None = None
        self.flight = Flight(storage.store, (None, self.loop), (), ())
        self.context = copy_context()
        self.call = LoadingCall(storage, None, None, 0.0, None, loader)
        self.call.leading = self.flight
        self.context.run(PLACE.set, self.call)

    def accepts(self, call: LoadingCall) -> bool:
        """Whether a dict can tell the call's key from the others in the batch."""
        equal = self.items.get(call.raw_key)
        return equal is None or equal[0].call.key == call.key

    def add(self, call: LoadingCall) -> BatchItem:
        """Add a key, or one more flight for a key that is in it."""
        item = self.storage.batch_items[call.flight] = BatchItem(self, call, self.storage.versions.now)
        self.items.setdefault(call.raw_key, []).append(item)
        call.flight.wait_for(self.flight)
        return item

    def withdraw(self, item: BatchItem) -> None:
        """Remove an item, its key if no other item wants it, and cancel the loader if no key is left."""
        waiting = self.items.get(item.call.raw_key, [])
        if item in waiting:
            waiting.remove(item)
            if not waiting:
                del self.items[item.call.raw_key]
            if not self.items:
                self.close()
                if self.task is not None:
                    self.task.cancel()

    def close(self) -> None:
        """Accept no more keys."""
        self.timer.cancel()
        if self.open_batches.get(self.place) is self:
            del self.open_batches[self.place]

    def start(self) -> None:
        """Close the batch and run the loader."""
        self.close()
        self.task = task = self.loop.create_task(self.run(), context=self.context)
        keep(task)

    async def run(self) -> None:
        """Run the loader and answer the items that still wait."""
        keys = list(self.items)
        try:
            found = _values_of(self.loader, keys, await self.loader(keys.copy()))
        except Exception as error:  # noqa: BLE001 - every caller raises it again
            self.fail(error)
        except BaseException as error:
            # The callers were not cancelled, and a task that ends as cancelled would leave them waiting.
            failure = RuntimeError(
                f"{_name(self.loader)} was stopped by {type(error).__name__}, which none of its callers caused"
            )
            failure.__cause__ = error
            self.fail(failure)
            raise
        else:
            for key, (value, is_present) in zip(keys, found, strict=True):
                for item in self.items.pop(key, ()):
                    ttl = item.call.ttl if is_present else 0.0
                    item.outcome = entry = KeyedEntry(item.call.key, key, value, ttl)
                    garbage: tuple[Any, ...] = ()
                    with self.storage.versions.lock:
                        was_written = self.storage.was_written(item.call.key, item.since)
                        if item.is_clean and ttl > 0 and not was_written:
                            garbage = self.storage.insert(entry)
                    del garbage  # outside of the lock
                    item.answered.set()
        finally:
            self.call.depth = 0

    def fail(self, error: Exception) -> None:
        """Let every caller that still waits raise an error."""
        for items in self.items.values():
            for item in items:
                item.outcome = Failure(error)
                item.answered.set()
        self.items.clear()


def _loader_identity(loader: BatchLoader) -> Hashable:
    """The loader itself, so that ``db.load`` is one loader at each access; its address if it cannot be hashed."""
    try:
        hash(loader)
    except TypeError:
        return id(loader)  # unique while the batch is open, since the batch holds the loader
    return loader


def _name(loader: BatchLoader) -> str:
    return f"batch loader {getattr(loader, '__qualname__', type(loader).__qualname__)}()"


def _values_of(loader: BatchLoader, keys: list[Hashable], found: Any) -> list[tuple[Any, bool]]:
    """Return for each key its value, and whether the loader returned one.

    A result that cannot be matched with the keys is refused as a whole: in a list that lacks a row, every later key
    would get the value of its neighbour.

    Raises:
        TypeError: if it is neither a mapping nor an ordered sequence of values.
        ValueError: if there are more or fewer values than keys.
    """
    if isinstance(found, Mapping):
        return [(found[key], True) if key in found else (None, False) for key in keys]
    if isinstance(found, str | bytes | bytearray | set | frozenset) or not hasattr(found, "__iter__"):
        raise TypeError(
            f"{_name(loader)} must return a mapping from key to value, or a list of values in the order of the keys; "
            f"it returned {type(found).__name__}"
        )
    values = list(found)
    if len(values) != len(keys):
        raise ValueError(
            f"{_name(loader)} returned {len(values)} values for {len(keys)} keys, so none can be matched; "
            f"return one value for each key, None where there is none, or a mapping from key to value"
        )
    return [(value, True) for value in values]
