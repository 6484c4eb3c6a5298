"""Finds credentials in texts, and says which names are those of secrets, by the rules of `credentials.toml`.

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
import enum
import functools
import re
import string
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import islice
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from agent_cache.errors import ConfigurationError

Span: TypeAlias = tuple[int, int]
Match: TypeAlias = re.Match[str]
Cell: TypeAlias = tuple[int, str]  # where it begins in a line of a table, and what is in it

_MAX_STARTS = 32
"""How often a token may begin within a run of letters and digits."""
_MAX_DEPTH = 4
_NARROWEST = 60  # characters of a line of a terminal, in which a longer secret goes on in the next lines
_LONGEST_WORD = 2_000  # what is longer and stands for no secret would be read again for each name in it
_LONGEST_PATH = 200  # names with dots between them
_BEFORE = 500
"""How much of the text before a name `before` may look at."""
_SHORTEST_FORM = 14  # "basic", a blank and eight more
# Three letters and letters after them, which is what a picture in base64 has in it now and then.
_IN_BASE64 = frozenset({"BSA", "EXO"})
_NAME_CHARACTERS = frozenset(f"{string.ascii_letters}{string.digits}_-.$")
_GZIP = "H4sI"  # in base64
_CONTROLS = bytes(range(9)) + bytes((11, 12)) + bytes(range(14, 32)) + b"\x7f"
_STANDARD, _URL_SAFE = bytes.maketrans(b"-_", b"+/"), bytes.maketrans(b"+/", b"-_")
# Bars between the columns of a table, and what the lines between its rows are made of.
_BARS = str.maketrans("│┃║┆", "||||")
_RULES = "-+=| \t─━═┄┼╋╪╇├┤┝┥┞┡┦┩┠┨╞╡╟╢╠╣┌┬┐┏┳┓╒╤╕╔╦╗╭╮└┴┘┗┻┛╘╧╛╚╩╝╰╯"
_AROUND = " \t\r\"'`"
# What may stand within a secret, or in the place of characters around it: colours of a terminal, breaks of lines in
# mails, escapes of JSON that is a part of a text.
_IN_BETWEEN: Final = (
    ("\x1b[", "colour", ""),
    ("=3D", "soft_break", lambda match: "=" if match[0] == "=3D" else ""),
    ("\\u00", "unicode_escape", lambda match: {'"': '\\"', "\\": "\\\\"}.get(one := chr(int(match[1], 16)), one)),
)
_NOT_FIRST = dict.fromkeys(map(ord, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"))


# Rules


class _Form(msgspec.Struct, frozen=True):
    """A row of ``forms`` in `credentials.toml`, or of those in `credentials.json`."""

    marks: tuple[str, ...]
    pattern: str
    any: bool = False


class _Assigned(msgspec.Struct):
    """A row of ``assigned`` in `credentials.toml`."""

    after: str
    marks: tuple[str, ...] = ()
    before: str = ""
    name: str = ""
    kind: int = 1
    random: bool = False
    accept: Literal["secret", "any", "number", "opened", "enclosed"] = "secret"


_FILES = files("agent_cache.recording")
_DATA: Final[dict[str, Any]] = tomllib.loads(_FILES.joinpath("credentials.toml").read_text("utf-8"))
_SERVICES: Final[dict[str, Any]] = msgspec.json.decode(_FILES.joinpath("credentials.json").read_bytes())
WORDS: Final = {name: tuple(words) for name, words in _DATA["words"].items()}
NAMES_BESIDE: Final[dict[str, list[str]]] = _DATA["beside"]
_ASSIGNED = msgspec.convert(_DATA["assigned"], list[_Assigned])


@functools.cache
def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A regular expression of `credentials.toml`, in which ``<<x>>`` stands for another one."""
    while "<<" in pattern:
        pattern = re.sub("<<(\\w+)>>", lambda match: _DATA["patterns"][match[1]], pattern)
    return re.compile(pattern, flags)


