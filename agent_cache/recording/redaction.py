"""Redaction: removes secrets from calls before they are written, by the names of values and the form of texts.

This module walks over plain data. What is a name of a secret, and what is a secret in a text, decides `credentials`.

`Redaction.may_change` spares most calls the walk over their data. It is no second set of rules: it applies the rules to
each string by itself and remembers the strings that they left alone. Without it, recording a call with a result of 1 KB
takes 56 us over the bare call instead of 21.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording.credentials import TextSearch
from agent_cache.recording.secret_names import (
    WORDS,
    NameKind,
    is_granted,
    is_secret_value,
    kind_of_name,
    looks_random,
    names_code,
    names_command,
    names_several,
    squash,
)  # fmt: skip
from agent_cache.values.canonical import MAX_DEPTH, declared_names

REDACTED = "[redacted]"

_BYTES = frozenset({"$bytes", "$bytearray", "$memoryview"})
_SEVERAL = frozenset({"$tuple", "$set", "$frozenset", "$list"})
_NAME_KEYS = ("name", "Name", "key", "Key")
_VALUE_KEYS = frozenset({"value", "Value"})
_CONTENT_KEYS = frozenset({"text", "json", "form", "bytes"})
_PART_KEYS = _CONTENT_KEYS | {"name", "filename", "type"}
"""Those of a part of a multipart body."""
# Of OAuth. What they are called is no name of a secret, so other parameters must stand beside them.
_OAUTH = frozenset(WORDS["oauth"])
_GRANTED = frozenset({"code", "assertion", "sig", "user_code"})
_SIGNED = frozenset({"se", "sp", "sr", "sv"})
_WITH_STATE = frozenset({"state", "session_state", "client_id"})
_WITH_DEVICE = frozenset({"device_code", "verification_uri", "verification_url"})
_GRANTED_BYTES = frozenset(map(str.encode, _GRANTED))
_BESIDE_GRANTED = frozenset(map(str.encode, _OAUTH | _WITH_STATE | _SIGNED | _WITH_DEVICE))
_NETLOC = "netloc"
"""The name that the standard library has for the part of a URL in which the password is."""
_TYPES_IN_SCHEMAS = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_VALUES_IN_SCHEMAS = frozenset({"const", "default", "example", "examples"})

# Strings of JSON that has escapes in it. Where it has none, splitting at the quotes is four times as fast.
_STRING = re.compile(rb'"((?:[^"\\]++|\\.)*+)"')
# Strings to remember that have no secret: at most 8 MB. Most messages of a conversation are shorter than the limit.
_MAX_REMEMBERED = 4_000
_MAX_REMEMBERED_LENGTH = 2_000
_ORIGIN = re.compile(r"(?:[A-Z]+ )?[a-z]+://[^/?#@]*(?=[/?#]|\Z)", re.IGNORECASE)
# Shorter texts may be part of other words by chance.
_MIN_SUBSTRING = 4
_PATTERN_SECONDS = 2.0


class Redaction:
    """The rules by which secrets are removed from a recording.

    Args:
        names: names of arguments, keys and fields beside those that are known.
        patterns: regular expressions of secret texts, beside the known forms of credentials. With the package `regex`,
            a search is ended that takes more than two seconds: a pattern such as ``(a+)+b`` may need years.
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
        self._own_names = frozenset(map(squash, self.names))
        parts = tuple(_parts_of_names(self._own_names))
        self._search = TextSearch(replacement, self._kind_of, self._inside, parts, has_forms=defaults)
        self._own = list(map(_own_pattern, self.patterns))
        self._clean_strings: set[bytes] = set()

    def describe(self) -> dict[str, Any]:
        """The rules beside the defaults, as a cassette's header has them for its replay. A hook is only noted."""
        described = {
            "names": list(self.names),
            "patterns": list(self.patterns),
            "replacement": "" if self.replacement == REDACTED else self.replacement,
            "hook": self.hook is not None,
        }
        return {name: value for name, value in described.items() if value} | (
            {} if self.defaults else {"defaults": False}
        )

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
        if each string in it, taken as a text and as a name, does. Encoded bytes, the names of commands that take
        secrets and of the part of a URL with the password always count as changed.
        """
        if self.hook is not None:
            return True
        has_escapes = b"\\" in raw
        strings = _STRING.findall(raw) if has_escapes else raw.split(b'"')[1::2]
        clean = self._clean_strings
        if clean.issuperset(strings):
            return False
        for string in strings:
            if string in clean:
                continue
            if string in _GRANTED_BYTES:
                if not _BESIDE_GRANTED.isdisjoint(strings):
                    return True
                continue
            text = msgspec.json.decode(b'"%b"' % string) if has_escapes else string.decode()
            needs_neighbours = self.defaults and (text == _NETLOC or names_command(text))
            if text in _BYTES or self._kind_of(text) or self._inside(text, 0) != text or needs_neighbours:
                return True
            if len(clean) >= _MAX_REMEMBERED:
                clean.clear()
            if len(string) <= _MAX_REMEMBERED_LENGTH:
                clean.add(string)
        return False

    def apply(self, data: Any) -> Any:
        """The same plain data without the secrets."""
        data = self._clean(data)
        return data if self.hook is None else self.hook(data)

    def labelled(self, name: str, text: str) -> str:
        """A single text under this name, without secrets."""
        if self.is_secret(name):
            return self.replacement
        return self._search.without_login(text) if self.defaults and name == _NETLOC else self.text(text)

    def request_name(self, name: str) -> str:
        """The name of a request, ``POST https://host/path``, without secrets.

        Some are known by the host, so a URL is searched as a whole. A path that comes from a replayed response has the
        replacement, and some clients quote it.
        """
        cleaned = self.text(name)
        origin = _ORIGIN.match(name)
        if origin is not None and not cleaned.startswith(origin[0]):  # a rule takes the host, too, by which it is found
            path = name[origin.end() :]
            cleaned = origin[0] + (path if cleaned.endswith(path) else f"/{self.replacement}")
        quoted = quote(self.replacement, safe="")
        if "%" in cleaned and quoted != self.replacement:
            cleaned = re.sub(re.escape(quoted), lambda _: self.replacement, cleaned, flags=re.IGNORECASE)
        return cleaned

    def is_secret(self, name: str) -> bool:
        """Whether values under this name are redacted, whatever they are."""
        return self._kind_of(name) is NameKind.SECRET

    def text(self, text: str) -> str:
        """The same text without secrets."""
        return self._inside(text, 0)

    def _inside(self, text: str, depth: int) -> str:
        """The same text, found in this many others, without secrets. It may be JSON, as arguments of tools are."""
        if text[:1] in ("{", "[") and text[-1:] in ("}", "]"):
            try:
                data = msgspec.json.decode(text)
                cleaned = self._clean(data)
                return text if cleaned == data else msgspec.json.encode(cleaned).decode()
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                pass
        for without in self._own:
            text = without(text, self.replacement)
        return self._search.without_credentials(text, depth)

    def _kind_of(self, name: str) -> NameKind:
        if self._own_names and squash(name) in self._own_names:
            return NameKind.SECRET
        return kind_of_name(name) if self.defaults else NameKind.NONE

    # Plain data

    def _clean(self, data: Any) -> Any:
        kind = type(data)
        if kind is str:
            return self.text(data)
        if kind is dict:
            return self._clean_dict(data)
        if kind is list:
            if len(data) > 1 and all(type(one) is str for one in data):
                data = self._search.without_arguments(data)
            return [self._clean_pair(one) if _is_pair(one) else self._clean(one) for one in data]
        return data

    def _hide(self, data: Any) -> Any:
        """Data under the name of a secret: its texts and numbers are secrets."""
        kind = type(data)
        if kind is dict:
            cleaned: dict[str, Any] = {}
            for key, value in data.items():
                cleaned[self._free_name(key, cleaned)] = self._hide(value)
            return cleaned
        if kind is list:
            return [self._hide(value) for value in data]
        if kind is int or kind is float:
            return kind(0)
        return self.replacement if kind is str and data else data

    def _free_name(self, key: str, taken: dict[str, Any]) -> str:
        name = self.text(key)
        while name in taken:  # two names that only differed in their secrets
            name += "'"
        return name

    def _clean_dict(self, data: dict[str, Any]) -> dict[str, Any]:
        if len(data) == 1:
            if _is_pair(data):
                return {"$tuple": self._clean_pair(data["$tuple"])}
            [(tag, inner)] = data.items()
            if tag in _BYTES and type(inner) is str and inner.startswith("hex:"):
                return {tag: self._hexadecimal(inner)}
        named, at = self._named_in(data) if len(data) > 1 and self.defaults else ("", _VALUE_KEYS)
        is_token_of_text = "logprob" in data or "logprobs" in data
        cleaned: dict[str, Any] = {}
        for key, value in data.items():
            name = self._free_name(key, cleaned)
            if is_token_of_text and key == "token":
                cleaned[name] = value
            elif named and key in at:
                cleaned[name] = self._clean_named(named, value)
            elif key in _GRANTED and self.defaults and _is_granted(key, value, data):
                cleaned[name] = self._hide(value)
            else:
                cleaned[name] = self._clean_named(key, value)
        return cleaned

    def _named_in(self, data: dict[str, Any]) -> tuple[str, frozenset[str]]:
        """The name of a secret that stands beside its value, and the keys that the value may be under.

        It is ``{"name": "DB_PASSWORD", "value": "..."}``, or an error of pydantic's: ``{"loc": ["db", "password"],
        "input": "..."}``.
        """
        for key in _NAME_KEYS:
            name = data.get(key)
            if type(name) is str and self._kind_of(name):
                return name, (_VALUE_KEYS | _CONTENT_KEYS if data.keys() <= _PART_KEYS else _VALUE_KEYS)
        place = data.get("loc") if "input" in data else None
        if type(place) is dict and len(place) == 1:
            place = place.get("$tuple")
        name = next((one for one in reversed(place) if type(one) is str), "") if type(place) is list else ""
        return (name, frozenset({"input"})) if self._kind_of(name) else ("", _VALUE_KEYS)

    def _clean_named(self, name: str, value: Any) -> Any:
        """A value under this name."""
        secret, kind = self._kind_of(name), type(value)
        if secret is NameKind.NONE:
            return self.labelled(name, value) if kind is str else self._clean(value)
        if kind is dict and _is_schema(value):
            return {
                key: self._hide(inner) if key in _VALUES_IN_SCHEMAS else self._clean(inner)
                for key, inner in value.items()
            }
        if secret is NameKind.SECRET:
            return value if kind is str and not is_secret_value(secret, name, value) else self._hide(value)
        if kind is str:
            return self.replacement if is_secret_value(secret, name, value) else self.text(value)
        if kind is list and all(type(one) is str for one in value):
            return [self._clean_named(name, one) for one in value]
        is_several = names_several(name)
        if kind is dict:
            [(tag, inner), *others] = value.items() or [("", None)]
            if not others and tag in _SEVERAL:
                return {tag: self._clean_named(name, inner)}
            if not others and tag in _BYTES and any(is_secret_value(secret, name, one) for one in _spellings(value)):
                return self._hide(value)
            if is_several:  # settings may stand beside the secrets: ``{"api_keys": {"prod": "...", "count": 3}}``
                value = {
                    key: self.replacement
                    if type(one) is str and looks_random(one) and is_secret_value(secret, name, one)
                    else one
                    for key, one in value.items()
                }
        if (kind is int or kind is float) and not is_several:
            is_code = names_code(name) and is_secret_value(secret, name, str(value))
            return kind(0) if is_code or secret is NameKind.ENDING else value
        return self._clean(value)

    def _clean_pair(self, pair: Any) -> Any:
        """A name and its value, as in lists of headers and in dicts whose keys are not texts."""
        if type(pair) is dict:
            return {"$tuple": self._clean_pair(pair["$tuple"])}
        name, value = pair
        return [self._clean(name), self._clean_named(max(_spellings(name), key=self._kind_of), value)]

    def _hexadecimal(self, text: str) -> str:
        """Bytes among arguments that are not UTF-8."""
        try:
            plain = bytes.fromhex(text[4:]).decode("latin-1")
        except ValueError:
            return self.text(text)
        cleaned = self.text(plain)
        return text if cleaned == plain else "hex:" + cleaned.encode("latin-1", "replace").hex()


def redaction_of(given: Any) -> Redaction:
    """The rules for a ``redact=`` argument: None, names and compiled patterns, a hook, or a `Redaction`.

    Raises:
        ConfigurationError: if it is none of these.
    """
    if given is None or isinstance(given, Redaction):
        return given or Redaction()
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
    names = [one for one in listed if isinstance(one, str)]
    return Redaction(names, [one for one in listed if isinstance(one, re.Pattern)])


def _own_pattern(pattern: str) -> Callable[[str, str], str]:
    """A function that removes from a text what the user's own regular expression matches.

    Raises:
        ConfigurationError: if the pattern is invalid.
    """
    try:
        compiled: Any = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"redact: {pattern!r} is no regular expression: {error}") from error
    limit: dict[str, float] = {}
    with suppress(ImportError):
        import regex  # type: ignore[import-untyped]  # it has no hints

        with suppress(regex.error):  # it knows other escapes than `re`
            compiled, limit = regex.compile(pattern), {"timeout": _PATTERN_SECONDS}

    def without(text: str, replacement: str) -> str:
        try:
            cleaned: str = compiled.sub(lambda _: replacement, text, **limit)
        except TimeoutError as error:
            raise ConfigurationError(
                f"redact: the pattern {pattern!r} takes more than {_PATTERN_SECONDS:g} s for a text of "
                f"{len(text)} characters; make it simpler"
            ) from error
        return cleaned

    return without


def _with_flags(pattern: re.Pattern[str]) -> str:
    known = (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))
    flags = "".join(letter for letter, flag in known if pattern.flags & flag)
    return f"(?{flags}:{pattern.pattern})" if flags else pattern.pattern


def _parts_of_names(names: Iterable[str]) -> list[str]:
    """The fewest names such that each name has one of them in it."""
    parts: list[str] = []
    for name in sorted(names, key=len):
        if not name.isascii():
            return [""]  # the lower case of a letter may depend on its neighbours: look at every text
        if not any(part in name for part in parts):
            parts.append(name)
    return parts


def _is_granted(name: str, value: Any, data: dict[str, Any]) -> bool:
    """Whether this value is one that OAuth grants, by the parameters of the query or form in which it stands."""
    if type(value) is list:  # as `parse_qs` has it
        return bool(value) and all(_is_granted(name, one, data) for one in value)
    if type(value) is not str:
        return False
    if name == "sig":  # of a signed URL of Azure
        return looks_random(value) and not _SIGNED.isdisjoint(data)
    if name == "user_code":
        return not _WITH_DEVICE.isdisjoint(data)
    is_certain = not _OAUTH.isdisjoint(data)
    has_state = name == "code" and not _WITH_STATE.isdisjoint(data)
    return (is_certain or has_state) and is_granted(value, is_certain=is_certain)


def _is_pair(data: Any) -> bool:
    pair = data.get("$tuple") if type(data) is dict and len(data) == 1 else data
    return type(pair) is list and len(pair) == 2 and bool(_spellings(pair[0]))


def _spellings(name: Any) -> list[str]:
    """The texts that a name may be: itself, or bytes, which are a text in arguments and base64 in outcomes."""
    if type(name) is str:
        return [name]
    inner = name.get("$bytes") if type(name) is dict and len(name) == 1 else None
    if type(inner) is list and len(inner) == 1:
        [inner] = inner
    if type(inner) is not str:
        return []
    try:
        return [inner, base64.b64decode(inner, validate=True).decode("latin-1")]
    except ValueError:
        return [inner]


def _is_schema(data: dict[str, Any]) -> bool:
    """Whether this describes a value, as the parameters of a tool are described to a model."""
    kind = data.get("type")
    if kind is None:
        return not {"anyOf", "allOf", "oneOf", "$ref"}.isdisjoint(data)
    kinds = kind if type(kind) is list else [kind]
    return bool(kinds) and all(type(one) is str and one in _TYPES_IN_SCHEMAS for one in kinds)


# Keys, exceptions, and fields without names


def redact_key(key: str, arguments: Any, redacted: Any, rules: Redaction) -> str:
    """A key that ``cache_key=`` made of these arguments, without the secrets that redaction removed from them."""
    for removed, _ in sorted(set(_changes(arguments, redacted, "")), key=lambda one: len(one[0]), reverse=True):
        if len(removed) < _MIN_SUBSTRING:
            key = re.sub(rf"(?<!\w){re.escape(removed)}(?!\w)", lambda _: rules.replacement, key)
        else:
            key = key.replace(removed, rules.replacement)
    return rules.text(key)


def redact_error(data: dict[str, Any], rules: Redaction) -> dict[str, Any]:
    """An exception as plain data (`exceptions.Failure`) without secrets.

    Its text repeats what its arguments and attributes hold, or those of its cause and members, where a name may be far
    from its value. So these are redacted first, and what that has changed is changed in all texts.
    """
    changed: dict[str, str] = {}

    def without_secrets(error: dict[str, Any]) -> dict[str, Any]:
        cleaned = dict(error)
        for part in ("args", "state"):
            if part in error:
                cleaned[part] = rules.apply(error[part])
                for before, after in _changes(error[part], cleaned[part], rules.replacement):
                    changed.update(_spelled(before, after))
        if "cause" in error:
            cleaned["cause"] = without_secrets(error["cause"])
        if "group" in error:
            cleaned["group"] = list(map(without_secrets, error["group"]))
        return cleaned

    def change(part: Any) -> Any:
        if type(part) is str:
            for before, after in longest_first:
                part = _replaced_in(part, before, after)
            return part
        if type(part) is list:
            return list(map(change, part))
        return {name: change(one) for name, one in part.items()} if type(part) is dict else part

    def with_changed_texts(error: dict[str, Any]) -> dict[str, Any]:
        error["message"] = rules.apply(change(error.get("message", "")))
        if "notes" in error:
            error["notes"] = rules.apply(change(error["notes"]))
        for part in ("args", "state"):  # an argument may repeat what another has lost
            if part in error and changed:
                error[part] = change(error[part])
        for inner in ([error["cause"]] if "cause" in error else []) + error.get("group", []):
            with_changed_texts(inner)
        return error

    cleaned = without_secrets(data)
    longest_first = sorted(changed.items(), key=lambda pair: len(pair[0]), reverse=True)
    return with_changed_texts(cleaned)


def _changes(before: Any, after: Any, replacement: str) -> Iterator[tuple[str, str]]:
    """Texts and numbers of plain data, and what has come into their places by redaction."""
    if before == after or before is None or isinstance(before, bool):
        return
    if isinstance(before, dict | list):
        is_same = type(before) is type(after) and len(before) == len(after)  # else a hook has changed more
        if isinstance(before, dict):
            befores = [one for pair in before.items() for one in pair]
            afters = [one for pair in after.items() for one in pair] if is_same else [None] * len(befores)
        else:
            befores, afters = before, after if is_same else [None] * len(before)
        for value, other in zip(befores, afters, strict=True):
            yield from _changes(value, other, replacement)
    elif str(before):
        yield str(before), str(after) if isinstance(after, str | int | float) else replacement


def _spelled(before: str, after: str) -> dict[str, str]:
    """A text and what comes into its place: as they are, with escapes, and what stands for bytes as these."""
    found = {before: after, repr(before)[1:-1]: repr(after)[1:-1]}
    found[msgspec.json.encode(before)[1:-1].decode()] = msgspec.json.encode(after)[1:-1].decode()
    try:
        plain, cleaned = (base64.b64decode(one, validate=True) for one in (before, after))
    except ValueError:
        return found
    return found | {repr(plain)[2:-1]: repr(cleaned)[2:-1]}


def _replaced_in(text: str, before: str, after: str) -> str:
    """The same text with one in the place of the other. A short one may be a part of words: in quotes only."""
    if len(before) >= _MIN_SUBSTRING:
        return text.replace(before, after)
    return re.sub(rf"(['\"]){re.escape(before)}(?=['\"])", lambda match: match[1] + after, text) if before else text


def is_positional(kind: Any) -> bool:
    """Whether the fields of a class are written without their names: a NamedTuple, or a Struct that is a list."""
    config = getattr(kind, "__struct_config__", None)
    return config.array_like if config is not None else isinstance(kind, type) and hasattr(kind, "_fields")


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
    changes = {}
    for name in (declared_names(kind) or ()) if is_positional(kind) else ():
        member = getattr(value, name)
        if not redaction.is_secret(name):
            is_text = type(member) is str
            clean = redaction.labelled(name, member) if is_text else without_secret_fields(member, redaction, path)
        elif type(member) is int or type(member) is float:
            clean = type(member)(0)
        elif member is None or type(member) is bool:
            clean = member
        else:
            clean = redaction.replacement.encode() if type(member) is bytes else redaction.replacement
        if clean is not member:
            changes[name] = clean
    if not changes:
        return value
    return msgspec.structs.replace(value, **changes) if issubclass(kind, msgspec.Struct) else value._replace(**changes)
