"""What secrets look like in a text: the shapes of known credentials, and values assigned to a telling name."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["SECRET_NAMES", "SHAPES", "assigned", "squash"]

SECRET_NAMES: tuple[str, ...] = (
    "access_key", "access_key_id", "access_token", "api_key", "api_secret", "api_token", "auth_token", "authorization",
    "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "bearer", "bearer_token", "client_secret",
    "connection_string", "cookie", "cookies", "credential", "credentials", "csrf_token", "database_password",
    "db_password", "encryption_key", "id_token", "jwt", "oauth_token", "passphrase", "passwd", "password",
    "private_key", "private_token", "proxy_authorization", "pwd", "refresh_token", "secret", "secret_access_key",
    "secret_key", "session_token",
    "set_cookie", "signing_key", "token", "webhook_secret", "x_amz_security_token", "x_api_key", "x_auth_token",
    "x_goog_api_key",
)  # fmt: skip
"""Names that hold a secret, whatever stands under them."""

SHAPES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("bearer", "basic"), r"(?P<kept>\b(?:bearer|basic)\s+)[a-z0-9._~+/=-]{8,}"),
    (("sk-",), r"\bsk-[a-z0-9_-]{16,}"),
    (("k_live_", "k_test_"), r"\b[rsp]k_(?:live|test)_[a-z0-9]{8,}"),
    (("aiza",), r"\bAIza[0-9a-z_-]{30,}"),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[opsur]_[a-z0-9]{20,}"),
    (("github_pat_",), r"\bgithub_pat_[a-z0-9_]{20,}"),
    (("glpat-",), r"\bglpat-[a-z0-9_-]{16,}"),
    (("xox",), r"\bxox[abeoprs]-[a-z0-9-]{10,}"),
    (("akia", "asia"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    (("hf_",), r"\bhf_[a-z0-9]{20,}"),
    (("gsk_",), r"\bgsk_[a-z0-9]{20,}"),
    (("npm_",), r"\bnpm_[a-z0-9]{30,}"),
    (("pypi-",), r"\bpypi-[a-z0-9_-]{30,}"),
    (("sg.",), r"\bSG\.[a-z0-9_-]{16,}\.[a-z0-9_-]{16,}"),
    (("eyj",), r"\beyJ[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]{4,}"),
    (("private key-",), r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    (("://",), r"(?P<kept>[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"'\\]*:)[^\s/@\"'\\]+(?=@)"),
)
"""Marks that any text with such a shape has in it, in lower case; and the shape. What is `kept` is no secret."""

_FILLERS = str.maketrans("", "", "-_")
_HEADERS = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie", "xapikey", "apikey"})

_NAME = re.compile(
    r"(?<![\w-])(?P<name>[\w-]++)(?:\\*[\"']\s*+[:=]\s*+(?P<quote>\\*[\"'])|(?P<plain>=)[\"']?|(?P<header>:)\s*+)"
)
_BARE = re.compile(r"(?:(?:bearer|basic)\s+)?[^\s\"'&,;<>\\]+", re.IGNORECASE)
_ONE_WORD = re.compile(
    r"[ \t]*(?P<word>(?=[^\s]*[^\sa-z]|[^\s]{16})[^\s\"'\\,;(){}<>\[\]]{6,})[ \t]*(?=[\r\n]|\Z)", re.IGNORECASE
)
"""What follows a name as the rest of its line, and is no word of a sentence and no type."""
_LINE = re.compile(r"[^\r\n\"'\\]+")


def squash(name: str) -> str:
    """A name without case, dashes and underscores."""
    return name.lower().translate(_FILLERS)


def assigned(text: str, is_secret: Callable[[str], bool], replacement: str) -> str:
    """Replace what is assigned to a secret name: ``"token": "..."`` as JSON and reprs have it, at any depth of
    escaping, ``token=...`` as queries and shells have it, HTTP headers, and ``password: hunter2`` on a line by itself.
    """
    parts: list[str] = []
    done = 0
    for match in _NAME.finditer(text):
        if match.start() < done or not is_secret(match["name"]):
            continue
        at = match.end()
        if match["header"] is not None:
            if squash(match["name"]) not in _HEADERS:
                value = _ONE_WORD.match(text, match.end("header")) if _begins_line(text, match.start()) else None
                if value is None:
                    continue
                at = value.start("word")
            else:
                value = _LINE.match(text, at)
            end = at if value is None else value.end("word") if value.re is _ONE_WORD else value.end()
        elif match["quote"] is not None:
            end = _closing(text, at, match["quote"])
        else:
            value = _BARE.match(text, at)
            end = at if value is None else value.end()
        if end > at:
            parts += (text[done:at], replacement)
            done = end
    return "".join((*parts, text[done:])) if parts else text


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip(" \t-")


def _closing(text: str, at: int, quote: str) -> int:
    """Where the text that was opened by `quote` ends; the end of all if it is never closed."""
    while True:
        end = text.find(quote, at)
        if end < 0:
            return len(text)
        escapes = 0
        while text[end - 1 - escapes] == "\\" and end - 1 - escapes >= at:
            escapes += 1
        if not escapes:
            return end
        at = end + len(quote)
