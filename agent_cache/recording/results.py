"""Results of calls as plain data and back: values, exceptions, chunks of streams.

A value is written in the first form that gives it back as it was: JSON itself (``value``), what the return annotation
makes of it (``typed``), builtin values with tags (``any``), a registered class (``object``). An object that none of
these covers becomes the plain data of its fields, and one without fields is noted as ``unencodable``.

No name that is found in a cassette is ever imported. A value is read by the return annotation, or as a registered
class. An exception comes back if it is a builtin, one of agent_cache's or asyncio's own, stands in the module of the
tool that raised it, or was registered; else it becomes a `RecordedError`.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

import agent_cache.errors
from agent_cache.errors import CassetteError, ConfigurationError, RecordedError
from agent_cache.recording.redaction import Redaction, without_secret_fields
from agent_cache.values.schema import Schema, schema_of
from agent_cache.values.tagged import Undecodable, Unencodable, decode, encode, exact_json

__all__ = [
    "Failure",
    "Stream",
    "check_outcome",
    "error_outcome",
    "map_payload",
    "read_error",
    "read_value",
    "redact_chunks",
    "register",
    "value_outcome",
]

Outcome: TypeAlias = dict[str, Any]
T = TypeVar("T")

_LOG = logging.getLogger("agent_cache")
_ANY = schema_of(Any)


# Classes


_registered: dict[str, type] = {}


def register(*classes: type[T]) -> type[T]:
    """Allow values and exceptions of these classes to come back from cassettes. Also works as a decorator.

    Exceptions need it that the tool's own module does not have, and values of functions without a return annotation.

    Raises:
        ConfigurationError: if one is not a class.
    """
    for one in classes:
        if not isinstance(one, type):
            raise ConfigurationError(f"register takes classes, got {one!r}")
        _registered[_name_of(one)] = one
    if not classes:
        raise ConfigurationError("register needs at least one class")
    return classes[0]


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


_EXCEPTIONS: dict[str, type[BaseException]] = {
    _name_of(one): one
    for one in (
        *(kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)),
        *(getattr(agent_cache.errors, name) for name in agent_cache.errors.__all__),
        asyncio.CancelledError,
        asyncio.InvalidStateError,
        asyncio.QueueEmpty,
        asyncio.QueueFull,
    )
}


def _exception_named(name: str, module: str) -> type[BaseException] | None:
    """The exception class of this name if it may be used; `module` is that of the tool that raised it."""
    found = _EXCEPTIONS.get(name) or _registered.get(name)
    if found is None:
        where, _, path = name.partition(":")
        if where == module and "<" not in path:
            found = _attribute(sys.modules.get(where), path)
            if found is None or found.__module__ != where:
                return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _attribute(module: Any, path: str) -> Any:
    found = module
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) else None


# Values


def value_outcome(value: Any, schema: Schema, redaction: Redaction, *, is_chunk: bool = False) -> Outcome:
    """The redacted outcome of a call that returned this value, or of a chunk of a stream.

    A chunk is redacted later, together with the chunks before and after it.
    """
    exact = exact_json(value)
    if exact is not None:
        raw, read = exact
        is_clean = is_chunk or not redaction.may_change(raw)
        return {"value": msgspec.Raw(raw) if is_clean else redaction.apply(read)}
    form, plain = _written(without_secret_fields(value, redaction), schema)
    if is_chunk or form == "unencodable":
        return {form: plain}
    if form == "object":
        return {form: [plain[0], redaction.apply(plain[1])]}
    return {form: redaction.apply(plain) if redaction.may_change(encode(plain)) else plain}


def read_value(outcome: Outcome, schema: Schema, path: str, line: int) -> Any:
    """The value that `value_outcome` wrote for the same annotation, unless it is JSON itself.

    Raises:
        CassetteError: if it cannot be rebuilt.
    """
    try:
        if "typed" in outcome:
            return schema.from_plain(outcome["typed"])
        if "any" in outcome:
            return _ANY.from_plain(outcome["any"])
        if "object" in outcome:
            name, plain = outcome["object"]
            kind = _registered.get(name)
            if kind is None:
                raise CassetteError(
                    f"names the class {name}, which is not registered here; see agent_cache.recording.register",
                    path,
                    line,
                )
            return schema_of(kind).from_plain(plain)
    except (Undecodable, ValueError, TypeError) as error:
        raise CassetteError(
            f"its value does not fit the return annotation ({error}); the function has changed, or redaction removed "
            "a part that its type needs. Record it again, or give it another annotation",
            path,
            line,
        ) from error
    if "unencodable" in outcome:
        raise CassetteError(
            f"its value was a {outcome['unencodable']}, which could not be written; give the function a return "
            'annotation of plain fields, or run it with policy={...: "live"}',
            path,
            line,
        )
    raise CassetteError(f"has an outcome of an unknown kind: {', '.join(outcome) or 'none'}", path, line)


def map_payload(outcome: Outcome, change: Callable[[Any], Any]) -> Outcome:
    """The same outcome with its values, messages and chunks changed, and the rest left alone."""
    for form in ("value", "typed", "any"):
        if form in outcome:
            return {**outcome, form: change(outcome[form])}
    if "object" in outcome:
        name, plain = outcome["object"]
        return {**outcome, "object": [name, change(plain)]}
    if "error" in outcome:
        return {**outcome, "error": _map_error(outcome["error"], change)}
    if "stream" in outcome:
        stream = outcome["stream"]
        chunks = [map_payload(chunk, change) for chunk in stream["chunks"]]
        return {**outcome, "stream": {**stream, "chunks": chunks, "end": map_payload(stream["end"], change)}}
    return outcome


def _written(value: Any, schema: Schema) -> tuple[str, Any]:
    """The form of a value that is not JSON, and its plain data."""
    for form, writer in (("typed", schema), ("any", _ANY)):
        if form == "typed" and schema.annotation is Any:
            continue
        try:
            return form, writer.to_plain(value)
        except Unencodable:
            continue
    kind = type(value)
    name = _name_of(kind)
    if _registered.get(name) is kind:
        try:
            return "object", [name, schema_of(kind).to_plain(value)]
        except Unencodable:
            pass
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_fields)
        encode(plain)
    except Exception:  # noqa: BLE001 - reading a user's object may raise anything; then it cannot be written
        _warn(kind, "cannot be written; a replay of this call raises an error")
        return "unencodable", name
    _warn(kind, "is recorded as plain data; annotate what the function returns, or register the class, to have it back")
    return "value", plain


def _fields(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError


_warned: set[type] = set()


def _warn(kind: type, what: str) -> None:
    if kind not in _warned and len(_warned) < 1000:
        _warned.add(kind)
        _LOG.warning("recording: a value of type %s.%s %s", kind.__module__, kind.__qualname__, what)


# Exceptions

_MAX_CAUSES = 8
_MAX_MEMBERS = 100


def error_outcome(error: BaseException, redaction: Redaction) -> Outcome:
    """The redacted outcome of a call that raised this exception."""
    data = _error_data(error)
    if redaction.may_change(encode(data)):
        data = _map_error(data, redaction.apply)
    return {"error": data}


def read_error(data: dict[str, Any], module: str) -> BaseException:
    """The exception of an ``error`` outcome, of its own class if that may be used, else a `RecordedError`.

    Args:
        data: what stands under ``error``; see `Failure`.
        module: the module of the tool that raised it.
    """
    kind = _exception_named(str(data.get("type", "")), module)
    error = None if kind is None else _rebuilt(kind, data, module)
    if error is None:
        error = RecordedError(str(data.get("type", "")), str(data.get("message", "")))
    # Not `error.add_note` and not `raise ... from`: a frozen class may refuse both.
    for note in data.get("notes", ()):
        BaseException.__setattr__(error, "__notes__", [*getattr(error, "__notes__", ()), str(note)])
    if "cause" in data:
        BaseException.__setattr__(error, "__cause__", read_error(data["cause"], module))
    return error


def _error_data(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """An exception as plain data; see `Failure`. Never fails: parts that cannot be written are left out."""
    data: dict[str, Any] = {"type": _name_of(type(error)), "message": _message(error)}
    if isinstance(error, BaseExceptionGroup):
        data["group"] = (
            [_error_data(member, depth + 1) for member in error.exceptions[:_MAX_MEMBERS]]
            if depth < _MAX_CAUSES
            else []
        )
        data["message"] = error.message
    else:
        arguments = _part_data(_constructor_arguments(error))
        if arguments is not None:
            data["args"] = arguments
    state = {name: value for name, value in vars(error).items() if name != "__notes__"}
    written = {name: found for name, value in state.items() if (found := _part_data(value)) is not None}
    if written:
        data["state"] = written
    notes = getattr(error, "__notes__", None)
    if notes and isinstance(notes, list):
        data["notes"] = [note for note in notes if isinstance(note, str)]
    if error.__cause__ is not None and depth < _MAX_CAUSES:
        data["cause"] = _error_data(error.__cause__, depth + 1)
    return data


def _map_error(data: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The same with message, arguments, notes and attributes changed, and the class left alone."""
    changed = {**data, "message": change(data.get("message", ""))}
    for part in ("args", "notes", "state"):
        if part in data:
            changed[part] = change(data[part])
    if "cause" in data:
        changed["cause"] = _map_error(data["cause"], change)
    if "group" in data:
        changed["group"] = [_map_error(member, change) for member in data["group"]]
    return changed


