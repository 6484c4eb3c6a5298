"""A form of plain data in which builtin values say what they are, so that they come back as that wherever they stand.

``null``, booleans, text, numbers, lists and dicts with text for keys stand for themselves. Everything else is a dict
with one key, its tag: ``{"$tuple": [1, 2]}``, ``{"$datetime": ["2026-01-01T00:00:00", 0, null]}``. A dict that happens
to look so is written as ``{"$dict": [[key, value]]}``. Objects are ``{"$object": [name of the class, fields]}``; the
name only chooses among the classes that the annotation allows at that place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

from agent_cache.values.canonical import declared_fields
from agent_cache.values.failures import Undecodable, Unencodable
from agent_cache.values.leaves import READERS, written
from agent_cache.values.nodes import ANYTHING, Node, Record
from agent_cache.values.parts import declared_names, is_model

__all__ = ["pack", "unpack"]

_LISTS: dict[type, str] = {list: "", tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_LISTS_BY_TAG: dict[str, Any] = {tag: kind for kind, tag in _LISTS.items() if tag}
_PYDANTIC = ("__pydantic_extra__", "__pydantic_private__")
_MAX_COLLISIONS = 16
"""Members of a set, or keys of a dict, that may share a hash by chance. More are a flood: each costs a comparison with
all before it."""


def pack(value: Any, node: Node) -> Any:
    """Write a value as plain data that JSON carries exactly.

    Raises:
        Unencodable: if its type is not known here or not allowed by the annotation.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is int or kind is float:
        if not node.allows(value, kind):
            raise _refused(kind)
        return value if _stands_for_itself(value, kind) else _tagged(written(value, kind), kind)
    if kind in _LISTS:
        data = [pack(each, place) for each, place in zip(value, _places(node, kind, value), strict=True)]
        return data if kind is list else {_LISTS[kind]: data}
    if kind is dict:
        return _pack_dict(value, node)
    record = node.record_of(kind)
    if record is not None:
        return _pack_record(value, kind, record)
    if not node.allows(value, kind):
        raise _refused(kind)
    return _tagged(written(value, kind), kind)


def unpack(data: Any, node: Node) -> Any:
    """Read what `pack` wrote for the same annotation.

    Raises:
        Undecodable: if it is anything else; data that no encoder wrote may raise any other exception too.
    """
    kind = type(data)
    if kind is dict:
        if len(data) == 1:
            [(tag, content)] = data.items()
            if tag[:1] == "$":
                return _unpack_tag(tag, content, node)
        if node.key is not None and not all(node.key.allows(key, str) for key in data):
            raise _refused(str, Undecodable)  # keys of other types have a form of their own
        return _unpack_dict(data.keys(), data.values(), node)
    if kind is list:
        return [unpack(each, place) for each, place in zip(data, _places(node, list, data), strict=True)]
    if not node.allows(data, kind):
        raise _refused(kind, Undecodable)
    return data


def _stands_for_itself(value: Any, kind: type) -> bool:
    if kind is str:
        if value.isascii():
            return True
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair: text that was cut in the middle of a character
            return False
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    return kind is not float or math.isfinite(value)


def _tagged(found: tuple[str, Any] | None, kind: type) -> dict[str, Any]:
    if found is None:
        raise _refused(kind)
    return {f"${found[0]}": found[1]}


def _refused(kind: type, error: type[Exception] = Unencodable) -> Exception:
    return error(f"a value of type {kind.__module__}.{kind.__qualname__} is not what the return annotation says there")


def _places(node: Node, kind: type, members: Collection[Any]) -> Collection[Node]:
    """What may stand at each position of a list, tuple or set."""
    if kind in node.lists:
        if kind is tuple and node.fixed is not None:
            if len(node.fixed) != len(members):
                raise Unencodable(f"a tuple of {len(members)} where the return annotation says {len(node.fixed)}")
            return node.fixed
        return [node.item or ANYTHING] * len(members)
    if node.anything:
        return [ANYTHING] * len(members)
    raise _refused(kind)


def _pack_dict(value: dict[Any, Any], node: Node) -> Any:
    key_node = node.key or ANYTHING
    keys = [pack(key, key_node) for key in value]
    packed = [pack(each, place) for each, place in zip(value.values(), _values(node, value), strict=True)]
    if all(type(key) is str for key in keys) and not (len(keys) == 1 and keys[0][:1] == "$"):
        return dict(zip(keys, packed, strict=True))
    return {"$dict": [[key, each] for key, each in zip(keys, packed, strict=True)]}


