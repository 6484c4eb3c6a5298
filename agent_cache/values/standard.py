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
    text = _TEXTS.get(name, str)
    _found[kind] = text
    return text


def _text_of_ipv6_address(address: Any) -> str:
    """As every Python before 3.13 writes it. Since then an IPv4-mapped one ends in dots, ``::ffff:1.2.3.4``, and two
    processes of different versions would not agree on a digest.
    """
    number = int(address)
    if number >> 32 != 0xFFFF:
        return str(address)
    scope = "" if address.scope_id is None else f"%{address.scope_id}"
    return f"::ffff:{number >> 16 & 0xFFFF:x}:{number & 0xFFFF:x}{scope}"


def _text_of_ipv6_network(network: Any) -> str:
    return f"{_text_of_ipv6_address(network.network_address)}/{network.prefixlen}"


_TEXTS: dict[str, Callable[[Any], str | None]] = {
    "IPv6Address": _text_of_ipv6_address,
    "IPv6Network": _text_of_ipv6_network,
    "ZoneInfo": lambda zone: zone.key,
}
"""Where `str` does not give it."""
