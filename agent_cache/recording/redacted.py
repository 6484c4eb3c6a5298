"""Redaction of a call as a whole, with what it is known by: arguments, identity, model, outcome, digest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from agent_cache.recording.chunks import redacted_chunks
from agent_cache.recording.format import RecordedCall
from agent_cache.recording.identity import digest_of, digest_of_key
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.results import map_payload

__all__ = ["redacted_call", "redacted_key"]

_SHORT = 4
"""Characters of a secret that may be a part of other words by chance."""


def redacted_call(call: RecordedCall, rules: Redaction) -> RecordedCall:
    """The same call without its secrets, with a digest to match."""
    arguments = rules.apply(call.arguments)
    key = None if call.key is None else redacted_key(call.key, call.arguments, arguments, rules)
    digest = digest_of(call.name, arguments) if key is None else digest_of_key(call.name, key)
    outcome = map_payload(call.outcome, rules.apply)
    if "stream" in outcome:
        chunks = redacted_chunks(call.outcome["stream"]["chunks"], rules)
        outcome["stream"] = {**outcome["stream"], "chunks": chunks}
    return msgspec.structs.replace(
        call,
        arguments=arguments,
        key=key,
        digest=digest.hex(),
        model=None if call.model is None else rules.labelled("model", call.model),
        outcome=outcome,
    )


def redacted_key(key: str, arguments: Any, redacted: Any, rules: Redaction) -> str:
    """What ``cache_key=`` made of the arguments, without what redaction has taken out of these."""
    for removed in sorted(set(_removed(arguments, redacted)), key=len, reverse=True):
        if len(removed) < _SHORT:
            key = re.sub(rf"(?<!\w){re.escape(removed)}(?!\w)", lambda _: rules.replacement, key)
        else:
            key = key.replace(removed, rules.replacement)
    return rules.text(key)


def _removed(was: Any, now: Any) -> Iterator[str]:
    """Texts and numbers that stand in plain data, and not in the same place of what has become of it."""
    if was == now:
        return
    if isinstance(was, dict):
        for key, value in was.items():
            if not isinstance(now, dict) or key not in now:
                yield key
            yield from _removed(value, now.get(key) if isinstance(now, dict) else None)
    elif isinstance(was, list):
        others = now if isinstance(now, list) and len(now) == len(was) else [None] * len(was)
        for value, other in zip(was, others, strict=True):
            yield from _removed(value, other)
    elif was is not None and not isinstance(was, bool) and str(was):
        yield str(was)
