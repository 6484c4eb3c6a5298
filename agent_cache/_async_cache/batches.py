"""Many keys, one load: concurrent gets with one batch loader are collected for a moment and loaded together.

Every key is a flight of its own, so callers of one key share it, take over from each other and never deadlock as they
do with a single loader. What the flights wait for is the *batch*, which runs the loader in a task that belongs to none
of them: a caller that is cancelled takes its key out if nobody else wants it, and the last one takes the task with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Protocol

from agent_cache._async_cache.shelf import Kept, Shelf
from agent_cache.core.coherence import Load
from agent_cache.core.keys import Part
from agent_cache.engine.runtime import ENCLOSING, Call, Flight

__all__ = ["BatchLoader", "Batches", "Limits", "Loading", "Slot"]

BatchLoader = Callable[[list[Any]], Awaitable[Any]]
"""Takes keys; returns a mapping from key to value, or the values in the order of the keys."""


class Limits(Protocol):
    """When a batch is full or has waited long enough."""

    batch_window_ms: float
    max_batch_size: int


class Loading(Call):
    """A get that has missed, in the shape that single flight knows.

    To the calls made under it, it *is* the call it was made from: it takes part in the wait-for graph, and in no trace.

    Attributes:
        raw: the key as it was given; `key` is its identity.
        loader, batch_loader: what to load it with.
        ttl: how long the value lives, in seconds.
    """

    __slots__ = ("batch_loader", "loader", "raw", "ttl")

    def __init__(
        self,
        shelf: Shelf,
        part: Part,
        raw: Hashable,
        loader: Callable[[], Awaitable[Any]] | None,
        batch_loader: BatchLoader | None,
        ttl: float,
    ) -> None:
        plan: Any = shelf
        Call.__init__(self, shelf, plan, part, (), {}, "miss")
        if self.parent is not None:
            self.numbers = self.parent.numbers
        self.raw = raw
        self.loader = loader
        self.batch_loader = batch_loader
        self.ttl = ttl


class Slot(Load):
    """One key in a batch, wanted by one flight, from when it is asked for until it is answered.

    It is a load of its own beside its flight, since a follower that takes the flight over goes on with what is being
    loaded for the leader: a `set` or `delete` since the *batch* began is what counts then.
    """

    __slots__ = ("answer", "batch", "error", "flight", "is_done", "raw", "traceback", "ttl", "waiter")

    def __init__(self, batch: Batch, flight: Flight, raw: Hashable, ttl: float) -> None:
        Load.__init__(self, flight.home, flight.key, (), ())
        self.batch = batch
        self.flight = flight
        self.raw = raw
        self.ttl = ttl
        self.is_done = False
        self.answer: Kept
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None
        self.waiter: asyncio.Future[None] | None = None

    async def result(self) -> Kept:
        """Wait for the answer as the leader of the flight, and leave it to the followers."""
        if not self.is_done:
            self.waiter = self.batch.loop.create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        if self.error is not None:
            raise self.error.with_traceback(self.traceback)
        self.flight.result = self.answer
        return self.answer

    def finish(self) -> None:
        """No `set` or `delete` needs to know of it any more."""
        self.is_open = False
        self.batch.batches.shelf.loads.discard(self)

    def done(self) -> None:
        """Let the leader have what there is."""
        self.is_done = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def abandon(self) -> None:
        """Its flight is over. If that was before the answer, nobody wants one."""
        if self.is_done:
            return
        self.is_clean = False  # it may still be answered before `withdraw` has its turn
        self.finish()
        try:
            # An abandoned call is closed by the garbage collector, on whatever thread that runs.
            self.batch.loop.call_soon_threadsafe(self.batch.withdraw, self)
        except RuntimeError:
            pass  # the loop is closed, and the batch with it


class Batch:
    """Keys that one loader will load, is loading, or has loaded.

    Attributes:
        slots: who wants what, by identity of the key.
        raws: the keys as they were given. No two of them are equal: ``1`` and ``True`` would meet in a loader's dict.
        under: stands for the batch in the wait-for graph: its flights wait for it, and it for what its loader calls.
    """

    __slots__ = ("batches", "context", "handle", "loader", "loop", "raws", "slots", "task", "timer", "under")

    def __init__(
        self, batches: Batches, loop: asyncio.AbstractEventLoop, loader: BatchLoader, handle: Hashable
    ) -> None:
        shelf = batches.shelf
        self.batches = batches
        self.loop = loop
        self.loader = loader
        self.handle = handle
        self.slots: dict[Part, list[Slot]] = {}
        self.raws: dict[Hashable, Part] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.under = Flight(shelf.home, (None, loop), (), ())
        self.context: Context = copy_context()
        call = Loading(shelf, None, None, None, loader, 0.0)
        call.leading = self.under
        self.context.run(ENCLOSING.set, call)

    def takes(self, raw: Hashable, part: Part) -> bool:
        """Whether a key can be told apart from the others in it."""
        return self.raws.get(raw, part) == part

    def enter(self, slot: Slot) -> None:
        """Take one more key, or one more flight for a key that is in it."""
        self.slots.setdefault(slot.key, []).append(slot)
        self.raws[slot.raw] = slot.key
        slot.flight.wait_for(self.under)

    def withdraw(self, slot: Slot) -> None:
        """A key is not wanted any more, at least not by this flight."""
        wanted = self.slots.get(slot.key, [])
        if slot not in wanted:
            return
        wanted.remove(slot)
        if not wanted:
            del self.slots[slot.key]
            self.raws.pop(slot.raw, None)
        if not self.slots:
            self.batches.close(self)
            if self.task is not None:
                self.task.cancel()

    async def run(self) -> None:
        """Load what is wanted, and answer whoever still wants it."""
        parts, keys = list(self.slots), [wanted[0].raw for wanted in self.slots.values()]
        try:
            found = _answers(self.loader, keys, await self.loader(keys.copy()))
        except Exception as error:  # noqa: BLE001 - it is raised again, by each caller
            self._fail(error)
        except BaseException as error:
            # Its callers were not cancelled, and a task that ends as if it had been is lost to whoever waits for it.
            failure = RuntimeError(
                f"{_name(self.loader)} was stopped by {type(error).__name__}, which none of its callers caused"
            )
            failure.__cause__ = error
            self._fail(failure)
            raise
        else:
            for part, key, (value, is_there) in zip(parts, keys, found, strict=True):
                for slot in self.slots.pop(part, ()):
                    slot.answer = self.batches.shelf.keep(slot, key, value, slot.ttl if is_there else 0.0)
                    slot.done()

    def _fail(self, error: BaseException) -> None:
        for wanted in self.slots.values():
            for slot in wanted:
                slot.error, slot.traceback = error, error.__traceback__
                slot.finish()
                slot.done()
        self.slots.clear()


class Batches:
    """The batches of one cache that still take keys, and the tasks of those that do not.

    A batch belongs to one event loop and one loader. It is closed when its window is over, when it is full, or when it
    is asked for a key that it could not tell from another; from then on the next key opens the next batch, so a loader
    that is slow holds up nobody.
    """

    __slots__ = ("_open", "_tasks", "limits", "shelf")

    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self.shelf = shelf
        self.limits = limits
        self._open: dict[asyncio.AbstractEventLoop, dict[Hashable, Batch]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def enter(self, flight: Flight, raw: Hashable, loader: BatchLoader, ttl: float) -> Slot:
        """Let a flight's key be loaded with the next batch."""
        loop, handle = asyncio.get_running_loop(), _handle(loader)
        batch = self._open.get(loop, {}).get(handle)
        if batch is None or not batch.takes(raw, flight.key):
            batch = self._begin(loop, loader, handle)
        slot = Slot(batch, flight, raw, ttl)
        self.shelf.loads.add(slot)
        self.shelf.loads.works[flight] = slot
        batch.enter(slot)
        if len(batch.slots) >= self.limits.max_batch_size:
            self._start(batch)
        return slot

    def close(self, batch: Batch) -> None:
        """Take no more keys."""
        if batch.timer is not None:
            batch.timer.cancel()
        of_loop = self._open.get(batch.loop, {})
        if of_loop.get(batch.handle) is batch:
            del of_loop[batch.handle]
            if not of_loop:
                del self._open[batch.loop]

    def _begin(self, loop: asyncio.AbstractEventLoop, loader: BatchLoader, handle: Hashable) -> Batch:
        batch = Batch(self, loop, loader, handle)
        if loop not in self._open:
            for gone in [other for other in self._open if other.is_closed()]:
                self._open.pop(gone, None)  # stopped in the middle of a window: its callers have gone with it
        self._open.setdefault(loop, {})[handle] = batch
        batch.timer = loop.call_later(self.limits.batch_window_ms / 1000, self._start, batch)
        return batch

    def _start(self, batch: Batch) -> None:
        self.close(batch)
        batch.task = task = batch.loop.create_task(batch.run(), context=batch.context)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)


def _handle(loader: BatchLoader) -> Hashable:
    """What tells one loader from another: equality, so that ``db.load`` is one loader each time it is written."""
    try:
        hash(loader)
    except TypeError:
        return id(loader)  # the batch holds it, so the address is its own as long as the batch is open
    return loader


def _name(loader: BatchLoader) -> str:
    return f"batch loader {getattr(loader, '__qualname__', type(loader).__qualname__)}()"


def _answers(loader: BatchLoader, keys: list[Hashable], found: Any) -> list[tuple[Any, bool]]:
    """Value for each key, and whether there is one. What cannot be matched with the keys is refused as a whole: a list
    that lacks a row somewhere would give every later key its neighbour's value.

    Raises:
        TypeError: if it is neither a mapping nor values in an order.
        ValueError: if there are not as many values as keys.
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
