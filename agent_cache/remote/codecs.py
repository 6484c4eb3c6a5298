"""Codecs: values to bytes for a remote tier and back, by the return annotation of their tool.

No codec imports anything that data names, and none runs code that data brings: there is no pickle. Data from a server
counts as hostile. Only `SignedCodec` and `EncryptedCodec`, which are put around another codec, prove who wrote it.

Encoded data is a header (version and name of the codec), a checksum and a body. The checksum also covers the entry and
the annotation that the value belongs to, which are not sent along.
"""

from __future__ import annotations

import hmac
import os
import zlib
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

from agent_cache.errors import ConfigurationError
from agent_cache.values.typed import JSON, MESSAGE_PACK, Undecodable, Unencodable, Wire, schema_of

__all__ = [
    "Codec",
    "EncryptedCodec",
    "JsonCodec",
    "MessagePackCodec",
    "SignedCodec",
    "Undecodable",
    "Unencodable",
]

SCHEMA_VERSION = 1
"""Version of everything that a fleet shares. Data of another version is not read."""

_DIRECT, _TAGGED, _COMPRESSED = 0, 1, 2
_FORMS = frozenset(b"%c" % (form | packed) for form in (_DIRECT, _TAGGED) for packed in (0, _COMPRESSED))

_CHECKSUM_SIZE = 16
_MAC_SIZE = 32
_NONCE_SIZE = 12
_TAG_SIZE = 16


@runtime_checkable
class Codec(Protocol):
    """Turns values into bytes and back.

    `context` names the entry that a value belongs to. It is not sent along but bound to the data: what was written with
    one context is `Undecodable` with another, so a value cannot be moved to a key that it was not stored under.
    """

    @property
    def name(self) -> str:
        """Name of the codec in the header of its data. ASCII."""
        ...

    @property
    def max_size(self) -> int:
        """The most bytes that `encode` gives and `decode` reads."""
        ...

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        """Write a value.

        Args:
            returns: the return annotation of the tool, or `Returns` of the tool itself.
            context: names the entry that the data is bound to.

        Raises:
            Unencodable: if it would not come back the same in value and type, or is too large.
        """
        ...

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        """Read what `encode` wrote for the same annotation and context.

        Raises:
            Undecodable: for any other data, whatever it is.
        """
        ...


def header(name: str) -> bytes:
    """First bytes of all data of the codec of this name."""
    return b"%c%b\0" % (SCHEMA_VERSION, name.encode("ascii"))


def seal(start: bytes, body: bytes, *bound: bytes) -> bytes:
    """Join header, checksum and body. The checksum also covers `bound`, which is not sent along."""
    return b"%b%b%b" % (start, _checksum(start, body, bound), body)


def unseal(data: bytes, start: bytes, *bound: bytes) -> bytes:
    """Give the body of what `seal` made with the same header and the same `bound`.

    Raises:
        Undecodable: for any other data.
    """
    if not data.startswith(start):
        raise Undecodable("data of another codec or version")
    end = len(start) + _CHECKSUM_SIZE
    body = data[end:]
    if len(data) < end or data[len(start) : end] != _checksum(start, body, bound):
        raise Undecodable("damaged data, or data for another entry or return type")
    return body


def _checksum(start: bytes, body: bytes, bound: tuple[bytes, ...]) -> bytes:
    # No secret is in it: it finds accidents. Against forgers there is SignedCodec.
    for each in bound:
        start = b"%b%d:%b" % (start, len(each), each)
    return blake2b(start + body, digest_size=_CHECKSUM_SIZE).digest()


def _decompressed(data: bytes, max_size: int) -> bytes:
    """Undo `zlib.compress`, without ever holding more than `max_size` bytes."""
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


