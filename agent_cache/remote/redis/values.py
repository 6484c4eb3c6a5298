"""A value as it stands on the server: the cells it was loaded under, when, for how long, and the codec's bytes.

    fixed part | header: a line for each cell, "name identity token" | late tags, by the codec | the value, by the codec

It counts only while every line of its header is true. A server holds no secret of ours and nothing that it says is
believed: what cannot be read is a miss.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from agent_cache.remote.redis.names import SCHEMA, CellKey

__all__ = ["BadValue", "Header", "Seen", "packed", "unpacked"]

_FIXED = struct.Struct(">BddddII")


class BadValue(Exception):
    """These bytes are no value of ours."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A cell as it was read.

    Attributes:
        mark: ``!`` held: matches nothing; ``~`` armed: matches, but its writer may die; empty: idle.
        version: identity of its server and its token.
    """

    mark: str
    version: bytes

    @classmethod
    def of(cls, raw: bytes, ident: bytes) -> Seen:
        """Read a cell."""
        first = raw[:1]
        if first == b"!" or first == b"~":
            return cls(first.decode(), ident + b" " + raw[1:])
        return cls("", ident + b" " + raw)


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


def packed(header: Header, payload: bytes) -> bytes:
    """Header and payload as one value."""
    cells = b"\n".join([key + b" " + version for key, version in header.cells.items()])
    fixed = _FIXED.pack(
        SCHEMA, header.loaded, header.ttl, header.grace, header.cost, len(cells), len(header.late)
    )  # fmt: skip
    return b"".join((fixed, cells, header.late, payload))


def unpacked(data: bytes) -> tuple[Header, bytes]:
    """Header and payload again.

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
    return Header(cells, loaded, ttl, grace, cost, data[end : end + late]), data[end + late :]
