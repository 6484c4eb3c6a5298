"""Exceptions as plain data and back: class, arguments, attributes, cause, notes and groups.

An exception comes back as itself if its class is a builtin, was registered, or is found under its name in a module that
the program has imported. No name that is found in a cassette is ever imported, and no constructor is run that does not
belong to the standard library, pydantic, httpx or aiohttp. Any other exception becomes a `RecordedError` which is of
the nearest builtin class that the original derives from.
"""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable, Iterator
from types import MemberDescriptorType
from typing import Any, Final

from agent_cache.errors import RecordedError, recorded_error
from agent_cache.recording.outcomes import REGISTERED, encode, exact_json, name_of, schema_of
from agent_cache.recording.redaction import Redaction, redact_error
from agent_cache.values.compare import utf8_text
from agent_cache.values.typed import hints_of

__all__ = ["error_data", "error_outcome", "error_text", "read_error"]

_ANY = schema_of(Any)
_MAX_DEPTH = 8
"""Exceptions that are written within each other: causes, members of groups, attributes."""
_MAX_MEMBERS = 100
_NATIVE_SLOTS = {AttributeError: ("name",), ImportError: ("name", "path"), NameError: ("name",)}
"""What builtin exceptions have that is no argument of theirs. The object of an `AttributeError` may be anything."""


# Writing


def error_outcome(error: BaseException, redaction: Redaction) -> dict[str, Any]:
    """The redacted outcome of a call that raised this exception."""
    data = error_data(error)
    return {"error": redact_error(data, redaction) if redaction.may_change(encode(data)) else data}


def error_text(error: BaseException, redaction: Redaction) -> str:
    """The text of an exception without secrets, also those that only its arguments give away."""
    return str(error_outcome(error, redaction)["error"]["message"])


def error_data(error: BaseException) -> dict[str, Any]:
    """An exception as plain data; see `outcomes.Failure`. Never fails: parts that cannot be written are left out."""
    data = _error_data(error, 0)
    _mark_unknown(error, data)
    return data


def _mark_unknown(error: BaseException, data: dict[str, Any]) -> None:
    """Mark an exception, and members of a group, that come back as another class, or do not say the same.

    Those without an attribute that cannot be written are marked already.
    """
    back = read_error(data)
    if type(back) is not type(error) or _message(back) != _message(error):
        data["unknown"] = True
    if isinstance(error, BaseExceptionGroup):
        for member, written in zip(error.exceptions, data["group"], strict=False):
            _mark_unknown(member, written)


def _error_data(error: BaseException, depth: int) -> dict[str, Any]:
    kind = type(error)
    base = _builtin_base(kind)
    data: dict[str, Any] = {"type": name_of(kind), "message": _message(error)}
    if isinstance(error, RecordedError):  # of a replay inside of this recording
        base = kind.__bases__[-1]
        data = {"type": error.type_name, "message": vars(error)["message"]}
    if base is not kind and base is not Exception:
        data["base"] = base.__name__
    if isinstance(error, BaseExceptionGroup):
        members = error.exceptions[:_MAX_MEMBERS] if depth < _MAX_DEPTH else ()
        data["group"] = [_error_data(member, depth + 1) for member in members]
        data["message"] = error.message
    if isinstance(error, RecordedError):
        return data
    special = _SPECIAL.get(data["type"])
    if special is None or not _write_special(error, special[0], data, depth):
        _write_parts(error, data, depth)
        special = None
    notes = getattr(error, "__notes__", None) if special is None else vars(error).get("__notes__")
    if notes and isinstance(notes, list):
        data["notes"] = [note for note in notes if isinstance(note, str)]
    if error.__cause__ is not None and depth < _MAX_DEPTH:
        data["cause"] = _error_data(error.__cause__, depth + 1)
    return data


def _write_special(error: BaseException, state_of: _StateOf, data: dict[str, Any], depth: int) -> bool:
    try:
        data["state"] = state_of(error, depth)
    except Exception:  # noqa: BLE001 - a version of the library that has another way: it is written as any other
        return False
    return True


