"""Identity of values: canonical bytes for keys, digests that a fleet agrees on, and estimates of size.

The encoding is tagged and length-prefixed. Two values have equal bytes if and only if they have the same types and the
same structure: ``1``, ``True`` and ``1.0`` differ, and so do ``[1]`` and ``(1,)``, ``0.0`` and ``-0.0``. The order of
dict and set members does not count. An object is encoded by the fields that its class *declares* (dataclass,
NamedTuple, Enum, attrs, msgspec, pydantic), never by `repr` or address. A value whose class declares none has no
identity.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import struct
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum, Flag
from functools import partial
from importlib.machinery import SourceFileLoader
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from agent_cache.errors import UncacheableArgumentsError as Uncacheable

if TYPE_CHECKING:
    import hashlib

__all__ = [
    "MAX_DEPTH", "MISSING", "PYDANTIC_FIELDS_SET", "PYDANTIC_STATE", "STANDARD", "Encoder", "StableEncoder",
    "attributes_of", "blake2b", "by_object", "canonical", "declared_fields", "declared_names", "forget_oldest",
    "full_name", "has_native_state", "has_no_content", "is_member", "is_model", "is_sentinel", "lasting_digest",
    "segment_digest", "serial_of", "size_of", "text_of_standard_value",
]  # fmt: skip

T = TypeVar("T")


class _Missing(Enum):
    """The type of `MISSING`, so that type checkers can tell it from every value."""

    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""Nothing was found. Not None: None is a value like any other, and is cached."""

MAX_DEPTH = 100
"""Levels of nesting that any walk over values follows."""


def full_name(kind: type) -> str:
    """Module and qualified name of a class, for messages."""
    return f"{kind.__module__}.{kind.__qualname__}"


def by_object(says: Callable[[Any], T]) -> Callable[[Any], T]:
    """Remember what a function says of an object. `lru_cache` would keep a class alive, and the tools in it."""
    known: dict[int, tuple[T, weakref.ref[Any]]] = {}

    def of(value: Any) -> T:
        found = known.get(id(value))
        if found is None or found[1]() is not value:
            found = known[id(value)] = says(value), weakref.ref(value, partial(_forget, known, id(value)))
        return found[0]

    return of


# Immutable types by name, and the module of each, which is loaded wherever a value of them is

STANDARD: Final[dict[str, str]] = {
    **dict.fromkeys(("IPv4Address", "IPv4Network", "IPv6Address", "IPv6Network"), "ipaddress"),
    **dict.fromkeys(("PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"), "pathlib"),
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
    "ZoneInfo": "zoneinfo",
    **dict.fromkeys(("AnyHttpUrl", "AnyUrl", "FileUrl", "FtpUrl", "HttpUrl", "WebsocketUrl"), "pydantic.networks"),
}


@by_object
def text_of_standard_value(kind: Any) -> Callable[[Any], str | None] | None:
    """Function that gives the text by which values of an immutable standard type differ; None for any other type.

    The function gives None for a value without identity.
    """
    module, name = kind.__module__, kind.__name__
    home = STANDARD.get(name)
    is_at_home = home is not None and module in (home, f"{home}._local")  # Python 3.13 has paths in pathlib._local
    if not is_at_home or getattr(sys.modules.get(module), name, None) is not kind:  # a class of the user's own
        return None
    return attrgetter("key") if name == "ZoneInfo" else str


# Fields that a class declares

PYDANTIC_STATE = ("__pydantic_extra__", "__pydantic_private__")
"""Attributes of a pydantic model that hold what its class does not declare."""

PYDANTIC_FIELDS_SET = "__pydantic_fields_set__"
"""Attribute of a pydantic model: the names of the fields that were given, and not left at their defaults."""

_CONTAINERS = (dict, list, set, frozenset, str, bytes, bytearray, int, float, complex, Enum)


def is_model(kind: Any) -> bool:
    """Whether a class is a pydantic model. A dataclass of pydantic's is a dataclass."""
    return hasattr(kind, "__pydantic_fields__") and not is_dataclass(kind)


