"""What an object consists of: itself, its members, its fields, or what is in it, decided once for each class.

An object of the user's own program is what it has in it; one of another package may be a client, of which nobody knows
what it holds.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, ValuesView
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import ReferenceType

from agent_cache.errors import UncacheableArgumentsError as Uncacheable
from agent_cache.values.canonical import (
    MISSING,
    PYDANTIC_STATE,
    declared_names,
    full_name,
    is_model,
    text_of_standard_value,
)

__all__ = ["BUILTINS", "FUNCTIONS", "Shape", "attributes_of", "data_of", "inside", "is_own", "note_program", "shape_of"]

BUILTINS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
FUNCTIONS: Final = (
    types.BuiltinFunctionType, types.FunctionType, types.MethodType, types.ModuleType, ReferenceType, partial, type,
)  # fmt: skip
_GROUPS: Final = (Sequence, Set, ValuesView)

# The program

_OWN: Final[set[str]] = set()


def note_program(module: str) -> None:
    """Take a package for the user's own, wherever it is installed: a tool of it is decorated."""
    package = module.partition(".")[0]
    if package not in _OWN:
        _OWN.add(package)
        is_own.cache_clear()
        _shape_of.cache_clear()


@lru_cache(maxsize=1024)
def is_own(kind: Any) -> bool:
    """Whether a class is of the user's program: neither of the standard library nor of an installed package, which lies
    where packages are installed, or beside a record of it.
    """
    package = kind.__module__.partition(".")[0]
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if package in sys.stdlib_module_names or package == "agent_cache":
        return False
    folder, *within = re.split(rf"[\\/]{re.escape(package)}(?=[\\/.])", path or "")
    if package in _OWN or not within:
        return True
    records = Path(folder).glob("*.dist-info/RECORD")
    return {"site-packages", "dist-packages"}.isdisjoint(re.split(r"[\\/]", folder)) and not any(
        re.search(rf"^{re.escape(package)}[/.]", one.read_text("utf-8"), re.MULTILINE) for one in records
    )


# Classes


class Shape(NamedTuple):
    """What is known of the objects of a class.

    Attributes:
        leaf: makes builtins of a value, which are the same in every process; None of what is no value.
        is_container: whether they are sequences or sets without fields.
        read: gives names and values of what is data by its class; None of what is not.
        is_compared: whether they are compared by what they are.
        is_standard: whether the class is of the standard library.
        slots, properties: the names of what they have beside a ``__dict__``, and of what they compute.
        descriptors: whether they may have data behind descriptors, as those of an object-relational mapper have.
    """

    leaf: Callable[[Any], Any] | None
    is_container: bool
    read: Callable[[Any], list[tuple[Any, Any]]] | None
    is_compared: bool
    is_standard: bool
    slots: tuple[str, ...]
    properties: tuple[str, ...]
    descriptors: bool

    @property
    def is_data(self) -> bool:
        """Whether an object says by itself what it consists of."""
        return self.leaf is not None or self.is_container or self.read is not None


def _members_of(kind: Any) -> dict[str, Any]:
    return {name: found for base in reversed(kind.__mro__) for name, found in vars(base).items()}


@lru_cache(maxsize=1024)
def _shape_of(kind: Any) -> Shape:
    members = _members_of(kind)
    slots = [one for one in members.values() if isinstance(one, types.MemberDescriptorType)]
    names, is_compared = declared_names(kind), kind.__eq__ is not object.__eq__
    plain = (types.MemberDescriptorType, types.GetSetDescriptorType, property)
    own_slots = tuple(one.__name__ for one in slots if "__slots__" in vars(one.__objclass__))
    has_fields = kind.__dictoffset__ or own_slots or issubclass(kind, (*FUNCTIONS, *_GROUPS, Mapping))
    has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    leaf = _leaf_of(kind)
    if leaf is None and has_text and is_compared and kind.__hash__ is not None and (not has_fields or kind is range):
        leaf = partial(_with_text, kind.__name__)  # of NumPy, of an extension in Rust
    return Shape(
        leaf,
        issubclass(kind, _GROUPS) and names is None,
        _reader_of(kind, names),
        is_compared,
        kind.__module__.partition(".")[0] in sys.stdlib_module_names,
        own_slots,
        tuple(name for name, one in members.items() if isinstance(one, property)),
        any(hasattr(one, "__set__") and one not in plain for one in {*map(type, members.values())}),
    )


