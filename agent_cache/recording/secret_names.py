"""Names of secrets, and values that may be one: what the name of a value says about it."""

from __future__ import annotations

import enum
import functools
import re
import tomllib
from importlib.resources import files
from typing import Any, Final


class _Patterns:
    """The regular expressions of `credentials.toml`, each compiled when it is used first."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def __getattr__(self, name: str) -> re.Pattern[str]:
        compiled = re.compile(self._texts[name])
        setattr(self, name, compiled)
        return compiled


DATA: Final[dict[str, Any]] = tomllib.loads(
    files("agent_cache.recording").joinpath("credentials.toml").read_text("utf-8")
)
RE: Final = _Patterns(DATA["patterns"])
WORDS: Final[dict[str, list[str]]] = DATA["words"]

# Names

SECRET_NAMES: Final = tuple(WORDS["secret_names"])
"""Names whose values are secrets, whatever the values are."""
_ENDINGS: Final = tuple(WORDS["endings"])
_CODE_WORDS: Final = frozenset(WORDS["code_words"])
_CODE_ENDINGS: Final = tuple(WORDS["code_endings"])
_HARMLESS: Final = frozenset(WORDS["harmless"])
_NO_VALUES: Final = frozenset(WORDS["no_values"])
NOTHING: Final = frozenset(WORDS["nothing"])
_COMMAND_NAMES: Final = frozenset(WORDS["command_names"])


class NameKind(enum.IntEnum):
    """How much a name says about its value.

    Attributes:
        NONE: nothing.
        MAYBE: the value is a secret if it looks like one, such as that of ``bot_token`` or ``auth``.
        ENDING: a word is a secret and a number too, a sentence is none: ``smtp_password``.
        SECRET: any value is one.
    """

    NONE = 0
    MAYBE = 1
    ENDING = 2
    SECRET = 3


_LONGEST_NAME = 80
# The same, of several secrets. What counts them, such as `max_passwords`, is a number, and stays.
_PLURALS = tuple(f"{ending}s" for ending in _ENDINGS)
_SHORTEST_CODE = 3  # digits: CVV
_LAST_WORDS = {
    "secret": NameKind.ENDING,
    "secrets": NameKind.MAYBE,
    "token": NameKind.MAYBE,
    "tokens": NameKind.MAYBE,
    "pass": NameKind.MAYBE,
    "pwd": NameKind.MAYBE,
    "auth": NameKind.MAYBE,
    "credential": NameKind.MAYBE,
    "credentials": NameKind.MAYBE,
    "creds": NameKind.MAYBE,
}


def kind_of_name(name: str) -> NameKind:
    """What a name of a value says about it, apart from what the user has named.

    Case, dashes, underscores, dots and blanks divide it into words or do not count: `apiKey`, `Api-Key` and `API key`
    are names of secrets. So are names that end in one, such as `DB_PASSWORD`; `input_tokens` and `next_page_token` do
    not.
    """
    is_one = len(name) <= _LONGEST_NAME and RE.stem.search(squash(name)) is not None
    return _kind_with_stem(name) if is_one else NameKind.NONE


@functools.lru_cache(4096)
def _kind_with_stem(name: str) -> NameKind:
    squashed = squash(name)
    if squashed in SQUASHED_NAMES:
        return NameKind.SECRET
    # A number at the end counts names of one kind: API_KEY_2.
    numberless = squashed.rstrip("0123456789")
    if numberless.endswith(_ENDINGS) or numberless.endswith(_PLURALS):
        return NameKind.ENDING
    if names_code(name):
        return NameKind.MAYBE
    words = [word.lower() for word in RE.word.findall(name)]
    kind = _LAST_WORDS.get(words[-1], NameKind.NONE) if words else NameKind.NONE
    if kind is NameKind.MAYBE and not _HARMLESS.isdisjoint(words[:-1]):
        return NameKind.NONE
    return kind


def names_code(name: str) -> bool:
    """Whether a name is that of a code that is typed in once, or of a card: ``otp``, ``cvv``, ``backup_codes``."""
    words = RE.word.findall(name)
    return bool(words) and (words[-1].lower() in _CODE_WORDS or squash(name).endswith(_CODE_ENDINGS))


def names_several(name: str) -> bool:
    """Whether a name is that of several secrets, whose number is none: ``passwords``, ``api_keys``, ``tokens``."""
    return squash(name).endswith((*_PLURALS, "secrets", "tokens", "codes"))


def squash(name: str) -> str:
    """A name without case, dashes, underscores, dots and blanks."""
    return name.lower().replace("-", "").replace("_", "").replace(" ", "").replace(".", "")


SQUASHED_NAMES = frozenset(map(squash, SECRET_NAMES))
# Values

_SHORTEST_GRANTED = 6
_SHORTEST_WITH_STATE = 10
SHORTEST_SECRET = 6
_SHORTEST_OF_TOKENS = 10
# What documentation has in the place of a secret, squashed. What somebody might use as one, such as `my-secret` or
# `changeme`, is none of them.
_OF_DOCUMENTATION = frozenset({
    f"{before}{name}{after}"
    for before in ("your", "enteryour", "insertyour", "putyour")
    for name in (
        "accesskey", "accesstoken", "anthropicapikey", "apikey", "apisecret", "apitoken", "authtoken", "bearertoken",
        "clientsecret", "databasepassword", "dbpassword", "githubtoken", "key", "openaiapikey", "openaikey", "password",
        "privatekey", "refreshtoken", "secret", "secretaccesskey", "secretkey", "token",
    )
    for after in ("", "here", "goeshere")
})  # fmt: skip


def is_placeholder(value: str) -> bool:
    """Whether a value stands for another one, or for none: ``${TOKEN}``, ``<your key>``, ``None``, a type's name."""
    return not value or stands_for_another(value) or squash(value) in _NO_VALUES


