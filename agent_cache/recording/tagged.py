"""Tagged forms of values: plain data in which everything without a form in JSON has a tag that names its type.

``null``, booleans, text, numbers, lists and dicts with text for keys stand for themselves. Everything else is a dict
with one key, its tag: ``{"$tuple": [1, 2]}``. A dict that happens to look so is written by its items:
``{"$dict": [[key, value]]}``. `pack` writes results, which `unpack` reads back exactly:
``{"$datetime": ["2026-01-01T00:00:00", 0, null]}``. An object is ``{"$object": [name of the class, fields]}``; the name
only chooses among the classes that the annotation allows at that place. The arguments of recorded calls have a form of
their own (`agent_cache.recording.arguments`).
"""

from __future__ import annotations

import base64
import marshal
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from agent_cache.recording.annotations import ANYTHING, DICTS, Node, Record, standard_type
from agent_cache.values.canonical import (
    PYDANTIC_FIELDS_SET,
    PYDANTIC_STATE,
    STANDARD,
    declared_fields,
    declared_names,
    full_name,
    is_member,
    is_model,
    text_of_standard_value,
)
from agent_cache.values.typed import Undecodable, Unencodable

__all__ = [
    "RESULT_WRITERS",
    "decode",
    "encode",
    "encode_sorted",
    "exact_json",
    "is_utf8",
    "pack",
    "unpack",
]


# Writing of results