def _unpack_dict(keys: Collection[Any], values: Collection[Any], node: Node) -> dict[Any, Any]:
    return {key: unpack(each, place) for key, each, place in zip(keys, values, _values(node, keys), strict=True)}


def _values(node: Node, keys: Collection[Any]) -> Collection[Node]:
    """What may stand under each key of a dict. A TypedDict does not rule out keys that it does not name."""
    if node.fields is None:
        if node.value is None and not node.anything:
            raise _refused(dict)
        return [node.value or ANYTHING] * len(keys)
    nodes = node.fields.nodes
    if node.value is not None:
        return [nodes[key] | node.value if key in nodes else node.value for key in keys]
    if not node.anything and not node.fields.admits(keys):
        raise Unencodable("a dict lacks keys that its TypedDict requires")
    return [nodes.get(key, ANYTHING) for key in keys]


def _pack_record(value: Any, kind: Any, record: Record) -> Any:
    if isinstance(value, Enum):
        if value._name_ in kind.__members__:
            return {"$enum": [kind.__qualname__, value._name_, None]}
        return {"$enum": [kind.__qualname__, None, value._value_]}  # several flags, or none
    declared = declared_fields(value, kind)
    if declared is None:
        raise Unencodable(
            f"a value of type {kind.__module__}.{kind.__qualname__} declares no fields to be written by, as a "
            "dataclass, NamedTuple, TypedDict, msgspec or pydantic class does, or has state beside them"
        )
    nodes = record.nodes
    packed = {name: pack(each, nodes.get(name, ANYTHING)) for name, each in declared if name not in _PYDANTIC}
    if not is_model(kind):
        return {"$object": [kind.__qualname__, packed]}
    beside = [pack(getattr(value, name, None), ANYTHING) for name in _PYDANTIC]
    return {"$model": [kind.__qualname__, packed, sorted(value.__pydantic_fields_set__), *beside]}


def _unpack_tag(tag: str, content: Any, node: Node) -> Any:
    if tag in _LISTS_BY_TAG:
        kind = _LISTS_BY_TAG[tag]
        members = [unpack(each, place) for each, place in zip(content, _places(node, kind, content), strict=True)]
        return kind(members if kind is tuple else _distinct(members))
    if tag == "$dict":
        key_node = node.key or ANYTHING
        keys = _distinct([unpack(key, key_node) for key, _ in content])
        return _unpack_dict(keys, [each for _, each in content], node)
    if tag in _RECORDS:
        name, *parts = content
        record = node.record_named(name)
        if record is None:
            raise Undecodable("an object of a class that the return annotation does not name")
        return _RECORDS[tag](record, *parts)
    value = READERS[tag[1:]](content)
    if not node.allows(value, type(value)):
        raise _refused(type(value), Undecodable)
    return value


def _distinct(members: list[Any]) -> list[Any]:
    """Members of a set or keys of a dict, if it is not made to be slow, or to lose some.

    Hashes of text are secret to a process; those of numbers and tuples are anybody's to calculate.
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
        raise Undecodable("an object has other fields than its class declares")
    values = {name: unpack(data[name], record.nodes.get(name, ANYTHING)) for name in names}
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values.values())
    if hasattr(kind, "__struct_fields__"):
        return kind(**values)
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _read_model(record: Record, data: dict[str, Any], fields_set: list[str], extra: Any, private: Any) -> Any:
    kind: Any = record.kind
    if data.keys() != kind.__pydantic_fields__.keys() or not all(type(name) is str for name in fields_set):
        raise Undecodable("a model has other fields than its class declares")
    made = kind.__new__(kind)
    # What pydantic itself restores a copy from; validators have seen these values when the model was made.
    made.__setstate__(
        {
            "__dict__": {name: unpack(each, record.nodes[name]) for name, each in data.items()},
            "__pydantic_fields_set__": set(fields_set),
            "__pydantic_extra__": unpack(extra, ANYTHING),
            "__pydantic_private__": unpack(private, ANYTHING),
        }
    )
    return made


_RECORDS: dict[str, Callable[..., Any]] = {"$enum": _read_enum, "$model": _read_model, "$object": _read_object}
