"""Compares outcomes of calls: a fingerprint of a result or an error, and short texts for messages."""

from __future__ import annotations

from reprlib import Repr
from typing import Any, Final

from agent_cache.errors import UncacheableArgumentsError as Uncacheable
from agent_cache.values.canonical import MISSING, blake2b, canonical, lasting_digest

__all__ = ["escaped", "etag_of", "fingerprint", "is_empty", "plural", "shortened", "shown", "signature_of", "utf8_text"]

_MAX_SHOWN: Final = 80
_REPR: Final = Repr()
_REPR.maxlevel = _REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = 20
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 2 * _MAX_SHOWN

_MAX_LEAVES: Final = 1_000
"""Parts of a nested result that `is_empty` reads."""

_CONTAINERS: Final = frozenset({list, tuple, set, frozenset, dict})
_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})


def fingerprint(value: object) -> bytes | None:
    """16 bytes that two results share if they are the same; None if the value has no identity."""
    if value is MISSING:
        return None
    try:
        data = b"s" + value.encode("utf-8", "surrogatepass") if type(value) is str else canonical(value)
    except Uncacheable:
        return None
    return blake2b(data, digest_size=16).digest()


def etag_of(result: object) -> str | None:
    """A digest that equal results share, in every process; None if the result has no identity outside of this one."""
    return lasting_digest("etag", (result,), namespace="etag", version=1)


def signature_of(error: BaseException) -> bytes | None:
    """16 bytes that two errors share if they have the same type and message, and for a group the same errors in it.

    None if the text cannot be had.
    """
    inner: list[Any] = []
    try:
        if isinstance(error, BaseExceptionGroup):
            inner = sorted(map(signature_of, error.exceptions))  # one without text raises
        return fingerprint((id(type(error)), error.message if inner else str(error), inner))  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - the text of any class; an error without one equals no other
        return None


def shown(value: object) -> str:
    """A value as short text for people, whatever its `repr` does. Of a large value no more is read than is shown."""
    if value is MISSING:
        return ""
    try:
        return shortened(_REPR.repr(value), _MAX_SHOWN)
    except Exception:  # noqa: BLE001 - the repr of any class; the text is only for a message
        return f"<{type(value).__qualname__}>"


def shortened(text: str, most: int) -> str:
    """The text, cut to so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def plural(number: int, noun: str) -> str:
    """The number with its noun: ``1 call``, ``2,000 calls``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escaped(text: object, *, keep: str = "") -> str:
    """The text with every character escaped that is not printable, but for those in `keep`."""
    chars = str(text)
    if chars.isprintable():
        return chars
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in chars)


def utf8_text(text: str) -> str:
    r"""The text with each half of a surrogate pair escaped, as ``\ud83d``: UTF-8 cannot hold one."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_empty(value: object) -> bool:
    """Whether a result has no content: None, False, 0, an empty text or collection, or a collection of such."""
    pending: list[Any] = [value]
    for found in pending:
        kind = type(found)
        if kind in _SCALARS:
            if found:
                return False
        elif kind not in _CONTAINERS or len(pending) + len(found) > _MAX_LEAVES:
            return False
        else:
            pending.extend(found.values() if kind is dict else found)
    return True
