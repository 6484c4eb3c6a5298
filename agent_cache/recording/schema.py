"""A return annotation made ready for recordings: values to plain data and back, each proved when it is written.

Most values have a *direct* form: what msgspec writes for them, and reads back by the annotation, in C. Whether a value
has one is tried, not derived: what was written is read again, and must be identical. If it is not (a tuple that the
annotation does not name, an `int` in a field of `float`, a time zone), the value is written in the tagged form of
`agent_cache.recording.tagged`, and tried again. A value that fails both is refused.
"""

from __future__ import annotations

import marshal
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from itertools import chain
from typing import Any

import msgspec

from agent_cache.recording.annotations import DICTS, is_positional, node_of
from agent_cache.recording.tagged import decode, encode, pack, unpack
from agent_cache.values.canonical import (
    MAX_DEPTH,
    declared_fields,
    full_name,
    is_model,
    make_room,
    text_of_standard_value,
)
from agent_cache.values.typed import Returns, Undecodable, Unencodable

__all__ = ["Schema", "schema_of"]

MAX_PARTS = 1_000_000
MAX_LEVELS = 3 * MAX_DEPTH + 2
"""Containers within containers of plain data. An object of the tagged form is three of them: tag, pair, fields; what is
innermost, such as a time, is two."""

_MARK = "$typed"


def _model_to_data(value: Any) -> Any:
    """Data of an object that msgspec does not know: the fields of a pydantic model.

    A field that was not set is not there to be written, and its default may be another where it is read.
    """
    kind = type(value)
    if not is_model(kind) or len(value.model_fields_set) < len(kind.__pydantic_fields__):
        raise NotImplementedError(kind.__qualname__)
    return {name: getattr(value, name) for name in kind.__pydantic_fields__}


def _reason(error: Exception) -> str:
    """What is wrong with data, by the names of fields and types: a class that has changed is found by them."""
    cause: Any = error.__cause__
    if cause is not None and type(cause).__module__.startswith("pydantic_core"):
        first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{cause.title}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error) if isinstance(error, msgspec.ValidationError) and cause is None else type(error).__name__


def _fields_of_model(value: Any) -> Any:
    """All that a model of pydantic's has; None for any other object."""
    kind = type(value)
    return {**vars(value), **(value.__pydantic_extra__ or {})} if is_model(kind) else None


def _check_nothing_is_lost(plain: Any, value: Any) -> None:
    """Check that a value has every field of the data that it was read from: msgspec and pydantic skip unknown ones.

    Raises:
        Undecodable: if it has not.
    """
    written = msgspec.to_builtins(value, str_keys=True, enc_hook=_fields_of_model)
    if written != plain:
        lost = _fields_in(plain) - _fields_in(written)
        if lost:
            raise Undecodable(f"its class does not have the field {'.'.join(min(lost))!r} any more")


