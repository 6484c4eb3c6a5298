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
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

from agent_cache.core.options import count
from agent_cache.errors import ConfigurationError
from agent_cache.values.typed import JSON, MESSAGE_PACK, Undecodable, Unencodable, Wire, schema_of

__all__ = ["Codec", "EncryptedCodec", "JsonCodec", "MessagePackCodec", "SignedCodec", "Undecodable", "Unencodable"]

_VERSION = 1
"""Of everything that a fleet shares. Data of another version is not read."""
_DIRECT, _TAGGED, _COMPRESSED = 0, 1, 2
_CHECKSUM_SIZE = 16
_MAC_SIZE = 32
_NONCE_SIZE = 12


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


def _header(name: str) -> bytes:
    return b"%c%b\0" % (_VERSION, name.encode("ascii"))


def _checksum(data: bytes, *bound: bytes) -> bytes:
    # No secret is in it: it finds accidents. Against forgers there is SignedCodec.
    digest = blake2b(digest_size=_CHECKSUM_SIZE)
    for each in bound:
        digest.update(b"%d:%b" % (len(each), each))
    digest.update(data)
    return digest.digest()


class _WireCodec:
    """Typed data with header and checksum, compressed where that makes it smaller.

    Args:
        compress_above: bytes above which data is compressed; None for never.
        max_size: the most bytes that a value may have, compressed or not.
    """

    _wire: Wire

    def __init__(self, *, compress_above: int | None = 4096, max_size: int = 1_048_576) -> None:
        kind = type(self).__name__
        self._max_body = count(1, max_size, f"{kind}: max_size")
        above = max_size if compress_above is None else compress_above
        self._compress_above = count(1, above, f"{kind}: compress_above")
        self._header = _header(self._wire.name)

    @property
    def name(self) -> str:
        return self._wire.name

    @property
    def max_size(self) -> int:
        return self._max_body + 64  # header and checksum included

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        schema = schema_of(returns)
        data, is_tagged = schema.dump(value, self._wire, self._max_body)
        if len(data) > self._max_body:
            raise Unencodable(f"the value takes {len(data)} bytes, more than the {self._max_body} that are allowed")
        form = _TAGGED if is_tagged else _DIRECT
        if len(data) > self._compress_above:
            smaller = zlib.compress(data, 1)  # the level at which time matters more than size
            if len(smaller) < len(data):
                data, form = smaller, form | _COMPRESSED
        body = b"%c%b" % (form, data)
        return b"%b%b%b" % (self._header, _checksum(body, self._header, context, schema.fingerprint), body)

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        if type(data) is not bytes or len(data) > self.max_size:
            raise Undecodable("no bytes, or too many")
        if not data.startswith(self._header):
            raise Undecodable("data of another codec or version")
        schema, start = schema_of(returns), len(self._header)
        checksum, body = data[start : start + _CHECKSUM_SIZE], data[start + _CHECKSUM_SIZE :]
        if not body or checksum != _checksum(body, self._header, context, schema.fingerprint):
            raise Undecodable("damaged data, or data for another entry or return type")
        form, data = body[0], body[1:]
        if form > _TAGGED | _COMPRESSED:
            raise Undecodable("a form of data that is not known here")
        if form & _COMPRESSED:
            data = _decompressed(data, self._max_body)
        return schema.load(data, self._wire, is_tagged=bool(form & _TAGGED))


def _decompressed(data: bytes, max_size: int) -> bytes:
    """Undo `zlib.compress`, without ever holding more than `max_size` bytes."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, max_size + 1)
    except zlib.error as error:
        raise Undecodable("broken compressed data") from error
    if len(found) > max_size or not stream.eof or stream.unused_data:
        raise Undecodable(f"compressed data of more than {max_size} bytes, or that ends too early or too late")
    return found


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
    _sizes: range | tuple[int, ...]
    _fitting_key: str
    _seal: Callable[[bytes, bytes, bytes], bytes]  # a key, what to seal, and what it is bound to
    _open: Callable[[bytes, bytes, bytes], bytes | None]

    def __init__(self, inner: Codec, keys: bytes | Iterable[bytes]) -> None:
        codec = type(self).__name__
        if not callable(getattr(inner, "encode", None)) or not callable(getattr(inner, "decode", None)):
            raise ConfigurationError(f"{codec}: the first argument is a codec, got {inner!r}")
        self._inner = inner
        self._header = _header(self.name)
        given: Any = keys
        is_several = isinstance(given, Iterable) and not isinstance(given, bytes | str)
        self._keys: list[bytes] = list(given) if is_several else [given]
        if not self._keys or any(not isinstance(key, bytes) or len(key) not in self._sizes for key in self._keys):
            raise ConfigurationError(f"{codec}: a key must be {self._fitting_key}; give one, or a sequence of such")

    @property
    def name(self) -> str:
        return f"{self._kind}+{self._inner.name}"

    @property
    def max_size(self) -> int:
        return self._inner.max_size + len(self._header) + _MAC_SIZE

    def encode(self, value: object, returns: object, *, context: bytes = b"") -> bytes:
        body = self._inner.encode(value, returns, context=context)
        return self._header + self._seal(self._keys[0], body, self._bound(context))

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        if type(data) is not bytes or len(data) > self.max_size or not data.startswith(self._header):
            raise Undecodable("no bytes, too many, or data of another codec or version")
        sealed, bound = data[len(self._header) :], self._bound(context)
        for key in self._keys:
            if (body := self._open(key, sealed, bound)) is not None:
                return self._inner.decode(body, returns, context=context)
        raise Undecodable("data that none of the keys has written for this entry")

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
    _sizes = range(32, 1 << 20)
    _fitting_key = "at least 32 random bytes, such as secrets.token_bytes(32)"

    def _seal(self, key: bytes, body: bytes, bound: bytes) -> bytes:
        return hmac.digest(key, bound + body, "sha256") + body

    def _open(self, key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
        mac, body = sealed[:_MAC_SIZE], sealed[_MAC_SIZE:]
        return body if hmac.compare_digest(mac, hmac.digest(key, bound + body, "sha256")) else None


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
    _sizes = (16, 24, 32)
    _fitting_key = "16, 24 or 32 random bytes, such as secrets.token_bytes(32)"

    def __init__(self, inner: Codec, keys: bytes | Iterable[bytes]) -> None:
        super().__init__(inner, keys)
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigurationError('EncryptedCodec needs cryptography: pip install "agent-cache[crypto]"') from error
        self._invalid = InvalidTag
        self._ciphers = {key: AESGCM(key) for key in self._keys}

    def _seal(self, key: bytes, body: bytes, bound: bytes) -> bytes:
        nonce = os.urandom(_NONCE_SIZE)
        return nonce + self._ciphers[key].encrypt(nonce, body, bound)

    def _open(self, key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
        try:
            return self._ciphers[key].decrypt(sealed[:_NONCE_SIZE], sealed[_NONCE_SIZE:], bound)
        except (self._invalid, ValueError):  # one of too few bytes
            return None
