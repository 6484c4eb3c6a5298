"""Secrets that a recording still has: where they stand, never what they are."""

from __future__ import annotations

from typing import Any

from agent_cache.recording import Cassette, RecordedCall, Redaction
from agent_cache.recording.cassette import said_of
from agent_cache.recording.redacted import redacted_call

__all__ = ["rules_of", "secret_places"]


def rules_of(cassette: Cassette, names: list[str] | None = None, patterns: list[str] | None = None) -> Redaction:
    """What is redacted in a cassette: the defaults, what it remembers of its recording, and what is given here.

    A hook is not to be had here; what it did is done.
    """
    return Redaction(names or (), patterns or ()).joined(said_of(cassette))


def secret_places(call: RecordedCall, rules: Redaction) -> list[str]:
    """The parts of a call that have secrets in them."""
    clean = redacted_call(call, rules)
    found = _changed(call.arguments, clean.arguments, "arguments")
    found += _changed(call.outcome, clean.outcome, "outcome")
    return found + [part for part in ("key", "model") if getattr(call, part) != getattr(clean, part)]


def _changed(was: Any, now: Any, path: str) -> list[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        if list(was) != list(now):
            return [path]  # a secret in a key: its name would be the secret
        return [found for key in was for found in _changed(was[key], now[key], f"{path}.{key}")]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [
            found
            for at, (before, after) in enumerate(zip(was, now, strict=True))
            for found in _changed(before, after, f"{path}[{at}]")
        ]
    return [] if was == now else [path]
