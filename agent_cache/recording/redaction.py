"""Redaction: removes secrets from calls before they are written, by the names of values and the form of texts.

This module walks over plain data. What is a name of a secret, and what is a secret in a text, decides `credentials`.

`Redaction.may_change` spares most calls the walk over their data: without it, recording a result of 1 KB takes 56 us
over the bare call instead of 21.
"""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording import credentials
from agent_cache.recording.credentials import RE, WORDS, NameKind, TextRules
from agent_cache.values.canonical import MAX_DEPTH, declared_names

_BYTES = frozenset({"$bytes", "$bytearray", "$memoryview"})
_SEVERAL = frozenset({"$tuple", "$set", "$frozenset", "$list"})
_VALUE_KEYS = frozenset(WORDS["value_keys"])
_COOKIE_KEYS, _HIDDEN = frozenset(WORDS["cookie_keys"]), frozenset(WORDS["hidden_types"])
_PRIVATE, _CONTENT_KEYS = frozenset(WORDS["private_parameters"]), frozenset(WORDS["content_keys"])
_PART_KEYS = _CONTENT_KEYS | {"name", "filename", "type"}
"""Those of a part of a multipart body."""
# What these are called is no name of a secret, so other parameters must stand beside them.
_BESIDE = {name: frozenset(words) for name, words in credentials.NAMES_BESIDE.items()}
_NETLOC = "netloc"
"""The name that the standard library has for the part of a URL in which the password is."""
_WITH_OTHERS = _BYTES.union(_BESIDE, _COOKIE_KEYS, _HIDDEN, {_NETLOC, "destruction_time", "kty", "sensitive"})
_TYPES_IN_SCHEMAS, _VALUES_IN_SCHEMAS = frozenset(WORDS["schema_types"]), frozenset(WORDS["schema_values"])

# Strings of JSON that has escapes in it. Where it has none, splitting at the quotes is four times as fast.
_STRING = re.compile(rb'"((?:[^"\\]++|\\.)*+)"')
# Strings to remember that have no secret: at most 8 MB. Most messages of a conversation are shorter than the limit.
_MAX_REMEMBERED = 4_000
_MAX_REMEMBERED_LENGTH = 2_000
_ORIGIN = re.compile(r"(?:[A-Z]+ )?[a-z]+://[^/?#@]*(?=[/?#]|\Z)", re.IGNORECASE)
# Shorter texts may be part of other words by chance.
_MIN_SUBSTRING = 4


