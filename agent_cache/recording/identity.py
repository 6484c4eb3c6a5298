"""What makes a call of a replayed run the same as one that was recorded: its content, and the chain it was made in.

A *digest* stands for name and arguments, after redaction. A *place* stands for a digest, the place of the enclosing
call, and how many calls of that digest were started there before.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from agent_cache.recording.plain import encode_sorted

__all__ = ["ROOT_PLACE", "digest_of", "digest_of_key", "place_of"]

ROOT_PLACE = b""
"""Where calls are made that no recorded call encloses."""


def digest_of(name: str, arguments: dict[str, Any]) -> bytes:
    """Digest of a call by its arguments, as plain data."""
    return blake2b(encode_sorted([name, arguments]), digest_size=12).digest()


def digest_of_key(name: str, key: str) -> bytes:
    """Digest of a call by the identity that its user gave it."""
    return blake2b(encode_sorted([name, key]), digest_size=12, person=b"key").digest()


def place_of(enclosing: bytes, digest: bytes, occurrence: int) -> bytes:
    """The place of the call that is number `occurrence` of its digest, from 0, in the place that encloses it."""
    return blake2b(b"%b%b%d" % (enclosing, digest, occurrence), digest_size=12).digest()
