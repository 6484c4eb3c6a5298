"""Encrypted journals: each line by itself, so that lines can be appended and a torn end is known.

    {"agent_cache_journal":1,"encrypted":"..."}
    {"encrypted":"..."}

A line is what it would be in a journal without a key, by `remote.codecs.EncryptedCodec`. Its number is the context.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.remote.codecs import EncryptedCodec, MessagePackCodec, Undecodable

KEY_VARIABLE = "AGENT_CACHE_JOURNAL_KEY"
"""The environment variable that has the key of encrypted journals, in hexadecimal digits."""

_FIRST = b'{"agent_cache_journal":1,"encrypted":"'
_LATER = b'{"encrypted":"'
_MAX_LINE = 1 << 30


class LineCipher:
    """Encrypts and decrypts the lines of journals.

    Args:
        key: 16, 24 or 32 random bytes.

    Raises:
        ConfigurationError: if the key cannot be one, or the package `cryptography` is missing.
    """

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes):
            raise ConfigurationError("Journal: key must be 16, 24 or 32 random bytes: secrets.token_bytes(32)")
        self._codec = EncryptedCodec(MessagePackCodec(max_size=_MAX_LINE), key)

    def encrypt(self, line: bytes, number: int) -> bytes:
        """The line that stands for a line of this number, from 1."""
        data = self._codec.encode(line, bytes, context=b"%d" % number)
        return b'%b%b"}\n' % (_FIRST if number == 1 else _LATER, b64encode(data))

    def decrypt(self, line: bytes, number: int, path: Path) -> bytes:
        """The line that was encrypted.

        Raises:
            CassetteError: if it was not, or not with this key.
        """
        try:
            text = line[line.index(b'"encrypted":"') + 13 : line.rindex(b'"')]
            found = self._codec.decode(b64decode(text, validate=True), bytes, context=b"%d" % number)
        except (Undecodable, ValueError) as error:
            raise CassetteError(f"cannot be decrypted: it is broken, or was encrypted with another key ({error})", path,
                                number) from error  # fmt: skip
        return found  # type: ignore[return-value]  # as it was encoded


def is_encrypted(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an encrypted journal."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_FIRST)) == _FIRST
    except (OSError, ValueError):
        return False


def cipher_of(path: Path, key: bytes | None = None, first: bytes | None = None) -> LineCipher | None:
    """What decrypts an encrypted journal; None for any other file.

    Args:
        path: the file.
        key: by default the environment variable `KEY_VARIABLE` has it.
        first: its first bytes, if they are known.

    Raises:
        CassetteError: if it is encrypted, and there is no key.
    """
    if not (is_encrypted(path) if first is None else first.startswith(_FIRST)):
        return None
    return LineCipher(_key_of_environment(path) if key is None else key)


def decrypted(path: Path, file: BinaryIO, cipher: LineCipher | None) -> BinaryIO:
    """What a file says, from its beginning: the same file, or the decrypted lines of an encrypted journal.

    Raises:
        CassetteError: if a line cannot be decrypted.
    """
    if cipher is None:
        return file
    lines = (
        cipher.decrypt(line, number, path) if line.endswith(b"\n") else b"{"  # the latter is torn
        for number, line in enumerate(file, 1)
    )
    return BytesIO(b"".join(lines))


def _key_of_environment(path: Path) -> bytes:
    text = os.environ.get(KEY_VARIABLE, "")
    if not text:
        raise CassetteError(
            f"is an encrypted journal; give the key that its Journal had as key=, or in hexadecimal digits in the "
            f"environment variable {KEY_VARIABLE}",
            path,
        )
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigurationError(f"{KEY_VARIABLE} must be a key in hexadecimal digits: secrets.token_hex(32)") from None
