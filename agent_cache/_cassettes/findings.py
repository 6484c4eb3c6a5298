"""Secrets that a recording still has: where they stand, never what they are."""

from __future__ import annotations

from typing import Any

from agent_cache.recording import Cassette, RecordedCall, Redaction
from agent_cache.recording.outcomes import map_payload

__all__ = ["redacted_outcome", "rules_of", "secret_places"]


def rules_of(cassette: Cassette, names: list[str] | None = None, patterns: list[str] | None = None) -> Redaction:
    """What is redacted in a cassette: the defaults, what it remembers of its recording, and what is given here.

    A hook is not to be had here; what it did is done.
    """
    said = {key: value for key, value in cassette.header.redact.items() if key != "hook"}
    return Redaction(names or (), patterns or ()).joined(said)


def redacted_outcome(call: RecordedCall, rules: Redaction) -> dict[str, Any]:
    """The outcome without its secrets."""
    return map_payload(call.outcome, rules.apply)


def secret_places(call: RecordedCall, rules: Redaction) -> list[str]:
    """The parts of a call that have secrets in them."""
    found = _changed(call.arguments, rules.apply(call.arguments), "arguments")
    found += _changed(call.outcome, redacted_outcome(call, rules), "outcome")
    if call.key is not None and rules.text(call.key) != call.key:
        found.append("key")
    return found


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
