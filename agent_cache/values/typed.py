"""Values as bytes and back, by the return annotation of their tool: what a tier stores.

Most values have a *direct* form: what msgspec writes for them, and reads back by the annotation, pydantic's models with
the help of pydantic. In the *tagged* form of any other, what JSON does not know names its type: ``{"$tuple": [1, 2]}``,
``{"$object": ["Order", {"id": "7"}]}``. What is written is read again at once, and must be the same value, of the same
types, or it is refused.

Data counts as hostile. No name in it is imported: it only chooses among the classes that the annotation names, and no
other types may occur.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import marshal
import math
import os
import sys
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar, Final, NamedTuple, cast

import msgspec

from agent_cache.errors import AgentCacheError
from agent_cache.values.canonical import (
    MAX_DEPTH,
    PYDANTIC_FIELDS_SET,
    PYDANTIC_STATE,
    STANDARD,
    Encoder,
    declared_fields,
    declared_names,
    full_name,
    is_member,
    is_model,
    text_of_standard_value,
)

__all__ = [
    "JSON", "MESSAGE_PACK", "ReturnedChunks", "Returns", "Schema", "Undecodable", "Unencodable", "Wire", "hints_of",
    "schema_of",
]  # fmt: skip


class Unencodable(AgentCacheError):
    """A value has no form that gives it back as it was. The text names types, never the value."""


class Undecodable(AgentCacheError):
    """Data is not what an encoder wrote for this return annotation: broken, forged, foreign or of another version."""


# Annotations as they are written

_STREAMS: Final = frozenset({
    collections.abc.AsyncGenerator, collections.abc.AsyncIterable, collections.abc.AsyncIterator,
    collections.abc.Generator, collections.abc.Iterable, collections.abc.Iterator,
})  # fmt: skip


class Returns:
    """The return annotation of a function, to be passed wherever an annotation is asked for.

    It is read at the first value: a decorator costs no import, and the names in it may be defined later. A name that
    means nothing at run time, because it is imported for type checkers only, makes it `Any`.
    """

    __slots__ = ("_function", "schema")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.schema: Any = None  # kept by `schema_of`

    def __repr__(self) -> str:
        return f"Returns({self._function!r})"

    def resolve(self) -> Any:
        """The annotation with every name in it looked up; `Any` if there is none or a name means nothing here."""
        function = inspect.unwrap(self._function)
        while isinstance(function, partial):
            function = function.func
        if not hasattr(function, "__code__"):
            function = getattr(function, "__func__", None) or getattr(function, "__call__", function)  # noqa: B004 - an object that is called: its method has the annotations
        names = dict(getattr(function, "__globals__", {}))
        names |= {parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())}
        # A class local to the function around the tool is known to a tool that makes objects of it.
        free = getattr(getattr(function, "__code__", None), "co_freevars", ())
        for name, cell in zip(free, getattr(function, "__closure__", None) or (), strict=False):
            with contextlib.suppress(ValueError):  # it is not set yet
                names[name] = cell.cell_contents
        hint = _evaluated(function, names, only="return").get("return", Any)
        if typing.get_origin(hint) in (collections.abc.Awaitable, collections.abc.Coroutine):
            hint = typing.get_args(hint)[-1]
        return hint


class ReturnedChunks(Returns):
    """The annotation of all chunks of a generator function, as a tuple."""

    __slots__ = ()

    def resolve(self) -> Any:
        """A tuple of what the annotation of the function names as its chunks."""
        hint = super().resolve()
        arguments = typing.get_args(hint) if typing.get_origin(hint) in _STREAMS else ()
        return tuple[arguments[0] if arguments else Any, ...]  # type: ignore[misc]  # known at run time alone


def hints_of(kind: type) -> dict[str, Any]:
    """Declared names of a class and their types, inherited ones included; `Any` where a name means nothing."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - one name is missing: the others may be well
        found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found |= _evaluated(base, {**vars(sys.modules.get(base.__module__, typing)), **vars(base)})
    return found


