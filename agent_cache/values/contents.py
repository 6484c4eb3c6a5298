"""What a value consists of: itself, its members, its fields, or what is in an object of any class.

Everything is decided once for each class. An object of the user's own program is what it has in it; one of another
package may be a client, of which nobody knows what it holds.
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
from typing import Any, Final
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

__all__ = [
    "BUILTINS", "FUNCTIONS", "attributes_of", "data_of", "hides_data", "inside", "is_compared", "is_container",
    "is_data", "is_own", "is_standard", "leaf_of", "note_program", "properties_of", "reader_of",
]  # fmt: skip

# The program

_OWN: Final[set[str]] = set()


def note_program(module: str) -> None:
    """Take a package for the user's own, wherever it is installed: a tool of it is decorated."""
    package = module.partition(".")[0]
    if package not in _OWN:
        _OWN.add(package)
        is_own.cache_clear()


def is_standard(kind: Any) -> bool:
    """Whether a class is of the standard library."""
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


@lru_cache(maxsize=1024)
def is_own(kind: Any) -> bool:
    """Whether a class is of the user's program: neither of the standard library nor of an installed package."""
    package = kind.__module__.partition(".")[0]
    if is_standard(kind) or package == "agent_cache":
        return False
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return package in _OWN or path is None or not _is_installed(package, path)


def _is_installed(package: str, path: str) -> bool:
    """Whether a module lies where packages are installed, or beside a record of its package."""
    folder, *inside = re.split(rf"[\\/]{re.escape(package)}(?=[\\/.])", path)
    if not inside:
        return False
    if {"site-packages", "dist-packages"}.intersection(re.split(r"[\\/]", folder)):
        return True
    records = Path(folder).glob("*.dist-info/RECORD")
    return any(re.search(rf"^{re.escape(package)}[/.]", one.read_text("utf-8"), re.MULTILINE) for one in records)


# Values

BUILTINS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
FUNCTIONS: Final = (
    types.BuiltinFunctionType,
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
    ReferenceType,
    partial,
    type,
)
_GROUPS: Final = (Sequence, Set, ValuesView)


@lru_cache(maxsize=1024)
def leaf_of(kind: Any) -> Callable[[Any], Any] | None:
    """What makes builtins of values of a class, which are the same in every process; None of other classes."""
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
    if secret is not None or kind.__name__.lower().endswith("url"):
        return secret or str
    has_fields = kind.__dictoffset__ or _slots_of(kind) or issubclass(kind, (*FUNCTIONS, *_GROUPS, Mapping))
    has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
    if has_text and is_compared(kind) and kind.__hash__ is not None and (not has_fields or kind is range):
        return lambda value: (kind.__name__, _text(value))  # of NumPy, of an extension in Rust
    return None


def is_compared(kind: Any) -> bool:
    """Whether objects of a class are compared by what they are."""
    return kind.__eq__ is not object.__eq__


def _text(value: Any) -> str:
    text = str(value)
    if text.startswith("<"):  # what has no form as text, by convention
        raise Uncacheable(f" is a {full_name(type(value))}, which cannot be compared")
    return text


@lru_cache(maxsize=1024)
def is_container(kind: Any) -> bool:
    """Whether a class is one of sequences or sets without fields."""
    return issubclass(kind, _GROUPS) and declared_names(kind) is None


@lru_cache(maxsize=1024)
def reader_of(kind: Any) -> Callable[[Any], list[tuple[Any, Any]]] | None:
    """What gives names and values of objects that are data by their class; None of any other class."""
    names = declared_names(kind)
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


def is_data(kind: Any) -> bool:
    """Whether objects of a class say by themselves what they consist of."""
    return leaf_of(kind) is not None or is_container(kind) or reader_of(kind) is not None


# Objects


def inside(value: Any, kind: Any) -> dict[str, Any]:
    """The ``__dict__`` of a value; empty if it has none of its own."""
    return getattr(value, "__dict__", {}) if kind.__dictoffset__ else {}


@lru_cache(maxsize=1024)
def _members_of(kind: Any) -> dict[str, Any]:
    return {name: found for base in reversed(kind.__mro__) for name, found in vars(base).items()}


@lru_cache(maxsize=1024)
def _slots_of(kind: Any) -> tuple[str, ...]:
    slots = [found for found in _members_of(kind).values() if isinstance(found, types.MemberDescriptorType)]
    return tuple(slot.__name__ for slot in slots if "__slots__" in vars(slot.__objclass__))


@lru_cache(maxsize=1024)
def properties_of(kind: Any) -> tuple[str, ...]:
    """The names of the properties of a class."""
    return tuple(name for name, found in _members_of(kind).items() if isinstance(found, property))


@lru_cache(maxsize=1024)
def data_of(kind: Any) -> tuple[str, ...]:
    """The attributes of a class of the user's own that are data, but for defaults of fields."""
    fields = {*(declared_names(kind) or ()), "model_config"}
    return tuple(
        name
        for name, found in _members_of(kind).items()
        if not (name.startswith("__") or name in fields or hasattr(type(found), "__get__")) and is_data(type(found))
    )


@lru_cache(maxsize=1024)
def hides_data(kind: Any, *, is_empty: bool) -> bool:
    """Whether an object in which nothing counts has data elsewhere: behind descriptors, as of an object-relational
    mapper, or behind what computes its attributes, if it is empty.
    """
    kinds = {type(found) for found in _members_of(kind).values()}
    plain = (types.MemberDescriptorType, types.GetSetDescriptorType, property)
    return any(hasattr(one, "__set__") and one not in plain for one in kinds) or (property in kinds and is_empty)


def attributes_of(value: Any, kind: Any, properties: Iterable[str] = ()) -> list[tuple[str, Any]]:
    """What an object has that is no data by its class, with these properties.

    Raises:
        Uncacheable: if a property of a class of the user's own raises. One of another package may need a request.
    """
    found = dict(inside(value, kind))
    for name in (*_slots_of(kind), *properties):
        try:
            if (one := getattr(value, name, MISSING)) is not MISSING:
                found[name] = one
        except Exception as error:
            if is_own(kind):
                raise Uncacheable(f".{name} raises {type(error).__name__}") from error
    return list(found.items())
