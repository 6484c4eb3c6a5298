"""Which object it is, where nothing else tells: a number of its own for as long as it lives."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import Any

from agent_cache.errors import UncacheableArgumentsError as Uncacheable

__all__ = ["serial_of"]

_lock = threading.RLock()  # re-entrant: a collection that starts inside forgets other objects
_serials: dict[int, tuple[int, weakref.ref[Any]]] = {}
_next_serial = itertools.count(1)


def serial_of(value: Any) -> int:
    """Number an object for as long as it lives. A number is never used again, which an address is.

    Raises:
        Uncacheable: if the object cannot be referenced weakly.
    """
    found = _serials.get(id(value))
    if found is not None and found[1]() is value:
        return found[0]
    address = id(value)

    def forget(reference: weakref.ref[Any]) -> None:
        with _lock:
            entry = _serials.get(address)
            if entry is not None and entry[1] is reference:
                del _serials[address]

    try:
        reference = weakref.ref(value, forget)
    except TypeError:
        kind = type(value)
        raise Uncacheable(
            f"an object of type {kind.__module__}.{kind.__qualname__} cannot be told apart from others of its type"
        ) from None
    with _lock:
        found = _serials.get(address)
        if found is not None and found[1]() is value:
            return found[0]
        serial = next(_next_serial)
        _serials[address] = (serial, reference)
    return serial


def _after_fork() -> None:
    """In the child: another thread of the parent's may have had the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
