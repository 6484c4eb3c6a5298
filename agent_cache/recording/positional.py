"""Redacts fields that are written without their names: of named tuples, and of structs of msgspec written as lists."""

from __future__ import annotations

from typing import Any

import msgspec

from agent_cache.recording.redaction import Redaction
from agent_cache.values.annotations import is_positional
from agent_cache.values.canonical import MAX_DEPTH, declared_names

__all__ = ["without_secret_fields"]


def without_secret_fields(value: Any, redaction: Redaction, path: tuple[int, ...] = ()) -> Any:
    """The same value, with fields of secret names redacted where they are written by position: at the top, in lists,
    tuples and dicts, and in each other.

    Args:
        path: addresses of the containers around the value.
    """
    kind = type(value)
    if id(value) in path or len(path) > MAX_DEPTH:
        return value
    path = (*path, id(value))
    if kind is list or kind is tuple:
        members = [without_secret_fields(member, redaction, path) for member in value]
        is_same = all(one is other for one, other in zip(members, value, strict=True))
        return value if is_same else kind(members)
    if kind is dict:
        changed = {key: without_secret_fields(member, redaction, path) for key, member in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed
    if not is_positional(kind):
        return value
    changes = {}
    for name in declared_names(kind) or ():
        member = getattr(value, name)
        is_secret = redaction.is_secret(name)
        clean = _hidden(member, redaction) if is_secret else without_secret_fields(member, redaction, path)
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
