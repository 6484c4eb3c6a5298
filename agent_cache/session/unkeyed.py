"""Identifies calls that have no key, for the loop detector: `UnkeyedCalls`.

An argument without identity, such as a client, a callback or an image, makes a call uncacheable, since it may carry a
difference that cannot be seen. The loop detector still has to compare such calls, or one of them in each round would
hide every loop. So they are identified by what can be said of them: the arguments that do have keys, and of the others

- the object itself. The same object is the same argument, although it may have changed;
- its type, the name of a function, method or generator, and the attributes of it that have keys: objects that differ in
  these are different arguments;
- whether it can be another object than the one before that looks the same. It is, if that one is still alive: the
  members of a list are told apart. If that one is gone, as a callback that is made anew for each call, it cannot be
  told, and the two count as the same argument.

The outcome is compared as of any other call. Objects are referred to weakly. No attribute is read that could be
computed, so that a lazy object stays unloaded.
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
from agent_cache.values.canonical import full_name
from agent_cache.values.compare import fingerprint

__all__ = ["UnkeyedCalls"]

_MAX_OBJECTS: Final = 256
"""How many objects of a session are known by themselves. The oldest are forgotten, and then identified anew."""

_MAX_PARTS: Final = 64
"""How many members of a container and attributes of an object are read, in all, for one argument."""


_NAMED: Final = frozenset(
    {
        types.AsyncGeneratorType,
        types.BuiltinFunctionType,
        types.CoroutineType,
        types.FunctionType,
        types.GeneratorType,
        types.MethodType,
        types.MethodWrapperType,
    }
)
"""Types of objects with a name of their own. Asking any other object for one may run its code."""


class UnkeyedCalls:
    """The objects without identity that the calls of one session were made with."""

    __slots__ = ("_known", "_latest")

    def __init__(self) -> None:
        # Objects by address, each with its identity. An address is used again when its object is gone.
        self._known: dict[int, tuple[weakref.ref[Any], Hashable]] = {}
        # By its look, the last object that looked so, and how many before it were alive beside others.
        self._latest: dict[Hashable, tuple[weakref.ref[Any], int]] = {}

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
        try:
            return part(value)
        except Uncacheable:
            return self._stand_in(value, _Room())

    def _stand_in(self, value: Any, room: _Room) -> Hashable:
        kind = type(value)
        members: list[Any]
        if kind is list or kind is tuple:
            members = list(value[: room.left])
        elif kind is dict:
            members = [each for pair in islice(list(value.items()), room.left) for each in pair]
        else:
            return self._object(value, room)
        parts = kind.__name__, len(value), *(self._member(each, room) for each in members)
        return fingerprint(parts) or parts

    def _member(self, value: Any, room: _Room) -> Hashable:
        if not room.take():
            return None
        try:
            return key_part(value)
        except Uncacheable:
            return self._stand_in(value, room)

    def _object(self, value: Any, room: _Room) -> Hashable:
        """The identity of an object: that of the last time, or how it looks and which of those that look so it is."""
        known = self._known.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        look = _look_of(value, room)
        try:
            reference = weakref.ref(value)
        except TypeError:
            return (look,)
        latest = self._latest.get(look)
        number = 0 if latest is None else latest[1] + (latest[0]() is not None)
        identity = look, number
        for table in (self._known, self._latest):
            while len(table) >= _MAX_OBJECTS:
                del table[next(iter(table))]
        self._latest[look] = reference, number
        self._known[id(value)] = reference, identity
        return identity


class _Room:
    """How many more parts of an argument are read."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MAX_PARTS

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


def _look_of(value: Any, room: _Room) -> Hashable:
    """What can be said of an object without identity: its type, its name, and its attributes that have keys."""
    kind = type(value)
    parts: list[Hashable] = [full_name(kind), value.__qualname__ if kind in _NAMED else None]
    try:
        for attribute, content in _attributes_of(value):
            if not room.take():
                break
            try:
                parts += attribute, key_part(content)
            except Uncacheable:
                continue
    except Exception:  # noqa: BLE001 - attribute access of any class; the type remains
        del parts[2:]
    return fingerprint(tuple(parts)) or parts[0]


def _attributes_of(value: Any) -> list[tuple[str, Any]]:
    """The attributes in the dict and in the slots of an object, by name. Properties are not read."""
    state = object.__getstate__(value)
    states = state if isinstance(state, tuple) else (state,)
    found = {name: content for each in states if isinstance(each, dict) for name, content in each.items()}
    return sorted(((name, content) for name, content in found.items() if isinstance(name, str)), key=itemgetter(0))