class Redaction(TextRules):
    """The rules by which secrets are removed from a recording.

    Args:
        names: names of arguments, keys and fields beside those that are known.
        patterns: regular expressions of secret texts, beside the known forms of credentials.
        hook: ``hook(data)`` gets the arguments of each call and each outcome as plain data, redacted already, and
            returns what is written. It must be a pure function: a replay calls it again.
        defaults: False applies only the names and patterns given here.

    Raises:
        ConfigurationError: if a pattern is invalid.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        patterns: Iterable[str | re.Pattern[str]] = (),
        hook: Callable[[Any], Any] | None = None,
        *,
        defaults: bool = True,
    ) -> None:
        texts = (one if isinstance(one, str) else _with_flags(one) for one in patterns)
        super().__init__(names, texts, defaults=defaults)
        self.hook = hook
        self._clean_strings: set[bytes] = set()

    def describe(self) -> dict[str, Any]:
        """The rules beside the defaults, as a cassette's header has them for its replay. A hook is only noted."""
        every = {"names": list(self.names), "patterns": list(self.patterns), "hook": self.hook is not None}
        found: dict[str, Any] = {name: value for name, value in every.items() if value}
        return found if self.defaults else {**found, "defaults": False}

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
            defaults=self.defaults and described.get("defaults", True),
        )

    def without_hook(self) -> Redaction:
        """The same rules for data that the hook has changed already."""
        return Redaction(self.names, self.patterns, defaults=self.defaults)

    def may_change(self, raw: bytes) -> bool:
        """Whether `apply` may change the data that this JSON stands for. False only if it leaves it as it is.

        `apply` changes names and texts one by one, and a value only under the name of a secret. So data stays as it is
        if each string in it, taken as a text and as a name, does. Encoded bytes, and names that say something together
        with others, always count as changed.
        """
        if self.hook is not None:
            return True
        has_escapes = b"\\" in raw
        strings = _STRING.findall(raw) if has_escapes else raw.split(b'"')[1::2]
        clean = self._clean_strings
        for string in set(strings) - clean:
            text = msgspec.json.decode(b'"%b"' % string) if has_escapes else string.decode()
            if text.rpartition("/")[2] in WORDS["command_names"]:
                if b'"-' in raw:  # else it is a word such as any other: no option is beside it
                    return True
                continue
            says_more = text in _WITH_OTHERS or self.kind_of(text) or _names_field(text) or RE.stored.search(text)
            if says_more or self._for_secrets(text) or self.text(text) != text:
                return True
            if len(clean) >= _MAX_REMEMBERED:
                clean.clear()
            if len(string) <= _MAX_REMEMBERED_LENGTH:
                clean.add(string)
        return False

    def apply(self, data: Any) -> Any:
        """The same plain data without the secrets."""
        data = self.clean(data)
        return data if self.hook is None else self.hook(data)

    def labelled(self, name: str, text: str) -> str:
        """A single text under this name, without secrets."""
        if self.is_secret(name):
            return self.replacement
        if self.defaults and name == _NETLOC and "@" in text:
            return self.text(f"netloc='{text}'")[8:-1]
        return self.text(text)

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
        quoted = re.escape(quote(self.replacement, safe=""))
        return re.sub(quoted, lambda _: self.replacement, cleaned, flags=re.IGNORECASE) if "%" in cleaned else cleaned

    def is_secret(self, name: str) -> bool:
        """Whether values under this name are redacted, whatever they are."""
        return self.kind_of(name) is NameKind.SECRET

    # Plain data

    def clean(self, data: Any) -> Any:
        """The same plain data without the secrets that these rules know without the hook."""
        kind = type(data)
        if kind is str:
            return self.text(data)
        if kind is dict:
            return self._clean_dict(data)
        if kind is list:
            data = self._without_values(data)
            if len(data) > 1 and all(type(one) is str for one in data):
                data = self._without_arguments(data)
            elif any(type(one) is str and self._for_secrets(one) for one in data):
                data = list(self._without_parameters(dict(enumerate(data))).values())
            elif len(data) > 1 and any(map(self.kind_of, names := _head(data[0]))):
                data = [data[0], *self._clean_rows(names, data[1:])]
            return [self._clean_pair(one) if _is_pair(one) else self.clean(one) for one in data]
        return data

    def _without_values(self, data: list[Any]) -> list[Any]:
        """A list of names and values in turn, as Redis and WSGI have them, without the values that are secrets."""
        cleaned = list(data) if data and len(data) % 2 == 0 and _spellings(data[0]) else []
        for at, (name, value) in enumerate(zip(cleaned[::2], cleaned[1::2], strict=True)):
            kind = max(map(self.kind_of, filter(RE.name.fullmatch, _spellings(name))), default=NameKind.NONE)
            texts = [one for one in _spellings(value) if not credentials.stands_for_another(one)]
            if kind >= NameKind.ENDING and any(map(RE.in_turn.match, texts)):
                cleaned[2 * at + 1] = self._hide(value)
        return cleaned or data

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
        data = self._without_parameters(data)
        named, at = self._named_in(data) if len(data) > 1 and self.defaults else ("", _VALUE_KEYS)
        about = data.get("metadata")
        if self.defaults and (data.get("kind") == "Secret" or (type(about) is dict and "destruction_time" in about)):
            named, at = "secret", frozenset({"data", "stringData"})  # of Kubernetes, and of Vault
        is_token_of_text = "logprob" in data or "logprobs" in data
        cleaned: dict[str, Any] = {}
        for key, value in data.items():
            name = self._free_name(key, cleaned)
            if is_token_of_text and key == "token":
                cleaned[name] = value
            elif self.defaults and "kty" in data and key in _PRIVATE:
                cleaned[name] = self._hide(value)
            elif key in WORDS["row_keys"] and (names := _column_names(data)):
                cleaned[name] = self._clean_rows(names, value)
            elif named and key in at:
                cleaned[name] = self._clean_named(named, value)
            elif key in _BESIDE and self.defaults and _is_granted(key, value, data):
                cleaned[name] = self._hide(value)
            else:
                cleaned[name] = self._clean_named(key, value)
        return cleaned

    def _for_secrets(self, text: str) -> list[str]:
        """The columns that the parameters of this SQL are for, if one of them has secrets."""
        names = credentials.sql_parameters(text)
        return names if any(map(self.kind_of, names)) else []

    def _without_parameters(self, data: dict[Any, Any]) -> dict[Any, Any]:
        """The arguments of a call without the secrets among the parameters of its SQL, of one row or of several."""
        names = next((found for one in data.values() if type(one) is str and (found := self._for_secrets(one))), [])
        for key, given in data.items() if names else ():
            if members := _unwrapped(given):
                is_one = not all(map(_unwrapped, members))
                cleaned = self._clean_rows(names, [given] if is_one else members)
                data = {**data, key: cleaned[0] if is_one else _wrapped(cleaned, given)}
        return data

    def _named_in(self, data: dict[str, Any]) -> tuple[str, frozenset[str]]:
        """The name of a secret that stands beside its value, and the keys that the value may be under.

        It is ``{"name": "DB_PASSWORD", "value": "..."}``, a cookie, a field of a page and what is typed there, or an
        error of pydantic's: ``{"loc": ["db", "password"], "input": "..."}``.
        """
        for key in WORDS["name_keys"]:
            name = data.get(key)
            if type(name) is str and RE.stored.search(name):
                return "secret", _VALUE_KEYS | {"payload"}
            if type(name) is str and self.kind_of(name):
                return name, (_VALUE_KEYS | _CONTENT_KEYS if data.keys() <= _PART_KEYS else _VALUE_KEYS)
        is_hidden = any(data.get(key) == kind for key in WORDS["type_keys"] for kind in _HIDDEN)
        if is_hidden or data.get("sensitive") is True or not _COOKIE_KEYS.isdisjoint(data):
            return "cookie", _VALUE_KEYS
        if any(type(name := data.get(key)) is str and _names_field(name) for key in WORDS["field_keys"]):
            return "password", frozenset({"keys", "text", "value"})
        names = [one for one in _unwrapped(data.get("loc")) if type(one) is str and "input" in data]
        return (names[-1], frozenset({"input"})) if names and self.kind_of(names[-1]) else ("", _VALUE_KEYS)

    def _clean_rows(self, names: list[str], rows: Any) -> Any:
        """The rows of a table with these columns."""
        if type(rows) is not list:
            return self.clean(rows)
        return [
            _wrapped(list(map(self._clean_named, names, _unwrapped(row))), row)
            if len(_unwrapped(row)) == len(names)
            else self.clean(row)
            for row in rows
        ]

    def _clean_named(self, name: str, value: Any) -> Any:
        """A value under this name."""
        secret, kind = self.kind_of(name), type(value)
        if secret is NameKind.NONE:
            return self.labelled(name, value) if kind is str else self.clean(value)
        if kind is dict and _is_schema(value):
            return {
                key: self._hide(inner) if key in _VALUES_IN_SCHEMAS else self.clean(inner)
                for key, inner in value.items()
            }
        if kind is str:
            is_one = credentials.is_secret_value(secret, name, value)
            return self.replacement if is_one else value if secret is NameKind.SECRET else self.text(value)
        if secret is NameKind.SECRET:
            return self._hide(value)
        if kind is list and all(type(one) is str for one in value):
            return [self._clean_named(name, one) for one in value]
        if kind is dict and len(value) == 1:
            [(tag, inner)] = value.items()
            if tag in _SEVERAL:
                return {tag: self._clean_named(name, inner)}
            if tag in _BYTES and any(credentials.is_secret_value(secret, name, one) for one in _spellings(value)):
                return self._hide(value)
        if kind is dict and credentials.names_several(name):
            # Settings may stand beside the secrets: ``{"api_keys": {"prod": "...", "count": 3}}``.
            hidden = {
                key: self.replacement
                for key, one in value.items()
                if type(one) is str and credentials.looks_random(one) and credentials.is_secret_value(secret, name, one)
            }
            return self.clean({**value, **hidden})
        if (kind is int or kind is float) and not credentials.names_several(name):
            is_code = credentials.names_code(name) and credentials.is_secret_value(secret, name, str(value))
            return kind(0) if is_code or secret is NameKind.ENDING else value
        return self.clean(value)

    def _clean_pair(self, pair: Any) -> Any:
        """A name and its value, as in lists of headers and in dicts whose keys are not texts."""
        if type(pair) is dict:
            return {"$tuple": self._clean_pair(pair["$tuple"])}
        name, value = pair
        return [self.clean(name), self._clean_named(max(_spellings(name), key=self.kind_of), value)]

    def _hexadecimal(self, text: str) -> str:
        """Bytes among arguments that are not UTF-8."""
        try:
            plain = credentials.without_gzip(bytes.fromhex(text[4:])).decode("latin-1")
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
    if callable(given):
        return Redaction(hook=given)
    listed = None if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if listed is None or not all(one and isinstance(one, str | re.Pattern) for one in listed):
        raise ConfigurationError(f"redact must be a list of names and compiled patterns, or a Redaction, got {given!r}")
    names = [one for one in listed if isinstance(one, str)]
    return Redaction(names, [one for one in listed if isinstance(one, re.Pattern)])


