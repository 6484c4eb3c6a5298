"""Compares outcomes of calls: a fingerprint of a result or an error, and short texts for messages."""

from __future__ import annotations

from typing import Any, Final

from agent_cache.errors import UncacheableArgumentsError as Uncacheable
from agent_cache.values.canonical import MISSING, blake2b, canonical

__all__ = ["escaped", "fingerprint", "is_empty", "shortened", "shown", "signature_of", "utf8_text"]

_MAX_SHOWN: Final = 80
_MAX_LEAVES: Final = 1_000
"""Parts of a nested result that `is_empty` reads."""

_BRACKETS: Final[dict[type, tuple[str, str]]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), dict: ("{", "}")}
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
        return shortened(_text(value, _MAX_SHOWN + 1), _MAX_SHOWN)
    except Exception:  # noqa: BLE001 - the repr of any class; the text is only for a message
        return f"<{type(value).__qualname__}>"


def shortened(text: str, most: int) -> str:
    """The text, cut to so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def escaped(text: object, *, keep: str = "") -> str:
    """The text with every character escaped that is not printable, but for those in `keep`."""
    chars = str(text)
    if chars.isprintable():
        return chars
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in chars)


def utf8_text(text: str) -> str:
    r"""The text with each half of a surrogate pair escaped, as ``\ud83d``: UTF-8 cannot hold one."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _text(value: Any, room: int) -> str:
    """The `repr` of a value if it has at most `room` characters, else at least so many of them."""
    kind = type(value)
    if kind is str or kind is bytes:  # which quotes stand around it depends on those in all of it
        quotes = ("'", '"') if kind is str else (b"'", b'"')
        return repr(value[:room] + value[:0].join(quote for quote in quotes if value.find(quote, room) >= 0))
    if isinstance(value, BaseException) and kind.__repr__ is BaseException.__repr__:  # type: ignore[comparison-overlap]
        only = len(value.args) == 1
        return kind.__name__ + (f"({_text(value.args[0], room)})" if only else _text(value.args, room))
    if kind not in _BRACKETS or not value:
        return repr(value)
    text, end = _BRACKETS[kind]
    for number, part in enumerate(value):
        text += ", " if number else ""
        for each, before in ((part, ""), (value[part], ": ")) if kind is dict else ((part, ""),):
            text += before
            if len(text) >= room:
                return text
            text += _text(each, room - len(text))
    return text + (",)" if kind is tuple and len(value) == 1 else end)


def is_empty(value: object) -> bool:
    """Whether a result has no content: None, False, 0, an empty text or collection, or a collection of such."""
    pending: list[Any] = [value]
    for found in pending:
        kind = type(found)
        if kind in _SCALARS:
            if found:
                return False
        elif (kind not in _BRACKETS and kind is not frozenset) or len(pending) + len(found) > _MAX_LEAVES:
            return False
        else:
            pending.extend(found.values() if kind is dict else found)
    return True
