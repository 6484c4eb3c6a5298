"""Encrypted journals: each line by itself, so that lines can be appended and a torn end is known.

    {"agent_cache_journal":1,"encrypted":"..."}
    {"encrypted":"..."}

A line is what it would be in a journal without a key, by `remote.codecs.EncryptedCodec`. Its number is the context.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.remote.codecs import EncryptedCodec, MessagePackCodec, Undecodable

KEY_VARIABLE = "AGENT_CACHE_JOURNAL_KEY"
"""The environment variable that has the key of encrypted journals, in hexadecimal digits."""

_FIRST = b'{"agent_cache_journal":1,"encrypted":"'
_LATER = b'{"encrypted":"'


class LineCipher:
    """Encrypts and decrypts the lines of journals, by a key of 16, 24 or 32 random bytes.

    Raises:
        ConfigurationError: if the key cannot be one, or the package `cryptography` is missing.
    """

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) not in (16, 24, 32):
            raise ConfigurationError("Journal: key must be 16, 24 or 32 random bytes: secrets.token_bytes(32)")
        self._codec = EncryptedCodec(MessagePackCodec(max_size=1 << 30), key)

    def encrypt(self, line: bytes, number: int) -> bytes:
        """The line that stands for a line of this number, from 1."""
        data = self._codec.encode(line, bytes, context=b"%d" % number)
        return b'%b%b"}\n' % (_FIRST if number == 1 else _LATER, b64encode(data))

    def decrypt(self, line: bytes, number: int) -> bytes:
        """The line that was encrypted."""
        text = line[line.index(b'"encrypted":"') + 13 : line.rindex(b'"')]
        found: bytes = self._codec.decode(b64decode(text, validate=True), bytes, context=b"%d" % number)  # type: ignore[assignment]  # as it was encoded
        return found


def is_encrypted(data: bytes) -> bool:
    """Whether a file that begins so is an encrypted journal."""
    return data.startswith(_FIRST)


def decrypted(path: Path, data: bytes, key: bytes | None = None) -> bytes:
    """What a file says: the same, or the whole lines of an encrypted journal. Raises CassetteError without its key."""
    if not is_encrypted(data):
        return data
    cipher, lines = LineCipher(key_of(path, key)), data[: data.rfind(b"\n") + 1].splitlines()
    for at, line in enumerate(lines):
        try:
            lines[at] = cipher.decrypt(line, at + 1)
        except (Undecodable, ValueError) as error:
            text = f"cannot be decrypted: it is broken, or was encrypted with another key ({error})"
            raise CassetteError(text, path, at + 1) from error
    return b"".join(lines)


def key_of(path: Path, key: bytes | None) -> bytes:
    """The key of an encrypted journal, which is given or in the environment."""
    if key is not None:
        return key
    with suppress(ValueError):
        if found := bytes.fromhex(os.environ.get(KEY_VARIABLE, "")):
            return found
    raise CassetteError(
        "is an encrypted journal; give the key that its Journal had as key=, or in hexadecimal digits in the "
        f"environment variable {KEY_VARIABLE}",
        path,
    )
