"""Digests of entries and entities (placeholder)."""

from __future__ import annotations

from hashlib import blake2b

from agent_cache._core.keys import Uncacheable, canonical
from agent_cache.remote.protocols import Request

__all__ = ["entry_digest", "segment_digest"]


def entry_digest(request: Request, *, namespace: str, version: int) -> bytes | None:
    """Digest of an entry: 32 hex digits; None if an argument cannot be written down."""
    try:
        identity = canonical((version, request.tool, request.session, request.tenant, request.arguments))
    except Uncacheable:
        return None
    return blake2b(identity, digest_size=16, key=namespace.encode()[:64]).hexdigest().encode()


def segment_digest(segment: str, *, namespace: str) -> str:
    """Keyed digest of one segment of a tag."""
    return blake2b(segment.encode("utf-8", "surrogatepass"), digest_size=8, key=namespace.encode()[:64]).hexdigest()
