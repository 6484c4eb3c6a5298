"""`AsyncCache`: async-cache's interface, kept to the letter; nothing of its machinery runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping, MutableMapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from agent_cache._async_cache.batches import Batches, BatchLoader, Loading, Slot
from agent_cache._async_cache.shelf import Contents, Kept, Shelf, identity
from agent_cache._async_cache.upstream import upstream_class
from agent_cache.core.keys import PLAIN
from agent_cache.core.store import NEVER
from agent_cache.engine.runtime import ENCLOSING, Call
from agent_cache.engine.single_flight import single_flight
from agent_cache.errors import ConfigurationError

if TYPE_CHECKING:
    from cache import AsyncCache as Upstream
else:
    Upstream = upstream_class()

__all__ = ["AsyncCache", "Metrics"]

Loader = Callable[[], Awaitable[Any]]
Seconds = float | timedelta


class Metrics(TypedDict):
    """What `AsyncCache.get_metrics` returns."""

    hits: int
    misses: int
    size: int
    hit_rate: float


class _Done:
    """What is already done: may be awaited, and need not be."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<done>"


_DONE: Final = _Done()
_DEFAULT: Final[Any] = object()


class AsyncCache(Upstream):  # type: ignore[misc]  # async-cache ships no hints
    """A local cache with loaders, single flight and batches: async-cache's class, for everyone who expects one.

    Concurrent misses of one key run one loader and share its value or its exception. Whoever is cancelled among them
    never hangs, fails or cancels another: a waiter takes over. Errors are never cached, None is. What is set, deleted
    or cleared while a load is under way stays so: the load's value goes to those who wait for it and is not kept. One
    cache serves several event loops and threads.

    Keys are type-exact: ``1``, ``True`` and ``1.0`` are three keys, ``(1,)`` and ``(True,)`` two. Values are handed out
    as they are, not copied.

    Args:
        maxsize: how many entries at the most, least recently used first out; None for no bound, 0 to keep nothing
            (loads are still shared and batched).
        default_ttl: how long a value lives that is stored without a ttl of its own, in seconds or as a `timedelta`;
            None for ever. A value that lives 0 seconds or less is not kept.
        batch_window_ms: how long a batch waits for more keys, in milliseconds. May be set later, too.
        max_batch_size: how many keys a batch takes before it starts at once. May be set later, too.

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
        # Not super().__init__(): it would set up the machinery that this class is instead of.
        if maxsize is not None:
            _at_least(0, maxsize, "maxsize must be a number of entries, 0 or more, or None for no bound")
        _lifetime(default_ttl, "default_ttl")
        window = batch_window_ms
        if isinstance(window, bool) or not isinstance(window, int | float) or not 0 <= window < NEVER:
            raise ConfigurationError(f"AsyncCache: batch_window_ms must be milliseconds, 0 or more, got {window!r}")
        _at_least(1, max_batch_size, "max_batch_size must be a number of keys, 1 or more")
        self.default_ttl = default_ttl
        self.batch_window_ms = batch_window_ms
        self.max_batch_size = max_batch_size
        self.hits = 0
        self.misses = 0
        self._shelf = Shelf(maxsize)
        self._batches = Batches(self._shelf, self)

    @property
    def maxsize(self) -> int | None:
        """How many entries it holds at the most; None for no bound."""
        return self._shelf.home.store.maxsize

    @property
    def cache(self) -> MutableMapping[Hashable, Any]:
        """The entries as a mapping from key to value: a view, always current."""
        return Contents(self, self._shelf)

    async def get(
        self,
        key: Hashable,
        loader: Loader | None = None,
        batch_loader: BatchLoader | None = None,
        ttl: Seconds | None = None,
    ) -> Any:
        """The value under a key; on a miss what the loader gives, which is kept; None on a miss without a loader.

        Args:
            key: anything that can be hashed.
            loader: takes nothing, returns an awaitable of the value. It runs in the caller's own task, and once however
                many callers there are.
            batch_loader: takes a list of keys, in the order in which they were asked for, each once; returns a mapping
                from key to value, or one value for each key in their order. It runs in a task of its own, in the
                context of the first caller, and is cancelled when nobody waits for any of its keys any more. A key that
                is missing from the mapping is answered with None, which is not kept. Not used if there is a loader.
            ttl: how long the value lives from when it is stored, in seconds or as a `timedelta`; None for
                `default_ttl`.

        Raises:
            TypeError: if the key cannot be hashed, or the batch loader returned neither a mapping nor a sequence.
            ValueError: if the batch loader's list is shorter or longer than its keys. All of its callers get this,
                since any of the values might be another key's.
            RuntimeError: if the batch loader's task was cancelled by someone else than its callers.
            Exception: whatever the loader raises, unchanged, to everyone who waits for it.
        """
        shelf = self._shelf
        part = key if type(key) in PLAIN else identity(key)
        found = shelf.find(part)
        if found is not None:
            shelf.use(part, found)
            self.hits += 1
            return found.value
        self.misses += 1
        if loader is None and batch_loader is None:
            return None
        lifetime = _lifetime(self.default_ttl if ttl is None else ttl, "ttl")
        call = Loading(shelf, part, key, loader, batch_loader, lifetime)
        return (await single_flight(call, self._load)).value

    def set(self, key: Hashable, value: Any, ttl: Seconds | None = _DEFAULT) -> Awaitable[None]:
        """Store a value now, in place of what is there and of what any load under way will bring.

        It is done when the call returns. It may be awaited, as async-cache's documentation does: that takes no time.

        Args:
            key: anything that can be hashed.
            value: anything. It is handed out as it is.
            ttl: how long it lives, in seconds or as a `timedelta`; None for ever; if it is left out, `default_ttl`.
        """
        self._shelf.put(key, value, _lifetime(self.default_ttl if ttl is _DEFAULT else ttl, "ttl"))
        return _DONE

    def delete(self, key: Hashable) -> Awaitable[None]:
        """Forget a key now, if it is there. No load under way brings it back. Like `set`, it may be awaited."""
        self._shelf.drop(key)
        return _DONE

    def clear(self) -> Awaitable[None]:
        """Forget everything now, the counters too. No load under way brings any of it back. It may be awaited."""
        self._shelf.drop_all()
        self.hits = self.misses = 0
        return _DONE

    def get_metrics(self) -> Metrics:
        """``hits``, ``misses``, ``size`` and ``hit_rate``, since the beginning or the last `clear`.

        ``size`` counts an entry that has expired until its key is asked for. ``hit_rate`` is 0.0 before the first get.
        """
        hits, misses = self.hits, self.misses
        total = hits + misses
        return {"hits": hits, "misses": misses, "size": len(self._shelf), "hit_rate": hits / total if total else 0.0}

    async def warmup(self, keys_with_loaders: Mapping[Hashable, Loader]) -> None:
        """Load many keys at once, so that nobody has to wait for them later. What is there already is not loaded again.

        Args:
            keys_with_loaders: key -> loader, as `get` takes it.

        Raises:
            Exception: what the first loader in this order raised that did; only when all have ended, so that the others
                are warm.
        """
        outcomes = await asyncio.gather(
            *(self.get(key, loader=loader) for key, loader in keys_with_loaders.items()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _load(self, call: Call) -> Kept:
        """What the leader of a flight does."""
        assert isinstance(call, Loading)
        flight = call.flight
        work = self._shelf.loads.works.get(flight)
        if isinstance(work, Slot):  # the leader before this one has begun it
            return await work.result()
        if call.loader is None:
            assert call.batch_loader is not None
            return await self._batches.enter(flight, call.raw, call.batch_loader, call.ttl).result()
        token = ENCLOSING.set(call)
        try:
            value = await call.loader()
        finally:
            with suppress(ValueError):  # closed by the garbage collector, in another context than it ran in
                ENCLOSING.reset(token)
        flight.result = kept = self._shelf.keep(flight, call.raw, value, call.ttl)
        return kept


def _at_least(bound: int, value: Any, rule: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigurationError(f"AsyncCache: {rule}, got {value!r}")


def _lifetime(ttl: Any, what: str) -> float:
    """Seconds, `timedelta` or None as seconds."""
    if ttl is None:
        return NEVER
    number = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise ConfigurationError(f"AsyncCache: {what} must be seconds, a timedelta or None, got {ttl!r}")
    return number
