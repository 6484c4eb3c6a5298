"""Exceptions as plain data and back: class, arguments, attributes, cause, notes and groups.

An exception comes back as itself if its class is a builtin, was registered, or is found under its name in a module that
the program has imported, and it then says what the original said. No name that is found in a cassette is ever imported,
and no constructor of a user's class is run. Any other exception becomes a `RecordedError` which is also of that class,
if it is known, or of the nearest builtin class that the original derives from.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import types
from email.message import Message
from typing import Any

from agent_cache.errors import RecordedError, recorded_error
from agent_cache.recording.outcomes import REGISTERED, encode, exact_json, name_of, schema_of
from agent_cache.recording.redaction import Redaction, redact_error
from agent_cache.values.canonical import attributes_of
from agent_cache.values.compare import utf8_text
from agent_cache.values.typed import Unencodable, hints_of

_ANY = schema_of(Any)
_MAX_DEPTH = 8  # exceptions that are written within each other: causes, members of groups, attributes
_VALIDATION_ERROR = "pydantic_core._pydantic_core:ValidationError"  # only its own constructor makes one
_HTTP_ERROR = "urllib.error:HTTPError"  # it is a file, too, which may be read once: it comes back empty


# Writing


def error_outcome(error: BaseException, redaction: Redaction) -> dict[str, Any]:
    """The redacted outcome of a call that raised this exception."""
    data = error_data(error)
    return {"error": redact_error(data, redaction) if redaction.may_change(encode(data)) else data}


def error_data(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """An exception as plain data; see `outcomes.Failure`. Never fails: parts that cannot be written are left out."""
    kind = type(error)
    base = _builtin_base(kind)
    data: dict[str, Any] = {"type": name_of(kind), "message": _message(error)}
    if isinstance(error, RecordedError):  # of a replay inside of this recording
        base = _builtin_base(kind.__bases__[-1])
        data = {"type": error.type_name, "message": vars(error)["message"]}
    elif isinstance(error, BaseExceptionGroup):
        members = error.exceptions if depth < _MAX_DEPTH else ()
        data |= {"group": [error_data(member, depth + 1) for member in members], "message": error.message}
    else:
        data |= _parts(error, depth)
    if base is not kind and base is not Exception:
        data["base"] = base.__name__
    notes = vars(error).get("__notes__")
    if isinstance(notes, list) and notes:
        data["notes"] = [note for note in notes if isinstance(note, str)]
    if error.__cause__ is not None and depth < _MAX_DEPTH:
        data["cause"] = error_data(error.__cause__, depth + 1)
    if type(read_error(data)) is not kind:
        data["unknown"] = True
    return data


def _parts(error: Any, depth: int) -> dict[str, Any]:
    """The arguments and attributes of an exception."""
    if name_of(type(error)) == _VALIDATION_ERROR:
        return {"state": {"title": error.title, "errors": list(map(_detail, error.errors(include_url=False)))}}
    data: dict[str, Any] = {}
    arguments = BaseException.args.__get__(error)  # type: ignore[attr-defined]  # a class may have another `args`
    if isinstance(error, OSError):  # it has more than its `args`
        with contextlib.suppress(Exception):  # a user's subclass
            arguments = error.__reduce__()[1]
    if (written := _written(list(arguments), depth)) is not None:
        data["args"] = written
    hints = hints_of(type(error))
    kept = {name: value for name, value in attributes_of(error).items() if name != "__notes__"}
    state = {name: _written(value, depth, hints.get(name, Any)) for name, value in kept.items()}
    if found := {name: part for name, part in state.items() if part is not None}:
        data["state"] = found
    if len(found) < len(state):
        data["unknown"] = True
    return data


def _detail(found: dict[str, Any]) -> dict[str, Any]:
    """One error of a validation. Its input is under its name, by which secrets are known."""
    name = str(found["loc"][-1]) if found["loc"] else ""
    detail = {"type": found["type"], "loc": found["loc"], "input": {name: _written(found["input"])}}
    if "ctx" in found:
        detail["ctx"] = {key: _written(each) for key, each in found["ctx"].items()}
    return detail


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
    """The exception of an ``error`` outcome, of its own class if that is known, else a `RecordedError`."""
    kind = _exception_named(str(data.get("type", "")))
    error: BaseException | None = None
    if kind is not None:
        with contextlib.suppress(Exception):  # a class that has changed since, or a file that was edited
            error = _rebuilt(kind, data)
            if "group" not in data and _message(error) != data.get("message", ""):
                error = None
    if error is None:
        error = _unknown_error(data, kind)
        with contextlib.suppress(Exception):  # likewise
            vars(error).update({name: _read(part) for name, part in data.get("state", {}).items()} | vars(error))
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


def _unknown_error(data: dict[str, Any], kind: type[BaseException] | None) -> RecordedError:
    name, message = str(data.get("type", "")), str(data.get("message", ""))
    for base in (kind, getattr(builtins, str(data.get("base", "")), None)):
        if isinstance(base, type) and issubclass(base, BaseException):
            with contextlib.suppress(Exception):  # a class that cannot have others below it, or an edited file
                return recorded_error(name, message, base, [read_error(member) for member in data.get("group", ())])
    return RecordedError(name, message)


def _rebuilt(kind: Any, data: dict[str, Any]) -> BaseException:
    state, error = data.get("state", {}), None
    if data["type"] == _VALIDATION_ERROR:
        error = kind.from_exception_data(state["title"], list(map(_line_error, state["errors"])))
        _set_args(error, ())  # as pydantic's own has them
        return error  # type: ignore[no-any-return]  # a class that was found by name
    if "group" in data:
        error = kind(data["message"], [read_error(member) for member in data["group"]])
    elif of_urllib := [base for base in kind.__mro__ if name_of(base) == _HTTP_ERROR]:
        error = kind.__new__(kind)
        of_urllib[0].__init__(error, "", 0, "", Message(), io.BytesIO())
    else:
        # No constructor of a user's runs: its parameters are unknown, and its effect is the state.
        base, arguments = _builtin_base(kind), tuple(_read(data.get("args", [data.get("message", "")])))
        error = base.__new__(kind, *arguments)
        base.__init__(error, *arguments)
        if not isinstance(error, OSError):  # its constructor keeps two of its arguments
            _set_args(error, arguments)
    hints = hints_of(kind)
    for name, part in state.items():
        slot, value = getattr(kind, name, None), _read(part, hints.get(name, Any))
        if isinstance(slot, types.MemberDescriptorType):
            slot.__set__(error, value)
        else:
            vars(error)[name] = value
    return error  # type: ignore[no-any-return]  # as above


def _line_error(detail: dict[str, Any]) -> dict[str, Any]:
    """One error of a validation, as the constructor takes it."""
    error = {"type": detail["type"], "loc": tuple(detail["loc"]), "input": _read(*detail["input"].values())}
    context = {key: _read(each) for key, each in detail.get("ctx", {}).items()}
    return {**error, "ctx": context} if context else error


def _set_args(error: BaseException, arguments: tuple[Any, ...]) -> None:
    BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]  # a frozen one refuses `error.args =`


# Arguments and attributes


def _written(value: Any, depth: int = 0, hint: Any = Any) -> Any:
    """An argument or attribute as plain data, with a tag unless it is JSON. None if it cannot be written."""
    exact = exact_json(value)
    if exact is not None and b'"$' not in exact[0] and value is not None:
        return exact[1]
    with contextlib.suppress(Exception):  # reading a user's object may raise anything; then it is left out
        if isinstance(value, BaseException):
            return {"$error": error_data(value, depth + 1)} if depth < _MAX_DEPTH else None
        if type(value) is list and any(isinstance(each, BaseException) for each in value):
            parts = [_written(each, depth) for each in value]  # as the arguments of an error that wraps another one
            return None if None in parts else {"$list": parts}
        if any(one.__module__.startswith("urllib3.connection") for one in type(value).__mro__):
            return {"$any": None}  # a replay has no connection
        if (found := _http_data(value)) is not None:
            return found
        for tag, schema in (("$any", _ANY), ("$typed", schema_of(hint))):
            with contextlib.suppress(Unencodable):
                return {tag: schema.to_plain(value)}
    return None


def _read(data: Any, hint: Any = Any) -> Any:
    match data:
        case {"$any": content}:
            return _ANY.from_plain(content)
        case {"$typed": content}:
            return schema_of(hint).from_plain(content)
        case {"$error": content}:
            return read_error(content)
        case {"$list": list() as members}:
            return list(map(_read, members))
        case {"$http": [str() as library, str() as kind, dict() as fields]}:
            return _read_http(library, kind, fields)
        case _:
            return data


# Requests and responses of httpx, which its exceptions and those of model providers' clients have

_HTTP_LIBRARIES = frozenset({"httpx", "httpx2"})
_OF_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers about the form in which the content was sent. It is recorded as it was read."""


def _http_data(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    if library not in _HTTP_LIBRARIES or getattr(sys.modules.get(library), kind.__name__, None) is not kind:
        return None
    if kind.__name__ == "Request":  # its headers are credentials for the most part
        return {"$http": [library, "Request", {"method": value.method, "url": str(value.url)}]}
    fields = {
        "status_code": value.status_code,
        "headers": {name: text for name, text in value.headers.items() if name not in _OF_TRANSFER},
        "content": value.text if value.is_stream_consumed or value.is_closed else "",
        "request": None if value._request is None else _http_data(value._request),
    }
    return {"$http": [library, "Response", fields]}


def _read_http(library: str, kind: str, fields: dict[str, Any]) -> Any:
    """Raises LookupError if the program has not imported the library."""
    module = sys.modules[library if library in _HTTP_LIBRARIES else ""]
    if kind == "Request":
        return module.Request(**fields)
    return module.Response(**{**fields, "request": _read(fields["request"])})
