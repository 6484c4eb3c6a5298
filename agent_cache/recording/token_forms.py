"""Forms of tokens: how those of some 190 services begin and go on.

Most are Betterleaks' rules (`credentials.json`), which demand the exact length of a token. `FAMILIES` knows the
commonest ones at any length, because services change it and logs cut texts.
"""

from __future__ import annotations

import base64
import functools
import re
from importlib.resources import files
from itertools import islice
from typing import Final

import msgspec

from agent_cache.recording.secret_names import DATA, RE, looks_random

MAX_STARTS = 32
"""How often a token may begin within a run of letters and digits."""

FAMILIES: Final = (
    *((tuple(one["starts"]), one["pattern"]) for one in DATA["families"]),
    # A bot of Discord: its number in base64, the time, and the rest.
    (
        tuple({base64.b64encode(b"%d" % number).decode()[:3].lower() for number in range(100, 1000)}),
        r"[MNO][A-Za-z0-9]{23,25}\.[\w-]{6}\.[\w-]{27,}",
    ),
)


class _Rules(msgspec.Struct):
    forms: dict[str, _Form]


class _Form(msgspec.Struct):
    starts: list[str]
    pattern: str
    is_mixed: bool = False


@functools.cache
def token_rules() -> _Rules:
    """Betterleaks' rules."""
    return msgspec.json.decode(files("agent_cache.recording").joinpath("credentials.json").read_bytes(), type=_Rules)


@functools.cache
def token_forms() -> dict[str, list[str]]:
    """Patterns of tokens by their first three characters, in lower case."""
    found: dict[str, list[str]] = {}
    for starts, pattern in FAMILIES:
        for start in starts:
            found.setdefault(start, []).append(pattern)
    for form in token_rules().forms.values():
        if not form.is_mixed:
            for start in dict.fromkeys(start[:3] for start in form.starts):
                found.setdefault(start, []).append(form.pattern)
    return found


@functools.cache
def mixed_forms() -> list[tuple[bytes, str]]:
    """Beginnings and patterns of tokens whose characters need not stand in a run, such as base64."""
    return [
        (start.encode(), rf"(?<![\w-]){form.pattern}")
        for form in token_rules().forms.values()
        if form.is_mixed
        for start in form.starts
    ]


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of a token, compiled once."""
    return re.compile(pattern, re.ASCII)


def end_of_token(text: str, at: int) -> int:
    """Where the token ends that begins here; -1 if none does."""
    for pattern in token_forms().get(text[at : at + 3].lower(), ()):
        match = compiled(pattern).match(text, at)
        if match is not None and looks_random(text[at + 3 : match.end()]):
            return match.end()
    return -1


def starts_of_tokens(text: str, begin: int, end: int) -> list[int]:
    """Where a token may begin in a run of its characters."""
    found = [begin]
    if begin and text[begin - 1] == "\\" and text[begin] in "nrt":  # a line break that is written as an escape
        found.append(begin + 1)
    found += (match.end() for match in islice(RE.start.finditer(text, begin, end), MAX_STARTS))
    return found
