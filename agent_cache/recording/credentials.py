"""Finds credentials in texts, by the rules of `credentials.toml`.

**Tokens** are known by how they begin. The forms of some 190 services are Betterleaks' rules (`credentials.json`, made
by `tests/harness/credential_rules.py`), which demand the exact length of a token. `families` in `credentials.toml` are
the commonest ones at any length, because services change it and logs cut texts.

**Assignments** are a name of a secret and what follows it, as in the usual files: ``.env``, ini, TOML, YAML, JSON, XML,
source code, HTTP headers, queries, command lines.

**Encodings**: a text in base64 or percent-encoded inside another text is decoded, searched, and encoded again.

Everything here takes linear time. A token is tried at the beginning of a run of letters and digits, and at most
`_MAX_STARTS` times within it; repetitions that can overlap are possessive.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from itertools import islice, pairwise
from typing import TypeAlias
from urllib.parse import quote, unquote

import msgspec

from agent_cache.recording.secret_names import (
    DATA,
    RE,
    SQUASHED_NAMES,
    WORDS,
    NameKind,
    is_granted,
    is_placeholder,
    is_secret_value,
    looks_random,
    names_code,
    names_command,
    names_several,
    squash,
    stands_for_another,
)  # fmt: skip

Span: TypeAlias = tuple[int, int] | None
"""Where a secret stands in a text; None if there is none."""
Match: TypeAlias = re.Match[str]

_MAX_STARTS = 32
"""How often a token may begin within a run of letters and digits."""
_MAX_DEPTH = 4
_LONGEST_PATH = 200  # names with dots between them
_SHORTEST_FORM = 14  # "basic", a blank and eight more
# Three letters and letters after them, which is what a picture in base64 has in it now and then.
_IN_BASE64 = frozenset({"BSA", "EXO"})
_TOKEN_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_NAME_CHARACTERS = frozenset(_TOKEN_CHARACTERS.decode() + ".$")
_STEMS, _OAUTH = (tuple(map(str.encode, WORDS[name])) for name in ("stems", "oauth"))


def _table(characters: bytes) -> bytes:
    """A table that translates these characters to ``a``, and others to a blank.

    `bytes.translate` and a search for one byte string find texts without any token 20 times as fast as a pattern does.
    """
    return bytes(97 if one in characters else 32 for one in range(256))


_AS_TOKENS, _ANY_TOKEN, _TOKEN_RUN = (
    _table(_TOKEN_CHARACTERS + b"."),
    b"a" * 15,
    re.compile(rb"a{15,}"),
)
_AS_BASE64, _ANY_BASE64, _BASE64_RUN = (
    _table(_TOKEN_CHARACTERS + b"+/"),
    b"a" * 20,
    re.compile(rb"a{20,}"),
)
_FIRST_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
_CONTROLS = bytes(range(9)) + bytes((11, 12)) + bytes(range(14, 32)) + b"\x7f"
_STANDARD, _URL_SAFE = bytes.maketrans(b"-_", b"+/"), bytes.maketrans(b"+/", b"-_")
_BLANKS = str.maketrans(dict.fromkeys(" \t\r\n\"'\\", "\x00"))
_DELIMITERS = " \t\r\n\"'<>\\"


class TokenForm(msgspec.Struct):
    """How tokens of a service look.

    Attributes:
        starts: how they begin, in lower case.
        pattern: a regular expression for the whole token.
        is_mixed: whether its characters need not stand in a run, such as base64.
    """

    starts: list[str]
    pattern: str
    is_mixed: bool = False


class _Rules(msgspec.Struct):
    forms: dict[str, TokenForm]


@functools.cache
def token_forms() -> list[TokenForm]:
    """All forms of tokens, the commonest families first."""
    raw = files("agent_cache.recording").joinpath("credentials.json").read_bytes()
    families = msgspec.convert(DATA["families"], list[TokenForm])
    return [*families, *msgspec.json.decode(raw, type=_Rules).forms.values()]


@functools.cache
def _patterns_by_start() -> dict[str, list[re.Pattern[str] | str]]:
    """Patterns of tokens by their first three characters, in lower case."""
    found: dict[str, list[re.Pattern[str] | str]] = {}
    for form in token_forms():
        for start in dict.fromkeys(start[:3] for start in form.starts if not form.is_mixed):
            found.setdefault(start, []).append(form.pattern)
    return found


_compiled = functools.cache(functools.partial(re.compile, flags=re.ASCII))


class TextSearch:
    """Replaces the credentials in texts.

    Args:
        replacement: the text that stands for a secret.
        kind_of: what a name says about its value.
        inner: searches a text that was found in another, with all rules.
        parts: substrings of squashed names, one of which each name of a secret has in it.
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
        self._urls, self._forms = (
            [
                (
                    tuple(map(str.encode, row.get("needed", [""]))),
                    tuple(map(str.encode, row["marks"])),
                    functools.partial(getattr, RE, row["pattern"]),
                    getattr(self, f"_accept_{row['accept']}"),
                )
                for row in DATA[name]
            ]
            for name in ("urls", "forms")
        )
        for form in token_forms():
            for start in form.starts if form.is_mixed else ():
                pattern = functools.partial(_compiled, rf"(?<![\w-]){form.pattern}")
                self._forms.append(((b"",), (start.encode(),), pattern, self._accept_always))

    def without_credentials(self, text: str, depth: int) -> str:
        """The same text without known forms of credentials, values of names of secrets, and encoded ones of both."""
        if " " in text or RE.assigning.search(text):  # a name and its value, or a sentence about them
            text = self._cut(text, self._assigned(text))
            if self._has_forms and "curl" in text:
                text = self._cut(text, map(self._accept_login, RE.login.finditer(text)))
        if self._has_forms:
            text = self._without_forms(text)
        if depth < _MAX_DEPTH:
            if "%" in text and RE.escape.search(text):
                text = self._without_percent_encoded(text, depth)
            if len(text) >= 12:
                text = self._without_base64(text, depth)
        return text

    def without_arguments(self, words: list[str]) -> list[str]:
        """The same command, given as the list of its arguments, without the values of options that have secrets."""
        cleaned = words.copy()
        for at, (option, value) in enumerate(pairwise(words), 1):
            if option[:1] == "-" and value[:1] != "-" and not (value.isalpha() and value.isupper()):
                kind = self._kind_of(option.lstrip("-")) if RE.option.match(option) else NameKind.NONE
                if kind is not NameKind.NONE and is_secret_value(kind, option, value):
                    cleaned[at] = self._replacement
        if self._has_forms and any(map(names_command, words)):
            line = " ".join(word.translate(_BLANKS) for word in cleaned)
            found = self._cut(line, map(self._accept_login, RE.login.finditer(line))) if "curl" in line else line
            marks = tuple(map(str.encode, WORDS["command_names"]))
            spans = map(
                self._accept_argument,
                _matches(found, _lowered(found), marks, RE.command),
            )
            found = self._cut(found, spans)
            for at, (before, after) in enumerate(zip(line.split(" "), found.split(" "), strict=True)):
                if before != after:
                    cleaned[at] = after.replace("\x00", " ")
        return cleaned

    def without_login(self, text: str) -> str:
        """The same address of a server, ``user:password@host``, without the password."""
        user, colon, password = text.rpartition("@")[0].partition(":")
        is_one = bool(colon and password) and not stands_for_another(password)
        return f"{user}:{self._replacement}{text[len(user) + 1 + len(password) :]}" if is_one else text

    def _cut(self, text: str, spans: Iterable[Span]) -> str:
        parts: list[str] = []
        done = 0
        for span in spans:
            if span is not None and span[0] >= done:
                parts += (text[done : span[0]], self._replacement)
                done = span[1]
        return "".join((*parts, text[done:])) if parts else text

    # Tokens and other forms

    def _without_forms(self, text: str) -> str:
        if "@" in text:  # an address with a password
            text, _ = self._without_rows(text, _lowered(text), self._urls)
            text = self._cut(text, map(self._accept_login_at, RE.login_at.finditer(text)))
        if len(text) < _SHORTEST_FORM:
            return text
        text, low = self._without_rows(text, _lowered(text), self._forms)
        if b"code" in low or b"assertion" in low:
            text = self._cut(text, self._codes(text, low))
        letters = _lowered(text).translate(_AS_TOKENS)
        return self._cut(text, self._tokens(text, letters)) if _ANY_TOKEN in letters else text

    def _without_rows(self, text: str, low: bytes, rows: Iterable[_Row]) -> tuple[str, bytes]:
        for needed, marks, pattern, accept in rows:
            for mark in marks:
                if mark in low and any(one in low for one in needed):
                    text = self._cut(text, map(accept, _matches(text, low, marks, pattern())))
                    low = _lowered(text)
                    break
        return text, low

    def _codes(self, text: str, low: bytes) -> Iterator[Span]:
        """Codes and assertions of OAuth, which other parameters beside them give away.

        These are parameters of a query or a form, entries of a dict, or arguments of a call.
        """
        has_state = b"state=" in low or b"client_id=" in low
        if not has_state and not any(mark in low for mark in _OAUTH):
            return
        for match in _matches(text, low, (b"assertion", b"code"), RE.code_of_oauth):
            begin, end = match.span("value")
            first = max(0, match.start() - 300)
            value = unquote(match["value"])
            around = text[first : match.start()] + text[end : end + 300]
            is_one = RE.oauth_around.search(around) is not None and is_granted(value, is_certain=True)
            if not is_one and has_state and match["sign"] == "=" and not match["quote"]:
                before = RE.parameters_before.search(text, first, match.start())
                after = RE.parameters_after.match(text, end, end + 300)
                beside = f"{before[0] if before else ''}{after[0] if after else ''}"
                is_one = RE.state_around.search(beside) is not None and is_granted(value, is_certain=False)
            if is_one and match["value"] != self._replacement:
                yield begin, end

    def _tokens(self, text: str, letters: bytes) -> Iterator[Span]:
        done = 0
        patterns = _patterns_by_start()
        for run in _TOKEN_RUN.finditer(letters):
            begin, last = run.span()
            starts = [begin]
            if begin and text[begin - 1] == "\\" and text[begin] in "nrt":  # a line break written as an escape
                starts.append(begin + 1)
            starts += (match.end() for match in islice(RE.start.finditer(text, begin, last), _MAX_STARTS))
            for at in starts:
                if at < done or (at and text[at - 1] in "+/" and text[at : at + 3] in _IN_BASE64):
                    continue
                for pattern in patterns.get(text[at : at + 3].lower(), ()):
                    match = _compiled(pattern).match(text, at)
                    if match is not None and looks_random(text[at + 3 : match.end()]):
                        done = match.end()
                        yield at, done
                        break

    def _accept_always(self, match: Match) -> Span:
        return match.span()

    def _accept_random(self, match: Match) -> Span:
        is_one = looks_random(match["value"]) and not RE.path.match(match["value"])
        return match.span("value") if is_one else None

    def _accept_hook(self, match: Match) -> Span:
        return match.span("value") if len(match["value"]) >= 12 and looks_random(match["value"]) else None

    def _accept_argument(self, match: Match) -> Span:
        value = match["value"]
        is_one = RE.digit.search(value) and not RE.path.match(value) and not stands_for_another(value)
        return match.span("value") if is_one else None

    def _accept_login(self, match: Match) -> Span:
        return None if match["value"].isdigit() or stands_for_another(match["value"]) else match.span("value")

    def _accept_login_at(self, match: Match) -> Span:
        value, before = (
            match["value"],
            match.string[max(0, match.start() - 20) : match.start()],
        )
        is_one = looks_random(value) or RE.netloc_before.search(before) is not None
        return match.span("value") if is_one and not stands_for_another(value) else None

    def _accept_password(self, match: Match) -> Span:
        value = match["slashed"]
        if value and RE.web_before.search(match.string[max(0, match.start() - 6) : match.start()]):
            is_one = value[0] not in "$%" and looks_random(value.partition("/")[0])  # else it is a name of a port
            return match.span("slashed") if is_one else None
        value = match["value"] or value
        is_example = stands_for_another(value) or value.lower() in (
            "pass",
            "passwd",
            "password",
            "pwd",
        )
        return None if is_example else match.span("value" if match["value"] else "slashed")

    def _accept_input(self, match: Match) -> Span:
        """What pydantic has refused: a value of a secret; or, of a value that is cut in the middle, its end."""
        value, begin = match["value"], match.start("value")
        place = RE.refused.search(match.string[max(0, match.start() - 1_000) : match.start()])
        names = [] if place is None else [name for name in place["place"].split(".") if not name.isdigit()]
        kind = self._kind_of(names[-1]) if names else NameKind.NONE
        bare = value[1:-1] if value[0] in "\"'" else value
        if (
            kind
            and value[0] not in "{[("
            and is_secret_value(kind, names[-1], bare)
            and bare not in ("", "None", "True", "False")
        ):
            at = begin + value.index(bare)
            return at, at + len(bare)
        cut = RE.cut.search(value)
        is_one = cut is not None and looks_random(cut["value"])
        return (begin + cut.start("value"), begin + cut.end("value")) if cut is not None and is_one else None

    def _accept_input_beside(self, match: Match) -> Span:
        before = match.string[max(0, match.start() - 1_000) : match.start()]
        begin = max(before.rfind("'loc"), before.rfind('"loc'))
        place = RE.place_before.match(before, begin) if begin >= 0 else None
        names = re.findall(r"[\"']([^\"'\\]++)", place["place"]) if place is not None else []
        name = next((one for one in reversed(names) if one.strip(", ")), "")
        return self._span_if(self._kind_of(name), name, match, "value", is_secret_value)

    # Assignments

    def _assigned(self, text: str) -> Iterator[Span]:
        """The values that are assigned to the name of a secret."""
        done = 0
        for first, end in self._names(text):
            if end <= done:
                continue
            # Of two words, the first one may have been part of a value.
            begin = first if first >= done else end - len(text[done:end].lstrip())
            name = text[begin:end]
            kind = self._kind_in_text(name, text, begin)
            if kind is not NameKind.NONE:
                span = self._written_span(text, begin, end, name, kind)
                if span is None and kind is NameKind.SECRET:
                    span = self._said_span(text, begin, end, name)
                for one in self._spans_inside(text, end, name, kind) if span is None else (span,):
                    if one[0] >= done:
                        yield one
                        done = one[1]

    def _names(self, text: str) -> Iterator[tuple[int, int]]:
        """Where names stand that may be names of secrets, from left to right."""
        squashed = squash(text) if self._parts else ""
        if any(part in squashed for part in self._parts):
            yield from ((_first_word(text, match.start()), match.end()) for match in RE.name.finditer(text))
            return
        last = -1
        for at in _places(_lowered(text), _STEMS) if self._has_forms else ():
            if at < last:
                continue
            begin, least = at, max(0, at - _LONGEST_PATH)
            while begin > least and (text[begin - 1] in _NAME_CHARACTERS or text[begin - 1].isalnum()):
                begin -= 1
            if (name := RE.name.match(text, begin)) is not None:
                last = name.end()
                yield _first_word(text, begin), last

    def _kind_in_text(self, name: str, text: str, begin: int) -> NameKind:
        if len(name) > _LONGEST_PATH:
            return NameKind.NONE
        kind = self._kind_of(name)
        if kind is NameKind.NONE and "." in name:
            kind = self._kind_of(name.rstrip(".").rpartition(".")[2])
        if name.startswith("u0026") and text[begin - 1 : begin] == "\\":  # JSON that escapes `&`
            begin, name = begin + 5, name[5:]
            kind = self._kind_of(name)
        if kind is NameKind.NONE and name.lower() in ("sig", "signature") and _begins_parameter(text, begin):
            return NameKind.SECRET
        return kind

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

    def _span_if(
        self,
        kind: NameKind,
        name: str,
        match: Match | None,
        group: str | int = 0,
        is_secret: Callable[[NameKind, str, str], bool] | None = None,
    ) -> Span:
        is_one = match is not None and (is_secret or self._is_secret)(kind, name, match[group])
        return match.span(group) if match is not None and is_one else None

    def _quoted_span(self, text: str, begin: int, quote: str, name: str, kind: NameKind) -> Span:
        if quote[0] in "rR":
            return None  # a regular expression
        end = _closing(text, begin, quote.lstrip("bBuUfF"))
        if squash(name) == "token" and text[end : end + 40].lstrip("\\\"', ").startswith("logprob"):
            return None  # a token of a text, and how probable it was
        return (begin, end) if self._is_secret(kind, name, text[begin:end]) else None

    def _spans_inside(self, text: str, end: int, name: str, kind: NameKind) -> Iterator[tuple[int, int]]:
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
        depth, at, last = 1, sign.end(), sign.end() + 4_000
        while depth and (mark := RE.mark_in_list.search(text, at, last)) is not None:
            at = mark.end()
            if not mark["quote"]:
                depth += 1 if mark[0] in "([{" else -1
                continue
            stop = _closing(text, at, mark["quote"])
            value = text[at:stop]
            is_name = RE.colon_after.match(text, stop + len(mark["quote"])) is not None
            is_word = is_dict or kind is NameKind.MAYBE or len(value) < 6
            if not is_name and (looks_random(value) or not is_word) and self._is_secret(kind, name, value):
                yield at, stop
            at = stop + len(mark["quote"])

    def _said_span(self, text: str, begin: int, end: int, name: str) -> Span:
        """The value in a sentence about a secret. It has letters and digits; a sentence has other words, too."""
        match = RE.said.match(text, end) if self._has_forms and "cookie" not in name.lower() else None
        before = text[max(0, begin - 40) : begin]
        if match is None or RE.derived_before.search(before):
            return None
        if match["dash"] and not (match["mark"] or RE.owner_before.search(before)):
            return None
        value = match["value"].rstrip(".,;:!?)")
        is_short = squash(name) in ("passcode", "passphrase", "passwd", "password", "pwd") and match["sign"] is not None
        if len(value) < (6 if is_short else 16) or not RE.mixed.match(value) or is_placeholder(value):
            return None
        if RE.of_secrets.match(value) or RE.path.match(value) or RE.uuid.match(value):
            return None
        # Bits a character, as Betterleaks' rule for keys of any service has it.
        is_one = match["sign"] is not None or _entropy(value) > 3.5
        return (match.start("value"), match.start("value") + len(value)) if is_one else None

    def _written_span(self, text: str, begin: int, end: int, name: str, kind: NameKind) -> Span:
        """The value that is assigned to a name in a file, a program or a command."""
        before = text[max(0, begin - 40) : begin]
        if before[-1:] in ("'", '"') and "(" in before and RE.pair_before.search(before):
            match = RE.pair_after.match(text, end)
            if match is not None and looks_random(match["value"]) and not _is_type(match["value"]):
                return self._span_if(kind, name, match, "value")
        if (":" in before or "=" in before) and RE.named_before.search(before):
            # ``name: DB_PASSWORD`` above ``value: x``
            if (match := RE.named_after.match(text, end)) is not None:
                if match["quote"]:
                    return self._quoted_span(text, match.end(), match["quote"], name, kind)
                return self._span_if(kind, name, RE.any_word.match(text, match.end()), "word")
            if (match := RE.attribute_after.match(text, end)) is not None:
                return self._span_if(kind, name, match, "value")
        if (sign := RE.sign.match(text, end)) is not None:
            return self._assigned_span(text, begin, sign, name, kind)
        if before[-1:] in ("<", ":"):
            match = RE.element_after.match(text, end) if RE.element_before.search(before) else None
            return self._span_if(kind, name, match, "value")
        if name.startswith("--") or (name[0] == "-" and kind is not NameKind.MAYBE):
            return self._argument_span(text, end, name, kind)
        if before.rstrip(" \t`").endswith("|"):
            match = RE.cell_after.match(text, end)
            is_one = match is not None and looks_random(match["value"]) and not _is_type(match["value"])
            return self._span_if(kind, name, match, "value") if is_one else None
        if RE.env_before.search(before):
            return self._span_if(kind, name, RE.argument.match(text, end), "value")
        if name.lower() == "password" and RE.login_before.search(before):
            match = RE.argument.match(text, end) or RE.next_line.match(text, end)
            return None if match is None else match.span("value")
        return None

    def _argument_span(self, text: str, end: int, name: str, kind: NameKind) -> Span:
        """The argument of an option of a command, unless a sentence is about the option."""
        if (match := RE.next_in_list.match(text, end)) is not None:
            span = self._quoted_span(text, match.end(), match["quote"], name, kind)
            word = "" if span is None else text[slice(*span)]
            return None if RE.snake.match(word) and self._kind_of(word) else span  # the name of a parameter
        match = RE.argument.match(text, end)
        if match is not None and match["quote"]:
            return self._quoted_span(text, match.start("value"), match["quote"], name, kind)
        is_word = match is not None and RE.alphabetic.match(match["value"]) is not None
        if match is not None and is_word and (match["after"].strip() or match["value"].isupper()):
            return None
        return self._span_if(kind, name, match, "value")

    def _assigned_span(self, text: str, start: int, match: Match, name: str, kind: NameKind) -> Span:
        begin = match.end()
        before = text[start - 1] if start else ""
        if quote := match["quote"] or match["quote_2"]:
            if match["sign"] and (match["sign"] == ":" or before == quote) and _closes(text, start, quote):
                return None  # a text that ends with a colon, such as a prompt
            return self._quoted_span(text, begin, quote, name, kind)
        value = RE.in_code.match(text, begin)
        if match["quoted"] is not None:  # a name in quotes and a value without, as numbers in JSON
            if value is None or not RE.number.match(value[0]) or names_several(name):
                return None
            return value.span() if kind is not NameKind.MAYBE or is_secret_value(kind, name, value[0]) else None
        if match["sign"] == ":":
            return self._after_colon(text, start, begin, name, kind, before)
        if _begins_parameter(text, start):
            return self._span_if(kind, name, RE.in_a_query.match(text, begin))
        if _introduced(text, start) or name.startswith("--"):
            return self._in_line(text, match, name, kind)
        if value is None or match["blank"] or value[0][0] in "([{" or RE.call.match(text, begin):
            return None
        after = text[value.end() : value.end() + 1]
        if RE.alphabetic.match(value[0]) and ((after and after in ",)]}") or "." in value[0]):
            return None  # an argument in a program
        return self._span_if(kind, name, value)

    def _after_colon(self, text: str, start: int, begin: int, name: str, kind: NameKind, before: str) -> Span:
        """The value in a header of HTTP, in YAML, or after a name on a line of its own."""
        squashed = squash(name)
        is_argument = text[max(0, start - 3) : start] == "-H "
        is_quoted = before in ("'", '"') and before != ""
        if squashed in WORDS["headers"]:
            value = RE.line.match(text, begin)
            if squashed == "xapikey" and (is_quoted or is_argument):
                word = RE.in_code.match(text, begin)
                if word is not None and not is_placeholder(word[0]) and not RE.call.match(text, begin):
                    return word.span()
            if value is None or ("cookie" in squashed and "=" not in value[0].partition(" ")[0]):
                return None
            if "apikey" in squashed:  # one word, also where a sentence goes on
                value = RE.first_word.match(text, begin) or value
            first = RE.authorization.sub("", value[0]).strip().partition(" ")[0]
            is_other = stands_for_another(first) or ("apikey" in squashed and _is_type(first))
            is_one = not is_other and ("cookie" in squashed or RE.tokenish.match(first))
            return value.span() if is_one or first == self._replacement else None
        if is_quoted or is_argument or text[max(0, start - 2) : start].strip()[-1:] in ("{", ","):
            value = RE.in_code.match(text, begin)
            if value is None or len(value[0]) < 4 or RE.call.match(text, begin) or RE.alphabetic.match(value[0]):
                return None
            if is_quoted and text[value.end() : value.end() + 1] not in (before, "\\"):
                return None
            return self._span_if(kind, name, value)
        if not _introduced(text, start):
            return None
        block = RE.block.match(text, begin)
        if block is not None and kind is not NameKind.MAYBE:
            return block.span("word")
        is_variable = RE.screaming.match(name) is not None or names_code(name)
        value = (RE.any_word if is_variable else RE.one_word).match(text, begin)
        if value is None or RE.call.match(text, begin) or (not is_variable and _is_type(value["word"])):
            return None
        return self._span_if(kind, name, value, "word")

    def _in_line(self, text: str, match: Match, name: str, kind: NameKind) -> Span:
        """The value on a line of its own: in a shell, in ``.env``, in an ini file, in a program."""
        begin = match.end()
        value = RE.alone.match(text, begin)
        if value is None or RE.call.match(text, begin):
            return None
        word = value[0].rstrip(",;)") or value[0]
        is_code = match["blank"] or match["before"] or "." in name
        if word[0] == "(" or (is_code and word.lstrip("-").isdigit() and len(word) < 4):
            return None
        if RE.and_more_code.match(text, value.end()) and re.match(r"[A-Za-z_][\w.]*\Z", word):
            return None
        is_listed = word != value[0]
        if RE.alphabetic.match(word) and (is_listed or (is_code and ("." in word or not RE.section.search(text)))):
            return None  # a name in a program
        return self._span_if(kind, name, value)

    # Encodings

    def _without_percent_encoded(self, text: str, depth: int) -> str:
        parts: list[str] = []
        done = end = 0
        at = text.find("%")
        while at >= 0:
            begin = max(text.rfind(one, end, at) for one in _DELIMITERS) + 1 or end
            end = RE.rest_of_word.match(text, at).end()  # type: ignore[union-attr]  # it matches an empty text, too
            parts += (text[done:begin], self._percent_encoded(text[begin:end], depth))
            done = end
            at = text.find("%", end)
        return "".join((*parts, text[done:]))

    def _percent_encoded(self, word: str, depth: int) -> str:
        plain = unquote(word)
        if plain == word or "\ufffd" in plain:
            return word
        cleaned = self._inner(plain, depth + 1)
        if cleaned == plain:
            return word
        pieces = cleaned.split(self._replacement)
        kept = _kept_escapes(word, plain, pieces) or [quote(one, safe="=&?/:#;,+@!$'()*~") for one in pieces]
        return self._replacement.join(kept)

    def _without_base64(self, text: str, depth: int) -> str:
        if len(text) % 4 == 0 and RE.whole_base64.match(text):
            return self._decoded(text.encode(), depth, "latin-1")
        raw = text.encode("ascii", "replace")
        letters = raw.translate(_AS_BASE64)
        if _ANY_BASE64 not in letters:
            return text
        parts: list[str] = []
        done = 0
        for run in _BASE64_RUN.finditer(letters):
            begin, end = run.span()
            # Every fourth digit has the first bits of a byte, and those of most letters begin with 0.
            if raw[begin : begin + 40 : 4].translate(None, _FIRST_DIGITS):
                continue
            while end < len(text) and text[end] == "=" and end - run.end() < 2:
                end += 1
            parts += (text[done:begin], self._decoded(raw[begin:end], depth, "utf-8"))
            done = end
        return "".join((*parts, text[done:]))

    def _decoded(self, encoded: bytes, depth: int, encoding: str) -> str:
        """A text in base64 without secrets. In UTF-8, only what has no control characters is a text."""
        digits = encoded.rstrip(b"=").translate(_STANDARD)
        try:
            plain = binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))
            text = plain.decode(encoding)
        except ValueError:
            return encoded.decode()
        is_text = encoding != "utf-8" or len(plain.translate(None, _CONTROLS)) == len(plain)
        cleaned = self._inner(text, depth + 1) if is_text else text
        if cleaned == text:
            return encoded.decode()
        again = base64.b64encode(cleaned.encode(encoding, "replace"))
        if b"-" in encoded or b"_" in encoded:
            again = again.translate(_URL_SAFE)
        return (again if encoded.endswith(b"=") or len(encoded) % 4 == 0 else again.rstrip(b"=")).decode()