def _evaluated(owner: Any, names: dict[str, Any], only: str = "") -> dict[str, Any]:
    """The annotations of a function or class, each by itself."""
    found = {}
    with contextlib.suppress(Exception):  # Python 3.14 evaluates them here
        found = {name: hint for name, hint in inspect.get_annotations(owner).items() if only in ("", name)}
    for name, hint in found.items():
        holder = type("Holder", (), {"__annotations__": {name: hint}})
        try:
            found[name] = typing.get_type_hints(holder, names, {}, include_extras=True)[name]
        except Exception:  # noqa: BLE001 - the user's text may evaluate to anything, a raised error included
            found[name] = Any
    return found


# Annotations as they are read

_KINDS: Final[dict[Any, tuple[type, ...]]] = {
    **{kind: (kind,) for kind in (type(None), bool, str, bytes, bytearray, datetime, time, timedelta)},
    **{kind: (kind,) for kind in (list, tuple, set, frozenset, dict)},
    **dict.fromkeys((collections.abc.Mapping, collections.abc.MutableMapping), (dict,)),
    **dict.fromkeys((collections.abc.Set, collections.abc.MutableSet), (set, frozenset)),
    **dict.fromkeys((collections.abc.Sequence, collections.abc.MutableSequence), (list, tuple)),
    **dict.fromkeys((collections.abc.Collection, collections.abc.Iterable), (list, tuple, set, frozenset)),
    None: (type(None),),
    int: (int, bool),  # the numeric tower of PEP 484, which tools lean on
    float: (float, int, bool),
    complex: (complex, float, int, bool),
    date: (date, datetime),
}
"""The types of values that an annotation allows, if it is no class with fields."""

_HASHED_WELL: Final = frozenset({"str[]", "bytes[]", "bool[]", "NoneType[]", "date[]", "datetime[]", "timedelta[]"})
_QUALIFIERS: Final = frozenset(
    getattr(typing, name, None) for name in ("Annotated", "ClassVar", "Final", "NotRequired", "ReadOnly", "Required")
)


class _Plan:
    """What one annotation names.

    Attributes:
        kinds: the types of which there may be values, wherever it says.
        is_open: whether there may be values of all builtin types somewhere.
        has_direct: whether msgspec may read data by it. Not if a forger could choose members of a set or keys that have
            one hash, which takes Python seconds, or if a class that has changed could misread its data.
        classes: those with fields, by the names that data has for them; None where two have one name.
        text: its structure, alike in every process. It goes down to the fields of every class.
    """

    def __init__(self, annotation: Any) -> None:
        self.kinds: set[Any] = set()
        self.is_open = False
        self.has_direct = True
        self.classes: dict[str, Any] = {}
        self._texts: dict[Any, str] = {}
        text = self._read(annotation)
        self.text = ";".join([text, *sorted(self._texts.values())])

    def _read(self, hint: Any) -> str:
        kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if kind in _QUALIFIERS:
            return self._read(arguments[0])
        if hasattr(hint, "__supertype__"):  # a NewType
            return self._read(hint.__supertype__)
        if kind is Any or kind is object or isinstance(hint, str | typing.TypeVar):
            self.is_open = True
            return "*"
        if kind is typing.Literal:
            return "|".join(sorted(f"{self._read(type(each))}={each!r}" for each in arguments))
        texts = [str(each) if each is Ellipsis else self._read(each) for each in arguments]
        if kind is typing.Union or kind is types.UnionType:
            return "|".join(sorted({*texts}))
        if kind in _KINDS:
            self.kinds.update(_KINDS[kind])
            hashed = {*texts[0].split("|")} if texts else {"*"}
            is_safe = hashed <= _HASHED_WELL or (hashed == {"*"} and dict in _KINDS[kind])
            self.has_direct &= is_safe or {set, frozenset, dict}.isdisjoint(_KINDS[kind])
            self.is_open |= not texts and not _GROUPS.isdisjoint(_KINDS[kind])
        elif type(kind).__name__ == "TypeAliasType" and kind not in self._texts:
            self._texts[kind] = ""  # while it is read: it may name itself
            self._texts[kind] = f"{kind.__name__}={self._read(kind.__value__)}"
        elif isinstance(kind, type):
            self._read_class(kind)
        return f"{getattr(kind, '__qualname__', None) or getattr(kind, '__name__', kind)}[{','.join(texts)}]"

    def _read_class(self, kind: Any) -> None:
        if kind in self.kinds:
            return
        self.kinds.add(kind)
        if issubclass(kind, os.PathLike) and kind.__name__ in {"Path", "PurePath"}:
            self.kinds.update(getattr(sys.modules["pathlib"], name) for name in STANDARD if name.endswith("Path"))
        elif text_of_standard_value(kind) is None:
            # A TypedDict may have other keys; a model holds whatever its class and its client let pass.
            self.is_open |= typing.is_typeddict(kind) or is_model(kind)
            self.has_direct &= _has_direct_form(kind)
            name = kind.__qualname__
            self.classes[name] = None if name in self.classes else kind
            fields = [f"{field}:{self._read(hint)}" for field, hint in _fields_of(kind).items()]
            self._texts[kind] = f"{name}<{_form(kind)}{_has_direct_form(kind)}{','.join(fields)}>"
            generic = getattr(kind, "__pydantic_generic_metadata__", None) or {"origin": None}
            if generic["origin"] is not None:
                # `Answer[T]` is a class of its own. Clients make objects of `Answer`, as one each costs memory.
                self._texts[kind] += str([self._read(each) for each in (generic["origin"], *generic["args"])])


