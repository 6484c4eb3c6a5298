"""Whether there may be a secret in a piece of JSON at all. It is asked first: that is far faster than looking."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from agent_cache.recording.secrets import squash

__all__ = ["Suspicion"]

_WHOLE_BASE64 = re.compile(rb'"([A-Za-z0-9+/]{12,}={0,2})\\*"')
"""What is looked into where it stands as a whole text, in JSON or in JSON that is a text there."""
_KELVIN = "\u212a".encode()
"""Another letter that is "k" in lower case."""
_ESCAPE = re.compile(rb"\\(?:u....|.)")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_WORDS = bytes(each if bytes([each]).isalnum() else 0x20 for each in range(256)).lower().translate(_DIGITS)
_SPOKEN = (b"bearer", b"basic", b"private")
"""What ends the word before a credential of no particular length: ``Basic ...``, ``BEGIN RSA PRIVATE KEY``."""
_DOTTED = (b"sg",)
"""What ends the word before the dot that a credential goes on after: ``SG.``."""
_LONG = 10
"""Characters that the shortest credential of a known shape has, where it is one word."""
_MOST_INNOCENT = 20_000
_LONGEST_INNOCENT = 40
_ENCODED = re.compile(rb'"\$(?:byte|memory)')


class Suspicion:
    """Which words may tell of a secret, and which were found to be innocent.

    A telling name is a word of its own, and a credential is a long word, once dashes and underscores are gone, or
    follows a telling one. Words that were looked at before are remembered, whatever digits are in them: most of them
    come again with each call.

    Args:
        names: names of secrets, squashed.
        marks: what a text with a credential of a known shape has in it; empty if no shapes are looked for.
        text: redacts a text. It says what base64 stands for.
        is_general: it falls on everything, as it must where a hook or a pattern decides.
    """

    def __init__(
        self, names: Iterable[str], marks: Iterable[str], text: Callable[[str], str], *, is_general: bool
    ) -> None:
        names, marks = list(names), [squash(mark) for mark in marks]
        self._text = text
        self._names = frozenset(name.encode().translate(_DIGITS) for name in names)
        self._before = _SPOKEN + _DOTTED if marks else ()
        self._mark = re.compile("|".join(_shortest(filter(str.isalnum, marks))).encode().translate(_DIGITS) or b"(?!)")
        self._innocent: set[bytes] = set()
        # A name that is no word of ASCII is looked for at once.
        self._is_general = is_general or any(not name.isascii() or not name.isalnum() for name in names)

    def falls_on(self, text: bytes) -> bool:
        """Whether there may be anything to redact in this JSON."""
        if self._is_general or (b"$" in text and _ENCODED.search(text)) or (b"@" in text and b"://" in text):
            return True
        if not text.isascii() and _KELVIN in text:
            return True
        raw = text
        if b"\\" in text:
            if b"\\\\u" in text or b"\\\\/" in text:
                return True  # letters of JSON that is a text may be spelt so
            text = _ESCAPE.sub(b" ", text)
        words = text.translate(_WORDS, b"-_").split()
        if self._innocent.issuperset(words):
            return False
        return self._is_hidden_in(raw) or self._may_tell({*words} - self._innocent, text)

    def _is_hidden_in(self, text: bytes) -> bool:
        """Whether a secret stands there in base64."""
        return any(self._text(written) != written for written in map(bytes.decode, _WHOLE_BASE64.findall(text)))

    def _may_tell(self, words: set[bytes], text: bytes) -> bool:
        """Whether one of these words is a name of a secret, stands before one, or may have one in it."""
        if not self._names.isdisjoint(words):
            return True
        long = [word for word in words if len(word) >= _LONG]
        if long and self._mark.search(b" ".join(long)):
            return True
        if len(self._innocent) > _MOST_INNOCENT:
            self._innocent.clear()
        for word in words:
            if word.endswith(self._before):
                if not word.endswith(_DOTTED) or any(end + b"." in text.lower() for end in _DOTTED):
                    return True  # "msg" is one that is not
            elif len(word) <= _LONGEST_INNOCENT:
                self._innocent.add(word)
        return False


def _shortest(marks: Iterable[str]) -> list[str]:
    """Those that say as much as all of them: none has another one in it."""
    found: list[str] = []
    for mark in sorted(set(marks), key=lambda one: (len(one), one)):
        if not any(shorter in mark for shorter in found):
            found.append(mark)
    return found
