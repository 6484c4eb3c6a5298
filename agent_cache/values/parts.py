"""What an object is made of: the values of the fields that its class declares, if it has no state beside them.

`declared_fields` decides that anew for every object. Here it is settled once for a class, where a class allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from agent_cache.values.canonical import declared_fields, text_of_standard_value

__all__ = ["declared_names", "is_model", "is_positional", "leaves_out_defaults", "parts_of"]

Parts = tuple[Any, ...] | list[Any]


def parts_of(value: Any, kind: type) -> Parts | None:
    """Values of the declared fields, in order. None for what has none, or has state that they do not show."""
    found = _readers.get(kind)
    if found is None:
        found = _readers[kind] = _reader_of(kind)
    return found(value)


def declared_names(kind: Any) -> tuple[str, ...] | None:
    """Names of the fields that a dataclass, NamedTuple, attrs or msgspec class declares; None for any other."""
    if issubclass(kind, tuple):
        return tuple(kind._fields) if hasattr(kind, "_fields") else None
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    return None


def is_model(kind: Any) -> bool:
    """Whether it is a pydantic model. A dataclass of pydantic's is a dataclass."""
    return hasattr(kind, "__pydantic_fields__") and not is_dataclass(kind)


def is_positional(kind: Any) -> bool:
    """Whether its fields are written without their names: a NamedTuple, or a Struct of msgspec's that is a list."""
    if getattr(kind, "__struct_config__", None) is not None:
        return bool(kind.__struct_config__.array_like)
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def leaves_out_defaults(kind: Any) -> bool:
    """Whether a field that has its default is not written: what it was worth would be said by the reader's class."""
    return bool(getattr(getattr(kind, "__struct_config__", None), "omit_defaults", False))


_readers: WeakKeyDictionary[type, Callable[[Any], Parts | None]] = WeakKeyDictionary()


def _reader_of(kind: type) -> Callable[[Any], Parts | None]:
    if issubclass(kind, Enum | type) or text_of_standard_value(kind) is not None:
        return lambda _value: None
    if is_model(kind):
        return partial(_fields_of_model, tuple(kind.__pydantic_fields__))  # type: ignore[attr-defined]
    names = declared_names(kind)
    if names is None or len(names) < 2 or issubclass(kind, _BUILTINS) or _hidden_slots(kind, names):
        return _declared
    read = attrgetter(*names)
    declared = frozenset(names)

    def parts(value: Any) -> Parts | None:
        try:
            state = getattr(value, "__dict__", None)
            if state and not declared.issuperset(state):
                return _declared(value)  # what is cached by a property is no state
            found: tuple[Any, ...] = read(value)
        except Exception:  # noqa: BLE001 - reading somebody's fields may run anything
            return None
        return found

    return parts


def _fields_of_model(names: tuple[str, ...], value: Any) -> Parts | None:
    try:
        state = value.__dict__
        if value.__pydantic_extra__ or value.__pydantic_private__ or len(state) != len(names):
            return _declared(value)
        return [state[name] for name in names]
    except Exception:  # noqa: BLE001 - as above; it may also have been made without its initializer
        return _declared(value)


_BUILTINS = (dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float, complex)


def _hidden_slots(kind: type, names: tuple[str, ...]) -> bool:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        if not {*names, "__dict__", "__weakref__"}.issuperset((slots,) if isinstance(slots, str) else slots):
            return True
    return False


def _declared(value: Any) -> Parts | None:
    try:
        found = declared_fields(value, type(value))
    except Exception:  # noqa: BLE001 - reading somebody's fields may run anything
        return None
    # With their names: which ones there are is part of what a pydantic model is.
    return None if found is None else [part for pair in found for part in pair]