def _write_parts(error: BaseException, data: dict[str, Any], depth: int) -> None:
    """Write arguments and attributes."""
    if "group" not in data and (arguments := _written(_constructor_arguments(error), Any, depth)) is not None:
        data["args"] = arguments
    hints = hints_of(type(error))
    state = {name: _written(value, hints.get(name, Any), depth) for name, value in _state(error)}
    if written := {name: found for name, found in state.items() if found is not None}:
        data["state"] = written
    if len(written) < len(state):
        data["unknown"] = True


def _state(error: BaseException) -> Iterator[tuple[str, Any]]:
    """The attributes of an exception, those in slots included."""
    for name, value in vars(error).items():
        if name != "__notes__":
            yield name, value
    for name, slot in _slots(type(error)).items():
        try:
            value = slot.__get__(error)
        except AttributeError:
            continue
        if value is not None or slot.__objclass__ not in _NATIVE_SLOTS:
            yield name, value


def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    natives = {
        name: vars(base)[name] for base, names in _NATIVE_SLOTS.items() if issubclass(kind, base) for name in names
    }
    own = kind.__mro__[: kind.__mro__.index(_builtin_base(kind))]
    pairs = ((name, slot) for base in reversed(own) for name, slot in vars(base).items())
    return {**{name: slot for name, slot in pairs if isinstance(slot, MemberDescriptorType)}, **natives}


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
        return utf8_text(str(error))
    except Exception:  # noqa: BLE001 - a user's __str__
        return ""


def _builtin_base(kind: type) -> type[BaseException]:
    found: type[BaseException] = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    return found


# Reading


def read_error(data: dict[str, Any]) -> BaseException:
    """The exception of an ``error`` outcome, of its own class if that is known, else a `RecordedError`.

    Args:
        data: what stands under ``error``; see `outcomes.Failure`.
    """
    kind = _exception_named(str(data.get("type", "")))
    error = None if kind is None else _rebuilt(kind, data)
    if error is None:
        error = _unknown_error(data)
    # Not `error.add_note` and not `raise ... from`: a frozen class may refuse both.
    if notes := [str(note) for note in data.get("notes", ())]:
        BaseException.__setattr__(error, "__notes__", notes)
    if "cause" in data:
        BaseException.__setattr__(error, "__cause__", read_error(data["cause"]))
    return error


def _exception_named(name: str) -> type[BaseException] | None:
    """The exception class of this name if it is known here."""
    found: Any = REGISTERED.get(name)
    if found is None:
        where, _, path = name.partition(":")
        found = sys.modules.get(where)
        for part in path.split("."):
            found = vars(found).get(part) if hasattr(found, "__dict__") else None
        if getattr(found, "__module__", None) != where:
            return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _unknown_error(data: dict[str, Any]) -> RecordedError:
    name, message = str(data.get("type", "")), str(data.get("message", ""))
    base = getattr(builtins, str(data.get("base", "")), None)
    if isinstance(base, type) and issubclass(base, BaseException):
        try:
            return recorded_error(name, message, base, [read_error(member) for member in data.get("group", ())])
        except TypeError:  # a file that was edited: the members are not of that group
            pass
    return RecordedError(name, message)


def _rebuilt(kind: type[BaseException], data: dict[str, Any]) -> BaseException | None:
    state = data.get("state", {})
    try:
        special = _SPECIAL.get(name_of(kind))
        if special is not None and "args" not in data:
            return special[1](kind, state)
        if "group" in data:
            if not issubclass(kind, BaseExceptionGroup):
                return None
            error: BaseException = kind(data["message"], [read_error(member) for member in data["group"]])
        else:
            error = _new_error(kind, tuple(_read(data["args"], Any) if "args" in data else [data.get("message", "")]))
        hints, slots = hints_of(kind), _slots(kind)
        for name, part in state.items():
            value = _read(part, hints.get(name, Any))
            if name in slots:
                slots[name].__set__(error, value)
            else:
                vars(error)[name] = value
    except Exception:  # noqa: BLE001 - a class that has changed since, or a file that was edited
        return None
    return error


