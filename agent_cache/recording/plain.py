"""Arguments as plain data: what identifies a call and what a person reads. Never read back, so it never fails.

What JSON carries exactly stands for itself. The rest says what it is: ``{"$tuple": [1, 2]}``. An object is known by the
fields that its class declares, and one that declares none, such as a client or a connection, by its class alone: there
is no address in it, so it is the same in every run.
"""

from __future__ import annotations

import logging
import marshal
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from typing import Any

import msgspec

from agent_cache.values.canonical import declared_fields, text_of_standard_value

__all__ = ["decode", "encode", "encode_sorted", "exact_json", "plain_arguments"]

_LOG = logging.getLogger("agent_cache")

MAX_DEPTH = 100
MAX_PARTS = 100_000

encode = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="sorted").encode
decode = msgspec.json.Decoder().decode


def exact_json(value: Any) -> tuple[bytes, Any] | None:
    """The JSON of a value that comes back from it as it is, types and all, and what comes back; None if there is none.

    marshal refuses subclasses, in C, and JSON tells numbers apart, so what is equal then is of equal types. A walk in
    Python takes five times as long.
    """
    try:
        raw = encode(value)
        marshal.dumps(value, 4)
        read = decode(raw)
        return (raw, read) if value == read else None
    except Exception:  # noqa: BLE001 - whatever a value does when it is looked at, it is no plain JSON
        return None


def plain_arguments(arguments: Mapping[str, Any], *, is_identity: bool = True) -> tuple[dict[str, Any], bytes]:
    """Arguments by name as plain data, and the JSON of it. Where they identify the call, objects that are not told
    apart by what is in them are warned of, once a class.
    """
    exact = exact_json(arguments)
    if exact is not None and b'"$' not in exact[0]:  # a dict that looks like a tag is written as one
        return exact[1], exact[0]
    walk = _Walk(is_identity=is_identity)
    data = {name: walk.plain(value) for name, value in arguments.items()}
    return data, encode(data)


class _Walk:
    """One walk over the arguments of one call."""

    __slots__ = ("is_identity", "parts", "path")

    def __init__(self, *, is_identity: bool) -> None:
        self.is_identity = is_identity
        self.path: set[int] = set()
        self.parts = 0

    def plain(self, value: Any) -> Any:
        self.parts += 1
        kind = type(value)
        if value is None or kind is bool or kind is int:
            return value
        if kind is str:
            return _text(value)
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if id(value) in self.path or len(self.path) >= MAX_DEPTH or self.parts > MAX_PARTS:
            return _opaque(kind)
        self.path.add(id(value))
        try:
            return self._compound(value, kind)
        except Exception:  # noqa: BLE001 - reading somebody's fields may run anything
            return _opaque(kind)
        finally:
            self.path.discard(id(value))

    def _compound(self, value: Any, kind: type) -> Any:
        if kind is list:
            return [self.plain(member) for member in value]
        if kind is tuple:
            return {"$tuple": [self.plain(member) for member in value]}
        if kind is set or kind is frozenset:
            return {f"${kind.__name__}": sorted((self.plain(member) for member in value), key=encode_sorted)}
        if isinstance(value, bytes | bytearray | memoryview):
            return {f"${kind.__name__}": _bytes(bytes(value))}
        if isinstance(value, Enum):
            return {"$enum": [kind.__qualname__, value.name]}
        if isinstance(value, datetime | date | time):
            return {f"${kind.__name__}": value.isoformat()}
        if isinstance(value, timedelta):
            return {"$timedelta": [value.days, value.seconds, value.microseconds]}
        if isinstance(value, timezone):
            return {"$timezone": str(value)}
        text_of = text_of_standard_value(kind)
        if text_of is not None:
            return {f"${kind.__name__}": text_of(value)}
        declared = declared_fields(value, kind)
        if declared is not None:
            return {"$object": [kind.__qualname__, {name: self.plain(member) for name, member in declared}]}
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, str):
            return _text(str(value))
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return self.plain(float(value))
        if isinstance(value, list | tuple):
            return [self.plain(member) for member in value]
        if callable(value) and hasattr(value, "__qualname__"):
            return {"$function": f"{value.__module__}:{value.__qualname__}"}
        if self.is_identity and getattr(value, "__dict__", None):
            _warn(kind)
        return _opaque(kind)

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        pairs = [[self.plain(key), self.plain(member)] for key, member in value.items()]
        if all(type(key) is str for key, _ in pairs) and not (len(pairs) == 1 and pairs[0][0][:1] == "$"):
            return dict(pairs)
        return {"$dict": sorted(pairs, key=encode_sorted)}


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: text that was cut in the middle of a character
        return {"$str": value.encode("utf-8", "backslashreplace").decode()}
    return value


def _bytes(value: bytes) -> str:
    """As text where it is text, so that secrets in it are found."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "hex:" + value.hex()


_warned: set[type] = set()


def _warn(kind: type) -> None:
    if kind not in _warned and len(_warned) < 1000:
        _warned.add(kind)
        _LOG.warning(
            "recording: an argument of type %s.%s is known by its class alone, so a call with another one is the same "
            "call; make it a dataclass, pass what tells them apart, or name that by cache_key=",
            kind.__module__,
            kind.__qualname__,
        )


def _opaque(kind: type) -> dict[str, str]:
    return {"$opaque": f"{kind.__module__}.{kind.__qualname__}"}
