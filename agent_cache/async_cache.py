"""`AsyncCache`: async-cache's interface over this library's store, single flight and versions.

The class derives from async-cache's class of that name, so that it goes wherever one is expected. None of the inherited
code runs: upstream blocks its waiters for ever when a leader is cancelled, and treats distinct keys as one.

Each key has a flight of its own (`engine.call.load`), also with a batch loader: its callers share it and take over from
each other. The flights of one window wait for one `Batch`, which runs the loader in a task that belongs to none of
them. A loaded value is stored only if nothing was set, deleted or cleared under its key since the load began.
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
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict
from uuid import UUID

from agent_cache.clock import CLOCK
from agent_cache.core.keys import PLAIN, Part, key_part
from agent_cache.core.options import count
from agent_cache.core.store import NEVER, Entry, Store
from agent_cache.core.versions import Versions
from agent_cache.engine.call import load
from agent_cache.engine.flight import Failure, Flight
from agent_cache.engine.scope import PLACE, Call
from agent_cache.engine.state import keep
from agent_cache.errors import AgentLoopDetectedError, ConfigurationError

__all__ = ["AsyncCache", "Metrics"]

Seconds = float | timedelta
Loader = Callable[[], Awaitable[Any]]
BatchLoader = Callable[[list[Any]], Awaitable[Any]]


class NoUpstream:
    """Base class of `AsyncCache` where async-cache is not installed, or without its metadata."""


def upstream_class() -> type:
    """Import async-cache's class, or return `NoUpstream`.

    Its top-level module is called ``cache``, a name that many projects give to a file of their own. Therefore a file is
    run only if the metadata of async-cache beside it lists it (read here, since `importlib.metadata` alone takes 15 ms
    to import), and it is imported as ``cache`` only if ``import cache`` means that file.
    """
    for folder in map(Path, sys.path):
        path, records = folder / "cache" / "__init__.py", folder.glob("async_cache-*.dist-info/RECORD")
        if path.is_file() and any("cache/__init__.py," in record.read_text("utf-8") for record in records):
            break
    else:
        return NoUpstream
    present: Any = sys.modules["cache"] if "cache" in sys.modules else PathFinder.find_spec("cache")
    origin = getattr(present, "__file__", None) or getattr(present, "origin", None)
    if origin is not None and os.path.realpath(origin) == os.path.realpath(path):
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


class Done(tuple[()]):
    """Result of the methods that upstream's documentation awaits and its code does not: awaiting it is optional."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from self


