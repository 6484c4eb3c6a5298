"""Identity of one call of one tool, as its users hold it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from agent_cache.remote.protocol import Request

if TYPE_CHECKING:
    from agent_cache.engine.read_operation import ReadOperation

__all__ = ["CacheKey"]


class CacheKey:
    """Identity of one call of one tool: opaque, hashable, equal for every spelling of the call.

    It includes what was ambient when it was made: the tenant and what `vary=` returned.

    Attributes:
        request: the call as tiers are told of it. A key names classes and instances as this process does.
    """

    __slots__ = ("_key", "_tool", "request")

    def __init__(self, tool: ReadOperation, key: Hashable, request: Request) -> None:
        self._tool = tool
        self._key = key
        self.request = request

    @property
    def named(self) -> tuple[ReadOperation, Hashable]:
        return self._tool, self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self.named == other.named

    def __hash__(self) -> int:
        return hash((self._tool.name, self._key))

    def __repr__(self) -> str:
        return f"<CacheKey of {self._tool.name}, {hash(self) & 0xFFFFFFFF:08x}>"
