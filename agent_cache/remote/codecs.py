"""Codecs (placeholder)."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

__all__ = ["Codec", "Undecodable", "Unencodable", "default_codec"]


class Unencodable(Exception):
    """A value cannot be written down."""


class Undecodable(Exception):
    """Bytes are not a value."""


class Codec(Protocol):
    """Values to bytes and back."""

    name: str

    def encode(self, value: object, returns: object) -> bytes:
        """Bytes of a value."""
        ...

    def decode(self, data: bytes, returns: object) -> object:
        """The value again."""
        ...


class _Msgpack:
    name = "msgpack"

    def encode(self, value: object, returns: object) -> bytes:  # noqa: ARG002
        try:
            return msgspec.msgpack.encode(value)
        except Exception as error:
            raise Unencodable(str(error)) from error

    def decode(self, data: bytes, returns: object) -> Any:  # noqa: ARG002
        try:
            return msgspec.msgpack.decode(data)
        except Exception as error:
            raise Undecodable(str(error)) from error


def default_codec() -> Codec:
    """MessagePack."""
    return _Msgpack()