_DONE: Final = Done()
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

    Raises:
        ConfigurationError: if any of these is out of range.
    """

    def __init__(
        self,
        maxsize: int | None = 128,
        default_ttl: Seconds | None = None,
        batch_window_ms: float = 5,
        max_batch_size: int = 100,
    ) -> None:
        # Not super().__init__(): it would set up the storage and the locks that this class replaces.
        if maxsize is not None:
            count(0, maxsize, "AsyncCache: maxsize")
        _lifetime(default_ttl, "default_ttl")
        window = batch_window_ms
        if isinstance(window, bool) or not isinstance(window, int | float) or not 0 <= window < NEVER:
            raise ConfigurationError(f"AsyncCache: batch_window_ms must be milliseconds, 0 or more, got {window!r}")
        self.maxsize = maxsize
        self.default_ttl = default_ttl
        self.batch_window_ms = batch_window_ms
        self.max_batch_size = count(1, max_batch_size, "AsyncCache: max_batch_size")
        self.hits = self.misses = 0
        self._storage = Storage(maxsize)
        self._open_batches: dict[Batch, None] = {}

    @property
    def cache(self) -> MutableMapping[Hashable, Any]:
        """The entries as a mapping from key to value: a view, always current."""
        return EntriesView(self)

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
        found = storage.find(part, is_use=True)
        if found is not None:
            self.hits += 1
            return found.value
        self.misses += 1
        if loader is None and batch_loader is None:
            return None
        lifetime = _lifetime(self.default_ttl if ttl is None else ttl, "ttl")
        return await load(LoadingCall(self, part, key, lifetime, loader, batch_loader))

    def set(self, key: Hashable, value: Any, ttl: Seconds | None = _DEFAULT) -> Awaitable[None]:
        """Store a value, in place of the present one and of the result of any load under way.

        It is done when the call returns. Awaiting the result, as async-cache's documentation does, takes no time.

        Args:
            key: any hashable value.
            value: anything. It is returned as it is.
            ttl: its lifetime, in seconds or as a `timedelta`; None for ever; if it is left out, `default_ttl`.
        """
        lifetime = _lifetime(self.default_ttl if ttl is _DEFAULT else ttl, "ttl")
        part = self._storage.identity(key)
        self._storage.write(part, KeyedEntry(part, key, value, lifetime) if lifetime > 0 else None)
        return _DONE

    def delete(self, key: Hashable) -> Awaitable[None]:
        """Delete a key, if it is there. No load under way restores it. Like `set`, it may be awaited."""
        self._storage.write(self._storage.identity(key), None)
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
        hit_rate = hits / (hits + misses) if hits or misses else 0.0
        return {"hits": hits, "misses": misses, "size": len(self._storage.store), "hit_rate": hit_rate}

    async def warmup(self, keys_with_loaders: Mapping[Hashable, Loader]) -> None:
        """Load many keys at once. Keys with an entry are not loaded again.

        Args:
            keys_with_loaders: key -> loader, as `get` takes it.

        Raises:
            Exception: of the first loader, in this order, that raised one; after all have ended, so that the others
                are cached.
        """
        loads = [self.get(key, loader=loader) for key, loader in keys_with_loaders.items()]
        for outcome in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def _lifetime(ttl: Any, option: str) -> float:
    """Seconds, `timedelta` or None as seconds."""
    if ttl is None:
        return NEVER
    number = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise ConfigurationError(f"AsyncCache: {option} must be seconds, a timedelta or None, got {ttl!r}")
    return number


# Entries

_EQUAL_ACROSS_TYPES: Final[frozenset[type]] = frozenset(
    {bool, float, complex, bytes, range, date, datetime, time, timedelta, timezone, Decimal, Fraction, UUID}
)
"""Types whose equality is coarser than their canonical encoding: ``1 == True == 1.0``, ``0.0 == -0.0``."""


_BUILTIN_PARTS: Final[frozenset[type]] = PLAIN | {bytes}
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
    """Stands for all equal keys of classes that are not Python's own, so that no `__eq__` or `__hash__` of a user's
    runs under the lock of the versions.
    """

    __slots__ = ("__weakref__",)


class KeyedEntry(Entry):
    """An entry with its original key, for the mapping view, and the identity: it keeps an `ObjectKey` alive until the
    entry is freed, outside of the lock.
    """

    __slots__ = ("key", "part")

    def __init__(self, part: Part, key: Hashable, value: Any, lifetime: float) -> None:
        Entry.__init__(self, value, CLOCK.now() + lifetime, 0.0)
        self.part, self.key = part, key


class KeyFlight(Flight):
    """The load of one key.

    Attributes:
        batch: the batch that it waits for, None without.
        batched: the version at which it came there: the value is stored only if its key was not written since.
        answered: set when the batch has the `outcome`: the value and whether the loader has returned one, or an error.
    """

    __slots__ = ("answered", "batch", "batched", "outcome")

    answered: asyncio.Event
    batched: int
    outcome: tuple[Any, bool] | Failure

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.batch: Batch | None = None

    def finish(self) -> None:
        super().finish()
        if self.batch is not None and not self.answered.is_set():
            with suppress(RuntimeError):  # the loop is closed, and the batch with it
                # The garbage collector closes an abandoned call, on whatever thread it runs.
                self.batch.loop.call_soon_threadsafe(self.batch.withdraw, self)


class LoadingCall(Call):
    """A `get` that missed. Calls made under it see the call that it was made from: it is part of the wait-for graph and
    of no trace.
    """

    __slots__ = ("batch_loader", "cache", "lifetime", "loader", "raw_key")

    is_dependency = False
    flight: KeyFlight

    def __init__(
        self,
        cache: AsyncCache,
        part: Part,
        raw_key: Hashable,
        lifetime: float,
        loader: Loader | None,
        batch_loader: BatchLoader | None,
    ) -> None:
        Call.__init__(self, cache._storage, cache._storage, part, (), {}, "miss")
        if self.parent is not None:
            self.numbers = self.parent.numbers
        self.cache, self.raw_key, self.lifetime = cache, raw_key, lifetime
        self.loader, self.batch_loader = loader, batch_loader

    async def run(self) -> Any:
        """Load as the leader of a flight. The value is stored unless its key was written since."""
        flight, storage, is_present = self.flight, self.cache._storage, True
        if self.loader is None:
            value, is_present = await self._answer_of_batch()
        else:
            token = PLACE.set(self)
            try:
                value = await self.loader()
            finally:
                self.depth = 0
                with suppress(ValueError):  # closed by the garbage collector, in another context than it ran in
                    PLACE.reset(token)
        flight.result = entry = KeyedEntry(flight.key, self.raw_key, value, self.lifetime)
        with storage.versions.lock:  # what is replaced is assigned, so that it is freed after the lock
            if is_present and self.lifetime > 0 and not storage.store.is_touched(flight.key, (), flight.since):
                _garbage = storage.insert(entry)
        return value

    async def _answer_of_batch(self) -> tuple[Any, bool]:
        """Wait for a batch. Returns the value, and whether the loader has returned one."""
        flight = self.flight
        if flight.batch is None:
            self._open_batch().add(flight, self.raw_key)
        flight.since = flight.batched  # a former leader may have joined it, before later writes
        await flight.answered.wait()
        if isinstance(flight.outcome, Failure):
            flight.outcome.raise_again()
        return flight.outcome

    def _open_batch(self) -> Batch:
        """The open batch of the loader, or a new one."""
        cache, loop = self.cache, asyncio.get_running_loop()
        for batch in list(cache._open_batches):
            if batch.loop is loop and batch.loader == self.batch_loader:
                if batch.accepts(self):
                    return batch
                cache._open_batches.pop(batch, None)
            elif batch.loop.is_closed():
                cache._open_batches.pop(batch, None)
        return Batch(self)


class Storage:
    """Entries and loads of one cache, with versions of their own: no write of a tool, no `configure` and no `max_bytes`
    reaches them.

    The other attributes are read by `engine.call.load` and by the store, as those of a tool.
    """

    name, number, is_named, is_sync = "AsyncCache", 0, True, False
    late_roots: tuple[str, ...] = ()
    setup: ClassVar = SimpleNamespace(tiers=())
    flight_class = KeyFlight
    own_load = staticmethod(LoadingCall.run)

    def __init__(self, maxsize: int | None) -> None:
        self.versions = Versions()
        self.store = Store(maxsize, self, versions=self.versions)
        self._objects: dict[Hashable, weakref.ref[ObjectKey]] = {}

    @staticmethod
    def has_refused(error: Exception) -> bool:
        """Whether the leader's run was stopped, which does not concern the other callers."""
        return isinstance(error, AgentLoopDetectedError)

    def identity(self, key: Hashable) -> Part:
        """What a key is stored and compared by."""
        part = key_identity(key)
        kinds = map(type, part[1:]) if type(part) is tuple and part[0] is tuple else (type(part),)
        if _BUILTIN_PARTS.issuperset(kinds):
            return part
        objects, made = self._objects, ObjectKey()

        def forget(reference: weakref.ref[ObjectKey]) -> None:
            if objects.get(part) is reference:
                objects.pop(part, None)

        while True:
            # `setdefault` is atomic, also if an `__eq__` runs in it.
            found = objects.setdefault(part, weakref.ref(made, forget))()
            if found is not None:
                return found
            objects.pop(part, None)  # it is being freed

    def find(self, part: Part, *, is_use: bool = False) -> KeyedEntry | None:
        """Return the entry under a key, and delete it if it has expired."""
        store = self.store
        entry: KeyedEntry | None = store.lookup(part)  # type: ignore[assignment]  # nothing else is ever inserted
        if entry is None or CLOCK.now() < entry.fast:
            if is_use and entry is not store.newest and entry is not None:
                store.use(part, entry)
            return entry
        with self.versions.lock:
            if store.peek(part) is entry:
                store.discard(part)
        return None

    def insert(self, entry: KeyedEntry) -> tuple[Any, ...]:
        """Insert an entry, under the lock. Returns what it replaces, for the caller to free after the lock."""
        newest, replaced = self.store.newest, self.store.peek(entry.part)
        entry.checked = self.versions.now
        return newest, replaced, self.store.insert(entry.part, entry, CLOCK.now())

    def write(self, part: Part, entry: KeyedEntry | None) -> Entry | None:
        """Store an entry or, without one, delete the present one, which is returned. No load under way restores it."""
        with self.versions.lock:
            self.versions.write(((0, part),))
            old = self.store.peek(part)
            _garbage = self.store.discard(part) if entry is None else self.insert(entry)
        return old

    def delete_all(self) -> None:
        """Delete all entries. No load under way restores one."""
        with self.versions.lock:
            self.versions.write(((0,),))
            _garbage = self.store.drop_all()  # freed after the lock