def _new_error(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Make an exception without running a user's constructor: its parameters are unknown, its effect is the state."""
    base = _builtin_base(kind)
    error: BaseException = base.__new__(kind, *arguments)
    base.__init__(error, *arguments)
    if not isinstance(error, OSError):  # its constructor keeps two of its arguments
        _set_args(error, arguments)
    return error


def _set_args(error: BaseException, arguments: tuple[Any, ...]) -> None:
    BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]  # a frozen one refuses `error.args =`


# Arguments and attributes


def _written(value: Any, hint: Any, depth: int) -> Any:
    """An argument or attribute as plain data, with a tag unless it is JSON. None if it cannot be written.

    Args:
        value: the argument or attribute.
        hint: how the class of the exception annotates it.
        depth: how many exceptions it is in.
    """
    exact = exact_json(value)
    if exact is not None and b'"$' not in exact[0] and value is not None:
        return exact[1]
    if isinstance(value, BaseException):
        return {"$error": _error_data(value, depth + 1)} if depth < _MAX_DEPTH else None
    if type(value) is list and any(isinstance(each, BaseException) for each in value):
        parts = [_written(each, Any, depth) for each in value]
        return None if None in parts else {"$list": parts}
    for tag, schema in (("$any", _ANY), ("$typed", schema_of(hint))):
        try:
            return {tag: schema.to_plain(value)}
        except Exception:  # noqa: BLE001, S112 - reading a user's object may raise anything; then it is left out
            continue
    try:
        return _http_data(value)
    except Exception:  # noqa: BLE001 - as above: a response that was not read, for instance
        return None


def _read(data: Any, hint: Any) -> Any:
    if not isinstance(data, dict) or len(data) != 1:
        return data
    [(tag, content)] = data.items()
    match tag:
        case "$any":
            return _ANY.from_plain(content)
        case "$typed":
            return schema_of(hint).from_plain(content)
        case "$error":
            return read_error(content)
        case "$list":
            return [_read(each, Any) for each in content]
        case "$http":
            return _read_http(*content)
        case _:
            return data


# Requests and responses of httpx, which its exceptions and those of model providers' clients have

_HTTP_LIBRARIES = frozenset({"httpx", "httpx2"})
_OF_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers about the form in which the content was sent. It is recorded as it was read."""


def _http_data(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    is_known = library in _HTTP_LIBRARIES and getattr(sys.modules.get(library), kind.__name__, None) is kind
    if not is_known or kind.__name__ not in {"Request", "Response"}:
        return None
    if kind.__name__ == "Request":  # its headers are credentials for the most part
        return {"$http": [library, "Request", {"method": value.method, "url": str(value.url)}]}
    try:
        content = value.content
    except Exception:  # noqa: BLE001 - a stream that was not read
        content = b""
    request = getattr(value, "_request", None)
    fields = {
        "status_code": value.status_code,
        "headers": {name: text for name, text in value.headers.items() if name not in _OF_TRANSFER},
        "content": _text_or(content),
        "request": None if request is None else _http_data(request),
    }
    return {"$http": [library, "Response", fields]}


def _text_or(content: bytes) -> Any:
    """Text where the bytes are text, so that secrets in it are found."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"$any": _ANY.to_plain(content)}


def _read_http(library: str, kind: str, data: dict[str, Any]) -> Any:
    """Raises LookupError if the program has not imported the library."""
    if library not in _HTTP_LIBRARIES:
        raise LookupError(library)
    module = sys.modules[library]
    if kind == "Request":
        return module.Request(data["method"], data["url"])
    request = None if data["request"] is None else _read(data["request"], Any)
    content = _read(data["content"], Any)
    return module.Response(data["status_code"], headers=data["headers"], content=content, request=request)


