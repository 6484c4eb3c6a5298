"""Cells: what has a version in a tier, and which of them a read depends on and a write changes.

==============  =======================================================================
``order:S``     changes with every write of the whole root
``order:D``     changes with every write at or below the root
``order::3f..`` changes with every write of that entity, which is named by a keyed digest
``@5e..``       changes with every write of that single entry
``*``           changes when everything counts as written
``#``           the identity of the store: its versions mean nothing in another one
==============  =======================================================================

A read of ``order:7`` depends on S and the entity, a read of all of ``order`` on D. A write of ``order:7`` changes the
entity and D, a write of ``order`` S and D. So a write changes two cells of each root, however many entries there are.
Tags of more than two segments count as their first two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agent_cache.core.tags import root_of
from agent_cache.remote.protocol import Request
from agent_cache.values.canonical import forget_oldest, lasting_digest, segment_digest

__all__ = ["EVERYTHING", "STORE", "Cell", "Cells", "SomeCells", "root_of_cell"]

Cell = str
SomeCells = Collection[Cell]
EVERYTHING: Final = "*"
STORE: Final = "#"

_FORMAT: Final = 1
_REMEMBERED: Final = 4_096
_MOST_ENTITIES: Final = 1_000
"""A write of more changes the cells of their roots instead."""


def root_of_cell(cell: Cell) -> str:
    """The root that a cell belongs to; empty if it is none of a tag."""
    return "" if cell[:1] in "@*#" else cell.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the answer to a request is stored, None if a part of the call has no identity outside of this process; the
    cells of all tags that are known before the load and its own; and S and D of the roots that the result will name.
    """

    address: Cell | None
    depends_on: frozenset[Cell]
    watches: frozenset[Cell]


class Cells:
    """The names of cells in one namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._of_tags: dict[str, tuple[Cell, ...]] = {}

    def read(self, tag: str) -> tuple[Cell, ...]:
        """The cells that a value with this tag depends on."""
        found = self._of_tags.get(tag)
        if found is None:
            root, *below = tag.split(":")
            found = (f"{root}:S", self._entity(root, below[0])) if below else (f"{root}:D",)
            forget_oldest(self._of_tags, _REMEMBERED - 1)
            self._of_tags[tag] = found
        return found

    def _entity(self, root: str, segment: str) -> Cell:
        return f"{root}::{segment_digest(segment, namespace=self._namespace)}"

    def whole(self, roots: Iterable[str]) -> set[Cell]:
        """S and D: one of them changes at every write at or below a root, both at a write of the root."""
        return {cell for root in roots for cell in (f"{root}:S", f"{root}:D")}

    def named(self, tags: Sequence[str]) -> tuple[str, ...]:
        """What a message names of these tags: their roots, if they are very many."""
        return tuple(dict.fromkeys(tags if len(tags) <= _MOST_ENTITIES else map(root_of, tags)))

    def written(self, tags: Iterable[str]) -> set[Cell]:
        """The cells that a write of these tags changes."""
        tags = tuple(tags)
        if len(tags) > _MOST_ENTITIES:
            return self.whole(map(root_of, tags))
        cells: set[Cell] = set()
        for tag in tags:
            entity = self.read(tag)[-1]  # of a root it is D
            cells |= {entity, f"{root_of(tag)}:D" if ":" in tag else f"{tag}:S"}
        return cells

    def place_of(self, request: Request) -> Place:
        """Where the answer to a request is stored."""
        identity = request.session, request.tenant, request.arguments
        digest = lasting_digest(request.tool, identity, namespace=self._namespace, version=_FORMAT)
        address = None if digest is None else f"@{digest}"
        cells = {cell for tag in request.tags for cell in self.read(tag)} | {EVERYTHING, STORE}
        if address is not None:
            cells.add(address)
        return Place(address, frozenset(cells), frozenset(self.whole(request.late_roots)))
