"""Values whose fields have names that are not written: named tuples, and structs of msgspec written as lists."""

from __future__ import annotations

from typing import Any

import msgspec

from agent_cache.recording.redaction import Redaction

__all__ = ["without_secret_fields"]

_MAX_DEPTH = 100


def without_secret_fields(value: Any, redaction: Redaction) -> Any:
    """The same value with fields of telling names redacted where they are written by position: at the top, in lists,
    tuples and dicts, and in each other.
    """
    return _clean(value, redaction, ())


def _clean(value: Any, redaction: Redaction, path: tuple[int, ...]) -> Any:
    kind = type(value)
    if id(value) in path or len(path) > _MAX_DEPTH:
        return value
    path = (*path, id(value))
    if kind is list or kind is tuple:
        members = [_clean(member, redaction, path) for member in value]
        is_same = all(one is other for one, other in zip(members, value, strict=True))
        return value if is_same else kind(members)
    if kind is dict:
        changed = {key: _clean(member, redaction, path) for key, member in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    elif issubclass(kind, msgspec.Struct) and kind.__struct_config__.array_like:
        names = kind.__struct_fields__
    else:
        return value
    changes = {}
    for name in names:
        member = getattr(value, name)
        clean = _hidden(member, redaction) if redaction.is_secret(name) else _clean(member, redaction, path)
        if clean is not member:
            changes[name] = clean
    if not changes:
        return value
    return msgspec.structs.replace(value, **changes) if issubclass(kind, msgspec.Struct) else value._replace(**changes)


def _hidden(value: Any, redaction: Redaction) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int or kind is float:
        return kind(0)
    return redaction.replacement.encode() if kind is bytes else redaction.replacement