class _Patterns:
    """The regular expressions of `credentials.toml`, each compiled when it is used first."""

    def __getattr__(self, name: str) -> re.Pattern[str]:
        setattr(self, name, pattern := compiled(_DATA["patterns"][name]))
        return pattern


RE: Final = _Patterns()


@functools.cache
def _patterns_by_start() -> dict[str, list[str]]:
    """Patterns of tokens by their first three characters, in lower case; the commonest families first."""
    found: dict[str, list[str]] = {}
    for form in (*_DATA["families"], *_SERVICES["tokens"].values()):
        for start in dict.fromkeys(start[:3] for start in form["starts"]):
            found.setdefault(start, []).append(form["pattern"])
    return found


@functools.cache
def _forms() -> list[tuple[bytes, _Form]]:
    """The other forms, each with each of its marks."""
    forms = msgspec.convert([*_DATA["forms"], *_SERVICES["forms"].values()], list[_Form])
    return [(mark.encode(), form) for form in forms for mark in form.marks]


# Names, and values that may be secrets: what the name of a value says about it


class NameKind(enum.IntEnum):
    """How much a name says about its value."""

    NONE = 0
    MAYBE = 1  # the value is a secret if it looks like one, such as that of `bot_token` or `auth`
    ENDING = 2  # a word is a secret and a number too, a sentence is none: `smtp_password`
    SECRET = 3  # any value is one


_SQUASHED = str.maketrans("", "", "-_ .[]")


def squash(name: str) -> str:
    """A name without case, dashes, underscores, dots, blanks and brackets."""
    return name.lower().translate(_SQUASHED)


_PLURALS = tuple(f"{ending}s" for ending in WORDS["endings"])
_SQUASHED_NAMES = frozenset(map(squash, WORDS["secret_names"]))
_STEMS = tuple(map(str.encode, WORDS["stems"]))


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
    if squashed in _SQUASHED_NAMES:
        return NameKind.SECRET
    if name in WORDS["session_cookies"]:
        return NameKind.ENDING
    words = [word.lower() for word in RE.word.findall(name)]
    # A number at the end counts names of one kind (API_KEY_2). What counts them, such as `max_passwords`, stays.
    if squashed.rstrip("0123456789").endswith((*WORDS["endings"], *_PLURALS)) or words[-1:] == ["secret"]:
        return NameKind.ENDING
    is_one = bool(words) and words[-1] in WORDS["maybe_last"] and set(WORDS["harmless"]).isdisjoint(words[:-1])
    is_one = is_one or (words[-1:] == ["key"] and not set(WORDS["before_key"]).isdisjoint(words[-2:-1]))
    return NameKind.MAYBE if is_one or names_code(name) else NameKind.NONE


def names_code(name: str) -> bool:
    """Whether a name is that of a code that is typed in once, or of a card: ``otp``, ``cvv``, ``backup_codes``."""
    words = RE.word.findall(name)
    return bool(words) and (words[-1].lower() in WORDS["code_words"] or squash(name).endswith(WORDS["code_endings"]))


def names_several(name: str) -> bool:
    """Whether a name is that of several secrets, whose number is none: ``passwords``, ``api_keys``, ``tokens``."""
    return squash(name).endswith((*_PLURALS, "secrets", "tokens", "codes"))


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
    is_placeholder = not value or stands_for_another(value) or squash(value) in WORDS["no_values"]
    if kind is NameKind.NONE or is_placeholder or any(map(str.isspace, value)):
        return False
    if kind is NameKind.ENDING:
        return True
    if RE.path.match(value):
        return False
    if low.endswith("tokens"):  # of a text, or several of these
        return len(value) >= 10 and RE.mixed.match(value) is not None
    if low.endswith(("pass", "pwd")) and low != "pass":
        return True
    if low.endswith("token"):
        return len(value) >= 6
    return len(value) >= 6 and looks_random(value) and (low.endswith("key") or not value[0].isdigit())


