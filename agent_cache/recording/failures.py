"""Exceptions as plain data and back: class, arguments, message, attributes, notes, cause, members of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_cache.errors import RecordedError
from agent_cache.recording.classes import exception_named, name_of
from agent_cache.values.schema import schema_of
from agent_cache.values.tagged import exact_json

__all__ = ["failure_of", "raised_from"]

MAX_CAUSES = 8
MAX_MEMBERS = 100

_ANY = schema_of(Any)


def failure_of(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """An exception as plain data. Never fails: what cannot be written down is left out, and the message stays."""
    data: dict[str, Any] = {"type": name_of(type(error)), "message": _message(error)}
    if isinstance(error, BaseExceptionGroup):
        data["group"] = (
            [failure_of(member, depth + 1) for member in error.exceptions[:MAX_MEMBERS]] if depth < MAX_CAUSES else []
        )
        data["message"] = error.message
    else:
        arguments = _written(_constructor_arguments(error))
        if arguments is not None:
            data["args"] = arguments
    state = {name: value for name, value in vars(error).items() if name != "__notes__"}
    written = {name: found for name, value in state.items() if (found := _written(value)) is not None}
    if written:
        data["state"] = written
    notes = getattr(error, "__notes__", None)
    if notes and isinstance(notes, list):
        data["notes"] = [note for note in notes if isinstance(note, str)]
    if error.__cause__ is not None and depth < MAX_CAUSES:
        data["cause"] = failure_of(error.__cause__, depth + 1)
    return data


def raised_from(data: dict[str, Any], module: str) -> BaseException:
    """The exception that `failure_of` wrote, of its own class if that may be used here, else a `RecordedError`.

    Args:
        data: what was recorded.
        module: the module of the tool that raised it.
    """
    kind = exception_named(str(data.get("type", "")), module)
    error = None if kind is None else _rebuilt(kind, data, module)
    if error is None:
        error = RecordedError(str(data.get("type", "")), str(data.get("message", "")))
    for note in data.get("notes", ()):
        BaseException.__setattr__(error, "__notes__", [*getattr(error, "__notes__", ()), str(note)])
    if "cause" in data:
        BaseException.__setattr__(error, "__cause__", raised_from(data["cause"], module))
    return error


def map_failure(data: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The same with what the exception carried changed, and what describes it left alone."""
    changed = {**data, "message": change(data.get("message", ""))}
    for part in ("args", "notes"):
        if part in data:
            changed[part] = change(data[part])
    if "state" in data:
        changed["state"] = change(data["state"])
    if "cause" in data:
        changed["cause"] = map_failure(data["cause"], change)
    if "group" in data:
        changed["group"] = [map_failure(member, change) for member in data["group"]]
    return changed


def _rebuilt(kind: type[BaseException], data: dict[str, Any], module: str) -> BaseException | None:
    try:
        if "group" in data:
            if not issubclass(kind, BaseExceptionGroup):
                return None
            error: BaseException = kind(data["message"], [raised_from(member, module) for member in data["group"]])
        else:
            arguments = _read(data["args"]) if "args" in data else [data.get("message", "")]
            error = _made(kind, tuple(arguments))
        vars(error).update({name: _read(value) for name, value in data.get("state", {}).items()})
    except Exception:  # noqa: BLE001 - a class that has changed since, or a file that was edited
        return None
    return error


def _made(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Without the constructor of a class of the user's: it takes what it likes, and its work stands in the state."""
    base: type[BaseException] = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    error: BaseException = base.__new__(kind, *arguments)
    base.__init__(error, *arguments)
    if not isinstance(error, OSError):  # its constructor keeps two of its arguments
        BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]  # a frozen one refuses `error.args =`
    return error


def _constructor_arguments(error: BaseException) -> list[Any]:
    """What a builtin exception is made from: of an `OSError` that is more than its ``args``."""
    if isinstance(error, OSError):
        try:
            made_from = error.__reduce__()[1]
        except Exception:  # noqa: BLE001 - somebody's subclass
            made_from = None
        if isinstance(made_from, tuple):
            return list(made_from)
    return list(BaseException.args.__get__(error))  # type: ignore[attr-defined]  # a class may have another `args`


def _message(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - somebody's __str__
        return ""


def _written(value: Any) -> Any:
    """Plain data that says what it is; None if there is none."""
    exact = exact_json(value)
    if exact is not None and b'"$' not in exact[0] and value is not None:
        return exact[1]
    try:
        return {"$any": _ANY.to_plain(value)}
    except Exception:  # noqa: BLE001 - not to be written down, for whatever reason
        return None


def _read(data: Any) -> Any:
    if isinstance(data, dict) and len(data) == 1 and "$any" in data:
        return _ANY.from_plain(data["$any"])
    return data