def stands_for_another(value: str) -> bool:
    """Whether a value is written in the place of another: ``${TOKEN}``, ``<your key>``, ``YOUR_API_KEY``."""
    return RE.placeholder.match(value) is not None or squash(value) in _OF_DOCUMENTATION


def is_code(name: str, value: str) -> bool:
    """Whether this is a code under the name of one."""
    digits = sum(map(str.isdigit, value))
    least = _SHORTEST_CODE if "cv" in name.lower() else _SHORTEST_CODE + 1
    is_long = digits > 0 and len(value) >= 8 and " " not in value
    return len(value) <= 64 and (digits >= least or is_long) and RE.code.match(value) is not None


def is_secret_value(kind: NameKind, name: str, value: str) -> bool:
    """Whether this text under a name of this kind is a secret."""
    if kind is NameKind.SECRET:
        return bool(value) and not (name.lower() in ("pwd", "oldpwd") and RE.path.match(value))
    if kind is NameKind.MAYBE and names_code(name):
        return is_code(name, value)
    if kind is NameKind.NONE or is_placeholder(value) or any(map(str.isspace, value)):
        return False
    if kind is NameKind.ENDING:
        return True
    low = name.lower()
    if RE.path.match(value):
        return False
    if low.endswith("tokens"):  # of a text, or several of these
        return len(value) >= _SHORTEST_OF_TOKENS and RE.mixed.match(value) is not None
    if low.endswith(("pass", "pwd")) and low != "pass":
        return True
    if low.endswith("token"):
        return len(value) >= SHORTEST_SECRET
    return len(value) >= SHORTEST_SECRET and looks_random(value) and not value[0].isdigit()


def is_granted(value: str, *, is_certain: bool) -> bool:
    """Whether a value of ``code`` may be one that an authorization server has granted, and not a word or a status.

    Args:
        is_certain: whether parameters that only OAuth has stand beside it.
    """
    if stands_for_another(value) or not RE.granted.match(value):
        return False
    least = _SHORTEST_GRANTED if is_certain else _SHORTEST_WITH_STATE
    return len(value) >= least and looks_random(value) and (is_certain or not RE.screaming.match(value))


def names_command(word: str) -> bool:
    """Whether this is a command that takes a secret as the value of an option without a name, such as ``-p``."""
    return word.rpartition("/")[2] in _COMMAND_NAMES


def looks_random(value: str) -> bool:
    """Whether a word may be a token rather than a word of a language or a name in a program."""
    return RE.random.search(value) is not None
