"""What a stream has yielded, redacted: a secret may begin in one chunk and end in another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from agent_cache.recording.outcomes import map_payload
from agent_cache.recording.redaction import Redaction
from agent_cache.values.tagged import decode, encode

__all__ = ["redacted_chunks"]

Outcome: TypeAlias = dict[str, Any]
_Place: TypeAlias = tuple[Any, str | int]
"""Where a text stands: what holds it, and under what."""


def redacted_chunks(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    """Outcomes of the chunks of a stream without secrets, each and joined.

    Texts that stand in the same place of each chunk, as the words of an answer do, are read as one. Where a secret goes
    over several of them, what becomes of it stands in the first of these, and nothing is left in the others.
    """
    if len(chunks) > 1:
        chunks = _joined(chunks, redaction)
    return [_redacted(chunk, redaction) for chunk in chunks]


def _redacted(chunk: Outcome, redaction: Redaction) -> Outcome:
    raw = encode(chunk)
    return map_payload(decode(raw), redaction.apply) if redaction.may_touch(raw) else chunk


def _joined(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    read: list[Outcome] = [decode(encode(chunk)) for chunk in chunks]
    texts: dict[tuple[str | int, ...], list[_Place]] = {}
    for chunk in read:
        for path, place in _texts(chunk, ()):
            texts.setdefault(path, []).append(place)
    is_changed = False
    for places in texts.values():
        parts = [holder[at] for holder, at in places]
        if len(set(parts)) > 1 and _spread(places, parts, redaction):
            is_changed = True
    return read if is_changed else chunks


def _spread(places: list[_Place], parts: list[str], redaction: Redaction) -> bool:
    """Redact a text that stands in these parts. False if there is nothing in it that is not in one part alone."""
    text = "".join(parts)
    if not redaction.may_touch(encode(text)):
        return False
    clean = redaction.text(text)
    if clean == text or clean == "".join(map(redaction.text, parts)):
        return False
    first = _same(text, clean)
    last = len(text) - _same(text[first:][::-1], clean[first:][::-1])
    instead, begin = clean[first : len(clean) - (len(text) - last)], 0
    for (holder, at), part in zip(places, parts, strict=True):
        end = begin + len(part)
        if begin < last and end > first:
            holder[at] = part[: max(0, first - begin)] + instead + part[max(0, last - begin) :]
            instead = ""
        begin = end
    return True


def _same(one: str, other: str) -> int:
    """How many characters they have in common at the beginning."""
    count = min(len(one), len(other))
    return next((at for at in range(count) if one[at] != other[at]), count)


def _texts(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], _Place]]:
    pairs = data.items() if type(data) is dict else enumerate(data) if type(data) is list else ()
    for name, value in pairs:
        if type(value) is str:
            yield (*path, name), (data, name)
        else:
            yield from _texts(value, (*path, name))
