"""Dicts that are bounded by number. Dicts alone, so that any thread may read and write them."""

from __future__ import annotations

from typing import Any

__all__ = ["make_room"]


def make_room(table: dict[Any, Any], limit: int) -> bool:
    """Let the oldest go. Whether one had to."""
    had_to = False
    while len(table) >= limit:
        try:
            table.pop(next(iter(table)), None)
        except (RuntimeError, StopIteration):  # another thread was at it
            break
        had_to = True
    return had_to