def declared_names(kind: Any) -> tuple[str, ...] | None:
    """Names of the fields that a NamedTuple, dataclass, msgspec or attrs class declares; None for any other class."""
    if issubclass(kind, tuple):
        return tuple(kind._fields) if hasattr(kind, "_fields") else None
    if issubclass(kind, _CONTAINERS):
        return None
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    return getattr(kind, "__struct_fields__", None)


def is_member(value: Any, kind: Any) -> bool:
    """Whether this is a member that its Enum names. Two that `_missing_` has made can share name and value."""
    return value is kind.__members__.get(value._name_)


def declared_fields(value: Any, kind: type) -> list[tuple[str, Any]] | None:
    """Name and value of everything that the class of a value declares.

    None if it declares nothing, or if the value has state beside what is declared: the fields alone would be a guess
    then. A model of pydantic's has all its attributes here: clients of model providers set some that no field declares,
    and make models whose required fields are missing. Reading fields of any class may raise anything.
    """
    if issubclass(kind, Enum):
        if value._name_ is None:
            return [("", value._value_)]
        return [("name", value._name_)] if issubclass(kind, Flag) or is_member(value, kind) else None
    layout = _layouts.get(kind) or _layout_of(kind)
    if layout is None:
        return None
    names, read, hidden = layout
    if hidden and _slots_set(value, hidden):
        return None
    if read is None:
        return _fields_of_model(value, kind)
    if any(name not in names and not _is_computed(kind, name) for name in getattr(value, "__dict__", ())):
        return None
    return list(zip(names, read(value), strict=True))


def _fields_of_model(value: Any, kind: Any) -> list[tuple[str, Any]]:
    attributes, names = value.__dict__, kind.__pydantic_fields__  # read anew: a model can be rebuilt
    found = [(name, attributes[name]) for name in names if name in attributes]
    if len(attributes) > len(found):
        found += [(one, attributes[one]) for one in sorted(attributes.keys() - names) if not _is_computed(kind, one)]
    found += [(name, state) for name in PYDANTIC_STATE if (state := getattr(value, name, None))]
    given = value.__pydantic_fields_set__
    if given != {*names, *(value.__pydantic_extra__ or ())}:  # where all were given, the fields alone tell it
        found.append((PYDANTIC_FIELDS_SET, sorted(given)))
    return found


def _is_computed(kind: type, name: str) -> bool:
    """Whether an attribute of an object holds what was computed from its fields, by a cached property."""
    return isinstance(getattr(kind, name, None), functools.cached_property)


def has_native_state(kind: type) -> bool:
    """Whether a base that is written in C keeps state which no field declares, as those of a `datetime` do."""
    return any(
        # Of three bits of `type.__flags__` a class statement sets the last alone; `copyreg` knows its classes by that.
        (base.__flags__ & 0b111 << 7 != 1 << 9 or getattr(vars(base).get("__new__"), "__self__", 0) is base)
        and base is not tuple
        and base.__basicsize__ > object.__basicsize__
        for base in kind.__mro__
    )


def _slots_beside(kind: type, names: Container[str]) -> tuple[types.MemberDescriptorType, ...]:
    """The slots of a class and its bases that hold none of these fields."""
    return tuple(
        slot
        for base in kind.__mro__
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
        if name not in names or getattr(kind, name, None) is not slot
    )


def _slots_set(value: Any, slots: Iterable[types.MemberDescriptorType]) -> dict[str, Any]:
    found = {}
    for slot in slots:
        with contextlib.suppress(AttributeError):
            found[slot.__name__] = slot.__get__(value)
    return found


_layouts: weakref.WeakKeyDictionary[type, tuple[Any, Any, Any]] = weakref.WeakKeyDictionary()


def _layout_of(kind: type) -> tuple[Any, Any, Any] | None:
    """The fields of a class, how to read them, None for a model, and its slots beside them."""
    names = declared_names(kind)
    read: Callable[[Any], Iterable[Any]] | None = None
    if names is None:
        if not is_model(kind) or issubclass(kind, (*_CONTAINERS, tuple)):
            return None  # not remembered: a decorator may be about to make it a dataclass
        names = (*PYDANTIC_STATE, PYDANTIC_FIELDS_SET)
    elif issubclass(kind, tuple):
        read = tuple.__iter__
    else:
        read = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]
    if has_native_state(kind):
        return None
    layout = _layouts[kind] = (names, read, _slots_beside(kind, names))
    return layout


