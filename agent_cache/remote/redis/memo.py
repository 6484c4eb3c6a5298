"""What this process has met: which cells an entry turned out to depend on, and which call a digest stands for."""

from __future__ import annotations

from collections.abc import Hashable

from agent_cache.remote.protocol import Request
from agent_cache.remote.redis.keyspace import CellKey, RootNames
from agent_cache.values.canonical import is_large, make_room

__all__ = ["Memo"]

_MAX = 50_000


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
            make_room(self._cells, _MAX)
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
        self.has_forgotten |= make_room(self._calls, _MAX)
        self._calls[digest] = request.tool, request.key, home

    def cell(self, tool: str, key: Hashable) -> dict[CellKey, RootNames]:
        """The own cell of an entry that was asked for in this process. Slow: for what another tier has told of."""
        for digest, (own, call, home) in list(self._calls.items()):
            if own == tool and call == key:
                return {home.cell(b"K" + digest): home}
        return {}
