"""What a call has come to, as 16 bytes to compare and as a short text to show."""

from __future__ import annotations

from hashlib import blake2b

from agent_cache._core.entries import MISSING
from agent_cache._core.keys import Uncacheable, canonical

__all__ = ["fingerprint", "shown"]

_MAX_SHOWN = 80


def fingerprint(value: object) -> bytes | None:
    """16 bytes that stand for an outcome; None if it has no identity, and is never the same as another."""
    if value is MISSING:
        return None
    try:
        data = b"s" + value.encode("utf-8", "surrogatepass") if type(value) is str else canonical(value)
    except Uncacheable:
        return None
    return blake2b(data, digest_size=16).digest()


def shown(value: object) -> str:
    """A value as short text for people, whatever its `repr` does."""
    try:
        text = repr(value[: _MAX_SHOWN + 1] if type(value) is str or type(value) is bytes else value)
    except Exception:  # noqa: BLE001 - somebody's repr; what it was asked for is only a message
        return f"<{type(value).__qualname__}>"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