def _rebuilt(kind: type[BaseException], data: dict[str, Any], module: str) -> BaseException | None:
    try:
        if "group" in data:
            if not issubclass(kind, BaseExceptionGroup):
                return None
            error: BaseException = kind(data["message"], [read_error(member, module) for member in data["group"]])
        else:
            arguments = _read_part(data["args"]) if "args" in data else [data.get("message", "")]
            error = _new_error(kind, tuple(arguments))
        vars(error).update({name: _read_part(value) for name, value in data.get("state", {}).items()})
    except Exception:  # noqa: BLE001 - a class that has changed since, or a file that was edited
        return None
    return error


def _new_error(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Make an exception without running a user's constructor: its parameters are unknown, its effect is the state."""
    base: type[BaseException] = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    error: BaseException = base.__new__(kind, *arguments)
    base.__init__(error, *arguments)
    if not isinstance(error, OSError):  # its constructor keeps two of its arguments
        BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]  # a frozen one refuses `error.args =`
    return error


def _constructor_arguments(error: BaseException) -> list[Any]:
    """The arguments that make a builtin exception: of an `OSError` these are more than its ``args``."""
    if isinstance(error, OSError):
        try:
            made_from = error.__reduce__()[1]
        except Exception:  # noqa: BLE001 - a user's subclass
            made_from = None
        if isinstance(made_from, tuple):
            return list(made_from)
    return list(BaseException.args.__get__(error))  # type: ignore[attr-defined]  # a class may have another `args`


