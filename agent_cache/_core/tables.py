"""Dicts that are bounded by number. Dicts alone, so that any thread may read and write them."""

from __future__ import annotations

from collections.abc import Hashable
from sys import getsizeof
from typing import Any

from agent_cache._core.keys import PLAIN
from agent_cache._core.sizes import size_of

__all__ = ["is_large", "make_room"]

_MAX_KEY = 2_000
"""Bytes."""


def is_large(key: Hashable) -> bool:
    """Whether a key is not to be kept: tables are bounded by number, and a key holds the arguments of its call."""
    return (getsizeof(key) if type(key) in PLAIN else size_of(key)) > _MAX_KEY


def make_room(table: dict[Any, Any], limit: int) -> bool:
    """Let the oldest go. Whether one had to."""
    if len(table) < limit:
        return False
    try:
        table.pop(next(iter(table)), None)
    except (RuntimeError, StopIteration):  # another thread was at it
        pass
    return True