class EntriesView(MutableMapping[Hashable, Any]):
    """The entries of an `AsyncCache` as a mapping, always current, under the same rules.

    Reading a value counts as a use and in no counter; ``in`` and iteration (least recently used first) do not count as
    one. An expired entry is not in the mapping, though `len` counts it as `AsyncCache.get_metrics` does.
    """

    __slots__ = ("_cache", "_storage")

    def __init__(self, cache: AsyncCache) -> None:
        self._cache, self._storage = cache, cache._storage

    def __getitem__(self, key: Hashable) -> Any:
        entry = self._storage.find(self._storage.identity(key), is_use=True)
        if entry is None:
            raise KeyError(key)
        return entry.value

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self._cache.set(key, value)

    def __delitem__(self, key: Hashable) -> None:
        if self._storage.write(self._storage.identity(key), None) is None:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._storage.find(self._storage.identity(key)) is not None

    def __iter__(self) -> Iterator[Hashable]:
        found = map(self._storage.find, self._storage.store.keys())
        return (entry.key for entry in found if entry is not None)

    def __len__(self) -> int:
        return len(self._storage.store)

    def __repr__(self) -> str:
        return repr(dict(self))

    def clear(self) -> None:
        """Delete all entries. Unlike `AsyncCache.clear`, it keeps the counters."""
        self._storage.delete_all()


