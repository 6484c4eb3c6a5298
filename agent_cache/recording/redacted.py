"""Redaction of a call as a whole, with what it is known by: arguments, identity, model, outcome, digest."""

from __future__ import annotations

import msgspec

from agent_cache.recording.format import RecordedCall
from agent_cache.recording.identity import digest_of, digest_of_key
from agent_cache.recording.redaction import Redaction, redact_key
from agent_cache.recording.results import map_payload, redact_chunks

__all__ = ["redacted_call"]


def redacted_call(call: RecordedCall, rules: Redaction) -> RecordedCall:
    """The same call without its secrets, with a digest to match."""
    arguments = rules.apply(call.arguments)
    key = None if call.key is None else redact_key(call.key, call.arguments, arguments, rules)
    digest = digest_of(call.name, arguments) if key is None else digest_of_key(call.name, key)
    outcome = map_payload(call.outcome, rules.apply)
    if "stream" in outcome:
        chunks = redact_chunks(call.outcome["stream"]["chunks"], rules)
        outcome["stream"] = {**outcome["stream"], "chunks": chunks}
    return msgspec.structs.replace(
        call,
        arguments=arguments,
        key=key,
        digest=digest.hex(),
        model=None if call.model is None else rules.labelled("model", call.model),
        outcome=outcome,
    )