def _fields_of(kind: Any) -> dict[str, Any]:
    """The types of what a class declares, and of what a model has beside its fields."""
    if issubclass(kind, Enum):
        return {}
    hints = dict.fromkeys(() if typing.is_typeddict(kind) else declared_names(kind) or (), Any) | hints_of(kind)
    if is_model(kind):
        return hints | {name: field.annotation for name, field in kind.__pydantic_fields__.items()}
    return hints


def _has_direct_form(kind: Any) -> bool:
    """Whether msgspec writes all fields of objects, under their names."""
    config = getattr(kind, "__struct_config__", None)
    if config is not None:
        is_plain = not (config.array_like or config.omit_defaults or config.tag is not None)
        return is_plain and bool(kind.__struct_fields__ == kind.__struct_encode_fields__)
    return not is_model(kind) or all(field.validation_alias is None for field in kind.__pydantic_fields__.values())


def _form(kind: Any) -> str:
    """What tells two classes of the same fields apart."""
    if issubclass(kind, Enum):
        values = {name: member._value_ for name, member in kind.__members__.items()}
        return str(values if _PLAIN.issuperset(map(type, values.values())) else [*values])  # others show an address
    return str(sorted(kind.__required_keys__) if typing.is_typeddict(kind) else declared_names(kind))


# The tagged form

_MAX_DIGITS: Final = 4096
"""Hexadecimal digits of an integer. Arithmetic on larger ones takes time that no size of data betrays."""

_MAX_COLLISIONS: Final = 16
"""Members of a set, or keys of a dict, that may share a hash by chance. More are a flood: each costs a comparison with
all before it."""


def _read_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise Undecodable("an integer is too large")
    return int(text, 16)


def _distinct(members: Collection[Any]) -> Collection[Any]:
    """Members of a set or keys of a dict, unless they would make it slow, or it would lose some.

    Hashes of text are secret to a process; anyone can calculate those of numbers and tuples.
    """
    if len(members) - len(set(map(hash, members))) > _MAX_COLLISIONS or len(set(members)) < len(members):
        raise Undecodable("members of a set or keys of a dict occur twice, or are chosen to collide")
    return members


def _clock(kind: Any) -> tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]:
    return (
        lambda value: (value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo),
        lambda text, fold, zone: kind.fromisoformat(text).replace(fold=fold, tzinfo=zone),
    )


