"""What goes over a connection: commands packed, replies parsed as they arrive (RESP, version 2).

A reply is parsed from the bytes at hand without waiting, and a value that is larger than any this library stores is
skipped as it streams in: a hostile one costs no memory.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "OVERSIZED", "Expired", "Interrupted", "NotAsked", "Refused", "Replies", "ReplyError", "Unreachable", "bulk",
    "pack",
]  # fmt: skip

OVERSIZED: Final = object()
"""Stands for a value that was longer than the limit, and is gone."""

_MAX_LINE = 65_536
_MAX_DEPTH = 32
_MAX_REASON = 300


class Unreachable(Exception):
    """A server did not answer in time, not at all, or not as the owner of the data. Never leaves the tier."""

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


class Interrupted(Unreachable):
    """A connection has ended, or its server has become another. It may be asked again at once: that says nothing."""


class Expired(Unreachable):
    """Somebody has no time left to wait, which says nothing of the server either."""


class Refused(Unreachable):
    """A server has answered that it does not carry this command out. It says nothing of any other."""


class NotAsked(Unreachable):
    """Nothing was sent, because the server had failed before or the connection is given up: no failure of its own."""


class ReplyError(Exception):
    """An error that a server has replied. `code` is its first word: ``NOSCRIPT``, ``MOVED``, ``READONLY``..."""

    def __init__(self, text: str) -> None:
        super().__init__(_shortened(text))
        self.code = text.partition(" ")[0]

    @property
    def is_of_command(self) -> bool:
        """Whether it is about what was asked, and not about the state of the server."""
        return self.code in ("ERR", "WRONGTYPE")


def _shortened(text: str) -> str:
    """What an agent is told may have come from the server."""
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


def bulk(part: bytes) -> bytes:
    """One part of a command."""
    return b"$%d\r\n%b\r\n" % (len(part), part)


def pack(*parts: bytes) -> bytes:
    """One command."""
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))


class Replies:
    """A parser that is fed what has arrived and gives the replies that are complete.

    Args:
        limit: bytes of the longest value that is kept; a longer one becomes `OVERSIZED`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._skip = 0
        self._open: list[tuple[int, list[Any]]] = []

    def feed(self, data: bytes) -> list[Any]:
        """Take bytes, give replies: `bytes`, `int`, None, `ReplyError`, lists of these.

        Raises:
            ValueError: if this is not the protocol.
        """
        buffer: bytes | bytearray = data  # as it came, unless something was left: its slices are the values
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        complete: list[Any] = []
        at = 0
        while True:
            if self._skip:
                at = min(len(buffer), self._skip)
                self._skip -= at
                buffer, at = buffer[at:], 0
                if self._skip:
                    break
                value: Any = OVERSIZED
            else:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    if len(buffer) - at > _MAX_LINE:
                        raise ValueError("a line without an end")
                    break
                kind, line = buffer[at], bytes(buffer[at + 1 : end])
                end += 2
                if kind == 36:  # $
                    size = int(line)
                    if size > self._limit:
                        buffer, at = buffer[end:], 0
                        self._skip = size + 2
                        continue
                    if size < 0:
                        value = None
                    elif len(buffer) < end + size + 2:
                        break
                    else:
                        value = bytes(buffer[end : end + size])
                        end += size + 2
                elif kind == 58:  # :
                    value = int(line)
                elif kind == 43:  # +
                    value = line
                elif kind == 45:  # -
                    value = ReplyError(line.decode("utf-8", "replace"))
                elif kind == 42:  # *
                    size = int(line)
                    if size > 0:
                        if len(self._open) >= _MAX_DEPTH:
                            raise ValueError("lists within lists without an end")
                        self._open.append((size, []))
                        at = end
                        continue
                    value = None if size < 0 else []
                else:
                    raise ValueError(f"a reply of an unknown kind, {chr(kind)!r}")
                at = end
            if self._open:
                size, items = self._open[-1]
                if len(items) + 1 < size:
                    items.append(value)
                    at = self._more_texts(buffer, at, size - 1, items)
                    continue
            self._deliver(value, complete)
        if at or buffer is not self._buffer:  # of a long value that is on its way nothing is copied
            self._buffer = bytearray(buffer[at:])
        return complete

    def _more_texts(self, buffer: bytes | bytearray, at: int, size: int, items: list[Any]) -> int:
        """What stands next in nearly all lists, in fewer steps: texts that are there, up to so many items. Gives where
        anything else begins.
        """
        find, append, arrived = buffer.find, items.append, len(buffer)
        for _ in range(size - len(items)):
            end = find(b"\r\n", at)
            if end < 0 or buffer[at] != 36:
                break
            length = int(buffer[at + 1 : end])
            start, stop = end + 2, end + 2 + length
            if not 0 <= length <= self._limit or stop + 2 > arrived:
                break
            append(bytes(buffer[start:stop]))
            at = stop + 2
        return at

    def _deliver(self, value: Any, complete: list[Any]) -> None:
        while self._open:
            size, items = self._open[-1]
            items.append(value)
            if len(items) < size:
                return
            self._open.pop()
            value = items
        complete.append(value)
