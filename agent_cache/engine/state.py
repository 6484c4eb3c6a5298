"""State of the process: the ledger of loads and writes, warnings, and the freeing of dropped entries.

`LEDGER` is the one instance of `core.coherence.Ledger`. Code that changes it holds `LEDGER.lock`, and afterwards frees
what was dropped, outside of the lock, with `free`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable, Iterator
from time import perf_counter
from typing import Any, Protocol, TypeVar

from agent_cache.config import CURRENT, Configuration
from agent_cache.core.coherence import Ledger, Partition
from agent_cache.core.store import Entry
from agent_cache.core.tags import Region

__all__ = [
    "LEDGER",
    "LOG",
    "WITNESSES",
    "clear_everything",
    "drop",
    "evict_for",
    "forget_oldest",
    "forget_warnings",
    "free",
    "note_dropped",
    "note_evicted",
    "run_shielded",
    "unwatch",
    "warn_once",
    "watch",
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


def evict_for(entry: Entry, garbage: list[Entry]) -> list[Partition] | None:
    """Evict least recently used entries of the largest stores until `entry` fits into ``max_bytes``.

    The caller holds the lock, and afterwards calls `note_evicted` for each entry in the garbage.

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
        dropped = largest.store.evict()
        total -= dropped.size
        garbage.append(dropped)
        evicted.append(largest)
    return evicted


def _apply(old: Configuration, new: Configuration) -> None:
    if old.remote is not new.remote or old.backup is not new.backup:
        clear_everything()  # the new tiers have no versions of these entries
    with LEDGER.lock:
        for partition in LEDGER.partitions():
            partition.store.switch(on=new.enabled)


CURRENT.listeners.append(_apply)


# Witnesses: the loop guards of sessions compare answers with earlier ones, and keep these no longer than the cache does


class Witness(Protocol):
    """Something that keeps an entry alive, to compare its value with a later one.

    Attributes:
        entry: the entry that it keeps.
    """

    entry: Entry | None

    def let_go(self, entry: Entry, known: dict[Any, Any] | None) -> None:
        """Keep what identifies the value instead of the entry, if it is still the one that is kept.

        Args:
            known: what other witnesses have found out about the value; None if the entry was evicted, which is too
                frequent to identify each value.
        """
        ...


_MAX_HOLD = 0.0005
"""Seconds for which witnesses of dropped entries may hold the event loop: a value takes 1 to 50 us to identify."""

WITNESSES: dict[int, Any] = {}
"""The witness of each entry that has one, or a set of them, by the entry's address. It is the entry's own as long as a
witness keeps it alive, and a witness that does not is removed by `unwatch`.
"""


def watch(entry: Entry, witness: Witness) -> None:
    """Call `Witness.let_go` soon after the cache has dropped this entry, unless `unwatch` is called before."""
    present = WITNESSES.get(id(entry))
    if present is None:
        WITNESSES[id(entry)] = witness
    elif type(present) is set:
        present.add(witness)
    else:
        WITNESSES[id(entry)] = {present, witness}


def unwatch(entry: Entry, witness: Witness) -> None:
    """Forget a witness that lets go of its entry."""
    present = WITNESSES.get(id(entry))
    if present is witness:
        WITNESSES.pop(id(entry), None)
    elif type(present) is set:
        present.discard(witness)
        if not present:
            WITNESSES.pop(id(entry), None)


def _witnesses_of(present: Any) -> list[Witness]:
    return list(present) if type(present) is set else [present]


def note_evicted(entry: Entry) -> None:
    """Let no witness keep an entry that was evicted. Called outside of the lock."""
    present = WITNESSES.pop(id(entry), None)
    if type(present) is set:
        for witness in list(present):
            witness.let_go(entry, None)
    elif present is not None:
        present.let_go(entry, None)


def note_dropped(entries: Iterable[Entry]) -> None:
    """Let no witness keep entries that were dropped. Called outside of the lock, since values are compared."""
    found = [
        (entry, _witnesses_of(present)) for entry in entries if (present := WITNESSES.pop(id(entry), None)) is not None
    ]
    if not found:
        return
    work = _tell_witnesses(found)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        for _ in work:
            pass  # no event loop to hold up
        return
    if next(work, work) is not work:  # there is more than fits into one turn
        _in_turns(loop, work)


def _tell_witnesses(found: list[tuple[Entry, list[Witness]]]) -> Iterator[None]:
    began = perf_counter()
    for entry, witnesses in found:
        known: dict[Any, Any] = {}
        for witness in witnesses:
            if perf_counter() - began > _MAX_HOLD:
                yield
                began = perf_counter()
            witness.let_go(entry, known)


# Freeing dropped entries: a million of them at once would hold the event loop for half a second


def free(garbage: list[Any]) -> None:
    """Release dropped entries. Large mappings are emptied in slices, between other callbacks of the running event loop.

    Args:
        garbage: lists of entries, and tuples of mappings as `Store.drop_all` returns them. The list is emptied.
    """
    if WITNESSES:
        note_dropped(entry for dropped in garbage for entry in _small(dropped))
    large = [mapping for dropped in garbage if type(dropped) is tuple for mapping in dropped if len(mapping) > _SLICE]
    if large:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            pass  # no event loop to hold up: they are freed with the list
        else:
            _in_turns(loop, *map(_in_slices, large))
    garbage.clear()


def _in_turns(loop: asyncio.AbstractEventLoop, *work: Iterator[None]) -> None:
    """Do some work between other callbacks of an event loop."""
    if (queue := _garbage.get(loop)) is not None:
        queue.extend(work)
    else:
        _garbage[loop] = deque(work)
        loop.call_soon(_free_a_slice, loop)


def _small(dropped: Any) -> Iterable[Entry]:
    """The entries of one part of the garbage, but for those that are freed in slices or later."""
    if type(dropped) is tuple:
        return dropped[0].values() if len(dropped[0]) <= _SLICE else ()
    return dropped if type(dropped) is list else ()


def _in_slices(mapping: dict[Any, Any]) -> Iterator[None]:
    """Empty a mapping, one slice between two yields, then its tables: those of a million entries take milliseconds."""
    while mapping:
        for _ in range(min(_SLICE, len(mapping))):
            _, value = mapping.popitem()
            if id(value) in WITNESSES:
                note_dropped((value,))
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
