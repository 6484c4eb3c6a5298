"""`AsyncCache`: async-cache's interface, over this library's store.

It derives from async-cache's class of that name, so that it goes wherever one is expected. None of the inherited code
runs. `set`, `delete` and `clear` take the loads of their keys out of the table, as does a load in another event loop,
and a value is stored only if its load is still there. When the caller that leads a load is interrupted, those that wait
for it begin again.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable, Mapping, Set
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from agent_cache.clock import CLOCK
from agent_cache.core.keys import PLAIN, Part
from agent_cache.core.options import count, seconds
from agent_cache.core.store import NEVER, Entry, Store
from agent_cache.core.versions import Versions
from agent_cache.engine.blocking import running_loop
from agent_cache.engine.flight import Failure
from agent_cache.errors import AgentLoopDetectedError, NoEventLoopError
from agent_cache.values.canonical import MISSING

__all__ = ["AsyncCache"]

Seconds = float | timedelta
Loader = Callable[[], Awaitable[Any]]
BatchLoader = Callable[[list[Any]], Awaitable[Any]]

Load = asyncio.Future[Any]
"""One run of a loader for one key. Its result is the value in a tuple, or a `Failure`; None if the caller that led it
was interrupted.
"""


def upstream_class() -> type:
    """Import async-cache's class; `object` without it.

    Its top-level module is called ``cache``, a name that many projects give to a file of their own, which is not to be
    run. So it is imported only from a folder that has the metadata of async-cache.
    """
    module: Any = sys.modules["cache"] if "cache" in sys.modules else PathFinder.find_spec("cache")
    path = getattr(module, "__file__", None) or getattr(module, "origin", None)
    if path is None or not any(Path(path).parent.parent.glob("async_cache-*.dist-info")):
        return object
    found: type = getattr(importlib.import_module("cache"), "AsyncCache", object)
    return found


if TYPE_CHECKING:
    from cache import AsyncCache as Upstream
else:
    Upstream = upstream_class()


class Done(tuple[()]):
    """What `AsyncCache.set` returns: upstream's documentation awaits it, and its code does not."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from self


_DEFAULT: Final[Any] = object()


