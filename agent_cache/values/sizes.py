"""An estimate of what a value takes in memory, for `configure(max_bytes=...)`."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any


__all__ = ["is_large", "size_of"]

_MAX_NODES = 10_000
_OVERHEAD = 250
"""Entry, mapping slot and LRU link, as measured with tracemalloc (benchmarks/budgets.py)."""


_MAX_KEY = 2_000
"""Bytes of a key that is remembered beyond its entry."""


def is_large(key: Hashable) -> bool:
    """Whether a key is not to be kept: tables are bounded by number, and a key holds the arguments of its call."""
    return (sys.getsizeof(key) if type(key) in (str, int) else size_of(key)) > _MAX_KEY


def size_of(value: Any) -> int:
    """Bytes that a value and all it contains take, each object once. What lies beyond 10,000 objects is
    extrapolated.
    """
    total, seen, pending = _OVERHEAD, set[int](), [value]
    leaves = leaf_bytes = 0
    while pending and len(seen) < _MAX_NODES:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        try:
            size, members = sys.getsizeof(one, 64), _members(one)
        except Exception:  # noqa: BLE001 - somebody's attribute; an estimate goes on without it
            size, members = 64, []
        total += size
        pending += members
        if not members:
            leaves += 1
            leaf_bytes += size
    return total + leaf_bytes * len(pending) // max(leaves, 1)


def _members(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return [*one, *one.values()]
    if isinstance(one, list | tuple | set | frozenset):
        return list(one)
    if isinstance(one, str | bytes | int | float | bool | type(None)):
        return []
    slots = getattr(type(one), "__slots__", ())
    named = (slots,) if isinstance(slots, str) else slots
    return [*getattr(one, "__dict__", {}).values(), *(getattr(one, name, None) for name in named)]
