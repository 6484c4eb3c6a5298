"""What is hashed while a value is built from data, by its annotation."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from agent_cache.values.nodes import ANYTHING, Node

__all__ = ["hashes_only"]

_SETS = frozenset({set, frozenset})


def hashes_only(kinds: frozenset[type], node: Node) -> bool:
    """Whether members of sets and keys of dicts are of these types, or of an Enum, wherever they stand in a value.

    Keys that may be anything are those that the data has.
    """
    return all(
        not hashed.anything
        and hashed.leaves <= kinds
        and not hashed.lists
        and hashed.fields is None
        and all(issubclass(record.kind, Enum) for record in hashed.records)
        for hashed in _hashed(node, set())
    )


def _hashed(node: Node, seen: set[object]) -> Iterator[Node]:
    within: list[Node | None] = [node.item, *(node.fixed or ()), node.key, node.value]
    if not _SETS.isdisjoint(node.lists):
        yield node.item or ANYTHING
    if node.key is not None and not node.key.anything:
        yield node.key
    for owner in (node.fields, *node.records):
        if owner is not None and owner.name not in seen:
            seen.add(owner.name)
            within += owner.nodes.values()
    for each in within:
        if each is not None:
            yield from _hashed(each, seen)
