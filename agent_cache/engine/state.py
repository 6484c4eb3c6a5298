"""State of the process: its tools by root, warnings, invalidation from outside of tools, and work that outlives calls.

Code that changes a store holds `VERSIONS.lock`, and keeps what was dropped until that is released: to free a million
entries takes half a second.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Iterator
from contextvars import copy_context
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent_cache.at_fork import at_fork
from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT, Configuration
from agent_cache.core.store import Entry, Sizes
from agent_cache.core.tags import EVERY_KEY, Tag
from agent_cache.core.versions import VERSIONS, EntryTag
from agent_cache.engine.blocking import run_blocking, start_thread
from agent_cache.errors import NoEventLoopError
from agent_cache.values.canonical import forget_oldest
from agent_cache.values.compare import utf8_text

if TYPE_CHECKING:
    from random import Random

__all__ = [
    "LOG", "SIZES", "TOOLS", "clear_everything", "clear_tools", "event_loop", "evict_for",
    "forget_warnings", "keep", "mark_written", "random_numbers", "run_beside", "run_shielded", "tags_of_keys",
    "warn_of_unread_roots", "warn_of_unwritten_roots", "warn_once", "write_now",
]  # fmt: skip

T = TypeVar("T")

SIZES: Final = Sizes()
"""The sizes of all stores that ``max_bytes`` bounds."""


def event_loop(tool: str) -> asyncio.AbstractEventLoop:
    """The event loop of asyncio that runs here. Raises `NoEventLoopError`, which names this tool, if none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise NoEventLoopError(tool) from None


@cache
def random_numbers(_use: str) -> Random:
    """Those behind ``"jitter"`` or ``"audit"``, made for the first of them: see `agent_cache.testing.JITTER`."""
    from random import Random  # a module that few processes need

    made = Random()  # noqa: S311 - they protect nothing
    at_fork(after_in_child=made.seed)  # or all workers of a server would have the same
    return made


# Warnings

LOG = logging.getLogger("agent_cache")
LOG.addHandler(logging.NullHandler())

_MAX_WARNINGS: Final = 10_000
_warned: set[tuple[str, str]] = set()


def warn_once(event: str, tool: str, error: BaseException | None = None) -> None:
    """Log a warning, once for each event and tool. Argument values never appear in it."""
    if (event, tool) not in _warned and len(_warned) < _MAX_WARNINGS:
        _warned.add((event, tool))
        name, event = utf8_text(tool), utf8_text(event)  # or a handler that writes to a file would fail
        reason = utf8_text(f" ({_described(error)})") if error is not None else ""
        LOG.warning("%s: %s%s", name, event, reason, extra={"agent_cache_event": event, "agent_cache_tool": name})


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a user's __str__, needed for a message only
        return type(error).__name__


def forget_warnings() -> None:
    """Let every warning be logged again, and forget what they are given for."""
    _warned.clear()
    _warned_roots.clear()
    _written.clear()


# Tools, and who reads and writes a root

_MAX_ROOTS: Final = 10_000
_written: dict[str, None] = {}
"""Roots that something else than a write tool has invalidated."""
_warned_roots: dict[str, None] = {}
"""Roots of which a warning says that they are never read, or never written."""


