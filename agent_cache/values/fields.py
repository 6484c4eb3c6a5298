"""Which fields an object is known by: those that its class declares, as dataclasses, NamedTuples, Enums, attrs, msgspec
and pydantic classes do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any

__all__ = ["declared_fields"]

_CONTAINERS = (dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, deque)


def declared_fields(value: Any, kind: type) -> list[tuple[str, Any]] | None:
    """Name and value of everything the class declares. None if it declares nothing, or has state beside what it
    declares: the fields alone would be a guess then.
    """
    if isinstance(value, Enum):
        return [("", value._value_)] if value._name_ is None else [("name", value._name_)]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
        if len(names) != len(value) or _has_undeclared_state(value, kind, names):
            return None
        return list(zip(names, value, strict=True))
    if isinstance(value, _CONTAINERS):
        return None
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    elif hasattr(kind, "__struct_fields__"):  # msgspec.Struct
        names = list(kind.__struct_fields__)
    elif hasattr(kind, "__attrs_attrs__"):
        names = [attribute.name for attribute in kind.__attrs_attrs__]
    elif hasattr(kind, "__pydantic_fields__"):
        names = list(kind.__pydantic_fields__)
        beside = [(name, getattr(value, name, None)) for name in ("__pydantic_extra__", "__pydantic_private__")]
        return [(name, getattr(value, name)) for name in names] + [pair for pair in beside if pair[1]]
    else:
        return None
    return None if _has_undeclared_state(value, kind, names) else [(name, getattr(value, name)) for name in names]


def _has_undeclared_state(value: Any, kind: type, names: list[str]) -> bool:
    declared = set(names)
    for name in getattr(value, "__dict__", {}).keys() - declared:
        if not isinstance(getattr(kind, name, None), cached_property):
            return True
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in declared and name not in {"__dict__", "__weakref__"} and hasattr(value, name):
                return True
    return False