_TEXTS: Final[dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]]] = {
    str: (
        lambda value: value.encode("utf-8", "surrogatepass").hex(),
        lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    ),
    int: (lambda value: f"{value:x}", _read_int),
    float: (float.hex, float.fromhex),
    bytes: (lambda value: b64encode(value).decode(), partial(b64decode, validate=True)),
    bytearray: (lambda value: b64encode(value).decode(), lambda text: bytearray(b64decode(text, validate=True))),
    date: (date.isoformat, date.fromisoformat),
}
_PARTS: Final[dict[Any, tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]]] = {
    tuple: (iter, lambda *members: members),
    set: (iter, lambda *members: {*_distinct(members)}),
    frozenset: (iter, lambda *members: frozenset(_distinct(members))),
    complex: (lambda value: (value.real, value.imag), complex),
    datetime: _clock(datetime),
    time: _clock(time),
    timedelta: (lambda value: (value.days, value.seconds, value.microseconds), timedelta),
    timezone: (lambda value: value.__getinitargs__(), timezone),
}
"""How values are taken apart, into a text or into values, and made of it. Any exception means that data is bad."""

_BY_TAG: Final = {f"${kind.__name__}": kind for kind in (*_TEXTS, *_PARTS)}
_GROUPS: Final = frozenset({list, tuple, set, frozenset, dict})
_STATE_OF_MODEL: Final = (*PYDANTIC_STATE, PYDANTIC_FIELDS_SET)


def _pack(value: Any) -> Any:
    """Write a value as plain data that JSON carries exactly."""
    kind = type(value)
    if kind in _PLAIN and _stands_for_itself(value, kind):
        return value
    if kind is list:
        return [_pack(each) for each in value]
    if kind is dict:
        pairs = [[_pack(key), _pack(each)] for key, each in value.items()]
        if all(type(key) is str for key, _ in pairs) and not (len(pairs) == 1 and pairs[0][0][:1] == "$"):
            return dict(pairs)
        return {"$dict": pairs}
    if kind in _PARTS:
        return {f"${kind.__name__}": [_pack(each) for each in _PARTS[kind][0](value)]}
    text_of = _TEXTS[kind][0] if kind in _TEXTS else text_of_standard_value(kind)
    if text_of is not None:
        return {f"${kind.__name__}": text_of(value)}
    if issubclass(kind, Enum):  # several flags, none, or what `_missing_` has made have no name
        member = [value._name_, None] if is_member(value, kind) else [None, value._value_]
        return {"$enum": [kind.__qualname__, *member]}
    declared = declared_fields(value, kind)
    if declared is None:
        raise Unencodable(f"a value of type {full_name(kind)} declares no fields, or has state beside them")
    state = _STATE_OF_MODEL if is_model(kind) else ()
    fields = {name: _pack(each) for name, each in declared if name not in state}
    return {"$object": [kind.__qualname__, fields, *(_pack(getattr(value, name)) for name in state)]}


def _stands_for_itself(value: Any, kind: type) -> bool:
    if kind is str:
        return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
    return -(2**63) <= value < 2**63 if kind is int else kind is not float or math.isfinite(value)


def _unpack(data: Any, plan: _Plan, levels: int = MAX_DEPTH) -> Any:
    """Read what `_pack` wrote."""
    if levels < 0:
        raise Undecodable(f"a value is nested more than {MAX_DEPTH} levels deep")
    value = _unpacked(data, plan, levels - 1)
    if not (plan.is_open or type(value) in plan.kinds):
        raise Undecodable(f"the return annotation does not allow a value of type {full_name(type(value))}")
    return value


def _unpacked(data: Any, plan: _Plan, levels: int) -> Any:
    def each(parts: Iterable[Any], within: _Plan = plan) -> list[Any]:
        return [_unpack(part, within, levels) for part in parts]

    kind = type(data)
    if kind is list:
        return each(data)
    if kind is not dict:
        return data
    tag, content = next(iter(data.items())) if len(data) == 1 else ("", cast("Any", None))
    if tag[:1] != "$":
        return dict(zip(data, each(data.values()), strict=True))
    if tag == "$dict":
        return dict(zip(_distinct(each(key for key, _ in content)), each(item for _, item in content), strict=True))
    found: Any = _BY_TAG.get(tag)
    if found in _PARTS:
        return _PARTS[found][1](*each(content, plan if found in _GROUPS else _OPEN))
    if found is not None:
        return _TEXTS[found][1](content)
    if tag[1:] in STANDARD:
        return getattr(import_module(STANDARD[tag[1:]]), tag[1:])(str.__str__(content))
    owner = plan.classes.get(content[0])
    if owner is None or tag not in {"$enum", "$object"} or issubclass(owner, Enum) is not (tag == "$enum"):
        raise Undecodable("an object of a class that the return annotation does not name")
    if tag == "$enum":
        return owner(content[2]) if content[1] is None else owner[content[1]]
    return _made(owner, dict(zip(content[1], each(content[1].values()), strict=True)), each(content[2:]))


