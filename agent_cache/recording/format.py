"""The lines of a cassette: a header, one line for each call as it ended, a trailer. JSON Lines, version 1.

    {"agent_cache_cassette": 1, "recorded_at": "2026-01-01T12:00:00Z", "model": null, "redact": {}}
    {"id": 1, "kind": "tool", "name": "shop:get_order", "arguments": {"order_id": "7"}, "digest": "5f1c...", ...}
    {"trailer": {"calls": 1, "duration_ms": 12.5, "ended": "returned"}}

Order of lines is the order in which calls ended, order of ids that in which they started. An outcome is one of
``{"value": ...}`` (JSON itself), ``{"typed": ...}`` (read by the return annotation), ``{"error": ...}``,
``{"stream": {"chunks": [...], "end": ...}}``, ``{"cancelled": true}``, ``{"unencodable": "module.Class"}`` and
``{"unfinished": true}``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent_cache.values.tagged import encode

__all__ = ["VERSION", "Header", "RecordedCall", "Trailer", "call_line", "header_line", "trailer_line"]

VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The first line.

    Attributes:
        agent_cache_cassette: version of the format.
        recorded_at: when the recording was begun, in UTC.
        model: the label that the recording was given.
        redact: what was redacted beside the defaults, so that a replay does the same.
    """

    agent_cache_cassette: int = VERSION
    recorded_at: str | None = None
    model: str | None = None
    redact: dict[str, Any] = {}


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line. It is missing if the process was killed.

    Attributes:
        calls: how many calls there are.
        duration_ms: how long the recording lasted.
        ended: ``"returned"``, or ``"raised ..."`` with the name of the exception that left the block.
    """

    calls: int = 0
    duration_ms: float = 0.0
    ended: str = "returned"


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call, and what the run saw of it.

    Attributes:
        id: number of its start.
        parent: id of the call that enclosed it, or None.
        kind: ``tool``, ``llm``, ``call`` or ``env``.
        name: name of what was called.
        arguments: arguments by name, as plain data, redacted.
        key: the identity that ``cache_key=`` gave it instead of its arguments.
        digest: hexadecimal digest of name and arguments, or of name and key.
        after: id of the call whose line was the last when it started, 0 if there was none: that call, and those on the
            lines above it, had ended.
        lane: number of the task that made it, in the order in which tasks made their first call; a strict replay
            demands the order of what one task made.
        outcome: what it came to; see the top of this module.
        source: how a tool's cache answered: ``hit``, ``miss``, ``shared``, ``uncached``, ``write`` or ``blocked``.
        started_ms: when it started, from the beginning of the recording.
        duration_ms: how long it took; of a stream, until it was closed.
        input_tokens, output_tokens: of an LLM call, 0 where they are not known.
        model: of an LLM call, where it is known.
        form: ``"agentcassette"`` if the arguments are ``args`` and ``kwargs``, from a cassette of that package.
    """

    id: int
    parent: int | None = None
    kind: str
    name: str
    arguments: dict[str, Any] = {}
    key: str | None = None
    digest: str = ""
    after: int = 0
    lane: int = 0
    outcome: dict[str, Any]
    source: str = ""
    started_ms: float = 0.0
    duration_ms: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    model: str | None = None
    form: str = ""


def header_line(header: Header) -> bytes:
    """The header as it is written."""
    return encode(header) + b"\n"


def call_line(call: RecordedCall) -> bytes:
    """A call as it is written."""
    return encode(call) + b"\n"


def trailer_line(trailer: Trailer) -> bytes:
    """The trailer as it is written."""
    return encode({"trailer": trailer}) + b"\n"