class _Tools:
    """The tools of the process that something still holds.

    Attributes:
        writers: the write tools.
        links: how often a root was given another read tool whose entries may depend on it.
    """

    def __init__(self) -> None:
        self._readers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers = itertools.count(1)
        self.writers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.links = 0
        at_fork(after_in_child=self._forget_flights)

    def add(self, reader: Any) -> int:
        """Note a read tool. Returns its number in the tags of its entries."""
        number = next(self._numbers)
        with VERSIONS.lock:
            self._readers[number] = reader
            self.links += 1
        return number

    def remove(self, reader: Any) -> None:
        """Forget a read tool that was refused."""
        with VERSIONS.lock:
            self._readers.pop(reader.number, None)

    def readers(self, root: str | None = None) -> list[Any]:
        """Every read tool, in the order of their decoration; with a root, those whose entries may depend on it."""
        with VERSIONS.lock:
            found = list(self._readers.values())
        return found if root is None else [tool for tool in found if root in tool.roots]

    def all(self) -> list[Any]:
        """Every tool, by name."""
        with VERSIONS.lock:
            return sorted([*self._readers.values(), *self.writers], key=lambda tool: str(tool.name))

    def _forget_flights(self) -> None:
        """In a forked child: the loads of the parent's other threads never end here."""
        for tool in self.readers():
            for store in tool.stores():
                store.flights.clear()


TOOLS: Final = _Tools()


def mark_written(roots: Iterable[str]) -> None:
    """Note roots that something else than a write tool invalidates."""
    for root in roots:
        if root not in _written:
            forget_oldest(_written, _MAX_ROOTS - 1)
            _written[root] = None


def warn_of_unread_roots(tool: str, roots: Iterable[str]) -> None:
    """Warn of each root of a write tool on which no read tool depends."""
    for root, near in _unmatched(roots, [tool.roots for tool in TOOLS.readers()]):
        warn_once(f"no read tool depends on {root!r}, so this write drops nothing under it{near}", tool)


def warn_of_unwritten_roots(tool: str, roots: Iterable[str]) -> None:
    """Warn of each root of a read tool that nothing invalidates."""
    with VERSIONS.lock:
        written = [_written, *[writer.roots for writer in TOOLS.writers]]
    for root, near in _unmatched(roots, written):
        event = f"no write has {root!r}, so what depends on it is cached until it is evicted; if it changes"
        warn_once(f"{event}, write it or give the tool a ttl{near}", tool)


def _unmatched(roots: Iterable[str], others: list[Collection[str]]) -> Iterator[tuple[str, str]]:
    """The roots that the others do not have, of which no warning was given, each with a hint at the nearest one."""
    for root in roots:
        if root not in _warned_roots and not any(root in names for names in others):
            forget_oldest(_warned_roots, _MAX_ROOTS - 1)
            _warned_roots[root] = None
            from difflib import get_close_matches  # for a warning alone

            known = list(islice(dict.fromkeys(name for names in others for name in list(names)), _MAX_NAMES))
            near = get_close_matches(root, known, 1)
            yield root, f"; is {near[0]!r} meant?" if near else ""


_MAX_NAMES: Final = 1_000
"""How many roots are searched for the nearest name, at 2 us each, once for each warning."""


# Invalidation from outside of a write tool, and eviction


def write_now(tags: Iterable[Tag] = (), keys: Iterable[tuple[Any, Hashable]] = ()) -> None:
    """Invalidate what depends on these tags and on these entries, given as (tool, key), at once."""
    VERSIONS.write((*tags, *tags_of_keys(keys)))


def tags_of_keys(keys: Iterable[tuple[Any, Hashable]]) -> list[EntryTag]:
    """The tags of entries of these tools. From now on their entries ask for them."""
    found: list[EntryTag] = []
    for tool, key in keys:
        tool.is_named = True  # before it is written: a load that ends meanwhile is to see it
        found.append((tool.number,) if key is EVERY_KEY else (tool.number, key))
    return found


def clear_tools(tools: Iterable[Any]) -> None:
    """Drop every entry of these tools, and what has read them; none of their loads in flight is stored or joined."""
    with VERSIONS.lock:
        tools = list(tools)
        write_now(keys=[(tool, EVERY_KEY) for tool in tools])
        _dropped = [store.drop_all() for tool in tools for store in tool.stores()]  # freed after the lock


def clear_everything() -> None:
    """Drop every entry, and let no load in flight be stored."""
    with VERSIONS.lock:
        VERSIONS.write_everything()
        _dropped = [store.drop_all() for tool in TOOLS.readers() for store in tool.stores()]  # freed after the lock