def _made(kind: Any, fields: dict[str, Any], state: list[Any]) -> Any:
    """An object of a class."""
    if is_model(kind):
        if any(name not in kind.__pydantic_fields__ and hasattr(kind, name) for name in fields):
            raise Undecodable("an attribute of a model hides one of its class")
        made = kind.__new__(kind)
        made.__setstate__({"__dict__": fields, **dict(zip(_STATE_OF_MODEL, state, strict=True))})
        return made
    names = declared_names(kind) or ()
    if fields.keys() != {*names}:
        raise Undecodable(f"an object has other fields than its class {full_name(kind)} declares")
    if issubclass(kind, tuple):
        return tuple.__new__(kind, [fields[name] for name in names])
    if hasattr(kind, "__struct_fields__"):
        return kind(**fields)
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


# Schemas


class Wire(NamedTuple):
    """One serialisation of msgspec's. `openers` are the bytes that lists and dicts begin with; others may look so."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    reader: Callable[[Any], Callable[[bytes], Any]]
    openers: bytes


def _model_to_data(value: Any) -> Any:
    """The fields of a model. One that was not set may have another default where it is read."""
    kind = type(value)
    if not is_model(kind) or len(value.model_fields_set) < len(kind.__pydantic_fields__):
        raise NotImplementedError(kind.__qualname__)
    return {name: getattr(value, name) for name in kind.__pydantic_fields__}


def _model_from_data(kind: Any, data: Any) -> Any:
    if is_model(kind):
        return kind.model_validate(data)
    raise NotImplementedError(kind.__qualname__)


def _refuse_extension(code: int, data: memoryview) -> Any:  # noqa: ARG001 - msgspec calls it with both
    raise Undecodable("an extension type that no encoder here writes")


MESSAGE_PACK: Final = Wire(
    "msgpack",
    msgspec.msgpack.Encoder(enc_hook=_model_to_data).encode,
    msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode,
    lambda kind: msgspec.msgpack.Decoder(kind, dec_hook=_model_from_data, ext_hook=_refuse_extension).decode,
    bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF]),
)
"""Binary, and the fastest."""

JSON: Final = Wire(
    "json",
    msgspec.json.Encoder(enc_hook=_model_to_data).encode,
    msgspec.json.Decoder().decode,
    lambda kind: msgspec.json.Decoder(kind, dec_hook=_model_from_data).decode,
    b"[{",
)
"""Text that people and other programs can read."""

MAX_PARTS: Final = 1_000_000
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_TEXT: Final = frozenset({str})


class _ExactEncoder(Encoder):
    """Tells apart what `Encoder` does, and dicts of another order."""

    __slots__ = ()

    max_nodes: ClassVar = 2 * MAX_PARTS

    @staticmethod
    def _unordered(tag: bytes, parts: Iterable[bytes]) -> bytes:
        return Encoder._ordered(tag, parts if tag == b"{" else sorted(parts))


class Schema:
    """Writes and reads the values of one annotation, names resolved.

    Attributes:
        fingerprint: bytes that differ if the annotation, or the fields of a class in it, differ.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = Any if annotation is None else annotation
        try:
            self._plan = _Plan(self.annotation)
        except Exception:  # noqa: BLE001 - it is no annotation, so it stands for none
            self.annotation, self._plan = Any, _OPEN
        self.fingerprint = self._plan.text.encode("utf-8", "surrogatepass")
        self._readers: dict[str, Callable[[bytes], Any] | None] = {}

    def dump(self, value: Any, wire: Wire, max_parts: int = MAX_PARTS) -> tuple[bytes, bool]:
        """Write a value: the data, and whether it is in the tagged form.

        Raises:
            Unencodable: if it would not come back as it is, or has more than `max_parts` parts.
        """
        name = full_name(type(value))
        try:
            # What bounds depth and parts is the first to look. marshal writes the types of plain values, too, in C.
            exact = _marshalled if _is_plain(value, max_parts) else _exact
            content = exact(value)
            with contextlib.suppress(Exception):  # it has no direct form, for whatever reason
                data = wire.encode(value)
                if exact(self._read(data, wire, is_tagged=False)) == content:
                    return data, False
            content = content if exact is _exact else _exact(value)
            data = wire.encode(_pack(value))
            if _exact(self._read(data, wire, is_tagged=True)) == content:
                return data, True
        except Unencodable:
            raise
        except Exception as error:
            raise Unencodable(f"a value of type {name} would not come back: {_reason(error)}") from error
        raise Unencodable(f"a value of type {name} would not come back as it is")

    def load(self, data: bytes, wire: Wire, *, is_tagged: bool) -> Any:
        """Read what `dump` wrote for the same annotation.

        Raises:
            Undecodable: for any other data.
        """
        try:
            return self._read(data, wire, is_tagged=is_tagged)
        except Exception as error:
            raise Undecodable(f"not the data of such a value: {_reason(error)}") from error

    def _read(self, data: bytes, wire: Wire, *, is_tagged: bool) -> Any:
        if is_tagged:
            return _unpack(wire.decode(data), self._plan)
        if wire.name not in self._readers:
            self._readers[wire.name] = None
            with contextlib.suppress(Exception):  # msgspec cannot tell the annotation's types apart
                reader = wire.decode if self._plan.text == "*" else wire.reader(self.annotation)
                self._readers[wire.name] = reader if self._plan.has_direct else None
        read = self._readers[wire.name]
        if read is None:
            raise Undecodable("the return annotation has no direct form")
        value = read(data)
        if len(data) - len(data.translate(None, wire.openers)) > MAX_DEPTH:  # else it cannot be nested deeper
            _is_plain(value, len(data))
        return value


