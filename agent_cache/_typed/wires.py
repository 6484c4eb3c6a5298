"""The bytes that plain data travels as, and how much of it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["JSON", "MESSAGE_PACK", "Wire", "field_values", "from_fields"]


class Wire:
    """One serialisation of msgspec's, with what it has for data as such and for data of one type."""

    __slots__ = ("_openers", "decode", "encode", "name", "typed")

    def __init__(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        typed: Callable[[Any], Callable[[bytes], Any]],
        openers: bytes,
    ) -> None:
        self.name = name
        self.encode = encode
        self.decode = decode
        self.typed = typed
        self._openers = openers

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def is_shallow(self, data: bytes, levels: int) -> bool:
        """Whether data certainly is nested no deeper than that: it has no more bytes that might open a container."""
        return len(data) - len(data.translate(None, self._openers)) <= levels


def field_values(value: Any) -> Any:
    """What msgspec writes for an object that it does not know: the fields of a pydantic model.

    A field that was not set is not there to be written, and what it defaults to may be another thing where it is read.
    """
    names = getattr(type(value), "__pydantic_fields__", None)
    if names is None or len(value.model_fields_set) < len(names):
        raise NotImplementedError(type(value).__qualname__)
    return {name: getattr(value, name) for name in names}


def from_fields(kind: Any, data: Any) -> Any:
    """What msgspec reads as a class that it does not know."""
    if hasattr(kind, "__pydantic_fields__"):
        return kind.model_validate(data)
    raise NotImplementedError(kind.__qualname__)


def _refuse_extension(code: int, data: memoryview) -> Any:  # noqa: ARG001 - msgspec calls it with both
    raise ValueError("an extension type that no encoder here writes")


MESSAGE_PACK = Wire(
    "msgpack",
    msgspec.msgpack.Encoder(enc_hook=field_values).encode,
    msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode,
    lambda kind: msgspec.msgpack.Decoder(kind, dec_hook=from_fields, ext_hook=_refuse_extension).decode,
    bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)]),
)
"""Binary, and the fastest."""

JSON = Wire(
    "json",
    msgspec.json.Encoder(enc_hook=field_values).encode,
    msgspec.json.Decoder().decode,
    lambda kind: msgspec.json.Decoder(kind, dec_hook=from_fields).decode,
    b"[{",
)
"""Text that people and other programs can read."""