_Row: TypeAlias = tuple[
    tuple[bytes, ...],
    tuple[bytes, ...],
    Callable[[], re.Pattern[str]],
    Callable[[Match], Span],
]


def _kept_escapes(word: str, plain: str, pieces: list[str]) -> list[str] | None:
    """The parts of a percent-encoded word that stand for these pieces of it; None if they are no pieces of it."""
    if not plain.isascii():
        return None
    where = [match.start() for match in RE.character.finditer(word)] + [len(word)]
    found, at = [], 0
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        begin = len(plain) - len(piece) if is_last else plain.find(piece, at)
        if begin < at or (number == 0 and begin > 0) or not plain.startswith(piece, begin):
            return None
        at = begin + len(piece)
        found.append(word[where[begin] : where[at]])
    return found


def _closes(text: str, at: int, quote: str) -> bool:
    """Whether a quote after this place ends a text that begins before it on the same line."""
    begin = max(text.rfind("\n", 0, at) + 1, at - 300)
    opened = [match for match in re.finditer(re.escape(quote), text[begin:at]) if not _is_apostrophe(match)]
    return len(opened) % 2 == 1


def _is_apostrophe(match: Match) -> bool:
    around = match.string[match.start() - 1 : match.start()] + match.string[match.end() : match.end() + 1]
    return match[0] == "'" and len(around) == 2 and around.isalpha()