_MAX_EVICTED: Final = 500
"""Entries that one insertion evicts one by one: 1 ms."""

_SWEPT: Final = 64
"""Entries that one eviction examines for dead ones."""


def evict_for(entry: Entry, local: Any, garbage: list[Any]) -> bool:
    """Evict least recently used entries of the largest stores until `entry` fits into ``max_bytes``, and count them.

    The caller holds the lock. At most 500 entries are evicted one by one; if that is not enough, the largest store is
    emptied. `garbage` takes what is evicted, to be freed after the lock. Returns whether the entry fits at all.
    """
    limit = CURRENT.value.max_bytes
    if limit is not None and entry.size > limit:
        return False
    number = 0
    while limit is not None and SIZES.total + entry.size > limit and (largest := SIZES.largest()) is not None:
        number += 1
        if swept := largest.sweep(CLOCK.now(), _SWEPT):  # dead ones before a living one
            garbage.append(swept)
            continue
        count = 1 if number <= _MAX_EVICTED else len(largest)
        garbage.append(largest.evict() if number <= _MAX_EVICTED else largest.drop_all())
        for stats in local.stats if largest is local.store else (largest.stats,):
            stats.evictions += count
    return True


def _apply(old: Configuration, new: Configuration) -> None:
    if not old.has_tiers_of(new):
        clear_everything()  # the new tiers have no versions of these entries
    with VERSIONS.lock:
        is_on = CURRENT.value.enabled  # another thread may have changed it since; the last one here must set what holds
        for tool in TOOLS.readers():
            for store in tool.stores():
                store.switch(on=is_on)


CURRENT.lock = VERSIONS.lock
CURRENT.listeners.append(_apply)


# Work that must not end with its caller


class _Tasks(set[asyncio.Task[Any]]):
    """Tasks that have not ended. Those of closed event loops, which never end, are removed when the set has doubled."""

    limit = 64


_tasks: Final = _Tasks()


def keep(task: asyncio.Task[Any]) -> None:
    """Hold a task until it ends. The event loop itself holds tasks only weakly."""
    if len(_tasks) >= _tasks.limit:
        _tasks.difference_update([other for other in list(_tasks) if other.get_loop().is_closed()])
        _tasks.limit = max(64, 2 * len(_tasks))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def run_beside(
    work: Callable[[], Coroutine[Any, Any, None]], name: str, ended: Callable[[], None], *, is_sync: bool
) -> None:
    """Run a coroutine in a task, or for a `def` in a thread. `ended` is called also if it never has its first step."""
    if not is_sync:
        task = asyncio.get_running_loop().create_task(work(), name=name)
        task.add_done_callback(lambda _: ended())
        keep(task)
        return
    context = copy_context()

    def run() -> None:
        try:
            context.run(run_blocking, work())
        finally:
            ended()

    if not start_thread(run, name):
        ended()


async def run_shielded(work: Coroutine[Any, Any, T], *parts: Awaitable[Any], may_wait: bool = True) -> T | None:
    """Run a coroutine to its end, also if the caller is cancelled while it waits or cannot wait at all.

    Args:
        work: the coroutine.
        parts: coroutines that `work` is going to await, to be closed if `work` never starts.
        may_wait: False starts the work and returns at once, for a caller that is being closed.

    Returns:
        What `work` returned; None if it was not waited for, or if there is no event loop to run it.
    """

    def close() -> None:
        for each in (work, *parts):
            if isinstance(each, Coroutine):  # a tier may have returned a future
                each.close()

    try:
        task = asyncio.get_running_loop().create_task(work)
    except RuntimeError:  # the call is being closed without a loop: leases end what it had announced
        close()
        return None
    keep(task)
    task.add_done_callback(lambda ended: close() if ended.cancelled() else None)  # perhaps before its first step
    return await asyncio.shield(task) if may_wait else None
