"""A value as it stands on the server: the cells it was loaded under, when, for how long, and the codec's bytes.

    fixed part | header: a line for each cell, "name identity token" | late tags, by the codec | the value, by the codec

It counts only while every line of its header is true. A server holds no secret of ours and nothing that it says is
believed: what cannot be read is a miss.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from agent_cache.remote.redis.keyspace import SCHEMA, CellKey

__all__ = [
    "MAX_HEAD",
    "BadValue",
    "Header",
    "Seen",
    "context_of",
    "head_of",
    "is_held",
    "is_idle",
    "late_context_of",
    "lines_of",
    "read_at_once",
    "unpacked",
    "version_of",
]

_FIXED = struct.Struct(">BddddII")

MAX_HEAD = 65_536
"""Bytes of the longest header, late tags included."""


class BadValue(Exception):
    """These bytes are no value of ours."""


Seen = tuple[bytes, bytes]
"""A cell as it was read, and the identity of its server. A cell that begins with ``!`` is held and matches nothing; one
with ``~`` is armed: it matches, but its writer may die.
"""

_HELD, _ARMED = b"!~"


def is_held(cell: Seen) -> bool:
    """Whether a write is at work on it."""
    return cell[0][0] == _HELD


def is_idle(cell: Seen) -> bool:
    """Whether none is, and none will name what it has touched under it."""
    return cell[0][0] != _HELD and cell[0][0] != _ARMED


def version_of(cell: Seen) -> bytes:
    """What a header says of it: identity and token."""
    raw, ident = cell
    return ident + b" " + (raw if is_idle(cell) else raw[1:])


@dataclass(frozen=True, slots=True)
class Header:
    """Everything about a value but itself.

    Attributes:
        cells: version of each cell it was loaded under.
        loaded: when its load began, by the server's clock, in seconds.
        ttl, grace: seconds from there.
        cost: seconds its load took.
        late: tags that its result has named, as the codec wrote them; empty if there are none.
    """

    cells: Mapping[CellKey, bytes]
    loaded: float
    ttl: float
    grace: float
    cost: float
    late: bytes


def head_of(header: Header) -> bytes:
    """What stands before the payload. The payload is bound to it: see `context_of`."""
    cells = lines_of(header.cells)
    fixed = _FIXED.pack(
        SCHEMA, header.loaded, header.ttl, header.grace, header.cost, len(cells), len(header.late)
    )  # fmt: skip
    return b"".join((fixed, cells, header.late))


def lines_of(cells: Mapping[CellKey, bytes]) -> bytes:
    """How a header says under which cells a value was loaded."""
    return b"\n".join([key + b" " + version for key, version in cells.items()])


def context_of(value_key: bytes, head: bytes) -> bytes:
    """What a codec binds a payload to: its entry, and all that is said of it. A signature covers that too then."""
    return b"value %b %b" % (value_key, head)


def late_context_of(value_key: bytes, cells: bytes) -> bytes:
    """The same for the late tags, which are a part of what the payload is bound to."""
    return b"late %b %b" % (value_key, cells)


def read_at_once(data: bytes, cells: bytes) -> tuple[float, float, float, int] | None:
    """When it was loaded, its ttl, its cost and where its payload begins, if its header says exactly this and no tag
    was late.
    """
    start = _FIXED.size
    end = start + len(cells)
    if data[start:end] != cells:
        return None
    schema, loaded, ttl, _, cost, size, late = _FIXED.unpack_from(data)
    makes_sense = 0 <= loaded < 1e12 and 0 < ttl < 1e18 and 0 <= cost < 1e9
    is_plain = schema == SCHEMA and size == len(cells) and not late
    return (loaded, ttl, cost, end) if is_plain and makes_sense else None


def unpacked(data: bytes) -> tuple[Header, bytes, bytes]:
    """The header, what stands before the payload, and the payload.

    Raises:
        BadValue: if this is none.
    """
    try:
        schema, loaded, ttl, grace, cost, size, late = _FIXED.unpack_from(data)
    except struct.error as error:
        raise BadValue("truncated") from error
    start = _FIXED.size
    end = start + size
    if schema != SCHEMA or len(data) < end + late:
        raise BadValue("of another schema, or truncated")
    if not (0 <= cost < 1e9 and 0 < ttl < 1e18 and 0 <= grace < 1e18 and 0 <= loaded < 1e12):
        raise BadValue("with numbers that make no sense")
    cells = {}
    for line in data[start:end].split(b"\n"):
        key, _, version = line.rpartition(b" ")
        key, _, ident = key.rpartition(b" ")  # a root may contain anything, a space too
        if not (key and ident and version):
            raise BadValue("with a damaged header")
        cells[key] = ident + b" " + version
    behind = end + late
    return Header(cells, loaded, ttl, grace, cost, data[end:behind]), data[:behind], data[behind:]