def _exact(value: Any) -> bytes:
    return _ExactEncoder().encode(value)


def _marshalled(value: Any) -> bytes:
    return marshal.dumps(value, 2)


def _reason(error: Exception) -> str:
    """What is wrong, without a value: other errors may show one."""
    return str(getattr(error, "reason", error)) if isinstance(error, AgentCacheError) else type(error).__name__


def _is_plain(value: Any, max_parts: int) -> bool:
    """Whether a value is a tree of lists and dicts, with text for keys, of texts, numbers and None.

    Raises:
        Unencodable: if it has more than `max_parts`, or they are nested deeper than `MAX_DEPTH`.
    """
    level: list[Any] = [value]  # all at once: what is done for each container by itself costs more than the encoding
    parts = 0
    for _ in range(MAX_DEPTH + 1):
        level = [each for each in level if type(each) not in _PLAIN]
        if not level:
            return True
        dicts = [each for each in level if type(each) is dict]
        lists = [each for each in level if type(each) is list]
        if len(dicts) + len(lists) < len(level) or not _TEXT.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        parts += 2 * sum(map(len, dicts)) + sum(map(len, lists))
        if parts > max_parts:  # a list that contains itself twice has 2**depth
            raise Unencodable(f"the value has more than {max_parts} parts")
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, dicts))]
    raise Unencodable(f"the value is nested more than {MAX_DEPTH} levels deep, or contains itself")


_OPEN: Final = _Plan(Any)
_schema = lru_cache(maxsize=1024, typed=True)(Schema)


def schema_of(returns: Any) -> Schema:
    """The schema of an annotation, or of the `Returns` of a function. Each is made once."""
    if isinstance(returns, Returns):
        if returns.schema is None:
            returns.schema = Schema(returns.resolve())
        return cast("Schema", returns.schema)
    try:
        return _schema(returns)
    except TypeError:  # an annotation with metadata that has no hash
        return Schema(returns)
