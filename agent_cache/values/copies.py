"""Copies of results: how a cached value is kept apart from callers that change what they were given (``copy=``).

`auto_copier` decides once, when a value is stored, how each hit gets its copy. What no caller can change is shared. A
flat container is copied by its own method, a tree of plain builtins from its MessagePack image, and a value with
objects in it by a recipe: the parts to copy, each by itself, and the references between them. A value with a part that
none of these can restore exactly is copied by `copy.deepcopy`, as every value could be, at ten times the time.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import partial
from operator import call, is_, setitem
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, NamedTuple

from agent_cache.values.canonical import (
    PYDANTIC_FIELDS_SET,
    PYDANTIC_STATE,
    has_native_state,
    is_model,
    text_of_standard_value,
)

__all__ = [
    "IMMUTABLE",
    "CopyRule",
    "UncopyableError",
    "auto_copier",
    "copy_rule_named",
]


class UncopyableError(Exception):
    """A result cannot be copied, so it is returned to the caller that ran the tool, and neither stored nor shared."""


class CopyRule(NamedTuple):
    """How a cached value is kept apart from callers that change what they were given.

    Attributes:
        snapshot: called with a value once, before the first caller gets it. Returns None if the value may be shared, or
            a function that makes a new copy for each hit. Raises `UncopyableError`.
    """

    name: str
    snapshot: Callable[[Any], Callable[[], Any] | None]


_PLAIN: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None), bytes})
"""Types without parts that MessagePack gives back as they were, all but the largest integers and half characters."""

IMMUTABLE: Final[frozenset[type]] = _PLAIN | {
    complex,
    datetime,
    date,
    time,
    timedelta,
    timezone,
    range,
    type(Ellipsis),
}
"""Types whose values are shared, whatever ``copy=`` is."""

_NAMED = (Enum, type)


def auto_copier(value: Any) -> Callable[[], Any] | None:
    """Return a function that copies a mutable value, or None for an immutable one: the rule of ``copy="auto"``.

    A copy has the types, the content and the shared references of the value. No code of the value's classes runs for
    it, unless they define how they are copied (``__deepcopy__``, ``__reduce__``, ``__setstate__``, ...).

    A flat dict takes 60 ns. For 12 leaves, an image takes 0.6 us, a recipe 0.6 us for a tree with a date, 1.4 us for
    four dataclasses and 2.4 us for four models of pydantic's, `copy.deepcopy` 15 us.

    An iterator is not copied, though `copy.deepcopy` copies some: whatever it draws from, a function or a file, would
    be drawn from by all its copies.

    Raises:
        UncopyableError: if the value cannot be copied.
    """
    kind = type(value)
    try:
        if kind is dict or kind is list or kind is set:
            own = value.copy()  # before it is looked at: another thread may change it at any time
            parts = _not_plain_in(own)
            if not parts or IMMUTABLE.issuperset(map(type, parts)):
                return own.copy  # type: ignore[no-any-return]
            reader = _reader_of(value, parts)
            if reader is not None:
                return reader
        walk = _Walk()
        if walk.is_immutable(value):
            return None
        copier = walk.recipe_of(value)
        if copier is not None:
            return copier
        original = _deep_copy(value, kind)
    except Exception as error:
        raise UncopyableError(f"a result of type {kind.__qualname__} cannot be copied") from error
    return partial(copy.deepcopy, original)


def _deep_copy(value: Any, kind: type) -> Any:
    has_content = hasattr(kind, "__deepcopy__") or hasattr(kind, "getvalue")  # `io.BytesIO` has its own
    if _is_iterator(kind) and not has_content:
        raise TypeError("copies of an iterator draw from one source")
    return copy.deepcopy(value)


def _is_iterator(kind: type) -> bool:
    return hasattr(kind, "__next__") or hasattr(kind, "__anext__")


AUTO: Final = CopyRule("auto", auto_copier)
SHARED: Final = CopyRule("never", lambda _value: None)


def copy_rule_named(choice: object) -> CopyRule | None:
    """The rule for a ``copy=`` option: ``"auto"``, ``"never"`` or a callable; None for anything else."""
    if choice == "auto":
        return AUTO
    if choice == "never":
        return SHARED
    if not callable(choice):
        return None
    copier: Callable[[Any], Any] = choice

    def snapshot(value: Any) -> Callable[[], Any]:
        try:
            return partial(copier, copier(value))
        except Exception as error:
            raise UncopyableError(f"copy={copier!r} failed") from error

    return CopyRule("custom", snapshot)


# Images of plain trees

_MAX_LEVELS = 32
"""Levels of an image. Reading one takes as much of the interpreter's stack; a recipe takes none."""


