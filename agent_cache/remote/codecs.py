"""How values travel: bytes out of a value and its return annotation, and the same value back or a clear refusal.

No codec imports anything that data names, and none runs code that data brings: there is no pickle. What comes from a
server is hostile until it is proved otherwise, and only `SignedCodec` and `EncryptedCodec` prove who wrote it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from agent_cache.errors import ConfigurationError
from agent_cache.remote.envelopes import compressed, decompressed, header, seal, unseal
from agent_cache.remote.guards import EncryptedCodec, SignedCodec
from agent_cache.values.failures import Undecodable, Unencodable
from agent_cache.values.schema import schema_of
from agent_cache.values.wires import JSON, MESSAGE_PACK, Wire

__all__ = [
    "Codec",
    "EncryptedCodec",
    "JsonCodec",
    "MessagePackCodec",
    "SignedCodec",
    "Undecodable",
    "Unencodable",
]

_DIRECT, _TAGGED, _COMPRESSED = 0, 1, 2


@runtime_checkable
class Codec(Protocol):
    """What turns values into bytes and back.

    `context` names the entry that a value belongs to. It is not sent along but bound to the data: what was written with
    one context is `Undecodable` with another, so a value cannot be moved to a key that it was not stored under.
    """

    @property
    def name(self) -> str:
        """What the data names its codec by. ASCII."""
        ...

    @property
    def max_size(self) -> int:
        """The most bytes that `encode` gives and `decode` looks at."""
        ...

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        """Write a value down.

        Args:
            returns: the return annotation of the tool, or `Returns` of the tool itself.
            context: what the value is bound to.

        Raises:
            Unencodable: if it would not come back the same in value and type, or is too large.
        """
        ...

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        """Read what `encode` wrote for the same annotation and context.

        Raises:
            Undecodable: if it is anything else, whatever it is.
        """
        ...


class _WireCodec:
    """Typed data in an envelope that says what it is, compressed if that is worth it.

    Args:
        compress_above: bytes above which data is compressed; None for never.
        max_size: the most bytes that a value may have, compressed or not.
    """

    _wire: Wire

    def __init__(self, *, compress_above: int | None = 4096, max_size: int = 1_048_576) -> None:
        for name, number in (("compress_above", compress_above), ("max_size", max_size)):
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not (is_number and number > 0) and not (number is None and name == "compress_above"):  # type: ignore[operator]
                raise ConfigurationError(f"{type(self).__name__}: {name} is a positive number of bytes, got {number!r}")
        self._compress_above = max_size if compress_above is None else compress_above
        self._max_body = max_size
        self._max_data = max_size + 64
        self._header = header(self._wire.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(compress_above={self._compress_above}, max_size={self._max_body})"

    @property
    def name(self) -> str:
        """What the data names its codec by."""
        return self._wire.name

    @property
    def max_size(self) -> int:
        """The most bytes that `encode` gives and `decode` looks at: a value's, and what stands around it."""
        return self._max_data

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        """Write a value down, as `Codec.encode` says."""
        schema = schema_of(returns)
        data, is_tagged = schema.dump(value, self._wire, self._max_body)
        if len(data) > self._max_body:
            raise Unencodable(f"the value takes {len(data)} bytes, more than the {self._max_body} that are allowed")
        form = _TAGGED if is_tagged else _DIRECT
        if len(data) > self._compress_above:
            smaller = compressed(data)
            if len(smaller) < len(data):
                data, form = smaller, form | _COMPRESSED
        return seal(self._header, b"%c%b" % (form, data), context, schema.fingerprint)

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        """Read a value, as `Codec.decode` says."""
        if type(data) is not bytes or len(data) > self._max_data:
            raise Undecodable("no bytes, or too many")
        schema = schema_of(returns)
        body = unseal(data, self._header, context, schema.fingerprint)
        form, data = body[:1], body[1:]
        if form not in _FORMS:
            raise Undecodable("a form of data that is not known here")
        if form[0] & _COMPRESSED:
            data = decompressed(data, self._max_body)
        return schema.load(data, self._wire, is_tagged=bool(form[0] & _TAGGED))


_FORMS = frozenset(b"%c" % (tagged | packed) for tagged in (_DIRECT, _TAGGED) for packed in (0, _COMPRESSED))


class MessagePackCodec(_WireCodec):
    """MessagePack through msgspec: compact, and the fastest to read. The default."""

    _wire = MESSAGE_PACK


class JsonCodec(_WireCodec):
    """JSON through msgspec, for servers that people and other programs look into."""

    _wire = JSON