# Batches


class Batch:
    """The keys that one run of a batch loader loads, in a task of its own.

    A batch belongs to one event loop and one loader. It accepts no more keys when its window is over, when it is full,
    or when a key comes that a dict cannot tell from one in it, such as ``1`` and ``True``; the next key opens the next
    batch, so that a slow loader delays no other key. When nobody waits for any of its keys, it is cancelled.

    Attributes:
        flights: those that wait for each key.
        flight: its node in the wait-for graph: these flights wait for it, and it for what its loader calls.
    """

    def __init__(self, first: LoadingCall) -> None:
        assert first.batch_loader is not None
        self.cache, self.loader = first.cache, first.batch_loader
        self.loop = asyncio.get_running_loop()
        self.flights: dict[Hashable, list[KeyFlight]] = {}
        self.is_closed = asyncio.Event()
        self.flight = Flight(self.cache._storage.store, (None, self.loop), (), ())
        self.call = LoadingCall(self.cache, None, None, 0.0, None, None)
        self.call.leading = self.flight
        context = copy_context()
        context.run(PLACE.set, self.call)
        self.task = self.loop.create_task(self.run(self.cache.batch_window_ms / 1000), context=context)
        keep(self.task)
        self.cache._open_batches[self] = None

    def accepts(self, call: LoadingCall) -> bool:
        """Whether a dict can tell the call's key from the others in the batch."""
        equal = self.flights.get(call.raw_key)
        return equal is None or equal[0].key == call.key

    def add(self, flight: KeyFlight, key: Hashable) -> None:
        """Add a key, or one more flight for a key that is in it."""
        flight.batch, flight.batched, flight.answered = self, flight.store.versions.now, asyncio.Event()
        flight.wait_for(self.flight)
        self.flights.setdefault(key, []).append(flight)
        if len(self.flights) >= self.cache.max_batch_size:
            self.close()

    def withdraw(self, flight: KeyFlight) -> None:
        """Remove a flight, its key if no other flight waits for it, and cancel the loader if no key is left."""
        others = {key: [one for one in flights if one is not flight] for key, flights in self.flights.items()}
        self.flights = {key: flights for key, flights in others.items() if flights}
        if not self.flights:
            self.close()
            self.task.cancel()

    def close(self) -> None:
        """Accept no more keys, and run the loader."""
        self.cache._open_batches.pop(self, None)
        self.is_closed.set()

    async def run(self, window: float) -> None:
        """Wait for keys, in seconds, run the loader and answer the flights that still wait."""
        answers: Mapping[Hashable, tuple[Any, bool] | Failure] = {}
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(window):
                    await self.is_closed.wait()
            self.close()
            keys = list(self.flights)
            answers = _answers_of(self.loader, keys, await self.loader(keys.copy()))
        except Exception as error:  # noqa: BLE001 - every caller raises it again
            answers = dict.fromkeys(self.flights, Failure(error))
        except BaseException as error:
            # The callers were not cancelled, and a task that ends as cancelled would leave them waiting.
            what = f"{_name(self.loader)} was stopped by {type(error).__name__}, which none of its callers caused"
            stopped = RuntimeError(what)
            stopped.__cause__ = error
            answers = dict.fromkeys(self.flights, Failure(stopped))
            raise
        finally:
            self.close()
            self.call.depth = 0
            for key, flights in self.flights.items():
                for flight in flights:
                    flight.outcome = answers[key]
                    flight.answered.set()


def _name(loader: BatchLoader) -> str:
    return f"batch loader {getattr(loader, '__qualname__', type(loader).__qualname__)}()"


def _answers_of(loader: BatchLoader, keys: list[Hashable], found: Any) -> dict[Hashable, tuple[Any, bool]]:
    """Return for each key its value, and whether the loader returned one.

    A result that cannot be matched with the keys is refused as a whole: in a list that lacks a row, every later key
    would get the value of its neighbour.

    Raises:
        TypeError: if it is neither a mapping nor an ordered sequence of values.
        ValueError: if there are more or fewer values than keys.
    """
    if isinstance(found, Mapping):
        return {key: (found[key], True) if key in found else (None, False) for key in keys}
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
    return {key: (value, True) for key, value in zip(keys, values, strict=True)}