@functools.cache
def _message_pack() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Imported for the first tree that is stored."""
    import msgspec.msgpack

    return msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


def _not_plain_in(*values: Any) -> list[Any]:
    return [part for part in gc.get_referents(*values) if type(part) not in _PLAIN]


def _reader_of(value: Any, parts: list[Any]) -> partial[Any] | None:
    """A function that makes copies of a tree of dicts and lists from its MessagePack image; None if that would not give
    back exactly this value.

    MessagePack knows neither tuples and sets, nor subclasses, nor that one list is in two places. So the types of all
    parts are looked at, level by level, as the garbage collector sees them: in a dict with text for keys it sees the
    values alone, in any other the keys too. A loop over the items takes twice as long.

    Args:
        parts: those parts of the value itself that are not plain.
    """
    containers = [value]
    for _ in range(_MAX_LEVELS):
        if not parts:
            if _has_twice(containers):
                return None
            encode, read = _message_pack()
            try:
                # In one call from C, which no other thread interrupts: what is encoded is what is looked at.
                steps: tuple[Callable[[], Any], ...] = partial(gc.get_referents, *containers), partial(encode, value)
                found, image = map(call, steps)
            except (OverflowError, UnicodeEncodeError):
                return None  # an integer of more than 64 bits, or text that was cut in the middle of a character
            inner = [part for part in found if type(part) not in _PLAIN]  # in the order of the walk
            if len(inner) != len(containers) - 1 or not all(map(is_, inner, containers[1:])):
                return None  # another thread has changed it meanwhile
            return partial(read, image)
        for part in parts:
            kind = type(part)
            if kind is not dict and kind is not list:
                return None
        containers += parts
        if len(parts) > _MANY and _has_twice(containers):
            return None  # before each of them is looked at as often as it is there
        parts = _not_plain_in(*parts)
    return None


_MANY = 64
"""Parts of one level, from which on it is looked at whether one is in two places before their parts are."""


def _has_twice(containers: list[Any]) -> bool:
    return len(set(map(id, containers))) != len(containers)


# Recipes

_MAX_STEPS = 1_000_000
"""Parts that are looked at for one recipe, 0.1 s. Tuples in tuples are looked at once for each that they are in."""

_MUTABLE = frozenset({dict, list, set, bytearray})

_OWN_WAYS = (
    "__deepcopy__",
    "__getattr__",
    "__getattribute__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getstate__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__setstate__",
)
"""Methods by which a class decides how its objects are read and made. A class with one of its own is left to do so."""

_GENERATED = frozenset({
    "__delattr__", "__eq__", "__ge__", "__getstate__", "__gt__", "__hash__", "__init__", "__le__", "__lt__",
    "__post_init__", "__replace__", "__repr__", "__setattr__", "__setstate__",
})  # fmt: skip
"""Methods of a class that has nothing but fields: those that `dataclasses` generates, and the one that these call."""


_Put = Callable[[Any, Any, Any], None]

_new: Callable[[type], Any] = object.__new__
_put: _Put = object.__setattr__


class _Form(NamedTuple):
    """How the objects of one class are taken apart and made anew.

    Attributes:
        attributes: the names under which an object has all its state, ``__dict__`` among them.
        clone: makes an object without state from the class, or for a Struct one of equal state from the object.
        put: sets an attribute of the new object, whatever `__setattr__` its class has.
        make: makes the object from its members, for a tuple; from its class and its members, for a NamedTuple.
        is_frozen: whether nobody can change an object except through what is in it.
        clone_model: makes a model of pydantic's from what `_Walk._model` keeps of it.
        has_dict: whether `clone` leaves a ``__dict__`` out.
    """

    attributes: tuple[str, ...] = ()
    clone: Callable[[Any], Any] | None = None
    put: _Put = _put
    make: Callable[..., Any] | None = None
    is_frozen: bool = False
    clone_model: Callable[[Any], Any] | None = None
    has_dict: bool = False

    def state(self, value: Any) -> list[tuple[str, Any]]:
        """Name and value of the attributes that are set."""
        return [(name, getattr(value, name)) for name in self.attributes if hasattr(value, name)]

    def members(self, value: Any) -> Iterable[Any]:
        """Everything in a value. The `__dict__` is not told from what is in it."""
        if self.make is not None:
            return tuple(value)
        found: list[Any] = []
        for name, part in self.state(value):
            found.extend(part.values() if name == "__dict__" and type(part) is dict else (part,))
        return found


_LEAF = _Form(is_frozen=True)
"""Of a class whose values are immutable, or are members that their class names."""


class _Walk:
    """A walk over everything in a value.

    An object that is met twice is one part, so a copy has the shared references and the cycles of the value.
    """

    __slots__ = ("_constants", "_forms", "_links", "_places", "_sources", "_steps")

    def __init__(self) -> None:
        self._forms: dict[type, _Form | None] = {}
        self._steps = 0
        self._sources: list[Any] = []
        self._places: dict[int, int] = {}
        self._constants: list[Any] = []
        self._links: list[tuple[_Put, int, Any, int]] = []

    def is_immutable(self, value: Any) -> bool:
        """Whether no caller can change anything in it."""
        if type(value) in _MUTABLE:
            return False
        pending, seen = [value], set[int]()
        for part in pending:
            kind = type(part)
            if kind in IMMUTABLE:
                continue
            if kind in _MUTABLE:
                return False
            if kind is tuple or kind is frozenset:
                members = part
            else:
                form = self._form(kind)
                if form is None or not form.is_frozen:
                    return False
                members = form.members(part)
            if id(part) in seen:
                continue
            seen.add(id(part))
            self._steps += 1 + len(members)
            if not IMMUTABLE.issuperset(map(type, members)):
                pending.extend(members)
        return True

    def _form(self, kind: type) -> _Form | None:
        try:
            return self._forms[kind]
        except KeyError:
            form = self._forms[kind] = None if kind in copyreg.dispatch_table else _form_of(kind)
            return form

    def recipe_of(self, value: Any) -> Callable[[], Any] | None:
        """A function that makes copies of a mutable value; None if there is anything in it that has no form.

        What it keeps are copies of the parts, with None where one refers to another.
        """
        self._sources.append(value)
        self._places[id(value)] = 0
        clones: list[Callable[[Any], Any]] = []
        kept: list[Any] = []
        tuples: dict[int, tuple[Callable[[Iterable[Any]], Any], tuple[int, ...]]] = {}
        for place, source in enumerate(self._sources):
            if self._steps > _MAX_STEPS:
                return None
            kind = type(source)
            clone: Callable[[Any], Any] | None
            if kind is dict or kind is list:
                own, clone = source.copy(), kind.copy
                if kind is dict and not self._are_immutable(own):
                    return None
                self._link(place, own, own.items() if kind is dict else enumerate(own), setitem, setitem)
            elif kind is set or kind is bytearray:
                own, clone = source.copy(), kind.copy
                if kind is set and not self._are_immutable(own):
                    return None
            else:
                form = self._form(kind) if kind is not tuple else _TUPLE
                if form is None:
                    return None
                clone = form.clone
                if form.make is not None:
                    own, clone = (), tuple
                    make = form.make if kind is tuple else partial(form.make, kind)
                    tuples[place] = make, tuple(map(self._place_or_constant, form.members(source)))
                elif form.clone_model is not None and (own := self._model(place, source, kind)) is not None:
                    clone = form.clone_model
                elif clone is _new:
                    own = kind
                    self._links += [
                        (form.put, place, name, self._place_or_constant(part)) for name, part in form.state(source)
                    ]
                elif clone is not None:
                    own = clone(source)
                    self._link(place, own, form.state(own), form.put, form.put)
                    if form.has_dict:
                        self._links.append((form.put, place, "__dict__", self._place_or_constant(source.__dict__)))
                else:
                    return None
            clones.append(clone)
            kept.append(own)
        self._constants.reverse()
        return partial(
            _follow, tuple(clones), tuple(kept), tuple(self._constants), _innermost_first(tuples), tuple(self._links)
        )

    def _are_immutable(self, members: Collection[Any]) -> bool:
        """Whether all members of a set, or all keys of a dict, are immutable."""
        return IMMUTABLE.issuperset(map(type, members)) or all(map(self.is_immutable, members))

    def _link(self, place: int, own: Any, items: Iterable[tuple[Any, Any]], detach: _Put, put: _Put) -> None:
        """Take the mutable parts out of what is kept of an object, and link the copies of them to its copy."""
        for name, member in items:
            if type(member) not in IMMUTABLE and (part := self._place(member)) is not None:
                detach(own, name, None)
                self._links.append((put, place, name, part))

    def _model(self, place: int, model: Any, kind: type) -> tuple[type, dict[str, Any], set[str]] | None:
        """What is kept of a model without extra fields and private attributes, which takes half the steps of others."""
        state, given = model.__dict__, getattr(model, PYDANTIC_FIELDS_SET, None)
        if any(getattr(model, name, model) is not None for name in PYDANTIC_STATE):
            return None
        if type(state) is not dict or type(given) is not set or not self._are_immutable(given):
            return None
        linked = [name for name, member in state.items() if type(member) not in IMMUTABLE]
        if any(type(name) is not str or hasattr(kind, name) for name in linked):
            return None  # by `_put`, it might not come into the `__dict__`
        own = state.copy()
        self._link(place, own, own.items(), setitem, _put)
        return kind, own, given.copy()

    def _place(self, member: Any) -> int | None:
        """Which part it is; None if it is immutable, and so the same in every copy."""
        place = self._places.get(id(member))
        if place is None:
            if self.is_immutable(member):
                return None
            self._steps += 1
            place = self._places[id(member)] = len(self._sources)
            self._sources.append(member)
        return place

    def _place_or_constant(self, member: Any) -> int:
        place = None if type(member) in IMMUTABLE else self._place(member)
        if place is None:
            self._constants.append(member)
            return -len(self._constants)
        return place


def _innermost_first(tuples: dict[int, tuple[Any, tuple[int, ...]]]) -> tuple[tuple[int, Any, tuple[int, ...]], ...]:
    """The tuples of a recipe in an order in which each can be made of those before it."""
    order: Iterable[int] = tuples
    if len(tuples) > 1:
        from graphlib import TopologicalSorter

        order = TopologicalSorter(
            {place: [each for each in members if each in tuples] for place, (_, members) in tuples.items()}
        ).static_order()
    return tuple((place, *tuples[place]) for place in order)


def _follow(
    clones: tuple[Callable[[Any], Any], ...],
    kept: tuple[Any, ...],
    constants: tuple[Any, ...],
    tuples: tuple[tuple[int, Callable[[Iterable[Any]], Any], tuple[int, ...]], ...],
    links: tuple[tuple[_Put, int, Any, int], ...],
) -> Any:
    """Follow a recipe. The constants are at the end of the parts, where negative places find them."""
    parts = list(map(call, clones, kept))  # a comprehension takes 10 % longer in all
    if constants:
        parts += constants
    for place, make, members in tuples:
        parts[place] = make([parts[each] for each in members])
    for put, place, name, part in links:
        put(parts[place], name, parts[part])
    return parts[0]


# Forms of classes

_TUPLE = _Form(make=tuple, is_frozen=True)
_NAMED_TUPLE = _Form(make=tuple.__new__, is_frozen=True)
"""Of all classes: a form that refers to its class would keep it, and programs make such classes for each query."""

_forms: weakref.WeakKeyDictionary[type, _Form | None] = weakref.WeakKeyDictionary()


def _form_of(kind: type) -> _Form | None:
    """The form of a class; None if there may be more to its objects than can be seen, or they have a way of their own.

    A class is read once.
    """
    try:
        return _forms[kind]
    except KeyError:
        form = _forms[kind] = _read_class(kind)
        return form


def _read_class(kind: type) -> _Form | None:
    if issubclass(kind, _NAMED) or text_of_standard_value(kind) is not None:
        return _LEAF
    if _is_iterator(kind):
        return None
    if issubclass(kind, tuple):
        is_named_tuple = kind.__mro__ == (kind, tuple, object) and hasattr(kind, "_fields") and not kind.__dictoffset__
        if is_named_tuple and _own_ways(kind, tuple) <= {"__new__", "__getnewargs__"}:
            return _NAMED_TUPLE
        return None
    attributes = _attributes(kind)
    if attributes is None:
        return None
    if hasattr(kind, "__struct_fields__"):
        return _read_struct(kind, attributes)
    base = _model_base(kind)
    ways = _own_ways(kind, base)
    is_frozen_with_slots = ways == {"__getstate__", "__setstate__"} and all(
        getattr(kind, name) is getattr(_FrozenSlots, name) for name in ways
    )
    if (ways and not is_frozen_with_slots) or has_native_state(kind):
        return None
    sets_slots_itself = base is object and kind.__setattr__ is not object.__setattr__ and attributes != ("__dict__",)
    if sets_slots_itself and not is_frozen_with_slots:
        return None
    clone_model = None if base is object else _model_cloner(base)
    # `vars(record)["x"] = 1` changes a record with a `__dict__`, however frozen its class is.
    is_frozen = "__dict__" not in attributes and _is_frozen_record(kind)
    return _Form(attributes, _new, is_frozen=is_frozen, clone_model=clone_model)


@dataclass(frozen=True, slots=True)
class _FrozenSlots:
    """Has the ``__getstate__`` and ``__setstate__`` of every frozen dataclass with slots: they set the fields."""


def _own_ways(kind: type, base: type) -> set[str]:
    return {name for name in _OWN_WAYS if getattr(kind, name, None) is not getattr(base, name, None)}


def _model_base(kind: type) -> type:
    """`BaseModel` for a model of pydantic's: its ``__deepcopy__`` copies the attributes that have all state."""
    return sys.modules["pydantic"].BaseModel if is_model(kind) else object


