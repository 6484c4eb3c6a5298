"""What there is once per process: the ledger, and what follows a change of the configuration."""

from __future__ import annotations

import logging

from agent_cache.config import CURRENT, Configuration
from agent_cache.core.coherence import Ledger, Partition, Region
from agent_cache.core.store import Entry
from agent_cache.engine.reaper import free

__all__ = ["LEDGER", "LOG", "clear_everything", "drop", "forget_what_was_logged", "log_once", "make_room"]

LEDGER = Ledger()
LOG = logging.getLogger("agent_cache")
LOG.addHandler(logging.NullHandler())

_logged: set[tuple[str, str]] = set()


def log_once(event: str, tool: str, error: BaseException | None = None) -> None:
    """Warn of something that would otherwise be said at every call. Argument values are never in it."""
    if (event, tool) not in _logged and len(_logged) < 10_000:
        _logged.add((event, tool))
        reason = f" ({_described(error)})" if error is not None else ""
        LOG.warning("%s: %s%s", tool, event, reason, extra={"agent_cache_event": event, "agent_cache_tool": tool})


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - somebody's __str__, and this is only a message
        return type(error).__name__


def forget_what_was_logged() -> None:
    """Let `log_once` speak again."""
    _logged.clear()


def drop(region: Region) -> int:
    """Something outside has changed a region: one move, now. Returns how many local entries were dropped."""
    with LEDGER.lock:
        garbage = LEDGER.move(region)
    count = sum(len(dropped[0]) if type(dropped) is tuple else len(dropped) for dropped in garbage)
    free(garbage)
    return count


def make_room(entry: Entry) -> list[Partition] | None:
    """Before an entry is stored, under the lock: the fullest stores give their least recently used entries away.

    Returns:
        The partition of each entry that went; None if the new one is larger than all the room there may be.
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
        fullest = max(partitions, key=lambda partition: partition.store.bytes)
        total -= fullest.store.evict().size
        evicted.append(fullest)
    return evicted


def clear_everything() -> None:
    """Drop every entry and let no load in flight be stored."""
    with LEDGER.lock:
        garbage = LEDGER.clear()
    free(garbage)


def _follow(old: Configuration, new: Configuration) -> None:
    if old.remote is not new.remote or old.backup is not new.backup:
        clear_everything()  # what was cached under other tiers was not vouched for by the new ones
    with LEDGER.lock:
        for partition in LEDGER.partitions():
            partition.store.switch(on=new.enabled)


CURRENT.listeners.append(_follow)
