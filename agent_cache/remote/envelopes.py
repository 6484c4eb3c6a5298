"""What stands around encoded data: who wrote it, in which version, for which entry, and whether all of it is there."""

from __future__ import annotations

import zlib
from hashlib import blake2b

from agent_cache.values.failures import Undecodable

__all__ = ["SCHEMA_VERSION", "compressed", "decompressed", "header", "seal", "unseal"]

SCHEMA_VERSION = 1
"""Version of everything that a fleet shares: what another version wrote is not read."""

_SUM = 16


def header(name: str) -> bytes:
    """What the data of one codec begins with."""
    return b"%c%b\0" % (SCHEMA_VERSION, name.encode("ascii"))


def seal(start: bytes, body: bytes, *bound: bytes) -> bytes:
    """Join header, checksum and body. The checksum also covers what is bound to them and not sent along."""
    return b"%b%b%b" % (start, _checksum(start, body, bound), body)


def unseal(data: bytes, start: bytes, *bound: bytes) -> bytes:
    """Give the body of what `seal` made with the same header and the same things bound.

    Raises:
        Undecodable: if it is anything else.
    """
    if not data.startswith(start):
        raise Undecodable("data of another codec or version")
    end = len(start) + _SUM
    body = data[end:]
    if len(data) < end or data[len(start) : end] != _checksum(start, body, bound):
        raise Undecodable("damaged data, or data for another entry or return type")
    return body


def _checksum(start: bytes, body: bytes, bound: tuple[bytes, ...]) -> bytes:
    # No secret is in it: it finds accidents. Against forgers there is SignedCodec.
    parts = [start]
    for each in bound:
        parts += b"%d:" % len(each), each
    parts.append(body)
    return blake2b(b"".join(parts), digest_size=_SUM).digest()


def compressed(data: bytes) -> bytes:
    """Deflate at the level at which time matters more than size."""
    return zlib.compress(data, 1)


def decompressed(data: bytes, max_size: int) -> bytes:
    """Undo `compressed`, without ever holding more than `max_size` bytes.

    Raises:
        Undecodable: if it is no such data, or holds more.
    """
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, max_size + 1)
    except zlib.error as error:
        raise Undecodable("broken compressed data") from error
    if len(found) > max_size:
        raise Undecodable(f"compressed data of more than {max_size} bytes")
    if not stream.eof or stream.unused_data:
        raise Undecodable("compressed data that ends too early or too late")
    return found