def _with_flags(pattern: re.Pattern[str]) -> str:
    known = (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))
    flags = "".join(letter for letter, flag in known if pattern.flags & flag)
    return f"(?{flags}:{pattern.pattern})" if flags else pattern.pattern


def _is_granted(name: str, value: Any, data: dict[str, Any]) -> bool:
    """Whether this value is one that OAuth grants, by the parameters of the query or form in which it stands."""
    if type(value) is list:  # as `parse_qs` has it
        return bool(value) and all(_is_granted(name, one, data) for one in value)
    if type(value) is not str or _BESIDE[name].isdisjoint(data):
        return False
    if name in ("sig", "user_code"):
        return name == "user_code" or credentials.looks_random(value)
    is_certain = not _BESIDE["assertion"].isdisjoint(data)
    is_word = credentials.stands_for_another(value) or not credentials.looks_random(value)
    is_other = is_word or not RE.granted.match(value) or (not is_certain and RE.screaming.match(value))
    return len(value) >= (6 if is_certain else 10) and not is_other


def _names_field(text: str) -> bool:
    """Whether this is what people and selectors call a field of a page in which a secret is typed."""
    return len(text) <= 200 and RE.field.search(text) is not None


def _column_names(data: dict[str, Any]) -> list[str]:
    """The names of the columns of a table, which stand beside its rows; empty if this is none."""
    found = _unwrapped(next((data[key] for key in WORDS["column_keys"] if key in data), None))
    names = [one["name"] if type(one) is dict and "name" in one else (_unwrapped(one) or [one])[0] for one in found]
    return names if all(type(one) is str for one in names) else []


