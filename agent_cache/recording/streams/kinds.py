"""What is a stream, and of which kind."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

__all__ = ["is_async_stream", "is_plain_stream", "is_stream"]

_NO_STREAMS = frozenset({dict, list, tuple, set, str, bytes, int, float, bool, type(None)})


def is_stream(value: Any) -> bool:
    """Whether it is a generator, awaited or not, another iterator, or something to iterate over that is closed: the
    stream of an SDK.
    """
    kind = type(value)
    if kind in _NO_STREAMS:
        return False
    return issubclass(kind, GeneratorType) or is_async_stream(value) or is_plain_stream(value)


def is_plain_stream(value: Any) -> bool:
    """Whether chunks are had from it without waiting."""
    kind = type(value)
    if not hasattr(kind, "__iter__") or hasattr(kind, "read"):
        return False
    return hasattr(kind, "__next__") or (hasattr(kind, "close") and not hasattr(kind, "__len__"))


def is_async_stream(value: Any) -> bool:
    """Whether chunks are to be awaited from it."""
    kind = type(value)
    return hasattr(kind, "__aiter__") and any(hasattr(kind, name) for name in ("__anext__", "aclose", "close"))
