"""Value types of the standard library that are recognised without being imported.

A value of one of them can only be there if its module has been loaded, so nobody pays for `decimal` or `ipaddress`
(12 ms in all) who does not use them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["text_of_standard_value"]

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
    text: Callable[[Any], str | None] = (lambda zone: zone.key) if name == "ZoneInfo" else str
    _found[kind] = text
    return text
