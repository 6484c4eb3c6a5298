"""Values as bytes and back, by the return annotation of their tool: what a tier stores.

Most values have a *direct* form: what msgspec writes for them, and reads back by the annotation, pydantic's models with
the help of pydantic. In the *tagged* form of any other, what JSON does not know names its type: ``{"$tuple": [1, 2]}``,
``{"$object": ["Order", {"id": "7"}]}``. What is written is read again at once, and must be the same value, of the same
types, or it is refused.

No name in data is imported: it only chooses among builtin types, and the classes that the annotation names.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import marshal
import math
import sys
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain
from typing import Any, Final, cast

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
    "model_to_data", "schema_of",
]  # fmt: skip


class Unencodable(AgentCacheError):
    """A value has no form that gives it back as it was. The text names types, never the value."""


class Undecodable(AgentCacheError):
    """Data is not what an encoder wrote for this return annotation: broken, forged, foreign or of another version."""


# Annotations as they are written


class Returns:
    """The return annotation of a function, to be passed wherever an annotation is asked for.

    It is read at the first value: a decorator costs no import, and the names in it may be defined later. A name that
    means nothing at run time, because it is imported for type checkers only, makes it `Any`.
    """

    __slots__ = ("_function", "schema")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.schema: Schema | None = None  # kept by `schema_of`

    def resolve(self) -> Any:
        """The annotation with every name in it looked up; `Any` if there is none or a name means nothing here."""
        function: Any = inspect.unwrap(self._function)
        while isinstance(function, partial):
            function = function.func
        if not hasattr(function, "__code__"):  # an object that is called
            function = type(function).__call__
        names, code = dict(getattr(function, "__globals__", {})), getattr(function, "__code__", None)
        # A class local to the function around the tool is known to a tool that makes objects of it.
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False) if code else ():
            with contextlib.suppress(ValueError):  # it is not set yet
                names[name] = cell.cell_contents
        hint = _evaluated(function, names).get("return", Any)
        if typing.get_origin(hint) in (collections.abc.Awaitable, collections.abc.Coroutine):
            hint = typing.get_args(hint)[-1]
        return hint


class ReturnedChunks(Returns):
    """The annotation of all chunks of a generator function, as a tuple."""

    __slots__ = ()

    def resolve(self) -> Any:
        """A tuple of what the annotation of the function names as its chunks."""
        hint = super().resolve()
        arguments = typing.get_args(hint) if typing.get_origin(hint) in STREAMS else ()
        return tuple[arguments[0] if arguments else Any, ...]  # type: ignore[misc]  # known at run time alone


STREAMS: Final = frozenset(
    getattr(collections.abc, f"{prefix}{name}")
    for prefix in ("", "Async")
    for name in ("Generator", "Iterable", "Iterator")
)


def hints_of(kind: type) -> dict[str, Any]:
    """Declared names of a class and their types, inherited ones included; `Any` where a name means nothing."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found |= _evaluated(base, {**vars(base), **vars(sys.modules.get(base.__module__, typing))})
    return found


