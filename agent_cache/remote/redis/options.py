"""What a tier was asked for, checked and frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agent_cache.core.policies import seconds
from agent_cache.errors import ConfigurationError
from agent_cache.remote.codecs import Codec, MessagePackCodec

__all__ = ["Options", "options_of"]

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Options:
    """See `RedisTier`.

    Attributes:
        cell_ttl: seconds that a cell lives which no write is at work on, longer than values: eviction takes short
            ttls first.
        max_value_size: bytes of the longest value, as the codec writes it.
    """

    namespace: str
    max_staleness: float
    timeout: float
    lease: float
    remote_ttl: float
    cell_ttl: float
    max_value_size: int
    codec: Codec


def options_of(
    *,
    namespace: Any,
    max_staleness: Any,
    timeout: Any,
    lease: Any,
    remote_ttl: Any,
    codec: Codec | None,
    max_value_size: Any,
) -> Options:
    """Check what `RedisTier` was given.

    Raises:
        ConfigurationError: naming the option and the fix.
    """
    if not isinstance(namespace, str) or not re.fullmatch(r"[^\s{}:]{1,64}", namespace):
        raise ConfigurationError(
            f"RedisTier: namespace must be a short text without spaces, braces and colons, got {namespace!r}"
        )
    for name in ("encode", "decode"):
        if codec is not None and not callable(getattr(codec, name, None)):
            raise ConfigurationError(f"RedisTier: codec {codec!r} cannot {name}")
    codec, longest = _with_limit(codec, max_value_size)
    staleness, patience = seconds(max_staleness, "RedisTier: max_staleness"), seconds(timeout, "RedisTier: timeout")
    if patience >= staleness:
        raise ConfigurationError(
            f"RedisTier: timeout must be less than max_staleness, for a lookup that is shared gives up within it; got "
            f"timeout={patience:g}, max_staleness={staleness:g}"
        )
    ttl = seconds(remote_ttl, "RedisTier: remote_ttl")
    return Options(
        namespace=namespace,
        max_staleness=staleness,
        timeout=patience,
        lease=seconds(lease, "RedisTier: lease"),
        remote_ttl=ttl,
        cell_ttl=max(_DAY, 2 * ttl),
        max_value_size=longest,
        codec=codec,
    )


def _with_limit(codec: Codec | None, max_value_size: Any) -> tuple[Codec, int]:
    """A codec, and the one limit that both it and the tier hold."""
    if max_value_size is None:
        codec = MessagePackCodec() if codec is None else codec
        return codec, getattr(codec, "max_size", MessagePackCodec().max_size)
    if isinstance(max_value_size, bool) or not isinstance(max_value_size, int) or max_value_size < 1024:
        raise ConfigurationError(f"RedisTier: max_value_size must be bytes, 1024 or more, got {max_value_size!r}")
    if codec is None:
        codec = MessagePackCodec(max_size=max_value_size)
        return codec, codec.max_size
    allowed = getattr(codec, "max_size", max_value_size)
    if allowed < max_value_size:
        raise ConfigurationError(
            f"RedisTier: max_value_size={max_value_size}, but {codec!r} takes no more than {allowed} bytes; give it a "
            "larger max_size, or leave out max_value_size"
        )
    return codec, max_value_size
