"""Finds credentials in texts, by the rules of `credentials.toml`.

**Tokens** are known by how they begin. The forms of some 190 services are Betterleaks' rules (`credentials.json`, made
by `tests/harness/credential_rules.py`), which demand the exact length of a token. `families` in `credentials.toml` are
the commonest ones at any length, because services change it and logs cut texts.

**Assignments** are a name of a secret and what follows it, as in the usual files: ``.env``, ini, TOML, YAML, JSON, XML,
source code, HTTP headers, queries, command lines.

**Encodings**: a text in base64 or percent-encoded inside another text is decoded, searched, and encoded again.

Everything here takes linear time. A token is tried at the beginning of a run of letters and digits, and at most
`_MAX_STARTS` times within it; repetitions that can overlap are possessive, or have a bound.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import islice
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from agent_cache.recording.secret_names import (
    DATA,
    RE,
    SQUASHED_NAMES,
    WORDS,
    NameKind,
    compiled,
    is_granted,
    is_secret_value,
    looks_random,
    names_several,
    squash,
    stands_for_another,
)  # fmt: skip

Span: TypeAlias = tuple[int, int]
Match: TypeAlias = re.Match[str]

_MAX_STARTS = 32
"""How often a token may begin within a run of letters and digits."""
_MAX_DEPTH = 4
_LONGEST_PATH = 200  # names with dots between them
_BEFORE = 500
"""How much of the text before a name `before` may look at."""
_SHORTEST_FORM = 14  # "basic", a blank and eight more
# Three letters and letters after them, which is what a picture in base64 has in it now and then.
_IN_BASE64 = frozenset({"BSA", "EXO"})
_NAME_CHARACTERS = frozenset(f"{string.ascii_letters}{string.digits}_-.$")
_STEMS, _OAUTH = (tuple(map(str.encode, WORDS[name])) for name in ("stems", "oauth"))


_CONTROLS = bytes(range(9)) + bytes((11, 12)) + bytes(range(14, 32)) + b"\x7f"
_STANDARD, _URL_SAFE = bytes.maketrans(b"-_", b"+/"), bytes.maketrans(b"+/", b"-_")


class TokenForm(msgspec.Struct):
    """How tokens of a service look: how they begin, in lower case, and a regular expression for the whole token.

    One that `is_mixed` has characters that need not stand in a run, such as base64.
    """

    starts: list[str]
    pattern: str
    is_mixed: bool = False


class _Form(msgspec.Struct, frozen=True):
    """A row of ``forms`` in `credentials.toml`."""

    marks: tuple[str, ...]
    pattern: str
    any: bool = False


class _Assigned(msgspec.Struct):
    """A row of ``assigned`` in `credentials.toml`."""

    after: str
    before: str = ""
    name: str = ""
    kind: int = NameKind.MAYBE
    random: bool = False
    accept: Literal["secret", "any", "number", "opened", "enclosed"] = "secret"


@functools.cache
def token_forms() -> list[TokenForm]:
    """All forms of tokens, the commonest families first."""
    raw = files("agent_cache.recording").joinpath("credentials.json").read_bytes()
    services = msgspec.convert(msgspec.json.decode(raw)["forms"], dict[str, TokenForm])
    return [*msgspec.convert(DATA["families"], list[TokenForm]), *services.values()]


@functools.cache
def _patterns_by_start() -> dict[str, list[str]]:
    """Patterns of tokens by their first three characters, in lower case."""
    found: dict[str, list[str]] = {}
    for form in token_forms():
        for start in dict.fromkeys(start[:3] for start in form.starts if not form.is_mixed):
            found.setdefault(start, []).append(form.pattern)
    return found


@functools.cache
def _forms() -> list[tuple[bytes, _Form]]:
    """The other forms, each with each of its marks."""
    forms = [form for form in token_forms() if form.is_mixed]
    mixed = [_Form(tuple(one.starts), rf"(?a:(?<![\w-]){one.pattern})", any=True) for one in forms]
    every = msgspec.convert(DATA["forms"], list[_Form]) + mixed
    return [(mark.encode(), form) for form in every for mark in form.marks]


_ASSIGNED = msgspec.convert(DATA["assigned"], list[_Assigned])


class TextSearch:
    """Replaces the credentials in texts.

    Args:
        replacement: the text that stands for a secret.
        kind_of: what a name says about its value.
        inner: searches a text that was found in another, with all rules.
        parts: substrings of squashed names, one of which each of the user's own names has in it.
        has_forms: whether the known forms of credentials are searched.
    """

    def __init__(
        self,
        replacement: str,
        kind_of: Callable[[str], NameKind],
        inner: Callable[[str, int], str],
        parts: tuple[str, ...],
        *,
        has_forms: bool,
    ) -> None:
        self._replacement = replacement
        self._kind_of = kind_of
        self._inner = inner
        self._parts = parts
        self._has_forms = has_forms

    def without_credentials(self, text: str, depth: int) -> str:
        """The same text without known forms of credentials, values of names of secrets, and encoded ones of both."""
        low = _lowered(text)
        if RE.assigning.search(text):
            text = self._cut(text, self._assigned(text, low))
        if self._has_forms and (len(text) >= _SHORTEST_FORM or "@" in text):
            for form in dict.fromkeys([form for mark, form in _forms() if mark in low]):
                text = self._cut(text, [_span_of_form(form, match) for match in compiled(form.pattern).finditer(text)])
            if b"code" in low or b"assertion" in low:
                text = self._cut(text, self._codes(text, low))
            text = self._cut(text, self._tokens(text))
        if depth < _MAX_DEPTH:
            if "%" in text:
                text = RE.parameter.sub(lambda match: self._percent_encoded(match[0], depth), text)
            if len(text) >= 12:
                text = self._without_base64(text, depth)
        return text

    def without_arguments(self, words: list[str]) -> list[str]:
        """The same command, given as the list of its arguments, without the values of options that have secrets."""
        if not any(word[:1] == "-" for word in words):
            return words
        listed = [word.translate({34: "\x00", 39: "\x00", 92: "\x00"}) for word in words]
        found = self.without_credentials("'" + "', '".join(listed) + "'", _MAX_DEPTH)[1:-1].split("', '")
        if len(found) != len(words):
            return words
        return [
            word if other == one else other.replace("\x00", '"')
            for word, one, other in zip(words, listed, found, strict=True)
        ]

    def _cut(self, text: str, spans: Iterable[Span | None]) -> str:
        parts: list[str] = []
        done = 0
        for span in spans:
            if span is not None and span[0] >= done:
                parts += (text[done : span[0]], self._replacement)
                done = span[1]
        return "".join((*parts, text[done:])) if parts else text

    # Tokens and other forms

    def _codes(self, text: str, low: bytes) -> Iterator[Span]:
        """Codes and assertions of OAuth, which other parameters beside them give away.

        These are parameters of a query or a form, entries of a dict, or arguments of a call.
        """
        has_state = b"state=" in low or b"client_id=" in low
        if not has_state and not any(mark in low for mark in _OAUTH):
            return
        for match in RE.code_of_oauth.finditer(text):
            begin, end = match.span("value")
            before, after = text[max(0, match.start() - 300) : match.start()], text[end : end + 300]
            value = unquote(match["value"])
            is_one = RE.oauth_around.search(before + after) is not None and is_granted(value, is_certain=True)
            if not is_one and match["sign"] == "=" and not match["quote"]:
                beside = re.split(r"[\s\"'`<>]", before)[-1] + re.split(r"[\s\"'`<>]", after)[0]
                is_one = RE.state_around.search(beside) is not None and is_granted(value, is_certain=False)
            if is_one and match["value"] != self._replacement:
                yield begin, end

    def _tokens(self, text: str) -> Iterator[Span]:
        done = 0
        for run in RE.token_run.finditer(text):
            begin, last = run.span()
            starts = [begin]
            if begin and text[begin - 1] == "\\" and text[begin] in "nrt":  # a line break written as an escape
                starts.append(begin + 1)
            starts += (match.end() for match in islice(RE.start.finditer(text, begin, last), _MAX_STARTS))
            for at in starts:
                if at < done or (at and text[at - 1] in "+/" and text[at : at + 3] in _IN_BASE64):
                    continue
                for pattern in _patterns_by_start().get(text[at : at + 3].lower(), ()):
                    match = compiled(pattern, re.ASCII).match(text, at)
                    if match is not None and looks_random(text[at + 3 : match.end()]):
                        done = match.end()
                        yield at, done
                        break

    # Assignments

    def _assigned(self, text: str, low: bytes) -> Iterator[Span]:
        """The values that are assigned to the name of a secret."""
        done = 0
        for first, end in self._names(text, low):
            if end <= done:
                continue
            # Of two words, the first one may have been part of a value.
            begin = first if first >= done else end - len(text[done:end].lstrip())
            name = text[begin:end]
            if kind := self._kind_in_text(name, text, begin):
                for one in self._values(text, begin, end, name, kind):
                    if one[0] >= done:
                        yield one
                        done = one[1]

    def _names(self, text: str, low: bytes) -> Iterator[Span]:
        """Where names stand that may be names of secrets, from left to right. ``API key`` is one of two words."""
        squashed = squash(text) if self._parts else ""
        if any(part in squashed for part in self._parts):
            found: Iterable[Span] = (match.span() for match in RE.name.finditer(text))
        else:
            found = _names_with_stem(text, low) if self._has_forms else ()
        for begin, end in found:
            two = RE.two_words.search(text, max(0, begin - 10), begin)
            yield (two.start() if two else begin), end

    def _kind_in_text(self, name: str, text: str, begin: int) -> NameKind:
        if len(name) > _LONGEST_PATH:
            return NameKind.NONE
        before = text[begin - 1 : begin]
        if before == "\\" and name.startswith("u0026"):  # JSON that escapes `&`
            before, name = "&", name[5:]
        if before in ("?", "&", ";") and name.lower() in ("sig", "signature"):
            return NameKind.SECRET
        return self._kind_of(name) or self._kind_of(name.rstrip(".0123456789").rpartition(".")[2])

    def _values(self, text: str, begin: int, end: int, name: str, kind: NameKind) -> Sequence[Span] | Iterator[Span]:
        """What is assigned to a name: by the first row that fits, or the strings of a list."""
        for row in _ASSIGNED:
            if kind < row.kind or (row.kind == NameKind.SECRET and not self._has_forms):
                continue
            match = compiled(row.after).match(text, end)
            if match is None or (row.name and not compiled(row.name).fullmatch(name)):
                continue
            if row.before and not compiled(row.before).search(text, max(0, begin - _BEFORE), begin):
                continue
            if self._accepts(row, match, text[begin - 1 : begin], name, kind):
                return (match.span("value"),)
        return self._values_inside(text, end, name, kind)

    def _accepts(self, row: _Assigned, match: Match, before: str, name: str, kind: NameKind) -> bool:
        value, text = match["value"], match.string
        if row.random and not looks_random(value):
            return False
        if row.accept == "any":
            return not stands_for_another(RE.authorization.sub("", value))
        if row.accept == "number":
            return not names_several(name) and (kind is not NameKind.MAYBE or is_secret_value(kind, name, value))
        if (
            row.accept == "opened"
            and (match["sign"] == ":" or before == match["quote"])
            and _closes(text, match.start() - len(name), match["quote"])
        ):
            return False  # of a text that ends with a colon, such as a prompt
        if (
            row.accept == "enclosed"
            and before in ("'", '"')
            and text[match.end() : match.end() + 1] not in (before, "\\")
        ):
            return False
        return self._is_secret(kind, name, value)

    def _is_secret(self, kind: NameKind, name: str, value: str) -> bool:
        """Whether this value that is assigned in a text is a secret, and nothing that stands for one."""
        if value == self._replacement:
            return True
        bare = RE.authorization.sub("", value)
        is_other = stands_for_another(value) or stands_for_another(bare)
        if is_other or squash(bare.strip("-,;)]")) in WORDS["nothing"] or squash(bare) == squash(name):
            return False
        if RE.dotted.match(bare) or (RE.alphabetic.match(bare) and squash(bare) in SQUASHED_NAMES):
            return False  # a name in a program, or that of another secret
        return is_secret_value(kind, name, bare)

    def _values_inside(self, text: str, end: int, name: str, kind: NameKind) -> Iterator[Span]:
        """The strings in a list, a tuple or a dict that is assigned to the name of a secret.

        A dict may as well describe the value, or be a part of a program: in it, words of a language are left alone.
        """
        if (lines := RE.items.match(text, end)) is not None:
            for item in RE.item.finditer(text, *lines.span("items")):
                if self._is_secret(kind, name, item["word"]) and looks_random(item["word"]):
                    yield item.span("word")
            return
        sign = RE.sign_of_several.match(text, end)
        if sign is None:
            return
        is_dict = text[sign.end() - 1] == "{"
        is_other = (kind is NameKind.MAYBE and not names_several(name)) or RE.schema_after.match(text, sign.end())
        if is_dict and is_other:
            return
        depth = 1
        for match in RE.string_or_bracket.finditer(text, sign.end(), sign.end() + 4_000):
            if not match["quote"]:
                depth += 1 if match[0] in "([{" else -1
                if not depth:
                    return
                continue
            value = match["value"]
            is_word = is_dict or kind is NameKind.MAYBE or len(value) < 6
            is_name = RE.colon_after.match(text, match.end()) is not None
            if not is_name and (looks_random(value) or not is_word) and self._is_secret(kind, name, value):
                yield match.span("value")

    # Encodings

    def _percent_encoded(self, word: str, depth: int) -> str:
        plain = unquote(word, errors="surrogateescape")
        cleaned = self._inner(plain, depth + 1) if plain != word else plain
        if cleaned == plain:
            return word
        as_is = word.replace("%", "")
        pieces = (quote(one, safe=as_is, errors="surrogateescape") for one in cleaned.split(self._replacement))
        return self._replacement.join(pieces)

    def _without_base64(self, text: str, depth: int) -> str:
        if len(text) % 4 == 0 and RE.whole_base64.match(text):
            return self._decoded(text, depth, "latin-1")
        parts: list[str] = []
        done = 0
        for run in RE.base64_run.finditer(text):
            begin, end = run.span()
            # Every fourth digit has the first bits of a byte, and those of most letters begin with 0.
            if not text[begin : begin + 40 : 4].isalpha() or text[begin : begin + 40 : 4].translate(_NOT_FIRST):
                continue
            while end < len(text) and text[end] == "=" and end - run.end() < 2:
                end += 1
            parts += (text[done:begin], self._decoded(text[begin:end], depth, "utf-8"))
            done = end
        return "".join((*parts, text[done:]))

    def _decoded(self, encoded: str, depth: int, encoding: str) -> str:
        """A text in base64 without secrets. In UTF-8, only what has no control characters is a text."""
        digits = encoded.rstrip("=").encode().translate(_STANDARD)
        try:
            plain = binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))
            text = plain.decode(encoding)
        except ValueError:
            return encoded
        is_text = encoding != "utf-8" or len(plain.translate(None, _CONTROLS)) == len(plain)
        cleaned = self._inner(text, depth + 1) if is_text else text
        if cleaned == text:
            return encoded
        again = base64.b64encode(cleaned.encode(encoding, "replace"))
        if "-" in encoded or "_" in encoded:
            again = again.translate(_URL_SAFE)
        return (again if encoded.endswith("=") or len(encoded) % 4 == 0 else again.rstrip(b"=")).decode()


_NOT_FIRST = dict.fromkeys(map(ord, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"))


def _names_with_stem(text: str, low: bytes) -> Iterator[Span]:
    """The same without the user's own names. Looking for stems and not for names is four times as fast."""
    last = -1
    for at in sorted([at for stem in _STEMS if stem in low for at in _places(low, stem)]):
        if at < last:
            continue
        begin, least = at, max(0, at - _LONGEST_PATH)
        while begin > least and (text[begin - 1] in _NAME_CHARACTERS or text[begin - 1].isalnum()):
            begin -= 1
        if (name := RE.name.match(text, begin)) is not None:
            last = name.end()
            yield begin, last


def _span_of_form(form: _Form, match: Match) -> Span | None:
    group = "value" if "value" in match.re.groupindex else 0
    value = match[group]
    is_one = form.any or (looks_random(value) and not RE.path.match(value))
    return match.span(group) if is_one and not stands_for_another(value) else None


def _closes(text: str, at: int, quote: str) -> bool:
    """Whether a quote after this place ends a text that begins before it on the same line."""
    line = text[max(text.rfind("\n", 0, at) + 1, at - 300) : at]
    return (
        len(re.findall(rf"(?<![^\W\d_]){quote}|{quote}(?![^\W\d_])" if quote == "'" else re.escape(quote), line)) % 2
        == 1
    )


def _lowered(text: str) -> bytes:
    """The text in lower case, in which each character has its place, and those that are not ASCII do not count."""
    return text.encode("ascii", "replace").lower()


def _places(low: bytes, mark: bytes) -> Iterator[int]:
    at = low.find(mark)
    while at >= 0:
        yield at
        at = low.find(mark, at + len(mark))