def _unwrapped(data: Any) -> list[Any]:
    """The members of a list or a tuple, and none of anything else."""
    found = data.get("$tuple") if type(data) is dict else data
    return found if type(found) is list else []


def _wrapped(members: list[Any], like: Any) -> Any:
    return members if type(like) is list else {"$tuple": members}


def _head(row: Any) -> list[str]:
    """The names of columns that a first row may be, or none. Of two, the first one may be the name of a pair."""
    found = _unwrapped(row)
    is_one = len(found) > 1 and all(type(one) is str and not credentials.looks_random(one) for one in found)
    return [] if not is_one else found if len(found) > 2 else ["", found[1]]


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
    data = copy.deepcopy(data)
    errors = list(_with_causes(data))
    changed: dict[str, str] = {}
    for error in errors:
        for part in error.keys() & {"args", "state"}:
            before, error[part] = error[part], rules.apply(error[part])
            for change in _changes(before, error[part], rules.replacement):
                changed |= _spelled(*change)
    longest_first = sorted(changed.items(), key=lambda pair: len(pair[0]), reverse=True)
    for error in errors:
        for part in error.keys() & {"message", "notes"}:
            error[part] = rules.apply(_replaced_in(error[part], longest_first))
        for part in error.keys() & {"args", "state"}:  # an argument may repeat what another has lost
            error[part] = _replaced_in(error[part], longest_first)
    return data