def _fields_in(plain: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The keys in plain data, each with those above it. The order of lists does not count: they may be sets."""
    found: set[tuple[str, ...]] = set()
    if type(plain) is dict:
        for key, value in plain.items():
            found.add((*path, key))
            found |= _fields_in(value, (*path, key))
    elif type(plain) in (list, tuple):
        for value in plain:
            found |= _fields_in(value, path)
    return found


def _model_from_data(kind: Any, data: Any) -> Any:
    if is_model(kind):
        return kind.model_validate(data)
    raise NotImplementedError(kind.__qualname__)


# Schemas


class Schema:
    """Writes and reads the values of one annotation.

    Args:
        annotation: what it is made from, names resolved.
        beside: classes that the annotation cannot name, because the caller passes them: those of the objects that may
            stand where it allows anything.

    Attributes:
        annotation, beside: as given.
    """

    def __init__(self, annotation: Any, beside: tuple[type, ...] = ()) -> None:
        self.annotation = Any if annotation is None else annotation
        self.beside = beside
        bound = {Any: beside} if beside else {}
        try:
            self._node = node_of(self.annotation, bound)
        except Exception:  # noqa: BLE001 - it is no annotation, so it stands for none
            self.annotation = Any
            self._node = node_of(Any, bound)

    def to_plain(self, value: Any) -> Any:
        """Write a value as plain data that JSON carries exactly: ``null``, booleans, text, numbers, lists and dicts.

        Raises:
            Unencodable: if it would not come back as it is.
        """
        types = _weigh(value, MAX_PARTS)
        try:
            # Read by a class that has changed, these would be another value: plain data has no fingerprint.
            if not any(is_positional(kind) or _omits_defaults(kind) for kind in types):
                plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_model_to_data)
                is_carried = _identical(decode(encode(plain)), plain, _weigh(plain, MAX_PARTS))
                if is_carried and not _is_marked(plain) and _identical(value, self._converted(plain), types):
                    return plain
        except Exception:  # noqa: BLE001, S110 - the value has no direct form, for whatever reason
            pass
        return self._proved(value, types, lambda: {_MARK: pack(value)}, self.from_plain)

    def from_plain(self, plain: Any) -> Any:
        """Read what `to_plain` wrote for the same annotation. Data that a person edited will do if its types do.

        Raises:
            Undecodable: for any other data, and for a field that its class does not have any more: without it, the
                object would be another one.
        """
        try:
            _weigh(plain, MAX_PARTS, MAX_LEVELS)
            if _is_marked(plain):
                return unpack(plain[_MARK], self._node)
            value = self._converted(plain)
            _check_nothing_is_lost(plain, value)
            return value
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"not the data of such a value ({_reason(error)})") from error

    def _converted(self, plain: Any) -> Any:
        return msgspec.convert(plain, self.annotation, strict=True, str_keys=True, dec_hook=_model_from_data)

    def _proved(self, value: Any, types: set[type], write: Callable[[], Any], read: Callable[[Any], Any]) -> Any:
        """Data of a value in the tagged form, if it is read as the same value."""
        name = full_name(type(value))
        try:
            data = write()
            if _identical(value, read(data), types):
                return data
        except Unencodable:
            raise
        except Undecodable as error:
            raise Unencodable(f"a value of type {name} would not come back: {error}") from error
        except Exception as error:
            raise Unencodable(f"writing a value of type {name} raised {type(error).__name__}") from error
        raise Unencodable(f"a value of type {name} would not come back as it is")


_schemas: dict[Any, Schema] = {}
_MAX_SCHEMAS = 1024


def schema_of(returns: Any) -> Schema:
    """The schema of an annotation, or of the `Returns` of a function. Each is made once."""
    if isinstance(returns, Returns):
        returns = returns.resolve()
    try:
        known = _schemas.get(returns)
    except TypeError:  # an annotation with metadata that has no hash
        return Schema(returns)
    if known is None:
        known = Schema(returns)
        make_room(_schemas, _MAX_SCHEMAS)
        _schemas[returns] = known
    return known


def _is_marked(plain: Any) -> bool:
    return type(plain) is dict and len(plain) == 1 and _MARK in plain


def _omits_defaults(kind: Any) -> bool:
    """Whether fields that have their defaults are not written: the reader's class would fill in its own."""
    return bool(getattr(getattr(kind, "__struct_config__", None), "omit_defaults", False))


# The proof

_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_LISTS = frozenset({list, tuple, set, frozenset})
_PARTLESS = _LISTS | DICTS | {date, datetime, time, timedelta, complex, bytearray}
"""Containers, which are counted by themselves, and types without parts."""

_MARSHALLED = frozenset({str, int, float, bool, type(None), complex, dict, list, tuple})


def _weigh(value: Any, max_parts: int, max_depth: int = MAX_DEPTH) -> set[type]:
    """Count the parts of a value, and give the types that occur in it.

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
        dicts = [each for each in level if type(each) in DICTS]
        others = [each for each in level if type(each) in _LISTS]
        if len(dicts) + len(others) < len(level):
            others += [_declared_values(each, type(each)) or () for each in level if type(each) not in _PARTLESS]
        parts += 2 * sum(map(len, dicts)) + sum(map(len, others))
        if parts > max_parts:
            raise Unencodable(f"the value has more than {max_parts} parts")
        keys = set(map(type, chain.from_iterable(dicts)))
        level = [*chain.from_iterable(others), *chain.from_iterable(map(dict.values, dicts))]
        if not _SCALARS.issuperset(keys):
            level += chain.from_iterable(dicts)
        types.update(keys, map(type, level))
    raise Unencodable(f"the value is nested more than {max_depth} levels deep, or contains itself")


def _identical(one: Any, other: Any, types: set[type]) -> bool:
    """Whether two values are equal and of the same types all the way down, dict order included.

    An object is known by the fields that its class declares; one that declares none, or has state beside them, is
    identical to nothing but itself.

    Args:
        types: the types that occur in `one`.
    """
    # marshal writes the exact type of everything but of what has a buffer, in C.
    if types <= _MARSHALLED and marshal.dumps(one, 2) == marshal.dumps(other, 2):
        return True
    return _same(one, other)


def _same(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is str or kind is int or kind is bytes or kind is bytearray or kind is date or kind is timedelta:
        return bool(one == other)
    if one is None or kind is bool or isinstance(one, Enum | type):
        return one is other
    if kind is float:
        return _same_float(one, other)
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    if kind in DICTS:
        if kind is not dict and not _has_same_beside(one, other):
            return False
        return len(one) == len(other) and all(map(_same, one, other)) and all(map(_same, one.values(), other.values()))
    if kind is set or kind is frozenset:
        twins = {member: member for member in other}
        return len(one) == len(other) and all(member in twins and _same(member, twins[member]) for member in one)
    if kind is datetime or kind is time:
        is_same = one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.fold == other.fold
        return is_same and _same_zone(one.tzinfo, other.tzinfo)
    if kind is complex:
        return _same_float(one.real, other.real) and _same_float(one.imag, other.imag)
    first = _declared_values(one, kind)
    if first is None:
        text_of = text_of_standard_value(kind)
        return one is other if text_of is None else _same_text(one, other, text_of)
    second = _declared_values(other, kind)
    if second is None or len(first) != len(second):
        return False
    fields_set = getattr(one, "__pydantic_fields_set__", None)
    if fields_set is not None and fields_set != other.__pydantic_fields_set__:
        return False
    return all(map(_same, first, second))


def _declared_values(value: Any, kind: type) -> Sequence[Any] | None:
    """The values of the declared fields, those of a model with their names. None for an Enum, and if reading raises."""
    try:
        if issubclass(kind, Enum) or text_of_standard_value(kind) is not None:
            return None
        declared = declared_fields(value, kind)
    except Exception:  # noqa: BLE001 - reading fields of any class may run anything
        return None
    if declared is None or not is_model(kind):
        return declared and [part for _, part in declared]
    return [part for pair in declared for part in pair]


def _has_same_beside(one: Any, other: Any) -> bool:
    """Whether a `Counter`, `OrderedDict` or `defaultdict` and another have the same factory, and no attributes."""
    factories = getattr(one, "default_factory", None), getattr(other, "default_factory", None)
    return factories[0] is factories[1] and not getattr(one, "__dict__", None)


def _same_float(one: float, other: float) -> bool:
    if one == other:
        return math.copysign(1.0, one) == math.copysign(1.0, other)
    return one != one and other != other


def _same_zone(one: Any, other: Any) -> bool:
    kind = type(one)
    if one is None or kind is not type(other):
        return one is other
    return _same_text(one, other, repr if kind is timezone else text_of_standard_value(kind))


def _same_text(one: Any, other: Any, text_of: Callable[[Any], str | None] | None) -> bool:
    text = None if text_of is None else text_of(one)
    return text_of is not None and text is not None and text == text_of(other)
