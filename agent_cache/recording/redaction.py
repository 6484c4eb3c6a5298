"""Redaction: removes secrets from calls before they are written, by the names of values and the form of texts.

Names are compared as a whole, without case, dashes and underscores: ``token``, ``Api-Key`` and ``apiKey`` are names of
secrets, ``input_tokens`` and ``next_page_token`` are not. Texts are searched for known forms of credentials, also
inside longer texts such as the JSON of a tool call or the message of an exception.

`Redaction.may_change` spares most calls the walk over their data. It is no second set of rules: it applies the rules to
each string by itself and remembers the strings that they left alone. Without it, recording a call with a result of 1 KB
takes 56 us over the bare call instead of 21, and the budget is 25 (benchmarks/rows/recording.py, "record a call").
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.values.annotations import is_positional
from agent_cache.values.canonical import MAX_DEPTH, declared_names

__all__ = ["REDACTED", "SECRET_NAMES", "Redaction", "redact_key", "redaction_of", "without_secret_fields"]

REDACTED = "[redacted]"

SECRET_NAMES: tuple[str, ...] = (
    "access_key", "access_key_id", "access_token", "api_key", "api_secret", "api_token", "auth_token", "authorization",
    "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "bearer", "bearer_token", "client_secret",
    "connection_string", "cookie", "cookies", "credential", "credentials", "csrf_token", "database_password",
    "db_password", "encryption_key", "id_token", "jwt", "oauth_token", "passphrase", "passwd", "password",
    "private_key", "private_token", "proxy_authorization", "pwd", "refresh_token", "secret", "secret_access_key",
    "secret_key", "session_token", "set_cookie", "signing_key", "token", "webhook_secret", "x_amz_security_token",
    "x_api_key", "x_auth_token", "x_goog_api_key",
)  # fmt: skip
"""Names whose values are secrets, whatever the values are."""

# Known credentials: substrings of the lower-case text, one of which every match has in it, and the pattern. The group
# `kept` stays.
_CREDENTIALS: tuple[tuple[tuple[str, ...], str], ...] = (
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
# Characters of the shortest text that one of these matches, but for a URL: "basic" with a blank and eight more.
_MIN_CREDENTIAL = 14

# A name and what introduces its value: a quote as in JSON and reprs, at any depth of escaping; `=` as in queries and
# shells; `:` as in HTTP headers and on a line of its own.
_NAME = re.compile(
    r"(?<![\w-])(?P<name>[\w-]++)(?:\\*[\"']\s*+[:=]\s*+(?P<quote>\\*[\"'])|(?P<plain>=)[\"']?|(?P<header>:)\s*+)"
)
_HEADERS = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie", "xapikey", "apikey"})
_BARE = re.compile(r"(?:(?:bearer|basic)\s+)?[^\s\"'&,;<>\\]+", re.IGNORECASE)
# The rest of a line after a name, if it is neither a word of a sentence nor a type.
_ONE_WORD = re.compile(
    r"[ \t]*(?P<word>(?=[^\s]*[^\sa-z]|[^\s]{16})[^\s\"'\\,;(){}<>\[\]]{6,})[ \t]*(?=[\r\n]|\Z)", re.IGNORECASE
)
_LINE = re.compile(r"[^\r\n\"'\\]+")

_BASE64 = re.compile(r"[A-Za-z0-9+/]{12,}={0,2}\Z")
_OPENING = frozenset("{[")
_CLOSING = frozenset("}]")
_BYTES = frozenset({"$bytes", "$bytearray", "$memoryview"})

# Strings of JSON that has escapes in it. Where it has none, splitting at the quotes is four times as fast.
_STRING = re.compile(rb'"((?:[^"\\]++|\\.)*+)"')
# Strings to remember that have no secret: at most 8 MB. Most messages of a conversation are shorter than the limit.
_MAX_REMEMBERED = 4_000
_MAX_REMEMBERED_LENGTH = 2_000

# Shorter texts may be part of other words by chance.
_MIN_SUBSTRING = 4


class Redaction:
    """The rules by which secrets are removed from a recording.

    Args:
        names: names of arguments, keys and fields beside `SECRET_NAMES`.
        patterns: regular expressions of secret texts, beside the known forms of credentials.
        hook: ``hook(data)`` gets the arguments of each call and each outcome as plain data, redacted already, and
            returns what is written. It must be a pure function: a replay calls it again.
        replacement: the text that stands for a secret.
        defaults: False applies only the names and patterns given here.

    Raises:
        ConfigurationError: if the replacement is more than a word, or a pattern is invalid.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        patterns: Iterable[str | re.Pattern[str]] = (),
        hook: Callable[[Any], Any] | None = None,
        *,
        replacement: str = REDACTED,
        defaults: bool = True,
    ) -> None:
        if not replacement or re.search(r"[\s\"'&,;<>\\]", replacement):
            raise ConfigurationError(f"redact: replacement must be one word without quotes, got {replacement!r}")
        self.names = tuple(dict.fromkeys(names))
        self.patterns = tuple(dict.fromkeys(one if isinstance(one, str) else _with_flags(one) for one in patterns))
        self.hook = hook
        self.defaults = defaults
        self.replacement = replacement
        self._secret_names = frozenset(map(_squash, (*(SECRET_NAMES if defaults else ()), *self.names)))
        self._unclean_names = self._secret_names | _BYTES
        self._name_parts = _parts_of_names(self._secret_names)
        self._credentials = [
            (marks, re.compile(pattern, re.IGNORECASE)) for marks, pattern in (_CREDENTIALS if defaults else ())
        ]
        try:
            self._own = [re.compile(pattern) for pattern in self.patterns]
        except re.error as error:
            raise ConfigurationError(f"redact: {error.pattern!r} is no regular expression: {error}") from error
        self._clean_strings: set[bytes] = set()

    def describe(self) -> dict[str, Any]:
        """The rules beside the defaults, as a cassette's header has them for its replay. A hook is only noted."""
        described: dict[str, Any] = {}
        if self.names:
            described["names"] = list(self.names)
        if self.patterns:
            described["patterns"] = list(self.patterns)
        if self.replacement != REDACTED:
            described["replacement"] = self.replacement
        if not self.defaults:
            described["defaults"] = False
        if self.hook is not None:
            described["hook"] = True
        return described

    def joined(self, described: dict[str, Any]) -> Redaction:
        """These rules and those that a cassette's header has.

        Raises:
            ConfigurationError: if the recording had a hook and this has none, or a pattern is invalid.
        """
        if described.get("hook") and self.hook is None:
            raise ConfigurationError(
                "it was recorded with a redaction hook, and the replay needs the same: give it as redact="
            )
        return Redaction(
            (*described.get("names", ()), *self.names),
            (*described.get("patterns", ()), *self.patterns),
            self.hook,
            replacement=self.replacement if self.replacement != REDACTED else described.get("replacement", REDACTED),
            defaults=self.defaults and described.get("defaults", True),
        )

    def without_hook(self) -> Redaction:
        """The same rules for data that the hook has changed already."""
        return Redaction(self.names, self.patterns, replacement=self.replacement, defaults=self.defaults)

    def may_change(self, raw: bytes) -> bool:
        """Whether `apply` may change the data that this JSON stands for. False only if it leaves it as it is.

        `apply` changes names and texts one by one, and a value only under the name of a secret. So data stays as it is
        if each string in it, taken as a text and as a name, does. Encoded bytes always count as changed.
        """
        if self.hook is not None:
            return True
        has_escapes = b"\\" in raw
        strings = _STRING.findall(raw) if has_escapes else raw.split(b'"')[1::2]
        clean, unclean_names = self._clean_strings, self._unclean_names
        if clean.issuperset(strings):
            return False
        for string in strings:
            if string in clean:
                continue
            text = msgspec.json.decode(b'"%b"' % string) if has_escapes else string.decode()
            if _squash(text) in unclean_names or self.text(text) != text:
                return True
            if len(clean) >= _MAX_REMEMBERED:
                clean.clear()
            if len(string) <= _MAX_REMEMBERED_LENGTH:
                clean.add(string)
        return False

    def apply(self, data: Any) -> Any:
        """The same plain data without the secrets."""
        data = self._clean(data, under_secret=False)
        return data if self.hook is None else self.hook(data)

    def labelled(self, name: str, text: str) -> str:
        """A single text under this name, without secrets."""
        return self.replacement if self.is_secret(name) else self.text(text)

    def is_secret(self, name: str) -> bool:
        """Whether values under this name are redacted."""
        return _squash(name) in self._secret_names

    def text(self, text: str) -> str:
        """The same text without secrets."""
        if text[:1] in _OPENING and text[-1:] in _CLOSING:
            inner = self._inner_json(text)
            if inner is not None:
                return inner
        if ("=" in text or ":" in text) and self._may_have_secret_name(text):
            text = self._without_assigned(text)
        if len(text) >= _MIN_CREDENTIAL or ":" in text:
            low = text.lower()
            for marks, pattern in self._credentials:
                for mark in marks:
                    if mark in low:
                        text = pattern.sub(self._replace_credential, text)
                        break
        for pattern in self._own:
            text = pattern.sub(self._replace, text)
        if len(text) % 4 == 0 and _BASE64.match(text):
            return self._encoded(text)
        return text

    # Plain data

    def _clean(self, data: Any, *, under_secret: bool) -> Any:
        kind = type(data)
        if kind is str:
            return self.replacement if under_secret and data else self.text(data)
        if kind is dict:
            if len(data) == 1 and not under_secret:
                if _is_pair(data):
                    return self._clean_pair(data)
                [(tag, inner)] = data.items()
                if tag in _BYTES and type(inner) is str and inner.startswith("hex:"):
                    return {tag: self._hexadecimal(inner)}
            cleaned: dict[str, Any] = {}
            for key, value in data.items():
                name = self.text(key)
                while name in cleaned:  # two names that only differed in their secrets
                    name += "'"
                cleaned[name] = self._clean(value, under_secret=under_secret or self.is_secret(key))
            return cleaned
        if kind is list:
            if under_secret:
                return [self._clean(value, under_secret=True) for value in data]
            return [self._clean_pair(one) if _is_pair(one) else self._clean(one, under_secret=False) for one in data]
        if under_secret and (kind is int or kind is float):
            return kind(0)
        return data

    def _clean_pair(self, pair: Any) -> Any:
        """A name and its value, as in lists of headers and in dicts whose keys are not texts."""
        if type(pair) is dict:
            return {"$tuple": self._clean_pair(pair["$tuple"])}
        name, value = pair
        is_secret = any(map(self.is_secret, _spellings(name)))
        return [self._clean(name, under_secret=False), self._clean(value, under_secret=is_secret)]

    # Encodings: JSON as a text, bytes as hexadecimal digits or base64

    def _inner_json(self, text: str) -> str | None:
        """A text that is JSON itself, such as the arguments of a tool call in an LLM's answer. None if it is not."""
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        cleaned = self._clean(data, under_secret=False)
        return text if cleaned == data else msgspec.json.encode(cleaned).decode()

    def _hexadecimal(self, text: str) -> str:
        """Bytes among arguments that are not UTF-8."""
        try:
            plain = bytes.fromhex(text[4:]).decode("latin-1")
        except ValueError:
            return self.text(text)
        cleaned = self.text(plain)
        return text if cleaned == plain else "hex:" + cleaned.encode("latin-1", "replace").hex()

    def _encoded(self, text: str) -> str:
        try:
            plain = base64.b64decode(text, validate=True).decode("latin-1")
        except binascii.Error:
            return text
        cleaned = self.text(plain)
        return text if cleaned == plain else base64.b64encode(cleaned.encode("latin-1", "replace")).decode()

    # Texts

    def _replace(self, _match: re.Match[str]) -> str:
        return self.replacement

    def _replace_credential(self, match: re.Match[str]) -> str:
        return f"{match.groupdict().get('kept') or ''}{self.replacement}"

    def _may_have_secret_name(self, text: str) -> bool:
        """Whether a secret name can be in this text: a name in it is a substring, and stays one when both are squashed.

        It halves the time for a text of 5 KB, most of which the search for names would take.
        """
        squashed = _squash(text)
        return any(part in squashed for part in self._name_parts)

    def _without_assigned(self, text: str) -> str:
        """The same text without values that are assigned to the name of a secret: ``"token": "..."``, ``token=...``,
        headers of HTTP, and ``password: hunter2`` on a line of its own.
        """
        parts: list[str] = []
        done = 0
        for match in _NAME.finditer(text):
            if match.start() < done or not self.is_secret(match["name"]):
                continue
            at = match.end()
            if match["header"] is not None:
                if _squash(match["name"]) in _HEADERS:
                    value = _LINE.match(text, at)
                    end = at if value is None else value.end()
                else:
                    value = _ONE_WORD.match(text, match.end("header")) if _begins_line(text, match.start()) else None
                    if value is None:
                        continue
                    at, end = value.span("word")
            elif match["quote"] is not None:
                end = _closing(text, at, match["quote"])
            else:
                value = _BARE.match(text, at)
                end = at if value is None else value.end()
            if end > at:
                parts += (text[done:at], self.replacement)
                done = end
        return "".join((*parts, text[done:])) if parts else text