def attributes_of(value: Any) -> dict[str, Any]:
    """Name and value of every attribute that an object has; empty for a class and a module."""
    kind = type(value)
    if isinstance(value, type | types.ModuleType):
        return {}
    if is_model(kind):
        return dict(value.__dict__) | {k: v for name in PYDANTIC_STATE for k, v in (getattr(value, name) or {}).items()}
    names, has_slots = _attributes_in(kind)
    slots = [one for one in _slots_beside(kind, names) if "__slots__" in vars(one.__objclass__)] if has_slots else ()
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return found | getattr(value, "__dict__", {}) | _slots_set(value, slots)


@by_object
def _attributes_in(kind: Any) -> tuple[tuple[str, ...], bool]:
    """The fields that a class declares, and whether it has slots of classes of Python's."""
    return declared_names(kind) or (), any("__slots__" in vars(base) for base in kind.__mro__)


@by_object
def has_no_content(kind: Any) -> bool:
    """Whether the objects of a class are known by nothing that they contain: it is no collection, and has no fields."""
    is_content = issubclass(kind, (*_CONTAINERS, tuple, type)) or hasattr(kind, "__pydantic_fields__")
    return not is_content and declared_names(kind) is None


def is_sentinel(value: Any) -> bool:
    """Whether an object is known by no content, and has no attributes but names."""
    kind: Any = type(value)
    is_bare = has_no_content(kind) and not has_native_state(kind)
    return is_bare and all(type(one) is str for one in attributes_of(value).values())


# Serial numbers: the identity of an object for as long as it lives

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
    try:
        reference = weakref.ref(value, partial(_forget, _serials, id(value)))
    except TypeError:
        raise Uncacheable(f"an object of type {full_name(type(value))} cannot be told apart from others") from None
    if found is not None:
        _forget(_serials, id(value), found[1])
    # No lock: of two threads that number one object, the first wins, and a reference is told before its object goes.
    return _serials.setdefault(id(value), (next(_next_serial), reference))[0]


def _forget(known: dict[int, tuple[Any, weakref.ref[Any]]], address: int, reference: weakref.ref[Any]) -> None:
    if address in known and known[address][1] is reference:
        del known[address]


# Canonical bytes


class Encoder:
    """One walk over one value. Classes are written by serial number, so two classes of one name never meet."""

    __slots__ = ("depth", "is_plain", "max_nodes", "nodes")

    leaves: ClassVar[Mapping[type, Callable[[Any], bytes]]]
    """Functions that write values of exactly these types."""

    def __init__(self, max_nodes: int = 100_000) -> None:
        self.depth = 0
        self.max_nodes = max_nodes  # a list that contains itself twice has 2**depth parts
        self.nodes = 0
        self.is_plain = True

    def encode(self, value: Any) -> bytes:
        """Write a value and all that it contains.

        Raises:
            Uncacheable: if the value, or anything in it, has no identity, is cyclic, or is larger than the bounds.
        """
        self.nodes += 1
        if self.nodes > self.max_nodes:
            raise Uncacheable(f"an argument has more than {self.max_nodes} parts")
        kind: Any = type(value)
        if kind not in _PLAIN_TREE:
            self.is_plain = False
        leaf = self.leaves.get(kind)
        if leaf is not None:
            return leaf(value)
        text_of = text_of_standard_value(kind)
        if text_of is not None:
            if (text := text_of(value)) is None:
                raise Uncacheable(f"a value of type {full_name(kind)} was made without the name it would be known by")
            return _text(b"$", f"{kind.__name__} {text}")
        if self.depth >= MAX_DEPTH:
            raise Uncacheable(f"an argument is nested more than {MAX_DEPTH} levels deep, or contains itself")
        self.depth += 1
        try:
            return self._compound(value, kind)
        except Uncacheable:
            raise
        except RecursionError:
            raise Uncacheable("an argument is nested too deeply for the stack that is left") from None
        except Exception as error:  # reading fields of any class may run anything
            raise Uncacheable(f"reading a value of type {full_name(kind)} raised {type(error).__name__}") from error
        finally:
            self.depth -= 1

    def _compound(self, value: Any, kind: type) -> bytes:
        if kind is dict:
            return _sized(b"{", b"".join(sorted(self._pairs(value.items()))))
        if kind in _MEMBERS:
            tag, is_ordered, members_of = _MEMBERS[kind]
            parts = [*map(self.encode, members_of(value))]
            return _sized(tag, b"".join(parts if is_ordered else sorted(parts)))
        if issubclass(kind, type):
            return b"Y%b;" % self.class_code(value)
        return _sized(b"o", b"".join([self.class_code(kind), *self._pairs(self.fields_of(value, kind))]))

    def _pairs(self, items: Iterable[tuple[Any, Any]]) -> list[bytes]:
        return [self.encode(key) + self.encode(item) for key, item in items]

    def fields_of(self, value: Any, kind: type) -> list[tuple[str, Any]]:
        """Name and value of everything by which an object is known."""
        declared = declared_fields(value, kind)
        if declared is None:
            raise Uncacheable(
                f"a value of type {full_name(kind)} declares no fields to be known by, as a dataclass, NamedTuple, "
                "Enum, attrs, msgspec or pydantic class does, or has state beside them"
            )
        return declared

    def class_code(self, kind: type) -> bytes:
        """Identity of a class, in this process."""
        return b"%d" % serial_of(kind)


