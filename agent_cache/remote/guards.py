"""Codecs around a codec: who wrote the data (`SignedCodec`), and who can read it (`EncryptedCodec`).

Both take several keys: the first writes, all of them read. To change keys without losing what is stored, put the new
one first, and leave the old one out once what it wrote has expired.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent_cache.errors import ConfigurationError
from agent_cache.remote.envelopes import header
from agent_cache.values.failures import Undecodable

if TYPE_CHECKING:
    from agent_cache.remote.codecs import Codec

__all__ = ["EncryptedCodec", "SignedCodec"]

_MAC = 32
_NONCE = 12
_TAG = 16


class _Guard:
    """What both have in common: a codec inside, keys, and a header that says whose data it is."""

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
        """What the data names its codec by: this one and the one inside."""
        return f"{self._kind}+{self._inner.name}"

    def _checked(self, keys: Any) -> list[bytes]:
        who = type(self).__name__
        if isinstance(keys, bytes):
            keys = [keys]
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise ConfigurationError(
                f"{who}: keys are bytes, such as secrets.token_bytes(32) makes, or a sequence of them"
            )
        found = list(keys)
        if not found:
            raise ConfigurationError(f"{who}: at least one key is needed")
        for number, key in enumerate(found):
            if not isinstance(key, bytes):
                raise ConfigurationError(f"{who}: key {number} is a {type(key).__name__}, and keys are bytes")
            if (problem := self._problem(key)) is not None:
                raise ConfigurationError(f"{who}: key {number} has {len(key)} bytes; {problem}")
        return found

    def _problem(self, key: bytes) -> str | None:
        raise NotImplementedError

    def _body(self, data: bytes) -> bytes:
        """What stands behind the header of data that is no larger than it can be."""
        if type(data) is not bytes or len(data) > self.max_size:
            raise Undecodable("no bytes, or too many")
        if not data.startswith(self._header):
            raise Undecodable("data of another codec or version")
        return data[len(self._header) :]

    @property
    def max_size(self) -> int:
        """The most bytes that `encode` gives and `decode` looks at."""
        return self._inner.max_size + len(self._header) + _MAC

    def _bound(self, context: bytes) -> bytes:
        return b"%b%d:%b" % (self._header, len(context), context)


class SignedCodec(_Guard):
    """A codec whose data carries an HMAC-SHA256: what was not written with one of the keys is not looked at.

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
        """Write a value down and sign it, as `Codec.encode` says."""
        body = self._inner.encode(value, returns, context=context)
        return b"%b%b%b" % (self._header, self._mac(self._keys[0], body, context), body)

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        """Verify and read a value, as `Codec.decode` says."""
        signed = self._body(data)
        mac, body = signed[:_MAC], signed[_MAC:]
        # Every key is tried, whichever fits, so that the time taken tells nothing.
        matches = [hmac.compare_digest(mac, self._mac(key, body, context)) for key in self._keys]
        if not any(matches):
            raise Undecodable("data that none of the keys has signed for this entry")
        return self._inner.decode(body, returns, context=context)

    def _mac(self, key: bytes, body: bytes, context: bytes) -> bytes:
        return hmac.digest(key, self._bound(context) + body, "sha256")


class EncryptedCodec(_Guard):
    """A codec whose data only the holders of a key can read or write: AES-GCM with a random nonce for each value.

    It needs the `cryptography` package: ``pip install "agent-cache[crypto]"``. Values are compressed before they are
    encrypted, so their sizes tell something of what is in them; `compress_above=None` of the inner codec tells less.

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
        """Write a value down and encrypt it, as `Codec.encode` says."""
        nonce = os.urandom(_NONCE)
        body = self._inner.encode(value, returns, context=context)
        return b"%b%b%b" % (self._header, nonce, self._ciphers[0].encrypt(nonce, body, self._bound(context)))

    def decode(self, data: bytes, returns: object, *, context: bytes = b"") -> object:
        """Decrypt and read a value, as `Codec.decode` says."""
        sealed = self._body(data)
        if len(sealed) < _NONCE + _TAG:
            raise Undecodable("encrypted data that ends too early")
        nonce, body, bound = sealed[:_NONCE], sealed[_NONCE:], self._bound(context)
        for cipher in self._ciphers:
            try:
                plain = cipher.decrypt(nonce, body, bound)
            except self._invalid:
                continue
            return self._inner.decode(plain, returns, context=context)
        raise Undecodable("data that none of the keys has encrypted for this entry")