def _message(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - a user's __str__
        return ""


def _part_data(value: Any) -> Any:
    """An argument or attribute of an exception as plain data, with a tag unless it is JSON. None if it has none."""
    exact = exact_json(value)
    if exact is not None and b'"$' not in exact[0] and value is not None:
        return exact[1]
    try:
        return {"$any": _ANY.to_plain(value)}
    except Exception:  # noqa: BLE001 - reading a user's object may raise anything; then it is left out
        return None


def _read_part(data: Any) -> Any:
    if isinstance(data, dict) and len(data) == 1 and "$any" in data:
        return _ANY.from_plain(data["$any"])
    return data


# Chunks of streams

_Place: TypeAlias = tuple[Any, str | int]
"""The container of a text, and its key or index there."""


def redact_chunks(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    """The outcomes of the chunks of a stream without secrets, also without those that go over several chunks.

    Texts in the same place of each chunk, such as the words of an answer, are read as one. The replacement of a secret
    stands in the first chunk that has a part of it; the other parts are removed.
    """
    if len(chunks) > 1:
        chunks = _redact_joined(chunks, redaction)
    return [_redact_chunk(chunk, redaction) for chunk in chunks]


def _redact_chunk(chunk: Outcome, redaction: Redaction) -> Outcome:
    raw = encode(chunk)
    return map_payload(decode(raw), redaction.apply) if redaction.may_change(raw) else chunk


def _redact_joined(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    read: list[Outcome] = [decode(encode(chunk)) for chunk in chunks]
    texts: dict[tuple[str | int, ...], list[_Place]] = {}
    for chunk in read:
        for path, place in _texts(chunk, ()):
            texts.setdefault(path, []).append(place)
    is_changed = False
    for places in texts.values():
        parts = [holder[at] for holder, at in places]
        if len(set(parts)) > 1 and _redact_parts(places, parts, redaction):
            is_changed = True
    return read if is_changed else chunks


def _redact_parts(places: list[_Place], parts: list[str], redaction: Redaction) -> bool:
    """Redact a text that is split into these parts. False if every secret in it stands in one part alone."""
    text = "".join(parts)
    clean = redaction.text(text)
    if clean == text or clean == "".join(map(redaction.text, parts)):
        return False
    first = _common_length(text, clean)
    last = len(text) - _common_length(text[first:][::-1], clean[first:][::-1])
    instead, begin = clean[first : len(clean) - (len(text) - last)], 0
    for (holder, at), part in zip(places, parts, strict=True):
        end = begin + len(part)
        if begin < last and end > first:
            holder[at] = part[: max(0, first - begin)] + instead + part[max(0, last - begin) :]
            instead = ""
        begin = end
    return True


def _common_length(one: str, other: str) -> int:
    """How many characters two texts have in common at the beginning."""
    count = min(len(one), len(other))
    return next((at for at in range(count) if one[at] != other[at]), count)


def _texts(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], _Place]]:
    pairs = data.items() if type(data) is dict else enumerate(data) if type(data) is list else ()
    for name, value in pairs:
        if type(value) is str:
            yield (*path, name), (data, name)
        else:
            yield from _texts(value, (*path, name))


# Shape of an outcome in a file, which may have been edited


class Failure(msgspec.Struct):
    """An exception under ``error``.

    Attributes:
        type: ``module:qualname`` of its class.
        message: its text.
        args: arguments of its constructor; ``{"$any": ...}`` if they are not JSON.
        state: its attributes.
        notes: of `BaseException.add_note`.
        cause: the exception it was raised from.
        group: members of an exception group.
    """

    type: str = ""
    message: str = ""
    args: list[Any] | dict[str, Any] = []
    state: dict[str, Any] = {}
    notes: list[str] = []
    cause: Failure | None = None
    group: list[Failure] = []


class Stream(msgspec.Struct):
    """The chunks of a generator, or of a function that returned one, under ``stream``.

    Attributes:
        chunks: an outcome each.
        end: the outcome of its end.
        plain: whether it was not awaited.
    """

    chunks: list[dict[str, Any]]
    end: dict[str, Any]
    plain: bool = False


class _Parts(msgspec.Struct):
    error: Failure | None = None
    stream: Stream | None = None
    instead: tuple[str, str] | None = None
    loops: list[tuple[str, str, Annotated[int, msgspec.Meta(ge=0)]]] = []
    awaited: bool = False


def check_outcome(outcome: Outcome) -> None:
    """Check that an outcome can be taken apart. Values are checked when they are read.

    Raises:
        msgspec.ValidationError: if it cannot, with the place in the line.
    """
    stream = msgspec.convert(outcome, _Parts).stream
    if stream is not None:
        check_outcome(stream.end)
