"""Whether two values are the same in value *and* type, and how large a value is before anybody writes it down."""

from __future__ import annotations

import marshal
import math
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from itertools import chain
from typing import Any

from agent_cache.values.canonical import text_of_standard_value
from agent_cache.values.failures import Unencodable
from agent_cache.values.parts import parts_of

__all__ = ["MAX_DEPTH", "identical", "weigh"]

MAX_DEPTH = 100
"""Containers within containers. Deeper values are not written, and not read."""

_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_LISTS = frozenset({list, tuple, set, frozenset})
_CONTAINERS = _LISTS | {dict}
_MARSHALLED = frozenset({str, int, float, bool, type(None), complex, dict, list, tuple})


def weigh(value: Any, max_parts: int, max_depth: int = MAX_DEPTH) -> set[type]:
    """Count what a value is made of, and give the types that occur in it.

    A list that contains itself twice has 2**depth parts, so encoders must not see a value before this has.

    Raises:
        Unencodable: if there are more than `max_parts`, or they are nested deeper than `max_depth`.
    """
    types: set[type] = {type(value)}
    level: list[Any] = [value]
    parts = 0
    for _ in range(max_depth + 1):
        level = [each for each in level if type(each) not in _SCALARS]
        if not level:
            return types
        # A level at a time: what is done for each container by itself costs more than the encoding.
        dicts = [each for each in level if type(each) is dict]
        others = [each for each in level if type(each) in _LISTS]
        if len(dicts) + len(others) < len(level):
            others += [parts_of(each, type(each)) or () for each in level if type(each) not in _CONTAINERS]
        parts += 2 * sum(map(len, dicts)) + sum(map(len, others))
        if parts > max_parts:
            raise Unencodable(f"the value has more than {max_parts} parts")
        keys = set(map(type, chain.from_iterable(dicts)))
        level = [*chain.from_iterable(others), *chain.from_iterable(map(dict.values, dicts))]
        if not _SCALARS.issuperset(keys):
            level += chain.from_iterable(dicts)
        types.update(keys, map(type, level))
    raise Unencodable(f"the value is nested more than {max_depth} levels deep, or contains itself")


def identical(one: Any, other: Any, types: set[type] | None = None) -> bool:
    """Whether two values are equal and of the same types all the way down, dict order included.

    An object is known by the fields that its class declares; one that declares none, or has state beside them, is
    identical to nothing but itself.

    Args:
        types: the types that occur in `one`, if they are known.
    """
    # marshal writes the exact type of everything but of what has a buffer, in C.
    if types is not None and types <= _MARSHALLED and marshal.dumps(one, 2) == marshal.dumps(other, 2):
        return True
    return _identical(one, other)


def _identical(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is str or kind is int or kind is bytes or kind is bytearray:
        return bool(one == other)
    if one is None or kind is bool or isinstance(one, Enum | type):
        return one is other
    if kind is float:
        return _same_float(one, other)
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(_identical, one, other))
    if kind is dict:
        return (
            len(one) == len(other)
            and all(map(_identical, one, other))
            and all(map(_identical, one.values(), other.values()))
        )
    if kind is set or kind is frozenset:
        return len(one) == len(other) and _same_members(one, other)
    if kind is datetime or kind is time:
        return (
            one.replace(tzinfo=None) == other.replace(tzinfo=None)
            and one.fold == other.fold
            and _same_zone(one.tzinfo, other.tzinfo)
        )
    if kind is complex:
        return _same_float(one.real, other.real) and _same_float(one.imag, other.imag)
    return _same_object(one, other, kind)


def _same_object(one: Any, other: Any, kind: type) -> bool:
    if kind in _COMPARED:
        return bool(one == other)
    text = text_of_standard_value(kind)
    if text is not None:
        return text(one) is not None and text(one) == text(other)
    first, second = parts_of(one, kind), parts_of(other, kind)
    if first is None or second is None:
        return one is other
    if getattr(one, "__pydantic_fields_set__", None) != getattr(other, "__pydantic_fields_set__", None):
        return False
    return len(first) == len(second) and all(map(_identical, first, second))


_COMPARED = frozenset({date, timedelta})


def _same_float(one: float, other: float) -> bool:
    if one == other:
        return math.copysign(1.0, one) == math.copysign(1.0, other)
    return one != one and other != other


def _same_zone(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if one is None:
        return True
    if kind is timezone:
        return repr(one) == repr(other)
    text = text_of_standard_value(kind)
    return text is not None and text(one) is not None and text(one) == text(other)


def _same_members(one: Any, other: Any) -> bool:
    twins = {member: member for member in other}
    missing = object()
    return all(_identical(member, twins.get(member, missing)) for member in one)
