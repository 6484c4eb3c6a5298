"""Digests of calls: name and arguments after redaction, as a cassette has them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from agent_cache.values.tagged import encode_sorted

__all__ = ["digest_of", "digest_of_key"]


def digest_of(name: str, arguments: dict[str, Any]) -> bytes:
    """Digest of a call by its arguments, as plain data."""
    return blake2b(encode_sorted([name, arguments]), digest_size=12).digest()


def digest_of_key(name: str, key: str) -> bytes:
    """Digest of a call by the identity that its user gave it."""
    return blake2b(encode_sorted([name, key]), digest_size=12, person=b"key").digest()
