"""What loads show of their tools is noted here, for `recommendations()`: see `core.evidence`.

A tool pays for it by what its loads have taken: the allowance of its evidence. A tool that answers at once has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from threading import RLock
from time import thread_time

from agent_cache.core.evidence import LastLoad
from agent_cache.core.store import Entry
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.scope import Call
from agent_cache.values.canonical import MISSING, is_large
from agent_cache.values.compare import fingerprint

__all__ = ["insert_and_note", "key_in_evidence", "note_unstored"]


class _Noting:
    """The lock around what is noted of loads. Taken without waiting: of two that end at once one is not noted."""

    lock = RLock()


def _renew_lock() -> None:
    """In the child of a fork: another thread may have had it."""
    _Noting.lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def key_in_evidence(call: Call) -> Hashable:
    """The key of a call with its session, if its answer belongs to one."""
    session = call.flight.store.session
    return call.key if session is None else (session, call.key)


def insert_and_note(insert: Callable[[Call, Entry], bool], call: Call, value: object, stored: Entry) -> None:
    """Insert, and note what the load shows about the tool: why it was needed, and whether its result differs from the
    one before. The processor time of this is subtracted from what the tool may spend on it.
    """
    began = thread_time()
    evidence = call.operation.evidence
    present, serial = call.flight.store.peek(call.key), VERSIONS.now
    is_stored = insert(call, stored)
    expires = stored.expires if is_stored else call.started
    _note(call, value, LastLoad(call.started, expires, None, serial, is_stored=is_stored), present)
    evidence.allowance -= thread_time() - began


def note_unstored(call: Call) -> None:
    """Note a load whose result was not stored, since it may not be, or cannot."""
    present = call.flight.store.peek(call.key)
    _note(call, MISSING, LastLoad(call.started, call.started, None, VERSIONS.now, is_stored=False), present)


def _note(call: Call, value: object, load: LastLoad, present: Entry | None) -> None:
    """Note a load.

    Args:
        value: its result, to be compared; `MISSING` if it is not.
        present: the entry that was there before.
    """
    operation, key, lock = call.operation, key_in_evidence(call), _Noting.lock
    evidence = operation.evidence
    try:  # the lock is taken inside: see `wait_for_lock`
        if lock.acquire(blocking=False) and evidence.is_chosen(key) and (key in evidence.latest or not is_large(key)):
            load.digest = _digest(call, value)
            # A list: an interrupt while a generator is being closed would be lost.
            evidence.has_writers = any([use.is_written or use.writers for use in operation.root_uses])  # noqa: C419
            written = max([VERSIONS.last(root) for root in operation.roots], default=0)
            expires = None if present is None else present.expires
            evidence.note(key, load, expires, written, is_miss=call.source == "miss" and not call.is_fresh)
    finally:
        try:
            lock.release()
        except RuntimeError:
            pass  # another thread has it


def _digest(call: Call, value: object) -> bytes | None:
    """What two results share that are the same, types included; None if that cannot be told."""
    outcome_key = call.operation.policy.loop.outcome_key
    if outcome_key is not None and value is not MISSING:
        try:
            value = outcome_key(value)
        except Exception:  # noqa: BLE001 - the user's function; the loop guard logs that it raises
            return None
    return fingerprint(value)
