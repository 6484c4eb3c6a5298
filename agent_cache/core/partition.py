"""The entries of one tool in one scope: the unit that a write reaches and that a session owns."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from agent_cache.core.store import Store
from agent_cache.core.tags import Tag

__all__ = ["Partition"]


class Partition:
    """A store with what the ledger must know of it.

    Attributes:
        tool: the operation whose answers it holds.
        owner: the session it belongs to, None for the global scope.
        static: tags that every entry in it depends on; they need no index.
        roots: roots that any of its entries may depend on.
        loads: the ledger's sets of loads in flight, one for each root.
        flights: loads in flight that a reader may join, by (key, event loop).
        requests: what tiers were told of calls, by key. Bounded.
        is_open: False once its session has ended; nothing is stored any more.
    """

    __slots__ = ("__weakref__", "flights", "is_open", "loads", "owner", "requests", "roots", "static", "store", "tool")

    def __init__(
        self, tool: Any, owner: object | None, static: tuple[Tag, ...], roots: tuple[str, ...], maxsize: int | None
    ) -> None:
        self.tool = tool
        self.owner = owner
        self.static = static
        self.roots = roots
        self.store = Store(maxsize)
        self.flights: dict[tuple[Hashable, object], Any] = {}
        self.loads: tuple[set[Any], ...] = ()
        self.requests: dict[Hashable, Any] = {}
        self.is_open = True
