"""What a tier holds, for `agent-cache tier`. Cells name roots; of entities and calls there are keyed digests alone.

Nothing that is stored is trusted: what cannot be read is an entry without cells.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any

from agent_cache.remote.backend import HELD, Head, open_head
from agent_cache.remote.cells import STORE, Cell

__all__ = ["entries_of"]


async def entries_of(
    tier: Any, named: Mapping[Cell, str]
) -> AsyncGenerator[tuple[dict[str, Any], Collection[Cell]], None]:
    """All values of a `FileTier` or a `RedisTier`, without what they hold: facts of each, and the cells that it depends
    on. An entity is ``order:#`` and its digest, unless it is among the named.

    Raises:
        ConnectionError: if it cannot be used.
    """
    async for some in tier.backend.values():
        heads = [open_head(raw) for _, raw, _, _ in some]
        cells = {cell for head in heads if head is not None for cell in head.versions}
        reading = await tier.backend.read(cells | {STORE}, None)
        for (address, _, size, left), head in zip(some, heads, strict=True):
            is_current = head is not None and all(
                reading.states[cell][0] == version and reading.states[cell][1] < HELD
                for cell, version in head.versions.items()
            )
            facts: dict[str, Any] = {
                "digest": address[1:],
                "tool": "" if head is None else head.tool,
                "tags": sorted(_tags(head, named)),
                "bytes": size,
                "age": None if head is None else round(max(0.0, reading.now - head.loaded), 3),
                "ttl": None if head is None else head.ttl,
                "grace": None if head is None else head.grace,
                "cost": None if head is None else round(head.cost, 6),
                "expires_in": None if left is None else round(max(0.0, left), 3),
                "is_current": is_current and (left is None or left > 0),
            }
            yield facts, () if head is None else head.versions


def _tags(head: Head | None, named: Mapping[Cell, str]) -> set[str]:
    found = set()
    for cell in head.versions if head is not None else ():
        root, _, rest = cell.partition(":")
        if rest == "D":
            found.add(root)
        elif rest[:1] == ":":
            found.add(named.get(cell, f"{root}:#{rest[1:13]}"))
    return found
