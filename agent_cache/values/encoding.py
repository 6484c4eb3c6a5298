"""How a value is written as canonical bytes: type-exact, and equal for equal values only.

The encoding is tagged and length-prefixed. Two values have equal bytes if and only if they have the same types and the
same structure (``1``, ``True`` and ``1.0`` differ, and so do ``[1]`` and ``(1,)``, ``0.0`` and ``-0.0``), while the
order of dict and set members does not count.

An object is encoded by the fields that its class *declares* (dataclass, NamedTuple, Enum, attrs, msgspec, pydantic),
never by `repr` and never by address. What declares nothing has no identity: `Uncacheable` is raised, and the caller
decides.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from re import Pattern
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, Final

from agent_cache.values.fields import declared_fields
from agent_cache.values.serials import serial_of
from agent_cache.values.standard import text_of_standard_value
from agent_cache.errors import UncacheableArgumentsError as Uncacheable

__all__ = ["MISSING", "Encoder", "Missing", "canonical"]

class Missing(Enum):
    """The type of `MISSING`, so that type checkers can tell it from every value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""Nothing was found. Not None: None is a value like any other, and is cached."""


MAX_DEPTH = 100
MAX_NODES = 100_000
"""Bounds of one argument. A list that contains itself twice has 2**depth nodes, so depth alone bounds nothing."""


class Encoder:
    """One walk over one value. Classes are written by serial, so two classes of one name never meet.

    What is to be compared outside this process overrides `leaves` and `class_code`.
    """

    __slots__ = ("depth", "is_plain", "nodes", "path")

    leaves: ClassVar[Mapping[type, Callable[[Any], bytes]]]
    """How values of exactly these types are written."""

    def __init__(self) -> None:
        self.depth = 0
        self.nodes = 0
        self.is_plain = True
        self.path: set[int] = set()

    def encode(self, value: Any) -> bytes:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise Uncacheable(f"an argument has more than {MAX_NODES} parts")
        kind = type(value)
        if kind not in _PLAIN_TREE:
            self.is_plain = False
        leaf = self.leaves.get(kind)
        if leaf is not None:
            return leaf(value)
        text_of = text_of_standard_value(kind)
        if text_of is not None:
            return _standard(kind, text_of(value))
        if id(value) in self.path:
            raise Uncacheable(f"an argument of type {_name(type(value))} contains itself")
        if self.depth >= MAX_DEPTH:
            raise Uncacheable(f"an argument is nested more than {MAX_DEPTH} levels deep")
        self.path.add(id(value))
        self.depth += 1
        try:
            return self._compound(value, kind)
        except Uncacheable:
            raise
        except RecursionError:
            raise Uncacheable("an argument is nested too deeply for the stack that is left") from None
        except Exception as error:  # reading somebody's fields may run anything
            raise Uncacheable(f"reading a value of type {_name(kind)} raised {type(error).__name__}") from error
        finally:
            self.depth -= 1
            self.path.discard(id(value))

    def _compound(self, value: Any, kind: type) -> bytes:
        if kind is dict:
            return self._unordered(b"{", self._pairs(value.items()))
        if kind is list:
            return self._ordered(b"[", map(self.encode, value))
        if kind is tuple:
            return self._ordered(b"(", map(self.encode, value))
        if kind is set:
            return self._unordered(b"<", map(self.encode, value))
        if kind is frozenset:
            return self._unordered(b"=", map(self.encode, value))
        if kind is OrderedDict:
            return self._ordered(b"O", self._pairs(value.items()))
        if kind is deque:
            return self._ordered(b"q", [self.encode(value.maxlen), *map(self.encode, value)])
        if kind is MappingProxyType:
            return self._unordered(b"m", self._pairs(value.items()))
        if kind is SimpleNamespace:
            return self._unordered(b"v", self._pairs(vars(value).items()))
        if kind is slice:
            return self._ordered(b":", map(self.encode, (value.start, value.stop, value.step)))
        if kind is datetime or kind is time:
            zone = value.tzinfo
            naive = value.replace(tzinfo=None).isoformat()
            return self._ordered(b"D" if kind is datetime else b"t", map(self.encode, (naive, value.fold, zone)))
        return self._declared(value, kind)

    def _declared(self, value: Any, kind: type) -> bytes:
        if isinstance(value, type):
            return b"Y%b;" % self.class_code(value)
        declared = declared_fields(value, kind)
        if declared is None:
            raise Uncacheable(
                f"a value of type {_name(kind)} declares no fields to be known by, as a dataclass, NamedTuple, Enum, "
                "attrs, msgspec or pydantic class does, or has state beside them"
            )
        return self._ordered(b"o", [self.class_code(kind), *self._pairs(declared)])

    def class_code(self, kind: type) -> bytes:
        """What stands for a class."""
        return b"%d" % serial_of(kind)

    def _pairs(self, items: Iterable[tuple[Any, Any]]) -> list[bytes]:
        return [self.encode(key) + self.encode(item) for key, item in items]

    @staticmethod
    def _ordered(tag: bytes, parts: Iterable[bytes]) -> bytes:
        return _sized(tag, b"".join(parts))

    @staticmethod
    def _unordered(tag: bytes, parts: Iterable[bytes]) -> bytes:
        return _sized(tag, b"".join(sorted(parts)))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _sized(tag: bytes, payload: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(payload), payload)  # every code is prefix-free, so codes may be joined


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode("utf-8", "surrogatepass"))


def _float(value: float) -> bytes:
    return b"f" + struct.pack(">d", value)


def _standard(kind: type, text: str | None) -> bytes:
    if text is None:
        raise Uncacheable(f"a value of type {_name(kind)} was made without the name it would be known by")
    return _text(b"$", f"{kind.__name__} {text}")


_PLAIN_TREE = frozenset({str, int, float, bool, type(None), complex, dict, list, tuple, set, frozenset})

_LEAVES: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: _sized(b"i", b"%x" % value),
    float: _float,
    complex: lambda value: b"c" + _float(value.real) + _float(value.imag),
    str: lambda value: _text(b"s", value),
    bytes: lambda value: _sized(b"b", value),
    bytearray: lambda value: _sized(b"B", bytes(value)),
    type(Ellipsis): lambda _: b".",
    range: lambda value: _text(b"r", f"{value.start},{value.stop},{value.step}"),
    date: lambda value: _text(b"d", value.isoformat()),
    timedelta: lambda value: _text(b"P", f"{value.days},{value.seconds},{value.microseconds}"),
    timezone: lambda value: _text(b"Z", repr(value)),
    Pattern: lambda value: _sized(b"R", Encoder().encode((value.pattern, value.flags))),
    FunctionType: lambda value: b"L%d;" % serial_of(value),
    type: lambda value: b"Y%d;" % serial_of(value),
}
Encoder.leaves = _LEAVES


def canonical(value: Any) -> bytes:
    """Encode a value so that equal bytes mean equal type-exact structure, in this process.

    Raises:
        Uncacheable: as `key_part`.
    """
    return Encoder().encode(value)
