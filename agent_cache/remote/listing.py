"""What a tier holds, for `agent-cache tier`. Cells name roots; of entities and calls there are keyed digests alone.

Nothing that is stored is trusted: what cannot be read is an entry without a head.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_cache.remote.backend import HELD, Head, State, open_head
from agent_cache.remote.cells import STORE, Cell, root_of_cell

__all__ = ["Entry", "entries_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A value in a tier.

    Attributes:
        digest: of its call.
        size: its bytes.
        head: what it depends on; None if it is damaged or of another version.
        age, left: seconds since its load, and until it ends, its grace included; None if that is not known, or never.
        is_current: whether a lookup would find it.
    """

    digest: str
    size: int
    head: Head | None
    age: float | None
    left: float | None
    is_current: bool

    @property
    def roots(self) -> set[str]:
        """The roots that it depends on."""
        return {root for cell in (self.head.versions if self.head else ()) if (root := root_of_cell(cell))}

    def tags(self, named: Mapping[Cell, str]) -> list[str]:
        """What it depends on. An entity is ``order:#`` and its digest, unless it is among the named."""
        found: set[str] = set()
        for cell in self.head.versions if self.head else ():
            root, _, rest = cell.partition(":")
            if rest[:1] == ":":
                found.add(named.get(cell, f"{root}:#{rest[1:13]}"))
            elif rest == "D":
                found.add(root)
        return sorted(found)


async def entries_of(tier: Any) -> AsyncGenerator[Entry, None]:
    """All values of a `FileTier` or a `RedisTier`, without what they hold.

    Raises:
        ConnectionError: if it cannot be used.
    """
    async for some in tier.backend.values():
        heads = [open_head(raw) for _, raw, _, _ in some]
        cells = {cell for head in heads if head is not None for cell in head.versions}
        reading = await tier.backend.read(cells | {STORE}, None)
        for (address, _, size, left), head in zip(some, heads, strict=True):
            age = None if head is None else max(0.0, reading.now - head.loaded)
            is_current = head is not None and (left is None or left > 0) and _is_current(head, reading.states)
            yield Entry(address[1:], size, head, age, None if left is None else max(0.0, left), is_current)


def _is_current(head: Head, states: Mapping[Cell, State]) -> bool:
    return all(states[cell][0] == version and states[cell][1] < HELD for cell, version in head.versions.items())