shape_of: Final[Callable[[Any], Shape]] = _shape_of
"""What is known of the objects of a class."""


@lru_cache(maxsize=1024)
def data_of(kind: Any) -> tuple[str, ...]:
    """The names of data of a class of the user's own, but for defaults of fields."""
    passed = {*(declared_names(kind) or ()), "model_config"}
    named = [pair for pair in _members_of(kind).items() if not (pair[0].startswith("__") or pair[0] in passed)]
    return tuple(name for name, one in named if not hasattr(type(one), "__get__") and shape_of(type(one)).is_data)


def _leaf_of(kind: Any) -> Callable[[Any], Any] | None:
    if kind in BUILTINS:
        return lambda value: value
    if issubclass(kind, (date, datetime, time, timedelta, timezone)):
        return lambda value: (kind.__name__, repr(value))
    if issubclass(kind, Enum):
        return lambda value: (full_name(kind), value._name_ or repr(value._value_))
    for base in kind.__mro__:
        if (text := text_of_standard_value(base)) is not None:  # a subclass may write itself in a shorter way
            return lambda value: (kind.__name__, base.__str__(value) if text is str else text(value) or repr(value))
    for base in (str, int, float, bytes):
        if issubclass(kind, base) and declared_names(kind) is None:
            return base.__str__ if base is str else base
    secret: Callable[[Any], Any] | None = getattr(kind, "get_secret_value", None)
    return secret or (str if kind.__name__.lower().endswith("url") else None)


def _with_text(name: str, value: Any) -> tuple[str, str]:
    text = str(value)
    if text.startswith("<"):  # what has no form as text, by convention
        raise Uncacheable(f" is a {full_name(type(value))}, which cannot be compared")
    return name, text


def _reader_of(kind: Any, names: tuple[str, ...] | None) -> Callable[[Any], list[tuple[Any, Any]]] | None:
    if kind is dict:
        return lambda value: list(value.items())
    if names is not None:
        return lambda value: [
            *((name, getattr(value, name)) for name in names if hasattr(value, name)),
            *(pair for pair in inside(value, kind).items() if pair[0] not in names),
        ]
    if is_model(kind):
        states = ("__dict__", *PYDANTIC_STATE)
        return lambda value: [pair for name in states for pair in (getattr(value, name, None) or {}).items()]
    if issubclass(kind, Mapping):
        has_more = issubclass(kind, dict) or is_own(kind)
        return lambda value: [*value.items(), *(inside(value, kind).items() if has_more else ())]
    if kind.__name__ == "State" and not is_own(kind):  # of ADK, of Starlette
        return lambda value: list((value.to_dict() if hasattr(value, "to_dict") else value._state).items())
    return (lambda value: list(value.__dict__.items())) if kind is types.SimpleNamespace else None


# Objects


def inside(value: Any, kind: Any) -> dict[str, Any]:
    """The ``__dict__`` of a value; empty if it has none of its own."""
    return getattr(value, "__dict__", {}) if kind.__dictoffset__ else {}


def attributes_of(value: Any, kind: Any, properties: Iterable[str] = ()) -> list[tuple[str, Any]]:
    """What an object has that is no data by its class, with these properties.

    Raises:
        Uncacheable: if a property of a class of the user's own raises. One of another package may need a request.
    """
    found = dict(inside(value, kind))
    for name in (*shape_of(kind).slots, *properties):
        try:
            if (one := getattr(value, name, MISSING)) is not MISSING:
                found[name] = one
        except Exception as error:
            if is_own(kind):
                raise Uncacheable(f".{name} raises {type(error).__name__}") from error
    return list(found.items())