def _lowered(text: str) -> bytes:
    """The text in lower case, in which each character has its place, and those that are not ASCII do not count."""
    return text.encode("ascii", "replace").lower()


def _places(low: bytes, marks: tuple[bytes, ...]) -> list[int]:
    """Where one of these stands, from left to right."""
    found: list[int] = []
    for mark in marks:
        at = low.find(mark)
        while at >= 0:
            found.append(at)
            at = low.find(mark, at + len(mark))
    found.sort()
    return found


def _matches(text: str, low: bytes, marks: tuple[bytes, ...], pattern: re.Pattern[str]) -> Iterator[Match]:
    """What the pattern matches where one of the marks stands: that is ten times as fast as to look for the pattern."""
    done = 0
    for at in _places(low, marks):
        match = None if at < done else pattern.match(text, at)
        if match is not None:
            yield match
            done = match.end()


def _first_word(text: str, begin: int) -> int:
    """Where a name begins whose last word begins here: ``API key`` is one."""
    two = RE.two_words.search(text[max(0, begin - 10) : begin])
    return begin - len(two[0]) if two else begin


def _begins_parameter(text: str, at: int) -> bool:
    """Whether a name begins a parameter of a query, or a part of a connection string."""
    return at > 0 and (text[at - 1] in "?&;" or text[max(0, at - 6) : at] == "\\u0026")


def _introduced(text: str, at: int) -> bool:
    """Whether a name is the first on its line, but for words such as ``export``."""
    begin = text.rfind("\n", 0, at) + 1
    return at - begin <= 60 and RE.introduction.match(text[begin:at]) is not None


def _is_type(word: str) -> bool:
    """Whether this is the name of a type, or of something in a program."""
    word = word.rstrip(",;)")
    is_short = len(word) < 16 or not word.islower() or "_" in word or "." in word
    return is_short and RE.alphabetic.match(word) is not None


def _closing(text: str, at: int, quote: str) -> int:
    """Where the text ends that `quote` has opened; the end of the whole text if it is never closed."""
    first = at
    while (end := text.find(quote, at)) >= 0:
        escapes = 0
        while end - 1 - escapes >= first and text[end - 1 - escapes] == "\\":
            escapes += 1
        if not escapes:
            return end
        at = first = end + len(quote)
    return len(text)


def _entropy(text: str) -> float:
    """Shannon's entropy of the characters, in bits a character."""
    counts = [text.count(one) for one in set(text)]
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
