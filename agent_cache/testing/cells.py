"""Which cells a read depends on, and which a write moves. Tags of more than two segments count as their first two."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from agent_cache.remote.protocol import WriteIntent

__all__ = ["CellName", "armed_by", "cells_of_root", "moved_by", "own_cell", "read_by"]

CellName = tuple[str, Hashable]
"""Root, and which of its cells: ``"S"``, ``"D"``, or ``":7"`` for the T of an entity."""


def read_by(tag: str) -> frozenset[CellName]:
    """What an answer with this tag depends on."""
    root, *segments = tag.split(":")
    return frozenset({(root, "S"), (root, ":" + segments[0])}) if segments else frozenset({(root, "D")})


def moved_by(tags: Iterable[str], keys: Iterable[tuple[str, Hashable]]) -> frozenset[CellName]:
    """What a write of these tags and single entries moves."""
    cells: set[CellName] = set().union(*(own_cell(tool, key) for tool, key in keys))
    for tag in tags:
        root, *segments = tag.split(":")
        cells |= {(root, ":" + segments[0]), (root, "D")} if segments else cells_of_root(root)
    return frozenset(cells)


def armed_by(write: WriteIntent) -> frozenset[CellName]:
    """What a write has armed that will be told its entities."""
    return frozenset[CellName]().union(*map(cells_of_root, write.late_roots))


def cells_of_root(root: str) -> frozenset[CellName]:
    """S and D: one of them moves at every write at or below the root, both at a write to the root."""
    return frozenset({(root, "S"), (root, "D")})


def own_cell(tool: str, key: Hashable) -> frozenset[CellName]:
    """An entry is an entity of its own, for a write that names it by its key. No root has an empty name."""
    return frozenset({("", (tool, key))})
