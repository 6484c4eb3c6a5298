"""Random credentials in the forms in which agents pass them to tools, and the traces one may leave in a file."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

_PLAIN: Final = string.ascii_letters + string.digits
_PIECE = 8
"""Characters of a random secret that occur in no text by accident."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret, and the argument that carries it."""

    secret: str
    argument: Any

    def traces(self) -> Iterator[bytes]:
        """Every piece of the secret long enough to identify it, plain and in the encodings used in files."""
        plain = self.secret.encode()
        texts = {plain, quote(self.secret, safe="").encode(), json.dumps(self.secret)[1:-1].encode()}
        for text in texts:
            yield from _pieces(text, _PIECE)
        yield from _pieces(plain.hex().encode(), 2 * _PIECE)
        for before in range(3):  # its base64 depends on the number of bytes before it
            encoded = base64.b64encode(b"\0" * before + plain)[4 if before else 0 : -4]
            for one in {encoded, encoded.translate(bytes.maketrans(b"+/", b"-_"))}:
                yield from _pieces(one, 12)


@dataclass
class Account:
    """An object with a secret in it."""

    name: str
    password: str


def _pieces(text: bytes, size: int) -> Iterator[bytes]:
    last = len(text) - size
    return (text[at : at + size] for at in {*range(0, last, size // 2), last})


def _jwt(secret: str) -> str:
    return f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZ2VudCJ9.{secret}"


def _pem(secret: str) -> str:
    return f"-----BEGIN RSA PRIVATE KEY-----\n{secret}\n{secret[::-1]}\n-----END RSA PRIVATE KEY-----"


FORMS: Final[Sequence[tuple[str, Callable[[str], Any]]]] = (
    ("named key", lambda secret: {"api_key": secret}),
    ("nested name", lambda secret: {"client": {"options": [{"refresh-token": secret, "retries": 3}]}}),
    ("header", lambda secret: {"Authorization": f"Bearer {secret}"}),
    ("headers as pairs", lambda secret: [("Accept", "*/*"), ("Cookie", f"session={secret}")]),
    ("basic header as bytes", lambda secret: b"Authorization: Basic " + base64.b64encode(secret.encode())),
    ("provider key in a text", lambda secret: f"use sk-{secret} for this one, please"),
    ("GitHub key", lambda secret: f"ghp_{secret}"),
    ("SendGrid key", lambda secret: f"SG.{secret}.{secret}"),
    ("JWT", _jwt),
    ("private key", _pem),
    ("URL with a password", lambda secret: f"postgres://agent:{secret}@db/retail"),
    ("query", lambda secret: f"https://api.test/orders?api_key={quote(secret, safe='')}&page=1"),
    ("shell", lambda secret: f"export PASSWORD={secret}"),
    ("JSON in JSON", lambda secret: json.dumps({"arguments": json.dumps({"password": secret})})),
    ("repr", lambda secret: repr({"token": secret})),
    ("bytes", lambda secret: json.dumps({"secret": secret}).encode()),
    ("object", lambda secret: Account("agent", secret)),
    ("AWS secret", lambda secret: {"aws_secret_access_key": f"{secret}/+{secret}="}),
)
"""Ways to pass a secret of letters and digits to a tool."""


def fresh(chance: random.Random, number: int) -> Credential:
    """A new credential, in the form with this number (modulo the number of forms)."""
    secret = "".join(chance.choices(_PLAIN, k=32))
    return Credential(secret, FORMS[number % len(FORMS)][1](secret))