def looks_random(value: str) -> bool:
    """Whether a word may be a token rather than a word of a language or a name in a program."""
    return RE.random.search(value) is not None


# Texts


class TextRules:
    """Replaces the secrets in texts. `Redaction` is the same for plain data, which a text may be, too.

    Raises:
        ConfigurationError: if a pattern is no regular expression.
    """

    replacement: Final = "[redacted]"
    """The text that stands for a secret."""

    def __init__(self, names: Iterable[str], patterns: Iterable[str], *, defaults: bool) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.patterns = tuple(dict.fromkeys(patterns))
        self.defaults = defaults
        self._own_names = frozenset(map(squash, self.names))
        spelled = ("[-_ .]*".join(map(re.escape, name)) for name in self._own_names)
        self._own_stems = re.compile("|".join(spelled) or "(?!)", re.IGNORECASE)
        try:
            self._own_patterns = list(map(re.compile, self.patterns))
        except re.error as error:
            raise ConfigurationError(f"redact: {error.pattern!r} is no regular expression: {error}") from error

    def kind_of(self, name: str) -> NameKind:
        """What this name says about its value."""
        if self._own_names and squash(name) in self._own_names:
            return NameKind.SECRET
        return kind_of_name(name) if self.defaults else NameKind.NONE

    def text(self, text: str, depth: int = 0) -> str:
        """The same text without secrets. It may be JSON, and was found in this many others."""
        if text[:1] in ("{", "[") and text[-1:] in ("}", "]"):
            try:
                data = msgspec.json.decode(text)
                cleaned = self.clean(data)
                return text if cleaned == data else msgspec.json.encode(cleaned).decode()
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                pass
        for mark, form, instead in _IN_BETWEEN:
            if mark in text and (plain := getattr(RE, form).sub(instead, text)) != text:
                cleaned = self.text(plain, depth)  # a secret takes them with it
                return text if cleaned == plain else cleaned
        for pattern in self._own_patterns:
            text = pattern.sub(self.replacement, text)
        return self._without_credentials(text, depth)

    def clean(self, data: Any) -> Any:
        """The same plain data without secrets."""
        raise NotImplementedError

    def _without_credentials(self, text: str, depth: int) -> str:
        """The same text without known forms of credentials, values of names of secrets, and encoded ones of both."""
        # In lower case, each character has its place, and those that are not ASCII do not count.
        low = text.encode("ascii", "replace").lower()
        if RE.assigning.search(text):
            columns = [*self._of_sql(text, low), *(self._of_html(text) if b"</t" in low else ())]
            found = list(self._assigned(text, low, columns))
            text = self._cut(text, sorted(found + columns) if columns else found)
        if self.defaults and (len(text) >= _SHORTEST_FORM or "@" in text):
            for form in dict.fromkeys([form for mark, form in _forms() if mark in low]):
                text = self._cut(text, [_span_of_form(form, match) for match in compiled(form.pattern).finditer(text)])
            text = self._cut(text, self._tokens(text))
        if depth < _MAX_DEPTH:
            if "%" in text:
                text = RE.parameter.sub(lambda match: self._percent_encoded(match[0], depth), text)
            if len(text) >= 12:
                text = self._without_base64(text, depth)
        return text

    def _without_arguments(self, words: list[str]) -> list[str]:
        """The same command, given as the list of its arguments, without the values of options that have secrets."""
        if not any(word[:1] == "-" for word in words):
            return words
        listed = [word.translate({34: "\x00", 39: "\x00", 92: "\x00"}) for word in words]
        found = self._without_credentials("'" + "', '".join(listed) + "'", _MAX_DEPTH)[1:-1].split("', '")
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
                parts += (text[done : span[0]], self.replacement)
                done = span[1]
                while (rest := RE.joined.match(text, done)) or (
                    (rest := RE.wrapped.match(text, done)) and done - text.rfind("\n", 0, done) > _NARROWEST
                ):
                    done = rest.end()
        return "".join((*parts, text[done:])) if parts else text

    # Tokens and other forms

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

    def _assigned(self, text: str, low: bytes, columns: list[Span]) -> Iterator[Span]:
        """The values that are assigned to the name of a secret. Those below one in a table go to `columns`."""
        rows: list[_Assigned] = []  # found for the first name of a secret: most texts have none
        done = table = 0
        for first, end in self._names(text, low):
            if end <= done:
                continue
            # Of two words, the first one may have been part of a value.
            begin = first if first >= done else end - len(text[done:end].lstrip())
            name = text[begin:end]
            if text[begin - 1 : begin] == "\\" and name[0] in "nrt" and self.kind_of(name[1:]) >= self.kind_of(name):
                begin, name = begin + 1, name[1:]  # behind a line break that is written as an escape
            if kind := self._kind_in_text(name, text, begin):
                if begin >= table:
                    table = self._table(text, begin, end, columns)
                rows = rows or [
                    row for row in _ASSIGNED if not row.marks or any(mark.encode() in low for mark in row.marks)
                ]
                for one in self._values(rows, text, begin, end, name, kind):
                    if one[0] >= done:
                        yield one
                        done = one[1]

    def _table(self, text: str, begin: int, end: int, columns: list[Span]) -> int:
        """Where the table ends whose head has a name here, as CSV and databases have it, or else the line of the name.

        The values of its columns that have secrets are added to `columns`.
        """
        at, stop = text.rfind("\n", max(0, begin - 500), begin) + 1, text.find("\n", end, end + 500)
        head = text[at:stop].translate(_BARS) if 0 <= stop <= at + 1_000 else ""
        mark = next((one for one in ("|", "\t", ",", ";", "  ") if one in head.strip()), "")
        if (copied := RE.sql_copy.search(head)) is not None:
            head, mark = copied["names"].replace(",", "\t"), "\t"
        names = [one.strip(f"{_AROUND}*_") for _, one in _cells(head, mark) if RE.cell.fullmatch(one)] if mark else []
        if not names or len(names) != len(_cells(head, mark)):
            return end
        while 0 <= stop < len(text):
            at, stop = stop + 1, text.find("\n", stop + 1)
            line = text[at : stop if stop >= 0 else None].translate(_BARS)
            cells = _cells(line, mark)
            if mark == "  ":  # without a number, the first words of lines are mostly below no head
                cells = cells[1:] if len(cells) > len(names) else [(0, ""), *cells[1:]]
            if len(cells) == len(names):
                columns += self._of_columns(names, cells, at)
            elif not line or line.strip(_RULES):
                break
        return at

    def _of_columns(self, names: list[str], cells: list[Cell], at: int, *, is_sure: bool = False) -> Iterator[Span]:
        """The secrets of a row, whose cells are at these places behind `at`."""
        for name, (begin, cell) in zip(names, cells, strict=False):
            value = cell.strip(_AROUND)
            if (is_sure or looks_random(value)) and self._is_secret(self.kind_of(name), name, value):
                found = at + begin + cell.index(value)
                yield found, found + len(value)

    def _of_sql(self, text: str, low: bytes) -> Iterator[Span]:
        """The values of columns that have secrets in SQL that inserts rows, as dumps of databases have it."""
        tables: dict[str, list[str]] = {}
        for match in RE.sql_create.finditer(text) if b"create" in low else ():
            words = (one[0].split() for one in RE.sql_value.finditer(match["cells"]))
            tables[_bare(match["table"])] = [_bare(one[0]) for one in words if one]
        for match in RE.sql_insert.finditer(text) if b"insert" in low or b"replace" in low else ():
            listed, at = match["names"], match.end()
            names = [_bare(one) for one in listed.split(",")] if listed else tables.get(_bare(match["table"]), [])
            while any(map(self.kind_of, names)) and (row := RE.sql_row.match(text, at)) is not None:
                at = row.end()
                cells = [(one.start(), one[0]) for one in RE.sql_value.finditer(text, *row.span("cells"))]
                yield from self._of_columns(names, cells, 0, is_sure=True)

    def _of_html(self, text: str) -> Iterator[Span]:
        """The values below a head that is the name of a secret, in tables of HTML."""
        names: list[str] = []
        for row in RE.html_row.finditer(text):
            cells = [(one.start("text"), one["text"].strip()) for one in RE.html_cell.finditer(text, *row.span())]
            if row["begin"] or not names:
                names = [one for _, one in cells]
            elif len(cells) == len(names) and any(map(self.kind_of, names)):
                yield from self._of_columns(names, [(text.index(one, at), one) for at, one in cells], 0)

    def _names(self, text: str, low: bytes) -> Iterator[Span]:
        """Where names stand that may be names of secrets, from left to right. ``API key`` is one of two words.

        Looking for stems of names, and not for names, is four times as fast.
        """
        starts = [match.start() for match in self._own_stems.finditer(text)]
        for stem in _STEMS if self.defaults else ():
            if stem in low:
                starts += (match.start() for match in re.finditer(stem, low))
        last = -1
        for at in sorted(starts):
            if at < last:
                continue
            begin, least = at, max(0, at - _LONGEST_PATH)
            while begin > least and (text[begin - 1] in _NAME_CHARACTERS or text[begin - 1].isalnum()):
                begin -= 1
            if (name := RE.name.match(text, begin)) is not None:
                last = name.end()
                two = RE.two_words.search(text, max(0, begin - 10), begin)
                yield (two.start() if two else begin), last

    def _kind_in_text(self, name: str, text: str, begin: int) -> NameKind:
        if len(name) > _LONGEST_PATH:
            return NameKind.NONE
        if text[begin - 1 : begin] == "%" and name[:2].upper() == "5B":
            name = name[2:]
        return self.kind_of(name) or self.kind_of(name.rstrip(".0123456789").rpartition(".")[2])

    def _values(
        self, rows: list[_Assigned], text: str, begin: int, end: int, name: str, kind: NameKind
    ) -> Sequence[Span] | Iterator[Span]:
        """What is assigned to a name: by the first row that fits, or the strings of a list."""
        for row in rows:
            if kind < row.kind or (row.kind == NameKind.SECRET and not self.defaults):
                continue
            if row.name and not compiled(row.name).fullmatch(name):
                continue
            if (match := compiled(row.after).match(text, end)) is None:
                continue
            if row.before and not compiled(row.before).search(text, max(0, begin - _BEFORE), begin):
                continue
            if self._accepts(row, match, text[begin - 1 : begin], name, kind):
                return (match.span("value"),)
        return self._values_inside(text, end, name, kind)

    def _accepts(self, row: _Assigned, match: Match, before: str, name: str, kind: NameKind) -> bool:
        value, text = match["value"], match.string
        if len(value) > _LONGEST_WORD and not any(map(str.isspace, value)):
            return True
        if row.random and not looks_random(value):
            return False
        if row.accept == "any":
            return not stands_for_another(RE.authorization.sub("", value))
        if row.accept == "number":
            return not names_several(name) and (kind is not NameKind.MAYBE or is_secret_value(kind, name, value))
        is_other = False
        if row.accept == "opened" and (match["sign"] == ":" or before == match["quote"]):
            is_other = _closes(text, match.start() - len(name), match["quote"])  # a prompt may end with a colon
        elif row.accept == "enclosed" and before in ("'", '"'):
            is_other = text[match.end() : match.end() + 1] not in (before, "\\")
        return not is_other and self._is_secret(kind, name, value)

    def _is_secret(self, kind: NameKind, name: str, value: str) -> bool:
        """Whether this value that is assigned in a text is a secret, and nothing that stands for one."""
        if value == self.replacement:
            return True
        bare = RE.authorization.sub("", value)
        is_other = stands_for_another(value) or stands_for_another(bare)
        if is_other or squash(bare.strip("-,;)]")) in WORDS["nothing"] or squash(bare) == squash(name):
            return False
        if RE.dotted.match(bare) or (RE.alphabetic.match(bare) and squash(bare) in _SQUASHED_NAMES):
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
        if (sign := RE.sign_of_several.match(text, end)) is None:
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
        cleaned = self.text(plain, depth + 1) if plain != word else plain
        if cleaned == plain:
            return word
        as_is = word.replace("%", "")
        pieces = (quote(one, safe=as_is, errors="surrogateescape") for one in cleaned.split(self.replacement))
        return self.replacement.join(pieces)

    def _without_base64(self, text: str, depth: int) -> str:
        if len(text) % 4 == 0 and RE.whole_base64.match(text):
            return self._decoded(text, depth, "latin-1")
        parts: list[str] = []
        done = 0
        for run in RE.base64_run.finditer(text):
            begin, end = run.span()
            # Every fourth digit has the first bits of a byte, and those of most letters begin with 0.
            first = text[begin : begin + 40 : 4]
            if not text.startswith(_GZIP, begin) and (not first.isalpha() or first.translate(_NOT_FIRST)):
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
            plain = without_gzip(binascii.a2b_base64(digits + b"=" * (-len(digits) % 4)))
            text = plain.decode(encoding)
        except ValueError:
            return encoded
        is_text = encoding != "utf-8" or len(plain.translate(None, _CONTROLS)) == len(plain)
        cleaned = self.text(text, depth + 1) if is_text else text
        if cleaned == text:
            return encoded
        again = base64.b64encode(cleaned.encode(encoding, "replace"))
        if "-" in encoded or "_" in encoded:
            again = again.translate(_URL_SAFE)
        return (again if encoded.endswith("=") or len(encoded) % 4 == 0 else again.rstrip(b"=")).decode()


