"""The arguments of a call as its tool gets them: a model sends ``"07"``, and the tool gets 7.

Two spellings of one value have to name the same tags, else a write by one of them would miss what was read by the
other. So keys and tags are made of what the framework's own validation gives, as far as that is plain data.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

Check = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Gives the checked value of each argument. Raises if the tool would refuse them."""

SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_TEXTS: Final = (UUID, Decimal)
_MOMENTS: Final = (datetime, date, time)


def as_tool_gets(check: Check | None, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a tool gets them. Those that it will refuse stay as they are."""
    if check is None:
        return given
    try:
        return as_checked(check(given), given)
    except Exception:  # noqa: BLE001 - a user's validator may raise anything; the tool will raise it again
        return given


def as_checked(checked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments with their checked values, where these are plain."""
    return {name: plain(checked[name], value) if name in checked else value for name, value in given.items()}


def plain(value: Any, given: Any) -> Any:
    """A checked value as JSON; as it was given where that could make one of two values, as of two of `SecretStr`."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind in _TEXTS:
        return str(value)
    if kind in _MOMENTS:
        return value.isoformat()
    if kind is timedelta:
        return value.total_seconds()
    if isinstance(value, Enum) and type(value.value) in SCALARS:
        return value.value
    if kind in (list, tuple) and isinstance(given, list | tuple) and len(value) == len(given):
        return [plain(one, other) for one, other in zip(value, given, strict=True)]
    if isinstance(given, Mapping):
        fields = value if kind is dict else vars(value) if _is_record(kind) else {}
        return as_checked(fields, given)
    return given


def _is_record(kind: type) -> bool:
    return hasattr(kind, "__pydantic_fields__") or (is_dataclass(kind) and not hasattr(kind, "__slots__"))


def check_of(function: Callable[..., Any]) -> Check | None:
    """What pydantic makes of the arguments of a function by its hints; None where that cannot be known, or nothing."""
    from pydantic import TypeAdapter

    try:
        hints = {
            name: hint
            for name, hint in typing.get_type_hints(function, include_extras=True).items()
            if name != "return"
        }
        signature = inspect.signature(function)
        collect: Any = _collecting(signature)
        collect.__signature__ = signature.replace(return_annotation=inspect.Signature.empty)
        collect.__annotations__ = hints
        adapter = TypeAdapter(collect)
    except Exception:  # noqa: BLE001 - hints are evaluated, and may be anything
        return None
    exact = {name: hint for name, hint in hints.items() if hint in (str, int, bool)}

    def check(given: dict[str, Any]) -> Mapping[str, Any]:
        if all(type(value) is exact.get(name) for name, value in given.items()):
            return given
        checked: Mapping[str, Any] = adapter.validate_python(given)
        return checked

    return check


def _collecting(signature: inspect.Signature) -> Callable[..., Any]:
    def collect(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
        return signature.bind(*args, **kwargs).arguments

    return collect