def _with_causes(error: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield error
    for inner in (*([error["cause"]] if "cause" in error else ()), *error.get("group", ())):
        yield from _with_causes(inner)


def _changes(before: Any, after: Any, replacement: str) -> Iterator[tuple[str, str]]:
    """Texts and numbers of plain data, and what has come into their places by redaction."""
    if before == after or before is None or isinstance(before, bool):
        return
    if isinstance(before, dict | list):
        befores, afters = (
            [one for pair in each.items() for one in pair] if isinstance(each, dict) else each
            for each in (before, after)
        )
        if type(before) is not type(after) or len(befores) != len(afters):  # a hook has changed more
            afters = [None] * len(befores)
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


def _replaced_in(data: Any, changes: list[tuple[str, str]]) -> Any:
    """The same data with others in the place of these texts. A short one may be a part of words: in quotes only."""
    if type(data) is list:
        return [_replaced_in(one, changes) for one in data]
    if type(data) is dict:
        return {name: _replaced_in(one, changes) for name, one in data.items()}
    for before, after in changes if type(data) is str else ():
        if len(before) >= _MIN_SUBSTRING:
            data = data.replace(before, after)
        elif before:
            data = re.sub(rf"(?<=['\"]){re.escape(before)}(?=['\"])", after.replace("\\", r"\\"), data)
    return data


def is_positional(kind: Any) -> bool:
    """Whether the fields of a class are written without their names: a NamedTuple, or a Struct that is a list."""
    config = getattr(kind, "__struct_config__", None)
    return config.array_like if config is not None else isinstance(kind, type) and hasattr(kind, "_fields")


def without_secret_fields(value: Any, redaction: Redaction, path: tuple[int, ...] = ()) -> Any:
    """The same value, with secret fields redacted that are written without their names.

    These are fields of named tuples, and of structs of msgspec written as lists: at the top, in lists, tuples and
    dicts, and in each other.
    """
    kind = type(value)
    if id(value) in path or len(path) > MAX_DEPTH:
        return value
    path = (*path, id(value))
    if kind is list or kind is tuple:
        members = [without_secret_fields(member, redaction, path) for member in value]
        return value if all(one is other for one, other in zip(members, value, strict=True)) else kind(members)
    if kind is dict:
        changed = {key: without_secret_fields(member, redaction, path) for key, member in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed
    changes = {}
    for name in (declared_names(kind) or ()) if is_positional(kind) else ():
        member = getattr(value, name)
        if redaction.is_secret(name):
            others = {bytes: redaction.replacement.encode(), int: 0, float: 0.0, bool: member, type(None): None}
            clean = others.get(type(member), redaction.replacement)
        elif type(member) is str:
            clean = redaction.labelled(name, member)
        else:
            clean = without_secret_fields(member, redaction, path)
        if clean is not member:
            changes[name] = clean
    if not changes:
        return value
    return msgspec.structs.replace(value, **changes) if issubclass(kind, msgspec.Struct) else value._replace(**changes)