def sql_parameters(text: str) -> list[str]:
    """The columns that the parameters of a statement in SQL are for, in their order; empty if it has none."""
    if RE.sql.match(text) is None:
        return []
    inserted = RE.sql_insert.search(text)
    listed = map(_bare, inserted["names"].split(",") if inserted and inserted["names"] else ())
    return [one["name"] or next(listed, "") for one in RE.sql_place.finditer(text)]


def without_gzip(data: bytes) -> bytes:
    """The same bytes, or what gzip has packed in them, if that is no more than 1 MB."""
    with suppress(zlib.error):
        return zlib.decompressobj(31).decompress(data, 1 << 20) if data[:3] == b"\x1f\x8b\x08" else data
    return data


def _span_of_form(form: _Form, match: Match) -> Span | None:
    group = "value" if "value" in match.re.groupindex else 0
    value = match[group]
    is_one = form.any or (looks_random(value) and not RE.path.match(value))
    return match.span(group) if is_one and not stands_for_another(value) else None


def _cells(line: str, mark: str) -> list[Cell]:
    """The cells of a line of a table. In quotes, a mark is a part of a cell."""
    if mark == "  ":
        return [(one.start(), one[0]) for one in RE.between_blanks.finditer(line)]
    plain = RE.in_quotes.sub(lambda one: one[0].replace(mark, " "), line) if '"' in line else line
    cells, at = [], 0
    for cell in plain.split(mark):
        cells.append((at, cell))
        at += len(cell) + 1
    return cells


def _bare(name: str) -> str:
    """The name of a table or column without its schema and quotes."""
    return name.strip().rpartition(".")[2].strip('"`[]').lower()


def _closes(text: str, at: int, quote: str) -> bool:
    """Whether a quote after this place ends a text that begins before it on the same line."""
    line = text[max(text.rfind("\n", 0, at) + 1, at - 300) : at]
    mark = rf"(?<![^\W\d_]){quote}|{quote}(?![^\W\d_])" if quote == "'" else re.escape(quote)
    return len(re.findall(mark, line)) % 2 == 1