class _WireCodec:
    """Typed data in a sealed envelope, compressed where that makes it smaller.

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
        """Name of the codec in the header of its data."""
        return self._wire.name

    @property
    def max_size(self) -> int:
        """The most bytes that `encode` gives and `decode` reads, header and checksum included."""
        return self._max_data

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        """Write a value, as `Codec.encode` says."""
        schema = schema_of(returns)
        data, is_tagged = schema.dump(value, self._wire, self._max_body)
        if len(data) > self._max_body:
            raise Unencodable(f"the value takes {len(data)} bytes, more than the {self._max_body} that are allowed")
        form = _TAGGED if is_tagged else _DIRECT
        if len(data) > self._compress_above:
            smaller = zlib.compress(data, 1)  # the level at which time matters more than size
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
            data = _decompressed(data, self._max_body)
        return schema.load(data, self._wire, is_tagged=bool(form[0] & _TAGGED))


class MessagePackCodec(_WireCodec):
    """MessagePack through msgspec: compact, and the fastest to read. The default."""

    _wire = MESSAGE_PACK


class JsonCodec(_WireCodec):
    """JSON through msgspec, for servers that people and other programs look into."""

    _wire = JSON


class _KeyedCodec:
    """What `SignedCodec` and `EncryptedCodec` have in common: a codec inside, keys, and a header of their own.

    The first key writes, all of them read. To change keys without losing what is stored, put the new one first, and
    leave the old one out once what it wrote has expired.
    """

    _kind: str

    def __init__(self, inner: Codec, keys: bytes | Iterable[bytes]) -> None:
        if not callable(getattr(inner, "encode", None)) or not callable(getattr(inner, "decode", None)):
            raise ConfigurationError(f"{type(self).__name__}: the first argument is a codec, got {inner!r}")
        self._inner = inner
        self._keys = self._checked(keys)
        self._header = header(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r}, <{len(self._keys)} keys>)"

    @property
    def name(self) -> str:
        """Name of this codec and of the one inside, in the header of the data."""
        return f"{self._kind}+{self._inner.name}"

    @property
    def max_size(self) -> int:
        """The most bytes that `encode` gives and `decode` reads."""
        return self._inner.max_size + len(self._header) + _MAC_SIZE

    def _checked(self, keys: Any) -> list[bytes]:
        codec = type(self).__name__
        if isinstance(keys, bytes):
            keys = [keys]
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise ConfigurationError(
                f"{codec}: keys are bytes, such as secrets.token_bytes(32) makes, or a sequence of them"
            )
        found = list(keys)
        if not found:
            raise ConfigurationError(f"{codec}: at least one key is needed")
        for number, key in enumerate(found):
            if not isinstance(key, bytes):
                raise ConfigurationError(f"{codec}: key {number} is a {type(key).__name__}, and keys are bytes")
            if (problem := self._problem(key)) is not None:
                raise ConfigurationError(f"{codec}: key {number} has {len(key)} bytes; {problem}")
        return found

    def _problem(self, key: bytes) -> str | None:
        raise NotImplementedError

    def _body(self, data: bytes) -> bytes:
        """What follows the header, of data that is no larger than it can be."""
        if type(data) is not bytes or len(data) > self.max_size:
            raise Undecodable("no bytes, or too many")
        if not data.startswith(self._header):
            raise Undecodable("data of another codec or version")
        return data[len(self._header) :]

    def _bound(self, context: bytes) -> bytes:
        return b"%b%d:%b" % (self._header, len(context), context)


class SignedCodec(_KeyedCodec):
    """A codec whose data carries an HMAC-SHA256: what was not written with one of the keys is not read.

    Args:
        inner: the codec that makes and reads the data.
        keys: at least 32 random bytes, or a sequence of such: the first signs, all of them verify.

    Raises:
        ConfigurationError: if a key cannot be one.
    """

    _kind = "signed"

    def _problem(self, key: bytes) -> str | None:
        return None if len(key) >= 32 else "at least 32 random ones are needed: secrets.token_bytes(32)"

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        """Write a value and sign it, as `Codec.encode` says."""
        body = self._inner.encode(value, returns, context=context)
        return b"%b%b%b" % (self._header, self._mac(self._keys[0], body, context), body)

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        """Verify and read a value, as `Codec.decode` says."""
        signed = self._body(data)
        mac, body = signed[:_MAC_SIZE], signed[_MAC_SIZE:]
        # Every key is tried, whichever fits, so that the time taken tells nothing.
        matches = [hmac.compare_digest(mac, self._mac(key, body, context)) for key in self._keys]
        if not any(matches):
            raise Undecodable("data that none of the keys has signed for this entry")
        return self._inner.decode(body, returns, context=context)

    def _mac(self, key: bytes, body: bytes, context: bytes) -> bytes:
        return hmac.digest(key, self._bound(context) + body, "sha256")


class EncryptedCodec(_KeyedCodec):
    """A codec whose data only the holders of a key can read or write: AES-GCM with a random nonce for each value.

    It needs the `cryptography` package: ``pip install "agent-cache[crypto]"``. Values are compressed before they are
    encrypted, so their sizes tell something about their content; `compress_above=None` of the inner codec tells less.

    Args:
        inner: the codec that makes and reads the data.
        keys: 16, 24 or 32 random bytes, or a sequence of such: the first encrypts, all of them decrypt. One key is good
            for 2**32 values (NIST SP 800-38D, 8.3).

    Raises:
        ConfigurationError: if a key cannot be one, or the package is missing.
    """

    _kind = "encrypted"

    def __init__(self, inner: Codec, keys: bytes | Iterable[bytes]) -> None:
        super().__init__(inner, keys)
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigurationError('EncryptedCodec needs cryptography: pip install "agent-cache[crypto]"') from error
        self._invalid = InvalidTag
        self._ciphers = [AESGCM(key) for key in self._keys]

    def _problem(self, key: bytes) -> str | None:
        return None if len(key) in {16, 24, 32} else "AES takes 16, 24 or 32 random ones: secrets.token_bytes(32)"

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        """Write a value and encrypt it, as `Codec.encode` says."""
        nonce = os.urandom(_NONCE_SIZE)
        body = self._inner.encode(value, returns, context=context)
        return b"%b%b%b" % (self._header, nonce, self._ciphers[0].encrypt(nonce, body, self._bound(context)))

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        """Decrypt and read a value, as `Codec.decode` says."""
        sealed = self._body(data)
        if len(sealed) < _NONCE_SIZE + _TAG_SIZE:
            raise Undecodable("encrypted data that ends too early")
        nonce, body, bound = sealed[:_NONCE_SIZE], sealed[_NONCE_SIZE:], self._bound(context)
        for cipher in self._ciphers:
            try:
                plain = cipher.decrypt(nonce, body, bound)
            except self._invalid:
                continue
            return self._inner.decode(plain, returns, context=context)
        raise Undecodable("data that none of the keys has encrypted for this entry")