class AsyncCache(Upstream):  # type: ignore[misc]  # async-cache ships no hints
    """A local cache with loaders, single flight and batches: a subclass of async-cache's class of this name.

    Concurrent misses of one key run one loader and share its value or its exception. Cancelling one of the callers
    never hangs, fails or cancels another: a waiter takes over. Errors are never cached, None is. A `set`, `delete` or
    `clear` during a load is final: the load's value goes to the callers that wait for it and is not stored. One cache
    serves several event loops and threads. A loader that asks for its own key runs again; two loaders in different
    tasks that ask for each other's keys wait for ever.

    Keys of different classes are different keys, also within tuples and frozensets: ``1``, ``True`` and ``1.0`` are
    three keys. Values are returned as they are, not copied.

    Args:
        maxsize: the largest number of entries, least recently used first out; None for no bound, 0 to store nothing
            (loads are still shared and batched).
        default_ttl: lifetime of a value that is stored without a ttl of its own, in seconds or as a `timedelta`; None
            for ever. A value with a lifetime of 0 seconds is not stored.
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
        seconds(batch_window_ms, "AsyncCache: batch_window_ms", zero=True)
        _lifetime(default_ttl, "default_ttl")
        self.maxsize = maxsize if maxsize is None else count(0, maxsize, "AsyncCache: maxsize")
        self.max_batch_size = count(1, max_batch_size, "AsyncCache: max_batch_size")
        self.default_ttl, self.batch_window_ms = default_ttl, batch_window_ms
        self.hits = self.misses = 0
        versions = Versions()  # of its own: no write of a tool reaches it
        self._store, self._lock = Store(maxsize, None, versions=versions), versions.lock
        self._loads: dict[Part, Load] = {}
        self._batches: list[Batch] = []

    def __deepcopy__(self, _memo: object = None) -> Self:
        """Itself, as of what `functools.lru_cache` returns."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncCache cannot be sent to another process: make one there, or share a tier")

    @property
    def cache(self) -> Mapping[Hashable, Any]:
        """A read-only copy of the entries, least recently used first. To look at them is no use of them."""
        found = [self._find(part, is_use=False) for part in list(self._store.keys())]
        return MappingProxyType(dict([pair for pair in found if pair is not None]))

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
                from key to value, or one value for each key in their order. It runs in a task of its own, and to its
                end, even if its callers are cancelled. A key that is missing from the mapping is answered with None,
                which is not stored. Not used if there is a loader.
            ttl: lifetime of the value from when it is stored, in seconds or as a `timedelta`; None for `default_ttl`.

        Raises:
            TypeError: if the key cannot be hashed, or the batch loader returned neither a mapping nor a sequence.
            ValueError: if the batch loader's list is shorter or longer than its keys. All of its callers get this,
                since any of the values might belong to another key.
            Exception: the loader's own, unchanged, to every caller that waits for it.
        """
        part = key if type(key) in PLAIN else _identity(key)
        found = self._find(part)
        if found is not None:
            self.hits += 1
            return found[1]
        self.misses += 1
        if loader is None and batch_loader is None:
            return None
        lifetime = _lifetime(self.default_ttl if ttl is None else ttl, "ttl")
        while found is None:
            load, is_new = self._join(part)
            if is_new:
                work = loader or partial(self._run_in_batch, load, part, key, batch_loader)
                return await self._run(load, part, key, work, lifetime)
            outcome = await asyncio.shield(load)
            if isinstance(outcome, Failure):
                outcome.raise_again()
            if outcome is not None:
                return outcome[0]
            found = self._find(part)  # the caller that led it was interrupted
        return found[1]

    def set(self, key: Hashable, value: Any, ttl: Seconds | None = _DEFAULT) -> Awaitable[None]:
        """Store a value, in place of the present one and of the result of any load under way.

        It is done when the call returns. Awaiting the result, as async-cache's documentation does, takes no time.

        Args:
            ttl: its lifetime, in seconds or as a `timedelta`; None for ever; if it is left out, `default_ttl`.
        """
        lifetime = _lifetime(self.default_ttl if ttl is _DEFAULT else ttl, "ttl")
        part = _identity(key)
        with self._lock:
            self._delete(part)
            self._insert(part, (key, value), lifetime)
        return Done()

    def delete(self, key: Hashable) -> Awaitable[None]:
        """Delete a key, if it is there. No load under way restores it. Like `set`, it may be awaited."""
        with self._lock:
            self._delete(_identity(key))
        return Done()

    def clear(self) -> Awaitable[None]:
        """Delete all entries and reset the counters. No load under way restores an entry. It may be awaited."""
        with self._lock:
            self._loads.clear()
            self._store.drop_all()
        self.hits = self.misses = 0
        return Done()

    def get_metrics(self) -> dict[str, Any]:
        """``hits``, ``misses``, ``size`` and ``hit_rate``, since the beginning or the last `clear`.

        ``size`` counts an expired entry until its key is asked for, it is evicted, or, without a `maxsize`, insertions
        remove it. ``hit_rate`` is 0.0 before the first get.
        """
        hits, misses = self.hits, self.misses
        return {"hits": hits, "misses": misses, "size": len(self._store), "hit_rate": hits / (hits + misses or 1)}

    async def warmup(self, keys_with_loaders: Mapping[Hashable, Loader]) -> None:
        """Load many keys at once. Keys with an entry are not loaded again.

        Raises:
            Exception: of the first loader, in this order, that raised one; after all have ended, so that the others
                are cached.
        """
        loads = [self.get(key, loader=loader) for key, loader in keys_with_loaders.items()]
        for outcome in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    # Entries

    def _find(self, part: Part, *, is_use: bool = True) -> tuple[Hashable, Any] | None:
        """The key and the value of an entry. One that has expired is deleted."""
        store = self._store
        entry = store.lookup(part)
        if entry is None:
            return None
        if CLOCK.now() >= entry.expires:
            with self._lock:
                if store.peek(part) is entry:
                    store.discard(part)
            return None
        if is_use and entry is not store.newest:
            store.use(part, entry)
        pair: tuple[Hashable, Any] = entry.value
        return pair

    def _insert(self, part: Part, pair: tuple[Hashable, Any], lifetime: float) -> None:
        now = CLOCK.now()
        if lifetime > 0:
            entry = Entry(pair, now + lifetime, 0.0)
            entry.checked = self._store.versions.now
            self._store.insert(part, entry, now)

    def _delete(self, part: Part) -> None:
        self._loads.pop(part, None)
        self._store.discard(part)

    # Loads

    def _join(self, part: Part) -> tuple[Load, bool]:
        """Find the load of a key in this event loop, or begin one. Returns also whether it is a new one."""
        loop = running_loop()
        if loop is None:
            raise NoEventLoopError("AsyncCache")
        with self._lock:
            load = self._loads.get(part)
            if load is not None and load.get_loop() is loop and load not in _RUNNING.get():
                return load, False
            self._loads[part] = load = loop.create_future()
            return load, True

    async def _run(self, load: Load, part: Part, key: Hashable, loader: Loader, lifetime: float) -> Any:
        """Run the loader of a load that this caller leads. The value is stored unless its key was written meanwhile."""
        token, value = _RUNNING.set((*_RUNNING.get(), load)), MISSING
        outcome: tuple[Any] | Failure | None = None
        try:
            value = await loader()
            outcome = (None if value is MISSING else value,)
            return outcome[0]
        except AgentLoopDetectedError:
            raise  # it stops the run of this caller alone: those that wait begin again
        except Exception as error:
            outcome = Failure(error)
            raise
        finally:
            with suppress(ValueError):  # closed by the garbage collector, in another context than it ran in
                _RUNNING.reset(token)
            with self._lock:
                if self._loads.get(part) is load:
                    del self._loads[part]
                    if value is not MISSING:
                        self._insert(part, (key, value), lifetime)
            load.set_result(outcome)

    async def _run_in_batch(self, load: Load, part: Part, key: Hashable, loader: Any) -> Any:
        """Wait for the value of one key in the open batch of a loader. `MISSING` if the loader returned none.

        A batch takes no more keys when its window is over, when it is full, or when a key comes that a dict cannot tell
        from one in it, as 1 and True: the next key opens the next batch, so that a slow loader delays no other key.
        """
        opened = [one for one in self._batches if not (one.is_closed.is_set() or one.loop.is_closed())]
        loop = load.get_loop()
        batch = next((one for one in opened if one.loop is loop and one.loader == loader), None)
        if batch is not None and batch.loads.get(key, (part, load))[0] != part:
            batch.is_closed.set()
            batch = None
        if batch is None:
            batch = Batch(loader, loop)
            self._batches = [*opened, batch]
            batch.task = loop.create_task(self._run_batch(batch))
        batch.loads[key] = part, load
        if len(batch.loads) >= self.max_batch_size:
            batch.is_closed.set()
        answers = await asyncio.shield(batch.task)
        return answers.get(key, MISSING)

    async def _run_batch(self, batch: Batch) -> Mapping[Hashable, Any]:
        """Wait for the keys of a batch and load their values.

        A list that lacks a row is refused as a whole: every later key would get the value of its neighbour.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self.batch_window_ms / 1000):
                await batch.is_closed.wait()
        batch.is_closed.set()
        self._batches = [one for one in self._batches if one is not batch]
        _RUNNING.set((*_RUNNING.get(), *[load for _, load in batch.loads.values()]))
        keys, loader = list(batch.loads), batch.loader
        found = await loader(keys.copy())
        if isinstance(found, Mapping):
            return {key: found[key] for key in keys if key in found}
        name = f"batch loader {getattr(loader, '__qualname__', type(loader).__qualname__)}()"
        is_table = hasattr(found, "keys") or hasattr(found, "columns")  # of pandas or polars, whose order is another
        if is_table or isinstance(found, str | bytes | Set) or not isinstance(found, Collection):  # an array is one
            wanted = "a mapping from key to value, or a list of values in the order of the keys"
            raise TypeError(f"{name} must return {wanted}; it returned {type(found).__name__}")
        if len(found) != len(keys):
            raise ValueError(f"{name} returned {len(found)} values for {len(keys)} keys, so none can be matched")
        return dict(zip(keys, found, strict=True))


def _lifetime(ttl: Seconds | None, option: str) -> float:
    return NEVER if ttl is None else seconds(ttl, f"AsyncCache: {option}", zero=True)


def _identity(key: Hashable) -> Part:
    """What a key is stored and compared by: itself and its class, at any depth of tuples and frozensets."""
    kind: Any = type(key)
    if kind in PLAIN:
        return key
    if kind is tuple or kind is frozenset:
        return kind, kind(map(_identity, key))  # type: ignore[call-overload]  # it is iterable
    return kind, key


@dataclass(slots=True, eq=False)
class Batch:
    """One run of a batch loader in a task of its own, for the loads of several keys."""

    loader: BatchLoader
    loop: asyncio.AbstractEventLoop
    loads: dict[Hashable, tuple[Part, Load]] = field(default_factory=dict)
    is_closed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Mapping[Hashable, Any]] = field(init=False)


_RUNNING: ContextVar[tuple[Load, ...]] = ContextVar("agent_cache_running_loads", default=())
"""The loads whose loaders run in this context, which these do not wait for."""