@functools.cache
def _model_cloner(base: type) -> Callable[[tuple[type, dict[str, Any], set[str]]], Any]:
    """The `clone_model` of all models. The attributes are set by their descriptors, which takes two thirds of the time
    of setting them by name.
    """
    set_dict, set_given, set_extra, set_private = (
        vars(base)[name].__set__ for name in ("__dict__", PYDANTIC_FIELDS_SET, *PYDANTIC_STATE)
    )

    def clone(kept: tuple[type, dict[str, Any], set[str]]) -> Any:
        kind, state, given = kept
        made = _new(kind)
        set_dict(made, state.copy())
        set_given(made, given.copy())
        set_extra(made, None)
        set_private(made, None)
        return made

    return clone


def _attributes(kind: type) -> tuple[str, ...] | None:
    """The attributes that have all state of an object; None if one of them is hidden by another attribute."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        for name, attribute in vars(base).items():
            holds_state = isinstance(attribute, GetSetDescriptorType if name == "__dict__" else MemberDescriptorType)
            first = found.setdefault(name, attribute if holds_state else None)
            if holds_state and first is not attribute and (first is None or name != "__dict__"):
                return None
    names = tuple(name for name, attribute in found.items() if attribute is not None)
    return names if ("__dict__" in names) == bool(kind.__dictoffset__) else None


def _read_struct(kind: Any, attributes: tuple[str, ...]) -> _Form | None:
    msgspec: Any = sys.modules.get("msgspec")
    if msgspec is None or not issubclass(kind, msgspec.Struct) or _own_ways(kind, msgspec.Struct):
        return None
    has_dict = "__dict__" in attributes  # which msgspec itself does not copy
    fields = tuple(name for name in attributes if name != "__dict__")
    if not {*fields} <= {*kind.__struct_fields__}:
        return None  # a hash that is kept
    from msgspec.structs import force_setattr

    is_frozen = kind.__struct_config__.frozen and not has_dict and _has_only_fields(kind, msgspec.Struct)
    return _Form(fields, msgspec.Struct.__copy__, force_setattr, is_frozen=is_frozen, has_dict=has_dict)


def _is_frozen_record(kind: type) -> bool:
    parameters = vars(kind).get("__dataclass_params__")
    return parameters is not None and parameters.frozen and _has_only_fields(kind)


def _has_only_fields(kind: type, above: type = object) -> bool:
    """Whether a class, as far as it is below another, has no method of its own.

    One that has may set attributes of a frozen object, as `functools.cached_property` does, and what it computes may be
    mutable.
    """
    for base in kind.__mro__:
        if issubclass(above, base):
            continue
        for name, attribute in vars(base).items():
            if isinstance(attribute, FunctionType):
                if name not in _GENERATED:
                    return False
            elif hasattr(attribute, "__get__") and not isinstance(attribute, _WITHOUT_OBJECT):
                return False
    return True


_WITHOUT_OBJECT = (MemberDescriptorType, GetSetDescriptorType, classmethod, staticmethod)
