"""Identifies calls that have no key, for the loop detector: `UnkeyedCalls`.

An argument without identity, such as a client, a callback or an image, makes a call uncacheable. The loop detector has
to compare such calls all the same, or one of them in each round would hide every loop. So they are identified by the
arguments that do have keys, and of the others by the object itself, changed or not; by its type, the name of a
function, and the attributes that have keys; and by whether another object that looks the same is still alive: the
members of a list are told apart. If that one is gone, as a callback that is made anew for each call, the two count as
the same argument.

Objects are referred to weakly. No attribute is read that could be computed, so that a lazy object stays unloaded.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.core.parameters import JsonArguments, Parameters
from agent_cache.core.wrappers import OMITTED_PART
from agent_cache.engine.state import forget_oldest
from agent_cache.values.canonical import full_name
from agent_cache.values.compare import fingerprint

__all__ = ["UnkeyedCalls"]

_MAX_OBJECTS: Final = 256
"""How many objects of a session are known by themselves. The oldest are forgotten, and then identified anew."""

_MAX_PARTS: Final = 64
"""How many members of a container and attributes of an object are read, in all, for one argument."""

_NAMED: Final = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType,
                 types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)  # fmt: skip
"""Types of objects with a name of their own. Asking any other object for one may run its code."""


class UnkeyedCalls:
    """The objects without identity that the calls of one session were made with."""

    __slots__ = ("_known", "_latest", "_room")

    def __init__(self) -> None:
        # Objects by address, each with its identity. An address is used again when its object is gone.
        self._known: dict[int, tuple[weakref.ref[Any], Hashable]] = {}
        # By its look, the last object that looked so, and how many before it were alive beside others.
        self._latest: dict[Hashable, tuple[weakref.ref[Any], int]] = {}
        self._room = 0

    def key(self, parameters: Parameters, arguments: Mapping[str, Any]) -> Hashable:
        """The identity of a call: as `Parameters.key`, with a stand-in for each argument that has no key."""
        if isinstance(parameters, JsonArguments):
            return self._part(key_part, dict(arguments))
        return tuple(
            self._part(one.part, arguments[one.name]) if one.name in arguments else OMITTED_PART
            for one in parameters.all
            if one.in_key
        )

    def _part(self, part: Callable[[Any], Hashable], value: Any) -> Hashable:
        self._room = _MAX_PARTS
        return self._part_or_stand_in(part, value)

    def _part_or_stand_in(self, part: Callable[[Any], Hashable], value: Any) -> Hashable:
        try:
            return part(value)
        except Uncacheable:
            kind = type(value)
        if kind is dict:
            members = [each for pair in islice(list(value.items()), self._room) for each in pair]
        elif kind is list or kind is tuple:
            members = list(value[: self._room])
        else:
            return self._object(value)
        parts: list[Hashable] = [kind.__name__, len(value)]
        for each in members:
            self._room -= 1
            parts.append(self._part_or_stand_in(key_part, each) if self._room >= 0 else None)
        return fingerprint(tuple(parts)) or tuple(parts)

    def _object(self, value: Any) -> Hashable:
        """The identity of an object: that of the last time, or how it looks and which of those that look so it is."""
        known = self._known.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        look = self._look_of(value)
        try:
            reference = weakref.ref(value)
        except TypeError:
            return (look,)
        latest = self._latest.get(look)
        number = 0 if latest is None else latest[1] + (latest[0]() is not None)
        self._latest[look] = reference, number
        self._known[id(value)] = reference, (look, number)
        forget_oldest(self._latest, _MAX_OBJECTS)
        forget_oldest(self._known, _MAX_OBJECTS)
        return look, number

    def _look_of(self, value: Any) -> Hashable:
        """What can be said of an object: its type, its name, and its attributes that have keys."""
        kind = type(value)
        parts: list[Hashable] = [full_name(kind), value.__qualname__ if kind in _NAMED else None]
        try:
            state = object.__getstate__(value)
            fields: dict[Any, Any] = {}
            for each in state if isinstance(state, tuple) else (state,):
                fields |= each if isinstance(each, dict) else {}
            for name, content in sorted(fields.items(), key=itemgetter(0))[: max(0, self._room)]:
                self._room -= 1
                try:
                    parts += name, key_part(content)
                except Uncacheable:
                    continue
        except Exception:  # noqa: BLE001 - attribute access of any class; the type remains
            del parts[2:]
        return fingerprint(tuple(parts)) or parts[0]
