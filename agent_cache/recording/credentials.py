"""Finds credentials in texts and by the names of values.

**Tokens** are known by how they begin. The forms of some 190 services are Betterleaks' rules (`credentials.json`, made
by `tests/harness/credential_rules.py`); see `token_forms`.

**Assignments** are a name of a secret and what follows it, as in the usual files: ``.env``, ini, TOML, YAML, JSON, XML,
source code, HTTP headers, queries, command lines.

**Encodings**: a text in base64 or percent-encoded inside another text is decoded, searched, and encoded again.

Everything here takes linear time. A token is tried at the beginning of a run of letters and digits, and at most
`token_forms.MAX_STARTS` times within it; repetitions that can overlap are possessive.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final
from urllib.parse import quote, unquote

from agent_cache.recording.secret_names import (
    NOTHING,
    RE,
    SHORTEST_SECRET,
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
from agent_cache.recording.token_forms import compiled, end_of_token, mixed_forms, starts_of_tokens, token_forms

__all__ = ["OAUTH_PARAMETERS", "TextSearch"]

_HEADERS: Final = frozenset(WORDS["headers"])
_COMMANDS, _HOOKS, _KEYS_IN_PATHS = (
    tuple(word.encode() for word in WORDS[name]) for name in ("commands", "hooks", "keys_in_paths")
)

# Tokens

_SHORTEST_TOKEN = 15
_SHORTEST_FORM = 14  # "basic", a blank and eight more
# Three letters and letters after them, which is what a picture in base64 has in it now and then.
_IN_BASE64 = frozenset({"BSA", "EXO"})

_TOKEN_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


def _table(characters: bytes) -> bytes:
    """A table that translates these characters to ``a``, and others to a blank."""
    return bytes(97 if one in characters else 32 for one in range(256))


# `bytes.translate` and a search for one byte string find texts without any token 20 times as fast as a pattern does.
_AS_TOKENS = _table(_TOKEN_CHARACTERS + b".")
_TOKEN_RUN = re.compile(rb"a{%d,}" % _SHORTEST_TOKEN)
_ANY_TOKEN = b"a" * _SHORTEST_TOKEN

_SHORTEST_BASE64 = 20
_AS_BASE64 = _table(_TOKEN_CHARACTERS + b"+/")
_BASE64_RUN = re.compile(rb"a{%d,}" % _SHORTEST_BASE64)
_ANY_BASE64 = b"a" * _SHORTEST_BASE64
_SHORTEST_WHOLE_BASE64 = 12
_FIRST_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
_CONTROLS = bytes(range(9)) + bytes((11, 12)) + bytes(range(14, 32)) + b"\x7f"
_STANDARD = bytes.maketrans(b"-_", b"+/")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


# Assignments

_LONGEST_PATH = 200  # names with dots between them
_SHORTEST_NUMBER = 4
# Each name of a secret has one of these in it. Looking for them and not for names is four times as fast.
_STEMS = (b"amz", b"assertion", b"auth", b"bearer", b"code", b"connection", b"cookie", b"cred", b"cvc", b"cvv", b"goog",
          b"jwt", b"key", b"mcp", b"otp", b"pass", b"pwd", b"saml", b"secret", b"sig", b"token")  # fmt: skip
_NAME_CHARACTERS = frozenset(_TOKEN_CHARACTERS.decode() + ".$")
_LONGEST_LIST = 4_000

_SAID_SHORT = frozenset({"passcode", "passphrase", "passwd", "password", "pwd"})
_SHORTEST_SAID = 16

# Texts around what no name introduces

_ORIGINS = (b"://", b":\\")
_LONGEST_PLACE = 1_000
# OAuth: what an authorization server grants. `code` has many other meanings, so other parameters must stand beside it.
OAUTH_PARAMETERS = frozenset({"grant_type", "redirect_uri", "code_verifier", "client_secret", "client_assertion"})
_OAUTH_MARKS = tuple(name.encode() for name in sorted(OAUTH_PARAMETERS))
_NAMES_OF_CODES = (b"assertion", b"code")
_AROUND_CODE = 300
_DELIMITERS = " \t\r\n\"'<>\\"
_SHORTEST_HOOK = 12
_BLANKS = str.maketrans(dict.fromkeys(" \t\r\n\"'\\", "\x00"))
_DOMAINS_OF_HOOKS = (b".com", b".cn", b".io", b".pro")
_EXAMPLES = frozenset({"pass", "passwd", "password", "pwd"})
_MAX_DEPTH = 4
_LONGEST_PROMPT = 300


class TextSearch:
    """Replaces the credentials in texts.

    Args:
        replacement: the text that stands for a secret.
        kind_of: what a name says about its value.
        inner: searches a text that was found in another, with all rules.
        parts: substrings of squashed names, one of which each name of a secret has in it.
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

        self._marked: list[tuple[tuple[bytes, ...], re.Pattern[str], Callable[[re.Match[str]], str]]] = [
            ((b"basicauth(", b"digestauth("), RE.basic_auth, self._replace_random),
            ((b":aa",), RE.telegram, self._replace_random),
            ((b"4/0a", b"1//0"), RE.google_code, self._replacement_of),
            ((b"-----begin",), RE.blocks, self._replacement_of),
            (_COMMANDS, RE.command, self._replace_argument),
            ((b"input_value=",), RE.input, self._replace_input),
            ((b"'input", b'"input'), RE.input_beside, self._replace_input_beside),
            ((b"bearer", b"basic"), RE.scheme, self._replace_random),
            *(((start,), compiled(pattern), self._replacement_of) for start, pattern in mixed_forms()),
        ]

    def without_credentials(self, text: str, depth: int) -> str:
        """The same text without known forms of credentials, values of names of secrets, and encoded ones of both."""
        if " " in text or RE.assigning.search(text):  # a name and its value, or a sentence about them
            text = self._without_assigned(text)
        if self._has_forms:
            text = self._without_forms(text)
        if depth < _MAX_DEPTH:
            if "%" in text and RE.escape.search(text):
                text = self._without_percent_encoded(text, depth)
            if len(text) >= _SHORTEST_WHOLE_BASE64:
                text = self._without_base64(text, depth)
        return text

    def without_arguments(self, words: list[str]) -> list[str]:
        """The same command, given as the list of its arguments, without the values of options that have secrets."""
        cleaned = words.copy()
        for at, (option, value) in enumerate(pairwise(words)):
            if option[:1] == "-" and value[:1] != "-" and not (value.isalpha() and value.isupper()):
                kind = self._kind_of(option.lstrip("-")) if RE.option.match(option) else NameKind.NONE
                if kind is not NameKind.NONE and is_secret_value(kind, option, value):
                    cleaned[at + 1] = self._replacement
        if self._has_forms and any(names_command(word) for word in words):
            line = " ".join(word.translate(_BLANKS) for word in cleaned)
            found = RE.login.sub(self._replace_login, line) if "curl" in line else line
            found = _replaced(found, _lowered(found), _COMMANDS, RE.command, self._replace_argument)
            if found != line:
                for at, (before, after) in enumerate(zip(line.split(" "), found.split(" "), strict=True)):
                    if before != after:
                        cleaned[at] = after.replace("\x00", " ")
        return cleaned

    def without_login(self, text: str) -> str:
        """The same address of a server, ``user:password@host``, without the password."""
        user, colon, password = text.rpartition("@")[0].partition(":")
        is_one = bool(colon and password) and not stands_for_another(password)
        return f"{user}:{self._replacement}{text[len(user) + 1 + len(password) :]}" if is_one else text

    # Tokens and other forms

    def _without_forms(self, text: str) -> str:
        if "@" in text and ("://" in text or ":\\" in text):
            text = _replaced(text, _lowered(text), _ORIGINS, RE.password_in_url, self._replace_password)
            text = _replaced(text, _lowered(text), _ORIGINS, RE.token_in_url, self._replace_random)
        if "@" in text and ":" in text:
            text = RE.login_at.sub(self._replace_login_at, text)
        if len(text) < _SHORTEST_FORM:
            return text
        low = _lowered(text)
        if any(domain in low for domain in _DOMAINS_OF_HOOKS):
            text = _replaced(text, low, _HOOKS, RE.hook, self._replace_hook)
            text = _replaced(text, _lowered(text), _KEYS_IN_PATHS, RE.key_in_path, self._replace_hook)
            low = _lowered(text)
        for marks, pattern, replace in self._marked:
            for mark in marks:
                if mark in low:
                    text = _replaced(text, low, marks, pattern, replace)
                    low = _lowered(text)
                    break
        if b"code" in low or b"assertion" in low:
            text = self._without_codes(text, low)
            low = _lowered(text)
        letters = low.translate(_AS_TOKENS)
        return self._without_tokens(text, letters) if _ANY_TOKEN in letters else text

    def _without_codes(self, text: str, low: bytes) -> str:
        """The same text without codes and assertions of OAuth, which other parameters beside them give away.

        These are parameters of a query or a form, entries of a dict, or arguments of a call.
        """
        has_state = b"state=" in low or b"client_id=" in low
        if not has_state and not any(mark in low for mark in _OAUTH_MARKS):
            return text
        parts: list[str] = []
        done = 0
        for at in _places(low, _NAMES_OF_CODES):
            match = RE.code_of_oauth.match(text, at)
            if match is None:
                continue
            begin, end = match.span("value")
            around = text[max(0, match.start() - _AROUND_CODE) : match.start()] + text[end : end + _AROUND_CODE]
            value = unquote(match["value"])
            is_one = RE.oauth_around.search(around) is not None and is_granted(value, is_certain=True)
            if not is_one and has_state and match["sign"] == "=" and not match["quote"]:
                before = RE.parameters_before.search(text, max(0, match.start() - _AROUND_CODE), match.start())
                after = RE.parameters_after.match(text, end, end + _AROUND_CODE)
                beside = f"{before[0] if before else ''}{after[0] if after else ''}"
                is_one = RE.state_around.search(beside) is not None and is_granted(value, is_certain=False)
            if is_one and match["value"] != self._replacement:
                parts += (text[done:begin], self._replacement)
                done = end
        return "".join((*parts, text[done:])) if parts else text

    def _without_tokens(self, text: str, letters: bytes) -> str:
        parts: list[str] = []
        done = 0
        forms = token_forms()
        for run in _TOKEN_RUN.finditer(letters):
            begin, last = run.span()
            for at in starts_of_tokens(text, begin, last):
                if at < done or text[at : at + 3].lower() not in forms:
                    continue
                if at and text[at - 1] in "+/" and text[at : at + 3] in _IN_BASE64:
                    continue
                end = end_of_token(text, at)
                if end > at:
                    parts += (text[done:at], self._replacement)
                    done = end
        return "".join((*parts, text[done:])) if parts else text

    def _replace_hook(self, match: re.Match[str]) -> str:
        is_one = len(match["value"]) >= _SHORTEST_HOOK and looks_random(match["value"])
        return f"{match['kept']}{self._replacement}" if is_one else match[0]

    def _replacement_of(self, _match: re.Match[str]) -> str:
        return self._replacement

    def _replace_input(self, match: re.Match[str]) -> str:
        value, begin = match["value"], match.start()
        place = RE.refused.search(match.string[max(0, begin - _LONGEST_PLACE) : begin])
        names = () if place is None else [name for name in place["place"].split(".") if not name.isdigit()]
        if names and self._kind_of(names[-1]):
            bare = value[1:-1] if value[0] in "\"'" else value
            is_one = value[0] not in "{[(" and is_secret_value(self._kind_of(names[-1]), names[-1], bare)
            if is_one and bare not in ("", "None", "True", "False"):
                return match[0].replace(bare, self._replacement)
        # What it leaves out in the middle may be the name of what stands at the end.
        cut = RE.cut.search(value)
        if cut is not None and looks_random(cut["value"]):
            return match[0][: len("input_value=") + cut.start("value")] + self._replacement + cut["end"]
        return match[0]

    def _replace_input_beside(self, match: re.Match[str]) -> str:
        before = match.string[max(0, match.start() - _LONGEST_PLACE) : match.start()]
        begin = max(before.rfind("'loc"), before.rfind('"loc'))
        place = RE.place_before.match(before, begin) if begin >= 0 else None
        names = re.findall(r"[\"']([^\"'\\]++)", place["place"]) if place is not None else []
        name = next((one for one in reversed(names) if one.strip(", ")), "")
        kind = self._kind_of(name)
        is_one = kind is not NameKind.NONE and is_secret_value(kind, name, match["value"])
        return match[0][: -len(match["value"])] + self._replacement if is_one else match[0]

    def _replace_password(self, match: re.Match[str]) -> str:
        value = match["value"] or match["slashed"]
        if match["slashed"] and RE.web_before.search(match.string[max(0, match.start() - 6) : match.start()]):
            is_one = value[0] not in "$%" and looks_random(value.partition("/")[0])  # else it is a name of a port
            return f"{match['kept']}{self._replacement}" if is_one else match[0]
        is_example = stands_for_another(value) or value.lower() in _EXAMPLES
        return match[0] if is_example else f"{match['kept']}{self._replacement}"

    def _replace_login_at(self, match: re.Match[str]) -> str:
        value, before = match["value"], match.string[max(0, match.start() - 20) : match.start()]
        is_one = looks_random(value) or RE.netloc_before.search(before) is not None
        is_one = is_one and not stands_for_another(value)
        return f"{match['kept']}{self._replacement}" if is_one else match[0]

    def _replace_random(self, match: re.Match[str]) -> str:
        value = match["value"]
        is_word = not looks_random(value) or RE.path.match(value) is not None
        return match[0] if is_word else f"{match['kept']}{self._replacement}"

    # Assignments

    def _without_assigned(self, text: str) -> str:
        """The same text without values that are assigned to the name of a secret."""
        parts: list[str] = []
        done = 0
        for first, end in self._names(text):
            if end <= done:
                continue
            # Of two words, the first one may have been part of a value.
            begin = first if first >= done else end - len(text[done:end].lstrip())
            name = text[begin:end]
            kind = self._kind_in_text(name, text, begin)
            if kind is not NameKind.NONE:
                span = self._value_span(text, begin, end, name, kind)
                for first_of, last_of in self._spans_inside(text, end, name, kind) if span is None else (span,):
                    if first_of >= done:
                        parts += (text[done:first_of], self._replacement)
                        done = last_of
        text = "".join((*parts, text[done:])) if parts else text
        if self._has_forms and "curl" in text:
            text = RE.login.sub(self._replace_login, text)
        return text

    def _names(self, text: str) -> Iterator[tuple[int, int]]:
        """Where names stand that may be names of secrets, from left to right."""
        if self._parts:
            squashed = squash(text)
            if any(part in squashed for part in self._parts):
                yield from ((_first_word(text, match.start()), match.end()) for match in RE.name.finditer(text))
                return
        if not self._has_forms:
            return
        low = _lowered(text)
        last = -1
        for at in _places(low, _STEMS):
            if at < last:
                continue
            begin, least = at, max(0, at - _LONGEST_PATH)
            while begin > least and (text[begin - 1] in _NAME_CHARACTERS or text[begin - 1].isalnum()):
                begin -= 1
            name = RE.name.match(text, begin)
            if name is None:
                continue
            last = name.end()
            yield _first_word(text, begin), last

    def _value_span(self, text: str, begin: int, end: int, name: str, kind: NameKind) -> tuple[int, int] | None:
        """Where the value stands that is assigned to the name of a secret, or said of it; None if it is none."""
        span = self._written_span(text, begin, end, name, kind)
        return self._said_span(text, begin, end, name) if span is None and kind is NameKind.SECRET else span

    def _spans_inside(self, text: str, end: int, name: str, kind: NameKind) -> Iterator[tuple[int, int]]:
        """The strings in a list, a tuple or a dict that is assigned to the name of a secret.

        A dict may as well describe the value, or be a part of a program: in it, words of a language are left alone.
        """
        lines = RE.items.match(text, end)
        if lines is not None:
            for item in RE.item.finditer(text, *lines.span("items")):
                if self._is_secret(kind, name, item["word"]) and looks_random(item["word"]):
                    yield item.span("word")
            return
        sign = RE.sign_of_several.match(text, end)
        if sign is None:
            return
        is_dict = text[sign.end() - 1] == "{"
        if is_dict and (
            (kind is NameKind.MAYBE and not names_several(name)) or RE.schema_after.match(text, sign.end())
        ):
            return
        depth, at, last = 1, sign.end(), sign.end() + _LONGEST_LIST
        while depth and (mark := RE.mark_in_list.search(text, at, last)) is not None:
            at = mark.end()
            if not mark["quote"]:
                depth += 1 if mark[0] in "([{" else -1
                continue
            stop = _closing(text, at, mark["quote"])
            value = text[at:stop]
            is_name = RE.colon_after.match(text, stop + len(mark["quote"])) is not None
            is_word = is_dict or kind is NameKind.MAYBE or len(value) < SHORTEST_SECRET
            if not is_name and (looks_random(value) or not is_word) and self._is_secret(kind, name, value):
                yield at, stop
            at = stop + len(mark["quote"])

    def _said_span(self, text: str, begin: int, end: int, name: str) -> tuple[int, int] | None:
        """The value in a sentence about a secret. It has letters and digits; a sentence has other words, too."""
        match = RE.said.match(text, end)
        if match is None or not self._has_forms or "cookie" in name.lower():
            return None
        before = text[max(0, begin - 40) : begin]
        if RE.derived_before.search(before) or (
            match["dash"] and not (match["mark"] or RE.owner_before.search(before))
        ):
            return None
        value = match["value"].rstrip(".,;:!?)")
        is_short = squash(name) in _SAID_SHORT and match["sign"] is not None
        if len(value) < (SHORTEST_SECRET if is_short else _SHORTEST_SAID) or not RE.mixed.match(value):
            return None
        if RE.of_secrets.match(value) or RE.path.match(value) or RE.uuid.match(value) or is_placeholder(value):
            return None
        if match["sign"] is None and entropy(value) <= _LEAST_ENTROPY:
            return None
        return match.start("value"), match.start("value") + len(value)

    def _written_span(self, text: str, begin: int, end: int, name: str, kind: NameKind) -> tuple[int, int] | None:
        """The same in a file, a program or a command."""
        before = text[max(0, begin - 40) : begin]
        if before[-1:] in ("'", '"') and "(" in before:
            match = RE.pair_after.match(text, end) if RE.pair_before.search(before) else None
            if match is not None and looks_random(match["value"]) and not _is_type(match["value"]):
                return self._span_if(kind, name, match, "value")
        if ":" in before or "=" in before:
            is_named = RE.named_before.search(before) is not None
            match = RE.named_after.match(text, end) if is_named else None
            if match is not None:
                return self._beside_span(text, match, name, kind)
            match = RE.attribute_after.match(text, end) if is_named else None
            if match is not None:
                return self._span_if(kind, name, match, "value")
        sign = RE.sign.match(text, end)
        if sign is not None:
            return self._assigned_span(text, begin, sign, name, kind)
        if before[-1:] in ("<", ":"):
            match = RE.element_after.match(text, end) if RE.element_before.search(before) else None
            return None if match is None else self._span_if(kind, name, match, "value")
        if name.startswith("--") or (name[0] == "-" and kind is not NameKind.MAYBE):
            return self._argument_span(text, end, name, kind)
        if before.rstrip(" \t`").endswith("|"):
            match = RE.cell_after.match(text, end)
            is_one = match is not None and looks_random(match["value"]) and not _is_type(match["value"])
            return self._span_if(kind, name, match, "value") if match is not None and is_one else None
        if RE.env_before.search(before):
            match = RE.argument.match(text, end)
            return None if match is None else self._span_if(kind, name, match, "value")
        if name.lower() == "password" and RE.login_before.search(before):
            match = RE.argument.match(text, end) or RE.next_line.match(text, end)
            return None if match is None else match.span("value")
        return None

    def _argument_span(self, text: str, end: int, name: str, kind: NameKind) -> tuple[int, int] | None:
        """The argument of an option of a command, unless a sentence is about the option."""
        match = RE.next_in_list.match(text, end)
        if match is not None:
            span = self._quoted_span(text, match.end(), match["quote"], name, kind)
            word = "" if span is None else text[slice(*span)]
            return None if RE.snake.match(word) and self._kind_of(word) else span  # the name of a parameter
        match = RE.argument.match(text, end)
        if match is None:
            return None
        if match["quote"]:
            return self._quoted_span(text, match.start("value"), match["quote"], name, kind)
        is_word = RE.alphabetic.match(match["value"]) is not None
        if is_word and (match["after"].strip() or match["value"].isupper()):
            return None
        return self._span_if(kind, name, match, "value")

    def _beside_span(self, text: str, match: re.Match[str], name: str, kind: NameKind) -> tuple[int, int] | None:
        """The value of a name that stands beside it: ``name: DB_PASSWORD`` above ``value: x``."""
        if match["quote"]:
            return self._quoted_span(text, match.end(), match["quote"], name, kind)
        word = RE.any_word.match(text, match.end())
        return None if word is None else self._span_if(kind, name, word, "word")

    def _replace_argument(self, match: re.Match[str]) -> str:
        value = match["value"]
        is_other = not RE.digit.search(value) or RE.path.match(value) or stands_for_another(value)
        return match[0] if is_other else match[0][: match.start("value") - match.start()] + self._replacement

    def _replace_login(self, match: re.Match[str]) -> str:
        value = match["value"]
        if value.isdigit() or stands_for_another(value):
            return match[0]
        return match[0][: match.start("value") - match.start()] + self._replacement

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

    def _assigned_span(
        self, text: str, start: int, match: re.Match[str], name: str, kind: NameKind
    ) -> tuple[int, int] | None:
        begin = match.end()
        before = text[start - 1] if start else ""
        quote = match["quote"] or match["quote_2"]
        if quote:
            if match["sign"] and (match["sign"] == ":" or before == quote) and _closes(text, start, quote):
                return None  # a text that ends with a colon, such as a prompt
            return self._quoted_span(text, begin, quote, name, kind)
        if match["quoted"] is not None:  # a name in quotes and a value without, as numbers in JSON
            value = RE.in_code.match(text, begin)
            if value is None or not RE.number.match(value[0]) or names_several(name):
                return None
            return value.span() if kind is not NameKind.MAYBE or is_secret_value(kind, name, value[0]) else None
        if match["sign"] == ":":
            return self._after_colon(text, start, match, name, kind, before)
        if _begins_parameter(text, start):
            value = RE.in_a_query.match(text, begin)
            return None if value is None else self._span_if(kind, name, value)
        if _introduced(text, start) or name.startswith("--"):
            return self._in_line(text, match, name, kind)
        value = RE.in_code.match(text, begin)
        if value is None or match["blank"] or value[0][0] in "([{" or RE.call.match(text, begin):
            return None
        after = text[value.end() : value.end() + 1]
        if RE.alphabetic.match(value[0]) and ((after in (",", ")", "]", "}") and after) or "." in value[0]):
            return None  # an argument in a program
        return self._span_if(kind, name, value)

    def _span_if(self, kind: NameKind, name: str, match: re.Match[str], group: str | int = 0) -> tuple[int, int] | None:
        return match.span(group) if self._is_secret(kind, name, match[group]) else None

    def _is_secret(self, kind: NameKind, name: str, value: str) -> bool:
        """Whether this value that is assigned in a text is a secret, and nothing that stands for one."""
        if value == self._replacement:
            return True
        if stands_for_another(value):
            return False
        value = RE.authorization.sub("", value)
        if stands_for_another(value) or squash(value.strip("-,;)]")) in NOTHING or squash(value) == squash(name):
            return False
        if RE.dotted.match(value) or (RE.alphabetic.match(value) and squash(value) in SQUASHED_NAMES):
            return False  # a name in a program, or that of another secret
        return is_secret_value(kind, name, value)

    def _quoted_span(self, text: str, begin: int, quote: str, name: str, kind: NameKind) -> tuple[int, int] | None:
        if quote[0] in "rR":
            return None  # a regular expression
        end = _closing(text, begin, quote.lstrip("bBuUfF"))
        if squash(name) == "token" and text[end : end + 40].lstrip("\\\"', ").startswith("logprob"):
            return None  # a token of a text, and how probable it was
        return (begin, end) if self._is_secret(kind, name, text[begin:end]) else None

    def _after_colon(
        self, text: str, start: int, match: re.Match[str], name: str, kind: NameKind, before: str
    ) -> tuple[int, int] | None:
        """The value in a header of HTTP, in YAML, or after a name on a line of its own."""
        begin = match.end()
        squashed = squash(name)
        if squashed in _HEADERS:
            value = RE.line.match(text, begin)
            if squashed == "xapikey" and (before in ("'", '"') or text[max(0, start - 3) : start] == "-H "):
                word = RE.in_code.match(text, begin)
                if word is not None and not is_placeholder(word[0]) and not RE.call.match(text, begin):
                    return word.span()
            if value is None or ("cookie" in squashed and "=" not in value[0].partition(" ")[0]):
                return None
            if "apikey" in squashed:  # one word, also where a sentence goes on
                value = RE.first_word.match(text, begin) or value
            first = RE.authorization.sub("", value[0]).strip().partition(" ")[0]
            if first == self._replacement:
                return value.span()
            is_other = stands_for_another(first) or ("apikey" in squashed and _is_type(first))
            return value.span() if not is_other and ("cookie" in squashed or RE.tokenish.match(first)) else None
        is_quoted = before in ("'", '"') and before != ""
        is_argument = text[max(0, start - 3) : start] == "-H "
        if is_quoted or is_argument or text[max(0, start - 2) : start].strip()[-1:] in ("{", ","):
            value = RE.in_code.match(text, begin)
            if value is None or RE.call.match(text, begin) or RE.alphabetic.match(value[0]):
                return None
            if len(value[0]) < _SHORTEST_NUMBER:
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

    def _in_line(self, text: str, match: re.Match[str], name: str, kind: NameKind) -> tuple[int, int] | None:
        """The value on a line of its own: in a shell, in ``.env``, in an ini file, in a program."""
        begin = match.end()
        value = RE.alone.match(text, begin)
        if value is None or RE.call.match(text, begin):
            return None
        word = value[0].rstrip(",;)") or value[0]
        is_code = match["blank"] or match["before"] or "." in name
        if word[0] == "(" or (is_code and word.lstrip("-").isdigit() and len(word) < _SHORTEST_NUMBER):
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
            word = text[begin:end]
            cleaned = self._percent_encoded(word, depth)
            if cleaned != word:
                parts += (text[done:begin], cleaned)
                done = end
            at = text.find("%", end)
        return "".join((*parts, text[done:])) if parts else text

    def _percent_encoded(self, word: str, depth: int) -> str:
        plain = unquote(word)
        if plain == word or "\ufffd" in plain:
            return word
        cleaned = self._inner(plain, depth + 1)
        if cleaned == plain:
            return word
        kept = _kept_escapes(word, plain, cleaned.split(self._replacement))
        if kept is None:
            kept = [quote(piece, safe="=&?/:#;,+@!$'()*~") for piece in cleaned.split(self._replacement)]
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
            cleaned = self._decoded(raw[begin:end], depth, "utf-8")
            if cleaned != text[begin:end]:
                parts += (text[done:begin], cleaned)
                done = end
        return "".join((*parts, text[done:])) if parts else text

    def _decoded(self, encoded: bytes, depth: int, encoding: str) -> str:
        """A text in base64 without secrets. In UTF-8, only what has no control characters is a text."""
        digits = encoded.rstrip(b"=").translate(_STANDARD)
        if len(digits) % 4 == 1:
            return encoded.decode()
        try:
            plain = binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))
            text = plain.decode(encoding)
        except ValueError:
            return encoded.decode()
        if encoding == "utf-8" and len(plain.translate(None, _CONTROLS)) != len(plain):
            return encoded.decode()
        cleaned = self._inner(text, depth + 1)
        if cleaned == text:
            return encoded.decode()
        again = base64.b64encode(cleaned.encode(encoding, "replace"))
        if b"-" in encoded or b"_" in encoded:
            again = again.translate(_URL_SAFE)
        return (again if encoded.endswith(b"=") or len(encoded) % 4 == 0 else again.rstrip(b"=")).decode()


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
    begin = max(text.rfind("\n", 0, at) + 1, at - _LONGEST_PROMPT)
    opened = [match for match in re.finditer(re.escape(quote), text[begin:at]) if not _is_apostrophe(match)]
    return len(opened) % 2 == 1


def _is_apostrophe(match: re.Match[str]) -> bool:
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


def _replaced(
    text: str, low: bytes, marks: tuple[bytes, ...], pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str]
) -> str:
    """The same text with what the pattern matches where one of the marks stands.

    To look for the marks and not for the pattern is ten times as fast.
    """
    parts: list[str] = []
    done = 0
    for at in _places(low, marks):
        match = None if at < done else pattern.match(text, at)
        if match is not None:
            parts += (text[done:at], replace(match))
            done = match.end()
    return "".join((*parts, text[done:])) if parts else text


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
    return RE.alphabetic.match(word) is not None and (
        len(word) < 16 or not word.islower() or "_" in word or "." in word
    )


def _closing(text: str, at: int, quote: str) -> int:
    """Where the text ends that `quote` has opened; the end of the whole text if it is never closed."""
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


_LEAST_ENTROPY = 3.5  # bits a character, as Betterleaks' rule for keys of any service has it


def entropy(text: str) -> float:
    """Shannon's entropy of the characters, in bits a character."""
    counts = [text.count(one) for one in set(text)]
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
