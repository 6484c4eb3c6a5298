"""What must not be written down: secrets under telling names, and texts that look like one.

Names are compared whole, whatever their case, dashes and underscores: ``token``, ``Api-Key`` and ``apiKey`` are
secrets, ``input_tokens`` and ``next_page_token`` are not. Texts are searched for what credentials look like, also
inside of longer ones, such as the JSON of a tool call or the message of an exception.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording.secrets import SECRET_NAMES, SHAPES, assigned, squash
from agent_cache.recording.suspicion import Suspicion

__all__ = ["REDACTED", "Redaction", "redaction_of"]

REDACTED = "[redacted]"

_BASE64 = re.compile(r"[A-Za-z0-9+/]{12,}={0,2}\Z")
_OPENING = frozenset("{[")
_CLOSING = frozenset("}]")
_BYTES = ("$bytes", "$bytearray", "$memoryview")


class Redaction:
    """What is redacted in a recording, and how.

    Args:
        names: names of arguments, keys and fields beside `SECRET_NAMES`.
        patterns: regular expressions of texts beside the shapes that are known.
        hook: ``hook(data)`` is given each call's arguments and each outcome as plain data, redacted already, and
            returns what is to be written. It must be a pure function: a replay calls it again.
        replacement: what stands there instead.
        defaults: False redacts only what is named here.
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
        self.patterns = tuple(dict.fromkeys(one if isinstance(one, str) else _inlined(one) for one in patterns))
        self.hook = hook
        self.defaults = defaults
        self.replacement = replacement
        self._secret = frozenset(map(squash, (*(SECRET_NAMES if defaults else ()), *self.names)))
        try:
            self._own = [re.compile(pattern) for pattern in self.patterns]
        except re.error as error:
            raise ConfigurationError(f"redact: {error.pattern!r} is no regular expression: {error}") from error
        self._shapes = [(marks, re.compile(shape, re.IGNORECASE)) for marks, shape in SHAPES] if defaults else []
        # Asked of every recorded call, twice: a method around it would cost each time.
        self.may_touch = Suspicion(
            self._secret,
            [mark for marks, _ in self._shapes for mark in marks],
            self.text,
            is_general=hook is not None or bool(self._own),
        ).falls_on

    def describe(self) -> dict[str, Any]:
        """What a cassette remembers of it, so that a replay does the same. A hook must be given again."""
        said: dict[str, Any] = {}
        if self.names:
            said["names"] = list(self.names)
        if self.patterns:
            said["patterns"] = list(self.patterns)
        if self.replacement != REDACTED:
            said["replacement"] = self.replacement
        if not self.defaults:
            said["defaults"] = False
        if self.hook is not None:
            said["hook"] = True
        return said

    def joined(self, said: dict[str, Any]) -> Redaction:
        """This redaction and what a cassette remembers.

        Raises:
            ConfigurationError: if the recording had a hook and this has none.
        """
        if said.get("hook") and self.hook is None:
            raise ConfigurationError(
                "it was recorded with a redaction hook, and the replay needs the same: give it as redact="
            )
        return Redaction(
            (*said.get("names", ()), *self.names),
            (*said.get("patterns", ()), *self.patterns),
            self.hook,
            replacement=self.replacement if self.replacement != REDACTED else said.get("replacement", REDACTED),
            defaults=self.defaults and said.get("defaults", True),
        )

    def without_hook(self) -> Redaction:
        """The same, for what a hook has seen already."""
        return Redaction(self.names, self.patterns, replacement=self.replacement, defaults=self.defaults)

    def apply(self, data: Any) -> Any:
        """The same plain data without the secrets."""
        data = self._clean(data, under_secret=False)
        return data if self.hook is None else self.hook(data)

    def labelled(self, name: str, text: str) -> str:
        """A text that stands by itself under this name, without what looks like a secret."""
        return self.replacement if self.is_secret(name) else self.text(text)

    def is_secret(self, name: str) -> bool:
        """Whether what stands under this name is redacted."""
        return squash(name) in self._secret

    def text(self, text: str) -> str:
        """The same text without what looks like a secret."""
        if text[:1] in _OPENING and text[-1:] in _CLOSING:
            inner = self._inner_json(text)
            if inner is not None:
                return inner
        if "=" in text or ":" in text:
            text = assigned(text, self.is_secret, self.replacement)
        low = text.lower()
        for marks, shape in self._shapes:
            for mark in marks:
                if mark in low:
                    text = shape.sub(self._reshape, text)
                    break
        for pattern in self._own:
            text = pattern.sub(self._replace, text)
        if len(text) % 4 == 0 and _BASE64.match(text):
            return self._encoded(text)
        return text

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
                while name in cleaned:  # two names that were told apart by their secrets
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
        """A name and what stands under it, as headers are written, and dicts whose keys are no texts."""
        if type(pair) is dict:
            return {"$tuple": self._clean_pair(pair["$tuple"])}
        name, value = pair
        is_secret = any(map(self.is_secret, _spellings(name)))
        return [self._clean(name, under_secret=False), self._clean(value, under_secret=is_secret)]

    def _inner_json(self, text: str) -> str | None:
        """A text that is JSON itself, as the arguments of a tool call are in an LLM's answer."""
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        cleaned = self._clean(data, under_secret=False)
        return text if cleaned == data else msgspec.json.encode(cleaned).decode()

    def _replace(self, _match: re.Match[str]) -> str:
        return self.replacement

    def _reshape(self, match: re.Match[str]) -> str:
        return f"{match.groupdict().get('kept') or ''}{self.replacement}"

    def _hexadecimal(self, text: str) -> str:
        """Bytes among arguments that are no text."""
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


def redaction_of(given: Any) -> Redaction:
    """What ``redact=`` means: None, names and compiled patterns, a hook, or a `Redaction`.

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


def _is_pair(data: Any) -> bool:
    pair = data.get("$tuple") if type(data) is dict and len(data) == 1 else data
    return type(pair) is list and len(pair) == 2 and bool(_spellings(pair[0]))


def _spellings(name: Any) -> list[str]:
    """What a name says, in text or in bytes, which are text in arguments and base64 in outcomes."""
    if type(name) is str:
        return [name]
    inner = name.get("$bytes") if type(name) is dict and len(name) == 1 else None
    if type(inner) is not str:
        return []
    try:
        return [inner, base64.b64decode(inner, validate=True).decode("latin-1")]
    except ValueError:
        return [inner]


def _inlined(pattern: re.Pattern[str]) -> str:
    flags = "".join(
        letter
        for letter, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))
        if pattern.flags & flag
    )
    return f"(?{flags}:{pattern.pattern})" if flags else pattern.pattern