# Exceptions that only their own constructor makes: what is written of each, and how it is made of that

_StateOf = Callable[[Any, int], dict[str, Any]]
_Make = Callable[[Any, dict[str, Any]], BaseException]


def _validation_state(error: Any, depth: int) -> dict[str, Any]:
    details = []
    for found in error.errors(include_url=False):
        name = str(found["loc"][-1]) if found["loc"] else ""
        detail = {
            "type": found["type"],
            "loc": list(found["loc"]),
            "msg": found["msg"],
            "input": {name: _written(found["input"], Any, depth)},  # under its name, by which secrets are known
        }
        if "ctx" in found:
            detail["ctx"] = {key: _written(each, Any, depth) for key, each in found["ctx"].items()}
        details.append(detail)
    return {"title": error.title, "errors": details}


def _make_validation_error(kind: Any, state: dict[str, Any]) -> BaseException:
    custom = sys.modules["pydantic_core"].PydanticCustomError
    details = []
    for one in state["errors"]:
        [given] = one["input"].values()
        detail = {"type": one["type"], "loc": tuple(one["loc"]), "input": _read(given, Any)}
        context = {key: _read(each, Any) for key, each in one.get("ctx", {}).items()}
        known = {**detail, "ctx": context} if context else detail
        try:
            [made] = kind.from_exception_data("", [known]).errors()
        except (KeyError, TypeError, ValueError):
            made = {}
        is_same = made.get("msg") == one["msg"]  # else it is of a validator's own
        details.append(known if is_same else {**detail, "type": custom(one["type"], one["msg"], context or None)})
    error: BaseException = kind.from_exception_data(state["title"], details)
    _set_args(error, ())  # as pydantic's own has them
    return error


def _make_http_error(kind: Any, state: dict[str, Any]) -> BaseException:
    from email.message import Message

    headers = Message()
    for name, text in state["headers"]:
        headers[name] = text
    error: BaseException = kind(state["url"], state["code"], state["msg"], headers, io.BytesIO())
    return error


_OF_CONNECTION = ("host", "port", "is_ssl")


def _connector_error_state(error: Any, depth: int) -> dict[str, Any]:
    state = {name: getattr(error.args[0], name) for name in _OF_CONNECTION}
    if not all(isinstance(value, str | int | None) for value in state.values()):
        raise TypeError(state)
    return {**state, "os_error": _written(error.args[1], Any, depth)}


def _make_connector_error(kind: Any, state: dict[str, Any]) -> BaseException:
    keys: Any = sys.modules["aiohttp.client_reqrep"]
    known = {"ssl": True, **{name: state[name] for name in _OF_CONNECTION}}
    key = keys.ConnectionKey(**{**dict.fromkeys(keys.ConnectionKey._fields), **known})
    error: BaseException = kind(key, _read(state["os_error"], Any))
    return error


def _make_incomplete_read(kind: Any, state: dict[str, Any]) -> BaseException:
    partial = _read(state["partial"], Any)
    error: BaseException = kind(partial.encode() if isinstance(partial, str) else partial, state["expected"])
    return error


_SPECIAL: Final[dict[str, tuple[_StateOf, _Make]]] = {
    "pydantic_core._pydantic_core:ValidationError": (_validation_state, _make_validation_error),
    "urllib.error:HTTPError": (
        lambda error, _: {
            "url": error.filename, "code": error.code, "msg": error.msg, "headers": [*map(list, error.headers.items())]
        },
        _make_http_error,
    ),
    "http.client:IncompleteRead": (
        lambda error, _: {"partial": _text_or(error.partial), "expected": error.expected}, _make_incomplete_read
    ),
    **{
        f"aiohttp.client_exceptions:Client{name}Error": (_connector_error_state, _make_connector_error)
        for name in ("Connector", "ConnectorDNS", "ProxyConnection", "ConnectorSSL", "ConnectorCertificate")
    },
}  # fmt: skip
