"""What this process has met: which cells an entry turned out to depend on, and which call a digest stands for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from agent_cache._core.sizes import size_of
from agent_cache.remote.protocols import Request
from agent_cache.remote.redis.names import CellKey, RootNames

__all__ = ["Memo", "is_large", "make_room"]

_MAX = 50_000
_MAX_KEY = 2_000
"""Bytes."""


class Memo:
    """Two bounded tables by digest. Dicts alone, so that any thread may read and write them.

    Attributes:
        has_forgotten: whether an entry may have been met here and is not remembered any more.
    """

    def __init__(self) -> None:
        self.has_forgotten = False
        self._cells: dict[bytes, dict[CellKey, RootNames]] = {}
        self._calls: dict[bytes, tuple[str, Hashable, RootNames]] = {}

    def cells(self, digest: bytes) -> dict[CellKey, RootNames]:
        """Cells that its result named when it was last seen: fetched with the value, they save a second trip."""
        return self._cells.get(digest, {})

    def keep_cells(self, digest: bytes, cells: dict[CellKey, RootNames]) -> None:
        """Remember them."""
        if self._cells.get(digest) != cells:
            make_room(self._cells)
            self._cells[digest] = cells

    def call(self, digest: bytes) -> tuple[str, Hashable] | None:
        """Tool and key of an entry, as this process calls them."""
        found = self._calls.get(digest)
        return None if found is None else found[:2]

    def keep_call(self, digest: bytes, request: Request, home: RootNames) -> None:
        """Remember them, unless the key holds too much."""
        if digest in self._calls:
            return
        if is_large(request.key):
            self.has_forgotten = True
            return
        self.has_forgotten |= make_room(self._calls)
        self._calls[digest] = request.tool, request.key, home

    def cell(self, tool: str, key: Hashable) -> dict[CellKey, RootNames]:
        """The own cell of an entry that was asked for in this process. Slow: for what another tier has told of."""
        for digest, (own, call, home) in list(self._calls.items()):
            if own == tool and call == key:
                return {home.cell(b"K" + digest): home}
        return {}


def is_large(key: Hashable) -> bool:
    """Whether a key is not to be kept: tables are bounded by number, and a key holds the arguments of its call."""
    return size_of(key) > _MAX_KEY


def make_room(table: dict[Any, Any], limit: int = _MAX) -> bool:
    """Let the oldest go. Whether one had to."""
    if len(table) < limit:
        return False
    try:
        table.pop(next(iter(table)), None)
    except (RuntimeError, StopIteration):  # another thread was at it
        pass
    return True
