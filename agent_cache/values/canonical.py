"""Value types of the standard library that are recognised without being imported.

A value of one of them can only be there if its module has been loaded, so nobody pays for `decimal` or `ipaddress`
(12 ms in all) who does not use them.
"""

from __future__ import annotations

import itertools
import os
import struct
import sys
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
from typing import Any, ClassVar, Final

from agent_cache.errors import UncacheableArgumentsError as Uncacheable

__all__ = [
    "Encoder",
    "MISSING",
    "Missing",
    "canonical",
    "declared_fields",
    "is_large",
    "make_room",
    "serial_of",
    "size_of",
    "text_of_standard_value",
]


_PATHS = ("PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath")
_NAMES: dict[str, tuple[str, ...]] = {
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "ipaddress": ("IPv4Address", "IPv4Network", "IPv6Address", "IPv6Network"),
    "pathlib": _PATHS,
    "pathlib._local": _PATHS,  # where Python 3.13 has them
    "uuid": ("UUID",),
    "zoneinfo": ("ZoneInfo",),
}

_found: dict[type, Callable[[Any], str | None]] = {}


def text_of_standard_value(kind: type) -> Callable[[Any], str | None] | None:
    """How values of an immutable standard type are told apart from each other as text; None if it is no such type.

    The function gives None for a value without identity. A class of the user's own that bears such a name is no such
    type.
    """
    known = _found.get(kind)
    if known is not None:
        return known
    module, name = kind.__module__, kind.__name__
    if name not in _NAMES.get(module, ()) or getattr(sys.modules.get(module), name, None) is not kind:
        return None
    text = _TEXTS.get(name, str)
    _found[kind] = text
    return text


def _text_of_ipv6_address(address: Any) -> str:
    """As every Python before 3.13 writes it. Since then an IPv4-mapped one ends in dots, ``::ffff:1.2.3.4``, and two
    processes of different versions would not agree on a digest.
    """
    number = int(address)
    if number >> 32 != 0xFFFF:
        return str(address)
    scope = "" if address.scope_id is None else f"%{address.scope_id}"
    return f"::ffff:{number >> 16 & 0xFFFF:x}:{number & 0xFFFF:x}{scope}"


def _text_of_ipv6_network(network: Any) -> str:
    return f"{_text_of_ipv6_address(network.network_address)}/{network.prefixlen}"


_TEXTS: dict[str, Callable[[Any], str | None]] = {
    "IPv6Address": _text_of_ipv6_address,
    "IPv6Network": _text_of_ipv6_network,
    "ZoneInfo": lambda zone: zone.key,
}
"""Where `str` does not give it."""


# Which fields an object is known by: those that its class declares, as dataclasses, NamedTuples, Enums, attrs, msgspec
# and pydantic classes do.


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


# Which object it is, where nothing else tells: a number of its own for as long as it lives.


_lock = threading.RLock()  # re-entrant: a collection that starts inside forgets other objects
_serials: dict[int, tuple[int, weakref.ref[Any]]] = {}
_next_serial = itertools.count(1)


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
        kind = type(value)
        raise Uncacheable(
            f"an object of type {kind.__module__}.{kind.__qualname__} cannot be told apart from others of its type"
        ) from None
    with _lock:
        found = _serials.get(address)
        if found is not None and found[1]() is value:
            return found[0]
        serial = next(_next_serial)
        _serials[address] = (serial, reference)
    return serial


def _after_fork() -> None:
    """In the child: another thread of the parent's may have had the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


# How a value is written as canonical bytes: type-exact, and equal for equal values only.
#
# The encoding is tagged and length-prefixed. Two values have equal bytes if and only if they have the same types and
# the same structure (``1``, ``True`` and ``1.0`` differ, and so do ``[1]`` and ``(1,)``, ``0.0`` and ``-0.0``), while
# the order of dict and set members does not count.
#
# An object is encoded by the fields that its class *declares* (dataclass, NamedTuple, Enum, attrs, msgspec, pydantic),
# never by `repr` and never by address. What declares nothing has no identity: `Uncacheable` is raised, and the caller
# decides.


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


# An estimate of what a value takes in memory, for `configure(max_bytes=...)`.


_MAX_NODES = 10_000
_OVERHEAD = 250
"""Entry, mapping slot and LRU link, as measured with tracemalloc (benchmarks/budgets.py)."""


_MAX_KEY = 2_000
"""Bytes of a key that is remembered beyond its entry."""


def is_large(key: Hashable) -> bool:
    """Whether a key is not to be kept: tables are bounded by number, and a key holds the arguments of its call."""
    return (sys.getsizeof(key) if type(key) in (str, int) else size_of(key)) > _MAX_KEY


def size_of(value: Any) -> int:
    """Bytes that a value and all it contains take, each object once. What lies beyond 10,000 objects is
    extrapolated.
    """
    total, seen, pending = _OVERHEAD, set[int](), [value]
    leaves = leaf_bytes = 0
    while pending and len(seen) < _MAX_NODES:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        try:
            size, members = sys.getsizeof(one, 64), _members(one)
        except Exception:  # noqa: BLE001 - somebody's attribute; an estimate goes on without it
            size, members = 64, []
        total += size
        pending += members
        if not members:
            leaves += 1
            leaf_bytes += size
    return total + leaf_bytes * len(pending) // max(leaves, 1)


def _members(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return [*one, *one.values()]
    if isinstance(one, list | tuple | set | frozenset):
        return list(one)
    if isinstance(one, str | bytes | int | float | bool | type(None)):
        return []
    slots = getattr(type(one), "__slots__", ())
    named = (slots,) if isinstance(slots, str) else slots
    return [*getattr(one, "__dict__", {}).values(), *(getattr(one, name, None) for name in named)]


# Dicts that are bounded by number. Dicts alone, so that any thread may read and write them.


def make_room(table: dict[Any, Any], limit: int) -> bool:
    """Let the oldest go. Whether one had to."""
    had_to = False
    while len(table) >= limit:
        try:
            table.pop(next(iter(table)), None)
        except (RuntimeError, StopIteration):  # another thread was at it
            break
        had_to = True
    return had_to
