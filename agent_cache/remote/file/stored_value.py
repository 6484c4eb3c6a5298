"""How a value is written: a head, which says whose it is and what it was loaded under, and the payload of a codec.

The head is the number of the form, times, the digest of the call, the versions of the cells that the value depends on,
and the tags that only its result has named. The codec binds the payload to all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from agent_cache.remote.file.cell_names import SCHEMA
from agent_cache.remote.file.database import packed, unpacked
from agent_cache.remote.protocol import Versions

__all__ = [
    "Head", "StoredHead", "late_context", "open_head", "pack_head", "pack_versions", "read_head", "unpack_versions",
    "value_context", "was_loaded_under",
]  # fmt: skip

_FIXED: Final = struct.Struct(">BddddII")


class Head(NamedTuple):
    """The fixed part of a head, and where the others are in it.

    Attributes:
        loaded: when the value was loaded, as `time.time` counts.
        ttl: seconds; infinite for none.
        grace: seconds after these.
        cost: seconds that its load took.
        start, end: of the versions; behind them are the late tags.
    """

    loaded: float
    ttl: float
    grace: float
    cost: float
    start: int
    end: int


def pack_head(
    digest: bytes, versions: bytes, late: bytes, *, loaded: float, ttl: float, grace: float, cost: float
) -> bytes:
    """A head: see `Head`.

    Args:
        versions: see `pack_versions`.
        late: the encoded late tags.
    """
    fixed = _FIXED.pack(SCHEMA, loaded, ttl, grace, cost, len(versions), len(late))
    return b"".join((fixed, digest, versions, late))


def open_head(head: bytes, digest: bytes) -> Head | None:
    """The head of a value of this call; None if it is of another version of the form, or of another call.

    Raises:
        struct.error: if it is damaged.
    """
    schema, loaded, ttl, grace, cost, size, late_size = _FIXED.unpack_from(head)
    start = _FIXED.size + len(digest)
    end = start + size
    if schema != SCHEMA or not head.startswith(digest, _FIXED.size) or len(head) != end + late_size:
        return None
    return Head(loaded, ttl, grace, cost, start, end)


def was_loaded_under(head: bytes, digest: bytes, versions: bytes) -> bool:
    """Whether a head names exactly these versions, and no late tags. It need not be of this call."""
    return len(head) == _FIXED.size + len(digest) + len(versions) and head.endswith(versions)


def pack_versions(versions: Mapping[int, int]) -> bytes:
    """The versions of cells, as they stand in a head."""
    return packed([number for pair in versions.items() for number in pair])


def unpack_versions(data: bytes) -> dict[int, int]:
    """The reverse of `pack_versions`."""
    numbers = unpacked(data)
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


def value_context(head: bytes) -> bytes:
    """The context that a codec binds a payload to: its entry and all that is said of it."""
    return b"value in a file %b" % head


def late_context(digest: bytes, versions: bytes) -> bytes:
    """The same for the late tags, which are a part of what the payload is bound to."""
    return b"late tags in a file %b %b" % (digest, versions)


@dataclass(frozen=True, slots=True)
class StoredHead:
    """What is stored with a value beside its payload.

    Attributes:
        digest: of its call.
        loaded: when it was loaded, as `time.time` counts.
        ttl: seconds; infinite for none.
        grace: seconds after these.
        cost: seconds that its load took.
        versions: of the cells that it was loaded under.
    """

    digest: bytes
    loaded: float
    ttl: float
    grace: float
    cost: float
    versions: Versions


def read_head(head: bytes) -> StoredHead:
    """Read the head of a value, for who inspects a file.

    Raises:
        ValueError: if it is damaged, or of another version.
    """
    try:
        schema, loaded, ttl, grace, cost, size, late_size = _FIXED.unpack_from(head)
    except struct.error as error:
        raise ValueError("damaged") from error
    start = len(head) - late_size - size
    if schema != SCHEMA or start < _FIXED.size:
        raise ValueError("of another version")
    versions = unpack_versions(head[start : start + size])
    return StoredHead(head[_FIXED.size : start], loaded, ttl, grace, cost, versions)
