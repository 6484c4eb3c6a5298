"""Names of secrets, and values that may be one: what the name of a value says about it, by `credentials.toml`."""

from __future__ import annotations

import enum
import functools
import re
import tomllib
from importlib.resources import files
from typing import Any, Final

DATA: Final[dict[str, Any]] = tomllib.loads(
    files("agent_cache.recording").joinpath("credentials.toml").read_text("utf-8")
)


@functools.cache
def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A regular expression of `credentials.toml`, in which ``<<x>>`` stands for another one."""
    while "<<" in pattern:
        pattern = re.sub("<<(\\w+)>>", lambda match: DATA["patterns"][match[1]], pattern)
    return re.compile(pattern, flags)


class _Patterns:
    """The regular expressions of `credentials.toml`, each compiled when it is used first."""

    def __getattr__(self, name: str) -> re.Pattern[str]:
        setattr(self, name, pattern := compiled(DATA["patterns"][name]))
        return pattern


RE: Final = _Patterns()
WORDS: Final = {name: tuple(words) for name, words in DATA["words"].items()}


class NameKind(enum.IntEnum):
    """How much a name says about its value."""

    NONE = 0
    MAYBE = 1  # the value is a secret if it looks like one, such as that of `bot_token` or `auth`
    ENDING = 2  # a word is a secret and a number too, a sentence is none: `smtp_password`
    SECRET = 3  # any value is one


_PLURALS = tuple(f"{ending}s" for ending in WORDS["endings"])
_SQUASHED = str.maketrans("", "", "-_ .")


def squash(name: str) -> str:
    """A name without case, dashes, underscores, dots and blanks."""
    return name.lower().translate(_SQUASHED)


SQUASHED_NAMES: Final = frozenset(map(squash, WORDS["secret_names"]))
"""Names whose values are secrets, whatever the values are."""


def kind_of_name(name: str) -> NameKind:
    """What a name of a value says about it, apart from what the user has named.

    Case, dashes, underscores, dots and blanks divide it into words or do not count: `apiKey`, `Api-Key` and `API key`
    are names of secrets. So are names that end in one, such as `DB_PASSWORD`; `input_tokens` and `next_page_token` do
    not.
    """
    return _kind_with_stem(name) if len(name) <= 80 and RE.stem.search(squash(name)) is not None else NameKind.NONE


@functools.lru_cache(4096)
def _kind_with_stem(name: str) -> NameKind:
    squashed = squash(name)
    if squashed in SQUASHED_NAMES:
        return NameKind.SECRET
    words = [word.lower() for word in RE.word.findall(name)]
    # A number at the end counts names of one kind (API_KEY_2). What counts them, such as `max_passwords`, stays.
    if squashed.rstrip("0123456789").endswith((*WORDS["endings"], *_PLURALS)) or words[-1:] == ["secret"]:
        return NameKind.ENDING
    is_one = bool(words) and words[-1] in WORDS["maybe_last"] and set(WORDS["harmless"]).isdisjoint(words[:-1])
    return NameKind.MAYBE if is_one or names_code(name) else NameKind.NONE


def names_code(name: str) -> bool:
    """Whether a name is that of a code that is typed in once, or of a card: ``otp``, ``cvv``, ``backup_codes``."""
    words = RE.word.findall(name)
    return bool(words) and (words[-1].lower() in WORDS["code_words"] or squash(name).endswith(WORDS["code_endings"]))


def names_several(name: str) -> bool:
    """Whether a name is that of several secrets, whose number is none: ``passwords``, ``api_keys``, ``tokens``."""
    return squash(name).endswith((*_PLURALS, "secrets", "tokens", "codes"))


def is_placeholder(value: str) -> bool:
    """Whether a value stands for another one, or for none: ``${TOKEN}``, ``<your key>``, ``None``, a type's name."""
    return not value or stands_for_another(value) or squash(value) in WORDS["no_values"]


def stands_for_another(value: str) -> bool:
    """Whether a value is written in the place of another: ``${TOKEN}``, ``<your key>``, ``YOUR_API_KEY``."""
    return RE.placeholder.match(value) is not None or RE.documentation.match(squash(value)) is not None


def is_secret_value(kind: NameKind, name: str, value: str) -> bool:
    """Whether this text under a name of this kind is a secret."""
    low = name.lower()
    if kind is NameKind.SECRET:
        return bool(value) and not (low in ("pwd", "oldpwd") and RE.path.match(value))
    if kind is NameKind.MAYBE and names_code(name):
        digits = sum(map(str.isdigit, value))
        is_one = digits >= (3 if "cv" in low else 4) or (digits > 0 and len(value) >= 8 and " " not in value)
        return len(value) <= 64 and is_one and RE.code.match(value) is not None
    if kind is NameKind.NONE or is_placeholder(value) or any(map(str.isspace, value)):
        return False
    if kind is NameKind.ENDING:
        return True
    if RE.path.match(value):
        return False
    if low.endswith("tokens"):  # of a text, or several of these
        return len(value) >= 10 and RE.mixed.match(value) is not None
    if low.endswith(("pass", "pwd")) and low != "pass":
        return True
    return len(value) >= 6 and (low.endswith("token") or (looks_random(value) and not value[0].isdigit()))


def is_granted(value: str, *, is_certain: bool) -> bool:
    """Whether a value of ``code`` may be one that an authorization server has granted, and not a word or a status."""
    if stands_for_another(value) or not RE.granted.match(value):
        return False
    is_long = len(value) >= (6 if is_certain else 10)
    return is_long and looks_random(value) and (is_certain or not RE.screaming.match(value))


def names_command(word: str) -> bool:
    """Whether this is a command that takes a secret as the value of an option without a name, such as ``-p``."""
    return word.rpartition("/")[2] in WORDS["command_names"]


def looks_random(value: str) -> bool:
    """Whether a word may be a token rather than a word of a language or a name in a program."""
    return RE.random.search(value) is not None