def _evaluated(owner: Any, names: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a function or class, each by itself."""
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # Python 3.14 evaluates them here
        found = inspect.get_annotations(owner)
    names |= {parameter.__name__: parameter for parameter in getattr(owner, "__type_params__", ())}
    for name, hint in found.items():
        holder = type("Holder", (), {"__annotations__": {name: hint}})
        try:
            found[name] = typing.get_type_hints(holder, names, {}, include_extras=True)[name]
        except Exception:  # noqa: BLE001 - the user's text may evaluate to anything, a raised error included
            found[name] = Any
    return found


# The tagged form


def _clock(kind: Any) -> tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]:
    return (
        lambda value: (value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo),
        lambda text, fold, zone: kind.fromisoformat(text).replace(fold=fold, tzinfo=zone),
    )


_FORMS: Final[dict[Any, tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]]] = {
    tuple: (iter, lambda *members: members),
    set: (partial(sorted, key=repr), lambda *members: {*members}),
    frozenset: (partial(sorted, key=repr), lambda *members: frozenset(members)),
    str: (
        lambda value: (value.encode("utf-8", "surrogatepass").hex(),),
        lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    ),
    int: (lambda value: (f"{value:x}",), partial(int, base=16)),
    float: (lambda value: (value.hex(),), float.fromhex),
    bytes: (lambda value: (b64encode(value).decode(),), partial(b64decode, validate=True)),
    date: (lambda value: (value.isoformat(),), date.fromisoformat),
    datetime: _clock(datetime),
    time: _clock(time),
    timedelta: (lambda value: (value.days, value.seconds, value.microseconds), timedelta),
    timezone: (lambda value: value.__getinitargs__(), timezone),
}
"""How values are taken apart, and made of their parts. Any exception means that data is bad."""

_BY_TAG: Final = {f"${kind.__name__}": kind for kind in _FORMS}
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_STATE_OF_MODEL: Final = (*PYDANTIC_STATE, PYDANTIC_FIELDS_SET)


def _pack(value: Any) -> Any:
    """Write a value as plain data that JSON carries exactly."""
    kind: Any = type(value)
    if kind in _PLAIN and _stands_for_itself(value, kind):
        return value
    if kind is list:
        return [*map(_pack, value)]
    if kind is dict:
        pairs = [[_pack(key), _pack(each)] for key, each in value.items()]
        if all(type(key) is str for key, _ in pairs) and not (len(pairs) == 1 and pairs[0][0][:1] == "$"):
            return dict(pairs)
        return {"$dict": pairs}
    text_of = text_of_standard_value(kind)
    if kind in _FORMS or text_of is not None:
        return {f"${kind.__name__}": [*map(_pack, (text_of(value),) if text_of else _FORMS[kind][0](value))]}
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


def _made(kind: Any, fields: dict[str, Any], state: list[Any]) -> Any:
    """An object of a class. No `__init__` runs, so that it has what was written, but that of a Struct."""
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


# The direct form


class Wire:
    """One serialisation of msgspec's."""

    def __init__(self, codec: Any, **hooks: Any) -> None:
        self.name: str = codec.__name__.rpartition(".")[2]
        self.encode: Callable[[Any], bytes] = codec.Encoder(enc_hook=model_to_data).encode
        self.decode: Callable[[bytes], Any] = codec.Decoder(**hooks).decode
        self.decoder_of = partial(codec.Decoder, dec_hook=_from_data, **hooks)


def model_to_data(value: Any) -> Any:
    """The fields of a model. One that was not set may have another default where it is read."""
    kind = type(value)
    if not is_model(kind) or len(value.model_fields_set) < len(kind.__pydantic_fields__):
        raise NotImplementedError(kind.__qualname__)
    return {name: getattr(value, name) for name in kind.__pydantic_fields__}


def _from_data(kind: Any, data: Any) -> Any:
    """A model. Nothing else that msgspec does not know is read, nor any extension type of MessagePack."""
    if is_model(kind):
        return kind.model_validate(data)
    raise NotImplementedError(kind)


MESSAGE_PACK: Final = Wire(msgspec.msgpack, ext_hook=_from_data)
"""Binary, and the fastest."""

JSON: Final = Wire(msgspec.json)
"""Text that people and other programs can read."""


# Schemas

MAX_PARTS: Final = 1_000_000

_WITHOUT_FIELDS: Final = frozenset({"builtins", "collections", "datetime", *STANDARD.values()})
"""The modules of types that are known by their names."""

_QUALIFIERS: Final = frozenset(
    getattr(typing, name, None) for name in ("Annotated", "ClassVar", "Final", "NotRequired", "ReadOnly", "Required")
)


class Schema:
    """Writes and reads the values of one annotation, names resolved.

    Attributes:
        fingerprint: bytes that differ if the annotation, or the fields of a class in it, differ; the same everywhere.
        made: makes an object of a class from its fields, and the state of a model beside these.
    """

    made = staticmethod(_made)

    def __init__(self, annotation: Any) -> None:
        self.annotation = Any if annotation is None else annotation
        self._omits_defaults = False  # the default of a field that data leaves out may be another where it is read
        self._classes: dict[str, Any] = {}  # those with fields, by name; None where two have one name
        self._texts: dict[Any, str] = {}
        self._readers: dict[str, Callable[[bytes], Any] | None] = {}
        text = self._describe(self.annotation)
        self.fingerprint = ";".join([text, *sorted(self._texts.values())]).encode("utf-8", "surrogatepass")

    def _describe(self, hint: Any) -> str:
        """Note the classes that a hint names. Returns its structure as text, down to the fields of every class."""
        kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if kind in _QUALIFIERS:
            return self._describe(arguments[0] if arguments else Any)
        if hasattr(hint, "__supertype__"):  # a NewType
            return self._describe(hint.__supertype__)
        if kind is Any or kind is object or isinstance(hint, str | typing.TypeVar):
            return "*"
        if kind is typing.Literal:
            return "|".join(sorted(f"{self._describe(type(each))}={each!r}" for each in arguments))
        texts = [str(each) if each is Ellipsis else self._describe(each) for each in arguments]
        if kind is typing.Union or kind is types.UnionType:
            return "|".join(sorted({*texts}))
        if type(kind).__name__ == "TypeAliasType" and kind not in self._texts:
            self._texts[kind] = ""  # while it is read: it may name itself
            self._texts[kind] = f"{kind.__name__}={self._describe(kind.__value__)}"
        elif (
            isinstance(kind, type)
            and kind not in self._texts
            and kind.__module__.partition(".")[0] not in _WITHOUT_FIELDS
        ):
            self._describe_class(kind)
        return f"{getattr(kind, '__qualname__', None) or getattr(kind, '__name__', kind)}[{','.join(texts)}]"

    def _describe_class(self, kind: Any) -> None:
        if kind in self._texts:
            return
        self._texts[kind] = ""
        self._omits_defaults |= getattr(getattr(kind, "__struct_config__", None), "omit_defaults", False)
        name = kind.__qualname__
        self._classes[name] = None if name in self._classes else kind
        fields = [f"{field}:{self._describe(hint)}" for field, hint in _fields_of(kind).items()]
        # `Answer[T]` of pydantic is a class of its own. Clients make objects of `Answer`, as one each costs memory.
        generic = getattr(kind, "__pydantic_generic_metadata__", None) or {"origin": None}
        origins = () if generic["origin"] is None else (generic["origin"], *generic["args"])
        self._texts[kind] = f"{name}<{_form(kind)}{fields}{[self._describe(each) for each in origins]}>"

    def dump(self, value: Any, wire: Wire, max_parts: int = MAX_PARTS) -> tuple[bytes, bool]:
        """Write a value: the data, and whether it is in the tagged form.

        Raises:
            Unencodable: if it would not come back as it is, or has more than `max_parts` parts.
        """
        try:
            # What bounds depth and parts is the first to look. marshal writes the types of plain values, too, in C.
            is_plain = _is_plain(value, max_parts)
            content = marshal.dumps(value, 2) if is_plain else _exact(value)
            with contextlib.suppress(Exception):  # it has no direct form, for whatever reason
                data = wire.encode(value)
                back = self._read(data, wire, is_tagged=False)
                if (marshal.dumps(back, 2) if is_plain else _exact(back)) == content:
                    return data, False
            data = wire.encode(_pack(value))
            if _exact(self._read(data, wire, is_tagged=True)) == _exact(value):
                return data, True
        except Unencodable:
            raise
        except Exception as error:
            raise Unencodable(f"a {full_name(type(value))} would not come back: {_reason(error)}") from error
        raise Unencodable(f"a {full_name(type(value))} would not come back as it is")

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
            return self._unpack(wire.decode(data))
        if wire.name not in self._readers:
            self._readers[wire.name] = None
            if not self._omits_defaults:
                with contextlib.suppress(Exception):  # msgspec cannot tell the annotation's types apart
                    plain = self.fingerprint == b"*"
                    self._readers[wire.name] = wire.decode if plain else wire.decoder_of(self.annotation).decode
        read = self._readers[wire.name]
        if read is None:
            raise Undecodable("the return annotation has no direct form")
        return read(data)

    def _unpack(self, data: Any) -> Any:
        """Read what `_pack` wrote."""
        kind = type(data)
        if kind is list:
            return [*map(self._unpack, data)]
        if kind is not dict:
            return data
        tag, content = next(iter(data.items())) if len(data) == 1 else ("", cast("Any", None))
        if tag[:1] != "$":
            return {key: self._unpack(each) for key, each in data.items()}
        if tag == "$dict":
            return {self._unpack(key): self._unpack(each) for key, each in content}
        if tag in _BY_TAG:
            return _FORMS[_BY_TAG[tag]][1](*map(self._unpack, content))
        if tag[1:] in STANDARD and (tag != "$Fraction" or "e" not in content[0].lower()):  # 1e9 has a billion digits
            return getattr(import_module(STANDARD[tag[1:]]), tag[1:])(*map(str.__str__, content))
        owner = self._classes.get(content[0])
        if owner is None or tag not in {"$enum", "$object"} or issubclass(owner, Enum) is not (tag == "$enum"):
            raise Undecodable("an object of a class that the return annotation does not name")
        if tag == "$enum":
            return owner(content[2]) if content[1] is None else owner[content[1]]
        fields = {name: self._unpack(each) for name, each in content[1].items()}
        return self.made(owner, fields, [*map(self._unpack, content[2:])])


def _fields_of(kind: Any) -> dict[str, Any]:
    """The types of what a class declares, and of what a model has beside its fields."""
    if issubclass(kind, Enum):
        return {}
    hints = dict.fromkeys(() if typing.is_typeddict(kind) else declared_names(kind) or (), Any) | hints_of(kind)
    if is_model(kind):
        return hints | {name: field.annotation for name, field in kind.__pydantic_fields__.items()}
    return hints


def _form(kind: Any) -> str:
    """What tells two versions of a class apart whose fields have the same types."""
    if issubclass(kind, Enum):
        values = {name: member._value_ for name, member in kind.__members__.items()}
        return str(values if _PLAIN.issuperset(map(type, values.values())) else [*values])  # others show an address
    aliases = [str(field.validation_alias) for field in getattr(kind, "__pydantic_fields__", {}).values()]
    return f"{declared_names(kind)}{getattr(kind, '__struct_encode_fields__', aliases)}"


def _exact(value: Any) -> bytes:
    return Encoder(2 * MAX_PARTS).encode(value)


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
        if len(dicts) + len(lists) < len(level) or not {str}.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        parts += 2 * sum(map(len, dicts)) + sum(map(len, lists))
        if parts > max_parts:  # a list that contains itself twice has 2**depth
            raise Unencodable(f"the value has more than {max_parts} parts")
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, dicts))]
    raise Unencodable(f"the value is nested more than {MAX_DEPTH} levels deep, or contains itself")


def _schema(annotation: Any) -> Schema:
    try:
        return Schema(annotation)
    except Exception:  # noqa: BLE001 - it is no annotation, so it stands for none
        return Schema(Any)


_remembered = lru_cache(maxsize=1024, typed=True)(_schema)


def schema_of(returns: Any) -> Schema:
    """The schema of an annotation, or of the `Returns` of a function. Each is made once."""
    if isinstance(returns, Returns):
        returns.schema = returns.schema or _schema(returns.resolve())
        return returns.schema
    try:
        return _remembered(returns)
    except TypeError:  # an annotation with metadata that has no hash
        return _schema(returns)
