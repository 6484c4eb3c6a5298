"""Values without parts that plain data has no form for, each as a tag and a text (or a few): a closed table.

What is read comes from files and servers: every reader takes what its writer wrote and fails on anything else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Any

from agent_cache.values.canonical import text_of_standard_value

__all__ = ["READERS", "STANDARD", "standard_type", "written"]

MAX_DIGITS = 4096
"""Hexadecimal digits of an integer. Arithmetic on larger ones takes time that no size of data betrays."""

STANDARD: dict[str, str] = {
    "Decimal": "decimal",
    "IPv4Address": "ipaddress",
    "IPv4Network": "ipaddress",
    "IPv6Address": "ipaddress",
    "IPv6Network": "ipaddress",
    "PosixPath": "pathlib",
    "PurePosixPath": "pathlib",
    "PureWindowsPath": "pathlib",
    "UUID": "uuid",
    "WindowsPath": "pathlib",
}
"""Types of the standard library that are read from their text, and the module of each."""

_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")


def standard_type(name: str) -> type:
    """A type of `STANDARD`, its module loaded if it is not: what nobody uses costs nobody an import."""
    if name == "Decimal":
        import decimal as module
    elif name == "UUID":
        import uuid as module  # type: ignore[no-redef]
    elif name.startswith("IPv"):
        import ipaddress as module  # type: ignore[no-redef]
    else:
        import pathlib as module  # type: ignore[no-redef]
    kind: type = getattr(module, name)
    return kind


def written(value: Any, kind: type) -> tuple[str, Any] | None:
    """Tag and text of a value without parts; None if it is no such value."""
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value)
    if kind.__name__ in STANDARD:
        text_of = text_of_standard_value(kind)
        if text_of is not None:
            return kind.__name__, text_of(value)
    return None


def _write_zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if zone is timezone.utc:  # noqa: UP017 - the object, by the name that the type has
        return 0
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        return [offset.days, offset.seconds, offset.microseconds, zone.tzname(None)]
    text_of = text_of_standard_value(type(zone))
    return None if text_of is None else text_of(zone)


def _read_zone(data: Any) -> tzinfo | None:
    if data is None:
        return None
    if data == 0:
        return timezone.utc  # noqa: UP017 - as above
    if isinstance(data, list):
        days, seconds, microseconds, name = data
        zone = timezone(timedelta(days, seconds, microseconds))
        return zone if zone.tzname(None) == name else timezone(timedelta(days, seconds, microseconds), name)
    if _ZONE_KEY.fullmatch(data) is None:
        raise ValueError("no name of a time zone")
    from zoneinfo import ZoneInfo

    return ZoneInfo(data)


def _write_datetime(value: Any) -> tuple[str, Any]:
    return type(value).__name__, [value.replace(tzinfo=None).isoformat(), value.fold, _write_zone(value.tzinfo)]


def _read_clock(kind: Any) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        text, fold, zone = data
        return kind.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))

    return read


def _write_surrogates(value: str) -> tuple[str, Any]:
    return "str", base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()


def _read_bytes(data: Any) -> bytes:
    return base64.b64decode(data, validate=True)


def _read_int(data: Any) -> int:
    if len(data) > MAX_DIGITS:
        raise ValueError("an integer is too large")
    return int(data, 16)


def _write_int(value: int) -> tuple[str, Any] | None:
    text = f"{value:x}"
    return ("int", text) if len(text) <= MAX_DIGITS else None


def _read_complex(data: Any) -> complex:
    real, imaginary = data
    return complex(float.fromhex(real), float.fromhex(imaginary))


def _read_timedelta(data: Any) -> timedelta:
    days, seconds, microseconds = data
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _standard_reader(name: str) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        if not isinstance(data, str):
            raise TypeError("text is wanted")
        return standard_type(name)(data)

    return read


_WRITERS: dict[type, Callable[[Any], tuple[str, Any] | None]] = {
    str: _write_surrogates,
    int: _write_int,
    float: lambda value: ("float", value.hex()),
    complex: lambda value: ("complex", [value.real.hex(), value.imag.hex()]),
    bytes: lambda value: ("bytes", base64.b64encode(value).decode()),
    bytearray: lambda value: ("bytearray", base64.b64encode(value).decode()),
    datetime: _write_datetime,
    date: lambda value: ("date", value.isoformat()),
    time: _write_datetime,
    timedelta: lambda value: ("timedelta", [value.days, value.seconds, value.microseconds]),
}
READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda data: _read_bytes(data).decode("utf-8", "surrogatepass"),
    "int": _read_int,
    "float": float.fromhex,
    "complex": _read_complex,
    "bytes": _read_bytes,
    "bytearray": lambda data: bytearray(_read_bytes(data)),
    "datetime": _read_clock(datetime),
    "date": date.fromisoformat,
    "time": _read_clock(time),
    "timedelta": _read_timedelta,
    **{name: _standard_reader(name) for name in STANDARD},
}
"""Tag -> what reads it. Any exception says that the data is bad."""
