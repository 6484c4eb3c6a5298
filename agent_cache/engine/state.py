"""State of the process: the ledger of loads and writes, warnings, and the freeing of dropped entries.

`LEDGER` is the one instance of `core.coherence.Ledger`. Code that changes it holds `LEDGER.lock`, and afterwards frees
what was dropped, outside of the lock, with `free`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from agent_cache.config import CURRENT, Configuration
from agent_cache.core.coherence import Ledger, Partition, Region
from agent_cache.core.store import Entry

__all__ = [
    "LEDGER",
    "LOG",
    "clear_everything",
    "drop",
    "evict_for",
    "forget_oldest",
    "forget_warnings",
    "free",
    "run_shielded",
    "warn_once",
]

T = TypeVar("T")

LEDGER = Ledger()
LOG = logging.getLogger("agent_cache")
LOG.addHandler(logging.NullHandler())

_MAX_WARNINGS = 10_000
_warned: set[tuple[str, str]] = set()

_SLICE = 2_000
"""Entries freed in one iteration of the event loop: 0.5 to 1 ms."""
_garbage: dict[asyncio.AbstractEventLoop, deque[Iterator[None]]] = {}

_shielded: set[asyncio.Task[Any]] = set()
"""Tasks whose caller no longer waits for them. The event loop itself holds tasks only weakly."""


# Warnings


def warn_once(event: str, tool: str, error: BaseException | None = None) -> None:
    """Log a warning, once for each event and tool. Argument values never appear in it."""
    if (event, tool) not in _warned and len(_warned) < _MAX_WARNINGS:
        _warned.add((event, tool))
        reason = f" ({_described(error)})" if error is not None else ""
        LOG.warning("%s: %s%s", tool, event, reason, extra={"agent_cache_event": event, "agent_cache_tool": tool})


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a user's __str__, needed for a message only
        return type(error).__name__


def forget_warnings() -> None:
    """Let `warn_once` log everything again."""
    _warned.clear()


def forget_oldest(mapping: dict[Any, Any], limit: int) -> None:
    """Remove the oldest items of a mapping until it has at most `limit`.

    Takes no lock: another thread may do the same at once, and then there may be fewer.
    """
    while len(mapping) > limit:
        try:
            mapping.pop(next(iter(mapping)), None)
        except (RuntimeError, StopIteration):
            continue  # another thread has changed it between the two steps


# Invalidation from outside of a write tool, and eviction


def drop(region: Region) -> int:
    """Invalidate a region at once. Returns how many local entries were dropped."""
    with LEDGER.lock:
        garbage = LEDGER.invalidate(region)
    count = sum(len(dropped[0]) if type(dropped) is tuple else len(dropped) for dropped in garbage)
    free(garbage)
    return count


def clear_everything() -> None:
    """Drop every entry, and let no load in flight be stored."""
    with LEDGER.lock:
        garbage = LEDGER.clear()
    free(garbage)


def evict_for(entry: Entry) -> list[Partition] | None:
    """Evict least recently used entries of the largest stores until `entry` fits into ``max_bytes``.

    The caller holds the lock.

    Returns:
        The partition of each evicted entry; None if the entry alone is larger than ``max_bytes``.
    """
    limit = CURRENT.value.max_bytes
    if limit is None:
        return []
    if entry.size > limit:
        return None
    evicted: list[Partition] = []
    partitions = LEDGER.partitions()
    total = sum(partition.store.bytes for partition in partitions) + entry.size
    while total > limit:
        largest = max(partitions, key=lambda partition: partition.store.bytes)
        total -= largest.store.evict().size
        evicted.append(largest)
    return evicted


def _apply(old: Configuration, new: Configuration) -> None:
    if old.remote is not new.remote or old.backup is not new.backup:
        clear_everything()  # the new tiers have no versions of these entries
    with LEDGER.lock:
        for partition in LEDGER.partitions():
            partition.store.switch(on=new.enabled)


CURRENT.listeners.append(_apply)


# Freeing dropped entries: a million of them at once would hold the event loop for half a second


def free(garbage: list[Any]) -> None:
    """Release dropped entries. Large mappings are emptied in slices, between other callbacks of the running event loop.

    Args:
        garbage: lists of entries, and tuples of mappings as `Store.drop_all` returns them. The list is emptied.
    """
    large = [mapping for dropped in garbage if type(dropped) is tuple for mapping in dropped if len(mapping) > _SLICE]
    if large:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            pass  # no event loop to hold up: they are freed with the list
        else:
            work = map(_in_slices, large)
            if (queue := _garbage.get(loop)) is not None:
                queue.extend(work)
            else:
                _garbage[loop] = deque(work)
                loop.call_soon(_free_a_slice, loop)
    garbage.clear()


def _in_slices(mapping: dict[Any, Any]) -> Iterator[None]:
    """Empty a mapping, one slice between two yields, then its tables: those of a million entries take milliseconds."""
    while mapping:
        for _ in range(min(_SLICE, len(mapping))):
            _, value = mapping.popitem()
            if isinstance(value, set) and len(value) > _SLICE:  # the keys under one tag
                while value:
                    for _ in range(min(_SLICE, len(value))):
                        value.pop()
                    yield
        yield
    if type(mapping) is OrderedDict:
        dict.clear(mapping)  # an OrderedDict has two tables: one in each iteration
        yield


def _free_a_slice(loop: asyncio.AbstractEventLoop) -> None:
    queue = _garbage[loop]
    try:
        next(queue[0])
    except StopIteration:
        queue.popleft()
    if queue:
        loop.call_soon(_free_a_slice, loop)
    else:
        del _garbage[loop]


# Work that must not end with its caller


async def run_shielded(
    work: Coroutine[Any, Any, T], *parts: Coroutine[Any, Any, Any], may_wait: bool = True
) -> T | None:
    """Run a coroutine to its end, also if the caller is cancelled while it waits or cannot wait at all.

    Args:
        work: the coroutine.
        parts: coroutines that `work` is going to await, to be closed if `work` never starts.
        may_wait: False starts the work and returns at once, for a caller that is being closed.

    Returns:
        What `work` returned; None if it was not waited for, or if there is no event loop to run it.
    """
    try:
        loop = asyncio.get_running_loop()
        # A future of our own: awaiting the task itself would resume the caller one iteration of the loop later.
        outcome: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(_deliver(work, outcome))
    except RuntimeError:  # the call is being closed without a loop: leases end what it had announced
        _close(work, *parts)
        return None
    _shielded.add(task)

    def finished(_: asyncio.Task[None]) -> None:
        _shielded.discard(task)
        outcome.cancel()
        if task.cancelled():  # perhaps before its first step
            _close(work, *parts)

    task.add_done_callback(finished)
    return await outcome if may_wait else None


async def _deliver(work: Coroutine[Any, Any, T], outcome: asyncio.Future[T]) -> None:
    try:
        result = await work
    except Exception as error:
        if outcome.done():
            raise
        outcome.set_exception(error)
    else:
        if not outcome.done():
            outcome.set_result(result)


def _close(*coroutines: Coroutine[Any, Any, Any]) -> None:
    for each in coroutines:
        if hasattr(each, "close"):  # a tier may have returned a future
            each.close()
