"""The bytes that plain data travels as, and how much of it is looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from agent_cache.values.failures import Undecodable
from agent_cache.values.parts import is_model

__all__ = ["FEW", "JSON", "MESSAGE_PACK", "NUMBERS", "Wire", "field_values", "from_fields"]


FEW = 100
"""Containers that may be of any kind and in any order: reading them takes no time."""
NUMBERS: frozenset[type] = frozenset({int, float})
_HASHED: frozenset[type] = frozenset({str, bytes, bool, type(None), date, datetime, timedelta})


class Wire:
    """One serialisation of msgspec's, with what it has for data as such and for data of one type.

    Args:
        openers: bytes that lists and dicts begin with. Others may look so.
        keys: the types of a dict's keys, where it has many.
        hashed: types of which nobody can choose many that have one hash: text and bytes, whose hashes are secret to a
            process, times, and numbers of 64 bits. Numbers can be chosen to take one way through a table: 340 kB of
            them cost some seconds. Whoever must fear that signs values.
        blanks: bytes that may stand before data.
        long_number: looks for numbers that may have more bits, of which any number has one hash. None: there are none.
    """

    __slots__ = ("_blanks", "_openers", "_parts", "decode", "encode", "hashed", "long_number", "name", "typed")

    def __init__(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        typed: Callable[[Any], Callable[[bytes], Any]],
        *,
        openers: tuple[bytes, bytes],
        keys: Any,
        hashed: frozenset[type],
        blanks: bytes = b"",
        long_number: Callable[[bytes], object] | None = None,
    ) -> None:
        self.name = name
        self.encode = encode
        self.decode = decode
        self.typed = typed
        self.hashed = hashed
        self.long_number = long_number
        self._blanks = blanks
        lists, dicts = openers
        read_dict = typed(dict[keys, msgspec.Raw])
        self._openers = lists + dicts
        self._parts: dict[int, Callable[[bytes], Collection[msgspec.Raw]]] = {
            **dict.fromkeys(lists, typed(list[msgspec.Raw])),
            **dict.fromkeys(dicts, lambda data: read_dict(data).values()),
        }

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def check(self, data: bytes, levels: int) -> bool:
        """Refuse data that is nested too deep, or that somebody chose to be slow. Whether it has many containers.

        Where a dict has many keys, they are of types whose hashes cannot be made equal at will: msgspec would take
        lists for keys, and those of tuples are anybody's to calculate.

        Raises:
            Undecodable: if it is.
        """
        level: list[Any] = [data]
        for left in range(levels, -1, -1):
            level = [part for each in level if self._may_be_bad(each, left) for part in self._parts_of(each)]
            if not level:
                return left < levels
        raise Undecodable(f"data is nested more than {levels} levels deep")

    def _may_be_bad(self, data: Any, levels: int) -> bool:
        # What has few bytes that might open a container is neither deep nor slow.
        few = min(levels, FEW)
        if len(memoryview(data)) <= few:
            return False
        data = bytes(data)
        return len(data) - len(data.translate(None, self._openers)) > few

    def _parts_of(self, data: Any) -> Collection[msgspec.Raw]:
        data = bytes(data)
        read = self._parts.get(data.lstrip(self._blanks)[0])
        return () if read is None else read(data)


def field_values(value: Any) -> Any:
    """What msgspec writes for an object that it does not know: the fields of a pydantic model.

    A field that was not set is not there to be written, and what it defaults to may be another thing where it is read.
    """
    kind = type(value)
    if not is_model(kind) or len(value.model_fields_set) < len(kind.__pydantic_fields__):
        raise NotImplementedError(kind.__qualname__)
    return {name: getattr(value, name) for name in kind.__pydantic_fields__}


def from_fields(kind: Any, data: Any) -> Any:
    """What msgspec reads as a class that it does not know."""
    if is_model(kind):
        return kind.model_validate(data)
    raise NotImplementedError(kind.__qualname__)


def _refuse_extension(code: int, data: memoryview) -> Any:  # noqa: ARG001 - msgspec calls it with both
    raise ValueError("an extension type that no encoder here writes")


MESSAGE_PACK = Wire(
    "msgpack",
    msgspec.msgpack.Encoder(enc_hook=field_values).encode,
    msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode,
    lambda kind: msgspec.msgpack.Decoder(kind, dec_hook=from_fields, ext_hook=_refuse_extension).decode,
    openers=(bytes([*range(0x90, 0xA0), 0xDC, 0xDD]), bytes([*range(0x80, 0x90), 0xDE, 0xDF])),
    keys=str | int | float | bool | None,
    hashed=_HASHED | NUMBERS,
)
"""Binary, and the fastest."""

JSON = Wire(
    "json",
    msgspec.json.Encoder(enc_hook=field_values).encode,
    msgspec.json.Decoder().decode,
    lambda kind: msgspec.json.Decoder(kind, dec_hook=from_fields).decode,
    openers=(b"[", b"{"),
    keys=str,
    hashed=_HASHED,
    blanks=b" \t\r\n",
    long_number=re.compile(rb"[0-9]{19}").search,
)
"""Text that people and other programs can read."""