def redaction_of(given: Any) -> Redaction:
    """The rules for a ``redact=`` argument: None, names and compiled patterns, a hook, or a `Redaction`.

    Raises:
        ConfigurationError: if it is none of these.
    """
    if given is None:
        return Redaction()
    if isinstance(given, Redaction):
        return given
    if isinstance(given, str):
        raise ConfigurationError(f"redact takes a list of names; write redact=[{given!r}]")
    if callable(given):
        return Redaction(hook=given)
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"redact must be names, compiled patterns or a Redaction, got {given!r}")
    listed = list(given)
    for one in listed:
        if not isinstance(one, str | re.Pattern) or not one:
            raise ConfigurationError(f"redact must be names and compiled patterns of texts, got {one!r} among them")
    return Redaction(
        [one for one in listed if isinstance(one, str)], [one for one in listed if isinstance(one, re.Pattern)]
    )


def redact_key(key: str, arguments: Any, redacted: Any, rules: Redaction) -> str:
    """A key that ``cache_key=`` made of these arguments, without the secrets that redaction removed from them."""
    for removed in sorted(set(_removed(arguments, redacted)), key=len, reverse=True):
        if len(removed) < _MIN_SUBSTRING:
            key = re.sub(rf"(?<!\w){re.escape(removed)}(?!\w)", lambda _: rules.replacement, key)
        else:
            key = key.replace(removed, rules.replacement)
    return rules.text(key)


