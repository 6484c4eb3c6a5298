"""What makes two calls the same call: a canonical, type-exact encoding of arguments.

`str` and `int` stand for themselves in a key. Everything else becomes *canonical bytes*: a tagged,
length-prefixed encoding in which two values are equal if and only if they have the same types and the same structure
(``1``, ``True`` and ``1.0`` differ, and so do ``[1]`` and ``(1,)``, ``0.0`` and ``-0.0``), while the order of dict and
set members does not count. `bytes` objects cache their hash and compare with `memcmp`, so a nested dict costs no more
to look up than a string does.

An object is encoded by the fields that its class *declares* (dataclass, NamedTuple, Enum, attrs, msgspec, pydantic),
never by `repr` and never by address. What declares nothing has no identity: `Uncacheable` is raised, and the caller
decides.
"""

from __future__ import annotations

import itertools
import marshal
import struct
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import cached_property
from re import Pattern
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

from agent_cache._core.standard import text_of_standard_value
from agent_cache.errors import UncacheableArgumentsError as Uncacheable

__all__ = [
    "ALIASES",
    "PLAIN",
    "Encoder",
    "Part",
    "Uncacheable",
    "canonical",
    "declared_fields",
    "key_part",
    "serial_of",
]

Part = Hashable
"""One component of a key: `str` or `int` as they are, or canonical `bytes`."""

PLAIN: frozenset[type] = frozenset({str, int})
"""The types that stand for themselves. `bytes` does not: it would be taken for canonical bytes; nor does None, which
says that a call has no key."""

MAX_DEPTH = 100
MAX_NODES = 100_000
"""Bounds of one argument. A list that contains itself twice has 2**depth nodes, so depth alone bounds nothing."""

_MAX_ALIASES = 4096
_MAX_ALIAS_BYTES = 4096

ALIASES: dict[bytes, bytes] = {}
"""`marshal` images (version 4) of containers seen before, and their canonical bytes. Bounded."""

_lock = threading.Lock()
_serials: dict[int, tuple[int, weakref.ref[Any]]] = {}
_next_serial = itertools.count(1)


def key_part(value: Any) -> Part:
    """Give the identity of one argument, as a key has it.

    A container that has been seen before is recognised by its `marshal` image (0.4 us, against 5 us for the
    encoding). Only trees of exact builtins are entered there, `bytes` not among them: a marshal image determines such
    a tree, but marshal writes whatever has a buffer as plain bytes.

    Raises:
        Uncacheable: if the value, or anything in it, declares no identity, is cyclic, or is larger than the bounds.
    """
    kind = type(value)
    if kind in PLAIN:
        return value  # type: ignore[no-any-return]
    if value is None:
        return b"N"
    if kind is bool:
        return b"T" if value else b"F"
    if kind is dict or kind is list or kind is tuple:
        try:
            # Version 4 refers back to objects already written: a cyclic or heavily shared value stays linear in size.
            image = marshal.dumps(value, 4)
        except ValueError:
            return canonical(value)
        known = ALIASES.get(image)
        return known if known is not None else _encode_and_remember(value, image)
    return canonical(value)


def canonical(value: Any) -> bytes:
    """Encode a value so that equal bytes mean equal type-exact structure, in this process.

    Raises:
        Uncacheable: as `key_part`.
    """
    return Encoder().encode(value)


def serial_of(value: Any) -> int:
    """Number an object for as long as it lives. A number is never used again, which an address is.

    Raises:
        Uncacheable: if the object cannot be referenced weakly.
    """
    found = _serials.get(id(value))
    if found is not None and found[1]() is value:
        return found[0]
    address = id(value)

    def forget(reference: weakref.ref[Any]) -> None:
        with _lock:
            entry = _serials.get(address)
            if entry is not None and entry[1] is reference:
                del _serials[address]

    try:
        reference = weakref.ref(value, forget)
    except TypeError:
        raise Uncacheable(
            f"an object of type {_name(type(value))} cannot be told apart from others of its type"
        ) from None
    with _lock:
        found = _serials.get(address)
        if found is not None and found[1]() is value:
            return found[0]
        serial = next(_next_serial)
        _serials[address] = (serial, reference)
    return serial


def _encode_and_remember(value: Any, image: bytes) -> bytes:
    encoder = Encoder()
    encoded = encoder.encode(value)
    if encoder.is_plain and len(image) <= _MAX_ALIAS_BYTES:
        with _lock:
            if len(ALIASES) >= _MAX_ALIASES:
                del ALIASES[next(iter(ALIASES))]
            ALIASES[image] = encoded
    return encoded


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _sized(tag: bytes, payload: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(payload), payload)  # every code is prefix-free, so codes may be joined


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode("utf-8", "surrogatepass"))


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


def _float(value: float) -> bytes:
    return b"f" + struct.pack(">d", value)


def _standard(kind: type, text: str | None) -> bytes:
    if text is None:
        raise Uncacheable(f"a value of type {_name(kind)} was made without the name it would be known by")
    return _text(b"$", f"{kind.__name__} {text}")


_CONTAINERS = (dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, deque)
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
    Pattern: lambda value: _sized(b"R", canonical((value.pattern, value.flags))),
    FunctionType: lambda value: b"L%d;" % serial_of(value),
    type: lambda value: b"Y%d;" % serial_of(value),
}
Encoder.leaves = _LEAVES