def _sized(tag: bytes, payload: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(payload), payload)  # every code is prefix-free, so codes may be joined


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode("utf-8", "surrogatepass"))


def _clock(value: Any) -> tuple[Any, ...]:
    return value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo


_MEMBERS: Final[dict[type, tuple[bytes, bool, Callable[[Any], Iterable[Any]]]]] = {
    list: (b"[", True, iter),
    tuple: (b"(", True, iter),
    set: (b"<", False, iter),
    frozenset: (b"=", False, iter),
    datetime: (b"D", True, _clock),
    time: (b"t", True, _clock),
}
"""The mark of each compound type, whether order counts, and what is in its values."""

_SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
_PLAIN_TREE: Final = frozenset({*_SCALARS, dict, list, tuple, set, frozenset}) - {bytes}

Encoder.leaves = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: _sized(b"i", b"%x" % value),
    float: lambda value: b"f" + struct.pack(">d", value),
    str: lambda value: _text(b"s", value),
    bytes: lambda value: _sized(b"b", value),
    date: lambda value: _text(b"d", value.isoformat()),
    timedelta: lambda value: _text(b"P", f"{value.days},{value.seconds},{value.microseconds}"),
    timezone: lambda value: _text(b"Z", repr(value)),
    types.FunctionType: lambda value: b"L%d;" % serial_of(value),
    type: lambda value: b"Y%d;" % serial_of(value),
}


def canonical(value: Any) -> bytes:
    """Encode a value so that equal bytes mean equal type-exact structure, in this process."""
    return Encoder().encode(value)


# Digests that every process of a fleet agrees on, whatever its machine and its Python

_DIGEST_SIZE = 24
"""Bytes of a digest. Nobody finds two calls that share one: that would take 2**96 attempts."""


def blake2b(data: bytes, **options: Any) -> hashlib.blake2b:
    """`hashlib.blake2b`. Its module, which takes 1 ms, is loaded for the first digest."""
    import hashlib

    return hashlib.blake2b(data, **options)


def lasting_digest(tool: str, identity: tuple[Any, ...], *, namespace: str, version: int) -> str | None:
    """Digest of a call; None if a part of the call has no identity outside of this process.

    Args:
        tool: ``module:qualname`` of the tool.
        identity: everything else that makes it this call: arguments, tenant, session.
        namespace: keeps the fleets on one server apart.
        version: of everything that the fleet shares.
    """
    encoder = StableEncoder()
    try:
        parts = [encoder.encode(part) for part in (version, _portable_name(tool), *identity)]
    except Uncacheable:
        return None
    return blake2b(b"".join(parts), digest_size=_DIGEST_SIZE, key=_key(namespace)).hexdigest()


def segment_digest(segment: str, *, namespace: str) -> str:
    """Digest of the second segment of a tag, for keys and messages that are not to show it."""
    text = segment.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_DIGEST_SIZE, key=_key(namespace), person=b"segment").hexdigest()


@functools.lru_cache(maxsize=64)
def _key(namespace: str) -> bytes:
    return blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=32).digest()