def _removed(before: Any, after: Any) -> Iterator[str]:
    """Texts and numbers of plain data that are not in the same place of the redacted data."""
    if before == after:
        return
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield key
            yield from _removed(value, after.get(key) if isinstance(after, dict) else None)
    elif isinstance(before, list):
        others = after if isinstance(after, list) and len(after) == len(before) else [None] * len(before)
        for value, other in zip(before, others, strict=True):
            yield from _removed(value, other)
    elif before is not None and not isinstance(before, bool) and str(before):
        yield str(before)


def without_secret_fields(value: Any, redaction: Redaction, path: tuple[int, ...] = ()) -> Any:
    """The same value, with secret fields redacted that are written without their names.

    These are fields of named tuples, and of structs of msgspec written as lists: at the top, in lists, tuples and
    dicts, and in each other.

    Args:
        path: addresses of the containers around the value.
    """
    kind = type(value)
    if id(value) in path or len(path) > MAX_DEPTH:
        return value
    path = (*path, id(value))
    if kind is list or kind is tuple:
        members = [without_secret_fields(member, redaction, path) for member in value]
        is_same = all(one is other for one, other in zip(members, value, strict=True))
        return value if is_same else kind(members)
    if kind is dict:
        changed = {key: without_secret_fields(member, redaction, path) for key, member in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed
    if not is_positional(kind):
        return value
    changes = {}
    for name in declared_names(kind) or ():
        member = getattr(value, name)
        is_secret = redaction.is_secret(name)
        clean = _hidden(member, redaction) if is_secret else without_secret_fields(member, redaction, path)
        if clean is not member:
            changes[name] = clean
    if not changes:
        return value
    return msgspec.structs.replace(value, **changes) if issubclass(kind, msgspec.Struct) else value._replace(**changes)


def _hidden(value: Any, redaction: Redaction) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int or kind is float:
        return kind(0)
    return redaction.replacement.encode() if kind is bytes else redaction.replacement


def _squash(name: str) -> str:
    """A name without case, dashes and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def _parts_of_names(names: Iterable[str]) -> list[str]:
    """The fewest names such that each name has one of them in it."""
    parts: list[str] = []
    for name in sorted(names, key=len):
        if not name.isascii():
            return [""]  # the lower case of a letter may depend on its neighbours: look at every text
        if not any(part in name for part in parts):
            parts.append(name)
    return parts


def _is_pair(data: Any) -> bool:
    pair = data.get("$tuple") if type(data) is dict and len(data) == 1 else data
    return type(pair) is list and len(pair) == 2 and bool(_spellings(pair[0]))


def _spellings(name: Any) -> list[str]:
    """The texts that a name may be: itself, or bytes, which are a text in arguments and base64 in outcomes."""
    if type(name) is str:
        return [name]
    inner = name.get("$bytes") if type(name) is dict and len(name) == 1 else None
    if type(inner) is not str:
        return []
    try:
        return [inner, base64.b64decode(inner, validate=True).decode("latin-1")]
    except ValueError:
        return [inner]


def _with_flags(pattern: re.Pattern[str]) -> str:
    flags = "".join(
        letter
        for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))
        if pattern.flags & flag
    )
    return f"(?{flags}:{pattern.pattern})" if flags else pattern.pattern


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip(" \t-")


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
