"""Identifies calls that have no key, for the loop detector: `UnkeyedArguments`.

An argument without identity, such as a client, a callback or an image, makes a call uncacheable. The loop detector has
to compare such calls all the same, or one of them in each round would hide every loop. Objects are referred to weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from itertools import islice
from typing import Any, Final

from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.engine.state import forget_oldest
from agent_cache.values.canonical import full_name
from agent_cache.values.compare import fingerprint

__all__ = ["UnkeyedArguments"]

_MAX_OBJECTS: Final = 256
"""How many objects of a session are known by themselves. The oldest are forgotten, and then identified anew."""

_MAX_PARTS: Final = 64
"""How many members of a container, and attributes of an object, are compared."""


class UnkeyedArguments:
    """The objects without identity that the calls of one session were given."""

    __slots__ = ("_known", "_latest")

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Hashable]] = {}  # by address, each with its part
        self._latest: dict[Hashable, tuple[Any, int]] = {}  # by look, the last object, and how many were alive before

    def part(self, value: Any, depth: int = 0) -> Hashable:
        """The part of a key for an argument. One without identity is known by itself; or by its look, and by which of
        the living ones that look so it is: if that one is gone, as a callback that is made anew for each call, the two
        count as the same.
        """
        try:
            return key_part(value)
        except Uncacheable:
            kind = type(value)
        if kind in (dict, list, tuple) and depth < 4:
            members = islice(value.items() if kind is dict else value, _MAX_PARTS)
            return kind.__name__, len(value), *[self.part(each, depth + 1) for each in members]
        reference, part = self._known.get(id(value), (None, None))
        if reference is not None and reference() is value:
            return part
        look = _look_of(value)
        try:
            reference = weakref.ref(value)
        except TypeError:
            return look
        latest, number = self._latest.get(look, (None, -1))
        number += latest is None or latest() is not None
        self._latest[look], self._known[id(value)] = (reference, number), (reference, (look, number))
        forget_oldest(self._latest, _MAX_OBJECTS)
        forget_oldest(self._known, _MAX_OBJECTS)
        return look, number


def _look_of(value: Any) -> Hashable:
    """The type of an object, its name, and its attributes that have keys. None of them is computed."""
    parts: list[Hashable] = [full_name(type(value))]
    try:
        parts.append(str(object.__getattribute__(value, "__qualname__")) if callable(value) else None)
    except Exception:  # noqa: BLE001 - attribute access of any class
        parts.append(None)
    try:
        for name, content in islice(sorted(object.__getattribute__(value, "__dict__").items()), _MAX_PARTS):
            try:
                parts += name, key_part(content)
            except Uncacheable:
                continue
    except Exception:  # noqa: BLE001 - the same
        del parts[2:]
    return fingerprint(tuple(parts)) or parts[0]