class StableEncoder(Encoder):
    """Writes classes by module and name, if these lead to them, and refuses functions."""

    __slots__ = ()

    leaves: ClassVar = {kind: code for kind, code in Encoder.leaves.items() if kind not in {types.FunctionType, type}}

    def class_code(self, kind: type) -> bytes:
        found: Any = sys.modules.get(kind.__module__)
        for attribute in kind.__qualname__.split("."):
            found = getattr(found, attribute, None)
        if found is not kind:
            raise Uncacheable(f"the class {full_name(kind)} is not what is found under that name")
        return _text(b"", _portable_name(f"{kind.__module__}:{kind.__qualname__}"))


def _portable_name(name: str) -> str:
    """The name by which other processes know ``module:qualname``.

    A module that was started with ``-m`` has a name of its own; a script, and the ``__main__.py`` of a folder or an
    archive that is run, is known by its content.
    """
    module, colon, qualname = name.partition(":")
    if not colon or module not in {"__main__", "__mp_main__"}:
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in {"", "__main__"}:
        return f"{spec.name}:{qualname}"
    return f"{_script(str(getattr(main, '__file__', '')), getattr(spec, 'loader', None))}:{qualname}"


@functools.lru_cache(maxsize=4)
def _script(path: str, loader: Any) -> str:
    try:
        content = (loader or SourceFileLoader("__main__", path)).get_data(path)
    except (OSError, AttributeError):
        raise Uncacheable("a name in __main__ means nothing elsewhere if there is no file to know it by") from None
    return f"__main__@{blake2b(content, digest_size=16).hexdigest()}"


# Sizes

_MAX_MEASURED = 10_000
_OVERHEAD = 250
"""Entry, mapping slot and LRU link: 230 to 290 bytes by tracemalloc, as the mapping's tables are more or less full."""

_SHARED_TYPES = (type, Enum, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
"""What values refer to and do not own."""


def size_of(*parts: Any) -> int:
    """Estimate the bytes of an entry that consists of these objects, for `configure(max_bytes=...)`.

    Everything that they contain counts, each object once; classes, functions, modules and enum members do not. What an
    object refers to is read from the interpreter, level by level. Of a level 10,000 objects are measured, evenly
    spread; the others are taken to be like them.
    """
    total, share, seen = float(_OVERHEAD), 1.0, set[int]()
    level: list[Any] = [*parts]
    while level and len(seen) < 10 * _MAX_MEASURED:
        level = [one for place, one in {id(one): one for one in level}.items() if place not in seen]
        shared = {kind for kind in {*map(type, level)} if issubclass(kind, _SHARED_TYPES)}
        if shared:
            level = [one for one in level if type(one) not in shared or _is_copier(one)]
        if len(level) > _MAX_MEASURED:
            share *= len(level) / _MAX_MEASURED
            level = [level[place * len(level) // _MAX_MEASURED] for place in range(_MAX_MEASURED)]
        seen.update(map(id, level))
        total += share * sum(map(_own_size, level))
        keys = [one.copy() for one in level if type(one) is dict]  # which the collector leaves out if they are texts
        level = [*gc.get_referents(*level), *itertools.chain.from_iterable(keys)]
    return round(total)


def _is_copier(one: Any) -> bool:
    """Whether a function is the bound `copy` of a container, which entries of flat values keep."""
    return type(one) is types.BuiltinFunctionType and type(one.__self__) in (dict, list, set)


def _own_size(one: Any) -> int:
    try:  # the data of a frame of polars is where the interpreter does not look, below an object without attributes
        has_data = hasattr(type(one), "estimated_size") and not hasattr(one, "__dict__")
        return sys.getsizeof(one, 64) + (int(one.estimated_size()) if has_data else 0)
    except Exception:  # noqa: BLE001 - a user's __sizeof__; an estimate goes on without it
        return 64


def forget_oldest(mapping: dict[Any, Any], limit: int) -> None:
    """Remove the oldest items of a mapping until it has at most `limit`.

    Takes no lock: another thread may do the same at once, and then there may be fewer.
    """
    while len(mapping) > limit:
        try:
            mapping.pop(next(iter(mapping)), None)
        except (RuntimeError, StopIteration):
            continue  # another thread has changed it between the two steps