_LISTS: dict[type, str] = {list: "", tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_LISTS_BY_TAG: dict[str, Any] = {tag: kind for kind, tag in _LISTS.items() if tag}
_DICTS_BY_TAG: dict[str, Any] = {f"${kind.__name__}": kind for kind in DICTS if kind is not dict}
_FACTORIES: dict[Any, type] = {
    kind.__name__: kind for kind in (*DICTS, bool, bytes, float, frozenset, int, list, set, str, tuple)
}
"""What a `defaultdict` may make for a missing key."""

_READABLE = STANDARD.keys() - {"Fraction", "ZoneInfo"}
_MAX_DIGITS = 4096
"""Hexadecimal digits of an integer. Arithmetic on larger ones takes time that no size of data betrays."""


def pack(value: Any) -> Any:
    """Write a result as plain data that JSON carries exactly.

    It does not look at the annotation: `unpack` refuses what is not allowed at its place.

    Raises:
        Unencodable: if there is a value in it that has no form.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str or kind is int or kind is float:
        return value if _stands_for_itself(value, kind) else {f"${kind.__name__}": RESULT_WRITERS[kind](value)}
    if kind in _LISTS:
        data = [pack(each) for each in value]
        return data if kind is list else {_LISTS[kind]: data}
    if kind is dict:
        keys = [pack(key) for key in value]
        packed = [pack(each) for each in value.values()]
        if all(type(key) is str for key in keys) and not (len(keys) == 1 and keys[0][:1] == "$"):
            return dict(zip(keys, packed, strict=True))
        return {"$dict": [[key, each] for key, each in zip(keys, packed, strict=True)]}
    if kind in DICTS:
        return {f"${kind.__name__}": _pack_special_dict(value, kind)}
    writer = RESULT_WRITERS.get(kind)
    if writer is None and kind.__name__ in _READABLE:
        writer = text_of_standard_value(kind)
    return _pack_object(value, kind) if writer is None else {f"${kind.__name__}": writer(value)}


def _stands_for_itself(value: Any, kind: type) -> bool:
    if kind is str:
        return bool(value.isascii()) or is_utf8(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    return math.isfinite(value)


def _pack_special_dict(value: Any, kind: type) -> Any:
    pairs = [[pack(key), pack(each)] for key, each in value.items()]
    if kind is not defaultdict:
        return pairs
    factory = value.default_factory  # one that is not in `_FACTORIES` does not come back, so it is refused
    return [None if factory is None else getattr(factory, "__name__", ""), pairs]


def _pack_object(value: Any, kind: Any) -> Any:
    if issubclass(kind, Enum):
        if is_member(value, kind):
            return {"$enum": [kind.__qualname__, value._name_, None]}
        return {"$enum": [kind.__qualname__, None, value._value_]}  # several flags, none, or made by `_missing_`
    declared = declared_fields(value, kind)
    if declared is None:
        raise Unencodable(
            f"a value of type {full_name(kind)} declares no fields to be written by, as a dataclass, NamedTuple, "
            "TypedDict, msgspec or pydantic class does, or has state beside them"
        )
    packed = {name: pack(each) for name, each in declared if name not in _MODEL_STATE}
    if not is_model(kind):
        return {"$object": [kind.__qualname__, packed]}
    beside = [pack(getattr(value, name, None)) for name in PYDANTIC_STATE]
    given, names = sorted(value.__pydantic_fields_set__), kind.__pydantic_fields__.keys()
    if packed.keys() == names:
        return {"$model": [kind.__qualname__, packed, given, *beside]}
    fields = {name: each for name, each in packed.items() if name in names}
    others = {name: each for name, each in packed.items() if name not in names}
    return {"$model": [kind.__qualname__, fields, given, *beside, others, sorted(names - fields.keys())]}


_MODEL_STATE = (*PYDANTIC_STATE, PYDANTIC_FIELDS_SET)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _write_int(value: int) -> str:
    text = f"{value:x}"
    if len(text) > _MAX_DIGITS:
        raise Unencodable(f"an integer has more than {_MAX_DIGITS} hexadecimal digits")
    return text


def _write_clock(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, _write_zone(value.tzinfo)]


def _write_zone(zone: tzinfo | None) -> Any:
    """A time zone as plain data; None if there is none, or none that can be read back."""
    if zone is None:
        return None
    if zone is timezone.utc:  # noqa: UP017 - the object, by the name that the type has
        return 0
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        return [offset.days, offset.seconds, offset.microseconds, zone.tzname(None)]
    text_of = text_of_standard_value(type(zone))
    return None if text_of is None else text_of(zone)


RESULT_WRITERS: dict[type, Callable[[Any], Any]] = {
    str: lambda value: _base64(value.encode("utf-8", "surrogatepass")),
    int: _write_int,
    float: float.hex,
    complex: lambda value: [value.real.hex(), value.imag.hex()],
    bytes: _base64,
    bytearray: _base64,
    datetime: _write_clock,
    date: date.isoformat,
    time: _write_clock,
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
}


# Reading of results
#
# The data comes from files and servers: every reader takes what its writer wrote and fails on anything else.

_MAX_COLLISIONS = 16
"""Members of a set, or keys of a dict, that may share a hash by chance. More are a flood: each costs a comparison with
all before it."""

_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")


def unpack(data: Any, node: Node) -> Any:
    """Read what `pack` wrote, as far as the annotation allows it.

    Raises:
        Undecodable: for any other data, which may raise any other exception too.
    """
    kind = type(data)
    if kind is dict:
        if len(data) == 1:
            [(tag, content)] = data.items()
            if tag[:1] == "$":
                return _unpack_tag(tag, content, node)
        if node.key is not None and not all(node.key.allows(key, str) for key in data):
            raise _refused(str)  # keys of other types have a form of their own
        return _unpack_dict(data.keys(), data.values(), node)
    if kind is list:
        return [unpack(each, place) for each, place in zip(data, _places(node, list, data), strict=True)]
    if not node.allows(data, kind):
        raise _refused(kind)
    return data


def _refused(kind: type) -> Undecodable:
    return Undecodable(f"the return annotation does not allow a value of type {full_name(kind)} at its place")


def _places(node: Node, kind: type, members: Collection[Any]) -> Collection[Node]:
    """What may stand at each position of a list, tuple or set."""
    if kind in node.lists:
        if kind is tuple and node.fixed is not None:
            if len(node.fixed) != len(members):
                raise Undecodable(f"a tuple of {len(members)} where the return annotation has {len(node.fixed)}")
            return node.fixed
        return [node.item or ANYTHING] * len(members)
    if node.anything:
        return [ANYTHING] * len(members)
    raise _refused(kind)


def _unpack_dict(keys: Collection[Any], values: Collection[Any], node: Node, kind: type = dict) -> dict[Any, Any]:
    is_named = kind is dict and bool(node.dicts)
    if not (node.anything or is_named or kind in node.mappings):
        raise _refused(kind)
    if not is_named:
        place = node.value or ANYTHING
        return {key: unpack(each, place) for key, each in zip(keys, values, strict=True)}
    if node.value is None and not node.anything and not node.admits(keys):
        raise Undecodable("a dict lacks keys that its TypedDict requires")
    named = node.named_values
    if node.value is None:  # a TypedDict does not rule out keys that it does not name
        places = [named.get(key, ANYTHING) for key in keys]
    else:
        places = [named[key] | node.value if key in named else node.value for key in keys]
    return {key: unpack(each, place) for key, each, place in zip(keys, values, places, strict=True)}


def _unpack_tag(tag: str, content: Any, node: Node) -> Any:
    if tag in _LISTS_BY_TAG:
        kind = _LISTS_BY_TAG[tag]
        members = [unpack(each, place) for each, place in zip(content, _places(node, kind, content), strict=True)]
        return kind(members if kind is tuple else _distinct(members))
    if tag == "$dict":
        key_node = node.key or ANYTHING
        keys = _distinct([unpack(key, key_node) for key, _ in content])
        return _unpack_dict(keys, [each for _, each in content], node)
    if tag in _DICTS_BY_TAG:
        return _unpack_special_dict(_DICTS_BY_TAG[tag], content, node)
    if tag in _OBJECT_READERS:
        name, *parts = content
        record = node.record_named(name)
        if record is None:
            raise Undecodable("an object of a class that the return annotation does not name")
        return _OBJECT_READERS[tag](record, *parts)
    value = _READERS[tag[1:]](content)
    if not node.allows(value, type(value)):
        raise _refused(type(value))
    return value


def _unpack_special_dict(kind: Any, content: Any, node: Node) -> Any:
    factory: Any = None
    if kind is defaultdict:
        name, content = content
        factory = None if name is None else _FACTORIES[name]
    key_node = node.key or ANYTHING
    keys = _distinct([unpack(key, key_node) for key, _ in content])
    found = _unpack_dict(keys, [each for _, each in content], node, kind)
    return defaultdict(factory, found) if kind is defaultdict else kind(found)


def _distinct(members: list[Any]) -> list[Any]:
    """Members of a set or keys of a dict, unless they would make it slow, or it would lose some.

    Hashes of text are secret to a process; anyone can calculate those of numbers and tuples.
    """
    if len(members) - len(set(map(hash, members))) > _MAX_COLLISIONS:
        raise Undecodable("members of a set or keys of a dict are chosen to collide")
    if len(set(members)) != len(members):
        raise Undecodable("a set or a dict names a member twice")
    return members


def _read_enum(record: Record, name: Any, value: Any) -> Any:
    kind: Any = record.kind
    if not issubclass(kind, Enum):
        raise Undecodable("a member of a class that is no Enum")
    return kind(value) if name is None else kind[name]


def _read_object(record: Record, data: dict[str, Any]) -> Any:
    kind: Any = record.kind
    names = declared_names(kind)
    if names is None or data.keys() != set(names):
        others = sorted(data.keys() ^ set(names or ()))
        raise Undecodable(f"an object has other fields than its class {full_name(kind)} declares: {', '.join(others)}")
    values = {name: unpack(data[name], record.nodes.get(name, ANYTHING)) for name in names}
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values.values())
    if hasattr(kind, "__struct_fields__"):
        return kind(**values)
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _read_model(
    record: Record,
    data: dict[str, Any],
    fields_set: list[str],
    extra: Any,
    private: Any,
    attributes: Mapping[str, Any] = MappingProxyType({}),
    missing: Collection[str] = (),
) -> Any:
    """A model from its fields, and from what it had beside these and without some of these.

    Its class may have changed, as those of clients do with each version. A new field has its default, as if the server
    had not sent it; one that is gone is kept beside the fields if the class allows that.
    """
    kind: Any = record.kind
    names = kind.__pydantic_fields__.keys()
    added: dict[str, Any] = {}
    if missing or data.keys() != names:
        if not data.keys().isdisjoint(missing) or not names >= set(missing):
            raise Undecodable("a model lacks a field that it has, or that its class does not have")
        gone = data.keys() - names
        if gone:
            if kind.model_config.get("extra") != "allow":
                raise Undecodable(f"the class {full_name(kind)} does not have the field {min(gone)!r} any more")
            extra = {**(extra or {}), **{name: data[name] for name in gone}}
            data = {name: each for name, each in data.items() if name in names}
        for name in names - data.keys() - set(missing):
            field = kind.__pydantic_fields__[name]
            if field.is_required():
                raise Undecodable(f"the class {full_name(kind)} requires a field {name!r}, which it did not have")
            added[name] = field.get_default(call_default_factory=True)
    if not all(type(name) is str for name in fields_set):
        raise Undecodable("a name of a field is no text")
    if any(name in names or hasattr(kind, name) for name in attributes):
        raise Undecodable("an attribute of a model hides one of its class")
    nodes = record.nodes
    found = {name: unpack(each, nodes[name]) for name, each in data.items()} | added
    if attributes:
        found |= {name: unpack(each, ANYTHING) for name, each in attributes.items()}
    if extra is not None:
        extra = unpack(extra, record.nodes_beside.get("__pydantic_extra__", ANYTHING))
    if private is not None:
        private = {name: unpack(each, record.nodes_beside.get(name, ANYTHING)) for name, each in private.items()}
    made = kind.__new__(kind)
    # What pydantic itself restores a copy from; validators have seen these values when the model was made.
    made.__setstate__(
        {
            "__dict__": found,
            "__pydantic_fields_set__": set(fields_set),
            "__pydantic_extra__": extra,
            "__pydantic_private__": private,
        }
    )
    return made


def _read_bytes(data: Any) -> bytes:
    return base64.b64decode(data, validate=True)


def _read_int(data: Any) -> int:
    if len(data) > _MAX_DIGITS:
        raise ValueError("an integer is too large")
    return int(data, 16)


def _read_complex(data: Any) -> complex:
    real, imaginary = data
    return complex(float.fromhex(real), float.fromhex(imaginary))


def _read_timedelta(data: Any) -> timedelta:
    days, seconds, microseconds = data
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _read_clock(kind: Any, data: Any) -> Any:
    text, fold, zone = data
    return kind.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _read_zone(data: Any) -> tzinfo | None:
    if data is None:
        return None
    if data == 0:
        return timezone.utc  # noqa: UP017 - as above
    if isinstance(data, list):
        days, seconds, microseconds, name = data
        zone = timezone(timedelta(days, seconds, microseconds))
        return zone if zone.tzname(None) == name else timezone(timedelta(days, seconds, microseconds), name)
    if _ZONE_KEY.fullmatch(data) is None:
        raise ValueError("no name of a time zone")
    from zoneinfo import ZoneInfo

    return ZoneInfo(data)


def _read_standard(name: str, data: Any) -> Any:
    if not isinstance(data, str):
        raise TypeError("text is wanted")
    return standard_type(name)(data)


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda data: _read_bytes(data).decode("utf-8", "surrogatepass"),
    "int": _read_int,
    "float": float.fromhex,
    "complex": _read_complex,
    "bytes": _read_bytes,
    "bytearray": lambda data: bytearray(_read_bytes(data)),
    "datetime": partial(_read_clock, datetime),
    "date": date.fromisoformat,
    "time": partial(_read_clock, time),
    "timedelta": _read_timedelta,
    **{name: partial(_read_standard, name) for name in _READABLE},
}
"""Readers by tag. Any exception means that the data is bad."""

_OBJECT_READERS: dict[str, Callable[..., Any]] = {"$enum": _read_enum, "$model": _read_model, "$object": _read_object}


# JSON


def is_utf8(text: str) -> bool:
    """Whether a text is no text that was cut in the middle of a character: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


encode = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="sorted").encode
decode = msgspec.json.Decoder().decode


def exact_json(value: Any) -> tuple[bytes, Any] | None:
    """JSON of a value, and what is read from it; None if that is not the same value, types included.

    marshal refuses subclasses, in C, and JSON tells numbers apart, so what is equal then is of equal types. A walk in
    Python takes five times as long.
    """
    try:
        raw = encode(value)
        marshal.dumps(value, 4)
        read = decode(raw)
        return (raw, read) if value == read else None
    except Exception:  # noqa: BLE001 - whatever a value does when it is read, it is no plain JSON
        return None
